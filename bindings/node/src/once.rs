//! The native half of work that runs once per period.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use napi_derive::napi;
use quorate_bindings::client::Client;
use quorate_bindings::once::{OnceOptions, Period};

use crate::bridge::Bridge;
use crate::client::NativeRedlock;
use crate::duration::{from_ms, wait_from_ms};

/// Work that runs once per period.
#[napi]
pub struct NativeOnce {
    options: OnceOptions,
    client: Arc<Client>,
}

#[napi]
impl NativeOnce {
    /// A period that repeats every `period` milliseconds, or the single period from `start` to `end` (milliseconds
    /// since 1970).
    #[napi(constructor)]
    pub fn new(
        redlock: &NativeRedlock,
        name: String,
        period: Option<f64>,
        start: Option<f64>,
        end: Option<f64>,
        wait: Option<f64>,
    ) -> Self {
        let at = |milliseconds: f64| UNIX_EPOCH + from_ms(milliseconds);
        let options = OnceOptions {
            name: name.into_bytes(),
            period: match (start, end) {
                (Some(start), Some(end)) => Period::One(at(start)..at(end)),
                _ => Period::Every(from_ms(period.unwrap_or_default())),
            },
            wait: wait.map(wait_from_ms),
            note: String::new(),
        };
        let client = redlock.client.clone();
        Self { options, client }
    }

    #[napi]
    pub fn create(&self, bridge: &Bridge) -> i64 {
        bridge.start(self.options.create(&self.client))
    }

    #[napi]
    pub fn drop_record(&self, bridge: &Bridge) -> i64 {
        bridge.start(self.options.remove(&self.client))
    }

    /// The reply is the last recorded period and the note. Acquires the lock of the record.
    #[napi]
    pub fn record(&self, bridge: &Bridge) -> i64 {
        bridge.start(self.options.read(&self.client))
    }

    /// Records the period as done. The reply is a guard if the work must be done now.
    #[napi]
    pub fn at_most_once(&self, bridge: &Bridge) -> i64 {
        bridge.start_acquire(self.options.at_most_once(&self.client))
    }

    /// The reply is a guard if the work must be done now. Its method `record` records the period as done.
    #[napi]
    pub fn at_least_once(&self, bridge: &Bridge) -> i64 {
        bridge.start_acquire(self.options.at_least_once(&self.client))
    }
}
