//! Everything that is traced, as one text.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Writes down every span and event, of every level, with all fields.
#[derive(Clone, Default)]
pub(crate) struct Listener {
    heard: Arc<Mutex<String>>,
    spans: Arc<AtomicU64>,
}

impl Listener {
    pub(crate) fn heard(&self) -> String {
        self.heard.lock().expect("no panic").clone()
    }

    fn note(&self, fields: impl FnOnce(&mut Pen<'_>)) {
        let mut heard = self.heard.lock().expect("no panic");
        fields(&mut Pen(&mut heard));
        heard.push('\n');
    }
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
        self.note(|pen| event.record(pen));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
