//! What is left on the masters: right after the last client has given everything back, nothing that
//! a living client was answerable for; one ttl later, nothing but notes of who died, and at the end of
//! their time nothing at all. And no key without an expiry. A master without a clock is looked at only after a ttl.

use std::time::Duration;

use super::{Case, Finding, Verdict, Violation};
use crate::event::Event;
use crate::history::Attempt;

/// So many times as long as its lock a note is kept at most.
pub(crate) const NOTE_LIVES: u32 = 4;

/// Whether the key is what a holder says of itself.
pub(crate) fn is_note(key: &str) -> bool {
    key.starts_with("quorate:note:")
}

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
    let (mut at_once, mut after, mut last) = (0, 0, 0);
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
                // A ticket counter outlives its line by a moment, so that tickets never fall, and so does the sign
                // that there are lines.
                .filter(|key| !key.starts_with("quorate:ticket:") && *key != "quorate:lines")
                .filter(|key| !case.abandoned(key))
                .cloned()
                .collect();
            if !left.is_empty() {
                let what = format!("given back by everybody, and still there: {}", few(&left));
                bad(line.t, &line.who, what);
            }
        } else {
            let notes_too = when == "after-notes";
            *(if notes_too { &mut last } else { &mut after }) += 1;
            let left = left.iter().filter(|key| notes_too || !is_note(key));
            let left: Vec<String> = left.cloned().collect();
            if !left.is_empty() {
                let whose = if notes_too { "life of notes" } else { "ttl" };
                bad(
                    line.t,
                    &line.who,
                    format!("left after the {whose}: {}", few(&left)),
                );
            }
        }
    }
    let looked_at = format!(
        "keys of {at_once} masters at once, of {after} after the ttl, of {last} after the life of notes"
    );
    let finding = Finding::of("litter", looked_at, violations);
    let nodes = case.scenario.nodes();
    let retired = case.history.lines.iter();
    let retired = retired.filter(|line| line.what == Event::Retired).count();
    let looked_at_once = at_once > 0 || !nodes.iter().any(|node| node.has_clock());
    if !looked_at_once || after.min(last) < case.scenario.masters - retired {
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
        let lives = if is_note(key) { NOTE_LIVES + 1 } else { 2 };
        let recent = before(lives * self.scenario.max_ttl);
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
