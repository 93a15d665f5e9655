//! The masters of the demo, and the events that kill and restart them.

use std::time::Duration;

use quorate::node::memory::{Condition, MemoryNode};
use quorate::{Redlock, RestartGuard, Wait};
use quorate_testbed::TestServer;

use crate::backends::{self, Backend};
use crate::exit::Failure;
use crate::output;

const MASTERS: usize = 5;
const MAX_MASTERS: usize = 9;
const TTL: Duration = Duration::from_millis(800);
/// The setting `max_ttl` of a demo without MySQL and ZooKeeper masters. It is short, because a restarted master does
/// not vote until `max_ttl` has passed.
const MAX_TTL: Duration = Duration::from_secs(1);
/// The ttl in a demo with MySQL or ZooKeeper masters. These masters may reply more slowly than Redis masters, for which
/// the ttl is [`TTL`].
const LONG_TTL: Duration = Duration::from_secs(2);
const LONG_MAX_TTL: Duration = Duration::from_millis(2500);

/// All masters of the demo, in the order in which messages number them (from 1).
pub(super) struct DemoMasters(Vec<DemoMaster>);

/// One master of the demo: a real server, or a master in this process's memory.
enum DemoMaster {
    Server(&'static dyn Backend, Box<dyn TestServer>),
    Memory(MemoryNode),
}

/// An event of the demo: a master is killed or restarted after a number of sales.
///
/// - `sales_before`: the number of sales
/// - `master`: the index of the master, from 0
/// - `is_restart`: true for a restart, false for a kill
#[derive(Clone, Copy)]
pub(super) struct Event {
    pub(super) sales_before: usize,
    pub(super) master: usize,
    pub(super) is_restart: bool,
}

impl Event {
    pub(super) const fn new(sales_before: usize, master: usize, is_restart: bool) -> Self {
        Self {
            sales_before,
            master,
            is_restart,
        }
    }
}

impl DemoMasters {
    /// Starts masters of these kinds (default: five Redis). If the server of a kind is not installed, the masters of
    /// this kind run in memory. If `kinds` is given, a message reports each such master.
    pub(super) fn start(kinds: Option<&[&'static dyn Backend]>) -> Result<Self, Failure> {
        let default_kinds = [backends::REDIS; MASTERS];
        let listed_kinds = kinds.unwrap_or(&default_kinds);
        if !(1..=MAX_MASTERS).contains(&listed_kinds.len()) {
            return Err(Failure::usage(format!(
                "--nodes lists {} masters: give between 1 and {MAX_MASTERS} masters",
                listed_kinds.len()
            )));
        }
        if kinds.is_none() && backends::REDIS.missing().is_some() {
            return Ok(Self((1..=MASTERS).map(DemoMaster::in_memory).collect()));
        }
        let missing: Vec<Option<String>> = listed_kinds.iter().map(|kind| kind.missing()).collect();
        for (n, (kind, why)) in listed_kinds.iter().zip(&missing).enumerate() {
            if let Some(why) = why {
                let (n, kind) = (n + 1, kind.names().name);
                output::print_message(format!(
                    "master {n} runs in memory instead of {kind}: {why}"
                ));
            }
        }
        let installed = listed_kinds
            .iter()
            .zip(&missing)
            .filter(|(_, why)| why.is_none());
        let installed: Vec<&dyn Backend> = installed.map(|(kind, _)| *kind).collect();
        let mut started = backends::start_all(&installed)?.into_iter();
        let masters = listed_kinds
            .iter()
            .zip(&missing)
            .enumerate()
            .map(|(n, (kind, why))| {
                let server = if why.is_none() { started.next() } else { None };
                server.map_or_else(
                    || DemoMaster::in_memory(n + 1),
                    |server| DemoMaster::Server(*kind, server),
                )
            });
        Ok(Self(masters.collect()))
    }

    /// Prepares each real master, as `quorate prepare-server` does.
    pub(super) async fn prepare(&self) -> Result<(), Failure> {
        for master in &self.0 {
            if let DemoMaster::Server(_, server) = master {
                backends::prepare(&server.url(backends::PLACE)).await?;
            }
        }
        Ok(())
    }

    /// The kinds of all masters, as text; a single word if all are of the same kind.
    pub(super) fn kinds(&self) -> String {
        let names: Vec<String> = self.0.iter().map(DemoMaster::name).collect();
        if names.iter().all(|name| *name == names[0]) {
            names[0].clone()
        } else {
            names.join(", ")
        }
    }

    /// Describes the masters in the result of the demo: the number of masters of each kind, and how many of all masters
    /// were killed and restarted.
    pub(super) fn masters_text(&self) -> String {
        let mut counts: Vec<(String, usize)> = Vec::new();
        for name in self.0.iter().map(DemoMaster::name) {
            match counts
                .iter_mut()
                .find(|(counted_name, _)| *counted_name == name)
            {
                Some((_, count)) => *count += 1,
                None => counts.push((name, 1)),
            }
        }
        let kinds: Vec<String> = counts
            .iter()
            .map(|(name, count)| format!("{count} x {name}"))
            .collect();
        let faults = match self.0.len() {
            MASTERS.. => "2 masters killed, 1 of them restarted",
            3.. => "1 master killed and restarted",
            _ => "no master killed (the demo kills a master only if at least three run)",
        };
        format!("{}, {faults}", kinds.join(", "))
    }

    /// The events that kill and restart masters. A majority of the masters is up at all times.
    pub(super) fn events(&self) -> &'static [Event] {
        const TWO_KILLED: [Event; 3] = [
            Event::new(2, 1, false),
            Event::new(4, 3, false),
            Event::new(5, 1, true),
        ];
        const ONE_KILLED: [Event; 2] = [Event::new(2, 1, false), Event::new(5, 1, true)];
        match self.0.len() {
            MASTERS.. => &TWO_KILLED,
            3.. => &ONE_KILLED,
            _ => &[],
        }
    }

    pub(super) fn describe(&self) -> String {
        if self.are_all(|master| matches!(master, DemoMaster::Memory(_))) && self.0.len() == MASTERS
        {
            return "five masters in memory (no redis-server or valkey-server found)".to_owned();
        }
        let ports: Vec<String> = self.0.iter().map(DemoMaster::port).collect();
        if self.are_redis() && self.0.len() == MASTERS {
            return format!(
                "five {} masters on ports {}",
                self.kinds(),
                ports.join(", ")
            );
        }
        let masters = self.0.iter().zip(&ports);
        let masters: Vec<String> = masters
            .map(|(master, port)| match master {
                DemoMaster::Server(kind, _) => format!("{} on port {port}", kind.program()),
                DemoMaster::Memory(_) => "one in memory".to_owned(),
            })
            .collect();
        format!("masters: {}", masters.join(", "))
    }

    pub(super) fn redlock(&self) -> Result<Redlock, Failure> {
        let is_quick =
            self.are_redis() || self.are_all(|master| matches!(master, DemoMaster::Memory(_)));
        let (ttl, max_ttl) = if is_quick {
            (TTL, MAX_TTL)
        } else {
            (LONG_TTL, LONG_MAX_TTL)
        };
        self.redlock_with(ttl, max_ttl)
    }

    /// A client of the masters with this ttl and `max_ttl`.
    pub(super) fn redlock_with(
        &self,
        ttl: Duration,
        max_ttl: Duration,
    ) -> Result<Redlock, Failure> {
        let mut builder = Redlock::builder();
        for (index, master) in self.0.iter().enumerate() {
            builder = match master {
                DemoMaster::Server(_, server) => {
                    backends::add(builder, index + 1, &server.url(backends::PLACE))?
                }
                DemoMaster::Memory(node) => builder.node(node.clone()),
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

    /// The number of masters.
    #[cfg(feature = "page")]
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The message that announces this event.
    pub(super) fn event_text(&self, event: Event) -> String {
        let action = match (&self.0[event.master], event.is_restart) {
            (_, false) => "is killed",
            (DemoMaster::Server(kind, _), true) => kind.restarts(),
            (DemoMaster::Memory(_), true) => "restarts",
        };
        format!("master {} {action}", event.master + 1)
    }

    pub(super) fn cause(&self, event: Event) -> Result<(), Failure> {
        match (&self.0[event.master], event.is_restart) {
            (DemoMaster::Server(_, server), false) => server.kill().map_err(Failure::internal),
            (DemoMaster::Server(_, server), true) => {
                server.restart_after_crash().map_err(Failure::internal)
            }
            (DemoMaster::Memory(node), false) => {
                node.set_condition(Condition::Down);
                Ok(())
            }
            (DemoMaster::Memory(node), true) => {
                // A master in memory votes immediately when it is reachable again, so it must keep its locks.
                node.set_condition(Condition::Up);
                Ok(())
            }
        }
    }

    fn are_all(&self, predicate: impl Fn(&DemoMaster) -> bool) -> bool {
        self.0.iter().all(predicate)
    }

    fn are_redis(&self) -> bool {
        self.are_all(
            |master| matches!(master, DemoMaster::Server(kind, _) if *kind == backends::REDIS),
        )
    }
}

impl DemoMaster {
    fn in_memory(n: usize) -> Self {
        Self::Memory(MemoryNode::new(&format!("memory-{n}")))
    }

    fn name(&self) -> String {
        match self {
            Self::Server(kind, _) => kind.program(),
            Self::Memory(_) => "memory".to_owned(),
        }
    }

    fn port(&self) -> String {
        match self {
            Self::Server(_, server) => server.port().to_string(),
            Self::Memory(_) => "-".to_owned(),
        }
    }
}
