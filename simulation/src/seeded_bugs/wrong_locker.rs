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

use super::votes::{Answers, Votes};
use crate::flaw::Flaw;
use crate::locker::{AcquireArgs, AcquireFailure, Hold, Locker, key_of_place};
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
    has_acquired: AtomicBool,
}

/// Returns three counts: the answers that `accepts` accepts, the other answers, and the errors.
fn count_answers(answers: &Answers, accepts: impl Fn(&Answer) -> bool) -> (usize, usize, usize) {
    let mut counts = (0, 0, 0);
    for answer in answers.iter().flatten() {
        match answer {
            Ok(answer) if accepts(answer) => counts.0 += 1,
            Ok(_) => counts.1 += 1,
            Err(_) => counts.2 += 1,
        }
    }
    counts
}

fn is_granted(answer: &Answer) -> bool {
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
        let votes = Votes::empty(self.nodes.len());
        let only_majority = self.flaw == Flaw::ReleasesMajority && phase == Phase::Release;
        for (index, node) in self.nodes.iter().enumerate() {
            if only_majority && index > self.nodes.len() / 2 {
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

    /// Whether a majority of the masters has given an answer that `accepts` accepts; `None` while this is undecided.
    fn verdict(&self, answers: &Answers, accepts: impl Fn(&Answer) -> bool) -> Option<bool> {
        let node_count = self.nodes.len();
        let (accepted, refusals, faults) = count_answers(answers, accepts);
        let quorum = match self.flaw {
            Flaw::HalfQuorum => (node_count / 2).max(1),
            Flaw::ReachableQuorum => {
                if accepted + refusals + faults < node_count {
                    return None;
                }
                usize::midpoint(accepted, refusals) + 1
            }
            _ => node_count / 2 + 1,
        };
        if accepted >= quorum {
            return Some(true);
        }
        (node_count - refusals - faults < quorum).then_some(false)
    }

    async fn release_and_wait(&self, claim: &Arc<Claim>) {
        claim.withdraw();
        let votes = self.ask(Phase::Release, || Request::Release {
            claim: claim.clone(),
            leave: false,
        });
        votes
            .wait_until(|answers| answers.iter().all(Option::is_some).then_some(()))
            .await;
    }

    async fn attempt(
        &self,
        args: &AcquireArgs,
        value: [u8; 16],
    ) -> Result<(Arc<Claim>, Option<u64>, Instant), AcquireFailure> {
        let started_at = self.now();
        let has_fencing = self.settings.fencing;
        let token = Token::from_bytes(value);
        let claim = Arc::new(Claim::new(
            "",
            key_of_place(args.resource).as_bytes(),
            token,
            has_fencing,
        ));
        let proposal = self.process.wall_micros();
        let mut release_on_drop = ReleaseOnDrop {
            core: self,
            claim: Some(claim.clone()),
        };
        let votes = self.ask(Phase::Acquire, || Request::Acquire {
            claim: claim.clone(),
            ttl: self.ttl(),
            proposal,
        });
        let sent_at = self.now();
        let has_quorum = votes
            .wait_until(|answers| self.verdict(answers, is_granted))
            .await;
        let fencing_token = if has_quorum {
            self.agree_on_token(&claim, &votes).await
        } else {
            None
        };
        let counted_from = match self.flaw {
            Flaw::ValidityAfterReplies => self.now(),
            Flaw::ClockAfterSend => sent_at,
            _ => started_at,
        };
        let valid_until = counted_from + self.ttl().saturating_sub(self.drift(self.ttl()));
        release_on_drop.claim = None;
        match fencing_token {
            Some(token) if self.now() < valid_until => Ok((claim, token, valid_until)),
            _ => {
                let (accepted, refusals, faults) = count_answers(&votes.answers(), is_granted);
                self.release_and_wait(&claim).await;
                Err(if has_quorum && fencing_token.is_some() {
                    AcquireFailure::TooLate
                } else if faults > accepted + refusals {
                    AcquireFailure::NoQuorum
                } else {
                    AcquireFailure::HeldByOther
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
    async fn agree_on_token(&self, claim: &Arc<Claim>, votes: &Votes) -> Option<Option<u64>> {
        if !claim.fenced() {
            return Some(None);
        }
        let counters: Vec<u64> = {
            let answers = votes.answers();
            let granted_counter = |answer: &Option<Result<Answer, Fault>>| match answer {
                Some(Ok(Answer::Granted { counter })) => *counter,
                _ => None,
            };
            answers.iter().filter_map(granted_counter).collect()
        };
        let largest = counters.iter().copied().max()?;
        let grants_of = |counter: u64| {
            let granted = counters.iter();
            granted.filter(|&&other| other == counter).count()
        };
        if let Some(&agreed_counter) = counters
            .iter()
            .find(|&&counter| grants_of(counter) > self.nodes.len() / 2)
        {
            return Some(Some(agreed_counter));
        }
        if self.flaw == Flaw::LargestCounter {
            return Some(Some(largest));
        }
        let votes = self.ask(Phase::Confirm, || Request::Confirm {
            claim: claim.clone(),
            token: largest,
        });
        let confirmed = votes
            .wait_until(|answers| self.verdict(answers, |answer| *answer == Answer::Confirmed))
            .await;
        confirmed.then_some(Some(largest))
    }
}

/// Releases the keys that an acquire attempt may have locked, if the attempt's future is dropped.
struct ReleaseOnDrop<'a> {
    core: &'a Core,
    claim: Option<Arc<Claim>>,
}

impl Drop for ReleaseOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(claim) = self.claim.take() {
            release_without_waiting(self.core, &claim);
        }
    }
}

fn release_without_waiting(core: &Core, claim: &Arc<Claim>) {
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
            has_acquired: AtomicBool::new(false),
        }))
    }
}

impl Locker for WrongLocker {
    fn acquire(&self, args: AcquireArgs) -> BoxFuture<Result<Arc<dyn Hold>, AcquireFailure>> {
        let core = self.0.clone();
        Box::pin(async move {
            let started_at = core.now();
            let mut value = core.random();
            loop {
                match core.attempt(&args, value).await {
                    Ok((claim, fencing, until)) => {
                        let lease = Arc::new(Lease {
                            core: core.clone(),
                            claim,
                            fencing,
                            until: AtomicU64::new(until.as_nanos()),
                            released: AtomicBool::new(false),
                            is_taken: AtomicBool::new(false),
                            loss_waker: AtomicWaker::new(),
                        });
                        let only_first = core.flaw == Flaw::RenewsOnlyFirst;
                        let had_acquired = core.has_acquired.swap(true, Ordering::Relaxed);
                        if args.renew && !(only_first && had_acquired) {
                            core.process.spawn(Box::pin(renew(Arc::downgrade(&lease))));
                        }
                        return Ok(Arc::new(WrongHold(lease)) as Arc<dyn Hold>);
                    }
                    Err(failure) => {
                        let mut longest = args.wait.unwrap_or(Duration::MAX);
                        if core.flaw == Flaw::OverstaysWait {
                            longest = longest.saturating_mul(2);
                        }
                        if core.now().saturating_since(started_at) >= longest {
                            return Err(failure);
                        }
                    }
                }
                let random_byte = u64::from(core.random()[0]);
                let longest = core.settings.retry_most;
                let pause = Duration::from_nanos(longest / 2 + longest / 512 * random_byte);
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
    is_taken: AtomicBool,
    loss_waker: AtomicWaker,
}

impl Lease {
    fn is_over(&self) -> bool {
        self.is_taken.load(Ordering::Relaxed) || self.core.now() >= self.until()
    }

    fn until(&self) -> Instant {
        Instant::from_nanos(self.until.load(Ordering::Relaxed))
    }

    async fn extend(&self, ttl: Duration) {
        let started_at = self.core.now();
        if started_at >= self.until() || self.claim.is_withdrawn() {
            return;
        }
        let items: Arc<[ExtendItem]> = [ExtendItem::new(self.claim.clone(), ttl)].into();
        let votes = self.core.ask(Phase::Extend, || Request::Extend {
            items: items.clone(),
        });
        let is_kept = |answer: &Answer| match answer {
            Answer::Extended(results) => {
                matches!(results[..], [Extended::Kept | Extended::Restored])
            }
            _ => false,
        };
        let has_quorum = votes
            .wait_until(|answers| self.core.verdict(answers, is_kept))
            .await;
        let is_denied = |answer: &Answer| match answer {
            Answer::Extended(results) => matches!(results[..], [Extended::NotOurs]),
            _ => false,
        };
        let nodes = self.core.nodes.len();
        let (not_ours, ..) = count_answers(&votes.answers(), is_denied);
        if not_ours >= nodes - nodes / 2 && self.core.flaw != Flaw::LossAtDeadline {
            self.is_taken.store(true, Ordering::Relaxed);
            self.loss_waker.wake();
        }
        let is_in_time = self.core.now() < self.until() || self.core.flaw == Flaw::LateExtension;
        if has_quorum && is_in_time && !self.claim.is_withdrawn() {
            let counted_from = match self.core.flaw {
                Flaw::ExtensionAfterReplies => self.core.now(),
                _ => started_at,
            };
            let until = counted_from + ttl.saturating_sub(self.core.drift(ttl));
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
        let is_taken = self.0.is_taken.load(Ordering::Relaxed);
        (!is_taken).then(|| self.0.until())
    }

    fn lost(&self) -> BoxFuture<()> {
        let lease = self.0.clone();
        Box::pin(async move {
            while !lease.is_over() {
                let check_at = match lease.core.flaw {
                    Flaw::LossAtTick => lease.core.now() + lease.core.ttl() / 3,
                    _ => lease.until(),
                };
                let mut sleep = lease.core.process.sleep_until(check_at);
                std::future::poll_fn(|cx| {
                    lease.loss_waker.register(cx.waker());
                    if lease.is_taken.load(Ordering::Relaxed) {
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
            self.0.core.release_and_wait(&self.0.claim).await;
        })
    }

    fn downgrade(self: Arc<Self>) -> BoxFuture<Option<Arc<dyn Hold>>> {
        unreachable!("the small client does not support readers")
    }
}

impl Drop for WrongHold {
    fn drop(&mut self) {
        if !self.0.released.load(Ordering::Relaxed) {
            release_without_waiting(&self.0.core, &self.0.claim);
        }
    }
}
