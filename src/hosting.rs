//! Where the library's tasks run: in the tokio runtime of the caller, or in a background runtime.
//!
//! If the caller's runtime has one thread, it runs tasks only while the caller waits in `block_on`. If such a runtime
//! runs no tasks for a while, or is shut down, the library drops its tasks in that runtime. It then starts them again
//! in the background runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

use crate::background_runtime::{BackgroundRuntime, is_driven};
use crate::fork::{self, PerProcess};

/// The time between two checks whether a runtime with one thread runs its tasks: 250 ms.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// If a runtime with one thread runs no tasks for this time (750 ms), the background runtime takes over the library's
/// tasks.
///
/// The time is longer than usual delays on a busy machine, and shorter than the default time limit for a connection
/// (1.5 s).
const PROGRESS_TIMEOUT: Duration = Duration::from_millis(750);

static BACKGROUND: PerProcess<BackgroundRuntime> = PerProcess::new();

/// The tokio runtime of the caller; for a caller without one, the background runtime. `None` if the background runtime
/// could not be started.
pub(crate) fn current_or_background() -> Option<Handle> {
    Handle::try_current().ok().or_else(background)
}

/// The background runtime of this process. It has a thread of its own, starts at the first call of this function, and
/// lives as long as the process. `None` if the operating system refuses the thread or the file descriptors.
pub(crate) fn background() -> Option<Handle> {
    let background =
        BACKGROUND.get_or_init(|| BackgroundRuntime::with_thread_name("quorate-background"));
    // If the operating system refuses, the next call tries again.
    background.handle().ok().cloned()
}

/// Spawns a task in the caller's runtime or, without one, in the background runtime. Returns `false` if there is no
/// runtime.
///
/// If the runtime stops, the task is dropped before its end. The task's `Drop` must then start a new task.
pub(crate) fn spawn(task: BoxFuture<'static, ()>) -> bool {
    let task = fork::bind_to_process(task);
    let Some(host) = current_or_background() else {
        return false;
    };
    let may_stop = host.runtime_flavor() == RuntimeFlavor::CurrentThread && !is_driven(&host);
    let watcher = may_stop.then(background).flatten();
    if let Some(watcher) = watcher {
        let hosted = Arc::new(HostedTask(Mutex::new(Some(task))));
        watch_task(&watcher, &host, &hosted);
        host.spawn(RunHostedTask(hosted));
    } else {
        host.spawn(task);
    }
    true
}

/// A task that can be taken away from its runtime.
struct HostedTask(Mutex<Option<BoxFuture<'static, ()>>>);

impl HostedTask {
    fn task(&self) -> MutexGuard<'_, Option<BoxFuture<'static, ()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the task has neither ended nor been taken away.
    fn is_live(&self) -> bool {
        match self.0.try_lock() {
            Ok(task) => task.is_some(),
            Err(TryLockError::Poisoned(task)) => task.into_inner().is_some(),
            // The task is being polled.
            Err(TryLockError::WouldBlock) => true,
        }
    }

    /// Takes the task out of its runtime. `None` if the task has ended, was taken before, or is being polled now.
    fn take(&self) -> Option<BoxFuture<'static, ()>> {
        match self.0.try_lock() {
            Ok(mut task) => task.take(),
            Err(TryLockError::Poisoned(task)) => task.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Runs a task in its runtime, until the task ends or is taken away.
struct RunHostedTask(Arc<HostedTask>);

impl Future for RunHostedTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut task = self.0.task();
        let Some(hosted_task) = task.as_mut() else {
            return Poll::Ready(());
        };
        let polled = hosted_task.as_mut().poll(cx);
        let finished_task = task.take_if(|_| polled.is_ready());
        drop(task);
        drop(finished_task);
        polled
    }
}

impl Drop for RunHostedTask {
    fn drop(&mut self) {
        let remaining_task = self.0.task().take();
        drop(remaining_task);
    }
}

/// The runtimes that this module watches, each with the tasks that it runs for the library.
static WATCHED: PerProcess<Mutex<Vec<WatchedRuntime>>> = PerProcess::new();

fn watched_runtimes() -> MutexGuard<'static, Vec<WatchedRuntime>> {
    let watched_runtimes = WATCHED.get_or_init(Mutex::default);
    watched_runtimes
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

struct WatchedRuntime {
    runtime: Id,
    tasks: Vec<Weak<HostedTask>>,
}

/// Records `task` as a task of the runtime `host`. Starts to watch this runtime if it is not watched yet.
fn watch_task(watcher: &Handle, host: &Handle, task: &Arc<HostedTask>) {
    let mut watched_runtimes = watched_runtimes();
    let watched_runtime = watched_runtimes
        .iter_mut()
        .find(|watched| watched.runtime == host.id());
    if let Some(watched_runtime) = watched_runtime {
        watched_runtime.tasks.push(Arc::downgrade(task));
        return;
    }
    watched_runtimes.push(WatchedRuntime {
        runtime: host.id(),
        tasks: vec![Arc::downgrade(task)],
    });
    watcher.spawn(watch_over(host.clone()));
}

/// Returns the library's tasks in the runtime `host` that have neither ended nor been moved to another runtime. If
/// there are none, removes `host` from the watched runtimes.
fn live_tasks_of(host: &Handle) -> Vec<Arc<HostedTask>> {
    let mut watched_runtimes = watched_runtimes();
    let Some(index) = watched_runtimes
        .iter()
        .position(|watched| watched.runtime == host.id())
    else {
        return Vec::new();
    };
    let tasks = &mut watched_runtimes[index].tasks;
    tasks.retain(|task| task.upgrade().is_some_and(|task| task.is_live()));
    let live_tasks: Vec<_> = tasks.iter().filter_map(Weak::upgrade).collect();
    if live_tasks.is_empty() {
        watched_runtimes.swap_remove(index);
    }
    live_tasks
}

/// Checks at regular intervals whether the runtime runs its tasks. Ends when the runtime has no task of the library.
async fn watch_over(host: Handle) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let tasks = live_tasks_of(&host);
        if tasks.is_empty() {
            return;
        }
        drop(tasks);
        // If a test has paused the clock of this runtime, do not move its tasks: their timers would then follow the
        // clock of the background runtime, which is not paused.
        if is_paused(&host) {
            continue;
        }
        let mut probe = host.spawn(async {});
        let progress = tokio::time::timeout(PROGRESS_TIMEOUT, &mut probe).await;
        if progress.is_err() && !is_paused(&host) {
            probe.abort();
            let tasks = live_tasks_of(&host);
            let count = tasks.len();
            tracing::debug!(
                tasks = count,
                "a tokio runtime has stopped running tasks: quorate continues on its background runtime"
            );
            for task in tasks {
                drop(task.take());
            }
        }
    }
}

/// Whether a test has paused the tokio clock of the runtime, now or earlier. Such a clock differs from the `std` clock.
fn is_paused(host: &Handle) -> bool {
    let _entered = host.enter();
    let before = std::time::Instant::now();
    let tokio_now = tokio::time::Instant::now().into_std();
    tokio_now < before || tokio_now > std::time::Instant::now()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    /// When this value is dropped, it sends the name of the current thread to the channel.
    struct DropReporter(Sender<Option<String>>);

    impl Drop for DropReporter {
        fn drop(&mut self) {
            let thread_name = std::thread::current().name().map(str::to_owned);
            let _ = self.0.send(thread_name);
        }
    }

    /// Spawns a task that never ends. The returned receiver gets the name of the thread that drops the task.
    fn spawn_endless_task(runtime: &Runtime) -> Receiver<Option<String>> {
        let (sender, receiver) = mpsc::channel();
        let reporter = DropReporter(sender);
        let _entered = runtime.enter();
        assert!(spawn(Box::pin(async move {
            let _reporter = reporter;
            std::future::pending::<()>().await;
        })));
        receiver
    }

    fn runtime_builder() -> Builder {
        let mut runtime_builder = Builder::new_current_thread();
        runtime_builder.enable_all();
        runtime_builder
    }

    #[test]
    fn tasks_of_an_idle_runtime_move_to_the_background_runtime_unless_time_is_paused() {
        let idle = runtime_builder().build().expect("a runtime");
        let paused = runtime_builder()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let (from_paused, from_idle) = (spawn_endless_task(&paused), spawn_endless_task(&idle));
        let dropped_by = from_idle.recv_timeout(Duration::from_secs(30));
        assert_eq!(dropped_by, Ok(Some("quorate-background".to_owned())));
        std::thread::sleep(2 * (CHECK_INTERVAL + PROGRESS_TIMEOUT));
        let result = from_paused.try_recv();
        assert!(result.is_err(), "{result:?}");
    }

    #[test]
    fn task_stays_in_a_runtime_that_makes_progress() {
        // On a busy machine, the thread can pause for longer than `PROGRESS_TIMEOUT`, and the task is then moved. So
        // the test makes up to five tries, and one try in which the task stays is enough.
        let has_stayed = (0..5).any(|_| {
            let runtime = runtime_builder().build().expect("a runtime");
            let drop_reports = spawn_endless_task(&runtime);
            runtime.block_on(async {
                tokio::time::sleep(2 * (CHECK_INTERVAL + PROGRESS_TIMEOUT)).await;
            });
            drop_reports.try_recv().is_err()
        });
        assert!(has_stayed);
    }

    #[test]
    fn runtime_is_not_watched_after_its_shutdown() {
        let runtime = runtime_builder().build().expect("a runtime");
        let id = runtime.handle().id();
        let drop_reports = spawn_endless_task(&runtime);
        drop(runtime);
        assert!(drop_reports.try_recv().is_ok());
        let is_watched = || {
            watched_runtimes()
                .iter()
                .any(|watched| watched.runtime == id)
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while is_watched() {
            assert!(
                std::time::Instant::now() < deadline,
                "a runtime must be removed from the watched runtimes after its shutdown"
            );
            std::thread::sleep(CHECK_INTERVAL / 10);
        }
    }
}
