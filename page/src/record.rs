//! The state of one lock, and the events that a new answer of the masters means.
//!
//! The code here reads no clock and asks no master.

use std::sync::Arc;

use quorate::LockName;
use quorate::printable::json_name;

use crate::event::{Event, EventKind};
use crate::lock::{Client, HoldReading, Kind, Reading, State, WaiterReading, lock_id};
use crate::text::shell_word;

/// A hold whose time left is below this part of its ttl has not been renewed in time. Holders renew when two thirds
/// are left.
const OVERDUE_PERCENT: u64 = 55;

/// The page does not judge the renewals of a hold with a shorter ttl: it asks too seldom.
const MIN_JUDGED_TTL_MS: u64 = 3_000;

/// A time left that is longer than expected by this much shows a renewal. Shorter differences are delays of answers.
const RENEWAL_STEP_MS: u64 = 150;

/// One hold, from the first answer that showed it.
#[derive(Clone, Debug)]
pub(crate) struct SeenHold {
    key: u64,
    pub(crate) client: Option<Client>,
    pub(crate) from_ms: u64,
    /// Whether the page saw the lock without this hold shortly before `from_ms`.
    pub(crate) is_start_seen: bool,
    left_ms: Option<u64>,
    /// The longest time left that any answer showed: about the ttl.
    pub(crate) ttl_ms: Option<u64>,
    /// When the hold was last renewed, or first seen.
    pub(crate) renewed_ms: u64,
    /// About how much time was left at the last renewal.
    pub(crate) margin_ms: Option<u64>,
    pub(crate) is_overdue: bool,
    token: Option<u64>,
}

/// One wait, from the first answer that showed it.
#[derive(Clone, Debug)]
pub(crate) struct SeenWait {
    pub(crate) id: Arc<str>,
    pub(crate) host: Option<Arc<str>>,
    pub(crate) pid: Option<u32>,
    pub(crate) from_ms: u64,
}

/// A hold that an earlier run of the page has seen begin, from the history file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenHold {
    /// Identifies the hold; `None` in a line that an older version of the page has written.
    pub(crate) hold: Option<u64>,
    pub(crate) from_ms: u64,
    pub(crate) holder: Option<Arc<str>>,
    pub(crate) token: Option<u64>,
}

/// The state of one lock.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) id: Arc<str>,
    pub(crate) name: LockName,
    /// The name as text.
    pub(crate) text: Arc<str>,
    /// The name as a word of a shell.
    pub(crate) word: Arc<str>,
    pub(crate) reading: Option<Reading>,
    pub(crate) read_ms: u64,
    /// When an answer last meant an event; or when the lock was first read.
    pub(crate) changed_ms: u64,
    /// The last time at which the page knew who held the lock, or that nobody did.
    known_ms: u64,
    pub(crate) holds: Vec<SeenHold>,
    pub(crate) waits: Vec<SeenWait>,
    /// Holds from the history file that no answer has confirmed yet.
    open: Vec<OpenHold>,
}

impl Record {
    /// A lock that has just been found. `known_ms` is the last time at which the page knew that nobody held it; 0 if
    /// there is no such time.
    pub(crate) fn new(name: LockName, known_ms: u64, open: Vec<OpenHold>) -> Self {
        Self {
            id: lock_id(&name).into(),
            text: json_name(&name.resource).into(),
            word: shell_word(&name.resource).into(),
            name,
            reading: None,
            read_ms: 0,
            changed_ms: 0,
            known_ms,
            holds: Vec::new(),
            waits: Vec::new(),
            open,
        }
    }

    /// Takes in a new answer of the masters, and returns the events that it means.
    pub(crate) fn update(&mut self, reading: Reading, now_ms: u64) -> Vec<Event> {
        let mut events = Vec::new();
        if matches!(reading.state, State::Held | State::Free) {
            self.end_missing_holds(&reading, now_ms, &mut events);
            for hold in &reading.holds {
                self.update_hold(hold, reading.token, now_ms, &mut events);
            }
            self.known_ms = now_ms;
        }
        if reading.state != State::Unknown {
            self.update_waits(&reading.waiters, now_ms, &mut events);
        }
        if self.changed_ms == 0 || !events.is_empty() {
            self.changed_ms = now_ms;
        }
        self.read_ms = now_ms;
        self.reading = Some(match (&self.reading, reading.state) {
            // Without a majority, keep showing the kind and the token that were last known.
            (Some(known), State::Unknown) => Reading {
                kind: known.kind,
                token: known.token,
                ..reading
            },
            _ => reading,
        });
        events
    }

    fn end_missing_holds(&mut self, reading: &Reading, now_ms: u64, events: &mut Vec<Event>) {
        let read_ms = self.known_ms;
        let holds = std::mem::take(&mut self.holds);
        for hold in holds {
            if reading.holds.iter().any(|other| other.key == hold.key) {
                self.holds.push(hold);
                continue;
            }
            let elapsed_ms = now_ms.saturating_sub(read_ms);
            let kind = match hold.left_ms {
                Some(left) if left > elapsed_ms => EventKind::Released,
                Some(_) if hold.is_overdue => EventKind::Expired,
                None => EventKind::Released,
                Some(_) => EventKind::Ended,
            };
            events.push(self.hold_event(kind, &hold, now_ms));
        }
        let is_open = |open: &OpenHold| {
            reading
                .holds
                .iter()
                .any(|hold| open.fits(hold, reading.token))
        };
        let (_, ended): (Vec<_>, Vec<_>) = self.open.iter().cloned().partition(is_open);
        self.open.retain(is_open);
        for open in ended {
            events.push(Event {
                lock: Some(self.id.clone()),
                ..open.ended(now_ms)
            });
        }
    }

    fn update_hold(
        &mut self,
        read: &HoldReading,
        token: Option<u64>,
        now_ms: u64,
        events: &mut Vec<Event>,
    ) {
        let elapsed_ms = now_ms.saturating_sub(self.read_ms);
        let Some(index) = self.holds.iter().position(|hold| hold.key == read.key) else {
            self.begin_hold(read, token, now_ms, events);
            return;
        };
        let hold = &mut self.holds[index];
        // The holder writes its note shortly after it took the lock.
        hold.client = hold.client.take().or_else(|| read.client.clone());
        hold.token = hold.token.or(token);
        let was_overdue = hold.is_overdue;
        hold.renew(read.left_ms, elapsed_ms, now_ms);
        if hold.is_overdue != was_overdue {
            let kind = if was_overdue {
                EventKind::RenewedAgain
            } else {
                EventKind::Overdue
            };
            let hold = hold.clone();
            events.push(self.hold_event(kind, &hold, now_ms));
        }
    }

    fn begin_hold(
        &mut self,
        read: &HoldReading,
        token: Option<u64>,
        now_ms: u64,
        events: &mut Vec<Event>,
    ) {
        let open = self.open.iter().position(|open| open.fits(read, token));
        let open = open.map(|index| self.open.remove(index));
        let by_note = read.client.as_ref().map(|client| client.since_ms);
        let from_ms = match &open {
            Some(open) => open.from_ms,
            None => believed(by_note, self.known_ms, now_ms),
        };
        let hold = SeenHold {
            key: read.key,
            client: read.client.clone(),
            from_ms,
            is_start_seen: open.is_some() || self.known_ms > 0,
            left_ms: read.left_ms,
            ttl_ms: read.left_ms,
            renewed_ms: now_ms,
            margin_ms: None,
            is_overdue: false,
            token,
        };
        if open.is_none() {
            events.push(self.hold_event(EventKind::Taken, &hold, now_ms));
        }
        self.holds.push(hold);
    }

    fn hold_event(&self, kind: EventKind, hold: &SeenHold, now_ms: u64) -> Event {
        Event {
            lock: Some(self.id.clone()),
            host: hold.client.as_ref().map(|client| client.host.clone()),
            hold: Some(hold.key),
            holder: hold.client.as_ref().map(|client| client.text().into()),
            token: hold.token,
            from_ms: Some(hold.from_ms),
            ..Event::new(kind, now_ms)
        }
    }

    fn update_waits(&mut self, waiters: &[WaiterReading], now_ms: u64, events: &mut Vec<Event>) {
        let earliest = self.read_ms;
        let mut known = std::mem::take(&mut self.waits);
        for waiter in waiters {
            let wait = if let Some(index) = known.iter().position(|wait| wait.id == waiter.id) {
                known.swap_remove(index)
            } else {
                let wait = SeenWait {
                    id: waiter.id.clone(),
                    host: waiter.host.clone(),
                    pid: waiter.pid,
                    from_ms: believed(waiter.since_ms, earliest, now_ms),
                };
                events.push(self.wait_event(EventKind::WaitBegan, &wait, now_ms));
                wait
            };
            self.waits.push(wait);
        }
        for wait in known {
            events.push(self.wait_event(EventKind::WaitEnded, &wait, now_ms));
        }
    }

    fn wait_event(&self, kind: EventKind, wait: &SeenWait, now_ms: u64) -> Event {
        Event {
            lock: Some(self.id.clone()),
            host: wait.host.clone(),
            holder: Some(wait.text().into()),
            from_ms: Some(wait.from_ms),
            ..Event::new(kind, now_ms)
        }
    }

    pub(crate) fn state(&self) -> State {
        self.reading
            .as_ref()
            .map_or(State::Unknown, |reading| reading.state)
    }

    pub(crate) fn kind(&self) -> Kind {
        self.reading
            .as_ref()
            .map_or(Kind::Exclusive, |reading| reading.kind)
    }

    /// Whether the page shows the lock: it is not free, or clients wait for it.
    pub(crate) fn is_shown(&self) -> bool {
        self.reading.is_some() && (self.state() != State::Free || !self.waits.is_empty())
    }

    pub(crate) fn is_overdue(&self) -> bool {
        self.holds.iter().any(|hold| hold.is_overdue)
    }

    /// When the oldest hold of the lock began.
    pub(crate) fn since_ms(&self) -> Option<u64> {
        self.holds.iter().map(|hold| hold.from_ms).min()
    }

    /// The time left when the lock was last read: that of the hold that ends last.
    pub(crate) fn left_ms(&self) -> Option<u64> {
        let times = self.holds.iter().map(|hold| hold.left_ms);
        times.max_by_key(|left| left.unwrap_or(u64::MAX)).flatten()
    }
}

impl OpenHold {
    /// Whether the masters show this hold. `token` is the fencing token that they show.
    ///
    /// Lines of older versions do not identify the hold. Then its holder and the token must be the same. A holder writes
    /// its note shortly after it took the lock, so the history can lack the note. The token then decides alone.
    fn fits(&self, read: &HoldReading, token: Option<u64>) -> bool {
        if let Some(hold) = self.hold {
            return hold == read.key;
        }
        let holder = read.client.as_ref().map(Client::text);
        let is_same_holder = self.holder.as_deref() == holder.as_deref();
        let lacks_note = self.holder.is_none() && token.is_some();
        self.token == token && (is_same_holder || lacks_note)
    }

    /// The event that this hold has ended while no page looked. Its lock is not set.
    pub(crate) fn ended(self, now_ms: u64) -> Event {
        Event {
            hold: self.hold,
            holder: self.holder,
            token: self.token,
            from_ms: Some(self.from_ms),
            ..Event::new(EventKind::Ended, now_ms)
        }
    }
}

impl SeenWait {
    /// The client as text.
    pub(crate) fn text(&self) -> String {
        let host = self.host.as_deref().unwrap_or("unknown host");
        match self.pid {
            Some(pid) => format!("{host} pid {pid}"),
            None => host.to_owned(),
        }
    }
}

impl SeenHold {
    /// Takes in the time left that the masters showed `elapsed_ms` after the last answer.
    fn renew(&mut self, left_ms: Option<u64>, elapsed_ms: u64, now_ms: u64) {
        let before_ms = std::mem::replace(&mut self.left_ms, left_ms);
        let (Some(left), Some(before)) = (left_ms, before_ms) else {
            self.is_overdue = false;
            return;
        };
        let ttl = self.ttl_ms.unwrap_or(0).max(left);
        self.ttl_ms = Some(ttl);
        let expected = before.saturating_sub(elapsed_ms);
        if left > expected + RENEWAL_STEP_MS {
            // The renewal set the time left to the ttl.
            let since_renewal = (ttl - left).min(elapsed_ms);
            self.renewed_ms = now_ms.saturating_sub(since_renewal);
            self.margin_ms = Some(before.saturating_sub(elapsed_ms - since_renewal));
        }
        self.is_overdue = ttl >= MIN_JUDGED_TTL_MS && left * 100 < ttl * OVERDUE_PERCENT;
    }
}

/// When a hold or a wait began: the time by the clock of the client, but not before the page last saw the lock without
/// it, and not after the page first saw it.
fn believed(by_client_ms: Option<u64>, without_ms: u64, first_seen_ms: u64) -> u64 {
    let by_client = by_client_ms.unwrap_or(first_seen_ms);
    by_client.clamp(without_ms.min(first_seen_ms), first_seen_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(key: u64, left_ms: u64) -> HoldReading {
        let client = Client {
            host: "app-1".into(),
            pid: 7,
            process: "job".into(),
            note: None,
            since_ms: 900,
        };
        HoldReading {
            key,
            client: Some(client),
            left_ms: Some(left_ms),
        }
    }

    fn reading(state: State, holds: Vec<HoldReading>, waiters: &[&str]) -> Reading {
        let waiter = |id: &&str| WaiterReading {
            id: (*id).into(),
            host: None,
            pid: None,
            since_ms: None,
        };
        Reading {
            state,
            kind: Kind::Exclusive,
            holds,
            token: Some(1),
            waiters: waiters.iter().map(waiter).collect(),
            answers: Vec::new(),
        }
    }

    fn record() -> Record {
        let name = LockName {
            resource: b"a".to_vec(),
            slot: None,
        };
        Record::new(name, 0, Vec::new())
    }

    fn kinds(events: &[Event]) -> Vec<EventKind> {
        events.iter().map(|event| event.kind).collect()
    }

    #[test]
    fn hold_that_ends_before_its_time_was_released() {
        let mut record = record();
        let taken = record.update(reading(State::Held, vec![hold(1, 9_000)], &[]), 1_000);
        assert_eq!(kinds(&taken), [EventKind::Taken]);
        assert_eq!(taken[0].from_ms, Some(900), "the time in the note");
        let ended = record.update(reading(State::Free, vec![], &[]), 2_000);
        assert_eq!(kinds(&ended), [EventKind::Released]);
        assert_eq!(ended[0].duration_ms(), Some(1_100));
        assert!(!record.is_shown());
    }

    #[test]
    fn hold_that_is_not_renewed_becomes_overdue_and_then_expires() {
        let mut record = record();
        record.update(reading(State::Held, vec![hold(1, 10_000)], &[]), 1_000);
        let overdue = record.update(reading(State::Held, vec![hold(1, 4_000)], &[]), 7_000);
        assert_eq!(kinds(&overdue), [EventKind::Overdue]);
        assert_eq!(record.holds[0].renewed_ms, 1_000);
        let expired = record.update(reading(State::Free, vec![], &[]), 11_500);
        assert_eq!(kinds(&expired), [EventKind::Expired]);
    }

    #[test]
    fn renewal_shows_its_margin_and_ends_the_warning() {
        let mut record = record();
        record.update(reading(State::Held, vec![hold(1, 10_000)], &[]), 0);
        record.update(reading(State::Held, vec![hold(1, 4_000)], &[]), 6_000);
        let renewed = record.update(reading(State::Held, vec![hold(1, 9_500)], &[]), 7_000);
        assert_eq!(kinds(&renewed), [EventKind::RenewedAgain]);
        assert_eq!(record.holds[0].margin_ms, Some(3_500));
        assert_eq!(record.holds[0].renewed_ms, 6_500);
    }

    #[test]
    fn lock_without_a_majority_keeps_its_holds() {
        let mut record = record();
        record.update(reading(State::Held, vec![hold(1, 10_000)], &[]), 0);
        for state in [State::Unknown, State::Undecided] {
            let events = record.update(reading(state, vec![], &[]), 1_000);
            assert!(
                events.is_empty() && record.holds.len() == 1,
                "{state:?}: {events:?}"
            );
        }
        let events = record.update(reading(State::Held, vec![hold(1, 7_000)], &[]), 3_000);
        assert!(events.is_empty(), "{events:?}");
    }

    #[test]
    fn next_holder_ends_the_hold_before_it() {
        let mut record = record();
        record.update(
            reading(State::Held, vec![hold(1, 9_000)], &["w:1", "w:2"]),
            1_000,
        );
        let events = record.update(reading(State::Held, vec![hold(2, 9_900)], &["w:2"]), 2_000);
        let expected = [EventKind::Released, EventKind::Taken, EventKind::WaitEnded];
        assert_eq!(kinds(&events), expected);
        assert_eq!(
            events[1].from_ms,
            Some(1_000),
            "not before the page last saw the lock without it"
        );
        assert_eq!(record.waits.len(), 1);
    }

    #[test]
    fn waiters_keep_the_order_of_the_queue() {
        let mut record = record();
        record.update(reading(State::Held, vec![], &["a", "b", "c"]), 1);
        record.update(reading(State::Held, vec![], &["b", "c", "d"]), 2);
        let ids: Vec<&str> = record.waits.iter().map(|wait| &*wait.id).collect();
        assert_eq!(ids, ["b", "c", "d"]);
        assert_eq!(record.waits[0].from_ms, 1);
    }

    #[test]
    fn hold_from_the_history_file_continues_or_has_ended() {
        let name = LockName {
            resource: b"a".to_vec(),
            slot: None,
        };
        let open = |holder: &str| OpenHold {
            hold: None,
            from_ms: 5,
            holder: Some(holder.into()),
            token: Some(1),
        };
        let open = vec![open("app-1 pid 7 (job)"), open("app-2 pid 8 (job)")];
        let mut record = Record::new(name, 0, open);
        let events = record.update(reading(State::Held, vec![hold(1, 9_000)], &[]), 1_000);
        assert_eq!(kinds(&events), [EventKind::Ended]);
        assert_eq!(events[0].holder.as_deref(), Some("app-2 pid 8 (job)"));
        assert_eq!(record.holds[0].from_ms, 5);
    }

    #[test]
    fn hold_from_the_history_file_continues_if_its_note_came_after_its_first_event() {
        let open = OpenHold {
            hold: None,
            from_ms: 5,
            holder: None,
            token: Some(1),
        };
        assert!(!open.fits(&hold(1, 9_000), Some(2)));
        let mut record = Record::new(record().name, 0, vec![open]);
        let events = record.update(reading(State::Held, vec![hold(1, 9_000)], &[]), 1_000);
        assert_eq!(kinds(&events), []);
        assert_eq!(record.holds[0].from_ms, 5);
    }

    #[test]
    fn hold_of_a_reader_continues_although_the_token_of_the_lock_has_risen() {
        let open = |hold| OpenHold {
            hold: Some(hold),
            from_ms: hold,
            holder: Some("app-1 pid 7 (job)".into()),
            token: Some(hold),
        };
        let mut record = Record::new(record().name, 0, vec![open(5), open(6), open(7)]);
        let reading = Reading {
            token: Some(9),
            ..reading(State::Held, vec![hold(5, 9_000), hold(6, 9_000)], &[])
        };
        let events = record.update(reading, 1_000);
        assert_eq!(kinds(&events), [EventKind::Ended]);
        assert_eq!((events[0].hold, events[0].from_ms), (Some(7), Some(7)));
        let starts: Vec<u64> = record.holds.iter().map(|hold| hold.from_ms).collect();
        assert_eq!(starts, [5, 6]);
    }

    #[test]
    fn start_by_the_clock_of_a_client_is_limited_by_the_answers() {
        assert_eq!(believed(Some(50), 100, 200), 100);
        assert_eq!(believed(Some(150), 100, 200), 150);
        assert_eq!(believed(Some(900), 100, 200), 200);
        assert_eq!(believed(None, 100, 200), 200);
        assert_eq!(believed(Some(900), 300, 200), 200, "the clock was set back");
    }
}
