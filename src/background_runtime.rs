//! A thread with a tokio runtime of its own: for callers without a runtime, and for the library's own tasks when the
//! caller's runtime cannot run them.

use std::fmt;
use std::future::Future;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use futures::future::{BoxFuture, select};
use tokio::runtime::{Builder, Handle, Id, Runtime};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;

use crate::fork::{self, FirstProcess, PerProcess, Process};
use crate::panics;

/// How much longer than the limit of [`BackgroundRuntime::end`] the caller waits for the thread. The thread needs this
/// time to drop its runtime.
const END_MARGIN: Duration = Duration::from_millis(50);

/// A thread with a Tokio runtime of its own, for programs that have none: for example, for a binding to another
/// language. The thread continues while the threads of the program are busy, so it renews locks in time.
///
/// [`Redlock`](crate::blocking::Redlock) of this module has such a thread already. Use a `BackgroundRuntime` to run
/// the methods of [`quorate::Redlock`](crate::Redlock) if the program must be able to end a wait.
///
/// The thread starts at the first use. Clones share the thread. When the last clone is dropped, the thread drops the
/// tasks that still run, and ends; the drop does not wait for it. To wait for it, call [`end`](Self::end) first.
///
/// ```
/// # #[cfg(feature = "testing")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::mpsc;
/// use std::time::Duration;
///
/// use quorate::blocking::BackgroundRuntime;
///
/// let runtime = BackgroundRuntime::new();
/// let redlock = quorate::Redlock::in_memory(3);
/// let (sender, results) = mpsc::channel();
/// let acquire = redlock.lock("invoice-42");
/// let task = runtime.spawn(async move {
///     let _ = sender.send(acquire.acquire().await);
/// })?;
/// let Ok(result) = results.recv_timeout(Duration::from_secs(5)) else {
///     task.abort(); // leaves no keys on the masters
///     return Err("nobody released the lock in time".into());
/// };
/// let guard = result?;
/// println!("fencing token {:?}", guard.fencing_token());
///
/// // At the end of the program: release what is still held, and wait for at most 400 ms until this is sent.
/// let last_work = async move { drop(redlock.release_all().await) };
/// runtime.end(Duration::from_millis(400), last_work)?;
/// assert!(!guard.is_valid());
/// # Ok(()) }
/// # #[cfg(not(feature = "testing"))]
/// # fn main() {}
/// ```
///
/// # Forked processes
///
/// The thread does not exist in a process that was forked after the first use. There, every method fails with
/// [`BackgroundError::Forked`], and nothing touches the runtime of the parent process. The memory of the runtime, and
/// the futures that are passed to these methods, are leaked on purpose. Make a new `BackgroundRuntime` in this process.
/// A `BackgroundRuntime` that was not used before the fork works in both processes, each with a thread of its own.
#[derive(Clone)]
pub struct BackgroundRuntime {
    shared: Arc<Shared>,
}

/// Why a [`BackgroundRuntime`] cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackgroundError {
    /// This process was forked after the first use. The thread exists only in the parent process.
    #[error(
        "this process was forked from the process that started this background runtime: \
         make a new background runtime in this process"
    )]
    Forked,
    /// The operating system refused the thread or its file descriptors. The next use tries again.
    #[error("cannot start the background thread: {0}")]
    NoThread(String),
    /// [`BackgroundRuntime::end`] was called before.
    #[error("this background runtime has been ended: make a new one")]
    Ended,
    /// The thread has not ended yet. It ends by itself. Either the time limit was reached, or the caller is a thread of
    /// a Tokio runtime, which must not wait.
    #[error("the background thread has not ended yet: it ends by itself")]
    StillEnding,
}

/// A task that was spawned on a [`BackgroundRuntime`]. Dropping this value does not end the task.
pub struct BackgroundTask {
    abort: Option<AbortHandle>,
    process: Process,
}

/// The state that all clones of a [`BackgroundRuntime`] share.
struct Shared {
    thread_name: &'static str,
    /// The process that used the runtime first. Each method checks it before it reads any other field: after a fork,
    /// the mutex below may be locked by a thread that exists only in the parent process.
    first_user: FirstProcess,
    started: OnceLock<Started>,
    is_ended: AtomicBool,
    thread: Mutex<Option<RunningThread>>,
}

/// The handles for spawning tasks on the thread.
struct Started {
    runtime: Handle,
    /// True when the spawned tasks must end. Each task has a receiver, so `closed` resolves when no task is left.
    tasks_end: watch::Sender<bool>,
}

/// The handles for ending the thread.
struct RunningThread {
    /// `None` once the end was requested.
    stop: Option<oneshot::Sender<Stop>>,
    /// `None` once the thread was joined.
    join: Option<JoinHandle<()>>,
    end_signal: Arc<EndSignal>,
}

/// The request to end the thread.
struct Stop {
    last_work: BoxFuture<'static, ()>,
    within: Duration,
}

/// Set when the thread has dropped its runtime.
#[derive(Default)]
struct EndSignal {
    has_ended: Mutex<bool>,
    changed: Condvar,
}

impl BackgroundRuntime {
    /// A runtime whose thread has not started yet. The thread starts at the first use.
    pub fn new() -> Self {
        Self::with_thread_name("quorate")
    }

    pub(crate) fn with_thread_name(thread_name: &'static str) -> Self {
        Self {
            shared: Arc::new(Shared {
                thread_name,
                first_user: FirstProcess::new(),
                started: OnceLock::new(),
                is_ended: AtomicBool::new(false),
                thread: Mutex::new(None),
            }),
        }
    }

    /// Whether the thread exists only in the parent of this process.
    pub fn is_forked(&self) -> bool {
        self.shared.first_user.is_other()
    }

    /// Spawns a task on the thread. The task runs until it is ready, until [`BackgroundTask::abort`], until
    /// [`end`](Self::end), or until the last clone of this `BackgroundRuntime` is dropped. In the last three cases the
    /// future is dropped on the thread, at an await.
    ///
    /// If the task panics, only this task ends. The task must not block the thread: while it blocks, the thread renews
    /// no lock, and no other task runs. For work that blocks, use a thread of your own.
    ///
    /// # Errors
    ///
    /// [`BackgroundError`]; the future is then dropped without running. In a forked process it is leaked instead.
    pub fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Result<BackgroundTask, BackgroundError> {
        let started = match self.started() {
            Ok(started) => started,
            Err(error) => {
                if error == BackgroundError::Forked {
                    // The future may own sockets and wakers of the parent process.
                    std::mem::forget(task);
                }
                return Err(error);
            }
        };
        let mut tasks_end = started.tasks_end.subscribe();
        let ending_task = async move {
            let end_requested = pin!(tasks_end.wait_for(|must_end| *must_end));
            select(pin!(task), end_requested).await;
        };
        let ending_task = fork::bind_to_process(Box::pin(ending_task));
        let abort = started.runtime.spawn(ending_task).abort_handle();
        Ok(BackgroundTask {
            abort: Some(abort),
            process: Process::current(),
        })
    }

    /// Runs `body` on the calling thread, as a part of the runtime. If `body` drops a guard, the background thread sends
    /// the releases.
    ///
    /// # Errors
    ///
    /// [`BackgroundError`]; `body` is then dropped without running. In a forked process it is leaked instead.
    pub fn enter<T>(&self, body: impl FnOnce() -> T) -> Result<T, BackgroundError> {
        match self.handle() {
            Ok(runtime) => {
                let _entered = runtime.enter();
                Ok(body())
            }
            Err(error) => {
                if error == BackgroundError::Forked {
                    std::mem::forget(body);
                }
                Err(error)
            }
        }
    }

    /// Ends the thread, in three steps:
    ///
    /// 1. The thread drops the tasks that still run. Guards that they own are released.
    /// 2. The thread runs `last_work`, for example [`Redlock::release_all`](crate::Redlock::release_all), which
    ///    releases what is still held, and waits until all releases are sent.
    /// 3. The thread ends. The calling thread waits until then.
    ///
    /// If the first two steps take longer than `within`, the thread drops `last_work` and ends. The call returns at the
    /// latest 50 ms after `within`. Only the first call of `end` runs its `last_work`. If the thread was never started,
    /// `last_work` is dropped without running.
    ///
    /// # Errors
    ///
    /// - [`BackgroundError::StillEnding`] if the thread has not ended in time, for example because a task blocks it.
    /// - [`BackgroundError::StillEnding`] on a thread of a Tokio runtime, unless the thread has ended already. Such a
    ///   call does not wait, and the background thread ends by itself.
    /// - [`BackgroundError::Forked`] in a forked process.
    pub fn end(
        &self,
        within: Duration,
        last_work: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), BackgroundError> {
        if self.shared.first_user.is_other_or_claim() {
            std::mem::forget(last_work);
            return Err(BackgroundError::Forked);
        }
        // Set the flag before the mutex is locked: a thread that starts later then finds it.
        self.shared.is_ended.store(true, Ordering::SeqCst);
        let end_signal = {
            let mut thread = self.shared.lock_thread();
            let Some(thread) = thread.as_mut() else {
                return Ok(());
            };
            if let Some(stop) = thread.stop.take() {
                let last_work = Box::pin(last_work);
                let _ = stop.send(Stop { last_work, within });
            }
            thread.end_signal.clone()
        };
        let may_wait = Handle::try_current().is_err();
        let limit = if may_wait {
            within.saturating_add(END_MARGIN)
        } else {
            Duration::ZERO
        };
        if !end_signal.wait(limit) {
            return Err(BackgroundError::StillEnding);
        }
        let mut thread = self.shared.lock_thread();
        let join = thread.as_mut().and_then(|thread| thread.join.take());
        if let Some(join) = join {
            // The thread has only a few instructions left.
            let _ = join.join();
        }
        Ok(())
    }

    /// The runtime of the thread. Starts the thread at the first call.
    pub(crate) fn handle(&self) -> Result<&Handle, BackgroundError> {
        Ok(&self.started()?.runtime)
    }

    fn started(&self) -> Result<&Started, BackgroundError> {
        let shared = &*self.shared;
        if shared.first_user.is_other_or_claim() {
            return Err(BackgroundError::Forked);
        }
        if shared.started.get().is_none() {
            shared.start_thread()?;
        }
        match shared.started.get() {
            Some(started) if !shared.is_ended.load(Ordering::SeqCst) => Ok(started),
            _ => Err(BackgroundError::Ended),
        }
    }
}

impl Shared {
    fn lock_thread(&self) -> MutexGuard<'_, Option<RunningThread>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread, unless it was started or ended before.
    fn start_thread(&self) -> Result<(), BackgroundError> {
        let mut thread = self.lock_thread();
        if thread.is_some() || self.is_ended.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (tasks_end, (stop, stop_requested)) = (watch::Sender::new(false), oneshot::channel());
        let (handle_sender, handle_receiver) = mpsc::channel();
        let end_signal = Arc::new(EndSignal::default());
        let run_runtime = {
            let (tasks_end, end_signal) = (tasks_end.clone(), end_signal.clone());
            move || run_runtime(&handle_sender, &tasks_end, stop_requested, &end_signal)
        };
        let no_thread = |error: std::io::Error| BackgroundError::NoThread(error.to_string());
        let thread_builder = std::thread::Builder::new().name(self.thread_name.to_owned());
        let join = thread_builder.spawn(run_runtime).map_err(no_thread)?;
        let runtime = handle_receiver
            .recv()
            .map_err(|_| BackgroundError::NoThread("the thread ended".to_owned()))?
            .map_err(no_thread)?;
        let _ = self.started.set(Started { runtime, tasks_end });
        *thread = Some(RunningThread {
            stop: Some(stop),
            join: Some(join),
            end_signal,
        });
        Ok(())
    }
}

/// The thread: creates the runtime, runs it until the end is requested, and drops it. A thread of another Tokio runtime
/// could not drop it.
fn run_runtime(
    handle_sender: &mpsc::Sender<std::io::Result<Handle>>,
    tasks_end: &watch::Sender<bool>,
    stop_requested: oneshot::Receiver<Stop>,
    end_signal: &EndSignal,
) {
    let runtime = match one_thread() {
        Ok(runtime) => runtime,
        Err(error) => return drop(handle_sender.send(Err(error))),
    };
    let driven_runtime = DrivenRuntime::new(runtime.handle());
    let _ = handle_sender.send(Ok(runtime.handle().clone()));
    runtime.block_on(async {
        // An error means that the last `BackgroundRuntime` was dropped.
        let stop = stop_requested.await.ok();
        tasks_end.send_replace(true);
        let within = stop.as_ref().map_or(END_MARGIN, |stop| stop.within);
        let last_steps = async {
            tasks_end.closed().await;
            if let Some(stop) = stop {
                stop.last_work.await;
            }
        };
        // If the last work panics, the runtime must still end in order: only then do connections and renewals of its
        // tasks move to another runtime.
        let _ = panics::caught_in(tokio::time::timeout(within, last_steps)).await;
    });
    drop(driven_runtime);
    // Without this call, dropping the runtime would block until pending name lookups have ended.
    runtime.shutdown_background();
    end_signal.set();
}

impl EndSignal {
    fn has_ended(&self) -> MutexGuard<'_, bool> {
        self.has_ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self) {
        *self.has_ended() = true;
        self.changed.notify_all();
    }

    /// Waits for at most `limit`. Returns whether the thread has ended.
    fn wait(&self, limit: Duration) -> bool {
        let is_running = |has_ended: &mut bool| !*has_ended;
        let waited = self
            .changed
            .wait_timeout_while(self.has_ended(), limit, is_running);
        let (has_ended, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *has_ended
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.first_user.is_other() {
            // Dropping these fields would wake tasks of the parent process, whose event queue both processes share.
            let thread = self
                .thread
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::forget((self.started.take(), thread.take()));
        }
    }
}

impl BackgroundTask {
    /// Ends the task: the thread drops its future at the next await. Does nothing if the task has ended, or in a forked
    /// process.
    ///
    /// If the task was acquiring a lock, the drop leaves no keys on the masters: they are released in the background.
    pub fn abort(&self) {
        if let Some(abort) = self.abort.as_ref().filter(|_| self.is_of_this_process()) {
            abort.abort();
        }
    }

    /// Whether the task has ended. Always true in a forked process, where the task does not run.
    pub fn is_finished(&self) -> bool {
        let abort = self.abort.as_ref().filter(|_| self.is_of_this_process());
        abort.is_none_or(AbortHandle::is_finished)
    }

    fn is_of_this_process(&self) -> bool {
        !self.process.is_not_current()
    }
}

impl Drop for BackgroundTask {
    fn drop(&mut self) {
        if self.process.is_not_current() {
            std::mem::forget(self.abort.take());
        }
    }
}

impl Default for BackgroundRuntime {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for BackgroundRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackgroundRuntime").finish_non_exhaustive()
    }
}

impl fmt::Debug for BackgroundTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackgroundTask")
            .field("is_finished", &self.is_finished())
            .finish_non_exhaustive()
    }
}

/// Creates a tokio runtime with one thread, with timers and I/O.
///
/// # Errors
///
/// If the operating system refuses the file descriptors.
pub fn one_thread() -> std::io::Result<Runtime> {
    // If tokio's feature `signal` is on and no file descriptor is free, `build` panics. So first find out whether as
    // many are free as it opens. Another thread may take them meanwhile: so also catch the panic.
    let probes: std::io::Result<Vec<_>> = (0..3).map(|_| UnixStream::pair()).collect();
    drop(probes?);
    let runtime = panics::caught(|| Builder::new_current_thread().enable_all().build());
    runtime.unwrap_or_else(|panic| Err(std::io::Error::other(panics::text(&panic))))
}

/// The library's own runtimes with one thread. Each thread runs tasks until its runtime ends, so the library does not
/// check whether tasks still run.
static DRIVEN: PerProcess<Mutex<Vec<Id>>> = PerProcess::new();

fn driven_runtimes() -> MutexGuard<'static, Vec<Id>> {
    let driven_runtimes = DRIVEN.get_or_init(Mutex::default);
    driven_runtimes
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// While this value exists, the library does not check whether the runtime with this id runs its tasks.
struct DrivenRuntime(Id);

impl DrivenRuntime {
    fn new(runtime: &Handle) -> Self {
        driven_runtimes().push(runtime.id());
        Self(runtime.id())
    }
}

impl Drop for DrivenRuntime {
    fn drop(&mut self) {
        driven_runtimes().retain(|id| *id != self.0);
    }
}

/// Whether `runtime` is one of the library's own runtimes, whose thread runs tasks until the runtime ends.
pub(crate) fn is_driven(runtime: &Handle) -> bool {
    driven_runtimes().contains(&runtime.id())
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Sends to the channel when it is dropped.
    struct DropReporter(mpsc::Sender<&'static str>);

    impl Drop for DropReporter {
        fn drop(&mut self) {
            let _ = self.0.send("task dropped");
        }
    }

    /// Spawns a task that never ends, and waits until it runs. The returned receiver is notified when it is dropped.
    fn spawn_endless_task(
        runtime: &BackgroundRuntime,
    ) -> (
        BackgroundTask,
        mpsc::Sender<&'static str>,
        mpsc::Receiver<&'static str>,
    ) {
        let (sender, receiver) = mpsc::channel();
        let (reporter, task_sender) = (DropReporter(sender.clone()), sender.clone());
        let task = runtime.spawn(async move {
            let _reporter = reporter;
            let _ = task_sender.send("task runs");
            pending::<()>().await;
        });
        assert_eq!(receiver.recv_timeout(LIMIT), Ok("task runs"));
        (task.expect("spawned"), sender, receiver)
    }

    #[test]
    fn aborted_task_is_dropped_and_others_go_on() {
        let runtime = BackgroundRuntime::new();
        let (kept_task, _sender, _kept) = spawn_endless_task(&runtime);
        let (aborted_task, _sender, dropped) = spawn_endless_task(&runtime);
        assert!(!aborted_task.is_finished());
        aborted_task.abort();
        assert_eq!(dropped.recv_timeout(LIMIT), Ok("task dropped"));
        assert!(!kept_task.is_finished());
    }

    #[test]
    fn end_drops_tasks_before_the_last_work_and_then_refuses_tasks() {
        let runtime = BackgroundRuntime::new();
        let (_task, sender, events) = spawn_endless_task(&runtime);
        let last_work = async move {
            let _ = sender.send("last work");
        };
        assert_eq!(runtime.end(LIMIT, last_work), Ok(()));
        let events: Vec<_> = events.iter().collect();
        assert_eq!(events, ["task dropped", "last work"]);
        let refused = runtime.spawn(async {}).err();
        assert_eq!(refused, Some(BackgroundError::Ended));
        assert_eq!(runtime.enter(|| ()), Err(BackgroundError::Ended));
        assert_eq!(runtime.end(LIMIT, async {}), Ok(()));
    }

    #[test]
    fn endless_last_work_is_dropped_at_the_limit_of_the_end() {
        let runtime = BackgroundRuntime::new();
        let (_task, ..) = spawn_endless_task(&runtime);
        let started_at = Instant::now();
        // A busy machine may delay the thread by more than the margin. The thread then ends a little later.
        while runtime.end(Duration::from_millis(20), pending()) == Err(BackgroundError::StillEnding)
        {
            assert!(started_at.elapsed() < LIMIT);
        }
        assert_eq!(runtime.end(Duration::ZERO, async {}), Ok(()));
    }

    #[test]
    fn end_reports_a_blocked_thread_and_does_not_wait_for_it() {
        let runtime = BackgroundRuntime::new();
        let (unblock, blocked) = mpsc::channel::<()>();
        let task = runtime.spawn(async move {
            let _ = blocked.recv();
        });
        assert!(task.is_ok());
        let within = Duration::from_millis(20);
        assert_eq!(
            runtime.end(within, async {}),
            Err(BackgroundError::StillEnding)
        );
        drop(unblock);
        assert_eq!(runtime.end(LIMIT, async {}), Ok(()));
    }

    #[test]
    fn unused_runtime_ends_without_starting_a_thread() {
        let runtime = BackgroundRuntime::new();
        let last_work = async { panic!("there is no thread that can run this") };
        assert_eq!(runtime.end(Duration::ZERO, last_work), Ok(()));
        assert_eq!(runtime.spawn(async {}).err(), Some(BackgroundError::Ended));
        assert!(runtime.shared.lock_thread().is_none());
    }

    #[test]
    fn drop_of_the_last_clone_drops_the_tasks() {
        let runtime = BackgroundRuntime::new();
        let (_task, _sender, events) = spawn_endless_task(&runtime);
        drop(runtime.clone());
        assert_eq!(events.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(runtime);
        assert_eq!(events.recv_timeout(LIMIT), Ok("task dropped"));
    }

    #[test]
    fn end_on_a_thread_of_a_runtime_does_not_wait() {
        let runtime = BackgroundRuntime::new();
        let (sender, receiver) = mpsc::channel();
        let own_runtime = runtime.clone();
        let task = runtime
            .spawn(async move { drop(sender.send(own_runtime.end(LIMIT, async {}))) })
            .expect("spawned");
        let result = receiver.recv_timeout(LIMIT / 2);
        assert_eq!(result, Ok(Err(BackgroundError::StillEnding)));
        assert_eq!(runtime.end(LIMIT, async {}), Ok(()));
        assert!(task.is_finished());
    }
}
