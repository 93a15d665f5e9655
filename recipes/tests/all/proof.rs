//! Runs the proof of the library on a recipe, with real concurrent connections.

use std::process::Output;
use std::sync::{Arc, Mutex, PoisonError};

use quorate::testing::{FencedWrite, FencingProof};
use tokio::task::spawn_blocking;

use crate::{NEW_TOKEN, OLD_TOKEN};

/// Proves that a resource refuses older tokens. `open` opens a connection, `write` returns whether the resource has
/// accepted the token, and `read` returns the stored value. Each call has its own connection while it runs.
pub(crate) async fn prove<C: Send + 'static>(
    open: impl Fn() -> C + Send + Sync + 'static,
    write: impl Fn(&mut C, u64, &str) -> bool + Send + Sync + 'static,
    read: impl Fn(&mut C) -> String + Send + Sync + 'static,
) {
    let pool = Arc::new(Pool {
        idle: Mutex::new(Vec::new()),
        open,
    });
    let (write, read) = (Arc::new(write), Arc::new(read));
    let write_fenced = async |token: u64, value: String| {
        let (pool, write) = (Arc::clone(&pool), Arc::clone(&write));
        let write_task =
            spawn_blocking(move || pool.with_client(|client| write(client, token, &value)));
        write_task.await.map(FencedWrite::accepted_if)
    };
    let read_stored = async || {
        let (pool, read) = (Arc::clone(&pool), Arc::clone(&read));
        spawn_blocking(move || pool.with_client(|client| read(client))).await
    };
    let proof = FencingProof::new(write_fenced, read_stored).run().await;
    proof.unwrap_or_else(|flaw| panic!("{flaw}"));
}

struct Pool<C, O> {
    idle: Mutex<Vec<C>>,
    open: O,
}

impl<C, O: Fn() -> C> Pool<C, O> {
    fn with_client<T>(&self, job: impl FnOnce(&mut C) -> T) -> T {
        let idle_clients = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let idle_client = idle_clients().pop();
        let mut client = idle_client.unwrap_or_else(&self.open);
        let result = job(&mut client);
        idle_clients().push(client);
        result
    }
}

/// Checks a trigger with a program that knows no token: the run of the newer holder writes, and the older one is
/// refused. `read` returns the stored text.
pub(crate) fn assert_older_run_is_refused(
    program: impl Fn(u64) -> Output,
    read: impl FnOnce() -> String,
) {
    let newer_run = program(NEW_TOKEN);
    assert!(newer_run.status.success(), "{newer_run:?}");
    assert_eq!(read(), "new");
    let older_run = program(OLD_TOKEN);
    assert!(!older_run.status.success(), "{older_run:?}");
    let error = String::from_utf8_lossy(&older_run.stderr).into_owned();
    assert!(error.contains("fenced: a newer holder"), "{error}");
}
