//! The answers to an acquire: votes, fencing counters, and the details that refusing masters report about the holder
//! and the queue.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::fan_out::{Collect, FanOut, Source};
use super::key_states::timeout;
use crate::node::{Answer, Fault, NodeName, Note, Permit, Phase, QueueInfo, is_of_quorate};
use crate::protocol::fencing::Agreement;
use crate::protocol::finding::Finding;
use crate::protocol::instant::Instant;
use crate::protocol::permits::{NextSlot, SlotAnswers, next_slot};
use crate::protocol::quorum::{MasterSet, Quorum, Verdict};
use crate::protocol::round::{Round, Vote};
use crate::report::{LateAnswers, NodeReport, Replies};

pub(crate) type AcquireRound = FanOut<AcquireAnswers>;

/// The votes of an acquire, and each master's reply for the report.
pub(crate) struct AcquireAnswers {
    pub(crate) round: Round,
    quorum: Quorum,
    replies: Replies,
    /// The lock that was won in this round: all later replies are passed to it. `None` until the lock is won.
    late_answers: Option<Weak<dyn LateAnswers>>,
    started_at: Instant,
    is_decided: bool,
    /// Whether a future waits for the masters to agree on the fencing token
    /// ([`agreed_or_complete`](Self::agreed_or_complete)).
    waits_for_numbers: bool,
    /// The details that refusing masters reported; `None` in most rounds.
    refusals: Option<Box<Refusals>>,
}

/// The details that refusing masters reported about the holder and the queue.
#[derive(Default)]
pub(crate) struct Refusals {
    /// The largest queue ticket (a waiter's number in the queue of one master) that any refusing master gave this
    /// client.
    pub(crate) largest_ticket: u64,
    /// The largest number of waiters ahead of this waiter that a master reported; `None` if no master reported a queue.
    pub(crate) ahead: Option<u64>,
    /// The value of the lock key on a refusing master; `None` if no refusing master showed one.
    pub(crate) holder: Option<Vec<u8>>,
    /// The refusing masters on which the lock key has a value that quorate did not write.
    foreign_masters: MasterSet,
    /// For each refusing master: its index, and its free slots of the semaphore as a bit mask.
    free_slots: Vec<(usize, u64)>,
    /// The note of the lock's holder; `None` if no refusing master returned one.
    note: Option<Note>,
    /// For each refusing master: how long until the lock may be free on this master (`None` if unknown), and the
    /// master's index.
    free_in: Vec<(Option<Duration>, usize)>,
}

impl AcquireAnswers {
    pub(crate) fn open(quorum: Quorum, started_at: Instant) -> Self {
        Self {
            round: Round::open(quorum),
            quorum,
            replies: Replies::new(quorum.nodes()),
            late_answers: None,
            started_at,
            refusals: None,
            is_decided: false,
            waits_for_numbers: false,
        }
    }

    pub(crate) fn refusals(&self) -> Option<&Refusals> {
        self.refusals.as_deref()
    }

    /// The holder's note, if a refusing master returned it.
    pub(crate) fn holder_note(&self) -> Option<Note> {
        self.refusals()?.note.clone()
    }

    /// Whether lock keys that another program wrote make a majority impossible. False if the masters do not report the
    /// values of the keys.
    pub(crate) fn is_foreign(&self) -> bool {
        let foreign_masters = self.refusals().map(|refusals| refusals.foreign_masters);
        foreign_masters
            .is_some_and(|foreign_masters| !self.quorum.is_possible_without(foreign_masters))
    }

    /// The longest remaining ttl of the holder's key on any refusing master; `None` if no refusing master reported one.
    pub(crate) fn ttl_left(&self) -> Option<Duration> {
        self.refusals()?
            .free_in
            .iter()
            .filter_map(|(left, _)| *left)
            .max()
    }

    /// Whether the refusals alone made a majority impossible ([`Finding::Held`]).
    pub(crate) fn majority_refused(&self) -> bool {
        self.round.finding() == Some(Finding::Held)
    }

    /// The slots of a semaphore that a majority shows as free, as a bit mask. `None` if no master refused: only
    /// refusals report free slots.
    pub(crate) fn free_slots(&self) -> Option<u64> {
        let free_by_master = &self.refusals()?.free_slots;
        let is_free_at_majority = |slot: &u64| {
            let masters = free_by_master.iter().filter(|(_, bits)| bits & slot != 0);
            self.quorum
                .is_met_by(masters.map(|(node, _)| *node).collect())
        };
        let slots = (0..u64::BITS)
            .map(|slot| 1 << slot)
            .filter(is_free_at_majority);
        Some(slots.fold(0, |bits, slot| bits | slot))
    }

    /// The slot of a semaphore to ask for next; `None` while missing answers can change the result.
    ///
    /// - Returns `Held` if a waiter is ahead in the queue. Also returns `Held` if no master reported its queue, because
    ///   the free slots are part of this report.
    /// - Skips the slots in the bit mask `occupied`: this process holds them or already asks for them.
    pub(crate) fn next_slot(&self, permit: &Permit, occupied: u64) -> Option<NextSlot> {
        let refusals = self.refusals().filter(|refusals| refusals.ahead == Some(0));
        let Some(refusals) = refusals else {
            return Some(NextSlot::AllHeld);
        };
        let free: Vec<_> = refusals
            .free_slots
            .iter()
            .map(|(node, bits)| (*node, bits & !occupied))
            .collect();
        let slot_answers = SlotAnswers {
            free: &free,
            granted: self.round.granted().collect(),
            asked_slot: permit.slot(),
            silent: self.round.silent().collect(),
        };
        let next_slot_choice =
            next_slot(self.quorum, slot_answers, permit.permits(), permit.slot());
        (next_slot_choice != NextSlot::Undecided).then_some(next_slot_choice)
    }

    /// The masters on which the lock was free: they granted it.
    pub(crate) fn granting_masters(&self) -> MasterSet {
        self.round.granted().collect()
    }

    /// How long until the lock may be free on a majority of the masters. The time of a master that granted the lock is
    /// zero. `None` if too few masters reported a time.
    pub(crate) fn majority_free_in(&self) -> Option<Duration> {
        let granted_times = self.round.granted().map(|node| (Duration::ZERO, node));
        let refusals = self.refusals().into_iter();
        let refused_times = refusals
            .flat_map(|refusals| &refusals.free_in)
            .filter_map(|(left, node)| Some(((*left)?, *node)));
        let mut times: Vec<_> = granted_times.chain(refused_times).collect();
        self.quorum.first_met(&mut times)
    }

    fn record_refusal(
        &mut self,
        node: usize,
        ttl_left: Option<Duration>,
        queue_info: Option<Box<QueueInfo>>,
    ) {
        let refusals = self.refusals.get_or_insert_default();
        refusals.free_in.push((ttl_left, node));
        if let Some(queue_info) = queue_info {
            refusals.free_slots.push((node, queue_info.free));
            refusals.largest_ticket = refusals.largest_ticket.max(queue_info.ticket);
            refusals.ahead = refusals.ahead.max(Some(queue_info.ahead));
            let QueueInfo { holder, note, .. } = *queue_info;
            if holder.as_deref().is_some_and(|value| !is_of_quorate(value)) {
                refusals.foreign_masters.add(node);
            }
            refusals.holder = refusals.holder.take().or_else(|| holder.clone());
            if refusals.holder == holder {
                refusals.note = refusals.note.take().or(note);
            }
        }
    }

    /// Ends the round: counts silent masters as failed. Does nothing if the round is younger than `patience`, the time
    /// limit for each answer.
    pub(super) fn fail_silent_masters(&mut self, now: Instant, patience: Duration) {
        let waited = now.saturating_since(self.started_at);
        if waited < patience {
            return;
        }
        self.is_decided = true;
        let silent: Vec<usize> = self.round.silent().collect();
        for node in silent {
            let fault = Err(timeout(waited));
            self.record_reply(Source { node, now }, &fault, false);
            self.round.record(node, Vote::Fault { sent: true });
        }
    }

    /// Changes the reply of the master `node` from granted to [`Fault::Quarantined`]: clients must ignore its votes for
    /// `left`.
    pub(super) fn record_doubt(&mut self, node: usize, now: Instant, left: Duration) {
        let fault = Err(Fault::Quarantined(left));
        self.record_reply(Source { node, now }, &fault, false);
    }

    /// Returns `Some` once a majority agrees on the fencing token, or once all masters have answered or failed.
    pub(super) fn agreed_or_complete(&mut self) -> Option<()> {
        self.waits_for_numbers = true;
        let has_agreed = matches!(self.round.agreement(), Agreement::Agreed(_));
        (has_agreed || self.round.silent().next().is_none()).then_some(())
    }

    pub(super) fn verdict(&self) -> Option<Verdict> {
        Some(self.round.verdict()).filter(|verdict| *verdict != Verdict::Pending)
    }

    pub(crate) fn reports<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Vec<NodeReport> {
        self.replies.reports(names, Phase::Acquire)
    }

    /// Whether waiting cannot help: too many masters have a fault that does not go away by itself, so no majority is
    /// possible.
    pub(crate) fn is_hopeless(&self) -> bool {
        !self
            .quorum
            .is_possible_without(self.replies.lasting_faults())
    }

    /// Moves the replies that have arrived to `late_answers`, the lock that was won. Later replies go to `late_answers`
    /// directly, so the round can be freed while the lock is held.
    ///
    /// Lock order: the mutex of the answers is locked before the mutex of `late_answers`.
    pub(crate) fn hand_over(&mut self, lock: &Arc<impl LateAnswers>) {
        lock.take_over(std::mem::take(&mut self.replies));
        let lock: Weak<_> = Arc::downgrade(lock);
        self.late_answers = Some(lock);
    }

    fn record_reply(&mut self, source: Source, answer: &Result<Answer, Fault>, late: bool) {
        let (node, now) = (source.node, source.now);
        match self.late_answers.as_ref().and_then(Weak::upgrade) {
            Some(late_answers) => late_answers.record(node, answer, self.started_at, now, late),
            None => self
                .replies
                .record(node, answer, self.started_at, now, late),
        }
    }
}

impl Collect for AcquireAnswers {
    fn record_answer(&mut self, source: Source, answer: Result<Answer, Fault>) -> bool {
        self.record_reply(source, &answer, self.is_decided);
        let vote = match answer {
            Ok(Answer::Granted { counter }) => Vote::Granted(counter),
            Ok(Answer::Refused { ttl_left, line }) => {
                self.record_refusal(source.node, ttl_left, line);
                Vote::Refused
            }
            Ok(_) => Vote::Fault { sent: true },
            // This client withdrew the request, so the fault says nothing about the master.
            Err(Fault::Withdrawn) => Vote::Withdrawn,
            Err(fault) => Vote::Fault {
                sent: !fault.left_nothing(),
            },
        };
        let verdict = self.round.record(source.node, vote);
        let is_first_verdict = verdict != Verdict::Pending && !self.is_decided;
        self.is_decided |= is_first_verdict;
        is_first_verdict
            || self.waits_for_numbers
            || (verdict == Verdict::Failed && self.round.reason().is_some())
    }

    fn record_late_answer(&mut self, source: Source, answer: &Result<Answer, Fault>) {
        self.record_reply(source, answer, true);
    }
}
