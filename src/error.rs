//! One error type per operation. Each error says what failed, on which master, and whether a lock is still held.

use std::fmt;
use std::time::Duration;

use crate::fork::FORKED;
use crate::keys::RESERVED;
use crate::node::{Fault, Note};
use crate::outcome::LossCause;
use crate::protocol::quorum::Quorum;
use crate::report::{NodeOutcome, NodeReport, OneLine, masters_failed_with};
use crate::resource::InvalidResource;

/// Why a [`Redlock`](crate::Redlock) was not built, or why the options of a lock were refused: usually, because a
/// setting is invalid or contradicts another setting. No master has been contacted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No master was named.
    #[error("no master given: name at least one, for example redis://10.0.0.1:6379")]
    NoMasters,
    /// More than 64 masters were named.
    #[error("{0} masters given, at most 64 are supported; 3 or 5 are usual")]
    TooManyMasters(usize),
    /// A master's address cannot be used. The message contains nothing of the address but its scheme, because nobody
    /// can know where the password begins and ends in an address with errors.
    #[error("master {master}: {why}")]
    BadMaster {
        /// The position of the master in the list of masters, and the scheme of its address.
        master: String,
        /// The problem with the address, and how to correct it.
        why: String,
    },
    /// The same server is listed as two masters. Both would share the memory of this server, so they must not have two
    /// votes.
    #[error(
        "master {0} is listed twice: each master must be a server of its own, \
         and another database on the same server is not another master"
    )]
    SameMasterTwice(String),
    /// `next_masters` names the same servers as `masters`, so nothing would change.
    #[error(
        "next_masters names the same servers as masters: remove next_masters, or name the servers that replace the masters"
    )]
    SameMasters,
    /// `next_masters`, `masters_generation` or `masters_name` is set, but one of the masters is neither Redis nor
    /// Valkey.
    #[error(
        "master {0} cannot store a generation marker: \
         next_masters, masters_generation and masters_name work with Redis and Valkey masters only"
    )]
    UnmarkedMaster(String),
    /// The name of the masters is empty, too long, or contains a character that is not allowed.
    #[error(
        "masters_name {0:?} is not a name: use 1 to 64 letters, digits, dots, dashes and underscores"
    )]
    BadMastersName(String),
    /// A duration is out of range, or contradicts another setting.
    #[error("{what} of {} {why}", humantime::format_duration(*.value))]
    BadDuration {
        /// The name of the setting that contains the duration.
        what: &'static str,
        /// The value of the setting.
        value: Duration,
        /// The problem with the duration, and how to correct it.
        why: String,
    },
    /// The key prefix would collide with keys that quorate reserves for itself.
    #[error("key prefix {0:?} is reserved: keys that begin with {RESERVED:?} are quorate's own")]
    ReservedPrefix(String),
    /// This kind of lock needs fencing tokens, but the `Redlock` was built with `fencing(false)`.
    #[error("{0} need fencing tokens: remove fencing(false) from the builder")]
    NeedsFencing(&'static str),
    /// The key prefix is longer than the longest allowed resource name.
    #[error("the key prefix is {0} bytes long, at most {max} are allowed", max = crate::resource::MAX_RESOURCE_LEN)]
    PrefixTooLong(usize),
    /// The note is longer than [`MAX_NOTE_LEN`](crate::MAX_NOTE_LEN) bytes.
    #[error("the note is {0} bytes long, at most {max} are allowed", max = crate::node::note::MAX_NOTE_LEN)]
    NoteTooLong(usize),
    /// A setting from the environment or from a file cannot be parsed.
    #[error("{name} {why}")]
    BadSetting {
        /// The name of the environment variable, or of the key in the file.
        name: String,
        /// The problem with the setting, and how to correct it.
        why: String,
    },
    /// A TLS setting cannot be used; the text describes the problem.
    #[error("TLS: {0}")]
    Tls(String),
    /// The thread that runs the locks of blocking callers could not be started.
    #[cfg(feature = "blocking")]
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    #[error("cannot start the background thread for blocking calls: {0}")]
    NoThread(String),
}

/// A blocking call was refused. Nothing was sent. There are two reasons:
///
/// - The call was made on a thread of a Tokio runtime. It would block the other tasks of that thread, perhaps even the
///   task that holds the lock.
/// - This process was forked from the process that built the `Redlock` ([`is_forked`](Self::is_forked)). The background
///   thread, for which the call would wait, exists only in the parent process.
#[cfg(feature = "blocking")]
#[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", if *.forked { FORKED } else { ON_RUNTIME })]
pub struct CannotBlock {
    forked: bool,
}

#[cfg(feature = "blocking")]
const ON_RUNTIME: &str = "a blocking call on a thread of a Tokio runtime would block other tasks: use quorate::Redlock \
                          with .await, or a thread outside the runtime; in spawn_blocking, use in_spawn_blocking()";

#[cfg(feature = "blocking")]
impl CannotBlock {
    pub(crate) const ON_RUNTIME: Self = Self { forked: false };
    pub(crate) const FORKED: Self = Self { forked: true };

    /// Whether the call was refused because this process was forked after the `Redlock` was built. Build a new
    /// `Redlock` in this process.
    pub fn is_forked(self) -> bool {
        self.forked
    }
}

#[cfg(feature = "blocking")]
impl From<CannotBlock> for AcquireError {
    fn from(error: CannotBlock) -> Self {
        if error.forked {
            Self::Forked
        } else {
            Self::CannotBlock(error)
        }
    }
}

/// Why a lock was not acquired. Nothing is held. Keys that this acquire may have set on some masters are released in
/// the background. A key that cannot be released expires after its ttl.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// Contention: another client held the lock until the wait ended. The holder may also be this process itself
    /// ([`FailedAcquire::held_here`]).
    HeldByOther(FailedAcquire),
    /// The owner already holds the lock, but cannot get one more hold now. All holds of the owner must have the same
    /// fencing token, and no majority of the masters agrees on this token.
    ///
    /// This can happen after a process crashed or masters failed. A later acquire can succeed, for example when the
    /// hold of the crashed process has expired.
    NotJoinable(FailedAcquire),
    /// Outage: less than a majority of the configured masters could vote until the wait ended. If waiting cannot help
    /// ([`FailedAcquire::passes_by_itself`] is false), this error is returned without waiting any longer.
    NoQuorum(FailedAcquire),
    /// Refused configuration: too many masters reject clients with this list of masters, `masters_generation` or
    /// `masters_name`, for example because the masters have been replaced. Neither waiting nor retrying helps: build
    /// the `Redlock` with the current masters (`docs/operations.md`, "Changing the masters").
    OtherMasters(FailedAcquire),
    /// Lateness: a majority granted the lock, but so slowly that the lease had no time left.
    TooLate(FailedAcquire),
    /// The resource name is invalid. Nothing was sent.
    InvalidResource(InvalidResource),
    /// The options of this lock are invalid. Nothing was sent.
    InvalidOptions(BuildError),
    /// The `Redlock` was built before this process was forked, in the parent process. Nothing was sent. Build a new
    /// `Redlock` in this process.
    Forked,
    /// The blocking call was made on a thread of a Tokio runtime. Nothing was sent.
    #[cfg(feature = "blocking")]
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    CannotBlock(CannotBlock),
}

/// Details of a failed acquire, from one round of requests to the masters: the last round whose replies are enough to
/// decide between these errors:
///
/// - [`AcquireError::NoQuorum`]: too many masters failed.
/// - [`AcquireError::HeldByOther`]: enough masters could vote, but too many of them refused the lock.
///
/// If there is no such round, the error is [`AcquireError::NoQuorum`], with the details of the very last round.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedAcquire {
    /// The name of the requested resource, as text.
    pub resource: String,
    /// How long the acquire took.
    pub waited: Duration,
    /// How many attempts the acquire made.
    pub attempts: u32,
    /// The reply of each master in the round of requests that [`FailedAcquire`] describes. Empty if no masters were
    /// asked, because this process itself held the lock.
    pub reports: Vec<NodeReport>,
    /// Whether this [`Redlock`](crate::Redlock) or one of its clones holds the lock. If true, check whether the caller
    /// itself holds the lock: locks are not re-entrant.
    pub held_here: bool,
    /// Whether another program holds the lock: on enough masters to prevent a majority, the lock key has a value that
    /// quorate did not write. This is also true for the lock of another Redlock library. False if the masters do not
    /// report the value, as for permits, and for clients with [`Order::Unordered`](crate::Order::Unordered) or without
    /// fencing tokens.
    pub foreign: bool,
    /// The note of the lock's holder, if the holder has written one.
    pub note: Option<Box<Note>>,
    /// The rule that decides which sets of masters are a majority.
    pub(crate) majority: Quorum,
}

impl FailedAcquire {
    /// Whether waiting longer could have helped. False if too many masters have a fault that an operator must fix: for
    /// example, they reject the user. An acquire then ends after one attempt, even with a long `wait`. The next acquire
    /// asks the masters again.
    pub fn passes_by_itself(&self) -> bool {
        let lasting = masters_failed_with(&self.reports, |fault| !fault.passes_by_itself());
        self.majority.is_possible_without(lasting)
    }

    /// Writes why there is no quorum, for example "no quorum for .. : 2 of 5 masters can vote, 3 are needed".
    fn write_no_quorum(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        let count_reports = |is_counted: fn(&NodeReport) -> bool| {
            self.reports.iter().filter(|r| is_counted(r)).count()
        };
        // A silent master counts as able to vote, because the round can end before its reply arrives.
        let silent_count = count_reports(NodeReport::is_silent);
        let can_vote = count_reports(NodeReport::is_vote) + silent_count;
        let needed = self.majority.size();
        write!(f, "no quorum for {:?}: ", self.resource)?;
        if self.majority.is_joint() {
            f.write_str("a majority of masters and a majority of next_masters are needed")?;
        } else if can_vote < needed && !self.reports.is_empty() {
            let at_most = if silent_count > 0 { "at most " } else { "" };
            let masters = self.majority.nodes();
            write!(
                f,
                "{at_most}{can_vote} of {masters} masters can vote, {needed} are needed"
            )?;
        } else {
            f.write_str("no majority of the masters can vote")?;
        }
        if !self.passes_by_itself() {
            f.write_str(", and waiting does not help")?;
        }
        Ok(())
    }

    /// Writes the end of the message: how long the acquire waited, and that nothing is held.
    fn write_rest(&self, f: &mut dyn fmt::Write) -> fmt::Result {
        let waited = Duration::from_millis(self.waited.as_millis() as u64);
        let waited = humantime::format_duration(waited);
        write!(f, " (waited {waited}, attempts: {})", self.attempts)?;
        if !self.held_here {
            f.write_str("; nothing is held")?;
        }
        Ok(())
    }

    /// Whether this client cannot get a majority because too many masters reject its configuration.
    pub(crate) fn is_outdated(&self) -> bool {
        let refusing_masters = masters_failed_with(&self.reports, |fault| {
            matches!(fault, Fault::OtherMasters(_))
        });
        !self.majority.is_possible_without(refusing_masters)
    }
}

impl AcquireError {
    /// The details of the failed acquire; `None` if the call was refused before the acquire began.
    pub fn failed(&self) -> Option<&FailedAcquire> {
        match self {
            Self::HeldByOther(failed)
            | Self::NotJoinable(failed)
            | Self::NoQuorum(failed)
            | Self::OtherMasters(failed)
            | Self::TooLate(failed) => Some(failed),
            Self::InvalidResource(_) | Self::InvalidOptions(_) | Self::Forked => None,
            #[cfg(feature = "blocking")]
            Self::CannotBlock(_) => None,
        }
    }

    /// The reply of each master in one round of requests ([`FailedAcquire`] says which). Empty if the acquire sent no
    /// request.
    pub fn reports(&self) -> &[NodeReport] {
        self.failed().map_or(&[], |failed| &failed.reports)
    }

    /// The kind of this error as one word, for machine-readable output; stable across versions. The span `acquire` and
    /// the metrics use the same words for their outcomes.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::HeldByOther(_) => "held_by_other",
            Self::NotJoinable(_) => "held_by_owner",
            Self::NoQuorum(_) => "no_quorum",
            Self::OtherMasters(_) => "other_masters",
            Self::TooLate(_) => "too_late",
            Self::InvalidResource(_) => "invalid_resource",
            Self::InvalidOptions(_) => "invalid_options",
            Self::Forked => "forked",
            #[cfg(feature = "blocking")]
            Self::CannotBlock(_) => "cannot_block",
        }
    }
}

impl AcquireError {
    /// The full text for operators: the error's text, the lock's holder (its note, host and process), and the reply of
    /// each master with its address. The `Display` text has none of these, so a service may show it to its users.
    ///
    /// ```
    /// # #[cfg(feature = "testing")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let redlock = quorate::Redlock::in_memory(3);
    /// let guard = redlock.acquire("job").await.expect("free");
    /// let error = redlock.lock("job").wait(quorate::Wait::None).await.expect_err("held");
    /// eprintln!("for the log: {}", error.details());
    /// println!("for the user: {error}");
    /// # drop(guard);
    /// # }
    /// # #[cfg(not(feature = "testing"))]
    /// # fn main() {}
    /// ```
    pub fn details(&self) -> String {
        let mut text = String::new();
        let _ = self.write(&mut text, true);
        let mut text = with_replies(text, self.reports());
        let is_quarantined = |report: &NodeReport| {
            matches!(report.outcome, NodeOutcome::Fault(Fault::Quarantined(_)))
        };
        // Time counts for the restart guard only while a client is connected. Short-lived clients may never be.
        if matches!(self, Self::NoQuorum(_)) && self.reports().iter().any(is_quarantined) {
            text += "; `quorate masters mark --watch` stays connected until these masters vote";
        }
        if matches!(self, Self::HeldByOther(failed) if failed.foreign) {
            text += "; if it is not the lock of another Redlock library, use another name or prefix, or delete the key";
        }
        text
    }

    fn write(&self, f: &mut dyn fmt::Write, names_holder: bool) -> fmt::Result {
        let (failed, description) = match self {
            Self::HeldByOther(failed) => (failed, held_text(failed.held_here, failed.foreign)),
            Self::NotJoinable(failed) => (
                failed,
                "is held by its owner, but cannot be acquired again now: no majority of the masters reports the same \
                 fencing token; if a process of the owner has crashed, try again after the ttl",
            ),
            Self::OtherMasters(failed) => (
                failed,
                "cannot be acquired, and waiting does not help: the masters refuse this configuration; correct \
                 masters and masters_generation",
            ),
            Self::NoQuorum(failed) => {
                failed.write_no_quorum(f)?;
                return failed.write_rest(f);
            }
            Self::TooLate(failed) => (failed, "was granted too slowly: no validity was left"),
            Self::InvalidResource(why) => return write!(f, "{why}"),
            Self::InvalidOptions(why) => return write!(f, "{why}"),
            Self::Forked => return f.write_str(FORKED),
            #[cfg(feature = "blocking")]
            Self::CannotBlock(why) => return write!(f, "{why}"),
        };
        write!(f, "lock {:?} {description}", failed.resource)?;
        let shows_holder =
            names_holder && matches!(self, Self::HeldByOther(_)) && !failed.held_here;
        if let Some(holder) = failed.note.as_ref().filter(|_| shows_holder) {
            write!(f, ", {holder}")?;
        }
        failed.write_rest(f)
    }
}

/// The part of a message that says whether this process, another client or another program (`foreign`) holds a lock.
pub(crate) fn held_text(is_here: bool, is_foreign: bool) -> &'static str {
    match (is_here, is_foreign) {
        (true, _) => "is already held in this process, by another task or by the caller itself",
        (false, true) => {
            "is held by another program: the value of the lock key is not from quorate"
        }
        (false, false) => "is held by another",
    }
}

/// Appends the replies of the masters, in brackets.
pub(crate) fn with_replies(text: String, reports: &[NodeReport]) -> String {
    let replies = OneLine(reports).to_string();
    if replies.is_empty() {
        return text;
    }
    format!("{text} [{replies}]")
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, false)
    }
}

// `source` returns no error, because the text of this error already contains the text of the inner error.
impl std::error::Error for AcquireError {}

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

/// Why a lock was not extended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is no longer held. Acquire it again to get a new guard and a new fencing token.
    #[error("the lock is lost: {0}")]
    Lost(LossCause),
    /// No majority answered in time, so the validity was not extended. The lock stays held until its current validity
    /// ends.
    #[error(
        "the lock was not extended: too few masters answered; the lock stays held until its current validity ends"
    )]
    NoQuorum(Vec<NodeReport>),
    /// The requested ttl is invalid. Nothing was sent.
    #[error(transparent)]
    InvalidTtl(BuildError),
    /// The blocking call was made on a thread of a Tokio runtime. Nothing was sent.
    #[cfg(feature = "blocking")]
    #[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
    #[error(transparent)]
    CannotBlock(CannotBlock),
}

impl ExtendError {
    /// The full text for operators: the error's text and the reply of each master with its address.
    pub fn details(&self) -> String {
        let replies: &[NodeReport] = match self {
            Self::NoQuorum(replies) => replies,
            _ => &[],
        };
        with_replies(self.to_string(), replies)
    }
}

/// Why a [`scope`](crate::Redlock::scope) failed: the lock was not acquired, or the lock ended before the body did.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError<T = ()> {
    /// The lock was not acquired; the body was not started.
    #[error(transparent)]
    NotAcquired(#[from] AcquireError),
    /// The lock was lost while the body of the scope ran. Another client may then have held the lock during the body.
    #[error("the lock was lost while the body of the scope ran: {cause}")]
    Lost {
        /// Why the lock ended.
        cause: LossCause,
        /// The body's value if the body ran to its end. `None` if the body was dropped before its end.
        value: Option<T>,
    },
}

impl<T> ScopeError<T> {
    /// The full text for operators; see [`AcquireError::details`].
    pub fn details(&self) -> String {
        match self {
            Self::NotAcquired(error) => error.details(),
            lost_error @ Self::Lost { .. } => lost_error.to_string(),
        }
    }

    /// The value of the body, if the body ended after the lock was lost. `None` if the body did not run, or was dropped
    /// before its end.
    pub fn into_value(self) -> Option<T> {
        match self {
            Self::NotAcquired(_) => None,
            Self::Lost { value, .. } => value,
        }
    }

    /// Returns this error without the value of the body. [`try_scope`](crate::Redlock::try_scope) converts the returned
    /// error into the error type of the body.
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
    /// Converts into a single error type: the body's own error if the body failed, otherwise the error of the lock.
    pub(crate) fn into_single_error(self) -> E {
        match self {
            Self::Lost {
                value: Some(Err(error)),
                ..
            } => error,
            lock_error => lock_error.without_value().into(),
        }
    }
}

/// Implemented by hand, so that `T` need not be `Debug`. The body's value is not shown.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Fault, NodeName, Phase};
    use crate::report::NodeOutcome;

    #[test]
    fn no_quorum_error_counts_a_silent_master_as_possibly_able_to_vote() {
        let report = |outcome| NodeReport {
            node: NodeName::new("master"),
            phase: Phase::Acquire,
            outcome,
            latency: None,
            late: false,
        };
        let down_outcome = || NodeOutcome::Fault(Fault::Down("refused".into()));
        for (last_outcome, expected) in [
            (NodeOutcome::Silent, "at most 1 of 3 masters can vote"),
            (NodeOutcome::No, ": 1 of 3 masters can vote"),
            (down_outcome(), ": 0 of 3 masters can vote"),
        ] {
            let failed_acquire = FailedAcquire {
                resource: "job".to_owned(),
                waited: Duration::ZERO,
                attempts: 1,
                reports: [down_outcome(), down_outcome(), last_outcome]
                    .map(report)
                    .to_vec(),
                held_here: false,
                foreign: false,
                note: None,
                majority: crate::protocol::quorum::Quorum::new(3),
            };
            let text = AcquireError::NoQuorum(failed_acquire).to_string();
            assert!(text.contains(expected), "{text}");
        }
    }
}
