//! Tests of `quorate run` on a terminal. If a command reads from the terminal, its process group becomes the foreground
//! process group until the command ends.
//!
//! The program `script` of util-linux creates the terminals. If it is missing, these tests do not run.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{
    output_of, quorate_command, start_masters, wait_for_output, without_variables,
};
use quorate_testbed::Masters;

/// Runs `line` in a shell on a terminal, and types `keys` with a pause before each. Returns the output of the terminal;
/// `None` if the program `script` is missing.
fn at_a_terminal(masters: &Masters, line: &str, keys: &[&str]) -> Option<String> {
    let command_line = line.replace("quorate", env!("CARGO_BIN_EXE_quorate"));
    // Let `script` run an interactive shell, because only an interactive shell has job control.
    let mut script = Command::new("script");
    let mut script = without_variables(&mut script)
        .args(["-qec", "bash --norc --noprofile -i", "/dev/null"])
        .env("QUORATE_MASTERS", masters.urls().join(","))
        .env("QUORATE_RESTART_GUARD", "off")
        .env("PS1", "$ ")
        .env("TERM", "dumb")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let mut keyboard = script.stdin.take().expect("piped");
    let mut press_keys = |keys: &str| {
        std::thread::sleep(Duration::from_millis(500));
        keyboard
            .write_all(keys.as_bytes())
            .expect("the keys must be typed");
        keyboard.flush().expect("the keys must be typed");
    };
    press_keys(&format!("{command_line}\n"));
    for key in keys {
        press_keys(key);
    }
    press_keys("echo code=$?\n");
    press_keys("exit\n");
    drop(keyboard);
    Some(wait_for_output(script).stdout)
}

#[test]
fn command_reads_from_the_terminal_and_the_shell_gets_the_terminal_back() {
    let masters = start_masters(1);
    let Some(screen) = at_a_terminal(
        &masters,
        "quorate run r -- sh -c 'read x; echo got-$x; exit 4'",
        &["word\n"],
    ) else {
        return;
    };
    assert!(
        screen.contains("got-word") && screen.contains("code=4"),
        "{screen}"
    );
}

#[test]
fn waiting_message_on_a_terminal_shows_the_seconds_waited_but_never_zero() {
    let masters = start_masters(1);
    let set_reply = masters[0].command(&["SET", "r", "somebody else"]);
    set_reply.expect("a reply");
    let keys = ["", "", "", ""];
    let Some(screen) = at_a_terminal(
        &masters,
        "TERM=xterm quorate run --wait 2s r -- true",
        &keys,
    ) else {
        return;
    };
    assert!(screen.contains("waiting for 'r'"), "{screen}");
    assert!(screen.contains("waited 1s"), "{screen}");
    assert!(!screen.contains("waited 0s"), "{screen}");
}

#[test]
fn ctrl_c_ends_the_command() {
    let masters = start_masters(1);
    for command in ["sleep 60", "cat"] {
        let Some(screen) =
            at_a_terminal(&masters, &format!("quorate run r -- {command}"), &["\x03"])
        else {
            return;
        };
        assert!(screen.contains("code=130"), "{command}: {screen}");
    }
}

/// While the command reads from the terminal, Ctrl-C reaches only the command. Tests the two documented ways to end a
/// command that ignores Ctrl-C: `Ctrl-\`, and Ctrl-Z followed by `kill`.
#[test]
fn ctrl_backslash_or_kill_ends_a_command_that_ignores_ctrl_c() {
    let masters = start_masters(1);
    let command_line = "quorate run r -- sh -c \"trap '' INT; while :; do read x; done\"";
    for end in [&["\x1c"][..], &["\x1a", "kill %1; fg\n", "\n"]] {
        let keys = [&["one\n", "\x03", "\x03", "two\n"], end].concat();
        let Some(screen) = at_a_terminal(&masters, command_line, &keys) else {
            return;
        };
        assert!(!screen.contains("second Ctrl-C"), "{screen}");
        let mut expected_texts = ["code=131", "code=143", "Terminated"].into_iter();
        let has_ended = expected_texts.any(|text| screen.contains(text));
        assert!(has_ended, "{end:?}: {screen}");
    }
    let help = output_of(
        quorate_command()
            .args(["help", "command"])
            .env("COLUMNS", "100"),
    );
    let help = help.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "only the command gets Ctrl-C",
        "Ctrl-\\",
        "Ctrl-Z, and type kill %1; fg",
    ] {
        assert!(help.contains(words), "{words}: {help}");
    }
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let masters = start_masters(1);
    let Some(screen) = at_a_terminal(
        &masters,
        "quorate run r -- cat",
        &[
            "one\n",
            "\x1a",
            "jobs; echo in-$((20+3))\n",
            "fg\n",
            "two\n",
            "\x04",
        ],
    ) else {
        return;
    };
    assert!(screen.contains("in-23"), "{screen}");
    assert!(
        screen.matches("two").count() >= 2,
        "the terminal must show the typed line and the line that the command prints: {screen}"
    );
    assert!(screen.contains("code=0"), "{screen}");
}

#[test]
fn run_ends_its_command_if_the_job_was_stopped_until_the_lock_expired() {
    let masters = start_masters(1);
    let Some(screen) = at_a_terminal(
        &masters,
        "quorate run --ttl 1s r -- cat",
        &["one\n", "\x1a", "sleep 1.5\n", "\n", "\n", "fg\n", "\n"],
    ) else {
        return;
    };
    assert!(screen.contains("was lost"), "{screen}");
}

#[test]
fn hold_ends_on_ctrl_c_and_ctrl_d() {
    let masters = start_masters(1);
    for (key, code) in [("\x04", "code=0"), ("\x03", "code=130")] {
        let Some(screen) = at_a_terminal(&masters, "quorate hold r", &[key]) else {
            return;
        };
        assert!(screen.contains(code), "{code}: {screen}");
    }
}

#[test]
fn hold_in_the_background_is_not_stopped_by_the_terminal() {
    let masters = start_masters(1);
    let keys = ["", "jobs\n", "kill %1; wait %1\n"];
    let Some(screen) = at_a_terminal(&masters, "quorate hold r &", &keys) else {
        return;
    };
    assert!(
        screen.contains("Running") && !screen.contains("Stopped"),
        "{screen}"
    );
    assert!(screen.contains("code=143"), "{screen}");
}
