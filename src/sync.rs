//! The mutexes, atomics and wakers for state that threads share. Tests under `--cfg quorate_loom` use the types of the
//! crate loom instead, which tries all interleavings of the threads (CONTRIBUTING.md).

#[cfg(not(all(test, quorate_loom)))]
pub(crate) use {
    futures::task::AtomicWaker,
    std::sync::atomic::{AtomicU64, Ordering},
    std::sync::{Mutex, MutexGuard},
    tokio::sync::Notify,
};

#[cfg(all(test, quorate_loom))]
pub(crate) use {
    loom::sync::atomic::{AtomicU64, Ordering},
    loom::sync::{Mutex, MutexGuard},
    loomed::{AtomicWaker, Notify, model},
};

#[cfg(all(test, quorate_loom))]
mod loomed {
    use std::future::Future;
    use std::sync::PoisonError;
    use std::task::{Poll, Waker};

    use super::Mutex;

    /// Runs a test in all interleavings of its threads that need at most three preemptions (forced switches to another
    /// thread). More would take too long, and few concurrency bugs need more.
    pub(crate) fn model(body: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(body);
    }

    /// Loom's waker with the signature of `futures`' waker.
    #[derive(Debug)]
    pub(crate) struct AtomicWaker(loom::future::AtomicWaker);

    impl AtomicWaker {
        pub(crate) fn new() -> Self {
            Self(loom::future::AtomicWaker::new())
        }

        pub(crate) fn register(&self, waker: &Waker) {
            self.0.register(waker.clone());
        }

        pub(crate) fn wake(&self) {
            self.0.wake();
        }
    }

    /// A model of `tokio::sync::Notify` for a single waiter. It uses only loom's own types, because loom checks no
    /// others. A wait returns at once if the notification came before it.
    #[derive(Debug)]
    pub(crate) struct Notify(Mutex<(bool, Option<Waker>)>);

    impl Notify {
        pub(crate) fn new() -> Self {
            Self(Mutex::new((false, None)))
        }

        pub(crate) fn notify_one(&self) {
            let waker = {
                let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                state.0 = true;
                state.1.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }

        pub(crate) fn notified(&self) -> impl Future<Output = ()> + Send + '_ {
            std::future::poll_fn(|cx| {
                let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                if std::mem::take(&mut state.0) {
                    return Poll::Ready(());
                }
                state.1 = Some(cx.waker().clone());
                Poll::Pending
            })
        }
    }
}
