//! The native half of a `Redlock`.

use std::pin::Pin;
use std::sync::Arc;

use napi::bindgen_prelude::{Error, Result};
use napi_derive::napi;
use quorate::{AcquireError, LockRequest, LossCause, TryAcquire};
use serde_json::{Value, json};

use crate::bridge::Bridge;
use crate::call::Call;
use crate::held_lock::{HeldLock, Hold};
use crate::home::Home;
use crate::lock_options::LockOptions;
use crate::mailbox::Content;
use crate::memory::NativeMemory;
use crate::settings::Settings;
use crate::{failure, status, survey};

/// A `Redlock` with its home thread.
#[napi]
pub struct NativeRedlock {
    pub(crate) home: Arc<Home>,
}

#[napi]
impl NativeRedlock {
    /// Connects to no master. With `memory`, the masters are in memory. With `from_env`, settings that are not given
    /// are read from the environment.
    #[napi(constructor)]
    pub fn new(
        bridge: &Bridge,
        settings: Settings,
        memory: Option<&NativeMemory>,
        from_env: bool,
    ) -> Result<Self> {
        let home = settings
            .builder(memory.map(|memory| &memory.masters), from_env)
            .map_err(|error| error.to_string())
            .and_then(Home::start)
            .map_err(Error::from_reason)?;
        bridge.add_home(&home);
        Ok(Self { home })
    }

    /// The names of the masters, without credentials.
    #[napi(getter)]
    pub fn masters(&self) -> Vec<String> {
        self.home
            .redlock
            .masters()
            .map(ToString::to_string)
            .collect()
    }

    /// The reply is the guard, or null if another client holds the lock and `is_try` is set. If the lock is lost
    /// later, a notice follows.
    #[napi]
    pub fn acquire(&self, bridge: &Bridge, mut options: LockOptions) -> i64 {
        let home = self.home.clone();
        let is_try = options.is_try.take() == Some(true);
        let acquire = options
            .request(&home.redlock)
            .map(|request| start_acquire(request, is_try));
        bridge.start(&self.home, move |call| async move {
            let hold = match acquire {
                Ok(acquire) => acquire.await,
                Err(error) => Err(error),
            };
            reply_with_hold(call, hold, home).await;
        })
    }

    /// The reply is the state of the lock on each master.
    #[napi]
    pub fn status(&self, bridge: &Bridge, name: String) -> i64 {
        let redlock = self.home.redlock.clone();
        bridge.start(&self.home, |call| async move {
            let status = redlock.status(name).await;
            call.reply_with(
                status
                    .map(|status| status::of_lock(&status))
                    .map_err(|error| failure::invalid(&error)),
            );
        })
    }

    /// The reply is the state of the permits and of the queue of a semaphore.
    #[napi]
    pub fn semaphore_status(&self, bridge: &Bridge, name: String) -> i64 {
        let redlock = self.home.redlock.clone();
        bridge.start(&self.home, |call| async move {
            let status = redlock.semaphore_status(name).await;
            let status = status.map(|status| status::of_semaphore(&status));
            call.reply_with(status.map_err(|error| failure::invalid(&error)));
        })
    }

    /// The reply is the list of held locks.
    #[napi]
    pub fn list(&self, bridge: &Bridge, prefix: String) -> i64 {
        let redlock = self.home.redlock.clone();
        bridge.start(&self.home, |call| async move {
            let listing = redlock.list(prefix).await;
            call.reply_with(Ok(survey::of_listing(&listing)));
        })
    }

    /// The reply is the report on each master.
    #[napi]
    pub fn inspect(&self, bridge: &Bridge) -> i64 {
        let redlock = self.home.redlock.clone();
        bridge.start(&self.home, |call| async move {
            let inspections = redlock.inspect().await;
            call.reply_with(Ok(inspections.iter().map(survey::of_inspection).collect()));
        })
    }

    /// Force-releases a lock, or with `slot` a permit of a semaphore. The reply is the state before.
    #[napi]
    pub fn break_lock(&self, bridge: &Bridge, name: String, slot: Option<u32>) -> i64 {
        let redlock = self.home.redlock.clone();
        bridge.start(&self.home, move |call| async move {
            let status = match slot {
                Some(slot) => redlock.break_permit(name, slot as usize).await,
                None => redlock.break_lock(name).await,
            };
            call.reply_with(
                status
                    .map(|status| status::of_lock(&status))
                    .map_err(|error| failure::invalid(&error)),
            );
        })
    }
}

/// The result of an acquire: `None` if another client holds the lock.
type AcquireFuture =
    Pin<Box<dyn Future<Output = std::result::Result<Option<Hold>, AcquireError>> + Send>>;

/// Makes the future of the acquire at once: the library warns about a request that is dropped without a future, and a
/// call can be cancelled before its task has begun.
fn start_acquire(request: LockRequest, is_try: bool) -> AcquireFuture {
    if !is_try {
        let acquire = request.acquire();
        return Box::pin(async move { Ok(Some(Hold::Lock(acquire.await?))) });
    }
    let attempt = request.try_acquire();
    Box::pin(async move {
        Ok(match attempt.await? {
            TryAcquire::Acquired(guard) => Some(Hold::Lock(guard)),
            TryAcquire::Held(_) => None,
        })
    })
}

/// Replies with the held lock, and then waits for its loss.
pub(crate) async fn reply_with_hold(
    mut call: Call,
    result: std::result::Result<Option<Hold>, AcquireError>,
    home: Arc<Home>,
) {
    let hold = match result {
        Ok(Some(hold)) => hold,
        Ok(None) => return call.reply(Content::Value(Value::Null)),
        Err(error) => return call.reply(Content::Failure(failure::of_acquire(&error))),
    };
    // This task keeps no guard: it would otherwise renew the lock of a worker that has ended.
    let lost = hold.guard().lost();
    call.reply(Content::Guard(HeldLock::new(hold, home)));
    let cause = lost.await;
    if cause != LossCause::Released {
        call.notify(json!({ "lost": cause.as_str() }));
    }
}
