//! Tests of `scope` as services use it: inside helper functions, in spawned tasks, and with one error type for the
//! errors of the lock and of the closure.

use std::future::Future;
use std::io;

use futures::future::BoxFuture;
use quorate::{LockGuard, Redlock, ScopeError};

use crate::support::{ms, secs};

#[expect(
    clippy::manual_async_fn,
    reason = "the signature must show that the future is `Send`"
)]
/// A helper function of a service: runs `body` under the lock of one tenant. The returned future can be spawned.
///
/// `body` returns a boxed future, because the signature cannot name the future of a generic async closure.
fn for_tenant<'a, T: Send + 'a>(
    redlock: &'a Redlock,
    tenant: &'a str,
    body: impl for<'g> FnOnce(&'g LockGuard) -> BoxFuture<'g, T> + Send + 'a,
) -> impl Future<Output = Result<T, ScopeError<T>>> + Send + 'a {
    async move {
        let resource = format!("tenant:{tenant}");
        let body = async move |guard: &LockGuard| body(guard).await;
        redlock.scope(resource, body).await
    }
}

#[tokio::test]
async fn future_of_a_generic_function_that_calls_scope_is_send() {
    let redlock = Redlock::in_memory(3);
    let spawned = tokio::spawn(async move {
        for_tenant(&redlock, "7", |guard| {
            Box::pin(async move {
                tokio::time::sleep(ms(1)).await;
                guard.fencing_token()
            })
        })
        .await
    });
    assert!(matches!(spawned.await, Ok(Ok(Some(_)))));
}

#[expect(
    clippy::manual_async_fn,
    reason = "the signature must show that the future is `Send`"
)]
/// A helper function that passes the fencing token to `body` instead of the guard. The future of `body` borrows no
/// guard, so it needs no box.
fn run_with_token<T, Body, Work>(
    redlock: Redlock,
    body: Body,
) -> impl Future<Output = Result<T, ScopeError<T>>> + Send
where
    T: Send,
    Body: FnOnce(Option<u64>) -> Work + Send,
    Work: Future<Output = T> + Send,
{
    async move {
        redlock
            .scope("r", async move |guard| body(guard.fencing_token()).await)
            .await
    }
}

#[tokio::test]
async fn future_of_a_function_that_passes_a_fencing_token_to_a_closure_is_send() {
    let spawned = tokio::spawn(run_with_token(Redlock::in_memory(3), async |token| token));
    assert!(matches!(spawned.await, Ok(Ok(Some(_)))));
}

#[derive(Debug)]
enum ReportError {
    Lock(ScopeError),
    Disk(io::Error),
}

impl From<ScopeError> for ReportError {
    fn from(error: ScopeError) -> Self {
        Self::Lock(error)
    }
}

#[tokio::test]
async fn scope_error_distinguishes_a_failed_body_from_a_lost_lock() {
    let redlock = Redlock::in_memory(3);
    let disk_full = || ReportError::Disk(io::ErrorKind::StorageFull.into());
    let outcome: Result<(), _> = redlock.try_scope("r", async |_| Err(disk_full())).await;
    let is_disk_full = |error: &ReportError| matches!(error, ReportError::Disk(why) if why.kind() == io::ErrorKind::StorageFull);
    assert!(outcome.as_ref().is_err_and(is_disk_full), "{outcome:?}");

    let guard = redlock
        .acquire("r")
        .await
        .expect("the lock must be free again");
    let lock = redlock.lock("r").wait(quorate::Wait::For(ms(20)));
    let outcome = lock.try_scope(async |_| Ok::<_, ReportError>(())).await;
    let is_not_acquired =
        |error: &ReportError| matches!(error, ReportError::Lock(ScopeError::NotAcquired(_)));
    assert!(outcome.as_ref().is_err_and(is_not_acquired), "{outcome:?}");
    guard.release().await;

    // The lock expires before the closure ends, so `scope` drops the closure's future.
    let brief_lock = redlock.lock("r").ttl(secs(1)).renewal(false);
    let outcome = brief_lock
        .try_scope(async |_| {
            std::future::pending::<()>().await;
            Ok::<_, Box<dyn std::error::Error>>(())
        })
        .await;
    let error = outcome.expect_err("the scope must fail, because the lease has expired");
    assert!(matches!(
        error.downcast_ref::<ScopeError>(),
        Some(ScopeError::Lost {
            cause: quorate::LossCause::Expired,
            value: None
        })
    ));
}

#[tokio::test]
async fn scope_reports_a_lock_that_ended_while_its_body_blocked_the_thread() {
    let redlock = Redlock::in_memory(3);
    let lock = redlock.lock("r").ttl(secs(1));
    let outcome = lock
        .scope(async |_| {
            std::thread::sleep(ms(1_200));
            "done"
        })
        .await;
    let outcome = outcome.expect_err("the scope must report that the lock ended before the body");
    assert!(outcome.to_string().contains("lost"), "{outcome}");
    assert_eq!(outcome.into_value(), Some("done"));
}
