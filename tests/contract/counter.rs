//! Contract cases: the lifetime of fencing counters on one master.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Answer, Claim, Class, Extended, Fairness, Group, Mode, Part, Permit, Request};

use crate::arm::{Arm, LONG, assert_about, each, fence, now};
use crate::support::asking::{
    acquire, claim, confirm, extend, queued, read, release, remove, token, write,
};
use crate::support::secs;

const KEY: &[u8] = b"job";
const DAY: Duration = secs(86_400);
/// The fencing counters in these tests are ahead of the clock by this much.
const AHEAD: Duration = secs(30 * 86_400);

/// A claim on `keys` from a client with ordered waiters. The claim has no place in a queue. `number` is its fencing
/// number, or 0 if the masters have not agreed on a number yet.
fn group(keys: &[&[u8]], mode: &Mode, number: u64) -> Arc<Claim> {
    let part = |key: &&[u8]| Part {
        key: (*key).into(),
        mode: mode.clone(),
    };
    let group = Group::new(keys.iter().map(part).collect());
    group.agreed(number);
    let claim = Claim::new("", keys[0], token(1), true).with_fairness(Fairness::Fair(None));
    Arc::new(claim.with_group(group))
}

fn permit() -> Arc<Claim> {
    let permit = Permit::new(KEY.into(), 0, 3);
    let claim = Claim::new("", &permit.key(), token(1), true);
    let claim = claim.with_fairness(Fairness::Fair(None));
    Arc::new(claim.with_permit(permit))
}

fn owner() -> Mode {
    Mode::Class(Class::Owner("o".into()))
}

#[track_caller]
fn assert_kept(arm: &Arm, key: &[u8], way: &str) {
    let counter = arm
        .counter(key)
        .unwrap_or_else(|| panic!("{way}: the fencing counter must exist"));
    let ahead = Duration::from_micros(counter.saturating_sub(now()));
    assert!(
        ahead + secs(60) > AHEAD,
        "{way}: the fencing counter must be about a month ahead, but is {counter}"
    );
    println!("{way}");
    assert_about(arm.ttl(&fence(key)), DAY + ahead);
}

/// A fencing counter is a time in microseconds. Tests a counter that is a month ahead of the clock. If it expired
/// before the masters' clocks reach its time, the next fencing number could be smaller.
pub(crate) async fn counter_ahead_of_the_clock_expires_a_day_after_the_time_in_its_number(
    arm: &Arm,
) {
    let ahead = now() + AHEAD.as_micros() as u64;
    let shared = Mode::Class(Class::Shared);
    for (way, claim) in [
        ("plain", claim(KEY, 1)),
        ("in line", queued(KEY, 1, 7)),
        ("several", group(&[KEY, b"other"], &Mode::Exclusive, 0)),
        ("reader", group(&[KEY], &shared, 0)),
        ("owner", group(&[KEY], &owner(), 0)),
        ("permit", permit()),
    ] {
        arm.clear();
        let key = claim.key();
        arm.put(&fence(key), ahead.to_string().as_bytes(), Some(DAY + AHEAD));
        let counter = arm.granted(acquire(&claim, LONG, now())).await;
        assert_eq!(counter, ahead + 1, "{way}");
        assert_kept(arm, key, way);
    }
    // Each of these requests makes the master set the fencing counter to a number that is ahead of the clocks.
    let owner = group(&[KEY], &owner(), ahead);
    let asked: [(&str, Arc<Claim>, Request); 5] = [
        ("confirm", claim(KEY, 1), confirm(&claim(KEY, 1), ahead)),
        ("confirm of a class", owner.clone(), confirm(&owner, ahead)),
        ("read", claim(KEY, 1), read(&claim(KEY, 1), ahead)),
        ("removal", claim(KEY, 1), remove(&claim(KEY, 1), ahead)),
        ("renewal", owner.clone(), extend(&[(&owner, LONG)])),
    ];
    for (way, holder, request) in asked {
        arm.clear();
        arm.granted(acquire(&holder, LONG, now())).await;
        arm.ask(request)
            .await
            .unwrap_or_else(|fault| panic!("{way}: {fault}"));
        assert_kept(arm, KEY, way);
    }
}

/// In each period of 1,000 s, only the first grant renews the expiry of a fencing counter
/// (`src/scripts/fence/raise.lua`). This test uses counters from the current period and from earlier periods.
pub(crate) async fn counter_expires_at_least_a_day_after_each_grant(arm: &Arm) {
    let period = 1_000_000_000;
    let claims = [b"k0", b"k1", b"k2", b"k3"].map(|key| claim(key, 1));
    for (before, left) in [(0, DAY + secs(1_001)), (1, secs(3_600)), (period, LONG)] {
        arm.clear();
        let was = now() / period * period - before;
        for claim in &claims {
            arm.put(&fence(claim.key()), was.to_string().as_bytes(), Some(left));
        }
        arm.granted(acquire(&claims[0], LONG, now())).await;
        let granted = |at: usize| arm.granted(acquire(&claims[at], LONG, now()));
        tokio::join!(granted(1), granted(2), granted(3));
        for claim in &claims {
            let counter = arm.counter(claim.key()).unwrap_or_default();
            assert!(
                counter > was,
                "the counter must rise above {was}, but is {counter}"
            );
            let left = arm.ttl(&fence(claim.key()));
            let enough = left.is_none_or(|left| left + secs(60) > DAY);
            assert!(
                enough,
                "the counter must last for a day, but expires in {left:?} ({counter}, before {was})"
            );
        }
    }
}

pub(crate) async fn counter_raised_ahead_of_the_clock_expires_a_day_after_the_time_in_its_number(
    arm: &Arm,
) {
    let ahead = now() + AHEAD.as_micros() as u64;
    let holder = claim(KEY, 1);
    let number = arm.granted(acquire(&holder, LONG, now())).await;
    let done = arm.ask(write(&holder, ahead, b"3")).await;
    assert!(matches!(done, Ok(Answer::Written { .. })), "{done:?}");
    let said = arm.ask(read(&holder, number)).await;
    assert_eq!(said, Ok(Answer::CounterAbove(ahead)));
    assert_kept(arm, KEY, "the number of a value");
    // This renewal restores a reader's lock, and must increase the fencing counter by one.
    arm.clear();
    arm.put(&fence(KEY), ahead.to_string().as_bytes(), Some(LONG));
    let reader = group(&[KEY], &Mode::Class(Class::Shared), number);
    let said = arm.ask(extend(&[(&reader, LONG)])).await;
    assert_eq!(said, Ok(each(&[Extended::Restored])));
    assert_eq!(arm.counter(KEY), Some(ahead + 1));
    assert_kept(arm, KEY, "a reader that is restored");
}

pub(crate) async fn fencing_counter_far_ahead_of_every_clock_can_be_set_and_is_kept_for_decades(
    arm: &Arm,
) {
    let holder = claim(KEY, 1);
    for number in [1 << 52, (1 << 53) - 2, u64::MAX] {
        arm.clear();
        arm.granted(acquire(&holder, LONG, now())).await;
        let said = arm.ask(confirm(&holder, number)).await;
        assert_eq!(said, Ok(Answer::Confirmed), "{number}");
        assert_eq!(arm.counter(KEY), Some(number));
        let years = arm
            .ttl(&fence(KEY))
            .map(|left| left.as_secs() / 86_400 / 365);
        assert!(years >= Some(80), "{number}: {years:?}");
        let said = arm.ask(release(&holder)).await;
        assert_eq!(said, Ok(Answer::Released(true)), "{number}");
    }
}
