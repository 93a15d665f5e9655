//! Messages of the library, for the log of the language.
//!
//! The thread that renews locks only adds a message to a queue, and never waits for the language. Messages that do not
//! fit into the queue are counted.

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use quorate::fork::PerProcess;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The largest number of messages in the queue.
pub const MAX_MESSAGES: usize = 1024;

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
    messages: VecDeque<Message>,
    dropped: u64,
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

    fn add(&self, message: Message) {
        let mut state = self.state();
        if state.messages.len() >= MAX_MESSAGES {
            state.dropped += 1;
        } else {
            state.messages.push_back(message);
        }
        drop(state);
        self.changed.notify_one();
    }
}

/// Starts to collect messages of this level and above. Returns false if this process already collects messages of
/// `tracing`.
pub fn start(level: Level) -> bool {
    queue();
    tracing::subscriber::set_global_default(Collector { level }).is_ok()
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
    let is_waiting =
        |state: &mut State| state.messages.is_empty() && state.dropped == 0 && !state.ended;
    let waited = queue.changed.wait_while(queue.state(), is_waiting);
    let mut state = waited.unwrap_or_else(PoisonError::into_inner);
    if state.messages.is_empty() && state.dropped == 0 {
        return None;
    }
    let messages = state.messages.drain(..).collect();
    let dropped = std::mem::take(&mut state.dropped);
    Some(Batch { messages, dropped })
}

/// Ends [`wait`], after the messages in the queue were taken out.
pub fn end() {
    queue().state().ended = true;
    queue().changed.notify_all();
}

/// Adds the events of the library to the queue.
struct Collector {
    level: Level,
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= self.level
            && metadata.target().starts_with("quorate")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText::default();
        event.record(&mut text);
        queue().add(Message {
            level: *event.metadata().level(),
            text: text.message + &text.fields,
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The text of one event.
#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_do_not_fit_are_counted() {
        let queue = Queue::default();
        for number in 0..MAX_MESSAGES + 3 {
            let text = number.to_string();
            queue.add(Message {
                level: Level::INFO,
                text,
            });
        }
        let state = queue.state();
        assert_eq!((state.messages.len(), state.dropped), (MAX_MESSAGES, 3));
        assert_eq!(state.messages[0].text, "0");
    }
}
