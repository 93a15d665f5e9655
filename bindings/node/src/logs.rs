//! Passes log records of the library to JavaScript.

use std::sync::{Arc, Mutex, Weak};

use quorate_bindings::log_records::{self, Batch, FieldValue, LogRecord, Receiver};
use quorate_bindings::mailbox::Bell;
use serde_json::{Map, Value, json};
use tracing::level_filters::LevelFilter;

use crate::bell::JsBell;
use crate::sync::lock;

/// The log records that one JavaScript environment has not taken yet.
pub(crate) struct LogQueue {
    waiting: Mutex<Waiting>,
    bell: Arc<JsBell>,
}

#[derive(Default)]
struct Waiting {
    batch: Batch,
    /// How many records were dropped before the first one of the batch.
    dropped_before: u64,
}

impl LogQueue {
    pub(crate) fn new(bell: Arc<JsBell>) -> Self {
        let waiting = Mutex::default();
        Self { waiting, bell }
    }

    fn add(&self, record: LogRecord) {
        let mut waiting = lock(&self.waiting);
        waiting.batch.add(record);
        if waiting.batch.records.len() == 1 {
            // False means that the environment ends: nobody takes the records any more, and their number is limited.
            self.bell.ring();
        }
    }

    /// Takes all records, as JSON.
    pub(crate) fn take(&self) -> Vec<String> {
        let (batch, mut dropped) = {
            let mut waiting = lock(&self.waiting);
            let batch = std::mem::take(&mut waiting.batch);
            if batch.is_empty() {
                return Vec::new();
            }
            let dropped = std::mem::replace(&mut waiting.dropped_before, batch.dropped);
            (batch, dropped)
        };
        let records = batch.records.into_iter();
        let to_json = |record| to_json(record, std::mem::take(&mut dropped)).to_string();
        records.map(to_json).collect()
    }
}

/// A record, and how many records were dropped before it.
fn to_json(record: LogRecord, dropped: u64) -> Value {
    let fields = record.fields.into_iter();
    let fields = fields.map(|(name, value)| {
        let value = match value {
            FieldValue::Text(text) | FieldValue::Other(text) => Value::from(text),
            FieldValue::Unsigned(number) => number.into(),
            FieldValue::Signed(number) => number.into(),
            FieldValue::Flag(flag) => flag.into(),
        };
        (name.to_owned(), value)
    });
    json!({
        "level": record.level.as_str().to_lowercase(),
        "target": record.target,
        "message": record.message,
        "fields": fields.collect::<Map<_, _>>(),
        "dropped": dropped,
    })
}

/// The queues that receive log records, each with its level.
static QUEUES: Mutex<Vec<(Weak<LogQueue>, LevelFilter)>> = Mutex::new(Vec::new());

/// Sends the log records of this level and more important levels to the queue. An unknown level ends that.
pub(crate) fn send_to(queue: &Arc<LogQueue>, level: &str) {
    let filter: LevelFilter = level.parse().unwrap_or(LevelFilter::OFF);
    {
        let queue = Arc::downgrade(queue);
        let mut queues = lock(&QUEUES);
        queues.retain(|(other, _)| other.strong_count() > 0 && !other.ptr_eq(&queue));
        if filter != LevelFilter::OFF {
            queues.push((queue, filter));
        }
    }
    // Fails from the second call on: the receiver is set until the end of the process.
    log_records::send_to(ToQueues);
    tracing::callsite::rebuild_interest_cache();
}

/// Adds each record to all queues that receive its level.
struct ToQueues;

impl Receiver for ToQueues {
    fn level(&self) -> LevelFilter {
        let queues = lock(&QUEUES);
        let levels = queues.iter().map(|(_, level)| *level);
        levels.max().unwrap_or(LevelFilter::OFF)
    }

    fn receive(&self, record: LogRecord) {
        let queues = lock(&QUEUES).clone();
        for (queue, level) in queues {
            if let Some(queue) = queue.upgrade().filter(|_| record.level <= level) {
                queue.add(record.clone());
            }
        }
    }
}
