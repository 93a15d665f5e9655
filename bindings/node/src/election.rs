//! The native half of an election and of its observer.

use std::sync::{Arc, Mutex};

use napi::bindgen_prelude::{Error, Result};
use napi_derive::napi;
use quorate_bindings::client::Client;
use quorate_bindings::election::{ElectionOptions, Observer};

use crate::bridge::Bridge;
use crate::client::NativeRedlock;
use crate::duration::{from_ms, wait_from_ms};
use crate::failure::thrown;
use crate::sync::lock;

/// An election.
#[napi]
pub struct NativeElection {
    options: ElectionOptions,
    client: Arc<Client>,
}

#[napi]
impl NativeElection {
    #[napi(constructor)]
    pub fn new(redlock: &NativeRedlock, name: String, ttl: Option<f64>, wait: Option<f64>) -> Self {
        let options = ElectionOptions {
            name: name.into_bytes(),
            ttl: ttl.map(from_ms),
            wait: wait.map(wait_from_ms),
        };
        let client = redlock.client.clone();
        Self { options, client }
    }

    /// The reply is the guard of the leadership. If the leadership is lost later, a second message follows.
    #[napi]
    pub fn campaign(&self, bridge: &Bridge, note: Option<String>) -> i64 {
        bridge.start_acquire(self.options.campaign(&self.client, note))
    }

    #[napi]
    pub fn observe(&self) -> Result<NativeObservation> {
        let observer = self.options.observe(&self.client).map_err(thrown)?;
        let observer = Mutex::new(Some(observer));
        Ok(NativeObservation { observer })
    }
}

/// An observer of an election.
#[napi]
pub struct NativeObservation {
    /// `None` after `close`.
    observer: Mutex<Option<Observer>>,
}

#[napi]
impl NativeObservation {
    /// The reply is the next leader, or null.
    #[napi]
    pub fn next(&self, bridge: &Bridge) -> Result<i64> {
        let observer = lock(&self.observer);
        let closed = || Error::from_reason("the observer is closed");
        let next = observer.as_ref().ok_or_else(closed)?.next();
        Ok(bridge.start(next.map_err(thrown)?))
    }

    #[napi]
    pub fn close(&self) {
        let observer = lock(&self.observer).take();
        drop(observer);
    }
}
