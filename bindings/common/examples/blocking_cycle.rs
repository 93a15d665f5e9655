//! Measures a lock and unlock of the core's `blocking` API, for the comparison in `bindings/python/bench/versus.py`.
//!
//! The arguments are the URLs of the masters. For each line of the standard input (a number of seconds), the program
//! acquires and releases a lock again and again for this time, and prints the median time of a cycle in microseconds.

use std::io::BufRead;
use std::time::{Duration, Instant};

use quorate_bindings::quorate::{Redlock, RestartGuard, blocking};

type Failure = Box<dyn std::error::Error>;

fn median_cycle(redlock: &blocking::Redlock, time: Duration) -> Result<f64, Failure> {
    let mut cycles = Vec::new();
    let began = Instant::now();
    while began.elapsed() < time {
        let start = Instant::now();
        redlock.lock("blocking").acquire()?.release()?;
        cycles.push(start.elapsed());
    }
    cycles.sort_unstable();
    Ok(cycles[cycles.len() / 2].as_secs_f64() * 1e6)
}

fn main() -> Result<(), Failure> {
    let redlock = Redlock::builder()
        .masters(std::env::args().skip(1))
        .restart_guard(RestartGuard::Off)
        .build_blocking()?;
    for line in std::io::stdin().lock().lines() {
        let time = Duration::from_secs_f64(line?.trim().parse()?);
        println!("{}", median_cycle(&redlock, time)?);
    }
    Ok(())
}
