//! Maps errors of the library to failures with exit codes.

use quorate::{AcquireError, BuildError, ValueError};

use crate::exit::{self, Failure};

/// The failure for a lock that was not acquired. Its exit code depends on the cause: another client holds the lock,
/// fewer than a majority of the masters answered, or the name of the lock is invalid.
pub(crate) fn not_acquired(error: AcquireError) -> Failure {
    let is_usual = matches!(error, AcquireError::HeldByOther(_));
    let code = code_of(&error);
    let failure = match error {
        AcquireError::InvalidOptions(BuildError::NeedsFencing(what)) => {
            Failure::new(code, needs_fencing(what))
        }
        error => Failure::new(code, error.details()),
    };
    if is_usual { failure.usual() } else { failure }
}

fn needs_fencing(what: &str) -> String {
    format!("{what} need fencing tokens: do not use --fencing off")
}

/// The failure of `quorate quota` because the quota could not be read or written.
pub(crate) fn no_quota(error: ValueError) -> Failure {
    no_value(error, "quota", "quorate quota create NAME N")
}

/// The failure if `quorate once` cannot read or write the stored state of its job.
pub(crate) fn no_record(error: ValueError) -> Failure {
    no_value(error, "record", "quorate once --create NAME")
}

fn no_value(error: ValueError, what: &str, create: &str) -> Failure {
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
    match error {
        ValueError::Missing(missing) => {
            let name = missing.name;
            let create = create.replace("NAME", &name);
            Failure::new(
                code,
                format!(
                    "the masters have no {what} '{name}': create it with {create}; if it was created before, the \
                 masters have lost it"
                ),
            )
        }
        ValueError::NoFencing => Failure::new(code, needs_fencing("quotas and records")),
        error => Failure::new(code, error.details()),
    }
}

/// The error message if a signal interrupts an access to a quota or to a once-per-period record.
pub(crate) const VALUE_CUT_SHORT: &str =
    "interrupted: no lock is held any more, but the quota or record may already be updated";

fn code_of(error: &AcquireError) -> u8 {
    match error {
        AcquireError::HeldByOther(_) | AcquireError::NotJoinable(_) => exit::HELD,
        AcquireError::OtherMasters(_) => exit::CONFIG,
        AcquireError::InvalidResource(_) | AcquireError::InvalidOptions(_) => exit::USAGE,
        _ => exit::UNAVAILABLE,
    }
}
