//! The facts that the checkers receive, in the order in which the facts happen.

use std::sync::Arc;

use quorate::ValueError;
use quorate::node::{Answer, Claim, Extended, Fault, Request, Token};
use quorate_model::history::{AttemptId, EventKind, Verb as ModelVerb};
use quorate_model::rules::{Answer as ModelAnswer, LockKey, StoredLock};
use quorate_promises::{ValueEvent, ValueResult};

use crate::change_plan::Sets;
use crate::clock::Clock;
use crate::happening::Happening;
use crate::history::{number_of, value_of};
use crate::kind::{Kind, Scope, ValueStep};
use crate::locker::Hold;

/// The state of one lock on one master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockState {
    /// The value in the lock key; `None` if there is no key. For a shared lock, this is the marker of readers or of an
    /// owner, padded with zeros to 32 bytes.
    pub(crate) holder: Option<[u8; 32]>,
    /// When the lock key expires, in microseconds on the master's clock; zero if there is no key.
    pub(crate) expires_us: u64,
    pub(crate) counter: u64,
    /// When the key of the fencing counter expires, in microseconds on the master's clock; zero if there is no key.
    pub(crate) counter_expires_us: u64,
}

impl LockState {
    /// Returns the state at `now_us` (microseconds on the master's clock), assuming that no message changes the lock
    /// until then. An expired lock key is removed from the state.
    pub(crate) fn without_expired_lock(self, now_us: u64) -> Self {
        if self.holder.is_some() && now_us < self.expires_us {
            return self;
        }
        Self {
            holder: None,
            expires_us: 0,
            ..self
        }
    }

    /// This state in the words of the model.
    pub(crate) fn to_model(self) -> StoredLock {
        let key = self.holder.map(|holder| LockKey {
            value: number_of(&holder).unwrap_or(u128::MAX),
            expires: self.expires_us,
        });
        StoredLock {
            key,
            counter: self.counter,
        }
    }
}

/// A shared hold (of a reader or of an owner) on one master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// The random lock value of the hold's attempt.
    pub(crate) value: [u8; 32],
    /// The true time at which the hold expires, in nanoseconds.
    pub(crate) expires_at: u64,
    /// When the hold expires, in milliseconds on the master's clock.
    pub(crate) expires_at_ms: u64,
}

/// Something that happened in the simulation and that a checker may need to know.
pub(crate) enum Fact<'a> {
    /// A task starts an acquire with the timeout `wait`, in nanoseconds; `None` waits without a limit.
    AcquireStarted {
        task: usize,
        resource: usize,
        /// All places that the task asks for. For a permit, this is the first slot of the semaphore.
        scope: Scope,
        wait: Option<u64>,
    },
    /// A task was refused, because another client holds the lock.
    AcquireRefused {
        client: usize,
        task: usize,
        /// The places that the task asked for. For a permit, this is the first slot of the semaphore.
        scope: Scope,
    },
    /// A client has begun an attempt: it is about to send the first request of the attempt to a master.
    AttemptStarted {
        client: usize,
        task: usize,
        claim: &'a Arc<Claim>,
    },
    /// A master has executed a message about one lock.
    RequestExecuted {
        master: usize,
        /// The time on the master's clock, in milliseconds.
        now_ms: u64,
        resource: usize,
        claim: &'a Arc<Claim>,
        verb: Verb,
        /// False for a delayed duplicate of an earlier message, otherwise true.
        live: bool,
        answer: &'a Result<Answer, Fault>,
        /// The result of an extension for this lock; `None` for other messages, or if the master returned an error.
        extended: Option<Extended>,
        before: LockState,
        after: LockState,
        /// The true time at which the lock key expires, in nanoseconds, unless a later message changes the expiry.
        expires_at: u64,
        /// The holds of readers or of an owner that share the lock on this master after the message.
        members: &'a [Member],
    },
    /// A master has executed a message by which a waiter leaves the master's queue.
    WaiterLeft {
        master: usize,
        claim: &'a Arc<Claim>,
    },
    /// A client has obtained a lock, and begins to believe that it holds this lock.
    LockObtained { believer: &'a Believer },
    /// The validity of a hold was extended. `old_end` is the previous end of the validity, in nanoseconds on the
    /// client's clock.
    ValidityExtended {
        believer: &'a Believer,
        old_end: u64,
    },
    /// A holder was notified that its lock may be lost soon: no more than [`Believer::risk_margin`] of the validity is
    /// left. `valid_until` is the end of the validity in the notice, in nanoseconds on the client's clock.
    RiskNoticed {
        believer: &'a Believer,
        valid_until: u64,
    },
    /// The client's guard shows for the first time that the lock is no longer held. The notice of the loss may come
    /// later.
    GuardEnded { believer: &'a Believer },
    /// A client has stopped believing that it holds a lock.
    BeliefEnded {
        believer: &'a Believer,
        reason: EndReason,
    },
    /// A call of the library has returned, or the future of the call was dropped.
    CallReturned {
        client: usize,
        task: usize,
        call: Call,
        began_at: u64,
        /// The true time at which the client's process sent its first request and began to connect; `None` if it has
        /// sent none.
        first_request: Option<u64>,
    },
    /// A holder leaves this note. `value` is the holder's lock value.
    HolderNote {
        resource: usize,
        value: Token,
        note: &'a str,
    },
    /// A waiter was refused. `holder` is the holder's lock value, and `note` is the holder's note. Each is `None` if
    /// the waiter did not receive it.
    WaiterRefused {
        resource: usize,
        holder: Option<&'a [u8]>,
        note: Option<&'a str>,
    },
    /// A task begins to observe an election.
    ObservationStarted { task: usize },
    /// An observer received the current leader's term (fencing token) and note. If there is no leader, `leader` is
    /// `None`.
    LeaderObserved {
        task: usize,
        resource: usize,
        leader: Option<(u64, Option<&'a str>)>,
    },
    /// A master stores this note, or no note, next to a lock.
    StoredNote {
        master: usize,
        resource: usize,
        /// The note, and when it expires in microseconds on the master's clock; `None` if the master has no note.
        note: Option<(&'a [u8], u64)>,
        /// The state of the lock on this master.
        lock: LockState,
        /// The true time at which the note expires, in nanoseconds.
        expires_at: u64,
    },
    /// Something happens to the value under a lock.
    Value {
        resource: usize,
        /// The operation that a client begins or ends; `None` for other events.
        operation: Option<ValueStep>,
        event: ValueEvent<'a>,
    },
    /// A master has read or written the value under a lock.
    ValueRequestExecuted {
        master: usize,
        resource: usize,
        request: &'a Request,
        answer: &'a Result<Answer, Fault>,
        before: LockState,
        after: LockState,
    },
    /// A store confirms to a client that the client waits in the lock's queue.
    WaiterQueued {
        master: usize,
        claim: &'a Arc<Claim>,
    },
    /// A store has answered a client's request to extend the lock `claim`.
    StoreExtended {
        master: usize,
        claim: &'a Arc<Claim>,
        result: &'a Extended,
    },
    /// A store has reported to a client that the client's lock is released.
    ReleaseReported,
    /// A store's record contains a lock value again, although the store had reported to a client that this lock is
    /// released.
    ReleasedValueWritten { master: usize, value: &'a [u8; 32] },
    /// Another program looks for the value that it has stored under the key of a lock.
    ForeignKeyChecked {
        master: usize,
        resource: usize,
        /// Whether the foreign value is still there.
        is_unchanged: bool,
    },
    /// An event that may interfere with locks and values. `client` and `resource` are the client process and the
    /// resource that the event concerns; `None` means all client processes, or all resources.
    Happened {
        happening: Happening,
        client: Option<usize>,
        resource: Option<usize>,
    },
    /// The clock of a master is about to jump.
    ClockJumps {
        master: usize,
        /// The reading of the clock just before the jump, in microseconds.
        reading_us: u64,
    },
    /// A store was set back, and clients must not use it until the next `MasterRestarted`.
    StoreUnusable { master: usize },
    /// A store has answered a request of a client for a lock.
    StoreAnswered {
        master: usize,
        /// The true time at which the client sent the request to its driver, in nanoseconds.
        sent_at: u64,
        answer: &'a Result<Answer, Fault>,
    },
    /// A master has restarted; or a store has lost its table of records, or has got another identity.
    MasterRestarted {
        master: usize,
        /// Whether the master has lost some or all of its memory.
        lost_data: bool,
    },
}

/// The kind of a request about a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Acquire,
    /// The request to confirm this token.
    Confirm(u64),
    Release,
    Extend,
}

/// A call of the library whose duration the rule "calls end" checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// An acquire with this timeout in nanoseconds; `None` waits without a limit.
    Acquire {
        resource: usize,
        wait: Option<u64>,
    },
    Extend,
    Downgrade,
    Release,
    /// A call about the value under a lock. `wait` is how long the call waits for the lock, in nanoseconds.
    Value {
        wait: u64,
    },
}

impl Call {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Acquire { .. } => "an acquire",
            Self::Extend => "an extension",
            Self::Downgrade => "a downgrade",
            Self::Release => "a release",
            Self::Value { .. } => "a call about a value",
        }
    }
}

/// Converts the error of a call about a value into a result for the checkers.
pub(crate) fn result_of_error(error: &ValueError) -> ValueResult {
    match error {
        ValueError::Unknown(_) => ValueResult::Unknown,
        ValueError::Missing(_) | ValueError::Lost(_) => ValueResult::Lost,
        ValueError::OtherKind { .. } | ValueError::Invalid(_) => {
            panic!("a master stores a value that no client has written: {error}")
        }
        _ => ValueResult::NotChanged,
    }
}

/// Why a client's belief that it holds a lock has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndReason {
    Released,
    Dropped,
    /// The lock was downgraded to a reader's lock.
    Downgraded,
    /// The holder was notified that the lock is lost.
    Lost,
    /// The client's process was killed.
    Killed,
}

/// A lock that a client believes it holds. [`EndReason`] lists the reasons why this belief ends.
pub(crate) struct Believer {
    pub(crate) id: u64,
    pub(crate) client: usize,
    pub(crate) task: usize,
    /// Whether the lock is renewed in the background.
    pub(crate) is_renewed: bool,
    pub(crate) kind: Kind,
    /// The sets of masters; the client needs a majority of each set.
    pub(crate) sets: Sets,
    /// The number of the locked resource, or of the locked slot of a semaphore. For a lock on several resources, this
    /// is one of them.
    pub(crate) resource: usize,
    /// The locked places (resources or slots), and the class of the holds that may share them.
    pub(crate) scope: Scope,
    pub(crate) value: Token,
    pub(crate) fencing_token: Option<u64>,
    /// The number of the event at which the lock was obtained.
    pub(crate) obtained_event: u64,
    /// The true time at which the lock was obtained, in nanoseconds.
    pub(crate) obtained_at: u64,
    /// The end of the validity as the library last reported it, in nanoseconds on the client's clock.
    pub(crate) valid_until: u64,
    /// The true time at which the validity ends, in nanoseconds: `valid_until`, converted from the client's clock.
    pub(crate) ends_at: u64,
    /// The margin with which the holder watches for the notice that the lock may be lost soon, in nanoseconds; `None`
    /// without a watch.
    pub(crate) risk_margin: Option<u64>,
    /// Whether the library has reported that the lock is no longer held.
    pub(crate) is_over: bool,
    pub(crate) clock: Clock,
    pub(crate) hold: Arc<Hold>,
}

/// Returns the first six of the hex digits of a lock value, for traces.
pub(crate) fn short_hex(value: &[u8]) -> String {
    String::from_utf8_lossy(&value[..value.len().min(6)]).into_owned()
}

/// The answer of a master in the words of the model; `None` if the master has executed nothing.
fn model_answer(
    answer: &Result<Answer, Fault>,
    extended: Option<&Extended>,
) -> Option<ModelAnswer> {
    Some(match (answer, extended) {
        (_, Some(Extended::Kept | Extended::Restored | Extended::Unnoted)) => ModelAnswer::Extended,
        (_, Some(Extended::NotOurs)) | (Ok(Answer::NotOurs), _) => ModelAnswer::NotOurs,
        (Ok(Answer::Granted { counter }), _) => ModelAnswer::Granted(counter.unwrap_or(0)),
        (Ok(Answer::Refused { .. }), _) => ModelAnswer::Refused,
        (Ok(Answer::Confirmed), _) => ModelAnswer::Confirmed,
        (Ok(Answer::CounterAbove(_)), _) => ModelAnswer::CounterAbove,
        (Ok(Answer::Released(is_deleted)), _) => ModelAnswer::Released(*is_deleted),
        _ => return None,
    })
}

fn attempt_of(believer: &Believer) -> AttemptId {
    AttemptId {
        client: believer.client,
        lock: believer.resource,
        value: number_of(&believer.value.to_hex()).unwrap_or(0),
    }
}

impl Fact<'_> {
    /// This fact as an event for the model, at the true time `at`; `None` if the model has no such event.
    pub(crate) fn to_model(&self, at: u64) -> Option<EventKind> {
        Some(match self {
            Self::RequestExecuted {
                master,
                now_ms,
                resource,
                claim,
                verb,
                live,
                answer,
                extended,
                after,
                ..
            } if claim.group().is_none() && claim.permit().is_none() => {
                let verb = match verb {
                    Verb::Acquire => ModelVerb::Acquire,
                    Verb::Confirm(token) => ModelVerb::Confirm(*token),
                    Verb::Extend => ModelVerb::Extend,
                    Verb::Release => ModelVerb::Release,
                };
                EventKind::Executed {
                    master: *master,
                    lock: *resource,
                    value: value_of(claim),
                    verb,
                    answer: model_answer(answer, extended.as_ref()),
                    is_live: *live,
                    clock: now_ms * 1_000,
                    after: after.to_model(),
                }
            }
            Self::LockObtained { believer } => EventKind::Obtained {
                attempt: attempt_of(believer),
                sets: believer.sets,
                token: believer.fencing_token,
                reading: believer.clock.read(at),
                valid_until: believer.valid_until,
                ends_at: believer.ends_at,
            },
            Self::ValidityExtended { believer, old_end } => EventKind::Extended {
                attempt: attempt_of(believer),
                reading: believer.clock.read(at),
                old_end: *old_end,
                valid_until: believer.valid_until,
                ends_at: believer.ends_at,
            },
            Self::GuardEnded { believer } | Self::BeliefEnded { believer, .. } => {
                let attempt = attempt_of(believer);
                EventKind::Ended { attempt }
            }
            _ => return None,
        })
    }
}
