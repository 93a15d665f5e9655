//! The settings that a `Redlock` passes to its masters when the `Redlock` is built.

use std::sync::Arc;
use std::time::Duration;

use super::actor::trust::Roster;
use crate::runtime::Runtime;
use crate::settings::RestartGuard;

/// The largest number of steps in making one connection. Redis needs three: opening the connection, and the two
/// messages of the handshake. Each step may take one connect timeout.
pub(crate) const CONNECT_STEPS: u32 = 3;

/// The settings that all masters of one `Redlock` share.
#[derive(Clone)]
#[non_exhaustive]
pub struct Context {
    /// Provides clocks, timers and tasks.
    pub runtime: Arc<dyn Runtime>,
    /// The longest TTL that any client of these masters uses.
    pub max_ttl: Duration,
    /// The time limit for connecting to a master.
    ///
    /// - Redis: a limit for each of three steps: the opening of the connection, the first handshake message, and the
    ///   second handshake message.
    /// - Databases and ZooKeeper: the limit for the whole attempt to connect.
    pub connect_timeout: Duration,
    /// The setting of the restart guard, which ignores the votes of masters that restarted recently.
    pub restart_guard: RestartGuard,
    /// Detects two addresses of this `Redlock` that lead to the same server.
    pub(crate) roster: Arc<Roster>,
}

impl Context {
    /// Creates the context of one set of masters: connect timeout 500 ms, restart guard on, no servers known yet.
    pub(crate) fn new(runtime: Arc<dyn Runtime>, max_ttl: Duration) -> Self {
        let clock = runtime.clone();
        Self {
            runtime,
            max_ttl,
            connect_timeout: Duration::from_millis(500),
            restart_guard: RestartGuard::On,
            roster: Arc::new(Roster::new(move || clock.now(), max_ttl)),
        }
    }
}

/// The properties of one kind of master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Abilities {
    /// Whether the master notifies a waiting client when the lock becomes free. If no majority of the masters sends
    /// such notifications, waiting clients poll.
    pub wakes: bool,
    /// The answer timeout of this kind of master; `None` means [`node_timeout`](crate::RedlockBuilder::node_timeout).
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

    /// Sets the answer timeout of this kind of master.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        let timeout = Some(timeout);
        Self { timeout, ..self }
    }
}
