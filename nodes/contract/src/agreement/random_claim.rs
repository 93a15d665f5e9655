//! The claims that random operations use.

use std::sync::Arc;

use quorate::node::{Claim, Class, Fairness, Group, Mode, Part, Permit, Ticket};

use super::times::{Times, WAITERS};
use super::wake_ups::PROCESS;
use crate::requests::{self, claim, classic};

pub(super) const KEYS: [&[u8]; 2] = [b"a", b"b"];

/// The tickets of the four waiters, which determine their order in the queue. Two waiters have the same ticket.
const TICKETS: [u64; WAITERS] = [3, 1, 3, 7];

/// The claim that an operation uses. Only a few different claims exist, so that several operations use the same keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct RandomClaim {
    pub(super) key: usize,
    pub(super) token: u8,
    pub(super) kind: ClaimKind,
    pub(super) withdrawn: bool,
    pub(super) noted: bool,
}

/// How a claim waits for its lock and which kind of lock it asks for.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClaimKind {
    Classic,
    Unordered,
    /// The claim has no ticket, and is refused while waiters are queued for the lock.
    Try,
    /// The claim is queued in order of arrival. The index selects one of a few waiters, each with a fixed ticket.
    Waiter(usize),
    /// The first field is the index of an entry of [`SHAPES`]: the claim is for the keys of this entry. The second
    /// field is the index of the waiter whose ticket the claim has (`None`: no ticket).
    Group(usize, Option<usize>),
    /// Requests the slot with this number. The second field is the index of the waiter whose ticket the claim has
    /// (`None`: no ticket).
    Permit(u8, Option<usize>),
}

/// How a claim holds one key of a group.
#[derive(Clone, Copy)]
pub(super) enum KeyMode {
    Exclusive,
    Reader,
    Owner(&'static str),
}

/// The groups of keys that a claim can lock, with the mode of each key.
pub(super) const SHAPES: [&[(usize, KeyMode)]; 7] = [
    &[(0, KeyMode::Exclusive), (1, KeyMode::Exclusive)],
    &[(1, KeyMode::Exclusive), (0, KeyMode::Exclusive)],
    &[(0, KeyMode::Reader)],
    &[(0, KeyMode::Reader)],
    &[(0, KeyMode::Reader), (1, KeyMode::Exclusive)],
    &[(0, KeyMode::Owner("one"))],
    &[(0, KeyMode::Owner("two"))],
];

fn group(shape: usize) -> Group {
    let part = |(key, mode): &(usize, KeyMode)| Part {
        key: KEYS[*key].into(),
        mode: match mode {
            KeyMode::Exclusive => Mode::Exclusive,
            KeyMode::Reader => Mode::Class(Class::Shared),
            KeyMode::Owner(id) => Mode::Class(Class::Owner((*id).into())),
        },
    };
    Group::new(SHAPES[shape].iter().map(part).collect())
}

fn ticket(waiter: usize, times: &Times) -> Ticket {
    // The ids of two of the four waiters contain a description: the host, the process id, and the time at which the
    // wait began.
    let description = ["", "/host:1:1763000000500"][waiter / 2];
    Ticket {
        waiter: format!("{PROCESS}:{waiter}{description}").into(),
        number: TICKETS[waiter],
        heartbeat: times.heartbeats[waiter],
    }
}

impl RandomClaim {
    /// Makes the claim, with the heartbeat times in `times`.
    pub(super) fn claim(self, times: &Times) -> Arc<Claim> {
        let key = match self.kind {
            ClaimKind::Group(shape, _) => KEYS[SHAPES[shape][0].0],
            ClaimKind::Permit(slot, waiter) => {
                let permit = Permit::new(KEYS[0].into(), slot, 3);
                let plain_claim = Claim::new("", &permit.key(), requests::token(self.token), true);
                let ticket = waiter.map(|waiter| Box::new(ticket(waiter, times)));
                let claim = plain_claim.with_fairness(Fairness::Fair(ticket));
                let claim = Arc::new(claim.with_permit(permit));
                if self.withdrawn {
                    claim.withdraw();
                }
                return claim;
            }
            _ => KEYS[self.key],
        };
        let token = self.token;
        let fair_claim = |ticket: Option<Ticket>| {
            let plain_claim = Claim::new("", key, requests::token(token), true);
            Arc::new(plain_claim.with_fairness(Fairness::Fair(ticket.map(Box::new))))
        };
        let claim = match self.kind {
            ClaimKind::Classic => classic(key, token),
            ClaimKind::Unordered => claim(key, token),
            ClaimKind::Try => fair_claim(None),
            ClaimKind::Waiter(waiter) => fair_claim(Some(ticket(waiter, times))),
            ClaimKind::Permit(..) => unreachable!("made above"),
            ClaimKind::Group(shape, waiter) => {
                let plain_claim = Claim::new("", key, requests::token(token), true);
                let ticket = Fairness::Fair(waiter.map(|waiter| Box::new(ticket(waiter, times))));
                // In these tests, the holder with token 1 downgrades its exclusive lock with a claim that has token 4.
                let group = match token {
                    4 => group(shape).instead_of(requests::token(1)),
                    _ => group(shape),
                };
                Arc::new(plain_claim.with_fairness(ticket).with_group(group))
            }
        };
        if self.withdrawn {
            claim.withdraw();
        }
        if self.noted {
            claim.take_note();
        }
        claim
    }
}
