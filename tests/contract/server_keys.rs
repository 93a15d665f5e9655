//! A real server as a master under test.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quorate_contract::fixtures::LONG;
use quorate_contract::{KeyAccess, TestedMaster};
use quorate_testbed::{Reply, Server, ServerOptions};

use crate::support::{secs, settings};

/// Direct access to the keys of a running server.
#[derive(Clone)]
pub(crate) struct ServerKeys(Arc<Server>);

impl ServerKeys {
    /// Sends a command to the server, which must answer.
    pub(crate) fn command(&self, args: &[&[u8]]) -> Reply {
        self.0
            .command(args)
            .expect("the server must answer the command")
    }
}

impl KeyAccess for ServerKeys {
    fn put(&self, key: &[u8], value: &[u8], ttl: Option<Duration>) {
        let reply = match ttl {
            None => self.command(&[b"SET", key, value]),
            Some(ttl) => {
                let ttl = ttl.as_millis().to_string();
                self.command(&[b"SET", key, value, b"PX", ttl.as_bytes()])
            }
        };
        assert!(reply.is_ok(), "{reply:?}");
    }

    fn put_foreign(&self, key: &[u8]) {
        self.command(&[b"DEL", key]);
        self.command(&[b"RPUSH", key, b"foreign"]);
    }

    fn delete(&self, key: &[u8]) {
        self.command(&[b"DEL", key]);
    }

    fn delete_ticket(&self, lock: &[u8]) {
        self.delete(&[b"quorate:ticket:", lock].concat());
    }

    fn read(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.command(&[b"GET", key]) {
            Reply::Bulk(value) => Some(value),
            Reply::Error(why) if why.starts_with("WRONGTYPE") => {
                let first_reply = self.command(&[b"LINDEX", key, b"0"]);
                assert_eq!(first_reply, Reply::from("foreign"));
                Some(b"foreign".to_vec())
            }
            Reply::Nil => None,
            other => panic!("{other:?}"),
        }
    }

    fn ttl(&self, key: &[u8]) -> Option<Duration> {
        let remaining = self.command(&[b"PTTL", key]).int()?;
        u64::try_from(remaining).ok().map(Duration::from_millis)
    }

    fn count(&self) -> usize {
        let key_count = self.command(&[b"DBSIZE"]).int();
        usize::try_from(key_count.expect("a number")).expect("not negative")
    }

    fn clear(&self) {
        self.command(&[b"FLUSHALL"]);
    }
}

/// Starts a server of `program` as a master under test. `None` means the machine's default program.
pub(crate) fn server(program: Option<PathBuf>) -> TestedMaster {
    server_with_keys(program).0
}

/// Starts a server as [`server`] does. Also returns direct access for commands.
pub(crate) fn server_with_keys(program: Option<PathBuf>) -> (TestedMaster, ServerKeys) {
    let mut options = ServerOptions::new();
    if let Some(program) = program {
        options = options.program(program);
    }
    let server = Server::start(options).unwrap_or_else(|error| panic!("{error}"));
    // The contract is about replies, not about speed, so the node timeout is long enough for a busy machine.
    let settings = settings([""; 0]).node_timeout(secs(10)).max_ttl(LONG);
    let settings = settings.connect_timeout(secs(10));
    let node =
        quorate::testing::connect(&server.url(), &settings).expect("the address must be valid");
    let keys = ServerKeys(Arc::new(server));
    (TestedMaster::new(node, keys.clone()), keys)
}

/// Starts one server of each program in `QUORATE_TEST_SERVERS`, one after the other.
pub(crate) fn other_servers() -> impl Iterator<Item = TestedMaster> {
    let program_list = std::env::var("QUORATE_TEST_SERVERS").unwrap_or_default();
    let paths: Vec<PathBuf> = program_list
        .split(',')
        .map(str::trim)
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
        .collect();
    paths.into_iter().map(|path| server(Some(path)))
}
