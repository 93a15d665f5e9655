//! Reads and writes the value under a lock (quota or once-per-period record) on all masters.

use std::sync::Arc;
use std::time::Duration;

use super::coordinator::Coordinator;
use super::fan_out::{Collect, FanOut, From};
use super::key_states::timeout;
use crate::limit::Limit;
use crate::node::{Answer, Claim, Fault, NewValue, NodeName, Phase, Request, ServerRun};
use crate::protocol::clocks::{self, MasterClock, TimeVerdict};
use crate::protocol::instant::Instant;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::protocol::register::{self, Carrying, ReadVote, Reading, Vacancy, WriteVote, Writing};
use crate::report::{NodeOutcome, NodeReport};
use crate::runtime::pause;

impl Coordinator {
    /// Asks every master for the value, and waits until `decided` returns true for the answers so far. Later answers
    /// are available from the returned handle.
    pub(crate) async fn read_value(
        &self,
        claim: &Arc<Claim>,
        token: u64,
        decided: impl Fn(&ValueAnswers) -> bool,
    ) -> (ValueAnswers, AskedForValue) {
        let read = |_| Request::Read {
            claim: claim.clone(),
            token,
        };
        let asked = self.ask_for_value(read);
        let answers = self.answers(&asked, decided).await;
        // Wait briefly for the missing answers. If a master has not executed this read, the next write waits behind it,
        // and a release could cancel that write (`BegunWrite::may_be_followed`).
        for _ in 0..STRAGGLE {
            if asked.0.answers().complete() {
                break;
            }
            pause().await;
        }
        let answers = asked.with_later(answers);
        (answers, asked)
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
    ) -> AskedForValue {
        let bytes: Option<Arc<[u8]>> = bytes.map(Arc::from);
        let write = |node| Request::Write {
            claim: claim.clone(),
            token,
            value: Arc::new(NewValue {
                bytes: bytes.clone(),
                until,
                run: read.run(node).cloned(),
            }),
        };
        self.ask_for_value(write)
    }

    fn ask_for_value(&self, request: impl Fn(usize) -> Request) -> AskedForValue {
        let answers = ValueAnswers::open(self.quorum, self.now());
        let fan_out = FanOut::new(self.runtime.clone(), answers);
        self.ask_each(&fan_out, Phase::Value, request);
        AskedForValue(fan_out, self.given_up_by())
    }

    /// Waits until `decided` returns true for the answers so far, or until the time limit of the request. At the time
    /// limit, a silent master counts as timed out.
    pub(crate) async fn answers(
        &self,
        asked: &AskedForValue,
        decided: impl Fn(&ValueAnswers) -> bool,
    ) -> ValueAnswers {
        let AskedForValue(fan_out, until) = asked;
        let mut limit = Limit::new(&*self.runtime, *until);
        let enough = |answers: &mut ValueAnswers| decided(answers).then(|| answers.clone());
        if let Some(answers) = limit.wait(fan_out.until(enough)).await {
            return answers;
        }
        // Read the clock before locking the answers, so that their mutex is held only briefly.
        let now = self.now();
        fan_out.answers().cut_off(now)
    }
}

/// A request to all masters that reads or writes a value, and the time at which to stop waiting for answers.
pub(crate) struct AskedForValue(Arc<FanOut<ValueAnswers>>, Instant);

impl AskedForValue {
    /// Returns the answers in `before`, and adds the answers of further masters that have come in since `before` was
    /// copied.
    pub(crate) fn with_later(&self, before: ValueAnswers) -> ValueAnswers {
        self.0.answers().later_than(before)
    }
}

/// The maximum number of bytes of a stored value that `ValueAnswers::shown` prints.
const SHOWN: usize = 40;

/// How often a read lets other tasks run after its result is decided, so that the missing answers can still arrive.
const STRAGGLE: u32 = 3;

/// One master's answer, and how long the master took to answer.
type Timed = (Result<Answer, Fault>, Duration);

/// The answers received so far to one request about a value.
#[derive(Clone)]
pub(crate) struct ValueAnswers {
    quorum: Quorum,
    started: Instant,
    said: Vec<Option<Timed>>,
    yes: MasterSet,
    reply_count: usize,
}

impl ValueAnswers {
    fn open(quorum: Quorum, started: Instant) -> Self {
        Self {
            quorum,
            started,
            said: vec![None; quorum.nodes()],
            yes: MasterSet::default(),
            reply_count: 0,
        }
    }

    /// These answers, with a timeout as the answer of each master that has not answered.
    fn cut_off(&self, now: Instant) -> Self {
        let waited = now.saturating_since(self.started);
        let mut all = self.clone();
        for said in &mut all.said {
            said.get_or_insert_with(|| (Err(timeout(waited)), waited));
        }
        all
    }

    /// Adds to `before` the answers in `self` of masters that have no answer in `before`. A timeout in `before` counts
    /// as an answer.
    fn later_than(&self, mut before: Self) -> Self {
        for (before, said) in before.said.iter_mut().zip(&self.said) {
            *before = before.take().or_else(|| said.clone());
        }
        before
    }

    /// Whether every master has executed the read.
    pub(crate) fn all_read(&self) -> bool {
        (0..self.said.len()).all(|node| self.run(node).is_some())
    }

    /// Whether no answer is missing: each master has answered or failed.
    pub(crate) fn complete(&self) -> bool {
        self.said.iter().all(Option::is_some)
    }

    fn answers(&self) -> impl Iterator<Item = Option<&Result<Answer, Fault>>> {
        let said = self.said.iter();
        said.map(|said| said.as_ref().map(|(answer, _)| answer))
    }

    fn read_votes(&self) -> Vec<Option<ReadVote>> {
        let vote = |answer: &Result<Answer, Fault>| match answer {
            Ok(Answer::Value { stored: None, .. }) => ReadVote::Nothing,
            Ok(Answer::Value {
                stored: Some(stored),
                ..
            }) if stored.trusted => ReadVote::Value(stored.number),
            Ok(Answer::Value { .. }) => ReadVote::Old,
            Ok(_) => ReadVote::Refused,
            Err(_) => ReadVote::Fault,
        };
        self.answers().map(|answer| answer.map(vote)).collect()
    }

    /// The result of the read; `None` until the answers decide it.
    pub(crate) fn reading(&self) -> Option<Reading> {
        register::read(self.quorum, &self.read_votes())
    }

    /// Whether the masters' answers allow the client to create the first value; `None` while answers are missing.
    pub(crate) fn vacancy(&self) -> Option<Vacancy> {
        register::vacancy(&self.read_votes())
    }

    /// The bytes of the value that this master returned, even if the value was written before the master's last
    /// restart. `None` if the master returned no value.
    pub(crate) fn bytes(&self, node: usize) -> Option<&[u8]> {
        match self.said.get(node)? {
            Some((Ok(Answer::Value { stored, .. }), _)) => {
                stored.as_ref().map(|stored| &*stored.bytes)
            }
            _ => None,
        }
    }

    /// The bytes of the values that masters returned. Masters without a value are left out.
    pub(crate) fn all_bytes(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.said.len()).filter_map(|node| self.bytes(node))
    }

    /// Compares a time (in microseconds since 1970) with the clocks of the masters that answered the read.
    pub(crate) fn judge_time(&self, time: u64) -> TimeVerdict {
        let clocks: Vec<_> = self.clocks().collect();
        clocks::judge(self.quorum, &clocks, time)
    }

    fn clocks(&self) -> impl Iterator<Item = Option<MasterClock>> {
        self.answers().map(|answer| match answer {
            Some(Ok(Answer::Value { clock, .. })) => {
                Some(clock.map_or(MasterClock::Unknown, MasterClock::Shows))
            }
            _ => None,
        })
    }

    /// One line of text: how far the clock of each master is from `wall`, the time on this machine's clock in
    /// microseconds since 1970.
    pub(crate) fn shown_clocks<'a>(
        &self,
        names: impl Iterator<Item = &'a NodeName>,
        wall: u64,
    ) -> String {
        let shown = |(name, clock): (&NodeName, Option<MasterClock>)| {
            let MasterClock::Shows(shown) = clock? else {
                return Some(format!("{name} has no clock"));
            };
            let apart = Duration::from_secs(shown.abs_diff(wall) / 1_000_000);
            let apart = humantime::format_duration(apart);
            let way = if shown < wall { "behind" } else { "ahead of" };
            Some(format!("{name} is {apart} {way} this machine"))
        };
        let shown: Vec<_> = names.zip(self.clocks()).filter_map(shown).collect();
        shown.join("; ")
    }

    /// The id of the server run in which this master answered the read, with or without a value. `None` if the master
    /// refused the read, failed, or has not answered.
    fn run(&self, node: usize) -> Option<&ServerRun> {
        match self.said.get(node)?.as_ref()? {
            (Ok(Answer::Value { run, .. }), _) => Some(run),
            _ => None,
        }
    }

    /// Whether some master that answered the read has no value, or only a copy from before its restart. The value
    /// should then be written again.
    pub(crate) fn has_gaps(&self) -> bool {
        let gap = |vote: &Option<ReadVote>| matches!(vote, Some(ReadVote::Nothing | ReadVote::Old));
        self.read_votes().iter().any(gap)
    }

    /// The result of a write that followed this `read`; `None` until the answers decide it. A master that executed the
    /// write counts only under the conditions of [`WriteVote::Counted`].
    pub(crate) fn writing(&self, read: &Self) -> Option<Writing> {
        let vacant = read.vacancy() == Some(Vacancy::Vacant);
        let votes = read.read_votes();
        let voted = |node: usize| match votes.get(node) {
            Some(Some(ReadVote::Value(_))) => true,
            Some(Some(ReadVote::Nothing)) => vacant,
            _ => false,
        };
        let vote = |(node, answer): (usize, Option<&Result<Answer, Fault>>)| {
            Some(match answer? {
                Ok(Answer::Written { run }) if voted(node) && Some(run) == read.run(node) => {
                    WriteVote::Counted
                }
                Ok(Answer::Written { .. }) => WriteVote::Refilled,
                Ok(_) => WriteVote::NotWritten,
                Err(fault) if fault.left_nothing() => WriteVote::NotWritten,
                Err(_) => WriteVote::Unknown,
            })
        };
        let votes: Vec<_> = self.answers().enumerate().map(vote).collect();
        register::written(self.quorum, &votes)
    }

    /// The vote of each master on the read. A master without an answer votes `Fault`.
    fn all_votes(&self) -> Vec<ReadVote> {
        let votes = self.read_votes().into_iter();
        votes.map(|vote| vote.unwrap_or(ReadVote::Fault)).collect()
    }

    /// Decides from these answers to a read how to handle the value while masters are replaced: for example, whether to
    /// copy it to the next masters.
    pub(crate) fn carrying(&self) -> Carrying {
        register::carry(self.quorum, &self.all_votes())
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
        register::carried(self.quorum, &read.all_votes(), written, open)
    }

    /// Whether a removal that followed this `read` has succeeded; see `register::removed`.
    pub(crate) fn has_removed(&self, read: &Self) -> bool {
        let written = self.written_as_read(read);
        register::removed(self.quorum, &read.all_votes(), written)
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
        !self.quorum.possible_without(denied)
    }

    /// One line of text. For each master, it shows the value that the master returned, or why there is no value.
    pub(crate) fn shown<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> String {
        let shown = |(node, report): (usize, NodeReport)| match self.bytes(node) {
            Some(bytes) => {
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]).into_owned();
                let copy = match report.outcome {
                    NodeOutcome::OldValue => " from before its restart",
                    _ => "",
                };
                format!("{} has {text:?}{copy}", report.node)
            }
            None => report.to_string(),
        };
        let reports = self.reports(names).into_iter().enumerate();
        let shown: Vec<_> = reports.map(shown).collect();
        shown.join("; ")
    }

    /// Converts the answers to public reports; `names` are the masters' names in order.
    pub(crate) fn reports<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Vec<NodeReport> {
        let report = |(name, said): (&NodeName, &Option<Timed>)| {
            let outcome = match said.as_ref().map(|(answer, _)| answer) {
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
                latency: said.as_ref().map(|(_, latency)| *latency),
                late: false,
            }
        };
        names.zip(&self.said).map(report).collect()
    }
}

impl Collect for ValueAnswers {
    fn count(&mut self, from: From, answer: Result<Answer, Fault>) -> bool {
        if let Ok(Answer::Value { .. } | Answer::Written { .. }) = answer {
            self.yes.add(from.node);
        }
        self.reply_count += 1;
        if let Some(said) = self.said.get_mut(from.node) {
            *said = Some((answer, from.now.saturating_since(self.started)));
        }
        self.quorum.is_met_by(self.yes) || self.reply_count >= self.quorum.nodes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::StoredValue;

    #[test]
    fn value_write_does_not_count_on_a_master_whose_value_predates_its_restart() {
        let run = || ServerRun::new("run");
        let value = |trusted| {
            let stored = Some(StoredValue {
                number: 7,
                bytes: b"value".to_vec(),
                trusted,
            });
            let clock = None;
            Ok(Answer::Value {
                run: run(),
                stored,
                clock,
            })
        };
        let now = Instant::from_nanos(0);
        let mut read = ValueAnswers::open(Quorum::of(3), now);
        let mut write = ValueAnswers::open(Quorum::of(3), now);
        for (node, trusted) in [true, false, false].into_iter().enumerate() {
            read.said[node] = Some((value(trusted), Duration::ZERO));
        }
        write.said[0] = Some((Ok(Answer::Written { run: run() }), Duration::ZERO));
        write.said[1] = write.said[0].clone();
        write.said[2] = Some((Err(timeout(Duration::ZERO)), Duration::ZERO));
        assert_eq!(write.writing(&read), Some(Writing::Unknown));
    }
}
