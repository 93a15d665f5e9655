//! Parts of commands and replies that both halves of the wire know: missing values, flags, and the arguments of the
//! script that raises the age record.
//!
//! - The client half writes commands and reads replies: `encode.rs`, `decode.rs`, `many.rs`, `ages.rs`.
//! - The server half reads commands and writes replies: `server_half/`. Only tests and the simulation compile it.

use super::resp::Command;
#[cfg(any(test, feature = "testing"))]
use crate::node::numbers;

/// The argument in place of a waiter id, a note or a lock value that the request does not have.
pub(super) const ABSENT: &str = "";

/// The TTL in an extension of a withdrawn claim. The script then does not change the lock.
pub(super) const WITHDRAWN_TTL: u64 = 0;

/// The sign before the TTL in an extension that also extends the expiry of the holder's note.
pub(super) const WITH_NOTE: &str = "-";

/// A bit in the flags of UNCLAIM: the waiter leaves the queues.
pub(super) const LEAVES_QUEUES_FLAG: u64 = 1;

/// A bit in the flags of UNCLAIM: notes were written.
pub(super) const NOTED_FLAG: u64 = 2;

/// The reply of ACQUIRE_MANY for a lock that was granted with the proposed fencing number.
pub(super) const AS_PROPOSED: i64 = -1;

/// The reply of ACQUIRE_MANY for a lock that the client must request with a script for one lock.
pub(super) const NOT_TRIED: i64 = 0;

/// The character in the reply of RELEASE_MANY for a lock that was deleted.
pub(super) const DELETED: u8 = b'1';

/// The character in the reply of RELEASE_MANY for a lock that the client does not hold.
pub(super) const NOT_OURS: u8 = b'0';

/// The character in the reply of RELEASE_MANY for a lock that the client must release with a script for one lock.
pub(super) const NOT_RELEASED: u8 = b'-';

/// The arguments of the script that raises the age record, and restores a lost generation marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "public if the feature `testing` is on")]
pub struct AgeCall<'a> {
    /// The run id of the server, as the client knows it.
    pub run: &'a str,
    /// The name of the age record that the client has watched; empty if it has found no record of this run.
    pub life: &'a str,
    /// For how long clients have watched this run, in milliseconds.
    pub age_ms: u64,
    /// The name that a new age record gets.
    pub new_life: &'a str,
    /// The lost generation marker; empty if the client restores none.
    pub marker: &'a str,
}

impl AgeCall<'_> {
    /// The number of arguments.
    pub(super) const ARGS: usize = 5;

    pub(super) fn write(&self, command: &mut Command<'_>) {
        command.arg(self.run).arg(self.life).number(self.age_ms);
        command.arg(self.new_life).arg(self.marker);
    }
}

#[cfg(any(test, feature = "testing"))]
impl<'a> AgeCall<'a> {
    /// Parses the arguments that [`write`](Self::write) wrote; `None` if they are malformed.
    pub(super) fn read(args: &[&'a [u8]]) -> Option<Self> {
        let [run, life, age_ms, new_life, marker] = args else {
            return None;
        };
        let text = |word: &'a [u8]| std::str::from_utf8(word).ok();
        Some(Self {
            run: text(run)?,
            life: text(life)?,
            age_ms: numbers::parse_whole(age_ms)?,
            new_life: text(new_life)?,
            marker: text(marker)?,
        })
    }
}
