//! Questions about an acquire: what it takes, when it is refused, and what is left if it fails or is dropped.

use std::time::{Duration, Instant};

use quorate::{AcquireError, BuildError, Redlock, ValueError, Wait};
use quorate_testbed::{Fault as Harm, Way};

use super::kind::Kind;
use super::world::{LONG_WAIT, SHORT_TTL, SlowWorld, World, granted, refused, refused_as_held};
use crate::support::polled::{MAX_POLLS, poll_then_drop};
use crate::support::{ask_server, ms, secs};

pub(crate) async fn lock_is_refused_while_held_and_leaves_no_key_when_it_is_released(
    kind: &'static dyn Kind,
) {
    let world = World::new(kind).await;
    let (holder, other) = (world.client(), world.client());
    let held = world.acquire_as_rival(&holder).await;
    holder.flush().await;
    let keys_before = world.keys_without_notes();
    refused_as_held(kind.acquire(&other, Wait::None).await);
    other.flush().await;
    assert_eq!(world.keys_without_notes(), keys_before);
    held.release().await;
    for _ in 0..2 {
        let held = granted(kind.acquire(&other, Wait::None).await);
        assert!(held.is_valid());
        held.release().await;
    }
    other.flush().await;
    holder.flush().await;
    assert_eq!(world.keys(), [].into());
}

pub(crate) async fn acquire_of_a_held_lock_ends_at_its_wait_limit(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let (holder, other) = (world.client(), world.client());
    let held = world.acquire_as_rival(&holder).await;
    let started_at = Instant::now();
    refused_as_held(kind.acquire(&other, Wait::For(ms(300))).await);
    let elapsed = started_at.elapsed();
    // The wait should end after 300 ms. The limit is 2 s longer, because the machine may be busy.
    assert!(elapsed >= ms(295) && elapsed < ms(2_300), "{elapsed:?}");
    other.flush().await;
    held.release().await;
    holder.flush().await;
    assert_eq!(world.keys(), [].into(), "the waiter must leave the queue");
}

pub(crate) async fn one_dead_master_of_three_changes_nothing_and_two_give_no_quorum(
    kind: &'static dyn Kind,
) {
    let world = World::new(kind).await;
    let (redlock, other) = (world.client(), world.client());
    world.acquire(&redlock).await.release().await;
    world.masters[0].kill().expect("killed");
    for _ in 0..2 {
        let held = granted(kind.acquire(&redlock, LONG_WAIT).await);
        assert!(held.is_valid());
        held.release().await;
    }
    let _held = world.acquire_as_rival(&other).await;
    world.masters[1].kill().expect("killed");
    let error = refused(kind.acquire(&redlock, Wait::For(ms(300))).await);
    assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
}

/// The masters have a string of another program in the place of each lock key, and later a list.
pub(crate) async fn key_of_another_program_is_reported_and_not_changed(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let redlock = world.client();
    let keys_of_master = |master| kind.lock_keys().iter().map(move |key| (master, *key));
    let master_keys: Vec<_> = world.masters.iter().flat_map(keys_of_master).collect();
    let run_on_all = |command: &[&str]| {
        for &(master, key) in &master_keys {
            ask_server(master, &[&command[..1], &[key], &command[1..]].concat());
        }
    };
    run_on_all(&["SET", "private"]);
    let keys_before = world.keys();
    match refused(kind.acquire(&redlock, Wait::None).await) {
        AcquireError::HeldByOther(missed) => {
            assert_eq!(missed.foreign, kind.sees_foreign_values());
        }
        other => panic!("{other}"),
    }
    redlock.flush().await;
    for &(master, key) in &master_keys {
        assert_eq!(ask_server(master, &["GETDEL", key]), "private".into());
    }
    run_on_all(&["RPUSH", "private"]);
    let error = refused(kind.acquire(&redlock, Wait::None).await);
    if kind.sees_foreign_types() {
        assert!(matches!(error, AcquireError::NoQuorum(_)), "{error}");
        let details = error.details();
        assert!(details.contains("holds another type of value"), "{details}");
    } else {
        assert!(matches!(error, AcquireError::HeldByOther(_)), "{error}");
    }
    redlock.flush().await;
    assert_eq!(world.keys(), keys_before);
    for (master, key) in master_keys {
        assert_eq!(ask_server(master, &["LLEN", key]).int(), Some(1));
    }
}

pub(crate) async fn lock_of_a_dead_client_can_be_acquired_after_its_ttl(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let (dying_client, proxies) = world.client_behind_proxies(&[0, 1, 2], SHORT_TTL);
    let dead_lock = world.acquire_as_rival(&dying_client).await;
    let started_at = Instant::now();
    let cuts: Vec<_> = proxies
        .iter()
        .map(|proxy| proxy.inject(Harm::Hold(Way::Both)))
        .collect();
    let other_client = world.client();
    refused_as_held(kind.acquire(&other_client, Wait::None).await);
    let held = world.acquire(&other_client).await;
    // The dead client may have renewed its lock before the cut, but not later.
    assert!(
        started_at.elapsed() > SHORT_TTL / 2,
        "{:?}",
        started_at.elapsed()
    );
    if held.token().is_some() && dead_lock.token().is_some() {
        assert!(held.token() > dead_lock.token());
    }
    drop(cuts);
}

/// Creates the future of an acquire, drops it after 1, 2, .. polls, and checks that no key is left.
pub(crate) async fn acquire_dropped_at_any_await_point_leaves_no_key(kind: &'static dyn Kind) {
    tokio::time::pause();
    for delays in [[0, 0, 0], [1, 2, 4], [3, 0, 8]] {
        dropped_after_any_number_of_polls(kind, delays).await;
    }
}

async fn dropped_after_any_number_of_polls(kind: &'static dyn Kind, delays: [u64; 3]) {
    for polls in 1..=MAX_POLLS {
        let world = SlowWorld::new(kind, delays).await;
        let acquired = poll_then_drop(kind.acquire(&world.first_client, LONG_WAIT), polls).await;
        let is_complete = acquired.is_some();
        drop(acquired.map(granted));
        world
            .no_keys_are_left(&format!("{delays:?} after {polls} polls"))
            .await;
        if is_complete {
            assert!(
                polls > 1 || delays[0] == 0,
                "the acquire must wait for the masters"
            );
            return;
        }
    }
    panic!("the acquire must complete in at most {MAX_POLLS} polls");
}

pub(crate) async fn acquire_dropped_at_any_time_leaves_no_key_on_real_masters(
    kind: &'static dyn Kind,
) {
    let world = World::new(kind).await;
    let redlock = world.client();
    world.acquire(&redlock).await.release().await;
    for polls in 1..=MAX_POLLS {
        let acquired = poll_then_drop(kind.acquire(&redlock, LONG_WAIT), polls).await;
        let is_complete = acquired.is_some();
        drop(acquired.map(granted));
        redlock.flush().await;
        assert_eq!(world.keys(), [].into(), "after {polls} polls");
        if is_complete {
            break;
        }
    }
    for limit in (0..12).map(|n| Duration::from_micros(200 * n)) {
        drop(tokio::time::timeout(limit, kind.acquire(&redlock, LONG_WAIT)).await);
        redlock.flush().await;
        assert_eq!(world.keys(), [].into(), "after {limit:?}");
    }
}

/// Another client holds the lock, and releases it 10 ms after the acquire began. The future of the acquire is dropped
/// after 1, 2, .. polls.
pub(crate) async fn waiting_acquire_dropped_at_any_await_point_leaves_no_key(
    kind: &'static dyn Kind,
) {
    for delays in [[0, 0, 0], [1, 2, 4], [3, 0, 8]] {
        dropped_after_any_number_of_polls_while_held(kind, delays).await;
    }
}

async fn dropped_after_any_number_of_polls_while_held(kind: &'static dyn Kind, delays: [u64; 3]) {
    for polls in 1..=MAX_POLLS {
        let world = SlowWorld::new(kind, delays).await;
        let held = granted(kind.acquire_as_rival(&world.second_client, LONG_WAIT).await);
        let release = async {
            tokio::time::sleep(ms(10)).await;
            held.release().await;
        };
        let acquire_dropped = async {
            let acquired =
                poll_then_drop(kind.acquire(&world.first_client, LONG_WAIT), polls).await;
            acquired.map(granted).is_some()
        };
        let ((), is_complete) = futures::future::join(release, acquire_dropped).await;
        world
            .no_keys_are_left(&format!("{delays:?} after {polls} polls"))
            .await;
        if is_complete {
            assert!(polls > 1, "the acquire must wait for the release");
            return;
        }
    }
    panic!("the acquire must complete in at most {MAX_POLLS} polls");
}

pub(crate) async fn client_without_fencing_is_refused_or_gets_no_token(kind: &'static dyn Kind) {
    let memory = Redlock::builder().in_memory(3);
    let redlock = kind.settings(memory).fencing(false).ttl(secs(30));
    let redlock = redlock.build().expect("good settings");
    // The error must name the fencing tokens, although the lock is held.
    let holder = redlock.acquire("job").await.expect("free");
    let acquired = if kind.needs_fencing().is_some() {
        kind.acquire(&redlock, Wait::None).await
    } else {
        holder.release().await;
        kind.acquire(&redlock, Wait::None).await
    };
    match (kind.needs_fencing(), acquired) {
        (None, acquired) => assert_eq!(granted(acquired).token(), None),
        (Some(what), Err(error)) => {
            let needs_text = "need fencing tokens: remove fencing(false) from the builder";
            assert_eq!(error.to_string(), format!("{what} {needs_text}"));
            assert!(matches!(
                error,
                ValueError::NoFencing
                    | ValueError::NotAcquired(AcquireError::InvalidOptions(
                        BuildError::NeedsFencing(_)
                    ))
            ));
        }
        (Some(_), Ok(_)) => panic!("a client without fencing must be refused"),
    }
}
