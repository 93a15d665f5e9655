use super::*;
use crate::hold::held::HoldOptions;
use crate::node::{Claim, Token};
use crate::outcome::LossCause;
use crate::protocol::quorum::Quorum;
use crate::rounds::acquire::AcquireAnswers;
use crate::rounds::attempt::WonAttempt;
use crate::rounds::fan_out::FanOut;
use crate::runtime::Tokio;
use crate::waiting::local_queue::LocalQueues;

const TTL: Duration = Duration::from_secs(9);
const STARTED_AT: Instant = Instant::from_nanos(1_000_000_000);

fn at_ms(ms: u64) -> Instant {
    STARTED_AT + Duration::from_millis(ms)
}

fn hold_options(max_hold: Option<Duration>, renews: bool) -> HoldOptions {
    HoldOptions {
        ttl: TTL,
        max_hold,
        renews,
        note_text: None,
    }
}

fn held(max_hold: Option<Duration>, renews: bool) -> Arc<Held> {
    held_with(hold_options(max_hold, renews))
}

fn held_with(hold_options: HoldOptions) -> Arc<Held> {
    let won = WonAttempt {
        claim: Arc::new(Claim::new("", b"job", Token::from_bytes([1; 16]), true)),
        started_at: STARTED_AT,
        valid_until: STARTED_AT + TTL,
        fencing: Some(1),
        round: FanOut::new(
            Arc::new(Tokio::default()),
            AcquireAnswers::open(Quorum::new(5), STARTED_AT),
        ),
    };
    Held::new(won, hold_options, &LocalQueues::new(), None)
}

/// A schedule with `count` locks whose renewals are due at 3 s.
fn schedule_with_burst(count: usize) -> Schedule {
    let mut schedule = Schedule::default();
    for _ in 0..count {
        schedule.insert(held(None, true), renew_at(STARTED_AT, TTL));
    }
    schedule
}

/// Takes the locks that are due, and counts them as one batch that waits for a majority. Returns the number of locks.
fn take_due_count(schedule: &mut Schedule, now: Instant) -> usize {
    let taken_count = schedule.take_due(now).len();
    if taken_count > 0 {
        schedule.open_batches += 1;
        schedule.batch_sent_at = now;
    }
    taken_count
}

#[test]
fn burst_of_renewals_is_sent_batch_by_batch_at_the_pace_of_the_replies() {
    let mut schedule = schedule_with_burst(5_000);
    assert_eq!(take_due_count(&mut schedule, at_ms(2_999)), 0);
    for _ in 0..MAX_OPEN_BATCHES {
        assert!(schedule.next_wake_at(at_ms(3_000)) <= Some(at_ms(3_000)));
        assert_eq!(take_due_count(&mut schedule, at_ms(3_000)), BATCH_SIZE);
    }
    assert_eq!(take_due_count(&mut schedule, at_ms(3_000)), 0);
    assert_eq!(
        schedule.next_wake_at(at_ms(3_000)),
        Some(at_ms(3_000) + BATCH_INTERVAL)
    );
    assert!(schedule.is_held_back);
    // When a majority has replied to one batch, the next batch may be sent immediately.
    schedule.open_batches -= 1;
    assert_eq!(take_due_count(&mut schedule, at_ms(3_001)), BATCH_SIZE);
    // Without replies, the next batch waits for `BATCH_INTERVAL`.
    assert_eq!(
        take_due_count(&mut schedule, at_ms(3_001) + BATCH_INTERVAL / 2),
        0
    );
    assert_eq!(
        take_due_count(&mut schedule, at_ms(3_001) + BATCH_INTERVAL),
        BATCH_SIZE
    );
    assert_eq!(take_due_count(&mut schedule, at_ms(3_400)), BATCH_SIZE);
    assert_eq!(
        schedule.next_wake_at(at_ms(3_400)),
        Some(at_ms(3_400) + SHORTEST_INTERVAL)
    );
    let mut now = at_ms(3_401);
    while schedule
        .next_batch_at(now)
        .is_some_and(|batch_due_at| batch_due_at <= now)
    {
        assert!(take_due_count(&mut schedule, now) > 0);
        now = now + SHORTEST_INTERVAL;
    }
    assert!(
        now < at_ms(3_430),
        "all batches of renewals must be sent within the ttl, even without any reply"
    );
    assert!(
        schedule.next_wake_at(now) > Some(at_ms(5_900)),
        "every lock must have its next due time"
    );
}

#[test]
fn batches_of_first_notes_are_sent_at_their_shortest_interval() {
    let mut schedule = Schedule::default();
    let with_note = || {
        let options = HoldOptions {
            note_text: Some("at work".into()),
            ..hold_options(None, true)
        };
        held_with(options)
    };
    let due_at = with_note().note_due_at().expect("it has a note");
    for _ in 0..=NOTES_PER_CALL {
        schedule.insert(with_note(), due_at);
    }
    assert_eq!(schedule.take_due(due_at).len(), NOTES_PER_CALL);
    let next_batch_at = due_at + BATCH_INTERVAL;
    assert_eq!(schedule.next_wake_at(due_at), Some(next_batch_at));
    let just_before = Instant::from_nanos(next_batch_at.as_nanos() - 1);
    assert!(schedule.take_due(just_before).is_empty());
    assert_eq!(schedule.take_due(next_batch_at).len(), 1);
}

#[test]
fn schedule_reports_the_end_of_locks_on_time_despite_a_burst_of_renewals() {
    let mut schedule = schedule_with_burst(5_000);
    let max_hold = Duration::from_millis(3_002);
    let bounded = held(Some(max_hold), true);
    let end = bounded.hold_end;
    let longest = schedule.insert(bounded, end);
    let fixed = held(None, false);
    let fixed = schedule.insert(fixed, at_ms(3_003));
    for _ in 0..MAX_OPEN_BATCHES {
        assert_eq!(take_due_count(&mut schedule, at_ms(3_000)), BATCH_SIZE);
    }
    assert_eq!(schedule.next_wake_at(at_ms(3_000)), Some(at_ms(3_002)));
    let ended_ids: Vec<_> = schedule
        .take_due(at_ms(3_002))
        .iter()
        .map(|d| d.id)
        .collect();
    assert_eq!(ended_ids, [longest]);
    schedule.remove(longest);
    assert_eq!(schedule.next_wake_at(at_ms(3_002)), Some(at_ms(3_003)));
    let ended_ids: Vec<_> = schedule
        .take_due(at_ms(3_003))
        .iter()
        .map(|d| d.id)
        .collect();
    assert_eq!(ended_ids, [fixed]);
}

fn ids(due: &[Due]) -> Vec<u64> {
    due.iter().map(|due| due.id).collect()
}

#[test]
fn renewal_due_within_a_sixtieth_of_the_ttl_joins_the_current_batch() {
    let mut schedule = Schedule::default();
    let first_id = schedule.insert(held(None, true), at_ms(3_000));
    // A batch also renews the locks that are due within a sixtieth of their ttl. For this ttl of 9 s, this is 150 ms.
    let soon = schedule.insert(held(None, true), at_ms(3_150));
    let later = schedule.insert(held(None, true), at_ms(3_151));
    let fixed = schedule.insert(held(None, false), at_ms(3_001));
    assert_eq!(ids(&schedule.take_due(at_ms(2_999))), []);
    assert_eq!(ids(&schedule.take_due(at_ms(3_000))), [first_id, soon]);
    // The end of a lock does not cause an early renewal of another lock.
    assert_eq!(ids(&schedule.take_due(at_ms(3_001))), [fixed]);
    assert_eq!(ids(&schedule.take_due(at_ms(3_151))), [later]);
    // The locks that were renewed at 3000 ms are due again after a third of their ttl (3 s).
    assert_eq!(schedule.next_batch_at(at_ms(3_151)), Some(at_ms(6_000)));
}

#[test]
fn schedule_returns_each_due_lock_once_per_due_time() {
    let mut schedule = Schedule::default();
    // While an expired lock stays in the schedule, `take_due` returns it again after each `SHORTEST_INTERVAL` (1 ms).
    let fixed = schedule.insert(held(None, false), at_ms(9_000));
    assert_eq!(ids(&schedule.take_due(at_ms(9_000))), [fixed]);
    assert_eq!(ids(&schedule.take_due(at_ms(9_000))), []);
    assert_eq!(
        schedule.next_wake_at(at_ms(9_000)),
        Some(at_ms(9_000) + SHORTEST_INTERVAL)
    );
    schedule.remove(fixed);
    assert_eq!(schedule.next_wake_at(at_ms(9_000)), None);
    // `max_hold` expires before the next renewal, so the lock is next due at that time, to be ended.
    let bounded = held(Some(Duration::from_secs(4)), true);
    let bounded = schedule.insert(bounded, at_ms(3_000));
    assert_eq!(ids(&schedule.take_due(at_ms(3_000))), [bounded]);
    assert_eq!(schedule.next_wake_at(at_ms(3_000)), Some(at_ms(4_000)));
    assert_eq!(schedule.renewals.len(), 0);
    assert_eq!(ids(&schedule.take_due(at_ms(4_000))), [bounded]);
}

#[test]
fn reused_schedule_entry_gets_a_new_id() {
    let mut schedule = Schedule::default();
    let old_id = schedule.insert(held(None, true), at_ms(3_000));
    schedule.remove(old_id);
    let new_id = schedule.insert(held(None, true), at_ms(3_000));
    assert_ne!(old_id, new_id);
    assert_eq!(schedule.entries.slots.len(), 1);
    // After the entry was reused for another lock, the old id refers to no lock.
    assert!(!schedule.entries.remove(old_id));
    assert!(!schedule.move_earlier(old_id, at_ms(1)));
    assert!(!schedule.move_earlier(ScheduleId::default().get(), at_ms(1)));
    assert_eq!(schedule.entries.live_count, 1);
    assert_eq!(ids(&schedule.take_due(at_ms(3_000))), [new_id]);
    schedule.remove(new_id);
    schedule.remove(new_id);
    assert_eq!(schedule.entries.live_count, 0);
    let [first_id, second_id] = [(); 2].map(|()| schedule.insert(held(None, true), at_ms(9)));
    assert_ne!(
        first_id & u64::from(u32::MAX),
        second_id & u64::from(u32::MAX)
    );
}

#[test]
fn all_locks_are_taken_out_of_the_schedule_also_those_in_reused_entries() {
    let mut schedule = Schedule::default();
    let old_ids = [(); 4].map(|()| schedule.insert(held(None, true), at_ms(3_000)));
    for id in &old_ids[1..] {
        schedule.remove(*id);
    }
    let in_reused_entry = held(None, true);
    schedule.insert(in_reused_entry.clone(), at_ms(3_000));
    let taken = schedule.take_all();
    assert_eq!(taken.len(), 2);
    assert!(taken.iter().any(|held| Arc::ptr_eq(held, &in_reused_entry)));
    assert_eq!(schedule.entries.live_count, 0);
    assert!(schedule.take_all().is_empty());
    assert!(schedule.take_due(at_ms(3_000)).is_empty());
}

#[test]
fn due_time_of_a_renewal_can_be_moved_earlier_but_not_later() {
    let mut schedule = Schedule::default();
    let id = schedule.insert(held(None, true), at_ms(3_000));
    schedule.wakes_at = at_ms(2_500);
    assert!(!schedule.move_earlier(id, at_ms(3_000)));
    assert!(!schedule.move_earlier(id, at_ms(3_500)));
    assert_eq!(schedule.renewals.len(), 1);
    // `move_earlier` returns whether the task has to wake up earlier.
    assert!(!schedule.move_earlier(id, at_ms(2_500)));
    assert!(schedule.move_earlier(id, at_ms(2_499)));
    assert_eq!(schedule.next_wake_at(at_ms(0)), Some(at_ms(2_499)));
    assert_eq!(ids(&schedule.take_due(at_ms(2_499))), [id]);
    // The due time that the lock had before `move_earlier` is outdated.
    assert_eq!(ids(&schedule.take_due(at_ms(3_000))), []);
    let bounded = held(Some(Duration::from_millis(2_700)), true);
    let bounded = schedule.insert(bounded, at_ms(2_800));
    assert!(schedule.move_earlier(bounded, at_ms(2_700)) || schedule.wakes_at <= at_ms(2_700));
    assert_eq!(
        schedule.ends.peek(),
        Some(&Reverse((at_ms(2_700), bounded)))
    );
}

#[test]
fn extension_lengthens_the_validity_up_to_max_hold() {
    let held = held(Some(Duration::from_secs(15)), true);
    assert_eq!(held.valid_until(), at_ms(9_000));
    assert!(held.extend_lease(at_ms(10_000), 2 * TTL, at_ms(1)));
    assert_eq!((held.valid_until(), held.ttl()), (at_ms(10_000), 2 * TTL));
    assert_eq!(next_due_time(&held, at_ms(1)), renew_at(at_ms(1), 2 * TTL));
    // An extension never shortens the validity and never exceeds `max_hold`. A lock that has ended is not extended.
    assert!(held.extend_lease(at_ms(9_500), TTL, at_ms(2)));
    assert_eq!((held.valid_until(), held.ttl()), (at_ms(10_000), TTL));
    assert!(held.extend_lease(at_ms(20_000), TTL, at_ms(9_999)));
    assert_eq!(held.valid_until(), at_ms(15_000));
    assert_eq!(next_due_time(&held, at_ms(14_000)), at_ms(15_000));
    assert!(!held.extend_lease(at_ms(30_000), TTL, at_ms(15_000)));
    assert_eq!(held.end_cause(at_ms(15_000)), Some(LossCause::MaxHold));
    assert!(!held.extend_lease(at_ms(30_000), TTL, at_ms(1)));
}

#[test]
fn schedule_ends_at_most_a_fixed_number_of_locks_per_call() {
    let mut schedule = Schedule::default();
    for _ in 0..=MAX_ENDS_PER_CALL {
        schedule.insert(held(None, false), at_ms(9_000));
    }
    assert_eq!(schedule.take_due(at_ms(9_000)).len(), MAX_ENDS_PER_CALL);
    assert_eq!(
        schedule.ends.len(),
        MAX_ENDS_PER_CALL + 1,
        "each lock must have one due time"
    );
    assert_eq!(schedule.take_due(at_ms(9_000)).len(), 1);
}

#[test]
fn renewals_overdue_by_a_thirtieth_of_the_ttl_are_sent_at_shorter_intervals() {
    let mut schedule = schedule_with_burst(1);
    schedule.open_batches = MAX_OPEN_BATCHES;
    schedule.batch_sent_at = at_ms(3_300);
    assert_eq!(
        schedule.next_batch_at(at_ms(3_300)),
        Some(at_ms(3_300) + BATCH_INTERVAL)
    );
    assert!(schedule.is_held_back);
    let late_time = at_ms(3_300) + Duration::from_nanos(1);
    assert_eq!(
        schedule.next_batch_at(late_time),
        Some(at_ms(3_300) + SHORTEST_INTERVAL)
    );
    // If the last batch was sent more than `BATCH_INTERVAL` ago, the next batch is not delayed.
    schedule.batch_sent_at = STARTED_AT;
    assert_eq!(schedule.next_batch_at(at_ms(3_000)), Some(at_ms(3_000)));
    assert!(!schedule.is_held_back);
}

#[test]
fn outdated_due_times_of_renewals_are_dropped() {
    let mut schedule = Schedule::default();
    for _ in 0..10_000 {
        let id = schedule.insert(held(None, true), at_ms(3_000));
        schedule.remove(id);
    }
    assert!(schedule.renewals.len() < 2_000);
    assert_eq!(schedule.entries.slots.len(), 1);
    assert_eq!(schedule.next_wake_at(STARTED_AT), None);
    // `Schedule::sweep` keeps all due times that are not outdated, both of renewals and of ends.
    let renewed = schedule.insert(held(None, true), at_ms(3_000));
    let fixed = schedule.insert(held(None, false), at_ms(3_000));
    for _ in 0..10_000 {
        let id = schedule.insert(held(None, false), at_ms(3_000));
        schedule.remove(id);
    }
    assert!(schedule.ends.len() < 2_000);
    assert_eq!(ids(&schedule.take_due(at_ms(3_000))), [fixed, renewed]);
    schedule.drop_outdated_times();
    assert_eq!(schedule.ends.len() + schedule.renewals.len(), 2);
}

/// The memory of the schedule is bounded by the locks that are held. An earlier cleanup would cost time for nothing.
#[test]
fn outdated_due_times_are_dropped_above_twice_the_number_of_locks_and_1024() {
    let mut schedule = Schedule::default();
    let kept: Vec<u64> = (0..100)
        .map(|_| schedule.insert(held(None, true), at_ms(3_000)))
        .collect();
    let removed: Vec<u64> = (0..1_125)
        .map(|_| schedule.insert(held(None, true), at_ms(3_000)))
        .collect();
    // The limit counts the locks before the removal: the lock itself, and those that are kept.
    for id in &removed {
        schedule.remove(*id);
    }
    let limit = 2 * (kept.len() + 1) + 1024;
    assert_eq!(schedule.renewals.len(), 1_225);
    assert!(schedule.renewals.len() <= limit);
    let fill = |schedule: &mut Schedule| {
        let id = schedule.insert(held(None, true), at_ms(3_000));
        schedule.remove(id);
        schedule.renewals.len()
    };
    assert_eq!(fill(&mut schedule), limit);
    assert_eq!(fill(&mut schedule), kept.len());
}

#[test]
#[cfg(target_pointer_width = "64")]
fn schedule_entry_fits_its_memory_budget() {
    assert_eq!(size_of::<Entry>(), 24);
    assert_eq!(size_of::<Reverse<(Instant, u64)>>(), 16);
}
