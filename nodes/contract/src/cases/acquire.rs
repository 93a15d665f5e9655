//! Contract cases: acquiring a lock on one master.

use std::sync::Arc;

use quorate::node::{Answer, Claim, Class, Extended, Fairness, Fault, Group, Mode, Part};

use crate::fixtures::{LONG, assert_about, counter_key, now, token_text};
use crate::requests::{
    acquire, claim, classic, confirm, extend, force_release, queued, release, status, token,
};
use crate::tested_master::TestedMaster;
use crate::time::{ms, secs};

const KEY: &[u8] = b"job";
const DAY: std::time::Duration = secs(86_400);

pub async fn acquire_of_a_free_lock_is_granted_and_sets_the_lock_key_to_the_token(
    master: &TestedMaster,
) {
    let counter = master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    assert_eq!(master.keys().read(KEY), Some(token_text(1)));
    assert_eq!(master.keys().counter(KEY), Some(counter));
    assert_eq!(master.keys().count(), 2);
}

pub async fn acquire_of_a_held_lock_is_refused_with_the_remaining_ttl_of_the_lock(
    master: &TestedMaster,
) {
    let counter = master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    let reply = master.send(acquire(&claim(KEY, 2), secs(1), now())).await;
    let Ok(Answer::Refused { ttl_left, line }) = reply else {
        panic!("{reply:?}")
    };
    assert_about(ttl_left, LONG);
    assert_eq!(
        line, None,
        "the refusal must contain the queue only for requests that join the queue"
    );
    assert_eq!(master.keys().read(KEY), Some(token_text(1)));
    assert_about(master.keys().ttl(KEY), LONG);
    assert_eq!(master.keys().counter(KEY), Some(counter));
}

pub async fn acquire_of_a_lock_key_without_expiry_is_refused_without_a_remaining_ttl(
    master: &TestedMaster,
) {
    master.keys().put(KEY, b"somebody", None);
    let reply = master.send(acquire(&claim(KEY, 1), LONG, now())).await;
    let (ttl_left, line) = (None, None);
    assert_eq!(reply, Ok(Answer::Refused { ttl_left, line }));
    assert_eq!(master.keys().read(KEY).as_deref(), Some(&b"somebody"[..]));
    assert_eq!(master.keys().counter(KEY), None);
}

pub async fn repeated_acquire_by_the_holder_is_granted_again_and_changes_nothing(
    master: &TestedMaster,
) {
    let claim = claim(KEY, 1);
    let first_number = master.granted(acquire(&claim, secs(60), now())).await;
    let again = master.granted(acquire(&claim, LONG, now() + 500_000)).await;
    assert_eq!(again, first_number);
    assert_eq!(master.keys().counter(KEY), Some(first_number));
    assert_about(master.keys().ttl(KEY), secs(60));
}

pub async fn fencing_counter_rises_with_every_grant_even_after_a_release(master: &TestedMaster) {
    let proposal = now();
    let mut last_counter = 0;
    for n in 1..=20 {
        let claim = claim(KEY, n);
        let counter = master.granted(acquire(&claim, LONG, proposal)).await;
        assert!(
            counter > last_counter,
            "the counter {counter} must be larger than the earlier counter {last_counter}"
        );
        last_counter = counter;
        let released = master.send(release(&claim)).await;
        assert_eq!(released, Ok(Answer::Released(true)));
    }
}

pub async fn proposed_fencing_number_near_the_masters_clock_is_granted_unchanged(
    master: &TestedMaster,
) {
    let proposal = now() + 300_000;
    let counter = master
        .granted(acquire(&claim(KEY, 1), LONG, proposal))
        .await;
    assert_eq!(counter, proposal);
}

pub async fn proposed_fencing_number_is_lowered_to_at_most_one_second_ahead_of_the_masters_clock(
    master: &TestedMaster,
) {
    let started_at = now();
    let far_proposal = started_at + 3_600_000_000;
    let counter = master
        .granted(acquire(&claim(KEY, 1), LONG, far_proposal))
        .await;
    let allowed_numbers = started_at + 1_000_000..=now() + 1_000_000;
    assert!(
        allowed_numbers.contains(&counter),
        "the counter {counter} must be in {allowed_numbers:?}"
    );
}

pub async fn proposed_fencing_number_is_raised_to_at_most_one_second_behind_the_masters_clock(
    master: &TestedMaster,
) {
    let started_at = now();
    let counter = master.granted(acquire(&claim(KEY, 1), LONG, 0)).await;
    let allowed_numbers = started_at - 1_000_000..=now() - 1_000_000;
    assert!(
        allowed_numbers.contains(&counter),
        "the counter {counter} must be in {allowed_numbers:?}"
    );
}

pub async fn granted_fencing_number_exceeds_a_counter_above_the_proposed_number(
    master: &TestedMaster,
) {
    let high_counter = now() + 5_000_000;
    master.keys().put(
        &counter_key(KEY),
        high_counter.to_string().as_bytes(),
        Some(LONG),
    );
    let counter = master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    assert_eq!(counter, high_counter + 1);
    assert_eq!(master.keys().counter(KEY), Some(high_counter + 1));
}

pub async fn expired_lock_can_be_acquired_by_another_client(master: &TestedMaster) {
    let first_number = master.granted(acquire(&claim(KEY, 1), ms(20), now())).await;
    // On a busy machine, the client of a store knows the store's time only to some 100 ms.
    tokio::time::sleep(ms(if master.is_store() { 500 } else { 60 })).await;
    let second_number = master.granted(acquire(&claim(KEY, 2), LONG, now())).await;
    assert!(
        second_number > first_number,
        "{second_number} must be above {first_number}"
    );
    assert_eq!(master.keys().read(KEY), Some(token_text(2)));
}

pub async fn lock_key_expires_after_its_ttl_and_the_fencing_counter_after_a_day(
    master: &TestedMaster,
) {
    master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    assert_about(master.keys().ttl(KEY), LONG);
    assert_about(master.keys().ttl(&counter_key(KEY)), DAY);
}

/// Tests TTLs that are not whole milliseconds. If a master rounded a TTL down, the key could expire before the holder's
/// lease ends.
pub async fn ttl_is_rounded_up_to_whole_milliseconds(master: &TestedMaster) {
    let short_ttl = std::time::Duration::from_micros(100);
    for claim in [claim(b"a", 1), queued(b"b", 1, 7)] {
        master.granted(acquire(&claim, short_ttl, now())).await;
    }
    let classic_claim = classic(b"c", 1);
    let reply = master.send(acquire(&classic_claim, short_ttl, now())).await;
    assert_eq!(reply, Ok(Answer::Granted { counter: None }));
    let held_claim = claim(b"d", 1);
    master.granted(acquire(&held_claim, LONG, now())).await;
    let reply = master.send(extend(&[(&held_claim, short_ttl)])).await;
    assert_eq!(reply, Ok(Answer::Extended(vec![Extended::Kept])));
}

pub async fn acquire_fails_and_changes_nothing_if_the_lock_key_has_another_data_type(
    master: &TestedMaster,
) {
    master.keys().put_foreign(KEY);
    let reply = master.send(acquire(&claim(KEY, 1), LONG, now())).await;
    assert_eq!(reply, Err(Fault::WrongType));
    assert_eq!(master.keys().read(KEY).as_deref(), Some(&b"foreign"[..]));
    assert_eq!(master.keys().ttl(KEY), None);
    assert_eq!(
        master.keys().count(),
        1,
        "the refused request must create no counter key"
    );
}

pub async fn acquire_fails_and_sets_no_lock_key_if_the_fencing_counter_has_another_data_type(
    master: &TestedMaster,
) {
    master.keys().put_foreign(&counter_key(KEY));
    let reply = master.send(acquire(&claim(KEY, 1), LONG, now())).await;
    assert_eq!(reply, Err(Fault::WrongType));
    assert_eq!(master.keys().read(KEY), None);
    assert_eq!(
        master.keys().read(&counter_key(KEY)).as_deref(),
        Some(&b"foreign"[..])
    );
}

pub async fn acquire_and_confirmation_fail_if_the_fencing_counter_cannot_be_incremented(
    master: &TestedMaster,
) {
    let (held_claim, free_claim) = (claim(b"held", 1), claim(KEY, 2));
    master.granted(acquire(&held_claim, LONG, now())).await;
    for malformed in [
        "9007199254740992",
        "9007199254740993",
        "18446744073709551615",
        "inf",
        "-inf",
        "nan",
        "-1",
        "1.5",
        "1e300",
        "seven",
        "",
    ] {
        master
            .keys()
            .put(&counter_key(KEY), malformed.as_bytes(), Some(LONG));
        master
            .keys()
            .put(&counter_key(b"held"), malformed.as_bytes(), Some(LONG));
        let queued_claim = queued(KEY, 3, 7);
        for request in [
            acquire(&free_claim, LONG, now()),
            acquire(&queued_claim, LONG, now()),
            confirm(&held_claim, now()),
        ] {
            let reply = master.send(request).await;
            assert!(
                matches!(reply, Err(Fault::Server(_))),
                "{malformed:?}: {reply:?}"
            );
        }
        master
            .send(release(&queued_claim))
            .await
            .expect("the release of the waiter's claim must succeed");
        assert_eq!(
            master.keys().read(KEY),
            None,
            "no lock may be set: counter {malformed:?}"
        );
        assert_eq!(
            master.keys().read(&counter_key(KEY)).as_deref(),
            Some(malformed.as_bytes())
        );
    }
    // Set the fencing counter to 2^53 - 1, the largest value that a grant can still increase.
    master
        .keys()
        .put(&counter_key(KEY), b"9007199254740991", Some(LONG));
    let counter = master.granted(acquire(&free_claim, LONG, now())).await;
    assert_eq!(counter, 1 << 53);
}

pub async fn acquire_of_a_withdrawn_claim_sets_no_key(master: &TestedMaster) {
    let claim = claim(KEY, 1);
    claim.withdraw();
    let reply = master.send(acquire(&claim, LONG, now())).await;
    assert_eq!(reply, Err(Fault::Withdrawn));
    assert!(Fault::Withdrawn.left_nothing());
    assert_eq!(master.keys().count(), 0);
}

pub async fn refusal_and_status_request_return_the_first_96_bytes_of_a_long_lock_value(
    master: &TestedMaster,
) {
    // Set a lock value that exceeds the size limit of a reply.
    let long_value = vec![b'x'; 9 << 20];
    master.keys().put(KEY, &long_value, None);
    let plain_claim = Claim::new("", KEY, token(1), true).with_fairness(Fairness::Fair(None));
    let part = Part {
        key: KEY.into(),
        mode: Mode::Class(Class::Shared),
    };
    let group_claim = Claim::new("", KEY, token(1), true).with_fairness(Fairness::Fair(None));
    let group_claim = group_claim.with_group(Group::new(vec![part]));
    for claim in [plain_claim, group_claim] {
        let reply = master.send(acquire(&Arc::new(claim), LONG, now())).await;
        let Ok(Answer::Refused {
            line: Some(line), ..
        }) = reply
        else {
            panic!("{reply:?}")
        };
        assert_eq!(line.holder.as_deref(), Some(&long_value[..96]));
    }
    for request in [status(KEY), force_release(KEY, &[], false)] {
        match master.send(request).await {
            Ok(Answer::State(state)) => {
                assert_eq!(state.holder.as_deref(), Some(&long_value[..96]));
            }
            other => panic!("{other:?}"),
        }
    }
}
