//! What is left on the masters: right after the last client has given everything back, nothing that
//! a living client was answerable for; one ttl later, nothing at all. And no key without an expiry.

use std::time::Duration;

use super::{Case, Finding, Verdict, Violation};
use crate::event::Event;
use crate::history::Attempt;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut violations = Vec::new();
    let mut bad = |t: u64, who: &str, what: String| {
        violations.push(Violation {
            checker: "litter".into(),
            from: t,
            to: t,
            who: vec![who.to_owned()],
            resource: None,
            what,
            excused: None,
        });
    };
    let (mut at_once, mut after) = (0, 0);
    for line in &case.history.lines {
        let Event::Keys {
            when,
            left,
            eternal,
        } = &line.what
        else {
            continue;
        };
        if !eternal.is_empty() {
            let what = format!("keys that never expire: {}", few(eternal));
            bad(line.t, &line.who, what);
        }
        if when == "at-once" {
            at_once += 1;
            // A killed client and its like could not give back; their keys may wait for the ttl.
            let left: Vec<String> = left
                .iter()
                // A ticket counter outlives its line by a moment, so that tickets never fall.
                .filter(|key| !key.starts_with("quorate:ticket:"))
                .filter(|key| !case.abandoned(key))
                .cloned()
                .collect();
            if !left.is_empty() {
                let what = format!("given back by everybody, and still there: {}", few(&left));
                bad(line.t, &line.who, what);
            }
        } else {
            after += 1;
            if !left.is_empty() {
                bad(
                    line.t,
                    &line.who,
                    format!("left after the ttl: {}", few(left)),
                );
            }
        }
    }
    let looked_at = format!("keys of {at_once} masters at once, of {after} after the ttl");
    let finding = Finding::of("litter", looked_at, violations);
    if at_once == 0 || after < case.scenario.masters {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

impl Case<'_> {
    /// Whether some client that ended without giving back may have left this key, shortly before
    /// the end, or some fault that was felt until then.
    fn abandoned(&self, key: &str) -> bool {
        let finish = self.history.finish().unwrap_or(self.end);
        let before = |time: Duration| finish.saturating_sub(time.as_nanos() as u64);
        let recent = before(2 * self.scenario.max_ttl);
        // A place in line lives longer than a lock.
        let felt = match self.scenario.settling() {
            Some(settling) if !key.starts_with("quorate:") => before(settling),
            _ => recent,
        };
        self.history.lines.iter().any(|line| {
            let ended = matches!(&line.what, Event::Gone { how, .. } if how != "exit status: 0");
            ended
                && line.t >= recent
                && self
                    .attempts
                    .iter()
                    .any(|attempt| attempt.who == line.who && is_of(key, attempt))
        }) || self.faults.iter().any(|fault| {
            // The clock runs behind what the key was given, or a release met a deaf master.
            fault.healed.unwrap_or(self.end) > felt
        })
    }
}

/// Whether the key stands for one of the resources, or for something that goes with it.
fn is_of(key: &str, attempt: &Attempt) -> bool {
    attempt.resources().any(|resource| {
        let rest = key.strip_suffix(resource);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(':'))
    })
}

fn few(keys: &[String]) -> String {
    let shown: Vec<&str> = keys.iter().take(5).map(String::as_str).collect();
    match keys.len() {
        0..=5 => shown.join(", "),
        more => format!("{} and {} more", shown.join(", "), more - 5),
    }
}
