//! The native half of the npm package `quorate`. The TypeScript in `bindings/node/ts/` is the public API.
//!
//! JavaScript creates and settles all promises. No native thread enters JavaScript or waits for it:
//!
//! 1. A call from JavaScript starts a task on the native thread of its `Redlock`, and returns the number of the call
//!    (`bridge.rs`).
//! 2. The task puts its reply into the mailbox of the JavaScript environment. The mailbox calls a weak thread-safe
//!    function, which does not keep the process alive (`bell.rs`).
//! 3. JavaScript takes all replies out of the mailbox at once (`messages.rs`).
//!
//! So the native thread renews locks even while the event loop is blocked. The code that does not depend on the language
//! is in `bindings/common`.

mod answers;
mod bell;
mod bridge;
mod client;
mod duration;
mod election;
mod failure;
mod guard;
mod lock_options;
mod logs;
mod memory;
mod messages;
mod once;
mod quota;
mod settings;
mod status;
mod survey;
mod sync;

use napi_derive::napi;

/// The version of the native half. The JavaScript half refuses another version than its own.
#[napi]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
