//! Runs the proof of the library on a recipe, with real concurrent connections.

use std::process::Output;
use std::sync::{Arc, Mutex, PoisonError};

use quorate::testing::{FencedWrite, FencingProof};
use tokio::task::spawn_blocking;

use crate::{NEW, OLD};

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
    let writing = async |token: u64, value: String| {
        let (pool, write) = (Arc::clone(&pool), Arc::clone(&write));
        let accepted = spawn_blocking(move || pool.with(|client| write(client, token, &value)));
        accepted.await.map(FencedWrite::accepted_if)
    };
    let reading = async || {
        let (pool, read) = (Arc::clone(&pool), Arc::clone(&read));
        spawn_blocking(move || pool.with(|client| read(client))).await
    };
    let proof = FencingProof::new(writing, reading).run().await;
    proof.unwrap_or_else(|flaw| panic!("{flaw}"));
}

struct Pool<C, O> {
    idle: Mutex<Vec<C>>,
    open: O,
}

impl<C, O: Fn() -> C> Pool<C, O> {
    fn with<T>(&self, job: impl FnOnce(&mut C) -> T) -> T {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let found = idle().pop();
        let mut client = found.unwrap_or_else(&self.open);
        let result = job(&mut client);
        idle().push(client);
        result
    }
}

/// Checks a trigger with a program that knows no token: the run of the newer holder writes, and the older one is
/// refused. `read` returns the stored text.
pub(crate) fn refuses_the_older_run(
    program: impl Fn(u64) -> Output,
    read: impl FnOnce() -> String,
) {
    let accepted = program(NEW);
    assert!(accepted.status.success(), "{accepted:?}");
    assert_eq!(read(), "new");
    let refused = program(OLD);
    assert!(!refused.status.success(), "{refused:?}");
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("fenced: a newer holder"), "{error}");
}
