//! Tests of the lifetime of a lock: renewals, the end of the lease, and the reported cause of a loss.

use std::time::Duration;

use crate::support::{
    self, PATIENCE, ask_server, count_masters_with, eventually, has_key, masters, ms, redlock,
    secs, settings, take,
};
use quorate::node::Answer;
use quorate::{
    AcquireError, ExtendError, Fault, Instant, LockGuard, LossCause, NodeOutcome, Redlock,
    RedlockBuilder, RestartGuard, ScopeError, TryAcquire, Wait,
};
use quorate_contract::requests::{ReplyCollector, acquire, claim, release, send};
use quorate_testbed::{ClockShim, Fault as Harm, Masters, Proxy, Server, ServerOptions, Skew, Way};

/// The time within which a test must notice an event. It allows for a busy machine.
const MARGIN: Duration = secs(2);

async fn acquire_job(redlock: &Redlock, ttl: Duration) -> LockGuard {
    let guard = redlock.lock("job").ttl(ttl).acquire().await;
    guard.unwrap_or_else(|error| panic!("{error}"))
}

/// Waits until the lock is lost, and returns the cause.
async fn loss_cause(guard: &LockGuard) -> LossCause {
    let lost_result = tokio::time::timeout(PATIENCE, guard.lost()).await;
    let cause = lost_result.expect("the loss of the lock must be reported in time");
    assert!(!guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    cause
}

/// Checks that the current time is `due_at` or later, but by less than [`MARGIN`].
#[track_caller]
fn assert_is_soon_after(due_at: Instant) {
    let now = Instant::now();
    assert!(
        now >= due_at,
        "the event came {:?} too early",
        due_at.saturating_since(now)
    );
    let delay = now.saturating_since(due_at);
    assert!(delay < MARGIN, "the event came {delay:?} too late");
}

/// The remaining TTL of the lock key on this master.
fn remaining_ttl(server: &Server) -> Duration {
    let remaining_ttl = ask_server(server, &["PTTL", "job"])
        .int()
        .expect("a number");
    ms(u64::try_from(remaining_ttl).unwrap_or(0))
}

#[tokio::test]
async fn renewal_keeps_a_lock_far_beyond_its_ttl() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let guard = acquire_job(&redlock, secs(2)).await;
    let token = guard.fencing_token();
    let mut refusal_count = 0;
    for _ in 0..12 {
        tokio::time::sleep(ms(500)).await;
        assert!(guard.is_valid());
        assert!(guard.valid_until() > Instant::now());
        match redlock.try_acquire("job").await {
            Ok(TryAcquire::Held(_)) => refusal_count += 1,
            Ok(TryAcquire::Acquired(second)) => {
                panic!("only one client may hold the lock: {guard:?}, {second:?}")
            }
            // This attempt failed because a master was too slow. Ignore it.
            Err(error) => println!("{error}"),
        }
    }
    assert!(
        refusal_count > 0,
        "at least one attempt of the other client must be refused"
    );
    assert_eq!(
        guard.fencing_token(),
        token,
        "the token must not change, because the lock is only renewed"
    );
    eventually("all masters must have the key", || {
        count_masters_with(&masters, "job") == 3
    })
    .await;
}

#[tokio::test]
async fn a_fixed_lease_ends_at_its_deadline() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let lock_request = redlock.lock("job").ttl(secs(2)).renewal(false);
    let guard = lock_request.acquire().await.expect("free");
    let deadline = guard.valid_until();
    assert_eq!(loss_cause(&guard).await, LossCause::Expired);
    assert_eq!(
        guard.valid_until(),
        deadline,
        "the validity of a fixed lease must not change"
    );
    assert_is_soon_after(deadline);
    eventually("the lock key must be gone", || {
        count_masters_with(&masters, "job") == 0
    })
    .await;
}

#[tokio::test]
async fn a_fixed_lease_that_ends_does_not_end_the_renewal_of_another_lock() {
    let masters = masters(1);
    let redlock = redlock(&masters);
    let renewed_guard = acquire_job(&redlock, secs(2)).await;
    let fixed = redlock.lock("other").renewal(false).acquire().await;
    drop(fixed.expect("free"));
    tokio::time::sleep(secs(4)).await;
    assert!(
        renewed_guard.is_valid(),
        "the lock must be renewed beyond its first TTL, although the lease of another lock has ended"
    );
}

#[tokio::test]
async fn lock_is_renewed_only_until_its_max_hold_ends() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let started_at = Instant::now();
    let short = redlock.lock("job").ttl(secs(2)).max_hold(secs(5));
    let guard = short.acquire().await.expect("free");
    assert!(guard.remaining() <= secs(2));
    tokio::time::sleep(secs(3)).await;
    assert!(guard.is_valid(), "the lock must be renewed until max_hold");
    assert_eq!(loss_cause(&guard).await, LossCause::MaxHold);
    assert_is_soon_after(started_at + secs(5));
    // The lock is released at `max_hold`, and no renewal restores its key afterwards.
    eventually("the lock key must be gone", || {
        count_masters_with(&masters, "job") == 0
    })
    .await;
    assert_eq!(
        guard.extend(secs(2)).await,
        Err(ExtendError::Lost(LossCause::MaxHold))
    );
}

#[tokio::test]
async fn loss_is_reported_when_the_lease_ends_while_every_renewal_hangs() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let guard = acquire_job(&redlock, secs(3)).await;
    let first_validity_end = guard.valid_until();
    eventually("the lock must be renewed once", || {
        guard.valid_until() > first_validity_end
    })
    .await;
    for master in &masters {
        master.stop().expect("stopped");
    }
    // Let the client process the answers that the masters sent before they stopped. They may still extend the lock.
    tokio::time::sleep(ms(100)).await;
    let deadline = guard.valid_until();
    assert_eq!(loss_cause(&guard).await, LossCause::Expired);
    assert_eq!(guard.valid_until(), deadline);
    assert_is_soon_after(deadline);
    for master in &masters {
        master.cont().expect("continued");
    }
    let next_guard = redlock.lock("job").wait(Wait::Forever).acquire();
    let next_guard = tokio::time::timeout(PATIENCE, next_guard)
        .await
        .expect("the next acquire must end in time");
    assert!(next_guard.expect("free").fencing_token() > guard.fencing_token());
    let released = guard.release().await;
    assert!(!released.was_valid);
    assert_eq!(released.on, 0, "{released:?}");
}

#[tokio::test]
async fn lock_survives_an_outage_shorter_than_the_lock_ttl() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let guard = acquire_job(&redlock, secs(6)).await;
    masters[0].stop().expect("stopped");
    masters[1].stop().expect("stopped");
    tokio::time::sleep(secs(3)).await;
    masters[0].cont().expect("continued");
    masters[1].cont().expect("continued");
    tokio::time::sleep(secs(4)).await;
    assert!(guard.is_valid());
    assert!(guard.remaining() > ms(100));
}

#[tokio::test]
async fn renewal_refused_by_a_majority_is_immediately_reported_as_a_loss() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let guard = acquire_job(&redlock, secs(12)).await;
    for master in masters.iter().take(2) {
        ask_server(master, &["SET", "job", "a thief"]);
    }
    let cause = loss_cause(&guard).await;
    assert_eq!(cause, LossCause::TakenAway);
    let remaining_at_loss = guard.valid_until().saturating_since(Instant::now());
    assert!(
        remaining_at_loss > secs(3),
        "the loss must be reported immediately, but at the report only {remaining_at_loss:?} of the validity were left"
    );
    eventually("the third master must have released the lock", || {
        !has_key(&masters[2], "job")
    })
    .await;
    guard.release().await;
    for master in masters.iter().take(2) {
        let value = ask_server(master, &["GET", "job"]);
        assert_eq!(
            value,
            "a thief".into(),
            "the release must not change the key of another client"
        );
    }
}

#[tokio::test]
async fn renewal_refused_by_a_minority_does_not_end_the_lock() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let guard = acquire_job(&redlock, secs(2)).await;
    ask_server(&masters[0], &["SET", "job", "a thief"]);
    tokio::time::sleep(secs(5)).await;
    assert!(guard.is_valid());
}

#[tokio::test]
async fn lock_key_lost_by_a_minority_is_restored_by_the_next_renewal() {
    let masters = masters(5);
    let redlock = redlock(&masters);
    let guard = acquire_job(&redlock, secs(6)).await;
    eventually("all masters must have the key", || {
        count_masters_with(&masters, "job") == 5
    })
    .await;
    masters[0].restart_empty().expect("restarted");
    ask_server(&masters[1], &["DEL", "job"]);
    let deleted_at = Instant::now();
    eventually("all masters must have the key again", || {
        count_masters_with(&masters, "job") == 5
    })
    .await;
    let repair_time = Instant::now().saturating_since(deleted_at);
    // The next renewal must restore the key on `masters[0]` and `masters[1]`. Renewals are 2 s apart.
    assert!(repair_time < secs(2) + MARGIN, "{repair_time:?}");
    for master in &masters {
        let value = ask_server(master, &["GET", "job"]);
        assert_eq!(value, guard.token().to_string().as_str().into());
    }
    guard.release().await;
    eventually("no master may still have the key", || {
        count_masters_with(&masters, "job") == 0
    })
    .await;
}

#[tokio::test]
async fn renewal_in_transit_does_not_restore_a_key_after_the_release() {
    let masters = masters(3);
    let proxies: Vec<_> = masters
        .iter()
        .map(|master| Proxy::start(master.addr()).expect("a proxy"))
        .collect();
    // Use distant masters, so that renewals are in transit when a lock is released.
    let _far: Vec<_> = proxies
        .iter()
        .map(|proxy| Harm::latency(Way::Both, ms(5)).inject(proxy))
        .collect();
    let urls = masters.iter().zip(&proxies);
    let urls = urls.map(|(master, proxy)| master.url_at(proxy.addr()));
    let redlock = settings(urls).node_timeout(ms(75)).build().expect("good");
    let locks = (0..60u64).map(|n| {
        let redlock = &redlock;
        async move {
            // A renewal is due every 100 ms. The test releases each lock at a different point of this interval.
            let lock = redlock.lock(format!("job {n}")).ttl(ms(300));
            let Ok(guard) = lock.acquire().await else {
                return;
            };
            tokio::time::sleep(Duration::from_micros(90_000 + 700 * n)).await;
            if n % 2 == 0 {
                guard.release().await;
            } else {
                drop(guard);
            }
        }
    });
    futures::future::join_all(locks).await;
    redlock.flush().await;
    for _ in 0..3 {
        for master in &masters {
            let keys = ask_server(master, &["KEYS", "job *"]);
            assert_eq!(keys, quorate_testbed::Reply::Array(Vec::new()));
        }
        tokio::time::sleep(ms(100)).await;
    }
}

#[tokio::test]
async fn extension_never_shortens_a_lease() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let lock_request = redlock.lock("job").ttl(secs(10)).renewal(false);
    let guard = lock_request.acquire().await.expect("free");
    let token = guard.fencing_token();
    guard.extend(secs(30)).await.expect("extended");
    let first_deadline = guard.valid_until();
    assert!(guard.remaining() > secs(15));
    guard
        .extend(secs(5))
        .await
        .expect("an extension by less than the remaining lease must not fail");
    assert_eq!(guard.valid_until(), first_deadline);
    redlock.flush().await;
    for master in &masters {
        assert!(
            remaining_ttl(master) > secs(15),
            "{:?}",
            remaining_ttl(master)
        );
    }
    assert_eq!(guard.fencing_token(), token);
}

#[tokio::test]
async fn extension_of_an_expired_lock_fails_without_recreating_the_key() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let lock_request = redlock.lock("job").ttl(secs(2)).renewal(false);
    let guard = lock_request.acquire().await.expect("free");
    tokio::time::sleep(ms(2200)).await;
    let lost_error = Err(ExtendError::Lost(LossCause::Expired));
    assert_eq!(guard.extend(secs(10)).await, lost_error);
    redlock.flush().await;
    assert_eq!(count_masters_with(&masters, "job"), 0);
    assert!(!guard.is_valid());
}

#[tokio::test]
async fn extension_of_a_lock_overwritten_by_another_client_reports_a_loss() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let guard = take(&redlock, "job").await;
    for master in masters.iter().take(2) {
        ask_server(master, &["SET", "job", "a thief"]);
    }
    let lost_error = Err(ExtendError::Lost(LossCause::TakenAway));
    assert_eq!(guard.extend(secs(30)).await, lost_error);
    assert_eq!(loss_cause(&guard).await, LossCause::TakenAway);
}

#[tokio::test]
async fn extension_without_a_majority_does_not_change_the_validity_of_the_lock() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let lock_request = redlock.lock("job").ttl(secs(10)).renewal(false);
    let guard = lock_request.acquire().await.expect("free");
    let validity_before = guard.valid_until();
    masters[0].stop().expect("stopped");
    masters[1].kill().expect("killed");
    let error = guard.extend(secs(30)).await.expect_err("no majority");
    let ExtendError::NoQuorum(reports) = &error else {
        panic!("{error:?}")
    };
    assert_eq!(reports[2].outcome, NodeOutcome::Yes);
    assert!(error.details().contains("current validity"), "{error}");
    assert_eq!(guard.valid_until(), validity_before);
    assert!(guard.is_valid());
    masters[0].cont().expect("continued");
    let started_at = Instant::now();
    while guard.extend(secs(30)).await.is_err() {
        let elapsed = Instant::now().saturating_since(started_at);
        assert!(
            elapsed < PATIENCE,
            "the extension must succeed once a majority of the masters answers"
        );
        tokio::time::sleep(ms(20)).await;
    }
    assert!(guard.valid_until() > validity_before);
}

#[tokio::test]
async fn release_of_an_expired_lock_reports_the_expiry_but_is_not_an_error() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let lock_request = redlock.lock("job").ttl(secs(2)).renewal(false);
    let guard = lock_request.acquire().await.expect("free");
    tokio::time::sleep(ms(2200)).await;
    let next_guard = take(&redlock, "job").await;
    let released = guard.release().await;
    assert!(!released.was_valid);
    assert_eq!(released.on, 0);
    assert_eq!(released.unreachable, 0);
    assert!(released.expired_on >= 2, "{released:?}");
    assert!(next_guard.is_valid());
    redlock.flush().await;
    assert_eq!(
        count_masters_with(&masters, "job"),
        3,
        "the release must not delete the keys of the next holder"
    );
}

#[tokio::test]
async fn wait_for_a_loss_ends_when_the_lock_is_released() {
    let redlock = Redlock::in_memory(3);
    let guard = take(&redlock, "job").await;
    let lost_future = guard.lost();
    guard.release().await;
    assert_eq!(lost_future.await, LossCause::Released);
    let guard = take(&redlock, "job").await;
    let lost_task = tokio::spawn(guard.lost());
    tokio::task::yield_now().await;
    drop(guard);
    assert_eq!(lost_task.await.expect("no panic"), LossCause::Released);
}

#[tokio::test]
async fn a_scope_stops_its_body_when_the_lock_is_lost() {
    struct NotifyOnDrop(Option<tokio::sync::oneshot::Sender<()>>);
    impl Drop for NotifyOnDrop {
        fn drop(&mut self) {
            let _ = self.0.take().expect("once").send(());
        }
    }
    let masters = masters(3);
    let redlock = redlock(&masters);
    let (sender, dropped) = tokio::sync::oneshot::channel();
    let scope = redlock.lock("job").ttl(secs(6)).scope(async |_| {
        let _notify = NotifyOnDrop(Some(sender));
        for master in &masters {
            ask_server(master, &["SET", "job", "a thief"]);
        }
        std::future::pending::<()>().await;
    });
    let outcome = tokio::time::timeout(PATIENCE, scope).await.expect("ends");
    let is_lost = matches!(
        outcome,
        Err(ScopeError::Lost {
            cause: LossCause::TakenAway,
            ..
        })
    );
    assert!(is_lost, "{outcome:?}");
    dropped.await.expect("the body must have been dropped");
}

#[tokio::test]
async fn two_hundred_locks_are_kept_while_a_master_is_stopped() {
    let masters = masters(5);
    let redlock = redlock(&masters);
    let locks = (0..200).map(|n| {
        let lock = redlock.lock(format!("job {n}")).ttl(secs(3));
        lock.acquire()
    });
    let outcomes = futures::future::join_all(locks).await;
    let guards: Vec<_> = outcomes.into_iter().map(|g| g.expect("free")).collect();
    masters[0].stop().expect("stopped");
    for second in 0..7 {
        tokio::time::sleep(secs(1)).await;
        let lost_count = guards.iter().filter(|guard| !guard.is_valid()).count();
        assert_eq!(
            lost_count, 0,
            "locks must not be lost, but some were after {second} s"
        );
    }
    masters[0].cont().expect("continued");
    futures::future::join_all(guards.iter().map(LockGuard::release)).await;
    eventually("no master may have a key left", || {
        masters.iter().all(|master| {
            let keys = ask_server(master, &["KEYS", "job *"]);
            keys == quorate_testbed::Reply::Array(Vec::new())
        })
    })
    .await;
}

#[tokio::test]
async fn guard_report_includes_answers_that_arrived_after_acquire_returned() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    drop(acquire_job(&redlock, secs(20)).await);
    redlock.flush().await;
    masters[0].stop().expect("stopped");
    let guard = acquire_job(&redlock, secs(20)).await;
    let first_report = || guard.report().swap_remove(0);
    assert_eq!(first_report().outcome, NodeOutcome::Silent);
    eventually(
        "the report must show that the stopped master is silent",
        || {
            matches!(
                first_report().outcome,
                NodeOutcome::Fault(Fault::Timeout(_))
            ) && first_report().late
        },
    )
    .await;
    masters[0].cont().expect("continued");
    eventually("the report must show the late answer of the master", || {
        first_report().outcome == NodeOutcome::Yes
    })
    .await;
    assert!(first_report().late);
    let other_reports = guard.report().split_off(1);
    assert!(
        other_reports
            .iter()
            .all(|one| one.outcome == NodeOutcome::Yes)
    );
    guard.release().await;
}

/// Settings with this restart guard. `max_ttl` is short, because tests wait that long for a restarted master's vote.
fn builder_with_guard(masters: &Masters, guard: RestartGuard) -> RedlockBuilder {
    Redlock::builder()
        .masters(masters.urls())
        .ttl(secs(1))
        .max_ttl(secs(4))
        .node_timeout(ms(250))
        .wait(Wait::None)
        .restart_guard(guard)
}

/// Acquires a lock that is free or becomes free soon. Waits for it, because a single attempt may fail on a busy
/// machine.
async fn take_within_patience(redlock: &Redlock, resource: &str) -> LockGuard {
    let lock = redlock.lock(resource).wait(Wait::For(PATIENCE));
    lock.acquire()
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

fn count_quarantined(error: &AcquireError) -> usize {
    let is_quarantined =
        |outcome: &NodeOutcome| matches!(outcome, NodeOutcome::Fault(Fault::Quarantined(_)));
    let reports = error.reports().iter();
    reports
        .filter(|report| is_quarantined(&report.outcome))
        .count()
}

#[tokio::test]
async fn masters_restarted_empty_do_not_vote_before_the_longest_lease_has_ended() {
    let masters = masters(3);
    let first_client = builder_with_guard(&masters, RestartGuard::AfterFirstContact);
    let (first_client, second) = (first_client.clone().build(), first_client.build());
    let (first_client, second) = (first_client.expect("good"), second.expect("good"));
    // With `AfterFirstContact`, a client detects the restart of a master only if it contacted the master before. So let
    // both clients contact all masters.
    for redlock in [&first_client, &second] {
        let are_all_reached = async || {
            let status = redlock.status("job").await.expect("the name must be valid");
            status.nodes.iter().all(|node| node.state.is_ok())
        };
        let started_at = Instant::now();
        while !are_all_reached().await {
            let elapsed = Instant::now().saturating_since(started_at);
            assert!(
                elapsed < PATIENCE,
                "timed out: all masters must answer the status request"
            );
        }
    }
    let guard = take_within_patience(&first_client, "job").await;
    let mut was_quarantined = false;
    let restarted_at = Instant::now();
    masters[0].restart_empty().expect("restarted");
    masters[1].restart_empty().expect("restarted");
    // Two of the three masters have lost the lock. Without the restart guard, these two could grant the lock to a
    // second holder.
    loop {
        match second.acquire("job").await {
            Ok(second_guard) => {
                let time_since_restart = Instant::now().saturating_since(restarted_at);
                assert!(
                    time_since_restart > secs(2),
                    "the masters must not vote before the longest lease has ended, but voted {time_since_restart:?} after their \
                     restart"
                );
                assert!(
                    !guard.is_valid(),
                    "the first holder must have lost the lock by now"
                );
                assert!(second_guard.fencing_token() > guard.fencing_token());
                assert!(
                    was_quarantined,
                    "an earlier attempt must have failed because of the restart guard"
                );
                break;
            }
            Err(error) => {
                let time_since_restart = Instant::now().saturating_since(restarted_at);
                assert!(time_since_restart < PATIENCE, "{error}");
                if count_quarantined(&error) == 2 {
                    assert!(error.details().contains("restart guard"), "{error}");
                    was_quarantined = true;
                }
            }
        }
        tokio::time::sleep(ms(50)).await;
    }
}

#[tokio::test]
async fn restart_guard_ignores_the_vote_of_a_master_right_after_its_start() {
    let masters = masters(3);
    let redlock = builder_with_guard(&masters, RestartGuard::On)
        .build()
        .expect("good");
    // Repeat the attempt until its error reports two ignored votes. On a busy machine, an attempt may fail for other
    // reasons.
    while count_quarantined(
        &redlock
            .acquire("job")
            .await
            .expect_err("masters under the restart guard must refuse their vote"),
    ) < 2
    {}
    let patient_acquire = redlock.lock("job").wait(Wait::For(PATIENCE)).acquire();
    patient_acquire
        .await
        .expect("masters must vote when the waiting time of the restart guard has ended")
        .release()
        .await;
    // With these two settings of the guard, the client trusts newly started masters.
    for guard in [RestartGuard::AfterFirstContact, RestartGuard::Off] {
        let masters = support::masters(3);
        let redlock = builder_with_guard(&masters, guard).build().expect("good");
        take_within_patience(&redlock, "job").await.release().await;
    }
}

/// After the clock of a Redis server was set back, the server reports a negative uptime.
#[tokio::test]
async fn masters_whose_clock_was_set_back_after_their_start_vote_after_max_ttl() {
    let clock_shim = match ClockShim::build() {
        Ok(clock_shim) => clock_shim,
        Err(error) => {
            eprintln!(
                "SKIPPED: this machine cannot build the library that shifts a clock: {error}"
            );
            return;
        }
    };
    let offsets = [0, 1, 2].map(|_| {
        let offset = clock_shim.offset_file().expect("an offset file");
        offset.set(secs(7_200), Skew::Ahead).expect("set");
        offset
    });
    let masters = Masters::start_with(3, |n| ServerOptions::new().clock(&clock_shim, &offsets[n]));
    let masters = masters.expect("three masters");
    for offset in &offsets {
        offset.set(Duration::ZERO, Skew::Ahead).expect("set");
    }
    let started_at = Instant::now();
    let redlock = builder_with_guard(&masters, RestartGuard::On)
        .build()
        .expect("good");
    let error = loop {
        let outcome = redlock.acquire("job").await;
        let error = outcome.expect_err("masters under the restart guard must not vote");
        if count_quarantined(&error) >= 2 {
            break error;
        }
        let elapsed = Instant::now().saturating_since(started_at);
        assert!(elapsed < PATIENCE, "{}", error.details());
    };
    assert!(
        error.details().contains("restart guard"),
        "{}",
        error.details()
    );
    let guard = take_within_patience(&redlock, "job").await;
    let elapsed = Instant::now().saturating_since(started_at);
    assert!(
        elapsed >= secs(4),
        "the masters voted {elapsed:?} after the first contact, but only 4 s after it can no lock be forgotten"
    );
    guard.release().await;
    for inspection in redlock.inspect().await {
        assert_eq!(inspection.fault, None);
        assert!(inspection.is_uptime_impossible && inspection.uptime == Some(Duration::ZERO));
    }
}

#[tokio::test]
async fn restart_guard_allows_queries_and_releases_on_a_newly_started_master() {
    let masters = masters(1);
    let on = Redlock::builder().restart_guard(RestartGuard::On);
    let off = Redlock::builder().restart_guard(RestartGuard::Off);
    let url = masters[0].url();
    let young_node = quorate::testing::connect(&url, &on).expect("the address must be valid");
    let trusted_node = quorate::testing::connect(&url, &off).expect("the address must be valid");
    let job_claim = claim(b"job", 1);
    send(&*trusted_node, acquire(&job_claim, secs(30), 0))
        .await
        .expect("free");
    let reply = send(&*young_node, release(&job_claim)).await;
    assert_eq!(reply, Ok(Answer::Released(true)));
    // Test 3,000 acquire requests, because the client must send them in more than one message.
    let mut replies = ReplyCollector::new();
    for n in 0..3_000 {
        let claim = claim(format!("job {n}").as_bytes(), 1);
        replies.send(&*young_node, n, acquire(&claim, secs(30), 0));
    }
    for (_, report) in replies.collect(3_000).await {
        assert!(matches!(report, Err(Fault::Quarantined(_))), "{report:?}");
    }
}

#[tokio::test]
async fn extended_resolves_at_a_renewal_and_at_an_extension() {
    let redlock = Redlock::in_memory(3);
    let outcome = redlock.lock("renewed").ttl(secs(3)).acquire().await;
    let renewed_guard = outcome.expect("free");
    let valid_until = Instant::now() + renewed_guard.remaining();
    tokio::time::timeout(PATIENCE, renewed_guard.extended())
        .await
        .expect("a renewal is due after a third of the ttl");
    assert!(Instant::now() + renewed_guard.remaining() > valid_until + ms(500));
    let lock = redlock.lock("extended").renewal(false);
    let guard = lock.acquire().await.expect("free");
    // An extension between the call and the first poll of the future must not be missed.
    let extended = guard.extended();
    guard.extend(secs(20)).await.expect("held");
    tokio::time::timeout(PATIENCE, extended)
        .await
        .expect("the extension must be noticed");
}
