//! Parses single arguments of a command.

use std::sync::Arc;
use std::time::Duration;

use crate::node::numbers::parse_whole;
use crate::node::redis::layout::ABSENT;
use crate::node::{Claim, Fairness, Ticket, Token};

pub(super) fn text(word: &[u8]) -> Option<&str> {
    std::str::from_utf8(word).ok()
}

pub(super) fn millis(word: &[u8]) -> Option<Duration> {
    parse_whole(word).map(Duration::from_millis)
}

/// A flag: 0 or 1.
pub(super) fn flag(word: &[u8]) -> Option<bool> {
    match word {
        b"0" => Some(false),
        b"1" => Some(true),
        _ => None,
    }
}

pub(super) fn is_absent(word: &[u8]) -> bool {
    word == ABSENT.as_bytes()
}

/// The place in the queue with which a client acquires a lock; no place if the waiter id is absent. The ticket and the
/// heartbeat are then zero.
pub(super) fn fairness_of_waiter(
    waiter: &[u8],
    ticket: &[u8],
    heartbeat: &[u8],
) -> Option<Fairness> {
    if is_absent(waiter) {
        let is_zero = |word: &[u8]| word == b"0";
        return (is_zero(ticket) && is_zero(heartbeat)).then_some(Fairness::Fair(None));
    }
    Some(Fairness::Fair(Some(Box::new(Ticket {
        waiter: text(waiter)?.into(),
        number: parse_whole(ticket)?,
        heartbeat: millis(heartbeat)?,
    }))))
}

/// The place in the queue that a release names; no place if the waiter id is absent. A release carries neither the
/// ticket nor the heartbeat, so both are zero.
pub(super) fn fairness_of_release(waiter: &[u8]) -> Option<Fairness> {
    fairness_of_waiter(waiter, b"0", b"0")
}

/// A claim on one key, with a fencing token.
pub(super) fn fenced_claim(key: &[u8], value: &[u8], fairness: Fairness) -> Option<Claim> {
    Some(Claim::new("", key, Token::from_hex(value)?, true).with_fairness(fairness))
}

/// Shares a claim. If `noted` is true, first records in the claim that its holder has written a note.
pub(super) fn arc_claim(claim: Claim, noted: bool) -> Arc<Claim> {
    if noted {
        claim.take_note();
    }
    Arc::new(claim)
}
