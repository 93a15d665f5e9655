//! Checks shared locks (docs/protocol.md, "Several resources, readers, owners, semaphores"). Readers may share a lock,
//! and so may the holds of one owner. The key of a shared lock contains a marker of the readers or of the owner.
//!
//! - On every master, the key with the marker expires no earlier than any hold that shares the lock.
//! - No client removes the hold of another client.
//! - No master refuses a lock to an owner that already holds it.

use std::collections::HashMap;

use super::{Check, Moment};
use crate::facts::{Fact, Member, Verb, short};
use crate::locker::resource_of;
use crate::scenario::Scenario;
use quorate::node::{Answer, Claim, Class, Extended, Group, Mode};

pub(crate) struct Groups {
    /// The last known shared holds of each resource on each master.
    stood: HashMap<(usize, usize), Vec<Member>>,
    judged: u64,
}

impl Groups {
    pub(crate) fn new(_: &Scenario) -> Self {
        Self {
            stood: HashMap::new(),
            judged: 0,
        }
    }
}

/// Returns the class (readers, or one owner) that a claim requests on this resource; `None` for an exclusive claim.
pub(super) fn class_on(claim: &Claim, resource: usize) -> Option<&Class> {
    let mut parts = claim.group()?.parts().iter();
    match &parts.find(|part| resource_of(&part.key) == resource)?.mode {
        Mode::Class(class) => Some(class),
        Mode::Exclusive => None,
    }
}

/// Whether the lock key contains the marker of this class (readers, or one owner).
pub(super) fn shows(holder: Option<[u8; 32]>, class: &Class) -> bool {
    let marker = class.marker();
    holder.is_some_and(|holder| {
        let (head, rest) = holder.split_at(marker.len().min(32));
        head == marker && rest.iter().all(|byte| *byte == 0)
    })
}

/// Checks that a master stores a lock's value when it confirms the lock's fencing token to a client (docs/protocol.md,
/// "Fencing tokens").
fn confirmed(fact: &Fact<'_>) -> Result<(), String> {
    let Fact::Applied {
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
    let mine = claim.token().to_hex();
    let ours = match class_on(claim, *resource) {
        None => after.holder == Some(mine),
        Some(class) => {
            let member = members.iter().any(|one| one.value == mine);
            shows(after.holder, class) && member
        }
    };
    if claim.group().is_none() || ours {
        return Ok(());
    }
    Err(format!(
        "master {master} confirmed the fencing token of the lock value {}, but does not store this value for \
         r{resource}",
        short(&mine)
    ))
}

/// Checks three rules for shared holds:
///
/// - A master does not extend an owner's hold whose token is smaller than the fencing counter.
/// - If a master restores a reader's lost hold and its fencing counter is above the reader's token, it raises the
///   counter.
/// - No master refuses a lock to an owner that already holds it.
fn passed(fact: &Fact<'_>) -> Result<(), String> {
    let Fact::Applied {
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
    let mine = claim.token().to_hex();
    let class = class_on(claim, *resource);
    let number = claim.group().map_or(0, Group::number);
    let passed = before.counter > number;
    match (class, extended) {
        (Some(Class::Owner(_)), Some(Extended::Kept | Extended::Restored)) if passed => {
            return Err(format!(
                "master {master} extended the owner's lock value {} on r{resource} with the outdated fencing \
                 token {number}",
                short(&mine)
            ));
        }
        (Some(Class::Shared), Some(Extended::Restored))
            if passed && before.holder.is_none() && after.counter == before.counter =>
        {
            return Err(format!(
                "master {master} restored the reader's lock value {} on r{resource}, but left the fencing counter \
                 at {}",
                short(&mine),
                after.counter
            ));
        }
        _ => {}
    }
    let own = class.filter(|class| matches!(class, Class::Owner(_)));
    let refused = matches!(answer, Ok(Answer::Refused { .. }));
    if refused && own.is_some_and(|class| shows(before.holder, class)) {
        return Err(format!(
            "master {master} refused the lock value {} of an owner, although the same owner already holds r{resource}",
            short(&mine)
        ));
    }
    Ok(())
}

impl Check for Groups {
    const RULE: &'static str = "groups";

    fn see(&mut self, at: &Moment<'_>, fact: &Fact<'_>) -> Result<(), String> {
        let Fact::Applied {
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
            if let Fact::Restarted { master, .. } = fact {
                self.stood.retain(|(of, _), _| of != master);
            }
            return Ok(());
        };
        let here = (*master, *resource);
        if claim.group().is_none() && members.is_empty() && self.stood.is_empty() {
            return Ok(());
        }
        let lives = |member: &&Member| member.until_ms > *now_ms;
        let mine = claim.token().to_hex();
        confirmed(fact)?;
        let stood = self
            .stood
            .insert(here, members.to_vec())
            .unwrap_or_default();
        // If a clock jumps back, the holds of an expired key may look unexpired again.
        if !at.promises.exclusion || !at.promises.steady {
            return Ok(());
        }
        self.judged += 1;
        if *verb == Verb::Release {
            let gone = |member: &&Member| !members.iter().any(|one| one.value == member.value);
            let others = stood.iter().filter(|member| member.value != mine);
            if let Some(other) = others.filter(lives).find(gone) {
                return Err(format!(
                    "the release of the lock value {} removed a different lock value, {}, from r{resource} on \
                     master {master}",
                    short(&mine),
                    short(&other.value)
                ));
            }
        }
        if let Some(member) = members.iter().find(lives) {
            // `holder` has 32 bytes: the random lock value of an exclusive lock, or the marker of a shared lock. This
            // marker is shorter, so the last byte is zero.
            if after.holder.is_none_or(|holder| holder[31] != 0) {
                return Err(format!(
                    "master {master} stores the shared hold {} on r{resource}, but the lock key is missing, \
                     or has the value of an exclusive lock",
                    short(&member.value)
                ));
            }
        }
        let last = members.iter().map(|member| member.until_ms).max();
        if let Some(last) = last.filter(|last| *last > *now_ms && last * 1_000 > after.expires) {
            return Err(format!(
                "the lock key of r{resource} on master {master} expires {} ms before the last of its shared holds",
                last - after.expires / 1_000
            ));
        }
        passed(fact)
    }

    fn judged(&self) -> u64 {
        self.judged
    }
}
