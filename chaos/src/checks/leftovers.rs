//! Checks which keys remain on the masters after the run. The keys are listed at three times:
//!
//! - When all clients have released their locks, masters without a clock are skipped. On the other masters, only three
//!   groups of keys may remain: keys of killed clients; keys that a recent fault kept from being deleted; and keys that
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
pub(crate) const NOTE_LIFETIME_IN_TTLS: u32 = 4;

/// Whether the key stores a holder's note.
pub(crate) fn is_note(key: &str) -> bool {
    key.starts_with("quorate:note:")
}

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut violations = Vec::new();
    let mut report = |t: u64, process: &str, description: String| {
        violations.push(Violation {
            checker: "leftovers".into(),
            from: t,
            to: t,
            processes: vec![process.to_owned()],
            resource: None,
            description,
            excused: None,
        });
    };
    let (mut first_lists, mut ttl_lists, mut note_lists) = (0, 0, 0);
    for entry in &case.history.entries {
        let Event::Keys {
            when,
            left: remaining,
            eternal,
        } = &entry.event
        else {
            continue;
        };
        if !eternal.is_empty() {
            let description = format!("keys without an expiry: {}", first_keys(eternal));
            report(entry.t, &entry.process, description);
        }
        if when == "at-once" {
            first_lists += 1;
            // A killed client could not release its locks, so its keys may remain until they expire.
            let remaining: Vec<String> = remaining
                .iter()
                // Skip the keys that outlive a queue: the ticket counter of each lock, and `quorate:lines`.
                .filter(|key| !key.starts_with("quorate:ticket:") && *key != "quorate:lines")
                .filter(|key| !case.abandoned(key))
                .cloned()
                .collect();
            if !remaining.is_empty() {
                let keys = first_keys(&remaining);
                let text = "keys that still exist after all clients released their locks";
                report(entry.t, &entry.process, format!("{text}: {keys}"));
            }
        } else {
            let notes_expired = when == "after-notes";
            *(if notes_expired {
                &mut note_lists
            } else {
                &mut ttl_lists
            }) += 1;
            let is_late = |key: &&String| notes_expired || !is_note(key);
            let remaining: Vec<String> = remaining.iter().filter(is_late).cloned().collect();
            if !remaining.is_empty() {
                let lifetime = ["TTL", "lifetime of holder's notes"][usize::from(notes_expired)];
                let keys = first_keys(&remaining);
                let text = format!("keys that outlived the {lifetime}: {keys}");
                report(entry.t, &entry.process, text);
            }
        }
    }
    let coverage = format!(
        "masters whose keys were listed: {first_lists} right after the run, {ttl_lists} one TTL later, \
         {note_lists} when all holder's notes had expired"
    );
    let finding = Finding::new("leftovers", coverage, violations);
    if !has_enough_lists(case, first_lists, ttl_lists.min(note_lists)) {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}

/// Whether the keys were listed right after the run, unless no master has a clock, and later on every master that was not
/// stopped for good.
fn has_enough_lists(case: &Case<'_>, first_lists: usize, later_lists: usize) -> bool {
    let nodes = case.scenario.nodes();
    let entries = case.history.entries.iter();
    let retired = entries
        .filter(|entry| entry.event == Event::Retired)
        .count();
    let has_first_lists = first_lists > 0 || !nodes.iter().any(|node| node.has_clock);
    has_first_lists && later_lists >= case.scenario.masters - retired
}

impl Case<'_> {
    /// Whether this leftover key is excused, for one of two reasons:
    ///
    /// - A client that had locked the key's resource was killed shortly before the end of the run, so it could not
    ///   release the lock.
    /// - A fault ended only shortly before the end of the run.
    fn abandoned(&self, key: &str) -> bool {
        let finish = self.history.finish().unwrap_or(self.end);
        let time_before = |time: Duration| finish.saturating_sub(time.as_nanos() as u64);
        let lifetime_in_ttls = if is_note(key) {
            NOTE_LIFETIME_IN_TTLS + 1
        } else {
            2
        };
        let recent_since = time_before(lifetime_in_ttls * self.scenario.max_ttl);
        // A fault excuses holder's notes and the keys of queues for longer than lock keys, because they expire later.
        let affected_since = match self.scenario.settling_time() {
            Some(settling) if !key.starts_with("quorate:") => time_before(settling),
            _ => recent_since,
        };
        self.history.entries.iter().any(|entry| {
            let has_failed =
                matches!(&entry.event, Event::Gone { how, .. } if how != "exit status: 0");
            has_failed
                && entry.t >= recent_since
                && self
                    .attempts
                    .iter()
                    .any(|attempt| attempt.process == entry.process && belongs_to(key, attempt))
        }) || self.faults.iter().any(|fault| {
            // A recent fault can have delayed a release. If it moved a clock back, it can have delayed an expiry.
            fault.healed_at.unwrap_or(self.end) > affected_since
        })
    }
}

/// Whether the key belongs to one of the resources of this attempt.
fn belongs_to(key: &str, attempt: &Attempt) -> bool {
    attempt.resources().any(|resource| {
        let prefix = key.strip_suffix(resource);
        prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with(':'))
    })
}

fn first_keys(keys: &[String]) -> String {
    let shown_keys: Vec<&str> = keys.iter().take(5).map(String::as_str).collect();
    match keys.len() {
        0..=5 => shown_keys.join(", "),
        count => format!("{} and {} more", shown_keys.join(", "), count - 5),
    }
}
