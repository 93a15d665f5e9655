//! Messages of the library, for a language that waits for them on a thread of its own.
//!
//! The thread that renews locks only adds a message to a queue, and never waits for the language. Messages that do not
//! fit into the queue are counted.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use quorate::fork::PerProcess;
use tracing::Level;
use tracing::level_filters::LevelFilter;

use crate::log_records::{self, LogRecord, Receiver};

/// One message of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// How important the message is.
    pub level: Level,
    /// The message, and its fields as `name=value`.
    pub text: String,
}

#[derive(Default)]
struct State {
    waiting: log_records::Batch,
    ended: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

/// A forked process begins with an empty queue. Its parent's mutex may be locked by a thread that does not exist here.
static QUEUE: PerProcess<Queue> = PerProcess::new();

fn queue() -> &'static Queue {
    QUEUE.get_or_init(Queue::default)
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the records of this level and above to the queue.
struct ToQueue(Level);

impl Receiver for ToQueue {
    fn level(&self) -> LevelFilter {
        LevelFilter::from_level(self.0)
    }

    fn receive(&self, record: LogRecord) {
        let queue = queue();
        queue.state().waiting.add(record);
        queue.changed.notify_one();
    }
}

/// Starts to collect messages of this level and above. Returns false if this process already collects messages of
/// `tracing`.
pub fn start(level: Level) -> bool {
    queue();
    log_records::send_to(ToQueue(level))
}

/// Messages that were taken out of the queue.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// How many messages did not fit into the queue since the last batch.
    pub dropped: u64,
}

/// Waits for messages, and takes them out. `None` after [`end`].
pub fn wait() -> Option<Batch> {
    let queue = queue();
    let is_waiting = |state: &mut State| state.waiting.is_empty() && !state.ended;
    let waited = queue.changed.wait_while(queue.state(), is_waiting);
    let mut state = waited.unwrap_or_else(PoisonError::into_inner);
    let taken = std::mem::take(&mut state.waiting);
    drop(state);
    if taken.is_empty() {
        return None;
    }
    let messages = taken.records.iter().map(|record| Message {
        level: record.level,
        text: record.to_string(),
    });
    Some(Batch {
        messages: messages.collect(),
        dropped: taken.dropped,
    })
}

/// Ends [`wait`], after the messages in the queue were taken out.
pub fn end() {
    queue().state().ended = true;
    queue().changed.notify_all();
}
