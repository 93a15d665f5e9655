//! Tests of the execution of requests in a session: reads, decisions, commits, and answers.

use std::pin::pin;

use super::*;
use crate::node::store::codec::StoredItem;
use crate::node::store::faulty::WokenKeys;
use crate::node::store::pace::Pace;
use crate::node::{Extended, NewValue};

/// Tells the task the time of the store's clock.
fn learn_clock<S: Store>(task: &mut SessionTask<S>) {
    let wall = task.shared.context().runtime.wall_micros();
    let now = task.now();
    task.time.learn(Some(wall), now, now);
}

/// A request that extends plain locks on these keys, each with its own claim.
fn extend_locks(keys: &[&[u8]], reply: Reply) -> Queued {
    let item = |key: &&[u8]| {
        let claim = Claim::new("", key, Token::from_bytes([1; 16]), true);
        ExtendItem::new(claim.into(), LATER)
    };
    let items = keys.iter().map(item).collect();
    Queued::new(Request::Extend { items }, reply)
}

/// Executes one request in this session, and returns its answer.
async fn answer_to<S: Store>(
    task: &mut SessionTask<S>,
    online: &mut Online<S::Session>,
    request: Request,
) -> Result<Answer, Fault> {
    let (reply, mut received) = Answers::reply();
    task.batch.push(Queued::new(request, reply));
    task.sort_into_jobs(Duration::ZERO);
    let served = tokio::time::timeout(SOON, task.serve(online)).await;
    assert_eq!(served, Ok(Ok(())));
    received.try_recv().expect("the request must be answered")
}

#[tokio::test]
async fn session_without_requests_asks_the_store_for_its_clock() {
    let mut task = task_of(Faulty::new(Failing::LoadStalls));
    let mut online = task.connect().await.expect("the store must answer");
    learn_clock(&mut task);
    let (reply, mut received) = Answers::reply();
    task.batch.push(list_request(reply));
    let served = tokio::time::timeout(SOON, task.serve(&mut online)).await;
    assert_eq!(served, Ok(Ok(())), "a list needs no other request");
    assert!(matches!(received.try_recv(), Ok(Ok(Answer::Keys { .. }))));
    let served = pin!(task.serve(&mut online));
    assert!(
        futures::poll!(served).is_pending(),
        "the task must wait for the answer of the store"
    );
}

#[tokio::test]
async fn change_of_a_cached_record_is_committed_without_another_read() {
    let mut task = task_of(Faulty::new(Failing::LoadStalls));
    let mut online = task.connect().await.expect("the store must answer");
    learn_clock(&mut task);
    task.cache.note_written(&b"a"[..].into(), 0, Vec::new());
    let stamp_before = task.stamp;
    let request = extend_locks(&[b"a"], Reply::ignored()).request;
    let answer = answer_to(&mut task, &mut online, request).await;
    assert_eq!(answer, Ok(Answer::Extended(vec![Extended::Restored])));
    assert_ne!(task.stamp, stamp_before, "each write needs another stamp");
    assert!(task.unanswered_records.is_empty());
}

#[tokio::test]
async fn record_that_another_session_has_changed_is_read_again_after_the_refused_commit() {
    let table = Table::new("table", true);
    let mut task = task_of(table.clone());
    let mut online = task.connect().await.expect("the table must answer");
    learn_clock(&mut task);
    let name = Name::from(&b"a"[..]);
    task.cache.note_written(&name, 0, Vec::new());
    create_record(&table, &name, StoredItem::write(&[])).await;
    let request = extend_locks(&[b"a"], Reply::ignored()).request;
    let answer = answer_to(&mut task, &mut online, request).await;
    assert_eq!(answer, Ok(Answer::Extended(vec![Extended::Restored])));
    let cached = task.cache.get_all(&[name]).expect("the record is cached");
    assert_eq!(cached[0].0, 2, "the second commit must have taken effect");
}

#[tokio::test]
async fn request_that_changes_nothing_is_answered_from_a_record_that_was_just_read() {
    let mut task = idle_task();
    let mut online = task.connect().await.expect("the table must answer");
    // The second time, the record is in the cache, but was read for an earlier request.
    for _ in 0..2 {
        let request = release_request().request;
        let answer = answer_to(&mut task, &mut online, request).await;
        assert_eq!(answer, Ok(Answer::Released(false)));
    }
}

#[tokio::test]
async fn change_stays_unanswered_until_the_store_has_answered_its_commit() {
    let lost = || Fault::Disconnected("lost".into());
    let mut task = task_of(Faulty::new(Failing::CommitFails(lost())));
    let mut online = task.connect().await.expect("the store must answer");
    task.batch.push(extend_locks(&[b"a"], Reply::ignored()));
    task.sort_into_jobs(Duration::ZERO);
    assert_eq!(task.serve(&mut online).await, Err(lost()));
    assert_eq!(task.unanswered_records, [Name::from(&b"a"[..])]);
    assert_eq!(task.jobs.len(), 1, "the request must still get an answer");
}

#[tokio::test]
async fn commits_are_sent_in_batches_and_the_first_one_releases_wait_locks() {
    let store = Faulty::new(Failing::Never).batch(2);
    let mut task = task_of(store.clone());
    let mut online = task.connect().await.expect("the store must answer");
    let released = WaitLock::Release("01".into());
    task.wait_locks.push(released.clone());
    for key in [b"a", b"b", b"c"] {
        task.batch.push(extend_locks(&[key], Reply::ignored()));
    }
    task.sort_into_jobs(Duration::ZERO);
    assert_eq!(task.serve(&mut online).await, Ok(()));
    let calls = store.commits.lock().expect("no test panics here").clone();
    let wait_locks = calls
        .iter()
        .map(|commits| commits.iter().map(|commit| commit.wait_locks.clone()));
    let wait_locks: Vec<Vec<_>> = wait_locks.map(Iterator::collect).collect();
    assert_eq!(
        wait_locks,
        [vec![vec![released], Vec::new()], vec![Vec::new()]]
    );
    assert_eq!(task.wait_locks, []);
}

#[tokio::test(start_paused = true)]
async fn answer_to_a_commit_brings_the_date_of_the_store() {
    let mut task = paced_task_of(Table::new("table", false), RestartGuard::On);
    let mut online = task.connect().await.expect("the table must answer");
    tokio::time::advance(2 * MAX_DATE_AGE).await;
    for (request, is_stale) in [
        (release_request().request, true),
        (extend_locks(&[b"a"], Reply::ignored()).request, false),
    ] {
        let answer = answer_to(&mut task, &mut online, request).await;
        assert!(answer.is_ok(), "{answer:?}");
        let now = task.now();
        assert_eq!(task.time.is_date_stale(now), is_stale);
    }
}

#[tokio::test]
async fn wake_up_of_this_process_is_delivered_without_the_store() {
    for (process, is_own) in [("0123456789abcdef", true), ("another process", false)] {
        let store = Faulty::new(Failing::Never);
        let mut task = task_of(store.clone());
        let sink = Arc::new(WokenKeys::default());
        let subscriber = sink.subscriber(process);
        assert!(task.shared.subscriber.set(subscriber).is_ok());
        let mut online = task.connect().await.expect("the store must answer");
        let [holder, waiter] = [1, 2].map(claim_of_waiter);
        for claim in [holder.clone(), waiter] {
            serve_request(&mut task, &mut online, acquire_of(claim)).await;
        }
        let (claim, leave) = (holder, true);
        let release = Request::Release { claim, leave };
        serve_request(&mut task, &mut online, release).await;
        assert_eq!(sink.keys().len(), usize::from(is_own), "{process}");
        let calls = store.commits.lock().expect("no test panics here").clone();
        let commits = calls.iter().flatten();
        let sent = commits.map(|commit| commit.wakes.len()).sum::<usize>();
        assert_eq!(sent, usize::from(!is_own), "{process}");
    }
}

#[tokio::test]
async fn value_of_an_earlier_run_is_trusted_if_the_server_loses_nothing() {
    for is_durable in [true, false] {
        let mut task = idle_task();
        let mut online = task.connect().await.expect("the table must answer");
        online.is_durable = is_durable;
        let claim = claim_of_waiter(1);
        serve_request(&mut task, &mut online, acquire_of(claim.clone())).await;
        let token = 5_000_000_000_000_000;
        let value = NewValue {
            bytes: Some(b"text"[..].into()),
            until: task.now() + LATER,
            run: None,
        };
        let write = Request::Write {
            claim: claim.clone(),
            token,
            value: value.into(),
        };
        let answer = answer_to(&mut task, &mut online, write).await;
        assert!(matches!(answer, Ok(Answer::Written { .. })), "{answer:?}");
        online.run = ServerRun::new("2");
        let read = Request::Read { claim, token };
        let answer = answer_to(&mut task, &mut online, read).await;
        let Ok(Answer::Value { stored, .. }) = answer else {
            panic!("the value must be read, but the answer is {answer:?}");
        };
        let stored = stored.expect("a value was written");
        assert_eq!(stored.trusted, is_durable);
    }
}

#[tokio::test]
async fn listener_knows_the_waiter_of_this_process_and_the_client_ahead_of_it() {
    let [holder, waiter] = [1, 2].map(claim_of_waiter);
    let behind = Pace::Behind {
        waiter: "0123456789abcdef:2".into(),
        wait_lock: "0123456789abcdef:1".into(),
    };
    let looking = Faulty::new(Failing::Never).looks();
    for (store, pace_of_waiter) in [
        (looking, behind),
        (Faulty::new(Failing::Never), Pace::Waiting),
    ] {
        let mut task = task_of(store);
        let mut online = task.connect().await.expect("the store must answer");
        let acquire = |claim: &Arc<Claim>| acquire_of(claim.clone());
        let names = records_of_request(&acquire(&waiter));
        let until = task.now() + LATER;
        let shared = task.shared.clone();
        shared.listening.state().request_wake_ups(names, until);
        let leave = Request::Release {
            claim: waiter.clone(),
            leave: true,
        };
        for (request, pace) in [
            (acquire(&holder), Pace::Idle),
            (acquire(&waiter), pace_of_waiter),
            (leave, Pace::Idle),
        ] {
            serve_request(&mut task, &mut online, request).await;
            assert_eq!(shared.listening.pacer.pace(), pace);
        }
    }
}

#[tokio::test]
async fn unreadable_record_fails_only_the_locks_that_need_it() {
    let table = Table::new("table", true);
    create_record(&table, &b"a"[..].into(), b"\x09junk".to_vec()).await;
    let mut task = task_of(table);
    let mut online = task.connect().await.expect("the table must answer");
    let [(reply_ab, mut ab), (reply_bc, mut bc), (reply_d, mut d)] =
        [(); 3].map(|()| Answers::reply());
    task.batch.push(extend_locks(&[b"a", b"b"], reply_ab));
    task.batch.push(extend_locks(&[b"b", b"c"], reply_bc));
    task.batch.push(extend_locks(&[b"d"], reply_d));
    task.sort_into_jobs(Duration::ZERO);
    assert_eq!(task.load_records(&mut online, false).await, Ok(()));
    let requests = task.jobs.iter().flat_map(|job| &job.requests);
    let names = requests.map(|request| records_of_request(&request.queued.request).concat());
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    let expected: [&[u8]; 3] = [b"b", b"bc", b"d"];
    assert_eq!(names, expected, "a readable request must stay whole");
    assert_eq!(task.serve(&mut online).await, Ok(()));
    let extended = |results: Vec<Extended>| Some(Ok(Answer::Extended(results)));
    // The first request has restored the lock `b`.
    let results = vec![Extended::Kept, Extended::Restored];
    assert_eq!(bc.try_recv().ok(), extended(results));
    assert_eq!(d.try_recv().ok(), extended(vec![Extended::Restored]));
    let Ok(Ok(Answer::Extended(results))) = ab.try_recv() else {
        panic!("the request must get a result for each of its locks");
    };
    assert!(
        matches!(&results[..], [Extended::Unknown(_), Extended::Restored]),
        "{results:?}"
    );
}
