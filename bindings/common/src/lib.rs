//! The part of the packages for Python and Node that does not depend on the language.
//!
//! - A [`Client`](client::Client) is a `Redlock` with a thread of its own, which runs all its tasks. This thread never
//!   calls the language and never waits for it. So an interpreter or event loop that is busy loses no lock.
//! - A [`Call`](call::Call) is a request to a client. Its [`Reply`](call::Reply) is data, which the package for the
//!   language turns into its own objects.
//! - A [`Mailbox`](mailbox::Mailbox) collects the replies for one event loop. A
//!   [`BlockingCall`](blocking_call::BlockingCall) waits for one reply on the calling thread.
//! - A [`Guard`](guard::Guard) is a held lock that several owners may use at the same time.
//!
//! Everything here belongs to the process that made it. In a forked process, a copy changes nothing of its parent.

pub mod blocking_call;
pub mod call;
pub mod client;
pub mod client_settings;
pub mod election;
pub mod error;
pub mod exit;
pub mod guard;
mod guard_calls;
mod held;
pub mod lazy_client;
pub mod lock_options;
pub mod log_records;
pub mod logs;
pub mod mailbox;
pub mod once;
pub mod queries;
pub mod quota;
pub mod risk;

pub use quorate;
