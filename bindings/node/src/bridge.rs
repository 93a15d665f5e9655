//! The connection between one JavaScript environment (the main thread, or one worker) and the native threads.

use std::sync::{Arc, Mutex, Weak};

use napi::bindgen_prelude::{Function, Result};
use napi_derive::napi;
use quorate_bindings::call::Call;
use quorate_bindings::client::{Client, close_clients};
use quorate_bindings::exit::close_all_clients;
use quorate_bindings::mailbox::Mailbox;

use crate::bell::JsBell;
use crate::logs::{self, LogQueue};
use crate::sync::lock;

/// The calls of one JavaScript environment. Exactly one exists for each copy of the JavaScript module.
#[napi]
pub struct Bridge {
    pub(crate) mailbox: Mailbox<Arc<JsBell>>,
    pub(crate) logs: Arc<LogQueue>,
    clients: Mutex<Vec<Weak<Client>>>,
}

#[napi]
impl Bridge {
    /// `ring` is called when messages wait. It must call `take` and `takeLogs`.
    #[napi(constructor)]
    pub fn new(ring: Function<'_, (), ()>) -> Result<Self> {
        let bell = Arc::new(JsBell::new(ring)?);
        Ok(Self {
            mailbox: Mailbox::new(bell.clone()),
            logs: Arc::new(LogQueue::new(bell)),
            clients: Mutex::default(),
        })
    }

    /// Cancels a call: drops its future, and the library then releases everything that the call got.
    #[napi]
    pub fn abort(&self, call: i64) {
        self.mailbox.cancel(call.cast_unsigned());
    }

    /// How many calls have no reply that JavaScript has taken.
    #[napi]
    pub fn open_calls(&self) -> u32 {
        self.mailbox.running_calls() as u32
    }

    /// Sends the library's log records of this level and more important levels to this environment. An unknown level
    /// turns the records off.
    #[napi]
    pub fn log(&self, level: String) {
        logs::send_to(&self.logs, &level);
    }

    /// For the end of a worker, or with `is_process` for the end of the process and so of all its workers: cancels all
    /// calls, releases all held locks, and waits until the releases have been sent, for at most 400 ms. Returns how many
    /// locks were held.
    #[napi]
    pub fn release_all(&self, is_process: bool) -> u32 {
        self.mailbox.close();
        let clients = std::mem::take(&mut *lock(&self.clients));
        let held = if is_process {
            close_all_clients()
        } else {
            close_clients(clients.iter().filter_map(Weak::upgrade).collect())
        };
        held as u32
    }
}

impl Bridge {
    /// Adds a client whose locks `release_all` releases.
    pub(crate) fn add_client(&self, client: &Arc<Client>) {
        let mut clients = lock(&self.clients);
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(client));
    }

    /// Starts a call, and returns its number.
    pub(crate) fn start(&self, call: Call) -> i64 {
        self.mailbox.start(call, false).cast_signed()
    }

    /// Starts a call that acquires a lock, and returns its number. If the lock is lost later, a second message with this
    /// number follows.
    pub(crate) fn start_acquire(&self, call: Call) -> i64 {
        self.mailbox.start(call, true).cast_signed()
    }
}

/// At the end of a worker that was terminated, JavaScript does not call `release_all`. Node.js waits for this drop.
impl Drop for Bridge {
    fn drop(&mut self) {
        self.release_all(false);
    }
}
