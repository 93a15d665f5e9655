//! The answers to an acquire: votes, fencing counters, and what refusing masters say of holder and line.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::fan_out::{Collect, FanOut, From};
use super::look::timeout;
use crate::node::{Answer, Fault, NodeName, Note, Permit, Phase, QueueInfo};
use crate::protocol::fencing::Agreement;
use crate::protocol::finding::Finding;
use crate::protocol::instant::Instant;
use crate::protocol::permits::{NextSlot, SlotsSeen, next_slot};
use crate::protocol::quorum::{MasterSet, Quorum, Verdict};
use crate::protocol::round::{Round, Vote};
use crate::report::{LateAnswers, NodeReport, Slots};

pub(crate) type AcquireRound = FanOut<AcquireAnswers>;

/// The votes of an acquire, and what each node said for the report.
pub(crate) struct AcquireAnswers {
    pub(crate) round: Round,
    quorum: Quorum,
    slots: Slots,
    /// The lock that was won, if it is: it has the slots, and what comes later is passed on to it.
    holder: Option<Weak<dyn LateAnswers>>,
    started: Instant,
    decided: bool,
    /// Somebody waits for all numbers.
    settling: bool,
    /// What refusing nodes said; most rounds meet none.
    refusals: Option<Box<Refusals>>,
}

/// What refusing nodes said of holder and line.
#[derive(Default)]
pub(crate) struct Refusals {
    /// The largest ticket drawn anywhere.
    pub(crate) ticket: u64,
    /// The most waiters before us on any node; none where there is no line.
    pub(crate) ahead: Option<u64>,
    pub(crate) holder: Option<Vec<u8>>,
    /// The free slots of a semaphore, as each node said.
    free_slots: Vec<(usize, u64)>,
    /// What that holder says of itself.
    note: Option<Note>,
    /// When each node may be free, as it said.
    free_in: Vec<(Option<Duration>, usize)>,
}

impl AcquireAnswers {
    pub(crate) fn open(quorum: Quorum, started: Instant) -> Self {
        Self {
            round: Round::open(quorum),
            quorum,
            slots: Slots::of(quorum.nodes()),
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

    /// What the holder says of itself, where a refusing node had it.
    pub(crate) fn holder_note(&self) -> Option<Note> {
        self.refusals()?.note.clone()
    }

    /// The longest that any refusing node will keep the holder's key.
    pub(crate) fn ttl_left(&self) -> Option<Duration> {
        self.refusals()?
            .free_in
            .iter()
            .filter_map(|(left, _)| *left)
            .max()
    }

    /// A majority says that another has it.
    pub(crate) fn majority_refused(&self) -> bool {
        self.round.finding() == Some(Finding::Held)
    }

    /// The slots of a semaphore that a majority shows to be free, as bits; none where nobody said anything.
    pub(crate) fn free_slots(&self) -> Option<u64> {
        let shown = &self.refusals()?.free_slots;
        let by_majority = |slot: &u64| {
            let free = shown.iter().filter(|(_, bits)| bits & slot != 0);
            self.quorum.is_met_by(free.map(|(node, _)| *node).collect())
        };
        let slots = (0..u64::BITS).map(|slot| 1 << slot).filter(by_majority);
        Some(slots.fold(0, |bits, slot| bits | slot))
    }

    /// The slot of a semaphore to ask for next, once that is certain: none where somebody stands before us, and none
    /// of those that are `taken` by this process itself, as bits.
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

    /// The nodes that granted.
    pub(crate) fn free(&self) -> MasterSet {
        self.round.granted().collect()
    }

    /// When a majority may have become free: the soonest of the nodes that answered, up to a majority.
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
            refusals.holder = refusals.holder.take().or_else(|| holder.clone());
            if refusals.holder == holder {
                refusals.note = refusals.note.take().or(note);
            }
        }
    }

    /// The time of the round is over. Who had as long as a node may take and said nothing has
    /// failed; who had less has not been heard.
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

    /// The vote of this node does not count any more, for so much longer.
    pub(super) fn doubt(&mut self, node: usize, now: Instant, left: Duration) {
        let fault = Err(Fault::Quarantined(left));
        self.note(From { node, now }, &fault, false);
    }

    /// A majority agrees on the number, or nobody's is missing any more.
    pub(super) fn settled(&mut self) -> Option<()> {
        self.settling = true;
        let agreed = matches!(self.round.agreement(), Agreement::Agreed(_));
        (agreed || self.round.silent().next().is_none()).then_some(())
    }

    pub(super) fn verdict(&self) -> Option<Verdict> {
        Some(self.round.verdict()).filter(|verdict| *verdict != Verdict::Pending)
    }

    pub(crate) fn reports<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Vec<NodeReport> {
        self.slots.reports(names, Phase::Acquire)
    }

    /// So many masters fail in a way that does not pass by itself that waiting is in vain.
    pub(crate) fn is_hopeless(&self) -> bool {
        !self.quorum.possible_without(self.slots.lasting_faults())
    }

    /// Leaves to the lock that was won what each node said and will say, so that a held lock
    /// does not keep its round alive. The lock of the answers is always taken before the lock's.
    pub(crate) fn hand_over(&mut self, holder: &Arc<impl LateAnswers>) {
        holder.take_over(std::mem::take(&mut self.slots));
        let holder: Weak<_> = Arc::downgrade(holder);
        self.holder = Some(holder);
    }

    fn note(&mut self, from: From, answer: &Result<Answer, Fault>, late: bool) {
        let (node, now) = (from.node, from.now);
        match self.holder.as_ref().and_then(Weak::upgrade) {
            Some(holder) => holder.note(node, answer, self.started, now, late),
            None => self.slots.note(node, answer, self.started, now, late),
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
            // Given up by ourselves: it says nothing of the master.
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
