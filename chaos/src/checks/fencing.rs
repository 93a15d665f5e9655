//! Fencing tokens: never the same twice, larger for whoever began after the other had obtained, and
//! the register never takes a write behind a newer one. This holds whatever happens to exclusion.

use std::collections::{BTreeMap, HashMap};

use super::{Case, Finding, Violation};
use crate::event::Event;
use crate::history::Attempt;
use crate::scenario::Locker;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut violations = Vec::new();
    let mut by_resource: BTreeMap<&str, Vec<(u64, &Attempt, u64)>> = BTreeMap::new();
    let mut bare = 0;
    for attempt in &case.attempts {
        match (attempt.obtained, attempt.token) {
            (Some(at), Some(token)) => by_resource
                .entry(&attempt.resource)
                .or_default()
                .push((at, attempt, token)),
            (Some(at), None) if case.scenario.locker == Locker::Quorate => {
                bare += 1;
                let what = format!("{} holds without a token", attempt.name());
                violations.push(violation(at, at, &[attempt], what));
            }
            _ => {}
        }
    }
    let mut tokens = 0;
    for (resource, holds) in &by_resource {
        tokens += holds.len();
        unique(resource, holds, &mut violations);
        rising(resource, holds, &mut violations);
    }
    let (applied, refused) = register(case, &mut violations);
    let mut looked_at =
        format!("{tokens} tokens, {applied} fenced writes, {refused} stale ones refused");
    if bare > 0 {
        looked_at = format!("{looked_at}, {bare} holds without a token");
    }
    Finding::of("fencing", looked_at, violations)
}

fn unique(resource: &str, holds: &[(u64, &Attempt, u64)], violations: &mut Vec<Violation>) {
    let mut seen: HashMap<u64, &Attempt> = HashMap::new();
    for (at, attempt, token) in holds {
        if let Some(other) = seen.insert(*token, attempt) {
            let what = format!(
                "{} and {} both got token {token} for {resource:?}",
                other.name(),
                attempt.name()
            );
            violations.push(violation(
                other.obtained.unwrap_or(*at),
                *at,
                &[other, attempt],
                what,
            ));
        }
    }
}

/// Only attempts that began after the other was obtained: two that overlap may come in any order.
fn rising(resource: &str, holds: &[(u64, &Attempt, u64)], violations: &mut Vec<Violation>) {
    let mut by_end = holds.to_vec();
    by_end.sort_by_key(|(at, ..)| *at);
    let mut by_start = holds.to_vec();
    by_start.sort_by_key(|(_, attempt, _)| attempt.began);
    let mut ended = by_end.iter().peekable();
    let mut highest: Option<(u64, &Attempt)> = None;
    for (at, attempt, token) in by_start {
        while let Some((_, other, theirs)) = ended.next_if(|(end, ..)| *end < attempt.began) {
            if highest.is_none_or(|(token, _)| *theirs > token) {
                highest = Some((*theirs, other));
            }
        }
        if let Some((before, other)) = highest
            && token <= before
            && !std::ptr::eq(other, attempt)
        {
            let what = format!(
                "{} began after {} had {before} for {resource:?}, and got {token}",
                attempt.name(),
                other.name()
            );
            violations.push(violation(attempt.began, at, &[other, attempt], what));
        }
    }
}

fn register(case: &Case<'_>, violations: &mut Vec<Violation>) -> (usize, usize) {
    let mut highest: HashMap<&str, (u64, &str)> = HashMap::new();
    let (mut applied, mut refused) = (0, 0);
    for line in &case.history.lines {
        match &line.what {
            Event::Applied { by, key, token } => {
                applied += 1;
                let seen = highest.entry(key).or_insert((*token, by));
                let twice = *token == seen.0 && by != seen.1;
                if *token < seen.0 || twice {
                    let name = |by: &str| by.split('#').next().unwrap_or(by).to_owned();
                    violations.push(Violation {
                        checker: "fencing".into(),
                        from: line.t,
                        to: line.t,
                        who: vec![name(seen.1), name(by)],
                        resource: Some(key.clone()),
                        what: format!(
                            "the register took {token} of {by} after {} of {}",
                            seen.0, seen.1
                        ),
                        excused: None,
                    });
                }
                *seen = (*token, by);
            }
            Event::Refused { .. } => refused += 1,
            _ => {}
        }
    }
    (applied, refused)
}

fn violation(from: u64, to: u64, who: &[&Attempt], what: String) -> Violation {
    Violation {
        checker: "fencing".into(),
        from,
        to,
        who: who.iter().map(|attempt| attempt.who.clone()).collect(),
        resource: who.first().map(|attempt| attempt.resource.clone()),
        what,
        excused: None,
    }
}
