//! Decodes the commands that the library's driver sends, and returns the requests that these commands contain.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Claim, ExtendItem, Fairness, Request, Ticket};
use quorate::testing::Script;

use super::words::{millis, number, text, token};
use super::{deletion, group, many, notes, permit, register};

/// The requests that one command carries.
pub(super) enum Asked {
    One(Request),
    Many(Vec<Request>),
}

/// Returns the requests in a command; `None` if the driver never sends such a command.
pub(super) fn asked(words: &[&[u8]]) -> Option<Asked> {
    match words {
        [b"SET", key, value, b"NX", b"PX", ttl] => classic(key, &[value, ttl]).map(Asked::One),
        [b"EVALSHA", sha, keys, rest @ ..] => {
            let (keys, args) = rest.split_at_checked(number(keys) as usize)?;
            let script = script_of(sha)?;
            let fits = script.takes(keys.len(), args.len());
            fits.then(|| scripted(script, keys, args))?
        }
        words => deletion::release(words).map(Asked::One),
    }
}

/// Returns the script with this simulated SHA; `None` if there is none.
pub(super) fn script_of(sha: &[u8]) -> Option<Script> {
    let script = number(sha.last_chunk::<2>()?) as usize;
    Script::ALL.get(script).copied()
}

fn scripted(script: Script, keys: &[&[u8]], args: &[&[u8]]) -> Option<Asked> {
    let key = *keys.first()?;
    let one = match script {
        Script::Acquire => acquire(key, args),
        Script::Classic => classic(key, args),
        Script::AcquireFair => acquire_fair(key, args),
        Script::Confirm => confirm(key, args),
        Script::Release => release(key, args),
        Script::ReleaseFair => release_fair(key, args),
        Script::Extend => extend(keys, args),
        // Simulated clients send no BREAK (force-release), and LOOK (status) only without arguments.
        Script::Look => args.is_empty().then(|| notes::looked(key)),
        // The simulated server executes the script of the age record elsewhere (`World::raise_age`).
        Script::Break | Script::Age => None,
        Script::Note => notes::noted(keys, args),
        Script::Read => register::read(key, args),
        Script::Write => register::write(key, args),
        Script::Claim => group::claimed(keys, args),
        Script::ConfirmGroup => group::confirmed(keys, args),
        Script::Unclaim => group::released(keys, args),
        Script::Keep => group::kept(keys, args),
        Script::Permit => permit::asked(key, args),
        Script::ReleasePermit => permit::released(key, args),
        Script::AcquireMany => return many::asked(keys, args).map(Asked::Many),
        Script::ReleaseMany => return many::released(keys, args).map(Asked::Many),
    };
    one.map(Asked::One)
}

fn claim(key: &[u8], value: &[u8], fenced: bool, fairness: Fairness) -> Option<Arc<Claim>> {
    Some(Arc::new(
        Claim::new("", key, token(value)?, fenced).with_fairness(fairness),
    ))
}

/// Returns a claim on one key, with a fencing token and without a place in the lock's queue.
fn alone(key: &[u8], value: &[u8]) -> Option<Arc<Claim>> {
    claim(key, value, true, Fairness::Unordered)
}

/// Returns `claim`. If `noted` is true, first records in the claim that its holder has stored a note.
fn with_note(claim: Arc<Claim>, noted: bool) -> Arc<Claim> {
    if noted {
        claim.take_note();
    }
    claim
}

fn acquire(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, ttl, proposal] = args else {
        return None;
    };
    Some(Request::Acquire {
        claim: alone(key, value)?,
        ttl: millis(ttl),
        proposal: number(proposal),
    })
}

fn classic(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, ttl] = args else {
        return None;
    };
    Some(Request::Acquire {
        claim: claim(key, value, false, Fairness::Unordered)?,
        ttl: millis(ttl),
        proposal: 0,
    })
}

fn acquire_fair(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, ttl, proposal, place @ ..] = args else {
        return None;
    };
    let place = match place {
        [waiter, ticket, heartbeat] => Some(Box::new(Ticket {
            waiter: text(waiter).into(),
            number: number(ticket),
            heartbeat: millis(heartbeat),
        })),
        _ => None,
    };
    Some(Request::Acquire {
        claim: claim(key, value, true, Fairness::Fair(place))?,
        ttl: millis(ttl),
        proposal: number(proposal),
    })
}

fn confirm(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, agreed] = args else {
        return None;
    };
    Some(Request::Confirm {
        claim: alone(key, value)?,
        token: number(agreed),
    })
}

fn release(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, noted @ ..] = args else {
        return None;
    };
    Some(Request::Release {
        claim: with_note(alone(key, value)?, !noted.is_empty()),
        leave: true,
    })
}

fn release_fair(key: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, rest @ ..] = args else {
        return None;
    };
    let noted = rest.len() == 3;
    let (place, leave) = match rest {
        [waiter, leave, ..] if !waiter.is_empty() => {
            let place = Ticket {
                waiter: text(waiter).into(),
                number: 0,
                heartbeat: Duration::ZERO,
            };
            (Some(Box::new(place)), *leave == b"1")
        }
        _ => (None, true),
    };
    Some(Request::Release {
        claim: with_note(claim(key, value, true, Fairness::Fair(place))?, noted),
        leave,
    })
}

fn extend(keys: &[&[u8]], args: &[&[u8]]) -> Option<Request> {
    let item = |(key, pair): (&&[u8], &[&[u8]])| -> Option<ExtendItem> {
        let claim = alone(key, pair[0])?;
        if pair[1] == b"0" {
            claim.withdraw();
        }
        let noted = pair[1].strip_prefix(b"-");
        let claim = with_note(claim, noted.is_some());
        let (ttl, note) = (millis(noted.unwrap_or(pair[1])), noted.is_some());
        Some(ExtendItem { claim, ttl, note })
    };
    let items = keys.iter().zip(args.chunks(2)).map(item);
    Some(Request::Extend {
        items: items.collect::<Option<_>>()?,
    })
}
