//! Contract cases: the lifetime of fencing counters on one master.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::{Answer, Claim, Class, Extended, Fairness, Group, Mode, Part, Permit, Request};

use crate::fixtures::{LONG, assert_about, counter_key, extended, now};
use crate::requests::{
    acquire, claim, confirm, extend, queued, read, release, remove, token, write,
};
use crate::tested_master::TestedMaster;
use crate::time::secs;

const KEY: &[u8] = b"job";
const DAY: Duration = secs(86_400);
/// The fencing counters in these tests are ahead of the clock by this much.
const AHEAD: Duration = secs(30 * 86_400);

/// A claim on `keys` from a client with ordered waiters. The claim has no place in a queue. `number` is its fencing
/// number, or 0 if the masters have not agreed on a number yet.
fn group_claim(keys: &[&[u8]], mode: &Mode, number: u64) -> Arc<Claim> {
    let part = |key: &&[u8]| Part {
        key: (*key).into(),
        mode: mode.clone(),
    };
    let group_claim = Group::new(keys.iter().map(part).collect());
    group_claim.agreed(number);
    let claim = Claim::new("", keys[0], token(1), true).with_fairness(Fairness::Fair(None));
    Arc::new(claim.with_group(group_claim))
}

fn permit_claim() -> Arc<Claim> {
    let permit_claim = Permit::new(KEY.into(), 0, 3);
    let claim = Claim::new("", &permit_claim.key(), token(1), true);
    let claim = claim.with_fairness(Fairness::Fair(None));
    Arc::new(claim.with_permit(permit_claim))
}

fn owner_mode() -> Mode {
    Mode::Class(Class::Owner("o".into()))
}

#[track_caller]
fn assert_counter_is_month_ahead(master: &TestedMaster, key: &[u8], label: &str) {
    let counter = master
        .keys()
        .counter(key)
        .unwrap_or_else(|| panic!("{label}: the fencing counter must exist"));
    let time_ahead = Duration::from_micros(counter.saturating_sub(now()));
    assert!(
        time_ahead + secs(60) > AHEAD,
        "{label}: the fencing counter must be about a month ahead, but is {counter}"
    );
    println!("{label}");
    assert_about(master.keys().ttl(&counter_key(key)), DAY + time_ahead);
}

/// A fencing counter is a time in microseconds. Tests a counter that is a month ahead of the clock. If it expired
/// before the masters' clocks reach its time, the next fencing number could be smaller.
pub async fn counter_ahead_of_the_clock_expires_a_day_after_the_time_in_its_number(
    master: &TestedMaster,
) {
    let number_ahead = now() + AHEAD.as_micros() as u64;
    let shared = Mode::Class(Class::Shared);
    for (label, claim) in [
        ("plain", claim(KEY, 1)),
        ("in line", queued(KEY, 1, 7)),
        (
            "several",
            group_claim(&[KEY, b"other"], &Mode::Exclusive, 0),
        ),
        ("reader", group_claim(&[KEY], &shared, 0)),
        ("owner", group_claim(&[KEY], &owner_mode(), 0)),
        ("permit", permit_claim()),
    ] {
        master.keys().clear();
        let key = claim.key();
        master.keys().put(
            &counter_key(key),
            number_ahead.to_string().as_bytes(),
            Some(DAY + AHEAD),
        );
        let counter = master.granted(acquire(&claim, LONG, now())).await;
        assert_eq!(counter, number_ahead + 1, "{label}");
        assert_counter_is_month_ahead(master, key, label);
    }
    // Each of these requests makes the master set the fencing counter to a number that is ahead of the clocks.
    let owner_mode = group_claim(&[KEY], &owner_mode(), number_ahead);
    let requests_by_label: [(&str, Arc<Claim>, Request); 5] = [
        (
            "confirm",
            claim(KEY, 1),
            confirm(&claim(KEY, 1), number_ahead),
        ),
        (
            "confirm of a class",
            owner_mode.clone(),
            confirm(&owner_mode, number_ahead),
        ),
        ("read", claim(KEY, 1), read(&claim(KEY, 1), number_ahead)),
        (
            "removal",
            claim(KEY, 1),
            remove(&claim(KEY, 1), number_ahead),
        ),
        (
            "renewal",
            owner_mode.clone(),
            extend(&[(&owner_mode, LONG)]),
        ),
    ];
    for (label, holder, request) in requests_by_label {
        master.keys().clear();
        master.granted(acquire(&holder, LONG, now())).await;
        master
            .send(request)
            .await
            .unwrap_or_else(|fault| panic!("{label}: {fault}"));
        assert_counter_is_month_ahead(master, KEY, label);
    }
}

/// In each period of 1,000 s, only the first grant renews the expiry of a fencing counter
/// (`src/scripts/fence/raise.lua`). This test uses counters from the current period and from earlier periods.
pub async fn counter_expires_at_least_a_day_after_each_grant(master: &TestedMaster) {
    let period = 1_000_000_000;
    let claims = [b"k0", b"k1", b"k2", b"k3"].map(|key| claim(key, 1));
    for (age, ttl_left) in [(0, DAY + secs(1_001)), (1, secs(3_600)), (period, LONG)] {
        master.keys().clear();
        let old_counter = now() / period * period - age;
        for claim in &claims {
            master.keys().put(
                &counter_key(claim.key()),
                old_counter.to_string().as_bytes(),
                Some(ttl_left),
            );
        }
        master.granted(acquire(&claims[0], LONG, now())).await;
        let acquire_nth = |index: usize| master.granted(acquire(&claims[index], LONG, now()));
        tokio::join!(acquire_nth(1), acquire_nth(2), acquire_nth(3));
        for claim in &claims {
            let counter = master.keys().counter(claim.key()).unwrap_or_default();
            assert!(
                counter > old_counter,
                "the counter must rise above {old_counter}, but is {counter}"
            );
            let ttl_left = master.keys().ttl(&counter_key(claim.key()));
            let is_long_enough = ttl_left.is_none_or(|ttl_left| ttl_left + secs(60) > DAY);
            assert!(
                is_long_enough,
                "the counter must last for a day, but expires in {ttl_left:?} ({counter}, before {old_counter})"
            );
        }
    }
}

pub async fn counter_raised_ahead_of_the_clock_expires_a_day_after_the_time_in_its_number(
    master: &TestedMaster,
) {
    let number_ahead = now() + AHEAD.as_micros() as u64;
    let holder_claim = claim(KEY, 1);
    let number = master.granted(acquire(&holder_claim, LONG, now())).await;
    let reply = master.send(write(&holder_claim, number_ahead, b"3")).await;
    assert!(matches!(reply, Ok(Answer::Written { .. })), "{reply:?}");
    let reply = master.send(read(&holder_claim, number)).await;
    assert_eq!(reply, Ok(Answer::CounterAbove(number_ahead)));
    assert_counter_is_month_ahead(master, KEY, "the number of a value");
    // This renewal restores a reader's lock, and must increase the fencing counter by one.
    master.keys().clear();
    master.keys().put(
        &counter_key(KEY),
        number_ahead.to_string().as_bytes(),
        Some(LONG),
    );
    let reader_claim = group_claim(&[KEY], &Mode::Class(Class::Shared), number);
    let reply = master.send(extend(&[(&reader_claim, LONG)])).await;
    assert_eq!(reply, Ok(extended(&[Extended::Restored])));
    assert_eq!(master.keys().counter(KEY), Some(number_ahead + 1));
    assert_counter_is_month_ahead(master, KEY, "a reader that is restored");
}

pub async fn fencing_counter_far_ahead_of_every_clock_can_be_set_and_is_kept_for_decades(
    master: &TestedMaster,
) {
    let holder_claim = claim(KEY, 1);
    for number in [1 << 52, (1 << 53) - 2, u64::MAX] {
        master.keys().clear();
        master.granted(acquire(&holder_claim, LONG, now())).await;
        let reply = master.send(confirm(&holder_claim, number)).await;
        assert_eq!(reply, Ok(Answer::Confirmed), "{number}");
        assert_eq!(master.keys().counter(KEY), Some(number));
        let ttl_years = master
            .keys()
            .ttl(&counter_key(KEY))
            .map(|ttl_left| ttl_left.as_secs() / 86_400 / 365);
        assert!(ttl_years >= Some(80), "{number}: {ttl_years:?}");
        let reply = master.send(release(&holder_claim)).await;
        assert_eq!(reply, Ok(Answer::Released(true)), "{number}");
    }
}
