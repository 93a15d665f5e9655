//! A command under `quorate run`: another process that works for as long as it is allowed to live.
//!
//! The child writes a line every few milliseconds, and the last one counts as the end of its work: the
//! lock may have gone to somebody else as soon as it was dead.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use quorate::Wait;
use rand::RngExt;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::hold::PATIENCE;
use super::{Ctx, Guarding, work};
use crate::event::{Clock, Event};

/// How often the child says that it is alive.
const BEAT: Duration = Duration::from_millis(4);

/// Runs one child after the other.
pub(super) async fn repeat(ctx: Ctx) {
    let Some(quorate) = ctx.settings.quorate.clone() else {
        return;
    };
    while !ctx.is_finishing() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        work::pause(&ctx).await;
        once(&ctx, &quorate).await;
    }
}

async fn once(ctx: &Ctx, quorate: &Path) {
    let settings = &ctx.settings;
    let op = ctx.next_op();
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    ctx.note(Event::Wait {
        op,
        resource: "run".into(),
    });
    let text = |time: Duration| humantime::format_duration(time).to_string();
    let Wait::For(patience) = PATIENCE else {
        return;
    };
    let works = Duration::from_millis(rand::rng().random_range(5..120));
    let guard = match settings.guarding {
        Guarding::Off => "off",
        // Each child meets the masters for the first time, perhaps just after a restart.
        _ => "on",
    };
    let spawned = Command::new(quorate)
        .arg("run")
        .args(["--masters", &settings.masters.join(",")])
        .args(["--ttl", &text(settings.ttl)])
        .args(["--max-ttl", &text(settings.max_ttl)])
        .args(["--restart-guard", guard])
        .args(["--wait", &text(patience)])
        .args(["--order", settings.waiting.name()])
        .args(["--grace", "100ms", "run", "--"])
        .arg(program)
        .arg("child")
        .args(["--origin", &settings.origin.to_string()])
        .args(["--works", &text(works)])
        .arg("--state")
        .arg(settings.dir.join("run.state"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let Ok(mut process) = spawned else {
        let why = "not_started".into();
        return ctx.note(Event::Missed { op, why });
    };
    let Some(out) = process.stdout.take() else {
        return;
    };
    let mut lines = BufReader::new(out).lines();
    let (mut began, mut last) = (None, None);
    while let Ok(Some(line)) = lines.next_line().await {
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default().to_owned();
        let Some(t) = words.next().and_then(|t| t.parse::<u64>().ok()) else {
            continue;
        };
        last = Some(t);
        match word.as_str() {
            "began" => {
                began = Some(t);
                let token = words.next().and_then(|token| token.parse().ok());
                let until = None;
                ctx.note_at(t, Event::Obtained { op, token, until });
            }
            "wrote" => {
                let from = words.next().unwrap_or_default().to_owned();
                let began = words.next().and_then(|t| t.parse().ok()).unwrap_or(t);
                let key = "run".to_owned();
                ctx.note_at(
                    t,
                    Event::Wrote {
                        op,
                        key,
                        from,
                        began,
                    },
                );
            }
            _ => {}
        }
    }
    let status = process.wait().await.ok().and_then(|status| status.code());
    match (began, last) {
        (Some(_), Some(t)) if status == Some(74) => {
            let cause = "child_stopped".to_owned();
            ctx.note_at(
                t,
                Event::Told {
                    op,
                    cause,
                    until: None,
                },
            );
        }
        (Some(_), Some(t)) => ctx.note_at(t, Event::Release { op, until: None }),
        _ => {
            let why = match status {
                Some(69) => "no_quorum".to_owned(),
                Some(75) => "held".to_owned(),
                other => format!("exit {other:?}"),
            };
            ctx.note(Event::Missed { op, why });
        }
    }
}

/// The child itself: `began`, reads, beats, writes, ends.
///
/// # Errors
///
/// When it cannot write, which is how it learns that nobody listens.
pub fn main(origin: u64, works: Duration, state: &Path) -> anyhow::Result<()> {
    let clock = Clock::at(origin);
    let mut out = std::io::stdout();
    let mut say = |text: String| -> std::io::Result<()> {
        out.write_all(text.as_bytes())?;
        out.flush()
    };
    let token = std::env::var("QUORATE_FENCING_TOKEN").unwrap_or_default();
    say(format!("began {} {token}\n", clock.now()))?;
    let (file, from) = work::read_at(state)?;
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
