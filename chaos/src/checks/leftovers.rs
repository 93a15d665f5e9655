//! Checks which keys remain on the masters after the run. The keys are listed at three times:
//!
//! - When all clients have released their locks, ZooKeeper masters are skipped. On the other masters, only three groups
//!   of keys may remain: keys of killed clients; keys that a recent fault kept from being deleted; and keys that
//!   outlive their queue (ticket counters and `quorate:lines`).
//! - One TTL later, only holder's notes (the texts by which `status` shows the holders) may remain.
//! - When these notes have expired, no key may remain.
//!
//! Every key that remains must have an expiry.

use std::time::Duration;

use super::{Case, Finding, Verdict, Violation};
use crate::event::Event;
use crate::history::Attempt;

/// The longest life of a holder's note (the text by which `status` shows the holder), as a multiple of the TTL of its
/// lock.
pub(crate) const NOTE_LIVES: u32 = 4;

/// Whether the key stores a holder's note.
pub(crate) fn is_note(key: &str) -> bool {
    key.starts_with("quorate:note:")
}

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut violations = Vec::new();
    let mut bad = |t: u64, who: &str, what: String| {
        violations.push(Violation {
            checker: "leftovers".into(),
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
            let what = format!("keys without an expiry: {}", few(eternal));
            bad(line.t, &line.who, what);
        }
        if when == "at-once" {
            at_once += 1;
            // A killed client could not release its locks, so its keys may remain until they expire.
            let left: Vec<String> = left
                .iter()
                // Skip the keys that outlive a queue: the ticket counter of each lock, and `quorate:lines`.
                .filter(|key| !key.starts_with("quorate:ticket:") && *key != "quorate:lines")
                .filter(|key| !case.abandoned(key))
                .cloned()
                .collect();
            if !left.is_empty() {
                let what = "keys that still exist after all clients released their locks";
                bad(line.t, &line.who, format!("{what}: {}", few(&left)));
            }
        } else {
            let notes_too = when == "after-notes";
            *(if notes_too { &mut last } else { &mut after }) += 1;
            let left = left.iter().filter(|key| notes_too || !is_note(key));
            let left: Vec<String> = left.cloned().collect();
            if !left.is_empty() {
                let whose = ["TTL", "lifetime of holder's notes"][usize::from(notes_too)];
                let what = format!("keys that outlived the {whose}: {}", few(&left));
                bad(line.t, &line.who, what);
            }
        }
    }
    let looked_at = format!(
        "masters whose keys were listed: {at_once} right after the run, {after} one TTL later, {last} when all \
         holder's notes had expired"
    );
    let finding = Finding::of("leftovers", looked_at, violations);
    let nodes = case.scenario.nodes();
    let retired = case.history.lines.iter();
    let retired = retired.filter(|line| line.what == Event::Retired).count();
    let looked_at_once = at_once > 0 || !nodes.iter().any(|node| node.has_clock);
    if !looked_at_once || after.min(last) < case.scenario.masters - retired {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

impl Case<'_> {
    /// Whether this leftover key is excused, for one of two reasons:
    ///
    /// - A client that had locked the key's resource was killed shortly before the end of the run, so it could not
    ///   release the lock.
    /// - A fault ended only shortly before the end of the run.
    fn abandoned(&self, key: &str) -> bool {
        let finish = self.history.finish().unwrap_or(self.end);
        let before = |time: Duration| finish.saturating_sub(time.as_nanos() as u64);
        let lives = if is_note(key) { NOTE_LIVES + 1 } else { 2 };
        let recent = before(lives * self.scenario.max_ttl);
        // A fault excuses holder's notes and the keys of queues for longer than lock keys, because they expire later.
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
            // A recent fault can have delayed a release. If it moved a clock back, it can have delayed an expiry.
            fault.healed.unwrap_or(self.end) > felt
        })
    }
}

/// Whether the key belongs to one of the resources of this attempt.
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
