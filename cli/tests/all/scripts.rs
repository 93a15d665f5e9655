//! Tests of options of `quorate run` for scripts: `--quiet`, `--conflict-exit-code`, `--shell`, and commands without
//! `--`.

use std::process::Command;

use crate::common::{
    RunOutput, occupy_lock, output_of, quorate_command, quorate_on, start_masters,
};
use quorate_testbed::Masters;

/// Runs `quorate` with these arguments on the given masters.
fn run_words(masters: &Masters, words: &[&str]) -> RunOutput {
    output_of(patient_command(masters).args(words))
}

fn patient_command(masters: &Masters) -> Command {
    let mut command = quorate_on(masters);
    command.env("QUORATE_NODE_TIMEOUT", "500ms");
    command.env("QUORATE_CONNECT_TIMEOUT", "2s");
    command
}

#[test]
fn quiet_run_prints_nothing_about_a_held_lock() {
    let masters = start_masters(3);
    occupy_lock(&masters);
    for words in [
        &["run", "--quiet", "--try", "r", "--", "true"][..],
        &["run", "--wait", "200ms", "r", "-q", "--", "true"],
        &["hold", "--quiet", "--try", "r"],
        &["quota", "take", "-q", "--wait", "none", "r"],
    ] {
        let quiet_run = run_words(&masters, words);
        assert_eq!(
            (quiet_run.code, &*quiet_run.stderr),
            (Some(75), ""),
            "{quiet_run:?}"
        );
    }
    let loud = run_words(&masters, &["run", "--try", "r", "--", "true"]);
    assert!(loud.stderr.contains("held by another"), "{loud:?}");
    let missing_command_run = run_words(&masters, &["run", "-q", "free", "--", "no-such-command"]);
    assert_eq!(
        missing_command_run.code,
        Some(127),
        "{missing_command_run:?}"
    );
    assert!(
        missing_command_run.stderr.contains("no-such-command"),
        "{missing_command_run:?}"
    );
    masters[0].kill().expect("killed");
    masters[1].kill().expect("killed");
    let outage_run = run_words(&masters, &["run", "-q", "--try", "r", "--", "true"]);
    assert_eq!(outage_run.code, Some(69), "{outage_run:?}");
    assert_eq!(outage_run.stderr.lines().count(), 1, "{outage_run:?}");
}

#[test]
fn option_conflict_exit_code_replaces_the_exit_code_75() {
    let masters = start_masters(3);
    occupy_lock(&masters);
    for (words, code) in [
        (&["--try", "--conflict-exit-code", "0"][..], 0),
        (&["--try", "-E", "9"], 9),
        (&["--wait", "100ms", "-E255"], 255),
    ] {
        let output = output_of(
            patient_command(&masters)
                .arg("run")
                .args(words)
                .args(["r", "--", "true"]),
        );
        assert_eq!(output.code, Some(code), "{output:?}");
    }
    let of_variable = output_of(
        patient_command(&masters)
            .env("QUORATE_CONFLICT_EXIT_CODE", "3")
            .args(["hold", "--try", "r"]),
    );
    assert_eq!(of_variable.code, Some(3), "{of_variable:?}");
    let failed_run = run_words(
        &masters,
        &["run", "-E", "9", "free", "--", "sh", "-c", "exit 75"],
    );
    assert_eq!(
        failed_run.code,
        Some(75),
        "--conflict-exit-code must not replace the exit code 75 of the command itself: {failed_run:?}"
    );
    let wrong_run = run_words(&masters, &["run", "-E", "256", "r", "--", "true"]);
    assert_eq!(wrong_run.code, Some(64), "{wrong_run:?}");
    assert!(
        wrong_run.stderr.contains("--conflict-exit-code"),
        "{wrong_run:?}"
    );
}

#[test]
fn shell_option_runs_a_line_with_sh() {
    let masters = start_masters(3);
    let shell_line = "echo $QUORATE_RESOURCE | tr a-z A-Z; exit 4";
    for words in [
        &["run", "name", "--shell", shell_line][..],
        &["run", "--shell", shell_line, "name"],
    ] {
        let output = run_words(&masters, words);
        assert_eq!(
            (output.code, &*output.stdout),
            (Some(4), "NAME\n"),
            "{output:?}"
        );
    }
    let shell_and_command_run =
        run_words(&masters, &["run", "r", "--shell", shell_line, "--", "true"]);
    assert_eq!(
        shell_and_command_run.code,
        Some(64),
        "{shell_and_command_run:?}"
    );
    assert!(
        shell_and_command_run.stderr.contains("--shell"),
        "{shell_and_command_run:?}"
    );
    let created_run = run_words(&masters, &["once", "--create", "daily"]);
    assert_eq!(created_run.code, Some(0), "{created_run:?}");
    let once_run = run_words(
        &masters,
        &["once", "--per", "1d", "daily", "--shell", "echo ran"],
    );
    assert_eq!(
        (once_run.code, &*once_run.stdout),
        (Some(0), "ran\n"),
        "{once_run:?}"
    );
}

#[test]
fn double_dash_before_the_command_is_optional_in_an_unambiguous_line() {
    let masters = start_masters(3);
    for words in [
        &["run", "r", "printf", "%s|", "a", "--full", "-x"][..],
        &[
            "run", "--ttl", "5s", "r", "--", "printf", "%s|", "a", "--full", "-x",
        ],
        &[
            "run", "r", "--ttl", "5s", "printf", "%s|", "a", "--full", "-x",
        ],
    ] {
        let output = run_words(&masters, words);
        assert_eq!(
            (output.code, &*output.stdout),
            (Some(0), "a|--full|-x|"),
            "{output:?}"
        );
    }
    let two_separators_run = run_words(&masters, &["run", "r", "--", "echo", "a", "--", "-q"]);
    assert_eq!(
        (two_separators_run.code, &*two_separators_run.stdout),
        (Some(0), "a -- -q\n"),
        "{two_separators_run:?}"
    );
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
        let refused_run = output_of(quorate_command().args(words));
        assert_eq!(
            (refused_run.code, &*refused_run.stdout),
            (Some(64), ""),
            "{refused_run:?}"
        );
        assert!(refused_run.stderr.contains(right), "{refused_run:?}");
        assert_eq!(refused_run.stderr.lines().count(), 1, "{refused_run:?}");
    }
}
