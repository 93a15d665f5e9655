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

/// The end of all clients of this process.
#[must_use = "the releases are sent only while `wait` waits"]
pub struct Ending {
    clients: Vec<Arc<Client>>,
    /// How many locks were still held.
    pub released: usize,
}

/// Releases all locks that are still held, and asks the threads of all clients to end. Returns at once.
pub fn end_all_clients() -> Ending {
    let clients: Vec<_> = clients().iter().filter_map(Weak::upgrade).collect();
    let released = clients.iter().map(|client| client.release_all()).sum();
    for client in &clients {
        client.close();
    }
    Ending { clients, released }
}

impl Ending {
    /// Waits until the releases were sent, at most 400 ms. All threads end at the same time.
    pub fn wait(self) {
        for client in &self.clients {
            client.wait_until_ended();
        }
    }
}
