//! Log records of the library, for a language.

use std::fmt::{self, Display};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The largest number of records that wait in one queue.
pub const MAX_RECORDS: usize = 1024;

/// The value of a field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// A text.
    Text(String),
    /// A number that is not negative.
    Unsigned(u64),
    /// A number.
    Signed(i64),
    /// True or false.
    Flag(bool),
    /// Any other value, as text.
    Other(String),
}

impl Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "{text:?}"),
            Self::Unsigned(number) => number.fmt(f),
            Self::Signed(number) => number.fmt(f),
            Self::Flag(flag) => flag.fmt(f),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// One event of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// How important the record is.
    pub level: Level,
    /// The module that wrote the record.
    pub target: &'static str,
    /// The text, without the fields.
    pub message: String,
    /// The names and values of the fields.
    pub fields: Vec<(&'static str, FieldValue)>,
}

impl LogRecord {
    fn new(event: &Event<'_>) -> Self {
        let metadata = event.metadata();
        let mut record = Self {
            level: *metadata.level(),
            target: metadata.target(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut record);
        record
    }

    fn add(&mut self, field: &Field, value: FieldValue) {
        if field.name() != "message" {
            self.fields.push((field.name(), value));
            return;
        }
        self.message = match value {
            FieldValue::Text(text) => text,
            other => other.to_string(),
        };
    }
}

/// The message, and the fields as `name=value`.
impl Display for LogRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.fields
            .iter()
            .try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

impl Visit for LogRecord {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, FieldValue::Text(value.to_owned()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, FieldValue::Unsigned(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, FieldValue::Signed(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, FieldValue::Flag(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, FieldValue::Other(format!("{value:?}")));
    }
}

/// Records that were taken out of a queue.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The records, oldest first.
    pub records: Vec<LogRecord>,
    /// How many further records did not fit into the queue.
    pub dropped: u64,
}

impl Batch {
    /// Whether no record was written.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.dropped == 0
    }

    /// Adds a record. If 1,024 records wait, counts it instead.
    pub fn add(&mut self, record: LogRecord) {
        if self.records.len() >= MAX_RECORDS {
            self.dropped += 1;
        } else {
            self.records.push(record);
        }
    }
}

/// Receives log records. It is called on the thread that renews locks, so it must neither block nor enter the language.
pub trait Receiver: Send + Sync + 'static {
    /// The most verbose level that is received.
    fn level(&self) -> LevelFilter;

    /// Receives one record.
    fn receive(&self, record: LogRecord);
}

/// Sends the records of the library to the receiver, until the end of the process. Returns false if this process
/// already collects events of `tracing`.
pub fn send_to(receiver: impl Receiver) -> bool {
    tracing::subscriber::set_global_default(Collector(receiver)).is_ok()
}

/// Makes a record of each event of the library. Spans have no effect.
struct Collector<R>(R);

impl<R: Receiver> Subscriber for Collector<R> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= self.0.level()
            && metadata.target().starts_with("quorate")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.0.level())
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.0.receive(LogRecord::new(event));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> LogRecord {
        LogRecord {
            level: Level::INFO,
            target: "quorate",
            message: "renewed".to_owned(),
            fields: vec![
                ("number", FieldValue::Unsigned(number)),
                ("name", FieldValue::Text("a b".to_owned())),
                ("cause", FieldValue::Other("expired".to_owned())),
            ],
        }
    }

    #[test]
    fn records_that_do_not_fit_are_counted() {
        let mut batch = Batch::default();
        for number in 0..MAX_RECORDS as u64 + 3 {
            batch.add(record(number));
        }
        assert_eq!((batch.records.len(), batch.dropped), (MAX_RECORDS, 3));
        assert_eq!(batch.records[0], record(0));
    }

    #[test]
    fn record_as_text_has_its_fields_after_the_message() {
        let text = record(7).to_string();
        assert_eq!(text, "renewed number=7 name=\"a b\" cause=expired");
    }
}
