//! Tests of whole attempts with masters that answer at once.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::acquire::{AcquireAnswers, AcquireRound};
use super::coordinator::{Coordinator, Members, Patience};
use super::fan_out::{Collect, FanOut, Source};
use super::lock_target::LockTarget;
use crate::node::{Answer, Claim, Fairness, Fault, Node, NodeName, Reply, Request, Token};
use crate::outcome::Failure;
use crate::protocol::finding::Finding;
use crate::protocol::instant::Instant;
use crate::protocol::validity::Drift;
use crate::report::NodeOutcome;
use crate::retry::Retry;
use crate::runtime::manual::{ManualClock, RANDOM_BYTE};
use crate::runtime::{BoxFuture, Runtime};

const TTL: Duration = Duration::from_secs(10);

/// The time limit for an answer.
const ANSWER_TIME: Duration = Duration::from_millis(50);

/// How long the votes of a doubted master do not count.
const DOUBTED_TIME: Duration = Duration::from_secs(3);

/// A master that grants every lock with the same fencing number.
struct GrantingNode {
    name: NodeName,
    number: u64,
    doubted_for: Option<Duration>,
    /// How much time passes while the client asks whether the master's votes count, and while the master lists a page.
    delay: Duration,
    clock: ManualClock,
    /// The answer to a request that confirms a fencing number.
    confirmed: Result<Answer, Fault>,
    /// The time and the proposed number of each acquire request.
    acquires: Arc<Mutex<Vec<(Duration, u64)>>>,
    /// The fencing number of each request that confirms one.
    confirms: Arc<Mutex<Vec<u64>>>,
}

impl Node for GrantingNode {
    fn name(&self) -> &NodeName {
        &self.name
    }

    fn send(&self, request: Request, reply: Reply) {
        let counter = Some(self.number);
        reply.answer(match request {
            Request::Acquire { proposal, .. } => {
                let passed = self.clock.now().saturating_since(Instant::from_nanos(0));
                let mut acquires = self.acquires.lock().expect("no test panics here");
                acquires.push((passed, proposal));
                Ok(Answer::Granted { counter })
            }
            Request::Confirm { token, .. } => {
                let mut confirms = self.confirms.lock().expect("no test panics here");
                confirms.push(token);
                self.confirmed.clone()
            }
            Request::Release { .. } => Ok(Answer::Released(true)),
            // Each page has one key, and there is always another page.
            Request::List { page } => {
                self.clock.advance_by(self.delay);
                Ok(Answer::Keys {
                    cursor: page.cursor + 1,
                    keys: vec![page.cursor.to_le_bytes().to_vec()],
                })
            }
            _ => Err(Fault::OutOfMemory),
        });
    }

    fn doubted_for(&self) -> Option<Duration> {
        self.clock.advance_by(self.delay);
        self.doubted_for
    }

    fn idle(&self) -> BoxFuture<()> {
        Box::pin(async {})
    }
}

/// Three masters that grant every lock with this number. `change` changes each master before it is used.
fn masters(number: u64, change: impl Fn(usize, &mut GrantingNode)) -> Coordinator {
    let clock = ManualClock::advanced_by_sleeps();
    let node = |index: usize| {
        let mut node = GrantingNode {
            name: NodeName::new(format!("n{index}")),
            number,
            doubted_for: None,
            delay: Duration::ZERO,
            clock: clock.clone(),
            confirmed: Ok(Answer::Confirmed),
            acquires: Arc::default(),
            confirms: Arc::default(),
        };
        change(index, &mut node);
        Arc::new(node) as Arc<dyn Node>
    };
    let nodes = (0..3).map(node).collect();
    let patience = Patience {
        answer: ANSWER_TIME,
        connect: Duration::ZERO,
    };
    let drift = Drift::default();
    // The pauses are longer than the time limit for an answer, which also limits them.
    let retry = Retry::new(TTL, TTL);
    let runtime = Arc::new(clock.clone());
    Coordinator::new(
        Members::new(nodes),
        runtime,
        drift,
        "",
        true,
        patience,
        retry,
    )
}

/// Makes one attempt to acquire a lock. Returns its fencing token, or why it was lost and the round.
async fn attempt(
    coordinator: &Coordinator,
) -> Result<Option<u64>, (Option<Failure>, Option<Finding>, Arc<AcquireRound>)> {
    let target = LockTarget::exclusive(b"a"[..].into());
    let until = coordinator.now() + 2 * TTL;
    let attempt = coordinator.attempt(&target, TTL, Fairness::Unordered, until);
    match attempt.await {
        Ok(won) => Ok(won.fencing),
        Err(lost) => Err((lost.failure, lost.finding, lost.round)),
    }
}

#[tokio::test]
async fn lock_is_not_won_if_a_granting_master_lost_its_generation_marker() {
    let coordinator = masters(7, |index, node| {
        node.doubted_for = (index == 1).then_some(DOUBTED_TIME);
    });
    let Err((failure, finding, round)) = attempt(&coordinator).await else {
        panic!("the attempt must be lost");
    };
    assert_eq!(failure, Some(Failure::Outage));
    assert_eq!(finding, Some(Finding::Outage));
    let reports = round.answers().reports(coordinator.names());
    let doubted = NodeOutcome::Fault(Fault::Quarantined(DOUBTED_TIME));
    let outcomes: Vec<_> = reports.iter().map(|report| &report.outcome).collect();
    assert_eq!(outcomes, [&NodeOutcome::Yes, &doubted, &NodeOutcome::Yes]);
    assert!(
        !reports[1].late,
        "the master answered before the lock was decided"
    );
}

#[tokio::test]
async fn lock_is_won_only_if_its_validity_has_not_ended_meanwhile() {
    for (delay, is_won) in [(Duration::ZERO, true), (TTL, false)] {
        let coordinator = masters(7, |index, node| {
            if index == 1 {
                node.delay = delay;
            }
        });
        match attempt(&coordinator).await {
            Ok(fencing) => assert!(is_won && fencing == Some(7), "{delay:?}: {fencing:?}"),
            Err((failure, finding, _)) => {
                assert!(!is_won, "{delay:?}: {failure:?}");
                assert_eq!(failure, Some(Failure::Late));
                assert_eq!(finding, Some(Finding::Late));
            }
        }
    }
}

#[tokio::test]
async fn refused_confirmation_of_a_fencing_token_is_no_outage() {
    for (confirmed, result) in [
        (Ok(Answer::Confirmed), Ok(Some(9))),
        (
            Ok(Answer::NotOurs),
            Err((Some(Failure::Contention), Some(Finding::Held))),
        ),
        (
            Err(Fault::OutOfMemory),
            Err((Some(Failure::Outage), Some(Finding::Outage))),
        ),
    ] {
        let coordinator = masters(7, |index, node| {
            node.number += index as u64;
            node.confirmed = confirmed.clone();
        });
        let attempt = attempt(&coordinator).await;
        let attempt = attempt.map_err(|(failure, finding, _)| (failure, finding));
        assert_eq!(attempt, result, "{confirmed:?}");
    }
}

#[tokio::test]
async fn token_to_confirm_grows_to_the_counters_of_the_masters_and_never_shrinks() {
    for (counter, tokens) in [(3, [9, 9, 9]), (12, [9, 12, 12])] {
        let confirms = Arc::<Mutex<Vec<_>>>::default();
        let coordinator = masters(7, |index, node| {
            node.number += index as u64;
            node.confirmed = Ok(Answer::CounterAbove(counter));
            node.confirms = confirms.clone();
        });
        let failure = attempt(&coordinator).await.err().map(|lost| lost.0);
        assert_eq!(failure, Some(Some(Failure::Contention)), "{counter}");
        let confirms = confirms.lock().expect("no test panics here").clone();
        assert_eq!(confirms, tokens.map(|token| [token; 3]).concat());
    }
}

#[tokio::test]
async fn token_that_a_majority_confirms_is_used_although_a_master_has_other_holds_of_the_owner() {
    let coordinator = masters(7, |index, node| {
        node.number += index as u64;
        if index == 0 {
            node.confirmed = Ok(Answer::NotAlone);
        }
    });
    let fencing = attempt(&coordinator).await.map_err(|lost| lost.0);
    assert_eq!(fencing, Ok(Some(9)));
}

#[tokio::test]
async fn clocks_of_the_masters_are_learned_also_if_their_counters_differ() {
    for step in [0, 1] {
        let coordinator = masters(600_000, |index, node| node.number += step * index as u64);
        assert!(attempt(&coordinator).await.is_ok(), "{step}");
        // The masters have raised the proposal 0. The next proposal is 5 ms above the largest number.
        let learned = coordinator.clock_offset.load(Ordering::Relaxed);
        assert_eq!(learned.unsigned_abs(), 605_000 + 2 * step);
    }
}

#[tokio::test]
async fn list_of_a_master_ends_at_the_wanted_number_of_keys_or_at_the_deadline() {
    let ms = Duration::from_millis;
    for (page_time, time, counts) in [
        (Duration::ZERO, ms(1), [3, 3, 3]),
        (ms(10), ms(20), [2, 0, 0]),
        // The lists of the masters begin one after another, because each master answers at once.
        (ms(10), ms(50), [3, 2, 0]),
    ] {
        let coordinator = masters(7, |_, node| node.delay = page_time);
        let deadline = coordinator.now() + time;
        let lists = coordinator.list(b"*", &|_| true, 3, deadline).await;
        for (list, count) in lists.into_iter().zip(counts) {
            let list = list.expect("the master answers");
            assert_eq!((list.keys.len(), list.complete), (count, false), "{time:?}");
            let pages = u32::try_from(count).expect("a small number");
            assert_eq!(list.answer_time, page_time * pages, "{time:?}");
        }
    }
}

/// Asks the masters for the fencing token of an owner's other holds, after they granted the lock.
async fn number_of_owner(
    coordinator: &Coordinator,
    confirmed: u64,
) -> Result<Option<u64>, Failure> {
    let now = coordinator.now();
    let answers = AcquireAnswers::open(coordinator.quorum, now);
    let round = FanOut::new(coordinator.runtime.clone(), answers);
    for node in 0..3 {
        let granted = Ok(Answer::Granted { counter: Some(5) });
        round.answers().record_answer(Source { node, now }, granted);
    }
    let claim = Claim::new("", b"a", Token::from_bytes([1; 16]), true).into();
    let number = coordinator.number_of_owner(&round, &claim, TTL, confirmed);
    number.await
}

#[tokio::test]
async fn fencing_token_of_other_holds_of_an_owner_is_used_unless_it_is_below_the_confirmed_one() {
    for (confirmed, token) in [
        (6, Ok(Some(7))),
        (7, Ok(Some(7))),
        (8, Err(Failure::NotJoinable)),
    ] {
        let coordinator = masters(7, |_, _| {});
        let found = number_of_owner(&coordinator, confirmed).await;
        assert_eq!(found, token, "{confirmed}");
    }
}

#[tokio::test]
async fn masters_with_different_tokens_of_an_owner_are_asked_again_after_short_pauses() {
    let short = Retry::new(ANSWER_TIME / 5, ANSWER_TIME);
    let seed = u64::from_ne_bytes([RANDOM_BYTE; 8]);
    let short_pauses: Vec<_> = short.delays(seed).take(2).collect();
    // The pauses of the retry settings, but at most the time limit for an answer.
    for (retry, pauses) in [
        (Retry::new(TTL, TTL), &[ANSWER_TIME; 2][..]),
        (short, &short_pauses),
    ] {
        let acquires = Arc::<Mutex<Vec<_>>>::default();
        let mut coordinator = masters(7, |index, node| {
            node.number += index as u64;
            node.acquires = acquires.clone();
        });
        coordinator.retry = retry;
        let found = number_of_owner(&coordinator, 7).await;
        assert_eq!(found, Err(Failure::NotJoinable));
        let acquires = acquires.lock().expect("no test panics here").clone();
        let times = [Duration::ZERO, pauses[0], pauses[0] + pauses[1]];
        assert_eq!(acquires, times.map(|time| [(time, 0); 3]).concat());
    }
}

#[test]
fn claim_on_a_key_without_the_prefix_has_the_whole_key_as_its_resource() {
    let mut coordinator = masters(7, |_, _| {});
    coordinator.prefix = "p:".into();
    let token = Token::from_bytes([1; 16]);
    for (key, resource) in [("p:a", "a"), ("a", "a"), ("", "")] {
        let claim = coordinator.claim(&key.as_bytes().into(), token);
        assert_eq!(claim.resource(), resource.as_bytes(), "{key}");
    }
}
