//! Tests of nested runs, and of `quorate run` with all kinds of locks except exclusive locks. In a nested run, the
//! command of an outer `quorate run` starts an inner `quorate run`.

use std::time::Duration;

use crate::common::{self, output_of, quorate_run, start_masters, wait_for_output, wait_until};
use quorate_testbed::Masters;

/// How long one step of a test can take on an overloaded machine.
const MAX_REFUSAL_TIME: Duration = Duration::from_secs(10);

fn is_held_by_majority(masters: &Masters, key: &str) -> bool {
    let has_key = |master| {
        let master: &quorate_testbed::Server = master;
        master.command(&["EXISTS", key]).expect("a reply").int() == Some(1)
    };
    masters.iter().filter(|master| has_key(master)).count() >= 2
}

/// Starts `quorate run` with a command that runs until the test closes its standard input.
fn start_holder(masters: &Masters, args: &[&str]) -> std::process::Child {
    quorate_run(masters, args, &["cat"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("starts")
}

#[test]
fn run_locks_its_resource_and_every_additional_resource() {
    let masters = start_masters(3);
    let mut holder = start_holder(&masters, &["a", "--also", "b"]);
    wait_until("both locks are held", || {
        is_held_by_majority(&masters, "a") && is_held_by_majority(&masters, "b")
    });
    for name in ["a", "b"] {
        let refused_run = output_of(&mut quorate_run(&masters, &["--try", name], &["true"]));
        assert_eq!(refused_run.code, Some(75), "{refused_run:?}");
    }
    drop(holder.stdin.take());
    assert_eq!(wait_for_output(holder).code, Some(0));
    let same_name_twice_run =
        output_of(&mut quorate_run(&masters, &["a", "--also", "a"], &["true"]));
    assert_eq!(
        same_name_twice_run.code,
        Some(64),
        "{same_name_twice_run:?}"
    );
    assert!(
        same_name_twice_run.stderr.contains("twice"),
        "{same_name_twice_run:?}"
    );
}

#[test]
fn run_supports_shared_locks_and_permits() {
    let masters = start_masters(3);
    let mut reader = start_holder(&masters, &["--shared", "doc"]);
    wait_until("the reader holds the lock", || {
        is_held_by_majority(&masters, "doc")
    });
    let second_reader_run = output_of(&mut quorate_run(
        &masters,
        &["--shared", "--try", "doc"],
        &["true"],
    ));
    assert_eq!(second_reader_run.code, Some(0), "{second_reader_run:?}");
    let writer_output = output_of(&mut quorate_run(&masters, &["--try", "doc"], &["true"]));
    assert_eq!(writer_output.code, Some(75), "{writer_output:?}");
    drop(reader.stdin.take());
    assert_eq!(wait_for_output(reader).code, Some(0));

    let mut permit = start_holder(&masters, &["--permits", "2", "api"]);
    let slot_key = |n: u8| format!("quorate:slot:{n}:api");
    wait_until("one permit is taken", || {
        is_held_by_majority(&masters, &slot_key(0)) || is_held_by_majority(&masters, &slot_key(1))
    });
    let script = "test -n \"$QUORATE_SLOT\"";
    let second_run = output_of(&mut quorate_run(
        &masters,
        &["--permits", "2", "api"],
        &["sh", "-c", script],
    ));
    assert_eq!(second_run.code, Some(0), "{second_run:?}");
    drop(permit.stdin.take());
    assert_eq!(wait_for_output(permit).code, Some(0));
    let zero_permits_run = output_of(&mut quorate_run(
        &masters,
        &["--permits", "0", "api"],
        &["true"],
    ));
    assert_eq!(zero_permits_run.code, Some(64), "{zero_permits_run:?}");
}

#[test]
fn nested_run_gets_the_lock_of_its_ancestor_only_with_the_option_reenter() {
    let masters = start_masters(3);
    let quorate = env!("CARGO_BIN_EXE_quorate");
    // The inner run gets its settings and masters from the environment of the outer run.
    let nested = |args: &str| format!("'{quorate}' run {args}");
    let started_at = std::time::Instant::now();
    let refused_run = output_of(&mut quorate_run(
        &masters,
        &["job"],
        &["sh", "-c", &nested("job -- true")],
    ));
    assert_eq!(refused_run.code, Some(75), "{refused_run:?}");
    assert!(refused_run.stderr.contains("--reenter"), "{refused_run:?}");
    assert!(
        started_at.elapsed() < MAX_REFUSAL_TIME,
        "a nested quorate must not wait for the lock of its ancestor"
    );
    // A nested run must be able to acquire a lock that its ancestor does not hold.
    let other_name_run = output_of(&mut quorate_run(
        &masters,
        &["job"],
        &["sh", "-c", &nested("other -- true")],
    ));
    assert_eq!(other_name_run.code, Some(0), "{other_name_run:?}");
    let script = nested("--reenter job -- sh -c 'echo $QUORATE_FENCING_TOKEN'");
    let script = format!("echo $QUORATE_FENCING_TOKEN; {script}");
    let joined_run = output_of(&mut quorate_run(
        &masters,
        &["--owner", "order-1", "job"],
        &["sh", "-c", &script],
    ));
    assert_eq!(joined_run.code, Some(0), "{joined_run:?}");
    let fencing_numbers: Vec<&str> = joined_run.stdout.split_whitespace().collect();
    assert_eq!(fencing_numbers.len(), 2, "{joined_run:?}");
    assert_eq!(
        fencing_numbers[0], fencing_numbers[1],
        "both holds of the owner must have the same fencing token"
    );
    let no_owner_run = output_of(&mut quorate_run(&masters, &["--reenter", "job"], &["true"]));
    assert_eq!(no_owner_run.code, Some(64), "{no_owner_run:?}");
}

#[test]
fn permit_and_plain_lock_of_one_name_are_independent_locks() {
    let masters = start_masters(3);
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
        let output = output_of(&mut quorate_run(
            &masters,
            outer,
            &["sh", "-c", &nested(inner)],
        ));
        assert_eq!(output.code, Some(code), "{outer:?} {inner}: {output:?}");
    }
}

#[test]
fn nested_run_gets_a_free_slot_if_its_ancestor_holds_a_different_slot() {
    let masters = start_masters(3);
    let mut first_holder = start_holder(&masters, &["--permits", "1", "api"]);
    wait_until("slot 0 is taken", || {
        is_held_by_majority(&masters, "quorate:slot:0:api")
    });
    // The outer run gets slot 1, because slot 0 is taken. Then slot 0 is released, and the inner run must get it.
    let inner_script = "cat; test \"$QUORATE_SLOT\" = 1 && Q run --wait 5s --permits 1 api -- true";
    let script = inner_script.replace("Q ", concat!("'", env!("CARGO_BIN_EXE_quorate"), "' "));
    let mut outer_child = quorate_run(&masters, &["--permits", "2", "api"], &["sh", "-c", &script])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    wait_until("slot 1 is taken", || {
        is_held_by_majority(&masters, "quorate:slot:1:api")
    });
    drop(first_holder.stdin.take());
    assert_eq!(wait_for_output(first_holder).code, Some(0));
    drop(outer_child.stdin.take());
    let outer_output = wait_for_output(outer_child);
    assert_eq!(outer_output.code, Some(0), "{outer_output:?}");
}

#[test]
fn nested_permit_is_refused_if_the_ancestors_slot_is_unknown() {
    let masters = start_masters(3);
    for (permits, code) in [("1", 75), ("2", 0)] {
        // Remove the number of the slot from the entry of the outer run.
        let unnamed = "QUORATE_HELD=${QUORATE_HELD%%=*}@${QUORATE_HELD#*@}";
        let script = format!("export {unnamed}; Q run --permits {permits} api -- true");
        let output = nested(&masters, &["--permits", "2", "api"], &script);
        assert_eq!(output.code, Some(code), "{permits}: {output:?}");
    }
}

/// Each entry of `QUORATE_HELD` names a lock and the process that holds it. A daemon can inherit the variable from a
/// `quorate run` that has ended. A `quorate` that the daemon starts must ignore this entry.
#[test]
fn variable_quorate_held_is_ignored_if_its_process_is_not_an_ancestor() {
    let masters = start_masters(3);
    let print_held_command = &["sh", "-c", "echo \"$QUORATE_HELD\""];
    for outer in [
        &["job"][..],
        &["--shared", "job"],
        &["--owner", "a", "job"],
        &["--permits", "1", "job"],
    ] {
        let print_held_command = output_of(&mut quorate_run(&masters, outer, print_held_command));
        let (held, inner) = (print_held_command.stdout.trim(), ["--wait", "1s"]);
        let mut unrelated_run = quorate_run(&masters, &[&inner, outer].concat(), &["true"]);
        let unrelated_run = output_of(unrelated_run.env("QUORATE_HELD", held));
        assert_eq!(unrelated_run.code, Some(0), "{held}: {unrelated_run:?}");
        if outer.len() > 1 {
            continue;
        }
        // An entry that names no process of this pid namespace cannot be checked, so quorate must ignore it.
        let (hold, _) = held
            .split_once('@')
            .expect("an entry of QUORATE_HELD must name the process that holds the lock");
        for held in [hold.to_owned(), format!("{hold}@"), format!("{hold}@1.2")] {
            let inner_output =
                output_of(quorate_run(&masters, outer, &["true"]).env("QUORATE_HELD", &held));
            assert_eq!(inner_output.code, Some(0), "{held}: {inner_output:?}");
        }
    }
}

#[test]
fn command_gets_no_variables_of_another_lock() {
    let masters = start_masters(3);
    let echo_variables = "sh -c 'echo \"${QUORATE_SLOT-none} ${QUORATE_OWNER-none} ${QUORATE_ALSO-none} $QUORATE_RESOURCE\"'";
    for outer in [
        &["--permits", "1", "outer"][..],
        &["--owner", "somebody", "outer"],
        &["outer", "--also", "another"],
    ] {
        for inner in ["run inner -- ", "lead inner -- "] {
            let script = format!(
                "'{}' {inner}{echo_variables}",
                env!("CARGO_BIN_EXE_quorate")
            );
            let output = output_of(&mut quorate_run(&masters, outer, &["sh", "-c", &script]));
            assert_eq!(
                output.stdout, "none none none inner\n",
                "{outer:?} {inner}: {output:?}"
            );
        }
    }
    // The owner of a process that is not an ancestor must not be used.
    let mut unrelated_run = quorate_run(&masters, &["--reenter", "job"], &["true"]);
    let unrelated_run = output_of(unrelated_run.env("QUORATE_OWNER", "somebody"));
    assert_eq!(unrelated_run.code, Some(64), "{unrelated_run:?}");
    // A run between the two owners does not hide the owner of the outer run.
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let script = format!("'{quorate}' run between -- '{quorate}' run --reenter job -- true");
    let output = output_of(&mut quorate_run(
        &masters,
        &["--owner", "a", "job"],
        &["sh", "-c", &script],
    ));
    assert_eq!(output.code, Some(0), "{output:?}");
}

#[test]
fn nested_run_or_lead_fails_immediately_if_its_ancestor_holds_the_lock() {
    let masters = start_masters(3);
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let lead = format!("'{quorate}' lead job -- true");
    let assert_refused = |output: common::RunOutput| {
        let refusal_line = "quorate: 'job' is held by the outer quorate process, which waits for this inner quorate to end: start \
                 the outer quorate with --owner ID and the inner quorate with --reenter, or use another name\n";
        assert!(output.stderr.contains(refusal_line), "{output:?}");
    };
    let under_run = output_of(&mut quorate_run(&masters, &["job"], &["sh", "-c", &lead]));
    assert_eq!(under_run.code, Some(75), "{under_run:?}");
    assert_refused(under_run);
    // The script succeeds if `inner` exits with 75 (the lock is held). If the script failed, `lead` would repeat it.
    for inner in [format!("'{quorate}' run job -- true"), lead] {
        let script = format!("{inner}; test $? = 75");
        let mut leads = common::quorate_on(&masters);
        leads.args(["lead", "job", "--", "sh", "-c", &script]);
        let under_lead = output_of(&mut leads);
        assert_eq!(under_lead.code, Some(0), "{under_lead:?}");
        assert_refused(under_lead);
    }
}

/// Runs the shell script `inner` under an outer `quorate run` with the options `outer`. `Q` in the script means
/// `quorate`.
fn nested(masters: &Masters, outer: &[&str], inner: &str) -> common::RunOutput {
    let script = inner.replace("Q ", concat!("'", env!("CARGO_BIN_EXE_quorate"), "' "));
    output_of(&mut quorate_run(masters, outer, &["sh", "-c", &script]))
}

#[test]
fn nested_run_uses_the_locks_and_owner_ids_of_all_its_ancestors() {
    let masters = start_masters(3);
    let outer_options = ["--owner", "the first", "x"];
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
        let output = nested(&masters, &outer_options, inner);
        assert_eq!(output.code, Some(code), "{inner}: {output:?}");
        let refused = output
            .stderr
            .contains("'x' is held by the outer quorate process");
        assert_eq!(refused, code == 75, "{inner}: {output:?}");
    }
}

#[test]
fn nested_run_recognizes_its_ancestors_lock_by_prefix_and_name() {
    let masters = start_masters(3);
    for (outer, code) in [("x", 0), ("other:x", 75)] {
        let inner_script = "QUORATE_PREFIX=other: Q run --wait 1s x -- true";
        let output = nested(&masters, &[outer], inner_script);
        assert_eq!(output.code, Some(code), "{outer}: {output:?}");
        let refused = output
            .stderr
            .contains("'x' is held by the outer quorate process");
        assert_eq!(refused, code == 75, "{outer}: {output:?}");
    }
}

#[test]
fn nested_quota_or_once_fails_immediately_if_its_ancestor_holds_the_lock() {
    let masters = start_masters(3);
    for inner in ["Q quota take --wait 1s x", "Q once --create x"] {
        let output = nested(&masters, &["x"], inner);
        assert_eq!(output.code, Some(75), "{inner}: {output:?}");
        assert!(
            output
                .stderr
                .contains("'x' is held by the outer quorate process"),
            "{inner}: {output:?}"
        );
        // The outer run holds the lock `y`, or a permit of the semaphore `x`. So quorate must not refuse the inner run,
        // which requests the lock `x`.
        for outer in [&["y"][..], &["--permits", "2", "x"]] {
            let other_lock_run = nested(&masters, outer, inner);
            assert!(
                !other_lock_run.stderr.contains("outer quorate"),
                "{inner}: {other_lock_run:?}"
            );
        }
    }
}

#[test]
fn nested_reader_is_refused_if_a_writer_waits_for_the_outer_reader() {
    let masters = start_masters(3);
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let inner_script = format!("cat; '{quorate}' run --wait 15s --ttl 2s --shared doc -- true");
    let mut reader_child =
        quorate_run(&masters, &["--shared", "doc"], &["sh", "-c", &inner_script])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("starts");
    wait_until("the reader holds the lock", || {
        is_held_by_majority(&masters, "doc")
    });
    let writer = quorate_run(&masters, &["doc"], &["true"])
        .spawn()
        .expect("starts");
    wait_until("a writer waits", || {
        is_held_by_majority(&masters, "quorate:queue:doc")
    });
    drop(reader_child.stdin.take());
    let reader_output = wait_for_output(reader_child);
    assert_eq!(reader_output.code, Some(75), "{reader_output:?}");
    assert!(
        reader_output
            .stderr
            .contains("the outer quorate process holds the lock as a reader"),
        "{reader_output:?}"
    );
    assert_eq!(wait_for_output(writer).code, Some(0));
}
