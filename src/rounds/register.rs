//! Reads and writes the value under a lock (quota or once-per-period record) on all masters.

use std::sync::Arc;
use std::time::Duration;

use super::coordinator::Coordinator;
use super::fan_out::{Collect, FanOut, Source};
use super::key_states::timeout;
use crate::limit::Limit;
use crate::node::{Answer, Claim, Fault, NewValue, NodeName, Phase, Request, ServerRun};
use crate::protocol::clocks::{self, MasterClock, TimeVerdict};
use crate::protocol::instant::Instant;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::protocol::register::{
    self, CarryDecision, ReadVerdict, ReadVote, Vacancy, WriteVerdict, WriteVote,
};
use crate::report::{NodeOutcome, NodeReport};
use crate::runtime::yield_once;

impl Coordinator {
    /// Asks every master for the value, and waits until `decided` returns true for the answers so far. Later answers
    /// are available from the returned handle.
    pub(crate) async fn read_value(
        &self,
        claim: &Arc<Claim>,
        token: u64,
        decided: impl Fn(&ValueAnswers) -> bool,
    ) -> (ValueAnswers, ValueRequests) {
        let read_request = |_| Request::Read {
            claim: claim.clone(),
            token,
        };
        let requests = self.send_value_requests(read_request);
        let answers = self.answers(&requests, decided).await;
        // Wait briefly for the missing answers. If a master has not executed this read, the next write waits behind it,
        // and a release could cancel that write (`PendingWrite::may_release_early`).
        for _ in 0..MAX_YIELDS {
            if requests.fan_out.answers().is_complete() {
                break;
            }
            yield_once().await;
        }
        let answers = requests.with_later(answers);
        (answers, requests)
    }

    /// Writes or removes the value on every master. The requests are queued when this function returns.
    ///
    /// - If a master answered `read` and its server process has restarted since, the write is not sent to this master.
    /// - Nothing is sent at the time `until` or later.
    pub(crate) fn write_value(
        &self,
        claim: &Arc<Claim>,
        token: u64,
        (bytes, until): (Option<&[u8]>, Instant),
        read: &ValueAnswers,
    ) -> ValueRequests {
        let bytes: Option<Arc<[u8]>> = bytes.map(Arc::from);
        let write_request = |node| Request::Write {
            claim: claim.clone(),
            token,
            value: Arc::new(NewValue {
                bytes: bytes.clone(),
                until,
                run: read.run(node).cloned(),
            }),
        };
        self.send_value_requests(write_request)
    }

    fn send_value_requests(&self, request: impl Fn(usize) -> Request) -> ValueRequests {
        let answers = ValueAnswers::open(self.quorum, self.now());
        let fan_out = FanOut::new(self.runtime.clone(), answers);
        self.ask_each(&fan_out, Phase::Value, request);
        ValueRequests {
            fan_out,
            deadline: self.given_up_at(),
        }
    }

    /// Waits until `decided` returns true for the answers so far, or until the time limit of the request. At the time
    /// limit, a silent master counts as timed out.
    pub(crate) async fn answers(
        &self,
        requests: &ValueRequests,
        decided: impl Fn(&ValueAnswers) -> bool,
    ) -> ValueAnswers {
        let ValueRequests { fan_out, deadline } = requests;
        let mut limit = Limit::new(&*self.runtime, *deadline);
        let enough = |answers: &mut ValueAnswers| decided(answers).then(|| answers.clone());
        if let Some(answers) = limit.wait(fan_out.wait_until(enough)).await {
            return answers;
        }
        // Read the clock before locking the answers, so that their mutex is held only briefly.
        let now = self.now();
        fan_out.answers().with_timeouts(now)
    }
}

/// A request to all masters that reads or writes a value, and the time at which to stop waiting for answers.
pub(crate) struct ValueRequests {
    fan_out: Arc<FanOut<ValueAnswers>>,
    deadline: Instant,
}

impl ValueRequests {
    /// Returns the answers in `before`, and adds the answers of further masters that have come in since `before` was
    /// copied.
    pub(crate) fn with_later(&self, earlier: ValueAnswers) -> ValueAnswers {
        self.fan_out.answers().filling_gaps_of(earlier)
    }
}

/// The maximum number of bytes of a stored value that `ValueAnswers::shown` prints.
const MAX_SHOWN_BYTES: usize = 40;

/// How often a read lets other tasks run after its result is decided, so that the missing answers can still arrive.
const MAX_YIELDS: u32 = 3;

/// One master's answer, and how long the master took to answer.
type Timed = (Result<Answer, Fault>, Duration);

/// The answers received so far to one request about a value.
#[derive(Clone)]
pub(crate) struct ValueAnswers {
    quorum: Quorum,
    started_at: Instant,
    timed_answers: Vec<Option<Timed>>,
    usable: MasterSet,
    reply_count: usize,
}

impl ValueAnswers {
    fn open(quorum: Quorum, started_at: Instant) -> Self {
        Self {
            quorum,
            started_at,
            timed_answers: vec![None; quorum.nodes()],
            usable: MasterSet::default(),
            reply_count: 0,
        }
    }

    /// These answers, with a timeout as the answer of each master that has not answered.
    fn with_timeouts(&self, now: Instant) -> Self {
        let waited = now.saturating_since(self.started_at);
        let mut answers = self.clone();
        for answer in &mut answers.timed_answers {
            answer.get_or_insert_with(|| (Err(timeout(waited)), waited));
        }
        answers
    }

    /// Adds to `before` the answers in `self` of masters that have no answer in `before`. A timeout in `before` counts
    /// as an answer.
    fn filling_gaps_of(&self, mut earlier: Self) -> Self {
        for (earlier_answer, later_answer) in
            earlier.timed_answers.iter_mut().zip(&self.timed_answers)
        {
            *earlier_answer = earlier_answer.take().or_else(|| later_answer.clone());
        }
        earlier
    }

    /// Whether every master has executed the read.
    pub(crate) fn has_read_all(&self) -> bool {
        (0..self.timed_answers.len()).all(|node| self.run(node).is_some())
    }

    /// Whether no answer is missing: each master has answered or failed.
    pub(crate) fn is_complete(&self) -> bool {
        self.timed_answers.iter().all(Option::is_some)
    }

    fn answers(&self) -> impl Iterator<Item = Option<&Result<Answer, Fault>>> {
        let timed_answers = self.timed_answers.iter();
        timed_answers.map(|timed| timed.as_ref().map(|(answer, _)| answer))
    }

    fn read_votes(&self) -> Vec<Option<ReadVote>> {
        let vote_of = |answer: &Result<Answer, Fault>| match answer {
            Ok(Answer::Value { stored: None, .. }) => ReadVote::Nothing,
            Ok(Answer::Value {
                stored: Some(stored),
                ..
            }) if stored.trusted => ReadVote::Value(stored.number),
            Ok(Answer::Value { .. }) => ReadVote::Old,
            Ok(_) => ReadVote::Refused,
            Err(_) => ReadVote::Fault,
        };
        self.answers().map(|answer| answer.map(vote_of)).collect()
    }

    /// The result of the read; `None` until the answers decide it.
    pub(crate) fn reading(&self) -> Option<ReadVerdict> {
        register::judge_read(self.quorum, &self.read_votes())
    }

    /// Whether the masters' answers allow the client to create the first value; `None` while answers are missing.
    pub(crate) fn vacancy(&self) -> Option<Vacancy> {
        register::vacancy(&self.read_votes())
    }

    /// The bytes of the value that this master returned, even if the value was written before the master's last
    /// restart. `None` if the master returned no value.
    pub(crate) fn bytes(&self, node: usize) -> Option<&[u8]> {
        match self.timed_answers.get(node)? {
            Some((Ok(Answer::Value { stored, .. }), _)) => {
                stored.as_ref().map(|stored| &*stored.bytes)
            }
            _ => None,
        }
    }

    /// The bytes of the values that masters returned. Masters without a value are left out.
    pub(crate) fn all_bytes(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.timed_answers.len()).filter_map(|node| self.bytes(node))
    }

    /// Compares a time (in microseconds since 1970) with the clocks of the masters that answered the read.
    pub(crate) fn judge_time(&self, time: u64) -> TimeVerdict {
        let clocks: Vec<_> = self.clocks().collect();
        clocks::judge_time(self.quorum, &clocks, time)
    }

    fn clocks(&self) -> impl Iterator<Item = Option<MasterClock>> {
        self.answers().map(|answer| match answer {
            Some(Ok(Answer::Value { clock, .. })) => {
                Some(clock.map_or(MasterClock::Unknown, MasterClock::Shows))
            }
            _ => None,
        })
    }

    /// One line of text: how far the clock of each master is from `wall_micros`, the time on this machine's clock in
    /// microseconds since 1970.
    pub(crate) fn clock_texts<'a>(
        &self,
        names: impl Iterator<Item = &'a NodeName>,
        wall_micros: u64,
    ) -> String {
        let clock_text = |(name, clock): (&NodeName, Option<MasterClock>)| {
            let MasterClock::Shows(shown) = clock? else {
                return Some(format!("{name} has no clock"));
            };
            let difference = Duration::from_secs(shown.abs_diff(wall_micros) / 1_000_000);
            let difference_text = humantime::format_duration(difference);
            let relation = if shown < wall_micros {
                "behind"
            } else {
                "ahead of"
            };
            Some(format!(
                "{name} is {difference_text} {relation} this machine"
            ))
        };
        let clock_texts: Vec<_> = names.zip(self.clocks()).filter_map(clock_text).collect();
        clock_texts.join("; ")
    }

    /// The id of the server run in which this master answered the read, with or without a value. `None` if the master
    /// refused the read, failed, or has not answered.
    fn run(&self, node: usize) -> Option<&ServerRun> {
        match self.timed_answers.get(node)?.as_ref()? {
            (Ok(Answer::Value { run, .. }), _) => Some(run),
            _ => None,
        }
    }

    /// Whether a majority of the masters shows the value that the read has found on the master `found`.
    pub(crate) fn is_on_majority(&self, found: usize) -> bool {
        register::is_on_majority(self.quorum, &self.read_votes(), found)
    }

    /// Whether some master that answered the read has no value, or only a copy from before its restart. The value
    /// should then be written again.
    pub(crate) fn has_gaps(&self) -> bool {
        let is_gap =
            |vote: &Option<ReadVote>| matches!(vote, Some(ReadVote::Nothing | ReadVote::Old));
        self.read_votes().iter().any(is_gap)
    }

    /// The result of a write that followed this `read`; `None` until the answers decide it. A master that executed the
    /// write counts only under the conditions of [`WriteVote::Counted`].
    pub(crate) fn writing(&self, read: &Self) -> Option<WriteVerdict> {
        let vacant = read.vacancy() == Some(Vacancy::Vacant);
        let votes = read.read_votes();
        let counted_at_read = |node: usize| match votes.get(node) {
            Some(Some(ReadVote::Value(_))) => true,
            Some(Some(ReadVote::Nothing)) => vacant,
            _ => false,
        };
        let vote_of = |(node, answer): (usize, Option<&Result<Answer, Fault>>)| {
            Some(match answer? {
                Ok(Answer::Written { run })
                    if counted_at_read(node) && Some(run) == read.run(node) =>
                {
                    WriteVote::Counted
                }
                Ok(Answer::Written { .. }) => WriteVote::Refilled,
                Ok(_) => WriteVote::NotWritten,
                Err(fault) if fault.left_nothing() => WriteVote::NotWritten,
                Err(_) => WriteVote::Unknown,
            })
        };
        let votes: Vec<_> = self.answers().enumerate().map(vote_of).collect();
        register::judge_write(self.quorum, &votes)
    }

    /// The vote of each master on the read. A master without an answer votes `Fault`.
    fn all_votes(&self) -> Vec<ReadVote> {
        let votes = self.read_votes().into_iter();
        votes.map(|vote| vote.unwrap_or(ReadVote::Fault)).collect()
    }

    /// Decides from these answers to a read how to handle the value while masters are replaced: for example, whether to
    /// copy it to the next masters.
    pub(crate) fn carrying(&self) -> CarryDecision {
        register::judge_carry(self.quorum, &self.all_votes())
    }

    /// The masters that executed the write and have not restarted since they answered this `read`.
    fn written_as_read(&self, read: &Self) -> MasterSet {
        let answers = self.answers().enumerate();
        let written = answers.filter(|(node, answer)| {
            matches!(answer, Some(Ok(Answer::Written { run })) if Some(run) == read.run(*node))
        });
        written.map(|(node, _)| node).collect()
    }

    /// Whether a write that followed this `read` has copied the value to enough old and next masters.
    /// `register::carried` explains the rule and `open`.
    pub(crate) fn has_carried(&self, read: &Self, open: MasterSet) -> bool {
        let written = self.written_as_read(read);
        register::is_carried(self.quorum, &read.all_votes(), written, open)
    }

    /// Whether a removal that followed this `read` has succeeded; see `register::removed`.
    pub(crate) fn has_removed(&self, read: &Self) -> bool {
        let written = self.written_as_read(read);
        register::is_removed(self.quorum, &read.all_votes(), written)
    }

    /// Whether every master has executed the write.
    pub(crate) fn all_written(&self) -> bool {
        let mut answers = self.answers();
        answers.all(|answer| matches!(answer, Some(Ok(Answer::Written { .. }))))
    }

    /// Whether no majority is possible, because the client's user lacks a right on too many masters.
    pub(crate) fn is_denied(&self) -> bool {
        let answers = self.answers().enumerate();
        let denied = answers.filter(|(_, answer)| matches!(answer, Some(Err(Fault::Denied(_)))));
        let denied = denied.map(|(node, _)| node).collect();
        !self.quorum.is_possible_without(denied)
    }

    /// One line of text. For each master, it shows the value that the master returned, or why there is no value.
    pub(crate) fn value_texts<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> String {
        let text_of_master = |(node, report): (usize, NodeReport)| match self.bytes(node) {
            Some(bytes) => {
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SHOWN_BYTES)])
                    .into_owned();
                let copy_note = match report.outcome {
                    NodeOutcome::OldValue => " from before its restart",
                    _ => "",
                };
                format!("{} has {text:?}{copy_note}", report.node)
            }
            None => report.to_string(),
        };
        let reports = self.reports(names).into_iter().enumerate();
        let texts: Vec<_> = reports.map(text_of_master).collect();
        texts.join("; ")
    }

    /// Converts the answers to public reports; `names` are the masters' names in order.
    pub(crate) fn reports<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Vec<NodeReport> {
        let report = |(name, timed_answer): (&NodeName, &Option<Timed>)| {
            let outcome = match timed_answer.as_ref().map(|(answer, _)| answer) {
                None => NodeOutcome::Silent,
                Some(Ok(Answer::Value { stored: None, .. })) => NodeOutcome::NoValue,
                Some(Ok(Answer::Value {
                    stored: Some(stored),
                    ..
                })) if !stored.trusted => NodeOutcome::OldValue,
                Some(Ok(Answer::Value { .. } | Answer::Written { .. })) => NodeOutcome::Yes,
                Some(Ok(_)) => NodeOutcome::No,
                Some(Err(fault)) => NodeOutcome::Fault(fault.clone()),
            };
            NodeReport {
                node: name.clone(),
                phase: Phase::Value,
                outcome,
                latency: timed_answer.as_ref().map(|(_, latency)| *latency),
                late: false,
            }
        };
        names.zip(&self.timed_answers).map(report).collect()
    }
}

impl Collect for ValueAnswers {
    fn record_answer(&mut self, source: Source, answer: Result<Answer, Fault>) -> bool {
        if let Ok(Answer::Value { .. } | Answer::Written { .. }) = answer {
            self.usable.add(source.node);
        }
        self.reply_count += 1;
        if let Some(timed_answer) = self.timed_answers.get_mut(source.node) {
            *timed_answer = Some((answer, source.now.saturating_since(self.started_at)));
        }
        self.quorum.is_met_by(self.usable) || self.reply_count >= self.quorum.nodes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt as _;

    use super::*;
    use crate::node::memory::Masters;
    use crate::node::memory::intercepted::intercepted;
    use crate::node::{Reply, StoredValue, Token};
    use crate::redlock::Redlock;

    /// The answers of three masters to a read. Each value is from this run of the server or from an earlier one, and
    /// was read together with this time on the master's clock.
    fn read_answers(values: [(Option<bool>, Option<u64>); 3]) -> ValueAnswers {
        let mut answers = ValueAnswers::open(Quorum::new(3), Instant::from_nanos(0));
        for (node, (trusted, clock)) in values.into_iter().enumerate() {
            let stored = trusted.map(|trusted| StoredValue {
                number: 7,
                bytes: b"value".to_vec(),
                trusted,
            });
            let run = ServerRun::new("run");
            let answer = Ok(Answer::Value { run, stored, clock });
            answers.timed_answers[node] = Some((answer, Duration::ZERO));
        }
        answers
    }

    #[test]
    fn values_of_all_masters_that_have_one_are_compared() {
        let answers = read_answers([(Some(true), None), (None, None), (Some(false), None)]);
        let values: Vec<_> = answers.all_bytes().collect();
        assert_eq!(values, [b"value"; 2]);
    }

    #[test]
    fn round_is_decided_by_a_majority_of_usable_answers_or_when_all_have_answered() {
        let run = ServerRun::new("run");
        let usable = || {
            let run = run.clone();
            Ok(Answer::Value {
                run,
                stored: None,
                clock: None,
            })
        };
        let written = || Ok(Answer::Written { run: run.clone() });
        let fault = || Err(Fault::Down("off".into()));
        for (answers, decided) in [
            ([usable(), usable(), fault()], [false, true, true]),
            ([usable(), written(), usable()], [false, true, true]),
            ([usable(), fault(), fault()], [false, false, true]),
            ([fault(), fault(), fault()], [false, false, true]),
        ] {
            let mut round = ValueAnswers::open(Quorum::new(3), Instant::from_nanos(0));
            let mut record = |(node, answer)| {
                let now = Instant::from_nanos(1);
                round.record_answer(Source { node, now }, answer)
            };
            let case = format!("{answers:?}");
            let recorded: Vec<bool> = answers.into_iter().enumerate().map(&mut record).collect();
            assert_eq!(recorded, decided, "{case}");
        }
    }

    #[test]
    fn text_about_the_values_marks_a_value_from_before_a_restart() {
        let answers = read_answers([(Some(true), None), (Some(false), None), (None, None)]);
        let names = ["a", "b", "c"].map(NodeName::new);
        let text = answers.value_texts(names.iter());
        let (with_values, _) = text.rsplit_once("; ").expect("three masters have answered");
        assert_eq!(
            with_values,
            "a has \"value\"; b has \"value\" from before its restart"
        );
    }

    #[test]
    fn long_value_is_cut_in_a_text_about_the_values() {
        let mut answers = read_answers([(Some(true), None), (None, None), (None, None)]);
        let long_value = "v".repeat(2 * MAX_SHOWN_BYTES);
        if let Some((Ok(Answer::Value { stored, .. }), _)) = &mut answers.timed_answers[0] {
            let stored = stored.as_mut().expect("the first master has a value");
            stored.bytes = long_value.into();
        }
        let text = answers.value_texts([NodeName::new("a")].iter());
        assert_eq!(text, format!("a has {:?}", "v".repeat(MAX_SHOWN_BYTES)));
    }

    #[test]
    fn rights_are_missing_only_if_the_masters_that_deny_access_leave_no_majority() {
        let denied = || Err(Fault::Denied("no right".into()));
        let down = || Err(Fault::Down("off".into()));
        for (answers, is_denied) in [
            ([down(), down(), down()], false),
            ([denied(), down(), down()], false),
            ([denied(), down(), denied()], true),
        ] {
            let mut denials = ValueAnswers::open(Quorum::new(3), Instant::from_nanos(0));
            for (node, answer) in answers.into_iter().enumerate() {
                denials.timed_answers[node] = Some((answer, Duration::ZERO));
            }
            assert_eq!(denials.is_denied(), is_denied);
        }
    }

    #[test]
    fn master_without_an_answer_counts_as_timed_out_and_as_one_that_removed_nothing() {
        let started_at = Instant::from_nanos(0);
        let answers = ValueAnswers::open(Quorum::new(3), started_at);
        let waited = Duration::from_millis(50);
        let timed_out = answers.with_timeouts(started_at + waited);
        let expected: Option<Timed> = Some((Err(timeout(waited)), waited));
        for answer in &timed_out.timed_answers {
            assert_eq!(format!("{answer:?}"), format!("{expected:?}"));
        }
        let read = read_answers([(Some(true), None); 3]);
        assert!(!timed_out.has_removed(&read));
    }

    #[test]
    fn text_about_the_clocks_shows_the_difference_of_each_clock_and_masters_without_one() {
        let second = 1_000_000;
        let clocks = [None, Some(5 * second), Some(12 * second)];
        let answers = read_answers(clocks.map(|clock| (None, clock)));
        let names = ["a", "b", "c"].map(NodeName::new);
        let text = answers.clock_texts(names.iter(), 10 * second);
        assert_eq!(
            text,
            "a has no clock; b is 5s behind this machine; c is 2s ahead of this machine"
        );
        let text = answers.clock_texts(names[..2].iter(), 5 * second);
        assert_eq!(text, "a has no clock; b is 0s ahead of this machine");
    }

    #[test]
    fn value_write_does_not_count_on_a_master_whose_value_predates_its_restart() {
        let new_run = || ServerRun::new("run");
        let value_answer = |trusted| {
            let stored = Some(StoredValue {
                number: 7,
                bytes: b"value".to_vec(),
                trusted,
            });
            let clock = None;
            Ok(Answer::Value {
                run: new_run(),
                stored,
                clock,
            })
        };
        let now = Instant::from_nanos(0);
        let mut read_answers = ValueAnswers::open(Quorum::new(3), now);
        let mut write_answers = ValueAnswers::open(Quorum::new(3), now);
        for (node, trusted) in [true, false, false].into_iter().enumerate() {
            read_answers.timed_answers[node] = Some((value_answer(trusted), Duration::ZERO));
        }
        write_answers.timed_answers[0] =
            Some((Ok(Answer::Written { run: new_run() }), Duration::ZERO));
        write_answers.timed_answers[1] = write_answers.timed_answers[0].clone();
        write_answers.timed_answers[2] = Some((Err(timeout(Duration::ZERO)), Duration::ZERO));
        assert_eq!(
            write_answers.writing(&read_answers),
            Some(WriteVerdict::Unknown)
        );
    }

    #[test]
    fn write_counts_only_on_masters_that_have_not_restarted_since_the_read() {
        let read = read_answers([(Some(true), None); 3]);
        let written_by = |run: &str| {
            let run = ServerRun::new(run);
            Ok(Answer::Written { run })
        };
        let written = || written_by("run");
        let after_restart = || written_by("next run");
        let unsent = || Err(Fault::Down("off".into()));
        let lost = || Err(timeout(Duration::ZERO));
        for (answers, verdict) in [
            (
                [written(), written(), after_restart()],
                WriteVerdict::Written,
            ),
            (
                [written(), after_restart(), after_restart()],
                WriteVerdict::Unknown,
            ),
            ([written(), unsent(), unsent()], WriteVerdict::Unknown),
            ([lost(), unsent(), unsent()], WriteVerdict::Unknown),
            ([unsent(), unsent(), unsent()], WriteVerdict::Nowhere),
        ] {
            let case = format!("{answers:?}");
            let mut write = ValueAnswers::open(Quorum::new(3), Instant::from_nanos(0));
            write.timed_answers = answers
                .into_iter()
                .map(|answer| Some((answer, Duration::ZERO)))
                .collect();
            assert_eq!(write.writing(&read), Some(verdict), "{case}");
        }
    }

    #[test]
    fn read_is_complete_on_all_masters_only_if_each_has_executed_it() {
        let answers = read_answers([(None, None); 3]);
        assert!(answers.has_read_all());
        let names = ["a", "b", "c"].map(NodeName::new);
        let reports = answers.reports(names.iter());
        assert!(reports.iter().all(|report| !report.late), "{reports:?}");
        for node in 0..3 {
            let mut without_one = answers.clone();
            without_one.timed_answers[node] = None;
            assert!(!without_one.has_read_all(), "master {node}");
        }
    }

    /// Polls a read whose last answer comes after this number of polls. Returns how many polls the read needs, and
    /// whether it then has all answers.
    fn polls_of_read(last_answer_after: usize) -> (usize, bool) {
        let reads = Arc::<AtomicUsize>::default();
        let last_reply = Arc::<Mutex<Option<Reply>>>::default();
        let kept_reply = last_reply.clone();
        let value_answer = || {
            Ok(Answer::Value {
                run: ServerRun::new("run"),
                stored: None,
                clock: None,
            })
        };
        let nodes = intercepted(&Masters::new(3), move |request, reply| {
            if !matches!(request, Request::Read { .. }) {
                return Some(reply);
            }
            if reads.fetch_add(1, Ordering::Relaxed) < 2 || last_answer_after == 0 {
                reply.answer(value_answer());
            } else {
                *kept_reply.lock().expect("not poisoned") = Some(reply);
            }
            None
        });
        let redlock = Redlock::builder().nodes(nodes).build();
        let coordinator = redlock.expect("good settings").core.coordinator.clone();
        let claim = Claim::new("", b"r", Token::from_bytes([1; 16]), true).into();
        let has_majority = |answers: &ValueAnswers| answers.quorum.is_met_by(answers.usable);
        let mut read = std::pin::pin!(coordinator.read_value(&claim, 7, has_majority));
        let mut polls = 0;
        loop {
            polls += 1;
            if let Some((answers, _)) = read.as_mut().now_or_never() {
                return (polls, answers.is_complete());
            }
            let reply = last_reply.lock().expect("not poisoned").take();
            match reply {
                Some(reply) if polls == last_answer_after => reply.answer(value_answer()),
                other => *last_reply.lock().expect("not poisoned") = other,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn read_lets_other_tasks_run_three_times_while_an_answer_is_missing() {
        for (last_answer_after, expected) in [
            (0, (1, true)),
            (1, (2, true)),
            (3, (4, true)),
            (100, (4, false)),
        ] {
            let polls = polls_of_read(last_answer_after);
            assert_eq!(polls, expected, "{last_answer_after}");
        }
    }
}
