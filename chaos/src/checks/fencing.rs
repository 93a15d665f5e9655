//! Checks fencing tokens, even in runs in which exclusion is broken:
//!
//! - Two holds have different tokens, unless they may overlap (two readers, or two holds of one lock owner).
//! - If an acquisition begins after another hold was obtained, its token is larger than the token of that hold.
//! - The register never accepts a write with a smaller token than one that it has seen.

use std::collections::HashMap;

use quorate_promises::{Breach, Obtained, Tokens};

use super::{Case, Finding, Violation};
use crate::claim::Claim;
use crate::event::Event;
use crate::history::Attempt;
use crate::scenario::Locker;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut violations = Vec::new();
    let mut holds: Vec<(u64, &Attempt)> = case
        .attempts
        .iter()
        .filter_map(|attempt| Some((attempt.obtained?, attempt)))
        .collect();
    holds.sort_by_key(|(at, _)| *at);
    let mut given = Tokens::default();
    let mut owned = Owned::default();
    let mut bare = 0;
    for (at, attempt) in holds {
        let Some(token) = attempt.token else {
            if case.scenario.locker == Locker::Quorate {
                bare += 1;
                let what = format!("{} acquired a lock without a fencing token", attempt.name());
                violations.push(violation(at, at, &[attempt], what));
            }
            continue;
        };
        let began = owned.began(attempt, token, case.end);
        for place in attempt.places() {
            let obtained = Obtained {
                who: attempt,
                began,
                at,
                token,
            };
            let compatible = |other: &&Attempt| other.claim.is_compatible_with(&attempt.claim);
            let breach = given.obtained_among(place, obtained, compatible);
            violations.extend(breach.map(|breach| breached(place.0, &obtained, breach)));
        }
    }
    let tokens = given.judged();
    let (applied, refused) = register(case, &mut violations);
    let mut looked_at = format!(
        "{tokens} fencing tokens, {applied} writes accepted, {refused} stale writes refused"
    );
    if bare > 0 {
        looked_at = format!("{looked_at}, {bare} acquisitions without a fencing token");
    }
    Finding::of("fencing", looked_at, violations)
}

/// The holds of reentrant locks, grouped by resource and fencing token.
#[derive(Default)]
struct Owned<'a>(HashMap<(&'a str, u64), Vec<Joinable<'a>>>);

/// A hold of a reentrant lock, as a tuple:
///
/// - the attempt that acquired it
/// - the end of the hold, as far as the client knew
/// - the start of the first attempt that got the same fencing token (overlapping holds of one owner share a token)
///
/// Both times are in nanoseconds since the start of the run.
type Joinable<'a> = (&'a Attempt, u64, u64);

impl<'a> Owned<'a> {
    /// Returns the start of the first attempt that got this token. This is `attempt` itself, unless its owner already
    /// held the lock with this token. `end` is the end of the run.
    fn began(&mut self, attempt: &'a Attempt, token: u64, end: u64) -> u64 {
        let (Claim::Owner(_), Some((_, to))) = (&attempt.claim, attempt.belief(end)) else {
            return attempt.began;
        };
        let holds = self.0.entry((&attempt.resource, token)).or_default();
        let mut live = holds.iter();
        let joined =
            live.find(|(other, until, _)| other.claim == attempt.claim && *until > attempt.began);
        let began = joined.map_or(attempt.began, |(_, _, began)| *began);
        holds.push((attempt, to, began));
        began
    }
}

fn breached(resource: &str, new: &Obtained<&Attempt>, breach: Breach<&Attempt>) -> Violation {
    let (attempt, token) = (new.who, new.token);
    let name = attempt.name();
    match breach {
        Breach::Twice(other) => {
            let what = format!(
                "{} and {name} both got fencing token {token} for {resource:?}",
                other.who.name()
            );
            violation(other.at, new.at, &[other.who, attempt], what)
        }
        Breach::Smaller(other) => {
            let what = format!(
                "{} got fencing token {} for {resource:?}; {name} began to acquire after that, but got the smaller \
                 token {token}",
                other.who.name(),
                other.token
            );
            violation(new.began, new.at, &[other.who, attempt], what)
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
                            "a write of {by} with token {token} was wrongly accepted after token {} of {}",
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
