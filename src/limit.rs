//! One deadline that several waits share.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use crate::protocol::instant::Instant;
use crate::runtime::{BoxFuture, Runtime};

/// One timer for several waits that share a deadline. The timer is created when it is needed for the first time.
pub(crate) struct Limit<'a> {
    runtime: &'a dyn Runtime,
    ends_at: Instant,
    timer: Option<BoxFuture<()>>,
}

impl<'a> Limit<'a> {
    pub(crate) fn new(runtime: &'a dyn Runtime, ends_at: Instant) -> Self {
        Self {
            runtime,
            ends_at,
            timer: None,
        }
    }

    /// Waits for a future until the deadline. At the deadline the future is dropped and the result is `None`. A future
    /// that is ready when this call polls it first gives its result even after the deadline.
    pub(crate) async fn wait<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let (runtime, ends_at) = (self.runtime, self.ends_at);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            if runtime.now() >= ends_at {
                return Poll::Ready(None);
            }
            let timer = self
                .timer
                .get_or_insert_with(|| runtime.sleep_until(ends_at));
            timer.as_mut().poll(cx).map(|()| None)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::runtime::Tokio;

    #[tokio::test]
    async fn waits_that_share_a_time_limit_end_at_the_same_deadline() {
        let runtime = Tokio::default();
        let mut limit = Limit::new(&runtime, Instant::now() + Duration::from_millis(20));
        assert_eq!(limit.wait(async { 1 }).await, Some(1));
        assert_eq!(limit.wait(std::future::pending::<()>()).await, None);
        assert_eq!(limit.wait(std::future::pending::<()>()).await, None);
        assert_eq!(limit.wait(async { 2 }).await, Some(2));
    }
}
