//! Tests of the local queues without tasks: each test polls the futures itself and sets the clock.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use futures::task::noop_waker_ref;

use super::place::LocalPlace;
use super::*;
use crate::protocol::finding::Finding;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::rounds::lock_target::LockTarget;
use crate::runtime::manual::ManualClock;
use crate::waiting::last_finding::LastFinding;

fn key(name: &str) -> Arc<[u8]> {
    Arc::from(name.as_bytes())
}

fn two_of_three() -> Quorum {
    Quorum::new(3)
}

fn job_target() -> LockTarget {
    LockTarget::exclusive(key("job"))
}

fn target_of_two_keys() -> LockTarget {
    LockTarget::several(vec![key("job"), key("other")])
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    match future.poll(&mut Context::from_waker(noop_waker_ref())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

const HELD: LastFinding = LastFinding::HELD_HERE;

fn outage() -> LastFinding {
    LastFinding {
        finding: Finding::Outage,
        round: None,
        names_holder: true,
    }
}

fn finding_of(place: &LocalPlace) -> Option<Finding> {
    place
        .shared_finding()
        .map(|last_finding| last_finding.finding)
}

#[test]
fn waiter_reports_a_shared_holder_only_if_it_waits_for_the_same_resource() {
    let queues = LocalQueues::new();
    let first_place = queues.enter(&job_target());
    let several = queues.enter(&target_of_two_keys());
    let other_place = queues.enter(&LockTarget::exclusive(key("other")));
    first_place.share_finding(Some(outage()));
    drop(first_place);
    let names_holder =
        |place: &LocalPlace| place.shared_finding().map(|shared| shared.names_holder);
    assert_eq!(names_holder(&several), Some(true));
    assert_eq!(names_holder(&other_place), Some(false));
}

#[test]
fn waiter_reports_how_many_waiters_of_the_local_queue_are_ahead() {
    let queues = LocalQueues::new();
    let mut places = [(); 4].map(|()| Some(queues.enter(&job_target())));
    let count_ahead = |places: &[Option<LocalPlace>]| -> Vec<u64> {
        places.iter().flatten().map(LocalPlace::ahead).collect()
    };
    assert_eq!(count_ahead(&places), [0, 1, 2, 3]);
    places[1] = None;
    assert_eq!(count_ahead(&places), [0, 1, 2]);
    places[3] = None;
    assert_eq!(count_ahead(&places), [0, 1]);
    places[0] = None;
    assert_eq!(count_ahead(&places), [0]);
    assert!(places[2].as_ref().is_some_and(LocalPlace::is_front));
    places[2] = None;
    assert!(
        queues.queues_by_key().is_empty(),
        "an empty queue must be removed"
    );
}

#[test]
fn lock_counts_as_held_in_this_process_until_its_holder_leaves_the_local_queue() {
    let queues = LocalQueues::new();
    let first_place = queues.enter(&job_target());
    assert!(
        !queues.is_held(b"job"),
        "a waiter must not count as the holder"
    );
    let holder = first_place.hold();
    assert!(queues.is_held(b"job"));
    assert!(!queues.is_held(b"other"));
    let next_place = queues.enter(&job_target());
    assert!(!next_place.is_front());
    assert_eq!(
        (next_place.ahead(), finding_of(&next_place)),
        (1, Some(Finding::Held))
    );
    {
        let mut front = pin!(next_place.wait_for_front());
        assert_eq!(poll(front.as_mut()), None);
        holder.pass_on(b"job");
        assert!(!queues.is_held(b"job"));
        assert_eq!(poll(front.as_mut()), Some(()));
    }
    // `next_place` is the first now, and keeps the finding `Held` until its own first attempt.
    assert_eq!(finding_of(&next_place), Some(Finding::Held));
    let holder = next_place.hold();
    holder.pass_on(b"job");
    assert!(queues.queues_by_key().is_empty());
}

#[test]
fn resource_counts_as_held_until_all_its_local_locks_are_released() {
    let queues = LocalQueues::new();
    let keys = [key("job"), key("other")];
    queues.hold(keys.iter());
    queues.hold(keys[..1].iter());
    assert!(queues.is_held(b"job") && queues.is_held(b"other"));
    queues.lock_ended(b"job", None);
    assert!(
        queues.is_held(b"job"),
        "the resource must stay held until its second lock is released"
    );
    queues.lock_ended(b"job", None);
    queues.lock_ended(b"other", None);
    assert!(!queues.is_held(b"job") && !queues.is_held(b"other"));
    assert!(queues.own_locks.is_empty());
    // `job` is not held any more, so releasing it once more has no effect.
    queues.lock_ended(b"job", None);
    assert!(!queues.is_held(b"job"));
}

#[test]
fn finding_of_the_front_waiter_is_visible_to_all_later_waiters() {
    let queues = LocalQueues::new();
    let [first, second, third] = [(); 3].map(|()| queues.enter(&job_target()));
    assert_eq!(finding_of(&third), None);
    first.share_finding(Some(outage()));
    assert_eq!(finding_of(&first), Some(Finding::Outage));
    assert_eq!(finding_of(&third), Some(Finding::Outage));
    drop(first);
    assert_eq!(
        finding_of(&second),
        Some(Finding::Outage),
        "the new first waiter must take over the finding of the old one"
    );
    second.share_finding(Some(HELD));
    assert_eq!(finding_of(&third), Some(Finding::Held));
    second.share_finding(None);
    assert_eq!(finding_of(&third), None);
}

#[test]
fn try_acquire_never_waits_behind_others_in_the_local_queue() {
    let queues = LocalQueues::new();
    let try_enter = || {
        queues
            .enter_if_free(&job_target())
            .map_err(|last_finding| last_finding.finding)
    };
    let first_place = try_enter().expect("free").expect("a place");
    assert!(first_place.is_front());
    // The waiter at the front has no finding before its first attempt ends. Until then, a `try_acquire` must ask the
    // masters itself.
    assert!(matches!(try_enter(), Ok(None)));
    let place_behind = queues.enter(&job_target());
    assert!(matches!(try_enter(), Ok(None)));
    first_place.share_finding(Some(outage()));
    assert!(matches!(try_enter(), Err(Finding::Outage)));
    drop(place_behind);
    assert!(
        matches!(try_enter(), Ok(None)),
        "a try must ask the masters itself when only the first waiter is left in the queue"
    );
    let holder = first_place.hold();
    assert!(matches!(try_enter(), Ok(None)));
    let _behind = queues.enter(&job_target());
    assert!(matches!(try_enter(), Err(Finding::Held)));
    drop(holder);
}

#[test]
fn try_acquire_asks_the_masters_itself_if_the_last_waiter_has_moved_to_the_front() {
    let queues = LocalQueues::new();
    let [first_place, _second_place] = [(); 2].map(|()| queues.enter(&job_target()));
    first_place.share_finding(Some(outage()));
    assert!(queues.enter_if_free(&job_target()).is_err());
    drop(first_place);
    assert!(matches!(queues.enter_if_free(&job_target()), Ok(None)));
}

#[test]
fn waiter_in_several_queues_is_at_the_front_only_if_it_is_first_in_all() {
    let queues = LocalQueues::new();
    let single_place = queues.enter(&job_target());
    let several = queues.enter(&target_of_two_keys());
    assert!(!several.is_front());
    assert_eq!(several.ahead(), 1);
    let other_place = queues.enter(&LockTarget::exclusive(key("other")));
    assert_eq!(other_place.ahead(), 1);
    single_place.share_finding(Some(outage()));
    assert_eq!(
        finding_of(&several),
        Some(Finding::Outage),
        "the waiter must know the last finding of the first waiter"
    );
    drop(single_place);
    assert!(several.is_front());
    let holder = several.hold();
    assert!(queues.is_held(b"job") && queues.is_held(b"other"));
    holder.pass_on(b"job");
    assert!(
        !other_place.is_front(),
        "a waiter must not be at the front while its key is held"
    );
    holder.pass_on(b"other");
    assert!(other_place.is_front());
    drop(other_place);
    assert!(queues.queues_by_key().is_empty());
}

#[test]
fn reader_that_left_the_local_queue_does_not_block_the_next_waiter() {
    let queues = LocalQueues::new();
    let mut reader_place = queues.enter(&job_target());
    let writer_place = queues.enter(&job_target());
    assert!(reader_place.is_queued());
    reader_place.leave_queues();
    assert!(!reader_place.is_queued() && reader_place.is_front());
    assert!(
        writer_place.is_front(),
        "the writer must be at the front of the queue"
    );
    assert_eq!(queues.unqueued().len(), 1);
    queues.woken(3, b"job");
    assert_eq!(reader_place.waiter.woken_by.load(Ordering::Relaxed), 1 << 3);
    assert_eq!(writer_place.waiter.woken_by.load(Ordering::Relaxed), 1 << 3);
    // The reader has left the queue, so it does not share the finding of the waiter at the front.
    writer_place.share_finding(Some(outage()));
    assert_eq!(finding_of(&reader_place), None);
    let mut owner_place = queues.place_unqueued(&job_target());
    assert!(owner_place.is_front() && !owner_place.is_queued());
    // Only a waiter in the queue leaves it for a slot.
    owner_place.leave_for_slot();
    assert!(owner_place.is_first() && queues.waiters_at_slots().is_empty());
    drop(reader_place);
    queues.woken(1, b"job");
    assert_eq!(owner_place.waiter.woken_by.load(Ordering::Relaxed), 1 << 1);
    drop(owner_place);
    assert!(queues.unqueued().is_empty());
    assert!(
        writer_place.is_front(),
        "the writer must stay at the front of the queue"
    );
}

fn api_semaphore() -> (LockTarget, Permit) {
    let permit = Permit::new(key("api"), 0, 4);
    (LockTarget::slot(permit.clone()), permit)
}

#[test]
fn waiter_that_got_no_slot_returns_to_its_old_place_in_the_local_queue() {
    let queues = LocalQueues::new();
    let (api, _) = api_semaphore();
    let [mut first, mut second, mut third, fourth] = [(); 4].map(|()| queues.enter(&api));
    assert!(first.is_first() && !second.is_first());
    for place in [&mut first, &mut second, &mut third] {
        assert!(place.is_front());
        place.leave_for_slot();
        assert!(!place.is_queued());
    }
    assert!(
        fourth.is_front(),
        "the fourth waiter must be at the front when no waiter is queued in front of it"
    );
    assert!(
        !fourth.is_first(),
        "the fourth waiter must not be first, because three waiters came earlier"
    );
    second.share_finding(Some(outage()));
    second.return_to_queue();
    assert!(second.is_front() && !fourth.is_front());
    assert!(
        !second.is_first(),
        "the second waiter must not be first while the first waiter asks for a slot"
    );
    assert_eq!(
        finding_of(&fourth),
        Some(Finding::Outage),
        "the finding must come from the second waiter, which is at the front of the queue"
    );
    third.return_to_queue();
    assert_eq!((third.ahead(), fourth.ahead()), (1, 2));
    first.return_to_queue();
    assert!(first.is_first());
    assert_eq!((second.ahead(), third.ahead(), fourth.ahead()), (1, 2, 3));
    drop((first, second, third));
    assert!(fourth.is_first());
    drop(fourth);
    assert!(queues.queues_by_key().is_empty() && queues.waiters_at_slots().is_empty());
}

#[test]
fn waiter_that_asks_for_a_slot_blocks_only_later_waiters() {
    let queues = LocalQueues::new();
    let (api, _) = api_semaphore();
    let [mut first, mut second] = [(); 2].map(|()| queues.enter(&api));
    first.leave_for_slot();
    second.leave_for_slot();
    first.return_to_queue();
    assert!(first.is_first(), "the waiter that came first must be first");
    // Waiters of another semaphore do not change which waiter is the first here.
    let other_slot = LockTarget::slot(Permit::new(key("other"), 0, 4));
    let mut other_places = [(); 2].map(|()| queues.enter(&other_slot));
    other_places[0].leave_for_slot();
    assert!(!other_places[1].is_first() && first.is_first());
    // A second `return_to_queue` changes nothing.
    first.return_to_queue();
    drop(first);
    second.leave_for_slot();
    drop((second, other_places));
    assert!(queues.queues_by_key().is_empty() && queues.waiters_at_slots().is_empty());
}

#[test]
fn semaphore_waiter_wakes_when_it_becomes_first_or_a_local_task_releases_a_slot() {
    let queues = LocalQueues::new();
    let (api, permit) = api_semaphore();
    let [mut first, mut second, third] = [(); 3].map(|()| queues.enter(&api));
    first.leave_for_slot();
    second.leave_for_slot();
    let waker = Arc::new(Woken::default());
    let woken = futures::task::waker(waker.clone());
    let mut cx = Context::from_waker(&woken);
    {
        let mut wait = pin!(third.wait_until_first());
        assert!(wait.as_mut().poll(&mut cx).is_pending());
        drop(first);
        assert!(
            waker.0.swap(false, Ordering::SeqCst),
            "the third waiter must be woken when the first waiter leaves"
        );
        assert!(
            wait.as_mut().poll(&mut cx).is_pending(),
            "the third waiter must still wait, because the second waiter came earlier"
        );
        drop(second);
        assert!(waker.0.swap(false, Ordering::SeqCst));
        assert!(wait.as_mut().poll(&mut cx).is_ready());
    }
    let slot = permit.key();
    queues.hold([slot.clone()].iter());
    let [mut fourth, fifth] = [(); 2].map(|()| queues.enter(&api));
    drop(third);
    fourth.leave_for_slot();
    fifth.forget_wakes();
    let mut wait = pin!(fifth.wait_until_first());
    assert!(wait.as_mut().poll(&mut cx).is_pending());
    waker.0.store(false, Ordering::SeqCst);
    queues.lock_ended(&slot, Some(&permit));
    assert!(waker.0.swap(false, Ordering::SeqCst));
    assert!(
        wait.as_mut().poll(&mut cx).is_ready(),
        "the wait must end when a local release frees a slot"
    );
}

#[derive(Default)]
struct Woken(std::sync::atomic::AtomicBool);

impl futures::task::ArcWake for Woken {
    fn wake_by_ref(this: &Arc<Self>) {
        this.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn next_waiter_inherits_the_list_of_occupied_slots_from_the_first_waiter() {
    let queues = LocalQueues::new();
    let (api, permit) = api_semaphore();
    let [first, second] = [(); 2].map(|()| queues.enter(&api));
    first.set_occupied_elsewhere(0b1011);
    first.clear_occupied_slot(1);
    drop(first);
    let reservation = queues.reserve_slot(&permit, Some(&second), false);
    assert_eq!(
        (reservation.permit.slot(), reservation.is_only_request),
        (1, true),
        "the waiter must ask for slot 1, the first slot that no other process holds"
    );
}

#[test]
fn wait_ends_after_wake_ups_from_a_majority_or_soon_after_one_wake_up() {
    let clock = ManualClock::default();
    let queues = LocalQueues::new();
    let place = queues.enter(&job_target());
    // The lock was free on no master at the last attempt, so wake-ups from two masters are needed.
    let mut wait = pin!(place.wait_for_wake_ups(
        &clock,
        MasterSet::default(),
        two_of_three(),
        ManualClock::at(50)
    ));
    assert_eq!(poll(wait.as_mut()), None);
    queues.woken(0, b"other");
    assert_eq!(
        poll(wait.as_mut()),
        None,
        "a wake-up for another lock must not end the wait"
    );
    queues.woken(0, b"job");
    queues.woken(0, b"job");
    assert_eq!(
        poll(wait.as_mut()),
        None,
        "two wake-ups from one master must not end the wait"
    );
    queues.woken(1, b"job");
    assert_eq!(poll(wait.as_mut()), Some(()));
    // The lock was free on master 2 at the last attempt, so a wake-up from master 0 or 1 is enough.
    place.forget_wakes();
    let mut wait = pin!(place.wait_for_wake_ups(
        &clock,
        MasterSet::single(2),
        two_of_three(),
        ManualClock::at(50)
    ));
    assert_eq!(poll(wait.as_mut()), None);
    queues.woken(2, b"job");
    assert_eq!(
        poll(wait.as_mut()),
        None,
        "a wake-up from the master that was free must not count"
    );
    place.forget_wakes();
    queues.woken(0, b"job");
    assert_eq!(poll(wait.as_mut()), Some(()));
    // If only one wake-up comes, the wait ends `GRACE` after that wake-up.
    place.forget_wakes();
    let mut wait = pin!(place.wait_for_wake_ups(
        &clock,
        MasterSet::default(),
        two_of_three(),
        ManualClock::at(50)
    ));
    clock.advance_to(10);
    queues.woken(1, b"job");
    assert_eq!(poll(wait.as_mut()), None);
    clock.advance_to(11);
    assert_eq!(poll(wait.as_mut()), None);
    clock.advance_to(12);
    assert_eq!(poll(wait.as_mut()), Some(()));
}

#[test]
fn wait_ends_at_its_deadline_without_a_wake_up() {
    let clock = ManualClock::default();
    let queues = LocalQueues::new();
    let place = queues.enter(&job_target());
    // Without a wake-up, the wait lasts until its deadline, even if the lock was free on all masters at the last
    // attempt.
    let mut wait = pin!(place.wait_for_wake_ups(
        &clock,
        MasterSet::first(3),
        two_of_three(),
        ManualClock::at(50)
    ));
    clock.advance_to(49);
    assert_eq!(poll(wait.as_mut()), None);
    clock.advance_to(50);
    assert_eq!(poll(wait.as_mut()), Some(()));
    // After a wake-up, the wait ends at its time limit (100), even if the time `GRACE` has not passed yet.
    clock.advance_to(99);
    let mut wait = pin!(place.wait_for_wake_ups(
        &clock,
        MasterSet::default(),
        two_of_three(),
        ManualClock::at(100)
    ));
    queues.woken(1, b"job");
    assert_eq!(poll(wait.as_mut()), None);
    clock.advance_to(100);
    assert_eq!(poll(wait.as_mut()), Some(()));
}

#[test]
fn wake_up_from_the_65th_or_a_later_master_is_ignored() {
    let queues = LocalQueues::new();
    let place = queues.enter(&job_target());
    let unqueued_place = queues.place_unqueued(&job_target());
    let woken_by =
        || [&place, &unqueued_place].map(|place| place.waiter.woken_by.load(Ordering::Relaxed));
    queues.woken(64, b"job");
    queues.woken(70, b"job");
    assert_eq!(woken_by(), [0; 2]);
    queues.woken(63, b"job");
    assert_eq!(woken_by(), [1 << 63; 2]);
}
