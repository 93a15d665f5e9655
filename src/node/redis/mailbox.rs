//! The bounded first-in-first-out queue between callers and the actor of one master.
//!
//! The actor takes everything that has gathered at once, so a caller wakes it only when it finds
//! the queue empty: one wake-up per batch and not one per request.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::node::{Answer, Fault, Reply, Request};

/// Requests that may wait for one master. Reached only when callers outrun it for a whole node
/// timeout; then they are refused at once instead of queueing up.
const CAPACITY: usize = 16_384;

/// Releases are let in beyond that: each frees what an acquire before it took.
const RELEASE_CAPACITY: usize = 2 * CAPACITY;

/// A request under way to one master.
pub(super) struct Letter {
    pub(super) request: Request,
    reply: Reply,
    /// It has been sent once and came back because the master had lost its scripts.
    pub(super) resent: bool,
    /// Of a release that the master refused before: when its key has expired by itself.
    pub(super) until: Option<Instant>,
}

impl Letter {
    pub(super) fn new(request: Request, reply: Reply) -> Self {
        Self {
            request,
            reply,
            resent: false,
            until: None,
        }
    }

    pub(super) fn answer(self, answer: Result<Answer, Fault>) {
        self.reply.answer(answer);
    }

    pub(super) fn time_out(&mut self, fault: Fault) {
        self.reply.time_out(fault);
    }
}

/// The queue.
pub(super) struct Mailbox {
    inbox: Mutex<Inbox>,
    reader: AtomicWaker,
    rested: Notify,
}

#[derive(Default)]
struct Inbox {
    queue: VecDeque<Letter>,
    /// An actor reads, or has been promised.
    read: bool,
    /// The actor has letters of its own that are not answered yet.
    busy: bool,
    /// The handle is gone; nothing more will come.
    closed: bool,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        Self {
            inbox: Mutex::default(),
            reader: AtomicWaker::new(),
            rested: Notify::new(),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a letter; `true` when a reader must be started. Refuses when full.
    pub(super) fn push(&self, letter: Letter) -> Result<bool, Letter> {
        let mut inbox = self.inbox();
        let room = match letter.request {
            Request::Release { .. } => RELEASE_CAPACITY,
            _ => CAPACITY,
        };
        if inbox.queue.len() >= room {
            return Err(letter);
        }
        inbox.queue.push_back(letter);
        let first = inbox.queue.len() == 1;
        let start = !std::mem::replace(&mut inbox.read, true);
        drop(inbox);
        if first {
            self.reader.wake();
        }
        Ok(start)
    }

    /// Takes all that has gathered, at most `most`.
    pub(super) fn take(&self, most: usize, into: &mut Vec<Letter>) {
        let mut inbox = self.inbox();
        let count = inbox.queue.len().min(most);
        into.extend(inbox.queue.drain(..count));
        inbox.busy |= count > 0;
    }

    /// The handle is gone and everything has been taken.
    pub(super) fn is_over(&self) -> bool {
        let inbox = self.inbox();
        inbox.closed && inbox.queue.is_empty()
    }

    pub(super) fn register(&self, waker: &std::task::Waker) {
        self.reader.register(waker);
    }

    /// The reader has answered everything it had taken.
    pub(super) fn rest(&self) {
        let mut inbox = self.inbox();
        if inbox.busy && inbox.queue.is_empty() {
            inbox.busy = false;
            drop(inbox);
            self.rested.notify_waiters();
        }
    }

    /// Resolves when nothing is queued and nothing taken is unanswered.
    pub(super) async fn idle(&self) {
        loop {
            let rested = self.rested.notified();
            futures::pin_mut!(rested);
            rested.as_mut().enable();
            {
                let inbox = self.inbox();
                if inbox.queue.is_empty() && !inbox.busy {
                    return;
                }
            }
            rested.await;
        }
    }

    pub(super) fn close(&self) {
        self.inbox().closed = true;
        self.reader.wake();
    }

    /// Answers everything queued with `fault`, and lets go of the reader's place.
    pub(super) fn fail(&self, fault: &Fault) {
        let left = {
            let mut inbox = self.inbox();
            inbox.read = false;
            inbox.busy = false;
            std::mem::take(&mut inbox.queue)
        };
        for letter in left {
            letter.answer(Err(fault.clone()));
        }
        self.rested.notify_waiters();
    }
}
