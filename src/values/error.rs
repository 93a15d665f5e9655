//! Why a value under a lock was not read or written.

use std::fmt;
use std::time::Duration;

use crate::error::{AcquireError, with_replies};
use crate::outcome::LossCause;
use crate::report::{NodeOutcome, NodeReport};

/// Why an operation on a [`Quota`](crate::Quota) or a [`Once`](crate::Once) record failed.
///
/// The stored value has not changed, except possibly in these cases:
///
/// - [`Unknown`](Self::Unknown): the new value may have been written.
/// - [`Incomplete`](Self::Incomplete): the value may have been removed from some masters.
/// - [`Stopped`](Self::Stopped) with `recorded: true`: the period was recorded as done before the body was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ValueError {
    /// The lock that protects the value was not acquired.
    NotAcquired(AcquireError),
    /// The `Redlock` was built with `fencing(false)`. Values need fencing tokens, which show which value was written
    /// last. Nothing was sent.
    NoFencing,
    /// The number of units or the period is invalid. Nothing was sent.
    Invalid(&'static str),
    /// The lock was lost before the value was written.
    LockLost(ValueTrouble),
    /// The value could not be read, because too few masters gave a usable answer.
    NoQuorum(ValueTrouble),
    /// No master has a value with this name: none was created, or all masters have lost it. Because the value may have
    /// been lost, it is never created automatically.
    Missing(ValueTrouble),
    /// Too many masters have lost the value, so it is not certain which value was written last. This lasts until an
    /// operator removes the value and creates it again.
    Lost(ValueTrouble),
    /// The value was not created, because a master already has a value with this name.
    Exists(ValueTrouble),
    /// Creating or removing a value needs every master, but some masters gave no usable answer. A creation changed no
    /// master. A removal was executed on the masters that answered.
    Incomplete(ValueTrouble),
    /// The value may have been written. Treat the call as failed: do not use the requested units of a quota, and do not
    /// start the work of a period.
    Unknown(ValueTrouble),
    /// The stored value with this name is of another kind (quota or once-per-period record).
    OtherKind {
        /// The name of the value.
        name: String,
        /// The kind of value that was requested.
        wanted: &'static str,
        /// The beginning of the stored value, as text.
        found: String,
    },
    /// By the masters' clocks, the last recorded period, or the period of this call, begins more than one minute in the
    /// future. This is only possible if some clock is wrong. No work was run and nothing was recorded.
    Ahead {
        /// The name of the once-per-period record.
        name: String,
        /// How far in the future the period begins, by the masters' clocks.
        ahead: Duration,
        /// Which period begins in the future: true for the last recorded period, false for the period of this call.
        recorded: bool,
    },
    /// No majority of the masters' clocks agrees whether the last recorded period, or the period of this call, has
    /// begun. The clocks of some masters are wrong, and too few other masters answered. No work was run and nothing was
    /// recorded.
    ClocksDisagree {
        /// The name of the once-per-period record.
        name: String,
        /// How far the clock of each master that answered is from the clock of this machine, as text.
        clocks: String,
        /// Which period the clocks disagree about: true for the last recorded period, false for the period of this
        /// call.
        recorded: bool,
    },
    /// The work of the period (the caller's `body`) was dropped before its end, because the lock was lost.
    Stopped {
        /// The name of the once-per-period record.
        name: String,
        /// Why the lock was lost.
        cause: LossCause,
        /// Whether the period is recorded as done, although its work was not finished.
        recorded: bool,
    },
}

/// The name of a quota or once-per-period record, and the masters' replies that caused an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ValueTrouble {
    /// The name of the value, as text.
    pub name: String,
    /// The reply of each master in the round of requests that failed.
    pub reports: Vec<NodeReport>,
}

impl ValueError {
    /// The reply of each master in the round of requests that failed; empty if nothing was sent.
    pub fn reports(&self) -> &[NodeReport] {
        match self {
            Self::NotAcquired(error) => error.reports(),
            Self::LockLost(trouble)
            | Self::NoQuorum(trouble)
            | Self::Missing(trouble)
            | Self::Lost(trouble)
            | Self::Exists(trouble)
            | Self::Incomplete(trouble)
            | Self::Unknown(trouble) => &trouble.reports,
            Self::NoFencing
            | Self::Invalid(_)
            | Self::OtherKind { .. }
            | Self::Ahead { .. }
            | Self::ClocksDisagree { .. }
            | Self::Stopped { .. } => &[],
        }
    }
}

impl ValueError {
    /// The masters' replies about the value, and a text for the error. `None` if this error contains no replies.
    fn description(&self) -> Option<(&ValueTrouble, &'static str)> {
        Some(match self {
            Self::LockLost(trouble) => (
                trouble,
                "was not changed: the lock was lost before anything was written",
            ),
            Self::NoQuorum(trouble) => (
                trouble,
                "was not changed: no majority of the masters could answer",
            ),
            Self::Missing(trouble) => (
                trouble,
                "does not exist on the masters that answered: create it, or create it again if these masters \
                 lost it",
            ),
            Self::Lost(trouble) => (
                trouble,
                "is lost, because too few masters have it: drop it, and create it again",
            ),
            Self::Exists(trouble) => (trouble, "was not created: it exists already"),
            Self::Incomplete(trouble) => (
                trouble,
                "can be created or dropped only if every master answers: try again when all masters answer; \
                 a drop may already have removed the value from some masters",
            ),
            Self::Unknown(trouble) => (
                trouble,
                "may or may not have been written: treat this call as failed, although its units may be \
                 taken or its period recorded as done",
            ),
            _ => return None,
        })
    }
}

impl ValueError {
    /// The full text for operators: the error's text, and the masters that caused the error, with their addresses and
    /// replies. The `Display` text names no masters, so a service may show it to its users.
    pub fn details(&self) -> String {
        match self {
            Self::NotAcquired(error) => error.details(),
            Self::Exists(trouble) => format!("{self}, on {}", trouble.masters_with_value()),
            Self::ClocksDisagree { clocks, .. } => format!("{self} ({clocks})"),
            _ => with_replies(self.to_string(), self.reports()),
        }
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((trouble, description)) = self.description() {
            return write!(f, "the value of {:?} {description}", trouble.name);
        }
        match self {
            Self::NotAcquired(error) => error.fmt(f),
            Self::NoFencing => f.write_str(
                "quotas and records need fencing tokens: remove fencing(false) from the builder",
            ),
            Self::Invalid(why) => f.write_str(why),
            Self::OtherKind {
                name,
                wanted,
                found,
            } => write!(
                f,
                "the value of {name:?} begins with {found:?}, so it is not a {wanted}; it was not changed: choose \
                 another name"
            ),
            Self::Ahead {
                name,
                ahead,
                recorded,
            } => write_ahead(f, name, *ahead, *recorded),
            Self::ClocksDisagree { name, recorded, .. } => {
                let which_period = if *recorded { "recorded" } else { "current" };
                write!(
                    f,
                    "the clocks of the masters disagree whether the {which_period} period of {name:?} has begun, so nothing \
                     ran: correct the clock of the master that is wrong, or start the masters that do not answer"
                )
            }
            Self::Stopped {
                name,
                cause,
                recorded,
            } => {
                let is_or_is_not = if *recorded { "is" } else { "is not" };
                write!(
                    f,
                    "the work of {name:?} was stopped, because the lock was lost ({cause}); the period \
                     {is_or_is_not} recorded as done"
                )
            }
            _ => Ok(()),
        }
    }
}

fn write_ahead(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    ahead: Duration,
    recorded: bool,
) -> fmt::Result {
    let ahead_text = humantime::format_duration(Duration::from_secs(ahead.as_secs()));
    if recorded {
        return write!(
            f,
            "the recorded period of {name:?} begins {ahead_text} in the future by the masters' clocks, so nothing ran: a \
             machine with a fast clock recorded it; drop the record and create it again"
        );
    }
    write!(
        f,
        "the current period of {name:?} begins {ahead_text} in the future by the masters' clocks, so nothing ran: correct \
         the clock of this machine or of the masters"
    )
}

impl ValueTrouble {
    /// The names of the masters that returned a value.
    fn masters_with_value(&self) -> String {
        let has_value = |report: &&NodeReport| {
            matches!(report.outcome, NodeOutcome::Yes | NodeOutcome::OldValue)
        };
        let names = self.reports.iter().filter(has_value);
        let names: Vec<_> = names.map(|report| report.node.as_str()).collect();
        names.join(", ")
    }
}

// `source` returns `None`, because this error's text already includes the text of the inner error.
impl std::error::Error for ValueError {}

impl From<AcquireError> for ValueError {
    fn from(error: AcquireError) -> Self {
        Self::NotAcquired(error)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;
    use crate::error::{BuildError, FailedAcquire};
    use crate::node::{NodeName, Phase};

    fn trouble(outcomes: &[NodeOutcome]) -> ValueTrouble {
        let report = |(index, outcome): (usize, &NodeOutcome)| NodeReport {
            node: NodeName::new(format!("master-{index}")),
            phase: Phase::Value,
            outcome: outcome.clone(),
            latency: None,
            late: false,
        };
        ValueTrouble {
            name: "prizes".into(),
            reports: outcomes.iter().enumerate().map(report).collect(),
        }
    }

    #[test]
    fn error_of_a_value_whose_lock_is_held_has_the_details_of_the_acquire() {
        let failed = FailedAcquire {
            resource: "prizes".into(),
            waited: std::time::Duration::ZERO,
            attempts: 1,
            reports: Vec::new(),
            held_here: false,
            foreign: true,
            note: None,
            majority: crate::protocol::quorum::Quorum::new(3),
        };
        let error = ValueError::NotAcquired(AcquireError::HeldByOther(failed));
        let details = error.details();
        assert!(details.contains("use another name or prefix"), "{details}");
    }

    #[test]
    fn value_error_states_whether_the_value_was_changed() {
        let no_trouble = || trouble(&[]);
        let assert_text = |error: ValueError, description: &str| {
            let text = error.details();
            assert!(
                text.contains("\"prizes\"") && text.contains(description),
                "{text}"
            );
        };
        assert_text(
            ValueError::LockLost(no_trouble()),
            "lost before anything was written",
        );
        assert_text(ValueError::NoQuorum(no_trouble()), "no majority");
        assert_text(ValueError::Missing(no_trouble()), "does not exist");
        assert_text(ValueError::Lost(no_trouble()), "is lost");
        assert_text(
            ValueError::Incomplete(no_trouble()),
            "only if every master answers",
        );
        assert_text(
            ValueError::Unknown(no_trouble()),
            "may or may not have been written",
        );
        let ahead_error = |recorded| ValueError::Ahead {
            name: "prizes".into(),
            ahead: Duration::from_millis(90_500),
            recorded,
        };
        assert_text(
            ahead_error(true),
            "begins 1m 30s in the future by the masters' clocks, so nothing ran: a machine",
        );
        let clocks_disagree = ValueError::ClocksDisagree {
            name: "prizes".into(),
            clocks: "m1 is 30days ahead of this machine".into(),
            recorded: false,
        };
        assert_text(clocks_disagree, "nothing ran: correct the clock");
        assert_text(
            ahead_error(false),
            "begins 1m 30s in the future by the masters' clocks",
        );
        let has_one = trouble(&[
            NodeOutcome::Yes,
            NodeOutcome::OldValue,
            NodeOutcome::NoValue,
        ]);
        assert_text(
            ValueError::Exists(has_one),
            "already, on master-0, master-1",
        );
    }

    #[test]
    fn value_error_contains_the_text_of_the_acquire_error_once() {
        let error = AcquireError::from(BuildError::NeedsFencing("values"));
        let inner = error.to_string();
        let error = ValueError::from(error);
        assert!(error.source().is_none());
        assert_eq!(error.to_string(), inner);
    }
}
