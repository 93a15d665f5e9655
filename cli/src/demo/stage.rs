//! The masters of the demo, and the events that kill and restart them.

use std::time::Duration;

use quorate::node::memory::{Condition, MemoryNode};
use quorate::{Redlock, RestartGuard, Wait};
use quorate_testbed::TestServer;

use crate::backends::{self, Backend};
use crate::exit::Failure;
use crate::output;

const MASTERS: usize = 5;
const MOST: usize = 9;
const TTL: Duration = Duration::from_millis(800);
/// The setting `max_ttl` of a demo without MySQL and ZooKeeper masters. It is short, because a restarted master does
/// not vote until `max_ttl` has passed.
const MAX_TTL: Duration = Duration::from_secs(1);
/// The ttl in a demo with MySQL or ZooKeeper masters. These masters may reply more slowly than Redis masters, for which
/// the ttl is [`TTL`].
const LONG_TTL: Duration = Duration::from_secs(2);
const LONG_MAX_TTL: Duration = Duration::from_millis(2500);

/// All masters of the demo, in the order in which messages number them (from 1).
pub(super) struct Stage(Vec<Actor>);

/// One master of the demo: a real server, or a master in this process's memory.
enum Actor {
    Real(&'static dyn Backend, Box<dyn TestServer>),
    Memory(MemoryNode),
}

/// An event of the demo: a master is killed or restarted after a number of sales.
///
/// - `sold`: the number of sales
/// - `master`: the index of the master, from 0
/// - `up`: true for a restart, false for a kill
#[derive(Clone, Copy)]
pub(super) struct Event {
    pub(super) sold: usize,
    pub(super) master: usize,
    pub(super) up: bool,
}

impl Event {
    const fn new(sold: usize, master: usize, up: bool) -> Self {
        Self { sold, master, up }
    }
}

impl Stage {
    /// Starts masters of these kinds (default: five Redis). If the server of a kind is not installed, the masters of
    /// this kind run in memory. If `kinds` is given, a message reports each such master.
    pub(super) fn set(kinds: Option<&[&'static dyn Backend]>) -> Result<Self, Failure> {
        let usual = [backends::REDIS; MASTERS];
        let named = kinds.unwrap_or(&usual);
        if !(1..=MOST).contains(&named.len()) {
            return Err(Failure::usage(format!(
                "--nodes lists {} masters: give between 1 and {MOST} masters",
                named.len()
            )));
        }
        if kinds.is_none() && backends::REDIS.missing().is_some() {
            return Ok(Self((1..=MASTERS).map(Actor::in_memory).collect()));
        }
        let missing: Vec<Option<String>> = named.iter().map(|kind| kind.missing()).collect();
        for (n, (kind, why)) in named.iter().zip(&missing).enumerate() {
            if let Some(why) = why {
                let (n, kind) = (n + 1, kind.names().name);
                output::say(format!(
                    "master {n} runs in memory instead of {kind}: {why}"
                ));
            }
        }
        let there = named.iter().zip(&missing).filter(|(_, why)| why.is_none());
        let there: Vec<&dyn Backend> = there.map(|(kind, _)| *kind).collect();
        let mut started = backends::start_all(&there)?.into_iter();
        let actors = named
            .iter()
            .zip(&missing)
            .enumerate()
            .map(|(n, (kind, why))| {
                let real = if why.is_none() { started.next() } else { None };
                real.map_or_else(
                    || Actor::in_memory(n + 1),
                    |server| Actor::Real(*kind, server),
                )
            });
        Ok(Self(actors.collect()))
    }

    /// Prepares each real master, as `quorate prepare-server` does.
    pub(super) async fn prepare(&self) -> Result<(), Failure> {
        for actor in &self.0 {
            if let Actor::Real(_, server) = actor {
                backends::prepare(&server.url(backends::PLACE)).await?;
            }
        }
        Ok(())
    }

    /// The kinds of all masters, as text; a single word if all are of the same kind.
    pub(super) fn kinds(&self) -> String {
        let names: Vec<String> = self.0.iter().map(Actor::name).collect();
        if names.iter().all(|name| *name == names[0]) {
            names[0].clone()
        } else {
            names.join(", ")
        }
    }

    /// Describes the masters in the result of the demo: the number of masters of each kind, and how many of all masters
    /// were killed and restarted.
    pub(super) fn cast(&self) -> String {
        let mut counted: Vec<(String, usize)> = Vec::new();
        for name in self.0.iter().map(Actor::name) {
            match counted.iter_mut().find(|(other, _)| *other == name) {
                Some((_, count)) => *count += 1,
                None => counted.push((name, 1)),
            }
        }
        let kinds: Vec<String> = counted
            .iter()
            .map(|(name, count)| format!("{count} x {name}"))
            .collect();
        let fate = match self.0.len() {
            MASTERS.. => "2 masters killed, 1 of them restarted",
            3.. => "1 master killed and restarted",
            _ => "no master killed (the demo kills a master only if at least three run)",
        };
        format!("{}, {fate}", kinds.join(", "))
    }

    /// The events that kill and restart masters. A majority of the masters is up at all times.
    pub(super) fn events(&self) -> &'static [Event] {
        const TWO: [Event; 3] = [
            Event::new(2, 1, false),
            Event::new(4, 3, false),
            Event::new(5, 1, true),
        ];
        const ONE: [Event; 2] = [Event::new(2, 1, false), Event::new(5, 1, true)];
        match self.0.len() {
            MASTERS.. => &TWO,
            3.. => &ONE,
            _ => &[],
        }
    }

    pub(super) fn describe(&self) -> String {
        if self.are(|actor| matches!(actor, Actor::Memory(_))) && self.0.len() == MASTERS {
            return "five masters in memory (no redis-server or valkey-server found)".to_owned();
        }
        let ports: Vec<String> = self.0.iter().map(Actor::port).collect();
        if self.are_redis() && self.0.len() == MASTERS {
            return format!(
                "five {} masters on ports {}",
                self.kinds(),
                ports.join(", ")
            );
        }
        let masters = self.0.iter().zip(&ports);
        let masters: Vec<String> = masters
            .map(|(actor, port)| match actor {
                Actor::Real(kind, _) => format!("{} on port {port}", kind.program()),
                Actor::Memory(_) => "one in memory".to_owned(),
            })
            .collect();
        format!("masters: {}", masters.join(", "))
    }

    pub(super) fn redlock(&self) -> Result<Redlock, Failure> {
        let quick = self.are_redis() || self.are(|actor| matches!(actor, Actor::Memory(_)));
        let (ttl, max_ttl) = if quick {
            (TTL, MAX_TTL)
        } else {
            (LONG_TTL, LONG_MAX_TTL)
        };
        let mut builder = Redlock::builder();
        for (index, actor) in self.0.iter().enumerate() {
            builder = match actor {
                Actor::Real(_, server) => {
                    backends::add(builder, index + 1, &server.url(backends::PLACE))?
                }
                Actor::Memory(node) => builder.node(node.clone()),
            };
        }
        builder
            .ttl(ttl)
            .max_ttl(max_ttl)
            .wait(Wait::For(Duration::from_secs(30)))
            // These masters have just been started. Count their votes now, not after `max_ttl`.
            .restart_guard(RestartGuard::AfterFirstContact)
            .build()
            .map_err(Failure::internal)
    }

    /// The message that announces this event.
    pub(super) fn words(&self, event: Event) -> String {
        let words = match (&self.0[event.master], event.up) {
            (_, false) => "is killed",
            (Actor::Real(kind, _), true) => kind.restarts(),
            (Actor::Memory(_), true) => "restarts",
        };
        format!("master {} {words}", event.master + 1)
    }

    pub(super) fn happen(&self, event: Event) -> Result<(), Failure> {
        match (&self.0[event.master], event.up) {
            (Actor::Real(_, server), false) => server.kill().map_err(Failure::internal),
            (Actor::Real(_, server), true) => server.come_back().map_err(Failure::internal),
            (Actor::Memory(node), false) => {
                node.set_condition(Condition::Down);
                Ok(())
            }
            (Actor::Memory(node), true) => {
                // A master in memory votes immediately when it is reachable again, so it must keep its locks.
                node.set_condition(Condition::Up);
                Ok(())
            }
        }
    }

    fn are(&self, wanted: impl Fn(&Actor) -> bool) -> bool {
        self.0.iter().all(wanted)
    }

    fn are_redis(&self) -> bool {
        self.are(|actor| matches!(actor, Actor::Real(kind, _) if *kind == backends::REDIS))
    }
}

impl Actor {
    fn in_memory(n: usize) -> Self {
        Self::Memory(MemoryNode::new(&format!("memory-{n}")))
    }

    fn name(&self) -> String {
        match self {
            Self::Real(kind, _) => kind.program(),
            Self::Memory(_) => "memory".to_owned(),
        }
    }

    fn port(&self) -> String {
        match self {
            Self::Real(_, server) => server.port().to_string(),
            Self::Memory(_) => "-".to_owned(),
        }
    }
}
