//! The end of the process: all locks that are still held are released.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use quorate::fork::PerProcess;

use crate::client::{Client, DroppedClient};

/// The clients of this process that the end of the process must end.
#[derive(Default)]
struct Clients {
    in_use: Vec<Weak<Client>>,
    /// Each stays here until its releases are sent.
    dropped: Vec<Arc<DroppedClient>>,
}

/// All clients of this process. A forked process begins with none.
static CLIENTS: PerProcess<Mutex<Clients>> = PerProcess::new();

fn clients() -> MutexGuard<'static, Clients> {
    let clients = CLIENTS.get_or_init(Mutex::default);
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn register(client: &Arc<Client>) {
    let mut clients = clients();
    clients.in_use.retain(|client| client.strong_count() > 0);
    clients.in_use.push(Arc::downgrade(client));
}

/// The place of a dropped client in the list. Dropping this value removes the client from the list.
pub(crate) struct ListedClient(Arc<DroppedClient>);

impl ListedClient {
    pub(crate) fn client(&self) -> &DroppedClient {
        &self.0
    }
}

impl Drop for ListedClient {
    fn drop(&mut self) {
        // This value still refers to the client, so the client is not dropped while the list is locked.
        clients()
            .dropped
            .retain(|client| !Arc::ptr_eq(client, &self.0));
    }
}

/// Adds a dropped client to the list of clients that the end of the process must end.
pub(crate) fn list_dropped(client: DroppedClient) -> ListedClient {
    let client = Arc::new(client);
    clients().dropped.push(client.clone());
    ListedClient(client)
}

/// A client that the end of the process must end.
enum LastClient {
    InUse(Arc<Client>),
    Dropped(Arc<DroppedClient>),
}

impl LastClient {
    /// Takes out all clients of this process.
    fn take_all() -> Vec<Self> {
        let Clients { in_use, dropped } = std::mem::take(&mut *clients());
        let in_use = in_use.iter().filter_map(Weak::upgrade).map(Self::InUse);
        in_use
            .chain(dropped.into_iter().map(Self::Dropped))
            .collect()
    }

    /// Ends the client, and returns how many locks it held.
    fn close(&self) -> usize {
        match self {
            Self::InUse(client) => client.close(),
            Self::Dropped(client) => {
                client.end();
                0
            }
        }
    }
}

/// Closes all clients of this process at the same time: releases all locks that are still held, and waits until the
/// releases were sent, at most 400 ms. Returns how many locks were held.
pub fn close_all_clients() -> usize {
    let clients = LastClient::take_all();
    let Some((first, others)) = clients.split_first() else {
        return 0;
    };
    let released = AtomicUsize::new(0);
    let close = |client: &LastClient| {
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
