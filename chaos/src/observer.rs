//! Reads which locks are held on one master that is not a Redis.
//!
//! ZooKeeper and etcd do not know when a lock expires. The observer regards a lock as expired if the holder has not
//! renewed it for one TTL. So the observer must watch a lock for one TTL before it can report it as expired.

use std::time::Duration;

use anyhow::{Context, ensure};
use quorate::{Redlock, RestartGuard, StatusVerdict};
use tokio::runtime::Runtime;

use crate::locking;

/// How long the observer waits for an answer from the master.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// An observer of the locks on one master.
#[derive(Debug)]
pub struct Observer {
    redlock: Redlock,
    runtime: Runtime,
}

impl Observer {
    /// An observer of the master with this URL.
    ///
    /// # Errors
    ///
    /// If no async runtime can be created, or the URL is not valid.
    pub fn of(url: &str) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start an async runtime")?;
        let runtime_context = runtime.enter();
        // The observer only reads, so no restart guard is needed.
        let redlock = locking::builder_over(&[url.to_owned()])?
            .restart_guard(RestartGuard::Off)
            .ttl(PATIENCE * 5)
            .connect_timeout(PATIENCE)
            .build()?;
        drop(runtime_context);
        Ok(Self { redlock, runtime })
    }

    /// The keys of all locks that are held.
    ///
    /// # Errors
    ///
    /// If the master does not answer, or if there are too many locks to list.
    pub fn held_keys(&self) -> anyhow::Result<Vec<String>> {
        let listing = self.runtime.block_on(self.redlock.list(""));
        if let Some((name, fault)) = listing.faults.first() {
            anyhow::bail!("{name}: {fault}");
        }
        ensure!(listing.complete, "the list of locks is incomplete");
        let held_locks = listing.locks.iter();
        let held_locks = held_locks.filter(|lock| lock.status.verdict() != StatusVerdict::Free);
        let key_of = |resource: &[u8], slot: Option<usize>| {
            let name = String::from_utf8_lossy(resource);
            slot.map_or_else(
                || name.clone().into_owned(),
                |slot| format!("quorate:slot:{slot}:{name}"),
            )
        };
        Ok(held_locks
            .map(|lock| key_of(&lock.resource, lock.slot))
            .collect())
    }
}
