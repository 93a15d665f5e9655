//! Parses the calls of scripts for groups: locks on several keys, and locks on one key that readers or the holds of an
//! owner share.

use std::time::Duration;

use super::arguments::{fenced, is_absent, millis, place, place_of_release, shared};
use crate::node::numbers::whole;
use crate::node::redis::layout::{LEAVES, NOTED, WITHDRAWN_TTL};
use crate::node::{Claim, ExtendItem, Fairness, Group, Mode, Part, Request, Token};

fn group(keys: &[&[u8]], modes: &[&[u8]]) -> Option<Group> {
    let part = |(key, word): (&&[u8], &&[u8])| {
        Some(Part {
            key: (*key).into(),
            mode: Mode::read(word)?,
        })
    };
    let parts = keys.iter().zip(modes).map(part);
    Some(Group::new(parts.collect::<Option<_>>()?))
}

fn claim_on(keys: &[&[u8]], value: &[u8], group: Group, fairness: Fairness) -> Option<Claim> {
    Some(fenced(keys.first()?, value, fairness)?.with_group(group))
}

pub(super) fn claim(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let [
        value,
        ttl,
        proposal,
        instead,
        waiter,
        ticket,
        heartbeat,
        modes @ ..,
    ] = args
    else {
        return None;
    };
    let mut group = group(keys, modes)?;
    if !is_absent(instead) {
        group = group.instead_of(Token::from_hex(instead)?);
    }
    let fairness = place(waiter, ticket, heartbeat)?;
    Some(Request::Acquire {
        claim: shared(claim_on(keys, value, group, fairness)?, false),
        ttl: millis(ttl)?,
        proposal: whole(proposal)?,
    })
}

pub(super) fn confirm(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let [value, token, modes @ ..] = args else {
        return None;
    };
    let group = group(keys, modes)?;
    Some(Request::Confirm {
        claim: shared(claim_on(keys, value, group, Fairness::Unordered)?, false),
        token: whole(token)?,
    })
}

pub(super) fn release(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let [value, waiter, flags, modes @ ..] = args else {
        return None;
    };
    let flags = whole(flags)?;
    let claim = claim_on(keys, value, group(keys, modes)?, place_of_release(waiter)?)?;
    Some(Request::Release {
        claim: shared(claim, flags & NOTED != 0),
        leave: flags & LEAVES != 0,
    })
}

/// Parses a call of KEEP. Consecutive keys with the same lock value belong to one lock.
pub(super) fn keep(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let (args, []) = args.as_chunks::<4>() else {
        return None;
    };
    let mut items = Vec::new();
    let mut at = 0;
    while let Some([value, ttl, ..]) = args.get(at) {
        let count = args[at..].iter().take_while(|one| one[0] == *value);
        let end = at + count.count();
        let claim = kept(keys.get(at..end)?, &args[at..end])?;
        let ttl = whole(ttl)?;
        if ttl == WITHDRAWN_TTL {
            claim.withdraw();
        }
        items.push(ExtendItem {
            claim: shared(claim, false),
            ttl: Duration::from_millis(ttl),
            note: false,
        });
        at = end;
    }
    Some(Request::Extend {
        items: items.into(),
    })
}

/// The claim of one lock in a call of KEEP. A lock on one exclusive key without a fencing number is a plain lock.
fn kept(keys: &[&[u8]], args: &[[&[u8]; 4]]) -> Option<Claim> {
    let [value, _, _, number] = args.first()?;
    let number = whole(number)?;
    let modes: Vec<&[u8]> = args.iter().map(|[_, _, mode, _]| *mode).collect();
    let group = group(keys, &modes)?;
    if let ([part], 0) = (group.parts(), number)
        && part.mode == Mode::Exclusive
    {
        return fenced(&part.key, value, Fairness::Unordered);
    }
    group.agreed(number);
    claim_on(keys, value, group, Fairness::Unordered)
}
