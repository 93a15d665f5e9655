//! Tests of notes, which describe the holder of a lock, on real masters: when a client writes a note, how long a master
//! keeps it, and that a note of a former holder is not shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::support::{
    self, ask_server, count_masters_with, eventually, masters, ms, redlock, secs, settings, take,
};
use quorate::node::memory::MemoryNode;
use quorate::node::{Node, Reply as Answers, Request};
use quorate::runtime::BoxFuture;
use quorate::{AcquireError, MAX_NOTE_LEN, NodeName, Note, Redlock, TryAcquire, Wait};
use quorate_testbed::{Masters, Reply, Server};

/// Waits until the lock has a note, and returns that note.
async fn wait_for_note(redlock: &Redlock, resource: &str) -> Note {
    let started_at = std::time::Instant::now();
    loop {
        let status = redlock
            .status(resource)
            .await
            .expect("the name must be valid");
        if let Some(note) = status.note() {
            return note.clone();
        }
        assert!(
            started_at.elapsed() < support::PATIENCE,
            "the note must be written in time: {status:?}"
        );
        tokio::time::sleep(ms(5)).await;
    }
}

fn note_keys(masters: &Masters) -> usize {
    count_masters_with(masters, "quorate:note:job")
}

/// The remaining TTL of a key on a server.
fn remaining_ttl(server: &Server, key: &str) -> Duration {
    let remaining_ttl = ask_server(server, &["PTTL", key]).int().expect("a number");
    ms(u64::try_from(remaining_ttl).unwrap_or(0))
}

#[tokio::test]
async fn note_is_stored_during_a_hold_and_removed_by_the_release() {
    let masters = masters(3);
    let (holder, other) = (redlock(&masters), redlock(&masters));
    let note_text = String::from("by hand");
    let outcome = holder.lock("job").note(&note_text).acquire().await;
    let guard = outcome.expect("free");
    let note = wait_for_note(&other, "job").await;
    assert_eq!(note.pid, std::process::id());
    let program = std::env::current_exe().expect("this program");
    let program_name = program.file_name().unwrap_or_default().to_string_lossy();
    assert!(
        !note.host.is_empty() && note.process == program_name,
        "{note}"
    );
    assert_eq!(note.text.as_deref(), Some("by hand"));
    let age = SystemTime::now().duration_since(note.since);
    assert!(
        age.expect("the start time of the note must be in the past") < secs(60),
        "{note}"
    );
    eventually("all masters must have the note", || {
        note_keys(&masters) == 3
    })
    .await;
    guard.release().await;
    holder.flush().await;
    assert_eq!(note_keys(&masters), 0);
    assert_eq!(
        other
            .status("job")
            .await
            .expect("the name must be valid")
            .note(),
        None
    );
}

/// A master in memory that counts the notes and the renewals that it receives.
struct CountingNode {
    node: MemoryNode,
    sent_notes: AtomicUsize,
    /// The number of lock renewals.
    renewed_locks: AtomicUsize,
    /// The number of those lock renewals that also extended the TTL of the holder's note.
    noted_locks: AtomicUsize,
}

impl CountingNode {
    fn new() -> Self {
        Self {
            node: MemoryNode::new("m"),
            sent_notes: AtomicUsize::new(0),
            renewed_locks: AtomicUsize::new(0),
            noted_locks: AtomicUsize::new(0),
        }
    }
}

impl Node for CountingNode {
    fn name(&self) -> &NodeName {
        self.node.name()
    }

    fn send(&self, request: Request, reply: Answers) {
        if let Request::Note { items } = &request {
            self.sent_notes.fetch_add(items.len(), Ordering::Relaxed);
        }
        if let Request::Extend { items } = &request {
            let noted_locks = items.iter().filter(|item| item.note).count();
            self.renewed_locks.fetch_add(items.len(), Ordering::Relaxed);
            self.noted_locks.fetch_add(noted_locks, Ordering::Relaxed);
        }
        self.node.send(request, reply);
    }

    fn idle(&self) -> BoxFuture<()> {
        self.node.idle()
    }
}

#[tokio::test]
async fn no_note_is_sent_for_a_lock_that_is_held_only_briefly() {
    let node = Arc::new(CountingNode::new());
    let build_result = Redlock::builder().nodes(vec![node.clone()]).build();
    let redlock = build_result.expect("good settings");
    let mut short_holds = 0;
    for n in 0..100 {
        let started_at = Instant::now();
        take(&redlock, &format!("job {n}")).await.release().await;
        // Count the locks that were held for less than 90 ms. The client writes a note only for a lock that it holds
        // for 100 ms or longer.
        short_holds += usize::from(started_at.elapsed() < ms(90));
    }
    tokio::time::sleep(ms(300)).await;
    let sent_notes = node.sent_notes.load(Ordering::Relaxed);
    assert!(
        sent_notes <= 100 - short_holds,
        "only locks that were held for 90 ms or longer may have a note: {sent_notes} notes were sent, but {short_holds} of \
         100 locks were held for a shorter time"
    );
    let _guard = take(&redlock, "job").await;
    eventually("the note of a held lock must be written", || {
        node.sent_notes.load(Ordering::Relaxed) > sent_notes
    })
    .await;
}

#[tokio::test]
async fn renewals_keep_the_holders_note_on_all_masters() {
    let masters = masters(3);
    let settings = settings(masters.urls()).node_timeout(ms(300)).ttl(secs(2));
    let redlock = settings.build().expect("good settings");
    let _guard = take(&redlock, "job").await;
    wait_for_note(&redlock, "job").await;
    for master in &masters {
        ask_server(master, &["DEL", "quorate:note:job"]);
    }
    eventually("a renewal must restore the lost note", || {
        note_keys(&masters) == 3
    })
    .await;
    // A note lives for four TTLs, here 8 s. A renewal must extend this lifetime.
    let remaining_ttls = || {
        masters
            .iter()
            .map(|master| remaining_ttl(master, "quorate:note:job"))
    };
    assert!(
        remaining_ttls().all(|remaining_ttl| remaining_ttl > secs(2) && remaining_ttl <= secs(8))
    );
    eventually("the remaining time of the note must fall", || {
        remaining_ttls().all(|remaining_ttl| remaining_ttl < ms(7_200))
    })
    .await;
    eventually(
        "a renewal must extend the remaining time of the note",
        || remaining_ttls().all(|remaining_ttl| remaining_ttl > ms(7_400)),
    )
    .await;
    assert_eq!(note_keys(&masters), 3);
}

#[tokio::test]
async fn one_in_six_renewals_refreshes_the_note() {
    let node = Arc::new(CountingNode::new());
    let settings = Redlock::builder().nodes(vec![node.clone()]).ttl(secs(3));
    let build_result = settings.node_timeout(ms(300)).build();
    let redlock = build_result.expect("good settings");
    let locks = (0..120).map(|n| redlock.lock(format!("job {n}")).acquire());
    let _guards = futures::future::join_all(locks).await;
    let renewal_counts = || {
        let [renewed_locks, noted_renewals] =
            [&node.renewed_locks, &node.noted_locks].map(|n| n.load(Ordering::Relaxed));
        (renewed_locks, noted_renewals)
    };
    // A renewal refreshes the note with a probability of one in six, so wait for many renewals.
    eventually("all locks must be renewed", || renewal_counts().0 >= 120).await;
    let (renewed_locks, noted_renewals) = renewal_counts();
    assert!(
        noted_renewals > 0 && noted_renewals < renewed_locks / 2,
        "at least one renewal, but fewer than half of them, must refresh the note: {noted_renewals} of {renewed_locks} did"
    );
}

#[tokio::test]
async fn note_of_a_dead_holder_is_not_shown() {
    let masters = masters(3);
    let (holder, other) = (redlock(&masters), redlock(&masters));
    let dead_request = holder.lock("job").renewal(false);
    let _dead = dead_request
        .note("the dead one")
        .acquire()
        .await
        .expect("free");
    wait_for_note(&other, "job").await;
    eventually("all masters must have the note", || {
        note_keys(&masters) == 3
    })
    .await;
    let mut observation = other
        .election("job")
        .observe()
        .expect("the name must be valid");
    // Delete the lock keys, as if the holder had crashed and its lease had expired.
    for master in &masters {
        ask_server(master, &["DEL", "job"]);
    }
    assert_eq!(
        note_keys(&masters),
        3,
        "the masters must still store the note after the lock key is gone"
    );
    let status = other.status("job").await.expect("the name must be valid");
    assert_eq!(status.note(), None, "{status:?}");
    assert_eq!(observation.next().await, None);
    // The next holder writes no note. The former holder's note must not be shown for the next holder.
    let new_guard = other.lock("job").note(None).acquire().await.expect("free");
    let status = other.status("job").await.expect("the name must be valid");
    assert_eq!(status.note(), None, "{status:?}");
    let leader = observation
        .next()
        .await
        .expect("the new leader must be reported");
    assert_eq!(leader.note, None);
    new_guard.release().await;
}

#[tokio::test]
async fn note_of_a_fixed_lease_is_extended_together_with_the_lease() {
    let masters = masters(3);
    let build_result = settings(masters.urls()).ttl(secs(10)).build();
    let redlock = build_result.expect("good settings");
    let outcome = redlock.lock("job").renewal(false).acquire().await;
    let guard = outcome.expect("free");
    wait_for_note(&redlock, "job").await;
    eventually("all masters must have the note", || {
        note_keys(&masters) == 3
    })
    .await;
    guard
        .extend(secs(28))
        .await
        .expect("the extension must succeed, because the lock is still held");
    eventually("the note must expire no earlier than its lock", || {
        let has_long_ttl = |master| remaining_ttl(master, "quorate:note:job") > secs(11);
        masters.iter().all(has_long_ttl)
    })
    .await;
}

#[tokio::test]
async fn note_of_a_former_holder_is_not_shown_for_the_next_holder() {
    let masters = masters(3);
    let (first, second) = (redlock(&masters), redlock(&masters));
    let outcome = first.lock("job").note("the old one").acquire().await;
    let old_guard = outcome.expect("free");
    wait_for_note(&second, "job").await;
    eventually("all masters must have the note", || {
        note_keys(&masters) == 3
    })
    .await;
    // Delete the lock keys but not the notes, as if the lease of a paused holder had expired.
    for master in &masters {
        ask_server(master, &["DEL", "job"]);
    }
    let new_guard = second.lock("job").note(None).acquire().await.expect("free");
    let status = first.status("job").await.expect("the name must be valid");
    assert_eq!(status.note(), None, "{status:?}");
    // The former holder releases its lock late. This must not remove the key or the note of the next holder.
    old_guard.release().await;
    assert_eq!(count_masters_with(&masters, "job"), 3);
    new_guard.release().await;
    let new_guard = second.lock("job").note("the new one").acquire().await;
    let _new = new_guard.expect("free");
    let note = wait_for_note(&first, "job").await;
    assert_eq!(note.text.as_deref(), Some("the new one"));
}

#[tokio::test]
async fn waiter_and_refused_caller_receive_the_note_of_the_holder() {
    let masters = masters(3);
    let (holder, other) = (redlock(&masters), redlock(&masters));
    let note_text = String::from("by hand");
    let outcome = holder.lock("job").note(&note_text).acquire().await;
    let guard = outcome.expect("free");
    wait_for_note(&other, "job").await;
    eventually("all masters must have the note", || {
        note_keys(&masters) == 3
    })
    .await;
    let tried = other.try_acquire("job").await.expect("answers");
    let TryAcquire::Held(refusal) = tried else {
        panic!("the lock must be reported as held")
    };
    let (details, refusal_text) = (refusal.details(), refusal.to_string());
    assert!(details.contains("by hand"), "{details}");
    assert_eq!(refusal_text, "the lock is held by another");
    assert_eq!(
        refusal.note.and_then(|note| note.text.clone()).as_deref(),
        Some("by hand")
    );
    let (sender, mut noted_renewals) = tokio::sync::mpsc::unbounded_channel();
    let lock_request = other.lock("job").wait(Wait::For(ms(500)));
    let observed_request =
        lock_request.waiting(move |waiting| drop(sender.send(waiting.note.clone())));
    let error = observed_request.acquire().await.expect_err("held");
    assert!(matches!(&error, AcquireError::HeldByOther(missed) if missed.note.is_some()));
    let note_text = error.details();
    let pid = format!("pid {}", std::process::id());
    assert!(
        note_text.contains("by hand") && note_text.contains(&pid),
        "{note_text}"
    );
    let note_text = error.to_string();
    assert!(
        !note_text.contains("by hand") && !note_text.contains(&pid),
        "{note_text}"
    );
    let first = noted_renewals.recv().await.expect("a notification");
    assert_eq!(first.and_then(|note| note.text).as_deref(), Some("by hand"));
    guard.release().await;
}

#[tokio::test]
async fn no_note_is_written_if_notes_or_fencing_are_switched_off() {
    let masters = masters(3);
    let client_without_notes = settings(masters.urls()).note(None).build().expect("good");
    let build_result = settings(masters.urls())
        .fencing(false)
        .note("unseen")
        .build();
    let classic = build_result.expect("good settings");
    for redlock in [&client_without_notes, &classic] {
        let guard = take(redlock, "job").await;
        tokio::time::sleep(ms(400)).await;
        assert_eq!(note_keys(&masters), 0);
        guard.release().await;
    }
    // `note` on a lock overrides `note(None)` on the builder. This also works without ordered waiters.
    let build_result = settings(masters.urls())
        .order(quorate::Order::Unordered)
        .note(None)
        .build();
    let unordered_client = build_result.expect("good settings");
    let outcome = unordered_client.lock("job").note("seen").acquire().await;
    let guard = outcome.expect("free");
    assert_eq!(
        wait_for_note(&client_without_notes, "job")
            .await
            .text
            .as_deref(),
        Some("seen")
    );
    eventually("all masters must have the note", || {
        note_keys(&masters) == 3
    })
    .await;
    guard.release().await;
    unordered_client.flush().await;
    assert_eq!(note_keys(&masters), 0);
}

#[tokio::test]
async fn a_note_that_is_too_long_is_refused_before_anything_is_sent() {
    let long_note = "x".repeat(MAX_NOTE_LEN + 1);
    let build_result = Redlock::builder().in_memory(3).note(&*long_note).build();
    let error = build_result.expect_err("too long").to_string();
    assert!(error.contains("1025") && error.contains("1024"), "{error}");
    let redlock = Redlock::in_memory(3);
    let error = redlock.lock("job").note(&*long_note).acquire().await;
    assert!(
        matches!(error, Err(AcquireError::InvalidOptions(_))),
        "{error:?}"
    );
    let outcome = redlock.lock("job").note(&long_note[1..]).acquire().await;
    drop(outcome.expect("free"));
}

#[tokio::test]
async fn connections_to_masters_carry_the_client_name() {
    let masters = masters(1);
    let redlock = redlock(&masters);
    take(&redlock, "job").await.release().await;
    let reply = ask_server(&masters[0], &["CLIENT", "LIST"]);
    let list = reply.text().expect("text").into_owned();
    let pid = format!(":{} ", std::process::id());
    let is_named = list
        .lines()
        .any(|line| line.contains("name=quorate/0/") && line.contains(&pid));
    assert!(is_named, "{list}");
}

#[tokio::test]
async fn each_of_a_thousand_concurrent_locks_has_a_note() {
    let masters = masters(3);
    let build_result = settings(masters.urls()).node_timeout(secs(5)).build();
    let redlock = build_result.expect("good settings");
    let locks = (0..1000).map(|n| redlock.lock(format!("many {n}")).acquire());
    let guards = futures::future::join_all(locks).await;
    assert!(guards.iter().all(Result::is_ok));
    eventually("all notes must be written", || {
        masters.iter().all(|master| {
            let keys = ask_server(master, &["KEYS", "quorate:note:*"]);
            matches!(keys, Reply::Array(keys) if keys.len() == 1000)
        })
    })
    .await;
}

/// Waits until `count` holders of a shared lock have notes, and returns the texts of the notes.
async fn wait_for_texts(redlock: &Redlock, resource: &str, count: usize) -> Vec<String> {
    let started_at = Instant::now();
    loop {
        let status = redlock
            .status(resource)
            .await
            .expect("the name must be valid");
        let notes = status.holds().into_iter().filter_map(|hold| hold.note);
        let mut wait_for_texts: Vec<String> = notes.filter_map(|note| note.text).collect();
        wait_for_texts.sort_unstable();
        if wait_for_texts.len() == count {
            return wait_for_texts;
        }
        assert!(started_at.elapsed() < support::PATIENCE, "{status:?}");
        tokio::time::sleep(ms(5)).await;
    }
}

#[tokio::test]
async fn each_reader_and_each_hold_of_an_owner_has_its_own_note() {
    let masters = masters(3);
    let (one, two) = (redlock(&masters), redlock(&masters));
    let readers = [
        one.lock("doc").shared().note("one").acquire().await,
        two.lock("doc").shared().note("two").acquire().await,
    ];
    assert_eq!(wait_for_texts(&two, "doc", 2).await, ["one", "two"]);
    let [first, second] = readers.map(|reader| reader.expect("a reader"));
    let status = one.status("doc").await.expect("the name must be valid");
    let holds = status.holds();
    assert!(holds.iter().all(|hold| hold.lives <= secs(30)));
    let values = holds.iter().map(|hold| hold.value.clone());
    let mut expected = [&first, &second].map(|reader| reader.token().to_string().into_bytes());
    expected.sort_unstable();
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    assert_eq!(values, expected);
    first.release().await;
    one.flush().await;
    assert_eq!(wait_for_texts(&one, "doc", 1).await, ["two"]);
    let second = second.release().await;
    drop(second);
    two.flush().await;
    let count_notes = |master: &Server| match ask_server(master, &["KEYS", "quorate:note:*"]) {
        Reply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    };
    eventually("no master may have a key left", || {
        masters.iter().all(|m| count_notes(m) == 0)
    })
    .await;

    let owner = one.owner("order-1").expect("an id");
    let outer = owner.lock("stock").note("outer").acquire().await;
    let inner = owner.lock("stock").note("inner").acquire().await;
    assert_eq!(wait_for_texts(&two, "stock", 2).await, ["inner", "outer"]);
    drop((
        outer.expect("free"),
        inner.expect("a second hold of the owner must be granted"),
    ));
    let memory_client = Redlock::in_memory(3);
    let reader_guard = memory_client
        .lock("doc")
        .shared()
        .note("here")
        .acquire()
        .await;
    let _reader = reader_guard.expect("free");
    assert_eq!(wait_for_texts(&memory_client, "doc", 1).await, ["here"]);
}

#[tokio::test]
async fn note_of_a_crashed_reader_expires_without_affecting_the_notes_of_other_readers() {
    let masters = masters(3);
    let builder = settings(masters.urls()).node_timeout(ms(300)).ttl(secs(2));
    let (dying_client, remaining_ttls) = (
        builder.clone().build().expect("good settings"),
        builder.build().expect("good settings"),
    );
    let dying_request = dying_client
        .lock("doc")
        .shared()
        .note("dies")
        .renewal(false);
    let dying_guard = dying_request.acquire().await.expect("free");
    let living_guard = remaining_ttls
        .lock("doc")
        .shared()
        .note("lives")
        .acquire()
        .await;
    let _living = living_guard.expect("a reader");
    assert_eq!(
        wait_for_texts(&remaining_ttls, "doc", 2).await,
        ["dies", "lives"]
    );
    let key = format!("quorate:note:quorate:hold:{}:doc", dying_guard.token());
    for master in &masters {
        assert!(remaining_ttl(master, &key) <= secs(8));
    }
    // Forget the guard without a release, as in a crash.
    std::mem::forget(dying_guard);
    eventually("the note of the dead reader must expire", || {
        count_masters_with(&masters, &key) == 0
    })
    .await;
    tokio::time::sleep(secs(3)).await;
    assert_eq!(
        wait_for_texts(&remaining_ttls, "doc", 1).await,
        ["lives"],
        "the note of the other reader must not expire"
    );
}

#[tokio::test]
async fn downgraded_writer_keeps_its_note() {
    let redlock = Redlock::in_memory(3);
    let writer = redlock.lock("doc").note("was a writer").acquire().await;
    let reader = writer.expect("free").downgrade().await;
    let _reader = reader.expect("a reader");
    assert_eq!(wait_for_texts(&redlock, "doc", 1).await, ["was a writer"]);
}

/// Tests a note key with a very long text that another program wrote. If a master sent the whole text, the reply would
/// exceed the client's size limit, and the client would close the connection.
#[tokio::test]
async fn overlong_note_written_by_another_program_is_shown_truncated() {
    let masters = masters(3);
    let first_client = redlock(&masters);
    let patient = settings(masters.urls()).node_timeout(secs(5));
    let other = patient.build().expect("good settings");
    let _held = first_client
        .lock("job")
        .note(None)
        .acquire()
        .await
        .expect("free");
    let fill = "return redis.call('SET', 'quorate:note:job', string.rep('x', 9000000))";
    for master in &masters {
        ask_server(master, &["EVAL", fill, "0"]);
    }
    let status = other.status("job").await.expect("the name must be valid");
    assert!(
        status.nodes.iter().all(|node| node.state.is_ok()),
        "{status:?}"
    );
    let refused = other.try_acquire("job").await.expect("an answer");
    assert!(matches!(refused, TryAcquire::Held(_)));
}

#[tokio::test]
async fn extension_restores_a_missing_note() {
    let masters = masters(3);
    let builder = settings(masters.urls()).max_ttl(secs(600)).ttl(secs(600));
    let redlock = builder.build().expect("good settings");
    let guard = take(&redlock, "job").await;
    eventually("the note must be written", || note_keys(&masters) == 3).await;
    for master in &masters {
        ask_server(master, &["DEL", "quorate:note:job"]);
    }
    guard.extend(secs(600)).await.expect("held");
    eventually("the lost note must be written again", || {
        note_keys(&masters) == 3
    })
    .await;
    guard.release().await;
}
