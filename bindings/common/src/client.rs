//! A `Redlock` with a thread of its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use quorate::blocking::{BackgroundError, BackgroundRuntime, BackgroundTask};
use quorate::{Redlock, RedlockBuilder};

use crate::error::{CallError, ErrorKind};
use crate::exit::{self, Close};
use crate::held::{HeldLocks, HeldSlot, Hold};

/// How long the thread may take to send the last releases before it ends.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(350);

/// A `Redlock`, the thread that runs its tasks, and the locks that it holds for the language.
///
/// The thread ends when the client is [closed](Self::close) or dropped.
pub struct Client {
    /// `None` only while the client is dropped.
    redlock: Option<Redlock>,
    runtime: BackgroundRuntime,
    held: Arc<HeldLocks>,
}

impl Client {
    /// Builds the `Redlock`, and starts its thread. Does not connect.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or if the operating system refuses the thread.
    pub fn start(builder: RedlockBuilder) -> Result<Arc<Self>, CallError> {
        let redlock = builder.build()?;
        let runtime = BackgroundRuntime::new();
        let started = runtime.enter(|| ());
        started.map_err(|error| CallError::new(ErrorKind::Closed, error.to_string()))?;
        let client = Arc::new(Self {
            redlock: Some(redlock),
            runtime,
            held: Arc::default(),
        });
        let listed: Weak<dyn Close> = Arc::<Self>::downgrade(&client);
        exit::list_in_use(listed);
        Ok(client)
    }

    /// The `Redlock` of this client.
    pub fn redlock(&self) -> &Redlock {
        self.redlock
            .as_ref()
            .expect("the client must not have been dropped yet")
    }

    /// Runs the future on the thread of this client. If the client was closed, the future is dropped.
    ///
    /// # Errors
    ///
    /// If the client was closed, or in a forked process.
    pub fn spawn(
        &self,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Result<BackgroundTask, BackgroundError> {
        self.runtime.spawn(future)
    }

    /// Runs `body` on the calling thread. If it drops a guard, the thread of this client sends the releases. Does not
    /// run it if the client was closed: then no lock is held any more.
    pub fn enter<T>(&self, body: impl FnOnce() -> T) -> Option<T> {
        self.runtime.enter(body).ok()
    }

    /// Whether this client belongs to the process from which this process was forked.
    pub fn is_forked(&self) -> bool {
        self.runtime.is_forked()
    }

    /// Releases every lock that is still held, ends all calls, and ends the thread. Waits until the releases were sent,
    /// at most 400 ms. Returns how many locks were held at the time of this call.
    pub fn close(&self) -> usize {
        let released = self.release_all();
        let (redlock, held) = (self.redlock().clone(), self.held.clone());
        let last_work = async move {
            // A waiter of this client may have acquired one of the released locks before its call ended.
            held.release_all();
            redlock.release_all().await;
        };
        // The limit was reached if this fails: the keys then expire after their TTL.
        let _ = self.runtime.end(FLUSH_TIMEOUT, last_work);
        released
    }

    /// Releases every lock that is still held, in the background. Returns how many there were.
    pub fn release_all(&self) -> usize {
        self.enter(|| self.held.release_all()).unwrap_or_default()
    }

    pub(crate) fn add_held(&self, hold: Arc<Hold>) -> Arc<HeldSlot> {
        self.held.add(hold)
    }

    pub(crate) fn remove_held(&self, slot: &HeldSlot) {
        self.held.remove(slot);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some(redlock) = self.redlock.take() else {
            return;
        };
        if self.is_forked() {
            // Sockets are shared with the parent, so none of them is closed.
            std::mem::forget(redlock);
            return;
        }
        // Only the thread of the client knows when the releases are sent, so it keeps the runtime until then.
        let dropped = Arc::new(DroppedClient {
            redlock: redlock.clone(),
            runtime: self.runtime.clone(),
        });
        let ending = exit::list_ending(dropped.clone());
        let _ = self.runtime.spawn(async move {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, dropped.redlock.flush()).await;
            drop(ending);
        });
        let _ = self.runtime.enter(|| drop(redlock));
    }
}

/// A client that was dropped, and whose last releases are being sent.
struct DroppedClient {
    redlock: Redlock,
    runtime: BackgroundRuntime,
}

impl Close for DroppedClient {
    /// Ends the thread. Waits until the releases were sent, at most 400 ms.
    fn close(&self) -> usize {
        let redlock = self.redlock.clone();
        // The limit was reached if this fails: the keys then expire after their TTL.
        let _ = self
            .runtime
            .end(FLUSH_TIMEOUT, async move { redlock.flush().await });
        0
    }
}

impl Close for Client {
    fn close(&self) -> usize {
        Self::close(self)
    }
}

/// Closes these clients at the same time, as [`Client::close`] does. Returns how many locks they held.
pub fn close_clients(clients: Vec<Arc<Client>>) -> usize {
    let all: Vec<Arc<dyn Close>> = clients
        .into_iter()
        .map(|client| client as Arc<dyn Close>)
        .collect();
    exit::close_together(&all)
}
