//! [`Redlock`], which acquires locks, and its operations.

pub(crate) mod request;
pub(crate) mod status;
pub(crate) mod tried;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use self::status::{NodeStatus, Status};
use self::tried::TryAcquire;
use crate::error::{AcquireError, ScopeError};
use crate::hold::core::Core;
use crate::hold::guard::LockGuard;
use crate::hold::schedule::Renewal;
use crate::metrics;
use crate::node::inspection::Inspection;
use crate::node::{Fault, NodeName, Phase, Request, Scope, Subscriber};
use crate::options::Options;
use crate::resource::{InvalidResource, check_resource};
use crate::rounds::coordinator::Coordinator;
use crate::waiting::local_line::LocalLines;

/// Locks over one set of masters. Cheap to clone; share one `Redlock` per process, so that all locks of the process
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
///
/// # Runtimes
///
/// The connections and the renewal task run in the tokio runtime of the caller that needed them first. Several runtimes
/// can share one `Redlock`, for example a `static` one in tests that have a runtime each. If a runtime ends or runs
/// nothing, a background thread takes over its tasks: renewals of locks that are still held, releases, and requests
/// that callers in other runtimes have made. The background thread is started when it is first needed, and ends with
/// the process.
///
/// - When a runtime is shut down, the background thread takes over its tasks immediately.
/// - When a runtime with one thread (`current_thread`) runs nothing, because no caller waits in its `block_on` or
///   because a task blocks its thread, the background thread takes over its tasks within about a second. So a lock
///   whose ttl is 3 s or more is renewed even then. In a runtime with several threads, at least one thread must not be
///   blocked.
/// - With masters in memory (feature `testing`), and while the clock of a runtime is paused (`tokio::time::pause`), the
///   tasks stay in the runtime until it is shut down, because other runtimes have other clocks.
/// - Without a tokio runtime, any executor can poll the futures. The background thread then runs the connections,
///   timers and renewals.
///
/// A request that was already sent when its connection was taken over fails with "connection lost (the connection to
/// the master was shut down)"; an acquire that waits asks the masters again.
///
/// # Panics
///
/// The methods panic if the caller's tokio runtime has no timers or no I/O (`enable_all` turns on both). Without a
/// tokio runtime they panic if the operating system refuses to start the background thread.
#[derive(Clone)]
pub struct Redlock {
    pub(crate) core: Arc<Core>,
}

impl Redlock {
    pub(crate) fn new(coordinator: Coordinator, options: Options) -> Self {
        let phases: Vec<_> = Phase::all().map(Phase::as_str).collect();
        let mut faults: Vec<_> = Fault::all().map(|fault| fault.kind()).collect();
        faults.dedup();
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

    /// Locks over masters in memory, to test your own code without a server.
    ///
    /// # Panics
    ///
    /// If `masters` is 0 or above 64.
    #[cfg(any(test, feature = "testing"))]
    pub fn in_memory(masters: usize) -> Self {
        Self::builder()
            .in_memory(masters)
            .build()
            .expect("the number of masters must be 1 to 64")
    }

    /// Takes the lock on `resource`, and waits for it as long as the builder's `wait` allows (default: 30 s).
    ///
    /// Locks are **not re-entrant**: a task that acquires a lock which it already holds waits for itself until the wait
    /// ends, and with [`Wait::Forever`](crate::Wait::Forever) it waits forever.
    /// [`Missed::held_here`](crate::Missed::held_here) in the error, and
    /// [`Waiting::held_here`](crate::Waiting::held_here) during the wait, show that this process holds the lock.
    /// Instead of acquiring again, pass the guard to the code that needs the lock.
    ///
    /// # Errors
    ///
    /// [`AcquireError`], which distinguishes contention, outage and lateness.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any point: keys that were already set are released in the background.
    pub async fn acquire(&self, resource: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.lock(resource).acquire().await
    }

    /// Makes one attempt to take the lock, and does not wait for another holder's release. If another client holds the
    /// lock, the result is [`TryAcquire::Held`](crate::TryAcquire::Held), not an error.
    ///
    /// If only a minority of the masters granted the lock, their keys are released in the background. A program that
    /// ends right after the call must call [`flush`](Self::flush) first.
    ///
    /// # Errors
    ///
    /// [`AcquireError::NoQuorum`] if too few masters answered to decide whether the lock is held,
    /// [`AcquireError::TooLate`] if a majority granted it too slowly, and the errors of invalid input.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any point: keys that were already set are released in the background.
    pub async fn try_acquire(
        &self,
        resource: impl AsRef<[u8]>,
    ) -> Result<TryAcquire, AcquireError> {
        self.lock(resource).try_acquire().await
    }

    /// Takes the lock, runs `body`, and releases the lock. Returns the body's value if the lock was held all the time;
    /// if the lock is lost, the body is dropped.
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
    /// A helper function around `scope` should take a body that returns a boxed future. The future that the helper
    /// returns can then be spawned as a task:
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
    /// [`ScopeError::NotAcquired`] if the lock was not acquired, so that the body has not started; [`ScopeError::Lost`]
    /// if the lock ended before the body did. A body that is waiting at that moment is dropped. A body that blocks its
    /// thread runs to its end, and so may a body whose process was paused. The error then contains the body's value
    /// ([`ScopeError::into_value`]), and another client may have held the lock meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the body and releases the lock in the background.
    pub async fn scope<T>(
        &self,
        resource: impl AsRef<[u8]>,
        body: impl AsyncFnOnce(&LockGuard) -> T,
    ) -> Result<T, ScopeError<T>> {
        self.lock(resource).scope(body).await
    }

    /// Takes the lock and runs a body that returns a `Result`. All errors have the body's error type. An error of the
    /// body is returned unchanged. An error of the lock (not acquired, or lost) is converted with `From<ScopeError>`.
    /// The caller recognises a lock error by a variant of its own error enum, or with `error.is::<ScopeError>()` if the
    /// error type is `Box<dyn Error>`.
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
    /// # async fn write_report(fence: Option<u64>) -> std::io::Result<u64> { fence.ok_or(std::io::ErrorKind::Other.into()) }
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
    /// The body's own error, even if the lock ended as well; otherwise those of [`scope`](Self::scope). If the lock
    /// ended before the body did, the body's value is dropped; [`scope`](Self::scope) would return it in the error.
    ///
    /// # Cancel safety
    ///
    /// As for [`scope`](Self::scope).
    pub async fn try_scope<T, E: From<ScopeError>>(
        &self,
        resource: impl AsRef<[u8]>,
        body: impl AsyncFnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.lock(resource).try_scope(body).await
    }

    /// The state of the lock on `resource` on every master; changes nothing. A master that the restart guard excludes
    /// from voting is not asked, because it may have forgotten the lock.
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] if the name cannot be locked. Faults of single masters are part of the result.
    pub async fn status(&self, resource: impl AsRef<[u8]>) -> Result<Status, InvalidResource> {
        let key = self.key(resource.as_ref())?;
        Ok(self.look(Request::Look { key }).await)
    }

    /// Deletes the lock on `resource` on every master, no matter which client holds it, and returns the state of the
    /// lock before the deletion. Use it only as an operator's last resort: the holder notices only at its next renewal,
    /// and until then two clients may believe that they hold the lock. The fencing counter is kept.
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] if the name cannot be locked. Faults of single masters are part of the result.
    pub async fn break_lock(&self, resource: impl AsRef<[u8]>) -> Result<Status, InvalidResource> {
        let key = self.key(resource.as_ref())?;
        Ok(self.look(Request::Break { key }).await)
    }

    /// Examines every master. The report shows whether the master can be reached and used, its kind and its
    /// configuration. It also shows which rights the user lacks, how far the clock is off, and whether the restart
    /// guard counts the votes. All masters are asked at the same time, each over a new connection that is made exactly
    /// like those of the locks and closed afterwards. Nothing on the masters is changed.
    ///
    /// Opening the connection, the handshake, and the requests for the configuration may each take one connect timeout.
    /// Each master's clock is read within the node timeout.
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
    /// Dropping the future closes its connections.
    pub async fn inspect(&self) -> Vec<Inspection> {
        let scope = self.scope_of_rights();
        let nodes = self.core.coordinator.nodes().iter();
        futures::future::join_all(nodes.map(|node| node.inspect(&scope))).await
    }

    /// The settings that decide which rights the users of the masters need.
    pub(crate) fn scope_of_rights(&self) -> Scope {
        let coordinator = &self.core.coordinator;
        let mut word = [0; 16];
        coordinator.runtime.random(&mut word);
        Scope {
            prefix: coordinator.prefix.clone(),
            fencing: coordinator.fencing,
            fair: self.core.options.fair,
            unheard_of: format!("{:032x}", u128::from_be_bytes(word)).into(),
        }
    }

    /// Waits until no request to any master is outstanding. A program that is about to end must call `flush` on
    /// **every** path that ends the program, and with a timeout.
    ///
    /// Many releases happen in the background: the lock of a guard that was dropped, the keys that a failed
    /// [`try_acquire`](Self::try_acquire) got from a minority, the queue entry of a wait that ended or was dropped. If
    /// the process ends before they are sent, the keys stay and block other clients until they expire. Dropping the
    /// runtime is no substitute: the background thread then sends them, but nothing waits for it. One node timeout is
    /// enough for all masters that answer. `flush` does not wait for releases that are stored until an unreachable
    /// master can be reached again.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(redlock: quorate::Redlock) -> Result<(), quorate::AcquireError> {
    /// let held = redlock.try_acquire("nightly").await?.acquired();
    /// // ... and at the end, whether the lock was acquired or not:
    /// drop(held);
    /// let _ = tokio::time::timeout(Duration::from_millis(500), redlock.flush()).await;
    /// # Ok(()) }
    /// ```
    pub async fn flush(&self) {
        let idle = self.core.coordinator.nodes().iter().map(|node| node.idle());
        futures::future::join_all(idle).await;
    }

    /// The names of the masters, without credentials, in the order in which they were given to the builder.
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
