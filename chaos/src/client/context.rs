//! Data that all tasks of a client process share, and the functions that record events.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quorate::{InvalidResource, Owner, Redlock};
use rand::RngExt;

use super::settings::Settings;
use crate::event::{Clock, Entry, Event, STALLED};

/// The client records a delay as a stall if it is longer than this time, in nanoseconds. Two delays are measured:
///
/// - the time that a write to the history takes
/// - the delay with which a sleeping thread wakes up
///
/// A busy machine can cause both delays. A write also takes long if the main process of the run reads the client's
/// output too slowly.
pub(super) const STALL_THRESHOLD: u64 = 40_000_000;

/// Data that all tasks of a client process share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) clock: Clock,
    pub(super) redlock: Redlock,
    /// The handle of each lock owner, by the owner's id. All tasks share these handles, so that the library grants
    /// further holds of an owner locally, without a request.
    owners: Mutex<HashMap<String, Owner>>,
    last_op: AtomicU64,
    is_finishing: AtomicBool,
    /// Until this time, tasks cancel their operations by dropping the futures, and drop guards instead of releasing
    /// them. In nanoseconds since the start of the run.
    drop_until: AtomicU64,
}

pub(super) type Ctx = Arc<Shared>;

impl Shared {
    pub(super) fn new(settings: Settings, redlock: Redlock) -> Self {
        Self {
            clock: Clock::with_origin(settings.origin),
            redlock,
            settings,
            owners: Mutex::default(),
            last_op: AtomicU64::new(0),
            is_finishing: AtomicBool::new(false),
            drop_until: AtomicU64::new(0),
        }
    }

    pub(super) fn finish(&self) {
        self.is_finishing.store(true, Ordering::Relaxed);
    }

    /// Until `t`, makes tasks cancel their operations by dropping the futures, and drop guards instead of releasing
    /// them.
    pub(super) fn drop_futures_until(&self, t: u64) {
        self.drop_until.store(t, Ordering::Relaxed);
    }

    /// The handle of the lock owner with this id; all tasks share it.
    pub(super) fn owner(&self, id: &str) -> Result<Owner, InvalidResource> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = owners.get(id) {
            return Ok(owner.clone());
        }
        let owner = self.redlock.owner(id)?;
        owners.insert(id.to_owned(), owner.clone());
        Ok(owner)
    }

    /// The name that identifies the attempt `op` of this client in shared files, e.g. `c1.2#7`.
    pub(super) fn attempt_name(&self, op: u64) -> String {
        format!("{}#{op}", self.settings.name)
    }

    /// Sleeps for a random time, up to the maximum in the settings.
    pub(super) async fn pause(&self) {
        let max_pause = self.settings.pause.as_micros() as u64 + 1;
        let pause = rand::rng().random_range(0..max_pause);
        tokio::time::sleep(Duration::from_micros(pause)).await;
    }

    pub(super) fn next_op(&self) -> u64 {
        self.last_op.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn is_finishing(&self) -> bool {
        self.is_finishing.load(Ordering::Relaxed)
    }

    pub(super) fn drops_futures(&self) -> bool {
        self.clock.now() < self.drop_until.load(Ordering::Relaxed)
    }

    /// Records an event that happens now.
    pub(super) fn record(&self, event: Event) {
        self.record_at(self.clock.now(), event);
    }

    /// Records an event that happened at `t`.
    pub(super) fn record_at(&self, t: u64, what: Event) {
        let process = self.settings.name.clone();
        let entry = Entry {
            t,
            process,
            event: what,
        };
        let Ok(mut json) = serde_json::to_vec(&entry) else {
            return;
        };
        json.push(b'\n');
        let write_began_at = self.clock.now();
        // Write and flush each line immediately. If this process is killed, at most the last line is truncated.
        let mut stdout = std::io::stdout().lock();
        if stdout
            .write_all(&json)
            .and_then(|()| stdout.flush())
            .is_err()
        {
            std::process::exit(1);
        }
        drop(stdout);
        // A long write means that this process was blocked. Record this as a stall.
        let was_stalled = self.clock.now() - write_began_at > STALL_THRESHOLD;
        if was_stalled && !matches!(entry.event, Event::Suffered { .. }) {
            let disturbance = STALLED.to_owned();
            self.record(Event::Suffered {
                disturbance,
                since: write_began_at,
            });
        }
    }
}
