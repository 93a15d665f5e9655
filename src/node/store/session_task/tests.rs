//! Unit tests of the session task: the renewal of subscriptions, and the wait while there is no session.

use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::super::table::Table;
use super::*;
use crate::node::{Answer, Phase, ReplySink};

/// No step of these tests takes this long, not even on a busy machine. A wait that ends only because of a bug ends much
/// later, at [`LATER`].
const SOON: Duration = Duration::from_secs(20);

/// The end of a wait that something else must end earlier.
const LATER: Duration = Duration::from_secs(60);

/// A task without a session that hands nothing over when it is dropped.
fn idle_task() -> SessionTask<Table> {
    let mut task = SessionTask::new(Arc::new(Shared::new(Table::new("table", true))), 0);
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
