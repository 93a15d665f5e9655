//! Unit tests of the session task: the renewal of subscriptions, and the wait while there is no session.

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::super::names::records_of_request;
use super::super::table::Table;
use super::*;
use crate::node::{Answer, Claim, ExtendItem, Group, Mode, Part, Phase, ReplySink, Token};

/// No step of these tests takes this long, not even on a busy machine. A wait that ends only because of a bug ends much
/// later, at [`LATER`].
const SOON: Duration = Duration::from_secs(20);

/// The end of a wait that something else must end earlier.
const LATER: Duration = Duration::from_secs(60);

/// A task without a session that hands nothing over when it is dropped.
fn idle_task() -> SessionTask<Table> {
    task_of(Table::new("table", true))
}

/// The same for this table.
fn task_of(table: Table) -> SessionTask<Table> {
    let mut task = SessionTask::new(Arc::new(Shared::new(table)), 0);
    task.has_finished = true;
    task
}

/// A request to be notified of new leaders, and a sink that reports its answer to the test over a channel.
fn watch_request(answers: UnboundedSender<Result<Answer, Fault>>) -> Queued {
    let request = Request::Watch {
        key: b"boss"[..].into(),
        on: true,
    };
    let sink = Arc::new(Answers(answers));
    Queued::new(request, Reply::new(sink, 0, Phase::Look))
}

struct Answers(UnboundedSender<Result<Answer, Fault>>);

impl ReplySink for Answers {
    fn answered(&self, _: usize, _: Phase, answer: Result<Answer, Fault>) {
        let _ = self.0.send(answer);
    }
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
