//! An arm: one implementation of a master under test, with direct access to its keys.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::RestartGuard;
use quorate::node::memory::{self, MemoryNode};
use quorate::node::store::{RecordAccess, Store, StoreNode, Table};
use quorate::node::{self, Answer, Ended, Extended, Fault, Node, Request};
use quorate_testbed::{Reply, Server, ServerOptions};

use crate::support::asking::{self, Said};
use crate::support::{secs, settings};

/// A TTL of ten minutes, which is longer than any test runs.
pub(crate) const LONG: Duration = secs(600);

/// A master under test, and the node that sends requests to it.
pub(crate) struct Arm {
    pub(crate) node: Arc<dyn Node>,
    pub(crate) master: Master,
}

pub(crate) enum Master {
    Memory(MemoryNode),
    Server(Box<Server>),
    Store(Box<dyn Records>),
}

/// Direct access to the records of a store (a database or ZooKeeper as a master).
pub(crate) trait Records: Send + Sync {
    fn change(&self, key: &[u8], change: &mut (dyn FnMut(&mut memory::Master, u64) + Send));
    fn keys(&self) -> usize;
    fn clear(&self);
}

impl<S: Store> Records for RecordAccess<S> {
    fn change(&self, key: &[u8], change: &mut (dyn FnMut(&mut memory::Master, u64) + Send)) {
        self.with_record(key, change);
    }

    fn keys(&self) -> usize {
        RecordAccess::keys(self)
    }

    fn clear(&self) {
        RecordAccess::clear(self);
    }
}

impl Arm {
    pub(crate) fn memory() -> Self {
        let master = MemoryNode::new("memory");
        let node = Arc::new(master.clone());
        Self {
            node,
            master: Master::Memory(master),
        }
    }

    /// A master under test: a store in memory, with or without a clock of its own.
    pub(crate) fn table(clocked: bool) -> Self {
        let table = Table::new("table", clocked);
        Self::store(table.clone(), table)
    }

    /// A master under test: the store `store`. `other` is a second handle of the same store, for direct access.
    pub(crate) fn store<S: Store>(store: S, other: S) -> Self {
        let node = StoreNode::new(store);
        // Switch the restart guard off. Otherwise clients would ignore the votes of the new store for `max_ttl`.
        let patient = settings([""; 0]).max_ttl(LONG).connect_timeout(secs(10));
        let patient = patient.restart_guard(RestartGuard::Off);
        node.settle(&quorate::testing::context(&patient));
        Self {
            node: Arc::new(node),
            master: Master::Store(Box::new(RecordAccess::new(other))),
        }
    }

    /// A master under test: a newly started server of `program`. `None` means the machine's default program.
    pub(crate) fn server(program: Option<PathBuf>) -> Self {
        let mut options = ServerOptions::new();
        if let Some(program) = program {
            options = options.program(program);
        }
        let server = Server::start(options).unwrap_or_else(|error| panic!("{error}"));
        // The contract is about answers, not about speed, so the node timeout is long enough for a busy machine.
        let patient = settings([""; 0]).node_timeout(secs(10)).max_ttl(LONG);
        let patient = patient.connect_timeout(secs(10));
        let node =
            quorate::testing::connect(&server.url(), &patient).expect("the address must be valid");
        Self {
            node,
            master: Master::Server(Box::new(server)),
        }
    }

    pub(crate) fn others() -> impl Iterator<Item = Self> {
        let named = std::env::var("QUORATE_TEST_SERVERS").unwrap_or_default();
        let paths: Vec<PathBuf> = named
            .split(',')
            .map(str::trim)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
            .collect();
        paths.into_iter().map(|path| Self::server(Some(path)))
    }

    pub(crate) async fn ask(&self, request: Request) -> Said {
        asking::ask(&*self.node, request).await
    }

    /// Force-releases the lock that this master has, as a client with only this master does.
    pub(crate) async fn smash(&self, key: &[u8]) -> Said {
        let Answer::State(was) = self.ask(asking::smash(key, &[], false)).await? else {
            panic!("no state")
        };
        let ended = Ended::all([was].iter());
        self.ask(asking::smash(key, &ended, true)).await
    }

    /// Sends an acquire that must be granted. Returns the fencing counter.
    pub(crate) async fn granted(&self, request: Request) -> u64 {
        match self.ask(request).await {
            Ok(Answer::Granted { counter: Some(v) }) => v,
            other => {
                panic!("the acquire must be granted with a counter, but the answer is {other:?}")
            }
        }
    }

    fn command(server: &Server, args: &[&[u8]]) -> Reply {
        server
            .command(args)
            .expect("the server must answer the command")
    }

    /// Writes a string to a key, as another client would.
    pub(crate) fn put(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        match &self.master {
            Master::Memory(memory) => {
                memory.with_master(|master, now| master.put_text(now, key, value, ttl));
            }
            Master::Store(records) => records.change(key, &mut |master, now| {
                master.put_text(now, key, value, ttl);
            }),
            Master::Server(server) => {
                let reply = match ttl {
                    None => Self::command(server, &[b"SET", key, value]),
                    Some(ttl) => {
                        let ttl = ttl.as_millis().to_string();
                        Self::command(server, &[b"SET", key, value, b"PX", ttl.as_bytes()])
                    }
                };
                assert!(reply.is_ok(), "{reply:?}");
            }
        }
    }

    /// Writes a value of another data type to a key.
    pub(crate) fn put_foreign(&self, key: &[u8]) {
        match &self.master {
            Master::Memory(memory) => memory.with_master(|master, _| master.put_foreign(key)),
            Master::Store(records) => {
                records.change(key, &mut |master, _| master.put_foreign(key));
            }
            Master::Server(server) => {
                Self::command(server, &[b"DEL", key]);
                Self::command(server, &[b"RPUSH", key, b"foreign"]);
            }
        }
    }

    pub(crate) fn delete(&self, key: &[u8]) {
        match &self.master {
            Master::Memory(memory) => memory.with_master(|master, now| {
                // A TTL of zero deletes the key.
                master.put_text(now, key, b"", Some(Duration::ZERO));
            }),
            Master::Store(records) => records.change(key, &mut |master, now| {
                master.put_text(now, key, b"", Some(Duration::ZERO));
            }),
            Master::Server(server) => drop(Self::command(server, &[b"DEL", key])),
        }
    }

    /// Deletes the ticket key of a lock's queue, like a server that evicts keys to free memory.
    pub(crate) fn delete_ticket(&self, lock: &[u8]) {
        let key = [b"quorate:ticket:", lock].concat();
        match &self.master {
            Master::Memory(memory) => memory.with_master(|master, _| master.forget_ticket(lock)),
            Master::Store(records) => {
                records.change(lock, &mut |master, _| master.forget_ticket(lock));
            }
            Master::Server(server) => {
                Self::command(server, &[b"DEL", &key]);
            }
        }
    }

    /// The string under `key`; a value of another type reads as `foreign`.
    pub(crate) fn read(&self, key: &[u8]) -> Option<Vec<u8>> {
        match &self.master {
            Master::Memory(_) | Master::Store(_) => match self.peek(key) {
                Ok(state) => state.holder,
                Err(Fault::WrongType) => Some(b"foreign".to_vec()),
                Err(fault) => panic!("{fault}"),
            },
            Master::Server(server) => match Self::command(server, &[b"GET", key]) {
                Reply::Bulk(value) => Some(value),
                Reply::Error(why) if why.starts_with("WRONGTYPE") => {
                    let first = Self::command(server, &[b"LINDEX", key, b"0"]);
                    assert_eq!(first, Reply::from("foreign"));
                    Some(b"foreign".to_vec())
                }
                Reply::Nil => None,
                other => panic!("{other:?}"),
            },
        }
    }

    /// The remaining time of `key`; `None` if the key has no expiry or does not exist.
    pub(crate) fn ttl(&self, key: &[u8]) -> Option<Duration> {
        match &self.master {
            Master::Memory(_) | Master::Store(_) => self.peek(key).ok()?.ttl_left,
            Master::Server(server) => {
                let left = Self::command(server, &[b"PTTL", key]).int()?;
                u64::try_from(left).ok().map(Duration::from_millis)
            }
        }
    }

    /// The string under `key`, as [`read`](Self::read) returns it, and the remaining time of the key. A store reads both at
    /// once, which takes half the time.
    pub(crate) fn read_with_ttl(&self, key: &[u8]) -> (Option<Vec<u8>>, Option<Duration>) {
        match &self.master {
            Master::Server(_) => (self.read(key), self.ttl(key)),
            Master::Memory(_) | Master::Store(_) => match self.peek(key) {
                Ok(state) => (state.holder, state.ttl_left),
                Err(Fault::WrongType) => (Some(b"foreign".to_vec()), None),
                Err(fault) => panic!("{fault}"),
            },
        }
    }

    fn peek(&self, key: &[u8]) -> Result<node::KeyState, Fault> {
        // Send the status request to a copy of the master in which the fencing counter is 0. With a malformed counter,
        // the request would fail.
        let look = |master: &memory::Master, now: u64| {
            let mut copy = master.clone();
            copy.put_text(now, &fence(key), b"0", None);
            copy.apply(now, &asking::look(key))
        };
        let mut said = Err(Fault::Loading);
        match &self.master {
            Master::Memory(memory) => said = memory.with_master(|master, now| look(master, now)),
            Master::Store(records) => {
                records.change(key, &mut |master, now| said = look(master, now));
            }
            Master::Server(_) => {
                panic!("the state of a server must be read with commands, not with `peek`")
            }
        }
        match said? {
            Answer::State(state) => Ok(state),
            other => panic!("{other:?}"),
        }
    }

    /// The fencing counter of a lock key.
    pub(crate) fn counter(&self, key: &[u8]) -> Option<u64> {
        let text = self.read(&fence(key))?;
        Some(String::from_utf8(text).ok()?.parse().expect("digits"))
    }

    /// The number of keys on the master.
    pub(crate) fn keys(&self) -> usize {
        match &self.master {
            Master::Memory(memory) => memory.with_master(memory::Master::len),
            Master::Store(records) => records.keys(),
            Master::Server(server) => {
                let size = Self::command(server, &[b"DBSIZE"]).int();
                usize::try_from(size.expect("a number")).expect("not negative")
            }
        }
    }

    pub(crate) fn clear(&self) {
        match &self.master {
            Master::Memory(memory) => memory.forget(),
            Master::Store(records) => records.clear(),
            Master::Server(server) => drop(Self::command(server, &[b"FLUSHALL"])),
        }
    }
}

pub(crate) fn fence(key: &[u8]) -> Vec<u8> {
    [b"quorate:fence:", key].concat()
}

/// The wall clock in microseconds. It is also the masters' clock, because the masters run on this machine.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_micros() as u64
}

/// The value of token `n` in a lock key.
pub(crate) fn hex(n: u8) -> Vec<u8> {
    asking::token(n).to_hex().to_vec()
}

/// The expected answer to an extension of several locks.
pub(crate) fn each(said: &[Extended]) -> Answer {
    Answer::Extended(said.to_vec())
}

/// Checks that `left` is close to `ttl`, which was just set. A store without a clock may report a slightly longer
/// remaining time.
#[track_caller]
pub(crate) fn assert_about(left: Option<Duration>, ttl: Duration) {
    let left =
        left.unwrap_or_else(|| panic!("the key must expire after {ttl:?}, but has no expiry"));
    assert!(
        left <= ttl + ttl / 64 && left + secs(60) > ttl,
        "the remaining time {left:?} must be close to {ttl:?}"
    );
}
