//! Contract cases: the orders of operators that replace masters. They read and raise the generation marker and the
//! fencing counters.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::{ChangeOrder, ChangeSeen, Class, Fault};

use crate::fixtures::{LONG, assert_about, counter_key, now, token_text};
use crate::tested_master::TestedMaster;
use crate::time::secs;

/// The key of the generation marker.
pub(crate) const MARKER_KEY: &[u8] = b"quorate:masters";

/// The key of the age record.
pub(crate) const AGE_KEY: &[u8] = b"quorate:masters:age";

const PRINT: &str = "00000000000000aa";
const OTHER_PRINT: &str = "00000000000000bb";
const NAME: &str = "00000000000000cc";

/// The expiry of a fencing counter: a day, plus 1,001 s, because not every grant renews the expiry.
pub(crate) const COUNTER_TTL: Duration = secs(86_400 + 1_001);

pub(crate) fn raise(number: u64, print: &str, restores: bool) -> ChangeOrder {
    ChangeOrder::Raise {
        number,
        print: print.into(),
        step: number.div_ceil(2),
        restores,
    }
}

pub(crate) fn carry(counters: &[(&[u8], u64)]) -> ChangeOrder {
    let counter = |(lock, number): &(&[u8], u64)| (counter_key(lock), *number);
    let counters: Vec<_> = counters.iter().map(counter).collect();
    ChangeOrder::Carry(Arc::from(counters))
}

/// Sends an order that must succeed.
async fn done(master: &TestedMaster, order: ChangeOrder) -> ChangeSeen {
    let seen = master.order(order.clone()).await;
    assert_eq!(seen.fault, None, "{order:?} must succeed");
    seen
}

/// Raises the marker, and returns the marker that the master has then.
async fn raised(master: &TestedMaster, number: u64, print: &str) -> Option<String> {
    done(master, raise(number, print, false)).await.mark
}

/// The age record: the run id, the age in milliseconds, and the life of the record.
fn age_record(master: &TestedMaster) -> Option<(String, u64, String)> {
    let text = String::from_utf8(master.keys().read(AGE_KEY)?).expect("the record must be text");
    let mut words = text.split(' ').map(str::to_owned);
    let mut word = || words.next().expect("the record must have three words");
    let (run, age, life) = (word(), word(), word());
    Some((run, age.parse().expect("the age must be a number"), life))
}

fn put(master: &TestedMaster, key: &[u8], text: &str) {
    master.keys().put(key, text.as_bytes(), None);
}

pub async fn raised_marker_is_stored_with_an_age_record_if_the_master_had_none(
    master: &TestedMaster,
) {
    let seen = done(master, ChangeOrder::ReadState).await;
    assert_eq!((seen.mark, master.keys().count()), (None, 0));
    let seen = done(master, raise(0, PRINT, false)).await;
    assert_eq!(seen.mark, Some(format!("0 {PRINT}")));
    let (run, age, life) = age_record(master).expect("the record must be written");
    assert_eq!(Some(&run), seen.run_id.as_ref());
    // The first record takes the age from the uptime of the server.
    let uptime = seen.uptime.expect("the uptime must be known");
    assert!(Duration::from_millis(age) <= uptime, "{age} ms, {uptime:?}");
    assert!(!life.starts_with("lost-"), "{life}");
    let ttls = [MARKER_KEY, AGE_KEY].map(|key| master.keys().ttl(key));
    assert_eq!(ttls, [None; 2], "marker and record must not expire");
    assert_eq!(master.keys().count(), 2);
}

pub async fn restored_marker_gets_an_age_record_of_zero(master: &TestedMaster) {
    let seen = done(master, raise(6, PRINT, true)).await;
    assert_eq!(seen.mark, Some(format!("6 {PRINT}")));
    let (_, age, life) = age_record(master).expect("the record must be written");
    assert_eq!(age, 0);
    assert!(life.starts_with("lost-"), "{life}");
}

pub async fn generation_marker_is_raised_but_never_lowered(master: &TestedMaster) {
    for (number, print, expected) in [
        (1, PRINT, format!("1 {PRINT}")),
        (2, OTHER_PRINT, format!("2 {OTHER_PRINT}")),
        (2, PRINT, format!("2 {OTHER_PRINT}")),
        (1, PRINT, format!("2 {OTHER_PRINT}")),
        // Markers are compared as numbers, not as texts.
        (10, PRINT, format!("10 {PRINT}")),
        (9, OTHER_PRINT, format!("10 {PRINT}")),
    ] {
        assert_eq!(raised(master, number, print).await, Some(expected));
    }
}

pub async fn raised_marker_keeps_the_age_record(master: &TestedMaster) {
    done(master, raise(0, PRINT, false)).await;
    put(master, AGE_KEY, "some-run 86400000 some-life");
    for restores in [false, true] {
        done(master, raise(1 + u64::from(restores), PRINT, restores)).await;
        let record = master.keys().read(AGE_KEY);
        assert_eq!(record, Some(b"some-run 86400000 some-life".to_vec()));
    }
    master.keys().delete(AGE_KEY);
    done(master, raise(3, PRINT, false)).await;
    assert_eq!(master.keys().read(AGE_KEY), None);
}

pub async fn name_is_added_to_a_marker_of_the_same_masters_and_number_only(master: &TestedMaster) {
    let named = format!("{PRINT} {NAME}");
    let other_named = format!("{OTHER_PRINT} {NAME}");
    let other_name = format!("{PRINT} 00000000000000dd");
    for (number, print, expected) in [
        (4, PRINT, format!("4 {PRINT}")),
        (4, &other_named, format!("4 {PRINT}")),
        (3, &named, format!("4 {PRINT}")),
        (4, &named, format!("4 {named}")),
        (4, &other_name, format!("4 {named}")),
        (4, PRINT, format!("4 {named}")),
        (5, PRINT, format!("5 {PRINT}")),
        (6, &other_name, format!("6 {other_name}")),
    ] {
        assert_eq!(raised(master, number, print).await, Some(expected));
    }
}

pub async fn text_that_is_no_marker_is_not_overwritten(master: &TestedMaster) {
    for text in [
        "somebody",
        "1",
        "1 ",
        "-1 aa",
        "1 aa bb cc",
        "1  aa",
        "1 xyz",
        "x 00000000000000aa",
    ] {
        put(master, MARKER_KEY, text);
        assert_eq!(raised(master, 8, PRINT).await, Some(text.to_owned()));
        let named = format!("{PRINT} {NAME}");
        assert_eq!(raised(master, 8, &named).await, Some(text.to_owned()));
    }
    assert_eq!(age_record(master), None);
    // A marker is recognized by its form: neither the length nor the case of a fingerprint matters.
    put(master, MARKER_KEY, "7 Ab");
    assert_eq!(raised(master, 8, PRINT).await, Some(format!("8 {PRINT}")));
}

pub async fn marker_key_of_another_data_type_is_not_overwritten(master: &TestedMaster) {
    master.keys().put_foreign(MARKER_KEY);
    for order in [
        raise(1, PRINT, false),
        raise(1, PRINT, true),
        ChangeOrder::ReadState,
    ] {
        let seen = master.order(order).await;
        assert!(seen.fault.is_some() && seen.mark.is_none(), "{seen:?}");
    }
    assert_eq!(master.keys().read(MARKER_KEY), Some(b"foreign".to_vec()));
    assert_eq!(age_record(master), None);
}

pub async fn counter_below_the_carried_number_is_raised_and_expires_like_a_granted_one(
    master: &TestedMaster,
) {
    let number = now();
    put(master, &counter_key(b"low"), &(number - 1).to_string());
    let order = carry(&[(b"low", number), (b"none", number), (b"past", 5)]);
    assert_eq!(done(master, order).await.owned, []);
    for lock in [&b"low"[..], b"none", b"past"] {
        let counter = if lock == b"past" { 5 } else { number };
        assert_eq!(master.keys().counter(lock), Some(counter));
        assert_about(master.keys().ttl(&counter_key(lock)), COUNTER_TTL);
    }
    assert_eq!(master.keys().count(), 3);
}

pub async fn counter_above_the_carried_number_is_not_lowered(master: &TestedMaster) {
    let number = now();
    for above in [0, 1] {
        let text = (number + above).to_string();
        (master.keys()).put(&counter_key(b"job"), text.as_bytes(), Some(LONG));
        assert_eq!(done(master, carry(&[(b"job", number)])).await.owned, []);
        assert_eq!(master.keys().counter(b"job"), Some(number + above));
        assert_about(master.keys().ttl(&counter_key(b"job")), LONG);
    }
}

pub async fn counter_carried_ahead_of_the_clock_expires_a_day_after_the_time_in_its_number(
    master: &TestedMaster,
) {
    let month = secs(30 * 86_400);
    let number = now() + month.as_micros() as u64;
    done(master, carry(&[(b"job", number)])).await;
    assert_eq!(master.keys().counter(b"job"), Some(number));
    assert_about(master.keys().ttl(&counter_key(b"job")), COUNTER_TTL + month);
}

pub async fn counter_of_a_lock_that_an_owner_holds_is_reported_and_not_raised(
    master: &TestedMaster,
) {
    let (number, owner) = (now(), Class::Owner("me".into()).lock_value());
    for (lock, counter) in [
        (&b"a"[..], None),
        (b"b", Some(number - 1)),
        (b"c", Some(number)),
    ] {
        master.keys().put(lock, &owner, None);
        if let Some(counter) = counter {
            put(master, &counter_key(lock), &counter.to_string());
        }
        let seen = done(master, carry(&[(b"free", number), (lock, number)])).await;
        assert_eq!(seen.owned, [(counter_key(lock), owner.clone())]);
        assert_eq!(master.keys().counter(lock), counter);
        assert_eq!(master.keys().counter(b"free"), Some(number));
    }
}

pub async fn counter_above_the_carried_number_is_not_reported_although_an_owner_holds_the_lock(
    master: &TestedMaster,
) {
    let (number, owner) = (now(), Class::Owner("me".into()).lock_value());
    master.keys().put(b"job", &owner, None);
    put(master, &counter_key(b"job"), &(number + 1).to_string());
    assert_eq!(done(master, carry(&[(b"job", number)])).await.owned, []);
    assert_eq!(master.keys().counter(b"job"), Some(number + 1));
}

pub async fn counter_is_raised_although_a_reader_or_another_client_holds_the_lock(
    master: &TestedMaster,
) {
    let number = now();
    let holders = [
        token_text(1),
        Class::Shared.lock_value(),
        b"quorate:owner".to_vec(),
        b"somebody".to_vec(),
    ];
    for (later, holder) in (0..).zip(holders) {
        master.keys().put(b"job", &holder, None);
        let order = carry(&[(b"job", number + later)]);
        assert_eq!(done(master, order).await.owned, []);
        assert_eq!(master.keys().counter(b"job"), Some(number + later));
        assert_eq!(master.keys().read(b"job"), Some(holder));
    }
}

pub async fn counter_is_raised_although_the_lock_key_has_another_data_type(master: &TestedMaster) {
    let number = now();
    master.keys().put_foreign(b"job");
    assert_eq!(done(master, carry(&[(b"job", number)])).await.owned, []);
    assert_eq!(master.keys().counter(b"job"), Some(number));
}

/// Carries the counters of three locks. The counter of the second lock cannot be read.
async fn second_counter_stops_carrying(master: &TestedMaster) -> Fault {
    let number = now();
    let order = carry(&[(b"a", number), (b"b", number), (b"c", number)]);
    let fault = master.order(order).await.fault;
    assert_eq!(master.keys().counter(b"a"), Some(number));
    assert_eq!(master.keys().read(&counter_key(b"c")), None);
    fault.expect("the order must fail")
}

pub async fn carrying_stops_at_a_counter_of_another_data_type(master: &TestedMaster) {
    master.keys().put_foreign(&counter_key(b"b"));
    let fault = second_counter_stops_carrying(master).await;
    assert_eq!(fault, Fault::WrongType);
}

pub async fn carrying_stops_at_a_malformed_counter(master: &TestedMaster) {
    let owner = Class::Owner("me".into()).lock_value();
    for holder in [None, Some(owner), Some(token_text(1))] {
        master.keys().clear();
        put(master, &counter_key(b"b"), "many");
        if let Some(holder) = holder {
            master.keys().put(b"b", &holder, None);
        }
        let fault = second_counter_stops_carrying(master).await;
        assert!(matches!(fault, Fault::Server(_)), "{fault:?}");
        let counter = master.keys().read(&counter_key(b"b"));
        assert_eq!(counter, Some(b"many".to_vec()));
    }
}

pub async fn counters_far_behind_the_clock_are_not_listed(master: &TestedMaster) {
    let clock = now();
    let ages = [
        (&b"ahead"[..], -3_600),
        (b"new", 0),
        (b"old", 600),
        (b"older", 6_000),
    ];
    for (lock, age) in ages {
        let number = clock.saturating_add_signed(-age * 1_000_000);
        put(master, &counter_key(lock), &number.to_string());
    }
    put(master, &counter_key(b"malformed"), "many");
    put(master, b"job", "1");
    for (within, count) in [(60, 2), (1_000, 3), (100_000, 4)] {
        let seen = done(master, ChangeOrder::Counters(secs(within))).await;
        let listed = ages[..count].iter().map(|(lock, age)| {
            let number = clock.saturating_add_signed(-age * 1_000_000);
            (counter_key(lock), number)
        });
        let listed: Vec<_> = listed.collect();
        assert_eq!(seen.counters, listed, "{within} s");
    }
}

pub async fn listed_values_are_the_locks_under_which_a_value_is_stored(master: &TestedMaster) {
    for lock in [&b"b"[..], b"a*?[", b"\xff\n"] {
        put(master, &[b"quorate:value:", lock].concat(), "1 value");
        put(master, &counter_key(lock), "1");
    }
    master.keys().put_foreign(b"quorate:value:c");
    put(master, b"quorate:valu", "1");
    let seen = done(master, ChangeOrder::Values).await;
    let names = [&b"a*?["[..], b"b", b"c", b"\xff\n"];
    assert_eq!(
        (seen.names, seen.values),
        (names.map(<[u8]>::to_vec).to_vec(), 4)
    );
}
