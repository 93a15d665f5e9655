//! Loom models: the guarantees of the local queue in every interleaving of threads.

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::protocol::instant::Instant;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::rounds::wanted::Wanted;
use crate::runtime::{BoxFuture, Runtime};

fn key() -> Arc<[u8]> {
    Arc::from(&b"job"[..])
}

fn job() -> Wanted {
    Wanted::exclusive(key())
}

/// Runs the closure `deed` in another thread of the model.
fn does(deed: impl FnOnce() + 'static) -> thread::JoinHandle<()> {
    thread::spawn(deed)
}

fn all_end<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    for thread in threads {
        thread.join().expect("no panic");
    }
}

#[test]
fn waiter_reaches_the_front_in_every_interleaving_if_both_waiters_ahead_leave() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let [first, second, third] = [(); 3].map(|()| queues.enter(&job()));
        let leave = [does(move || drop(first)), does(move || drop(second))];
        block_on(third.front());
        all_end(leave);
        drop(third);
        assert!(queues.map().is_empty());
    });
}

#[test]
fn waiter_reaches_the_front_in_every_interleaving_if_holder_and_waiter_ahead_leave() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let holder = queues.enter(&job()).hold();
        let [second, third] = [(); 2].map(|()| queues.enter(&job()));
        let ends = [
            does(move || holder.pass_on(&key())),
            // The second waiter may leave while the holder's release notifies it.
            does(move || drop(second)),
        ];
        block_on(third.front());
        all_end(ends);
    });
}

#[test]
fn new_waiter_reaches_the_front_in_every_interleaving_if_the_lock_is_released() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let holder = queues.enter(&job()).hold();
        let ends = does(move || holder.pass_on(&key()));
        let place = queues.enter(&job());
        block_on(place.front());
        all_end([ends]);
    });
}

fn slot() -> Wanted {
    Wanted::slot(permit())
}

fn permit() -> Permit {
    Permit::new(key(), 0, 2)
}

#[test]
fn second_waiter_becomes_first_in_every_interleaving_if_the_first_waiter_leaves() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let [mut first, second] = [(); 2].map(|()| queues.enter(&slot()));
        first.step_aside();
        // The first waiter returns to the queue without a slot, and then leaves the queue.
        let ends = does(move || {
            first.step_back();
            assert!(first.is_first());
            drop(first);
        });
        block_on(second.first());
        all_end([ends]);
        drop(second);
        assert!(queues.map().is_empty() && queues.aside().is_empty());
    });
}

#[test]
fn two_waiters_are_never_first_in_the_local_queue_at_the_same_time() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let [mut first, mut second] = [(); 2].map(|()| queues.enter(&slot()));
        first.step_aside();
        second.step_aside();
        let [one, other] = [first, second].map(|mut place| {
            does(move || {
                place.step_back();
                block_on(place.first());
                assert!(place.is_first() && place.is_front());
            })
        });
        all_end([one, other]);
        assert!(queues.map().is_empty() && queues.aside().is_empty());
    });
}

#[test]
fn semaphore_waiter_notices_a_local_release_in_every_thread_interleaving() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let key = permit().key();
        queues.hold([key.clone()].iter());
        let place = queues.enter(&slot());
        let held = queues.clone();
        let ends = does(move || held.lock_ended(&key, Some(&permit())));
        place.forget_wakes();
        // If the lock is already released, do not wait. Otherwise the release by `lock_ended` must wake this waiter.
        if queues.own_slots(&permit(), None).0 != 0 {
            block_on(place.woken(&Still, MasterSet::default(), Quorum::of(3), Instant::NEVER));
        }
        all_end([ends]);
    });
}

/// A runtime whose clock does not move.
struct Still;

impl Runtime for Still {
    fn now(&self) -> Instant {
        Instant::from_nanos(0)
    }

    fn wall_micros(&self) -> u64 {
        0
    }

    fn sleep_until(&self, _: Instant) -> BoxFuture<()> {
        Box::pin(std::future::pending())
    }

    fn spawn(&self, _: BoxFuture<()>) -> bool {
        false
    }

    fn random(&self, _: &mut [u8]) {}
}

#[test]
fn wake_ups_from_a_majority_end_a_wait_in_every_thread_interleaving() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let place = queues.enter(&job());
        place.forget_wakes();
        let wakes = [0, 1].map(|node| {
            let queues = queues.clone();
            does(move || queues.woken(node, &key()))
        });
        block_on(place.woken(&Still, MasterSet::default(), Quorum::of(3), Instant::NEVER));
        all_end(wakes);
    });
}

#[test]
fn wake_up_reaches_the_new_front_waiter_in_every_thread_interleaving() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let [first, second] = [(); 2].map(|()| queues.enter(&job()));
        let leaves = does(move || drop(first));
        block_on(second.front());
        // `second.front()` has returned: the second waiter is at the front, and must receive this wake-up.
        let wakes = queues.clone();
        let wakes = does(move || wakes.woken(1, &key()));
        block_on(second.woken(&Still, MasterSet::first(1), Quorum::of(3), Instant::NEVER));
        all_end([leaves, wakes]);
    });
}
