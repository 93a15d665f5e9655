//! Why a call failed, as data.

use std::time::Duration;

use quorate::{
    AcquireError, BuildError, ExtendError, FailedAcquire, InvalidResource, LossCause, NodeReport,
    Note, ValueError,
};

/// Which error it is. The packages have one error class for each kind, or for a group of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Another client held the lock until the end of the wait.
    Held,
    /// The owner that asks holds the lock already, and cannot get another hold now.
    NotJoinable,
    /// Less than a majority of the masters could vote.
    NoQuorum,
    /// Too many masters refuse the configuration of this client.
    OtherMasters,
    /// A majority granted the lock, but no validity was left.
    TooLate,
    /// The lock ended before the call did. [`CallError::cause`] has the reason.
    Lost,
    /// Too few masters answered to extend the lock. It stays held until its current validity ends.
    NotExtended,
    /// A setting, a name or a number is invalid. Nothing was sent.
    Invalid,
    /// The object belongs to the process from which this process was forked.
    Forked,
    /// The client was closed while the call was under way.
    Closed,
    /// The stored value (quota or once-per-period record) was not read or written; the text is the reason as one word.
    Value(&'static str),
}

impl ErrorKind {
    /// The kind as one word, which does not change between versions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::NotJoinable => "not_joinable",
            Self::NoQuorum => "no_quorum",
            Self::OtherMasters => "other_masters",
            Self::TooLate => "too_late",
            Self::Lost => "lost",
            Self::NotExtended => "not_extended",
            Self::Invalid => "invalid",
            Self::Forked => "forked",
            Self::Closed => "closed",
            Self::Value(_) => "value",
        }
    }
}

/// Why a call failed.
#[derive(Clone, Debug)]
pub struct CallError {
    /// Which error it is.
    pub kind: ErrorKind,
    /// The text for users. It names neither masters nor the holder.
    pub message: String,
    /// The text for operators: also the holder, and the reply of each master with its address.
    pub details: String,
    /// The name of the lock; `None` if the call was not about one lock.
    pub resource: Option<String>,
    /// How long the acquire took; zero for other calls.
    pub waited: Duration,
    /// How many attempts the acquire made; 0 for other calls.
    pub attempts: u32,
    /// Whether the same client holds the lock: locks are not re-entrant.
    pub held_here: bool,
    /// Whether another program holds the lock: the lock key has a value that quorate did not write.
    pub foreign: bool,
    /// Whether waiting longer could have helped. False if an operator must correct the masters first.
    pub passes_by_itself: bool,
    /// The note of the lock's holder, if the holder has written one.
    pub holder: Option<Box<Note>>,
    /// The reply of each master; empty if nothing was sent.
    pub reports: Vec<NodeReport>,
    /// Why the lock ended, if [`kind`](Self::kind) is [`ErrorKind::Lost`], or if the work of `once` was stopped.
    pub cause: Option<LossCause>,
    /// Whether the period of work that was stopped is recorded as done.
    pub recorded: bool,
}

impl CallError {
    /// An error with a text and nothing else.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            kind,
            details: message.clone(),
            message,
            resource: None,
            waited: Duration::ZERO,
            attempts: 0,
            held_here: false,
            foreign: false,
            passes_by_itself: true,
            holder: None,
            reports: Vec::new(),
            cause: None,
            recorded: false,
        }
    }

    /// The error of a call on an object that belongs to the parent process.
    pub fn forked() -> Self {
        Self::new(
            ErrorKind::Forked,
            "this lock belongs to the process from which this process was forked: only that process can use or \
             release it",
        )
    }

    /// The error of a call whose client was closed before the call ended.
    pub fn closed() -> Self {
        Self::new(
            ErrorKind::Closed,
            "the client was closed while the call was under way",
        )
    }

    /// The error of a call on a lock that has ended.
    pub fn lost(cause: LossCause) -> Self {
        Self {
            cause: Some(cause),
            ..Self::new(ErrorKind::Lost, format!("the lock is lost: {cause}"))
        }
    }

    fn of_acquire(kind: ErrorKind, error: &AcquireError, failed: &FailedAcquire) -> Self {
        Self {
            details: error.details(),
            resource: Some(failed.resource.clone()),
            waited: failed.waited,
            attempts: failed.attempts,
            held_here: failed.held_here,
            foreign: failed.foreign,
            passes_by_itself: failed.passes_by_itself(),
            holder: failed.note.clone(),
            reports: failed.reports.clone(),
            ..Self::new(kind, error.to_string())
        }
    }
}

impl From<AcquireError> for CallError {
    fn from(error: AcquireError) -> Self {
        match &error {
            AcquireError::HeldByOther(failed) => Self::of_acquire(ErrorKind::Held, &error, failed),
            AcquireError::NotJoinable(failed) => {
                Self::of_acquire(ErrorKind::NotJoinable, &error, failed)
            }
            AcquireError::NoQuorum(failed) => Self::of_acquire(ErrorKind::NoQuorum, &error, failed),
            AcquireError::OtherMasters(failed) => {
                Self::of_acquire(ErrorKind::OtherMasters, &error, failed)
            }
            AcquireError::TooLate(failed) => Self::of_acquire(ErrorKind::TooLate, &error, failed),
            AcquireError::Forked => Self::new(ErrorKind::Forked, error.to_string()),
            _ => Self::new(ErrorKind::Invalid, error.to_string()),
        }
    }
}

impl From<ExtendError> for CallError {
    fn from(error: ExtendError) -> Self {
        let details = error.details();
        let message = error.to_string();
        match error {
            ExtendError::Lost(cause) => Self::lost(cause),
            ExtendError::NoQuorum(reports) => Self {
                details,
                reports,
                ..Self::new(ErrorKind::NotExtended, message)
            },
            _ => Self::new(ErrorKind::Invalid, message),
        }
    }
}

impl From<ValueError> for CallError {
    fn from(error: ValueError) -> Self {
        let reason = match &error {
            ValueError::NotAcquired(_) => "not_acquired",
            ValueError::NoFencing | ValueError::Invalid(_) => {
                return Self::new(ErrorKind::Invalid, error.to_string());
            }
            ValueError::LockLost(_) => "lock_lost",
            ValueError::NoQuorum(_) => "no_quorum",
            ValueError::Missing(_) => "missing",
            ValueError::Lost(_) => "lost",
            ValueError::Exists(_) => "exists",
            ValueError::Incomplete(_) => "incomplete",
            ValueError::OtherKind { .. } => "other_kind",
            ValueError::Ahead { .. } => "ahead",
            ValueError::ClocksDisagree { .. } => "clocks_disagree",
            ValueError::Stopped { .. } => "stopped",
            _ => "unknown",
        };
        let (cause, recorded) = match &error {
            ValueError::Stopped {
                cause, recorded, ..
            } => (Some(*cause), *recorded),
            _ => (None, false),
        };
        if let ValueError::NotAcquired(error) = error {
            return error.into();
        }
        Self {
            cause,
            recorded,
            details: error.details(),
            reports: error.reports().to_vec(),
            ..Self::new(ErrorKind::Value(reason), error.to_string())
        }
    }
}

impl From<BuildError> for CallError {
    fn from(error: BuildError) -> Self {
        Self::new(ErrorKind::Invalid, error.to_string())
    }
}

impl From<InvalidResource> for CallError {
    fn from(error: InvalidResource) -> Self {
        Self::new(ErrorKind::Invalid, error.to_string())
    }
}
