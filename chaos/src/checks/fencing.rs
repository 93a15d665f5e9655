//! Checks the register, a service that checks fencing tokens: it never accepts a write with a smaller token than one
//! that it has seen. `quorate_promises::Tokens` checks the tokens of the holds themselves.

use std::collections::HashMap;

use super::{Case, Finding, Violation};
use crate::event::Event;

pub(super) fn conclude(case: &Case<'_>, mut finding: Finding) -> Finding {
    let (accepted_count, refused_count) = check_register(case, &mut finding.violations);
    let coverage = format!(
        "{}, {accepted_count} writes accepted, {refused_count} stale writes refused",
        finding.coverage
    );
    Finding::new(&finding.checker, coverage, finding.violations)
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
