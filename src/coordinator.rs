//! The only driver of a round: asks all masters at once, counts, agrees on the fencing token, and
//! undoes what was not won. Nothing else decides that a lock is held.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::gather::{Board, From, Gather};
use crate::limit::Limit;
use crate::metrics;
use crate::node::{
    Answer, Claim, Fault, KeyState, Line, Node, NodeName, Order, Phase, Reply, ReplySink, Request,
    Token,
};
use crate::outcome::Failure;
use crate::protocol::fencing::{Agreement, ClockOffset};
use crate::protocol::finding::Finding;
use crate::protocol::instant::Instant;
use crate::protocol::quorum::{Quorum, Reason, Tally, Verdict};
use crate::protocol::round::{Round, Vote};
use crate::protocol::validity::{Drift, valid_until};
use crate::report::{Heir, NodeReport, Slots};
use crate::runtime::Runtime;

/// How often the fencing number may be raised within one acquire before it is given up. One
/// raise already needs a master that granted late with a counter of its own.
const CONFIRM_ROUNDS: usize = 3;

/// How much longer than a node may take its caller waits for its word: only for a node that breaks its
/// contract. One that keeps it answers within its timeout, and reads what has come before it calls anything
/// late; a process that hardly gets to run would otherwise leave while the answers lie there.
const BACKSTOP: Duration = Duration::from_secs(1);

/// All masters, and what every round needs to know.
pub(crate) struct Coordinator {
    nodes: Box<[Arc<dyn Node>]>,
    pub(crate) quorum: Quorum,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) drift: Drift,
    pub(crate) prefix: Box<str>,
    pub(crate) fencing: bool,
    patience: Patience,
    /// The masters have been asked before: who is not there by now is not waited for.
    met: AtomicBool,
    /// Learned distance of our wall clock from the masters', for proposals.
    offset: AtomicI64,
}

/// How long a node may take to answer.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Any request.
    pub(crate) answer: Duration,
    /// And how much longer the very first, which waits for its connection.
    pub(crate) connect: Duration,
}

/// A lock that a majority granted and confirmed, with validity left.
pub(crate) struct Won {
    pub(crate) claim: Arc<Claim>,
    pub(crate) started: Instant,
    pub(crate) valid_until: Instant,
    pub(crate) fencing: Option<u64>,
    pub(crate) round: Arc<AcquireRound>,
}

/// A lost attempt, with its releases on their way.
pub(crate) struct Missed {
    /// None when its time was over before that was certain.
    pub(crate) failure: Option<Failure>,
    /// What it proves to who waits.
    pub(crate) finding: Option<Finding>,
    pub(crate) round: Arc<AcquireRound>,
    pub(crate) undo: Undoing,
}

pub(crate) type AcquireRound = Gather<AcquireBoard>;

impl Coordinator {
    pub(crate) fn new(
        nodes: Vec<Arc<dyn Node>>,
        runtime: Arc<dyn Runtime>,
        drift: Drift,
        prefix: &str,
        fencing: bool,
        patience: Patience,
    ) -> Self {
        let quorum = Quorum::of(nodes.len());
        let nodes = nodes.into();
        let prefix = prefix.into();
        Self {
            nodes,
            quorum,
            runtime,
            drift,
            prefix,
            fencing,
            patience,
            met: AtomicBool::new(false),
            offset: AtomicI64::new(0),
        }
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.iter().map(|node| node.name())
    }

    pub(crate) fn nodes(&self) -> &[Arc<dyn Node>] {
        &self.nodes
    }

    pub(crate) fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// The lock key of a resource.
    pub(crate) fn key(&self, resource: &[u8]) -> Arc<[u8]> {
        [self.prefix.as_bytes(), resource].concat().into()
    }

    /// A claim on a lock key of this coordinator's prefix.
    pub(crate) fn claim(&self, key: &Arc<[u8]>, token: Token) -> Claim {
        Claim::on(key.clone(), self.prefix.len(), token, self.fencing)
    }

    /// When each node must have answered what it is asked now.
    pub(crate) fn answered_by(&self) -> Instant {
        let Patience { answer, connect } = self.patience;
        if self.met.load(Ordering::Relaxed) {
            self.now() + answer
        } else {
            self.now() + answer + connect
        }
    }

    /// When whoever depends on an answer to what is asked now stops waiting: also for a node that
    /// breaks its contract.
    pub(crate) fn given_up_by(&self) -> Instant {
        self.answered_by() + BACKSTOP
    }

    /// One attempt: one round of acquires, and confirmations where the counters differ. It ends
    /// at `until`, with what is known by then; and when nothing can be won any more.
    ///
    /// Cancel safety: dropped at any point, everything that may have been granted is released in
    /// the background, behind its own acquire.
    pub(crate) async fn attempt(
        &self,
        key: &Arc<[u8]>,
        ttl: Duration,
        order: Order,
        until: Instant,
    ) -> Result<Won, Missed> {
        let mut bytes = [0; 16];
        self.runtime.random(&mut bytes);
        let token = Token::from_bytes(bytes);
        let claim = self.claim(key, token).with_order(order);
        let claim = Arc::new(claim);
        let wall = self.runtime.wall_micros();
        let offset = ClockOffset::from_micros(self.offset.load(Ordering::Relaxed));
        let proposal = offset.proposal(wall);

        // The lease starts here, before the first byte leaves.
        let started = self.now();
        let round = Gather::new(
            self.runtime.clone(),
            AcquireBoard::open(self.quorum, started),
        );
        let mut cleanup = Cleanup {
            coordinator: self,
            round: round.clone(),
            claim: claim.clone(),
            armed: true,
        };
        self.ask_all(&round, Phase::Acquire, || Request::Acquire {
            claim: claim.clone(),
            ttl,
            proposal,
        });

        let most = valid_until(started, ttl, self.drift);
        let mut limit = Limit::new(&*self.runtime, until.min(most));
        let verdict = limit.wait(round.until(|board| board.verdict())).await;
        self.met.store(true, Ordering::Relaxed);
        let failure = if verdict == Some(Verdict::Won) {
            let agreed = limit.wait(self.agree(&round, &claim, offset, wall)).await;
            match agreed.unwrap_or(Err(Failure::Late)) {
                // Read after the last round: what has passed is gone.
                Ok(fencing) if self.now() < most => {
                    cleanup.armed = false;
                    metrics::round(None);
                    return Ok(Won {
                        claim,
                        started,
                        valid_until: most,
                        fencing,
                        round,
                    });
                }
                Ok(_) => Some(Failure::Late),
                Err(failure) => Some(failure),
            }
        } else {
            None
        };
        let undo = cleanup.run();
        let (failure, finding) = match failure {
            Some(Failure::Late) => (failure, Some(Finding::Late)),
            Some(Failure::Outage) => (failure, Some(Finding::Outage)),
            Some(Failure::Contention) => (failure, Some(Finding::Held)),
            None => {
                // The verdict may be certain, its reason may need another answer: each node
                // answers within its own timeout.
                let certain = round.until(|board| board.round.reason());
                if limit.wait(certain).await.is_none() {
                    // No clock is read under the board's lock: answers wait for that.
                    let now = self.now();
                    round.board().give_up(now, self.patience.answer);
                }
                let board = round.board();
                let reason = board.round.reason();
                (reason.map(Failure::from), board.round.finding())
            }
        };
        if failure.is_some() {
            metrics::round(failure);
        }
        Err(Missed {
            failure,
            finding,
            round,
            undo,
        })
    }

    /// Settles the fencing token of a won round, by a second round where the counters differ.
    async fn agree(
        &self,
        round: &AcquireRound,
        claim: &Arc<Claim>,
        offset: ClockOffset,
        wall: u64,
    ) -> Result<Option<u64>, Failure> {
        if !claim.fenced() {
            return Ok(None);
        }
        let agreement = round.board().round.agreement();
        let mut token = match agreement {
            Agreement::Agreed(token) => {
                self.learn(offset, wall, token);
                return Ok(Some(token));
            }
            Agreement::WriteBack(largest) => largest,
        };
        self.learn(offset, wall, token);
        metrics::confirmation();
        for _ in 0..CONFIRM_ROUNDS {
            // A board of its own for each number: confirmations of another are forgotten.
            let confirm = Gather::new(self.runtime.clone(), ConfirmBoard::open(self.quorum));
            self.ask_all(&confirm, Phase::Confirm, || Request::Confirm {
                claim: claim.clone(),
                token,
            });
            let (verdict, reason, above) = confirm.until(ConfirmBoard::decided).await;
            if verdict == Verdict::Won {
                tracing::debug!(token, "fencing token confirmed by a second round");
                return Ok(Some(token));
            }
            match above {
                Some(above) => token = above.max(token),
                None if reason == Some(Reason::Outage) => return Err(Failure::Outage),
                None => return Err(Failure::Contention),
            }
        }
        Err(Failure::Contention)
    }

    fn learn(&self, offset: ClockOffset, wall: u64, granted: u64) {
        let learned = offset.learn(wall, granted);
        if learned != offset {
            self.offset.store(learned.as_micros(), Ordering::Relaxed);
        }
    }

    /// Queues one request at every node before anything is awaited.
    pub(crate) fn ask_all<B: Board>(
        &self,
        sink: &Arc<Gather<B>>,
        phase: Phase,
        request: impl Fn() -> Request,
    ) {
        for (index, node) in self.nodes.iter().enumerate() {
            let reply = Reply::new(sink.clone() as Arc<dyn ReplySink>, index, phase);
            node.send(request(), reply.counted(node.name()));
        }
    }

    /// Deletes the key of `claim` on every master: with an answer to wait for.
    pub(crate) fn release(&self, claim: &Arc<Claim>) -> Arc<Gather<ReleaseBoard>> {
        claim.withdraw();
        let board = ReleaseBoard::open(self.quorum, self.quorum.nodes(), self.now());
        let gather = Gather::new(self.runtime.clone(), board);
        self.ask_all(&gather, Phase::Release, || Request::Release {
            claim: claim.clone(),
            leave: true,
        });
        gather
    }

    /// The same in the background.
    pub(crate) fn release_unheard(&self, claim: &Arc<Claim>) {
        claim.withdraw();
        for node in &self.nodes {
            node.send(
                Request::Release {
                    claim: claim.clone(),
                    leave: true,
                },
                Reply::ignored(),
            );
        }
    }

    /// Gives up a place in line on every master.
    pub(crate) fn leave(&self, claim: &Arc<Claim>) -> Undoing {
        let board = ReleaseBoard::open(self.quorum, self.quorum.nodes(), self.now());
        let gather = Gather::new(self.runtime.clone(), board);
        self.ask_all(&gather, Phase::Release, || Request::Release {
            claim: claim.clone(),
            leave: true,
        });
        Undoing(gather)
    }

    /// Reads or breaks a lock on every master and waits for all of them.
    pub(crate) async fn look(&self, request: Request) -> Vec<(Result<KeyState, Fault>, Duration)> {
        let started = self.now();
        let board = LookBoard {
            answers: vec![None; self.nodes.len()],
            started,
        };
        let gather = Gather::new(self.runtime.clone(), board);
        self.ask_all(&gather, Phase::Look, || request.clone());
        // Twice as long as any of them may take, for a node that never answers.
        let most = self.answered_by() + self.patience.answer;
        let mut limit = Limit::new(&*self.runtime, most);
        match limit.wait(gather.until(LookBoard::complete)).await {
            Some(answers) => answers,
            None => {
                let now = self.now();
                gather.board().cut_off(now)
            }
        }
    }
}

/// Undoes an attempt that was not won, also when its future is dropped.
struct Cleanup<'a> {
    coordinator: &'a Coordinator,
    round: Arc<AcquireRound>,
    claim: Arc<Claim>,
    armed: bool,
}

impl Cleanup<'_> {
    fn run(&mut self) -> Undoing {
        self.armed = false;
        // First of all: from here on no node sends anything but releases for this claim.
        self.claim.withdraw();
        let coordinator = self.coordinator;
        let undo: Vec<usize> = {
            let board = self.round.board();
            (0..coordinator.nodes.len())
                .filter(|&node| board.round.must_undo(node))
                .collect()
        };
        let board = ReleaseBoard::open(coordinator.quorum, undo.len(), coordinator.now());
        let gather = Gather::new(coordinator.runtime.clone(), board);
        for node in undo {
            let reply = Reply::new(gather.clone(), node, Phase::Release);
            coordinator.nodes[node].send(
                // The place in line is kept: only the attempt was lost.
                Request::Release {
                    claim: self.claim.clone(),
                    leave: false,
                },
                reply,
            );
        }
        Undoing(gather)
    }
}

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        if self.armed {
            let _in_the_background = self.run();
        }
    }
}

/// Releases under way. They go on when this is dropped.
pub(crate) struct Undoing(Arc<Gather<ReleaseBoard>>);

impl Undoing {
    /// Waits until every node has acknowledged or failed: the next attempt of the same waiter
    /// must not meet its own remains, and three waiters must not chase each other for ever.
    pub(crate) fn done(&self) -> impl Future<Output = ()> + Send + use<> {
        let gather = self.0.clone();
        async move { gather.until(|board| board.complete().then_some(())).await }
    }
}

/// The votes of an acquire, and what each node said for the report.
pub(crate) struct AcquireBoard {
    pub(crate) round: Round,
    quorum: Quorum,
    slots: Slots,
    /// The lock that was won, if it is: it has the slots, and what comes later is passed on to it.
    heir: Option<Weak<dyn Heir>>,
    started: Instant,
    decided: bool,
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
    /// When each node may be free, as it said.
    free_in: Vec<Option<Duration>>,
}

impl AcquireBoard {
    pub(crate) fn open(quorum: Quorum, started: Instant) -> Self {
        Self {
            round: Round::open(quorum),
            quorum,
            slots: Slots::of(quorum.nodes()),
            heir: None,
            started,
            refusals: None,
            decided: false,
        }
    }

    pub(crate) fn sight(&self) -> Option<&Refusals> {
        self.refusals.as_deref()
    }

    /// The longest that any refusing node will keep the holder's key.
    pub(crate) fn ttl_left(&self) -> Option<Duration> {
        self.sight()?.free_in.iter().flatten().max().copied()
    }

    /// The nodes that granted, as bits.
    pub(crate) fn free(&self) -> u64 {
        self.round.granted().fold(0, |bits, node| bits | 1 << node)
    }

    /// When a majority may have become free: the q-th soonest of the nodes that answered.
    pub(crate) fn free_in(&self) -> Option<Duration> {
        let granted = self.round.granted().map(|_| Duration::ZERO);
        let refused = self.sight().into_iter().flat_map(|sight| &sight.free_in);
        let mut times: Vec<_> = granted.chain(refused.flatten().copied()).collect();
        times.sort_unstable();
        times.get(self.quorum.size() - 1).copied()
    }

    fn refused(&mut self, ttl_left: Option<Duration>, line: Option<Box<Line>>) {
        let refusals = self.refusals.get_or_insert_default();
        refusals.free_in.push(ttl_left);
        if let Some(line) = line {
            refusals.ticket = refusals.ticket.max(line.ticket);
            refusals.ahead = refusals.ahead.max(Some(line.ahead));
            refusals.holder = refusals.holder.take().or(line.holder);
        }
    }

    /// The time of the round is over. Who had as long as a node may take and said nothing has
    /// failed; who had less has not been heard.
    fn give_up(&mut self, now: Instant, patience: Duration) {
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

    fn verdict(&self) -> Option<Verdict> {
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
    /// does not keep its round alive. The board's lock is always taken before the lock's.
    pub(crate) fn bequeath(&mut self, heir: &Arc<impl Heir>) {
        heir.inherit(std::mem::take(&mut self.slots));
        let heir: Weak<_> = Arc::downgrade(heir);
        self.heir = Some(heir);
    }

    fn note(&mut self, from: From, answer: &Result<Answer, Fault>, late: bool) {
        let (node, now) = (from.node, from.now);
        match self.heir.as_ref().and_then(Weak::upgrade) {
            Some(heir) => heir.note(node, answer, self.started, now, late),
            None => self.slots.note(node, answer, self.started, now, late),
        }
    }
}

impl Board for AcquireBoard {
    fn count(&mut self, from: From, answer: Result<Answer, Fault>) -> bool {
        self.note(from, &answer, self.decided);
        let vote = match answer {
            Ok(Answer::Granted { counter }) => Vote::Granted(counter),
            Ok(Answer::Refused { ttl_left, line }) => {
                self.refused(ttl_left, line);
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
        fell || (verdict == Verdict::Lost && self.round.reason().is_some())
    }

    fn late(&mut self, from: From, answer: &Result<Answer, Fault>) {
        self.note(from, answer, true);
    }
}

/// The votes on one fencing number.
struct ConfirmBoard {
    tally: Tally,
    /// The largest counter seen above the number.
    above: Option<u64>,
}

impl ConfirmBoard {
    fn open(quorum: Quorum) -> Self {
        Self {
            tally: Tally::new(quorum),
            above: None,
        }
    }

    fn decided(&mut self) -> Option<(Verdict, Option<Reason>, Option<u64>)> {
        let verdict = self.tally.verdict();
        (verdict != Verdict::Pending).then(|| (verdict, self.tally.reason(), self.above))
    }
}

impl Board for ConfirmBoard {
    fn count(&mut self, _: From, answer: Result<Answer, Fault>) -> bool {
        match answer {
            Ok(Answer::Confirmed) => self.tally.yes(),
            Ok(Answer::CounterAbove(counter)) => {
                self.above = self.above.max(Some(counter));
                self.tally.no();
            }
            Ok(_) => self.tally.no(),
            Err(_) => self.tally.fault(),
        }
        self.tally.verdict() != Verdict::Pending
    }
}

/// The answers to a release.
pub(crate) struct ReleaseBoard {
    quorum: Quorum,
    asked: usize,
    started: Instant,
    slots: Slots,
    deleted: usize,
    gone: usize,
    faults: usize,
}

impl ReleaseBoard {
    fn open(quorum: Quorum, asked: usize, started: Instant) -> Self {
        Self {
            quorum,
            asked,
            started,
            slots: Slots::of(quorum.nodes()),
            deleted: 0,
            gone: 0,
            faults: 0,
        }
    }

    /// Deleted, already gone, and failed.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.deleted, self.gone, self.faults)
    }

    fn answers(&self) -> usize {
        self.deleted + self.gone + self.faults
    }

    fn complete(&self) -> bool {
        self.answers() >= self.asked
    }

    /// A majority has let go, so the next holder can have it; or nobody else will answer.
    pub(crate) fn settled(&self) -> bool {
        self.deleted + self.gone >= self.quorum.size() || self.complete()
    }

    pub(crate) fn reports<'a>(&self, names: impl Iterator<Item = &'a NodeName>) -> Vec<NodeReport> {
        self.slots.reports(names, Phase::Release)
    }
}

impl Board for ReleaseBoard {
    fn count(&mut self, from: From, answer: Result<Answer, Fault>) -> bool {
        let late = self.settled();
        self.slots
            .note(from.node, &answer, self.started, from.now, late);
        match answer {
            Ok(Answer::Released(true)) => self.deleted += 1,
            Ok(_) => self.gone += 1,
            Err(_) => self.faults += 1,
        }
        (self.settled() && !late) || self.complete()
    }
}

/// No answer within about this time.
fn timeout(waited: Duration) -> Fault {
    Fault::Timeout(Duration::from_millis(waited.as_millis() as u64))
}

struct LookBoard {
    answers: Vec<Option<(Result<KeyState, Fault>, Duration)>>,
    started: Instant,
}

impl LookBoard {
    fn complete(&mut self) -> Option<Vec<(Result<KeyState, Fault>, Duration)>> {
        self.answers.iter().cloned().collect()
    }

    /// What there is, with a timeout for everybody else.
    fn cut_off(&self, now: Instant) -> Vec<(Result<KeyState, Fault>, Duration)> {
        let waited = now.saturating_since(self.started);
        let silent = || (Err(timeout(waited)), waited);
        let answers = self.answers.iter().cloned();
        answers
            .map(|answer| answer.unwrap_or_else(silent))
            .collect()
    }
}

impl Board for LookBoard {
    fn count(&mut self, from: From, answer: Result<Answer, Fault>) -> bool {
        let state = match answer {
            Ok(Answer::State(state)) => Ok(state),
            Ok(_) => Err(Fault::Server("an answer of another kind".into())),
            Err(fault) => Err(fault),
        };
        if let Some(slot) = self.answers.get_mut(from.node) {
            *slot = Some((state, from.now.saturating_since(self.started)));
        }
        self.answers.iter().all(Option::is_some)
    }
}
