//! The mailbox of one JavaScript environment: the main thread, or one worker.

use std::sync::Mutex;

use napi::Status;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use serde_json::Value;

use crate::held_lock::HeldLock;
use crate::sync::lock;

/// The function that tells JavaScript to empty the mailbox. It is weak: it does not keep the process alive.
pub(crate) type Bell = ThreadsafeFunction<(), (), (), Status, false, true>;

/// The largest number of log records that wait in one mailbox.
const MAX_LOGS: usize = 1024;

/// The number in place of a call's number in messages that are log records.
const LOG: i64 = 0;

/// The content of a message.
pub(crate) enum Content {
    /// The reply to a call that acquired a lock.
    Guard(HeldLock),
    /// The reply to any other call that succeeded.
    Value(Value),
    /// The reply to a call that failed.
    Failure(Value),
    /// An event that belongs to a call, before or after its reply: for example, the loss of a lock.
    Notice(Value),
}

/// One message to JavaScript, with the number of the call to which it belongs.
pub(crate) struct Message {
    pub(crate) call: i64,
    pub(crate) content: Content,
}

/// Messages that JavaScript has not taken yet.
#[derive(Default)]
struct Queue {
    messages: Vec<Message>,
    logs: usize,
    dropped_logs: u64,
}

pub(crate) struct Mailbox {
    /// `None` after the mailbox was closed.
    queue: Mutex<Option<Queue>>,
    bell: Bell,
}

impl Mailbox {
    pub(crate) fn new(bell: Bell) -> Self {
        Self {
            queue: Mutex::new(Some(Queue::default())),
            bell,
        }
    }

    /// Adds a message. If the mailbox is closed, drops the message: a lock in it is then released, so no lock is
    /// renewed for a worker that has ended.
    pub(crate) fn put(&self, call: i64, content: Content) {
        let mut open_queue = lock(&self.queue);
        let Some(queue) = &mut *open_queue else {
            drop(open_queue);
            return drop(content);
        };
        queue.messages.push(Message { call, content });
        let needs_bell = queue.messages.len() == 1;
        let is_deaf = needs_bell && !self.ring();
        let abandoned = if is_deaf { open_queue.take() } else { None };
        drop(open_queue);
        drop(abandoned);
    }

    /// Adds a log record, unless 1,024 log records are waiting. The next record that is added has the number of
    /// records that were dropped.
    pub(crate) fn put_log(&self, mut record: Value) {
        let mut open_queue = lock(&self.queue);
        let Some(queue) = &mut *open_queue else {
            return;
        };
        if queue.logs >= MAX_LOGS {
            queue.dropped_logs += 1;
            return;
        }
        record["dropped"] = std::mem::take(&mut queue.dropped_logs).into();
        queue.logs += 1;
        let content = Content::Notice(record);
        queue.messages.push(Message { call: LOG, content });
        if queue.messages.len() == 1 {
            self.ring();
        }
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> Vec<Message> {
        let mut open_queue = lock(&self.queue);
        let queue = open_queue.as_mut().map(std::mem::take);
        let Some(queue) = queue else {
            return Vec::new();
        };
        if let Some(open_queue) = &mut *open_queue {
            open_queue.dropped_logs = queue.dropped_logs;
        }
        queue.messages
    }

    /// Closes the mailbox. Locks in messages that JavaScript has not taken are released.
    pub(crate) fn close(&self) {
        let queue = lock(&self.queue).take();
        drop(queue);
    }

    /// Returns false if the JavaScript environment is ending.
    fn ring(&self) -> bool {
        let mode = ThreadsafeFunctionCallMode::NonBlocking;
        self.bell.call((), mode) == Status::Ok
    }
}
