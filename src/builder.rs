//! Settings with their defaults, checked once.

use std::sync::Arc;
use std::time::Duration;

use crate::error::BuildError;
use crate::keys::RESERVED;
use crate::node::note::{Identity, NoteText, Notes};
#[cfg(any(test, feature = "testing"))]
use crate::node::redis::driver::Driver;
use crate::node::redis::{MasterSource, NodeOptions, RedisNode};
use crate::node::{Context, Marks, Node};
use crate::options::{Options, bad, text};
use crate::protocol::validity::Drift;
use crate::redlock::Redlock;
use crate::resource::MAX_RESOURCE_LEN;
use crate::retry::Retry;
use crate::rounds::coordinator::{Coordinator, Members, Patience};
use crate::runtime::{Runtime, Tokio};
use crate::sets::Sets;
use crate::settings::{Order, RestartGuard, Wait};
#[cfg(feature = "tls-rustls")]
use crate::tls::Tls;

/// Settings of a [`Redlock`], with their defaults. [`build`](Self::build) checks them and never
/// connects.
///
/// | setting | default | change it when |
/// |---|---|---|
/// | `ttl` | 10 s, at most `max_ttl` | a crashed holder must be replaced sooner, or masters are far away |
/// | `max_ttl` | 30 s | you need longer leases; the same on every client |
/// | `node_timeout` | 50 ms, at most a tenth of the ttl | masters are more than 20 ms away |
/// | `connect_timeout` | 500 ms | TLS over slow lines |
/// | `drift` | 1 % + 2 ms | clocks run badly |
/// | `wait` | 30 s (the command `quorate run` waits for ever: who waits at a terminal can interrupt it) | you would rather give up sooner, or never |
/// | `retry` | 10 ms growing to 250 ms | locks are held for a few milliseconds only |
/// | `prefix` | none | several deployments share masters |
/// | `max_hold` | none | a stuck holder must not hold for ever |
/// | `fencing` | on | you want literally `SET key value NX PX ttl` |
/// | `order` | first come, first served | you want raw Redlock with jittered retries |
/// | `heartbeat` | half the ttl, at most the wait | a crashed waiter must be passed over sooner |
/// | `restart_guard` | on | masters with `appendfsync always` |
/// | `next_masters` | none | masters are being replaced while in use |
/// | `masters_generation` | 0 | they have been replaced before |
/// | `note` | host, pid, process | operators should see more of who holds a lock, or nothing |
#[derive(Clone)]
#[must_use = "a builder does nothing until build() is called"]
pub struct RedlockBuilder {
    masters: Vec<MasterSource>,
    next_masters: Vec<MasterSource>,
    generation: u64,
    ttl: Option<Duration>,
    max_ttl: Duration,
    node_timeout: Option<Duration>,
    connect_timeout: Duration,
    drift: Drift,
    wait: Wait,
    retry: Retry,
    prefix: String,
    max_hold: Option<Duration>,
    fencing: bool,
    order: Order,
    heartbeat: Option<Duration>,
    restart_guard: RestartGuard,
    note: NoteText,
    #[cfg(feature = "tls-rustls")]
    tls: Tls,
    runtime: Option<Arc<dyn Runtime>>,
    #[cfg(any(test, feature = "testing"))]
    dial: Option<crate::node::Dial>,
    #[cfg(any(test, feature = "testing"))]
    identity: Option<Identity>,
    nodes: Vec<Arc<dyn Node>>,
    /// Masters of other kinds, each with the number of those that were named by URL before it.
    others: Vec<(usize, Arc<dyn Node>)>,
}

/// The most masters that are supported. Far more than helps: each costs a message per step.
const MAX_MASTERS: usize = 64;

/// The very first request to a master waits for as long as connecting may take.
const LONGEST_CONNECT: Duration = Duration::from_secs(3600);

/// At most `max_ttl`, which may be set lower.
const DEFAULT_TTL: Duration = Duration::from_secs(10);

const DEFAULT_NODE_TIMEOUT: Duration = Duration::from_millis(50);

impl Default for RedlockBuilder {
    fn default() -> Self {
        Self {
            masters: Vec::new(),
            next_masters: Vec::new(),
            generation: 0,
            ttl: None,
            max_ttl: Duration::from_secs(30),
            node_timeout: None,
            connect_timeout: Duration::from_millis(500),
            drift: Drift::default(),
            wait: Wait::For(Duration::from_secs(30)),
            retry: Retry::default(),
            prefix: String::new(),
            max_hold: None,
            fencing: true,
            order: Order::Fair,
            heartbeat: None,
            restart_guard: RestartGuard::On,
            note: NoteText::default(),
            #[cfg(feature = "tls-rustls")]
            tls: Tls::default(),
            runtime: None,
            #[cfg(any(test, feature = "testing"))]
            dial: None,
            #[cfg(any(test, feature = "testing"))]
            identity: None,
            nodes: Vec::new(),
            others: Vec::new(),
        }
    }
}

impl RedlockBuilder {
    /// Adds one master: `redis://[user[:password]@]host[:port][/db]`, `rediss://..` for TLS
    /// (feature `tls-rustls`), or `unix:///path/to.sock[?db=N&user=U&pass=P]`.
    ///
    /// Masters must be independent servers: not replicas of each other, not nodes of a cluster.
    pub fn master(mut self, url: impl Into<String>) -> Self {
        self.masters.push(MasterSource::ByUrl(url.into()));
        self
    }

    /// Adds several masters.
    pub fn masters<U: Into<String>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        let urls = urls.into_iter().map(Into::into);
        self.masters.extend(urls.map(MasterSource::ByUrl));
        self
    }

    /// Adds the master of a client of the `redis` crate: see [`redis_connection`](Self::redis_connection).
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

    /// Adds one master by its address, user, password, database and TLS as the `redis` crate holds them. The
    /// connection itself is our own: its other settings (protocol, TCP, library name) are not looked at.
    /// Certificates cannot be read out of it: hand them to [`tls`](Self::tls). Host names are always checked, so an
    /// `insecure` address is refused by [`build`](Self::build).
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn redis_connection(mut self, master: redis::ConnectionInfo) -> Self {
        self.masters.push(MasterSource::AsClient(Box::new(master)));
        self
    }

    /// The masters that are to take the place of those named by [`masters`](Self::masters), all of them, also those
    /// that stay. While they are named, every lock is taken on a majority of each set, so that it excludes those who
    /// know only the one and those who know only the other.
    ///
    /// For the time of a change only, in the steps of `docs/operations.md`, "Changing the masters"; `quorate masters`
    /// takes them. All masters must be Redis or Valkey servers: others keep no mark of how far a change is.
    pub fn next_masters<U: Into<String>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        let urls = urls.into_iter().map(Into::into);
        self.next_masters.extend(urls.map(MasterSource::ByUrl));
        self
    }

    /// How often the masters have been changed with the help of [`next_masters`](Self::next_masters), up to those
    /// named by [`masters`](Self::masters): 0, the default, for masters that never were.
    ///
    /// Masters refuse who has a number that is not theirs: one too low is what a client has that was forgotten when the
    /// masters were changed.
    pub fn masters_generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }

    /// Adds one master of another kind: a database, a coordination service, or one of your own. Kinds may be
    /// mixed; their order is that of the calls.
    ///
    /// A master like this has a node timeout of its own ([`Node::abilities`]), and a restart guard where it may
    /// forget.
    #[cfg(any(test, feature = "node"))]
    #[cfg_attr(docsrs, doc(cfg(feature = "node")))]
    pub fn node(mut self, node: impl Node) -> Self {
        self.others.push((self.masters.len(), Arc::new(node)));
        self
    }

    /// How long the masters keep a lock that is not renewed. Renewal comes at a third of it. Default: 10 s, at most
    /// `max_ttl`.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The longest ttl that any client of these masters uses. The restart guard waits this long,
    /// so it must be the same everywhere. At most one day, the life of a fencing counter.
    pub fn max_ttl(mut self, max_ttl: Duration) -> Self {
        self.max_ttl = max_ttl;
        self
    }

    /// How long one master may take to answer. Default: 50 ms, at most a tenth of the ttl. At
    /// most a quarter of the ttl is accepted.
    pub fn node_timeout(mut self, node_timeout: Duration) -> Self {
        self.node_timeout = Some(node_timeout);
        self
    }

    /// How long connecting to one master may take, handshake included. It happens in the
    /// background; only the very first request to a master waits for it.
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.connect_timeout = connect_timeout;
        self
    }

    /// How far clocks may run apart while a lease lasts.
    pub fn drift(mut self, drift: Drift) -> Self {
        self.drift = drift;
        self
    }

    /// How long [`acquire`](Redlock::acquire) waits.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// The pauses between attempts: of unordered waiters, of all while there is no quorum, and of
    /// the next in line behind a holder that may wake nobody, as other Redlock clients do.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// What stands before the resource in the lock key, as it is: `"lock:"` makes `lock:nightly`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The longest any lock is held, renewals included: a stuck holder loses it then.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Who is next when a lock is free: first come, first served, unless it is [`Order::Unordered`].
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
        self.order = order;
        self
    }

    /// How long a waiter's place is kept without a sign of life: a crashed waiter delays those
    /// behind it by this much at most. Default: half the ttl, and not more than the wait.
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.heartbeat = Some(heartbeat);
        self
    }

    /// Off: the classic algorithm, literally `SET key value NX PX ttl` on every master, with no
    /// counter and no queue, and [`fencing_token`](crate::LockGuard::fencing_token) is `None`.
    /// It includes [`Order::Unordered`].
    pub fn fencing(mut self, fencing: bool) -> Self {
        self.fencing = fencing;
        self
    }

    /// Whether masters that restarted lately may vote.
    pub fn restart_guard(mut self, restart_guard: RestartGuard) -> Self {
        self.restart_guard = restart_guard;
        self
    }

    /// What [`status`](Redlock::status) and waiters are told of the holder, beside host, pid, the name of
    /// the process and since when: a text of at most 1 KiB, or `None` for no note at all. It is written
    /// a moment after the lock has been taken, so that locks that are soon given back pay nothing for it.
    pub fn note(mut self, note: impl Into<NoteText>) -> Self {
        self.note = note.into();
        self
    }

    /// Roots and client certificate for `rediss://` masters.
    #[cfg(feature = "tls-rustls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls-rustls")))]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Masters in memory instead of servers, of this `Redlock` alone. Its time is tokio's then, as that of the
    /// masters: where a test stops it (`tokio::time::pause`), locks expire in no time at all.
    #[cfg(any(test, feature = "testing"))]
    pub fn in_memory(self, masters: usize) -> Self {
        self.in_memory_on(&crate::node::memory::Masters::new(masters))
    }

    /// These masters in memory: several `Redlock`s that name the same ones stand for processes of their own. Time is
    /// tokio's, as with [`in_memory`](Self::in_memory).
    #[cfg(any(test, feature = "testing"))]
    pub fn in_memory_on(self, masters: &crate::node::memory::Masters) -> Self {
        self.nodes(masters.nodes())
    }

    /// Masters of your own making. Time is tokio's, as with [`in_memory`](Self::in_memory).
    #[cfg(any(test, feature = "testing"))]
    pub fn nodes(mut self, nodes: Vec<Arc<dyn Node>>) -> Self {
        self.nodes = nodes;
        self.runtime.get_or_insert_with(|| Arc::new(Tokio::paced()));
        self
    }

    /// Connections of your own making in place of TCP, for masters named by `redis://` URLs.
    #[cfg(any(test, feature = "testing"))]
    pub fn dial(mut self, dial: crate::node::Dial) -> Self {
        self.dial = Some(dial);
        self
    }

    /// Clocks, timers, tasks and random bytes of your own making.
    #[cfg(any(test, feature = "testing"))]
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Checks the settings. Never connects, and needs no runtime: a service starts while a
    /// minority of its masters is down, or all of them.
    ///
    /// # Errors
    ///
    /// [`BuildError`], which says what to change.
    pub fn build(mut self) -> Result<Redlock, BuildError> {
        let node_timeout = self.effective_node_timeout();
        let runtime = self
            .runtime
            .take()
            .unwrap_or_else(|| Arc::new(Tokio::default()));
        let mut process = [0; 8];
        runtime.random(&mut process);
        let options = Options {
            fair: self.order == Order::Fair && self.fencing,
            heartbeat: self.effective_heartbeat()?,
            process: format!("{:016x}", u64::from_be_bytes(process)).into(),
            ttl: self.lease(),
            max_ttl: self.max_ttl,
            node_timeout,
            drift: self.drift,
            wait: self.wait,
            retry: self.retry.clone(),
            max_hold: self.max_hold,
            notes: self.fencing.then(|| Notes::of(self.identity())),
            note: self.note.clone(),
        };
        options.check()?;
        self.check_connect_timeout()?;
        if self.prefix.len() > MAX_RESOURCE_LEN {
            return Err(BuildError::PrefixTooLong(self.prefix.len()));
        }
        if self.prefix.starts_with(RESERVED) {
            return Err(BuildError::ReservedPrefix(std::mem::take(&mut self.prefix)));
        }
        let context = self.context(runtime.clone());
        let members = if self.nodes.is_empty() {
            self.all_nodes(node_timeout, &context)?
        } else {
            self.given_nodes()?
        };
        let nodes = &members.nodes;
        for node in nodes {
            node.settle(&context);
        }
        if nodes.len() > MAX_MASTERS {
            return Err(BuildError::TooManyMasters(nodes.len()));
        }
        if nodes.len() % 2 == 0 && self.next_masters.is_empty() {
            tracing::warn!(
                masters = nodes.len(),
                "an even number of masters survives no more failures than one fewer would"
            );
        }
        let patience = Patience {
            answer: self.slowest(node_timeout, nodes)?,
            connect: self.connect_timeout,
        };
        let coordinator = Coordinator::new(
            members,
            runtime,
            self.drift,
            &self.prefix,
            self.fencing,
            patience,
            options.retry.clone(),
        );
        Ok(Redlock::new(coordinator, options))
    }

    fn identity(&self) -> Identity {
        #[cfg(any(test, feature = "testing"))]
        if let Some(identity) = &self.identity {
            return identity.clone();
        }
        Identity::of_this_process()
    }

    fn lease(&self) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL.min(self.max_ttl))
    }

    fn effective_node_timeout(&self) -> Duration {
        self.node_timeout
            .unwrap_or_else(|| DEFAULT_NODE_TIMEOUT.min(self.lease() / 10))
    }

    fn effective_heartbeat(&self) -> Result<Duration, BuildError> {
        let wait = match self.wait {
            Wait::For(wait) if !wait.is_zero() => wait,
            _ => Duration::MAX,
        };
        let Some(heartbeat) = self.heartbeat else {
            // Short waits are no reason for a flood of signs of life.
            return Ok((self.lease() / 2).min(wait).max(Duration::from_millis(30)));
        };
        let why = if heartbeat < Duration::from_millis(30) {
            "is below 30ms: signs of life would be a flood".to_owned()
        } else if heartbeat > self.lease() {
            let ttl = text(self.lease());
            format!(
                "is above the ttl ({ttl}): a dead waiter must not delay longer than a dead holder"
            )
        } else if heartbeat > wait {
            let wait = text(wait);
            format!("is above the wait ({wait}): a dead waiter would outlive everybody behind it")
        } else {
            return Ok(heartbeat);
        };
        Err(bad("heartbeat", heartbeat, why))
    }

    #[cfg_attr(
        not(feature = "tls-rustls"),
        expect(
            clippy::unnecessary_wraps,
            reason = "with TLS, what is trusted may not be readable"
        )
    )]
    fn node_options(
        &self,
        node_timeout: Duration,
        name: &str,
        sets: &Sets,
        context: &Context,
    ) -> Result<Arc<NodeOptions>, BuildError> {
        Ok(Arc::new(NodeOptions {
            node_timeout,
            connect_timeout: self.connect_timeout,
            max_ttl: self.max_ttl,
            restart_guard: self.restart_guard,
            name: name.into(),
            configuration: sets.configuration,
            marks: Marks::of(
                self.masters.len().max(self.next_masters.len()),
                sets.old().collect(),
            ),
            roster: context.roster.clone(),
            #[cfg(any(test, feature = "testing"))]
            dial: self.dial.clone(),
            #[cfg(feature = "tls-rustls")]
            tls: self.tls.client_config(sets.wants_tls())?,
        }))
    }

    fn check_connect_timeout(&self) -> Result<(), BuildError> {
        let why = if self.connect_timeout.is_zero() {
            "leaves no time to connect; 500ms is the default".to_owned()
        } else if self.connect_timeout > LONGEST_CONNECT {
            format!(
                "is longer than anybody waits: at most {} is allowed",
                text(LONGEST_CONNECT)
            )
        } else {
            return Ok(());
        };
        Err(bad("connect_timeout", self.connect_timeout, why))
    }

    fn context(&self, runtime: Arc<dyn Runtime>) -> Context {
        Context {
            connect_timeout: self.connect_timeout,
            restart_guard: self.restart_guard,
            ..Context::new(runtime, self.max_ttl)
        }
    }

    /// The longest that any node may take to answer.
    fn slowest(&self, default: Duration, nodes: &[Arc<dyn Node>]) -> Result<Duration, BuildError> {
        let mut slowest = default;
        for node in nodes {
            let timeout = node.abilities().timeout.unwrap_or(default);
            if timeout > self.lease() / 4 {
                let why = format!(
                    "of {} is more than a quarter of the ttl ({}): raise the ttl, or lower the timeout in its URL",
                    node.name(),
                    text(self.lease())
                );
                return Err(bad("node_timeout", timeout, why));
            }
            slowest = slowest.max(timeout);
        }
        Ok(slowest)
    }

    /// All masters, in the order in which they were named.
    fn all_nodes(&self, node_timeout: Duration, context: &Context) -> Result<Members, BuildError> {
        if let Some((_, node)) = self.others.first()
            && (self.generation > 0 || !self.next_masters.is_empty())
        {
            return Err(BuildError::UnmarkedMaster(node.name().to_string()));
        }
        let members = if self.masters.is_empty() && !self.others.is_empty() {
            Members::of(Vec::new())
        } else {
            self.redis_nodes(node_timeout, context)?
        };
        if self.others.is_empty() {
            return Ok(members);
        }
        let mut nodes = members.nodes;
        let mut names: Vec<String> = nodes.iter().map(|node| node.name().to_string()).collect();
        for (before, (at, node)) in self.others.iter().enumerate() {
            let name = node.name().to_string();
            if names.contains(&name) {
                return Err(BuildError::SameMasterTwice(name));
            }
            names.push(name);
            nodes.insert(at + before, node.clone());
        }
        Ok(Members::of(nodes))
    }

    /// Nodes that were given in place of servers: where masters change, in the order of those that are named, each once.
    fn given_nodes(&mut self) -> Result<Members, BuildError> {
        let nodes = std::mem::take(&mut self.nodes);
        if self.next_masters.is_empty() {
            return Ok(Members::of(nodes));
        }
        let sets = self.sets()?;
        Ok(Members {
            nodes,
            quorum: sets.quorum,
            configuration: Some(sets.configuration),
        })
    }

    /// Whether the masters that were named so far can be understood.
    pub(crate) fn check_masters(&self) -> Result<(), BuildError> {
        self.sets().map(drop)
    }

    fn redis_nodes(
        &self,
        node_timeout: Duration,
        context: &Context,
    ) -> Result<Members, BuildError> {
        let name = Identity::of_this_process().of_connection();
        let sets = self.sets()?;
        let options = self.node_options(node_timeout, &name, &sets, context)?;
        let node = |address| Arc::new(RedisNode::new(address, options.clone())) as Arc<dyn Node>;
        Ok(Members {
            nodes: sets.addresses.into_iter().map(node).collect(),
            quorum: sets.quorum,
            configuration: Some(sets.configuration),
        })
    }

    fn sets(&self) -> Result<Sets, BuildError> {
        Sets::of(&self.masters, &self.next_masters, self.generation)
    }

    /// The masters without their actors, for simulations.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn drivers(&self, seed: u64) -> Result<Vec<Driver>, BuildError> {
        // The same in every run, so that a run can be repeated.
        let context = self.context(Arc::new(Tokio::default()));
        let sets = self.sets()?;
        let timeout = self.effective_node_timeout();
        let options = self.node_options(timeout, "quorate", &sets, &context)?;
        let addresses = sets.addresses.into_iter().zip(seed..);
        let driver = |(address, seed)| Driver::new(address, options.clone(), seed);
        Ok(addresses.map(driver).collect())
    }

    /// The only master of this builder, for contract tests.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn single_node(self) -> Result<Arc<dyn Node>, BuildError> {
        let context = self.context(Arc::new(Tokio::default()));
        let members = self.redis_nodes(self.effective_node_timeout(), &context)?;
        members
            .nodes
            .into_iter()
            .next()
            .ok_or(BuildError::NoMasters)
    }
}

impl std::fmt::Debug for RedlockBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Addresses may hold passwords: they are counted, not shown.
        f.debug_struct("RedlockBuilder")
            .field("masters", &self.masters.len())
            .field("ttl", &self.lease())
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// The masters of a builder as [`Driver`]s: for simulations. `seed` draws the jitter of their pauses.
///
/// # Errors
///
/// As [`RedlockBuilder::build`].
#[cfg(any(test, feature = "testing"))]
pub fn drivers(settings: &RedlockBuilder, seed: u64) -> Result<Vec<Driver>, BuildError> {
    settings.drivers(seed)
}

/// The mark of this number for the masters of these settings, where they know them: what stands on a master whose change
/// is so far.
#[cfg(feature = "testing")]
pub fn mark(settings: &RedlockBuilder, number: u64) -> Option<String> {
    let print = settings.sets().ok()?.configuration.print_at(number)?;
    Some(crate::protocol::mark::Mark { number, print }.to_string())
}

/// The settings of a process that calls itself so in its notes, whatever machine it runs on.
#[cfg(feature = "testing")]
pub fn known_as(
    mut settings: RedlockBuilder,
    host: &str,
    pid: u32,
    process: &str,
) -> RedlockBuilder {
    settings.identity = Some(Identity::new(host, pid, process));
    settings
}

/// What the masters of these settings go by: for contract tests of one master.
#[cfg(any(test, feature = "testing"))]
pub fn context(settings: &RedlockBuilder) -> Context {
    settings.context(Arc::new(Tokio::default()))
}

/// A Redis or Valkey master by its URL, with the defaults of a builder: for contract tests.
///
/// # Errors
///
/// As [`RedlockBuilder::build`].
#[cfg(any(test, feature = "testing"))]
pub fn connect(url: &str, settings: &RedlockBuilder) -> Result<Arc<dyn Node>, BuildError> {
    settings.clone().master(url).single_node()
}

impl Redlock {
    /// Settings, with their defaults.
    pub fn builder() -> RedlockBuilder {
        RedlockBuilder::default()
    }
}
