//! Claims on several locks, and holds that share a lock, on a master in memory. This code does what `claim.lua`,
//! `confirm_group.lua`, `unclaim.lua` and `keep.lua` do on a server.

use std::sync::Arc;
use std::time::Duration;

use super::master::{Master, Member, granted_before, raised, shown_value};
use super::note::shown_of;
use crate::keys;
use crate::node::shape::is_reader;
use crate::node::{
    Answer, Claim, Class, Extended, Fault, Group, Hold, Note, Part, QueueInfo, Ticket, Token,
};

/// The largest number of processes that are woken when a lock becomes available to several waiters.
const WOKEN: usize = 64;

/// The largest number of waiters that are examined to find the processes to wake.
const LOOKED_AT: usize = 256;

/// The largest number of holds that one reply about the state of a lock lists.
pub(super) const SHOWN: usize = 100;

/// The lock or the waiter that prevents a grant.
///
/// - `left` is the time until this lock or waiter expires if it is not renewed; `None` if it never expires.
/// - `holder` is the value of the lock key; `None` if the key does not exist.
struct Obstacle {
    left: Option<Duration>,
    holder: Option<Vec<u8>>,
}

/// Whether `held`, the value of a lock key, is the random value of the exclusive lock that this claim replaces. A claim
/// replaces a lock if a writer becomes a reader.
fn is_replaced(group: &Group, held: Option<&[u8]>) -> bool {
    let instead = group.instead().map(Token::to_hex);
    instead.is_some_and(|instead| held == Some(&instead[..]))
}

/// Whether `part` can share its key with the current holders: both are readers, or both belong to the same owner.
/// `held` is the value of the lock key.
fn joins(part: &Part, held: Option<&[u8]>) -> bool {
    let class = part.class();
    class.is_some_and(|class| held == Some(&class.marker()[..]))
}

/// Whether a claim can share all its keys with their current holders. `held` has the value of each key, in the order of
/// `group.parts()`.
fn joins_all(group: &Group, held: &[Option<Vec<u8>>]) -> bool {
    let mut keys = group.parts().iter().zip(held);
    keys.all(|(part, held)| joins(part, held.as_deref()))
}

impl Master {
    pub(super) fn claim(
        &mut self,
        now: u64,
        claim: &Claim,
        group: &Group,
        ttl: Duration,
        proposal: u64,
    ) -> Result<Answer, Fault> {
        // Read all keys first: the claim gets all of them or none.
        let value = claim.token().to_hex();
        let mut held = Vec::new();
        let (mut mine, mut counter) = (0, 0);
        for part in group.parts() {
            let holder = self.text(now, &part.key)?.map(<[u8]>::to_vec);
            counter = counter.max(self.counter(now, &part.key)?);
            mine += usize::from(self.is_ours_in(now, part, holder.as_deref(), value));
            held.push(holder);
        }
        // A repeated claim gets the same number, and its places in the queues again.
        if mine == group.parts().len() {
            let place = claim.ticket().filter(|_| group.instead().is_none());
            for part in group.parts().iter().filter(|_| place.is_some()) {
                self.restore_place(now, part, place);
            }
            return granted_before(claim.key(), counter);
        }
        // Join the queue of every key, also behind an obstacle, and remember the first obstacle.
        let mut line = QueueInfo::default();
        let mut way = None;
        for (part, held) in group.parts().iter().zip(&held) {
            // A claim that turns the client's own exclusive lock into a reader's lock does not wait in the queue.
            let place = claim.ticket().filter(|_| group.instead().is_none());
            let ahead = self.join_queue(now, part, held.as_deref(), place, &mut line);
            let ahead = ahead.filter(|_| !is_replaced(group, held.as_deref()));
            let obstacle = self.obstacle(now, part, held.as_deref(), claim, group)?;
            if way.is_none() {
                way = obstacle.or(ahead).map(|obstacle| (&part.key, obstacle));
            }
        }
        if let Some((key, Obstacle { left, holder })) = way {
            line.note = self.note_of(now, key, holder.as_deref());
            line.holder = holder.as_deref().map(shown_value);
            return Ok(Answer::Refused {
                ttl_left: left,
                line: Some(Box::new(line)),
            });
        }
        // The holds to join have lost their counter, so there is no number for this hold.
        if counter == 0 && joins_all(group, &held) {
            return granted_before(claim.key(), counter);
        }
        let number = self.grant_all(now, claim, group, &held, (ttl, proposal, counter));
        let counter = Some(number);
        Ok(Answer::Granted { counter })
    }

    /// Takes every key of the claim, and returns the fencing number of the grant. The caller must have checked that all
    /// keys can be granted.
    fn grant_all(
        &mut self,
        now: u64,
        claim: &Claim,
        group: &Group,
        held: &[Option<Vec<u8>>],
        (ttl, proposal, counter): (Duration, u64, u64),
    ) -> u64 {
        let value = claim.token().to_hex();
        let joins = joins_all(group, held);
        let number = if joins {
            counter
        } else {
            raised(self.date(now), proposal, counter)
        };
        for (part, held) in group.parts().iter().zip(held) {
            if !joins {
                self.set_counter(now, &part.key, number);
            }
            let replaced = part.class().is_some() && is_replaced(group, held.as_deref());
            if replaced {
                self.drop_note(now, &part.key);
            }
            if replaced && let Some(ticket) = claim.ticket() {
                let waiter = ticket.waiter.clone();
                self.line(now / 1000, &part.key).remove(&waiter);
                self.sweep(&part.key);
            }
            self.enter(now, part, held.as_deref(), value, ttl);
        }
        number
    }

    /// Renews the waiter's place in the queue of one key.
    fn restore_place(&mut self, now: u64, part: &Part, ticket: Option<&Ticket>) {
        if let Some(ticket) = ticket {
            let waiter = part.mode.place(&ticket.waiter);
            let ticket = Ticket {
                waiter,
                ..ticket.clone()
            };
            self.line(now / 1000, &part.key)
                .keep_place(&ticket, now / 1000);
        }
    }

    /// Adds the waiter to the queue of one key if the claim has a ticket. Writes the state of the queue to `seen`.
    /// Returns the queued waiter for which the claim must wait; `None` if there is none.
    fn join_queue(
        &mut self,
        now: u64,
        part: &Part,
        held: Option<&[u8]>,
        ticket: Option<&Ticket>,
        seen: &mut QueueInfo,
    ) -> Option<Obstacle> {
        let ms = now / 1000;
        let me = ticket.map(|ticket| part.mode.place(&ticket.waiter));
        let line = self.line(ms, &part.key);
        if let (Some(ticket), Some(me)) = (ticket, &me) {
            let ticket = Ticket {
                waiter: me.clone(),
                ..ticket.clone()
            };
            line.keep_place(&ticket, ms);
        }
        line.purge(ms);
        seen.ticket = seen.ticket.max(line.ticket);
        let before: Vec<Arc<str>> = line.before(me.as_ref()).cloned().collect();
        seen.ahead = seen.ahead.max(before.len() as u64);
        let other = match part.class() {
            // Readers do not wait for readers, only for a writer that is ahead of them.
            Some(Class::Shared) => before.iter().find(|other| !is_reader(other)),
            // If an owner already holds the lock, a further hold of this owner ignores the queue.
            Some(Class::Owner(_)) if joins(part, held) => None,
            Some(Class::Owner(_)) | None => before.first(),
        };
        let lives = other.and_then(|other| line.alive.get(other)).copied();
        let left = lives.unwrap_or(ms).saturating_sub(ms);
        let found = other.map(|_| Obstacle {
            left: Some(Duration::from_millis(left)),
            holder: held.map(<[u8]>::to_vec),
        });
        self.sweep(&part.key);
        found
    }

    /// Whether the claim with the random value `value` holds the key of `part`. `held` is the current value of that
    /// key.
    fn is_ours_in(&self, now: u64, part: &Part, held: Option<&[u8]>, value: [u8; 32]) -> bool {
        let is_member = || part.class().is_none() || self.is_member(now, &part.key, value);
        held == Some(&part.mode.holder(&value)[..]) && is_member()
    }

    /// Returns the reason why this claim cannot take the key of `part`; `None` if the claim can take the key.
    fn obstacle(
        &mut self,
        now: u64,
        part: &Part,
        held: Option<&[u8]>,
        claim: &Claim,
        group: &Group,
    ) -> Result<Option<Obstacle>, Fault> {
        let free = held.is_none_or(|holder| {
            holder == claim.token().to_hex()
                || is_replaced(group, held)
                || joins(part, Some(holder))
        });
        let left = if free {
            // If the writer's lock that this claim replaces was force-released, refuse the claim: another client may
            // have held the key after the force-release.
            let broken = match group.instead() {
                Some(instead) => self.is_broken(now, &part.key, &instead.to_hex())?,
                None => false,
            };
            if !broken {
                return Ok(None);
            }
            Some(Duration::ZERO)
        } else {
            self.ttl_left(now, &part.key)
        };
        Ok(Some(Obstacle {
            left,
            holder: held.map(<[u8]>::to_vec),
        }))
    }

    fn enter(
        &mut self,
        now: u64,
        part: &Part,
        held: Option<&[u8]>,
        value: [u8; 32],
        ttl: Duration,
    ) {
        let key = &part.key;
        let Some(class) = part.class() else {
            return self.set(now, key, value.to_vec(), Some(ttl));
        };
        let first = held != Some(&class.marker()[..]);
        if first {
            self.holds.remove(&key[..]);
            self.set(now, key, class.marker(), Some(ttl));
        } else {
            self.raise_expiry(now, key, ttl);
        }
        self.drop_dead_members(now, key);
        if let Some(members) = self.holds.get_mut(&key[..]) {
            // If the hold already exists (the claim was repeated), replace it: the last claim determines the expiry.
            members.retain(|(member, _)| *member != value);
        }
        self.add_member(now, key, value, ttl);
        if first && *class == Class::Shared {
            self.wake_next(key);
        }
    }

    pub(super) fn confirm_group(
        &mut self,
        now: u64,
        claim: &Claim,
        group: &Group,
        token: u64,
    ) -> Result<Answer, Fault> {
        let value = claim.token().to_hex();
        let mut above = token;
        for part in group.parts() {
            let held = self.text(now, &part.key)?.map(<[u8]>::to_vec);
            if !self.is_ours_in(now, part, held.as_deref(), value) {
                return Ok(Answer::NotOurs);
            }
            if matches!(part.class(), Some(Class::Owner(_))) {
                let live = self.members(now, &part.key).count();
                if live > 1 {
                    return Ok(Answer::NotAlone);
                }
            }
            above = above.max(self.counter(now, &part.key)?);
        }
        if above > token {
            return Ok(Answer::CounterAbove(above));
        }
        for part in group.parts() {
            self.set_counter(now, &part.key, token);
        }
        Ok(Answer::Confirmed)
    }

    pub(super) fn unclaim(
        &mut self,
        now: u64,
        claim: &Claim,
        group: &Group,
        leave: bool,
    ) -> Result<Answer, Fault> {
        let value = claim.token().to_hex();
        let mut held = Vec::new();
        for part in group.parts() {
            held.push(self.text(now, &part.key)?.map(<[u8]>::to_vec));
        }
        let ms = now / 1000;
        let mut ours = 0;
        for (part, held) in group.parts().iter().zip(held) {
            let key = &part.key;
            // Delete the client's hold with its note. A shared key stays until the last hold has left.
            let (mut mine, mut free) = (false, held.is_none());
            if held == Some(part.mode.holder(&value)) {
                if part.class().is_some() {
                    if claim.is_noted() {
                        self.remove(&keys::hold_note_key(&value, key));
                    }
                    (mine, free) = self.leave_class(now, key, value);
                } else {
                    self.remove(key);
                    if claim.is_noted() {
                        self.drop_note(now, key);
                    }
                    (mine, free) = (true, true);
                }
            }
            ours += usize::from(mine);
            // Leave the queue, and wake the next waiter if the key can be granted now.
            let me = claim.ticket().map(|ticket| part.mode.place(&ticket.waiter));
            let line = self.line(ms, key);
            let left = leave && me.as_ref().is_some_and(|me| line.remove(me));
            if mine && free || left {
                line.purge(ms);
                let shared = Class::Shared.marker();
                let now_held = self.text(now, key).ok().flatten().map(<[u8]>::to_vec);
                if now_held.is_none_or(|held| held == shared) {
                    self.wake_next(key);
                }
            }
            self.sweep(key);
        }
        Ok(Answer::Released(ours > 0))
    }

    /// Removes the hold `value` from a shared lock. Returns two flags:
    ///
    /// - whether the hold existed;
    /// - whether the key is free after the removal.
    fn leave_class(&mut self, now: u64, key: &[u8], value: [u8; 32]) -> (bool, bool) {
        let members = self.holds.get_mut(key);
        let mine = members.is_some_and(|members| {
            let before = members.len();
            members.retain(|(member, _)| *member != value);
            members.len() < before
        });
        self.drop_dead_members(now, key);
        let longest = self.members(now, key).map(|(_, until)| *until).max();
        match longest {
            None => {
                self.remove(key);
                (mine, true)
            }
            Some(until) => {
                if mine {
                    self.expire_at(key, until * 1000);
                }
                (mine, false)
            }
        }
    }

    pub(super) fn keep(
        &mut self,
        now: u64,
        claim: &Claim,
        group: &Group,
        ttl: Duration,
    ) -> Vec<Extended> {
        let parts = group.parts().iter();
        parts
            .map(|part| self.keep_one(now, claim, group.number(), part, ttl))
            // An error means that a key of this lock, for example its counter, holds data of another program.
            .map(|said| said.unwrap_or_else(|_| Extended::strange()))
            .collect()
    }

    fn keep_one(
        &mut self,
        now: u64,
        claim: &Claim,
        number: u64,
        part: &Part,
        ttl: Duration,
    ) -> Result<Extended, Fault> {
        let (key, value) = (&part.key, claim.token().to_hex());
        if claim.is_withdrawn() {
            return Ok(Extended::Withdrawn);
        }
        let ours = part.mode.holder(&value);
        let held = match self.text(now, key) {
            Err(_) => return Ok(Extended::NotOurs),
            Ok(held) => held.map(<[u8]>::to_vec),
        };
        if held.as_ref().is_some_and(|held| *held != ours) {
            return Ok(Extended::NotOurs);
        }
        // An exclusive key: extend it, or restore a missing key that was not force-released.
        let Some(class) = part.class() else {
            let broken = self.is_broken(now, key, &ours);
            if broken == Ok(true) {
                return Ok(Extended::NotOurs);
            }
            if held.is_none() {
                broken?;
                self.set(now, key, ours, Some(ttl));
                return Ok(Extended::Restored);
            }
            self.raise_expiry(now, key, ttl);
            return Ok(Extended::Kept);
        };
        // A shared key: the hold may be missing even if the key exists.
        let known = held.is_some() && self.has_name(key, value);
        if known && self.is_broken(now, key, &value) == Ok(true) {
            return Ok(Extended::NotOurs);
        }
        // Do not restore a force-released hold, even if the lock has new holds.
        if !known && self.is_hold_broken(now, key, &ours, (&value, number))? {
            return Ok(Extended::NotOurs);
        }
        // Bring the counter to the number of the hold. A higher counter shows a later grant.
        let counter = self.counter(now, key)?;
        if *class != Class::Shared && counter > number {
            return Ok(Extended::NotOurs);
        } else if !known && counter > number && held.is_none() {
            self.set_counter(now, key, counter + 1);
        } else if counter < number {
            self.set_counter(now, key, number);
        }
        if held.is_none() {
            self.holds.remove(&key[..]);
            self.set(now, key, ours, Some(ttl));
        } else {
            self.raise_expiry(now, key, ttl);
        }
        self.add_member(now, key, value, ttl);
        Ok(if known {
            Extended::Kept
        } else {
            Extended::Restored
        })
    }

    /// The unexpired holds of the readers or the owner that share `key`.
    fn members(&self, now: u64, key: &[u8]) -> impl Iterator<Item = &Member> {
        let members = self.holds.get(key).into_iter().flatten();
        members.filter(move |(_, until)| *until > now / 1000)
    }

    /// Lists the holds of a shared lock, at most `SHOWN`. `held` is the value of the lock key. The list is empty if the
    /// lock is not shared.
    pub(super) fn holds_of(&mut self, now: u64, key: &[u8], held: Option<&[u8]>) -> Vec<Hold> {
        if !held.is_some_and(keys::is_marker) {
            return Vec::new();
        }
        let mut members: Vec<Member> = self.members(now, key).copied().collect();
        members.sort_unstable_by_key(|(value, until)| (*until, *value));
        let shown = members.split_off(members.len().saturating_sub(SHOWN));
        let shown = shown.into_iter().map(|(value, until)| {
            let note = self
                .text(now, &keys::hold_note_key(&value, key))
                .ok()
                .flatten();
            let note = note.and_then(|note| Note::read(shown_of(note), &value));
            let lives = Duration::from_millis(until - now / 1000);
            Hold::new(value.to_vec(), lives, note)
        });
        shown.collect()
    }

    /// Returns the remaining time of the hold `value` of a shared lock, and the key of this hold's note. `None` if the
    /// lock is not shared, or if the hold does not exist or has expired. `held` is the value of the lock key.
    pub(super) fn hold_left(
        &self,
        now: u64,
        key: &[u8],
        held: &[u8],
        value: [u8; 32],
    ) -> Option<(Duration, Vec<u8>)> {
        let mut members = self.members(now, key).filter(|_| keys::is_marker(held));
        let (_, until) = members.find(|(member, _)| *member == value)?;
        let left = Duration::from_millis(until - now / 1000);
        Some((left, keys::hold_note_key(&value, key)))
    }

    fn is_member(&self, now: u64, key: &[u8], value: [u8; 32]) -> bool {
        self.members(now, key).any(|(member, _)| *member == value)
    }

    fn has_name(&self, key: &[u8], value: [u8; 32]) -> bool {
        let mut members = self.holds.get(key).into_iter().flatten();
        members.any(|(member, _)| *member == value)
    }

    fn drop_dead_members(&mut self, now: u64, key: &[u8]) {
        if let Some(members) = self.holds.get_mut(key) {
            members.retain(|(_, until)| *until > now / 1000);
        }
    }

    fn add_member(&mut self, now: u64, key: &[u8], value: [u8; 32], ttl: Duration) {
        let lives = u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX / 2);
        let until = now / 1000 + lives;
        let members = self.holds.entry(key.to_vec()).or_default();
        match members.iter_mut().find(|(member, _)| *member == value) {
            Some((_, known)) => *known = until.max(*known),
            None => members.push((value, until)),
        }
    }

    fn raise_expiry(&mut self, now: u64, key: &[u8], ttl: Duration) {
        let left = self.ttl_left(now, key);
        if left.is_none_or(|left| left < ttl) {
            let lives = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX / 2);
            self.expire_at(key, now + lives);
        }
    }

    /// If the first waiter of the queue is a reader, wakes all readers ahead of the first writer. Otherwise wakes only
    /// the first waiter.
    pub(super) fn wake_next(&mut self, key: &[u8]) {
        let Some(line) = self.lines.get(key) else {
            return;
        };
        let mut woken: Vec<Arc<str>> = Vec::new();
        for (at, (_, other)) in line.queue.iter().take(LOOKED_AT).enumerate() {
            let reads = is_reader(other);
            if !reads && at > 0 {
                break;
            }
            let same = |known: &&Arc<str>| known.get(..16) == other.get(..16);
            if woken.iter().find(same).is_none() {
                woken.push(other.clone());
            }
            if !reads || woken.len() == WOKEN {
                break;
            }
        }
        for waiter in woken {
            self.publish(&waiter, key);
        }
    }
}
