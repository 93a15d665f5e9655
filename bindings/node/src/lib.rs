//! The native half of the npm package `quorate`. The TypeScript in `bindings/node/ts/` is the public API.
//!
//! JavaScript creates and settles all promises. No native thread enters JavaScript or waits for it:
//!
//! 1. A call from JavaScript starts a task on the home thread (`home.rs`), and returns the number of the call.
//! 2. The task puts its reply into the mailbox of the JavaScript environment (`mailbox.rs`). The mailbox calls a weak
//!    thread-safe function, which does not keep the process alive.
//! 3. JavaScript takes all replies out of the mailbox at once (`bridge.rs`).
//!
//! So the home thread renews locks even while the event loop is blocked.

mod bridge;
mod call;
mod client;
mod duration;
mod election;
mod failure;
mod guard;
mod held_lock;
mod home;
mod lock_options;
mod log;
mod mailbox;
mod memory;
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
