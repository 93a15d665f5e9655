//! Tests of nested runs, and of `quorate run` with all kinds of locks except exclusive locks. In a nested run, the
//! command of an outer `quorate run` starts an inner `quorate run`.

use std::time::Duration;

use crate::common::{self, done, end, masters, run, until};
use quorate_testbed::Masters;

/// How long one step of a test can take on an overloaded machine.
const START: Duration = Duration::from_secs(10);

fn holds(masters: &Masters, key: &str) -> bool {
    let there = |master| {
        let master: &quorate_testbed::Server = master;
        master.command(&["EXISTS", key]).expect("a reply").int() == Some(1)
    };
    masters.iter().filter(|master| there(master)).count() >= 2
}

/// Starts `quorate run` with a command that runs until the test closes its standard input.
fn lasting(masters: &Masters, args: &[&str]) -> std::process::Child {
    run(masters, args, &["cat"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("starts")
}

#[test]
fn run_locks_its_resource_and_every_additional_resource() {
    let masters = masters(3);
    let mut both = lasting(&masters, &["a", "--also", "b"]);
    until("both locks are held", || {
        holds(&masters, "a") && holds(&masters, "b")
    });
    for other in ["a", "b"] {
        let refused = done(&mut run(&masters, &["--try", other], &["true"]));
        assert_eq!(refused.code, Some(75), "{refused:?}");
    }
    drop(both.stdin.take());
    assert_eq!(end(both).code, Some(0));
    let twice = done(&mut run(&masters, &["a", "--also", "a"], &["true"]));
    assert_eq!(twice.code, Some(64), "{twice:?}");
    assert!(twice.err.contains("twice"), "{twice:?}");
}

#[test]
fn run_supports_shared_locks_and_permits() {
    let masters = masters(3);
    let mut reader = lasting(&masters, &["--shared", "doc"]);
    until("the reader holds the lock", || holds(&masters, "doc"));
    let beside = done(&mut run(&masters, &["--shared", "--try", "doc"], &["true"]));
    assert_eq!(beside.code, Some(0), "{beside:?}");
    let writer = done(&mut run(&masters, &["--try", "doc"], &["true"]));
    assert_eq!(writer.code, Some(75), "{writer:?}");
    drop(reader.stdin.take());
    assert_eq!(end(reader).code, Some(0));

    let mut permit = lasting(&masters, &["--permits", "2", "api"]);
    let slot = |n: u8| format!("quorate:slot:{n}:api");
    until("one permit is taken", || {
        holds(&masters, &slot(0)) || holds(&masters, &slot(1))
    });
    let script = "test -n \"$QUORATE_SLOT\"";
    let second = done(&mut run(
        &masters,
        &["--permits", "2", "api"],
        &["sh", "-c", script],
    ));
    assert_eq!(second.code, Some(0), "{second:?}");
    drop(permit.stdin.take());
    assert_eq!(end(permit).code, Some(0));
    let none = done(&mut run(&masters, &["--permits", "0", "api"], &["true"]));
    assert_eq!(none.code, Some(64), "{none:?}");
}

#[test]
fn nested_run_gets_the_lock_of_its_ancestor_only_with_the_option_reenter() {
    let masters = masters(3);
    let quorate = env!("CARGO_BIN_EXE_quorate");
    // The inner run gets its settings and masters from the environment of the outer run.
    let nested = |args: &str| format!("'{quorate}' run {args}");
    let began = std::time::Instant::now();
    let refused = done(&mut run(
        &masters,
        &["job"],
        &["sh", "-c", &nested("job -- true")],
    ));
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert!(refused.err.contains("--reenter"), "{refused:?}");
    assert!(
        began.elapsed() < START,
        "a nested quorate must not wait for the lock of its ancestor"
    );
    // A nested run must be able to acquire a lock that its ancestor does not hold.
    let other = done(&mut run(
        &masters,
        &["job"],
        &["sh", "-c", &nested("other -- true")],
    ));
    assert_eq!(other.code, Some(0), "{other:?}");
    let script = nested("--reenter job -- sh -c 'echo $QUORATE_FENCING_TOKEN'");
    let script = format!("echo $QUORATE_FENCING_TOKEN; {script}");
    let joined = done(&mut run(
        &masters,
        &["--owner", "order-1", "job"],
        &["sh", "-c", &script],
    ));
    assert_eq!(joined.code, Some(0), "{joined:?}");
    let numbers: Vec<&str> = joined.out.split_whitespace().collect();
    assert_eq!(numbers.len(), 2, "{joined:?}");
    assert_eq!(
        numbers[0], numbers[1],
        "both holds of the owner must have the same fencing token"
    );
    let nobody = done(&mut run(&masters, &["--reenter", "job"], &["true"]));
    assert_eq!(nobody.code, Some(64), "{nobody:?}");
}

#[test]
fn permit_and_plain_lock_of_one_name_are_independent_locks() {
    let masters = masters(3);
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let nested = |args: &str| format!("'{quorate}' {args}");
    for (outer, inner, code) in [
        (&["--permits", "2", "api"][..], "run api -- true", 0),
        (&["api"], "run --permits 2 api -- true", 0),
        (&["--permits", "2", "api"], "run --permits 2 api -- true", 0),
        (
            &["--permits", "1", "api"],
            "run --permits 1 api -- true",
            75,
        ),
        (
            &["--permits", "1", "api"],
            "run --permits 0 api -- true",
            64,
        ),
        (&["--permits", "1", "api"], "run --permits 2 api -- true", 0),
    ] {
        let ran = done(&mut run(&masters, outer, &["sh", "-c", &nested(inner)]));
        assert_eq!(ran.code, Some(code), "{outer:?} {inner}: {ran:?}");
    }
}

#[test]
fn nested_run_gets_a_free_slot_if_its_ancestor_holds_a_different_slot() {
    let masters = masters(3);
    let mut first = lasting(&masters, &["--permits", "1", "api"]);
    until("slot 0 is taken", || holds(&masters, "quorate:slot:0:api"));
    // The outer run gets slot 1, because slot 0 is taken. Then slot 0 is released, and the inner run must get it.
    let inner = "cat; test \"$QUORATE_SLOT\" = 1 && Q run --wait 5s --permits 1 api -- true";
    let script = inner.replace("Q ", concat!("'", env!("CARGO_BIN_EXE_quorate"), "' "));
    let mut outer = run(&masters, &["--permits", "2", "api"], &["sh", "-c", &script])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    until("slot 1 is taken", || holds(&masters, "quorate:slot:1:api"));
    drop(first.stdin.take());
    assert_eq!(end(first).code, Some(0));
    drop(outer.stdin.take());
    let outer = end(outer);
    assert_eq!(outer.code, Some(0), "{outer:?}");
}

#[test]
fn nested_permit_is_refused_if_the_ancestors_slot_is_unknown() {
    let masters = masters(3);
    for (permits, code) in [("1", 75), ("2", 0)] {
        // Remove the number of the slot from the entry of the outer run.
        let unnamed = "QUORATE_HELD=${QUORATE_HELD%%=*}@${QUORATE_HELD#*@}";
        let script = format!("export {unnamed}; Q run --permits {permits} api -- true");
        let ran = nested(&masters, &["--permits", "2", "api"], &script);
        assert_eq!(ran.code, Some(code), "{permits}: {ran:?}");
    }
}

/// Each entry of `QUORATE_HELD` names a lock and the process that holds it. A daemon can inherit the variable from a
/// `quorate run` that has ended. A `quorate` that the daemon starts must ignore this entry.
#[test]
fn variable_quorate_held_is_ignored_if_its_process_is_not_an_ancestor() {
    let masters = masters(3);
    let told = &["sh", "-c", "echo \"$QUORATE_HELD\""];
    for outer in [
        &["job"][..],
        &["--shared", "job"],
        &["--owner", "a", "job"],
        &["--permits", "1", "job"],
    ] {
        let told = done(&mut run(&masters, outer, told));
        let (held, inner) = (told.out.trim(), ["--wait", "1s"]);
        let mut left = run(&masters, &[&inner, outer].concat(), &["true"]);
        let left = done(left.env("QUORATE_HELD", held));
        assert_eq!(left.code, Some(0), "{held}: {left:?}");
        if outer.len() > 1 {
            continue;
        }
        // An entry that names no process of this pid namespace cannot be checked, so quorate must ignore it.
        let (hold, _) = held
            .split_once('@')
            .expect("an entry of QUORATE_HELD must name the process that holds the lock");
        for held in [hold.to_owned(), format!("{hold}@"), format!("{hold}@1.2")] {
            let inner = done(run(&masters, outer, &["true"]).env("QUORATE_HELD", &held));
            assert_eq!(inner.code, Some(0), "{held}: {inner:?}");
        }
    }
}

#[test]
fn command_gets_no_variables_of_another_lock() {
    let masters = masters(3);
    let shown = "sh -c 'echo \"${QUORATE_SLOT-none} ${QUORATE_OWNER-none} ${QUORATE_ALSO-none} $QUORATE_RESOURCE\"'";
    for outer in [
        &["--permits", "1", "outer"][..],
        &["--owner", "somebody", "outer"],
        &["outer", "--also", "another"],
    ] {
        for inner in ["run inner -- ", "lead inner -- "] {
            let script = format!("'{}' {inner}{shown}", env!("CARGO_BIN_EXE_quorate"));
            let ran = done(&mut run(&masters, outer, &["sh", "-c", &script]));
            assert_eq!(
                ran.out, "none none none inner\n",
                "{outer:?} {inner}: {ran:?}"
            );
        }
    }
    // The owner of a process that is not an ancestor must not be used.
    let mut stale = run(&masters, &["--reenter", "job"], &["true"]);
    let stale = done(stale.env("QUORATE_OWNER", "somebody"));
    assert_eq!(stale.code, Some(64), "{stale:?}");
    // A run between the two owners does not hide the owner of the outer run.
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let script = format!("'{quorate}' run between -- '{quorate}' run --reenter job -- true");
    let ran = done(&mut run(
        &masters,
        &["--owner", "a", "job"],
        &["sh", "-c", &script],
    ));
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn nested_run_or_lead_fails_immediately_if_its_ancestor_holds_the_lock() {
    let masters = masters(3);
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let lead = format!("'{quorate}' lead job -- true");
    let refused = |ran: common::Done| {
        let line = "quorate: 'job' is held by the outer quorate process, which waits for this inner quorate to end: start \
                 the outer quorate with --owner ID and the inner quorate with --reenter, or use another name\n";
        assert!(ran.err.contains(line), "{ran:?}");
    };
    let under_run = done(&mut run(&masters, &["job"], &["sh", "-c", &lead]));
    assert_eq!(under_run.code, Some(75), "{under_run:?}");
    refused(under_run);
    // The script succeeds if `inner` exits with 75 (the lock is held). If the script failed, `lead` would repeat it.
    for inner in [format!("'{quorate}' run job -- true"), lead] {
        let script = format!("{inner}; test $? = 75");
        let mut leads = common::quorate(&masters);
        leads.args(["lead", "job", "--", "sh", "-c", &script]);
        let under_lead = done(&mut leads);
        assert_eq!(under_lead.code, Some(0), "{under_lead:?}");
        refused(under_lead);
    }
}

/// Runs the shell script `inner` under an outer `quorate run` with the options `outer`. `Q` in the script means
/// `quorate`.
fn nested(masters: &Masters, outer: &[&str], inner: &str) -> common::Done {
    let script = inner.replace("Q ", concat!("'", env!("CARGO_BIN_EXE_quorate"), "' "));
    done(&mut run(masters, outer, &["sh", "-c", &script]))
}

#[test]
fn nested_run_uses_the_locks_and_owner_ids_of_all_its_ancestors() {
    let masters = masters(3);
    let outer = ["--owner", "the first", "x"];
    for (inner, code) in [
        (
            "Q run --owner b y -- Q run --wait 1s --reenter x -- true",
            0,
        ),
        (
            "Q run --owner b y -- Q run --owner 'the first' x -- true",
            0,
        ),
        (
            "Q run --owner b y -- Q run --wait 1s --reenter z -- true",
            0,
        ),
        (
            "Q run --owner b y -- Q run --wait 1s --owner b x -- true",
            75,
        ),
    ] {
        let ran = nested(&masters, &outer, inner);
        assert_eq!(ran.code, Some(code), "{inner}: {ran:?}");
        let refused = ran.err.contains("'x' is held by the outer quorate process");
        assert_eq!(refused, code == 75, "{inner}: {ran:?}");
    }
}

#[test]
fn nested_run_recognizes_its_ancestors_lock_by_prefix_and_name() {
    let masters = masters(3);
    for (outer, code) in [("x", 0), ("other:x", 75)] {
        let inner = "QUORATE_PREFIX=other: Q run --wait 1s x -- true";
        let ran = nested(&masters, &[outer], inner);
        assert_eq!(ran.code, Some(code), "{outer}: {ran:?}");
        let refused = ran.err.contains("'x' is held by the outer quorate process");
        assert_eq!(refused, code == 75, "{outer}: {ran:?}");
    }
}

#[test]
fn nested_quota_or_once_fails_immediately_if_its_ancestor_holds_the_lock() {
    let masters = masters(3);
    for inner in ["Q quota take --wait 1s x", "Q once --create x"] {
        let ran = nested(&masters, &["x"], inner);
        assert_eq!(ran.code, Some(75), "{inner}: {ran:?}");
        assert!(
            ran.err.contains("'x' is held by the outer quorate process"),
            "{inner}: {ran:?}"
        );
        // The outer run holds the lock `y`, or a permit of the semaphore `x`. So quorate must not refuse the inner run,
        // which requests the lock `x`.
        for outer in [&["y"][..], &["--permits", "2", "x"]] {
            let beside = nested(&masters, outer, inner);
            assert!(!beside.err.contains("outer quorate"), "{inner}: {beside:?}");
        }
    }
}

#[test]
fn nested_reader_is_refused_if_a_writer_waits_for_the_outer_reader() {
    let masters = masters(3);
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let inner = format!("cat; '{quorate}' run --wait 15s --ttl 2s --shared doc -- true");
    let mut reader = run(&masters, &["--shared", "doc"], &["sh", "-c", &inner])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    until("the reader holds the lock", || holds(&masters, "doc"));
    let writer = run(&masters, &["doc"], &["true"]).spawn().expect("starts");
    until("a writer waits", || holds(&masters, "quorate:queue:doc"));
    drop(reader.stdin.take());
    let reader = end(reader);
    assert_eq!(reader.code, Some(75), "{reader:?}");
    assert!(
        reader
            .err
            .contains("the outer quorate process holds the lock as a reader"),
        "{reader:?}"
    );
    assert_eq!(end(writer).code, Some(0));
}
