//! The end of the process: all locks that are still held are released.

use std::sync::atomic::{AtomicUsize, Ordering};
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
    let Some((first, others)) = clients.split_first() else {
        return 0;
    };
    let released = AtomicUsize::new(0);
    let close = |client: &Client| {
        released.fetch_add(client.close(), Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for client in others {
            let thread = std::thread::Builder::new();
            if thread.spawn_scoped(scope, || close(client)).is_err() {
                close(client);
            }
        }
        close(first);
    });
    released.into_inner()
}
