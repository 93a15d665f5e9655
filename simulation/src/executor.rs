//! A single-threaded executor in simulated time.
//!
//! Tasks are polled one at a time. When no task is ready, the next simulated event happens. The seed decides the
//! order in which ready tasks are polled, and whether a task is delayed at an await.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use quorate::runtime::BoxFuture;

use crate::world::{Event, Shared};

type ReadyTasks = Arc<Mutex<VecDeque<usize>>>;

struct TaskWaker {
    ready: ReadyTasks,
    task: usize,
    is_queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::Relaxed) {
            let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
            ready.push_back(self.task);
        }
    }
}

struct Task {
    client: usize,
    future: BoxFuture<()>,
    state: Arc<TaskWaker>,
    waker: Waker,
    /// Whether the task has been delayed since its last wake-up. A task is delayed at most once after each wake-up.
    was_delayed: bool,
}

/// If tasks are polled this number of times without an event in between, they are considered to be in an endless loop.
const MOST_POLLS: usize = 100_000;

/// The executor for the tasks of all processes.
pub(crate) struct Executor {
    shared: Arc<Shared>,
    ready: ReadyTasks,
    /// The tasks by index. An index is never reused, so a late wake-up cannot reach another task.
    tasks: Vec<Option<Task>>,
}

impl Executor {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let ready = shared.ready_tasks.clone();
        Self {
            shared,
            ready,
            tasks: Vec::new(),
        }
    }

    pub(crate) fn spawn(&mut self, client: usize, future: BoxFuture<()>) {
        let task = self.tasks.len();
        let state = Arc::new(TaskWaker {
            ready: self.ready.clone(),
            task,
            is_queued: AtomicBool::new(false),
        });
        let waker = Waker::from(state.clone());
        state.wake_by_ref();
        self.tasks.push(Some(Task {
            client,
            future,
            state,
            waker,
            was_delayed: false,
        }));
    }

    /// Polls tasks until no task is ready. Returns false if a rule was broken, or if tasks seem to wake each other
    /// endlessly.
    pub(crate) fn poll_ready_tasks(&mut self) -> bool {
        for _ in 0..MOST_POLLS {
            let Some(task) = self.next_ready() else {
                return true;
            };
            if !self.poll_task(task) {
                return false;
            }
        }
        let mut world = self.shared.world();
        let now = world.now;
        world.observer.checkers.record_endless_loop(now, MOST_POLLS);
        false
    }

    fn next_ready(&self) -> Option<usize> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        if ready.len() > 1 {
            let mut world = self.shared.world();
            if world.scenario.net.shuffle {
                let count = ready.len() as u64;
                let chosen = world.rng.below(count) as usize;
                ready.swap(0, chosen);
            }
        }
        ready.pop_front()
    }

    fn poll_task(&mut self, index: usize) -> bool {
        let Some(task) = self.tasks[index].as_mut() else {
            return true;
        };
        {
            let mut world = self.shared.world();
            let now = world.now;
            world.polled_task = index;
            let process = &mut world.processes[task.client];
            if process.paused_until > now {
                process.postponed_tasks.push(index);
                return true;
            }
            let net = world.scenario.net;
            if net.doze_ppm > 0
                && !task.was_delayed
                && !world.faults_have_ended()
                && world.rng.chance(net.doze_ppm)
            {
                task.was_delayed = true;
                let wakes_at = now + world.rng.below(net.doze);
                world.observer.coverage.task_delays += u64::from(wakes_at > now);
                world.schedule(wakes_at, Event::TaskReady(index as u32));
                return true;
            }
        }
        task.was_delayed = false;
        let client = task.client;
        task.state.is_queued.store(false, Ordering::Relaxed);
        let is_ready = {
            let mut cx = Context::from_waker(&task.waker);
            self.shared.set_polling(true);
            let is_ready = Pin::new(&mut task.future).poll(&mut cx) == Poll::Ready(());
            self.shared.set_polling(false);
            is_ready
        };
        if is_ready {
            self.tasks[index] = None;
        }
        let spawned = {
            let mut world = self.shared.world();
            let now = world.now;
            world.observer.check_after_event(now, Some(client));
            if world.observer.checkers.violation.is_some() {
                return false;
            }
            std::mem::take(&mut world.spawned_tasks)
        };
        for (client, future) in spawned {
            self.spawn(client, future);
        }
        true
    }

    /// Makes tasks ready again, after a delay at an await or after a pause of their process.
    pub(crate) fn wake(&mut self, tasks: impl IntoIterator<Item = usize>) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.extend(tasks);
    }

    /// Removes all tasks of a client process from the executor, and returns them. The caller must not drop them while
    /// it holds the mutex of the `World`: a task may lock this mutex when it is dropped.
    pub(crate) fn remove_tasks(&mut self, client: usize) -> impl Sized + use<> {
        let take_if_of_client = |task: &mut Option<Task>| {
            if task.as_ref().is_some_and(|task| task.client == client) {
                task.take()
            } else {
                None
            }
        };
        self.tasks
            .iter_mut()
            .filter_map(take_if_of_client)
            .collect::<Vec<_>>()
    }
}
