//! Tests of holders and leaders on real masters: notes, `status`, `lead` and `watch`.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::common::{
    KillAtDrop, count_processes, is_sleeping, output_of, quorate_on, quorate_run, send_signal,
    start_masters, unique_marker, wait_for_output, wait_until, wait_until_held,
};
use quorate_testbed::Masters;
use serde_json::Value;

fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// `quorate` with timeouts that are long enough for a busy machine, and with a short ttl.
fn patient_command(masters: &Masters, args: &[&str]) -> Command {
    let mut command = quorate_on(masters);
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
    let mut lead = patient_command(masters, &["lead", "boss", "--note", note, "--"]);
    lead.args(command);
    lead
}

/// A child process, and a channel on which the lines that it prints arrive.
struct OutputLines {
    child: Child,
    lines: Receiver<String>,
}

impl OutputLines {
    fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("starts");
        let child_stdout = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in child_stdout.lines().map_while(Result::ok) {
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
        wait_until("the process ends", || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        status.expect("the process must have ended")
    }
}

impl Drop for OutputLines {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The next leader that `watch --json` prints.
fn leader(watch: &OutputLines) -> Value {
    loop {
        let change = parse_json(&watch.next());
        if change["leader"] == true {
            return change;
        }
    }
}

#[test]
fn note_given_by_the_lock_holder_appears_in_status_and_messages() {
    let masters = start_masters(3);
    let secret = format!("sleep {}", unique_marker());
    let holder = quorate_run(
        &masters,
        &["--note", "by hand", "r"],
        &["sh", "-c", &secret],
    )
    .spawn()
    .expect("starts");
    let pid = holder.id();
    wait_until_held(&masters, "quorate:note:r");
    let mut status = Value::Null;
    wait_until("status shows the note of the holder", || {
        status =
            parse_json(&output_of(quorate_on(&masters).args(["status", "--json", "r"])).stdout);
        !status["resources"][0]["note"].is_null()
    });
    let note = &status["resources"][0]["note"];
    assert_eq!(note["pid"], pid);
    assert_eq!(note["text"], "by hand");
    assert_eq!(note["process"], "quorate");
    assert!(
        note["since"]
            .as_str()
            .is_some_and(|since| since.ends_with('Z')),
        "{note}"
    );
    let status_run = output_of(quorate_on(&masters).args(["status", "r"]));
    assert!(
        status_run.stdout.contains("by hand") && status_run.stdout.contains(&pid.to_string()),
        "{status_run:?}"
    );
    assert!(
        !status_run.stdout.contains("sleep"),
        "the status must not show the command line: {status_run:?}"
    );
    let refused_run = output_of(&mut quorate_run(
        &masters,
        &["--wait", "100ms", "r"],
        &["true"],
    ));
    assert_eq!(refused_run.code, Some(75), "{refused_run:?}");
    assert!(refused_run.stderr.contains("by hand"), "{refused_run:?}");
    let waited_run = output_of(&mut quorate_run(
        &masters,
        &["--wait", "5s", "r"],
        &["true"],
    ));
    let lines: Vec<&str> = waited_run.stderr.lines().collect();
    assert!(
        lines.len() > 1 && lines[0].contains("by hand"),
        "{waited_run:?}"
    );
    let listed_run = parse_json(&output_of(quorate_on(&masters).args(["status", "--json"])).stdout);
    assert_eq!(listed_run["resources"][0]["resource"], "r");
    assert_eq!(listed_run["resources"][0]["note"]["text"], "by hand");
    assert_eq!(listed_run["complete"], true);
    let listed_run = output_of(quorate_on(&masters).args(["status", "--starting-with", "r"]));
    assert!(listed_run.stdout.contains("by hand"), "{listed_run:?}");
    let empty_list_run = output_of(quorate_on(&masters).args(["status", "--starting-with", "s"]));
    assert_eq!(
        (empty_list_run.code, &*empty_list_run.stdout),
        (Some(0), "nothing is locked\n")
    );
    let broken_run = output_of(quorate_on(&masters).args(["break", "r", "--yes"]));
    assert!(broken_run.stdout.contains("by hand"), "{broken_run:?}");
    send_signal(&holder, "TERM");
    wait_for_output(holder);
}

#[test]
fn status_without_a_name_exits_with_69_if_no_majority_answers() {
    let masters = start_masters(3);
    masters[0].kill().expect("killed");
    let one_down_run = output_of(quorate_on(&masters).args(["status"]));
    assert_eq!(one_down_run.code, Some(0), "{one_down_run:?}");
    assert!(
        one_down_run.stdout.contains("not asked"),
        "{one_down_run:?}"
    );
    masters[1].kill().expect("killed");
    let two_down_run = output_of(quorate_on(&masters).args(["status", "--json"]));
    assert_eq!(two_down_run.code, Some(69), "{two_down_run:?}");
    assert_eq!(
        parse_json(&two_down_run.stdout)["complete"],
        false,
        "{two_down_run:?}"
    );
    assert_eq!(
        parse_json(&two_down_run.stdout)["not_asked"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
}

#[test]
fn watch_reports_on_stderr_that_too_few_masters_answer() {
    let masters = start_masters(3);
    for master in masters.iter().take(2) {
        master.stop().expect("stopped");
    }
    let mut watch_command = patient_command(&masters, &["watch", "boss", "--json"]);
    let mut watch_child = watch_command.spawn().expect("starts");
    let stderr_lines = BufReader::new(watch_child.stderr.take().expect("piped"));
    let mut stderr_lines = stderr_lines.lines().map(|line| line.expect("text"));
    let mut find_line = |text: &str| {
        let line = stderr_lines.find(|line| line.contains(text));
        line.unwrap_or_else(|| panic!("no line with {text:?}"))
    };
    let line = find_line("no quorum: 1 of 3 masters answered, 2 are needed");
    for master in masters.iter().take(2) {
        assert!(line.contains(&master.port().to_string()), "{line}");
        master.cont().expect("continued");
    }
    find_line("a majority of the masters answers again");
    watch_child.kill().expect("a child");
    watch_child.wait().expect("a child");
}

#[test]
fn leadership_passes_to_the_next_candidate_when_the_leader_is_killed() {
    let masters = start_masters(3);
    let watch_lines =
        OutputLines::start(&mut patient_command(&masters, &["watch", "boss", "--json"]));
    assert_eq!(parse_json(&watch_lines.next())["leader"], false);
    let markers = [unique_marker(), unique_marker()];
    let first_lead = lead(&masters, "first", &["sleep", &markers[0]])
        .spawn()
        .expect("starts");
    let first_change = leader(&watch_lines);
    assert_eq!(first_change["note"]["text"], "first");
    wait_until("the command of the first leader runs", || {
        is_sleeping(&markers[0])
    });
    let second_lead = lead(&masters, "second", &["sleep", &markers[1]])
        .spawn()
        .expect("starts");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(
        count_processes(&markers[1]),
        0,
        "only one leader may run the command at a time"
    );
    // Kill the first `quorate lead` with SIGKILL. The guard process of this `lead` must then kill the command.
    send_signal(&first_lead, "KILL");
    wait_for_output(first_lead);
    wait_until("the command of the first leader has ended", || {
        count_processes(&markers[0]) == 0
    });
    let next_change = leader(&watch_lines);
    assert_eq!(next_change["note"]["text"], "second");
    assert!(
        next_change["term"].as_u64() > first_change["term"].as_u64(),
        "{first_change} {next_change}"
    );
    wait_until("the command of the second leader runs", || {
        is_sleeping(&markers[1])
    });
    send_signal(&second_lead, "TERM");
    let second_output = wait_for_output(second_lead);
    assert_eq!(second_output.died_of, Some(15), "{second_output:?}");
    assert_eq!(parse_json(&watch_lines.next())["leader"], false);
}

#[test]
fn lead_stops_its_command_and_campaigns_again_after_leadership_is_lost() {
    let masters = start_masters(3);
    let marker = unique_marker();
    let script = format!("echo $QUORATE_FENCING_TOKEN; sleep {marker}");
    let leader = OutputLines::start(&mut lead(&masters, "me", &["sh", "-c", &script]));
    let first_term: u64 = leader.next().parse().expect("a term");
    let broken_run = output_of(quorate_on(&masters).args(["break", "boss", "--yes"]));
    assert_eq!(broken_run.code, Some(0), "{broken_run:?}");
    let second_term: u64 = leader.next().parse().expect("a term");
    assert!(second_term > first_term);
    wait_until("only one command runs", || {
        count_processes(&marker) <= 2 && is_sleeping(&marker)
    });
}

#[test]
fn lead_ends_on_a_signal_even_if_its_command_fails() {
    let masters = start_masters(3);
    let [exit_marker, stay_marker] = [unique_marker(), unique_marker()].map(KillAtDrop);
    // On SIGTERM the command exits with 3, so `lead` must exit with 3.
    let script = format!(
        "trap 'exit 3' TERM; echo ready; sleep {} & wait",
        exit_marker.0
    );
    let mut leader = OutputLines::start(&mut lead(&masters, "me", &["sh", "-c", &script]));
    assert_eq!(leader.next(), "ready");
    send_signal(&leader.child, "TERM");
    assert_eq!(leader.end().code(), Some(3));
    // The command ignores the SIGTERM that `lead` passes on. When the leadership is lost, `lead` must die of SIGTERM.
    let script = format!("trap '' TERM; echo ready; sleep {}", stay_marker.0);
    let mut leader = OutputLines::start(&mut lead(&masters, "me", &["sh", "-c", &script]));
    assert_eq!(leader.next(), "ready");
    send_signal(&leader.child, "TERM");
    let broken_run = output_of(quorate_on(&masters).args(["break", "boss", "--yes"]));
    assert_eq!(broken_run.code, Some(0), "{broken_run:?}");
    assert_eq!(leader.end().signal(), Some(15));
}

#[test]
fn lead_ends_when_its_command_exits_with_0() {
    let masters = start_masters(3);
    let successful_run = output_of(&mut lead(&masters, "me", &["true"]));
    assert_eq!(successful_run.code, Some(0), "{successful_run:?}");
    for (command, code) in [(&["no-such-command"][..], 127), (&["/etc/passwd"], 126)] {
        let output = output_of(&mut lead(&masters, "me", command));
        assert_eq!(output.code, Some(code), "{output:?}");
    }
    // If the command fails, `lead` resigns. When `lead` becomes the leader again, it repeats the command.
    let dir = tempfile::tempdir().expect("a directory");
    let flag = dir.path().join("flag");
    let flag = flag.to_str().expect("text");
    let script = format!("test -e {flag} || {{ touch {flag}; exit 3; }}");
    let repeated_run = output_of(&mut lead(&masters, "me", &["sh", "-c", &script]));
    assert_eq!(repeated_run.code, Some(0), "{repeated_run:?}");
    assert!(
        repeated_run.stderr.contains("failed with exit code 3"),
        "{repeated_run:?}"
    );
    let long = "x".repeat(1025);
    let wrong_run = output_of(&mut lead(&masters, &long, &["true"]));
    assert_eq!(wrong_run.code, Some(64), "{wrong_run:?}");
    assert_eq!(wrong_run.stderr.lines().count(), 1, "{wrong_run:?}");
}

#[test]
fn watch_ends_on_a_signal_or_when_its_stdout_has_no_reader() {
    let masters = start_masters(3);
    let mut watch_lines = OutputLines::start(&mut patient_command(&masters, &["watch", "boss"]));
    assert_eq!(watch_lines.next(), "boss: no leader known");
    send_signal(&watch_lines.child, "INT");
    assert_eq!(watch_lines.end().signal(), Some(2));
    // `watch_lines` must end when its stdout has no reader, even if it has nothing to print.
    let mut child = patient_command(&masters, &["watch", "boss"])
        .spawn()
        .expect("starts");
    let out = child.stdout.take().expect("piped");
    let lines = channel().1;
    let mut watch = OutputLines { child, lines };
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).expect("a line");
    assert_eq!(line, "boss: no leader known\n");
    assert_eq!(watch.end().code(), Some(0));
}

#[test]
fn lead_with_the_option_shell_runs_a_line_with_sh() {
    let masters = start_masters(1);
    let shell_line = "echo $QUORATE_RESOURCE | tr b B";
    let led_run = output_of(&mut patient_command(
        &masters,
        &["lead", "boss", "--shell", shell_line],
    ));
    assert_eq!(
        (led_run.code, &*led_run.stdout),
        (Some(0), "Boss\n"),
        "{led_run:?}"
    );
    let shell_and_command_run = output_of(&mut patient_command(
        &masters,
        &["lead", "boss", "--shell", shell_line, "--", "true"],
    ));
    assert_eq!(
        shell_and_command_run.code,
        Some(64),
        "{shell_and_command_run:?}"
    );
}
