//! The settings that a `Redlock` and its masters exchange when it is built.

use std::sync::Arc;
use std::time::Duration;

use super::actor::trust::Roster;
use crate::runtime::Runtime;
use crate::settings::RestartGuard;

/// The settings that all masters of one `Redlock` share.
#[derive(Clone)]
#[non_exhaustive]
pub struct Context {
    /// Clocks, timers and tasks.
    pub runtime: Arc<dyn Runtime>,
    /// The longest ttl that any client uses.
    pub max_ttl: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// Whether masters that restarted recently may vote.
    pub restart_guard: RestartGuard,
    /// Which server each master is.
    pub(crate) roster: Arc<Roster>,
}

impl Context {
    /// The same context for another set of masters.
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
    /// Whether it wakes waiters. If fewer than a quorum do, waiters poll.
    pub wakes: bool,
    /// How long it may take to answer, if that differs from the builder's node timeout.
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
    /// Declares that the master wakes nobody.
    #[must_use]
    pub fn without_wakes(self) -> Self {
        Self {
            wakes: false,
            ..self
        }
    }

    /// Sets the time that the master has to answer.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        let timeout = Some(timeout);
        Self { timeout, ..self }
    }
}
