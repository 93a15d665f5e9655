//! Maps errors of the library to failures with exit codes.

use quorate::{AcquireError, BuildError, ValueError};

use crate::exit::{self, Failure};

/// The failure for a lock that was not acquired. Its exit code depends on the cause: another client holds the lock,
/// fewer than a majority of the masters answered, or the name of the lock is invalid.
pub(crate) fn acquire_failure(error: AcquireError) -> Failure {
    let is_expected = matches!(error, AcquireError::HeldByOther(_));
    let code = exit_code_of(&error);
    let failure = match error {
        AcquireError::InvalidOptions(BuildError::NeedsFencing(subject)) => {
            Failure::new(code, needs_fencing_text(subject))
        }
        error => Failure::new(code, error.details()),
    };
    if is_expected {
        failure.into_expected()
    } else {
        failure
    }
}

fn needs_fencing_text(subject: &str) -> String {
    format!("{subject} need fencing tokens: do not use --fencing off")
}

/// The failure of `quorate quota` because the quota could not be read or written.
pub(crate) fn quota_failure(error: ValueError) -> Failure {
    value_failure(
        error,
        &ValueWords {
            noun: "quota",
            create_command: "quorate quota create NAME N",
            remedy_if_lost: "run quorate quota drop NAME --yes, and quorate quota create NAME N with the units that are left",
        },
    )
}

/// The failure if `quorate once` cannot read or write the stored state of its job.
pub(crate) fn record_failure(error: ValueError) -> Failure {
    value_failure(
        error,
        &ValueWords {
            noun: "record",
            create_command: "quorate once --create NAME",
            remedy_if_lost: "find out whether the job ran; then run quorate once --drop NAME --yes, and quorate once --create NAME",
        },
    )
}

/// The words for one kind of value in error messages. `NAME` stands for the name of the value.
struct ValueWords {
    /// The kind of value.
    noun: &'static str,
    /// The command that creates the value.
    create_command: &'static str,
    /// The remedy if too many masters have lost the value.
    remedy_if_lost: &'static str,
}

fn value_failure(error: ValueError, value_words: &ValueWords) -> Failure {
    let noun = value_words.noun;
    let code = match error {
        ValueError::NotAcquired(error) => return acquire_failure(error),
        ValueError::NoFencing
        | ValueError::Invalid(_)
        | ValueError::Missing(_)
        | ValueError::Exists(_)
        | ValueError::OtherKind { .. } => exit::USAGE,
        ValueError::LockLost(_) | ValueError::Stopped { .. } => exit::LOST,
        _ => exit::UNAVAILABLE,
    };
    let details = error.details();
    let message = match &error {
        ValueError::Missing(missing) => {
            let name = &missing.name;
            let create_command = value_words.create_command.replace("NAME", name);
            format!(
                "the masters have no {noun} '{name}': create it with {create_command}; if it was created before, the \
                 masters have lost it"
            )
        }
        ValueError::Lost(lost) => {
            let name = &lost.name;
            let remedy = value_words.remedy_if_lost.replace("NAME", name);
            let replies = details.strip_prefix(&error.to_string());
            let replies = replies.unwrap_or_default();
            format!(
                "the {noun} '{name}' is lost, because too few masters have it: {remedy}{replies}"
            )
        }
        ValueError::NoFencing => needs_fencing_text("quotas and records"),
        ValueError::LockLost(value_error)
        | ValueError::NoQuorum(value_error)
        | ValueError::Exists(value_error)
        | ValueError::Incomplete(value_error)
        | ValueError::Unknown(value_error) => with_noun(details, noun, &value_error.name),
        ValueError::OtherKind { name, .. } => with_noun(details, noun, name),
        _ => details,
    };
    Failure::new(code, message)
}

/// Replaces the library's word for the value `name`, at the beginning of an error text, by `noun`.
fn with_noun(text: String, noun: &str, name: &str) -> String {
    match text.strip_prefix(&format!("the value of {name:?}")) {
        Some(rest) => format!("the {noun} '{name}'{rest}"),
        None => text,
    }
}

/// The error message if a signal interrupts an access to a quota or to a once-per-period record.
pub(crate) const VALUE_INTERRUPTED: &str =
    "interrupted: no lock is held any more, but the quota or record may already be updated";

fn exit_code_of(error: &AcquireError) -> u8 {
    match error {
        AcquireError::HeldByOther(_) | AcquireError::NotJoinable(_) => exit::HELD,
        AcquireError::OtherMasters(_) => exit::CONFIG,
        AcquireError::InvalidResource(_) | AcquireError::InvalidOptions(_) => exit::USAGE,
        _ => exit::UNAVAILABLE,
    }
}
