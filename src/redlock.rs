//! The lock factory and its verbs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tracing::Instrument;

use crate::acquire::acquire_loop::{AcquireLoop, Acquired, NotAcquired, Observer};
use crate::acquire::kind::Kind;
use crate::error::{AcquireError, Missed, ScopeError};
use crate::hold::core::Core;
use crate::hold::guard::LockGuard;
use crate::hold::held::{Held, Holding};
use crate::hold::renewal;
use crate::hold::schedule::{Renewal, ScheduleId};
use crate::metrics;
use crate::node::inspection::Inspection;
use crate::node::note::{self, NoteText};
use crate::node::{Fault, Hold, KeyState, NodeName, Note, Phase, Request, Scope, Subscriber};
use crate::options::{Options, check_max_hold, check_note};
use crate::outcome::Failure;
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::report::NodeReport;
use crate::resource::{InvalidResource, check_resource};
use crate::rounds::coordinator::Coordinator;
use crate::rounds::wanted::Wanted;
use crate::settings::Wait;
use crate::waiting::Waiting;
use crate::waiting::local_line::LocalLines;

/// Locks over one set of masters. Cheap to clone; share one per process, so that all its locks
/// share connections and the renewal task.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let redlock = quorate::Redlock::builder()
///     .masters(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
///     .build()?;
/// let guard = redlock.acquire("invoice-42").await?;
/// println!("mine, with fencing token {:?}", guard.fencing_token());
/// guard.release().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Redlock {
    pub(crate) core: Arc<Core>,
}

/// What [`Redlock::try_acquire`] found.
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub enum TryAcquire {
    /// The lock is ours.
    Acquired(LockGuard),
    /// Another holder has it: an answer, not an error.
    Held(Refusal),
}

impl TryAcquire {
    /// The guard, if the lock is ours.
    pub fn acquired(self) -> Option<LockGuard> {
        match self {
            Self::Acquired(guard) => Some(guard),
            Self::Held(_) => None,
        }
    }
}

/// Another holder stands in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The longest that any master will keep the holder's key without a renewal, where one said.
    pub ttl_left: Option<Duration>,
    /// What each master said; empty where this process itself was in the way.
    pub reports: Vec<NodeReport>,
    /// Whether this very [`Redlock`] holds it. A lock is not re-entrant.
    pub held_here: bool,
    /// What the holder says of itself, where it did.
    pub note: Option<Box<Note>>,
}

impl Redlock {
    pub(crate) fn new(coordinator: Coordinator, options: Options) -> Self {
        let phases: Vec<_> = Phase::all().map(Phase::as_str).collect();
        let faults: Vec<_> = Fault::all().map(|fault| fault.kind()).collect();
        let names = coordinator.names().map(NodeName::shared);
        metrics::register(names, &phases, &faults);
        let lines = LocalLines::new();
        if options.fair {
            for (node, master) in coordinator.nodes().iter().enumerate() {
                let process = options.process.clone();
                let sink = lines.clone();
                master.subscribe(Subscriber {
                    process,
                    node,
                    sink,
                });
            }
        }
        Self {
            core: Arc::new(Core {
                coordinator: Arc::new(coordinator),
                renewal: Renewal::new(),
                lines,
                waiters: AtomicU64::new(0),
                options,
            }),
        }
    }

    /// Locks over `masters` masters in memory: for tests of your own code, without a server.
    ///
    /// # Panics
    ///
    /// With no master, or more than 64.
    #[cfg(any(test, feature = "testing"))]
    pub fn in_memory(masters: usize) -> Self {
        Self::builder()
            .in_memory(masters)
            .build()
            .expect("between 1 and 64 masters")
    }

    /// Takes the lock on `resource`, waiting as the builder's `wait` allows.
    ///
    /// A lock is **not re-entrant**: a task that holds it and acquires it again waits for itself,
    /// until the wait is over; with [`Wait::Forever`] for ever. The error then says that this process
    /// holds it ([`Missed::held_here`]), and so does [`Waiting::held_here`] meanwhile. Hand the guard
    /// on instead.
    ///
    /// # Errors
    ///
    /// [`AcquireError`]; contention, outage and lateness are told apart.
    ///
    /// # Cancel safety
    ///
    /// Dropped at any point, it leaves nothing that a background release does not remove.
    pub async fn acquire(&self, resource: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.lock(resource).acquire().await
    }

    /// One attempt, without waiting. That another has it is data and not an error. What a lost
    /// attempt got of a minority is given back in the background: a program that ends right after
    /// it calls [`flush`](Self::flush) first.
    ///
    /// # Errors
    ///
    /// [`AcquireError::NoQuorum`] when too few masters answered to say who holds it,
    /// [`AcquireError::TooLate`] and the errors of bad input.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(
        &self,
        resource: impl AsRef<[u8]>,
    ) -> Result<TryAcquire, AcquireError> {
        self.lock(resource).try_acquire().await
    }

    /// A lock with options of its own. It is not re-entrant, whatever the options: see
    /// [`acquire`](Self::acquire).
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
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> LockRequest<'_> {
        let options = &self.core.options;
        LockRequest {
            redlock: self,
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

    /// Several resources in one lock: all or nothing, one guard, and one fencing number, larger than that
    /// of every earlier holder of each of them. No deadlock, in whatever order who names them; at most
    /// 16, none twice. While it waits for one of them nobody else gets the others: that is the price of
    /// its turn.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let both = redlock.lock_all(["account:1", "account:2"]).acquire().await?;
    /// println!("a transfer under number {:?}", both.fencing_token());
    /// # Ok(()) }
    /// ```
    pub fn lock_all<R: AsRef<[u8]>>(
        &self,
        resources: impl IntoIterator<Item = R>,
    ) -> LockRequest<'_> {
        let all = resources.into_iter().map(|one| one.as_ref().into());
        let all: Box<[Box<[u8]>]> = all.collect();
        let first = all.first().cloned().unwrap_or_default();
        self.lock(first).of_kind(Kind::Several(all))
    }

    /// One of `permits` permits of the semaphore `name`: so many holders at most, first come, first served.
    ///
    /// Each permit is a named slot, and each slot a lock of its own, with a fencing number of its own:
    /// [`LockGuard::slot`] says which. What is protected keeps the largest number **per slot**. How many there
    /// are is said by the callers: while they differ, and until the last holder of a withdrawn slot has gone, the
    /// bound is the largest number in use. A semaphore has other keys than the plain lock of its name, also
    /// one with a single permit. The rules: `docs/protocol.md`,
    /// "Several resources, readers, owners, semaphores".
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let permit = redlock.semaphore("api", 5).acquire().await?;
    /// println!("slot {:?}, number {:?}", permit.slot(), permit.fencing_token());
    /// # Ok(()) }
    /// ```
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: usize) -> LockRequest<'_> {
        self.lock(name).of_kind(Kind::Permit(permits))
    }

    /// Runs `body` while the lock is held: takes the lock, drops the body when the lock is lost,
    /// releases at the end, and returns the body's value if the lock was held all the time.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::ScopeError<i32>> {
    /// let sum = redlock
    ///     .scope("report", async |guard| {
    ///         println!("fencing token {:?}", guard.fencing_token());
    ///         20 + 22
    ///     })
    ///     .await?;
    /// assert_eq!(sum, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// A helper of your own around it takes a body that hands its future over in a box; then what the helper returns
    /// can be spawned:
    ///
    /// ```
    /// use futures::future::BoxFuture;
    /// use quorate::{LockGuard, Redlock, ScopeError};
    ///
    /// fn for_tenant<'a, T: Send + 'a>(
    ///     redlock: &'a Redlock,
    ///     tenant: &'a str,
    ///     body: impl for<'g> FnOnce(&'g LockGuard) -> BoxFuture<'g, T> + Send + 'a,
    /// ) -> impl Future<Output = Result<T, ScopeError<T>>> + Send + 'a {
    ///     let resource = format!("tenant:{tenant}");
    ///     let body = async move |guard: &LockGuard| body(guard).await;
    ///     async move { redlock.scope(resource, body).await }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ScopeError::NotAcquired`] before the body has started, [`ScopeError::Lost`] when the lock ended
    /// before the body did. A body that is waiting is dropped then. A body that runs to its end all the same, because it
    /// blocked its thread, or because the process stood still, leaves its value in the error
    /// ([`ScopeError::into_value`]): another client may have held the lock meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the body and releases in the background.
    pub async fn scope<T>(
        &self,
        resource: impl AsRef<[u8]>,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<T, ScopeError<T>> {
        self.lock(resource).scope(body).await
    }

    /// Runs a body that may fail while the lock is held, with one error for both: what the body fails with comes
    /// back as it is, and that the lock was not acquired, or was lost, is made into the body's error by its
    /// `From<ScopeError>`. So the caller tells them apart by its own error type: by a variant of an enum, or with
    /// `error.is::<ScopeError>()` where that is a `Box<dyn Error>` or the like.
    ///
    /// ```
    /// use quorate::ScopeError;
    ///
    /// #[derive(Debug)]
    /// enum ReportError {
    ///     Lock(ScopeError),
    ///     Disk(std::io::Error),
    /// }
    ///
    /// impl From<ScopeError> for ReportError {
    ///     fn from(error: ScopeError) -> Self {
    ///         Self::Lock(error)
    ///     }
    /// }
    ///
    /// # async fn write_report(fence: Option<u64>) -> std::io::Result<u64> { Ok(fence.unwrap_or(0)) }
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), ReportError> {
    /// let bytes = redlock
    ///     .try_scope("report", async |guard| {
    ///         write_report(guard.fencing_token()).await.map_err(ReportError::Disk)
    ///     })
    ///     .await?;
    /// # let _ = bytes;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`scope`](Self::scope), and what the body fails with, which comes first where the lock ended as well. The
    /// value of a body that outlived the lock is dropped: [`scope`](Self::scope) keeps it.
    ///
    /// # Cancel safety
    ///
    /// As [`scope`](Self::scope).
    pub async fn try_scope<T, E: From<ScopeError>>(
        &self,
        resource: impl AsRef<[u8]>,
        body: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.lock(resource).try_scope(body).await
    }

    /// What every master knows of `resource`, without touching it. A master that does not vote, because the restart
    /// guard keeps it out, is not asked: it may have forgotten the lock.
    ///
    /// # Errors
    ///
    /// Only for a resource name that cannot be locked; faults of masters are part of the answer.
    pub async fn status(&self, resource: impl AsRef<[u8]>) -> Result<Status, InvalidResource> {
        let key = self.key(resource.as_ref())?;
        Ok(self.look(Request::Look { key }).await)
    }

    /// Deletes the lock on `resource` on every master, whoever holds it, and says what was
    /// there. An operator's last resort: the holder is told only by its next renewal, and until
    /// then two may believe to hold it. The fencing counter is kept.
    ///
    /// # Errors
    ///
    /// Only for a resource name that cannot be locked; faults of masters are part of the answer.
    pub async fn break_lock(&self, resource: impl AsRef<[u8]>) -> Result<Status, InvalidResource> {
        let key = self.key(resource.as_ref())?;
        Ok(self.look(Request::Break { key }).await)
    }

    /// Looks at every master as a lock meets it: whether it can be reached and used, what it is and
    /// how it is set up, which rights its user lacks, how far its clock is off, and whether the
    /// restart guard counts its votes. All masters are asked at once, each over a connection of its own that
    /// is made exactly as those of the locks and ends with the inspection. Nothing on the
    /// masters is changed.
    ///
    /// Connecting and the questions may take the connect timeout each, and the clock of a master
    /// is read within the node timeout.
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) {
    /// for master in redlock.inspect().await {
    ///     if let Some(fault) = &master.fault {
    ///         eprintln!("{}: {fault}", master.node);
    ///     }
    ///     for right in &master.missing {
    ///         eprintln!("{}: its user may not use {right}; grant {}", master.node, right.rule());
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping it closes its connections.
    pub async fn inspect(&self) -> Vec<Inspection> {
        let coordinator = &self.core.coordinator;
        let mut word = [0; 16];
        coordinator.runtime.random(&mut word);
        let scope = Scope {
            prefix: coordinator.prefix.clone(),
            fencing: coordinator.fencing,
            fair: self.core.options.fair,
            unheard_of: format!("{:032x}", u128::from_be_bytes(word)).into(),
        };
        let inspections = coordinator.nodes().iter().map(|node| node.inspect(&scope));
        futures::future::join_all(inspections).await
    }

    /// Waits until nothing that was sent to any master is under way any more. For programs that are
    /// about to end: call it before the runtime is dropped, on **every** way out, and bound it with
    /// a timeout.
    ///
    /// What is given back is often given back in the background: the lock of a guard that was dropped,
    /// what a failed [`try_acquire`](Self::try_acquire) got of a minority, the place in line of a wait
    /// that ended or was dropped. A runtime that is dropped right behind them takes what has not been
    /// sent yet along, and then the keys stay until they expire and block everybody meanwhile. A node
    /// timeout is enough for all masters that answer. Releases kept for a master that cannot be reached
    /// are not waited for.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let held = redlock.try_acquire("nightly").await?.acquired();
    /// // ... and when all is done, whether it was ours or not:
    /// drop(held);
    /// let _ = tokio::time::timeout(Duration::from_millis(500), redlock.flush()).await;
    /// # Ok(()) }
    /// ```
    pub async fn flush(&self) {
        let idle = self.core.coordinator.nodes().iter().map(|node| node.idle());
        futures::future::join_all(idle).await;
    }

    /// The masters' names, in the order of the builder, without credentials.
    pub fn masters(&self) -> impl Iterator<Item = &NodeName> {
        self.core.coordinator.names()
    }

    pub(crate) fn key(&self, resource: &[u8]) -> Result<Arc<[u8]>, InvalidResource> {
        let prefix = &self.core.coordinator.prefix;
        check_resource(prefix, resource)?;
        Ok(self.core.coordinator.key(resource))
    }

    pub(crate) async fn look(&self, request: Request) -> Status {
        let coordinator = &self.core.coordinator;
        let answers = coordinator.look(request).await;
        let nodes = coordinator
            .names()
            .zip(answers)
            .map(|(node, (state, latency))| NodeStatus {
                node: node.clone(),
                state,
                latency,
            })
            .collect();
        Status {
            nodes,
            quorum: coordinator.quorum.size(),
            majority: coordinator.quorum,
        }
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("masters", &self.masters().collect::<Vec<_>>())
            .field("options", &self.core.options)
            .finish_non_exhaustive()
    }
}

/// One lock with its options; see [`Redlock::lock`].
#[must_use = "a lock request does nothing until it is awaited with acquire()"]
pub struct LockRequest<'a> {
    redlock: &'a Redlock,
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

impl fmt::Debug for LockRequest<'_> {
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

impl LockRequest<'_> {
    /// How long the masters keep the lock without a renewal. Default: the builder's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How long to wait for it. Default: the builder's.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// The longest it is held, renewals included. Default: the builder's.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Whether it is renewed in the background. Default: it is. Without that it is a fixed lease: it ends after one
    /// ttl, unless extended by hand.
    pub fn renewal(mut self, renewal: bool) -> Self {
        self.renew = renewal;
        self
    }

    /// What those who look are told of the holder, beside host, pid, the name of the process and since
    /// when: a text of at most 1 KiB, or `None` for no note at all. Default: the builder's.
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

    /// Writes the note at once, and wakes those who watch for a new leader.
    pub(crate) fn announced(mut self) -> Self {
        self.announce = true;
        self
    }

    /// Calls `observer` after every missed attempt, and once when it takes a place behind others
    /// of its own process: for progress lines and metrics. It must not block.
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

    /// Takes the lock; see [`Redlock::acquire`].
    ///
    /// # Errors
    ///
    /// As [`Redlock::acquire`].
    pub async fn acquire(self) -> Result<LockGuard, AcquireError> {
        let span = self.span();
        self.run().instrument(span).await
    }

    /// One attempt; see [`Redlock::try_acquire`].
    ///
    /// # Errors
    ///
    /// As [`Redlock::try_acquire`].
    pub async fn try_acquire(mut self) -> Result<TryAcquire, AcquireError> {
        self.wait = Wait::None;
        let span = self.span();
        let lost = match self.attempts().instrument(span).await? {
            Ok(guard) => return Ok(TryAcquire::Acquired(guard)),
            Err(lost) => lost,
        };
        match self.error(&lost) {
            AcquireError::HeldByOther(missed) => Ok(TryAcquire::Held(Refusal {
                ttl_left: lost.round.and_then(|round| round.answers().ttl_left()),
                held_here: missed.held_here,
                note: missed.note,
                reports: missed.reports,
            })),
            error => Err(error),
        }
    }

    /// Runs `body` under this lock; see [`Redlock::scope`].
    ///
    /// # Errors
    ///
    /// As [`Redlock::scope`].
    pub async fn scope<T>(
        self,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<T, ScopeError<T>> {
        let guard = self.acquire().await?;
        let outcome = guard.while_held(body).await;
        guard.release().await;
        outcome.map_err(|(cause, value)| ScopeError::Lost { cause, value })
    }

    /// Runs a body that may fail under this lock; see [`Redlock::try_scope`].
    ///
    /// # Errors
    ///
    /// As [`Redlock::try_scope`].
    pub async fn try_scope<T, E: From<ScopeError>>(
        self,
        body: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.scope(body)
            .await
            .unwrap_or_else(|error| Err(error.into_one()))
    }

    fn check(&self) -> Result<(), AcquireError> {
        let core = &self.redlock.core;
        if self.kind != Kind::Key {
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

    fn wanted(&self) -> Wanted {
        let coordinator = &self.redlock.core.coordinator;
        self.kind.wanted(coordinator, &self.resource)
    }

    /// Holds it as a reader: beside other readers, and with no writer beside them. By arrival, and
    /// neighbouring readers enter together, so that neither side starves.
    ///
    /// Its [`fencing_token`](LockGuard::fencing_token) is larger than that of every earlier writer and smaller
    /// than that of every later one; readers may share one. What is protected refuses a **write** below the
    /// largest number it has seen (reads count), and a **read** below the largest write; never a read for a
    /// larger read.
    ///
    /// It costs what a lock costs: two messages a master. It is for long reads, not for a cache that is asked
    /// every microsecond. One resource has readers: with several in one lock, a semaphore or an owner this is an
    /// error ([`InvalidResource::NoReaders`]). The rules: `docs/protocol.md`,
    /// "Several resources, readers, owners, semaphores".
    ///
    /// ```no_run
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let reading = redlock.lock("doc").shared().acquire().await?;
    /// let beside = redlock.lock("doc").shared().acquire().await?;
    /// # drop((reading, beside));
    /// # Ok(()) }
    /// ```
    pub fn shared(mut self) -> Self {
        self.kind = self.kind.shared();
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

    async fn run(self) -> Result<LockGuard, AcquireError> {
        self.attempts().await?.map_err(|missed| self.error(&missed))
    }

    async fn attempts(&self) -> Result<Result<LockGuard, NotAcquired>, AcquireError> {
        self.check()?;
        let core = &self.redlock.core;
        let began = core.coordinator.now();
        let wanted = self.wanted();
        let attempts = AcquireLoop {
            core,
            wanted,
            asked: None,
            ttl: self.ttl,
            once: self.wait == Wait::None,
            began,
            deadline: self.wait.deadline(began),
            observer: self.observer.as_ref(),
        };
        let outcome = attempts.run().await;
        let failure = outcome.as_ref().err().map(|missed| missed.failure);
        metrics::acquired(failure, || core.coordinator.now().saturating_since(began));
        Ok(outcome
            .map(|acquired| self.won(acquired))
            .inspect_err(|missed| {
                let span = tracing::Span::current();
                span.record("attempts", missed.attempts)
                    .record("outcome", missed.failure.as_str());
            }))
    }

    fn won(&self, acquired: Acquired) -> LockGuard {
        let core = &self.redlock.core;
        let Acquired {
            won,
            place,
            asked,
            attempts,
        } = acquired;
        let span = tracing::Span::current();
        span.record("attempts", attempts)
            .record("outcome", "acquired");
        if let Some(token) = won.fencing {
            span.record("fencing_token", token);
        }
        tracing::debug!(fencing_token = won.fencing, "lock acquired");
        let started = won.started;
        let leads = won.fencing.filter(|_| self.announce);
        let mut says = core.options.says(&self.note);
        if let Some(term) = leads {
            says = Some(note::leads(&says.unwrap_or_else(note::unsaid), term));
        }
        let holding = Holding {
            ttl: self.ttl,
            max_hold: self.max_hold,
            renews: self.renew,
            says,
        };
        let held = Held::new(won, holding, &core.lines, place);
        // Held is noted, so that no other task asks for its slot in between.
        drop(asked);
        if self.announce {
            let runtime = &core.coordinator.runtime;
            let note = held.note(true, runtime.now(), runtime.wall_micros());
            core.coordinator.note(note.into_iter().collect());
        }
        let id = ScheduleId::default();
        renewal::watch(&core.renewal, &core.coordinator, &held, &id, started);
        LockGuard::new(held, core.clone(), id)
    }

    fn error(&self, ended: &NotAcquired) -> AcquireError {
        let coordinator = &self.redlock.core.coordinator;
        let reports = ended
            .round
            .as_ref()
            .map(|round| round.answers().reports(coordinator.names()));
        let missed = Missed {
            resource: String::from_utf8_lossy(&self.resource).into_owned(),
            waited: ended.waited,
            attempts: ended.attempts,
            reports: reports.unwrap_or_default(),
            held_here: ended.held_here,
            note: ended.note.clone().map(Box::new),
            majority: coordinator.quorum,
        };
        match ended.failure {
            Failure::Contention => AcquireError::HeldByOther(missed),
            Failure::NotJoinable => AcquireError::NotJoinable(missed),
            Failure::Outage if missed.is_outdated() => AcquireError::OtherMasters(missed),
            Failure::Outage => AcquireError::NoQuorum(missed),
            Failure::Late => AcquireError::TooLate(missed),
        }
    }
}

/// What the masters know of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Each master, in the order of the builder.
    pub nodes: Vec<NodeStatus>,
    /// How many masters make a majority; while masters are replaced, the fewest that make one of each set.
    pub quorum: usize,
    /// And which.
    majority: Quorum,
}

/// What one master knows of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The master's address, without credentials.
    pub node: NodeName,
    /// The lock there, or why it did not say.
    pub state: Result<KeyState, Fault>,
    /// How long the answer took.
    pub latency: Duration,
}

/// What the masters' answers come to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatusVerdict {
    /// A majority names the same holder.
    Held(Vec<u8>),
    /// A majority answered, and so many are free that somebody could take it.
    Free,
    /// A majority answered, but keys of several holders, or of one without a majority, are left.
    Split,
    /// Fewer than a majority answered. A master that restarted and may have forgotten the lock has not answered
    /// ([`Fault::Quarantined`]).
    Unknown,
}

impl Status {
    /// What the answers come to over the quorum.
    pub fn verdict(&self) -> StatusVerdict {
        if !self.majority.is_met_by(self.those(|_| true)) {
            return StatusVerdict::Unknown;
        }
        let known = self.nodes.iter();
        let known = known.filter_map(|node| node.state.as_ref().ok());
        let mut holders = known.filter_map(|state| state.holder.as_deref());
        // Of one set, where there are two: its holder may know no other.
        let held_by = |value: &[u8]| {
            let those = self.those(|state| state.holder.as_deref() == Some(value));
            self.majority.is_met_somewhere(those)
        };
        match holders.find(|value| held_by(value)) {
            Some(value) => StatusVerdict::Held(value.to_vec()),
            None if self
                .majority
                .is_met_by(self.those(|state| state.holder.is_none())) =>
            {
                StatusVerdict::Free
            }
            None => StatusVerdict::Split,
        }
    }

    /// The masters that answered such a state.
    fn those(&self, such: impl Fn(&KeyState) -> bool) -> MasterSet {
        let nodes = self.nodes.iter().enumerate();
        let those = nodes.filter(|(_, node)| node.state.as_ref().is_ok_and(&such));
        those.map(|(node, _)| node).collect()
    }

    /// Whether any master has a holder.
    pub(crate) fn is_held_anywhere(&self) -> bool {
        let mut known = self
            .nodes
            .iter()
            .filter_map(|node| node.state.as_ref().ok());
        known.any(|state| state.holder.is_some())
    }

    /// Where readers hold it, or an owner does: every hold that a majority of the masters names, with its note;
    /// the one that lives on the longest comes last. How long it lives is the longest that any master says.
    pub fn holds(&self) -> Vec<Hold> {
        let known = self.nodes.iter().enumerate();
        let known = known.filter_map(|(node, said)| Some((node, said.state.as_ref().ok()?)));
        let mut holds: Vec<(MasterSet, Hold)> = Vec::new();
        let each = known.flat_map(|(node, state)| state.holds.iter().map(move |hold| (node, hold)));
        for (node, hold) in each {
            match holds
                .iter_mut()
                .find(|(_, known)| known.value == hold.value)
            {
                Some((masters, known)) => {
                    masters.add(node);
                    known.lives = known.lives.max(hold.lives);
                    known.note = known.note.take().or_else(|| hold.note.clone());
                }
                None => holds.push((MasterSet::one(node), hold.clone())),
            }
        }
        holds.retain(|(masters, _)| self.majority.is_met_somewhere(*masters));
        holds.sort_by(|(_, a), (_, b)| (a.lives, &a.value).cmp(&(b.lives, &b.value)));
        holds.into_iter().map(|(_, hold)| hold).collect()
    }

    /// What the holder that a majority names says of itself, where it did.
    pub fn note(&self) -> Option<&Note> {
        let StatusVerdict::Held(holder) = self.verdict() else {
            return None;
        };
        let known = self
            .nodes
            .iter()
            .filter_map(|node| node.state.as_ref().ok());
        known
            .filter(|state| state.holder.as_ref() == Some(&holder))
            .find_map(|state| state.note.as_ref())
    }
}
