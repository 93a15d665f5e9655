//! Tests of one message that renews many locks, on masters that cannot renew one of these locks. The masters are full
//! (`noeviction`), or the user lacks a right for one key. The other locks of the message must still be renewed.

use std::time::Duration;

use crate::support::{ask_server, eventually, has_key, masters, secs, settings};
use quorate::{ExtendError, Fault, LockGuard, NodeOutcome, Redlock, RedlockBuilder};
use quorate_testbed::{Masters, Server};

const TTL: Duration = secs(6);

/// Makes each master refuse every command that may need memory, from now on.
fn fill(masters: &Masters) {
    for master in masters {
        ask_server(master, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        ask_server(master, &["CONFIG", "SET", "maxmemory", "1"]);
    }
}

fn locker(masters: &Masters) -> RedlockBuilder {
    settings(masters.urls()).ttl(TTL)
}

/// Acquires ten locks one after the other. One message then renews them in this order.
async fn ten(redlock: &Redlock, reads: bool) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for n in 0..10 {
        let lock = redlock.lock(format!("job-{n}"));
        let lock = if reads { lock.shared() } else { lock };
        guards.push(lock.acquire().await.expect("free"));
    }
    guards
}

/// Checks after the second renewal that all locks except the first were renewed. At that time a lock has 0.3 TTLs left
/// if it was not renewed, and at least 0.6 TTLs if it was renewed.
async fn assert_all_but_the_first_are_renewed(guards: &[LockGuard]) {
    tokio::time::sleep(TTL * 7 / 10).await;
    let renewed = |guard: &LockGuard| guard.remaining() > TTL * 45 / 100;
    let renewed: Vec<bool> = guards.iter().map(renewed).collect();
    assert!(renewed[1..].iter().all(|renewed| *renewed), "{renewed:?}");
}

fn faults(guard: &LockGuard) -> Vec<Fault> {
    let reports = guard.report().into_iter();
    let faults = reports.filter_map(|report| match report.outcome {
        NodeOutcome::Fault(fault) => Some(fault),
        _ => None,
    });
    faults.collect()
}

#[tokio::test]
async fn lock_that_full_masters_cannot_restore_does_not_end_the_renewal_of_other_locks() {
    for reads in [false, true] {
        let masters = masters(3);
        let redlock = locker(&masters).build().expect("good settings");
        let guards = ten(&redlock, reads).await;
        for master in &masters {
            ask_server(master, &["DEL", "job-0", "quorate:holds:job-0"]);
            // Delete the fencing counter of the first lock. To renew a reader, the script must then write the counter
            // first, which a full master refuses.
            ask_server(master, &["DEL", "quorate:fence:job-0"]);
        }
        fill(&masters);
        // Once a script has written something, even a full server lets it write more. So a later renewal may restore
        // the first lock.
        assert_all_but_the_first_are_renewed(&guards).await;
    }
}

#[tokio::test]
async fn reader_is_renewed_on_full_masters_while_another_readers_longer_lease_keeps_the_key() {
    let masters = masters(3);
    let redlock = locker(&masters).build().expect("good settings");
    let brief = redlock.lock("doc").shared().acquire().await.expect("free");
    let long = redlock.lock("doc").shared().ttl(secs(30));
    let _long = long
        .acquire()
        .await
        .expect("a reader must be able to join another reader");
    fill(&masters);
    tokio::time::sleep(2 * TTL).await;
    assert!(brief.is_valid(), "{:?}", brief.report());
}

/// Creates the user `locker` on every master. Its rights to keys are those to `quorate:*` and those that the ACL rules
/// `words` grant.
fn grant(masters: &Masters, words: &[&str]) {
    const RIGHTS: [&str; 9] = [
        "ACL",
        "SETUSER",
        "locker",
        "reset",
        "on",
        ">secret",
        "&*",
        "+@all",
        "~quorate:*",
    ];
    for master in masters {
        let words: Vec<&str> = RIGHTS.iter().chain(words).copied().collect();
        assert!(ask_server(master, &words).is_ok());
    }
}

fn as_user(masters: &Masters) -> Redlock {
    let url = |master: &Server| format!("redis://locker:secret@{}", master.addr());
    let settings = settings(masters.iter().map(url)).ttl(TTL);
    settings.build().expect("good settings")
}

#[tokio::test]
async fn lock_whose_key_the_user_may_no_longer_use_does_not_end_the_renewal_of_other_locks() {
    for reads in [false, true] {
        let masters = masters(3);
        grant(&masters, &["~job*"]);
        let redlock = as_user(&masters);
        let guards = ten(&redlock, reads).await;
        grant(&masters, &["~job-[1-9]"]);
        assert_all_but_the_first_are_renewed(&guards).await;
        let faults = faults(&guards[0]);
        let named = |fault: &Fault| fault.to_string().contains("lock key");
        assert!(faults.len() == 3 && faults.iter().all(named), "{faults:?}");
    }
}

#[tokio::test]
async fn lock_whose_break_record_the_user_may_not_read_does_not_end_the_renewal_of_other_locks() {
    const PATTERNS: [&str; 7] = [
        "~job*",
        "~quorate:fence:*",
        "~quorate:holds:*",
        "~quorate:note:*",
        "~quorate:lines",
        "~quorate:[aqt]*",
        "~quorate:broken:job-[1-9]",
    ];
    let masters = masters(3);
    grant(&masters, &[]);
    for reads in [false, true] {
        grant(&masters, &["~job*"]);
        let redlock = as_user(&masters);
        let guards = ten(&redlock, reads).await;
        for master in &masters {
            ask_server(master, &["DEL", "job-0", "quorate:holds:job-0"]);
            let words = ["ACL", "SETUSER", "locker", "resetkeys"];
            let words: Vec<&str> = words.iter().chain(&PATTERNS).copied().collect();
            assert!(ask_server(master, &words).is_ok());
        }
        assert_all_but_the_first_are_renewed(&guards).await;
        let faults = faults(&guards[0]);
        let named = |fault: &Fault| fault.to_string().contains("keys like quorate:broken:");
        assert!(faults.len() == 3 && faults.iter().all(named), "{faults:?}");
    }
}

#[tokio::test]
async fn extension_reports_the_refusal_of_a_full_master() {
    let masters = masters(3);
    let redlock = locker(&masters).build().expect("good settings");
    let guard = redlock.acquire("job").await.expect("free");
    for master in &masters {
        ask_server(master, &["DEL", "job"]);
    }
    fill(&masters);
    let Err(ExtendError::NoQuorum(reports)) = guard.extend(TTL).await else {
        panic!("full masters must refuse to restore the lock key")
    };
    let full =
        |report: &quorate::NodeReport| report.outcome == NodeOutcome::Fault(Fault::OutOfMemory);
    assert!(reports.iter().all(full), "{reports:?}");
}

#[tokio::test]
async fn full_masters_refuse_attempts_and_accept_releases() {
    let masters = masters(3);
    let redlock = settings(masters.urls()).build().expect("good settings");
    let name = |n: usize| format!("held {n}");
    let locks = (0..20).map(|n| redlock.acquire(name(n)));
    let guards = futures::future::try_join_all(locks).await.expect("free");
    fill(&masters);
    let attempts = (0..20).map(|n| redlock.lock(format!("free {n}")).try_acquire());
    for found in futures::future::join_all(attempts).await {
        let error = found
            .map(|_| ())
            .expect_err("full masters must refuse every new attempt");
        assert!(error.details().contains("OOM"), "{error}");
    }
    let releases = guards.into_iter().map(LockGuard::release);
    for released in futures::future::join_all(releases).await {
        assert!(
            released.was_valid && released.unreachable == 0,
            "{released:?}"
        );
    }
    redlock.flush().await;
    eventually("every key must be deleted", || {
        let gone = |master: &Server| (0..20).all(|n| !has_key(master, &name(n)));
        masters.iter().all(gone)
    })
    .await;
}

#[tokio::test]
async fn lock_on_full_masters_can_be_force_released_and_is_not_restored() {
    let masters = masters(3);
    let redlock = locker(&masters).build().expect("good settings");
    let plain = redlock.acquire("job").await.expect("free");
    let reader = redlock.lock("doc").shared().acquire().await.expect("free");
    fill(&masters);
    for (guard, resource) in [(&plain, "job"), (&reader, "doc")] {
        let status = redlock
            .break_lock(resource)
            .await
            .expect("the name must be valid");
        let answered = status.nodes.iter().all(|node| node.state.is_ok());
        assert!(answered, "{resource}: {status:?}");
        tokio::time::timeout(TTL, guard.lost())
            .await
            .expect("an answer");
        assert!(masters.iter().all(|master| !has_key(master, resource)));
    }
}
