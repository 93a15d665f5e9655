//! The library's errors as ways to exit.

use quorate::{AcquireError, ValueError};

use crate::exit::{self, Failure};

/// Contention, outage and wrong names are different exits.
pub(crate) fn not_acquired(error: AcquireError) -> Failure {
    let is_usual = matches!(error, AcquireError::HeldByOther(_));
    let failure = Failure::new(code_of(&error), error);
    if is_usual { failure.usual() } else { failure }
}

/// A value under a lock that was not read or not written.
pub(crate) fn no_value(error: ValueError) -> Failure {
    let code = match error {
        ValueError::NotAcquired(error) => return not_acquired(error),
        ValueError::NoFencing
        | ValueError::Invalid(_)
        | ValueError::Missing(_)
        | ValueError::Exists(_)
        | ValueError::OtherKind { .. } => exit::USAGE,
        ValueError::LockLost(_) | ValueError::Stopped { .. } => exit::LOST,
        _ => exit::UNAVAILABLE,
    };
    Failure::new(code, error)
}

/// What is said where a signal cuts short what reads or writes a value under its lock.
pub(crate) const VALUE_CUT_SHORT: &str =
    "nothing is held; if it was past the wait for the lock, it may have been done or not";

fn code_of(error: &AcquireError) -> u8 {
    match error {
        AcquireError::HeldByOther(_) | AcquireError::NotJoinable(_) => exit::HELD,
        AcquireError::OtherMasters(_) => exit::CONFIG,
        AcquireError::InvalidResource(_) | AcquireError::InvalidOptions(_) => exit::USAGE,
        _ => exit::UNAVAILABLE,
    }
}
