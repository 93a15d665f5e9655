//! Tests of elections on real masters: the leader, the notifications that observers receive, and the growing terms.

use std::time::Duration;

use crate::support::{PATIENCE, ask_server, eventually, masters, ms, redlock, secs, settings};
use futures::StreamExt;
use quorate::{Leader, Leadership, Observation, Redlock, RedlockBuilder, Wait};
use quorate_testbed::{
    ClockShim, Fault as Cut, Masters, OffsetFile, Proxy, Reply, ServerOptions, Skew, Way,
};

/// Ten minutes. Timers with this duration never fire during a test of this file.
const TEN_MINUTES: Duration = secs(600);

fn observe_job(redlock: &Redlock) -> Observation {
    redlock
        .election("job")
        .observe()
        .expect("the name must be valid")
}

async fn next_change(observer: &mut Observation) -> Option<Leader> {
    let next_change = tokio::time::timeout(PATIENCE, observer.next()).await;
    next_change.expect("a change")
}

/// Waits for the next notification that names a leader, and returns this leader. Skips notifications without a leader.
async fn next_leader(observer: &mut Observation) -> Leader {
    loop {
        if let Some(leader) = next_change(observer).await {
            return leader;
        }
    }
}

async fn campaign(redlock: &Redlock, note: &str) -> Leadership {
    let leadership = redlock.election("job").campaign(note).await;
    leadership.unwrap_or_else(|error| panic!("{error}"))
}

fn note_text(leader: &Leader) -> Option<&str> {
    leader.note.as_ref()?.text.as_deref()
}

/// A client builder with timers of ten minutes. During a test, observers of these clients learn of a change only from
/// messages that the masters publish, not by polling.
fn builder_without_polling(masters: &Masters) -> RedlockBuilder {
    settings(masters.urls())
        .max_ttl(TEN_MINUTES)
        .ttl(TEN_MINUTES)
        .heartbeat(TEN_MINUTES)
        .wait(Wait::Forever)
        .node_timeout(secs(5))
}

/// Becomes the leader with this note, and returns the term. The leader connects to the masters through the proxies.
/// Then the proxies stop forwarding, so the masters get no more data from the leader, as after a crash.
async fn lead_and_die(masters: &Masters, proxies: &[Proxy], note: &str) -> u64 {
    let urls = masters.iter().zip(proxies);
    let urls = urls.map(|(master, proxy)| master.url_at(proxy.addr()));
    let build_result = settings(urls).node_timeout(ms(400)).ttl(secs(2)).build();
    let redlock = build_result.expect("good settings");
    let leadership = campaign(&redlock, note).await;
    let term = leadership.term();
    // Wait until the note that the leader publishes has been sent to the masters.
    redlock.flush().await;
    for proxy in proxies {
        std::mem::forget(proxy.inject(Cut::Hold(Way::Both)));
    }
    term
}

#[tokio::test]
async fn observer_reports_the_note_and_the_term_of_each_new_leader() {
    let masters = masters(3);
    let (first, second) = (redlock(&masters), redlock(&masters));
    let mut observer = observe_job(&redlock(&masters));
    assert_eq!(
        next_change(&mut observer).await,
        None,
        "no leader may be reported before the election"
    );
    let leadership = campaign(&first, "10.0.0.1:9000").await;
    let leader = next_leader(&mut observer).await;
    assert_eq!(leader.term, leadership.term());
    assert_eq!(note_text(&leader), Some("10.0.0.1:9000"));
    assert!(leadership.is_valid());
    let candidate = tokio::spawn(async move { campaign(&second, "10.0.0.2:9000").await });
    tokio::time::sleep(ms(100)).await;
    assert!(
        !candidate.is_finished(),
        "the second candidate must wait while the first one leads"
    );
    leadership.resign().await;
    let next_leadership = candidate
        .await
        .expect("the second candidate must become the leader after the first one has resigned");
    assert!(next_leadership.term() > leader.term);
    let leader = next_leader(&mut observer).await;
    assert_eq!(
        (leader.term, note_text(&leader)),
        (next_leadership.term(), Some("10.0.0.2:9000"))
    );
    // An observer that starts after the election must be notified of the leader immediately.
    let late_leader = next_leader(&mut observe_job(&first)).await;
    assert_eq!(late_leader, leader);
}

#[tokio::test]
async fn holder_that_acquired_the_lock_without_a_campaign_is_not_reported_as_leader() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    let leadership = campaign(&redlock, "elected").await;
    let term = leadership.term();
    leadership.resign().await;
    let outcome = redlock.lock("job").note("not elected").acquire().await;
    let held_guard = outcome.expect("free");
    while redlock
        .status("job")
        .await
        .expect("the name must be valid")
        .note()
        .is_none()
    {
        tokio::time::sleep(ms(10)).await;
    }
    redlock.flush().await;
    assert!(held_guard.fencing_token() > Some(term));
    assert_eq!(next_change(&mut observe_job(&redlock)).await, None);
    held_guard.release().await;
}

#[tokio::test]
async fn announcement_notifies_observers_of_a_new_leader_without_a_poll() {
    let masters = masters(3);
    let redlock = builder_without_polling(&masters)
        .build()
        .expect("good settings");
    let mut observers = [observe_job(&redlock), observe_job(&redlock)];
    for observer in &mut observers {
        assert_eq!(next_change(observer).await, None);
    }
    let are_listening = |count: usize| {
        let channels = ["PUBSUB", "CHANNELS", "quorate:leader:*"];
        let asks_all_channels = |master| match ask_server(master, &channels) {
            Reply::Array(channels) => channels.len() == count,
            other => panic!("{other:?}"),
        };
        masters.iter().all(asks_all_channels)
    };
    eventually("all masters must know the observer's subscription", || {
        are_listening(1)
    })
    .await;
    let other_client = builder_without_polling(&masters)
        .build()
        .expect("good settings");
    let leadership = campaign(&other_client, "me").await;
    for observer in &mut observers {
        let leader = next_leader(observer).await;
        assert_eq!(
            (leader.term, note_text(&leader)),
            (leadership.term(), Some("me"))
        );
    }
    let [one, two] = observers;
    drop(one);
    assert!(are_listening(1));
    drop(two);
    eventually("no client may listen for wake-ups any more", || {
        are_listening(0)
    })
    .await;
}

#[tokio::test]
async fn observer_that_receives_no_wake_ups_finds_the_leader_by_polling() {
    let masters = masters(3);
    let unordered = || {
        settings(masters.urls())
            .node_timeout(ms(300))
            .ttl(secs(3))
            .order(quorate::Order::Unordered)
    };
    let redlock = unordered().build().expect("good settings");
    let mut observer = observe_job(&redlock);
    assert_eq!(next_change(&mut observer).await, None);
    let leadership = campaign(&redlock, "me").await;
    assert_eq!(next_leader(&mut observer).await.term, leadership.term());
    leadership.resign().await;
    assert_eq!(next_change(&mut observer).await, None);
}

#[tokio::test]
async fn successor_of_a_killed_leader_has_a_larger_term() {
    let masters = masters(3);
    let builder = settings(masters.urls()).node_timeout(ms(400)).ttl(secs(2));
    let redlock = builder.build().expect("good settings");
    let mut observer = observe_job(&redlock);
    assert_eq!(next_change(&mut observer).await, None);
    let (mut last, mut dead) = (0, Vec::new());
    for note in ["first", "second", "third"] {
        let proxies = masters.iter().map(|master| Proxy::start(master.addr()));
        let proxies: Vec<Proxy> = proxies.map(|proxy| proxy.expect("a proxy")).collect();
        let death = lead_and_die(&masters, &proxies, note);
        let (term, leader) = tokio::join!(death, next_leader(&mut observer));
        assert_eq!(note_text(&leader), Some(note));
        assert_eq!(term, leader.term);
        dead.push(proxies);
        assert!(
            leader.term > last,
            "the term {} must be larger than the term {last} of the previous leader",
            leader.term
        );
        last = leader.term;
    }
    let leadership = campaign(&redlock, "the last").await;
    let leader = next_leader(&mut observer).await;
    assert!(leader.term > last && leader.term == leadership.term());
    assert_eq!(note_text(&leader), Some("the last"));
}

#[tokio::test]
async fn resumed_former_leader_is_not_reported_as_leader_while_another_candidate_leads() {
    let masters = masters(3);
    let (old, new) = (redlock(&masters), redlock(&masters));
    let mut observer = observe_job(&redlock(&masters));
    let paused = campaign(&old, "paused").await;
    assert_eq!(note_text(&next_leader(&mut observer).await), Some("paused"));
    // Delete the lock key, as if it had expired while the first leader was paused. The note of the first leader has a
    // key of its own, which stays.
    for master in &masters {
        ask_server(master, &["DEL", "job"]);
    }
    let leadership = campaign(&new, "awake").await;
    let leader = next_leader(&mut observer).await;
    assert_eq!(
        (leader.term, note_text(&leader)),
        (leadership.term(), Some("awake"))
    );
    // The first leader resumes. It tries to extend its lock, which must fail, and then resigns.
    assert!(paused.guard().extend(secs(25)).await.is_err());
    paused.resign().await;
    let late_leader = next_leader(&mut observe_job(&old)).await;
    assert_eq!(
        (late_leader.term, note_text(&late_leader)),
        (leadership.term(), Some("awake"))
    );
}

#[tokio::test]
async fn observer_reports_the_leader_until_a_majority_of_masters_is_down() {
    let masters = masters(3);
    let settings = settings(masters.urls()).node_timeout(ms(300)).ttl(secs(3));
    let redlock = settings.build().expect("good settings");
    let leadership = campaign(&redlock, "me").await;
    let mut observer = observe_job(&redlock);
    assert_eq!(next_leader(&mut observer).await.term, leadership.term());
    masters[0].kill().expect("killed");
    let outcome = tokio::time::timeout(secs(4), observer.next()).await;
    assert!(
        outcome.is_err(),
        "the observer must not be notified of a change while only one of three masters is down: {outcome:?}"
    );
    masters[1].kill().expect("killed");
    assert_eq!(next_change(&mut observer).await, None);
}

#[tokio::test]
async fn election_works_on_memory_masters() {
    let redlock = Redlock::in_memory(3);
    let mut observer = observe_job(&redlock);
    assert_eq!(next_change(&mut observer).await, None);
    let leadership = campaign(&redlock, "me").await;
    let leader = next_leader(&mut observer).await;
    assert_eq!(
        (leader.term, note_text(&leader)),
        (leadership.term(), Some("me"))
    );
}

#[tokio::test]
async fn leader_is_still_reported_after_its_fencing_counter_has_expired() {
    let masters = masters(3);
    let (leadership, observer_client) = (redlock(&masters), redlock(&masters));
    let outcome = leadership.election("job").ttl(secs(3)).campaign("me").await;
    let first_leadership = outcome.expect("free");
    let election = observer_client.election("job").ttl(secs(3));
    let mut observer = election.observe().expect("the name must be valid");
    let leader = next_leader(&mut observer).await;
    // Delete the fencing counter, as if it had expired. Renewals of the lock do not extend the counter's TTL of one
    // day.
    for master in &masters {
        ask_server(master, &["DEL", "quorate:fence:job"]);
    }
    let change = tokio::time::timeout(secs(4), observer.next()).await;
    assert!(first_leadership.is_valid());
    assert!(
        change.is_err(),
        "the observer must not be notified of a change while the leader holds its lock: {change:?}"
    );
    // A new observer must be notified of the same leader.
    assert_eq!(
        next_leader(&mut observe_job(&observer_client)).await,
        leader
    );
}

#[tokio::test]
async fn leader_without_a_note_is_reported_while_it_leads() {
    let masters = masters(3);
    let (leadership, observer_client) = (redlock(&masters), redlock(&masters));
    let leadership = leadership
        .election("job")
        .campaign(None)
        .await
        .expect("free");
    let unnamed = next_leader(&mut observe_job(&observer_client)).await;
    assert_eq!(
        (unnamed.term, unnamed.note.as_ref()),
        (leadership.term(), None)
    );
    // Delete the fencing counter, as if it had expired. Renewals of the lock do not extend the counter's TTL of one
    // day.
    for master in &masters {
        ask_server(master, &["DEL", "quorate:fence:job"]);
    }
    assert_eq!(
        next_leader(&mut observe_job(&observer_client)).await,
        unnamed
    );
    let status = observer_client
        .status("job")
        .await
        .expect("the name must be valid");
    assert_eq!(status.note(), None, "the leader must have no note");
    leadership.resign().await;
    assert_eq!(next_change(&mut observe_job(&observer_client)).await, None);
}

/// The observer waits 50 ms for the note of a new leader. Without a note, it must not wait until its next poll, which is
/// due after a third of the ttl.
#[tokio::test(start_paused = true)]
async fn leader_without_a_note_is_reported_soon_after_it_is_announced() {
    let redlock = Redlock::in_memory(3);
    let mut observer = observe_job(&redlock);
    assert_eq!(next_change(&mut observer).await, None);
    let election = redlock.election("job").ttl(secs(30));
    let leadership = election.campaign(None).await.expect("free");
    let announced_at = tokio::time::Instant::now();
    let leader = next_leader(&mut observer).await;
    assert_eq!((leader.term, leader.note), (leadership.term(), None));
    assert!(
        announced_at.elapsed() < secs(1),
        "{:?}",
        announced_at.elapsed()
    );
}

#[tokio::test]
async fn leader_with_a_note_of_the_maximum_length_is_reported() {
    let masters = masters(3);
    let redlock = redlock(&masters);
    // The client stores each line break as U+FFFD: three bytes instead of one. So this is the longest stored note.
    let note = "\n".repeat(quorate::MAX_NOTE_LEN);
    let leadership = campaign(&redlock, &note).await;
    let leader = next_leader(&mut observe_job(&redlock)).await;
    assert_eq!(leader.term, leadership.term());
    let longest_note = "\u{fffd}".repeat(quorate::MAX_NOTE_LEN);
    assert_eq!(note_text(&leader), Some(&*longest_note));
}

#[tokio::test]
async fn foreign_value_in_the_lock_key_is_not_reported_as_a_leader() {
    let masters = masters(3);
    for value in ["somebody-else", "00112233445566778899aabbccddeeff"] {
        let redlock = redlock(&masters);
        let leadership = campaign(&redlock, "me").await;
        let election = redlock.election("job").ttl(secs(3));
        let mut observer = election.observe().expect("the name must be valid");
        assert_eq!(next_leader(&mut observer).await.term, leadership.term());
        leadership.resign().await;
        for master in &masters {
            ask_server(master, &["SET", "job", value, "PX", "60000"]);
        }
        assert_eq!(next_change(&mut observer).await, None, "{value}");
        let change = tokio::time::timeout(secs(3), observer.next()).await;
        assert!(
            change.is_err(),
            "the holder of a foreign lock value must not be reported as the leader: {change:?}"
        );
        for master in &masters {
            ask_server(master, &["DEL", "job"]);
        }
    }
}

#[test]
fn observer_with_zero_ttl_does_not_block_the_polling_thread() {
    let (done_sender, done_receiver) = std::sync::mpsc::channel();
    // Poll the observer on a separate thread. If the poll blocks this thread forever, the test can still fail after its
    // time limit.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let redlock = Redlock::in_memory(3);
            let election = redlock.election("job").ttl(Duration::ZERO);
            let mut observer = election.observe().expect("the name must be valid");
            assert_eq!(next_change(&mut observer).await, None);
            let outcome = tokio::time::timeout(ms(100), observer.next()).await;
            assert!(
                outcome.is_err(),
                "the observer must receive no second notification, because nothing changed: {outcome:?}"
            );
        });
        done_sender
            .send(())
            .expect("the main thread must not have timed out");
    });
    done_receiver
        .recv_timeout(PATIENCE)
        .expect("the thread of the observer must end in time");
}

/// Tests two elections with different clocks:
///
/// - First election: the clock of master 0 is 30 days ahead, and master 2 is stopped.
/// - Second election, 25 hours later: the clock of master 0 is corrected, master 0 is stopped, and master 2 runs.
///
/// The term of the second leader must be larger than the term of the first leader.
#[tokio::test]
async fn leader_term_rises_after_the_clock_of_a_master_is_set_back() {
    let shim = match ClockShim::build() {
        Ok(shim) => shim,
        Err(error) => {
            eprintln!(
                "SKIPPED: this machine cannot build the library that shifts a clock: {error}"
            );
            return;
        }
    };
    let offset = |_| {
        shim.offset_file()
            .expect("the file with the offset of the clock must be created")
    };
    let offsets: Vec<OffsetFile> = (0..3).map(offset).collect();
    let month = secs(30 * 86_400);
    offsets[0].set(month, Skew::Ahead).expect("set");
    let masters = Masters::start_with(3, |n| ServerOptions::new().clock(&shim, &offsets[n]))
        .expect("three masters");
    masters[2].stop().expect("stopped");
    let redlock = redlock(&masters);
    let mut observer = observe_job(&redlock);
    let leadership = campaign(&redlock, "first").await;
    let first_leader = next_leader(&mut observer).await;
    assert_eq!(first_leader.term, leadership.term());
    leadership.resign().await;
    assert_eq!(next_change(&mut observer).await, None);
    masters[2].restart().expect("master 2 must restart");
    for offset in &offsets {
        offset.set(secs(25 * 3600), Skew::Ahead).expect("set");
    }
    masters[0].stop().expect("stopped");
    let leadership = campaign(&redlock, "second").await;
    assert!(
        leadership.term() > first_leader.term,
        "{} {}",
        leadership.term(),
        first_leader.term
    );
    let second_leader = next_leader(&mut observer).await;
    assert_eq!(
        (second_leader.term, note_text(&second_leader)),
        (leadership.term(), Some("second"))
    );
    leadership.resign().await;
}

#[tokio::test]
async fn stream_of_leaders_continues_after_its_first_item() {
    let redlock = Redlock::in_memory(3);
    let mut changes = Box::pin(observe_job(&redlock).into_stream());
    let mut next_change = async || tokio::time::timeout(PATIENCE, changes.next()).await;
    assert_eq!(
        next_change().await,
        Ok(Some(None)),
        "no leader may be reported"
    );
    let leadership = campaign(&redlock, "here").await;
    let leader = next_change()
        .await
        .expect("the second item of the stream must arrive in time")
        .flatten();
    assert_eq!(leader.map(|leader| leader.term), Some(leadership.term()));
}
