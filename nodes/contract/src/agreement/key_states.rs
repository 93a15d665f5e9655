//! The visible state of the keys of a lock.

use std::time::Duration;

use super::equality::forget_notes;
use crate::fixtures::counter_key;
use crate::requests::{self, Reply};
use crate::tested_master::TestedMaster;

/// The visible state of one lock.
#[derive(Debug)]
pub(super) struct KeyStates {
    /// The reply to a status request.
    pub(super) status: Reply,
    /// The lock key, its fencing counter and its note, each with its remaining time.
    pub(super) keys: Vec<(Option<Vec<u8>>, Option<Duration>)>,
}

/// The index of the note in [`KeyStates::keys`]. The remaining times of a note on the two masters may differ by four
/// times as much as those of other keys.
pub(super) const NOTE: usize = 2;

impl KeyStates {
    /// Removes the notes from this state and from the state `other`.
    pub(super) fn forget_note(&mut self, other: &mut Self) {
        forget_notes([&mut self.status, &mut other.status]);
        self.keys.truncate(NOTE);
        other.keys.truncate(NOTE);
    }

    /// Reads the state of the lock `key` on `master`.
    pub(super) async fn read(master: &TestedMaster, key: &[u8]) -> Self {
        let status = master.send(requests::status(key)).await;
        let note_key = [b"quorate:note:", key].concat();
        let keys = [key.to_vec(), counter_key(key), note_key];
        let keys = keys.map(|key| master.keys().read_with_ttl(&key)).into();
        Self { status, keys }
    }
}
