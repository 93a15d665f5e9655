//! Parses the calls of scripts for locks on one key, for notes, for values and for semaphores.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::arguments::{
    arc_claim, fairness_of_release, fairness_of_waiter, fenced_claim, flag, is_absent, millis, text,
};
use crate::keys;
use crate::node::note::split_start;
use crate::node::numbers::parse_whole;
use crate::node::redis::layout::{WITH_NOTE, WITHDRAWN_TTL};
use crate::node::{
    Claim, Ended, ExtendItem, Fairness, NewValue, NoteItem, Page, Permit, Request, ServerRun, Token,
};
use crate::protocol::instant::Instant;

/// The lock value of a parsed WRITE, whose script has no such argument.
const NO_VALUE: [u8; 16] = [0; 16];

pub(super) fn acquire(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, ttl, proposal] = args else {
        return None;
    };
    Some(Request::Acquire {
        claim: arc_claim(fenced_claim(key, value, Fairness::Unordered)?, false),
        ttl: millis(ttl)?,
        proposal: parse_whole(proposal)?,
    })
}

pub(super) fn classic(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, ttl] = args else {
        return None;
    };
    Some(Request::Acquire {
        claim: Arc::new(Claim::new("", key, Token::from_hex(value)?, false)),
        ttl: millis(ttl)?,
        proposal: 0,
    })
}

pub(super) fn acquire_fair(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, ttl, proposal, waiter @ ..] = args else {
        return None;
    };
    Some(Request::Acquire {
        claim: arc_claim(
            fenced_claim(key, value, fairness_of_optional_waiter(waiter)?)?,
            false,
        ),
        ttl: millis(ttl)?,
        proposal: parse_whole(proposal)?,
    })
}

/// The place in the queue from the last arguments of an acquire; no place if they are missing.
fn fairness_of_optional_waiter(args: &[&[u8]]) -> Option<Fairness> {
    match args {
        [waiter, ticket, heartbeat] => fairness_of_waiter(waiter, ticket, heartbeat),
        [] => Some(Fairness::Fair(None)),
        _ => None,
    }
}

pub(super) fn confirm(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, token] = args else {
        return None;
    };
    Some(Request::Confirm {
        claim: arc_claim(fenced_claim(key, value, Fairness::Unordered)?, false),
        token: parse_whole(token)?,
    })
}

/// Parses the release of a lock without a queue. The server's command DELIFEQ has the same arguments.
pub(super) fn release(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, noted @ ..] = args else {
        return None;
    };
    let noted = match noted {
        [] => false,
        [noted] => flag(noted).filter(|noted| *noted)?,
        _ => return None,
    };
    Some(Request::Release {
        claim: arc_claim(fenced_claim(key, value, Fairness::Unordered)?, noted),
        leave: true,
    })
}

pub(super) fn release_fair(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, rest @ ..] = args else {
        return None;
    };
    let (fairness, leave, noted) = read_release_tail(rest)?;
    Some(Request::Release {
        claim: arc_claim(fenced_claim(key, value, fairness)?, noted),
        leave,
    })
}

/// Parses the optional arguments of a release: the place in the queue, whether the waiter leaves the queue, and whether
/// a note was written. A client without a place leaves no queue, so `leave` is then true.
fn read_release_tail(args: &[&[u8]]) -> Option<(Fairness, bool, bool)> {
    let (waiter, leave, noted) = match args {
        [] => return Some((Fairness::Fair(None), true, false)),
        [waiter, leave] => (waiter, leave, false),
        [waiter, leave, noted] => (waiter, leave, flag(noted).filter(|noted| *noted)?),
        _ => return None,
    };
    let leaves = flag(leave)?;
    if is_absent(waiter) && leaves {
        return None;
    }
    let leave = is_absent(waiter) || leaves;
    Some((fairness_of_release(waiter)?, leave, noted))
}

pub(super) fn extend(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let (args, []) = args.as_chunks::<2>() else {
        return None;
    };
    let item = |(key, [value, ttl]): (&&[u8], &[&[u8]; 2])| {
        let with_note = ttl.strip_prefix(WITH_NOTE.as_bytes());
        let note = with_note.is_some();
        let ttl = parse_whole(with_note.unwrap_or(ttl))?;
        let claim = arc_claim(fenced_claim(key, value, Fairness::Unordered)?, note);
        if ttl == WITHDRAWN_TTL {
            claim.withdraw();
        }
        let ttl = Duration::from_millis(ttl);
        Some(ExtendItem::new(claim, ttl).note(note))
    };
    let items = keys.iter().zip(args).map(item);
    Some(Request::Extend {
        items: items.collect::<Option<_>>()?,
    })
}

/// Parses a call of STATUS. Only if the lock is a slot of a semaphore, the call also names the queue.
pub(super) fn status(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let is_named = match keys::queue_name_of(key) {
        Cow::Borrowed(_) => args.is_empty(),
        Cow::Owned(queue) => *args == [queue],
    };
    is_named.then(|| Request::Status { key: key.into() })
}

pub(super) fn force_release(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [queue, delete, ended @ ..] = args else {
        return None;
    };
    if *keys::queue_name_of(key) != **queue {
        return None;
    }
    let (ended, []) = ended.as_chunks::<2>() else {
        return None;
    };
    let ended = ended
        .iter()
        .map(|[value, record]| Ended::new(value, record));
    Some(Request::Break {
        key: key.into(),
        ended: ended.collect(),
        delete: flag(delete)?,
    })
}

/// Parses a call of NOTE. The request has one item for each key, also if the client has sent an item with several keys.
pub(super) fn note(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let (args, []) = args.as_chunks::<3>() else {
        return None;
    };
    let item = |(key, [value, note, announce]): (&&[u8], &[&[u8]; 3])| {
        let claim = fenced_claim(key, value, Fairness::Unordered)?;
        let (since, says) = if is_absent(note) {
            claim.withdraw();
            (0, "")
        } else {
            split_start(text(note)?)?
        };
        Some(NoteItem {
            claim: Arc::new(claim),
            says: says.into(),
            since,
            announce: flag(announce)?,
        })
    };
    let items = keys.iter().zip(args).map(item);
    Some(Request::Note {
        items: items.collect::<Option<_>>()?,
    })
}

pub(super) fn read(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, token] = args else {
        return None;
    };
    Some(Request::Read {
        claim: arc_claim(fenced_claim(key, value, Fairness::Unordered)?, false),
        token: parse_whole(token)?,
    })
}

/// Parses a call of WRITE. The script has no argument for the lock value, so the claim has the value 0.
pub(super) fn write(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [token, run, bytes @ ..] = args else {
        return None;
    };
    let claim = Claim::new("", key, Token::from_bytes(NO_VALUE), true);
    Some(Request::Write {
        claim: Arc::new(claim),
        token: parse_whole(token)?,
        value: Arc::new(NewValue {
            bytes: bytes.first().map(|bytes| (*bytes).into()),
            until: Instant::from_nanos(u64::MAX),
            run: Some(ServerRun::new(text(run)?)),
        }),
    })
}

pub(super) fn permit(name: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, ttl, proposal, slot, permits, waiter @ ..] = args else {
        return None;
    };
    let permits = u8::try_from(parse_whole(permits)?).ok()?;
    Some(Request::Acquire {
        claim: arc_claim(
            claim_on_slot(
                name,
                value,
                (slot, permits),
                fairness_of_optional_waiter(waiter)?,
            )?,
            false,
        ),
        ttl: millis(ttl)?,
        proposal: parse_whole(proposal)?,
    })
}

/// Parses the release of a slot. The script has no argument for the number of slots, so the claim has one slot.
pub(super) fn release_permit(name: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, slot, rest @ ..] = args else {
        return None;
    };
    let (fairness, leave, noted) = read_release_tail(rest)?;
    Some(Request::Release {
        claim: arc_claim(claim_on_slot(name, value, (slot, 1), fairness)?, noted),
        leave,
    })
}

fn claim_on_slot(
    name: &[u8],
    value: &[u8],
    (slot, permits): (&[u8], u8),
    fairness: Fairness,
) -> Option<Claim> {
    let slot = u8::try_from(parse_whole(slot)?).ok()?;
    let permit = Permit::new(name.into(), slot, permits);
    Some(fenced_claim(&permit.key(), value, fairness)?.with_permit(permit))
}

pub(super) fn list(cursor: &[u8], pattern: &[u8], count: &[u8]) -> Option<Request> {
    Some(Request::List {
        page: Arc::new(Page {
            pattern: pattern.into(),
            cursor: parse_whole(cursor)?,
            count: u32::try_from(parse_whole(count)?).ok()?,
        }),
    })
}
