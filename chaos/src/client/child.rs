//! The command that `quorate run` runs: a child process that works for a given time, or until it is killed.
//!
//! The child prints a line every few milliseconds. The time of its last line counts as the end of its work. The end of
//! the process itself would be too late, because another client can acquire the lock as soon as the child is dead.

use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rand::RngExt;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdout, Command};

use super::attempt_spec::AttemptSpec;
use super::context::Ctx;
use super::files;
use super::settings::{Guarding, PATIENCE};
use super::work::next_number;
use crate::event::{Clock, Event};
use crate::workload::Workload;

/// The interval between two lines that the child process prints.
const PRINT_INTERVAL: Duration = Duration::from_millis(4);

/// Runs `quorate run` with a child process again and again, until the client is asked to finish.
pub(super) async fn repeat(ctx: Ctx) {
    let Some(quorate) = ctx.settings.quorate.clone() else {
        return;
    };
    while !ctx.is_finishing() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        ctx.pause().await;
        run_once(&ctx, &quorate).await;
    }
}

async fn run_once(ctx: &Ctx, quorate: &Path) {
    let op = ctx.next_op();
    ctx.record(AttemptSpec::draw(Workload::Run, "run").wait_event(op));
    let record_missed = |why: String| ctx.record(Event::Missed { op, why });
    let Ok(mut process) = start(ctx, quorate) else {
        return record_missed("not_started".into());
    };
    let Some(stdout) = process.stdout.take() else {
        return record_missed("not_heard".into());
    };
    let last_line_at = listen(ctx, op, stdout).await;
    let status = process.wait().await.ok().and_then(|status| status.code());
    match (last_line_at, status) {
        (Some(t), Some(74)) => {
            let (cause, until) = ("child_stopped".to_owned(), None);
            ctx.record_at(t, Event::Notified { op, cause, until });
        }
        (Some(t), _) => ctx.record_at(t, Event::Release { op, until: None }),
        (None, Some(69)) => record_missed("no_quorum".into()),
        (None, Some(75)) => record_missed("held".into()),
        (None, Some(78)) => record_missed("other_masters".into()),
        (None, exit_code) => record_missed(format!("exit {exit_code:?}")),
    }
}

/// Starts `quorate run` with the child process as its command.
fn start(ctx: &Ctx, quorate: &Path) -> io::Result<Child> {
    let settings = &ctx.settings;
    let duration_text = |time: Duration| humantime::format_duration(time).to_string();
    let work_time = Duration::from_millis(rand::rng().random_range(5..120));
    let guard = match settings.guarding {
        Guarding::Off => "off",
        // Even for `AfterFirstContact`: a master may have restarted just before `quorate run` starts.
        _ => "on",
    };
    let next_masters_options = match &settings.next_masters[..] {
        [] => Vec::new(),
        next_masters_options => vec!["--next-masters".to_owned(), next_masters_options.join(",")],
    };
    Command::new(quorate)
        .arg("run")
        .args(["--masters", &settings.masters.join(",")])
        .args(next_masters_options)
        .args(["--masters-generation", &settings.generation.to_string()])
        .args(["--ttl", &duration_text(settings.ttl)])
        .args(["--max-ttl", &duration_text(settings.max_ttl)])
        .args(["--restart-guard", guard])
        .args(["--wait", &duration_text(PATIENCE)])
        .args(["--order", settings.order.name()])
        .args(["--grace", "100ms", "run", "--"])
        .arg(std::env::current_exe()?)
        .arg("child")
        .args(["--origin", &settings.origin.to_string()])
        .args(["--works", &duration_text(work_time)])
        .arg("--state")
        .arg(settings.dir.join("run.state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

/// Records the lines that the child process prints. Returns the time of its last line, or `None` if it printed none.
async fn listen(ctx: &Ctx, op: u64, stdout: ChildStdout) -> Option<u64> {
    let mut lines = BufReader::new(stdout).lines();
    let mut last_line_at = None;
    while let Ok(Some(line)) = lines.next_line().await {
        let Some((t, events)) = parse_line(op, &line) else {
            continue;
        };
        let is_first_line = matches!(events[..], [Event::Obtained { .. }]);
        for event in events {
            ctx.record_at(t, event);
        }
        if last_line_at.is_some() || is_first_line {
            last_line_at = Some(t);
        }
    }
    last_line_at
}

/// Parses a line of the child process. Returns the time in the line and the events to be recorded for the line, or
/// `None` if the line is malformed.
fn parse_line(op: u64, line: &str) -> Option<(u64, Vec<Event>)> {
    let mut fields = line.split(' ');
    let event_name = fields.next()?;
    let t = fields.next()?.parse().ok()?;
    let events = match event_name {
        "began" => vec![Event::Obtained {
            op,
            token: fields.next().and_then(|token| token.parse().ok()),
            until: None,
            slot: None,
        }],
        "wrote" => {
            let old_content = fields.next().unwrap_or_default().to_owned();
            let began_at = fields.next().and_then(|t| t.parse().ok()).unwrap_or(t);
            let key = "run".to_owned();
            let new_content = next_number(&old_content);
            let write_event = Event::Wrote {
                op,
                key,
                from: old_content,
                to: Some(new_content),
                began: began_at,
            };
            // The child ends after this line, so record the release together with the write. Do not wait until `quorate
            // run` has ended, because this client process could be killed before then.
            vec![write_event, Event::Release { op, until: None }]
        }
        _ => Vec::new(),
    };
    Some((t, events))
}

/// The main function of the child process. Reads the file `state`, prints lines for the time `work_time`, and then
/// writes the file.
///
/// # Errors
///
/// Returns an error if the child process cannot print a line, or cannot read or write the file.
pub fn main(origin: u64, work_time: Duration, state: &Path) -> anyhow::Result<()> {
    let clock = Clock::with_origin(origin);
    let mut stdout = io::stdout();
    let mut print_line = |text: String| -> io::Result<()> {
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    };
    let token = std::env::var("QUORATE_FENCING_TOKEN").unwrap_or_default();
    print_line(format!("began {} {token}\n", clock.now()))?;
    let (file, old_content) = files::read_state_at(state)?;
    let end = clock.now() + work_time.as_nanos() as u64;
    while clock.now() < end {
        std::thread::sleep(PRINT_INTERVAL);
        print_line(format!("alive {}\n", clock.now()))?;
    }
    let began_at = clock.now();
    let new_content = next_number(&old_content);
    file.write_all_at(format!("{new_content:<32}").as_bytes(), 0)?;
    print_line(format!("wrote {} {old_content} {began_at}\n", clock.now()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_lines_of_a_child_process_are_parsed_as_events() {
        let parsed_events =
            |line| parse_line(3, line).map(|(t, parsed_events)| (t, parsed_events.len()));
        assert_eq!(parsed_events("began 10 77"), Some((10, 1)));
        assert_eq!(parsed_events("alive 12"), Some((12, 0)));
        assert_eq!(parsed_events("what is this"), None);
        let (t, last) = parse_line(3, "wrote 20 5 18").expect("the line must be parsed");
        assert_eq!(t, 20);
        assert_eq!(last.last(), Some(&Event::Release { op: 3, until: None }));
    }
}
