//! The replies for one event loop.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quorate::LossCause;
use quorate::blocking::{BackgroundError, BackgroundTask};
use quorate::fork::Process;

use crate::call::{Answer, Call, Reply, Work};
use crate::error::CallError;

/// Wakes an event loop. It is called on the thread of a client, so it must neither block nor enter the language.
pub trait Bell: Send + Sync + 'static {
    /// Wakes the event loop, so that it takes the replies out of its mailbox. Returns false if the event loop has
    /// ended.
    fn ring(&self) -> bool;
}

impl<B: Bell> Bell for Arc<B> {
    fn ring(&self) -> bool {
        (**self).ring()
    }
}

/// The replies that the event loop has not taken out yet. There are at most two for each call that was started: the
/// reply, and the loss of the lock that it acquired.
struct Queue<B> {
    /// `None` after the mailbox was closed.
    replies: Mutex<Option<Vec<(u64, Reply)>>>,
    bell: B,
}

impl<B: Bell> Queue<B> {
    fn replies(&self) -> MutexGuard<'_, Option<Vec<(u64, Reply)>>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reply. If nobody takes it out any more, drops it: a lock that it contains is released.
    fn put(&self, id: u64, reply: Reply) {
        let mut open = self.replies();
        let Some(replies) = &mut *open else {
            drop(open);
            return drop(reply);
        };
        replies.push((id, reply));
        if replies.len() == 1 && !self.bell.ring() {
            let unclaimed = open.take();
            drop(open);
            drop(unclaimed);
        }
    }

    fn close(&self) {
        let unclaimed = self.replies().take();
        drop(unclaimed);
    }
}

/// Puts an error into the queue if the task is dropped before its reply, because its client was closed.
struct Unanswered<B: Bell> {
    queue: Arc<Queue<B>>,
    id: u64,
    answered: bool,
}

impl<B: Bell> Drop for Unanswered<B> {
    fn drop(&mut self) {
        if !self.answered {
            self.queue.put(self.id, Err(CallError::closed()));
        }
    }
}

/// Starts calls for one event loop, and collects their replies.
///
/// After the mailbox was closed or dropped, replies are dropped. So a lock that is acquired too late is released, and
/// is not renewed for an event loop that has ended.
pub struct Mailbox<B: Bell> {
    queue: Arc<Queue<B>>,
    running: Mutex<HashMap<u64, BackgroundTask>>,
    next_id: AtomicU64,
    process: Process,
}

impl<B: Bell> Mailbox<B> {
    /// An empty mailbox for the event loop that this bell wakes.
    pub fn new(bell: B) -> Self {
        let replies = Mutex::new(Some(Vec::new()));
        Self {
            queue: Arc::new(Queue { replies, bell }),
            running: Mutex::default(),
            next_id: AtomicU64::new(1),
            process: Process::current(),
        }
    }

    /// Whether this mailbox belongs to the process from which this process was forked.
    pub fn is_forked(&self) -> bool {
        self.process.is_not_current()
    }

    fn running(&self) -> MutexGuard<'_, HashMap<u64, BackgroundTask>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the call. Returns the number under which [`take`](Self::take) returns its reply.
    ///
    /// If `watch` is set and the call acquires a lock, the loss of the lock is reported later, as a second reply with
    /// the same number: [`Answer::Loss`]. A release is not reported.
    pub fn start(&self, call: Call, watch: bool) -> u64 {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let Call { client, work } = call;
        let future = match work {
            Work::Done(reply) => {
                self.queue.put(id, reply);
                return id;
            }
            Work::Future(future) => future,
        };
        let mut unanswered = Unanswered {
            queue: self.queue.clone(),
            id,
            answered: false,
        };
        // Locked until the task is in the list: the reply can only be taken out after that.
        let mut running = self.running();
        // The client ends when it is dropped, but not before the reply.
        let kept_client = client.clone();
        let task = client.spawn(async move {
            let reply = future.await;
            let lost = match &reply {
                Ok(Answer::Guard(guard)) if watch => guard.lost(),
                _ => None,
            };
            unanswered.answered = true;
            unanswered.queue.put(id, reply);
            drop(kept_client);
            if let Some(lost) = lost {
                let cause = lost.await;
                if cause != LossCause::Released {
                    unanswered.queue.put(id, Ok(Answer::Loss(Some(cause))));
                }
            }
        });
        match task {
            Ok(task) => drop(running.insert(id, task)),
            // The task was leaked, so it does not put its error into the queue.
            Err(BackgroundError::Forked) => self.queue.put(id, Err(CallError::forked())),
            // The client was closed: the task was dropped, and its error is in the queue.
            Err(_) => {}
        }
        id
    }

    /// Takes out the replies since the last call, with the numbers of their calls.
    pub fn take(&self) -> Vec<(u64, Reply)> {
        let replies = self
            .queue
            .replies()
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default();
        let mut running = self.running();
        for (id, _) in &replies {
            running.remove(id);
        }
        replies
    }

    /// Drops the future of the call with this number. Keys that it has already set are released.
    pub fn cancel(&self, id: u64) {
        let task = self.running().remove(&id);
        if let Some(task) = task {
            task.abort();
        }
    }

    /// How many calls have been started whose reply was not taken out yet.
    pub fn running_calls(&self) -> usize {
        self.running().len()
    }

    /// Cancels all calls, and drops all replies that were not taken out.
    pub fn close(&self) {
        let running = std::mem::take(&mut *self.running());
        for task in running.values() {
            task.abort();
        }
        self.queue.close();
    }
}

impl<B: Bell> Drop for Mailbox<B> {
    fn drop(&mut self) {
        if self.is_forked() {
            // The tasks and the event queue that they would wake are shared with the parent.
            let running = self.running.get_mut().map(std::mem::take);
            std::mem::forget((running.ok(), self.queue.clone()));
            return;
        }
        self.close();
    }
}
