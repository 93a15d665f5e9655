//! A `Redlock` with a thread of its own.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use quorate::fork::Process;
use quorate::{Redlock, RedlockBuilder};
use tokio::runtime::{EnterGuard, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::{CallError, ErrorKind};
use crate::exit;
use crate::held::{HeldLocks, HeldSlot, Hold};

/// How long the thread may take to send the last releases before it ends.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(350);

/// How long a caller waits for the end of the thread.
const END_TIMEOUT: Duration = Duration::from_millis(400);

/// Whether the thread of a client has ended.
#[derive(Default)]
struct ThreadEnd {
    ended: Mutex<bool>,
    changed: Condvar,
}

/// A `Redlock`, the thread that runs its tasks, and the locks that it holds for the language.
///
/// The thread ends when the client is [closed](Self::close) or dropped. Before that, it sends all releases that are
/// due.
pub struct Client {
    /// `None` only while the client is dropped.
    redlock: Option<Redlock>,
    /// `None` only while the client is dropped.
    runtime: Option<Handle>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    end: Arc<ThreadEnd>,
    held: HeldLocks,
    process: Process,
}

impl Client {
    /// Builds the `Redlock`, and starts its thread. Does not connect.
    ///
    /// # Errors
    ///
    /// If a setting is invalid, or if the operating system refuses the thread.
    pub fn start(builder: RedlockBuilder) -> Result<Arc<Self>, CallError> {
        let redlock = builder.build()?;
        let (stop, stop_requested) = oneshot::channel();
        let (handle_sender, handle_receiver) = std::sync::mpsc::channel();
        let end = Arc::new(ThreadEnd::default());
        let (end_of_thread, flushed) = (end.clone(), redlock.clone());
        let run = move || {
            let runtime = match quorate::one_thread() {
                Ok(runtime) => runtime,
                Err(error) => return drop(handle_sender.send(Err(error))),
            };
            let _ = handle_sender.send(Ok(runtime.handle().clone()));
            runtime.block_on(async move {
                let _ = stop_requested.await;
                let _ = tokio::time::timeout(FLUSH_TIMEOUT, flushed.flush()).await;
            });
            // Dropping the runtime would wait for name lookups that are under way.
            runtime.shutdown_background();
            *end_of_thread.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
            end_of_thread.changed.notify_all();
        };
        let no_thread = |error: std::io::Error| {
            let text = format!("cannot start the thread that renews locks: {error}");
            CallError::new(ErrorKind::Closed, text)
        };
        let thread = std::thread::Builder::new().name("quorate".to_owned());
        thread.spawn(run).map_err(no_thread)?;
        let handle = handle_receiver.recv();
        let handle = handle.map_err(|_| no_thread(std::io::Error::other("it ended")))?;
        let client = Arc::new(Self {
            redlock: Some(redlock),
            runtime: Some(handle.map_err(no_thread)?),
            stop: Mutex::new(Some(stop)),
            end,
            held: HeldLocks::default(),
            process: Process::current(),
        });
        exit::register(&client);
        Ok(client)
    }

    /// The `Redlock` of this client.
    pub fn redlock(&self) -> &Redlock {
        self.redlock.as_ref().expect("the client must not have been dropped yet")
    }

    fn runtime(&self) -> &Handle {
        self.runtime.as_ref().expect("the client must not have been dropped yet")
    }

    /// Runs the future on the thread of this client.
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime().spawn(future)
    }

    /// Until the returned value is dropped, the thread of this client runs the tasks that the calling thread starts.
    pub fn enter(&self) -> EnterGuard<'_> {
        self.runtime().enter()
    }

    /// Whether this client belongs to the process from which this process was forked.
    pub fn is_forked(&self) -> bool {
        self.process.is_not_current()
    }

    /// Asks the thread to send the remaining releases and to end. Returns at once.
    pub fn close(&self) {
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stop) = stop {
            let _ = stop.send(());
        }
    }

    /// Waits until the thread has ended, at most 400 ms.
    pub fn wait_until_ended(&self) {
        let ended = self.end.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.end.changed.wait_timeout_while(ended, END_TIMEOUT, |ended| !*ended);
    }

    /// Releases, in the background, every lock that is still held. Returns how many there were.
    pub fn release_all(&self) -> usize {
        let _entered = self.enter();
        self.held.take_all().len()
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
        let (redlock, runtime) = (self.redlock.take(), self.runtime.take());
        if self.is_forked() {
            // Sockets and the event queue are shared with the parent, so nothing of it is closed or woken.
            let stop = self.stop.get_mut().map(Option::take).ok();
            std::mem::forget((redlock, runtime, stop));
            return;
        }
        self.close();
        let _entered = runtime.as_ref().map(Handle::enter);
        drop(redlock);
    }
}
