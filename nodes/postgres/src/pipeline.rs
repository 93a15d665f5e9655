//! Sends several requests at once, in a fixed order.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// A request that is sent when it is polled for the first time.
pub(crate) type Request<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Sends all requests in this order, before it awaits the first answer. Returns the answers in the same order.
///
/// The order matters: the server executes the requests of a connection one after the other.
pub(crate) async fn in_order<T>(mut requests: Vec<Request<'_, T>>) -> Vec<T> {
    let mut answers: Vec<Option<T>> = requests.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (request, answer) in requests.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let Poll::Ready(ready) = request.as_mut().poll(cx)
            {
                *answer = Some(ready);
            }
        }
        if answers.iter().all(Option::is_some) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    answers.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn requests_are_sent_and_answered_in_their_order() {
        let sent = Mutex::new(Vec::new());
        let one = |number: u64| -> Request<'_, u64> {
            let sent = &sent;
            Box::pin(async move {
                sent.lock().expect("a list").push(number);
                // The first request gets its answer last.
                for _ in number..9 {
                    tokio::task::yield_now().await;
                }
                number
            })
        };
        let answers = in_order((0..9).map(one).collect()).await;
        let numbers: Vec<u64> = (0..9).collect();
        assert_eq!(
            (answers, sent.into_inner().expect("a list")),
            (numbers.clone(), numbers)
        );
    }
}
