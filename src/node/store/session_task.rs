//! The task that serves the requests to a store over one session, and opens a new session when the session is lost.
//!
//! The task answers every request within a time limit, even if the store does not answer:
//!
//! - A request that was sent: the store's timeout. If the session needs a new date first: twice this time.
//! - A request that waits for the first session: the connect timeout.
//! - A request that waits for a new session: the store's timeout.
//! - A request that waits behind a burst of other requests: [`MAX_QUEUE_TIMEOUTS`] times the store's timeout.

mod connection;
mod listing;
mod removal;
mod requests;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::cache::RecordCache;
use super::codec::Moment;
use super::contract::{Session, Store, WaitLock};
use super::job::{Job, JobRequest, SUBSCRIPTION_TIME};
use super::names::Name;
use super::shared::Shared;
use super::sweep::Sweep;
use super::time::StoreTime;
use crate::limit::Limit;
use crate::node::actor::mailbox::Queued;
use crate::node::actor::outage::Outage;
use crate::node::actor::panicked::PanicHistory;
use crate::node::actor::pending_releases::PendingReleases;
use crate::node::actor::trust::ServerVote;
use crate::node::{Fault, Reply, Request, ServerRun};
use crate::panics::caught_in;
use crate::protocol::instant::Instant;
use crate::runtime::{BoxFuture, random_number};

/// How long the task still tries to deliver releases after the store's handle was dropped: 1 s.
const LINGER: Duration = Duration::from_secs(1);

/// The longest time that a request in a burst may wait before it is sent, as a multiple of the store's timeout.
const MAX_QUEUE_TIMEOUTS: u32 = 10;

/// If the task has no requests, and the store has sent no answer for this time (2 s), the task reads the store's clock.
/// It does this to check that the store still answers.
const IDLE_LIMIT: Duration = Duration::from_secs(2);

/// The same time (200 ms) while the votes of the server do not count, if the sessions of the store write the age of the
/// server's run to the server ([`Traits::counts_age`](super::contract::Traits::counts_age)).
const IDLE_LIMIT_IN_QUARANTINE: Duration = Duration::from_millis(200);

/// Runs the task for the session with the index `index`. `pending` are the releases that an earlier task did not
/// deliver.
///
/// The task ends when the store's handle was dropped and no request is left. Undelivered releases delay the end by at
/// most [`LINGER`].
///
/// If the tokio runtime is shut down first, another task continues in the background runtime.
pub(super) fn run<S: Store>(
    shared: Arc<Shared<S>>,
    index: usize,
    pending: PendingReleases,
) -> impl Future<Output = ()> + Send + 'static {
    // Create the state now, not at the first poll: if the runtime drops the task before this poll, `Drop` must still
    // answer the requests.
    let mut task = SessionTask::new(shared, index);
    task.pending_releases = pending;
    async move { task.run().await }
}

struct SessionTask<S: Store> {
    shared: Arc<Shared<S>>,
    index: usize,
    pending_releases: PendingReleases,
    /// True if the task ended because it had no more work. False if it is dropped because its runtime was shut down.
    has_finished: bool,
    cache: RecordCache,
    sweep: Sweep,
    time: StoreTime,
    /// The stamp that the last job gave to its items. The first stamp is random: if a record is removed and created
    /// again, its items then get other stamps than before.
    stamp: u64,
    outage: Outage,
    panic_history: PanicHistory,
    closed_at: Option<Instant>,
    /// The jobs (groups of requests that share records) that are being executed.
    jobs: Vec<Job>,
    /// The records for which this session has sent a change that the store has not answered yet.
    unanswered_records: Vec<Name>,
    batch: Vec<Queued>,
    /// The wait locks that the session releases together with its next commit.
    wait_locks: Vec<WaitLock>,
    /// For each observed election, the time at which this process must renew its request for announcements of new
    /// leaders.
    watch_renewals: BTreeMap<Arc<[u8]>, Instant>,
}

/// A session, and the facts that its server reported about itself.
struct Online<C> {
    session: C,
    run: ServerRun,
    /// Whether a stored value from an earlier run of the server counts as the newest value. True if the server loses
    /// nothing in a restart. Turning the restart guard off declares the same. False if the run id outlives restarts:
    /// another run id then means that the data was replaced.
    is_durable: bool,
    quarantined_until: Instant,
    /// While this session is open, no other address of the client gets the vote of its server.
    _vote: Option<ServerVote>,
    connected_at: Instant,
    /// The time at which the store's last answer arrived.
    last_answer: Instant,
}

impl<S: Store> SessionTask<S> {
    fn new(shared: Arc<Shared<S>>, index: usize) -> Self {
        let context = shared.context();
        let now = context.runtime.now();
        // The seed makes random pauses differ between processes, and between the sessions of one process.
        let seed = random_number(&*context.runtime);
        Self {
            stamp: random_number(&*context.runtime),
            pending_releases: PendingReleases::new(),
            has_finished: false,
            cache: RecordCache::default(),
            sweep: Sweep::new(now, seed),
            time: StoreTime::new(
                context.runtime.wall_micros(),
                now,
                context.runtime.machine(),
            ),
            // The first requests wait for the first session, but not longer than the connect timeout.
            outage: Outage::before_first_connection(seed, now, now + context.connect_timeout),
            panic_history: PanicHistory::default(),
            closed_at: None,
            jobs: Vec::new(),
            unanswered_records: Vec::new(),
            batch: Vec::new(),
            wait_locks: Vec::new(),
            watch_renewals: BTreeMap::new(),
            shared,
            index,
        }
    }

    fn now(&self) -> Instant {
        self.shared.context().runtime.now()
    }

    async fn run(&mut self) {
        self.connect_and_serve().await;
        self.has_finished = true;
    }

    async fn connect_and_serve(&mut self) {
        while !self.is_over() {
            // The driver of the store may panic: then this session has failed, and the task opens another one.
            let connected = caught_in(self.connect()).await;
            let connected =
                connected.unwrap_or_else(|panic| Err(self.panic_history.fault(&panic, None)));
            let (fault, connection_age) = match connected {
                Ok(mut online) => {
                    let session_result = caught_in(self.serve_session(&mut online)).await;
                    let connection_age = Some(self.now().saturating_since(online.connected_at));
                    match session_result {
                        Ok(Ok(())) => return,
                        Ok(Err(fault)) => (fault, connection_age),
                        Err(panic) => {
                            let fault = self.panic_history.fault(&panic, connection_age);
                            self.abandon(&Fault::Disconnected(fault.to_string().into()));
                            (fault, connection_age)
                        }
                    }
                }
                Err(fault) => (fault, None),
            };
            let pause = self.record_loss(fault, connection_age);
            let paused_until = self.now() + pause;
            self.wait_without_session(paused_until, std::future::pending::<()>())
                .await;
        }
    }

    /// Whether the task may end. The handle must have been dropped, and no request may be left in the mailbox. All
    /// releases must have been delivered, or [`LINGER`] must have passed.
    fn is_over(&mut self) -> bool {
        let mailbox = &self.shared.mailboxes[self.index];
        mailbox.mark_idle();
        if !mailbox.is_over() {
            return false;
        }
        let now = self.now();
        let closed = *self.closed_at.get_or_insert(now);
        self.pending_releases.is_empty() || now >= closed + LINGER
    }

    /// Serves requests with a session, until the session is lost or the task may end.
    async fn serve_session(&mut self, online: &mut Online<S::Session>) -> Result<(), Fault> {
        while !self.is_over() {
            let (guarded_until, last_answer) = (online.quarantined_until, online.last_answer);
            self.collect_requests(guarded_until, last_answer).await;
            if !self.must_contact_store(online, self.now()) {
                continue;
            }
            self.refresh_date(online).await;
            let now = self.now();
            let store_timeout = self.shared.traits.timeout;
            // All jobs share one time limit. If it passes, nobody knows what was executed, so the session ends.
            let serve_result = {
                let shared = self.shared.clone();
                let mut time_limit = Limit::new(&*shared.context().runtime, now + store_timeout);
                time_limit.wait(self.serve(online)).await
            };
            match serve_result {
                Some(Ok(())) => online.last_answer = self.now(),
                Some(Err(fault)) => {
                    self.abandon(&fault);
                    return Err(fault);
                }
                None => {
                    self.abandon(&Fault::Timeout(store_timeout));
                    return Err(Fault::Stalled);
                }
            }
            self.shared.mailboxes[self.index].mark_idle();
            if self.sweep.is_due(self.now()) {
                self.sweep(online).await?;
            }
            if self.time.is_date_old(self.now()) {
                // The store's clock may have been corrected since the last date. A new session brings a new date.
                *online = self.reconnect().await?;
            }
        }
        Ok(())
    }

    /// Whether to contact the store at the time `now`: for requests or, after a time without answers, to check that the
    /// store still answers.
    fn must_contact_store(&self, online: &Online<S::Session>, now: Instant) -> bool {
        let idle_at = online.last_answer + self.idle_limit(online.quarantined_until, now);
        !self.jobs.is_empty() || !self.batch.is_empty() || now >= idle_at
    }

    /// If the jobs acquire a lock, and the last date of the store is too old to judge the age of a lease, opens a new
    /// session, which brings a new date. If this fails, keeps the session.
    async fn refresh_date(&mut self, online: &mut Online<S::Session>) {
        let now = self.now();
        let is_acquire =
            |request: &JobRequest| matches!(request.queued.request, Request::Acquire { .. });
        let mut job_requests = self.jobs.iter().flat_map(|job| &job.requests);
        if !self.time.is_date_stale(now) || !job_requests.any(is_acquire) {
            return;
        }
        let shared = self.shared.clone();
        let mut limit = Limit::new(&*shared.context().runtime, now + shared.traits.timeout);
        if let Some(Ok(new_session)) = limit.wait(self.reconnect()).await {
            *online = new_session;
        }
    }

    /// Stores the server's time from the answer to a request that was sent at `asked_at`. Returns the current time, and
    /// the wall clock at this time or a little earlier.
    fn learn_time(
        &mut self,
        online: &Online<S::Session>,
        clock: Option<u64>,
        asked_at: Instant,
    ) -> (Instant, u64) {
        let wall = self.shared.context().runtime.wall_micros();
        let answered_at = self.now();
        self.time.learn(clock, asked_at, answered_at);
        self.time
            .learn_date(online.session.date(), asked_at, answered_at);
        (answered_at, wall)
    }

    /// The moment at which records were read: the earliest and the latest possible time on the store's clock, and the
    /// latter together with what all clocks show. `None` if the store's clock is unknown.
    fn moment(&self, (answered_at, wall): (Instant, u64)) -> Option<(u64, Moment)> {
        let (earliest, slack) = self.time.now(answered_at)?;
        let reading = self.time.reading(answered_at, wall);
        let now = earliest + slack;
        Some((earliest, Moment { now, reading }))
    }

    /// For how long the task leaves a session unused. The votes of the server do not count until `guarded_until`.
    ///
    /// The session is used once more after that time. Otherwise the last part of the age would never be written if all
    /// processes end soon, and no process that tries once would ever count the votes.
    fn idle_limit(&self, guarded_until: Instant, now: Instant) -> Duration {
        let writes_age_until = guarded_until + IDLE_LIMIT_IN_QUARANTINE;
        if self.shared.traits.counts_age && now < writes_age_until {
            IDLE_LIMIT_IN_QUARANTINE
        } else {
            IDLE_LIMIT
        }
    }

    /// Waits for requests, and sorts them into jobs (groups of requests that share records). Requests that list all
    /// records stay in `batch`.
    async fn collect_requests(&mut self, guarded_until: Instant, last_answer: Instant) {
        let shared = self.shared.clone();
        let mailbox = &shared.mailboxes[self.index];
        let runtime = &shared.context().runtime;
        let now = runtime.now();
        // Refuse requests that have waited too long. Their releases stay pending.
        mailbox.take_overdue(
            now,
            MAX_QUEUE_TIMEOUTS * shared.traits.timeout,
            &mut self.batch,
        );
        for queued in self.batch.drain(..) {
            self.pending_releases.keep(&queued);
            queued.answer(Err(Fault::Overloaded));
        }
        // Take at most one batch of requests, because all of them must be executed within one timeout.
        let max_requests = shared.traits.batch.max(2);
        self.batch
            .extend(self.pending_releases.take(max_requests / 2, now));
        let room = max_requests - self.batch.len();
        mailbox.take(room, &mut self.batch);
        self.renew_watches(now);
        // Nothing to do: sleep until a request arrives, or until something else is due.
        if self.batch.is_empty() {
            let idle_at = last_answer + self.idle_limit(guarded_until, now);
            let renewal_at = self
                .watch_renewals
                .values()
                .min()
                .copied()
                .unwrap_or(idle_at);
            let mut timer = runtime.sleep_until(idle_at.min(renewal_at));
            std::future::poll_fn(|cx| {
                mailbox.register(cx.waker());
                if mailbox.has_any() || mailbox.is_over() {
                    return Poll::Ready(());
                }
                timer.as_mut().poll(cx)
            })
            .await;
            return;
        }
        self.sort_into_jobs(guarded_until.saturating_since(now));
    }

    /// Sorts the requests in `batch` into jobs. Requests that list all records stay in `batch`. If a job would get more
    /// records than one commit may have, returns the request that does not fit, and all later ones, to the mailbox.
    ///
    /// The votes of the server do not count for the time `quarantine`. Until then, refuses requests that depend on the
    /// store's memory.
    fn sort_into_jobs(&mut self, quarantine: Duration) {
        let max_records = self.shared.traits.records;
        let mut list_requests = Vec::new();
        let mut excess = Vec::new();
        for queued in self.batch.drain(..) {
            if queued.request.rests_on_memory() && !quarantine.is_zero() {
                queued.answer(Err(Fault::Quarantined(quarantine)));
            } else if matches!(queued.request, Request::List { .. }) {
                list_requests.push(queued);
            } else if excess.is_empty() && Job::has_room(&self.jobs, &queued.request, max_records) {
                Job::add_to(&mut self.jobs, queued);
            } else {
                excess.push(queued);
            }
        }
        self.batch = list_requests;
        self.shared.mailboxes[self.index].return_to_front(excess);
    }

    /// Renews this process's subscriptions to announcements of new leaders. The store ends a subscription that is not
    /// renewed.
    fn renew_watches(&mut self, now: Instant) {
        let due = self
            .watch_renewals
            .iter()
            .filter(|(_, renewal_at)| **renewal_at <= now);
        let due: Vec<Arc<[u8]>> = due.map(|(key, _)| key.clone()).collect();
        for key in due {
            self.watch_renewals
                .insert(key.clone(), now + SUBSCRIPTION_TIME / 3);
            let request = Request::Watch { key, on: true };
            self.batch.push(Queued::new(request, Reply::ignored()));
        }
    }
}

impl<S: Store> SessionTask<S> {
    /// Starts another task that continues the work of this one. Returns false if no work is left, or if no other
    /// runtime can run the task.
    fn hand_over(&mut self) -> bool {
        let pending = std::mem::replace(&mut self.pending_releases, PendingReleases::new());
        let (shared, index) = (self.shared.clone(), self.index);
        if pending.is_empty() && shared.mailboxes[index].is_over() {
            return false;
        }
        let task = move || -> BoxFuture<()> { Box::pin(run(shared, index, pending)) };
        let runtime = &self.shared.context().runtime;
        runtime.take_over(Box::new(task))
    }
}

/// Answers the jobs in progress with a fault. If no other task continues, also answers all requests in the mailbox.
impl<S: Store> Drop for SessionTask<S> {
    fn drop(&mut self) {
        let job_fault = Fault::Disconnected("the connection to the master was shut down".into());
        self.abandon(&job_fault);
        if !self.has_finished && !std::thread::panicking() && self.hand_over() {
            return;
        }
        let fault = Fault::Down("the connection to the master was shut down".into());
        self.shared.mailboxes[self.index].fail(&fault);
    }
}

#[cfg(test)]
mod tests;
