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
    no_value(
        error,
        &Words {
            what: "quota",
            create: "quorate quota create NAME N",
            lost: "run quorate quota drop NAME --yes, and quorate quota create NAME N with the units that are left",
        },
    )
}

/// The failure if `quorate once` cannot read or write the stored state of its job.
pub(crate) fn no_record(error: ValueError) -> Failure {
    no_value(
        error,
        &Words {
            what: "record",
            create: "quorate once --create NAME",
            lost: "find out whether the job ran; then run quorate once --drop NAME --yes, and quorate once --create NAME",
        },
    )
}

/// The words for one kind of value in error messages. `NAME` stands for the name of the value.
struct Words {
    /// The kind of value.
    what: &'static str,
    /// The command that creates the value.
    create: &'static str,
    /// The remedy if too many masters have lost the value.
    lost: &'static str,
}

fn no_value(error: ValueError, words: &Words) -> Failure {
    let what = words.what;
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
    let details = error.details();
    let line = match &error {
        ValueError::Missing(missing) => {
            let name = &missing.name;
            let create = words.create.replace("NAME", name);
            format!(
                "the masters have no {what} '{name}': create it with {create}; if it was created before, the \
                 masters have lost it"
            )
        }
        ValueError::Lost(lost) => {
            let name = &lost.name;
            let remedy = words.lost.replace("NAME", name);
            let replies = details.strip_prefix(&error.to_string());
            let replies = replies.unwrap_or_default();
            format!(
                "the {what} '{name}' is lost, because too few masters have it: {remedy}{replies}"
            )
        }
        ValueError::NoFencing => needs_fencing("quotas and records"),
        ValueError::LockLost(trouble)
        | ValueError::NoQuorum(trouble)
        | ValueError::Exists(trouble)
        | ValueError::Incomplete(trouble)
        | ValueError::Unknown(trouble) => called(details, what, &trouble.name),
        ValueError::OtherKind { name, .. } => called(details, what, name),
        _ => details,
    };
    Failure::new(code, line)
}

/// Replaces the library's word for the value `name`, at the beginning of an error text, by `what`.
fn called(text: String, what: &str, name: &str) -> String {
    match text.strip_prefix(&format!("the value of {name:?}")) {
        Some(rest) => format!("the {what} '{name}'{rest}"),
        None => text,
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
