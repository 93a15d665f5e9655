//! A small Redlock client. Each variant of this client except `Sound` has one flaw.
//!
//! The client sends its requests through the library's nodes, and makes all decisions itself:
//!
//! - It never waits in a queue.
//! - It retries without wake-ups.
//! - It has one renewal task for each lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::task::AtomicWaker;
use quorate::node::{
    Answer, Claim, ExtendItem, Extended, Fault, Node, Phase, Reply, Request, Token,
};
use quorate::runtime::{BoxFuture, Runtime};
use quorate::{Drift, Instant};

use super::Flaw;
use super::votes::{Answers, Votes};
use crate::locker::{Hold, Locker, Miss, Order, name};
use crate::process::Process;
use crate::scenario::Settings;

pub(crate) struct WrongLocker(Arc<Core>);

struct Core {
    flaw: Flaw,
    process: Arc<Process>,
    nodes: Vec<Arc<dyn Node>>,
    settings: Settings,
    /// Whether this client has already acquired a lock. With the flaw `RenewsOnlyFirst`, the client renews no further
    /// lock.
    renews: AtomicBool,
}

/// Returns three counts: the answers that `yes` accepts, the other answers, and the errors.
fn counts(answers: &Answers, yes: impl Fn(&Answer) -> bool) -> (usize, usize, usize) {
    let mut counts = (0, 0, 0);
    for answer in answers.iter().flatten() {
        match answer {
            Ok(answer) if yes(answer) => counts.0 += 1,
            Ok(_) => counts.1 += 1,
            Err(_) => counts.2 += 1,
        }
    }
    counts
}

fn granted(answer: &Answer) -> bool {
    matches!(answer, Answer::Granted { .. })
}

impl Core {
    fn now(&self) -> Instant {
        self.process.now()
    }

    fn ttl(&self) -> Duration {
        self.settings.ttl()
    }

    fn drift(&self, ttl: Duration) -> Duration {
        match self.flaw {
            Flaw::NoDrift => Duration::ZERO,
            Flaw::NoFixedDrift => ttl / 100,
            _ => Drift::default().of(ttl),
        }
    }

    fn ask(&self, phase: Phase, request: impl Fn() -> Request) -> Arc<Votes> {
        let votes = Votes::of(self.nodes.len());
        let some = self.flaw == Flaw::ReleasesMajority && phase == Phase::Release;
        for (index, node) in self.nodes.iter().enumerate() {
            if some && index > self.nodes.len() / 2 {
                votes.answers()[index] = Some(Err(Fault::Withdrawn));
                continue;
            }
            node.send(request(), Reply::new(votes.clone(), index, phase));
        }
        votes
    }

    fn random(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        self.process.random(&mut bytes);
        bytes
    }

    /// Whether a majority of the masters has given an answer that `yes` accepts; `None` while this is undecided.
    fn verdict(&self, answers: &Answers, yes: impl Fn(&Answer) -> bool) -> Option<bool> {
        let n = self.nodes.len();
        let (yes, no, faults) = counts(answers, yes);
        let quorum = match self.flaw {
            Flaw::HalfQuorum => (n / 2).max(1),
            Flaw::ReachableQuorum => {
                if yes + no + faults < n {
                    return None;
                }
                usize::midpoint(yes, no) + 1
            }
            _ => n / 2 + 1,
        };
        if yes >= quorum {
            return Some(true);
        }
        (n - no - faults < quorum).then_some(false)
    }

    async fn give_up(&self, claim: &Arc<Claim>) {
        claim.withdraw();
        let votes = self.ask(Phase::Release, || Request::Release {
            claim: claim.clone(),
            leave: false,
        });
        votes
            .until(|said| said.iter().all(Option::is_some).then_some(()))
            .await;
    }

    async fn attempt(
        &self,
        order: &Order,
        value: [u8; 16],
    ) -> Result<(Arc<Claim>, Option<u64>, Instant), Miss> {
        let started = self.now();
        let fenced = self.settings.fencing;
        let token = Token::from_bytes(value);
        let claim = Arc::new(Claim::new(
            "",
            name(order.resource).as_bytes(),
            token,
            fenced,
        ));
        let proposal = self.process.wall_micros();
        let mut undo = Undo {
            core: self,
            claim: Some(claim.clone()),
        };
        let votes = self.ask(Phase::Acquire, || Request::Acquire {
            claim: claim.clone(),
            ttl: self.ttl(),
            proposal,
        });
        let sent = self.now();
        let won = votes.until(|said| self.verdict(said, granted)).await;
        let token = if won {
            self.agree(&claim, &votes).await
        } else {
            None
        };
        let basis = match self.flaw {
            Flaw::ValidityAfterReplies => self.now(),
            Flaw::ClockAfterSend => sent,
            _ => started,
        };
        let valid_until = basis + self.ttl().saturating_sub(self.drift(self.ttl()));
        undo.claim = None;
        match token {
            Some(token) if self.now() < valid_until => Ok((claim, token, valid_until)),
            _ => {
                let (yes, no, faults) = counts(&votes.answers(), granted);
                self.give_up(&claim).await;
                Err(if won && token.is_some() {
                    Miss::TooLate
                } else if faults > yes + no {
                    Miss::NoQuorum
                } else {
                    Miss::HeldByOther
                })
            }
        }
    }

    /// Chooses the fencing token: the counter that a majority has granted. If no counter has a majority, chooses the
    /// largest counter and asks a majority to confirm it. Returns:
    ///
    /// - `Some(Some(token))` if a token was chosen;
    /// - `Some(None)` for a lock without a fencing token;
    /// - `None` if no master granted a counter, or if no majority confirmed the token.
    async fn agree(&self, claim: &Arc<Claim>, votes: &Votes) -> Option<Option<u64>> {
        if !claim.fenced() {
            return Some(None);
        }
        let counters: Vec<u64> = {
            let said = votes.answers();
            let counter = |answer: &Option<Result<Answer, Fault>>| match answer {
                Some(Ok(Answer::Granted { counter })) => *counter,
                _ => None,
            };
            said.iter().filter_map(counter).collect()
        };
        let largest = counters.iter().copied().max()?;
        let same = |v: u64| counters.iter().filter(|&&counter| counter == v).count();
        if let Some(&agreed) = counters.iter().find(|&&v| same(v) > self.nodes.len() / 2) {
            return Some(Some(agreed));
        }
        if self.flaw == Flaw::LargestCounter {
            return Some(Some(largest));
        }
        let votes = self.ask(Phase::Confirm, || Request::Confirm {
            claim: claim.clone(),
            token: largest,
        });
        let confirmed = votes
            .until(|said| self.verdict(said, |answer| *answer == Answer::Confirmed))
            .await;
        confirmed.then_some(Some(largest))
    }
}

/// Releases the keys that an acquire attempt may have locked, if the attempt's future is dropped.
struct Undo<'a> {
    core: &'a Core,
    claim: Option<Arc<Claim>>,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            release_unheard(self.core, &claim);
        }
    }
}

fn release_unheard(core: &Core, claim: &Arc<Claim>) {
    claim.withdraw();
    if core.flaw == Flaw::DropsWithoutRelease {
        return;
    }
    for node in &core.nodes {
        let claim = claim.clone();
        let leave = false;
        node.send(Request::Release { claim, leave }, Reply::ignored());
    }
}

impl WrongLocker {
    pub(crate) fn new(
        flaw: Flaw,
        process: Arc<Process>,
        nodes: Vec<Arc<dyn Node>>,
        settings: Settings,
    ) -> Self {
        Self(Arc::new(Core {
            flaw,
            process,
            nodes,
            settings,
            renews: AtomicBool::new(false),
        }))
    }
}

impl Locker for WrongLocker {
    fn acquire(&self, order: Order) -> BoxFuture<Result<Arc<dyn Hold>, Miss>> {
        let core = self.0.clone();
        Box::pin(async move {
            let began = core.now();
            let mut value = core.random();
            loop {
                match core.attempt(&order, value).await {
                    Ok((claim, fencing, until)) => {
                        let lease = Arc::new(Lease {
                            core: core.clone(),
                            claim,
                            fencing,
                            until: AtomicU64::new(until.as_nanos()),
                            released: AtomicBool::new(false),
                            taken: AtomicBool::new(false),
                            notified: AtomicWaker::new(),
                        });
                        let only_first = core.flaw == Flaw::RenewsOnlyFirst;
                        let renewed = core.renews.swap(true, Ordering::Relaxed);
                        if order.renew && !(only_first && renewed) {
                            core.process.spawn(Box::pin(renew(Arc::downgrade(&lease))));
                        }
                        return Ok(Arc::new(WrongHold(lease)) as Arc<dyn Hold>);
                    }
                    Err(miss) => {
                        let mut most = order.wait.unwrap_or(Duration::MAX);
                        if core.flaw == Flaw::OverstaysWait {
                            most = most.saturating_mul(2);
                        }
                        if core.now().saturating_since(began) >= most {
                            return Err(miss);
                        }
                    }
                }
                let drawn = u64::from(core.random()[0]);
                let most = core.settings.retry_most;
                let pause = Duration::from_nanos(most / 2 + most / 512 * drawn);
                core.process.sleep_until(core.now() + pause).await;
                if core.flaw != Flaw::ReusedValue {
                    value = core.random();
                }
            }
        })
    }
}

struct Lease {
    core: Arc<Core>,
    claim: Arc<Claim>,
    fencing: Option<u64>,
    until: AtomicU64,
    released: AtomicBool,
    /// Whether a majority of the masters has replied that this client does not hold the lock.
    taken: AtomicBool,
    notified: AtomicWaker,
}

impl Lease {
    fn is_over(&self) -> bool {
        self.taken.load(Ordering::Relaxed) || self.core.now() >= self.until()
    }

    fn until(&self) -> Instant {
        Instant::from_nanos(self.until.load(Ordering::Relaxed))
    }

    async fn extend(&self, ttl: Duration) {
        let started = self.core.now();
        if started >= self.until() || self.claim.is_withdrawn() {
            return;
        }
        let items: Arc<[ExtendItem]> = [ExtendItem {
            claim: self.claim.clone(),
            ttl,
            note: false,
        }]
        .into();
        let votes = self.core.ask(Phase::Extend, || Request::Extend {
            items: items.clone(),
        });
        let kept = |answer: &Answer| match answer {
            Answer::Extended(said) => matches!(said[..], [Extended::Kept | Extended::Restored]),
            _ => false,
        };
        let won = votes.until(|said| self.core.verdict(said, kept)).await;
        let taken = |answer: &Answer| match answer {
            Answer::Extended(said) => matches!(said[..], [Extended::NotOurs]),
            _ => false,
        };
        let nodes = self.core.nodes.len();
        let (not_ours, ..) = counts(&votes.answers(), taken);
        if not_ours >= nodes - nodes / 2 && self.core.flaw != Flaw::LossAtDeadline {
            self.taken.store(true, Ordering::Relaxed);
            self.notified.wake();
        }
        let in_time = self.core.now() < self.until() || self.core.flaw == Flaw::LateExtension;
        if won && in_time && !self.claim.is_withdrawn() {
            let basis = match self.core.flaw {
                Flaw::ExtensionAfterReplies => self.core.now(),
                _ => started,
            };
            let until = basis + ttl.saturating_sub(self.core.drift(ttl));
            self.until.fetch_max(until.as_nanos(), Ordering::Relaxed);
        }
    }
}

async fn renew(lease: std::sync::Weak<Lease>) {
    loop {
        let Some(sleep) = lease.upgrade().map(|lease| {
            let core = &lease.core;
            core.process.sleep_until(core.now() + core.ttl() / 3)
        }) else {
            return;
        };
        sleep.await;
        let Some(lease) = lease.upgrade() else { return };
        if lease.claim.is_withdrawn() {
            return;
        }
        lease.extend(lease.core.ttl()).await;
    }
}

/// The guard of a held lock. Dropping the guard releases the lock.
struct WrongHold(Arc<Lease>);

impl Hold for WrongHold {
    fn value(&self) -> Token {
        self.0.claim.token()
    }

    fn fencing(&self) -> Option<u64> {
        self.0.fencing
    }

    fn end_of_validity(&self) -> Option<Instant> {
        let taken = self.0.taken.load(Ordering::Relaxed);
        (!taken).then(|| self.0.until())
    }

    fn lost(&self) -> BoxFuture<()> {
        let lease = self.0.clone();
        Box::pin(async move {
            while !lease.is_over() {
                let look = match lease.core.flaw {
                    Flaw::LossAtTick => lease.core.now() + lease.core.ttl() / 3,
                    _ => lease.until(),
                };
                let mut sleep = lease.core.process.sleep_until(look);
                std::future::poll_fn(|cx| {
                    lease.notified.register(cx.waker());
                    if lease.taken.load(Ordering::Relaxed) {
                        return Poll::Ready(());
                    }
                    sleep.as_mut().poll(cx)
                })
                .await;
            }
        })
    }

    fn extend(self: Arc<Self>, ttl: Duration) -> BoxFuture<()> {
        Box::pin(async move { self.0.extend(ttl).await })
    }

    fn release(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move {
            self.0.released.store(true, Ordering::Relaxed);
            self.0.core.give_up(&self.0.claim).await;
        })
    }

    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>> {
        unreachable!("the small client does not support readers")
    }
}

impl Drop for WrongHold {
    fn drop(&mut self) {
        if !self.0.released.load(Ordering::Relaxed) {
            release_unheard(&self.0.core, &self.0.claim);
        }
    }
}
