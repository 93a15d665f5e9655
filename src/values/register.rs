//! The fenced register: one stored value under a held lock. Only holders of the lock write it, and the value with the
//! largest fencing token is the current one.
//!
//! - After a read, a majority of the masters refuses all writes with smaller fencing tokens than the reader's.
//! - Before a write, the holder reads the value. The write succeeds only if a majority of the masters stored the value,
//!   and did not restart between this read and the write. So the next read finds this value or a later one.
//! - Each acquired lock allows only one write. A second value would have the same fencing token, so a reader could not
//!   determine which value is newer.
//!
//! # Why like this
//!
//! A counter on each master, which a script decreases without a lock, would save the lock. But after a fault the
//! counters differ, and nobody can decide which of them is right. A register answers this: the value with the largest
//! fencing token is the current one.
//!
//! - **Writes without a token check** were rejected: a paused holder overwrites the value of the next holder (seeded
//!   bug `blind-write`).
//! - **The initial value in place of a missing value** was rejected: masters without memory hand out all units again
//!   (seeded bug `missing-is-initial`). Only an operator creates a value.
//! - **The fencing token as the clock of `once`** was rejected: a token stays ahead after the clock was corrected
//!   (docs/protocol.md, "Periods and clocks").
//! - **Records of removed values** were rejected, because somebody would have to delete them again.
//!
//! Not solved: if a majority loses its memory between two calls, the value is lost. If only a minority stores a write,
//! its result is unknown, and units can be wasted (docs/protocol.md, "Values under a lock").

use std::sync::Arc;

use super::error::{ValueError, ValueTrouble};
use crate::hold::core::Core;
use crate::hold::guard::LockGuard;
use crate::hold::held::Held;
use crate::outcome::LossCause;
use crate::protocol::clocks::TimeVerdict;
use crate::protocol::quorum::MasterSet;
use crate::protocol::register::{CarryDecision, ReadVerdict, Vacancy, WriteVerdict};
use crate::rounds::register::{ValueAnswers, ValueRequests};

/// The register (one stored value) under a held lock. It must be read before it is written.
pub(crate) struct Register<'a> {
    guard: &'a LockGuard,
    number: u64,
}

/// The result of copying a value from the old masters to the next masters, which replace them. Each `String` lists the
/// masters' answers.
#[derive(Clone)]
pub(crate) enum CarryResult {
    /// The value is now stored on the old and on the next masters.
    Both,
    /// Only next masters had a value, and it was removed from them.
    Removed,
    /// Nothing was changed. Either no master had a value, or only next masters had one and the caller of
    /// [`Register::carry`] did not request its removal.
    Nowhere,
    /// No majority of the old masters shows the last value that was written.
    Lost(String),
    /// Too few masters answered, or the lock was lost.
    Undecided(String),
    /// The value could not be copied or removed, because the client's user lacks a permission on too many masters.
    Denied(String),
}

/// A register that has been read. It can be written once.
pub(crate) struct KnownValue<'a> {
    register: Register<'a>,
    bytes: Vec<u8>,
    /// The master on which the value was found; `None` for a register without a value.
    found: Option<usize>,
    read: ValueAnswers,
    /// The read request. It still collects late answers after [`Register::read`] has returned.
    requests: ValueRequests,
}

impl<'a> Register<'a> {
    /// The register under this lock; an error if the lock has no fencing token.
    pub(crate) fn under(guard: &'a LockGuard) -> Result<Self, ValueError> {
        let number = guard.fencing_token().ok_or(ValueError::NoFencing)?;
        Ok(Self { guard, number })
    }

    /// Reads the current value.
    ///
    /// Cancel safety: dropping the future does not change the value. Masters that have executed the read refuse writes
    /// with smaller fencing tokens from then on.
    pub(crate) async fn read(self) -> Result<KnownValue<'a>, ValueError> {
        let (answers, requests) = self
            .read_from_masters(|answers| answers.reading().is_some())
            .await;
        let reading = answers.reading().unwrap_or(ReadVerdict::Outage);
        tracing::debug!(resource = %self.name(), ?reading, "value read");
        let error = match reading {
            ReadVerdict::Found(node) => {
                let bytes = answers.bytes(node).unwrap_or_default().to_vec();
                return Ok(KnownValue {
                    register: self,
                    bytes,
                    found: Some(node),
                    read: answers,
                    requests,
                });
            }
            ReadVerdict::Missing => ValueError::Missing,
            ReadVerdict::Lost => ValueError::Lost,
            ReadVerdict::NotOurs => ValueError::LockLost,
            ReadVerdict::Outage if !self.guard.is_valid() => ValueError::LockLost,
            ReadVerdict::Outage => ValueError::NoQuorum,
        };
        Err(error(self.trouble(&answers)))
    }

    /// Checks that a first value may be created: every master must report that it has no value. The result is a
    /// register without a value.
    pub(crate) async fn read_vacant(self) -> Result<KnownValue<'a>, ValueError> {
        let (answers, requests) = self.read_from_masters(ValueAnswers::is_complete).await;
        let error = match answers.vacancy() {
            Some(Vacancy::Vacant) => {
                return Ok(KnownValue {
                    register: self,
                    bytes: Vec::new(),
                    found: None,
                    read: answers,
                    requests,
                });
            }
            Some(Vacancy::Occupied) => ValueError::Exists,
            _ if !self.guard.is_valid() => ValueError::LockLost,
            Some(Vacancy::Unknown) | None => ValueError::Incomplete,
        };
        Err(error(self.trouble(&answers)))
    }

    /// Removes the value from every master that answers, and returns whether any master had a value. First calls
    /// `has_own_kind` with each value that a master returned. If `has_own_kind` returns an error, removes nothing and
    /// returns this error.
    ///
    /// If the future is dropped, some masters may still have the value. To remove it, call this method again.
    pub(crate) async fn remove(
        self,
        has_own_kind: impl Fn(&[u8]) -> Result<(), ValueError>,
    ) -> Result<bool, ValueError> {
        let (answers, _) = self.read_from_masters(ValueAnswers::is_complete).await;
        answers.all_bytes().try_for_each(has_own_kind)?;
        let had_value = answers.all_bytes().next().is_some();
        let requests = self.send_write(None, &answers)?;
        let coordinator = &self.guard.core.coordinator;
        let answers = coordinator
            .answers(&requests, ValueAnswers::is_complete)
            .await;
        if answers.all_written() {
            tracing::debug!(resource = %self.name(), "value removed");
            return Ok(had_value);
        }
        Err(ValueError::Incomplete(self.trouble(&answers)))
    }

    /// Copies the value of the old masters to the next masters, which replace them.
    ///
    /// - `removes`: if true, and if only next masters have a value, removes that value.
    /// - `open`: the next masters on which clients that know only the next masters can already acquire locks.
    ///
    /// Cancel safety: if the future is dropped, only some masters may have the copy. Then call this method again.
    pub(crate) async fn carry(self, open: MasterSet, removes: bool) -> CarryResult {
        let (read, _) = self.read_from_masters(ValueAnswers::is_complete).await;
        let decision = read.carrying();
        tracing::debug!(resource = %self.name(), carrying = ?decision, "compared the value on the old and next masters");
        let coordinator = &self.guard.core.coordinator;
        let texts_as_read = || read.value_texts(coordinator.names());
        let undecided_result = |answers: &ValueAnswers| {
            let value_texts = answers.value_texts(coordinator.names());
            if answers.is_denied() {
                CarryResult::Denied(value_texts)
            } else {
                CarryResult::Undecided(value_texts)
            }
        };
        let bytes = match decision {
            CarryDecision::Value(node) => read.bytes(node),
            CarryDecision::Removed if removes => None,
            CarryDecision::Removed | CarryDecision::Nowhere => return CarryResult::Nowhere,
            CarryDecision::Lost => return CarryResult::Lost(texts_as_read()),
            CarryDecision::Undecided => return undecided_result(&read),
        };
        let Ok(requests) = self.send_write(bytes, &read) else {
            return undecided_result(&read);
        };
        let written = coordinator
            .answers(&requests, ValueAnswers::is_complete)
            .await;
        match bytes {
            Some(_) if written.has_carried(&read, open) => CarryResult::Both,
            None if written.has_removed(&read) => CarryResult::Removed,
            _ => undecided_result(&written),
        }
    }

    async fn read_from_masters(
        &self,
        decided: impl Fn(&ValueAnswers) -> bool,
    ) -> (ValueAnswers, ValueRequests) {
        let (coordinator, claim) = (&self.guard.core.coordinator, &self.guard.held.claim);
        coordinator.read_value(claim, self.number, decided).await
    }

    fn send_write(
        &self,
        bytes: Option<&[u8]>,
        read: &ValueAnswers,
    ) -> Result<ValueRequests, ValueError> {
        if !self.guard.may_write() {
            let why = "a lock can write its value only once: acquire it again to write again";
            return Err(ValueError::Invalid(why));
        }
        if !self.guard.is_valid() {
            let (name, reports) = (self.name(), self.guard.report());
            return Err(ValueError::LockLost(ValueTrouble { name, reports }));
        }
        let (coordinator, claim) = (&self.guard.core.coordinator, &self.guard.held.claim);
        let value = (bytes, self.guard.valid_until());
        Ok(coordinator.write_value(claim, self.number, value, read))
    }

    fn name(&self) -> String {
        String::from_utf8_lossy(self.guard.resource()).into_owned()
    }

    fn trouble(&self, answers: &ValueAnswers) -> ValueTrouble {
        let names = self.guard.core.coordinator.names();
        ValueTrouble {
            name: self.name(),
            reports: answers.reports(names),
        }
    }
}

impl KnownValue<'_> {
    /// The stored value that was read; empty for a register without a value.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Compares a time (in microseconds since 1970) with the masters' clocks. If the answers so far do not decide it,
    /// waits until every master has answered the read or failed.
    ///
    /// Cancel safety: dropping the future changes nothing.
    pub(crate) async fn judge_time(&mut self, time: u64) -> TimeVerdict {
        if self.read.judge_time(time) == TimeVerdict::Unclear {
            let coordinator = &self.register.guard.core.coordinator;
            let all_answers = coordinator.answers(&self.requests, ValueAnswers::is_complete);
            all_answers.await;
            self.read = self.requests.with_later(self.read.clone());
        }
        self.read.judge_time(time)
    }

    /// One line of text: how far the clock of each master is from the clock of this machine.
    pub(crate) fn clock_texts(&self) -> String {
        let coordinator = &self.register.guard.core.coordinator;
        let wall_micros = coordinator.runtime.wall_micros();
        self.read.clock_texts(coordinator.names(), wall_micros)
    }

    /// Leaves the value unchanged, and makes sure that a majority of the masters stores it. Waits until every master has
    /// answered the read or failed.
    ///
    /// - If only a minority shows the value that was read, writes this value to all masters. Its own write was not
    ///   acknowledged, so without this write, a later read may return an older value. Fails if the write fails.
    /// - If some master has no value, or only a copy from before its restart, writes the value as well. Ignores the
    ///   result of this write.
    pub(crate) async fn refill(mut self) -> Result<(), ValueError> {
        let coordinator = &self.register.guard.core.coordinator;
        let all_answers = coordinator.answers(&self.requests, ValueAnswers::is_complete);
        all_answers.await;
        self.read = self.requests.with_later(self.read);
        let is_settled = self
            .found
            .is_none_or(|found| self.read.is_on_majority(found));
        if is_settled && !self.read.has_gaps() {
            return Ok(());
        }
        let bytes = self.bytes.clone();
        match self.write(&bytes).await {
            _ if is_settled => Ok(()),
            // The value itself is unchanged in any case.
            Err(ValueError::Unknown(trouble)) => Err(ValueError::NoQuorum(trouble)),
            written => written,
        }
    }

    /// Writes the new value. After an error other than [`ValueError::Unknown`], the value is unchanged.
    ///
    /// Cancel safety: if the future is dropped, the next read returns either the old or the new value. From then on,
    /// the value that it returned is the current one.
    pub(crate) async fn write(self, bytes: &[u8]) -> Result<(), ValueError> {
        self.begin_write(bytes)?.finish().await
    }

    /// Queues the write and does not wait for its result.
    pub(crate) fn begin_write(self, bytes: &[u8]) -> Result<PendingWrite, ValueError> {
        let Self {
            register,
            read,
            requests,
            ..
        } = self;
        // Include late answers to the read: for the write, only masters that answered the read count.
        let read = requests.with_later(read);
        let requests = register.send_write(Some(bytes), &read)?;
        let LockGuard { held, core, .. } = register.guard;
        Ok(PendingWrite {
            held: held.clone(),
            core: core.clone(),
            requests,
            read,
        })
    }
}

/// A write whose requests have been queued for the masters, but whose result is not known yet.
pub(crate) struct PendingWrite {
    held: Arc<Held>,
    core: Arc<Core>,
    requests: ValueRequests,
    read: ValueAnswers,
}

impl PendingWrite {
    /// Whether the release may be sent directly after the write, without waiting for the write's result.
    ///
    /// True if every master has executed the read. Otherwise the write may still wait on the client's side until its
    /// master has executed the read. A release would cancel such a write.
    pub(crate) fn may_release_early(&self) -> bool {
        self.read.has_read_all()
    }

    /// Waits for the result of the write.
    pub(crate) async fn finish(self) -> Result<(), ValueError> {
        let Self {
            held,
            core,
            requests,
            read,
        } = self;
        let coordinator = &core.coordinator;
        let decided = |answers: &ValueAnswers| answers.writing(&read).is_some();
        let answers = coordinator.answers(&requests, decided).await;
        let writing = answers.writing(&read).unwrap_or(WriteVerdict::Unknown);
        let name = String::from_utf8_lossy(held.claim.resource()).into_owned();
        tracing::debug!(resource = %name, ?writing, "value written");
        let reports = answers.reports(coordinator.names());
        let trouble = ValueTrouble { name, reports };
        match (writing, held.end_cause(coordinator.now())) {
            (WriteVerdict::Written, _) => Ok(()),
            (WriteVerdict::Unknown, _) => Err(ValueError::Unknown(trouble)),
            (WriteVerdict::Nowhere, None | Some(LossCause::Released)) => {
                Err(ValueError::NoQuorum(trouble))
            }
            (WriteVerdict::Nowhere, Some(_)) => Err(ValueError::LockLost(trouble)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Duration;

    use crate::Redlock;
    use crate::node::memory::{Condition, Masters};
    use crate::node::{Answer, Node, NodeName, Reply, Request, ServerRun, StoredValue};
    use crate::runtime::BoxFuture;

    /// A master that grants every lock and stores one value.
    struct ClockNode {
        name: NodeName,
        /// The time on the clock of this master.
        clock: u64,
        /// Where to keep the requests for the value, which this master answers later; `None` if it answers at once.
        late_replies: Option<Arc<Mutex<Vec<Reply>>>>,
    }

    fn value_at(clock: u64) -> Answer {
        let stored = StoredValue {
            number: 3,
            bytes: b"value".to_vec(),
            trusted: true,
        };
        Answer::Value {
            run: ServerRun::new("run"),
            stored: Some(stored),
            clock: Some(clock),
        }
    }

    impl Node for ClockNode {
        fn name(&self) -> &NodeName {
            &self.name
        }

        fn send(&self, request: Request, reply: Reply) {
            let answer = match (request, &self.late_replies) {
                (Request::Acquire { .. }, _) => Answer::Granted { counter: Some(7) },
                (Request::Read { .. }, None) => value_at(self.clock),
                (Request::Read { .. }, Some(late_replies)) => {
                    late_replies.lock().expect("not poisoned").push(reply);
                    return;
                }
                _ => Answer::Released(true),
            };
            reply.answer(Ok(answer));
        }

        fn idle(&self) -> BoxFuture<()> {
            Box::pin(async {})
        }
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_two_clocks_leave_unclear_is_judged_by_the_clock_of_the_third_master() {
        let late_replies = Arc::<Mutex<Vec<_>>>::default();
        let node = |index: u64| -> Arc<dyn Node> {
            Arc::new(ClockNode {
                name: NodeName::new(format!("n{index}")),
                clock: 200 * index,
                late_replies: (index == 2).then(|| late_replies.clone()),
            })
        };
        let redlock = Redlock::builder().nodes((0..3).map(node).collect()).build();
        let redlock = redlock.expect("good settings");
        let guard = redlock.acquire("prizes").await.expect("the lock is free");
        let register = Register::under(&guard).expect("the lock is fenced");
        let mut value = register.read().await.expect("two masters answer");
        assert_eq!(value.read.judge_time(100), TimeVerdict::Unclear);
        let answer_later = async {
            for reply in late_replies.lock().expect("not poisoned").drain(..) {
                reply.answer(Ok(value_at(10)));
            }
        };
        let (verdict, ()) = futures::join!(value.judge_time(100), answer_later);
        assert_eq!(verdict, TimeVerdict::Future(90));
    }

    /// A client of these masters, on which it has created the quota `prizes`.
    async fn client_with_quota(masters: &Masters) -> Redlock {
        let redlock = Redlock::builder().in_memory_on(masters).build();
        let redlock = redlock.expect("good settings");
        let quota = redlock.quota("prizes");
        quota.create(7).await.expect("every master answers");
        redlock
    }

    #[tokio::test(start_paused = true)]
    async fn value_is_not_written_under_a_lock_that_was_lost() {
        let masters = Masters::new(3);
        let redlock = client_with_quota(&masters).await;
        let guard = redlock.acquire("prizes").await.expect("the lock is free");
        let register = Register::under(&guard).expect("the lock is fenced");
        let value = register.read().await.expect("the value exists");
        for master in masters.iter() {
            master.set_condition(Condition::Down);
        }
        let register = || Register::under(&guard).expect("the lock is fenced");
        let failed_read = register().read().await.err();
        assert!(
            matches!(failed_read, Some(ValueError::NoQuorum(_))),
            "the lock is still held: {failed_read:?}"
        );
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let errors = [
            register().read().await.err(),
            register().read_vacant().await.err(),
            register().send_write(Some(b"quota 6"), &value.read).err(),
        ];
        for error in errors {
            assert!(matches!(error, Some(ValueError::LockLost(_))), "{error:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn value_on_a_majority_stays_as_it_is_if_the_other_masters_cannot_be_filled() {
        let masters = Masters::new(3);
        let redlock = client_with_quota(&masters).await;
        masters[2].forget();
        let guard = redlock.acquire("prizes").await.expect("the lock is free");
        let register = Register::under(&guard).expect("the lock is fenced");
        let value = register.read().await.expect("the value exists");
        for master in masters.iter() {
            master.set_condition(Condition::Down);
        }
        assert!(value.read.has_gaps(), "one master has lost the value");
        let refilled = value.refill().await;
        assert!(refilled.is_ok(), "{refilled:?}");
    }
}
