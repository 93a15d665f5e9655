//! Tests of one message that renews ten locks. The masters cannot renew the first lock, but must renew all others.
//!
//! In some tests, the masters are out of memory (`maxmemory-policy noeviction`). In the other tests, the client's user
//! has no right to a key of the first lock.

use std::time::Duration;

use crate::support::{ask_server, eventually, has_key, masters, secs, settings};
use quorate::{ExtendError, Fault, LockGuard, NodeOutcome, Redlock, RedlockBuilder};
use quorate_testbed::{Masters, Server};

const TTL: Duration = secs(6);

/// Sets the memory limit of each master to one byte. After that, the master refuses every command that may need memory.
fn exhaust_memory(masters: &Masters) {
    for master in masters {
        ask_server(master, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        ask_server(master, &["CONFIG", "SET", "maxmemory", "1"]);
    }
}

fn locker_builder(masters: &Masters) -> RedlockBuilder {
    settings(masters.urls()).ttl(TTL)
}

/// Acquires ten locks, one after the other. The client later renews all of them with one message, in the same order.
async fn acquire_ten(redlock: &Redlock, is_shared: bool) -> Vec<LockGuard> {
    let mut guards = Vec::new();
    for n in 0..10 {
        let lock = redlock.lock(format!("job-{n}"));
        let lock_request = if is_shared { lock.shared() } else { lock };
        guards.push(lock_request.acquire().await.expect("free"));
    }
    guards
}

/// Waits for 0.7 TTLs, in which each lock is due for renewal twice. Then checks that all locks except the first were
/// renewed.
async fn assert_all_but_the_first_are_renewed(guards: &[LockGuard]) {
    tokio::time::sleep(TTL * 7 / 10).await;
    let is_renewed = |guard: &LockGuard| guard.remaining() > TTL * 45 / 100;
    let renewed: Vec<bool> = guards.iter().map(is_renewed).collect();
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
async fn renewals_continue_if_full_masters_cannot_restore_a_deleted_lock() {
    for is_shared in [false, true] {
        let masters = masters(3);
        let redlock = locker_builder(&masters).build().expect("good settings");
        let guards = acquire_ten(&redlock, is_shared).await;
        for master in &masters {
            ask_server(master, &["DEL", "job-0", "quorate:holds:job-0"]);
            // Delete the fencing counter. The renewal of a reader's lock first writes this counter, but the masters
            // below have no free memory for it.
            ask_server(master, &["DEL", "quorate:fence:job-0"]);
        }
        exhaust_memory(&masters);
        assert_all_but_the_first_are_renewed(&guards).await;
    }
}

#[tokio::test]
async fn masters_out_of_memory_renew_the_reader_whose_lease_ends_first() {
    let masters = masters(3);
    let redlock = locker_builder(&masters).build().expect("good settings");
    let short_reader = redlock.lock("doc").shared().acquire().await.expect("free");
    let long = redlock.lock("doc").shared().ttl(secs(30));
    let _long = long
        .acquire()
        .await
        .expect("the second reader must get the lock together with the first reader");
    exhaust_memory(&masters);
    tokio::time::sleep(2 * TTL).await;
    assert!(short_reader.is_valid(), "{:?}", short_reader.report());
}

/// Creates the user `locker_builder` on every master. The user may run all commands, but only on the keys `quorate:*` and on
/// the keys that the ACL rules in `words` allow.
fn grant_rights(masters: &Masters, words: &[&str]) {
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

fn client_as_user(masters: &Masters) -> Redlock {
    let locker_url = |master: &Server| format!("redis://locker:secret@{}", master.addr());
    let settings = settings(masters.iter().map(locker_url)).ttl(TTL);
    settings.build().expect("good settings")
}

#[tokio::test]
async fn renewals_continue_if_the_acl_denies_access_to_the_key_of_another_lock() {
    for is_shared in [false, true] {
        let masters = masters(3);
        grant_rights(&masters, &["~job*"]);
        let redlock = client_as_user(&masters);
        let guards = acquire_ten(&redlock, is_shared).await;
        grant_rights(&masters, &["~job-[1-9]"]);
        assert_all_but_the_first_are_renewed(&guards).await;
        let faults = faults(&guards[0]);
        let names_the_key = |fault: &Fault| fault.to_string().contains("lock key");
        assert!(
            faults.len() == 3 && faults.iter().all(names_the_key),
            "{faults:?}"
        );
    }
}

#[tokio::test]
async fn renewals_continue_if_the_acl_denies_access_to_one_force_release_key() {
    const KEY_PATTERNS: [&str; 7] = [
        "~job*",
        "~quorate:fence:*",
        "~quorate:holds:*",
        "~quorate:note:*",
        "~quorate:lines",
        "~quorate:[aqt]*",
        "~quorate:broken:job-[1-9]",
    ];
    let masters = masters(3);
    grant_rights(&masters, &[]);
    for is_shared in [false, true] {
        grant_rights(&masters, &["~job*"]);
        let redlock = client_as_user(&masters);
        let guards = acquire_ten(&redlock, is_shared).await;
        for master in &masters {
            ask_server(master, &["DEL", "job-0", "quorate:holds:job-0"]);
            let words = ["ACL", "SETUSER", "locker", "resetkeys"];
            let words: Vec<&str> = words.iter().chain(&KEY_PATTERNS).copied().collect();
            assert!(ask_server(master, &words).is_ok());
        }
        assert_all_but_the_first_are_renewed(&guards).await;
        let faults = faults(&guards[0]);
        let names_the_key = |fault: &Fault| fault.to_string().contains("keys like quorate:broken:");
        assert!(
            faults.len() == 3 && faults.iter().all(names_the_key),
            "{faults:?}"
        );
    }
}

#[tokio::test]
async fn extension_reports_out_of_memory_for_each_full_master() {
    let masters = masters(3);
    let redlock = locker_builder(&masters).build().expect("good settings");
    let guard = redlock.acquire("job").await.expect("free");
    for master in &masters {
        ask_server(master, &["DEL", "job"]);
    }
    exhaust_memory(&masters);
    let Err(ExtendError::NoQuorum(reports)) = guard.extend(TTL).await else {
        panic!("the extension must fail, because full masters refuse to restore the lock key")
    };
    let is_out_of_memory =
        |report: &quorate::NodeReport| report.outcome == NodeOutcome::Fault(Fault::OutOfMemory);
    assert!(reports.iter().all(is_out_of_memory), "{reports:?}");
}

#[tokio::test]
async fn masters_without_free_memory_refuse_acquires_but_execute_releases() {
    let masters = masters(3);
    let redlock = settings(masters.urls()).build().expect("good settings");
    let lock_name = |n: usize| format!("held {n}");
    let acquires = (0..20).map(|n| redlock.acquire(lock_name(n)));
    let guards = futures::future::try_join_all(acquires).await.expect("free");
    exhaust_memory(&masters);
    let attempts = (0..20).map(|n| redlock.lock(format!("free {n}")).try_acquire());
    for outcome in futures::future::join_all(attempts).await {
        let error = outcome
            .map(|_| ())
            .expect_err("full masters must refuse every new attempt");
        assert!(error.details().contains("OOM"), "{error}");
    }
    let releases = guards.iter().map(LockGuard::release);
    for released in futures::future::join_all(releases).await {
        assert!(
            released.was_valid && released.unreachable == 0,
            "{released:?}"
        );
    }
    redlock.flush().await;
    eventually("every key must be deleted", || {
        let has_no_key = |master: &Server| (0..20).all(|n| !has_key(master, &lock_name(n)));
        masters.iter().all(has_no_key)
    })
    .await;
}

#[tokio::test]
async fn force_released_lock_on_full_masters_is_not_restored_by_its_holder() {
    let masters = masters(3);
    let redlock = locker_builder(&masters).build().expect("good settings");
    let exclusive = redlock.acquire("job").await.expect("free");
    let reader = redlock.lock("doc").shared().acquire().await.expect("free");
    exhaust_memory(&masters);
    for (guard, resource) in [(&exclusive, "job"), (&reader, "doc")] {
        // A master without the lock key must store the break record as well.
        ask_server(&masters[2], &["DEL", resource]);
        let status = redlock
            .break_lock(resource)
            .await
            .expect("the name must be valid");
        let all_answered = status.nodes.iter().all(|node| node.state.is_ok());
        assert!(all_answered, "{resource}: {status:?}");
        tokio::time::timeout(TTL, guard.lost())
            .await
            .expect("an answer");
        assert!(masters.iter().all(|master| !has_key(master, resource)));
        let break_record_key = format!("quorate:broken:{resource}");
        assert!(
            masters
                .iter()
                .all(|master| has_key(master, &break_record_key))
        );
    }
}
