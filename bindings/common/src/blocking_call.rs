//! Waits for a call on the calling thread, in steps that the caller can end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quorate::blocking::{BackgroundError, BackgroundTask};
use quorate::fork::Process;

use crate::call::{Call, Reply, Work};
use crate::client::Client;
use crate::error::CallError;

#[derive(Default)]
struct State {
    reply: Option<Reply>,
    /// Whether the task has ended, with or without a reply.
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports the end of the task, also if the task is dropped before its end.
struct ReportEnd(Arc<Shared>);

impl Drop for ReportEnd {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.changed.notify_all();
    }
}

/// A call that was started, and for which one thread waits.
pub struct BlockingCall {
    shared: Arc<Shared>,
    task: Option<BackgroundTask>,
    process: Process,
    /// Keeps the thread of the client running until the reply is here.
    _client: Arc<Client>,
}

impl BlockingCall {
    /// Starts the call.
    pub fn start(call: Call) -> Self {
        let shared = Arc::new(Shared::default());
        let end = ReportEnd(shared.clone());
        let Call { client, work } = call;
        let future = match work {
            Work::Done(reply) => {
                *shared.state() = State {
                    reply: Some(reply),
                    ended: true,
                };
                return Self {
                    shared,
                    task: None,
                    process: Process::current(),
                    _client: client,
                };
            }
            Work::Future(future) => future,
        };
        let task = client.spawn(async move {
            let end = end;
            let reply = future.await;
            end.0.state().reply = Some(reply);
        });
        // In a forked process, the task was leaked, so it does not report its end. After any other error, for example
        // because the client was closed, the task was dropped, and `wait` reports that.
        if matches!(task, Err(BackgroundError::Forked)) {
            *shared.state() = State {
                reply: Some(Err(CallError::forked())),
                ended: true,
            };
        }
        Self {
            shared,
            task: task.ok(),
            process: Process::current(),
            _client: client,
        }
    }

    /// Waits for the reply, at most for this time. `None` if the reply is not here yet. Does not wait in a process that
    /// was forked after the start of the call: the reply comes only in its parent.
    pub fn wait(&self, limit: Duration) -> Option<Reply> {
        if self.process.is_not_current() {
            return Some(Err(CallError::forked()));
        }
        let state = self.shared.state();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, limit, |state| !state.ended);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let reply = state.reply.take();
        if reply.is_none() && state.ended {
            return Some(Err(CallError::closed()));
        }
        reply
    }

    /// Ends the call: drops its future, and waits until that is done, at most for this time. A lock that was acquired
    /// in the meantime is released.
    pub fn cancel(self, limit: Duration) {
        if let Some(task) = &self.task {
            task.abort();
        }
        drop(self.wait(limit));
    }
}
