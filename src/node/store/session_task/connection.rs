//! How the task opens a session, what it keeps of the server's greeting, and what happens to its requests while there is no
//! session.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::{Online, SessionTask};
use crate::node::Fault;
use crate::node::store::contract::{Greeting, Session, Store};
use crate::protocol::instant::Instant;
use crate::protocol::restart::quarantined_until;
use crate::repeats::warn_seldom;
use crate::settings::RestartGuard;

impl<S: Store> SessionTask<S> {
    pub(super) async fn connect(&mut self) -> Result<Online<S::Session>, Fault> {
        let shared = self.shared.clone();
        let connect_timeout = shared.context().connect_timeout;
        let asked_at = self.now();
        let connected = self
            .wait_without_session(asked_at + connect_timeout, shared.store.connect())
            .await;
        let (session, greeting) =
            connected.unwrap_or_else(|| Err(Fault::NoConnection(connect_timeout)))?;
        self.accept_greeting(session, greeting, asked_at)
    }

    /// Opens a session in place of one that works. New requests wait for the session, for at most the store's timeout.
    pub(super) async fn reconnect(&mut self) -> Result<Online<S::Session>, Fault> {
        self.outage
            .wait_until(self.now() + self.shared.traits.timeout);
        self.connect().await
    }

    /// Stores the facts from the server's greeting, which was requested at `asked_at`.
    pub(super) fn accept_greeting(
        &mut self,
        session: S::Session,
        greeting: Greeting,
        asked_at: Instant,
    ) -> Result<Online<S::Session>, Fault> {
        let (context, now) = (self.shared.context(), self.now());
        let name = self.shared.store.name();
        let guarded_until = self.guarded_until(&greeting, now);
        let enter = |server| context.roster.claim_vote(server, name);
        let vote = greeting.server.as_deref().map(enter).transpose()?;
        let withheld = vote
            .as_ref()
            .map_or(Duration::ZERO, |vote| vote.withheld_for);
        if !withheld.is_zero() {
            warn_seldom!(
                (self.shared.repeats, "moved", now),
                node = %name,
                "another address led to this server before, so its votes are ignored until max_ttl has passed"
            );
        }
        tracing::debug!(node = %name, session = self.index, "connected");
        self.time.forget();
        // Learn the store's date before the first request: a request that the cache answers brings no date.
        self.time.learn_date(session.date(), asked_at, now);
        if greeting.uptime.is_some() {
            self.cache.mark_all_doubtful();
        }
        Ok(Online {
            session,
            is_durable: !greeting.run_outlives_restarts
                && (greeting.uptime.is_none() || context.restart_guard == RestartGuard::Off),
            run: greeting.run,
            quarantined_until: guarded_until.max(now + withheld),
            _vote: vote,
            connected_at: now,
            last_answer: now,
        })
    }

    /// The time until which the votes of the server do not count, because it may have forgotten a lock (docs/protocol.md,
    /// "Restart guard").
    fn guarded_until(&self, greeting: &Greeting, now: Instant) -> Instant {
        let (context, never) = (self.shared.context(), Instant::from_nanos(0));
        let run_history = &self.shared.run_history;
        let is_first_run = run_history.is_first_run(greeting.run.as_str());
        if context.restart_guard == RestartGuard::Off {
            return never;
        }
        let uptime = greeting.uptime;
        let uptime = uptime.filter(|_| context.restart_guard == RestartGuard::On || !is_first_run);
        let young_until =
            uptime.and_then(|uptime| quarantined_until(now, uptime.as_secs(), context.max_ttl));
        // The address may lead to another server now. A restart of a server that loses nothing is not a change.
        let server = match (&greeting.server, greeting.uptime) {
            (_, Some(_)) => Some(greeting.run.as_str()),
            (server, None) => server.as_deref(),
        };
        let moved_until =
            server.map(|server| run_history.guarded_until(server, now, context.max_ttl));
        let until = young_until.max(moved_until).unwrap_or(never);
        if until > now {
            warn_seldom!(
                (self.shared.repeats, "restarted", now),
                node = %self.shared.store.name(),
                "master restarted recently, so its votes are ignored until max_ttl has passed (restart guard)"
            );
        }
        until
    }

    /// Runs the future `future` while there is no session. Meanwhile, refuses requests that have waited too long for a
    /// session. Returns `None` if the time `until` was reached, or if the task may end.
    pub(super) async fn wait_without_session<T>(
        &mut self,
        until: Instant,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let mut future = pin!(future);
        let shared = self.shared.clone();
        let runtime = &shared.context().runtime;
        loop {
            let now = runtime.now();
            if self.outage.is_refusing(now) {
                self.refuse_all();
            }
            let must_stop = now >= until || self.is_over();
            let waits_until = self.outage.waits_until();
            let wake_at = waits_until.map_or(until, |waits_until| waits_until.min(until));
            let mut timer = runtime.sleep_until(wake_at);
            let mailbox = &shared.mailboxes[self.index];
            let output = std::future::poll_fn(|cx| {
                mailbox.register(cx.waker());
                if let Poll::Ready(output) = future.as_mut().poll(cx) {
                    return Poll::Ready(Some(output));
                }
                if must_stop || (waits_until.is_none() && mailbox.has_any()) {
                    return Poll::Ready(None);
                }
                timer.as_mut().poll(cx).map(|()| None)
            })
            .await;
            if output.is_some() || must_stop {
                return output;
            }
        }
    }

    /// Handles the loss of the session, or the failure to open one. Returns the pause before the next try.
    pub(super) fn record_loss(
        &mut self,
        fault: Fault,
        connection_age: Option<Duration>,
    ) -> Duration {
        let (wait_time, now) = (self.shared.traits.timeout, self.now());
        let log = (self.shared.store.name(), &self.shared.repeats);
        self.outage
            .handle_failure(fault, connection_age, wait_time, now, log)
    }

    /// Answers all requests in the mailbox with the reason why there is no session.
    pub(super) fn refuse_all(&mut self) {
        let fault = self.outage.fault().clone();
        self.shared.mailboxes[self.index].take(usize::MAX, &mut self.batch);
        for queued in self.batch.drain(..) {
            self.pending_releases.keep(&queued);
            queued.answer(Err(fault.clone()));
        }
    }

    /// Abandons the session: answers the jobs in progress with `fault`, and remembers which changes may still take
    /// effect.
    pub(super) fn abandon(&mut self, fault: &Fault) {
        let unanswered_records = std::mem::take(&mut self.unanswered_records);
        for name in &unanswered_records {
            self.cache.mark_dirty(name);
        }
        let unknown_outcome = match fault {
            fault if !fault.left_nothing() => fault.clone(),
            fault => Fault::Disconnected(fault.to_string().into()),
        };
        for job in std::mem::take(&mut self.jobs) {
            let is_touched = job
                .names
                .iter()
                .any(|name| unanswered_records.contains(name));
            let fault = if is_touched { &unknown_outcome } else { fault };
            for request in job.requests {
                self.pending_releases.keep(&request.queued);
                request.queued.answer(Err(fault.clone()));
            }
        }
        for queued in self.batch.drain(..) {
            queued.answer(Err(fault.clone()));
        }
        self.shared.mailboxes[self.index].mark_idle();
    }
}
