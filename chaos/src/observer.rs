//! What is locked on one master that keeps records, seen from outside.
//!
//! A ZooKeeper has no clock: a lease is over for who has seen it stand still for as long as it lasts. So one observer
//! looks again and again, and its first look comes a ttl before the one that counts.

use std::time::Duration;

use anyhow::{Context, ensure};
use quorate::{Redlock, RestartGuard, StatusVerdict};
use tokio::runtime::Runtime;

use crate::locking;

/// How long an answer may take, on a machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Who looks at one master.
#[derive(Debug)]
pub struct Observer {
    redlock: Redlock,
    runtime: Runtime,
}

impl Observer {
    /// Of the master of this URL.
    ///
    /// # Errors
    ///
    /// When there is no runtime, or the URL is none.
    pub fn of(url: &str) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("begin a runtime")?;
        let inside = runtime.enter();
        // It looks at what is there, and decides nothing: also on a master that has restarted.
        let redlock = locking::over(&[url.to_owned()])?
            .restart_guard(RestartGuard::Off)
            .ttl(PATIENCE * 5)
            .build()?;
        drop(inside);
        Ok(Self { redlock, runtime })
    }

    /// The keys of what is locked.
    ///
    /// # Errors
    ///
    /// When the master does not answer, or there is too much to see it all.
    pub fn locked(&self) -> anyhow::Result<Vec<String>> {
        let listing = self.runtime.block_on(self.redlock.list(""));
        if let Some((name, fault)) = listing.faults.first() {
            anyhow::bail!("{name}: {fault}");
        }
        ensure!(listing.complete, "not everything was listed");
        let held = listing.locks.iter();
        let held = held.filter(|lock| lock.status.verdict() != StatusVerdict::Free);
        let key = |resource: &[u8], slot: Option<usize>| {
            let name = String::from_utf8_lossy(resource);
            slot.map_or_else(
                || name.clone().into_owned(),
                |slot| format!("quorate:slot:{slot}:{name}"),
            )
        };
        Ok(held.map(|lock| key(&lock.resource, lock.slot)).collect())
    }
}
