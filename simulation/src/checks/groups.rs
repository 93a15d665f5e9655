//! Checks shared locks (docs/protocol.md, "Several resources, readers, owners, semaphores"). Readers may share a lock,
//! and so may the holds of one owner. The key of a shared lock contains a marker of the readers or of the owner.
//!
//! - On every master, the key with the marker expires no earlier than any hold that shares the lock.
//! - No client removes the hold of another client.
//! - No master refuses a lock to an owner that already holds it.

use std::collections::HashMap;

use crate::check::{Check, Moment};
use crate::facts::{Fact, Member, Verb, short_hex};
use crate::locker::place_of_key;
use crate::scenario::Scenario;
use quorate::node::{Answer, Claim, Class, Extended, Group, Mode};

pub(crate) struct Groups {
    /// The last known shared holds of each resource on each master.
    known_members: HashMap<(usize, usize), Vec<Member>>,
    judged_cases: u64,
}

impl Groups {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self {
            known_members: HashMap::new(),
            judged_cases: 0,
        }
    }
}

/// Returns the class (readers, or one owner) that a claim requests on this resource; `None` for an exclusive claim.
pub(super) fn class_on(claim: &Claim, resource: usize) -> Option<&Class> {
    let mut parts = claim.group()?.parts().iter();
    match &parts.find(|part| place_of_key(&part.key) == resource)?.mode {
        Mode::Class(class) => Some(class),
        Mode::Exclusive => None,
    }
}

/// Whether the lock key contains the marker of this class (readers, or one owner).
pub(super) fn has_marker_of(holder: Option<[u8; 32]>, class: &Class) -> bool {
    let marker = class.lock_value();
    holder.is_some_and(|holder| {
        let (head, rest) = holder.split_at(marker.len().min(32));
        head == marker && rest.iter().all(|byte| *byte == 0)
    })
}

/// Checks that a master stores a lock's value when it confirms the lock's fencing token to a client (docs/protocol.md,
/// "Fencing tokens").
fn check_confirmation(fact: &Fact<'_>) -> Result<(), String> {
    let Fact::RequestExecuted {
        master,
        resource,
        claim,
        answer: Ok(Answer::Confirmed),
        after,
        members,
        ..
    } = fact
    else {
        return Ok(());
    };
    let value = claim.token().to_hex();
    let is_stored = match class_on(claim, *resource) {
        None => after.holder == Some(value),
        Some(class) => {
            let is_member = members.iter().any(|member| member.value == value);
            has_marker_of(after.holder, class) && is_member
        }
    };
    if claim.group().is_none() || is_stored {
        return Ok(());
    }
    Err(format!(
        "master {master} confirmed the fencing token of the lock value {}, but does not store this value for \
         r{resource}",
        short_hex(&value)
    ))
}

/// Checks three rules for shared holds:
///
/// - A master does not extend an owner's hold whose token is smaller than the fencing counter.
/// - If a master restores a reader's lost hold and its fencing counter is above the reader's token, it raises the
///   counter.
/// - No master refuses a lock to an owner that already holds it.
fn check_owner_and_reader(fact: &Fact<'_>) -> Result<(), String> {
    let Fact::RequestExecuted {
        master,
        resource,
        claim,
        answer,
        extended,
        before,
        after,
        ..
    } = fact
    else {
        return Ok(());
    };
    let value = claim.token().to_hex();
    let class = class_on(claim, *resource);
    let token = claim.group().map_or(0, Group::number);
    let is_outdated = before.counter > token;
    match (class, extended) {
        (Some(Class::Owner(_)), Some(Extended::Kept | Extended::Restored)) if is_outdated => {
            return Err(format!(
                "master {master} extended the owner's lock value {} on r{resource} with the outdated fencing \
                 token {token}",
                short_hex(&value)
            ));
        }
        (Some(Class::Shared), Some(Extended::Restored))
            if is_outdated && before.holder.is_none() && after.counter == before.counter =>
        {
            return Err(format!(
                "master {master} restored the reader's lock value {} on r{resource}, but left the fencing counter \
                 at {}",
                short_hex(&value),
                after.counter
            ));
        }
        _ => {}
    }
    let owner = class.filter(|class| matches!(class, Class::Owner(_)));
    let is_refused = matches!(answer, Ok(Answer::Refused { .. }));
    if is_refused && owner.is_some_and(|class| has_marker_of(before.holder, class)) {
        return Err(format!(
            "master {master} refused the lock value {} of an owner, although the same owner already holds r{resource}",
            short_hex(&value)
        ));
    }
    Ok(())
}

impl Check for Groups {
    fn check_fact(&mut self, moment: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let Fact::RequestExecuted {
            master,
            now_ms,
            resource,
            claim,
            verb,
            after,
            members,
            ..
        } = fact
        else {
            if let Fact::MasterRestarted { master, .. } = fact {
                self.known_members
                    .retain(|(on_master, _), _| on_master != master);
            }
            return Ok(());
        };
        let key = (*master, *resource);
        if claim.group().is_none() && members.is_empty() && self.known_members.is_empty() {
            return Ok(());
        }
        let is_live = |member: &&Member| member.expires_at_ms > *now_ms;
        let value = claim.token().to_hex();
        check_confirmation(fact)?;
        let previous_members = self
            .known_members
            .insert(key, members.to_vec())
            .unwrap_or_default();
        // If a clock jumps back, the holds of an expired key may look unexpired again.
        if !moment.promises.exclusion || !moment.promises.steady {
            return Ok(());
        }
        self.judged_cases += 1;
        if *verb == Verb::Release {
            let is_missing =
                |member: &&Member| !members.iter().any(|kept| kept.value == member.value);
            let others = previous_members.iter().filter(|old| old.value != value);
            if let Some(removed) = others.filter(is_live).find(is_missing) {
                return Err(format!(
                    "the release of the lock value {} removed a different lock value, {}, from r{resource} on \
                     master {master}",
                    short_hex(&value),
                    short_hex(&removed.value)
                ));
            }
        }
        if let Some(member) = members.iter().find(is_live) {
            // `holder` has 32 bytes: the random lock value of an exclusive lock, or the marker of a shared lock. This
            // marker is shorter, so the last byte is zero.
            if after.holder.is_none_or(|holder| holder[31] != 0) {
                return Err(format!(
                    "master {master} stores the shared hold {} on r{resource}, but the lock key is missing, \
                     or has the value of an exclusive lock",
                    short_hex(&member.value)
                ));
            }
        }
        let last_expiry_ms = members.iter().map(|member| member.expires_at_ms).max();
        let is_after_key =
            |expiry_ms: &u64| *expiry_ms > *now_ms && expiry_ms * 1_000 > after.expires_us;
        if let Some(expiry_ms) = last_expiry_ms.filter(is_after_key) {
            return Err(format!(
                "the lock key of r{resource} on master {master} expires {} ms before the last of its shared holds",
                expiry_ms - after.expires_us / 1_000
            ));
        }
        check_owner_and_reader(fact)
    }

    fn judged_cases(&self) -> u64 {
        self.judged_cases
    }
}
