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

use super::context::Ctx;
use super::files;
use super::settings::{Guarding, PATIENCE};
use super::wanted::Wanted;
use crate::event::{Clock, Event};
use crate::workload::Workload;

/// The interval between two lines that the child process prints.
const BEAT: Duration = Duration::from_millis(4);

/// Runs `quorate run` with a child process again and again, until the client is asked to finish.
pub(super) async fn repeat(ctx: Ctx) {
    let Some(quorate) = ctx.settings.quorate.clone() else {
        return;
    };
    while !ctx.is_finishing() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        ctx.pause().await;
        once(&ctx, &quorate).await;
    }
}

async fn once(ctx: &Ctx, quorate: &Path) {
    let op = ctx.next_op();
    ctx.note(Wanted::draw(Workload::Run, "run").wait(op));
    let missed = |why: String| ctx.note(Event::Missed { op, why });
    let Ok(mut process) = start(ctx, quorate) else {
        return missed("not_started".into());
    };
    let Some(out) = process.stdout.take() else {
        return missed("not_heard".into());
    };
    let worked = listen(ctx, op, out).await;
    let status = process.wait().await.ok().and_then(|status| status.code());
    match (worked, status) {
        (Some(t), Some(74)) => {
            let (cause, until) = ("child_stopped".to_owned(), None);
            ctx.note_at(t, Event::Notified { op, cause, until });
        }
        (Some(t), _) => ctx.note_at(t, Event::Release { op, until: None }),
        (None, Some(69)) => missed("no_quorum".into()),
        (None, Some(75)) => missed("held".into()),
        (None, Some(78)) => missed("other_masters".into()),
        (None, other) => missed(format!("exit {other:?}")),
    }
}

/// Starts `quorate run` with the child process as its command.
fn start(ctx: &Ctx, quorate: &Path) -> io::Result<Child> {
    let settings = &ctx.settings;
    let text = |time: Duration| humantime::format_duration(time).to_string();
    let works = Duration::from_millis(rand::rng().random_range(5..120));
    let guard = match settings.guarding {
        Guarding::Off => "off",
        // Even for `AfterFirstContact`: a master may have restarted just before `quorate run` starts.
        _ => "on",
    };
    let next = match &settings.next_masters[..] {
        [] => Vec::new(),
        next => vec!["--next-masters".to_owned(), next.join(",")],
    };
    Command::new(quorate)
        .arg("run")
        .args(["--masters", &settings.masters.join(",")])
        .args(next)
        .args(["--masters-generation", &settings.generation.to_string()])
        .args(["--ttl", &text(settings.ttl)])
        .args(["--max-ttl", &text(settings.max_ttl)])
        .args(["--restart-guard", guard])
        .args(["--wait", &text(PATIENCE)])
        .args(["--order", settings.waiting.name()])
        .args(["--grace", "100ms", "run", "--"])
        .arg(std::env::current_exe()?)
        .arg("child")
        .args(["--origin", &settings.origin.to_string()])
        .args(["--works", &text(works)])
        .arg("--state")
        .arg(settings.dir.join("run.state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
}

/// Records the lines that the child process prints. Returns the time of its last line, or `None` if it printed none.
async fn listen(ctx: &Ctx, op: u64, out: ChildStdout) -> Option<u64> {
    let mut lines = BufReader::new(out).lines();
    let mut worked = None;
    while let Ok(Some(line)) = lines.next_line().await {
        let Some((t, events)) = heard(op, &line) else {
            continue;
        };
        let begins = matches!(events[..], [Event::Obtained { .. }]);
        for event in events {
            ctx.note_at(t, event);
        }
        if worked.is_some() || begins {
            worked = Some(t);
        }
    }
    worked
}

/// Parses a line of the child process. Returns the time in the line and the events to be recorded for the line, or
/// `None` if the line is malformed.
fn heard(op: u64, line: &str) -> Option<(u64, Vec<Event>)> {
    let mut words = line.split(' ');
    let word = words.next()?;
    let t = words.next()?.parse().ok()?;
    let events = match word {
        "began" => vec![Event::Obtained {
            op,
            token: words.next().and_then(|token| token.parse().ok()),
            until: None,
            slot: None,
        }],
        "wrote" => {
            let from = words.next().unwrap_or_default().to_owned();
            let began = words.next().and_then(|t| t.parse().ok()).unwrap_or(t);
            let key = "run".to_owned();
            let wrote = Event::Wrote {
                op,
                key,
                from,
                began,
            };
            // The child ends after this line, so record the release together with the write. Do not wait until `quorate
            // run` has ended, because this client process could be killed before then.
            vec![wrote, Event::Release { op, until: None }]
        }
        _ => Vec::new(),
    };
    Some((t, events))
}

/// The main function of the child process. Reads the file `state`, prints lines for the time `works`, and then writes
/// the file.
///
/// # Errors
///
/// Returns an error if the child process cannot print a line, or cannot read or write the file.
pub fn main(origin: u64, works: Duration, state: &Path) -> anyhow::Result<()> {
    let clock = Clock::at(origin);
    let mut out = io::stdout();
    let mut say = |text: String| -> io::Result<()> {
        out.write_all(text.as_bytes())?;
        out.flush()
    };
    let token = std::env::var("QUORATE_FENCING_TOKEN").unwrap_or_default();
    say(format!("began {} {token}\n", clock.now()))?;
    let (file, from) = files::read_at(state)?;
    let end = clock.now() + works.as_nanos() as u64;
    while clock.now() < end {
        std::thread::sleep(BEAT);
        say(format!("alive {}\n", clock.now()))?;
    }
    let began = clock.now();
    let count: u64 = from.parse().unwrap_or(0);
    file.write_all_at(format!("{:<32}", count + 1).as_bytes(), 0)?;
    say(format!("wrote {} {from} {began}\n", clock.now()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_lines_of_a_child_process_are_parsed_as_events() {
        let events = |line| heard(3, line).map(|(t, events)| (t, events.len()));
        assert_eq!(events("began 10 77"), Some((10, 1)));
        assert_eq!(events("alive 12"), Some((12, 0)));
        assert_eq!(events("what is this"), None);
        let (t, last) = heard(3, "wrote 20 5 18").expect("the line must be parsed");
        assert_eq!(t, 20);
        assert_eq!(last.last(), Some(&Event::Release { op: 3, until: None }));
    }
}
