//! The client of `quorate` for the comparison with other tools. `scripts/compare-tools` starts it, and exchanges lines
//! of text with it: see `benches/tools/compare.py`.

use std::sync::Mutex;
use std::time::Duration;

use fork::{Fork, fork, waitpid};
use quorate::blocking::{LockGuard, Redlock};
use quorate::{AcquireError, Wait};

fn print_line(line: &str) {
    use std::io::Write as _;
    // The driver may have ended. The end of its input then ends this program as well.
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn acquire(redlock: &Redlock, name: &str, seconds: f64) -> Option<LockGuard> {
    let wait = Wait::For(Duration::from_secs_f64(seconds));
    match redlock.lock(name).wait(wait).acquire() {
        Ok(guard) => {
            guard.on_lost(|cause| print_line(&format!("lost {cause}")));
            let token = guard.fencing_token().map(|token| token.to_string());
            print_line(&format!("acquired {}", token.as_deref().unwrap_or("-")));
            Some(guard)
        }
        Err(AcquireError::HeldByOther(_)) => {
            print_line("refused held");
            None
        }
        Err(error) => {
            print_line(&format!("refused {error}"));
            None
        }
    }
}

fn release(guard: Option<LockGuard>) -> String {
    match guard.as_ref().map(LockGuard::release) {
        Some(Ok(released)) if released.was_valid => "released".to_owned(),
        Some(Ok(_)) => "failed not held".to_owned(),
        Some(Err(error)) => format!("failed {error}"),
        None => "failed nothing is held".to_owned(),
    }
}

/// Forks. The child releases its copy of the guard, or sleeps until the driver kills it.
fn fork_process(held_guard: &Mutex<Option<LockGuard>>, child_action: &str) {
    match fork() {
        Ok(Fork::Child) => {
            if child_action == "release" {
                let guard = held_guard.lock().expect("no thread has panicked").take();
                print_line(&format!("child {}", release(guard)));
                std::process::exit(0);
            }
            std::thread::sleep(Duration::from_secs(60));
            std::process::exit(0);
        }
        Ok(Fork::Parent(child)) => {
            print_line(&format!("forked {child}"));
            if child_action == "release" {
                let _ = waitpid(child);
            }
        }
        Err(error) => print_line(&format!("failed {error}")),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, addresses, name, ttl] = arguments.as_slice() else {
        return Err("usage: ADDRESSES NAME TTL_MS".into());
    };
    let ttl = Duration::from_millis(ttl.parse()?);
    let masters = addresses
        .split(',')
        .map(|address| format!("redis://{address}"));
    let redlock = quorate::Redlock::builder()
        .masters(masters)
        .ttl(ttl)
        .max_ttl(ttl)
        .build_blocking()?;
    // Connect now, so that the first acquire is not slower than the others.
    redlock.inspect()?;
    print_line("ready");
    let held_guard = Mutex::new(None);
    for line in std::io::stdin().lines() {
        let line = line?;
        let mut command_parts = line.split_whitespace();
        let (verb, argument) = (
            command_parts.next(),
            command_parts.next().unwrap_or_default(),
        );
        match verb {
            Some("acquire") => {
                let guard = acquire(&redlock, name, argument.parse()?);
                *held_guard.lock().expect("no thread has panicked") = guard;
            }
            Some("held") => {
                let guard = held_guard.lock().expect("no thread has panicked");
                let is_valid = guard.as_ref().is_some_and(|guard| guard.is_valid());
                print_line(if is_valid { "held yes" } else { "held no" });
            }
            Some("release") => {
                let guard = held_guard.lock().expect("no thread has panicked").take();
                print_line(&release(guard));
            }
            Some("fork") => fork_process(&held_guard, argument),
            _ => return Err(format!("unknown line: {line}").into()),
        }
    }
    std::process::exit(0);
}
