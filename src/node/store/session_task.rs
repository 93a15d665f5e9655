//! The task that serves the requests to a store over one session, and opens a new session when the session is lost.
//!
//! The task answers every request within a time limit, even if the store does not answer:
//!
//! - A request that was sent: the store's timeout. If the session needs a new date first: twice this time.
//! - A request that waits for the first session: the connect timeout.
//! - A request that waits for a new session: the store's timeout.
//! - A request that waits behind a burst of other requests: [`BURST_TIMEOUTS`] times the store's timeout.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::cache::RecordCache;
use super::codec::{Moment, StoredItem};
use super::contract::{Clocked, Commit, Committed, Greeting, Session, Store, WaitLock};
use super::job::{Asked, Job, Outcome, Setting, WATCHED};
use super::listening::QueuedWaiter;
use super::names::{self, Name};
use super::shared::Shared;
use super::sweep::{PAGE, Sweep};
use super::time::StoreTime;
use super::wait_lock;
use super::wake_ups::deliver;
use crate::limit::Limit;
use crate::node::actor::back_off::{BackOff, STEADY};
use crate::node::actor::mailbox::Queued;
use crate::node::actor::panicked::Panicked;
use crate::node::actor::pending_releases::PendingReleases;
use crate::node::actor::trust::ServerVote;
use crate::node::memory::Master;
use crate::node::memory::items::Kind;
use crate::node::{Answer, Claim, Fault, Page, Reply, Request, ServerRun};
use crate::panics::caught_in;
use crate::protocol::instant::Instant;
use crate::protocol::restart::quarantined_until;
use crate::repeats::warn_seldom;
use crate::runtime::BoxFuture;
use crate::settings::RestartGuard;

/// How long the task still tries to deliver releases after the store's handle was dropped: 1 s.
const LINGER: Duration = Duration::from_secs(1);

/// The longest time that a request in a burst may wait before it is sent, as a multiple of the store's timeout.
const BURST_TIMEOUTS: u32 = 10;

/// If the task has no requests, and the store has sent no answer for this time (2 s), the task reads the store's clock.
/// It does this to check that the store still answers.
const IDLE: Duration = Duration::from_secs(2);

/// Runs the task for the session with the index `number`. `pending` are the releases that an earlier task did not
/// deliver.
///
/// The task ends when the store's handle was dropped and no request is left. Undelivered releases delay the end by at
/// most [`LINGER`].
///
/// If the tokio runtime is shut down first, another task continues in the background runtime.
pub(super) fn run<S: Store>(
    shared: Arc<Shared<S>>,
    number: usize,
    pending: PendingReleases,
) -> impl Future<Output = ()> + Send + 'static {
    // Create the state now, not at the first poll: if the runtime drops the task before this poll, `Drop` must still
    // answer the requests.
    let mut task = SessionTask::new(shared, number);
    task.pending_releases = pending;
    async move { task.run().await }
}

/// The largest number of wait locks that the task stores in order to release them with its next commit. All other wait
/// locks are released when the session ends.
const MOST_WAIT_LOCKS: usize = 1024;

struct SessionTask<S: Store> {
    shared: Arc<Shared<S>>,
    number: usize,
    pending_releases: PendingReleases,
    /// True if the task ended because it had no more work. False if it is dropped because its runtime was shut down.
    done: bool,
    cache: RecordCache,
    sweep: Sweep,
    time: StoreTime,
    /// The stamp that the last job gave to its items. The first stamp is random: if a record is removed and created
    /// again, its items then get other stamps than before.
    stamp: u64,
    back_off: BackOff,
    panicked: Panicked,
    /// Until this time, requests wait for a session. If `None`, requests are refused while there is no session.
    patience: Option<Instant>,
    /// The last time at which requests began to wait for a new session. If a session is lost within [`STEADY`] of this
    /// time, requests do not wait again: they are refused.
    patient_at: Instant,
    /// The fault with which requests are refused while there is no session.
    fault: Fault,
    closed_at: Option<Instant>,
    /// The jobs (groups of requests that share records) that are being executed.
    jobs: Vec<Job>,
    /// The records for which this session has sent a change that the store has not answered yet.
    risky: Vec<Name>,
    batch: Vec<Queued>,
    /// The wait locks that the session releases together with its next commit.
    wait_locks: Vec<WaitLock>,
    /// For each observed election, the time at which this process must renew its request for announcements of new
    /// leaders.
    watched: BTreeMap<Arc<[u8]>, Instant>,
}

/// A session, and the facts that its server reported about itself.
struct Online<C> {
    session: C,
    run: ServerRun,
    /// Whether a stored value from an earlier run of the server counts as the newest value. True if the server loses
    /// nothing in a restart. Turning the restart guard off declares the same.
    lasts: bool,
    quarantined_until: Instant,
    /// While this session is open, no other address of the client gets the vote of its server.
    _vote: Option<ServerVote>,
    since: Instant,
    /// The time at which the store's last answer arrived.
    last_answer: Instant,
}

impl<S: Store> SessionTask<S> {
    fn new(shared: Arc<Shared<S>>, number: usize) -> Self {
        let context = shared.context();
        let now = context.runtime.now();
        // The seed makes random pauses differ between processes, and between the sessions of one process.
        let mut seed = [0; 8];
        context.runtime.random(&mut seed);
        let seed = u64::from_le_bytes(seed);
        let mut stamp = [0; 8];
        context.runtime.random(&mut stamp);
        Self {
            stamp: u64::from_le_bytes(stamp),
            pending_releases: PendingReleases::new(),
            done: false,
            cache: RecordCache::default(),
            sweep: Sweep::new(now, seed),
            time: StoreTime::new(
                context.runtime.wall_micros(),
                now,
                context.runtime.machine(),
            ),
            back_off: BackOff::new(seed),
            panicked: Panicked::default(),
            // The first requests wait for the first session, but not longer than the connect timeout.
            patience: Some(now + context.connect_timeout),
            patient_at: now,
            fault: Fault::Down("connecting".into()),
            closed_at: None,
            jobs: Vec::new(),
            risky: Vec::new(),
            batch: Vec::new(),
            wait_locks: Vec::new(),
            watched: BTreeMap::new(),
            shared,
            number,
        }
    }

    fn now(&self) -> Instant {
        self.shared.context().runtime.now()
    }

    async fn run(&mut self) {
        self.connect_and_talk().await;
        self.done = true;
    }

    async fn connect_and_talk(&mut self) {
        while !self.is_over() {
            // The driver of the store may panic: then this session has failed, and the task opens another one.
            let connected = caught_in(self.connect()).await;
            let connected =
                connected.unwrap_or_else(|panic| Err(self.panicked.fault(&panic, None)));
            let (fault, lived) = match connected {
                Ok(mut online) => {
                    self.patience = None;
                    let talked = caught_in(self.talk(&mut online)).await;
                    let lived = Some(self.now().saturating_since(online.since));
                    match talked {
                        Ok(Ok(())) => return,
                        Ok(Err(fault)) => (fault, lived),
                        Err(panic) => {
                            let fault = self.panicked.fault(&panic, lived);
                            self.abandon(&Fault::Disconnected(fault.to_string().into()));
                            (fault, lived)
                        }
                    }
                }
                Err(fault) => (fault, None),
            };
            let pause = self.lose(fault, lived);
            let rested = self.now() + pause;
            self.wait_apart(rested, std::future::pending::<()>()).await;
        }
    }

    /// Whether the task may end. The handle must have been dropped, and no request may be left in the mailbox. All
    /// releases must have been delivered, or [`LINGER`] must have passed.
    fn is_over(&mut self) -> bool {
        let mailbox = &self.shared.mailboxes[self.number];
        mailbox.rest();
        if !mailbox.is_over() {
            return false;
        }
        let now = self.now();
        let closed = *self.closed_at.get_or_insert(now);
        self.pending_releases.is_empty() || now >= closed + LINGER
    }

    async fn connect(&mut self) -> Result<Online<S::Session>, Fault> {
        let shared = self.shared.clone();
        let limit = shared.context().connect_timeout;
        let asked = self.now();
        let connected = self.wait_apart(asked + limit, shared.store.connect()).await;
        let (session, greeting) = connected.unwrap_or_else(|| Err(Fault::NoConnection(limit)))?;
        self.greet(session, greeting, asked)
    }

    /// Stores the facts from the server's greeting, which was requested at `asked`.
    fn greet(
        &mut self,
        session: S::Session,
        greeting: Greeting,
        asked: Instant,
    ) -> Result<Online<S::Session>, Fault> {
        let (context, now) = (self.shared.context(), self.now());
        let name = self.shared.store.name();
        let guarded = self.guarded(&greeting, now);
        let enter = |server| context.roster.enter(server, name);
        let vote = greeting.server.as_deref().map(enter).transpose()?;
        let withheld = vote.as_ref().map_or(Duration::ZERO, |vote| vote.withheld);
        if !withheld.is_zero() {
            warn_seldom!(
                (self.shared.repeats, "moved", now),
                node = %name,
                "another address led to this server before, so its votes are ignored until max_ttl has passed"
            );
        }
        tracing::debug!(node = %name, session = self.number, "connected");
        self.time.forget();
        // Learn the store's date before the first request: a request that the cache answers brings no date.
        self.time.learn_date(session.date(), asked, now);
        if greeting.uptime.is_some() {
            self.cache.mark_all_doubtful();
        }
        Ok(Online {
            session,
            lasts: greeting.uptime.is_none() || context.restart_guard == RestartGuard::Off,
            run: greeting.run,
            quarantined_until: guarded.max(now + withheld),
            _vote: vote,
            since: now,
            last_answer: now,
        })
    }

    /// The time until which the votes of the server do not count, because it may have forgotten a lock (docs/protocol.md,
    /// "Restart guard").
    fn guarded(&self, greeting: &Greeting, now: Instant) -> Instant {
        let (context, never) = (self.shared.context(), Instant::from_nanos(0));
        let acquaintance = &self.shared.acquaintance;
        let first = acquaintance.is_first_run(greeting.run.as_str());
        if context.restart_guard == RestartGuard::Off {
            return never;
        }
        let uptime = greeting.uptime;
        let uptime = uptime.filter(|_| context.restart_guard == RestartGuard::On || !first);
        let young = uptime.and_then(|up| quarantined_until(now, up.as_secs(), context.max_ttl));
        // The address may lead to another server now. A restart of a server that loses nothing is not a change.
        let server = match (&greeting.server, greeting.uptime) {
            (_, Some(_)) => Some(greeting.run.as_str()),
            (server, None) => server.as_deref(),
        };
        let other = server.map(|server| acquaintance.guarded(server, now, context.max_ttl));
        let until = young.max(other).unwrap_or(never);
        if until > now {
            warn_seldom!(
                (self.shared.repeats, "restarted", now),
                node = %self.shared.store.name(),
                "master restarted recently, so its votes are ignored until max_ttl has passed (restart guard)"
            );
        }
        until
    }

    /// Runs the future `what` while there is no session. Meanwhile, refuses requests that have waited too long for a
    /// session. Returns `None` if the time `until` was reached, or if the task may end.
    async fn wait_apart<T>(&mut self, until: Instant, what: impl Future<Output = T>) -> Option<T> {
        let mut what = pin!(what);
        let shared = self.shared.clone();
        let runtime = &shared.context().runtime;
        loop {
            let now = runtime.now();
            if self.patience.is_none_or(|patience| patience <= now) {
                self.patience = None;
                self.refuse_all();
            }
            let done = now >= until || self.is_over();
            let at = self.patience.map_or(until, |patience| patience.min(until));
            let mut timer = runtime.sleep_until(if done { now } else { at });
            let patient = self.patience.is_some();
            let mailbox = &shared.mailboxes[self.number];
            let found = std::future::poll_fn(|cx| {
                mailbox.register(cx.waker());
                if let Poll::Ready(found) = what.as_mut().poll(cx) {
                    return Poll::Ready(Some(found));
                }
                if done || (!patient && mailbox.has_any()) {
                    return Poll::Ready(None);
                }
                timer.as_mut().poll(cx).map(|()| None)
            })
            .await;
            if found.is_some() || done {
                return found;
            }
        }
    }

    /// Handles the loss of the session, or the failure to open one. Returns the pause before the next try.
    fn lose(&mut self, fault: Fault, lived: Option<Duration>) -> Duration {
        let (now, node) = (self.now(), self.shared.store.name());
        if lived.is_some() {
            let text = format!("connection lost: {fault}");
            warn_seldom!((self.shared.repeats, &text, now), %node, %fault, "connection lost");
        } else if fault != self.fault {
            let text = format!("no connection: {fault}");
            warn_seldom!((self.shared.repeats, &text, now), %node, %fault, "no connection");
        }
        let pause = self.back_off.pause(&fault, lived);
        let stalled = matches!(fault, Fault::Stalled);
        self.fault = match (lived, fault) {
            (None, fault)
            | (_, fault @ (Fault::Stalled | Fault::Down(_) | Fault::NoConnection(_))) => fault,
            (Some(_), fault) if !fault.passes_by_itself() => fault,
            (Some(_), fault) => Fault::Down(fault.to_string().into()),
        };
        // Let requests wait for a new session. Refuse them if the server had stopped answering, or if requests have
        // already waited for a session within the last `STEADY`.
        let again = now.saturating_since(self.patient_at) < STEADY;
        if lived.is_some() {
            self.patience = None;
        }
        if lived.is_some() && !stalled && !again {
            self.patience = Some(now + self.shared.traits.timeout);
            self.patient_at = now;
        }
        pause
    }

    /// Answers all requests in the mailbox with the reason why there is no session.
    fn refuse_all(&mut self) {
        let fault = self.fault.clone();
        self.shared.mailboxes[self.number].take(usize::MAX, &mut self.batch);
        for queued in self.batch.drain(..) {
            self.pending_releases.keep(&queued);
            queued.answer(Err(fault.clone()));
        }
    }

    /// Serves requests with a session, until the session is lost or the task may end.
    async fn talk(&mut self, online: &mut Online<S::Session>) -> Result<(), Fault> {
        while !self.is_over() {
            let (guarded, last_answer) = (online.quarantined_until, online.last_answer);
            self.gather(guarded, last_answer).await;
            let now = self.now();
            let quiet = self.jobs.is_empty();
            if quiet && self.batch.is_empty() && now < online.last_answer + IDLE {
                continue;
            }
            self.refresh_date(online).await;
            let now = self.now();
            let limit = self.shared.traits.timeout;
            let served = {
                let shared = self.shared.clone();
                let mut limit = Limit::new(&*shared.context().runtime, now + limit);
                limit.wait(self.serve(online)).await
            };
            match served {
                Some(Ok(())) => online.last_answer = self.now(),
                Some(Err(fault)) => {
                    self.abandon(&fault);
                    return Err(fault);
                }
                None => {
                    self.abandon(&Fault::Timeout(limit));
                    return Err(Fault::Stalled);
                }
            }
            self.shared.mailboxes[self.number].rest();
            if self.sweep.is_due(self.now()) {
                self.sweep(online).await?;
            }
            if self.time.is_date_old(self.now()) {
                // The store's clock may have been corrected since the last date. A new session brings a new date.
                self.patience = Some(self.now() + limit);
                *online = self.connect().await?;
                self.patience = None;
            }
        }
        Ok(())
    }

    /// If the jobs acquire a lock, and the last date of the store is too old to judge the age of a lease, opens a new
    /// session, which brings a new date. If this fails, keeps the session.
    async fn refresh_date(&mut self, online: &mut Online<S::Session>) {
        let now = self.now();
        let acquires = |asked: &Asked| matches!(asked.queued.request, Request::Acquire { .. });
        let mut asked = self.jobs.iter().flat_map(|job| &job.asked);
        if !self.time.is_date_stale(now) || !asked.any(acquires) {
            return;
        }
        let shared = self.shared.clone();
        let until = now + shared.traits.timeout;
        let mut limit = Limit::new(&*shared.context().runtime, until);
        self.patience = Some(until);
        if let Some(Ok(fresh)) = limit.wait(self.connect()).await {
            *online = fresh;
        }
        self.patience = None;
    }

    /// Stores the server's time from the answer to a request that was sent at `asked`. Returns the current time, and the
    /// wall clock at this time or a little earlier.
    fn learn_time(
        &mut self,
        online: &Online<S::Session>,
        clock: Option<u64>,
        asked: Instant,
    ) -> (Instant, u64) {
        let wall = self.shared.context().runtime.wall_micros();
        let answered = self.now();
        self.time.learn(clock, asked, answered);
        self.time.learn_date(online.session.date(), asked, answered);
        (answered, wall)
    }

    /// The moment at which records were read: the earliest and the latest possible time on the store's clock, and the
    /// latter together with what all clocks show. `None` if the store's clock is unknown.
    fn moment(&self, (answered, wall): (Instant, u64)) -> Option<(u64, Moment)> {
        let (seen, slack) = self.time.now(answered)?;
        let reading = self.time.reading(answered, wall);
        let now = seen + slack;
        Some((seen, Moment { now, reading }))
    }

    /// Removes a few obsolete records, and reads a page of records to find further obsolete ones.
    async fn sweep(&mut self, online: &mut Online<S::Session>) -> Result<(), Fault> {
        let shared = self.shared.clone();
        let mut limit = Limit::new(
            &*shared.context().runtime,
            self.now() + shared.traits.timeout,
        );
        let swept = limit.wait(self.sweep_some(online)).await;
        swept.unwrap_or(Err(Fault::Stalled))
    }

    async fn sweep_some(&mut self, online: &mut Online<S::Session>) -> Result<(), Fault> {
        let now = self.now();
        // If the server's time is unknown, use 0, so that no item counts as expired.
        let time = self.time.now(now).map_or(0, |(least, _)| least);
        let date = self.time.removal_date(now);
        let obsolete = self.sweep.obsolete(now, (time, date), &self.cache);
        if !obsolete.is_empty() {
            for (name, _) in &obsolete {
                self.cache.forget(name);
            }
            online.session.remove(&obsolete).await?;
        }
        // Only one session of this process reads the pages of the store to find obsolete records.
        if *self.shared.pager.get_or_init(|| self.number) != self.number || !self.cache.has_room() {
            return Ok(());
        }
        let asked = self.now();
        let Clocked { what, clock } = online.session.page(self.sweep.page(), PAGE).await?;
        let answered = self.learn_time(online, clock, asked);
        self.sweep.looked(what.len());
        let Some((_, moment)) = self.moment(answered) else {
            return Ok(());
        };
        for (name, record) in what.into_iter().filter(|(_, record)| record.version > 0) {
            self.cache.read_unrequested(&name.into(), &record, moment);
        }
        Ok(())
    }

    /// Waits for requests, and sorts them into jobs (groups of requests that share records). Requests that list all
    /// records stay in `batch`.
    async fn gather(&mut self, guarded: Instant, last_answer: Instant) {
        let shared = self.shared.clone();
        let mailbox = &shared.mailboxes[self.number];
        let runtime = &shared.context().runtime;
        let now = runtime.now();
        mailbox.overdue(now, BURST_TIMEOUTS * shared.traits.timeout, &mut self.batch);
        for queued in self.batch.drain(..) {
            self.pending_releases.keep(&queued);
            queued.answer(Err(Fault::Overloaded));
        }
        // Take at most one batch of requests, because all of them must be executed within one timeout.
        let most = shared.traits.batch.max(2);
        self.batch.extend(self.pending_releases.take(most / 2, now));
        let room = most - self.batch.len();
        mailbox.take(room, &mut self.batch);
        self.watch_again(now);
        if self.batch.is_empty() {
            let idle = last_answer + IDLE;
            let rested = self.pending_releases.wake_at().unwrap_or(idle).min(idle);
            let again = self.watched.values().min().copied().unwrap_or(idle);
            let mut timer = runtime.sleep_until(rested.min(again));
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
        let quarantine = guarded.saturating_since(now);
        let mut apart = Vec::new();
        for queued in self.batch.drain(..) {
            if queued.request.rests_on_memory() && !quarantine.is_zero() {
                queued.answer(Err(Fault::Quarantined(quarantine)));
            } else if matches!(queued.request, Request::List { .. }) {
                apart.push(queued);
            } else {
                Job::sort(&mut self.jobs, queued);
            }
        }
        self.batch = apart;
    }

    /// Renews this process's subscriptions to announcements of new leaders. The store ends a subscription that is not
    /// renewed.
    fn watch_again(&mut self, now: Instant) {
        let due = self.watched.iter().filter(|(_, at)| **at <= now);
        let due: Vec<Arc<[u8]>> = due.map(|(key, _)| key.clone()).collect();
        for key in due {
            self.watched.insert(key.clone(), now + WATCHED / 3);
            let request = Request::Watch { key, on: true };
            self.batch.push(Queued::new(request, Reply::ignored()));
        }
    }

    /// Executes all jobs and list requests. If there are none, reads the store's clock to check that the store answers.
    async fn serve(&mut self, online: &mut Online<S::Session>) -> Result<(), Fault> {
        self.cache.start_batch();
        if self.jobs.is_empty() && self.batch.is_empty() {
            return self.read(online, true).await;
        }
        let patient = self.now() + self.shared.traits.timeout / 4 * 3;
        while !self.jobs.is_empty() {
            if self.now() >= patient {
                self.step_back();
                break;
            }
            self.read(online, false).await?;
            let mut commits = Vec::new();
            let mut open = Vec::new();
            for mut job in std::mem::take(&mut self.jobs) {
                self.stamp = self.stamp.wrapping_add(1);
                let now = self.now();
                // Read the wall clock after `now`, so that a new lease never seems older than it is.
                let wall = self.shared.context().runtime.wall_micros();
                let setting = Setting {
                    time: &self.time,
                    now,
                    stamp: self.stamp,
                    reading: self.time.reading(now, wall),
                    run: &online.run,
                    process: (self.shared.subscriber.get()).map(|subscriber| &subscriber.process),
                    wait_locks: self.shared.traits.looks,
                };
                match job.decide(&self.cache, &setting) {
                    Outcome::Same => {
                        if self.shared.traits.looks {
                            self.keep_wait_locks(&job);
                        }
                        self.finish(job, online);
                    }
                    Outcome::Change(commit, stored) => {
                        commits.push((commit, stored));
                        open.push(job);
                    }
                    Outcome::Unsure => {
                        job.stale = true;
                        self.jobs.push(job);
                    }
                }
            }
            self.change(online, open, commits).await?;
        }
        self.list(online).await
    }

    /// Answers all unfinished jobs with `Overloaded`. None of their commits took effect.
    ///
    /// Called before the store's timeout, because a timeout ends the session.
    fn step_back(&mut self) {
        for asked in std::mem::take(&mut self.jobs)
            .into_iter()
            .flat_map(|job| job.asked)
        {
            self.pending_releases.keep(&asked.queued);
            asked.queued.answer(Err(Fault::Overloaded));
        }
    }

    /// Reads the records that the jobs use, if the cache does not have them or may have an outdated state. If `clock`
    /// is true, the store is asked for its clock even if no record has to be read.
    async fn read(&mut self, online: &mut Online<S::Session>, clock: bool) -> Result<(), Fault> {
        let now = self.now();
        let no_time = self.time.now(now).is_none();
        let mut names: Vec<Name> = Vec::new();
        for job in &mut self.jobs {
            let known = self.cache.all(&job.names).is_some();
            let fresh = self.cache.are_fresh(&job.names);
            if !known || (job.stale && !fresh) {
                names.extend(job.names.iter().cloned());
            }
            job.stale = false;
        }
        names.sort_unstable();
        names.dedup();
        if names.is_empty() && !no_time && !clock {
            return Ok(());
        }
        let Clocked { what, clock } = online.session.load(&names).await?;
        let answered = self.learn_time(online, clock, now);
        let Some((_, moment)) = self.moment(answered) else {
            return Err(Fault::Server("the store's clock does not advance".into()));
        };
        for (name, record) in names.iter().zip(&what) {
            if !self.cache.read(name, record, moment) {
                let shown = name.escape_ascii();
                let fault = record.fault.clone().unwrap_or_else(|| {
                    let why = format!(
                        "the record of {shown} was not written by quorate and is not changed"
                    );
                    Fault::Server(why.into())
                });
                self.answer_all_of(name, &fault);
            }
        }
        Ok(())
    }

    /// Sends the answer `fault` to every request that needs the record `name`. A request for several locks is split, so
    /// that its other locks can still get an answer.
    fn answer_all_of(&mut self, name: &Name, fault: &Fault) {
        let of = |job: &Job| job.names.contains(name);
        let (odd, rest) = std::mem::take(&mut self.jobs).into_iter().partition(of);
        self.jobs = rest;
        let odd: Vec<Job> = odd;
        for asked in odd.into_iter().flat_map(|job| job.asked) {
            let about = |queued: &Queued| names::of_request(&queued.request).contains(name);
            let parts = if asked.queued.is_of_several() && about(&asked.queued) {
                asked.queued.split()
            } else {
                vec![asked.queued]
            };
            for queued in parts {
                if about(&queued) {
                    queued.answer(Err(fault.clone()));
                } else {
                    Job::sort(&mut self.jobs, queued);
                }
            }
        }
    }

    /// Commits the decided jobs. If another session has changed a record of a job since the record was read, the commit
    /// has no effect, and the job is decided again.
    async fn change(
        &mut self,
        online: &mut Online<S::Session>,
        mut open: Vec<Job>,
        commits: Vec<(Commit, Vec<Vec<StoredItem>>)>,
    ) -> Result<(), Fault> {
        if commits.is_empty() {
            return Ok(());
        }
        let (mut commits, stored): (Vec<Commit>, Vec<Vec<Vec<StoredItem>>>) =
            commits.into_iter().unzip();
        if let Some(first) = commits.first_mut() {
            first.wait_locks.append(&mut self.wait_locks);
        }
        let mut stored = stored.into_iter();
        let own: Vec<Vec<Vec<u8>>> = commits.iter_mut().map(|commit| self.own(commit)).collect();
        let mut own = own.into_iter();
        self.jobs.append(&mut open);
        let first = self.jobs.len() - commits.len();
        let mut done = Vec::new();
        for chunk in commits.chunks(self.shared.traits.batch.max(1)) {
            let changes = chunk.iter().flat_map(|commit| &commit.changes);
            // If this or a later call of `commit` fails, requests for the records in `risky` get a fault.
            self.risky.extend(changes.map(|change| change.name.clone()));
            let asked = self.now();
            let Clocked { what, clock } = online.session.commit(chunk).await?;
            self.learn_time(online, clock, asked);
            for (commit, committed) in chunk.iter().zip(what) {
                let (stored, own) = (stored.next(), own.next());
                let (Committed::Done(versions), Some(stored)) = (committed, stored) else {
                    for change in &commit.changes {
                        self.cache.mark_doubtful(&change.name);
                    }
                    done.push(false);
                    continue;
                };
                for ((change, version), stored) in commit.changes.iter().zip(versions).zip(stored) {
                    self.cache.note_written(&change.name, version, stored);
                }
                self.deliver_own(&own.unwrap_or_default());
                done.push(true);
            }
        }
        self.risky.clear();
        let open = self.jobs.split_off(first);
        for (mut job, done) in open.into_iter().zip(done) {
            if done {
                self.finish(job, online);
            } else {
                job.stale = true;
                self.jobs.push(job);
            }
        }
        Ok(())
    }

    /// Removes from the commit all wake-ups for this process, and returns their messages. The task delivers them
    /// directly, without the store.
    fn own(&self, commit: &mut Commit) -> Vec<Vec<u8>> {
        let Some(subscriber) = self.shared.subscriber.get() else {
            return Vec::new();
        };
        let ours = commit
            .wakes
            .extract_if(.., |wake| wake.process == subscriber.process);
        ours.map(|wake| wake.word).collect()
    }

    fn deliver_own(&self, words: &[Vec<u8>]) {
        if let Some(subscriber) = self.shared.subscriber.get() {
            for word in words {
                deliver(subscriber, word);
            }
        }
    }

    /// Passes the answers of a job to their callers.
    fn finish(&mut self, job: Job, online: &Online<S::Session>) {
        let now = self.now();
        for Asked { queued, answer } in job.asked {
            let mut answer = answer.unwrap_or(Err(Fault::Withdrawn));
            if self.shared.traits.looks {
                self.note_waiter(&queued.request, &answer);
            }
            match (&queued.request, &mut answer) {
                (Request::Watch { key, on: true }, Ok(_)) => {
                    let next = now + WATCHED / 3;
                    self.watched.insert(key.clone(), next);
                }
                (Request::Watch { key, .. }, Ok(_)) => drop(self.watched.remove(key)),
                (_, Ok(Answer::Value { stored, .. })) => {
                    if let Some(stored) = stored.as_mut().filter(|_| online.lasts) {
                        stored.trusted = true;
                    }
                }
                (_, Ok(Answer::Released(_))) => self.pending_releases.delivered(),
                _ => {}
            }
            queued.answer(answer);
        }
    }

    /// Stores which client is directly ahead of the waiter in the queue. Only a listener that polls needs this.
    fn note_waiter(&self, request: &Request, answer: &Result<Answer, Fault>) {
        let (claim, waits) = match (request, answer) {
            (Request::Acquire { claim, .. }, Ok(Answer::Granted { .. }))
            | (Request::Release { claim, leave: true }, _) => (claim, false),
            (Request::Acquire { claim, .. }, Ok(Answer::Refused { .. })) => (claim, true),
            _ => return,
        };
        let Some(ticket) = claim.ticket() else { return };
        let names = names::of_claim(claim);
        let waiter = waits.then(|| QueuedWaiter {
            id: ticket.waiter.clone(),
            behind: self.client_ahead(claim, &names),
        });
        self.shared.listening.note_waiter(&names, waiter.as_ref());
    }

    /// The name of the wait lock (a named lock of the server) that belongs to the client directly ahead of this claim's
    /// waiter. `None` if different clients are ahead at different keys, or if the records are not cached.
    fn client_ahead(&self, claim: &Claim, names: &[Name]) -> Option<Arc<str>> {
        let known = self.cache.all(names)?;
        let items: Vec<_> = known.iter().flat_map(|(_, stored)| stored.iter()).collect();
        wait_lock::ahead_of(claim, &items)
    }

    /// Stores the wait locks that the session no longer needs after `job`. The session's next commit, for any job,
    /// releases them.
    fn keep_wait_locks(&mut self, job: &Job) {
        let known = self.cache.all(&job.names).unwrap_or_default();
        let after = known.iter().flat_map(|(_, stored)| stored.iter());
        let changes = job.wait_locks(after).into_iter();
        let released = changes.filter(|change| matches!(change, WaitLock::Release(_)));
        let room = MOST_WAIT_LOCKS.saturating_sub(self.wait_locks.len());
        self.wait_locks.extend(released.take(room));
    }

    /// Answers the list requests in `batch`. Each request reads one page of records.
    async fn list(&mut self, online: &mut Online<S::Session>) -> Result<(), Fault> {
        while let Some(queued) = self.batch.last() {
            let Request::List { page } = &queued.request else {
                return Ok(());
            };
            let page = page.clone();
            let answer = self.names(online, &page).await?;
            if let Some(queued) = self.batch.pop() {
                queued.answer(Ok(answer));
            }
        }
        Ok(())
    }

    async fn names(
        &mut self,
        online: &mut Online<S::Session>,
        page: &Page,
    ) -> Result<Answer, Fault> {
        let asked = self.now();
        let Clocked { what, clock } = online.session.page(page.cursor, page.count).await?;
        let answered = self.learn_time(online, clock, asked);
        let (now, moment) = self.moment(answered).unwrap_or((0, Moment::from(0)));
        let mut master = Master::default();
        for (name, record) in &what {
            if record.fault.is_some() {
                // An unreadable record may contain a held lock. So list its name, with an empty value. A caller who
                // then asks for the status of this lock gets the fault.
                master.put_text(now, name, b"", None);
                continue;
            }
            let stored = StoredItem::read(&record.state, &[], moment).unwrap_or_default();
            for stored in stored {
                if stored.item.id.kind == Kind::Text {
                    master.put(stored.item);
                }
            }
        }
        let request = Request::List {
            page: Arc::new(page.clone()),
        };
        let more = what.len() >= usize::try_from(page.count).unwrap_or(usize::MAX);
        let next = if more {
            page.cursor + what.len() as u64
        } else {
            0
        };
        match master.apply(now, &request)? {
            Answer::Keys { keys, .. } => Ok(Answer::Keys { cursor: next, keys }),
            other => Ok(other),
        }
    }

    /// Abandons the session: answers the jobs in progress with `fault`, and remembers which changes may still take
    /// effect.
    fn abandon(&mut self, fault: &Fault) {
        let risky = std::mem::take(&mut self.risky);
        for name in &risky {
            #[cfg(feature = "seeded-bugs")]
            if super::flaw::has(super::flaw::StoreFlaw::Unsoiled) {
                self.cache.mark_doubtful(name);
                continue;
            }
            self.cache.mark_dirty(name);
        }
        let unknown = match fault {
            fault if !fault.left_nothing() => fault.clone(),
            fault => Fault::Disconnected(fault.to_string().into()),
        };
        for job in std::mem::take(&mut self.jobs) {
            let touched = job.names.iter().any(|name| risky.contains(name));
            let fault = if touched { &unknown } else { fault };
            for asked in job.asked {
                self.pending_releases.keep(&asked.queued);
                asked.queued.answer(Err(fault.clone()));
            }
        }
        for queued in self.batch.drain(..) {
            queued.answer(Err(fault.clone()));
        }
        self.shared.mailboxes[self.number].rest();
    }
}

impl<S: Store> SessionTask<S> {
    /// Starts another task that continues the work of this one. Returns false if no work is left, or if no other
    /// runtime can run the task.
    fn hand_over(&mut self) -> bool {
        let pending = std::mem::replace(&mut self.pending_releases, PendingReleases::new());
        let (shared, number) = (self.shared.clone(), self.number);
        if pending.is_empty() && shared.mailboxes[number].is_over() {
            return false;
        }
        let task = move || -> BoxFuture<()> { Box::pin(run(shared, number, pending)) };
        let runtime = &self.shared.context().runtime;
        runtime.take_over(Box::new(task))
    }
}

/// Answers the jobs in progress with a fault. If no other task continues, also answers all requests in the mailbox.
impl<S: Store> Drop for SessionTask<S> {
    fn drop(&mut self) {
        let gone = Fault::Disconnected("the connection to the master was shut down".into());
        self.abandon(&gone);
        if !self.done && !std::thread::panicking() && self.hand_over() {
            return;
        }
        let fault = Fault::Down("the connection to the master was shut down".into());
        self.shared.mailboxes[self.number].fail(&fault);
    }
}
