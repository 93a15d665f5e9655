//! Claims on several locks, and holds that share a lock, on a master in memory. This code does what `claim.lua`,
//! `confirm_group.lua`, `unclaim.lua` and `keep.lua` do on a server.

use std::sync::Arc;
use std::time::Duration;

use super::master::{Master, Member, grant_again, raised_counter, shown_value};
use super::note::shown_of;
use crate::keys;
use crate::node::shape::is_reader;
use crate::node::{
    Answer, Claim, Class, Extended, Fault, Group, Hold, Note, Part, QueueInfo, Ticket, Token,
};

/// The largest number of processes that are woken when a lock becomes available to several waiters.
const MAX_WOKEN: usize = 64;

/// The largest number of waiters that are examined to find the processes to wake.
const MAX_EXAMINED: usize = 256;

/// The largest number of holds that one reply about the state of a lock lists.
pub(super) const MAX_HOLDS_SHOWN: usize = 100;

/// The lock or the waiter that prevents a grant.
///
/// - `ttl_left` is the time until this lock or waiter expires if it is not renewed; `None` if it never expires.
/// - `holder` is the value of the lock key; `None` if the key does not exist.
struct Obstacle {
    ttl_left: Option<Duration>,
    holder: Option<Vec<u8>>,
}

/// Whether `held`, the value of a lock key, is the random value of the exclusive lock that this claim replaces. A claim
/// replaces a lock if a writer becomes a reader.
fn is_replaced(group: &Group, lock_value: Option<&[u8]>) -> bool {
    let instead = group.instead().map(Token::to_hex);
    instead.is_some_and(|instead| lock_value == Some(&instead[..]))
}

/// Whether `part` can share its key with the current holders: both are readers, or both belong to the same owner.
/// `lock_value` is the value of the lock key.
fn can_join(part: &Part, lock_value: Option<&[u8]>) -> bool {
    let class = part.class();
    class.is_some_and(|class| lock_value == Some(&class.lock_value()[..]))
}

/// Whether a claim can share all its keys with their current holders. `lock_values` has the value of each key, in the
/// order of `group.parts()`.
fn can_join_all(group: &Group, lock_values: &[Option<Vec<u8>>]) -> bool {
    let mut keys = group.parts().iter().zip(lock_values);
    keys.all(|(part, lock_value)| can_join(part, lock_value.as_deref()))
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
        let mut lock_values = Vec::new();
        let (mut own_count, mut counter) = (0, 0);
        for part in group.parts() {
            let holder = self.text(now, &part.key)?.map(<[u8]>::to_vec);
            counter = counter.max(self.counter(now, &part.key)?);
            own_count += usize::from(self.is_ours_in(now, part, holder.as_deref(), value));
            lock_values.push(holder);
        }
        // A repeated claim gets the same number, and its places in the queues again.
        if own_count == group.parts().len() {
            let ticket = claim.ticket().filter(|_| group.instead().is_none());
            for part in group.parts() {
                self.restore_place(now, part, ticket);
            }
            return grant_again(claim.key(), counter);
        }
        // Join the queue of every key, also behind an obstacle, and remember the first obstacle.
        let mut queue_info = QueueInfo::default();
        let mut first_obstacle = None;
        for (part, held) in group.parts().iter().zip(&lock_values) {
            // A claim that turns the client's own exclusive lock into a reader's lock does not wait in the queue.
            let ticket = claim.ticket().filter(|_| group.instead().is_none());
            let waiter_ahead = self.join_queue(now, part, held.as_deref(), ticket, &mut queue_info);
            let waiter_ahead = waiter_ahead.filter(|_| !is_replaced(group, held.as_deref()));
            let obstacle = self.obstacle(now, part, held.as_deref(), claim, group)?;
            if first_obstacle.is_none() {
                first_obstacle = obstacle
                    .or(waiter_ahead)
                    .map(|obstacle| (&part.key, obstacle));
            }
        }
        if let Some((key, Obstacle { ttl_left, holder })) = first_obstacle {
            queue_info.note = self.note_of(now, key, holder.as_deref());
            queue_info.holder = holder.as_deref().map(shown_value);
            return Ok(Answer::Refused {
                ttl_left,
                line: Some(Box::new(queue_info)),
            });
        }
        // The holds to join have lost their counter, so there is no number for this hold.
        if counter == 0 && can_join_all(group, &lock_values) {
            return grant_again(claim.key(), counter);
        }
        let number = self.grant_all(now, claim, group, &lock_values, (ttl, proposal, counter));
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
        let joins_holds = can_join_all(group, held);
        let number = if joins_holds {
            counter
        } else {
            raised_counter(self.date(now), proposal, counter)
        };
        for (part, held) in group.parts().iter().zip(held) {
            if !joins_holds {
                self.set_counter(now, &part.key, number);
            }
            let replaces = part.class().is_some() && is_replaced(group, held.as_deref());
            if replaces {
                self.drop_note(now, &part.key);
            }
            if replaces && let Some(ticket) = claim.ticket() {
                let waiter = ticket.waiter.clone();
                self.queue_of(now / 1000, &part.key).remove(&waiter);
                self.drop_empty_queue(&part.key);
            }
            self.take_key(now, part, held.as_deref(), value, ttl);
        }
        number
    }

    /// Renews the waiter's place in the queue of one key.
    fn restore_place(&mut self, now: u64, part: &Part, ticket: Option<&Ticket>) {
        if let Some(ticket) = ticket {
            let place = part.mode.place(&ticket.waiter);
            let ticket = Ticket {
                waiter: place,
                ..ticket.clone()
            };
            self.queue_of(now / 1000, &part.key)
                .keep_place(&ticket, now / 1000);
        }
    }

    /// Adds the waiter to the queue of one key if the claim has a ticket. Writes the state of the queue to
    /// `queue_info`. Returns the queued waiter for which the claim must wait; `None` if there is none.
    fn join_queue(
        &mut self,
        now: u64,
        part: &Part,
        held: Option<&[u8]>,
        ticket: Option<&Ticket>,
        queue_info: &mut QueueInfo,
    ) -> Option<Obstacle> {
        let ms = now / 1000;
        let own_place = ticket.map(|ticket| part.mode.place(&ticket.waiter));
        let queue = self.queue_of(ms, &part.key);
        if let (Some(ticket), Some(own_place)) = (ticket, &own_place) {
            let ticket = Ticket {
                waiter: own_place.clone(),
                ..ticket.clone()
            };
            queue.keep_place(&ticket, ms);
        }
        queue.purge(ms);
        queue_info.ticket = queue_info.ticket.max(queue.ticket);
        let waiters_ahead: Vec<Arc<str>> =
            queue.waiters_before(own_place.as_ref()).cloned().collect();
        queue_info.ahead = queue_info.ahead.max(waiters_ahead.len() as u64);
        let blocking = match part.class() {
            // Readers do not wait for readers, only for a writer that is ahead of them.
            Some(Class::Shared) => waiters_ahead.iter().find(|waiter| !is_reader(waiter)),
            // If an owner already holds the lock, a further hold of this owner ignores the queue.
            Some(Class::Owner(_)) if can_join(part, held) => None,
            Some(Class::Owner(_)) | None => waiters_ahead.first(),
        };
        let place_expires = blocking.and_then(|waiter| queue.alive.get(waiter)).copied();
        let remaining_ms = place_expires.unwrap_or(ms).saturating_sub(ms);
        let obstacle = blocking.map(|_| Obstacle {
            ttl_left: Some(Duration::from_millis(remaining_ms)),
            holder: held.map(<[u8]>::to_vec),
        });
        self.drop_empty_queue(&part.key);
        obstacle
    }

    /// Whether the claim with the random value `value` holds the key of `part`. `held` is the current value of that
    /// key.
    fn is_ours_in(&self, now: u64, part: &Part, held: Option<&[u8]>, value: [u8; 32]) -> bool {
        let is_member = || part.class().is_none() || self.is_member(now, &part.key, value);
        held == Some(&part.mode.lock_value(&value)[..]) && is_member()
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
        let is_free = held.is_none_or(|holder| {
            holder == claim.token().to_hex()
                || is_replaced(group, held)
                || can_join(part, Some(holder))
        });
        let ttl_left = if is_free {
            // If the writer's lock that this claim replaces was force-released, refuse the claim: another client may
            // have held the key after the force-release.
            let is_broken_lock = match group.instead() {
                Some(instead) => self.is_broken(now, &part.key, &instead.to_hex())?,
                None => false,
            };
            if !is_broken_lock {
                return Ok(None);
            }
            Some(Duration::ZERO)
        } else {
            self.ttl_left(now, &part.key)
        };
        Ok(Some(Obstacle {
            ttl_left,
            holder: held.map(<[u8]>::to_vec),
        }))
    }

    fn take_key(
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
        let is_first = held != Some(&class.lock_value()[..]);
        if is_first {
            self.holds.remove(&key[..]);
            self.set(now, key, class.lock_value(), Some(ttl));
        } else {
            self.raise_expiry(now, key, ttl);
        }
        self.drop_dead_members(now, key);
        if let Some(members) = self.holds.get_mut(&key[..]) {
            // If the hold already exists (the claim was repeated), replace it: the last claim determines the expiry.
            members.retain(|(member, _)| *member != value);
        }
        self.add_member(now, key, value, ttl);
        if is_first && *class == Class::Shared {
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
        let mut largest = token;
        for part in group.parts() {
            let held = self.text(now, &part.key)?.map(<[u8]>::to_vec);
            if !self.is_ours_in(now, part, held.as_deref(), value) {
                return Ok(Answer::NotOurs);
            }
            if matches!(part.class(), Some(Class::Owner(_))) {
                let hold_count = self.members(now, &part.key).count();
                if hold_count > 1 {
                    return Ok(Answer::NotAlone);
                }
            }
            largest = largest.max(self.counter(now, &part.key)?);
        }
        if largest > token {
            return Ok(Answer::CounterAbove(largest));
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
        let mut lock_values = Vec::new();
        for part in group.parts() {
            lock_values.push(self.text(now, &part.key)?.map(<[u8]>::to_vec));
        }
        let ms = now / 1000;
        let mut own_count = 0;
        for (part, held) in group.parts().iter().zip(lock_values) {
            let key = &part.key;
            // Delete the client's hold with its note. A shared key stays until the last hold has left.
            let (mut was_held, mut was_freed) = (false, false);
            if held == Some(part.mode.lock_value(&value)) {
                if part.class().is_some() {
                    if claim.is_noted() {
                        self.remove(&keys::hold_note_key(&value, key));
                    }
                    (was_held, was_freed) = self.remove_hold(now, key, value);
                } else {
                    self.remove(key);
                    if claim.is_noted() {
                        self.drop_note(now, key);
                    }
                    (was_held, was_freed) = (true, true);
                }
            }
            own_count += usize::from(was_held);
            // Leave the queue, and wake the next waiter if the key can be granted now.
            let own_place = claim.ticket().map(|ticket| part.mode.place(&ticket.waiter));
            let queue = self.queue_of(ms, key);
            let has_left = leave
                && own_place
                    .as_ref()
                    .is_some_and(|own_place| queue.remove(own_place));
            if was_freed || has_left {
                queue.purge(ms);
                let shared = Class::Shared.lock_value();
                let held_now = self.text(now, key).ok().flatten().map(<[u8]>::to_vec);
                if held_now.is_none_or(|held| held == shared) {
                    self.wake_next(key);
                }
            }
            self.drop_empty_queue(key);
        }
        Ok(Answer::Released(own_count > 0))
    }

    /// Removes the hold `value` from a shared lock. Returns two flags:
    ///
    /// - whether the hold existed;
    /// - whether the removal of the hold has freed the key.
    fn remove_hold(&mut self, now: u64, key: &[u8], value: [u8; 32]) -> (bool, bool) {
        let members = self.holds.get_mut(key);
        let was_held = members.is_some_and(|members| {
            let count_before = members.len();
            members.retain(|(member, _)| *member != value);
            members.len() < count_before
        });
        self.drop_dead_members(now, key);
        let latest_expiry = self.members(now, key).map(|(_, until)| *until).max();
        match latest_expiry {
            None => {
                self.remove(key);
                (was_held, was_held)
            }
            Some(until) => {
                if was_held {
                    self.expire_at(key, until * 1000);
                }
                (was_held, false)
            }
        }
    }

    pub(super) fn extend_group(
        &mut self,
        now: u64,
        claim: &Claim,
        group: &Group,
        ttl: Duration,
    ) -> Vec<Extended> {
        let parts = group.parts().iter();
        parts
            .map(|part| self.extend_key(now, claim, group.number(), part, ttl))
            // An error means that a key of this lock, for example its counter, holds data of another program.
            .map(|result| result.unwrap_or_else(|_| Extended::strange()))
            .collect()
    }

    fn extend_key(
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
        let lock_value = part.mode.lock_value(&value);
        let held_value = match self.text(now, key) {
            Err(_) => return Ok(Extended::NotOurs),
            Ok(held) => held.map(<[u8]>::to_vec),
        };
        if held_value.as_ref().is_some_and(|held| *held != lock_value) {
            return Ok(Extended::NotOurs);
        }
        // An exclusive key: extend it, or restore a missing key that was not force-released.
        let Some(class) = part.class() else {
            let is_broken_lock = self.is_broken(now, key, &lock_value);
            if is_broken_lock == Ok(true) {
                return Ok(Extended::NotOurs);
            }
            if held_value.is_none() {
                is_broken_lock?;
                self.set(now, key, lock_value, Some(ttl));
                return Ok(Extended::Restored);
            }
            self.raise_expiry(now, key, ttl);
            return Ok(Extended::Kept);
        };
        // A shared key: the hold may be missing even if the key exists.
        let has_hold = held_value.is_some() && self.lists_hold(key, value);
        if self.is_broken(now, key, &value) == Ok(true) {
            return Ok(Extended::NotOurs);
        }
        // Do not restore a force-released hold, even if the lock has new holds.
        if !has_hold && self.is_hold_broken(now, key, &lock_value, (&value, number))? {
            return Ok(Extended::NotOurs);
        }
        // Bring the counter to the number of the hold. A higher counter shows a later grant.
        let counter = self.counter(now, key)?;
        if *class != Class::Shared && counter > number {
            return Ok(Extended::NotOurs);
        } else if counter > number && held_value.is_none() {
            self.set_counter(now, key, counter + 1);
        } else if counter < number {
            self.set_counter(now, key, number);
        }
        if held_value.is_none() {
            self.holds.remove(&key[..]);
            self.set(now, key, lock_value, Some(ttl));
        } else {
            self.raise_expiry(now, key, ttl);
        }
        self.add_member(now, key, value, ttl);
        Ok(if has_hold {
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

    /// Lists the holds of a shared lock, at most `MAX_HOLDS_SHOWN`. `held` is the value of the lock key. The list is
    /// empty if the lock is not shared.
    pub(super) fn holds_of(&mut self, now: u64, key: &[u8], held: Option<&[u8]>) -> Vec<Hold> {
        if !held.is_some_and(keys::is_shared_value) {
            return Vec::new();
        }
        let mut members: Vec<Member> = self.members(now, key).copied().collect();
        members.sort_unstable_by_key(|(value, until)| (*until, *value));
        let listed = members.split_off(members.len().saturating_sub(MAX_HOLDS_SHOWN));
        let listed = listed.into_iter().map(|(value, until)| {
            let note = self
                .text(now, &keys::hold_note_key(&value, key))
                .ok()
                .flatten();
            let note = note.and_then(|note| Note::read(shown_of(note), &value));
            let ttl = Duration::from_millis(until - now / 1000);
            Hold::new(value.to_vec(), ttl, note)
        });
        listed.collect()
    }

    /// Returns the remaining time of the hold `value` of a shared lock, and the key of this hold's note. `None` if the
    /// lock is not shared, or if the hold does not exist or has expired. `held` is the value of the lock key.
    pub(super) fn hold_ttl(
        &self,
        now: u64,
        key: &[u8],
        held: &[u8],
        value: [u8; 32],
    ) -> Option<(Duration, Vec<u8>)> {
        let mut members = self
            .members(now, key)
            .filter(|_| keys::is_shared_value(held));
        let (_, until) = members.find(|(member, _)| *member == value)?;
        let ttl = Duration::from_millis(until - now / 1000);
        Some((ttl, keys::hold_note_key(&value, key)))
    }

    fn is_member(&self, now: u64, key: &[u8], value: [u8; 32]) -> bool {
        self.members(now, key).any(|(member, _)| *member == value)
    }

    fn lists_hold(&self, key: &[u8], value: [u8; 32]) -> bool {
        let mut members = self.holds.get(key).into_iter().flatten();
        members.any(|(member, _)| *member == value)
    }

    fn drop_dead_members(&mut self, now: u64, key: &[u8]) {
        if let Some(members) = self.holds.get_mut(key) {
            members.retain(|(_, until)| *until > now / 1000);
        }
    }

    fn add_member(&mut self, now: u64, key: &[u8], value: [u8; 32], ttl: Duration) {
        let ttl_ms = u64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX / 2);
        let expires_at = now / 1000 + ttl_ms;
        let members = self.holds.entry(key.to_vec()).or_default();
        match members.iter_mut().find(|(member, _)| *member == value) {
            Some((_, expires)) => *expires = expires_at.max(*expires),
            None => members.push((value, expires_at)),
        }
    }

    fn raise_expiry(&mut self, now: u64, key: &[u8], ttl: Duration) {
        let ttl_left = self.ttl_left(now, key);
        if ttl_left.is_none_or(|ttl_left| ttl_left < ttl) {
            let ttl_us = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX / 2);
            self.expire_at(key, now + ttl_us);
        }
    }

    /// If the first waiter of the queue is a reader, wakes all readers ahead of the first writer. Otherwise wakes only
    /// the first waiter.
    pub(super) fn wake_next(&mut self, key: &[u8]) {
        let Some(queue) = self.queues.get(key) else {
            return;
        };
        let mut woken: Vec<Arc<str>> = Vec::new();
        for (index, (_, waiter)) in queue.queue.iter().take(MAX_EXAMINED).enumerate() {
            let is_waiter_reader = is_reader(waiter);
            if !is_waiter_reader && index > 0 {
                break;
            }
            let is_same_process = |other: &&Arc<str>| other.get(..16) == waiter.get(..16);
            if woken.iter().find(is_same_process).is_none() {
                woken.push(waiter.clone());
            }
            if !is_waiter_reader || woken.len() == MAX_WOKEN {
                break;
            }
        }
        for waiter in woken {
            self.publish(&waiter, key);
        }
    }
}

#[cfg(test)]
mod tests;
