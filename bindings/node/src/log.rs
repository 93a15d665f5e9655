//! Passes log records of the library to JavaScript.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::mailbox::Mailbox;
use crate::sync::lock;

/// The mailboxes that receive log records, each with its level.
static RECEIVERS: Mutex<Vec<(Weak<Mailbox>, LevelFilter)>> = Mutex::new(Vec::new());

/// Sends the log records of this level and more important levels to the mailbox. An unknown level ends that.
pub(crate) fn send_to(mailbox: &Arc<Mailbox>, level: &str) {
    let filter: LevelFilter = level.parse().unwrap_or(LevelFilter::OFF);
    {
        let mut receivers = lock(&RECEIVERS);
        receivers.retain(|(receiver, _)| {
            receiver.strong_count() > 0 && !receiver.ptr_eq(&Arc::downgrade(mailbox))
        });
        if filter != LevelFilter::OFF {
            receivers.push((Arc::downgrade(mailbox), filter));
        }
    }
    // Fails from the second call on: the subscriber is set for the whole life of the process.
    let _ = tracing::subscriber::set_global_default(ToMailboxes::default());
    tracing::callsite::rebuild_interest_cache();
}

/// The most verbose level that any mailbox receives.
fn most_verbose() -> LevelFilter {
    let receivers = lock(&RECEIVERS);
    let levels = receivers.iter().map(|(_, level)| *level);
    levels.max().unwrap_or(LevelFilter::OFF)
}

/// Puts each event into all mailboxes that receive its level. Spans have no effect.
#[derive(Default)]
struct ToMailboxes {
    spans: AtomicU64,
}

impl Subscriber for ToMailboxes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= most_verbose()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(most_verbose())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed).saturating_add(1))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.0.remove("message").unwrap_or_default();
        let record = json!({
            "level": metadata.level().as_str().to_lowercase(),
            "target": metadata.target(),
            "message": message,
            "fields": fields.0,
        });
        let receivers = lock(&RECEIVERS).clone();
        for (mailbox, level) in receivers {
            if let Some(mailbox) = mailbox.upgrade().filter(|_| *metadata.level() <= level) {
                mailbox.put_log(record.clone());
            }
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The fields of an event. Texts stay texts; other values become text.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0
            .insert(field.name().to_owned(), format!("{value:?}").into());
    }
}
