//! Jumps and drifts of the masters' wall clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use quorate_testbed::{OffsetFile, Reply, Server, Skew, within};

use super::kind::{Breaks, Injection, Reach, Row, ToEach};
use super::landed::Landed;
use crate::world::{Needs, World};

/// The longest wait until a clock's drift is large enough to be observed.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const ROWS: &[Row] = &[
    clock(
        "clock-forward",
        "the clock of one master jumps forward, and is corrected later",
        forward,
    ),
    clock(
        "clock-back",
        "the clock of one master jumps back, and is corrected later",
        |fault, index, world| jump(fault, index, world, Skew::Behind),
    ),
    clock(
        "clock-drift",
        "the clock of one master runs at a wrong speed",
        drifting,
    ),
    clock(
        "clock-majority",
        "the clocks of a majority of masters jump forward by more than any TTL",
        forward,
    )
    .reach(Reach::Majority)
    .breaks(Breaks::Must),
];

const fn clock(name: &'static str, what: &'static str, deed: ToEach) -> Row {
    Row::each(name, what, deed)
        .needs(Needs::Clocks)
        .breaks(Breaks::Mistimes)
}

fn forward(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    jump(fault, index, world, Skew::Ahead)
}

fn jump(fault: &Injection, index: usize, world: &mut World, skew: Skew) -> anyhow::Result<Landed> {
    let offset = offset(index, world)?;
    offset.set(fault.ms(1_500, 3_000), skew)?;
    let look = |world: &World| check_offset(index, world, 1_000);
    Landed::once_seen(world, look, move |world| back(index, world, &offset))
}

fn drifting(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let offset = offset(index, world)?;
    let stop = Arc::new(AtomicBool::new(false));
    let drifting = drift(offset.clone(), stop.clone());
    let look = |world: &World| in_time(PATIENCE, || check_offset(index, world, 20));
    Landed::once_seen(world, look, move |world| {
        stop.store(true, Ordering::Relaxed);
        let _ = drifting.join();
        back(index, world, &offset)
    })
}

fn offset(index: usize, world: &World) -> anyhow::Result<OffsetFile> {
    let offset = world.offsets.get(index).cloned();
    offset.context("this master's clock cannot be changed")
}

/// Checks that the master's clock is wrong by at least `enough` milliseconds, and returns the observed difference.
fn check_offset(index: usize, world: &World, enough: u64) -> anyhow::Result<String> {
    let off = off_by(world.redis(index)?)?;
    ensure!(
        off.unsigned_abs() >= enough,
        "the clock of the master is off by only {off} ms"
    );
    Ok(format!("the clock is off by {off} ms"))
}

/// Calls the function `look` until it returns no error, but not for longer than `patience`. Returns the result of the
/// last call.
fn in_time(
    patience: Duration,
    mut look: impl FnMut() -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut seen = look();
    within(patience, || {
        if seen.is_err() {
            seen = look();
        }
        seen.is_ok()
    });
    seen
}

fn back(index: usize, world: &World, offset: &OffsetFile) -> anyhow::Result<()> {
    offset.clear()?;
    let off = off_by(world.redis(index)?)?;
    ensure!(
        off.abs() < 500,
        "the clock of the master is still off by {off} ms"
    );
    Ok(())
}

/// Makes a master's clock run at 1.5 times its normal speed until `stop` is set. The clock reads its offset from the
/// file `offset`.
fn drift(offset: OffsetFile, stop: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let started = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let _ = offset.set(started.elapsed() / 2, Skew::Ahead);
            thread::sleep(Duration::from_millis(1));
        }
    })
}

/// The difference between the master's clock and this machine's clock in milliseconds. Positive if the master's clock
/// is ahead.
fn off_by(server: &Server) -> anyhow::Result<i64> {
    let Reply::Array(time) = server.command(&["TIME"])? else {
        anyhow::bail!("the master did not answer TIME with a list")
    };
    let part = |index: usize| time.get(index).and_then(Reply::int).unwrap_or(0);
    let theirs = part(0) * 1_000 + part(1) / 1_000;
    let ours = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Ok(theirs - i64::try_from(ours.as_millis())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_check_is_repeated_until_it_succeeds_or_times_out() {
        let mut looks = 0;
        let late = in_time(PATIENCE, || {
            looks += 1;
            ensure!(looks > 3, "the clock is off by only {looks} ms");
            Ok("the clock is off by 20 ms".to_owned())
        });
        assert_eq!(
            late.expect("the drift must be observed"),
            "the clock is off by 20 ms"
        );
        let never = in_time(Duration::from_millis(30), || {
            anyhow::bail!("the clock is off by only 0 ms")
        });
        let why = never
            .expect_err("drift that is not observed must be an error")
            .to_string();
        assert_eq!(why, "the clock is off by only 0 ms");
    }
}
