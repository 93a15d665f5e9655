//! Decodes the script calls of the driver for locks on several keys and for shared locks.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::{
    Claim, Class, ExtendItem, Fairness, Group, Mode, Part, Request, Ticket, Token,
};

use super::words::{millis, number, text, token};

/// The beginning of the lock key's value while an owner holds the lock; the owner's id follows.
const OWNER: &[u8] = b"quorate:owner:";

fn mode(word: &[u8]) -> Mode {
    if word == b"x" {
        return Mode::Exclusive;
    }
    match word.strip_prefix(OWNER) {
        Some(id) => Mode::Class(Class::Owner(text(id).into())),
        None => Mode::Class(Class::Shared),
    }
}

fn group(keys: &[&[u8]], modes: &[&[u8]]) -> Group {
    let part = |(key, word): (&&[u8], &&[u8])| Part {
        key: (*key).into(),
        mode: mode(word),
    };
    Group::new(keys.iter().zip(modes).map(part).collect())
}

fn claim(keys: &[&[u8]], value: Token, group: Group, fairness: Fairness) -> Option<Arc<Claim>> {
    let claim = Claim::new("", keys.first()?, value, true);
    Some(Arc::new(claim.with_group(group).with_fairness(fairness)))
}

fn place(waiter: &[u8], ticket: u64, heartbeat: Duration) -> Fairness {
    let ticket = (!waiter.is_empty()).then(|| {
        Box::new(Ticket {
            waiter: text(waiter).into(),
            number: ticket,
            heartbeat,
        })
    });
    Fairness::Fair(ticket)
}

/// Decodes the arguments of the script CLAIM.
pub(super) fn claimed(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let [
        value,
        ttl,
        proposal,
        instead,
        waiter,
        ticket,
        beat,
        modes @ ..,
    ] = args
    else {
        return None;
    };
    let mut group = group(keys, modes);
    if !instead.is_empty() {
        group = group.instead_of(token(instead)?);
    }
    let place = place(waiter, number(ticket), millis(beat));
    Some(Request::Acquire {
        claim: claim(keys, token(value)?, group, place)?,
        ttl: millis(ttl),
        proposal: number(proposal),
    })
}

/// Decodes the arguments of the script CONFIRM, for a lock on several keys or for a shared lock.
pub(super) fn confirmed(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let [value, agreed, modes @ ..] = args else {
        return None;
    };
    let group = group(keys, modes);
    Some(Request::Confirm {
        claim: claim(keys, token(value)?, group, Fairness::Unordered)?,
        token: number(agreed),
    })
}

/// Decodes the arguments of the script UNCLAIM.
pub(super) fn released(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let [value, waiter, leave, modes @ ..] = args else {
        return None;
    };
    let place = place(waiter, 0, Duration::ZERO);
    Some(Request::Release {
        claim: {
            let claim = claim(keys, token(value)?, group(keys, modes), place)?;
            if number(leave) >= 2 {
                claim.take_note();
            }
            claim
        },
        leave: number(leave) % 2 == 1,
    })
}

/// Decodes the arguments of the script KEEP. Consecutive keys with the same lock value belong to one lock.
pub(super) fn kept(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let (args, []) = args.as_chunks::<4>() else {
        return None;
    };
    let mut items = Vec::new();
    let mut at = 0;
    while let Some([value, ttl, first, agreed]) = args.get(at) {
        let same = args[at..].iter().take_while(|one| one[0] == *value).count();
        let keys = keys.get(at..at + same)?;
        let modes: Vec<&[u8]> = args[at..at + same].iter().map(|one| one[2]).collect();
        let value = token(value)?;
        let claim = if same == 1 && *first == b"x" {
            Arc::new(Claim::new("", keys[0], value, true))
        } else {
            let group = group(keys, &modes);
            group.agreed(number(agreed));
            claim(keys, value, group, Fairness::Unordered)?
        };
        if *ttl == b"0" {
            claim.withdraw();
        }
        let ttl = millis(ttl);
        items.push(ExtendItem {
            claim,
            ttl,
            note: false,
        });
        at += same;
    }
    Some(Request::Extend {
        items: items.into(),
    })
}
