//! Jumps and drifts of the masters' wall clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use quorate_testbed::{OffsetFile, Reply, Server, Skew};

use super::{Heal, Injection, Kind, Landed, all};
use crate::world::World;

pub(super) fn inject(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let (by, skew) = match fault.kind {
        Kind::ClockBack => (
            Duration::from_millis(fault.pick(1_500, 3_000)),
            Skew::Behind,
        ),
        _ => (Duration::from_millis(fault.pick(1_500, 3_000)), Skew::Ahead),
    };
    let mut seen = Vec::new();
    let mut heals: Vec<Heal> = Vec::new();
    for &index in &fault.masters {
        let offset = world
            .offsets
            .get(index)
            .cloned()
            .context("this master's clock cannot be moved")?;
        let stop = Arc::new(AtomicBool::new(false));
        let drifting = if fault.kind == Kind::ClockDrift {
            Some(drift(offset.clone(), stop.clone()))
        } else {
            offset.set(by, skew)?;
            None
        };
        if drifting.is_some() {
            thread::sleep(Duration::from_millis(120));
        }
        let off = off_by(&world.masters[index])?;
        let enough = if drifting.is_some() { 20 } else { 1_000 };
        ensure!(
            off.unsigned_abs() >= enough,
            "the clock of m{} is off by only {off} ms",
            index + 1
        );
        seen.push(format!("m{} is off by {off} ms", index + 1));
        heals.push(Box::new(move |world| {
            stop.store(true, Ordering::Relaxed);
            if let Some(drifting) = drifting {
                let _ = drifting.join();
            }
            offset.clear()?;
            let off = off_by(&world.masters[index])?;
            ensure!(off.abs() < 500, "the clock is still off by {off} ms");
            Ok(())
        }));
    }
    Ok(Landed::new(seen.join("; "), all(heals)))
}

/// Half as fast again as it should be.
fn drift(offset: OffsetFile, stop: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let started = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let _ = offset.set(started.elapsed() / 2, Skew::Ahead);
            thread::sleep(Duration::from_millis(1));
        }
    })
}

/// By how many milliseconds the master's clock is ahead of ours.
fn off_by(server: &Server) -> anyhow::Result<i64> {
    let Reply::Array(time) = server.command(&["TIME"])? else {
        anyhow::bail!("no answer to TIME")
    };
    let part = |index: usize| time.get(index).and_then(Reply::int).unwrap_or(0);
    let theirs = part(0) * 1_000 + part(1) / 1_000;
    let ours = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Ok(theirs - i64::try_from(ours.as_millis())?)
}
