//! Waits for a process that may hang.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Waits until the process has ended, and kills it when `limit` has passed.
pub(super) fn wait_or_kill(child: &mut Child, limit: Duration) -> Result<()> {
    let ends_at = Instant::now() + limit;
    while child.try_wait()?.is_none() {
        if Instant::now() >= ends_at {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
