//! The names of all keys and channels. The scripts, the access rights and the in-memory masters use these definitions.

use std::borrow::Cow;

/// The prefix of all keys that quorate reserves for itself. Resource names and key prefixes must not begin with it.
pub(crate) const RESERVED: &str = "quorate:";

/// A glob pattern that matches the lock keys of all slots of all semaphores.
pub(crate) fn pattern_of_all_slots() -> Vec<u8> {
    pattern_of_prefix(Family::Slot.key_prefix().as_bytes())
}

/// Splits the key of a semaphore's slot into the slot's number and the semaphore's name with its key prefix. `None` for
/// other keys.
pub(crate) fn parse_slot_key(key: &[u8]) -> Option<(u8, &[u8])> {
    let rest = key.strip_prefix(Family::Slot.key_prefix().as_bytes())?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (slot, name) = rest.split_at(digits);
    let slot = std::str::from_utf8(slot).ok()?.parse().ok()?;
    Some((slot, name.strip_prefix(b":")?))
}

/// The name under which the queue for a lock key is stored. All slots of a semaphore share the queue of their
/// semaphore.
pub(crate) fn queue_name_of(key: &[u8]) -> Cow<'_, [u8]> {
    match parse_slot_key(key) {
        Some((_, name)) => semaphore_queue_name(name).into(),
        None => key.into(),
    }
}

/// The key of the note of one hold, if several holds share the lock (readers, or holds of one owner): a prefix, the
/// lock value of the hold, and the lock key.
#[cfg(any(test, feature = "testing", feature = "node"))]
pub(crate) fn hold_note_key(value: &[u8], key: &[u8]) -> Vec<u8> {
    [Family::HoldNote.key_prefix().as_bytes(), value, b":", key].concat()
}

/// The lock key of a semaphore's slot; `name` is the semaphore's name with the key prefix.
pub(crate) fn slot_key(name: &[u8], slot: u8) -> Vec<u8> {
    [
        format!("{}{slot}:", Family::Slot.key_prefix()).as_bytes(),
        name,
    ]
    .concat()
}

/// The name under which a semaphore's queue is stored; `name` is the semaphore's name with the key prefix.
pub(crate) fn semaphore_queue_name(name: &[u8]) -> Vec<u8> {
    [Family::Slot.key_prefix().as_bytes(), b"line:", name].concat()
}

/// The prefix of the channels that wake waiters. It is followed by the id of the waiting client's `Redlock` (16
/// hexadecimal digits).
pub(crate) const WAKE_CHANNEL_PREFIX: &str = "quorate:wake:";

/// The key of the generation marker. The marker contains a number that grows while masters are being replaced.
pub(crate) const MARKER_KEY: &str = "quorate:masters";

/// The key of the age record: how long clients have watched the present run of the server (docs/protocol.md, "Age
/// records").
pub(crate) const AGE_KEY: &str = "quorate:masters:age";

/// The placeholder for the prefix [`WAKE_CHANNEL_PREFIX`] in scripts and in the table of access rights.
pub(crate) const WAKE_PLACEHOLDER: &str = "{wake}";

/// The value of the lock key while readers hold the lock.
pub(crate) const SHARED_LOCK_VALUE: &str = "quorate:shared";

/// The placeholder for the value [`SHARED_LOCK_VALUE`] in scripts.
const SHARED_PLACEHOLDER: &str = "{shared}";

/// The beginning of the lock key's value while an owner holds the lock; the owner's id follows.
pub(crate) const OWNER_VALUE_PREFIX: &str = "quorate:owner:";

/// Whether `held`, the value of a lock key, shows that the holds of readers or of one owner share the lock.
pub(crate) fn is_shared_value(held: &[u8]) -> bool {
    held == SHARED_LOCK_VALUE.as_bytes() || held.starts_with(OWNER_VALUE_PREFIX.as_bytes())
}

/// The placeholder for the value prefix [`OWNER_VALUE_PREFIX`] in scripts.
const OWNER_PLACEHOLDER: &str = "{owner}";

/// The prefix of the channel on which the new leader of an election is announced; the lock key follows.
pub(crate) const LEADER_CHANNEL_PREFIX: &str = "quorate:leader:";

/// The placeholder for the prefix [`LEADER_CHANNEL_PREFIX`] in scripts and in the table of access rights.
pub(crate) const LEADER_PLACEHOLDER: &str = "{leader}";

/// The kinds of keys that quorate stores on a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    /// The lock key. Its value identifies the attempt that took the lock.
    Lock,
    /// The fencing counter of the lock.
    Fence,
    /// The queue of the lock: its waiters, sorted by ticket.
    Queue,
    /// For each waiter in the queue, the deadline of its next heartbeat. After the deadline the waiter is skipped.
    Alive,
    /// The largest ticket that was given out in the lock's queue.
    Ticket,
    /// The break record: the lock values of force-released holders. A renewal must not restore a lock whose value is in
    /// this record.
    Broken,
    /// The holds that share the lock (readers, or the holds of one owner). Each hold has a random value, which is the
    /// name of its entry.
    Holds,
    /// The value (quota or once-per-period record) that is stored under the lock.
    Value,
    /// The lock key of a semaphore's slot. The slot's number follows the prefix.
    Slot,
    /// The keys of a semaphore's slot other than its lock key, for example its fencing counter. Each slot of a
    /// semaphore is a separate lock.
    SlotFence,
    /// The note of the lock's holder.
    Note,
    /// The note of one hold, if readers or an owner hold the lock. The prefix of the key is followed by the hold's lock
    /// value and the lock key.
    HoldNote,
    /// The age record of the server: one key for all locks.
    Age,
    /// The generation marker of the masters: one key for all locks.
    Masters,
    /// A key that exists while any lock on this master may have waiters: one key for all locks.
    Lines,
}

impl Family {
    pub(crate) const ALL: [Self; 15] = [
        Self::Lock,
        Self::Fence,
        Self::Queue,
        Self::Alive,
        Self::Ticket,
        Self::Broken,
        Self::Holds,
        Self::Value,
        Self::Slot,
        Self::SlotFence,
        // Keep `HoldNote` before `Note`: the first matching prefix counts, and `Note` matches `HoldNote` keys too.
        Self::HoldNote,
        Self::Note,
        // Keep `Age` before `Masters` for the same reason: `Masters` matches the age record too.
        Self::Age,
        Self::Masters,
        Self::Lines,
    ];

    /// The prefix of the keys of this kind; the lock key follows.
    pub(crate) fn key_prefix(self) -> &'static str {
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
            Self::SlotFence => "quorate:fence:quorate:slot:",
            Self::Note => "quorate:note:",
            Self::HoldNote => "quorate:note:quorate:hold:",
            Self::Age => AGE_KEY,
            Self::Masters => MARKER_KEY,
            Self::Lines => "quorate:lines",
        }
    }

    /// The placeholder for the [prefix](Self::key_prefix) in scripts and in the table of access rights.
    pub(crate) fn placeholder(self) -> &'static str {
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
            Self::SlotFence => "{of-slot}",
            Self::Note => "{note}",
            Self::HoldNote => "{of-hold}",
            Self::Age => "{age}",
            Self::Masters => "{masters}",
            Self::Lines => "{lines}",
        }
    }

    /// True if there is only one key of this kind on a master, for all locks together.
    pub(crate) fn is_single_key_per_master(self) -> bool {
        matches!(self, Self::Age | Self::Masters | Self::Lines)
    }

    /// The key of this kind that belongs to a lock key.
    #[cfg(any(test, feature = "testing", feature = "node"))]
    pub(crate) fn key_of(self, lock: &[u8]) -> Vec<u8> {
        [self.key_prefix().as_bytes(), lock].concat()
    }
}

/// The lock key to which a key of this kind belongs.
#[cfg(any(test, feature = "node"))]
pub(crate) fn lock_of(key: &[u8]) -> &[u8] {
    let hold_note_of = key.strip_prefix(Family::HoldNote.key_prefix().as_bytes());
    // The prefix is followed by the hold's lock value (32 hexadecimal digits), a colon and the lock key.
    if let Some(lock) = hold_note_of.and_then(|rest| rest.get(33..)) {
        return lock;
    }
    let side_families = [Family::Fence, Family::Broken, Family::Value, Family::Note];
    let mut lock_key = side_families
        .iter()
        .filter_map(|family| key.strip_prefix(family.key_prefix().as_bytes()));
    lock_key.next().unwrap_or(key)
}

/// Whether a key belongs to quorate but is not a lock key.
pub(crate) fn is_reserved(key: &[u8]) -> bool {
    key.starts_with(RESERVED.as_bytes())
}

/// A glob pattern for all keys that begin with `before`.
pub(crate) fn pattern_of_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut pattern = Vec::new();
    for &byte in prefix {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\') {
            pattern.push(b'\\');
        }
        pattern.push(byte);
    }
    pattern.push(b'*');
    pattern
}

/// Replaces the placeholders in the text of a script with the key prefixes that they stand for.
pub(crate) fn fill_placeholders(script: &str) -> String {
    let with_families = Family::ALL.iter().fold(script.to_owned(), |text, family| {
        text.replace(family.placeholder(), family.key_prefix())
    });
    with_families
        .replace(WAKE_PLACEHOLDER, WAKE_CHANNEL_PREFIX)
        .replace(SHARED_PLACEHOLDER, SHARED_LOCK_VALUE)
        .replace(OWNER_PLACEHOLDER, OWNER_VALUE_PREFIX)
        .replace(LEADER_PLACEHOLDER, LEADER_CHANNEL_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_key_is_derived_from_each_key_of_the_lock() {
        for lock in [&b"a"[..], b"a:b", &slot_key(b"api", 3)] {
            for family in [Family::Lock, Family::Fence, Family::Broken, Family::Value] {
                assert_eq!(lock_of(&family.key_of(lock)), lock, "{family:?}");
            }
            assert_eq!(lock_of(&Family::Note.key_of(lock)), lock);
            assert_eq!(lock_of(&hold_note_key(&[b'7'; 32], lock)), lock);
        }
    }

    #[test]
    fn slot_number_is_parsed_only_from_the_key_of_a_semaphore_slot() {
        for name in [&b"api"[..], b"a:b", b"7:x", b"\xff"] {
            let key = slot_key(name, 63);
            assert_eq!(parse_slot_key(&key), Some((63, name)));
            assert_eq!(queue_name_of(&key), semaphore_queue_name(name));
        }
        for other_key in [
            &semaphore_queue_name(b"api")[..],
            b"quorate:slot:",
            b"quorate:slot:7",
            b"quorate:slot:-7:api",
            b"quorate:slot:700:api",
            b"quorate:slot::api",
            b"api",
        ] {
            assert_eq!(parse_slot_key(other_key), None, "{other_key:?}");
            assert_eq!(queue_name_of(other_key), other_key);
        }
    }

    #[test]
    fn all_keys_of_a_lock_except_the_lock_key_are_reserved() {
        for family in Family::ALL {
            let key = family.key_of(b"api");
            assert_eq!(is_reserved(&key), family != Family::Lock, "{family:?}");
        }
        for key in [&slot_key(b"api", 3)[..], &semaphore_queue_name(b"api")] {
            assert!(is_reserved(key), "{key:?}");
        }
    }

    #[test]
    fn pattern_of_a_prefix_escapes_the_characters_with_a_special_meaning() {
        assert_eq!(pattern_of_prefix(b""), b"*");
        assert_eq!(pattern_of_prefix(b"a:b"), b"a:b*");
        assert_eq!(pattern_of_prefix(br"*?[a]\"), br"\*\?\[a\]\\*");
    }
}
