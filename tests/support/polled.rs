//! A future that is dropped at a chosen await point.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// An upper limit on the polls of a future, so that the loop of a failing test ends. Every future in the tests needs
/// fewer polls.
pub(crate) const MAX_POLLS: usize = 400;

/// Polls a future whenever it is woken, at most `polls` times, and then drops it. Returns the result, or `None` if the
/// future did not complete.
pub(crate) async fn poll_then_drop<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut remaining = polls;
    std::future::poll_fn(move |context| {
        if remaining == 0 {
            return Poll::Ready(None);
        }
        remaining -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // This was the last poll. Return immediately, so that the future is dropped at this await point.
            Poll::Pending if remaining == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
