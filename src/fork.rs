//! Keeps a `Redlock` with the process that built it, if this process forks, for example in a web server with a process
//! for each worker.
//!
//! A forked process has copies of all values of its parent, but only one of its threads, and it shares the parent's
//! sockets. So it must neither wait for the parent's background threads, nor send anything on the parent's connections:
//! a release from there would end the lock of the parent. Therefore everything that belongs to a `Redlock` stays with
//! the process that built it:
//!
//! - An acquire in another process fails with an error that says so, before it takes any mutex: another thread of the
//!   parent may have held the mutex during the fork, and this thread does not exist here.
//! - A node refuses every request in another process.
//! - A task of the library that runs in another process (if the parent forked on the thread of its runtime) does
//!   nothing any more. It is not even dropped, because that would remove the parent's sockets from the event queue of
//!   the runtime, which the processes share.
//! - A guard that is dropped in another process releases nothing.

use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use futures::future::BoxFuture;

/// Why a `Redlock` cannot be used in this process.
pub(crate) const FORKED: &str = "this process was forked from the process that built this Redlock, whose locks and \
                                 connections stay with that process: build a new Redlock in this process";

/// The process that made a value, by its process id. A process that was forked as the first one of a new PID namespace
/// has the id of its parent if the parent is the first process of its own namespace; this is not recognized. A mark
/// that the kernel clears in a forked process (`MADV_WIPEONFORK`) or a handler of forks (`pthread_atfork`) would need
/// `unsafe`, and a look at `/proc` at each call would be slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The process that calls this function.
    pub fn current() -> Self {
        Self(std::process::id())
    }

    /// A process that is not the calling one.
    #[cfg(test)]
    pub(crate) fn other() -> Self {
        Self(std::process::id() ^ 1)
    }

    /// Whether the calling process is another one, because it was forked.
    pub fn is_not_current(self) -> bool {
        self != Self::current()
    }
}

/// The process that used a value first. Unlike [`OnceLock`], this type never waits: in a forked process, a thread for
/// which it would have to wait may not exist.
#[derive(Debug)]
pub(crate) struct FirstProcess(AtomicU32);

impl FirstProcess {
    /// The id of no process: the value has not been used yet.
    const NONE: u32 = 0;

    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(Self::NONE))
    }

    /// Whether another process used the value first.
    pub(crate) fn is_other(&self) -> bool {
        let id = self.0.load(Ordering::SeqCst);
        id != Self::NONE && Process(id).is_not_current()
    }

    /// Whether another process used the value first. If no process has used it yet, records the calling process.
    pub(crate) fn is_other_or_claim(&self) -> bool {
        let Process(current) = Process::current();
        let (unused, order) = (Self::NONE, Ordering::SeqCst);
        let claimed = self.0.compare_exchange(unused, current, order, order);
        claimed.is_err_and(|id| id != current)
    }
}

/// A static value that each process makes for itself: a forked process does not see the value of its parent.
pub struct PerProcess<T> {
    process: OnceLock<Process>,
    value: OnceLock<T>,
    /// The values of processes that were forked from this one.
    forked: OnceLock<Box<PerProcess<T>>>,
}

impl<T> PerProcess<T> {
    /// Makes no value yet.
    pub const fn new() -> Self {
        Self {
            process: OnceLock::new(),
            value: OnceLock::new(),
            forked: OnceLock::new(),
        }
    }

    /// The value of this process. Makes the value at the first call.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let mut owner = self;
        while owner.process.get_or_init(Process::current).is_not_current() {
            owner = owner.forked.get_or_init(Box::default);
        }
        owner.value.get_or_init(make)
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes a task that does nothing in another process than this one.
pub(crate) fn bind_to_process(task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
    Box::pin(ProcessBound {
        process: Process::current(),
        task: Some(task),
    })
}

struct ProcessBound {
    process: Process,
    task: Option<BoxFuture<'static, ()>>,
}

impl Future for ProcessBound {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.process.is_not_current() {
            return Poll::Pending;
        }
        let Some(task) = &mut self.task else {
            return Poll::Ready(());
        };
        let polled = task.as_mut().poll(cx);
        if polled.is_ready() {
            self.task = None;
        }
        polled
    }
}

impl Drop for ProcessBound {
    fn drop(&mut self) {
        if self.process.is_not_current() {
            std::mem::forget(self.task.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_another_process_is_not_used() {
        let value_of_process = PerProcess::new();
        assert_eq!(
            (
                *value_of_process.get_or_init(|| 1),
                *value_of_process.get_or_init(|| 2)
            ),
            (1, 1)
        );
        let inherited = PerProcess::new();
        inherited.process.get_or_init(|| Process(0));
        inherited.value.get_or_init(|| 1);
        let again = (*inherited.get_or_init(|| 2), *inherited.get_or_init(|| 3));
        assert_eq!(again, (2, 2));
    }

    #[test]
    fn value_belongs_to_the_process_that_used_it_first() {
        let unused = FirstProcess::new();
        assert!(!unused.is_other());
        assert!(!unused.is_other_or_claim());
        assert!(!unused.is_other_or_claim());
        let Process(current) = Process::current();
        assert_eq!(unused.0.load(Ordering::SeqCst), current);
        let inherited = FirstProcess(AtomicU32::new(current + 1));
        assert!(inherited.is_other() && inherited.is_other_or_claim());
    }

    #[test]
    fn task_of_another_process_is_neither_run_nor_dropped() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let task = |sender: std::sync::mpsc::Sender<()>| -> BoxFuture<'static, ()> {
            Box::pin(async move { sender.send(()).expect("sent") })
        };
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut bound_to_other = ProcessBound {
            process: Process(0),
            task: Some(task(sender.clone())),
        };
        assert!(
            Pin::new(&mut bound_to_other)
                .poll(&mut context)
                .is_pending()
        );
        drop(bound_to_other);
        assert!(
            bind_to_process(task(sender))
                .as_mut()
                .poll(&mut context)
                .is_ready()
        );
        assert_eq!(receiver.try_recv(), Ok(()));
        // The task of the other process still owns its sender.
        assert_eq!(
            receiver.try_recv(),
            Err(std::sync::mpsc::TryRecvError::Empty)
        );
    }
}
