//! A future that is dropped at a chosen await point.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// An upper limit on the polls of a future, so that the loop of a failing test ends. Every future in the tests needs
/// fewer polls.
pub(crate) const ENOUGH: usize = 400;

/// Polls a future whenever it is woken, at most `polls` times, and then drops it. Returns the result, or `None` if the
/// future did not complete.
pub(crate) async fn polled<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            // This was the last poll. Return immediately, so that the future is dropped at this await point.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
