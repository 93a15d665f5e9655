//! The settings that a `Redlock` passes to its masters when it is built.

use std::sync::Arc;
use std::time::Duration;

use super::actor::trust::Roster;
use crate::runtime::Runtime;
use crate::settings::RestartGuard;

/// The settings that all masters of one `Redlock` share.
#[derive(Clone)]
#[non_exhaustive]
pub struct Context {
    /// Provides clocks, timers and tasks.
    pub runtime: Arc<dyn Runtime>,
    /// The longest TTL that any client of these masters uses.
    pub max_ttl: Duration,
    /// How long a master's connection attempt may take.
    pub connect_timeout: Duration,
    /// The restart guard: whether masters that restarted recently may vote.
    pub restart_guard: RestartGuard,
    /// The identities of the servers, by which two addresses of the same server are detected.
    pub(crate) roster: Arc<Roster>,
}

impl Context {
    /// Creates a context for one set of masters: connect timeout 500 ms, restart guard on, no servers known yet.
    pub(crate) fn new(runtime: Arc<dyn Runtime>, max_ttl: Duration) -> Self {
        Self {
            runtime,
            max_ttl,
            connect_timeout: Duration::from_millis(500),
            restart_guard: RestartGuard::On,
            roster: Arc::default(),
        }
    }
}

/// The abilities of a kind of master, in addition to its vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// Whether the master wakes waiters. Waiters poll if fewer than a quorum of the masters do.
    pub wakes: bool,
    /// How long the master may take to answer. `None` for the builder's node timeout.
    pub timeout: Option<Duration>,
}

impl Default for Abilities {
    fn default() -> Self {
        Self {
            wakes: true,
            timeout: None,
        }
    }
}

impl Abilities {
    /// Declares that the master does not wake waiters.
    #[must_use]
    pub fn without_wakes(self) -> Self {
        Self {
            wakes: false,
            ..self
        }
    }

    /// Sets how long the master may take to answer.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        let timeout = Some(timeout);
        Self { timeout, ..self }
    }
}
