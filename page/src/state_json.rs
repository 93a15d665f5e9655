//! The JSON of the page: `api/state`, and the messages of `api/events`.

use serde::Serialize;

use crate::event::ShownEvent;
use crate::lock::{Client, Kind, MasterReading, State};
use crate::master::ShownMaster;
use crate::page_state::PageState;
use crate::record::Record;
use crate::text::human_duration;
use crate::value::ShownValue;
use crate::verdict::{Level, Problem, judge};

/// The largest number of locks in one answer.
pub(crate) const MAX_SHOWN_LOCKS: usize = 5_000;

/// One lock as the page shows it.
#[derive(Debug, Serialize)]
pub(crate) struct ShownLock<'a> {
    id: &'a str,
    name: &'a str,
    slot: Option<usize>,
    kind: Kind,
    state: State,
    holders: Vec<&'a Client>,
    since_ms: Option<u64>,
    /// `page` if the page saw the hold begin, else `note`: the lock has been held at least since then.
    since_by: &'static str,
    left_ms: Option<u64>,
    read_ms: u64,
    ttl_ms: Option<u64>,
    renewed_ms: Option<u64>,
    margin_ms: Option<u64>,
    overdue: bool,
    token: Option<u64>,
    waiters: Vec<ShownWaiter<'a>>,
    answers: &'a [MasterReading],
    word: &'a str,
}

#[derive(Debug, Serialize)]
struct ShownWaiter<'a> {
    id: &'a str,
    host: Option<&'a str>,
    pid: Option<u32>,
    since_ms: u64,
}

#[derive(Debug, Serialize)]
struct Counts {
    held: usize,
    waiters: usize,
    longest_wait_ms: u64,
    viewers: usize,
    history_events: usize,
}

/// What all answers have: everything but the locks.
#[derive(Debug, Serialize)]
struct CommonFields<'a> {
    now_ms: u64,
    seq: u64,
    level: Level,
    sentence: String,
    detail: String,
    problems: Vec<Problem>,
    quorum: usize,
    masters: Vec<ShownMaster<'a>>,
    counts: Counts,
    values: Vec<ShownValue<'a>>,
    /// The limits of the page, as a text.
    blind: String,
    interval_ms: u64,
    started_ms: u64,
    /// Why the history file cannot be written; null if it can, or if there is none.
    history_error: Option<&'a str>,
    /// The number of locks that are held, waited for or undecided.
    total: usize,
}

/// The answer of `api/state`, and the first message of `api/events`.
#[derive(Debug, Serialize)]
struct FullState<'a> {
    #[serde(flatten)]
    head: CommonFields<'a>,
    /// The number of locks that fit the query, of which `locks` has the first.
    matching: usize,
    locks: Vec<ShownLock<'a>>,
}

/// A message of `api/events` about what has changed.
#[derive(Debug, Serialize)]
struct StateChange<'a> {
    #[serde(flatten)]
    head: CommonFields<'a>,
    changed: Vec<ShownLock<'a>>,
    gone: Vec<&'a str>,
    events: Vec<ShownEvent<'a>>,
}

/// Which locks `api/state` shows, and in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) search: String,
    pub(crate) kind: String,
    pub(crate) state: String,
    pub(crate) host: String,
    /// `since` (default), `name`, `host`, `left`, `token` or `waiters`.
    pub(crate) sort: String,
    pub(crate) down: bool,
    pub(crate) limit: usize,
    pub(crate) offset: usize,
}

impl Query {
    /// All locks, as far as one answer has room: those that clients wait for, and then the oldest.
    pub(crate) fn all() -> Self {
        Self {
            limit: MAX_SHOWN_LOCKS,
            ..Self::default()
        }
    }

    fn fits(&self, record: &Record) -> bool {
        let has_host = || {
            let holders = record.holds.iter().filter_map(|hold| hold.client.as_ref());
            holders
                .map(|client| &*client.host)
                .any(|host| host == self.host)
                || record
                    .waits
                    .iter()
                    .any(|wait| wait.host.as_deref() == Some(&self.host))
        };
        let has_search = || {
            let search = self.search.to_lowercase();
            record.text.to_lowercase().contains(&search)
        };
        (self.search.is_empty() || has_search())
            && (self.kind.is_empty() || word_of(&record.kind()) == self.kind)
            && (self.state.is_empty() || state_word(record) == self.state)
            && (self.host.is_empty() || has_host())
    }

    /// Compares two locks by the column of the query.
    fn compare(&self, a: &Record, b: &Record) -> std::cmp::Ordering {
        let host = |record: &Record| {
            let client = record.holds.first().and_then(|hold| hold.client.as_ref());
            client.map(|client| client.host.clone())
        };
        let order = match self.sort.as_str() {
            "name" => a.text.cmp(&b.text),
            "host" => host(a).cmp(&host(b)),
            "left" => a
                .left_ms()
                .unwrap_or(u64::MAX)
                .cmp(&b.left_ms().unwrap_or(u64::MAX)),
            "token" => token(a).cmp(&token(b)),
            "waiters" => b.waits.len().cmp(&a.waits.len()),
            "since" => since(a).cmp(&since(b)),
            _ => (a.waits.is_empty(), since(a)).cmp(&(b.waits.is_empty(), since(b))),
        };
        let order = if self.down { order.reverse() } else { order };
        order.then_with(|| a.id.cmp(&b.id))
    }
}

fn since(record: &Record) -> u64 {
    record.since_ms().unwrap_or(u64::MAX)
}

fn token(record: &Record) -> Option<u64> {
    record.reading.as_ref().and_then(|reading| reading.token)
}

/// The name of a value in JSON.
fn word_of(value: &impl Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// The state of a lock as the filter of the page names it.
fn state_word(record: &Record) -> String {
    if record.state() == State::Held && !record.waits.is_empty() {
        "waited for".to_owned()
    } else {
        word_of(&record.state())
    }
}

fn shown_lock(record: &Record) -> ShownLock<'_> {
    let oldest = record.holds.iter().min_by_key(|hold| hold.from_ms);
    let last = record.holds.iter().max_by_key(|hold| hold.renewed_ms);
    ShownLock {
        id: &record.id,
        name: &record.text,
        slot: record.name.slot,
        kind: record.kind(),
        state: record.state(),
        holders: record
            .holds
            .iter()
            .filter_map(|hold| hold.client.as_ref())
            .collect(),
        since_ms: record.since_ms(),
        since_by: if oldest.is_some_and(|hold| hold.is_start_seen) {
            "page"
        } else {
            "note"
        },
        left_ms: record.left_ms(),
        read_ms: record.read_ms,
        ttl_ms: record.holds.iter().filter_map(|hold| hold.ttl_ms).max(),
        renewed_ms: last.map(|hold| hold.renewed_ms),
        margin_ms: last.and_then(|hold| hold.margin_ms),
        overdue: record.is_overdue(),
        token: token(record),
        waiters: record
            .waits
            .iter()
            .map(|wait| ShownWaiter {
                id: &wait.id,
                host: wait.host.as_deref(),
                pid: wait.pid,
                since_ms: wait.from_ms,
            })
            .collect(),
        answers: record
            .reading
            .as_ref()
            .map_or(&[], |reading| &reading.answers),
        word: &record.word,
    }
}

impl PageState {
    fn common_fields(&self, now_ms: u64, viewers: usize, whole: bool) -> CommonFields<'_> {
        let facts = self.facts(now_ms);
        let verdict = judge(&facts);
        CommonFields {
            now_ms,
            seq: self.ring.last_seq(),
            level: verdict.level,
            sentence: verdict.sentence,
            detail: verdict.detail,
            problems: verdict.problems,
            quorum: self.quorum,
            masters: self
                .masters
                .iter()
                .map(|master| master.shown(whole))
                .collect(),
            counts: Counts {
                held: facts.held,
                waiters: facts.waiters,
                longest_wait_ms: facts.longest_wait_ms,
                viewers,
                history_events: self.ring.len(),
            },
            values: self
                .values
                .iter()
                .map(|value| value.shown(now_ms))
                .collect(),
            blind: self.blind_text(now_ms),
            interval_ms: self.interval_ms,
            started_ms: self.started_ms,
            history_error: self.file_error(),
            total: self
                .records
                .values()
                .filter(|record| record.is_shown())
                .count(),
        }
    }

    /// The limits of the page, as a text.
    fn blind_text(&self, now_ms: u64) -> String {
        let first = self.ring.iter().next().map_or(now_ms, |event| event.at_ms);
        let mut text = format!(
            "This page reads each lock about every {}, less often if there are many: it does not see holds that are \
             shorter. Its history begins {} ago. A force-release looks like a release.",
            human_duration(self.interval_ms),
            human_duration(now_ms.saturating_sub(first))
        );
        if !self.are_names_complete {
            text += " The last search for locks did not find all of them.";
        }
        if !self.has_file() {
            text += " It asks the masters only while somebody watches (--history FILE keeps a history).";
        }
        text
    }

    /// The whole state as JSON, with the locks that fit the query.
    pub(crate) fn full_state_json(&self, query: &Query, now_ms: u64, viewers: usize) -> String {
        let shown = self.records.values().filter(|record| record.is_shown());
        let mut records: Vec<&Record> = shown.filter(|record| query.fits(record)).collect();
        records.sort_by(|a, b| query.compare(a, b));
        let limit = query.limit.min(MAX_SHOWN_LOCKS);
        let locks = records.iter().skip(query.offset).take(limit);
        let whole = FullState {
            head: self.common_fields(now_ms, viewers, true),
            matching: records.len(),
            locks: locks.map(|record| shown_lock(record)).collect(),
        };
        serde_json::to_string(&whole).unwrap_or_default()
    }

    /// The changes since the last call, as JSON.
    pub(crate) fn change_json(&mut self, now_ms: u64, viewers: usize) -> String {
        let ids = std::mem::take(&mut self.changed);
        let sent_seq = std::mem::replace(&mut self.sent_seq, self.ring.last_seq());
        let (mut changed, mut gone): (Vec<ShownLock<'_>>, Vec<&str>) = (Vec::new(), Vec::new());
        for id in &ids {
            match self.records.get(id).filter(|record| record.is_shown()) {
                Some(record) => changed.push(shown_lock(record)),
                None => gone.push(id),
            }
        }
        let mut events: Vec<ShownEvent<'_>> = self
            .ring
            .iter()
            .rev()
            .take_while(|event| event.seq > sent_seq)
            .map(|event| event.shown())
            .collect();
        events.reverse();
        let head = self.common_fields(now_ms, viewers, false);
        serde_json::to_string(&StateChange {
            head,
            changed,
            gone,
            events,
        })
        .unwrap_or_default()
    }
}
