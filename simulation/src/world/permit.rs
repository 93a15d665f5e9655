//! Decodes the driver's script calls for semaphores.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Claim, Fairness, Permit, Request, Ticket};

use super::words::{millis, number, text, token};

fn claim(name: &[u8], value: &[u8], slot: (&[u8], u8), place: Fairness) -> Option<Arc<Claim>> {
    let (slot, permits) = (number(slot.0) as u8, slot.1);
    let permit = Permit::new(name.into(), slot, permits);
    let claim = Claim::new("", &permit.key(), token(value)?, true);
    Some(Arc::new(claim.with_permit(permit).with_fairness(place)))
}

fn place(waiter: &[u8], ticket: u64, heartbeat: Duration) -> Fairness {
    Fairness::Fair(Some(Box::new(Ticket {
        waiter: text(waiter).into(),
        number: ticket,
        heartbeat,
    })))
}

/// Decodes the arguments of the script PERMIT; `None` if they are malformed.
pub(super) fn asked(name: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, ttl, proposal, slot, permits, rest @ ..] = args else {
        return None;
    };
    let place = match rest {
        [waiter, ticket, beat] => place(waiter, number(ticket), millis(beat)),
        _ => Fairness::Fair(None),
    };
    Some(Request::Acquire {
        claim: claim(name, value, (slot, number(permits) as u8), place)?,
        ttl: millis(ttl),
        proposal: number(proposal),
    })
}

/// Decodes the arguments of the script that releases a slot; `None` if they are malformed.
pub(super) fn released(name: &[u8], args: &[&[u8]]) -> Option<Request> {
    let [value, slot, rest @ ..] = args else {
        return None;
    };
    let (place, leave) = match rest {
        [waiter, leave] => (place(waiter, 0, Duration::ZERO), *leave == b"1"),
        _ => (Fairness::Fair(None), true),
    };
    Some(Request::Release {
        claim: claim(name, value, (slot, 1), place)?,
        leave,
    })
}
