//! The native half of a quota.

use std::sync::Arc;

use napi_derive::napi;
use quorate::{Quota, Take, ValueError};
use serde_json::{Value, json};

use crate::bridge::Bridge;
use crate::client::NativeRedlock;
use crate::duration::wait_from_ms;
use crate::failure;
use crate::home::Home;

/// A quota. JavaScript passes numbers of units as safe integers.
#[napi]
pub struct NativeQuota {
    quota: Quota,
    home: Arc<Home>,
}

#[napi]
impl NativeQuota {
    #[napi(constructor)]
    pub fn new(redlock: &NativeRedlock, name: String, wait: Option<f64>) -> Self {
        let home = redlock.home.clone();
        let mut quota = home.redlock.quota(name);
        if let Some(wait) = wait {
            quota = quota.wait(wait_from_ms(wait));
        }
        Self { quota, home }
    }

    #[napi]
    pub fn create(&self, bridge: &Bridge, units: i64) -> i64 {
        let run = async move |quota: Quota| {
            quota
                .create(units.unsigned_abs())
                .await
                .map(|()| Value::Null)
        };
        self.start(bridge, run)
    }

    #[napi]
    pub fn take(&self, bridge: &Bridge, units: i64) -> i64 {
        self.start(bridge, async move |quota: Quota| {
            Ok(match quota.take(units.unsigned_abs()).await? {
                Take::Taken { left } => json!({ "taken": true, "left": left }),
                Take::SoldOut { left } => json!({ "taken": false, "left": left }),
            })
        })
    }

    #[napi]
    pub fn left(&self, bridge: &Bridge) -> i64 {
        self.start(bridge, async |quota: Quota| {
            quota.left().await.map(Value::from)
        })
    }

    #[napi]
    pub fn drop_quota(&self, bridge: &Bridge) -> i64 {
        self.start(bridge, async |quota: Quota| {
            quota.drop_quota().await.map(Value::from)
        })
    }
}

impl NativeQuota {
    fn start<T>(&self, bridge: &Bridge, run: impl FnOnce(Quota) -> T) -> i64
    where
        T: Future<Output = Result<Value, ValueError>> + Send + 'static,
    {
        let result = run(self.quota.clone());
        bridge.start(&self.home, |call| async move {
            call.reply_with(result.await.map_err(|error| failure::of_value(&error)));
        })
    }
}
