//! Jumps and drifts of the masters' wall clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use quorate_testbed::{OffsetFile, Reply, Server, Skew, within};

use super::kind::{ExclusionBreach, InjectIntoMaster, Injection, Reach, Row};
use super::landed::Landed;
use crate::world::{Needs, World};

/// The longest wait until a clock's drift is large enough to be observed.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const ROWS: &[Row] = &[
    clock_row(
        "clock-forward",
        "the clock of one master jumps forward, and is corrected later",
        jump_ahead,
    ),
    clock_row(
        "clock-back",
        "the clock of one master jumps back, and is corrected later",
        |fault, index, world| jump(fault, index, world, Skew::Behind),
    ),
    clock_row(
        "clock-drift",
        "the clock of one master runs at a wrong speed",
        run_at_wrong_speed,
    ),
    clock_row(
        "clock-majority",
        "the clocks of a majority of masters jump forward by more than any TTL",
        jump_ahead,
    )
    .reach(Reach::Majority)
    .breaks(ExclusionBreach::Must),
];

const fn clock_row(
    name: &'static str,
    description: &'static str,
    inject_function: InjectIntoMaster,
) -> Row {
    Row::each(name, description, inject_function)
        .needs(Needs::Clocks)
        .breaks(ExclusionBreach::Mistimes)
}

fn jump_ahead(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    jump(fault, index, world, Skew::Ahead)
}

fn jump(fault: &Injection, index: usize, world: &mut World, skew: Skew) -> anyhow::Result<Landed> {
    let offset = offset_file(index, world)?;
    offset.set(fault.drawn_time(1_500, 3_000), skew)?;
    let observe = |world: &World| check_offset(index, world, 1_000);
    Landed::once_observed(world, observe, move |world| {
        correct_clock(index, world, &offset)
    })
}

fn run_at_wrong_speed(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let offset = offset_file(index, world)?;
    let stop = Arc::new(AtomicBool::new(false));
    let run_at_wrong_speed = drift(offset.clone(), stop.clone());
    let observe = |world: &World| observe_until(PATIENCE, || check_offset(index, world, 20));
    Landed::once_observed(world, observe, move |world| {
        stop.store(true, Ordering::Relaxed);
        let _ = run_at_wrong_speed.join();
        correct_clock(index, world, &offset)
    })
}

fn offset_file(index: usize, world: &World) -> anyhow::Result<OffsetFile> {
    let offset_file = world.offsets.get(index).cloned();
    offset_file.context("this master's clock cannot be changed")
}

/// Checks that the master's clock is wrong by at least `min_difference` milliseconds, and returns the observed
/// difference.
fn check_offset(index: usize, world: &World, min_difference: u64) -> anyhow::Result<String> {
    let difference = clock_difference(world.redis(index)?)?;
    ensure!(
        difference.unsigned_abs() >= min_difference,
        "the clock of the master is off by only {difference} ms"
    );
    Ok(format!("the clock is off by {difference} ms"))
}

/// Calls the function `observe` until it returns no error, but not for longer than `patience`. Returns the result of
/// the last call.
fn observe_until(
    patience: Duration,
    mut observe: impl FnMut() -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    let mut result = observe();
    within(patience, || {
        if result.is_err() {
            result = observe();
        }
        result.is_ok()
    });
    result
}

fn correct_clock(index: usize, world: &World, offset: &OffsetFile) -> anyhow::Result<()> {
    offset.clear()?;
    let difference = clock_difference(world.redis(index)?)?;
    ensure!(
        difference.abs() < 500,
        "the clock of the master is still off by {difference} ms"
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
fn clock_difference(server: &Server) -> anyhow::Result<i64> {
    let Reply::Array(time_reply) = server.command(&["TIME"])? else {
        anyhow::bail!("the master did not answer TIME with a list")
    };
    let number_at = |index: usize| time_reply.get(index).and_then(Reply::int).unwrap_or(0);
    let server_time = number_at(0) * 1_000 + number_at(1) / 1_000;
    let own_time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Ok(server_time - i64::try_from(own_time.as_millis())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_check_is_repeated_until_it_succeeds_or_times_out() {
        let mut observations = 0;
        let eventual = observe_until(PATIENCE, || {
            observations += 1;
            ensure!(
                observations > 3,
                "the clock is off by only {observations} ms"
            );
            Ok("the clock is off by 20 ms".to_owned())
        });
        assert_eq!(
            eventual.expect("the drift must be observed"),
            "the clock is off by 20 ms"
        );
        let missing = observe_until(Duration::from_millis(30), || {
            anyhow::bail!("the clock is off by only 0 ms")
        });
        let why = missing
            .expect_err("drift that is not observed must be an error")
            .to_string();
        assert_eq!(why, "the clock is off by only 0 ms");
    }
}
