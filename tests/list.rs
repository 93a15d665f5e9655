//! What is locked now, on real masters.

mod support;

use quorate::{Listing, Redlock, StatusVerdict};
use support::{ask_server, eventually, holders, masters, ms, redlock, secs, settings, take};

fn names(listing: &Listing) -> Vec<String> {
    let names = listing.locks.iter();
    let names = names.map(|lock| String::from_utf8_lossy(&lock.resource).into_owned());
    names.collect()
}

#[tokio::test]
async fn what_is_locked_is_listed_with_its_holder_and_who_waits() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let held = redlock.lock("deploy:web").note("by hand").acquire().await;
    let _held = held.expect("free");
    let _other = take(&redlock, "deploy:api").await;
    let _elsewhere = take(&redlock, "nightly").await;
    drop(take(&redlock, "deploy:done").await);
    redlock.flush().await;
    let waiter = settings(masters.urls()).build().expect("good settings");
    let waiter = tokio::spawn(async move { waiter.acquire("deploy:web").await });
    eventually("it waits, and there is a note", || {
        holders(&masters, "quorate:queue:deploy:web") == 3
            && holders(&masters, "quorate:note:deploy:web") == 3
    })
    .await;
    // By a client that knows nothing of ours.
    for master in &masters {
        ask_server(master, &["SET", "deploy:db", "foreign", "PX", "60000"]);
    }
    let listing = redlock.list("deploy:").await;
    assert_eq!(names(&listing), ["deploy:api", "deploy:db", "deploy:web"]);
    assert!(listing.complete && listing.faults.is_empty(), "{listing:?}");
    let web = &listing.locks[2].status;
    assert_eq!(
        web.note().and_then(|note| note.text.as_deref()),
        Some("by hand")
    );
    assert!(
        web.nodes
            .iter()
            .all(|node| node.state.as_ref().is_ok_and(|s| s.queue.len() == 1))
    );
    let db = &listing.locks[1].status;
    assert_eq!(db.verdict(), StatusVerdict::Held(b"foreign".to_vec()));
    assert_eq!(names(&redlock.list("").await).len(), 4);
    assert!(redlock.list("none").await.locks.is_empty());
    waiter.abort();
}

#[tokio::test]
async fn a_key_prefix_bounds_what_is_listed_and_signs_of_patterns_are_taken_as_they_are() {
    let masters = masters(1);
    let ours = settings(masters.urls()).prefix("a*b:").build();
    let ours = ours.expect("good settings");
    let _one = take(&ours, "x[1]").await;
    let _two = take(&redlock(&masters), "aab:x[1]").await;
    ask_server(&masters[0], &["LPUSH", "a*b:list", "x"]);
    assert_eq!(names(&ours.list("").await), ["x[1]"]);
    assert_eq!(names(&ours.list("x[").await), ["x[1]"]);
    assert!(ours.list("x?").await.locks.is_empty());
}

#[tokio::test]
async fn masters_that_cannot_be_asked_are_named() {
    let masters = masters(3);
    let redlock = settings(masters.urls()).connect_timeout(ms(500)).build();
    let redlock = redlock.expect("good settings");
    let _guard = take(&redlock, "job").await;
    masters[0].kill().expect("killed");
    let listing = redlock.list("").await;
    assert_eq!(names(&listing), ["job"]);
    assert_eq!(listing.faults.len(), 1, "{listing:?}");
    masters[1].stop().expect("stopped");
    let listing = redlock.list("").await;
    assert_eq!(listing.faults.len(), 2, "{listing:?}");
    masters[1].cont().expect("continued");
}

#[tokio::test]
async fn a_list_that_was_cut_short_says_so() {
    let masters = masters(1);
    let redlock = settings(masters.urls()).node_timeout(secs(5)).build();
    let redlock = redlock.expect("good settings");
    let fill = "for i = 1, 3000 do redis.call('SET', 'many:' .. i, 'x', 'PX', 600000) end";
    ask_server(&masters[0], &["EVAL", fill, "0"]);
    let listing = redlock.list("many:").await;
    assert_eq!(listing.locks.len(), 1000);
    assert!(!listing.complete);
    let listing = redlock.list("many:29").await;
    assert_eq!(listing.locks.len(), 111);
    assert!(listing.complete);
}

#[tokio::test]
async fn locks_in_memory_are_listed() {
    let redlock = Redlock::in_memory(3);
    let _guard = take(&redlock, "job").await;
    assert_eq!(names(&redlock.list("j").await), ["job"]);
    assert!(redlock.list("k").await.locks.is_empty());
}
