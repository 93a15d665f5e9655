//! Collects all trace output as one text.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{DefaultGuard, NoSubscriber};
use tracing::{Dispatch, Event, Metadata, Subscriber};

/// Records every span and event of every level, with all fields.
#[derive(Clone, Default)]
pub(crate) struct Listener {
    heard: Arc<Mutex<String>>,
    spans: Arc<AtomicU64>,
}

impl Listener {
    /// Records the trace output of this thread until the guard is dropped.
    pub(crate) fn listen(&self) -> DefaultGuard {
        listen(self.clone())
    }

    pub(crate) fn heard(&self) -> String {
        self.heard.lock().expect("no panic").clone()
    }

    fn note(&self, fields: impl FnOnce(&mut Pen<'_>)) {
        let mut heard = self.heard.lock().expect("no panic");
        fields(&mut Pen(&mut heard));
        heard.push('\n');
    }
}

/// Sends the trace output of this thread to `subscriber` until the guard is dropped.
///
/// Also creates a second subscriber, which ignores everything. While only one subscriber exists, `tracing` may disable
/// an event permanently if a thread without a subscriber sends this event first.
pub(crate) fn listen(subscriber: impl Subscriber + Send + Sync) -> DefaultGuard {
    static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
    LazyLock::force(&SECOND);
    tracing::subscriber::set_default(subscriber)
}

struct Pen<'a>(&'a mut String);

impl Visit for Pen<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.note(|pen| span.record(pen));
        Id::from_u64(1 + self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.note(|pen| values.record(pen));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.note(|pen| {
            event.record(pen);
            let _ = write!(pen.0, "level={}", event.metadata().level());
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
