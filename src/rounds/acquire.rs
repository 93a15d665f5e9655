//! The answers to an acquire: votes, fencing counters, and the details that refusing masters report about the holder
//! and the queue.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::fan_out::{Collect, FanOut, From};
use super::key_states::timeout;
use crate::node::{Answer, Fault, NodeName, Note, Permit, Phase, QueueInfo, is_of_quorate};
use crate::protocol::fencing::Agreement;
use crate::protocol::finding::Finding;
use crate::protocol::instant::Instant;
use crate::protocol::permits::{NextSlot, SlotsSeen, next_slot};
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
    holder: Option<Weak<dyn LateAnswers>>,
    started: Instant,
    decided: bool,
    /// Whether a future waits for the masters to agree on the fencing token ([`settled`](Self::settled)).
    settling: bool,
    /// The details that refusing masters reported; `None` in most rounds.
    refusals: Option<Box<Refusals>>,
}

/// The details that refusing masters reported about the holder and the queue.
#[derive(Default)]
pub(crate) struct Refusals {
    /// The largest queue ticket (a waiter's number in the queue of one master) that any refusing master gave this
    /// client.
    pub(crate) ticket: u64,
    /// The largest number of waiters ahead of this waiter that a master reported; `None` if no master reported a queue.
    pub(crate) ahead: Option<u64>,
    /// The value of the lock key on a refusing master; `None` if no refusing master showed one.
    pub(crate) holder: Option<Vec<u8>>,
    /// The refusing masters on which the lock key has a value that quorate did not write.
    foreign: MasterSet,
    /// For each refusing master: its index, and its free slots of the semaphore as a bit mask.
    free_slots: Vec<(usize, u64)>,
    /// The note of the lock's holder; `None` if no refusing master returned one.
    note: Option<Note>,
    /// For each refusing master: how long until the lock may be free on this master (`None` if unknown), and the
    /// master's index.
    free_in: Vec<(Option<Duration>, usize)>,
}

impl AcquireAnswers {
    pub(crate) fn open(quorum: Quorum, started: Instant) -> Self {
        Self {
            round: Round::open(quorum),
            quorum,
            replies: Replies::of(quorum.nodes()),
            holder: None,
            started,
            refusals: None,
            decided: false,
            settling: false,
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
        let foreign = self.refusals().map(|refusals| refusals.foreign);
        foreign.is_some_and(|foreign| !self.quorum.possible_without(foreign))
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
        let shown = &self.refusals()?.free_slots;
        let by_majority = |slot: &u64| {
            let free = shown.iter().filter(|(_, bits)| bits & slot != 0);
            self.quorum.is_met_by(free.map(|(node, _)| *node).collect())
        };
        let slots = (0..u64::BITS).map(|slot| 1 << slot).filter(by_majority);
        Some(slots.fold(0, |bits, slot| bits | slot))
    }

    /// The slot of a semaphore to ask for next; `None` while missing answers can change the result.
    ///
    /// - Returns `Held` if a waiter is ahead in the queue. Also returns `Held` if no master reported its queue, because
    ///   the free slots are part of this report.
    /// - Skips the slots in the bit mask `taken`: this process holds them or already asks for them.
    pub(crate) fn next_slot(&self, permit: &Permit, taken: u64) -> Option<NextSlot> {
        let refusals = self.refusals().filter(|refusals| refusals.ahead == Some(0));
        let Some(refusals) = refusals else {
            return Some(NextSlot::Held);
        };
        let free: Vec<_> = refusals
            .free_slots
            .iter()
            .map(|(node, bits)| (*node, bits & !taken))
            .collect();
        let seen = SlotsSeen {
            free: &free,
            granted: self.round.granted().collect(),
            asked: permit.slot(),
            silent: self.round.silent().collect(),
        };
        let next = next_slot(self.quorum, seen, permit.permits(), permit.slot());
        (next != NextSlot::Open).then_some(next)
    }

    /// The masters on which the lock was free: they granted it.
    pub(crate) fn free(&self) -> MasterSet {
        self.round.granted().collect()
    }

    /// How long until the lock may be free on a majority of the masters. The time of a master that granted the lock is
    /// zero. `None` if too few masters reported a time.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        let granted = self.round.granted().map(|node| (Duration::ZERO, node));
        let refused = self
            .refusals()
            .into_iter()
            .flat_map(|refusals| &refusals.free_in);
        let refused = refused.filter_map(|(left, node)| Some(((*left)?, *node)));
        let mut times: Vec<_> = granted.chain(refused).collect();
        self.quorum.first_met(&mut times)
    }

    fn refused(&mut self, node: usize, ttl_left: Option<Duration>, line: Option<Box<QueueInfo>>) {
        let refusals = self.refusals.get_or_insert_default();
        refusals.free_in.push((ttl_left, node));
        if let Some(line) = line {
            refusals.free_slots.push((node, line.free));
            refusals.ticket = refusals.ticket.max(line.ticket);
            refusals.ahead = refusals.ahead.max(Some(line.ahead));
            let QueueInfo { holder, note, .. } = *line;
            if holder.as_deref().is_some_and(|value| !is_of_quorate(value)) {
                refusals.foreign.add(node);
            }
            refusals.holder = refusals.holder.take().or_else(|| holder.clone());
            if refusals.holder == holder {
                refusals.note = refusals.note.take().or(note);
            }
        }
    }

    /// Ends the round: counts silent masters as failed. Does nothing if the round is younger than `patience`, the time
    /// limit for each answer.
    pub(super) fn give_up(&mut self, now: Instant, patience: Duration) {
        let waited = now.saturating_since(self.started);
        if waited < patience {
            return;
        }
        self.decided = true;
        let silent: Vec<usize> = self.round.silent().collect();
        for node in silent {
            let fault = Err(timeout(waited));
            self.note(From { node, now }, &fault, false);
            self.round.record(node, Vote::Fault { sent: true });
        }
    }

    /// Changes the reply of the master `node` from granted to [`Fault::Quarantined`]: clients must ignore its votes for
    /// `left`.
    pub(super) fn doubt(&mut self, node: usize, now: Instant, left: Duration) {
        let fault = Err(Fault::Quarantined(left));
        self.note(From { node, now }, &fault, false);
    }

    /// Returns `Some` once a majority agrees on the fencing token, or once all masters have answered or failed.
    pub(super) fn settled(&mut self) -> Option<()> {
        self.settling = true;
        let agreed = matches!(self.round.agreement(), Agreement::Agreed(_));
        (agreed || self.round.silent().next().is_none()).then_some(())
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
        !self.quorum.possible_without(self.replies.lasting_faults())
    }

    /// Moves the replies that have arrived to `holder`, the lock that was won. Later replies go to `holder` directly,
    /// so the round can be freed while the lock is held.
    ///
    /// Lock order: the mutex of the answers is locked before the mutex of `holder`.
    pub(crate) fn hand_over(&mut self, holder: &Arc<impl LateAnswers>) {
        holder.take_over(std::mem::take(&mut self.replies));
        let holder: Weak<_> = Arc::downgrade(holder);
        self.holder = Some(holder);
    }

    fn note(&mut self, from: From, answer: &Result<Answer, Fault>, late: bool) {
        let (node, now) = (from.node, from.now);
        match self.holder.as_ref().and_then(Weak::upgrade) {
            Some(holder) => holder.note(node, answer, self.started, now, late),
            None => self.replies.note(node, answer, self.started, now, late),
        }
    }
}

impl Collect for AcquireAnswers {
    fn count(&mut self, from: From, answer: Result<Answer, Fault>) -> bool {
        self.note(from, &answer, self.decided);
        let vote = match answer {
            Ok(Answer::Granted { counter }) => Vote::Granted(counter),
            Ok(Answer::Refused { ttl_left, line }) => {
                self.refused(from.node, ttl_left, line);
                Vote::Refused
            }
            Ok(_) => Vote::Fault { sent: true },
            // This client withdrew the request, so the fault says nothing about the master.
            Err(Fault::Withdrawn) => Vote::Withdrawn,
            Err(fault) => Vote::Fault {
                sent: !fault.left_nothing(),
            },
        };
        let verdict = self.round.record(from.node, vote);
        let fell = verdict != Verdict::Pending && !self.decided;
        self.decided |= fell;
        fell || self.settling || (verdict == Verdict::Lost && self.round.reason().is_some())
    }

    fn late(&mut self, from: From, answer: &Result<Answer, Fault>) {
        self.note(from, answer, true);
    }
}
