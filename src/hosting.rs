//! Where the library's tasks run: in the tokio runtime of the caller, or in a background runtime.
//!
//! If the caller's runtime has one thread, it runs tasks only while the caller waits in `block_on`. If such a runtime
//! runs no tasks for a while, or is shut down, the library drops its tasks in that runtime. It then starts them again
//! in the background runtime.

use std::future::Future;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::runtime::{Builder, Handle, Id, Runtime, RuntimeFlavor};

use crate::panics;

use crate::fork::{self, PerProcess};

/// The time between two checks whether a runtime with one thread runs its tasks: 250 ms.
const PERIOD: Duration = Duration::from_millis(250);

/// If a runtime with one thread runs no tasks for this time (750 ms), the background runtime takes over the library's
/// tasks.
///
/// The time is longer than usual delays on a busy machine, and shorter than the default time limit for a connection
/// (1.5 s).
const PATIENCE: Duration = Duration::from_millis(750);

static BACKGROUND: PerProcess<Mutex<Option<Handle>>> = PerProcess::new();

/// The tokio runtime of the caller; for a caller without one, the background runtime. `None` if the background runtime
/// could not be started.
pub(crate) fn handle() -> Option<Handle> {
    Handle::try_current().ok().or_else(background)
}

/// The background runtime of this process. It has a thread of its own, starts at the first call of this function, and
/// lives as long as the process. `None` if the operating system refuses the thread or the file descriptors.
pub(crate) fn background() -> Option<Handle> {
    let start = || {
        let (started, starts) = std::sync::mpsc::channel();
        // Create the runtime on its own thread: a thread of another runtime may not drop it if the start fails.
        let run = move || {
            let Ok(runtime) = one_thread() else { return };
            let _driven = Driven::new(runtime.handle());
            if started.send(runtime.handle().clone()).is_ok() {
                runtime.block_on(std::future::pending::<()>());
            }
        };
        let thread = std::thread::Builder::new().name("quorate-background".to_owned());
        thread.spawn(run).ok()?;
        starts.recv().ok()
    };
    // If the operating system refuses, the next call tries again.
    let background = BACKGROUND.get_or_init(Mutex::default);
    let mut background = background.lock().unwrap_or_else(PoisonError::into_inner);
    if background.is_none() {
        *background = start();
    }
    background.clone()
}

/// Creates a tokio runtime with one thread, with timers and I/O.
///
/// # Errors
///
/// If the operating system refuses the file descriptors.
pub fn one_thread() -> std::io::Result<Runtime> {
    // If tokio's feature `signal` is on and no file descriptor is free, `build` panics. So first find out whether as many
    // are free as it opens. Another thread may take them meanwhile: so also catch the panic.
    let free: std::io::Result<Vec<_>> = (0..3).map(|_| UnixStream::pair()).collect();
    drop(free?);
    let built = panics::caught(|| Builder::new_current_thread().enable_all().build());
    built.unwrap_or_else(|panic| Err(std::io::Error::other(panics::text(&panic))))
}

/// The library's own runtimes with one thread. Each thread runs tasks until its runtime ends, so the library does not
/// check whether tasks still run.
static DRIVEN: PerProcess<Mutex<Vec<Id>>> = PerProcess::new();

fn driven() -> MutexGuard<'static, Vec<Id>> {
    let driven = DRIVEN.get_or_init(Mutex::default);
    driven.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this value exists, the library does not check whether the runtime with this id runs its tasks.
pub(crate) struct Driven(Id);

impl Driven {
    pub(crate) fn new(runtime: &Handle) -> Self {
        driven().push(runtime.id());
        Self(runtime.id())
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        driven().retain(|id| *id != self.0);
    }
}

fn is_driven(runtime: &Handle) -> bool {
    driven().contains(&runtime.id())
}

/// Spawns a task in the caller's runtime or, without one, in the background runtime. Returns `false` if there is no
/// runtime.
///
/// If the runtime stops, the task is dropped before its end. The task's `Drop` must then start a new task.
pub(crate) fn spawn(task: BoxFuture<'static, ()>) -> bool {
    let task = fork::bound(task);
    let Some(host) = handle() else {
        return false;
    };
    let may_stop = host.runtime_flavor() == RuntimeFlavor::CurrentThread && !is_driven(&host);
    let watcher = may_stop.then(background).flatten();
    if let Some(watcher) = watcher {
        let hosted = Arc::new(Hosted(Mutex::new(Some(task))));
        watch(&watcher, &host, &hosted);
        host.spawn(Run(hosted));
    } else {
        host.spawn(task);
    }
    true
}

/// A task that can be taken away from its runtime.
struct Hosted(Mutex<Option<BoxFuture<'static, ()>>>);

impl Hosted {
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
struct Run(Arc<Hosted>);

impl Future for Run {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut task = self.0.task();
        let Some(running) = task.as_mut() else {
            return Poll::Ready(());
        };
        let polled = running.as_mut().poll(cx);
        let ended = task.take_if(|_| polled.is_ready());
        drop(task);
        drop(ended);
        polled
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let left = self.0.task().take();
        drop(left);
    }
}

/// The runtimes that this module watches, each with the tasks that it runs for the library.
static WATCHED: PerProcess<Mutex<Vec<Watched>>> = PerProcess::new();

fn watched() -> MutexGuard<'static, Vec<Watched>> {
    let watched = WATCHED.get_or_init(Mutex::default);
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Watched {
    runtime: Id,
    tasks: Vec<Weak<Hosted>>,
}

/// Records `task` as a task of the runtime `host`. Starts to watch this runtime if it is not watched yet.
fn watch(watcher: &Handle, host: &Handle, task: &Arc<Hosted>) {
    let mut watched = watched();
    let known = watched.iter_mut().find(|one| one.runtime == host.id());
    if let Some(known) = known {
        known.tasks.push(Arc::downgrade(task));
        return;
    }
    watched.push(Watched {
        runtime: host.id(),
        tasks: vec![Arc::downgrade(task)],
    });
    watcher.spawn(watch_over(host.clone()));
}

/// Returns the library's tasks in the runtime `host` that have neither ended nor been moved to another runtime. If
/// there are none, removes `host` from the watched runtimes.
fn tasks_of(host: &Handle) -> Vec<Arc<Hosted>> {
    let mut watched = watched();
    let Some(at) = watched.iter().position(|one| one.runtime == host.id()) else {
        return Vec::new();
    };
    let tasks = &mut watched[at].tasks;
    tasks.retain(|task| task.upgrade().is_some_and(|task| task.is_live()));
    let live: Vec<_> = tasks.iter().filter_map(Weak::upgrade).collect();
    if live.is_empty() {
        watched.swap_remove(at);
    }
    live
}

/// Checks at regular intervals whether the runtime runs its tasks. Ends when the runtime has no task of the library.
async fn watch_over(host: Handle) {
    loop {
        tokio::time::sleep(PERIOD).await;
        let tasks = tasks_of(&host);
        if tasks.is_empty() {
            return;
        }
        drop(tasks);
        // If a test has paused the clock of this runtime, do not move its tasks: their timers would then follow the
        // clock of the background runtime, which is not paused.
        if is_paused(&host) {
            continue;
        }
        let mut runs = host.spawn(async {});
        let ran = tokio::time::timeout(PATIENCE, &mut runs).await;
        if ran.is_err() && !is_paused(&host) {
            runs.abort();
            let tasks = tasks_of(&host);
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
    let shown = tokio::time::Instant::now().into_std();
    shown < before || shown > std::time::Instant::now()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver, Sender};

    use super::*;

    /// When this value is dropped, it sends the name of the current thread to the channel.
    struct Reports(Sender<Option<String>>);

    impl Drop for Reports {
        fn drop(&mut self) {
            let name = std::thread::current().name().map(str::to_owned);
            let _ = self.0.send(name);
        }
    }

    /// Spawns a task that never ends. The returned receiver gets the name of the thread that drops the task.
    fn endless(runtime: &Runtime) -> Receiver<Option<String>> {
        let (sender, receiver) = mpsc::channel();
        let reports = Reports(sender);
        let _entered = runtime.enter();
        assert!(spawn(Box::pin(async move {
            let _reports = reports;
            std::future::pending::<()>().await;
        })));
        receiver
    }

    fn builder() -> Builder {
        let mut builder = Builder::new_current_thread();
        builder.enable_all();
        builder
    }

    #[test]
    fn tasks_of_an_idle_runtime_move_to_the_background_runtime_unless_time_is_paused() {
        let idle = builder().build().expect("a runtime");
        let paused = builder().start_paused(true).build().expect("a runtime");
        let (of_paused, of_idle) = (endless(&paused), endless(&idle));
        let dropped_by = of_idle.recv_timeout(Duration::from_secs(30));
        assert_eq!(dropped_by, Ok(Some("quorate-background".to_owned())));
        std::thread::sleep(2 * (PERIOD + PATIENCE));
        let kept = of_paused.try_recv();
        assert!(kept.is_err(), "{kept:?}");
    }

    #[test]
    fn task_stays_in_a_runtime_that_makes_progress() {
        // On a busy machine, the thread can pause for longer than `PATIENCE`, and the task is then moved. So the test
        // makes up to five tries, and one try in which the task stays is enough.
        let kept = (0..5).any(|_| {
            let runtime = builder().build().expect("a runtime");
            let dropped = endless(&runtime);
            runtime.block_on(async { tokio::time::sleep(2 * (PERIOD + PATIENCE)).await });
            dropped.try_recv().is_err()
        });
        assert!(kept);
    }

    #[test]
    fn runtime_is_not_watched_after_its_shutdown() {
        let runtime = builder().build().expect("a runtime");
        let id = runtime.handle().id();
        let dropped = endless(&runtime);
        drop(runtime);
        assert!(dropped.try_recv().is_ok());
        let is_watched = || watched().iter().any(|one| one.runtime == id);
        let until = std::time::Instant::now() + Duration::from_secs(30);
        while is_watched() {
            assert!(
                std::time::Instant::now() < until,
                "a runtime must be removed from the watched runtimes after its shutdown"
            );
            std::thread::sleep(PERIOD / 10);
        }
    }
}
