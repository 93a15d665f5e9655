//! Checks the leaders that followers are notified of:
//!
//! - The terms that a follower sees never fall.
//! - Each term has one leader.
//! - A follower sees each leader with the term that the leader itself recorded.
//!
//! This checker does not look for simultaneous leaders. The exclusion checker does.

use std::collections::BTreeMap;

use super::{Case, Finding, Verdict, Violation};
use crate::event::{Entry, Event};
use crate::workload::{Workload, workload_name};

pub(super) fn check(case: &Case<'_>) -> Finding {
    let attempts = case.attempts.iter();
    let campaigns =
        attempts.filter(|attempt| workload_name(&attempt.resource) == Workload::Leader.name());
    // The term of each leader, as that leader recorded it.
    let terms: BTreeMap<String, u64> = campaigns
        .filter_map(|attempt| Some((attempt.name(), attempt.token?)))
        .collect();
    let mut leaders: BTreeMap<u64, (&str, &Entry)> = BTreeMap::new();
    let mut last_terms: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut violations = Vec::new();
    let (mut leader_notices, mut no_leader_notices) = (0, 0);
    for entry in &case.history.entries {
        let (term, leader) = match &entry.event {
            Event::Followed { term: None, .. } => {
                no_leader_notices += 1;
                continue;
            }
            Event::Followed {
                term: Some(term),
                leader,
            } => (*term, leader.as_deref()),
            _ => continue,
        };
        leader_notices += 1;
        let process = &entry.process;
        let earlier = last_terms.insert(process, (term, entry.t));
        if let Some((earlier_term, earlier_at)) = earlier.filter(|earlier| earlier.0 > term) {
            let description = format!(
                "{process} was notified of the leader of term {term} after the leader of term {earlier_term}"
            );
            violations.push(violation(earlier_at, entry, &[], description));
        }
        let Some(leader) = leader else {
            continue;
        };
        let (first_leader, first_entry) = *leaders.entry(term).or_insert((leader, entry));
        if first_leader != leader {
            let description = format!(
                "in term {term}, {} follows the leader {first_leader}, and {process} follows the leader {leader}",
                first_entry.process
            );
            let others = [first_entry.process.as_str()];
            violations.push(violation(first_entry.t, entry, &others, description));
        }
        if let Some(recorded_term) = terms.get(leader).filter(|recorded| **recorded != term) {
            let description = format!(
                "{process} follows {leader} as the leader of term {term}, but {leader} leads term {recorded_term}"
            );
            violations.push(violation(entry.t, entry, &[leader], description));
        }
    }
    let coverage = format!(
        "followers got {leader_notices} notifications of a leader, and {no_leader_notices} that there is no leader; \
         {} leaders were elected, and followers were notified of {} different leaders",
        terms.len(),
        leaders.len()
    );
    let finding = Finding::new("leaders", coverage, violations);
    if leader_notices == 0 {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

fn violation(from: u64, entry: &Entry, others: &[&str], description: String) -> Violation {
    let others = others
        .iter()
        .map(|name| name.split('#').next().unwrap_or(name));
    Violation {
        checker: "leaders".into(),
        from,
        to: entry.t,
        processes: others
            .chain([entry.process.as_str()])
            .map(str::to_owned)
            .collect(),
        resource: Some(Workload::Leader.name().to_owned()),
        description,
        excused: None,
    }
}
