//! Loom models: the guarantees of the local queue in every interleaving of threads.

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::protocol::instant::Instant;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::rounds::lock_target::LockTarget;
use crate::runtime::manual::ManualClock;

fn key() -> Arc<[u8]> {
    Arc::from(&b"job"[..])
}

fn job_target() -> LockTarget {
    LockTarget::exclusive(key())
}

/// Runs the closure `operation` in another thread of the model.
fn spawn_thread(operation: impl FnOnce() + 'static) -> thread::JoinHandle<()> {
    thread::spawn(operation)
}

fn join_all<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    for thread in threads {
        thread.join().expect("no panic");
    }
}

#[test]
fn waiter_reaches_the_front_in_every_interleaving_if_both_waiters_ahead_leave() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let [first, second, third] = [(); 3].map(|()| queues.enter(&job_target()));
        let leave = [
            spawn_thread(move || drop(first)),
            spawn_thread(move || drop(second)),
        ];
        block_on(third.wait_for_front());
        join_all(leave);
        drop(third);
        assert!(queues.queues_by_key().is_empty());
    });
}

#[test]
fn waiter_reaches_the_front_in_every_interleaving_if_holder_and_waiter_ahead_leave() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let holder = queues.enter(&job_target()).hold();
        let [second, third] = [(); 2].map(|()| queues.enter(&job_target()));
        let ends = [
            spawn_thread(move || holder.pass_on(&key())),
            // The second waiter may leave while the holder's release notifies it.
            spawn_thread(move || drop(second)),
        ];
        block_on(third.wait_for_front());
        join_all(ends);
    });
}

#[test]
fn new_waiter_reaches_the_front_in_every_interleaving_if_the_lock_is_released() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let holder = queues.enter(&job_target()).hold();
        let ends = spawn_thread(move || holder.pass_on(&key()));
        let place = queues.enter(&job_target());
        block_on(place.wait_for_front());
        join_all([ends]);
    });
}

fn slot_target() -> LockTarget {
    LockTarget::slot(permit())
}

fn permit() -> Permit {
    Permit::new(key(), 0, 2)
}

#[test]
fn second_waiter_becomes_first_in_every_interleaving_if_the_first_waiter_leaves() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let [mut first, second] = [(); 2].map(|()| queues.enter(&slot_target()));
        first.leave_for_slot();
        // The first waiter returns to the queue without a slot, and then leaves the queue.
        let ends = spawn_thread(move || {
            first.return_to_queue();
            assert!(first.is_first());
            drop(first);
        });
        block_on(second.wait_until_first());
        join_all([ends]);
        drop(second);
        assert!(queues.queues_by_key().is_empty() && queues.waiters_at_slots().is_empty());
    });
}

#[test]
fn two_waiters_are_never_first_in_the_local_queue_at_the_same_time() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let [mut first, mut second] = [(); 2].map(|()| queues.enter(&slot_target()));
        first.leave_for_slot();
        second.leave_for_slot();
        let [one, other] = [first, second].map(|mut place| {
            spawn_thread(move || {
                place.return_to_queue();
                block_on(place.wait_until_first());
                assert!(place.is_first() && place.is_front());
            })
        });
        join_all([one, other]);
        assert!(queues.queues_by_key().is_empty() && queues.waiters_at_slots().is_empty());
    });
}

#[test]
fn semaphore_waiter_notices_a_local_release_in_every_thread_interleaving() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let key = permit().key();
        queues.hold([key.clone()].iter());
        let place = queues.enter(&slot_target());
        let held_queues = queues.clone();
        let ends = spawn_thread(move || held_queues.lock_ended(&key, Some(&permit())));
        place.forget_wakes();
        // If the lock is already released, do not wait. Otherwise the release by `lock_ended` must wake this waiter.
        if queues.own_slots(&permit(), None).0 != 0 {
            block_on(place.wait_for_wake_ups(
                &ManualClock::default(),
                MasterSet::default(),
                Quorum::new(3),
                Instant::NEVER,
            ));
        }
        join_all([ends]);
    });
}

#[test]
fn wake_ups_from_a_majority_end_a_wait_in_every_thread_interleaving() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let place = queues.enter(&job_target());
        place.forget_wakes();
        let wakes = [0, 1].map(|node| {
            let queues = queues.clone();
            spawn_thread(move || queues.woken(node, &key()))
        });
        block_on(place.wait_for_wake_ups(
            &ManualClock::default(),
            MasterSet::default(),
            Quorum::new(3),
            Instant::NEVER,
        ));
        join_all(wakes);
    });
}

#[test]
fn wake_up_reaches_the_new_front_waiter_in_every_thread_interleaving() {
    crate::sync::model(|| {
        let queues = LocalQueues::new();
        let [first, second] = [(); 2].map(|()| queues.enter(&job_target()));
        let leaves = spawn_thread(move || drop(first));
        block_on(second.wait_for_front());
        // `second.wait_for_front()` has returned: the second waiter is at the front, and must receive this wake-up.
        let waking = queues.clone();
        let wakes = spawn_thread(move || waking.woken(1, &key()));
        block_on(second.wait_for_wake_ups(
            &ManualClock::default(),
            MasterSet::first(1),
            Quorum::new(3),
            Instant::NEVER,
        ));
        join_all([leaves, wakes]);
    });
}
