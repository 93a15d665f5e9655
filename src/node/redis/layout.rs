//! Parts of commands and replies that both halves of the wire know: missing values, flags, and the arguments of the
//! script that raises the age record.
//!
//! - The client half writes commands and reads replies: `encode.rs`, `decode.rs`, `many.rs`, `ages.rs`.
//! - The server half reads commands and writes replies: `server_half/`. Only tests and the simulation compile it.

use super::resp::Command;
use crate::node::age_call::AgeCall;
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

/// The number of arguments of the script that raises the age record.
pub(super) const AGE_ARGS: usize = 5;

/// Writes the arguments of the script that raises the age record.
pub(super) fn write_age_call(call: &AgeCall<'_>, command: &mut Command<'_>) {
    command.arg(call.run).arg(call.life).number(call.age_ms);
    command.arg(call.new_life).arg(call.marker);
}

/// Parses the arguments that [`write_age_call`] wrote; `None` if they are malformed.
#[cfg(any(test, feature = "testing"))]
pub(super) fn parse_age_call<'a>(args: &[&'a [u8]]) -> Option<AgeCall<'a>> {
    let [run, life, age_ms, new_life, marker] = args else {
        return None;
    };
    let text = |word: &'a [u8]| std::str::from_utf8(word).ok();
    Some(AgeCall {
        run: text(run)?,
        life: text(life)?,
        age_ms: numbers::parse_whole(age_ms)?,
        new_life: text(new_life)?,
        marker: text(marker)?,
    })
}
