//! The native half of a guard.

use napi::bindgen_prelude::{BigInt, Result};
use napi_derive::napi;
use quorate_bindings::guard::Guard;
use quorate_bindings::quorate::LossCause;
use quorate_bindings::risk::RiskWatcher;

use crate::bridge::Bridge;
use crate::duration::{from_ms, to_ms};
use crate::failure::{self, thrown};

/// A held lock. Dropping it releases the lock in the background.
#[napi]
pub struct NativeGuard {
    guard: Guard,
}

impl NativeGuard {
    pub(crate) fn new(guard: Guard) -> Self {
        Self { guard }
    }
}

#[napi]
impl NativeGuard {
    #[napi(getter)]
    pub fn fencing_token(&self) -> Option<BigInt> {
        self.guard.fencing_token().map(BigInt::from)
    }

    #[napi(getter)]
    pub fn slot(&self) -> Option<u32> {
        self.guard.permit().map(|permit| permit as u32)
    }

    #[napi(getter)]
    pub fn resources(&self) -> Vec<String> {
        let as_text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
        self.guard.resources().iter().map(as_text).collect()
    }

    /// Milliseconds.
    #[napi(getter)]
    pub fn remaining(&self) -> f64 {
        to_ms(self.guard.remaining())
    }

    /// Why the lock ended, as one word.
    #[napi(getter)]
    pub fn lost(&self) -> Option<&'static str> {
        self.guard.loss().map(LossCause::as_str)
    }

    #[napi]
    pub fn is_valid(&self) -> bool {
        self.guard.is_valid()
    }

    /// Starts the release. The reply is whether the lock was valid until then.
    #[napi]
    pub fn release(&self, bridge: &Bridge) -> Result<i64> {
        Ok(bridge.start(self.guard.release().map_err(thrown)?))
    }

    /// Starts an extension.
    #[napi]
    pub fn extend(&self, bridge: &Bridge, ttl: f64) -> Result<i64> {
        let extend = self.guard.extend(from_ms(ttl));
        Ok(bridge.start(extend.map_err(thrown)?))
    }

    /// Watches the lock for the notice that it is at risk.
    #[napi]
    pub fn watch_risk(&self, margin: f64) -> Result<NativeRiskWatcher> {
        let watcher = self.guard.at_risk(from_ms(margin)).map_err(thrown)?;
        Ok(NativeRiskWatcher { watcher })
    }

    /// Starts to record the period of a job that runs at least once.
    #[napi]
    pub fn record(&self, bridge: &Bridge) -> Result<i64> {
        Ok(bridge.start(self.guard.record().map_err(thrown)?))
    }

    /// The failure of a job whose lock was lost while it ran, as JSON. Null if the lock is held.
    #[napi]
    pub fn stopped(&self, recorded: bool) -> Option<String> {
        let error = self.guard.stopped(recorded)?;
        Some(failure::of_call(&error).to_string())
    }
}

/// Watches a held lock, which it does not keep.
#[napi]
pub struct NativeRiskWatcher {
    watcher: RiskWatcher,
}

#[napi]
impl NativeRiskWatcher {
    /// The reply is the next notice (`atRisk`), or why the lock ended (`lost`).
    #[napi]
    pub fn next(&self, bridge: &Bridge) -> Result<i64> {
        Ok(bridge.start(self.watcher.next().map_err(thrown)?))
    }
}
