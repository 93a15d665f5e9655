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
fn no_interleaving_loses_the_turn_of_a_front_waiter_that_leaves() {
    crate::sync::model(|| {
        let lines = LocalLines::new();
        let [first, second, third] = [(); 3].map(|()| lines.enter(&job()));
        let leave = [does(move || drop(first)), does(move || drop(second))];
        block_on(third.front());
        all_end(leave);
        drop(third);
        assert!(lines.map().is_empty());
    });
}

#[test]
fn no_interleaving_loses_the_turn_of_a_holder() {
    crate::sync::model(|| {
        let lines = LocalLines::new();
        let holder = lines.enter(&job()).hold();
        let [second, third] = [(); 2].map(|()| lines.enter(&job()));
        let ends = [
            does(move || holder.pass_on(&key())),
            // The second waiter leaves at the moment when it is notified.
            does(move || drop(second)),
        ];
        block_on(third.front());
        all_end(ends);
    });
}

#[test]
fn no_interleaving_leaves_a_new_waiter_waiting_in_a_queue_without_a_holder() {
    crate::sync::model(|| {
        let lines = LocalLines::new();
        let holder = lines.enter(&job()).hold();
        let ends = does(move || holder.pass_on(&key()));
        let place = lines.enter(&job());
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
fn no_interleaving_leaves_the_next_waiter_without_its_turn() {
    crate::sync::model(|| {
        let lines = LocalLines::new();
        let [mut first, second] = [(); 2].map(|()| lines.enter(&slot()));
        first.step_aside();
        // The first waiter asks for a slot without success, returns to the queue, and leaves it.
        let ends = does(move || {
            first.step_back();
            assert!(first.is_first());
            drop(first);
        });
        block_on(second.first());
        all_end([ends]);
        drop(second);
        assert!(lines.map().is_empty() && lines.aside().is_empty());
    });
}

#[test]
fn no_interleaving_makes_two_waiters_first() {
    crate::sync::model(|| {
        let lines = LocalLines::new();
        let [mut first, mut second] = [(); 2].map(|()| lines.enter(&slot()));
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
        assert!(lines.map().is_empty() && lines.aside().is_empty());
    });
}

#[test]
fn no_interleaving_misses_a_local_release() {
    crate::sync::model(|| {
        let lines = LocalLines::new();
        let key = permit().key();
        lines.hold([key.clone()].iter());
        let place = lines.enter(&slot());
        let held = lines.clone();
        let ends = does(move || held.let_go(&key, Some(&permit())));
        place.forget_wakes();
        // Either the slot is already free, and this check sees that, or it becomes free later and wakes the waiter.
        if lines.own_slots(&permit(), None).0 != 0 {
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
fn no_interleaving_misses_the_wake_ups_of_a_majority() {
    crate::sync::model(|| {
        let lines = LocalLines::new();
        let place = lines.enter(&job());
        place.forget_wakes();
        let wakes = [0, 1].map(|node| {
            let lines = lines.clone();
            does(move || lines.woken(node, &key()))
        });
        block_on(place.woken(&Still, MasterSet::default(), Quorum::of(3), Instant::NEVER));
        all_end(wakes);
    });
}

#[test]
fn no_interleaving_sends_a_wake_up_to_a_former_front_waiter() {
    crate::sync::model(|| {
        let lines = LocalLines::new();
        let [first, second] = [(); 2].map(|()| lines.enter(&job()));
        let leaves = does(move || drop(first));
        block_on(second.front());
        // From now on every wake-up is meant for the second waiter.
        let wakes = lines.clone();
        let wakes = does(move || wakes.woken(1, &key()));
        block_on(second.woken(&Still, MasterSet::first(1), Quorum::of(3), Instant::NEVER));
        all_end([leaves, wakes]);
    });
}
