//! Tests of statuses, listings and elections after a majority of the masters has restarted without data. The restart
//! guard then ignores the votes of these masters for `max_ttl`. Until then, a client cannot know whether the lock is
//! held.

use crate::support::{PATIENCE, masters, ms, secs, settings};
use quorate::{Fault, Redlock, RestartGuard, StatusVerdict};
use quorate_testbed::Masters;

/// A client whose restart guard ignores the votes of a restarted master for 300 s, longer than any of these tests runs.
fn client(masters: &Masters) -> Redlock {
    let builder = settings(masters.urls()).max_ttl(secs(300));
    let settings = builder.restart_guard(RestartGuard::AfterFirstContact);
    settings.build().expect("good settings")
}

/// Waits until the client has reached all masters. From then on, its restart guard notices every restart.
async fn wait_until_met(redlock: &Redlock) {
    let started_at = std::time::Instant::now();
    loop {
        let status = redlock.status("met").await.expect("the name must be valid");
        if status.nodes.iter().all(|node| node.state.is_ok()) {
            return;
        }
        assert!(
            started_at.elapsed() < PATIENCE,
            "all masters must answer in time"
        );
    }
}

/// Restarts three of the five masters without their data.
fn lose_keys(masters: &Masters) {
    for master in masters.iter().take(3) {
        master.restart_empty().expect("restarted");
    }
}

fn is_quarantined(fault: &Fault) -> bool {
    matches!(fault, Fault::Quarantined(_))
}

#[tokio::test]
async fn status_of_a_held_lock_is_unknown_if_a_majority_of_masters_restarted_without_data() {
    let masters = masters(5);
    let (holder, observer_client) = (client(&masters), client(&masters));
    wait_until_met(&observer_client).await;
    let guard = holder.acquire("job").await.expect("free");
    lose_keys(&masters);
    let started_at = std::time::Instant::now();
    loop {
        let status = observer_client
            .status("job")
            .await
            .expect("the name must be valid");
        assert_ne!(status.verdict(), StatusVerdict::Free, "{status:?}");
        let faults = status
            .nodes
            .iter()
            .filter_map(|node| node.state.as_ref().err());
        if faults.filter(|fault| is_quarantined(fault)).count() == 3 {
            assert_eq!(status.verdict(), StatusVerdict::Unknown, "{status:?}");
            break;
        }
        assert!(started_at.elapsed() < PATIENCE, "{status:?}");
    }
    let listing = observer_client.list("").await;
    assert_eq!(listing.locks.len(), 1, "{listing:?}");
    assert!(!listing.majority_answered, "{listing:?}");
    let quarantined = listing
        .faults
        .iter()
        .filter(|(_, fault)| is_quarantined(fault));
    assert_eq!(quarantined.count(), 3, "{listing:?}");
    assert!(
        guard.is_valid(),
        "the holder must not lose the lock, but the machine was too slow to renew it in time"
    );
}

#[tokio::test]
async fn observer_keeps_reporting_the_leader_after_a_majority_lost_the_lock_key() {
    let masters = masters(5);
    let (leader_client, observer_client) = (client(&masters), client(&masters));
    wait_until_met(&observer_client).await;
    let election = |redlock: &Redlock| redlock.election("job").ttl(secs(12));
    let leadership = election(&leader_client).campaign("me").await.expect("free");
    let mut observer = election(&observer_client)
        .observe()
        .expect("the name must be valid");
    let outcome = tokio::time::timeout(PATIENCE, observer.next()).await;
    let leader = outcome
        .expect("the observer must be notified in time")
        .expect("a leader");
    assert_eq!(leader.term, leadership.term());
    lose_keys(&masters);
    // The observer polls at least every 4 s, so it must have polled once at the end of these 6.5 s.
    let outcome = tokio::time::timeout(ms(6_500), observer.next()).await;
    assert!(
        leadership.is_valid(),
        "the leader must hold its lock, but the machine was too slow to renew it in time"
    );
    assert!(
        outcome.is_err(),
        "the observer must not be notified of a change while the lease of the leader lasts: {outcome:?}"
    );
}
