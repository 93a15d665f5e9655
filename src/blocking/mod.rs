//! The functions and guards of [`quorate`](crate) without async, for programs that have no runtime.
//!
//! A [`Redlock`] of this module owns one background thread, which renews held locks and releases dropped locks. Callers
//! wait on their own threads. Errors and fencing tokens are the same as with [`quorate::Redlock`](crate::Redlock).
//!
//! To make a blocking [`Redlock`], end the settings of [`quorate::Redlock::builder`](crate::Redlock::builder) with
//! `build_blocking()` instead of `build()`.
//!
//! ```
//! use quorate::blocking::Redlock;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let settings = quorate::Redlock::builder();
//! # #[cfg(feature = "testing")]
//! let settings = settings.in_memory(3); // or .masters(["redis://10.0.0.1", ..])
//! # #[cfg(not(feature = "testing"))]
//! # let settings = settings.master("redis://127.0.0.1:1");
//! let redlock: Redlock = settings.build_blocking()?;
//! # #[cfg(feature = "testing")] {
//!
//! let guard = redlock.acquire("nightly-report")?;
//! println!("held, fencing token {:?}", guard.fencing_token());
//! guard.release()?;
//! # }
//! # Ok(()) }
//! ```
//!
//! # In a Tokio runtime
//!
//! On a thread of a Tokio runtime, a call that would wait fails with [`CannotBlock`]. Waiting there would block the
//! other tasks of that thread, perhaps even the task that holds the lock. Use [`quorate::Redlock`](crate::Redlock) on
//! such threads. Tokio does not distinguish the threads of `tokio::task::spawn_blocking` from its other threads. On
//! threads of `spawn_blocking` use the handle of [`Redlock::in_spawn_blocking`]. Guards and handles may be dropped on
//! any thread.
//!
//! # Forked processes
//!
//! The background thread does not exist in a process that was forked after the `Redlock` was built. There, all calls
//! that would wait fail at once: an acquire with [`AcquireError::Forked`](crate::AcquireError::Forked), other calls
//! with a [`CannotBlock`] whose [`is_forked`](CannotBlock::is_forked) is true. Build a new `Redlock` in this process.
//!
//! # The end of the thread
//!
//! The background thread ends when the last handle, lock request and guard are dropped. The last drop waits until the
//! pending releases have been sent: usually well under a millisecond, and at most the node timeout plus 300 ms. On a
//! thread of a Tokio runtime the drop does not wait, and the background thread ends by itself within the same time.
//!
//! # Waits that can be ended
//!
//! A wait of this module ends only with its result, or at its time limit. A program that must be able to end a wait,
//! for example a binding to another language, can run [`quorate::Redlock`](crate::Redlock) on a [`BackgroundRuntime`].

mod election;
mod guard;
mod on_runtime;
mod owner;
mod redlock;
mod request;
mod runtime_thread;
mod values;

pub use crate::background_runtime::{BackgroundError, BackgroundRuntime, BackgroundTask};
pub use crate::error::CannotBlock;
pub use election::{Change, Election, Leadership, Observation};
pub use guard::{LockGuard, RiskWatch};
pub use owner::{OwnedGuard, Owner};
pub use redlock::{LookError, Redlock};
pub use request::{LockRequest, TryAcquire};
pub use values::{Once, Quota};
