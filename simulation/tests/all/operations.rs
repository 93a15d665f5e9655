//! Stores histories as operations for `scripts/judge --simulation`, if the variable `QUORATE_TEST_OPERATIONS` names a
//! folder. `docs/histories.md` describes the operations.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use quorate_model::history::{AttemptId, Event, EventKind, Sent, Settings};

/// The times of one attempt, in nanoseconds, and its fencing token.
struct Attempt {
    call: u64,
    obtained_at: Option<u64>,
    token: Option<u64>,
    /// The end of the validity.
    ends_at: u64,
    /// The time at which the client released or lost the lock, or its process ended.
    ended_at: Option<u64>,
}

/// Stores the operations of a history in a file, whose name is a number.
pub(crate) fn keep(settings: &Settings, history: &[Event]) {
    static NEXT_NUMBER: AtomicUsize = AtomicUsize::new(1);
    let Some(folder) = std::env::var_os("QUORATE_TEST_OPERATIONS") else {
        return;
    };
    let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = PathBuf::from(folder).join(format!("{number:05}"));
    let promise = |holds| if holds { "holds" } else { "may-break" };
    let mut text = format!(
        "{{\"exclusion\":\"{}\",\"tokens\":\"{}\",\"locker\":\"quorate\"}}\n",
        promise(settings.one_holder),
        promise(settings.rising_tokens)
    );
    for (id, attempt) in attempts(history) {
        write_operations(&mut text, &id, &attempt);
    }
    std::fs::write(path, text).expect("the operations must be stored");
}

/// The client, the lock and the random value of an attempt.
type Id = (usize, usize, u128);

fn attempts(history: &[Event]) -> BTreeMap<Id, Attempt> {
    let mut attempts = BTreeMap::new();
    for Event { at, kind } in history {
        let id = |attempt: &AttemptId| (attempt.client, attempt.lock, attempt.value);
        match kind {
            EventKind::Sent {
                attempt,
                request: Sent::Acquire,
                ..
            } => {
                attempts.entry(id(attempt)).or_insert(Attempt {
                    call: *at,
                    obtained_at: None,
                    token: None,
                    ends_at: u64::MAX,
                    ended_at: None,
                });
            }
            EventKind::Obtained {
                attempt,
                token,
                ends_at,
                ..
            } => {
                if let Some(attempt) = attempts.get_mut(&id(attempt)) {
                    attempt.obtained_at = Some(*at);
                    attempt.token = *token;
                    attempt.ends_at = *ends_at;
                }
            }
            EventKind::Extended {
                attempt, ends_at, ..
            } => {
                if let Some(attempt) = attempts.get_mut(&id(attempt)) {
                    attempt.ends_at = *ends_at;
                }
            }
            EventKind::Ended { attempt } => {
                if let Some(attempt) = attempts.get_mut(&id(attempt)) {
                    attempt.ended_at = Some(*at);
                }
            }
            _ => {}
        }
    }
    attempts
}

fn write_operations(text: &mut String, (client, lock, value): &Id, attempt: &Attempt) {
    let mut line = |op: &str,
                    call: u64,
                    returned: Option<u64>,
                    outcome: &str,
                    token: Option<u64>| {
        let json =
            |number: Option<u64>| number.map_or("null".to_owned(), |number| number.to_string());
        let _ = writeln!(
            text,
            "{{\"object\":\"lock\",\"name\":\"r{lock}\",\"op\":\"{op}\",\"by\":\"c{client}#{value:x}\",\"call\":{call},\
             \"return\":{},\"outcome\":\"{outcome}\",\"token\":{}}}",
            json(returned),
            json(token)
        );
    };
    let outcome = if attempt.obtained_at.is_some() {
        "ok"
    } else {
        "open"
    };
    line(
        "acquire",
        attempt.call,
        attempt.obtained_at,
        outcome,
        attempt.token,
    );
    if let Some(obtained_at) = attempt.obtained_at {
        let call = attempt.ends_at.min(attempt.ended_at.unwrap_or(u64::MAX));
        let call = call.max(obtained_at);
        let returned = attempt.ends_at.max(call);
        let outcome = if attempt.ended_at == Some(call) {
            "ended"
        } else {
            "expired"
        };
        if call < u64::MAX {
            line("end", call, Some(returned), outcome, None);
        }
    }
}
