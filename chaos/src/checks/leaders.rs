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
use crate::workload::{Workload, family};

pub(super) fn check(case: &Case<'_>) -> Finding {
    let attempts = case.attempts.iter();
    let campaigns = attempts.filter(|one| family(&one.resource) == Workload::Leader.name());
    // The term of each leader, as that leader recorded it.
    let terms: BTreeMap<String, u64> = campaigns
        .filter_map(|one| Some((one.name(), one.token?)))
        .collect();
    let mut leaders: BTreeMap<u64, (&str, &Entry)> = BTreeMap::new();
    let mut last: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut violations = Vec::new();
    let (mut told, mut nobody) = (0, 0);
    for line in &case.history.lines {
        let (term, leader) = match &line.what {
            Event::Followed { term: None, .. } => {
                nobody += 1;
                continue;
            }
            Event::Followed {
                term: Some(term),
                leader,
            } => (*term, leader.as_deref()),
            _ => continue,
        };
        told += 1;
        let who = &line.who;
        let before = last.insert(who, (term, line.t));
        if let Some((before, since)) = before.filter(|(before, _)| *before > term) {
            let what = format!(
                "{who} was notified of the leader of term {term} after the leader of term {before}"
            );
            violations.push(violation(since, line, &[], what));
        }
        let Some(leader) = leader else {
            continue;
        };
        let (first, by) = *leaders.entry(term).or_insert((leader, line));
        if first != leader {
            let what = format!(
                "in term {term}, {} follows the leader {first}, and {who} follows the leader {leader}",
                by.who
            );
            violations.push(violation(by.t, line, &[&by.who], what));
        }
        if let Some(known) = terms.get(leader).filter(|known| **known != term) {
            let what = format!(
                "{who} follows {leader} as the leader of term {term}, but {leader} leads term {known}"
            );
            violations.push(violation(line.t, line, &[leader], what));
        }
    }
    let looked_at = format!(
        "followers got {told} notifications of a leader, and {nobody} that there is no leader; {} leaders were \
         elected, and followers were notified of {} different leaders",
        terms.len(),
        leaders.len()
    );
    let finding = Finding::of("leaders", looked_at, violations);
    if told == 0 {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

fn violation(from: u64, line: &Entry, others: &[&str], what: String) -> Violation {
    let others = others
        .iter()
        .map(|name| name.split('#').next().unwrap_or(name));
    Violation {
        checker: "leaders".into(),
        from,
        to: line.t,
        who: others
            .chain([line.who.as_str()])
            .map(str::to_owned)
            .collect(),
        resource: Some(Workload::Leader.name().to_owned()),
        what,
        excused: None,
    }
}
