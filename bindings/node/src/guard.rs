//! The native half of a guard.

use napi::bindgen_prelude::BigInt;
use napi_derive::napi;
use quorate::LockGuard;
use serde_json::json;

use crate::bridge::Bridge;
use crate::duration::{from_ms, to_ms};
use crate::failure;
use crate::held_lock::HeldLock;

/// A held lock. Dropping it releases the lock in the background.
#[napi]
pub struct NativeGuard {
    held_lock: HeldLock,
    fencing_token: Option<u64>,
    slot: Option<u32>,
    resources: Vec<String>,
}

impl NativeGuard {
    pub(crate) fn new(held_lock: HeldLock) -> Self {
        let hold = held_lock.hold();
        let guard = hold.as_ref().map(|hold| hold.guard());
        let as_text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let names = guard.map(|guard| guard.resources().map(as_text).collect());
        Self {
            fencing_token: guard.and_then(LockGuard::fencing_token),
            slot: guard.and_then(LockGuard::slot).map(|slot| slot as u32),
            resources: names.unwrap_or_default(),
            held_lock,
        }
    }
}

#[napi]
impl NativeGuard {
    #[napi(getter)]
    pub fn fencing_token(&self) -> Option<BigInt> {
        self.fencing_token.map(BigInt::from)
    }

    #[napi(getter)]
    pub fn slot(&self) -> Option<u32> {
        self.slot
    }

    #[napi(getter)]
    pub fn resources(&self) -> Vec<String> {
        self.resources.clone()
    }

    /// Milliseconds.
    #[napi(getter)]
    pub fn remaining(&self) -> f64 {
        let hold = self.held_lock.hold();
        hold.map_or(0.0, |hold| to_ms(hold.guard().remaining()))
    }

    #[napi]
    pub fn is_valid(&self) -> bool {
        let hold = self.held_lock.hold();
        hold.is_some_and(|hold| hold.guard().is_valid())
    }

    /// Starts the release. The reply is whether the lock was valid until then.
    #[napi]
    pub fn release(&self, bridge: &Bridge) -> i64 {
        let home = &self.held_lock.home;
        let hold = self.held_lock.take();
        // The call queues the releases, so the lock is released even if the task never runs.
        let released = hold.and_then(|hold| home.enter(|| hold.guard().release()));
        bridge.start(home, |call| async move {
            let was_valid = match released {
                Some(released) => released.await.was_valid,
                None => false,
            };
            call.reply_with(Ok(json!(was_valid)));
        })
    }

    /// Starts to watch the lock: a notice comes each time the lock is at risk. The reply comes when the lock has ended.
    #[napi]
    pub fn watch_risk(&self, bridge: &Bridge, margin: f64) -> i64 {
        // The watch does not keep the lock.
        let hold = self.held_lock.hold();
        let watch = hold.map(|hold| hold.guard().at_risk(from_ms(margin)));
        bridge.start(&self.held_lock.home, |call| async move {
            if let Some(mut watch) = watch {
                while let Ok(risk) = watch.next().await {
                    call.notify(json!({ "atRisk": failure::risk(&risk) }));
                }
            }
            call.reply_with(Ok(json!(null)));
        })
    }

    /// Starts an extension.
    #[napi]
    pub fn extend(&self, bridge: &Bridge, ttl: f64) -> i64 {
        let hold = self.held_lock.hold();
        bridge.start(&self.held_lock.home, move |call| async move {
            let result = match hold {
                Some(hold) => hold.guard().extend(from_ms(ttl)).await,
                None => Err(quorate::ExtendError::Lost(quorate::LossCause::Released)),
            };
            let result = result.map_err(|error| failure::of_extend(&error));
            call.reply_with(result.map(|()| json!(null)));
        })
    }
}
