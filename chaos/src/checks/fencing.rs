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
        .filter_map(|attempt| Some((attempt.obtained_at?, attempt)))
        .collect();
    holds.sort_by_key(|(obtained_at, _)| *obtained_at);
    let mut tokens = Tokens::default();
    let mut owner_holds = OwnerHolds::default();
    let mut without_token = 0;
    for (obtained_at, attempt) in holds {
        let Some(token) = attempt.token else {
            if case.scenario.locker == Locker::Quorate {
                without_token += 1;
                let description =
                    format!("{} acquired a lock without a fencing token", attempt.name());
                violations.push(violation(obtained_at, obtained_at, &[attempt], description));
            }
            continue;
        };
        let began_at = owner_holds.began_at(attempt, token, case.end);
        for resource_slot in attempt.resource_slots() {
            let acquisition = Obtained {
                who: attempt,
                began: began_at,
                at: obtained_at,
                token,
            };
            let is_compatible = |other: &&Attempt| other.claim.is_compatible_with(&attempt.claim);
            let breach = tokens.obtained_among(resource_slot, acquisition, is_compatible);
            violations.extend(
                breach.map(|breach| breach_violation(resource_slot.0, &acquisition, breach)),
            );
        }
    }
    let tokens = tokens.judged();
    let (accepted_count, refused_count) = check_register(case, &mut violations);
    let mut coverage = format!(
        "{tokens} fencing tokens, {accepted_count} writes accepted, {refused_count} stale writes refused"
    );
    if without_token > 0 {
        coverage = format!("{coverage}, {without_token} acquisitions without a fencing token");
    }
    Finding::new("fencing", coverage, violations)
}

/// The holds of reentrant locks, grouped by resource and fencing token.
#[derive(Default)]
struct OwnerHolds<'a>(HashMap<(&'a str, u64), Vec<JoinableHold<'a>>>);

/// A hold of a reentrant lock, as a tuple:
///
/// - the attempt that acquired it
/// - the end of the hold, as far as the client knew
/// - the start of the first attempt that got the same fencing token (overlapping holds of one owner share a token)
///
/// Both times are in nanoseconds since the start of the run.
type JoinableHold<'a> = (&'a Attempt, u64, u64);

impl<'a> OwnerHolds<'a> {
    /// Returns the start of the first attempt that got this token. This is `attempt` itself, unless its owner already
    /// held the lock with this token. `end` is the end of the run.
    fn began_at(&mut self, attempt: &'a Attempt, token: u64, end: u64) -> u64 {
        let (Claim::Owner(_), Some((_, to))) = (&attempt.claim, attempt.belief(end)) else {
            return attempt.began_at;
        };
        let holds = self.0.entry((&attempt.resource, token)).or_default();
        let mut others = holds.iter();
        let joined_hold = others
            .find(|(other, until, _)| other.claim == attempt.claim && *until > attempt.began_at);
        let began_at = joined_hold.map_or(attempt.began_at, |(_, _, began_at)| *began_at);
        holds.push((attempt, to, began_at));
        began_at
    }
}

fn breach_violation(
    resource: &str,
    acquisition: &Obtained<&Attempt>,
    breach: Breach<&Attempt>,
) -> Violation {
    let (attempt, token) = (acquisition.who, acquisition.token);
    let name = attempt.name();
    match breach {
        Breach::Twice(earlier) => {
            let description = format!(
                "{} and {name} both got fencing token {token} for {resource:?}",
                earlier.who.name()
            );
            violation(
                earlier.at,
                acquisition.at,
                &[earlier.who, attempt],
                description,
            )
        }
        Breach::Smaller(earlier) => {
            let description = format!(
                "{} got fencing token {} for {resource:?}; {name} began to acquire after that, but got the smaller \
                 token {token}",
                earlier.who.name(),
                earlier.token
            );
            violation(
                acquisition.began,
                acquisition.at,
                &[earlier.who, attempt],
                description,
            )
        }
    }
}

fn check_register(case: &Case<'_>, violations: &mut Vec<Violation>) -> (usize, usize) {
    let mut highest_writes: HashMap<&str, (u64, &str)> = HashMap::new();
    let (mut accepted_count, mut refused_count) = (0, 0);
    for entry in &case.history.entries {
        match &entry.event {
            Event::Applied { by, key, token } => {
                accepted_count += 1;
                let highest_write = highest_writes.entry(key).or_insert((*token, by));
                let is_reused = *token == highest_write.0 && by != highest_write.1;
                if *token < highest_write.0 || is_reused {
                    let client_of = |by: &str| by.split('#').next().unwrap_or(by).to_owned();
                    violations.push(Violation {
                        checker: "fencing".into(),
                        from: entry.t,
                        to: entry.t,
                        processes: vec![client_of(highest_write.1), client_of(by)],
                        resource: Some(key.clone()),
                        description: format!(
                            "a write of {by} with token {token} was wrongly accepted after token {} of {}",
                            highest_write.0, highest_write.1
                        ),
                        excused: None,
                    });
                }
                *highest_write = (*token, by);
            }
            Event::Refused { .. } => refused_count += 1,
            _ => {}
        }
    }
    (accepted_count, refused_count)
}

fn violation(from: u64, to: u64, attempts: &[&Attempt], description: String) -> Violation {
    Violation {
        checker: "fencing".into(),
        from,
        to,
        processes: attempts
            .iter()
            .map(|attempt| attempt.process.clone())
            .collect(),
        resource: attempts.first().map(|attempt| attempt.resource.clone()),
        description,
        excused: None,
    }
}
