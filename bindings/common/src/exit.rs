//! The end of the process: all locks that are still held are released.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use quorate::fork::PerProcess;

use crate::client::Client;

/// All clients of this process. A forked process begins with none.
static CLIENTS: PerProcess<Mutex<Vec<Weak<Client>>>> = PerProcess::new();

fn clients() -> MutexGuard<'static, Vec<Weak<Client>>> {
    let clients = CLIENTS.get_or_init(Mutex::default);
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn register(client: &Arc<Client>) {
    let mut clients = clients();
    clients.retain(|client| client.strong_count() > 0);
    clients.push(Arc::downgrade(client));
}

/// Closes all clients of this process at the same time: releases all locks that are still held, and waits until the
/// releases were sent, at most 400 ms. Returns how many locks were held.
pub fn close_all_clients() -> usize {
    let clients: Vec<_> = clients()
        .drain(..)
        .filter_map(|client| client.upgrade())
        .collect();
    std::thread::scope(|scope| {
        let closing: Vec<_> = clients
            .iter()
            .map(|client| scope.spawn(|| client.close()))
            .collect();
        let released = closing
            .into_iter()
            .map(|thread| thread.join().unwrap_or_default());
        released.sum()
    })
}
