//! The names of all keys and channels, in one place: scripts, rights and the memory nodes take them from here.

use std::borrow::Cow;

/// What stands before all names of ours; resources and key prefixes may not begin with it.
pub(crate) const RESERVED: &str = "quorate:";

/// All slots of all semaphores, as masters write patterns.
pub(crate) fn all_slots() -> Vec<u8> {
    pattern(Family::Slot.before().as_bytes())
}

/// The number of a slot and the lock key that its semaphore's name would have, where this is the key of one.
pub(crate) fn slot_of(key: &[u8]) -> Option<(u8, &[u8])> {
    let rest = key.strip_prefix(Family::Slot.before().as_bytes())?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (slot, name) = rest.split_at(digits);
    let slot = std::str::from_utf8(slot).ok()?.parse().ok()?;
    Some((slot, name.strip_prefix(b":")?))
}

/// What names the line of those who wait for a lock key: a slot's is that of its semaphore.
pub(crate) fn line_of(key: &[u8]) -> Cow<'_, [u8]> {
    match slot_of(key) {
        Some((_, name)) => line_of_semaphore(name).into(),
        None => key.into(),
    }
}

/// What names one hold of a class: the value, in front of the lock key.
#[cfg(any(test, feature = "testing", feature = "node"))]
pub(crate) fn hold(value: &[u8], key: &[u8]) -> Vec<u8> {
    [Family::OfHold.before().as_bytes(), value, b":", key].concat()
}

/// The key of a slot; `name` is the lock key that the semaphore's name would have.
pub(crate) fn slot(name: &[u8], slot: u8) -> Vec<u8> {
    [format!("{}{slot}:", Family::Slot.before()).as_bytes(), name].concat()
}

/// What names the line of a semaphore.
pub(crate) fn line_of_semaphore(name: &[u8]) -> Vec<u8> {
    [Family::Slot.before().as_bytes(), b"line:", name].concat()
}

/// What stands before the process id in the name of its wake channel.
pub(crate) const WAKE: &str = "quorate:wake:";

/// The key of the mark: how far a change of masters is, and which masters it is for.
pub(crate) const MASTERS: &str = "quorate:masters";

/// Where that stands in a script and in the table of rights.
pub(crate) const WAKE_PLACE: &str = "{wake}";

/// What the lock key holds while readers hold it.
pub(crate) const SHARED: &str = "quorate:shared";

/// Where that stands in a script.
const SHARED_PLACE: &str = "{shared}";

/// What it begins with while an owner holds it; the owner's id stands behind.
pub(crate) const OWNER: &str = "quorate:owner:";

/// Whether the lock key holds that: one of a class has it.
pub(crate) fn is_marker(held: &[u8]) -> bool {
    held == SHARED.as_bytes() || held.starts_with(OWNER.as_bytes())
}

/// Where that stands in a script.
const OWNER_PLACE: &str = "{owner}";

/// What stands before a lock key in the name of the channel on which its new leaders are announced.
pub(crate) const LEADER: &str = "quorate:leader:";

/// Where that stands in a script and in the table of rights.
pub(crate) const LEADER_PLACE: &str = "{leader}";

/// The families of keys that belong to one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    /// Who holds it: the value of the attempt that took it.
    Lock,
    /// Its fencing counter.
    Fence,
    /// Who waits, by ticket.
    Queue,
    /// Until when each of them is taken to be alive.
    Alive,
    /// The largest ticket drawn.
    Ticket,
    /// The value of a holder whose lock an operator has broken.
    Broken,
    /// The holds of a class, by value.
    Holds,
    /// The value that is kept under it.
    Value,
    /// The slots of a semaphore; behind it stands the number of one.
    Slot,
    /// What goes with a slot, as it does with any lock: its counter, and the line.
    OfSlot,
    /// What the holder tells those who look.
    Note,
    /// What one hold of a class tells; behind it stand its value and the lock key.
    OfHold,
    /// The mark of the masters: one key for all locks.
    Masters,
    /// The sign that somebody stands in a line: one key for all locks.
    Lines,
}

impl Family {
    pub(crate) const ALL: [Self; 14] = [
        Self::Lock,
        Self::Fence,
        Self::Queue,
        Self::Alive,
        Self::Ticket,
        Self::Broken,
        Self::Holds,
        Self::Value,
        Self::Slot,
        Self::OfSlot,
        // Begins as the next does.
        Self::OfHold,
        Self::Note,
        Self::Masters,
        Self::Lines,
    ];

    /// What stands before the lock key.
    pub(crate) fn before(self) -> &'static str {
        match self {
            Self::Lock => "",
            Self::Fence => "quorate:fence:",
            Self::Queue => "quorate:queue:",
            Self::Alive => "quorate:alive:",
            Self::Ticket => "quorate:ticket:",
            Self::Broken => "quorate:broken:",
            Self::Holds => "quorate:holds:",
            Self::Value => "quorate:value:",
            Self::Slot => "quorate:slot:",
            Self::OfSlot => "quorate:fence:quorate:slot:",
            Self::Note => "quorate:note:",
            Self::OfHold => "quorate:note:quorate:hold:",
            Self::Masters => MASTERS,
            Self::Lines => "quorate:lines",
        }
    }

    /// Where that stands in a script and in the table of rights.
    pub(crate) fn place(self) -> &'static str {
        match self {
            Self::Lock => "{lock}",
            Self::Fence => "{fence}",
            Self::Queue => "{queue}",
            Self::Alive => "{alive}",
            Self::Ticket => "{ticket}",
            Self::Broken => "{broken}",
            Self::Holds => "{holds}",
            Self::Value => "{value}",
            Self::Slot => "{slot}",
            Self::OfSlot => "{of-slot}",
            Self::Note => "{note}",
            Self::OfHold => "{of-hold}",
            Self::Masters => "{masters}",
            Self::Lines => "{lines}",
        }
    }

    /// Whether it is one key for all locks.
    pub(crate) fn is_one_key(self) -> bool {
        matches!(self, Self::Masters | Self::Lines)
    }

    /// The key of this family that belongs to a lock key.
    #[cfg(any(test, feature = "testing", feature = "node"))]
    pub(crate) fn of(self, lock: &[u8]) -> Vec<u8> {
        [self.before().as_bytes(), lock].concat()
    }
}

/// The lock key that a key belongs to.
#[cfg(any(test, feature = "node"))]
pub(crate) fn lock_of(key: &[u8]) -> &[u8] {
    let of_hold = key.strip_prefix(Family::OfHold.before().as_bytes());
    // Behind it stand a value, a colon and the lock key.
    if let Some(lock) = of_hold.and_then(|rest| rest.get(33..)) {
        return lock;
    }
    let beside = [Family::Fence, Family::Broken, Family::Value, Family::Note];
    let mut lock = beside
        .iter()
        .filter_map(|family| key.strip_prefix(family.before().as_bytes()));
    lock.next().unwrap_or(key)
}

/// Whether a key is one of ours beside the locks.
pub(crate) fn is_reserved(key: &[u8]) -> bool {
    key.starts_with(RESERVED.as_bytes())
}

/// All keys whose names begin so, as masters write patterns.
pub(crate) fn pattern(before: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::with_capacity(before.len() + 1);
    for &byte in before {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\') {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern.push(b'*');
    pattern
}

/// A script with the names put in where it asks for them.
pub(crate) fn put_in(script: &str) -> String {
    let named = Family::ALL.iter().fold(script.to_owned(), |text, family| {
        text.replace(family.place(), family.before())
    });
    named
        .replace(WAKE_PLACE, WAKE)
        .replace(SHARED_PLACE, SHARED)
        .replace(OWNER_PLACE, OWNER)
        .replace(LEADER_PLACE, LEADER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_belongs_to_its_lock() {
        for lock in [&b"a"[..], b"a:b", &slot(b"api", 3)] {
            for family in [Family::Lock, Family::Fence, Family::Broken, Family::Value] {
                assert_eq!(lock_of(&family.of(lock)), lock, "{family:?}");
            }
            assert_eq!(lock_of(&Family::Note.of(lock)), lock);
            assert_eq!(lock_of(&hold(&[b'7'; 32], lock)), lock);
        }
    }

    #[test]
    fn the_key_of_a_slot_tells_slot_and_semaphore_and_no_other_key_is_taken_for_one() {
        for name in [&b"api"[..], b"a:b", b"7:x", b"\xff"] {
            let key = slot(name, 63);
            assert_eq!(slot_of(&key), Some((63, name)));
            assert_eq!(line_of(&key), line_of_semaphore(name));
        }
        for other in [
            &line_of_semaphore(b"api")[..],
            b"quorate:slot:",
            b"quorate:slot:7",
            b"quorate:slot:-7:api",
            b"quorate:slot:700:api",
            b"quorate:slot::api",
            b"api",
        ] {
            assert_eq!(slot_of(other), None, "{other:?}");
            assert_eq!(line_of(other), other);
        }
    }
}
