//! A Redlock quorum lock over N independent Redis or Valkey masters.
//!
//! One lock for many machines, held while a majority of masters says so: it survives the death
//! of a minority, tells its holder in time when it is lost, and hands out fencing tokens so that
//! even a paused holder can do no harm.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate::Redlock;
//!
//! let redlock = Redlock::builder()
//!     .masters(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
//!     .build()?; // never connects: a service starts while masters are down
//!
//! let guard = redlock.acquire("nightly-report").await?;
//! // Renewed in the background. Give the fencing token to whatever you write to.
//! println!("held, fencing token {:?}", guard.fencing_token());
//! guard.release().await;
//! # Ok(()) }
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

mod builder;
mod campaign;
mod clock;
mod coordinator;
mod error;
mod gather;
mod guard;
mod held;
pub mod node;
mod protocol;
mod redlock;
mod renewal;
mod report;
mod retry;
pub mod runtime;
#[cfg(feature = "tls-rustls")]
mod tls;
mod waiting;

pub use builder::{RedlockBuilder, RestartGuard, Wait};
pub use error::{AcquireError, BuildError, ExtendError, InvalidResource, Missed, ScopeError};
pub use guard::{LockGuard, Released};
pub use held::LossCause;
pub use node::{Fault, KeyState, NodeName, Phase, Token, Waiter};
pub use protocol::instant::Instant;
pub use protocol::validity::Drift;
pub use redlock::{
    LockRequest, MAX_RESOURCE_LEN, NodeStatus, Redlock, Refusal, Status, StatusVerdict, TryAcquire,
};
pub use report::{NodeOutcome, NodeReport};
pub use retry::Retry;
#[cfg(feature = "tls-rustls")]
pub use tls::Tls;
pub use waiting::Waiting;
