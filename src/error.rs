//! One error a verb. Each says what happened, on which master, and what is still true.

use std::fmt;
use std::time::Duration;

use crate::keys::RESERVED;
use crate::node::{Fault, Note};
use crate::outcome::LossCause;
use crate::protocol::quorum::Quorum;
use crate::report::{NodeReport, OneLine, failed_with};
use crate::resource::InvalidResource;

/// A builder's settings do not fit together. Nothing has been contacted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No master was named.
    #[error("no master given: name at least one, for example redis://10.0.0.1:6379")]
    NoMasters,
    /// More masters than a quorum is good for.
    #[error("{0} masters given, at most 64 are supported; 3 or 5 are usual")]
    TooManyMasters(usize),
    /// An address that cannot be understood; credentials are left out.
    #[error("master {master:?}: {why}")]
    BadMaster {
        /// The address without credentials, or its place in the list.
        master: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// One server twice: its single memory would count as two votes.
    #[error(
        "master {0} is listed twice: each master must be a server of its own, \
         another database number on the same server is not"
    )]
    SameMasterTwice(String),
    /// Next masters that are the masters: nothing would change.
    #[error(
        "next_masters names the same servers as masters: leave it out, or name what is to be in their place"
    )]
    SameMasters,
    /// A master of a kind that cannot be told of a change.
    #[error(
        "master {0} keeps no mark of how far a change of masters is: \
         next_masters and masters_generation are for Redis and Valkey masters only"
    )]
    UnmarkedMaster(String),
    /// A duration that cannot work together with the others.
    #[error("{what} of {} {why}", humantime::format_duration(*.value))]
    BadDuration {
        /// Which setting.
        what: &'static str,
        /// Its value.
        value: Duration,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// A prefix that would collide with quorate's own keys.
    #[error("key prefix {0:?} is reserved: keys that begin with {RESERVED:?} are quorate's own")]
    ReservedPrefix(String),
    /// A kind of lock that rests on fencing numbers, without them.
    #[error("{0} need fencing numbers: leave `fencing(false)` out of this Redlock")]
    NeedsFencing(&'static str),
    /// A prefix that leaves no sensible key.
    #[error("the key prefix is {0} bytes long, at most {max} are allowed", max = crate::resource::MAX_RESOURCE_LEN)]
    PrefixTooLong(usize),
    /// A note that is too long for the masters to keep beside each lock.
    #[error("the note is {0} bytes long, at most {max} are allowed", max = crate::node::note::MAX_NOTE_LEN)]
    NoteTooLong(usize),
    /// A setting that cannot be read: of the environment or of a file.
    #[error("{name} {why}")]
    BadSetting {
        /// What it is called: the variable, or the key of the file.
        name: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// A TLS setting that cannot be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// The thread that keeps the locks of blocking callers could not be started.
    #[cfg(feature = "blocking")]
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    #[error("no thread could be started for the locks: {0}")]
    NoThread(String),
}

/// A call that waits was made on a thread of a Tokio runtime, and was refused: it would keep that thread from its
/// other tasks, perhaps from the one that it waits for. Nothing was sent.
#[cfg(feature = "blocking")]
#[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a blocking call on a thread of a Tokio runtime would stop its other tasks: use quorate::Redlock and .await there, \
     or make the call on a thread of its own; under spawn_blocking, by the handle of in_spawn_blocking()"
)]
#[non_exhaustive]
pub struct CannotBlock;

/// The lock was not acquired. Nothing is held; what a master may have granted is being released,
/// and where that fails it expires with the ttl.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// Contention: another holder had it until the wait was over. That may be this process itself
    /// ([`Missed::held_here`]).
    HeldByOther(Missed),
    /// The owner that asked holds it already, and cannot be joined now: no majority of the masters shows one
    /// number of its holds, because a hold has just crashed, or masters failed right after the numbers differed.
    /// Over by itself: at the latest when that hold has expired.
    NotJoinable(Missed),
    /// Outage: fewer masters than a majority of the configured ones could vote. Comes before the
    /// end of the wait where that does not pass by itself: see [`Missed::passes_by_itself`].
    NoQuorum(Missed),
    /// Outdated configuration: the masters have been changed, and so many of those that were asked give no votes to
    /// who goes by the masters that this Redlock was built with. Waiting does not help, nor does asking again:
    /// build it with the masters that are named now (`docs/operations.md`, masters that change).
    OtherMasters(Missed),
    /// Lateness: a majority granted it, but so slowly that no validity was left.
    TooLate(Missed),
    /// The resource name cannot be locked. Nothing was sent.
    InvalidResource(InvalidResource),
    /// The options of this lock do not fit together. Nothing was sent.
    InvalidOptions(BuildError),
    /// A blocking call on a thread of a Tokio runtime. Nothing was sent.
    #[cfg(feature = "blocking")]
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    CannotBlock(CannotBlock),
}

/// Why a lock was not acquired: what the last round found that proved something.
///
/// What is told rests on what the masters said, round by round. So many refusals that the other
/// masters could not have made a majority, whatever they had said: held by another. So many faults:
/// no quorum. The last round that proved one of them counts; one that was cut off by the end of the
/// wait proves nothing by what is missing, unless it was missing for a whole node timeout. Where
/// nothing was proved at all, it is no quorum.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missed {
    /// The resource, as text.
    pub resource: String,
    /// How long it was tried.
    pub waited: Duration,
    /// How often it was tried.
    pub attempts: u32,
    /// What each master said in that round; empty where this process itself was in the way.
    pub reports: Vec<NodeReport>,
    /// Whether this very [`Redlock`](crate::Redlock) holds it. A lock is not re-entrant.
    pub held_here: bool,
    /// What the holder says of itself, where it did.
    pub note: Option<Box<Note>>,
    /// Which masters make a majority.
    pub(crate) majority: Quorum,
}

impl Missed {
    /// Whether waiting longer could have helped. False when a majority is made impossible by
    /// masters that refuse the user or cannot do what a lock needs: then an acquire ends after one
    /// look, however long it may wait. The next one looks again.
    pub fn passes_by_itself(&self) -> bool {
        let lasting = failed_with(&self.reports, |fault| !fault.passes_by_itself());
        self.majority.possible_without(lasting)
    }

    /// So many masters go by another configuration that none of ours has a majority.
    pub(crate) fn is_outdated(&self) -> bool {
        let other = failed_with(&self.reports, |fault| {
            matches!(fault, Fault::OtherMasters(_))
        });
        !self.majority.possible_without(other)
    }
}

impl AcquireError {
    /// What each master said in the round that counts; empty when nothing was sent.
    pub fn reports(&self) -> &[NodeReport] {
        match self {
            Self::HeldByOther(missed)
            | Self::NotJoinable(missed)
            | Self::NoQuorum(missed)
            | Self::OtherMasters(missed)
            | Self::TooLate(missed) => &missed.reports,
            Self::InvalidResource(_) | Self::InvalidOptions(_) => &[],
            #[cfg(feature = "blocking")]
            Self::CannotBlock(_) => &[],
        }
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (missed, what) = match self {
            Self::HeldByOther(missed) if missed.held_here => (
                missed,
                "is held by this process itself, and a lock is not re-entrant",
            ),
            Self::HeldByOther(missed) => (missed, "is held by another"),
            Self::NotJoinable(missed) => (
                missed,
                "is held by its owner, which cannot be joined now: no majority of the masters shows one number of \
                 its holds; that is over when the hold that crashed has expired",
            ),
            Self::OtherMasters(missed) => (
                missed,
                "cannot be asked for with this configuration: its masters are not the ones in force, \
                 and that does not pass by itself",
            ),
            Self::NoQuorum(missed) if !missed.passes_by_itself() => (
                missed,
                "could not be decided: no majority of the masters can vote, \
                 and that does not pass by itself",
            ),
            Self::NoQuorum(missed) => (
                missed,
                "could not be decided: no majority of the masters could vote",
            ),
            Self::TooLate(missed) => (missed, "was granted too slowly, no validity was left"),
            Self::InvalidResource(why) => return why.fmt(f),
            Self::InvalidOptions(why) => return why.fmt(f),
            #[cfg(feature = "blocking")]
            Self::CannotBlock(why) => return why.fmt(f),
        };
        let waited = Duration::from_millis(missed.waited.as_millis() as u64);
        let named = matches!(self, Self::HeldByOther(missed) if !missed.held_here);
        let holder = missed.note.as_ref().filter(|_| named);
        let holder = holder.map_or_else(String::new, |note| format!(", {note}"));
        write!(
            f,
            "lock {:?} {what}{holder} (waited {}, attempts: {})",
            missed.resource,
            humantime::format_duration(waited),
            missed.attempts
        )?;
        if !missed.held_here {
            f.write_str("; nothing is held")?;
        }
        let line = OneLine(&missed.reports).to_string();
        if line.is_empty() {
            Ok(())
        } else {
            write!(f, " [{line}]")
        }
    }
}

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::InvalidResource(why) => Some(why),
            Self::InvalidOptions(why) => Some(why),
            #[cfg(feature = "blocking")]
            Self::CannotBlock(why) => Some(why),
            _ => None,
        }
    }
}

impl From<InvalidResource> for AcquireError {
    fn from(why: InvalidResource) -> Self {
        Self::InvalidResource(why)
    }
}

impl From<BuildError> for AcquireError {
    fn from(why: BuildError) -> Self {
        Self::InvalidOptions(why)
    }
}

/// The lock was not extended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is no longer held. Acquire it anew: that gives a new fencing token.
    #[error("the lock is lost: {0}")]
    Lost(LossCause),
    /// No majority answered in time. The old validity still stands.
    #[error("too few masters answered to extend; the old validity stands [{}]", OneLine(.0))]
    NoQuorum(Vec<NodeReport>),
    /// The ttl asked for cannot be used. Nothing was sent.
    #[error(transparent)]
    InvalidTtl(BuildError),
    /// A blocking call on a thread of a Tokio runtime. Nothing was sent.
    #[cfg(feature = "blocking")]
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    #[error(transparent)]
    CannotBlock(CannotBlock),
}

/// A [`scope`](crate::Redlock::scope) did not run to its end under the lock.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError<T = ()> {
    /// The lock was not acquired; the body was not started.
    #[error(transparent)]
    NotAcquired(#[from] AcquireError),
    /// The lock ended before the body did. Another client may have held it meanwhile.
    #[error("the lock was lost while the body ran: {cause}")]
    Lost {
        /// Why the lock ended.
        cause: LossCause,
        /// The value of a body that has run to its end; `None` for one that was dropped on the way.
        value: Option<T>,
    },
}

impl<T> ScopeError<T> {
    /// The value of a body that ran to its end, though the lock had ended before.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::NotAcquired(_) => None,
            Self::Lost { value, .. } => value,
        }
    }

    /// The same error without the value, as [`try_scope`](crate::Redlock::try_scope) makes it into other errors.
    pub fn without_value(self) -> ScopeError {
        match self {
            Self::NotAcquired(error) => ScopeError::NotAcquired(error),
            Self::Lost { cause, .. } => {
                let value = None;
                ScopeError::Lost { cause, value }
            }
        }
    }
}

impl<T, E: From<ScopeError>> ScopeError<Result<T, E>> {
    /// One error for the body and the lock: the body's own, where it has one.
    pub(crate) fn into_one(self) -> E {
        match self {
            Self::Lost {
                value: Some(Err(error)),
                ..
            } => error,
            lock => lock.without_value().into(),
        }
    }
}

/// Whatever the value is, and without showing it.
impl<T> fmt::Debug for ScopeError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAcquired(error) => f.debug_tuple("NotAcquired").field(error).finish(),
            Self::Lost { cause, value } => f
                .debug_struct("Lost")
                .field("cause", cause)
                .field("value", &value.as_ref().map(|_| format_args!("..")))
                .finish(),
        }
    }
}
