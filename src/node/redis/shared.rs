//! The state of one Redis master that its handle, its actor and its inspections share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::{Either, select};

use super::address::Address;
use super::lookup::Lookup;
#[cfg(any(test, feature = "testing"))]
use crate::node::Dial;
use crate::node::Subscriber;
use crate::node::actor::mailbox::Mailbox;
use crate::node::actor::markers::GenerationMarkers;
use crate::node::actor::trust::{Roster, RunHistory};
use crate::protocol::age::Watch;
use crate::protocol::instant::Instant;
use crate::protocol::marker::Configuration;
use crate::repeats::Repeats;
#[cfg(feature = "tls-rustls")]
use crate::reread::Reread;
use crate::runtime::Runtime;
use crate::settings::RestartGuard;

/// The settings that are the same for all masters of one `Redlock`.
pub(crate) struct NodeOptions {
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) max_ttl: Duration,
    pub(crate) restart_guard: RestartGuard,
    /// The last part of each connection's name in `CLIENT LIST`: the host and the process id of this client.
    pub(crate) name: Box<str>,
    /// Decides which generation markers admit this client. Consists of the client's `masters_generation`, and of a
    /// fingerprint (hash) of the names in `masters` and another one of those in `next_masters`.
    pub(crate) configuration: Configuration,
    /// The generation markers that this client last saw on the masters.
    pub(crate) markers: GenerationMarkers,
    /// Records which server each address leads to. If two addresses lead to the same server, the second one is refused.
    pub(crate) roster: Arc<Roster>,
    /// The clocks, timers and random bytes of inspections and operators. The link takes all times from its actor.
    pub(crate) runtime: Arc<dyn Runtime>,
    /// Opens simulated streams; `None` to use TCP connections.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) dial: Option<Dial>,
    #[cfg(feature = "tls-rustls")]
    pub(crate) tls: Option<Arc<Reread<Arc<rustls::ClientConfig>>>>,
}

impl NodeOptions {
    /// The connection's name in `CLIENT LIST` if the user can read the generation marker:
    /// `quorate/STEP/FINGERPRINT:HOST:PID`. `Configuration::tag` defines STEP and FINGERPRINT.
    pub(super) fn full_name(&self) -> String {
        format!("quorate/{}:{}", self.configuration.tag(), self.name)
    }

    /// The connection's name in `CLIENT LIST` if the user cannot read the generation marker: `quorate:HOST:PID`.
    pub(super) fn plain_name(&self) -> String {
        format!("quorate:{}", self.name)
    }
}

/// The state that the handle and the actor of one master share.
pub(super) struct Shared {
    pub(super) address: Address,
    pub(super) options: Arc<NodeOptions>,
    pub(super) mailbox: Mailbox,
    pub(super) run_history: RunHistory,
    pub(super) lookup: Lookup,
    /// Limits how often warnings about the connection to this master are logged.
    pub(super) repeats: Repeats,
    /// The receiver of the master's wake-ups for waiters. Not set if this process uses no queues.
    pub(super) subscriber: OnceLock<Subscriber>,
    /// How many connections in a row the server has closed before it answered anything. It may be a server of another
    /// kind.
    pub(super) unanswered: AtomicU32,
    /// The origin of the times in the master's link and in `run_history`. Set by the first actor.
    pub(super) origin: OnceLock<tokio::time::Instant>,
}

impl Shared {
    pub(super) fn new(address: Address, options: Arc<NodeOptions>) -> Self {
        Self {
            address,
            options,
            mailbox: Mailbox::new(),
            run_history: RunHistory::default(),
            lookup: Lookup::default(),
            repeats: Repeats::default(),
            subscriber: OnceLock::new(),
            unanswered: AtomicU32::new(0),
            origin: OnceLock::new(),
        }
    }

    /// Counts a connection that has ended. `unanswered` is whether the server closed it before it answered anything.
    pub(super) fn count_unanswered(&self, unanswered: bool) {
        if unanswered {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
        } else {
            self.unanswered.store(0, Ordering::Relaxed);
        }
    }

    /// Whether to find out before the next handshake which protocol the server speaks. True after 1, 2, 4, 8, ..
    /// unanswered connections, because the server may be a load balancer that is waited for.
    pub(super) fn may_be_of_another_kind(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed).is_power_of_two()
    }

    /// If the votes of this master are ignored because it lost its generation marker, returns `max_ttl`: the longest
    /// time until they count again. `None` if the marker was not lost, or if the restart guard is off.
    pub(super) fn doubted_for(&self) -> Option<Duration> {
        let options = &self.options;
        let is_guarded = options.restart_guard != RestartGuard::Off;
        (is_guarded && options.markers.has_lost_marker(self.address.name()))
            .then_some(options.max_ttl)
    }

    /// For how much longer the votes of this master do not count, because clients have not watched its present run for
    /// `max_ttl` yet. Zero if they count.
    pub(super) fn guarded_by_age(&self, watch: &Watch, now: Instant) -> Duration {
        let is_first_run = self.options.restart_guard == RestartGuard::AfterFirstContact
            && self.run_history.is_first_run(watch.run());
        if is_first_run && !watch.is_after_loss() {
            Duration::ZERO
        } else {
            watch.guarded_for(now, self.options.max_ttl)
        }
    }

    /// Waits for `work`, but not longer than `limit`. `None` if the limit has passed.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let runtime = &self.options.runtime;
        let timer = runtime.sleep_until(runtime.now() + limit);
        // On the heap, because the future of an inspection would become very large otherwise.
        match select(Box::pin(work), timer).await {
            Either::Left((result, _)) => Some(result),
            Either::Right(_) => None,
        }
    }

    /// Creates the state for an additional connection to the same master: with the same settings, and with the same
    /// knowledge about restarts of the server.
    pub(super) fn for_another_connection(&self) -> Self {
        Self {
            run_history: self.run_history.for_another_connection(),
            ..Self::new(self.address.clone(), self.options.clone())
        }
    }
}
