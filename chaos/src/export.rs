//! Converts a history to operations: the input of `chaos/judge`, which passes them to a checker of linearizability that
//! others wrote. `docs/histories.md` describes the operations.
//!
//! This module decides nothing about the promises of a lock. It only says when each operation began, when it ended, and
//! what its result was.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::Write;

use serde::Serialize;

use crate::bank::OPENING_BALANCE;
use crate::claim::Claim;
use crate::event::{Entry, Event};
use crate::history::{Attempt, History};
use crate::scenario::{Exclusion, Scenario};

/// The first line of the output: facts about the run.
#[derive(Debug, Serialize)]
struct Run {
    /// Whether the scenario promises that a lock never has two holders at the same time: `holds`, `may-break` or
    /// `must-break`.
    exclusion: &'static str,
    /// The code of the clients: `quorate`, or the number of the seeded bug that is switched on in them.
    code: String,
}

/// One operation on one object. All times are in nanoseconds since the run began.
#[derive(Debug, Serialize)]
struct Operation<'a> {
    /// The kind of object: `lock`, `value`, `register`, `bank` or `quota`.
    object: &'static str,
    /// The name of the object.
    name: &'a str,
    /// The kind of operation, e.g. `acquire`.
    op: &'static str,
    /// The client and its attempt, e.g. `c1.2#7`.
    by: String,
    /// The start of the operation.
    call: u64,
    /// The end of the operation; `None` if the history does not contain it.
    #[serde(rename = "return")]
    returned: Option<u64>,
    /// Facts that not all kinds of operations have.
    #[serde(flatten)]
    facts: Facts<'a>,
}

/// Facts about an operation. A field is `None` if this kind of operation does not have it, or if it is unknown.
#[derive(Debug, Default, Serialize)]
struct Facts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'a Claim>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    balances: Option<&'a BTreeMap<String, i64>>,
}

/// Writes the operations of a history, one line of JSON each.
///
/// # Errors
///
/// If `out` cannot be written.
pub fn write(scenario: &Scenario, history: &History, out: &mut impl Write) -> anyhow::Result<()> {
    let run = Run {
        exclusion: match scenario.exclusion() {
            Exclusion::Holds => "holds",
            Exclusion::MayBreak => "may-break",
            Exclusion::MustBreak => "must-break",
        },
        code: scenario.code_name(),
    };
    let attempts = history.attempts();
    let mut operations = created_quotas(history);
    let quotas: HashSet<&str> = operations.iter().map(|operation| operation.name).collect();
    operations.extend(takes(&attempts, &quotas));
    operations.extend(holds(history, &attempts, &quotas));
    operations.extend(writes(history, &attempts));
    operations.extend(register_writes(history));
    operations.extend(bookings(history));
    operations.sort_by_key(|operation| operation.call);
    write_line(&run, out)?;
    operations
        .iter()
        .try_for_each(|operation| write_line(operation, out))
}

fn write_line(line: &impl Serialize, out: &mut impl Write) -> anyhow::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    Ok(out.write_all(b"\n")?)
}

/// The acquisitions of locks, and the ends of the resulting holds.
fn holds<'a>(
    history: &History,
    attempts: &'a [Attempt],
    quotas: &HashSet<&str>,
) -> Vec<Operation<'a>> {
    let released = confirmed_releases(history);
    let mut operations = Vec::new();
    for attempt in attempts {
        let end = attempt.end();
        let release_returned = released.get(&(attempt.process.as_str(), attempt.op));
        let over_at = [release_returned.copied(), attempt.until].into_iter();
        let over_at = over_at.flatten().min();
        for (name, slot) in attempt.resource_slots() {
            if quotas.contains(name) {
                continue;
            }
            let (returned, outcome) = match (attempt.obtained_at, attempt.failed_at) {
                (Some(obtained_at), _) => (Some(obtained_at), "ok"),
                (None, Some(failed_at)) => (Some(failed_at), "failed"),
                (None, None) => (None, "open"),
            };
            let operation = |op, call, returned, facts| Operation {
                object: "lock",
                name,
                op,
                by: attempt.name(),
                call,
                returned,
                facts,
            };
            let facts = Facts {
                outcome: Some(outcome),
                mode: Some(&attempt.claim),
                slot,
                token: attempt.token,
                ..Facts::default()
            };
            operations.push(operation("acquire", attempt.began_at, returned, facts));
            if let (Some(obtained_at), Some((ended_at, cause))) = (attempt.obtained_at, end) {
                let call = ended_at.max(obtained_at);
                let facts = Facts {
                    outcome: Some(cause),
                    slot,
                    ..Facts::default()
                };
                let returned = over_at.map(|over_at| over_at.max(call));
                operations.push(operation("end", call, returned, facts));
            }
        }
    }
    operations
}

/// The times at which releases ended that no master has left open, by process and number of the attempt.
fn confirmed_releases(history: &History) -> HashMap<(&str, u64), u64> {
    let entries = history.entries.iter();
    let confirmed = entries.filter_map(|entry| match entry.event {
        Event::Released { op, open: 0, .. } => Some(((entry.process.as_str(), op), entry.t)),
        _ => None,
    });
    confirmed.collect()
}

/// The writes to files under locks, in three forms:
///
/// - `write`: the holder replaced the content `from` by the content `to`.
/// - `set`: the same, but the write ended after the hold. No promise covers such a write.
/// - `unknown`: the holder was killed. It may have written to the file before it died.
fn writes<'a>(history: &'a History, attempts: &'a [Attempt]) -> Vec<Operation<'a>> {
    let attempts_by_name: HashMap<(&str, u64), &Attempt> = attempts
        .iter()
        .map(|attempt| ((attempt.process.as_str(), attempt.op), attempt))
        .collect();
    let mut operations = Vec::new();
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut has_written: HashSet<(&str, u64)> = HashSet::new();
    for Entry { t, process, event } in &history.entries {
        let Event::Wrote {
            op,
            key,
            from,
            to,
            began,
        } = event
        else {
            continue;
        };
        let id = (process.as_str(), *op);
        let attempt = attempts_by_name.get(&id);
        let is_late = attempt
            .and_then(|attempt| attempt.end())
            .is_some_and(|(ended_at, _)| *t > ended_at);
        has_written.insert(id);
        if let Some(attempt) = attempt {
            files.entry(&attempt.resource).or_default().insert(key);
        }
        operations.push(Operation {
            object: "value",
            name: key,
            op: if is_late { "set" } else { "write" },
            by: format!("{process}#{op}"),
            call: *began,
            returned: Some(*t),
            facts: Facts {
                from: Some(from),
                to: to.as_deref(),
                ..Facts::default()
            },
        });
    }
    for attempt in attempts {
        let is_killed = attempt.release_at.is_none() && attempt.loss.is_none();
        let (Some(obtained_at), Some(died_at)) = (attempt.obtained_at, attempt.process_ended_at)
        else {
            continue;
        };
        if !is_killed || has_written.contains(&(attempt.process.as_str(), attempt.op)) {
            continue;
        }
        for name in files.get(attempt.resource.as_str()).into_iter().flatten() {
            operations.push(Operation {
                object: "value",
                name,
                op: "unknown",
                by: attempt.name(),
                call: obtained_at,
                returned: Some(died_at.max(obtained_at)),
                facts: Facts::default(),
            });
        }
    }
    operations
}

/// The writes to the services that check fencing tokens. A service records each write while it handles no other
/// request, so call and return are the same time.
fn register_writes(history: &History) -> Vec<Operation<'_>> {
    let mut operations = Vec::new();
    let mut registers: HashSet<&str> = HashSet::new();
    for Entry { t, event, .. } in &history.entries {
        let mut push = |name, by: &str, token, outcome| {
            operations.push(Operation {
                object: "register",
                name,
                op: "write",
                by: by.to_owned(),
                call: *t,
                returned: Some(*t),
                facts: Facts {
                    outcome: Some(outcome),
                    token: Some(token),
                    ..Facts::default()
                },
            });
        };
        match event {
            Event::Applied { by, key, token } => {
                registers.insert(key);
                push(key, by, *token, "ok");
            }
            Event::Moved {
                by,
                token,
                balances,
            } => balances.keys().for_each(|key| push(key, by, *token, "ok")),
            // The bank also refuses a token because of a read, which the history does not contain. So only the
            // refusals of registers are exported.
            Event::Refused { by, key, token, .. } if registers.contains(key.as_str()) => {
                push(key, by, *token, "refused");
            }
            _ => {}
        }
    }
    operations
}

/// The bookings of the bank, which records each booking while it handles no other request.
fn bookings(history: &History) -> Vec<Operation<'_>> {
    let operation = |op, by: &str, t, facts| Operation {
        object: "bank",
        name: "transfer",
        op,
        by: by.to_owned(),
        call: t,
        returned: Some(t),
        facts,
    };
    let entries = history.entries.iter();
    let booked = entries.filter_map(|entry| {
        let Event::Moved { by, balances, .. } = &entry.event else {
            return None;
        };
        let facts = Facts {
            balances: Some(balances),
            ..Facts::default()
        };
        Some(operation("book", by, entry.t, facts))
    });
    let mut operations: Vec<Operation<'_>> = booked.collect();
    if !operations.is_empty() {
        let facts = Facts {
            left: Some(OPENING_BALANCE as u64),
            ..Facts::default()
        };
        operations.push(operation("create", "bank", 0, facts));
    }
    operations
}

fn created_quotas(history: &History) -> Vec<Operation<'_>> {
    let created = history.entries.iter().filter_map(|entry| {
        let Event::Created { quota, pieces } = &entry.event else {
            return None;
        };
        Some(Operation {
            object: "quota",
            name: quota,
            op: "create",
            by: entry.process.clone(),
            call: entry.t,
            returned: Some(entry.t),
            facts: Facts {
                left: Some(*pieces),
                ..Facts::default()
            },
        })
    });
    created.collect()
}

/// The requests for units of quotas. A request without an answer may have taken a unit, or may still take it later.
fn takes<'a>(attempts: &'a [Attempt], quotas: &HashSet<&str>) -> Vec<Operation<'a>> {
    let requests = attempts
        .iter()
        .filter(|attempt| quotas.contains(attempt.resource.as_str()));
    let requests = requests.map(|attempt| {
        let (returned, outcome, left) = match &attempt.answer {
            Some((answered_at, answer, left)) if left.is_some() => {
                (Some(*answered_at), answer.as_str(), *left)
            }
            _ => (None, "open", None),
        };
        Operation {
            object: "quota",
            name: &attempt.resource,
            op: "take",
            by: attempt.name(),
            call: attempt.began_at,
            returned,
            facts: Facts {
                outcome: Some(outcome),
                left,
                ..Facts::default()
            },
        }
    });
    requests.collect()
}
