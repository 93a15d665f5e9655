//! Helpers that the tests of the MySQL and MariaDB master share.

use std::sync::Arc;

use quorate::node::store::{Change, Commit, Wake};
use quorate_mysql::{MySql, prepare};
use quorate_testbed::{MariaDb, MariaDbOptions, not_run};

/// Whether MariaDB is missing on this machine. If so, reports the test as not run.
pub(crate) fn is_mariadb_missing() -> bool {
    match MariaDb::available() {
        Ok(()) => false,
        Err(error) => {
            not_run(
                std::thread::current().name().unwrap_or("a test"),
                &error.to_string(),
            );
            true
        }
    }
}

/// Starts a server with the schema in its database `locks`. Returns the server and a store that uses it; `None` if
/// MariaDB is not installed.
pub(crate) async fn start_prepared(options: MariaDbOptions) -> Option<(MariaDb, MySql)> {
    let server = start_unprepared(options)?;
    let url = server.url("locks");
    prepare(&url)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let url = format!("{url}?timeout=5s");
    let store = MySql::open(&url).unwrap_or_else(|error| panic!("{error}"));
    Some((server, store))
}

/// Starts a server without a schema. Returns `None` if MariaDB is not installed.
pub(crate) fn start_unprepared(options: MariaDbOptions) -> Option<MariaDb> {
    if is_mariadb_missing() {
        return None;
    }
    let server = MariaDb::start(options);
    Some(server.unwrap_or_else(|error| panic!("{error}")))
}

pub(crate) fn record_name(key: &str) -> Arc<[u8]> {
    key.as_bytes().into()
}

pub(crate) fn change(key: &str, version: u64, state: &str) -> Change {
    let state = Some(state.as_bytes().to_vec());
    let name = record_name(key);
    Change {
        name,
        version,
        state,
    }
}

pub(crate) fn version_check(key: &str, version: u64) -> Change {
    let state = None;
    let name = record_name(key);
    Change {
        name,
        version,
        state,
    }
}

pub(crate) fn commit_of(change: Change) -> Commit {
    commit_of_all(vec![change])
}

pub(crate) fn commit_of_all(changes: Vec<Change>) -> Commit {
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
