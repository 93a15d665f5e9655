//! Tests of the metrics of a `quorate run`, for Prometheus and for statsd.

use std::io::Write;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{
    output_of, quorate_run, send_signal, start_masters, wait_for_output, wait_until,
};
use quorate_testbed::not_run;

/// The value of the metric `name` on the line whose labels contain `label`.
fn value(file: &Path, name: &str, label: &str) -> Option<f64> {
    let metrics_text = std::fs::read_to_string(file).ok()?;
    let line = metrics_text
        .lines()
        .find(|line| line.starts_with(&format!("{name}{{")) && line.contains(label))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn metrics_file_contains_the_last_outcome_and_last_success_time() {
    let masters = start_masters(3);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("nightly.prom");
    let path = file.to_str().expect("text");
    let options = ["--metrics-file", path, "a\"b"];
    let current_value = |name: &str, label: &str| value(&file, name, label);
    let running = quorate_run(&masters, &options, &["sleep", "60"]).spawn();
    let running = running.expect("starts");
    wait_until("the command runs", || {
        current_value("quorate_run_running", "") == Some(1.0)
    });
    assert_eq!(current_value("quorate_run_outcome", "ok"), None);
    assert!(current_value("quorate_run_fencing_number", "") > Some(0.0));
    send_signal(&running, "TERM");
    assert_eq!(wait_for_output(running).code, Some(143));
    assert_eq!(current_value("quorate_run_running", ""), Some(0.0));
    assert_eq!(
        current_value("quorate_run_outcome", "\"failed\""),
        Some(1.0)
    );
    assert_eq!(current_value("quorate_run_exit_code", ""), Some(143.0));
    assert_eq!(
        current_value("quorate_run_last_success_time_seconds", ""),
        None
    );
    assert_eq!(
        output_of(&mut quorate_run(&masters, &options, &["true"])).code,
        Some(0)
    );
    let last_success_time = current_value("quorate_run_last_success_time_seconds", "");
    assert!(last_success_time > Some(1e9), "{last_success_time:?}");
    assert_eq!(current_value("quorate_run_outcome", "\"ok\""), Some(1.0));
    for master in &masters {
        master.command(&["SET", "a\"b", "x"]).expect("a reply");
    }
    let try_options = [&["--try", "-E", "3"], &options[..]].concat();
    assert_eq!(
        output_of(&mut quorate_run(&masters, &try_options, &["true"])).code,
        Some(3)
    );
    assert_eq!(
        current_value("quorate_run_outcome", "\"held_by_other\""),
        Some(1.0)
    );
    assert_eq!(current_value("quorate_run_exit_code", ""), Some(3.0));
    assert_eq!(
        current_value("quorate_run_last_success_time_seconds", ""),
        last_success_time
    );
    let entries: Vec<_> = std::fs::read_dir(&dir).expect("read").collect();
    assert_eq!(
        entries.len(),
        1,
        "the directory must contain only the metrics file: {entries:?}"
    );
    check_with_promtool(&file);
}

fn check_with_promtool(file: &Path) {
    let promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut promtool) = promtool else {
        return not_run(
            "metrics_file_contains_the_last_outcome_and_last_success_time",
            "there is no promtool",
        );
    };
    let metrics_text = std::fs::read(file).expect("written");
    let mut stdin = promtool.stdin.take().expect("piped");
    stdin.write_all(&metrics_text).expect("written");
    drop(stdin);
    let output = wait_for_output(promtool);
    assert_eq!(
        (output.code, &*output.stdout, &*output.stderr),
        (Some(0), "", ""),
        "{output:?}"
    );
}

#[test]
fn metrics_file_behind_a_symlink_keeps_the_success_time_of_a_concurrent_run() {
    let masters = start_masters(3);
    let dir = tempfile::tempdir().expect("a directory");
    let (file, link) = (dir.path().join("a.prom"), dir.path().join("link.prom"));
    std::fs::write(&file, "").expect("written");
    std::os::unix::fs::symlink(&file, &link).expect("the link must be created");
    let options = ["--metrics-file", link.to_str().expect("text"), "r"];
    let first_child = quorate_run(&masters, &options, &["sleep", "1"]).spawn();
    let running_child = first_child.expect("starts");
    wait_until("the command runs", || {
        value(&file, "quorate_run_running", "") == Some(1.0)
    });
    // The first run succeeds, then the second fails. The metrics file must keep the first run's success time.
    let second_run = output_of(&mut quorate_run(&masters, &options, &["false"]));
    assert_eq!(
        (wait_for_output(running_child).code, second_run.code),
        (Some(0), Some(1))
    );
    let last_success_time = value(&file, "quorate_run_last_success_time_seconds", "");
    assert!(last_success_time > Some(1e9), "{last_success_time:?}");
    assert!(link.is_symlink());
}

#[test]
fn metrics_file_is_replaced_atomically() {
    let masters = start_masters(1);
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("r.prom");
    let options = ["--metrics-file", file.to_str().expect("text"), "r"];
    assert_eq!(
        output_of(&mut quorate_run(&masters, &options, &["true"])).code,
        Some(0)
    );
    // The file must be replaced, not overwritten. So a reader that has opened the old file can still read all of it.
    let mut file_before = std::fs::File::open(&file).expect("the metrics file must exist");
    assert_eq!(
        output_of(&mut quorate_run(&masters, &options, &["false"])).code,
        Some(1)
    );
    let mut old_text = String::new();
    std::io::Read::read_to_string(&mut file_before, &mut old_text).expect("read");
    assert!(old_text.contains("outcome=\"ok\"} 1"), "{old_text}");
    assert_eq!(value(&file, "quorate_run_outcome", "\"ok\""), Some(0.0));
}

#[test]
fn statsd_gets_all_metrics_in_one_datagram() {
    let masters = start_masters(1);
    let statsd = UdpSocket::bind("127.0.0.1:0").expect("a port");
    statsd
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    let address = statsd.local_addr().expect("an address").to_string();
    let output = output_of(&mut quorate_run(
        &masters,
        &["--statsd", &address, "a:b"],
        &["sh", "-c", "exit 4"],
    ));
    assert_eq!((output.code, &*output.stderr), (Some(4), ""), "{output:?}");
    let mut buffer = [0; 1500];
    let length = statsd.recv(&mut buffer).expect("a datagram");
    let metrics_text = String::from_utf8_lossy(&buffer[..length]);
    let lines: Vec<&str> = metrics_text.lines().collect();
    assert_eq!(lines.len(), 4, "{metrics_text}");
    assert!(
        lines[0].starts_with("quorate.run.a_b.wait:") && lines[0].ends_with("|ms"),
        "{metrics_text}"
    );
    assert!(
        lines[1].starts_with("quorate.run.a_b.hold:"),
        "{metrics_text}"
    );
    assert_eq!(
        lines[2..],
        [
            "quorate.run.a_b.failed:1|c",
            "quorate.run.a_b.exit_code:4|g"
        ]
    );
}

#[test]
fn wrong_metrics_options_are_refused_before_the_command_runs() {
    let masters = start_masters(1);
    let assert_refused = |options: &[&str], words: &str| {
        let assert_refused = output_of(&mut quorate_run(&masters, options, &["echo", "ran"]));
        assert_eq!(
            (assert_refused.code, &*assert_refused.stdout),
            (Some(64), ""),
            "{assert_refused:?}"
        );
        assert!(assert_refused.stderr.contains(words), "{assert_refused:?}");
    };
    assert_refused(
        &["--metrics-file", "/no/such/dir/x.prom", "r"],
        "/no/such/dir/x.prom",
    );
    assert_refused(&["--metrics-file", "/tmp", "r"], "--metrics-file /tmp");
    assert_refused(&["--statsd", "localhost", "r"], "HOST:PORT");
    let dir = tempfile::tempdir().expect("a directory");
    let pipe = dir.path().join("pipe");
    let status = Command::new("mkfifo").arg(&pipe).status();
    assert!(status.expect("mkfifo must start").success());
    let pipe_path = pipe.to_str().expect("text");
    assert_refused(&["--metrics-file", pipe_path, "r"], "not a regular file");
    assert_refused(&["--metrics-file", "/dev/null", "r"], "not a regular file");
    // A missing statsd server must not make the run fail.
    let output = output_of(&mut quorate_run(
        &masters,
        &["--statsd", "127.0.0.1:9", "r"],
        &["echo", "ran"],
    ));
    assert_eq!(
        (output.code, &*output.stdout),
        (Some(0), "ran\n"),
        "{output:?}"
    );
}
