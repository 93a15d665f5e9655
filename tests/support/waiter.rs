//! A task that waits for a lock.

use quorate::{AcquireError, LockGuard};
use tokio::task::JoinHandle;

use super::PATIENCE;

pub(crate) type Waiter = JoinHandle<Result<LockGuard, AcquireError>>;

/// Waits until the task has acquired the lock, and returns the guard of the lock.
pub(crate) async fn wait_for_guard(waiter: Waiter) -> LockGuard {
    let outcome = tokio::time::timeout(PATIENCE, waiter).await;
    let outcome = outcome
        .expect("the waiter must get the lock")
        .expect("no panic");
    outcome.unwrap_or_else(|error| panic!("{error}"))
}
