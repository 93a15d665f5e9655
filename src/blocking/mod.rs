//! The same verbs and guards without async: for programs that have no runtime.
//!
//! A [`Redlock`] of this module owns one thread in the background, which renews what is held and gives back what is
//! dropped; callers wait on their own threads. Everything is told by the same errors and carries the same fencing
//! numbers as with [`quorate::Redlock`](crate::Redlock).
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
//! A call that waits is refused on a thread of a Tokio runtime, with [`CannotBlock`]: it would keep that thread from
//! its other tasks, perhaps from the one that holds the lock. Use [`quorate::Redlock`](crate::Redlock) there. On the
//! threads of `tokio::task::spawn_blocking`, which Tokio does not tell apart from the others, use the handle of
//! [`Redlock::in_spawn_blocking`]. Dropping a guard or a handle is fine everywhere.
//!
//! # The end
//!
//! The thread ends with the last handle and the last guard. Dropping that one waits until what is given back has
//! been sent: for as long as a master may take to answer and 300 ms at most, and usually for well under a
//! millisecond. In a Tokio runtime nothing is waited for: the thread then ends by itself, within the same time.

mod election;
mod guard;
mod home;
mod kept;
mod owner;
mod redlock;
mod request;
mod values;

pub use crate::error::CannotBlock;
pub use election::{Change, Election, Leadership, Observation};
pub use guard::LockGuard;
pub use owner::{OwnedGuard, Owner};
pub use redlock::{LookError, Redlock};
pub use request::{LockRequest, TryAcquire};
pub use values::{Once, Quota};
