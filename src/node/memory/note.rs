//! Notes on the master in memory. A note describes the holder of a lock.

use super::master::Master;
use crate::keys::Family;
use crate::node::note::{NOTE_LIVES, NOTE_SHOWN, with_start};
use crate::node::{Claim, Note, NoteItem};

impl Master {
    pub(super) fn note(&mut self, now: u64, item: &NoteItem) -> bool {
        let mut is_written = true;
        for key in item.claim.keys() {
            is_written &= self.note_on(now, key, item);
        }
        is_written
    }

    fn note_on(&mut self, now: u64, lock: &[u8], item: &NoteItem) -> bool {
        let value = item.claim.token().to_hex();
        let stored_value = self.text(now, lock).ok().flatten().map(<[u8]>::to_vec);
        let Some(lock_value) = stored_value.filter(|_| !item.claim.is_withdrawn()) else {
            return false;
        };
        let (ttl_left, key) = if lock_value == value {
            (self.ttl_left(now, lock), Family::Note.key_of(lock))
        } else if let Some((ttl_left, key)) = self.hold_ttl(now, lock, &lock_value, value) {
            (Some(ttl_left), key)
        } else {
            return false;
        };
        let is_written = ttl_left.is_some() && self.text(now, &key).is_ok();
        if is_written {
            let note = with_start(item.since, &item.says);
            let value = [&value[..], b" ", note.as_bytes()].concat();
            self.set(
                now,
                &key,
                value,
                ttl_left.map(|ttl_left| ttl_left * NOTE_LIVES),
            );
        }
        if item.announce {
            self.announced.push(lock.to_vec());
        }
        is_written
    }

    /// Sets the expiry of the lock's note to [`NOTE_LIVES`] times the remaining TTL of the lock. Returns `false` if
    /// there is no note, or if the note belongs to another lock value.
    pub(super) fn keep_note(&mut self, now: u64, claim: &Claim) -> bool {
        let key = Family::Note.key_of(claim.key());
        let ttl_left = self.ttl_left(now, claim.key());
        let Ok(Some(note)) = self.text(now, &key).map(|note| note.map(<[u8]>::to_vec)) else {
            return false;
        };
        let is_own = note.starts_with(&claim.token().to_hex());
        self.set(
            now,
            &key,
            note,
            ttl_left.map(|ttl_left| ttl_left * NOTE_LIVES),
        );
        is_own
    }

    /// The note of the lock `key`; `None` if there is no note, or if it does not belong to the lock value `holder`.
    pub(super) fn note_of(&mut self, now: u64, key: &[u8], holder: Option<&[u8]>) -> Option<Note> {
        let holder = holder?;
        let note = self.text(now, &Family::Note.key_of(key)).ok().flatten();
        Note::read(shown_of(note?), holder)
    }

    pub(super) fn term_of(&mut self, now: u64, key: &[u8], holder: Option<&[u8]>) -> Option<u64> {
        let note = self.text(now, &Family::Note.key_of(key)).ok().flatten();
        Note::term(shown_of(note?), holder?)
    }

    pub(super) fn drop_note(&mut self, now: u64, key: &[u8]) {
        let key = Family::Note.key_of(key);
        if let Ok(Some(_)) = self.text(now, &key) {
            self.remove(&key);
        }
    }
}

/// The first `NOTE_SHOWN` bytes of a note.
pub(super) fn shown_of(note: &[u8]) -> &[u8] {
    &note[..note.len().min(NOTE_SHOWN)]
}
