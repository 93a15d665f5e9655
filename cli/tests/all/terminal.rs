//! Tests of `quorate run` on a terminal. If a command reads from the terminal, its process group becomes the foreground
//! process group until the command ends.
//!
//! The program `script` of util-linux creates the terminals. If it is missing, these tests do not run.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{output_of, quorate_command, start_masters, wait_until, without_variables};
use quorate_testbed::{Masters, within};

/// The shell prints this line before each prompt.
const PROMPT: &str = "prompt-42";
/// No wait for a text.
const AT_ONCE: &str = "";

/// A shell on a terminal, and what the terminal shows. Dropping the value ends the shell.
struct Terminal {
    /// The program `script`, which creates the terminal. Its standard input is the keyboard.
    script: Child,
    screen: Arc<Mutex<Vec<u8>>>,
    /// The length of the output when the last keys were pressed.
    seen_length: usize,
}

impl Terminal {
    /// Starts a shell on a terminal; `None` if the program `script` is missing.
    fn start(masters: &Masters) -> Option<Self> {
        // Let `script` run an interactive shell, because only an interactive shell has job control.
        let mut script = Command::new("script");
        let mut script = without_variables(&mut script)
            .args(["-qec", "bash --norc --noprofile -i", "/dev/null"])
            .env("QUORATE_MASTERS", masters.urls().join(","))
            .env("QUORATE_RESTART_GUARD", "off")
            // The terminal also shows the typed lines, so no typed line must contain the text of the prompt.
            .env("PROMPT_COMMAND", "echo prompt-$((40+2))")
            .env("TERM", "dumb")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut output = script.stdout.take().expect("piped");
        let screen = Arc::<Mutex<Vec<u8>>>::default();
        let shown = screen.clone();
        // The thread ends when `script` ends.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                let mut screen = shown.lock().expect("no thread panics");
                screen.extend_from_slice(&bytes[..length]);
            }
        });
        Some(Self {
            script,
            screen,
            seen_length: 0,
        })
    }

    /// The output from this position on.
    fn output_from(&self, position: usize) -> String {
        let screen = self.screen.lock().expect("no thread panics");
        String::from_utf8_lossy(&screen[position..]).into_owned()
    }

    /// Waits until the output since the last keys contains `text`. Then waits half a second, and types `keys`.
    fn press_keys_after(&mut self, text: &str, keys: &str) {
        let is_shown = within(Duration::from_secs(60), || {
            self.output_from(self.seen_length).contains(text)
        });
        assert!(is_shown, "no {text:?} in {}", self.output_from(0));
        std::thread::sleep(Duration::from_millis(500));
        self.seen_length = self.screen.lock().expect("no thread panics").len();
        let keyboard = self.script.stdin.as_mut().expect("piped");
        let is_typed = keyboard.write_all(keys.as_bytes());
        is_typed
            .and_then(|()| keyboard.flush())
            .expect("the keys must be typed");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// Runs `line` in a shell on a terminal. For each step, waits until the terminal shows the first text, and then types the
/// second one. Returns the output of the terminal; `None` if the program `script` is missing.
fn at_a_terminal(masters: &Masters, line: &str, steps: &[(&str, &str)]) -> Option<String> {
    let mut terminal = Terminal::start(masters)?;
    let command_line = line.replace("quorate", env!("CARGO_BIN_EXE_quorate"));
    terminal.press_keys_after(PROMPT, &format!("{command_line}\n"));
    for (text, keys) in steps {
        terminal.press_keys_after(text, keys);
    }
    terminal.press_keys_after(PROMPT, "echo code=$?\n");
    terminal.press_keys_after(PROMPT, "exit\n");
    wait_until("the shell ends", || {
        terminal.script.try_wait().expect("a child").is_some()
    });
    Some(terminal.output_from(0))
}

#[test]
fn command_reads_from_the_terminal_and_the_shell_gets_the_terminal_back() {
    let masters = start_masters(1);
    let Some(screen) = at_a_terminal(
        &masters,
        "quorate run r -- sh -c 'read x; echo got-$x; exit 4'",
        &[(AT_ONCE, "word\n")],
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
    let line = "TERM=xterm quorate run --wait 2s r -- true";
    let Some(screen) = at_a_terminal(&masters, line, &[]) else {
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
        let line = format!("quorate run r -- sh -c 'echo up-$((3+4)); exec {command}'");
        let Some(screen) = at_a_terminal(&masters, &line, &[("up-7", "\x03")]) else {
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
    let command_line =
        "quorate run r -- sh -c \"trap '' INT; while read x; do echo got-\\$x; done\"";
    let start = [
        (AT_ONCE, "one\n"),
        ("got-one", "\x03"),
        (AT_ONCE, "\x03"),
        (AT_ONCE, "two\n"),
    ];
    let quit = [("got-two", "\x1c")];
    let stop_and_kill = [("got-two", "\x1a"), (PROMPT, "kill %1; fg\n")];
    for end in [&quit[..], &stop_and_kill] {
        let steps = [&start, end].concat();
        let Some(screen) = at_a_terminal(&masters, command_line, &steps) else {
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
        "quorate run r -- sh -c 'echo up-$((3+4)); exec cat'",
        &[
            ("up-7", "one\n"),
            ("one\r\none", "\x1a"),
            (PROMPT, "jobs; echo in-$((20+3))\n"),
            (PROMPT, "fg\n"),
            // The shell prints the command that it continues.
            ("exec cat", "two\n"),
            ("two\r\ntwo", "\x04"),
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
        "quorate run --ttl 3s r -- sh -c 'echo up-$((3+4)); exec cat'",
        &[
            ("up-7", "one\n"),
            ("one\r\none", "\x1a"),
            (PROMPT, "sleep 3.5\n"),
            (PROMPT, "fg\n"),
        ],
    ) else {
        return;
    };
    assert!(screen.contains("was lost"), "{screen}");
}

#[test]
fn hold_ends_on_ctrl_c_and_ctrl_d() {
    let masters = start_masters(1);
    for (key, code) in [("\x04", "code=0"), ("\x03", "code=130")] {
        // The first line of the output is the fencing token, which begins with 1.
        let steps = [("\r\n1", key)];
        let Some(screen) = at_a_terminal(&masters, "quorate hold r", &steps) else {
            return;
        };
        assert!(screen.contains(code), "{code}: {screen}");
    }
}

#[test]
fn hold_in_the_background_is_not_stopped_by_the_terminal() {
    let masters = start_masters(1);
    let steps = [
        (AT_ONCE, ""),
        (AT_ONCE, "jobs\n"),
        (PROMPT, "kill %1; wait %1\n"),
    ];
    let Some(screen) = at_a_terminal(&masters, "quorate hold r &", &steps) else {
        return;
    };
    assert!(
        screen.contains("Running") && !screen.contains("Stopped"),
        "{screen}"
    );
    assert!(screen.contains("code=143"), "{screen}");
}
