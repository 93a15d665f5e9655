//! The request for a lock: its options, and the methods that acquire the lock.

use std::fmt;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tracing::Instrument;

use super::Redlock;
use super::try_acquire::{Refusal, TryAcquire};
use crate::acquire::acquire_loop::{AcquireLoop, Acquired, NotAcquired, Observer};
use crate::acquire::kind::Kind;
use crate::error::{AcquireError, FailedAcquire, ScopeError};
use crate::hold::core::Core;
use crate::hold::guard::LockGuard;
use crate::hold::held::{Held, HoldOptions};
use crate::hold::renewal;
use crate::hold::schedule::ScheduleId;
use crate::metrics;
use crate::node::note::{self, NoteText};
use crate::options::{check_max_hold, check_note};
use crate::outcome::Failure;
use crate::resource::check_resource;
use crate::rounds::lock_target::LockTarget;
use crate::runtime::BoxFuture;
use crate::settings::Wait;
use crate::waiting::Waiting;

impl Redlock {
    /// Creates a request for a lock, with options that apply only to this request. No option makes the lock re-entrant:
    /// see [`acquire`](Self::acquire).
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use quorate::Wait;
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let guard = redlock
    ///     .lock("nightly")
    ///     .ttl(Duration::from_secs(20))
    ///     .wait(Wait::For(Duration::from_secs(60)))
    ///     .max_hold(Duration::from_secs(3600))
    ///     .acquire()
    ///     .await?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> LockRequest {
        let options = &self.core.options;
        LockRequest {
            core: self.core.clone(),
            is_used: AtomicBool::new(false),
            blocking: false,
            resource: resource.as_ref().into(),
            kind: Kind::Exclusive,
            ttl: options.ttl,
            wait: options.wait,
            max_hold: options.max_hold,
            renew: true,
            note: options.note.clone(),
            announce: false,
            observer: None,
        }
    }

    /// A request for several resources in one lock: all or nothing, with one guard and one fencing token. For each
    /// resource, this token is larger than the tokens of all earlier holders. At most 16 resources, each named once.
    ///
    /// Clients that name the same resources in different orders cannot deadlock. While a client waits for one of the
    /// resources, the clients behind it in the queues of the other resources wait too.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let both = redlock.lock_all(["account:1", "account:2"]).acquire().await?;
    /// println!("a transfer under number {:?}", both.fencing_token());
    /// # Ok(()) }
    /// ```
    pub fn lock_all<R: AsRef<[u8]>>(&self, resources: impl IntoIterator<Item = R>) -> LockRequest {
        let names = resources
            .into_iter()
            .map(|resource| resource.as_ref().into());
        let resources: Box<[Box<[u8]>]> = names.collect();
        let first = resources.first().cloned().unwrap_or_default();
        self.lock(first).of_kind(Kind::SeveralResources(resources))
    }

    /// A request for one permit of the semaphore `name`. At most `permits` permits (1 to 64) are held at the same time.
    /// Waiters get permits first come, first served.
    ///
    /// - Each permit is a numbered slot ([`LockGuard::slot`]), and each slot is a lock with fencing tokens of its own.
    ///   A system that checks tokens must keep the largest token **per slot**.
    /// - The callers choose the number of permits. If callers choose different numbers, the largest number applies.
    /// - To lower the number, change it in all callers. Permits that are already held stay valid until their holders
    ///   release them.
    /// - A semaphore and the plain lock with the same name have different keys.
    ///
    /// The rules are in `docs/protocol.md`, "Several resources, readers, owners, semaphores".
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let permit = redlock.semaphore("api", 5).acquire().await?;
    /// println!("slot {:?}, number {:?}", permit.slot(), permit.fencing_token());
    /// # Ok(()) }
    /// ```
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: usize) -> LockRequest {
        self.lock(name).of_kind(Kind::Semaphore(permits))
    }
}

/// The warning about a request that was dropped unused.
const UNUSED_REQUEST_TEXT: &str =
    "nothing was locked: a lock request was dropped unused. Await it, or call acquire() on it";

/// The warning about an unused request of the module `blocking`. Such a request cannot be awaited.
const DROPPED_BLOCKING: &str =
    "nothing was locked: a lock request was dropped unused. Call acquire() on it";

/// A request for a lock with its options; see [`Redlock::lock`].
///
/// Awaiting a request is the same as calling [`acquire`](Self::acquire). A request is independent of the `Redlock` that
/// made it: it can be cloned, stored, and moved into a spawned task.
///
/// A request that is dropped without being awaited, acquired or cloned has locked nothing. This is usually a mistake
/// (`let _guard = redlock.lock("job");`), so the library logs a warning with [`tracing`]. If no subscriber of `tracing`
/// accepts warnings, the library writes only the first such warning of the process to standard error.
///
/// ```no_run
/// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
/// let request = redlock.lock("job").ttl(std::time::Duration::from_secs(20));
/// let task = tokio::spawn(request.clone().acquire());
/// let guard = request.await?;
/// # drop((guard, task));
/// # Ok(()) }
/// ```
#[must_use = "a lock request locks nothing until it is awaited"]
pub struct LockRequest {
    core: Arc<Core>,
    /// True once the request was started or cloned. If false, the drop of the request is reported as a warning.
    is_used: AtomicBool,
    /// Whether this request belongs to the module `blocking`.
    blocking: bool,
    resource: Box<[u8]>,
    kind: Kind,
    ttl: Duration,
    wait: Wait,
    max_hold: Option<Duration>,
    renew: bool,
    note: NoteText,
    announce: bool,
    observer: Option<Observer>,
}

impl Clone for LockRequest {
    fn clone(&self) -> Self {
        self.is_used.store(true, Ordering::Relaxed);
        Self {
            core: self.core.clone(),
            is_used: AtomicBool::new(false),
            blocking: self.blocking,
            resource: self.resource.clone(),
            kind: self.kind.clone(),
            ttl: self.ttl,
            wait: self.wait,
            max_hold: self.max_hold,
            renew: self.renew,
            note: self.note.clone(),
            announce: self.announce,
            observer: self.observer.clone(),
        }
    }
}

impl IntoFuture for LockRequest {
    type Output = Result<LockGuard, AcquireError>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let request = self.mark_used();
        // Boxed: otherwise this large future would take up memory in the caller's task for the whole life of the task.
        Box::pin(async move {
            let guard = request.run_acquire().instrument(request.span()).await?;
            guard.map_err(|failed| request.acquire_error(&failed))
        })
    }
}

/// Whether this process has reported a dropped request on standard error.
static WAS_PRINTED: AtomicBool = AtomicBool::new(false);

impl Drop for LockRequest {
    fn drop(&mut self) {
        if *self.is_used.get_mut() || std::thread::panicking() {
            return;
        }
        let resource = String::from_utf8_lossy(&self.resource);
        let warning = if self.blocking {
            DROPPED_BLOCKING
        } else {
            UNUSED_REQUEST_TEXT
        };
        tracing::warn!(%resource, "{warning}");
        // If the program collects no warnings, report the first dropped request on standard error.
        if !tracing::enabled!(tracing::Level::WARN) && !WAS_PRINTED.swap(true, Ordering::Relaxed) {
            let _ = writeln!(std::io::stderr(), "quorate: {resource:?}: {warning}");
        }
    }
}

impl fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockRequest")
            .field("resource", &String::from_utf8_lossy(&self.resource))
            .field("kind", &self.kind)
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .field("max_hold", &self.max_hold)
            .field("renew", &self.renew)
            .finish_non_exhaustive()
    }
}

impl LockRequest {
    /// How long the masters keep the lock without a renewal. Default: the builder's `ttl`.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for the lock. Default: the builder's `wait`.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// The longest time that the lock is held, renewals included. Default: the builder's `max_hold`.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Whether the lock is renewed in the background. Default: `true`. Without renewal the lock ends after one TTL,
    /// unless [`LockGuard::extend`] is called.
    pub fn renewal(mut self, renewal: bool) -> Self {
        self.renew = renewal;
        self
    }

    /// Sets a text that describes the holder, at most 1 KiB. Default: the builder's `note`.
    ///
    /// The text is part of the holder's note, which other clients see in [`Redlock::status`] and in
    /// [`Waiting::note`](crate::Waiting::note). The note also contains the holder's host, process id, program name and
    /// the time of the acquire.
    ///
    /// With `None`, the lock has no note. Also, [`Redlock::status`] does not show the host and process of this client
    /// while the client waits.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let guard = redlock.lock("db").note("migration 17").acquire().await?;
    /// let secret = redlock.lock("payroll").note(None).acquire().await?;
    /// # drop((guard, secret));
    /// # Ok(()) }
    /// ```
    pub fn note(mut self, note: impl Into<NoteText>) -> Self {
        self.note = note.into();
        self
    }

    /// Makes the request a candidacy in an election. Normally, a client waits 100 ms before it writes the note of an
    /// acquired lock to the masters. A candidate writes it at once, and this write wakes the clients that observe the
    /// election.
    pub(crate) fn announced(mut self) -> Self {
        self.announce = true;
        self
    }

    /// Calls `observer` after every failed attempt of this request. Also calls `observer` once when this request begins
    /// to wait behind other clients of the same process.
    ///
    /// Use the observer for progress lines and metrics. It must not block.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let guard = redlock
    ///     .lock("nightly")
    ///     .waiting(|seen| eprintln!("{:?} ahead of us, waited {:?}", seen.ahead, seen.waited))
    ///     .acquire()
    ///     .await?;
    /// # drop(guard);
    /// # Ok(()) }
    /// ```
    pub fn waiting(mut self, observer: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Acquires the lock with these options; see [`Redlock::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::acquire`].
    pub fn acquire(self) -> impl Future<Output = Result<LockGuard, AcquireError>> + Send {
        self.into_future()
    }

    /// Makes one attempt to acquire the lock, without waiting for its holder; see [`Redlock::try_acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::try_acquire`].
    pub fn try_acquire(self) -> impl Future<Output = Result<TryAcquire, AcquireError>> + Send {
        let request = self.wait(Wait::None).mark_used();
        Box::pin(async move {
            let span = request.span();
            match request.run_acquire().instrument(span).await? {
                Ok(guard) => Ok(TryAcquire::Acquired(guard)),
                Err(failed) => request.refusal(failed).map(TryAcquire::Held),
            }
        })
    }

    /// Returns details about the holder if the attempt failed because another client holds the lock. Any other failure
    /// is returned as an error.
    fn refusal(&self, not_acquired: NotAcquired) -> Result<Refusal, AcquireError> {
        match self.acquire_error(&not_acquired) {
            AcquireError::HeldByOther(error_details) => Ok(Refusal {
                ttl_left: not_acquired
                    .round
                    .and_then(|round| round.answers().ttl_left()),
                held_here: error_details.held_here,
                foreign: error_details.foreign,
                note: error_details.note,
                reports: error_details.reports,
            }),
            error => Err(error),
        }
    }

    /// Runs `body` under this lock; see [`Redlock::scope`].
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::scope`].
    pub fn scope<T>(
        self,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> impl Future<Output = Result<T, ScopeError<T>>> {
        let acquire = self.acquire();
        async move {
            let guard = acquire.await?;
            let outcome = guard.while_held(body).await;
            guard.release().await;
            outcome.map_err(|(cause, value)| ScopeError::Lost { cause, value })
        }
    }

    /// Runs `body`, which returns a `Result`, under this lock; see [`Redlock::try_scope`].
    ///
    /// # Errors
    ///
    /// Those of [`Redlock::try_scope`].
    pub fn try_scope<T, E: From<ScopeError>>(
        self,
        body: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
    ) -> impl Future<Output = Result<T, E>> {
        let scope = self.scope(body);
        async move {
            scope
                .await
                .unwrap_or_else(|error| Err(error.into_single_error()))
        }
    }

    /// Marks this request as a request of the module `blocking`.
    #[cfg(feature = "blocking")]
    pub(crate) fn blocking(mut self) -> Self {
        self.blocking = true;
        self
    }

    fn mark_used(mut self) -> Self {
        *self.is_used.get_mut() = true;
        self
    }

    fn check(&self) -> Result<(), AcquireError> {
        let core = &self.core;
        if core.coordinator.process.is_not_current() {
            return Err(AcquireError::Forked);
        }
        if self.kind != Kind::RawKey {
            check_resource(&core.coordinator.prefix, &self.resource)?;
        }
        self.kind.check(&core.coordinator)?;
        core.options.check_ttl(self.ttl)?;
        check_note(&self.note)?;
        if let Some(max_hold) = self.max_hold {
            check_max_hold(max_hold)?;
        }
        Ok(())
    }

    fn target(&self) -> LockTarget {
        let coordinator = &self.core.coordinator;
        self.kind.target(coordinator, &self.resource)
    }

    /// Acquires the lock as a reader. Several readers can hold the lock at the same time, but not together with a
    /// writer. Readers and writers are served in order of arrival, so neither readers nor writers starve.
    ///
    /// A reader's [`fencing_token`](LockGuard::fencing_token) is larger than that of every earlier writer and smaller
    /// than that of every later writer. Several readers can have the same token. The protected system must refuse these
    /// operations:
    ///
    /// - a **write** if its token is below the largest token of all earlier reads and writes;
    /// - a **read** if its token is below the largest token of all earlier writes. Earlier reads do not matter.
    ///
    /// A request for several resources, for a semaphore or with an owner cannot be shared: its acquire returns
    /// [`InvalidResource::NoReaders`](crate::InvalidResource::NoReaders). The rules are in `docs/protocol.md`,
    /// "Several resources, readers, owners, semaphores".
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let reading = redlock.lock("doc").shared().acquire().await?;
    /// let another = redlock.lock("doc").shared().acquire().await?;
    /// # drop((reading, another));
    /// # Ok(()) }
    /// ```
    pub fn shared(mut self) -> Self {
        let kind = std::mem::replace(&mut self.kind, Kind::Exclusive);
        self.kind = kind.shared();
        self
    }

    pub(crate) fn of_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    fn span(&self) -> tracing::Span {
        tracing::debug_span!(
            "acquire",
            resource = %String::from_utf8_lossy(&self.resource),
            attempts = tracing::field::Empty,
            ahead = tracing::field::Empty,
            answering = tracing::field::Empty,
            outcome = tracing::field::Empty,
            fencing_token = tracing::field::Empty,
        )
    }

    async fn run_acquire(&self) -> Result<Result<LockGuard, NotAcquired>, AcquireError> {
        self.check()?;
        let core = &self.core;
        let started_at = core.coordinator.now();
        let target = self.target();
        let mut acquire_loop = AcquireLoop {
            core,
            target,
            reservation: None,
            ttl: self.ttl,
            tries_once: self.wait == Wait::None,
            has_note: self.note.is_some(),
            started_at,
            deadline: self.wait.deadline(started_at),
            observer: self.observer.as_ref(),
        };
        let result = acquire_loop.run().await;
        let failure = result.as_ref().err().map(|failed| failed.failure);
        metrics::record_acquire(failure, || {
            core.coordinator.now().saturating_since(started_at)
        });
        Ok(result
            .map(|acquired| self.guard_for(acquired))
            .inspect_err(|failed| {
                let span = tracing::Span::current();
                span.record("attempts", failed.attempts)
                    .record("outcome", failed.failure.as_str());
            }))
    }

    fn guard_for(&self, acquired: Acquired) -> LockGuard {
        let core = &self.core;
        let Acquired {
            won,
            place,
            reservation,
            attempts,
        } = acquired;
        let span = tracing::Span::current();
        span.record("attempts", attempts)
            .record("outcome", "acquired");
        if let Some(token) = won.fencing {
            span.record("fencing_token", token);
        }
        tracing::debug!(fencing_token = won.fencing, "lock acquired");
        let started_at = won.started_at;
        let term = won.fencing.filter(|_| self.announce);
        let mut note_text = core.options.note_text(&self.note);
        if let Some(term) = term {
            note_text = Some(note::with_term(
                &note_text.unwrap_or_else(note::note_without_holder),
                term,
            ));
        }
        let hold_options = HoldOptions {
            ttl: self.ttl,
            max_hold: self.max_hold,
            renews: self.renew,
            note_text,
        };
        let held = Held::new(won, hold_options, &core.local_queues, place);
        // End the reservation of the semaphore slot only now that `held` has recorded the slot. Before that, another
        // task could have asked for the same slot.
        drop(reservation);
        if self.announce {
            let runtime = &core.coordinator.runtime;
            let note = held.note(true, runtime.now(), runtime.wall_micros());
            core.coordinator.note(note.into_iter().collect());
        }
        let id = ScheduleId::default();
        renewal::schedule_renewals(&core.renewal, &core.coordinator, &held, &id, started_at);
        LockGuard::new(held, core.clone(), id)
    }

    fn acquire_error(&self, not_acquired: &NotAcquired) -> AcquireError {
        let coordinator = &self.core.coordinator;
        let reports = not_acquired
            .round
            .as_ref()
            .map(|round| round.answers().reports(coordinator.names()));
        let failed_acquire = FailedAcquire {
            resource: String::from_utf8_lossy(&self.resource).into_owned(),
            waited: not_acquired.waited,
            attempts: not_acquired.attempts,
            reports: reports.unwrap_or_default(),
            held_here: not_acquired.held_here,
            foreign: not_acquired.foreign,
            note: not_acquired.note.clone().map(Box::new),
            majority: coordinator.quorum,
        };
        match not_acquired.failure {
            Failure::Contention => AcquireError::HeldByOther(failed_acquire),
            Failure::NotJoinable => AcquireError::NotJoinable(failed_acquire),
            Failure::Outage if failed_acquire.is_outdated() => {
                AcquireError::OtherMasters(failed_acquire)
            }
            Failure::Outage => AcquireError::NoQuorum(failed_acquire),
            Failure::Late => AcquireError::TooLate(failed_acquire),
        }
    }
}
