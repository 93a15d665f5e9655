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
    output: Arc<Mutex<String>>,
    spans: Arc<AtomicU64>,
}

impl Listener {
    /// Records the trace output of this thread until the guard is dropped.
    pub(crate) fn listen(&self) -> DefaultGuard {
        listen(self.clone())
    }

    pub(crate) fn output(&self) -> String {
        self.output.lock().expect("no panic").clone()
    }

    fn append_fields(&self, fields: impl FnOnce(&mut FieldWriter<'_>)) {
        let mut output = self.output.lock().expect("no panic");
        fields(&mut FieldWriter(&mut output));
        output.push('\n');
    }
}

/// Sends the trace output of this thread to `subscriber` until the guard is dropped.
///
/// Also creates a second subscriber, which ignores everything. While only one subscriber exists, `tracing` may disable
/// an event permanently if a thread without a subscriber sends this event first.
pub(crate) fn listen(subscriber: impl Subscriber + Send + Sync) -> DefaultGuard {
    static IGNORING_SUBSCRIBER: LazyLock<Dispatch> =
        LazyLock::new(|| Dispatch::new(NoSubscriber::new()));
    LazyLock::force(&IGNORING_SUBSCRIBER);
    tracing::subscriber::set_default(subscriber)
}

struct FieldWriter<'a>(&'a mut String);

impl Visit for FieldWriter<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.append_fields(|writer| span.record(writer));
        Id::from_u64(1 + self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.append_fields(|writer| values.record(writer));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.append_fields(|writer| {
            event.record(writer);
            let _ = write!(writer.0, "level={}", event.metadata().level());
        });
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
