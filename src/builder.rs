//! The builder of a [`Redlock`](crate::Redlock): its settings and their defaults.

mod build;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod hooks;

use std::sync::Arc;
use std::time::Duration;

use crate::config::list::{Settings, table};
use crate::node::Node;
#[cfg(any(test, feature = "testing"))]
use crate::node::note::Identity;
use crate::node::note::NoteText;
use crate::node::redis::MasterSource;
use crate::protocol::validity::Drift;
use crate::redlock::Redlock;
use crate::retry::Retry;
use crate::runtime::Runtime;
#[cfg(any(test, feature = "testing"))]
use crate::runtime::Tokio;
use crate::settings::{Order, RestartGuard, Wait};
#[cfg(feature = "tls-rustls")]
use crate::tls::Tls;

/// Settings of a [`Redlock`], with their defaults. [`build`](Self::build) checks the settings and never connects.
///
/// Settings with an environment variable in the table below can also be read from the environment
/// ([`from_env`](Self::from_env)) or from a file ([`Settings`]).
///
#[doc = table!()]
/// | `drift` | | 1 % + 2 ms | clocks are inaccurate |
/// | `heartbeat` | | half the ttl, or the wait if that is shorter | a crashed waiter must be skipped sooner |
/// | `retry` | | 10 ms growing to 250 ms | locks are held for a few milliseconds only |
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until build() is called"]
pub struct RedlockBuilder {
    masters: Vec<MasterSource>,
    next_masters: Vec<MasterSource>,
    /// The settings that can be written as text. The masters, the TLS certificates and the note are in other fields of
    /// the builder.
    settings: Settings,
    drift: Drift,
    retry: Retry,
    heartbeat: Option<Duration>,
    note: NoteText,
    #[cfg(feature = "tls-rustls")]
    tls: Tls,
    runtime: Option<Arc<dyn Runtime>>,
    #[cfg(any(test, feature = "testing"))]
    dial: Option<crate::node::Dial>,
    #[cfg(any(test, feature = "testing"))]
    identity: Option<Identity>,
    nodes: Vec<Arc<dyn Node>>,
    /// The masters that the caller gave as a [`Node`] instead of a URL, each with the number of URLs that were given
    /// before it. So the order of all masters is known.
    custom_nodes: Vec<(usize, Arc<dyn Node>)>,
}

impl RedlockBuilder {
    /// Applies all settings that can be written as text. Does not read the TLS files that these settings name.
    pub(crate) fn settings(self, mut settings: Settings) -> Self {
        let masters = std::mem::take(&mut settings.masters);
        let next_masters = std::mem::take(&mut settings.next_masters);
        let mut builder = self.masters(masters).next_masters(next_masters);
        if let Some(note) = settings.note.take() {
            builder = builder.note(note);
        }
        builder.settings = settings.or(builder.settings);
        builder
    }

    /// Adds one master: `redis://[user[:password]@]host[:port][/db]`, `rediss://..` for TLS (feature `tls-rustls`), or
    /// `unix:///path/to.sock[?db=N&user=U&pass=P]`. `valkey://` and `valkeys://` mean the same as `redis://` and
    /// `rediss://`. In a password, write `%2F` for `/`, `%3F` for `?`, `%23` for `#` and `%40` for `@`.
    ///
    /// Masters must be independent servers: not replicas of each other, not nodes of a cluster.
    pub fn master(mut self, url: impl Into<String>) -> Self {
        self.masters.push(MasterSource::ByUrl(url.into()));
        self
    }

    /// Adds several masters by their URLs; [`master`](Self::master) describes the URLs.
    pub fn masters<U: Into<String>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        let urls = urls.into_iter().map(Into::into);
        self.masters.extend(urls.map(MasterSource::ByUrl));
        self
    }

    /// Adds the master to which this client of the `redis` crate connects. [`redis_connection`](Self::redis_connection)
    /// lists the settings of the client that are used.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = redis::Client::open("redis://user:secret@10.0.0.1/2")?;
    /// let builder = quorate::Redlock::builder().redis_client(&client);
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn redis_client(self, client: &redis::Client) -> Self {
        self.redis_connection(client.get_connection_info().clone())
    }

    /// Adds one master, described by the `redis` crate's connection info. The library makes its own connection.
    ///
    /// - Used: address, user, password, database and TLS mode.
    /// - Ignored: other settings of the crate, such as protocol and TCP options.
    /// - Certificates: the library cannot read them from `master`. Pass them to [`tls`](Self::tls).
    /// - The library always checks the host name in the server's certificate. So [`build`](Self::build) refuses an
    ///   address that the crate marks as `insecure`.
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn redis_connection(mut self, master: redis::ConnectionInfo) -> Self {
        self.masters.push(MasterSource::AsClient(Box::new(master)));
        self
    }

    /// The masters that will replace the current [`masters`](Self::masters). Name all masters of the new set, including
    /// those that stay.
    ///
    /// If next masters are set, every lock needs a majority of the current masters and a majority of the next masters.
    /// Such a lock also excludes clients that know only one of the two sets.
    ///
    /// Set next masters only during a replacement (`docs/operations.md`, "Changing the masters"). The command `quorate
    /// masters` executes the steps of the replacement. All masters must be Redis or Valkey servers, because masters of
    /// other kinds cannot store the generation marker, the key that shows the progress of a replacement.
    pub fn next_masters<U: Into<String>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        let urls = urls.into_iter().map(Into::into);
        self.next_masters.extend(urls.map(MasterSource::ByUrl));
        self
    }

    /// The generation of the current [`masters`](Self::masters): how many times the masters have been replaced with the
    /// help of [`next_masters`](Self::next_masters). Default: 0, for masters that were never replaced.
    ///
    /// Masters reject a client with a wrong generation. If its generation is too low, the client was not updated when
    /// the masters were replaced.
    pub fn masters_generation(mut self, generation: u64) -> Self {
        self.settings.masters_generation = Some(generation);
        self
    }

    /// The name of the service to which the masters belong: 1 to 64 letters, digits, dots, dashes and underscores.
    /// Default: none.
    ///
    /// With a name, only a server votes whose generation marker bears this name. An operator writes the marker with
    /// [`mark_masters`](Redlock::mark_masters) or `quorate masters mark`. A client with a name never restores a marker
    /// that a master has lost. So another server at the address of a master never gets a vote by mistake, even in a
    /// process that has just started. Without a name, its votes are ignored only for `max_ttl`, and only if another
    /// master shows a marker.
    ///
    /// Use a name if an address could lead to several servers in turn, for example a Kubernetes Service or a DNS name.
    /// All clients of the masters must set the same name. All masters must be Redis or Valkey servers.
    pub fn masters_name(mut self, name: impl Into<String>) -> Self {
        self.settings.masters_name = Some(name.into());
        self
    }

    /// Adds one master of another kind: a database, a coordination service, or your own implementation. Masters of
    /// several kinds can be mixed.
    ///
    /// A [`Node`] can declare its own node timeout ([`Node::abilities`]).
    ///
    /// If the master can lose data in a restart, its [`Node`] must apply the restart guard: for `max_ttl` after the
    /// restart, it answers requests for votes and for the state of locks with `Fault::Quarantined`. `StoreNode` does
    /// this.
    #[cfg(any(test, feature = "node"))]
    #[cfg_attr(docsrs, doc(cfg(feature = "node")))]
    pub fn node(mut self, node: impl Node) -> Self {
        self.custom_nodes.push((self.masters.len(), Arc::new(node)));
        self
    }

    /// How long the masters keep a lock that is not renewed. The lock is renewed each time a third of the TTL has
    /// passed. Default: 10 s. Maximum: `max_ttl`.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = Some(ttl);
        self
    }

    /// The longest `ttl` that any client of these masters uses. Default: 30 s.
    ///
    /// All clients must set the same value: the restart guard ignores the votes of a restarted master for this time.
    ///
    /// Maximum: one day. No lock can then outlive its fencing counter, which the masters keep for at least one day.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.settings.max_ttl = Some(max_ttl);
        self
    }

    /// How long one master may take to answer. Default: 50 ms, or a tenth of the `ttl` if that is shorter. Values above
    /// a quarter of the `ttl` are refused.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.settings.node_timeout = Some(node_timeout);
        self
    }

    /// The time limit for connecting to one master. Default: 500 ms.
    ///
    /// - Redis and Valkey: the limit applies separately to opening the connection and to each of the two handshake
    ///   messages.
    /// - MySQL and ZooKeeper: the limit applies to all steps together.
    ///
    /// Connections are made in the background. Only the first request to a master waits for the connection.
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.settings.connect_timeout = Some(connect_timeout);
        self
    }

    /// The time by which a client shortens each lease, because clocks run at different speeds. Default: 1 % of the ttl
    /// plus 2 ms.
    pub fn drift(mut self, drift: Drift) -> Self {
        self.drift = drift;
        self
    }

    /// How long [`acquire`](Redlock::acquire) waits for a lock. Default: 30 s.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.settings.wait = Some(wait);
        self
    }

    /// The pauses between the attempts of a waiting [`acquire`](Redlock::acquire). Default: 10 ms, growing to 250 ms.
    ///
    /// The pauses apply in these cases:
    ///
    /// - The order of the waiters is [`Order::Unordered`].
    /// - No majority of the masters answers.
    /// - The waiter is the first in the queue, and the holder has no entry in the queue. The release of such a holder
    ///   may wake no waiter.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The prefix of all lock keys: with `"lock:"`, the resource `nightly` has the key `lock:nightly`. Default: none.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = Some(prefix.into());
        self
    }

    /// The longest time that a lock may be held, including renewals. After this time the guard reports the lock as
    /// lost, even if the task that holds the lock is stuck. Default: no limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.settings.max_hold = Some(max_hold);
        self
    }

    /// Which waiter gets the lock next when it becomes free. Default: first come, first served ([`Order::Fair`]).
    ///
    /// ```no_run
    /// # fn example() -> Result<(), quorate::BuildError> {
    /// use quorate::{Order, Redlock};
    ///
    /// let redlock = Redlock::builder()
    ///     .master("redis://10.0.0.1")
    ///     .order(Order::Unordered)
    ///     .build()?;
    /// # Ok(()) }
    /// ```
    pub fn order(mut self, order: Order) -> Self {
        self.settings.order = Some(order);
        self
    }

    /// How long the masters keep a waiter in the queue after its last heartbeat. A waiter that crashes delays the
    /// waiters behind it by at most this time. Minimum: 30 ms. Default: half the `ttl`, or the `wait` if the `wait` is
    /// shorter.
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.heartbeat = Some(heartbeat);
        self
    }

    /// Whether every acquisition gets a fencing token. Default: `true`.
    ///
    /// With `false`, the lock follows the classic Redlock algorithm: `SET key value NX PX ttl` on every master, without
    /// a fencing counter or a queue. [`fencing_token`](crate::LockGuard::fencing_token) is then `None`, and the order
    /// is [`Order::Unordered`].
    pub fn fencing(mut self, fencing: bool) -> Self {
        self.settings.fencing = Some(fencing);
        self
    }

    /// Whether the votes of a restarted master are ignored for a time, because the master may have forgotten locks.
    /// Default: [`RestartGuard::On`], which ignores the votes until `max_ttl` after the master's start.
    pub fn restart_guard(mut self, restart_guard: RestartGuard) -> Self {
        self.settings.restart_guard = Some(restart_guard);
        self
    }

    /// A text that describes the holder of a lock, at most 1 KiB. While the lock is held, other clients can read this
    /// text, the holder's host, pid and process name, and the time of the acquire: see [`status`](Redlock::status).
    ///
    /// With `None`, the client publishes none of this data, neither as a holder nor as a waiter.
    ///
    /// The client writes the note about 100 ms after the acquire. A lock that is released earlier has no note.
    pub fn note(mut self, note: impl Into<NoteText>) -> Self {
        self.note = note.into();
        self
    }

    /// Root certificates and the client certificate for `rediss://` masters. Default: the root certificates of the
    /// operating system, no client certificate.
    #[cfg(feature = "tls-rustls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls-rustls")))]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Uses masters in memory instead of servers, for this `Redlock` alone. Leases then run on Tokio's clock: if a test
    /// pauses that clock (`tokio::time::pause`), locks expire without real waiting.
    #[cfg(any(test, feature = "testing"))]
    pub fn in_memory(self, masters: usize) -> Self {
        self.in_memory_on(&crate::node::memory::Masters::new(masters))
    }

    /// Uses masters in memory that several `Redlock`s share. Each `Redlock` acts as a separate process. Leases run on
    /// Tokio's clock, as with [`in_memory`](Self::in_memory).
    #[cfg(any(test, feature = "testing"))]
    pub fn in_memory_on(self, masters: &crate::node::memory::Masters) -> Self {
        self.nodes(masters.nodes())
    }

    /// Uses these implementations of [`Node`] as masters. Leases run on Tokio's clock, as with
    /// [`in_memory`](Self::in_memory).
    #[cfg(any(test, feature = "testing"))]
    pub fn nodes(mut self, nodes: Vec<Arc<dyn Node>>) -> Self {
        self.nodes = nodes;
        self.runtime.get_or_insert_with(|| Arc::new(Tokio::paced()));
        self
    }

    /// Connects to masters with `redis://` URLs through the function `dial` instead of TCP.
    #[cfg(any(test, feature = "testing"))]
    pub fn dial(mut self, dial: crate::node::Dial) -> Self {
        self.dial = Some(dial);
        self
    }

    /// Uses this runtime instead of the clocks, timers, tasks and random bytes of tokio and the operating system.
    #[cfg(any(test, feature = "testing"))]
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }
}

impl std::fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Addresses may contain passwords, so only the number of masters is shown.
        f.debug_struct("RedlockBuilder")
            .field("masters", &self.masters.len())
            .field("ttl", &self.settings.ttl())
            .field("wait", &self.settings.wait())
            .finish_non_exhaustive()
    }
}

impl Redlock {
    /// A builder with the default settings.
    pub fn builder() -> RedlockBuilder {
        RedlockBuilder::default()
    }
}
