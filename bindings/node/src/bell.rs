//! Wakes the event loop of one JavaScript environment.

use napi::Status;
use napi::bindgen_prelude::{Function, Result};
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use quorate_bindings::mailbox::Bell;

/// The function that makes JavaScript take its messages. It is weak: it does not keep the process alive.
pub(crate) struct JsBell(ThreadsafeFunction<(), (), (), Status, false, true>);

impl JsBell {
    pub(crate) fn new(ring: Function<'_, (), ()>) -> Result<Self> {
        let function = ring
            .build_threadsafe_function::<()>()
            .callee_handled::<false>()
            .weak::<true>()
            .build()?;
        Ok(Self(function))
    }
}

impl Bell for JsBell {
    fn ring(&self) -> bool {
        let mode = ThreadsafeFunctionCallMode::NonBlocking;
        self.0.call((), mode) == Status::Ok
    }
}
