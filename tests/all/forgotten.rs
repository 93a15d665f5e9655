//! Tests of the reported state of a lock that a majority of the masters may have lost. These masters have restarted
//! without data, and the restart guard does not accept their votes yet.

use crate::support::{PATIENCE, masters, ms, secs, settings};
use quorate::{Fault, Redlock, RestartGuard, StatusVerdict};
use quorate_testbed::Masters;

/// A client whose restart guard ignores the votes of a restarted master for longer than any of these tests runs.
fn client(masters: &Masters) -> Redlock {
    let settings = settings(masters.urls()).max_ttl(secs(300));
    let settings = settings.restart_guard(RestartGuard::AfterFirstContact);
    settings.build().expect("good settings")
}

/// Waits until the client has contacted all masters, so that it trusts the server processes that run now.
async fn met(redlock: &Redlock) {
    let began = std::time::Instant::now();
    loop {
        let status = redlock.status("met").await.expect("the name must be valid");
        if status.nodes.iter().all(|node| node.state.is_ok()) {
            return;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "timed out waiting until all masters answer"
        );
    }
}

/// Restarts three of the five masters without their data.
fn forget(masters: &Masters) {
    for master in masters.iter().take(3) {
        master.restart_empty().expect("restarted");
    }
}

fn is_quarantined(fault: &Fault) -> bool {
    matches!(fault, Fault::Quarantined(_))
}

#[tokio::test]
async fn held_lock_is_shown_as_unknown_if_a_majority_of_masters_lost_its_data() {
    let masters = masters(5);
    let (holder, looks) = (client(&masters), client(&masters));
    met(&looks).await;
    let guard = holder.acquire("job").await.expect("free");
    forget(&masters);
    let began = std::time::Instant::now();
    loop {
        let status = looks.status("job").await.expect("the name must be valid");
        assert_ne!(status.verdict(), StatusVerdict::Free, "{status:?}");
        let faults = status
            .nodes
            .iter()
            .filter_map(|node| node.state.as_ref().err());
        if faults.filter(|fault| is_quarantined(fault)).count() == 3 {
            assert_eq!(status.verdict(), StatusVerdict::Unknown, "{status:?}");
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{status:?}");
    }
    let listing = looks.list("").await;
    assert_eq!(listing.locks.len(), 1, "{listing:?}");
    assert!(!listing.majority_answered, "{listing:?}");
    let quarantined = listing
        .faults
        .iter()
        .filter(|(_, fault)| is_quarantined(fault));
    assert_eq!(quarantined.count(), 3, "{listing:?}");
    assert!(
        guard.is_valid(),
        "the lock was lost: the machine was too slow for this test"
    );
}

#[tokio::test]
async fn leader_is_reported_until_its_lease_ends_although_a_majority_of_masters_lost_its_lock() {
    let masters = masters(5);
    let (leads, looks) = (client(&masters), client(&masters));
    met(&looks).await;
    let election = |redlock: &Redlock| redlock.election("job").ttl(secs(12));
    let leadership = election(&leads).campaign("me").await.expect("free");
    let mut observer = election(&looks).observe().expect("the name must be valid");
    let leader = tokio::time::timeout(PATIENCE, observer.next()).await;
    let leader = leader
        .expect("the observer must be notified in time")
        .expect("a leader");
    assert_eq!(leader.term, leadership.term());
    forget(&masters);
    // The observer polls every 4 s, and more often while no majority answers.
    let told = tokio::time::timeout(ms(6_500), observer.next()).await;
    assert!(
        leadership.is_valid(),
        "the lock was lost: the machine was too slow for this test"
    );
    assert!(
        told.is_err(),
        "the observer must not be notified of an end of the leadership: {told:?}"
    );
}
