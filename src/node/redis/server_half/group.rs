//! Parses the calls of scripts for groups: locks on several keys, and locks on one key that readers or the holds of an
//! owner share.

use std::time::Duration;

use super::arguments::{
    arc_claim, fairness_of_release, fairness_of_waiter, fenced_claim, is_absent, millis,
};
use crate::node::numbers::parse_whole;
use crate::node::redis::layout::{LEAVES_QUEUES_FLAG, NOTED_FLAG, WITHDRAWN_TTL};
use crate::node::{Claim, ExtendItem, Fairness, Group, Mode, Part, Request, Token};

fn read_group(keys: &[&[u8]], modes: &[&[u8]]) -> Option<Group> {
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
    Some(fenced_claim(keys.first()?, value, fairness)?.with_group(group))
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
    let mut group = read_group(keys, modes)?;
    if !is_absent(instead) {
        group = group.instead_of(Token::from_hex(instead)?);
    }
    let fairness = fairness_of_waiter(waiter, ticket, heartbeat)?;
    Some(Request::Acquire {
        claim: arc_claim(claim_on(keys, value, group, fairness)?, false),
        ttl: millis(ttl)?,
        proposal: parse_whole(proposal)?,
    })
}

pub(super) fn confirm(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let [value, token, modes @ ..] = args else {
        return None;
    };
    let group = read_group(keys, modes)?;
    Some(Request::Confirm {
        claim: arc_claim(claim_on(keys, value, group, Fairness::Unordered)?, false),
        token: parse_whole(token)?,
    })
}

pub(super) fn release(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let [value, waiter, flags, modes @ ..] = args else {
        return None;
    };
    let flags = parse_whole(flags)?;
    if flags & !(LEAVES_QUEUES_FLAG | NOTED_FLAG) != 0 {
        return None;
    }
    let claim = claim_on(
        keys,
        value,
        read_group(keys, modes)?,
        fairness_of_release(waiter)?,
    )?;
    Some(Request::Release {
        claim: arc_claim(claim, flags & NOTED_FLAG != 0),
        leave: flags & LEAVES_QUEUES_FLAG != 0,
    })
}

/// Parses a call of KEEP. Consecutive keys with the same lock value belong to one lock.
pub(super) fn keep(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let (args, []) = args.as_chunks::<4>() else {
        return None;
    };
    let mut items = Vec::new();
    let mut start = 0;
    while let Some([value, ttl, ..]) = args.get(start) {
        let count = args[start..]
            .iter()
            .take_while(|arg_of_key| arg_of_key[0] == *value);
        let end = start + count.count();
        let claim = extended_claim(keys.get(start..end)?, &args[start..end])?;
        let ttl = parse_whole(ttl)?;
        if ttl == WITHDRAWN_TTL {
            claim.withdraw();
        }
        let ttl = Duration::from_millis(ttl);
        items.push(ExtendItem::new(arc_claim(claim, false), ttl));
        start = end;
    }
    Some(Request::Extend {
        items: items.into(),
    })
}

/// The claim of one lock in a call of KEEP. A lock on one exclusive key without a fencing number is a plain lock.
fn extended_claim(keys: &[&[u8]], args: &[[&[u8]; 4]]) -> Option<Claim> {
    let [value, _, _, number] = args.first()?;
    let number = parse_whole(number)?;
    let modes: Vec<&[u8]> = args.iter().map(|[_, _, mode, _]| *mode).collect();
    let group = read_group(keys, &modes)?;
    if let ([part], 0) = (group.parts(), number)
        && part.mode == Mode::Exclusive
    {
        return fenced_claim(&part.key, value, Fairness::Unordered);
    }
    group.agreed(number);
    claim_on(keys, value, group, Fairness::Unordered)
}
