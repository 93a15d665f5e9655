//! Unit tests of the session task: the renewal of subscriptions, and the wait while there is no session.

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::super::age::MAX_DATE_AGE;
use super::super::contract::{Change, Commit, Date, Greeting, Record};
use super::super::faulty::{Answers, Failing, Faulty};
use super::super::names::records_of_request;
use super::super::table::Table;
use super::*;
use crate::node::{
    Answer, Claim, Context, ExtendItem, Fairness, Group, Mode, Page, Part, Ticket, Token,
};
use crate::repeats::Repeats;
use crate::runtime::Tokio;
use crate::runtime::manual::ManualClock;
use crate::settings::RestartGuard;

mod removal_tests;
mod requests_tests;

/// No step of these tests takes this long, not even on a busy machine. A wait that ends only because of a bug ends much
/// later, at [`LATER`].
const SOON: Duration = Duration::from_secs(20);

/// The end of a wait that something else must end earlier.
const LATER: Duration = Duration::from_secs(60);

/// A task without a session that hands nothing over when it is dropped.
fn idle_task() -> SessionTask<Table> {
    task_of(Table::new("table", true))
}

/// The same for this store.
fn task_of<S: Store>(store: S) -> SessionTask<S> {
    let mut task = SessionTask::new(Arc::new(Shared::new(store)), 0);
    task.has_finished = true;
    task
}

/// A request to be notified of new leaders, and a sink that reports its answer to the test over a channel.
fn watch_request(answers: UnboundedSender<Result<Answer, Fault>>) -> Queued {
    let request = Request::Watch {
        key: b"boss"[..].into(),
        on: true,
    };
    Queued::new(request, Answers::reply_to(answers))
}

#[tokio::test]
async fn subscription_is_renewed_three_times_in_its_lifetime() {
    let mut task = idle_task();
    let before = task.now();
    let due_at = before + Duration::from_nanos(1);
    let (due, later): (Arc<[u8]>, Arc<[u8]>) = (b"due"[..].into(), b"later"[..].into());
    let later_at = due_at + Duration::from_nanos(1);
    let subscriptions = [(due.clone(), due_at), (later.clone(), later_at)];
    task.watch_renewals.extend(subscriptions);
    task.renew_watches(before);
    assert!(task.batch.is_empty(), "no subscription is due yet");
    task.renew_watches(due_at);
    let requests: Vec<_> = task.batch.drain(..).map(|queued| queued.request).collect();
    assert!(
        matches!(&requests[..], [Request::Watch { key, on: true }] if *key == due),
        "{requests:?}"
    );
    assert_eq!(task.watch_renewals[&due], due_at + SUBSCRIPTION_TIME / 3);
    assert_eq!(task.watch_renewals[&later], later_at);
    task.renew_watches(due_at);
    assert!(task.batch.is_empty(), "a renewal must be sent only once");
}

#[tokio::test]
async fn records_are_read_at_the_latest_possible_time_on_the_clock_of_the_store() {
    let mut task = idle_task();
    let asked_at = task.now();
    let answered_at = asked_at + Duration::from_millis(40);
    let shown = 1_000_000;
    task.time.learn(Some(shown), asked_at, answered_at);
    let moment = task.moment((answered_at, 0));
    let (earliest, moment) = moment.expect("the clock is known");
    assert_eq!(earliest, shown, "the reply may have taken no time");
    // The request may have taken no time. The clocks may drift by 1 % of the 40 ms; rounded up, that is 401 microseconds
    // in each direction.
    assert_eq!(moment.now, shown + 40_000 + 2 * 401);
}

#[tokio::test]
async fn wait_without_a_session_ends_at_its_limit_or_with_its_future() {
    let mut task = idle_task();
    let started_at = task.now();
    // The time until which requests wait for a session is later than the limit of the wait.
    task.outage.wait_until(started_at + LATER);
    let limit = Duration::from_millis(50);
    let never = std::future::pending::<()>();
    let output = task.wait_without_session(started_at + limit, never).await;
    assert_eq!(output, None);
    let waited = task.now().saturating_since(started_at);
    assert!(waited >= limit && waited < SOON, "{waited:?}");
    let output = task
        .wait_without_session(started_at + LATER, async { 7 })
        .await;
    assert_eq!(output, Some(7));
    assert!(task.now().saturating_since(started_at) < SOON);
}

#[tokio::test]
async fn wait_without_a_session_ends_when_the_task_has_no_more_work() {
    let mut task = idle_task();
    let started_at = task.now();
    task.shared.mailboxes[0].close();
    let never = std::future::pending::<()>();
    let output = task.wait_without_session(started_at + LATER, never).await;
    assert_eq!(output, None);
    assert!(task.now().saturating_since(started_at) < SOON);
}

#[tokio::test]
async fn request_without_a_session_is_refused_as_soon_as_requests_no_longer_wait() {
    let mut task = idle_task();
    let started_at = task.now();
    let (answers, mut received) = unbounded_channel();
    let mailbox_of = task.shared.clone();
    let push = move |answers| {
        let is_queued = mailbox_of.mailboxes[0].push(watch_request(answers)).is_ok();
        assert!(is_queued);
    };
    // The first request waits for a session, until this time has passed.
    let wait_time = Duration::from_millis(50);
    task.outage.wait_until(started_at + wait_time);
    push(answers.clone());
    let answer = task
        .wait_without_session(started_at + LATER, received.recv())
        .await;
    assert!(matches!(answer, Some(Some(Err(_)))), "{answer:?}");
    let waited = task.now().saturating_since(started_at);
    assert!(waited >= wait_time && waited < SOON, "{waited:?}");
    // From now on, requests are refused at once: a request wakes the task.
    let pushing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        push(answers);
    });
    let answer = task
        .wait_without_session(started_at + LATER, received.recv())
        .await;
    assert!(matches!(answer, Some(Some(Err(_)))), "{answer:?}");
    assert!(task.now().saturating_since(started_at) < SOON);
    pushing.join().expect("the request must be queued");
}

#[tokio::test]
async fn store_without_requests_is_contacted_only_after_a_time_without_answers() {
    let (answers, _received) = unbounded_channel();
    for (counts_age, idle_limit) in [(false, IDLE_LIMIT), (true, IDLE_LIMIT_IN_QUARANTINE)] {
        let mut table = Table::new("table", true);
        if counts_age {
            table = table.counts_age();
        }
        let mut task = task_of(table);
        let mut online = task.connect().await.expect("the table must answer");
        let answered_at = online.last_answer;
        online.quarantined_until = answered_at + LATER;
        assert!(!task.must_contact_store(&online, answered_at));
        let idle_at = answered_at + idle_limit;
        let just_before = Instant::from_nanos(idle_at.as_nanos() - 1);
        assert!(!task.must_contact_store(&online, just_before));
        assert!(task.must_contact_store(&online, idle_at));
        task.batch.push(watch_request(answers.clone()));
        assert!(task.must_contact_store(&online, answered_at));
        task.sort_into_jobs(Duration::ZERO);
        assert!(task.batch.is_empty() && task.must_contact_store(&online, answered_at));
    }
}

/// A request that extends locks on these keys.
fn extend_request(keys: &[&[u8]]) -> Queued {
    let part = |key: &&[u8]| Part {
        key: (*key).into(),
        mode: Mode::Exclusive,
    };
    let group = Group::new(keys.iter().map(part).collect());
    let claim = Claim::new("", keys[0], Token::from_bytes([1; 16]), true).with_group(group);
    let item = ExtendItem::new(claim.into(), LATER);
    let items = vec![item].into();
    Queued::new(Request::Extend { items }, Reply::ignored())
}

/// The records of the requests, as text.
fn records_of(requests: &[Queued]) -> Vec<String> {
    let names_of = |queued: &Queued| records_of_request(&queued.request).concat();
    let names = requests.iter().map(names_of);
    names
        .map(|names| String::from_utf8_lossy(&names).into_owned())
        .collect()
}

#[tokio::test]
async fn request_that_fits_does_not_overtake_an_earlier_request_that_does_not() {
    let mut task = task_of(Table::new("table", true).records(2));
    let requests: [&[&[u8]]; 3] = [&[b"a"], &[b"a", b"b", b"c"], &[b"b"]];
    task.batch
        .extend(requests.iter().map(|keys| extend_request(keys)));
    task.sort_into_jobs(Duration::ZERO);
    let jobs: Vec<Name> = task.jobs.iter().flat_map(|job| job.names.clone()).collect();
    assert_eq!(jobs, [Name::from(&b"a"[..])]);
    let mut returned = Vec::new();
    task.shared.mailboxes[0].take(usize::MAX, &mut returned);
    assert_eq!(records_of(&returned), ["abc", "b"]);
}

#[tokio::test]
async fn records_of_a_new_job_are_read_before_it_is_decided_and_then_stay_in_the_cache() {
    let mut task = idle_task();
    let mut online = task.connect().await.expect("the table must answer");
    task.batch.push(extend_request(&[b"a", b"b"]));
    task.sort_into_jobs(Duration::ZERO);
    let names = task.jobs[0].names.clone();
    let loaded = task.load_records(&mut online, false).await;
    assert_eq!(loaded, Ok(()));
    assert!(task.cache.get_all(&names).is_some());
}

#[tokio::test]
async fn requests_wait_while_a_session_is_replaced() {
    let mut task = idle_task();
    task.connect().await.expect("the table must answer");
    task.outage.end_wait();
    let replaced_at = task.now();
    let online = task.reconnect().await.expect("the table must answer");
    let store_timeout = task.shared.traits.timeout;
    assert!(task.outage.waits_until() >= Some(replaced_at + store_timeout));
    assert!(online.connected_at >= replaced_at);
}

/// A request that releases a lock.
fn release_request() -> Queued {
    let claim = Claim::new("", b"a", Token::from_bytes([1; 16]), true).into();
    let leave = false;
    Queued::new(Request::Release { claim, leave }, Reply::ignored())
}

#[tokio::test]
async fn requests_that_waited_too_long_are_refused_but_their_releases_are_still_sent() {
    let timeout = Duration::from_millis(1);
    let mut task = task_of(Faulty::new(Failing::LoadStalls).timeout(timeout));
    let (answers, mut received) = unbounded_channel();
    let mailbox = &task.shared.mailboxes[0];
    for queued in [release_request(), watch_request(answers)] {
        assert!(mailbox.push(queued).is_ok(), "the mailbox must have room");
    }
    // The task has found the requests in the mailbox before, but had no time for them.
    let limit = MAX_QUEUE_TIMEOUTS * timeout;
    mailbox.take_overdue(task.now(), limit, &mut task.batch);
    tokio::time::sleep(2 * limit).await;
    let now = task.now();
    task.collect_requests(now, now).await;
    assert_eq!(received.try_recv().ok(), Some(Err(Fault::Overloaded)));
    let requests: Vec<_> = task.jobs.iter().flat_map(|job| &job.requests).collect();
    assert_eq!(requests.len(), 1);
    assert!(matches!(
        requests[0].queued.request,
        Request::Release { .. }
    ));
}

#[tokio::test]
async fn jobs_without_time_left_are_refused_before_the_store_is_asked() {
    let mut task = task_of(Faulty::new(Failing::LoadStalls).timeout(Duration::ZERO));
    let mut online = task.connect().await.expect("the store must answer");
    let (answers, mut received) = unbounded_channel();
    task.batch
        .extend([release_request(), watch_request(answers)]);
    task.sort_into_jobs(Duration::ZERO);
    let served = tokio::time::timeout(SOON, task.serve(&mut online)).await;
    assert_eq!(served, Ok(Ok(())), "the store must not be asked");
    assert_eq!(received.try_recv().ok(), Some(Err(Fault::Overloaded)));
    assert_eq!(task.pending_releases.len(), 1);
}

#[tokio::test]
async fn session_ends_with_a_timeout_of_its_requests_if_the_store_stops_answering() {
    let timeout = Duration::from_millis(20);
    let mut task = task_of(Faulty::new(Failing::LoadStalls).timeout(timeout));
    let mut online = task.connect().await.expect("the store must answer");
    let (answers, mut received) = unbounded_channel();
    task.batch.push(watch_request(answers));
    task.sort_into_jobs(Duration::ZERO);
    task.outage.end_wait();
    let pushed = task.shared.mailboxes[0].push(release_request());
    assert!(pushed.is_ok(), "the mailbox must have room");
    let served = tokio::time::timeout(SOON, task.serve_session(&mut online)).await;
    assert_eq!(served, Ok(Err(Fault::Stalled)));
    assert_eq!(received.try_recv().ok(), Some(Err(Fault::Timeout(timeout))));
}

#[tokio::test]
async fn request_in_a_session_that_panics_is_answered_with_the_panic() {
    let mut task = task_of(Faulty::new(Failing::LoadPanics));
    let (answers, mut received) = unbounded_channel();
    let pushed = task.shared.mailboxes[0].push(watch_request(answers));
    assert!(pushed.is_ok(), "the mailbox must have room");
    let answer = async {
        tokio::select! {
            () = task.run() => None,
            answer = received.recv() => answer,
        }
    };
    let answer = tokio::time::timeout(SOON, answer).await;
    let Ok(Some(Err(Fault::Disconnected(why)))) = answer else {
        panic!("the request must get the fault of the session, but got {answer:?}");
    };
    assert!(why.contains("no records"), "{why}");
}

/// A request that lists all locks.
fn list_request(reply: Reply) -> Queued {
    let page = Page {
        pattern: b"*"[..].into(),
        cursor: 0,
        count: 10,
    };
    let page = page.into();
    Queued::new(Request::List { page }, reply)
}

#[tokio::test]
async fn record_that_the_client_may_not_read_is_listed_by_its_name() {
    let record = Record::unreadable(Fault::Denied("no right".into()));
    let mut task = task_of(Faulty::new(Failing::PageShows(record)));
    let mut online = task.connect().await.expect("the store must answer");
    let (reply, mut received) = Answers::reply();
    task.batch.push(list_request(reply));
    assert_eq!(task.list(&mut online).await, Ok(()));
    let answer = received.try_recv();
    let Ok(Ok(Answer::Keys { keys, .. })) = answer else {
        panic!("the list request must be answered with keys, but got {answer:?}");
    };
    let names: Vec<_> = keys
        .iter()
        .map(|key| key.escape_ascii().to_string())
        .collect();
    assert_eq!(names, ["secret"]);
}

/// The claim of a waiter with this number.
fn claim_of_waiter(number: u8) -> Arc<Claim> {
    let ticket = Ticket {
        waiter: format!("0123456789abcdef:{number}").into(),
        number: number.into(),
        heartbeat: LATER,
    };
    let claim = Claim::new("", b"a", Token::from_bytes([number; 16]), true);
    let fairness = Fairness::Fair(Some(Box::new(ticket)));
    claim.with_fairness(fairness).into()
}

/// Executes one request in this session.
async fn serve_request<S: Store>(
    task: &mut SessionTask<S>,
    online: &mut Online<S::Session>,
    request: Request,
) {
    task.batch.push(Queued::new(request, Reply::ignored()));
    task.sort_into_jobs(Duration::ZERO);
    assert_eq!(task.serve(online).await, Ok(()));
}

#[tokio::test]
async fn subscription_of_an_observer_is_renewed_until_it_stops_observing() {
    let mut task = idle_task();
    let mut online = task.connect().await.expect("the table must answer");
    for on in [true, false] {
        let before = task.now();
        let key: Arc<[u8]> = b"boss"[..].into();
        let request = Request::Watch { key, on };
        serve_request(&mut task, &mut online, request).await;
        let renewals: Vec<_> = task.watch_renewals.values().copied().collect();
        assert_eq!(renewals.len(), usize::from(on));
        for renewal_at in renewals {
            let period = SUBSCRIPTION_TIME / 3;
            assert!(renewal_at >= before + period && renewal_at <= task.now() + period);
        }
    }
}

#[tokio::test]
async fn wait_locks_that_the_session_no_longer_needs_are_stored_for_its_next_commit() {
    let mut task = task_of(Faulty::new(Failing::Never).looks());
    let mut online = task.connect().await.expect("the store must answer");
    // The lock is not held, so the release changes no record.
    let release = release_request().request;
    serve_request(&mut task, &mut online, release).await;
    let value = String::from_utf8_lossy(&Token::from_bytes([1; 16]).to_hex()).into();
    assert_eq!(task.wait_locks, [WaitLock::Release(value)]);
    let released_lock = task.wait_locks.remove(0);
    // A session takes no wait lock without a commit: only `Release` is stored.
    let claim = claim_of_waiter(1);
    let item = ExtendItem::new(claim.clone(), LATER);
    let items = vec![item].into();
    let (ttl, proposal) = (LATER, 0);
    let acquire = Request::Acquire {
        claim,
        ttl,
        proposal,
    };
    serve_request(&mut task, &mut online, acquire).await;
    let extend = Queued::new(Request::Extend { items }, Reply::ignored());
    task.batch.push(extend);
    task.sort_into_jobs(Duration::ZERO);
    let job = task.jobs.pop().expect("the request must be in a job");
    task.queue_wait_lock_releases(&job);
    assert_eq!(task.wait_locks, []);
    // The list of wait locks has a limit.
    for (count_before, count_after) in [(5000, 5000), (1023, 1024), (1000, 1002)] {
        task.wait_locks.resize(count_before, released_lock.clone());
        let (claim, leave) = (claim_of_waiter(2), true);
        let release = Request::Release { claim, leave };
        task.batch.push(Queued::new(release, Reply::ignored()));
        task.sort_into_jobs(Duration::ZERO);
        let job = task.jobs.pop().expect("the request must be in a job");
        task.queue_wait_lock_releases(&job);
        assert_eq!(task.wait_locks.len(), count_after);
    }
}

#[tokio::test]
async fn client_ahead_of_a_waiter_is_found_in_the_cached_records() {
    let mut task = task_of(Faulty::new(Failing::Never).looks());
    let mut online = task.connect().await.expect("the store must answer");
    let [holder, waiter] = [1, 2].map(claim_of_waiter);
    let names = records_of_request(&Request::Release {
        claim: waiter.clone(),
        leave: true,
    });
    assert_eq!(task.client_ahead(&waiter, &names), None);
    for claim in [holder, waiter.clone()] {
        serve_request(&mut task, &mut online, acquire_of(claim)).await;
    }
    let client_ahead = task.client_ahead(&waiter, &names);
    assert_eq!(client_ahead.as_deref(), Some("0123456789abcdef:1"));
}

#[tokio::test(start_paused = true)]
async fn task_of_a_dropped_store_ends_when_its_time_for_releases_is_over() {
    let shared = Arc::new(Shared::new(Table::new("table", true)));
    shared.settle(&Context::new(Arc::new(Tokio::paced()), LATER));
    let mut task = SessionTask::new(shared, 0);
    task.has_finished = true;
    task.pending_releases.keep(&release_request());
    task.shared.mailboxes[0].close();
    assert!(!task.is_over());
    let closed_at = task.now();
    tokio::time::advance(LINGER).await;
    // Tokio's clock may round up.
    task.closed_at = Some(closed_at + task.now().saturating_since(closed_at + LINGER));
    assert!(task.is_over());
}

#[tokio::test]
async fn task_whose_time_for_releases_is_over_is_not_continued_by_another_task() {
    let clock = ManualClock::shut_down(true);
    let shared = Arc::new(Shared::new(Table::new("table", true)));
    shared.settle(&Context::new(Arc::new(clock.clone()), LATER));
    let mut task = SessionTask::new(shared, 0);
    task.pending_releases.keep(&release_request());
    task.shared.mailboxes[0].close();
    task.closed_at = Some(task.now());
    clock.advance_by(LINGER);
    task.run().await;
    assert!(task.has_finished);
}

#[tokio::test(start_paused = true)]
async fn session_that_ends_is_logged_as_a_lost_connection() {
    let lost = Fault::Disconnected("lost".into());
    let store = Faulty::new(Failing::CommitFails(lost.clone()));
    let mut task = paced_task_of(store, RestartGuard::On);
    let (reply, mut received) = Answers::reply();
    let request = extend_request(&[b"a"]).request;
    let pushed = task.shared.mailboxes[0].push(Queued::new(request, reply));
    assert!(pushed.is_ok(), "the mailbox must have room");
    let answer = async {
        tokio::select! {
            () = task.run() => None,
            answer = received.recv() => answer,
        }
    };
    assert_eq!(answer.await, Some(Err(lost.clone())));
    let text = format!("connection lost: {lost}");
    assert_eq!(task.shared.repeats.should_log(&text, task.now()), None);
}

#[tokio::test]
async fn idle_session_is_used_less_often_after_the_last_part_of_the_age_was_written() {
    let task = task_of(Table::new("table", true).counts_age());
    let guarded_until = task.now();
    let writes_age_until = guarded_until + IDLE_LIMIT_IN_QUARANTINE;
    let just_before = Instant::from_nanos(writes_age_until.as_nanos() - 1);
    let idle_limit = |now| task.idle_limit(guarded_until, now);
    assert_eq!(idle_limit(just_before), IDLE_LIMIT_IN_QUARANTINE);
    assert_eq!(idle_limit(writes_age_until), IDLE_LIMIT);
}

#[test]
fn jobs_are_refused_a_quarter_of_the_timeout_before_the_session_would_end() {
    assert_eq!(
        requests::serving_time(Duration::from_secs(4)),
        Duration::from_secs(3)
    );
}

#[tokio::test]
async fn record_that_was_read_in_this_batch_is_not_read_again_for_a_stale_job() {
    let table = Table::new("table", true);
    let mut task = task_of(table.clone());
    let mut online = task.connect().await.expect("the table must answer");
    let names = [Name::from(&b"a"[..])];
    // Returns the version of the record in the cache after the task has read the records for a stale job.
    let mut version_after = async |starts_batch: bool| {
        if starts_batch {
            task.cache.start_batch();
        }
        task.batch.push(extend_request(&[b"a"]));
        task.sort_into_jobs(Duration::ZERO);
        task.jobs[0].is_stale = true;
        let loaded = task.load_records(&mut online, false).await;
        assert_eq!(loaded, Ok(()));
        task.jobs.clear();
        let cached = task
            .cache
            .get_all(&names)
            .expect("the record must be cached");
        cached[0].0
    };
    assert_eq!(version_after(true).await, 0);
    create_record(&table, &names[0], Vec::new()).await;
    assert_eq!(version_after(false).await, 0);
    assert_eq!(version_after(true).await, 1);
}

/// A task that uses tokio's clock, which a test can pause, and this setting of the restart guard.
fn paced_task_of<S: Store>(store: S, restart_guard: RestartGuard) -> SessionTask<S> {
    let shared = Shared::new(store);
    let context = Context::new(Arc::new(Tokio::paced()), MAX_TTL);
    shared.settle(&Context {
        restart_guard,
        ..context
    });
    let mut task = SessionTask::new(Arc::new(shared), 0);
    task.has_finished = true;
    task
}

/// The longest TTL of the clients in these tests.
const MAX_TTL: Duration = Duration::from_secs(30);

/// Lets another session create a record in the table.
async fn create_record(table: &Table, name: &Name, state: Vec<u8>) {
    let change = Change {
        name: name.clone(),
        version: 0,
        state: Some(state),
    };
    let commit = Commit {
        changes: vec![change],
        ..Commit::default()
    };
    let committed = table.clone().commit(&[commit]).await;
    committed.expect("the table must answer");
}

fn acquire_of(claim: Arc<Claim>) -> Request {
    Request::Acquire {
        claim,
        ttl: LATER,
        proposal: 0,
    }
}

fn acquire_request() -> Queued {
    Queued::new(acquire_of(claim_of_waiter(1)), Reply::ignored())
}

#[tokio::test(start_paused = true)]
async fn acquire_opens_a_new_session_if_the_date_of_the_store_is_too_old() {
    let timeout = Duration::from_secs(1);
    let stale = MAX_DATE_AGE + Duration::from_secs(1);
    let acquires = || vec![watch_request(unbounded_channel().0), acquire_request()];
    let cases = [
        ("a stale date", stale, acquires(), timeout / 2, true),
        (
            "no acquire",
            stale,
            vec![release_request()],
            timeout / 2,
            false,
        ),
        (
            "a recent date",
            MAX_DATE_AGE / 2,
            acquires(),
            timeout / 2,
            false,
        ),
        ("a store that stalls", stale, acquires(), 2 * timeout, false),
    ];
    for (description, date_age, requests, connect_time, is_replaced) in cases {
        let store = Faulty::new(Failing::Never).timeout(timeout);
        let mut task = paced_task_of(store.clone().answer_time(connect_time), RestartGuard::On);
        let (session, greeting) = store.connect().await.expect("the store must answer");
        let now = task.now();
        let mut online = task
            .accept_greeting(session, greeting, now)
            .expect("the greeting must be accepted");
        task.time.learn(None, now, now);
        task.time.learn_date(Some(Date::new(1, 1)), now, now);
        tokio::time::advance(date_age).await;
        task.batch.extend(requests);
        task.sort_into_jobs(Duration::ZERO);
        let before = task.now();
        task.refresh_date(&mut online).await;
        assert_eq!(online.connected_at > before, is_replaced, "{description}");
        assert!(!task.jobs.is_empty(), "the jobs must stay: {description}");
    }
}

#[tokio::test(start_paused = true)]
async fn session_is_replaced_when_the_date_of_the_store_is_older_than_half_a_day() {
    for (hours, is_replaced) in [(11, false), (13, true)] {
        let mut task = paced_task_of(Table::new("table", false), RestartGuard::On);
        let mut online = task.connect().await.expect("the table must answer");
        tokio::time::advance(Duration::from_secs(hours * 3_600)).await;
        let before = task.now();
        let (answers, mut received) = unbounded_channel();
        let mailbox = &task.shared.mailboxes[0];
        let pushed = mailbox.push(watch_request(answers));
        assert!(pushed.is_ok(), "the mailbox must have room");
        // The task ends when it has served this request.
        mailbox.close();
        assert_eq!(task.serve_session(&mut online).await, Ok(()));
        assert_eq!(received.try_recv().ok(), Some(Ok(Answer::Watching)));
        assert_eq!(online.connected_at >= before, is_replaced, "{hours} h");
    }
}

/// The greeting of the server run `run`, which began `uptime` seconds ago and may have lost changes.
fn greeting(run: &str, uptime: u64) -> Greeting {
    Greeting::new(ServerRun::new(run)).uptime(Duration::from_secs(uptime))
}

#[tokio::test(start_paused = true)]
async fn votes_of_a_restarted_server_count_when_every_lease_from_before_has_expired() {
    use RestartGuard::{AfterFirstContact, Off, On};
    let (young, old) = (11, 1000);
    let outliving = || greeting("2", young).run_outlives_restarts();
    // The setting of the guard, the greetings of the server, 10 s after each other, and for how many seconds the votes do
    // not count after the last of them.
    let cases = [
        ("a young server", On, vec![greeting("1", young)], 20),
        ("an old server", On, vec![greeting("1", old)], 0),
        ("the guard is off", Off, vec![greeting("1", young)], 0),
        (
            "first contact",
            AfterFirstContact,
            vec![greeting("1", young)],
            0,
        ),
        (
            "another run, although its uptime is long",
            AfterFirstContact,
            vec![greeting("1", old), greeting("2", old)],
            30,
        ),
        (
            "another run, for the second time",
            AfterFirstContact,
            vec![greeting("1", old), greeting("2", old), greeting("2", old)],
            20,
        ),
        (
            "another run, at the end of the wait",
            AfterFirstContact,
            ["1", "2", "2", "2", "2"]
                .map(|run| greeting(run, old))
                .into(),
            0,
        ),
        (
            "a run that lasted longer than its server",
            AfterFirstContact,
            vec![greeting("1", old), outliving(), outliving()],
            20,
        ),
    ];
    for (description, restart_guard, greetings, guarded_for) in cases {
        let mut task = paced_task_of(Table::new("table", true), restart_guard);
        let mut guarded_for_seconds = None;
        for greeting in greetings {
            tokio::time::advance(Duration::from_secs(10)).await;
            let shared = Arc::get_mut(&mut task.shared).expect("the task is alone");
            shared.repeats = Repeats::default();
            let (session, _) = task.shared.store.connect().await.expect("a session");
            let online = task.accept_greeting(session, greeting, task.now());
            let online = online.expect("the greeting must be accepted");
            let guarded_for = online
                .quarantined_until
                .saturating_since(online.connected_at);
            guarded_for_seconds = Some(guarded_for.as_secs_f64().round());
        }
        assert_eq!(
            guarded_for_seconds,
            Some(f64::from(guarded_for)),
            "{description}"
        );
        let repeats = &task.shared.repeats;
        let is_logged = repeats.should_log("restarted", task.now()).is_none();
        assert_eq!(is_logged, guarded_for > 0, "{description}");
    }
}

#[tokio::test]
async fn values_of_earlier_runs_are_trusted_only_if_a_restart_loses_nothing() {
    use RestartGuard::{AfterFirstContact, Off, On};
    let lossless = || Greeting::new(ServerRun::new("1"));
    for (description, restart_guard, greeting, is_durable) in [
        ("no loss", On, lossless(), true),
        ("a loss is possible", On, greeting("1", 1000), false),
        (
            "a loss is possible",
            AfterFirstContact,
            greeting("1", 1000),
            false,
        ),
        ("declared by the guard", Off, greeting("1", 1000), true),
        (
            "replaced data",
            Off,
            lossless().run_outlives_restarts(),
            false,
        ),
    ] {
        let mut task = paced_task_of(Table::new("table", true), restart_guard);
        let (session, _) = task.shared.store.connect().await.expect("a session");
        let online = task.accept_greeting(session, greeting, task.now());
        let online = online.expect("the greeting must be accepted");
        assert_eq!(online.is_durable, is_durable, "{description}");
    }
}

#[tokio::test]
async fn outcome_of_an_abandoned_job_is_unknown_only_if_its_change_was_sent() {
    let mut task = idle_task();
    let mut received = Vec::new();
    for key in [b"a", b"b"] {
        let (reply, answers) = Answers::reply();
        let request = extend_request(&[key]).request;
        task.batch.push(Queued::new(request, reply));
        received.push(answers);
    }
    task.sort_into_jobs(Duration::ZERO);
    let (list_reply, list_answers) = Answers::reply();
    task.batch.push(list_request(list_reply));
    received.push(list_answers);
    let sent = Name::from(&b"a"[..]);
    let unsent = Name::from(&b"b"[..]);
    task.unanswered_records.push(sent.clone());
    let fault = Fault::Down("no server".into());
    task.abandon(&fault);
    assert!(task.cache.is_dirty(&sent) && !task.cache.is_dirty(&unsent));
    let unknown = Fault::Disconnected(fault.to_string().into());
    let answers = received.iter_mut().map(|answers| answers.try_recv().ok());
    assert_eq!(
        answers.collect::<Vec<_>>(),
        [unknown, fault.clone(), fault].map(|fault| Some(Err(fault)))
    );
    assert!(task.jobs.is_empty() && task.batch.is_empty());
}
