//! The native half of a quota.

use std::sync::Arc;

use napi_derive::napi;
use quorate_bindings::client::Client;
use quorate_bindings::quota::QuotaOptions;

use crate::bridge::Bridge;
use crate::client::NativeRedlock;
use crate::duration::wait_from_ms;

/// A quota. JavaScript passes numbers of units as safe integers.
#[napi]
pub struct NativeQuota {
    options: QuotaOptions,
    client: Arc<Client>,
}

#[napi]
impl NativeQuota {
    #[napi(constructor)]
    pub fn new(redlock: &NativeRedlock, name: String, wait: Option<f64>) -> Self {
        let options = QuotaOptions {
            name: name.into_bytes(),
            wait: wait.map(wait_from_ms),
        };
        let client = redlock.client.clone();
        Self { options, client }
    }

    #[napi]
    pub fn create(&self, bridge: &Bridge, units: i64) -> i64 {
        bridge.start(self.options.create(&self.client, units.unsigned_abs()))
    }

    #[napi]
    pub fn take(&self, bridge: &Bridge, units: i64) -> i64 {
        bridge.start(self.options.take(&self.client, units.unsigned_abs()))
    }

    #[napi]
    pub fn left(&self, bridge: &Bridge) -> i64 {
        bridge.start(self.options.left(&self.client))
    }

    #[napi]
    pub fn drop_quota(&self, bridge: &Bridge) -> i64 {
        bridge.start(self.options.remove(&self.client))
    }
}
