//! The native half of a `Redlock`.

use std::sync::Arc;

use napi::bindgen_prelude::Result;
use napi_derive::napi;
use quorate_bindings::call::Call;
use quorate_bindings::client::Client;
use quorate_bindings::queries;

use crate::bridge::Bridge;
use crate::failure::thrown;
use crate::lock_options::LockOptions;
use crate::memory::NativeMemory;
use crate::settings::Settings;

/// A `Redlock` with its native thread.
#[napi]
pub struct NativeRedlock {
    pub(crate) client: Arc<Client>,
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
        let masters = memory.map(|memory| memory.masters.clone());
        let builder = settings.builder(masters, from_env);
        let client = builder.and_then(Client::start).map_err(thrown)?;
        bridge.add_client(&client);
        Ok(Self { client })
    }

    /// The names of the masters, without credentials.
    #[napi(getter)]
    pub fn masters(&self) -> Vec<String> {
        let masters = self.client.redlock().masters();
        masters.map(ToString::to_string).collect()
    }

    /// The reply is the guard, or null if another client holds the lock and `is_try` is set. If the lock is lost
    /// later, a second message follows.
    #[napi]
    pub fn acquire(&self, bridge: &Bridge, options: LockOptions) -> i64 {
        let is_try = options.is_try == Some(true);
        let call = match options.options() {
            Ok(options) if is_try => options.try_acquire(&self.client),
            Ok(options) => options.acquire(&self.client),
            Err(error) => Call::done(&self.client, Err(error)),
        };
        bridge.start_acquire(call)
    }

    /// The reply is the state of the lock on each master.
    #[napi]
    pub fn status(&self, bridge: &Bridge, name: String) -> i64 {
        bridge.start(queries::status(&self.client, name.into_bytes()))
    }

    /// The reply is the state of the permits and of the queue of a semaphore.
    #[napi]
    pub fn semaphore_status(&self, bridge: &Bridge, name: String) -> i64 {
        bridge.start(queries::semaphore_status(&self.client, name.into_bytes()))
    }

    /// The reply is the list of held locks.
    #[napi]
    pub fn list(&self, bridge: &Bridge, prefix: String) -> i64 {
        bridge.start(queries::list(&self.client, prefix.into_bytes()))
    }

    /// The reply is the report on each master.
    #[napi]
    pub fn inspect(&self, bridge: &Bridge) -> i64 {
        bridge.start(queries::inspect(&self.client))
    }

    /// Force-releases a lock, or with `slot` a permit of a semaphore. The reply is the state before.
    #[napi]
    pub fn break_lock(&self, bridge: &Bridge, name: String, slot: Option<u32>) -> i64 {
        let name = name.into_bytes();
        bridge.start(match slot {
            Some(slot) => queries::break_permit(&self.client, name, slot as usize),
            None => queries::break_lock(&self.client, name),
        })
    }
}
