//! Helpers that the tests of the PostgreSQL master share.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::sync::Arc;

use quorate::node::store::{Change, Commit, Committed, Record, Session as _, Store as _, Wake};
use quorate_postgres::{Postgres, PostgresSession, prepare};
use quorate_testbed::{PostgresOptions, not_run};

pub(crate) type Server = quorate_testbed::Postgres;

/// Whether PostgreSQL is missing on this machine. If so, reports the test as not run.
pub(crate) fn is_missing() -> bool {
    match Server::available() {
        Ok(()) => false,
        Err(error) => {
            report_not_run(&error.to_string());
            true
        }
    }
}

/// Reports the test of this thread as not run.
pub(crate) fn report_not_run(why: &str) {
    not_run(std::thread::current().name().unwrap_or("a test"), why);
}

/// Options of a server with a port. `fsync` is on, because quorate demands it: in a directory in memory, it costs
/// nothing.
pub(crate) fn options() -> PostgresOptions {
    PostgresOptions::new().tcp().set("fsync", "on")
}

/// Starts a server with the schema in its database `locks`. Returns the server and a store that uses it; `None` if
/// PostgreSQL is not installed.
pub(crate) async fn server(options: PostgresOptions) -> Option<(Server, Postgres)> {
    let server = bare(options)?;
    prepare(&server.url("locks"))
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let store = store(&server);
    Some((server, store))
}

/// A new store that uses the database `locks` of this server. It simulates a separate process.
pub(crate) fn store(server: &Server) -> Postgres {
    store_at(&server.url("locks"))
}

pub(crate) fn store_at(url: &str) -> Postgres {
    let and = if url.contains('?') { '&' } else { '?' };
    let url = format!("{url}{and}timeout=5s");
    Postgres::open(&url).unwrap_or_else(|error| panic!("{error}"))
}

/// Starts a server without a schema. Returns `None` if PostgreSQL is not installed.
pub(crate) fn bare(options: PostgresOptions) -> Option<Server> {
    if is_missing() {
        return None;
    }
    let server = Server::start_with(options);
    Some(server.unwrap_or_else(|error| panic!("{error}")))
}

/// Executes statements in the database `locks`.
pub(crate) fn sql(server: &Server, statements: &str) -> String {
    let answer = server.sql_in("locks", statements);
    answer.unwrap_or_else(|error| panic!("{error}"))
}

/// Sends a signal to a process of a server.
pub(crate) fn kill(signal: &str, pid: &str) {
    let status = std::process::Command::new("kill")
        .args([signal, pid])
        .status();
    assert!(status.expect("kill").success(), "{signal} {pid}");
}

/// An administrator's session in the database `locks`. It keeps its locks until it is dropped.
pub(crate) struct Console(Child);

impl Console {
    /// Opens a session, and executes these statements.
    pub(crate) fn open(server: &Server, statements: &str) -> Self {
        let mut program = server
            .client()
            .args(["--quiet", "--dbname=locks"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("psql");
        let input = program.stdin.as_mut().expect("stdin");
        writeln!(input, "{statements};\n\\echo done").expect("written");
        let output = BufReader::new(program.stdout.as_mut().expect("stdout"));
        let done = output
            .lines()
            .map_while(Result::ok)
            .any(|line| line == "done");
        assert!(done, "the console must execute the statements");
        Self(program)
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) async fn session(store: &Postgres) -> PostgresSession {
    let connected = store.connect().await;
    connected.unwrap_or_else(|fault| panic!("{fault}")).0
}

pub(crate) fn version(committed: &Committed) -> u64 {
    match committed {
        Committed::Done(versions) => versions[0],
        Committed::Stale => panic!("the commit must be applied, but its version is outdated"),
    }
}

/// Creates the record `key` (`from` is 0) or changes it from version `from`. Returns the new version of the record.
pub(crate) async fn put(session: &mut PostgresSession, key: &str, from: u64, state: &str) -> u64 {
    let answer = session.commit(&[of(change(key, from, state))]).await;
    version(&answer.unwrap_or_else(|fault| panic!("{fault}")).what[0])
}

pub(crate) async fn get(session: &mut PostgresSession, key: &str) -> Record {
    let answer = session.load(&[name(key)]).await;
    let answer = answer.unwrap_or_else(|fault| panic!("{fault}"));
    answer.what.into_iter().next().expect("one")
}

pub(crate) fn name(key: &str) -> Arc<[u8]> {
    key.as_bytes().into()
}

pub(crate) fn change(key: &str, version: u64, state: &str) -> Change {
    let state = Some(state.as_bytes().to_vec());
    let name = name(key);
    Change {
        name,
        version,
        state,
    }
}

pub(crate) fn check(key: &str, version: u64) -> Change {
    let name = name(key);
    Change {
        name,
        version,
        state: None,
    }
}

pub(crate) fn of(change: Change) -> Commit {
    commit(vec![change])
}

pub(crate) fn commit(changes: Vec<Change>) -> Commit {
    Commit {
        changes,
        ..Commit::default()
    }
}

pub(crate) fn wake(process: &str, word: &[u8]) -> Wake {
    let word = word.to_vec();
    let process = process.into();
    Wake { process, word }
}
