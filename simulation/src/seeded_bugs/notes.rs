//! Seeded bugs in the handling of notes: masters that handle notes wrongly.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::memory::Master;
use quorate::node::{Answer, Claim, Request};

use super::request_context::Outcome;
use crate::flaw::Flaw;

/// Returns the reply of a master with a seeded bug in notes; `None` if the bug does not change the reply.
pub(crate) fn execute_note_wrongly(
    flaw: Flaw,
    memory: &mut Master,
    now: u64,
    request: &Request,
) -> Option<Outcome> {
    match (flaw, request) {
        (Flaw::NoteOfAnybody, Request::Note { items }) => {
            for item in items.iter().filter(|item| !item.claim.is_withdrawn()) {
                let key = item.claim.key();
                let lock = memory.peek(now, key);
                let (Some(holder), Some(until)) = (lock.holder, lock.expires) else {
                    continue;
                };
                let remaining = Duration::from_micros(until.saturating_sub(now));
                let dated_note = format!(" {}\t{}", item.since, item.says);
                let text = [holder, dated_note.as_bytes()].concat();
                let note_key = [b"quorate:note:", key].concat();
                memory.put_text(now, &note_key, &text, Some(remaining));
            }
            Some(Ok(Answer::Noted(vec![true; items.len()])))
        }
        (Flaw::NoteLeft, Request::Release { claim, leave }) if claim.is_noted() => {
            if claim.group().is_some() || claim.permit().is_some() {
                return None;
            }
            let unnoted_claim = Claim::new("", claim.key(), claim.token(), true);
            let claim = Arc::new(unnoted_claim.with_fairness(claim.fairness().clone()));
            let leave = *leave;
            Some(memory.apply(now, &Request::Release { claim, leave }))
        }
        _ => None,
    }
}
