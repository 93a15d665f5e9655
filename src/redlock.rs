//! [`Redlock`], which acquires locks, and its operations.

pub(crate) mod request;
pub(crate) mod status;
pub(crate) mod try_acquire;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use self::status::{NodeStatus, Status};
use self::try_acquire::TryAcquire;
use crate::error::{AcquireError, ScopeError};
use crate::hold::core::Core;
use crate::hold::guard::LockGuard;
use crate::hold::schedule::Renewal;
use crate::metrics;
use crate::node::inspection::Inspection;
use crate::node::{Fault, KeyState, NodeName, Phase, Request, Scope, Subscriber};
use crate::options::Options;
use crate::outcome::LossCause;
use crate::resource::{InvalidResource, check_resource};
use crate::rounds::coordinator::Coordinator;
use crate::waiting::local_queue::LocalQueues;

/// Acquires locks on one set of masters. A `Redlock` is cheap to clone. Use one `Redlock` per process: all its locks
/// share the connections and the renewal task.
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
/// The connections and the renewal task run in the tokio runtime of the first caller that needs them. Several runtimes
/// can share one `Redlock`.
///
/// A background thread takes over the connections and the renewal task in the following cases. The thread runs until
/// the process ends.
///
/// - The runtime was shut down.
/// - A runtime with one thread (`current_thread`) has run no task for about a second. Locks with a ttl of 3 s or more
///   are still renewed in time.
/// - There is no tokio runtime, because another executor polls the futures.
///
/// In the following cases, the thread does not take over from a blocked runtime, only after the runtime was shut down:
///
/// - The runtime has several threads. Do not block all of them.
/// - The `Redlock` has masters in memory (feature `testing`), or the runtime's clock is paused (`tokio::time::pause`).
///
/// When the thread takes over a connection, unanswered requests on this connection fail with "connection lost (the
/// connection to the master was shut down)". A waiting acquire then asks the masters again.
///
/// # Panics
///
/// The methods panic if the caller's tokio runtime has no timers or no I/O (`enable_all` turns on both).
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
        metrics::register_all(names, &phases, &faults);
        let local_queues = LocalQueues::new();
        if options.fair {
            for (node, master) in coordinator.nodes().iter().enumerate() {
                let process = options.process.clone();
                let sink = local_queues.clone();
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
                local_queues,
                waiters: AtomicU64::new(0),
                options,
            }),
        }
    }

    /// Creates a `Redlock` with this number of masters in memory, to test your own code without a server.
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
    /// Locks are **not re-entrant**. If a task acquires a lock that the task already holds, the call waits until the
    /// wait time ends, or forever with [`Wait::Forever`](crate::Wait::Forever).
    /// [`Waiting::held_here`](crate::Waiting::held_here) and
    /// [`FailedAcquire::held_here`](crate::FailedAcquire::held_here) show that this `Redlock` itself holds the lock.
    /// Instead of acquiring the lock again, pass the guard to the code that needs the lock.
    ///
    /// # Errors
    ///
    /// [`AcquireError`], for example if another client holds the lock, if too few masters answer, or if a majority
    /// granted the lock too late.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped at any point: keys that were already set are released in the background.
    pub async fn acquire(&self, resource: impl AsRef<[u8]>) -> Result<LockGuard, AcquireError> {
        self.lock(resource).acquire().await
    }

    /// Makes one attempt to take the lock, and does not wait until another client releases it. If another client holds
    /// the lock, the result is [`TryAcquire::Held`](crate::TryAcquire::Held), not an error.
    ///
    /// If only a minority of the masters granted the lock, the library releases these grants in the background. A
    /// program that ends right after the call must call [`flush`](Self::flush) before it ends.
    ///
    /// # Errors
    ///
    /// - [`AcquireError::NoQuorum`]: too few masters answered to decide whether the lock is held.
    /// - [`AcquireError::TooLate`]: a majority granted the lock, but so slowly that no valid time was left.
    /// - Other variants of [`AcquireError`], for example for an invalid resource name.
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
    /// - [`ScopeError::NotAcquired`]: the lock was not acquired, and the body did not start.
    /// - [`ScopeError::Lost`]: the lock ended before the body did.
    ///
    /// If the body is suspended at an `.await` when the lock ends, the body is dropped. A body can still run to its end
    /// if it blocks its thread, or if its process was paused. In this case, [`ScopeError::Lost`] contains the body's
    /// value ([`ScopeError::into_value`]). Another client could have acquired the lock before the body ended.
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

    /// Takes the lock and runs a body that returns a `Result`. All errors have the body's error type:
    ///
    /// - An error of the body is returned unchanged.
    /// - A lock error (not acquired, or lost) is converted with `From<ScopeError>`.
    ///
    /// To recognise a lock error, match a variant of your own error enum. If the error type is `Box<dyn Error>`, use
    /// `error.is::<ScopeError>()`.
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
    /// # async fn write_report(fence: Option<u64>) -> std::io::Result<u64> {
    /// fence.ok_or(std::io::ErrorKind::Other.into()) }
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
    /// - If the body failed: the body's error, even if the lock was lost too.
    /// - Otherwise: the errors of [`scope`](Self::scope). If the lock ended before the body did, the body's value is
    ///   dropped; [`scope`](Self::scope) would return the value in the error.
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

    /// Returns the state of the lock on `resource` on every master. If the restart guard excludes a master from voting,
    /// that master is not asked, because it may have forgotten the lock.
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] if the name cannot be locked. Faults of single masters are part of the result.
    pub async fn status(&self, resource: impl AsRef<[u8]>) -> Result<Status, InvalidResource> {
        let key = self.key(resource.as_ref())?;
        Ok(self.key_status(Request::Status { key }).await)
    }

    /// Deletes the lock on `resource` on every master, no matter which client holds it, and returns the state of the
    /// lock before the deletion. Use it only as an operator's last resort: the holder notices only at its next renewal,
    /// and until then two clients may believe that they hold the lock. The fencing counter is kept.
    ///
    /// If less than a majority of the masters can be reached, nothing is deleted: the verdict of the returned status is
    /// then [`StatusVerdict::Unknown`](crate::StatusVerdict::Unknown). If a majority is lost before the masters have
    /// confirmed the deletion, the verdict is `Unknown` as well, but the holder cannot renew its lock any more
    /// ([`Status::deletion_was_sent`]). The call may be repeated. It never deletes the lock of a client that acquires
    /// the lock after the call has read the masters.
    ///
    /// # Errors
    ///
    /// [`InvalidResource`] if the name cannot be locked. Faults of single masters are part of the result.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the masters may already refuse to renew the lock, although its keys still exist.
    pub async fn break_lock(&self, resource: impl AsRef<[u8]>) -> Result<Status, InvalidResource> {
        let key = self.key(resource.as_ref())?;
        Ok(self.force_release(key).await)
    }

    /// Examines every master. The report on a master shows:
    ///
    /// - whether the master can be reached and used;
    /// - the kind of the master and its configuration;
    /// - the rights that the user lacks;
    /// - the difference between the master's clock and the local clock;
    /// - whether the master's votes count under the restart guard.
    ///
    /// All masters are examined at the same time, each over a new connection. The connection is made exactly like a
    /// connection for locks, and is closed afterwards. Nothing on the masters is changed.
    ///
    /// The connect timeout limits each of these steps: opening the connection, the handshake, and reading the
    /// configuration. The node timeout limits each measurement of a master's clock.
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

    /// The settings of this client that determine which ACL or database rights its user needs on the masters.
    pub(crate) fn scope_of_rights(&self) -> Scope {
        let coordinator = &self.core.coordinator;
        let mut random_bytes = [0; 16];
        coordinator.runtime.random(&mut random_bytes);
        Scope {
            prefix: coordinator.prefix.clone(),
            fencing: coordinator.fencing,
            fair: self.core.options.fair,
            unused_word: format!("{:032x}", u128::from_be_bytes(random_bytes)).into(),
        }
    }

    /// Waits until no request to any master is outstanding. Call `flush` with a timeout on **every** path that ends the
    /// program. The node timeout is long enough for this: a working master answers within the node timeout.
    ///
    /// The library sends these requests in the background:
    ///
    /// - the release of a guard that was dropped;
    /// - the release of keys that a failed [`try_acquire`](Self::try_acquire) got from a minority of the masters;
    /// - the removal of a queue entry, after the wait ended or its future was dropped.
    ///
    /// If the process ends before these requests are sent, other clients are blocked until the keys expire. Shutting
    /// down the tokio runtime does not send the requests in time.
    ///
    /// `flush` does not wait for releases that the library keeps until an unreachable master can be reached again.
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

    /// Releases all locks that this `Redlock` and its clones still hold, and waits as [`flush`](Self::flush) does until
    /// the releases are sent. Returns the number of these locks. Their guards report
    /// [`LossCause::Released`](crate::LossCause::Released).
    ///
    /// Use it at the end of a program whose guards may still exist, for example in objects of another language. The
    /// call itself ends the locks and queues the releases. In a forked process it does nothing, and returns 0.
    ///
    /// Drop acquires and downgrades that are under way before this call: it does not see a lock that they get later.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the locks are released all the same.
    ///
    /// ```
    /// # #[cfg(feature = "testing")]
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let redlock = quorate::Redlock::in_memory(3);
    /// let guard = redlock.acquire("nightly").await.expect("free");
    /// assert_eq!(redlock.release_all().await, 1);
    /// assert!(!guard.is_valid());
    /// # }
    /// # #[cfg(not(feature = "testing"))]
    /// # fn main() {}
    /// ```
    pub fn release_all(&self) -> impl Future<Output = usize> + Send + use<> {
        let coordinator = &self.core.coordinator;
        let mut count = 0;
        if !coordinator.process.is_not_current() {
            for held in self.core.renewal.take_all() {
                count += usize::from(held.end_cause(coordinator.now()).is_none());
                coordinator.release_in_background(&held.claim);
                held.end(LossCause::Released);
            }
        }
        let redlock = self.clone();
        async move {
            redlock.flush().await;
            count
        }
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

    pub(crate) async fn key_status(&self, request: Request) -> Status {
        self.status_of(self.core.coordinator.key_states(request).await)
    }

    /// Force-releases the lock `key`, and returns its state before the release.
    pub(crate) async fn force_release(&self, key: Arc<[u8]>) -> Status {
        let (answers, deletion_sent) = self.core.coordinator.force_release(key).await;
        Status {
            deletion_sent,
            ..self.status_of(answers)
        }
    }

    fn status_of(&self, answers: Vec<(Result<KeyState, Fault>, Duration)>) -> Status {
        let coordinator = &self.core.coordinator;
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
            deletion_sent: false,
        }
    }
}

#[cfg(test)]
impl Redlock {
    /// This `Redlock` as a forked process sees it: it belongs to another process. Call this right after the `Redlock`
    /// was built.
    pub(crate) fn seen_by_another_process(mut self) -> Self {
        let core = Arc::get_mut(&mut self.core).expect("the only reference");
        let coordinator = Arc::get_mut(&mut core.coordinator).expect("the only reference");
        coordinator.process = crate::fork::Process::other();
        self
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
