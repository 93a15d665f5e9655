//! `quorate run` with other kinds of lock than one that is held alone.

mod common;

use std::time::Duration;

use common::{done, end, masters, run, until};
use quorate_testbed::Masters;

/// How long anything may take on a machine that is starved of processor time.
const START: Duration = Duration::from_secs(10);

fn holds(masters: &Masters, key: &str) -> bool {
    let there = |master| {
        let master: &quorate_testbed::Server = master;
        master.command(&["EXISTS", key]).expect("alive").int() == Some(1)
    };
    masters.iter().filter(|master| there(master)).count() >= 2
}

/// A command that lasts until its standard input ends.
fn lasting(masters: &Masters, args: &[&str]) -> std::process::Child {
    run(masters, args, &["cat"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("starts")
}

#[test]
fn several_resources_are_locked_at_once_or_not_at_all() {
    let masters = masters(3);
    let mut both = lasting(&masters, &["a", "--also", "b"]);
    until("both are held", || {
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
fn readers_run_beside_each_other_and_permits_are_counted() {
    let masters = masters(3);
    let mut reader = lasting(&masters, &["--shared", "doc"]);
    until("it reads", || holds(&masters, "doc"));
    let beside = done(&mut run(&masters, &["--shared", "--try", "doc"], &["true"]));
    assert_eq!(beside.code, Some(0), "{beside:?}");
    let writer = done(&mut run(&masters, &["--try", "doc"], &["true"]));
    assert_eq!(writer.code, Some(75), "{writer:?}");
    drop(reader.stdin.take());
    assert_eq!(end(reader).code, Some(0));

    let mut permit = lasting(&masters, &["--permits", "2", "api"]);
    let slot = |n: u8| format!("quorate:slot:{n}:api");
    until("one is taken", || {
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
fn a_nested_run_is_refused_what_its_ancestor_holds_or_joins_its_owner() {
    let masters = masters(3);
    let quorate = env!("CARGO_BIN_EXE_quorate");
    // Settings and masters come to it by its environment.
    let nested = |args: &str| format!("'{quorate}' run {args}");
    let began = std::time::Instant::now();
    let refused = done(&mut run(
        &masters,
        &["job"],
        &["sh", "-c", &nested("job -- true")],
    ));
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert!(refused.err.contains("--reenter"), "{refused:?}");
    assert!(began.elapsed() < START, "it waited for itself");
    // Another resource is nobody's business.
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
    assert_eq!(numbers[0], numbers[1], "one owner, one number");
    let nobody = done(&mut run(&masters, &["--reenter", "job"], &["true"]));
    assert_eq!(nobody.code, Some(64), "{nobody:?}");
}

#[test]
fn a_permit_and_the_plain_lock_of_its_name_are_two_locks_and_a_single_permit_is_one() {
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
    ] {
        let ran = done(&mut run(&masters, outer, &["sh", "-c", &nested(inner)]));
        assert_eq!(ran.code, Some(code), "{outer:?} {inner}: {ran:?}");
    }
}

#[test]
fn lead_and_run_are_refused_at_once_what_an_ancestor_holds() {
    let masters = masters(3);
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let lead = format!("'{quorate}' lead job -- true");
    let refused = |ran: common::Done| {
        let line = "quorate: the quorate that this one runs under holds 'job' itself, and waits for this one to \
                    end: give that one an --owner ID and this one --reenter, or name another resource\n";
        assert!(ran.err.contains(line), "{ran:?}");
    };
    let under_run = done(&mut run(&masters, &["job"], &["sh", "-c", &lead]));
    assert_eq!(under_run.code, Some(75), "{under_run:?}");
    refused(under_run);
    // What leads campaigns again when its command fails: so the command says how the inner one ended.
    for inner in [format!("'{quorate}' run job -- true"), lead] {
        let script = format!("{inner}; test $? = 75");
        let mut leads = common::quorate(&masters);
        leads.args(["lead", "job", "--", "sh", "-c", &script]);
        let under_lead = done(&mut leads);
        assert_eq!(under_lead.code, Some(0), "{under_lead:?}");
        refused(under_lead);
    }
}
