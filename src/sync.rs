//! The locks, numbers and wakers of what is shared between threads. Under `--cfg quorate_loom` they are
//! loom's in tests, which then try every order of threads (CONTRIBUTING.md).

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

    /// Tries every order in which threads give way at most three times against their will: nearly all faults
    /// of this kind need fewer, and all orders would take for ever.
    pub(crate) fn model(of: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(of);
    }

    /// Loom's, with the signature of the other.
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

    /// What is promised of tokio's, for one who waits: a call that comes first is kept. Tokio's own orders
    /// nothing in loom's eyes.
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
