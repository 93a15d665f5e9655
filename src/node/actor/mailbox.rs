//! The bounded first-in, first-out queue of the requests that callers send to one master through its actor.
//!
//! The actor takes many queued requests at a time. A caller that queues a request wakes the actor only if the queue was
//! empty before. So the actor is woken once per batch, not once per request.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::sync::Notify;

use super::joined::split_by_session;
use crate::node::{Answer, Claim, Fault, Reply, Request};
use crate::protocol::instant::Instant;
use crate::sync::{AtomicWaker, Mutex, MutexGuard};

/// The largest number of queued requests for one master; further requests are refused immediately. The queue becomes
/// this long only if callers send more requests than the master can answer within a node timeout.
const CAPACITY: usize = 16_384;

/// A release is refused only if at least this many requests are queued. The limit is higher than [`CAPACITY`], because
/// each release frees a lock.
const RELEASE_CAPACITY: usize = 2 * CAPACITY;

/// A request to one master, and the receiver of its answer.
pub(in crate::node) struct Queued {
    pub(in crate::node) request: Request,
    reply: Reply,
    /// Whether the request is sent for the second time. The first time, the master did not have the script.
    pub(in crate::node) is_resent: bool,
    /// Whether the request must now be sent as its own script call, because the master did not execute its first form.
    /// The first form was a built-in command, or a script call shared with other requests.
    pub(in crate::node) needs_own_call: bool,
    /// Whether this release was sent as the server's built-in compare-and-delete command (`DELIFEQ`). If the server
    /// refuses the command, the release is sent again as a script call.
    pub(in crate::node) is_conditional_delete: bool,
    /// For a release that the master has refused: the time by which the lock key has certainly expired. From then on
    /// the release is not needed. `None` for all other requests.
    pub(in crate::node) expires_at: Option<Instant>,
}

impl Queued {
    pub(in crate::node) fn new(request: Request, reply: Reply) -> Self {
        Self {
            request,
            reply,
            is_resent: false,
            needs_own_call: false,
            is_conditional_delete: false,
            expires_at: None,
        }
    }

    pub(in crate::node) fn answer(self, answer: Result<Answer, Fault>) {
        self.reply.answer(answer);
    }

    /// Whether this request is for several locks, so that [`split`](Self::split) can split it.
    pub(in crate::node) fn is_of_several(&self) -> bool {
        match &self.request {
            Request::Extend { items } => items.len() > 1,
            Request::Note { items } => items.len() > 1,
            _ => false,
        }
    }

    /// Splits a request for several locks into one request for each lock.
    pub(in crate::node) fn split(self) -> Vec<Self> {
        // Each lock gets a number of its own, as if it had a session of its own.
        let mut numbers = 0..;
        let next_number = |_: &Claim| numbers.next().unwrap_or(usize::MAX);
        let session_parts = split_by_session(self.request, self.reply, next_number).into_iter();
        let queued_part = |(_, request, reply)| Self::new(request, reply);
        session_parts.map(queued_part).collect()
    }

    pub(in crate::node) fn time_out(&mut self, fault: Fault) {
        self.reply.time_out(fault);
    }
}

/// The queue of requests that wait to be sent to one master.
pub(in crate::node) struct Mailbox {
    inbox: Mutex<Inbox>,
    reader: AtomicWaker,
    became_idle: Notify,
}

#[derive(Default)]
struct Inbox {
    queue: VecDeque<Queued>,
    /// Queued renewals. They are sent before all other requests, because a lock expires if its renewal is late. No
    /// renewal is sent after the release of its lock, because the release removes it from the queue.
    renewals: VecDeque<Queued>,
    /// Whether an actor takes requests from this queue, or is being started for it.
    has_reader: bool,
    /// Whether the actor has taken requests that are not answered yet.
    is_busy: bool,
    /// Whether the handle of the master was dropped, so that no further request will come.
    is_closed: bool,
    /// The number of requests that have been taken from `queue` so far.
    taken_count: u64,
    /// The time of the last check for overdue requests, and how many requests had been queued in total by that time.
    /// `None` if no request was left in `queue` after that check.
    last_check: Option<(Instant, u64)>,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.renewals.is_empty()
    }
}

impl Mailbox {
    pub(in crate::node) fn new() -> Self {
        Self {
            inbox: Mutex::default(),
            reader: AtomicWaker::new(),
            became_idle: Notify::new(),
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request. If the queue is full, the request is returned as an error. `Ok(true)` means that no actor
    /// reads the queue, so the caller must start one.
    // Whether the lint fires depends on the features.
    #[allow(
        clippy::result_large_err,
        reason = "the caller answers the returned request at once"
    )]
    pub(in crate::node) fn push(&self, queued: Queued) -> Result<bool, Queued> {
        let mut inbox = self.inbox();
        let was_empty = inbox.is_empty();
        let capacity = match queued.request {
            Request::Release { .. } => RELEASE_CAPACITY,
            _ => CAPACITY,
        };
        let queue = match queued.request {
            Request::Extend { .. } => &mut inbox.renewals,
            _ => &mut inbox.queue,
        };
        if queue.len() >= capacity {
            return Err(queued);
        }
        queue.push_back(queued);
        let must_start = !std::mem::replace(&mut inbox.has_reader, true);
        drop(inbox);
        if was_empty {
            self.reader.wake();
        }
        Ok(must_start)
    }

    /// Moves at most `limit` queued requests to `into`; renewals are taken first.
    pub(in crate::node) fn take(&self, limit: usize, into: &mut Vec<Queued>) {
        let mut inbox = self.inbox();
        let renewal_count = inbox.renewals.len().min(limit);
        into.extend(inbox.renewals.drain(..renewal_count));
        let count = inbox.queue.len().min(limit - renewal_count);
        into.extend(inbox.queue.drain(..count));
        inbox.taken_count += count as u64;
        inbox.is_busy |= renewal_count + count > 0;
    }

    /// Returns requests that were [taken](Self::take) to the front of the queue, in this order.
    #[cfg(any(test, feature = "node"))]
    pub(in crate::node) fn return_to_front(&self, requests: Vec<Queued>) {
        if requests.is_empty() {
            return;
        }
        let mut inbox = self.inbox();
        for queued in requests.into_iter().rev() {
            if matches!(queued.request, Request::Extend { .. }) {
                inbox.renewals.push_front(queued);
            } else {
                inbox.queue.push_front(queued);
                inbox.taken_count = inbox.taken_count.saturating_sub(1);
            }
        }
    }

    /// Takes the requests, except renewals, that have waited in the queue for at least `limit`. Because the queue
    /// stores no arrival times, the wait is measured from the first check after the arrival. So a request can wait for
    /// almost twice the `limit`.
    pub(in crate::node) fn take_overdue(
        &self,
        now: Instant,
        limit: Duration,
        into: &mut Vec<Queued>,
    ) {
        let mut inbox = self.inbox();
        let queued_total = inbox.taken_count + inbox.queue.len() as u64;
        match inbox.last_check {
            Some((checked_at, total_then)) if inbox.taken_count < total_then => {
                if now < checked_at + limit {
                    return;
                }
                let count = usize::try_from(total_then - inbox.taken_count).unwrap_or(usize::MAX);
                into.extend(inbox.queue.drain(..count));
                inbox.taken_count = total_then;
            }
            _ => {}
        }
        inbox.last_check = (queued_total > inbox.taken_count).then_some((now, queued_total));
        inbox.is_busy |= !into.is_empty();
    }

    /// Whether at least one request, including renewals, waits in the queue.
    #[cfg(any(test, feature = "node"))]
    pub(in crate::node) fn has_any(&self) -> bool {
        !self.inbox().is_empty()
    }

    /// Whether the handle of the master was dropped and every request has been taken from the queue.
    pub(in crate::node) fn is_over(&self) -> bool {
        let inbox = self.inbox();
        inbox.is_closed && inbox.is_empty()
    }

    pub(in crate::node) fn register(&self, waker: &std::task::Waker) {
        self.reader.register(waker);
    }

    /// Called when the actor has answered all requests that it took from this mailbox. If the mailbox is empty, wakes
    /// the callers of [`idle`](Self::idle).
    pub(in crate::node) fn mark_idle(&self) {
        let mut inbox = self.inbox();
        if inbox.is_busy && inbox.is_empty() {
            inbox.is_busy = false;
            drop(inbox);
            self.became_idle.notify_waiters();
        }
    }

    /// Resolves when the queue is empty and all requests taken from it have been answered.
    pub(in crate::node) async fn idle(&self) {
        loop {
            // This future also receives a notification that is sent before the future is polled.
            let became_idle = self.became_idle.notified();
            {
                let inbox = self.inbox();
                if inbox.is_empty() && !inbox.is_busy {
                    return;
                }
            }
            became_idle.await;
        }
    }

    pub(in crate::node) fn close(&self) {
        self.inbox().is_closed = true;
        self.reader.wake();
    }

    /// Answers all queued requests with `fault`, and records that no actor reads the queue. The next request then
    /// starts an actor.
    pub(in crate::node) fn fail(&self, fault: &Fault) {
        let unanswered = {
            let mut inbox = self.inbox();
            inbox.has_reader = false;
            inbox.is_busy = false;
            inbox.taken_count += inbox.queue.len() as u64;
            let renewals = std::mem::take(&mut inbox.renewals);
            renewals.into_iter().chain(std::mem::take(&mut inbox.queue))
        };
        for queued in unanswered {
            queued.answer(Err(fault.clone()));
        }
        self.became_idle.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::node::{ExtendItem, NoteItem, Token};

    fn push_request(mailbox: &Mailbox, request: Request) -> bool {
        mailbox.push(Queued::new(request, Reply::ignored())).is_ok()
    }

    #[test]
    fn only_requests_for_two_or_more_locks_are_of_several() {
        let claim = Arc::new(Claim::new("", b"r", Token::from_bytes([1; 16]), true));
        let extension = ExtendItem::new(claim.clone(), Duration::from_secs(1));
        let note = NoteItem {
            claim,
            says: "me".into(),
            since: 0,
            announce: false,
        };
        for (count, is_of_several) in [(1, false), (2, true)] {
            let requests = [
                Request::Extend {
                    items: vec![extension.clone(); count].into(),
                },
                Request::Note {
                    items: vec![note.clone(); count].into(),
                },
            ];
            for request in requests {
                let queued = Queued::new(request, Reply::ignored());
                assert_eq!(queued.is_of_several(), is_of_several, "{count}");
                assert_eq!(queued.split().len(), count);
            }
        }
    }

    fn status_request(key: &str) -> Request {
        let key = key.as_bytes().into();
        Request::Status { key }
    }

    fn renewal() -> Request {
        Request::Extend {
            items: Arc::from([]),
        }
    }

    #[test]
    fn first_request_after_all_requests_failed_starts_an_actor_again() {
        let mailbox = Mailbox::new();
        let push = |mailbox: &Mailbox| {
            let queued = Queued::new(status_request("a"), Reply::ignored());
            mailbox.push(queued).ok()
        };
        assert_eq!([push(&mailbox), push(&mailbox)], [Some(true), Some(false)]);
        mailbox.fail(&Fault::Down("no actor".into()));
        assert_eq!([push(&mailbox), push(&mailbox)], [Some(true), Some(false)]);
    }

    #[test]
    fn full_mailbox_accepts_a_renewal_and_delivers_it_before_older_requests() {
        let mailbox = Mailbox::new();
        for _ in 0..CAPACITY {
            assert!(push_request(&mailbox, status_request("a")));
        }
        assert!(!push_request(&mailbox, status_request("b")));
        assert!(push_request(&mailbox, renewal()));
        let mut taken_requests = Vec::new();
        mailbox.take(3, &mut taken_requests);
        let is_renewal = |queued: &Queued| matches!(queued.request, Request::Extend { .. });
        let are_renewals: Vec<bool> = taken_requests.iter().map(is_renewal).collect();
        assert_eq!(are_renewals, [true, false, false]);
    }

    #[test]
    fn requests_that_are_returned_are_taken_next_in_their_order() {
        let mailbox = Mailbox::new();
        for key in ["a", "b", "c"] {
            assert!(push_request(&mailbox, status_request(key)));
        }
        assert!(push_request(&mailbox, renewal()));
        let mut requests = Vec::new();
        mailbox.take(3, &mut requests);
        let excess = requests.split_off(1);
        assert!(push_request(&mailbox, status_request("d")));
        mailbox.return_to_front(excess);
        let mut requests = Vec::new();
        mailbox.take(8, &mut requests);
        let key_of = |queued: &Queued| match &queued.request {
            Request::Status { key } => String::from_utf8_lossy(key).into_owned(),
            _ => "renewal".to_owned(),
        };
        let keys: Vec<String> = requests.iter().map(key_of).collect();
        assert_eq!(keys, ["a", "b", "c", "d"]);
        let returned_requests = [status_request("e"), renewal()];
        let queued = returned_requests.map(|request| Queued::new(request, Reply::ignored()));
        mailbox.return_to_front(Vec::from(queued));
        assert!(mailbox.has_any());
        let mut requests = Vec::new();
        mailbox.take(8, &mut requests);
        let keys: Vec<String> = requests.iter().map(key_of).collect();
        assert_eq!(keys, ["renewal", "e"], "renewals are taken first");
    }

    #[test]
    fn returned_request_becomes_overdue_as_if_it_had_not_been_taken() {
        let limit = Duration::from_millis(100);
        let mailbox = Mailbox::new();
        for key in ["a", "b"] {
            assert!(push_request(&mailbox, status_request(key)));
        }
        let mut overdue = Vec::new();
        mailbox.take_overdue(Instant::from_nanos(0), limit, &mut overdue);
        assert!(overdue.is_empty());
        let mut requests = Vec::new();
        mailbox.take(2, &mut requests);
        mailbox.return_to_front(requests.split_off(1));
        mailbox.take_overdue(Instant::from_nanos(0) + limit, limit, &mut overdue);
        assert_eq!(overdue.len(), 1);
    }

    #[test]
    fn request_becomes_overdue_after_at_least_the_limit_and_at_most_twice_the_limit() {
        let queue_limit = Duration::from_millis(100);
        let at_ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mailbox = Mailbox::new();
        let count_overdue = |ms: u64| {
            let mut queued = Vec::new();
            mailbox.take_overdue(at_ms(ms), queue_limit, &mut queued);
            queued.len()
        };
        assert!(
            push_request(&mailbox, status_request("a"))
                && push_request(&mailbox, status_request("b"))
        );
        assert_eq!(count_overdue(0), 0);
        assert!(push_request(&mailbox, status_request("c")));
        mailbox.take(1, &mut Vec::new());
        assert_eq!(count_overdue(99), 0);
        assert_eq!(
            count_overdue(100),
            1,
            "only request b must be overdue, because request a was taken"
        );
        assert_eq!(
            count_overdue(199),
            0,
            "request c must not be overdue, because only one earlier check has found it in the mailbox"
        );
        assert_eq!(count_overdue(200), 1);
        assert_eq!(count_overdue(900), 0);
    }

    #[test]
    fn closed_mailbox_is_not_finished_while_a_renewal_is_queued() {
        let mailbox = Mailbox::new();
        assert!(push_request(&mailbox, renewal()));
        mailbox.close();
        assert!(!mailbox.is_over());
        mailbox.take(1, &mut Vec::new());
        assert!(mailbox.is_over());
    }
}

#[cfg(all(test, quorate_loom))]
mod models {
    use std::sync::Arc;
    use std::task::Poll;

    use loom::future::block_on;
    use loom::thread;

    use super::*;

    fn push(mailbox: &Arc<Mailbox>, requests: usize) -> thread::JoinHandle<()> {
        let mailbox = mailbox.clone();
        thread::spawn(move || {
            for _ in 0..requests {
                let request = Request::Status { key: Arc::from([]) };
                assert!(mailbox.push(Queued::new(request, Reply::ignored())).is_ok());
            }
        })
    }

    /// Reads the queue as the actor does, until it has taken this number of requests: registers its waker, and takes
    /// requests until the queue is empty. Then marks the taken requests as answered.
    fn read_requests(mailbox: &Mailbox, requests: usize) {
        let mut taken_requests = Vec::new();
        block_on(std::future::poll_fn(|cx| {
            mailbox.register(cx.waker());
            loop {
                let count_before = taken_requests.len();
                mailbox.take(usize::MAX, &mut taken_requests);
                if taken_requests.len() == count_before {
                    break;
                }
            }
            if taken_requests.len() == requests {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        }));
        mailbox.mark_idle();
    }

    #[test]
    fn request_reaches_the_actor_in_every_thread_interleaving() {
        crate::sync::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let callers = [push(&mailbox, 1), push(&mailbox, 1)];
            read_requests(&mailbox, 2);
            for caller in callers {
                caller.join().expect("the thread must not panic");
            }
        });
    }

    /// A request wakes the actor only if the queue was empty. So the actor must take both requests after one wake-up.
    #[test]
    fn second_request_reaches_the_actor_in_every_thread_interleaving() {
        crate::sync::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let caller = push(&mailbox, 2);
            read_requests(&mailbox, 2);
            caller.join().expect("the thread must not panic");
        });
    }

    #[test]
    fn actor_sees_the_closing_of_the_mailbox_in_every_thread_interleaving() {
        crate::sync::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let closing = mailbox.clone();
            let closing = thread::spawn(move || closing.close());
            block_on(std::future::poll_fn(|cx| {
                mailbox.register(cx.waker());
                if mailbox.is_over() {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            }));
            closing.join().expect("the thread must not panic");
        });
    }

    #[test]
    fn wait_for_an_idle_mailbox_ends_in_every_thread_interleaving() {
        crate::sync::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            push(&mailbox, 1).join().expect("the thread must not panic");
            let reader_mailbox = mailbox.clone();
            let reader_thread = thread::spawn(move || read_requests(&reader_mailbox, 1));
            block_on(mailbox.idle());
            reader_thread.join().expect("the thread must not panic");
        });
    }
}
