//! One answer of the masters about one lock, in the form in which the page shows it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quorate::printable::{json_name, printable};
use quorate::{KeyState, Listed, LockName, Note, Status, StatusVerdict};
use serde::Serialize;

/// The largest number of waiters that the page shows for one lock.
const MAX_WAITERS: usize = 100;

/// The two times of a client are computed from rounded times, so they can be wrong by this much together.
const ROUNDING_MS: u64 = 2;

/// Which kind of lock this is, as far as the masters' answers show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Exclusive,
    Readers,
    Owner,
    Permit,
    Election,
    /// Another program wrote the key.
    Foreign,
}

/// The state of a lock, as a majority of the masters shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Held,
    Free,
    /// A majority answered, but no holder has the lock on a majority.
    Undecided,
    /// No majority answered.
    Unknown,
}

/// The client that holds a lock, from its note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Client {
    pub(crate) host: Arc<str>,
    pub(crate) pid: u32,
    pub(crate) process: Arc<str>,
    pub(crate) note: Option<Arc<str>>,
    /// When the hold began, by the clock of the holder, in milliseconds since 1970.
    pub(crate) since_ms: u64,
}

/// One hold of a lock. A lock that readers or an owner share has several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HoldReading {
    /// Identifies the hold: a hash of the value that it has on the masters. It is the same in every run of the page.
    pub(crate) key: u64,
    pub(crate) client: Option<Client>,
    /// The time until the hold ends if nobody renews it; `None` if it does not expire.
    pub(crate) left_ms: Option<u64>,
}

/// One client in the queue of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WaiterReading {
    pub(crate) id: Arc<str>,
    pub(crate) host: Option<Arc<str>>,
    pub(crate) pid: Option<u32>,
    /// When the wait began, by the clock of the client.
    pub(crate) since_ms: Option<u64>,
}

/// The answer of one master about one lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct MasterReading {
    pub(crate) state: &'static str,
    pub(crate) left_ms: Option<u64>,
    pub(crate) error: Option<Arc<str>>,
}

/// The answers of the masters about one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) state: State,
    pub(crate) kind: Kind,
    pub(crate) holds: Vec<HoldReading>,
    /// The fencing token of the holder, or the term of a leader.
    pub(crate) token: Option<u64>,
    pub(crate) waiters: Vec<WaiterReading>,
    pub(crate) answers: Vec<MasterReading>,
}

/// Identifies a lock in the JSON of the page: `l:NAME`, or `p3:NAME` for the permit in slot 3 of a semaphore. If the
/// name is not UTF-8, the id is `lb:ESCAPED` or `p3b:ESCAPED`, because another name can consist of these escapes.
pub(crate) fn lock_id(name: &LockName) -> String {
    let text = json_name(&name.resource);
    let is_text = std::str::from_utf8(&name.resource).is_ok();
    let form = if is_text { "" } else { "b" };
    match name.slot {
        Some(slot) => format!("p{slot}{form}:{text}"),
        None => format!("l{form}:{text}"),
    }
}

/// Whether a master shows a leader of an election as the holder of the lock.
pub(crate) fn has_leader(listed: &Listed) -> bool {
    let states = listed.status.nodes.iter();
    let mut states = states.filter_map(|node| node.state.as_ref().ok());
    states.any(|state| state.term.is_some())
}

/// Reads what the masters answered about a lock.
pub(crate) fn read(listed: &Listed) -> Reading {
    let status = &listed.status;
    let states: Vec<&KeyState> = status
        .nodes
        .iter()
        .filter_map(|node| node.state.as_ref().ok())
        .collect();
    let (state, value) = match status.verdict() {
        StatusVerdict::Held(value) => (State::Held, Some(value)),
        StatusVerdict::Free => (State::Free, None),
        StatusVerdict::Split => (State::Undecided, None),
        _ => (State::Unknown, None),
    };
    let holds = value
        .as_ref()
        .map_or_else(Vec::new, |value| holds(status, value));
    let is_leader = has_leader(listed);
    let kind = kind(listed, value.as_deref(), is_leader, &states);
    let numbers = states
        .iter()
        .map(|state| if is_leader { state.term } else { state.counter });
    let token = numbers.max().flatten().filter(|_| state == State::Held);
    let waiters = waiters(&states, holds.first().filter(|_| holds.len() == 1));
    Reading {
        state,
        kind,
        holds,
        token,
        waiters,
        answers: status
            .nodes
            .iter()
            .map(|node| answer(&node.state))
            .collect(),
    }
}

fn kind(listed: &Listed, value: Option<&[u8]>, is_leader: bool, states: &[&KeyState]) -> Kind {
    let shared_holds = states.iter().any(|state| !state.holds.is_empty());
    if listed.slot.is_some() {
        Kind::Permit
    } else if is_leader {
        Kind::Election
    } else if value.is_some_and(|value| value.starts_with(b"quorate:owner:")) {
        Kind::Owner
    } else if shared_holds {
        Kind::Readers
    } else if states.iter().any(|state| state.is_foreign()) {
        Kind::Foreign
    } else {
        Kind::Exclusive
    }
}

/// The holds of a lock whose key has the value `value` on a majority of the masters.
fn holds(status: &Status, value: &[u8]) -> Vec<HoldReading> {
    let shared: Vec<HoldReading> = status
        .holds()
        .iter()
        .map(|hold| HoldReading {
            key: hash(&hold.value),
            client: hold.note.as_ref().map(client),
            left_ms: Some(millis(hold.lives)),
        })
        .collect();
    if !shared.is_empty() {
        return shared;
    }
    let states = status
        .nodes
        .iter()
        .filter_map(|node| node.state.as_ref().ok());
    let holding = states.filter(|state| state.holder.as_deref() == Some(value));
    let times: Vec<Option<Duration>> = holding.map(|state| state.ttl_left).collect();
    vec![HoldReading {
        key: hash(value),
        client: status.note().map(client),
        left_ms: left_on_quorum(times, status.quorum).map(millis),
    }]
}

/// The time until fewer than `quorum` masters hold the lock. `times` has the time left on each holding master; `None`
/// means that the key does not expire.
fn left_on_quorum(mut times: Vec<Option<Duration>>, quorum: usize) -> Option<Duration> {
    let longest_first = |time: &Option<Duration>| std::cmp::Reverse(time.unwrap_or(Duration::MAX));
    times.sort_by_key(longest_first);
    times
        .get(quorum.saturating_sub(1))
        .copied()
        .or(times.last().copied())
        .flatten()
}

/// The waiters that a majority of the answering masters shows, in the order of the first master that has most of them.
/// `holder` is the only holder: a waiter that got the lock stays in the queue for a moment, and is left out.
fn waiters(states: &[&KeyState], holder: Option<&HoldReading>) -> Vec<WaiterReading> {
    let mut votes: HashMap<&str, usize> = HashMap::new();
    for waiter in states.iter().flat_map(|state| &state.queue) {
        *votes.entry(waiter.id.as_str()).or_default() += 1;
    }
    let Some(longest) = states.iter().rev().max_by_key(|state| state.queue.len()) else {
        return Vec::new();
    };
    let mut waiters: Vec<WaiterReading> = longest
        .queue
        .iter()
        .filter(|waiter| {
            votes
                .get(waiter.id.as_str())
                .is_some_and(|votes| 2 * votes > states.len())
        })
        .map(|waiter| WaiterReading {
            id: printable(waiter.id.as_bytes()).into(),
            host: waiter.host.as_deref().map(Into::into),
            pid: waiter.pid,
            since_ms: waiter.since.map(unix_ms),
        })
        .collect();
    let client = holder.and_then(|holder| holder.client.as_ref());
    if let (Some(first), Some(client)) = (waiters.first(), client)
        && has_become_holder(first, client)
    {
        waiters.remove(0);
    }
    waiters.truncate(MAX_WAITERS);
    waiters
}

/// Whether this waiter got the lock: it is a waiter of the same process, and it began to wait before the hold began.
fn has_become_holder(waiter: &WaiterReading, holder: &Client) -> bool {
    let began_before = |since: u64| since.saturating_add(ROUNDING_MS) < holder.since_ms;
    waiter.pid == Some(holder.pid) && waiter.since_ms.is_some_and(began_before)
}

fn answer(state: &Result<KeyState, quorate::Fault>) -> MasterReading {
    match state {
        Ok(state) => MasterReading {
            state: if state.holder.is_some() {
                "held"
            } else {
                "free"
            },
            left_ms: state.ttl_left.map(millis),
            error: None,
        },
        Err(fault) => MasterReading {
            state: "error",
            left_ms: None,
            error: Some(fault_text(fault).into()),
        },
    }
}

/// The text of a fault, without secrets.
pub(crate) fn fault_text(fault: &quorate::Fault) -> String {
    quorate::redact::redact(&fault.to_string()).into_owned()
}

fn client(note: &Note) -> Client {
    Client {
        host: note.host.as_str().into(),
        pid: note.pid,
        process: note.process.as_str().into(),
        note: note.text.as_deref().map(Into::into),
        since_ms: unix_ms(note.since),
    }
}

impl Client {
    /// The client as text: host, pid and program.
    pub(crate) fn text(&self) -> String {
        format!("{} pid {} ({})", self.host, self.pid, self.process)
    }
}

/// A hash that is the same in all versions of the page (FNV-1a). It has 53 bits, so that every reader of JSON can read it.
fn hash(value: &[u8]) -> u64 {
    let begin = 0xcbf2_9ce4_8422_2325;
    let hash = value.iter().fold(begin, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash >> 11
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A time in milliseconds since 1970; 0 for an earlier time.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hold_ends_when_fewer_than_a_quorum_of_masters_have_it() {
        let secs = |secs: &[u64]| secs.iter().map(|&s| Some(Duration::from_secs(s))).collect();
        assert_eq!(
            left_on_quorum(secs(&[9, 3, 8]), 2),
            Some(Duration::from_secs(8))
        );
        assert_eq!(
            left_on_quorum(secs(&[9, 3, 8, 1, 2]), 3),
            Some(Duration::from_secs(3))
        );
        assert_eq!(
            left_on_quorum(vec![None, None, Some(Duration::from_secs(4))], 2),
            None
        );
        assert_eq!(left_on_quorum(Vec::new(), 2), None);
    }

    #[test]
    fn waiter_of_the_holders_process_is_kept_if_it_began_to_wait_when_the_hold_began() {
        let holder = Client {
            host: "app-1".into(),
            pid: 7,
            process: "job".into(),
            note: None,
            since_ms: 1_001,
        };
        let waiter = |pid, since_ms| WaiterReading {
            id: "w".into(),
            host: None,
            pid: Some(pid),
            since_ms: Some(since_ms),
        };
        assert!(has_become_holder(&waiter(7, 900), &holder));
        // Both began within one millisecond, and the times are rounded.
        assert!(!has_become_holder(&waiter(7, 1_000), &holder));
        assert!(!has_become_holder(&waiter(7, 1_500), &holder));
        assert!(!has_become_holder(&waiter(8, 900), &holder));
    }

    #[test]
    fn permit_and_lock_with_the_same_name_have_different_ids() {
        let name = |slot| LockName {
            resource: b"api".to_vec(),
            slot,
        };
        assert_eq!(lock_id(&name(None)), "l:api");
        assert_eq!(lock_id(&name(Some(3))), "p3:api");
    }

    #[test]
    fn name_that_is_not_text_has_another_id_than_the_text_of_its_escapes() {
        let id = |resource: &[u8], slot| {
            lock_id(&LockName {
                resource: resource.to_vec(),
                slot,
            })
        };
        assert_eq!(id(br"\xff", None), r"l:\xff");
        assert_eq!(id(b"\xff", None), r"lb:\xff");
        assert_eq!(id(b"\xff", Some(3)), r"p3b:\xff");
        assert_ne!(id(br"\\xff\xff", None), id(b"\\xff\xff", None));
    }
}
