//! Tests of the slots that an acquire of a semaphore asks for, with masters that answer as a test prescribes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;

use crate::TryAcquire;
use crate::acquire::tests::{Asked, Kind, Reaction, Sleeps, TTL, client, granted, ms, refused};
use crate::error::AcquireError;
use crate::node::{Abilities, Answer, Fault, Permit};
use crate::redlock::Redlock;
use crate::settings::Wait;

/// A client of three masters, and the slots that it has asked for, in order.
struct Bench {
    redlock: Redlock,
    sleeps: Arc<Sleeps>,
    asked_slots: Arc<Mutex<Vec<u8>>>,
}

impl Bench {
    /// The masters react to acquires with `react`, whose second argument is the slot. They release each slot.
    fn new(react: impl Fn(Asked, u8) -> Reaction + Send + Sync + 'static) -> Self {
        Self::with_releases(react, |_| Reaction::Answer(Answer::Released(true)))
    }

    /// The masters react to acquires with `react`, and to all other requests with `react_otherwise`.
    fn with_releases(
        react: impl Fn(Asked, u8) -> Reaction + Send + Sync + 'static,
        react_otherwise: impl Fn(Asked) -> Reaction + Send + Sync + 'static,
    ) -> Self {
        let sleeps = Arc::new(Sleeps::default());
        let asked_slots = Arc::<Mutex<Vec<_>>>::default();
        let recorded = asked_slots.clone();
        let redlock = client(&sleeps, Abilities::default(), move |asked| {
            if asked.kind != Kind::Acquire {
                return react_otherwise(asked);
            }
            let slot = asked.slot.expect("the request is about a semaphore");
            if asked.node == 0 {
                recorded.lock().expect("not poisoned").push(slot);
            }
            react(asked, slot)
        });
        Self {
            redlock: redlock.build().expect("good settings"),
            sleeps,
            asked_slots,
        }
    }

    fn asked_slots(&self) -> Vec<u8> {
        self.asked_slots.lock().expect("not poisoned").clone()
    }

    /// A task that acquires a slot, and releases it at once. It returns whether it has acquired the slot.
    fn spawn_acquire(&self, permits: usize, wait: Duration) -> tokio::task::JoinHandle<bool> {
        let request = self.redlock.semaphore("a", permits).wait(Wait::For(wait));
        tokio::spawn(async move { request.acquire().await.is_ok() })
    }
}

/// The masters refuse a slot to the first in the queue, and show that these slots are free.
fn refused_showing(free: &[u8]) -> Reaction {
    let free_slots = free.iter().fold(0, |bits, slot| bits | 1 << slot);
    refused(TTL, 0, None, free_slots)
}

/// One master grants each slot, and the other masters show that all other slots are free. No master answers a release.
#[tokio::test(start_paused = true)]
async fn single_attempt_on_a_semaphore_tries_three_slots_and_waits_for_the_releases_between_them() {
    let bench = Bench::with_releases(
        |asked, slot| match asked.node {
            0 => granted(9),
            _ => refused(TTL, 0, None, 0xff & !(1 << slot)),
        },
        |_| Reaction::Ignore,
    );
    let outcome = bench.redlock.semaphore("a", 8).try_acquire().await;
    assert!(matches!(outcome, Ok(TryAcquire::Held(_))), "{outcome:?}");
    let slots = bench.asked_slots();
    let different_slots: BTreeSet<_> = slots.iter().collect();
    assert_eq!((slots.len(), different_slots.len()), (3, 3), "{slots:?}");
    assert_eq!(bench.sleeps.recorded(), [ms(50); 2]);
}

/// The masters do not answer the first task, and refuse the slot of the second task.
#[tokio::test(start_paused = true)]
async fn task_that_waits_behind_an_earlier_task_leaves_its_slot_to_other_tasks() {
    let bench = Bench::new(|_, slot| match slot {
        0 => Reaction::Ignore,
        _ => refused_showing(&[]),
    });
    let tasks = [(); 2].map(|()| bench.spawn_acquire(4, TTL));
    tokio::time::sleep(ms(10)).await;
    assert_eq!(bench.asked_slots(), [0, 1]);
    let permit = Permit::new(b"a"[..].into(), 0, 4);
    let own_slots = bench.redlock.core.local_queues.own_slots(&permit, None);
    assert_eq!(own_slots, (0, 1), "only the first task asks for a slot");
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The wait of the caller ends during its first attempt.
#[tokio::test(start_paused = true)]
async fn caller_asks_for_no_other_slot_after_the_end_of_its_wait() {
    let bench = Bench::new(|asked, _| {
        if asked.node == 0 {
            // The first poll advances the clock.
            let _ = tokio::time::advance(ms(8)).now_or_never();
        }
        refused_showing(&[1, 2, 3])
    });
    let request = bench.redlock.semaphore("a", 4).wait(Wait::For(ms(5)));
    let outcome = request.acquire().await;
    assert!(
        matches!(outcome, Err(AcquireError::HeldByOther(_))),
        "{outcome:?}"
    );
    assert_eq!(bench.asked_slots(), [0]);
}

/// Two masters grant the slot with different fencing tokens, and do not confirm one of them. The other master shows
/// free slots.
#[tokio::test(start_paused = true)]
async fn caller_asks_for_no_other_slot_if_its_slot_was_not_refused() {
    let bench = Bench::with_releases(
        |asked, _| match asked.node {
            2 => refused_showing(&[1, 2, 3]),
            node => granted(node as u64),
        },
        |_| Reaction::Fail(Fault::OutOfMemory),
    );
    let outcome = bench.redlock.semaphore("a", 4).try_acquire().await;
    assert!(
        matches!(outcome, Err(AcquireError::NoQuorum(_))),
        "{outcome:?}"
    );
    assert_eq!(bench.asked_slots(), [0]);
}

/// One master grants the slot, and another master shows it as free although it has refused it: the slot became free
/// during the request.
#[tokio::test(start_paused = true)]
async fn caller_asks_again_for_its_own_slot_if_a_majority_shows_it_as_free() {
    let bench = Bench::new(|asked, slot| match asked.node {
        0 => granted(9),
        1 => refused_showing(&[slot]),
        _ => refused_showing(&[]),
    });
    let outcome = bench.redlock.semaphore("a", 4).try_acquire().await;
    assert!(matches!(outcome, Ok(TryAcquire::Held(_))), "{outcome:?}");
    assert_eq!(bench.asked_slots(), [0, 0, 0]);
}

/// Only slot 2 is free. The masters do not answer the request of the first task for this slot.
#[tokio::test(start_paused = true)]
async fn task_asks_for_no_other_slot_if_another_local_task_asks_for_the_free_slot() {
    let bench = Bench::new(|_, slot| match slot {
        2 => Reaction::Ignore,
        _ => refused_showing(&[2]),
    });
    let tasks = [(); 2].map(|()| bench.spawn_acquire(4, TTL));
    tokio::time::sleep(ms(10)).await;
    assert_eq!(bench.asked_slots(), [0, 2, 0]);
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
}

/// No master can be reached at the first attempt.
#[tokio::test(start_paused = true)]
async fn own_last_request_for_a_slot_does_not_keep_a_task_from_asking_for_it_again() {
    let bench = Bench::new(|asked, _| match asked.attempt {
        1 => Reaction::Fail(Fault::Down("off".into())),
        _ => granted(9),
    });
    let is_acquired = bench.spawn_acquire(4, TTL).await;
    assert!(is_acquired.expect("the task must not panic"));
    assert_eq!(bench.asked_slots(), [0, 0]);
}

/// The masters show the next slot as free at each of the first three attempts, and never answer the fourth.
#[tokio::test(start_paused = true)]
async fn local_tasks_stay_behind_a_task_that_is_queued_on_the_masters() {
    let bench = Bench::new(|_, slot| match slot {
        3 => Reaction::Ignore,
        _ => refused_showing(&[slot + 1]),
    });
    let tasks = [(); 2].map(|()| bench.spawn_acquire(4, TTL));
    tokio::time::sleep(ms(10)).await;
    let asked_slots = bench.asked_slots();
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(asked_slots, [0, 1, 2, 3]);
}

/// The first task asks for slot 0 and then for slot 2. All slots are held elsewhere when its wait begins.
#[tokio::test(start_paused = true)]
async fn slots_that_a_task_found_occupied_are_the_last_choice_of_the_next_task() {
    for (is_first_granted, first_wait, slot_of_second) in [
        // The first task has got slot 2 from another process, and has released it: it is free.
        (true, TTL, 2),
        // The first task has given up, so slot 2 is as unlikely as the other slots. The search starts at slot 0.
        (false, ms(50), 0),
    ] {
        let bench = Bench::new(move |asked, slot| match asked.attempt {
            1 => refused_showing(&[2]),
            2 | 3 => refused(ms(90), 0, None, 0),
            4 if is_first_granted => granted(9),
            _ if slot == slot_of_second => granted(9),
            _ => refused_showing(&[]),
        });
        let first_task = bench.spawn_acquire(4, first_wait);
        tokio::time::sleep(ms(10)).await;
        let second_task = bench.spawn_acquire(4, TTL);
        let first_outcome = first_task.await.expect("the task must not panic");
        assert_eq!(first_outcome, is_first_granted);
        assert!(second_task.await.expect("the task must not panic"));
        let asked_slots = bench.asked_slots();
        let slots_of_first = if is_first_granted {
            &[0, 2, 2, 2][..]
        } else {
            &[0, 2, 2]
        };
        assert_eq!(asked_slots, [slots_of_first, &[slot_of_second]].concat());
    }
}

/// The process holds slot 2. Another process holds each other slot.
#[tokio::test(start_paused = true)]
async fn waiter_asks_for_the_slot_that_its_own_process_has_released() {
    let bench = Bench::new(|asked, slot| match (slot, asked.attempt) {
        (0, 1) => refused_showing(&[2]),
        (2, _) => granted(9),
        _ => refused_showing(&[]),
    });
    let guard = bench.redlock.semaphore("a", 4).acquire().await;
    let guard = guard.expect("slot 2 is free");
    let waiter = bench.spawn_acquire(4, TTL);
    tokio::time::sleep(ms(10)).await;
    // The first request of the waiter, and the request that queues it on the masters.
    assert_eq!(bench.asked_slots(), [0, 2, 0, 0]);
    guard.release().await;
    assert!(waiter.await.expect("the task must not panic"));
    assert_eq!(bench.asked_slots(), [0, 2, 0, 0, 2]);
}
