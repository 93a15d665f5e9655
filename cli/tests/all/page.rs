//! Tests of `quorate page` and `quorate demo --page`: which machines may connect, clear errors, and the end by a signal.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use quorate_testbed::not_run;

use crate::common::{
    output_of, quorate_command, quorate_on, quorate_run, send_signal, start_masters,
    wait_for_output, wait_until,
};

/// A running `quorate` that serves a page. A test that fails kills it.
struct RunningPage {
    /// `None` after [`end`](Self::end).
    child: Option<Child>,
    /// The address without `http://`.
    address: String,
    /// The lines before the address.
    first_lines: String,
    stderr: BufReader<ChildStderr>,
}

fn start_page(command: &mut Command) -> RunningPage {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("quorate starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut first_lines = String::new();
    let address = loop {
        let mut line = String::new();
        let bytes = stderr.read_line(&mut line).expect("text");
        assert!(bytes > 0, "no address: {first_lines}");
        first_lines.push_str(&line);
        if let Some((_, rest)) = line.split_once("the page is at http://") {
            break rest.split('/').next().unwrap_or_default().to_owned();
        }
    };
    RunningPage {
        child: Some(child),
        address,
        first_lines,
        stderr,
    }
}

impl RunningPage {
    fn get(&self, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("the page accepts");
        let limit = Some(Duration::from_secs(20));
        stream.set_read_timeout(limit).expect("a timeout");
        let request = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Watches the page, so that it asks the masters.
    fn watch(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("the page accepts");
        let request = b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).expect("sent");
        stream
    }

    /// Sends a signal. Returns the exit code, the number of the signal of which the page died, and all its messages.
    fn end(mut self, signal: &str) -> (Option<i32>, Option<i32>, String) {
        let child = self.child.take().expect("it runs until its end");
        send_signal(&child, signal);
        let mut messages = std::mem::take(&mut self.first_lines);
        self.stderr.read_to_string(&mut messages).expect("text");
        let run = wait_for_output(child);
        (run.code, run.died_of, messages)
    }
}

impl Drop for RunningPage {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn page_listens_on_the_loopback_address_and_ends_with_a_signal() {
    let masters = start_masters(3);
    let page = start_page(quorate_on(&masters).args(["page", "--listen", "0"]));
    assert!(page.address.starts_with("127.0.0.1:"), "{}", page.address);
    let _viewer = page.watch();
    let holder = quorate_run(&masters, &["billing"], &["sleep", "60"]).spawn();
    let holder = holder.expect("starts");
    wait_until("the page shows the lock", || {
        let state = page.get("/api/state", "Host: localhost\r\n");
        state.contains("\"id\":\"l:billing\"") && state.contains("3 of 3 masters vote")
    });
    send_signal(&holder, "TERM");
    wait_for_output(holder);
    let foreign_host = page.get("/", "Host: evil.example\r\n");
    assert!(foreign_host.starts_with("HTTP/1.1 421 "), "{foreign_host}");
    let again = output_of(quorate_on(&masters).args(["page", "--listen", &page.address]));
    assert_eq!(again.code, Some(70), "{again:?}");
    assert!(
        again.stderr.contains("cannot listen on 127.0.0.1:")
            && again
                .stderr
                .contains("choose another address with --listen"),
        "{again:?}"
    );
    let (code, died_of, messages) = page.end("TERM");
    assert_eq!((code, died_of), (Some(143), Some(15)), "{messages}");
}

#[test]
fn page_that_other_machines_can_reach_needs_a_password() {
    let masters = start_masters(1);
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("password");
    let path = file.to_str().expect("text");
    let set_mode = |mode| {
        let rights = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, rights).expect("changed");
    };
    let run_with = |options: &[&str]| {
        let mut command = quorate_on(&masters);
        command.arg("page").args(["--listen", "0.0.0.0:0"]);
        output_of(command.args(options))
    };
    for (content, options, text) in [
        (None, &[][..], "give --password-file FILE, or --no-password"),
        (
            None,
            &["--password-file", path],
            "cannot read --password-file",
        ),
        (
            Some("\nsecret"),
            &["--password-file", path],
            "its first line, the password, is empty",
        ),
        (
            Some("hidden"),
            &["--no-password", "--password-file", path],
            "cannot be used with",
        ),
    ] {
        if let Some(content) = content {
            std::fs::write(&file, content).expect("written");
            set_mode(0o600);
        }
        let run = run_with(options);
        assert_eq!(run.code, Some(64), "{options:?}: {run:?}");
        assert!(run.stderr.contains(text), "{options:?}: {run:?}");
        assert!(!run.stderr.contains("hidden"), "{run:?}");
    }
    set_mode(0o640);
    let run = run_with(&["--password-file", path]);
    assert_eq!(run.code, Some(64), "{run:?}");
    assert!(run.stderr.contains("run chmod 600"), "{run:?}");
    assert!(!run.stderr.contains("hidden"), "{run:?}");
    set_mode(0o600);
    let mut command = quorate_on(&masters);
    command.args(["page", "--listen", "0.0.0.0:0", "--password-file", path]);
    let mut page = start_page(command.args(["--host", "locks.example"]));
    page.address = page.address.replace("0.0.0.0", "127.0.0.1");
    let host = "Host: locks.example\r\n";
    let refused = page.get("/api/state", host);
    assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");
    // "any:hidden" in base64.
    let with_password = format!("{host}Authorization: Basic YW55OmhpZGRlbg==\r\n");
    let answer = page.get("/api/state", &with_password);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(!answer.contains("hidden"), "{answer}");
    let (_, _, messages) = page.end("INT");
    assert!(!messages.contains("hidden"), "{messages}");
}

#[test]
fn page_starts_without_a_reachable_master_and_refuses_a_bad_history_file() {
    let mut command = quorate_command();
    command.env("QUORATE_MASTERS", "redis://127.0.0.1:1,redis://127.0.0.1:2");
    let page = start_page(command.args(["page", "--listen", "0"]));
    let _viewer = page.watch();
    wait_until("the page says that no master answers", || {
        let state = page.get("/api/state", "Host: localhost\r\n");
        state.contains("No quorum: 0 of 2 masters vote, 2 are needed")
    });
    page.end("TERM");
    let mut command = quorate_command();
    command.env("QUORATE_MASTERS", "redis://127.0.0.1:1");
    let history = ["--history", "/nonexistent/history"];
    let run = output_of(command.args(["page", "--listen", "0"]).args(history));
    assert_eq!(run.code, Some(70), "{run:?}");
    let text = "cannot open the history file /nonexistent/history";
    assert!(run.stderr.contains(text), "{run:?}");
}

#[test]
fn demo_with_a_page_shows_locks_until_it_is_interrupted_and_stops_its_masters() {
    let temporary = tempfile::tempdir().expect("a directory");
    let mut command = quorate_command();
    command
        .args(["demo", "--page"])
        .env("TMPDIR", temporary.path())
        .env("QUORATE_SERVER_DATA", temporary.path());
    let page = start_page(&mut command);
    let _viewer = page.watch();
    wait_until("the page shows locks, a semaphore and an election", || {
        let state = page.get("/api/state", "Host: localhost\r\n");
        [
            "\"l:demo:prizes\"",
            "\"kind\":\"permit\"",
            "\"kind\":\"election\"",
        ]
        .iter()
        .all(|part| state.contains(part))
    });
    let (code, died_of, messages) = page.end("INT");
    assert_eq!((code, died_of), (Some(130), Some(2)), "{messages}");
    let entries = std::fs::read_dir(temporary.path()).expect("read").count();
    assert_eq!(entries, 0, "{messages}");
}

#[test]
fn command_of_the_systemd_unit_serves_a_page_with_a_history() {
    let unit = include_str!("../../../packaging/systemd/quorate-page.service");
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/quorate "));
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().to_str().expect("text");
    let line = line
        .expect("a command")
        .replace("${CREDENTIALS_DIRECTORY}", path)
        .replace("${STATE_DIRECTORY}", path);
    let masters = start_masters(1);
    let config = format!("masters = '{}'\n", masters.urls().join(","));
    std::fs::write(folder.path().join("quorate.toml"), config).expect("written");
    let mut command = quorate_command();
    command
        .args(line.split_whitespace())
        .args(["--listen", "0"]);
    let page = start_page(&mut command);
    wait_until("the history has an event", || {
        let history = std::fs::read_to_string(folder.path().join("history"));
        history.is_ok_and(|history| history.contains("watch_began"))
    });
    let (code, died_of, messages) = page.end("TERM");
    assert_eq!((code, died_of), (Some(143), Some(15)), "{messages}");
    let name = "command_of_the_systemd_unit_serves_a_page_with_a_history";
    let unit_path = folder.path().join("quorate-page.service");
    let local_unit = unit.replace("/usr/bin/quorate", env!("CARGO_BIN_EXE_quorate"));
    std::fs::write(&unit_path, local_unit).expect("written");
    let mut verify = Command::new("systemd-analyze");
    match verify.args(["verify", "--man=no"]).arg(&unit_path).output() {
        Ok(verified) => assert!(verified.status.success(), "{verified:?}"),
        Err(_) => not_run(name, "there is no systemd-analyze"),
    }
}
