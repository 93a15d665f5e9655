//! Builds the [`Redlock`]: checks the settings and creates the masters.

use std::sync::Arc;
use std::time::Duration;

use super::RedlockBuilder;
use crate::error::BuildError;
use crate::keys::RESERVED;
use crate::node::note::{Identity, Notes};
use crate::node::redis::{NodeOptions, RedisNode};
use crate::node::{CONNECT_STEPS, Context, GenerationMarkers, Node};
use crate::options::{Options, bad_duration, duration_text};
use crate::protocol::lease::{SHORTEST_HEARTBEAT, default_heartbeat, longest_node_timeout};
use crate::redlock::Redlock;
use crate::resource::MAX_RESOURCE_LEN;
use crate::rounds::coordinator::{Coordinator, Members, Patience};
use crate::runtime::{Runtime, Tokio};
use crate::sets::MasterSets;
use crate::settings::{Order, Wait};

/// The largest number of masters. More masters would not make locks safer, and each master costs a message per request.
const MAX_MASTERS: usize = 64;

/// The largest connect timeout.
const LONGEST_CONNECT_TIMEOUT: Duration = Duration::from_secs(3600);

impl RedlockBuilder {
    /// Checks the settings and builds the [`Redlock`]. Does not connect, so a service can start while masters are down.
    /// Can be called without a Tokio runtime.
    ///
    /// # Errors
    ///
    /// [`BuildError`], whose message says what to change.
    pub fn build(mut self) -> Result<Redlock, BuildError> {
        let node_timeout = self.settings.node_timeout();
        let fencing = self.settings.fencing.unwrap_or(true);
        let runtime = self
            .runtime
            .take()
            .unwrap_or_else(|| Arc::new(Tokio::default()));
        // The id under which the masters wake the waiters of this `Redlock`.
        let mut process_id = [0; 8];
        runtime.random(&mut process_id);
        let options = Options {
            fair: self.settings.order.unwrap_or_default() == Order::Fair && fencing,
            heartbeat: self.effective_heartbeat()?,
            process: format!("{:016x}", u64::from_be_bytes(process_id)).into(),
            ttl: self.settings.ttl(),
            max_ttl: self.settings.max_ttl(),
            node_timeout,
            drift: self.drift,
            wait: self.settings.wait(),
            retry: self.retry.clone(),
            max_hold: self.settings.max_hold,
            notes: fencing.then(|| Notes::new(self.identity())),
            note: self.note.clone(),
        };
        options.check()?;
        self.check_connect_timeout()?;
        let prefix = self.settings.prefix.take().unwrap_or_default();
        if prefix.len() > MAX_RESOURCE_LEN {
            return Err(BuildError::PrefixTooLong(prefix.len()));
        }
        if prefix.starts_with(RESERVED) {
            return Err(BuildError::ReservedPrefix(prefix));
        }
        // Make the masters, and give them what all of them share. None of them connects yet.
        let context = self.context(runtime.clone());
        let members = if self.nodes.is_empty() {
            self.configured_nodes(node_timeout, &context)?
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
                "an even number of masters survives no more failures than the next lower odd number: use an odd number"
            );
        }
        // A call waits for the slowest kind of master.
        let patience = Patience {
            answer: self.longest_node_answer_time(node_timeout, nodes)?,
            connect: CONNECT_STEPS * self.settings.connect_timeout(),
        };
        let coordinator = Coordinator::new(
            members,
            runtime,
            self.drift,
            &prefix,
            fencing,
            patience,
            options.retry.clone(),
        );
        Ok(Redlock::new(coordinator, options))
    }

    #[allow(clippy::unused_self, reason = "only some features need it")]
    fn identity(&self) -> Identity {
        #[cfg(any(test, feature = "testing"))]
        if let Some(identity) = &self.identity {
            return identity.clone();
        }
        Identity::of_this_process()
    }

    fn effective_heartbeat(&self) -> Result<Duration, BuildError> {
        let wait = match self.settings.wait() {
            Wait::For(wait) if !wait.is_zero() => wait,
            _ => Duration::MAX,
        };
        let Some(heartbeat) = self.heartbeat else {
            return Ok(default_heartbeat(self.settings.ttl(), wait));
        };
        let why = if heartbeat < SHORTEST_HEARTBEAT {
            "is below 30ms: the masters would receive too many heartbeats".to_owned()
        } else if heartbeat > self.settings.ttl() {
            let ttl = duration_text(self.settings.ttl());
            format!(
                "is above the ttl ({ttl}): a crashed waiter would block the queue for longer than a crashed holder"
            )
        } else if heartbeat > wait {
            let wait_text = duration_text(wait);
            format!(
                "is above the wait ({wait_text}): a crashed waiter would block the queue until the other waiters \
                 give up"
            )
        } else {
            return Ok(heartbeat);
        };
        Err(bad_duration("heartbeat", heartbeat, why))
    }

    #[cfg_attr(
        not(feature = "tls-rustls"),
        expect(
            clippy::unnecessary_wraps,
            reason = "with TLS, reading the certificates can fail"
        )
    )]
    pub(super) fn node_options(
        &self,
        node_timeout: Duration,
        name: &str,
        sets: &MasterSets,
        context: &Context,
    ) -> Result<Arc<NodeOptions>, BuildError> {
        Ok(Arc::new(NodeOptions {
            node_timeout,
            connect_timeout: self.settings.connect_timeout(),
            max_ttl: self.settings.max_ttl(),
            restart_guard: self.settings.restart_guard.unwrap_or_default(),
            name: name.into(),
            configuration: sets.configuration,
            markers: GenerationMarkers::new(
                self.masters.len().max(self.next_masters.len()),
                sets.old().collect(),
            ),
            roster: context.roster.clone(),
            runtime: context.runtime.clone(),
            #[cfg(any(test, feature = "testing"))]
            dial: self.dial.clone(),
            #[cfg(feature = "tls-rustls")]
            tls: self.tls.client_config(sets.wants_tls())?,
        }))
    }

    fn check_connect_timeout(&self) -> Result<(), BuildError> {
        let why = if self.settings.connect_timeout().is_zero() {
            "leaves no time to connect; 500ms is the default".to_owned()
        } else if self.settings.connect_timeout() > LONGEST_CONNECT_TIMEOUT {
            format!(
                "is too long: at most {} is allowed",
                duration_text(LONGEST_CONNECT_TIMEOUT)
            )
        } else {
            return Ok(());
        };
        Err(bad_duration(
            "connect_timeout",
            self.settings.connect_timeout(),
            why,
        ))
    }

    pub(super) fn context(&self, runtime: Arc<dyn Runtime>) -> Context {
        Context {
            connect_timeout: self.settings.connect_timeout(),
            restart_guard: self.settings.restart_guard.unwrap_or_default(),
            ..Context::new(runtime, self.settings.max_ttl())
        }
    }

    /// Returns the longest timeout of the masters. A master without a timeout in its URL has the timeout `default`, and
    /// the result is at least `default`. Returns an error if the timeout of a master is above a quarter of the ttl.
    fn longest_node_answer_time(
        &self,
        default: Duration,
        nodes: &[Arc<dyn Node>],
    ) -> Result<Duration, BuildError> {
        let mut longest_timeout = default;
        for node in nodes {
            let timeout = node.abilities().timeout.unwrap_or(default);
            if timeout > longest_node_timeout(self.settings.ttl()) {
                let why = format!(
                    "of {} is more than a quarter of the ttl ({}): raise the ttl, or lower the timeout in the URL of this master",
                    node.name(),
                    duration_text(self.settings.ttl())
                );
                return Err(bad_duration("node_timeout", timeout, why));
            }
            longest_timeout = longest_timeout.max(timeout);
        }
        Ok(longest_timeout)
    }

    /// All masters, in the order in which they were named.
    fn configured_nodes(
        &self,
        node_timeout: Duration,
        context: &Context,
    ) -> Result<Members, BuildError> {
        if let Some((_, node)) = self.custom_nodes.first()
            && (self.generation() > 0
                || !self.next_masters.is_empty()
                || self.settings.masters_name.is_some())
        {
            return Err(BuildError::UnmarkedMaster(node.name().to_string()));
        }
        let members = if self.masters.is_empty() && !self.custom_nodes.is_empty() {
            Members::new(Vec::new())
        } else {
            self.redis_nodes(node_timeout, context)?
        };
        if self.custom_nodes.is_empty() {
            return Ok(members);
        }
        let mut nodes = members.nodes;
        let mut names: Vec<String> = nodes.iter().map(|node| node.name().to_string()).collect();
        for (nodes_before, (masters_before, node)) in self.custom_nodes.iter().enumerate() {
            let name = node.name().to_string();
            if names.contains(&name) {
                return Err(BuildError::SameMasterTwice(name));
            }
            names.push(name);
            nodes.insert(masters_before + nodes_before, node.clone());
        }
        Ok(Members::new(nodes))
    }

    /// The masters that the caller gave as implementations of [`Node`]. If `next_masters` is set, the caller must give
    /// them in the order of the URLs in `masters` and then `next_masters`.
    fn given_nodes(&mut self) -> Result<Members, BuildError> {
        self.check_masters_name()?;
        let nodes = std::mem::take(&mut self.nodes);
        if self.next_masters.is_empty() {
            return Ok(Members::new(nodes));
        }
        let sets = self.sets()?;
        Ok(Members {
            nodes,
            quorum: sets.quorum,
            configuration: Some(sets.configuration),
        })
    }

    /// Checks the URLs of the masters that were named so far.
    pub(crate) fn check_masters(&self) -> Result<(), BuildError> {
        self.sets().map(drop)
    }

    pub(super) fn redis_nodes(
        &self,
        node_timeout: Duration,
        context: &Context,
    ) -> Result<Members, BuildError> {
        let name = Identity::of_this_process().connection_label();
        let sets = self.sets()?;
        let options = self.node_options(node_timeout, &name, &sets, context)?;
        let new_node =
            |address| Arc::new(RedisNode::new(address, options.clone())) as Arc<dyn Node>;
        Ok(Members {
            nodes: sets.addresses.into_iter().map(new_node).collect(),
            quorum: sets.quorum,
            configuration: Some(sets.configuration),
        })
    }

    fn generation(&self) -> u64 {
        self.settings.masters_generation.unwrap_or_default()
    }

    fn check_masters_name(&self) -> Result<(), BuildError> {
        let name = self.settings.masters_name.as_deref();
        match name.filter(|name| !is_masters_name(name)) {
            Some(bad_name) => Err(BuildError::BadMastersName(bad_name.to_owned())),
            None => Ok(()),
        }
    }

    pub(super) fn sets(&self) -> Result<MasterSets, BuildError> {
        self.check_masters_name()?;
        let name = self.settings.masters_name.as_deref();
        // Masters of other kinds count as well, if they were named before this one.
        let custom_nodes_before = |index: usize| {
            self.custom_nodes
                .iter()
                .filter(move |(masters_before, _)| *masters_before <= index)
        };
        let position = |index| index + 1 + custom_nodes_before(index).count();
        MasterSets::new(
            &self.masters,
            &self.next_masters,
            self.generation(),
            name,
            position,
        )
    }
}

/// Whether this text can be the name of the masters: 1 to 64 letters, digits, dots, dashes and underscores.
fn is_masters_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(is_allowed)
}
