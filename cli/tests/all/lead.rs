//! Tests of holders and leaders on real masters: notes, `status`, `lead` and `watch`.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::common::{
    Ends, alive, done, end, mark, masters, quorate, run, signal, sleeps, until, until_held,
};
use quorate_testbed::Masters;
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// `quorate` with timeouts that are long enough for a busy machine, and with a short ttl.
fn patient(masters: &Masters, args: &[&str]) -> Command {
    let mut command = quorate(masters);
    command
        .env("QUORATE_NODE_TIMEOUT", "500ms")
        .env("QUORATE_CONNECT_TIMEOUT", "2s")
        .env("QUORATE_TTL", "3s")
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn lead(masters: &Masters, note: &str, command: &[&str]) -> Command {
    let mut lead = patient(masters, &["lead", "boss", "--note", note, "--"]);
    lead.args(command);
    lead
}

/// A child process, and a channel on which the lines that it prints arrive.
struct Lines {
    child: Child,
    lines: Receiver<String>,
}

impl Lines {
    fn of(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    fn next(&self) -> String {
        self.lines
            .recv_timeout(Duration::from_secs(20))
            .expect("a line")
    }

    fn end(&mut self) -> ExitStatus {
        let mut status = None;
        until("the process ends", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("the process must have ended")
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next leader that `watch --json` prints.
fn leader(watch: &Lines) -> Value {
    loop {
        let change = json(&watch.next());
        if change["leader"] == true {
            return change;
        }
    }
}

#[test]
fn note_given_by_the_lock_holder_appears_in_status_and_messages() {
    let masters = masters(3);
    let secret = format!("sleep {}", mark());
    let holder = run(
        &masters,
        &["--note", "by hand", "r"],
        &["sh", "-c", &secret],
    )
    .spawn()
    .expect("starts");
    let pid = holder.id();
    until_held(&masters, "quorate:note:r");
    let mut told = Value::Null;
    until("status shows the note of the holder", || {
        told = json(&done(quorate(&masters).args(["status", "--json", "r"])).out);
        !told["resources"][0]["note"].is_null()
    });
    let note = &told["resources"][0]["note"];
    assert_eq!(note["pid"], pid);
    assert_eq!(note["text"], "by hand");
    assert_eq!(note["process"], "quorate");
    assert!(
        note["since"]
            .as_str()
            .is_some_and(|since| since.ends_with('Z')),
        "{note}"
    );
    let page = done(quorate(&masters).args(["status", "r"]));
    assert!(
        page.out.contains("by hand") && page.out.contains(&pid.to_string()),
        "{page:?}"
    );
    assert!(
        !page.out.contains("sleep"),
        "the status must not show the command line: {page:?}"
    );
    let refused = done(&mut run(&masters, &["--wait", "100ms", "r"], &["true"]));
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert!(refused.err.contains("by hand"), "{refused:?}");
    let waited = done(&mut run(&masters, &["--wait", "5s", "r"], &["true"]));
    let lines: Vec<&str> = waited.err.lines().collect();
    assert!(
        lines.len() > 1 && lines[0].contains("by hand"),
        "{waited:?}"
    );
    let listed = json(&done(quorate(&masters).args(["status", "--json"])).out);
    assert_eq!(listed["resources"][0]["resource"], "r");
    assert_eq!(listed["resources"][0]["note"]["text"], "by hand");
    assert_eq!(listed["complete"], true);
    let listed = done(quorate(&masters).args(["status", "--starting-with", "r"]));
    assert!(listed.out.contains("by hand"), "{listed:?}");
    let none = done(quorate(&masters).args(["status", "--starting-with", "s"]));
    assert_eq!((none.code, &*none.out), (Some(0), "nothing is locked\n"));
    let broken = done(quorate(&masters).args(["break", "r", "--yes"]));
    assert!(broken.out.contains("by hand"), "{broken:?}");
    signal(&holder, "TERM");
    end(holder);
}

#[test]
fn status_without_a_name_exits_with_69_if_no_majority_answers() {
    let masters = masters(3);
    masters[0].kill().expect("killed");
    let one = done(quorate(&masters).args(["status"]));
    assert_eq!(one.code, Some(0), "{one:?}");
    assert!(one.out.contains("not asked"), "{one:?}");
    masters[1].kill().expect("killed");
    let two = done(quorate(&masters).args(["status", "--json"]));
    assert_eq!(two.code, Some(69), "{two:?}");
    assert_eq!(json(&two.out)["complete"], false, "{two:?}");
    assert_eq!(
        json(&two.out)["not_asked"].as_array().map(Vec::len),
        Some(2)
    );
}

#[test]
fn watch_reports_on_stderr_that_too_few_masters_answer() {
    let masters = masters(3);
    for master in masters.iter().take(2) {
        master.stop().expect("stopped");
    }
    let mut watch = patient(&masters, &["watch", "boss", "--json"]);
    let mut watch = watch.spawn().expect("starts");
    let said = BufReader::new(watch.stderr.take().expect("piped"));
    let mut said = said.lines().map(|line| line.expect("text"));
    let mut wanted = |text: &str| {
        let line = said.find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("no line with {text:?}"))
    };
    let line = wanted("no quorum: 1 of 3 masters answered, 2 are needed");
    for master in masters.iter().take(2) {
        assert!(line.contains(&master.port().to_string()), "{line}");
        master.cont().expect("continued");
    }
    wanted("a majority of the masters answers again");
    watch.kill().expect("a child");
    watch.wait().expect("a child");
}

#[test]
fn leadership_passes_to_the_next_candidate_when_the_leader_is_killed() {
    let masters = masters(3);
    let watch = Lines::of(&mut patient(&masters, &["watch", "boss", "--json"]));
    assert_eq!(json(&watch.next())["leader"], false);
    let marks = [mark(), mark()];
    let first = lead(&masters, "first", &["sleep", &marks[0]])
        .spawn()
        .expect("starts");
    let told = leader(&watch);
    assert_eq!(told["note"]["text"], "first");
    until("the command of the first leader runs", || sleeps(&marks[0]));
    let second = lead(&masters, "second", &["sleep", &marks[1]])
        .spawn()
        .expect("starts");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        alive(&marks[1]),
        0,
        "only one leader may run the command at a time"
    );
    // Kill the first `quorate lead` with SIGKILL. The guard process of this `lead` must then kill the command.
    signal(&first, "KILL");
    end(first);
    until("the command of the first leader has ended", || {
        alive(&marks[0]) == 0
    });
    let next = leader(&watch);
    assert_eq!(next["note"]["text"], "second");
    assert!(
        next["term"].as_u64() > told["term"].as_u64(),
        "{told} {next}"
    );
    until("the command of the second leader runs", || {
        sleeps(&marks[1])
    });
    signal(&second, "TERM");
    let second = end(second);
    assert_eq!(second.died_of, Some(15), "{second:?}");
    assert_eq!(json(&watch.next())["leader"], false);
}

#[test]
fn lead_stops_its_command_and_campaigns_again_after_leadership_is_lost() {
    let masters = masters(3);
    let mark = mark();
    let script = format!("echo $QUORATE_FENCING_TOKEN; sleep {mark}");
    let leads = Lines::of(&mut lead(&masters, "me", &["sh", "-c", &script]));
    let first: u64 = leads.next().parse().expect("a term");
    let broken = done(quorate(&masters).args(["break", "boss", "--yes"]));
    assert_eq!(broken.code, Some(0), "{broken:?}");
    let second: u64 = leads.next().parse().expect("a term");
    assert!(second > first);
    until("only one command runs", || {
        alive(&mark) <= 2 && sleeps(&mark)
    });
}

#[test]
fn lead_ends_on_a_signal_even_if_its_command_fails() {
    let masters = masters(3);
    let [exits, stays] = [mark(), mark()].map(Ends);
    // On SIGTERM the command exits with 3, so `lead` must exit with 3.
    let script = format!("trap 'exit 3' TERM; echo ready; sleep {} & wait", exits.0);
    let mut leads = Lines::of(&mut lead(&masters, "me", &["sh", "-c", &script]));
    assert_eq!(leads.next(), "ready");
    signal(&leads.child, "TERM");
    assert_eq!(leads.end().code(), Some(3));
    // The command ignores the SIGTERM that `lead` passes on. When the leadership is lost, `lead` must die of SIGTERM.
    let script = format!("trap '' TERM; echo ready; sleep {}", stays.0);
    let mut leads = Lines::of(&mut lead(&masters, "me", &["sh", "-c", &script]));
    assert_eq!(leads.next(), "ready");
    signal(&leads.child, "TERM");
    let broken = done(quorate(&masters).args(["break", "boss", "--yes"]));
    assert_eq!(broken.code, Some(0), "{broken:?}");
    assert_eq!(leads.end().signal(), Some(15));
}

#[test]
fn lead_ends_when_its_command_exits_with_0() {
    let masters = masters(3);
    let well = done(&mut lead(&masters, "me", &["true"]));
    assert_eq!(well.code, Some(0), "{well:?}");
    for (command, code) in [(&["no-such-command"][..], 127), (&["/etc/passwd"], 126)] {
        let ended = done(&mut lead(&masters, "me", command));
        assert_eq!(ended.code, Some(code), "{ended:?}");
    }
    // If the command fails, `lead` resigns. When `lead` becomes the leader again, it repeats the command.
    let dir = tempfile::tempdir().expect("a directory");
    let flag = dir.path().join("flag");
    let flag = flag.to_str().expect("text");
    let script = format!("test -e {flag} || {{ touch {flag}; exit 3; }}");
    let again = done(&mut lead(&masters, "me", &["sh", "-c", &script]));
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(again.err.contains("failed with exit code 3"), "{again:?}");
    let long = "x".repeat(1025);
    let wrong = done(&mut lead(&masters, &long, &["true"]));
    assert_eq!(wrong.code, Some(64), "{wrong:?}");
    assert_eq!(wrong.err.lines().count(), 1, "{wrong:?}");
}

#[test]
fn watch_ends_on_a_signal_or_when_its_stdout_has_no_reader() {
    let masters = masters(3);
    let mut watch = Lines::of(&mut patient(&masters, &["watch", "boss"]));
    assert_eq!(watch.next(), "boss: no leader known");
    signal(&watch.child, "INT");
    assert_eq!(watch.end().signal(), Some(2));
    // `watch` must end when its stdout has no reader, even if it has nothing to print.
    let mut child = patient(&masters, &["watch", "boss"])
        .spawn()
        .expect("starts");
    let out = child.stdout.take().expect("piped");
    let lines = channel().1;
    let mut watch = Lines { child, lines };
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).expect("a line");
    assert_eq!(line, "boss: no leader known\n");
    assert_eq!(watch.end().code(), Some(0));
}

#[test]
fn lead_with_the_option_shell_runs_a_line_with_sh() {
    let masters = masters(1);
    let line = "echo $QUORATE_RESOURCE | tr b B";
    let led = done(&mut patient(&masters, &["lead", "boss", "--shell", line]));
    assert_eq!((led.code, &*led.out), (Some(0), "Boss\n"), "{led:?}");
    let both = done(&mut patient(
        &masters,
        &["lead", "boss", "--shell", line, "--", "true"],
    ));
    assert_eq!(both.code, Some(64), "{both:?}");
}
