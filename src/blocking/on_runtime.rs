//! A held value (for example a guard) together with a handle of the background thread.

use std::future::Future;

use super::runtime_thread::RuntimeThread;
use crate::error::CannotBlock;

/// A guard or another held value. When this wrapper is dropped, the value is dropped inside the background runtime,
/// which sends the releases.
pub(super) struct OnRuntime<G> {
    /// `None` once the value has been taken or dropped.
    value: Option<G>,
    pub(super) runtime_thread: RuntimeThread,
}

impl<G> OnRuntime<G> {
    pub(super) fn new(value: G, runtime_thread: &RuntimeThread) -> Self {
        Self {
            value: Some(value),
            runtime_thread: runtime_thread.clone(),
        }
    }

    pub(super) fn get(&self) -> &G {
        self.value
            .as_ref()
            .expect("the held value must not have been taken out yet")
    }

    pub(super) fn parts(&mut self) -> (&mut G, &RuntimeThread) {
        let value = self.value.as_mut();
        (
            value.expect("the held value must not have been taken out yet"),
            &self.runtime_thread,
        )
    }

    /// Calls `release` inside the background runtime, and waits for its result. If the caller must not wait, the value
    /// is released in the background.
    pub(super) fn release_with<T, F: Future<Output = T>>(
        &self,
        release: impl FnOnce(&G) -> F,
    ) -> Result<T, CannotBlock> {
        if self.runtime_thread.is_forked() {
            return Err(CannotBlock::FORKED);
        }
        let released = {
            let _entered = self.runtime_thread.enter();
            release(self.get())
        };
        self.runtime_thread.wait(released)
    }

    /// Takes out the held value and the handle of the background thread. The background thread runs as long as a handle
    /// exists.
    pub(super) fn into_parts(mut self) -> (G, RuntimeThread) {
        let value = self
            .value
            .take()
            .expect("the held value must not have been taken out yet");
        (value, self.runtime_thread.clone())
    }
}

impl<G> Drop for OnRuntime<G> {
    fn drop(&mut self) {
        if self.runtime_thread.is_forked() {
            // The held value belongs to the parent process.
            std::mem::forget(self.value.take());
            return;
        }
        let _entered = self.runtime_thread.enter();
        self.value = None;
    }
}
