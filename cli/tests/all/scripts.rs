//! Tests of options of `quorate run` for scripts: `--quiet`, `--conflict-exit-code`, `--shell`, and commands without
//! `--`.

use std::process::Command;

use crate::common::{Done, bare, done, held_by_another, masters, quorate};
use quorate_testbed::Masters;

/// Runs `quorate` with these arguments on the given masters.
fn typed(masters: &Masters, words: &[&str]) -> Done {
    done(patient(masters).args(words))
}

fn patient(masters: &Masters) -> Command {
    let mut command = quorate(masters);
    command.env("QUORATE_NODE_TIMEOUT", "500ms");
    command.env("QUORATE_CONNECT_TIMEOUT", "2s");
    command
}

#[test]
fn quiet_run_prints_nothing_about_a_held_lock() {
    let masters = masters(3);
    held_by_another(&masters);
    for words in [
        &["run", "--quiet", "--try", "r", "--", "true"][..],
        &["run", "--wait", "200ms", "r", "-q", "--", "true"],
        &["hold", "--quiet", "--try", "r"],
        &["quota", "take", "-q", "--wait", "none", "r"],
    ] {
        let quiet = typed(&masters, words);
        assert_eq!((quiet.code, &*quiet.err), (Some(75), ""), "{quiet:?}");
    }
    let loud = typed(&masters, &["run", "--try", "r", "--", "true"]);
    assert!(loud.err.contains("held by another"), "{loud:?}");
    let error = typed(&masters, &["run", "-q", "free", "--", "no-such-command"]);
    assert_eq!(error.code, Some(127), "{error:?}");
    assert!(error.err.contains("no-such-command"), "{error:?}");
    masters[0].kill().expect("killed");
    masters[1].kill().expect("killed");
    let outage = typed(&masters, &["run", "-q", "--try", "r", "--", "true"]);
    assert_eq!(outage.code, Some(69), "{outage:?}");
    assert_eq!(outage.err.lines().count(), 1, "{outage:?}");
}

#[test]
fn option_conflict_exit_code_replaces_the_exit_code_75() {
    let masters = masters(3);
    held_by_another(&masters);
    for (words, code) in [
        (&["--try", "--conflict-exit-code", "0"][..], 0),
        (&["--try", "-E", "9"], 9),
        (&["--wait", "100ms", "-E255"], 255),
    ] {
        let ran = done(
            patient(&masters)
                .arg("run")
                .args(words)
                .args(["r", "--", "true"]),
        );
        assert_eq!(ran.code, Some(code), "{ran:?}");
    }
    let of_variable = done(
        patient(&masters)
            .env("QUORATE_CONFLICT_EXIT_CODE", "3")
            .args(["hold", "--try", "r"]),
    );
    assert_eq!(of_variable.code, Some(3), "{of_variable:?}");
    let own = typed(
        &masters,
        &["run", "-E", "9", "free", "--", "sh", "-c", "exit 75"],
    );
    assert_eq!(
        own.code,
        Some(75),
        "--conflict-exit-code must not replace the exit code 75 of the command itself: {own:?}"
    );
    let wrong = typed(&masters, &["run", "-E", "256", "r", "--", "true"]);
    assert_eq!(wrong.code, Some(64), "{wrong:?}");
    assert!(wrong.err.contains("--conflict-exit-code"), "{wrong:?}");
}

#[test]
fn shell_option_runs_a_line_with_sh() {
    let masters = masters(3);
    let line = "echo $QUORATE_RESOURCE | tr a-z A-Z; exit 4";
    for words in [
        &["run", "name", "--shell", line][..],
        &["run", "--shell", line, "name"],
    ] {
        let ran = typed(&masters, words);
        assert_eq!((ran.code, &*ran.out), (Some(4), "NAME\n"), "{ran:?}");
    }
    let both = typed(&masters, &["run", "r", "--shell", line, "--", "true"]);
    assert_eq!(both.code, Some(64), "{both:?}");
    assert!(both.err.contains("--shell"), "{both:?}");
    let created = typed(&masters, &["once", "--create", "daily"]);
    assert_eq!(created.code, Some(0), "{created:?}");
    let once = typed(
        &masters,
        &["once", "--per", "1d", "daily", "--shell", "echo ran"],
    );
    assert_eq!((once.code, &*once.out), (Some(0), "ran\n"), "{once:?}");
}

#[test]
fn double_dash_before_the_command_is_optional_in_an_unambiguous_line() {
    let masters = masters(3);
    for words in [
        &["run", "r", "printf", "%s|", "a", "--full", "-x"][..],
        &[
            "run", "--ttl", "5s", "r", "--", "printf", "%s|", "a", "--full", "-x",
        ],
        &[
            "run", "r", "--ttl", "5s", "printf", "%s|", "a", "--full", "-x",
        ],
    ] {
        let ran = typed(&masters, words);
        assert_eq!((ran.code, &*ran.out), (Some(0), "a|--full|-x|"), "{ran:?}");
    }
    let both = typed(&masters, &["run", "r", "--", "echo", "a", "--", "-q"]);
    assert_eq!((both.code, &*both.out), (Some(0), "a -- -q\n"), "{both:?}");
}

#[test]
fn quorate_answers_an_ambiguous_command_line_with_the_corrected_line() {
    for (words, right) in [
        (
            &["run", "r", "tar", "-v", "x"][..],
            "`quorate run r -- tar -v x`",
        ),
        (
            &["run", "r", "make", "--ttl=5s"],
            "`quorate run r -- make --ttl=5s`",
        ),
        (
            &["run", "a", "b", "--", "make"],
            "`quorate run a -- b -- make`",
        ),
        (
            &["run", "--", "make", "all"],
            "`quorate run RESOURCE -- make all`",
        ),
        (&["lead", "r", "top", "-q"], "`quorate lead r -- top -q`"),
        (
            &["once", "--per", "1h", "r", "cp", "--help"],
            "`quorate once --per 1h r -- cp --help`",
        ),
    ] {
        let refused = done(bare().args(words));
        assert_eq!((refused.code, &*refused.out), (Some(64), ""), "{refused:?}");
        assert!(refused.err.contains(right), "{refused:?}");
        assert_eq!(refused.err.lines().count(), 1, "{refused:?}");
    }
}
