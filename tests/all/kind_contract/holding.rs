//! Questions about a held lock: its keys, renewal, loss and end.

use std::future::Future;
use std::time::{Duration, Instant};

use quorate::{LossCause, Order, Redlock, Status, StatusVerdict, Wait};
use quorate_testbed::{Fault as Harm, Way};

use super::kind::Kind;
use super::world::{LONG_WAIT, SHORT_TTL, World, granted, refused_as_held};
use crate::support::polled::poll_then_drop;
use crate::support::{PATIENCE, ask_server, eventually, has_key, ms, secs};

async fn within_patience<T>(future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(PATIENCE, future).await;
    outcome.unwrap_or_else(|_| panic!("the call must end within {PATIENCE:?}"))
}

fn is_held(status: &Status) -> bool {
    matches!(status.verdict(), StatusVerdict::Held(_))
}

pub(crate) async fn held_lock_excludes_others_and_has_its_keys_on_every_master(
    kind: &'static dyn Kind,
) {
    let world = World::new(kind).await;
    let (holder, other) = (world.client(), world.client());
    let held = world.acquire(&holder).await;
    assert!(held.is_valid());
    world.lock_keys_are_on_every_master().await;
    refused_as_held(kind.acquire_as_rival(&other, Wait::None).await);
    held.release().await;
    let next_hold = granted(kind.acquire_as_rival(&other, Wait::None).await);
    next_hold.release().await;
    holder.flush().await;
    other.flush().await;
    assert_eq!(world.keys(), [].into());
}

pub(crate) async fn dropped_guard_releases_the_lock(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let (holder, other) = (world.client(), world.client());
    let held = world.acquire(&holder).await;
    world.lock_keys_are_on_every_master().await;
    drop(held);
    holder.flush().await;
    assert_eq!(world.keys(), [].into());
    granted(kind.acquire_as_rival(&other, Wait::None).await);
}

pub(crate) async fn renewal_keeps_the_lock_beyond_its_ttl(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let (holder, other) = (world.brief_client(), world.client());
    let held = world.acquire(&holder).await;
    let token = held.token();
    tokio::time::sleep(SHORT_TTL + secs(1)).await;
    assert!(held.is_valid(), "the lock must be renewed");
    assert_eq!(held.token(), token);
    refused_as_held(kind.acquire_as_rival(&other, Wait::None).await);
    world.lock_keys_are_on_every_master().await;
    held.release().await;
}

pub(crate) async fn renewal_restores_a_key_that_one_master_lost(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let redlock = world.brief_client();
    let held = world.acquire(&redlock).await;
    world.lock_keys_are_on_every_master().await;
    let key = kind.lock_keys().last().expect("a key");
    ask_server(&world.masters[0], &["DEL", key]);
    world.lock_keys_are_on_every_master().await;
    assert!(held.is_valid());
    held.release().await;
    world.no_keys_are_left().await;
}

pub(crate) async fn loss_is_reported_if_a_majority_has_another_value_in_a_lock_key(
    kind: &'static dyn Kind,
) {
    let world = World::new(kind).await;
    let redlock = world.brief_client();
    let mut held = world.acquire(&redlock).await;
    world.lock_keys_are_on_every_master().await;
    let key = kind.lock_keys().last().expect("a key");
    for master in world.masters.iter().take(2) {
        ask_server(master, &["SET", key, "private"]);
    }
    assert_eq!(within_patience(held.lost()).await, LossCause::TakenAway);
    assert!(!held.is_valid());
    assert!(held.extend(secs(20)).await.is_err());
    eventually("the third master must release the lock", || {
        !has_key(&world.masters[2], key)
    })
    .await;
    held.release().await;
    redlock.flush().await;
    for master in world.masters.iter().take(2) {
        let value = ask_server(master, &["GET", key]);
        assert_eq!(
            value,
            "private".into(),
            "the release must keep the foreign key"
        );
    }
}

pub(crate) async fn loss_is_reported_after_a_forced_release(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let (holder, operator, other) = (world.brief_client(), world.client(), world.client());
    let held = world.acquire(&holder).await;
    world.lock_keys_are_on_every_master().await;
    let status = kind.force_release(&operator).await;
    assert!(is_held(&status), "{status:?}");
    let mut next_hold = world.acquire_as_rival(&other).await;
    assert_eq!(within_patience(held.lost()).await, LossCause::TakenAway);
    assert!(!held.is_valid());
    if next_hold.token().is_some() {
        assert!(next_hold.token() > held.token());
    }
    held.release().await;
    holder.flush().await;
    let extended = next_hold.extend(secs(20)).await;
    extended.expect("the release of the lost lock must keep the next lock");
    next_hold.release().await;
}

/// The holder has its lock on the masters 0 and 2, because its link to master 1 is down. The operator reaches the
/// masters 0 and 1, and another client holds the lock there. When the link is up again, the holder must not restore its
/// lock on master 1, which never had it.
pub(crate) async fn force_released_lock_is_not_restored_on_a_master_that_did_not_have_it(
    kind: &'static dyn Kind,
) {
    let world = World::new(kind).await;
    let (holder, holder_proxies) = world.client_behind_proxies(&[1], secs(9));
    let (operator, operator_proxies) = world.client_behind_proxies(&[2], secs(9));
    let _operator_cut = operator_proxies[0].inject(Harm::Hold(Way::Both));
    let holder_cut = holder_proxies[0].inject(Harm::Hold(Way::Both));
    let held = world.acquire(&holder).await;
    let status = kind.force_release(&operator).await;
    assert_eq!(
        status.verdict(),
        StatusVerdict::Split,
        "only master 0 must show the holder: {status:?}"
    );
    world.acquire_as_rival(&operator).await.release().await;
    drop(holder_cut);
    within_patience(held.lost()).await;
    let key = kind.lock_keys().last().expect("a key");
    assert!(!has_key(&world.masters[1], key));
}

pub(crate) async fn lock_of_a_dead_holder_can_be_acquired_after_its_ttl(kind: &'static dyn Kind) {
    let world = World::new(kind).await;
    let (dying_client, proxies) = world.client_behind_proxies(&[0, 1, 2], SHORT_TTL);
    let dead_lock = world.acquire(&dying_client).await;
    let started_at = Instant::now();
    let cuts: Vec<_> = proxies
        .iter()
        .map(|proxy| proxy.inject(Harm::Hold(Way::Both)))
        .collect();
    let other_client = world.client();
    refused_as_held(kind.acquire_as_rival(&other_client, Wait::None).await);
    let next_hold = world.acquire_as_rival(&other_client).await;
    // The dead holder may have renewed its lock before the cut, but not later.
    assert!(
        started_at.elapsed() > SHORT_TTL / 2,
        "{:?}",
        started_at.elapsed()
    );
    if next_hold.token().is_some() {
        assert!(next_hold.token() > dead_lock.token());
    }
    assert_eq!(within_patience(dead_lock.lost()).await, LossCause::Expired);
    drop(cuts);
}

/// Two clients of masters in memory: the waiters of the first one queue, and the waiters of the second one poll.
fn memory_clients(kind: &dyn Kind, max_hold: Option<Duration>) -> [Redlock; 2] {
    [Order::Fair, Order::Unordered].map(|order| {
        let mut builder = kind.settings(Redlock::builder().in_memory(3).order(order));
        if let Some(max_hold) = max_hold {
            builder = builder.max_hold(max_hold);
        }
        builder.build().expect("good settings")
    })
}

pub(crate) async fn lock_on_memory_masters_is_listed_extended_and_force_released(
    kind: &'static dyn Kind,
) {
    for redlock in memory_clients(kind, None) {
        kind.prepare(&redlock).await;
        let mut held = granted(kind.acquire(&redlock, Wait::None).await);
        let listing = redlock.list("").await;
        assert_eq!(listing.locks.len(), kind.lock_keys().len(), "{listing:?}");
        assert!(listing.locks.iter().all(|lock| is_held(&lock.status)));
        let extended = held.extend(secs(20)).await;
        extended.expect("the extension must succeed, because the lock is held");
        assert!(is_held(&kind.force_release(&redlock).await));
        assert!(held.extend(secs(20)).await.is_err());
        assert_eq!(within_patience(held.lost()).await, LossCause::TakenAway);
        held.release().await;
        assert!(redlock.list("").await.locks.is_empty());
    }
}

pub(crate) async fn lock_on_memory_masters_leaves_no_key_after_max_hold_or_a_dropped_acquire(
    kind: &'static dyn Kind,
) {
    for redlock in memory_clients(kind, Some(ms(100))) {
        kind.prepare(&redlock).await;
        let held = granted(kind.acquire(&redlock, LONG_WAIT).await);
        assert_eq!(within_patience(held.lost()).await, LossCause::MaxHold);
        drop(held);
        drop(poll_then_drop(kind.acquire(&redlock, LONG_WAIT), 1).await);
        redlock.flush().await;
        assert!(redlock.list("").await.locks.is_empty());
    }
}
