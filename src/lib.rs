//! A distributed lock, built on Redlock: a majority of independent masters (Redis, Valkey, MySQL, MariaDB, PostgreSQL,
//! ZooKeeper or etcd) grants each lock.
//!
//! Waiting clients queue, a holder is notified before its lock ends, and every lock comes with a fencing token.
//!
//! ```no_run
//! # async fn close_books(fence: Option<u64>) -> u64 { 0 }
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use quorate::Redlock;
//!
//! let redlock = Redlock::builder()
//!     .masters(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
//!     .build()?; // does not connect, so masters may be down when a service starts
//!
//! // `scope` renews the lock while the closure runs. If the lock is lost, `scope` drops the closure's future.
//! let sum = redlock
//!     .scope("month-end", async |guard| {
//!         // The database rejects every token below the largest token that it has seen.
//!         close_books(guard.fencing_token()).await
//!     })
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! # What it promises
//!
//! - **One holder.** At most one client holds a lock at a time, as long as no clock jumps, clocks drift apart by at
//!   most 1 % of the TTL plus 2 ms while one TTL passes, no master loses locks except by a restart, and nobody
//!   force-releases the lock; a process that was paused for longer than its TTL still believes for a moment that it
//!   holds the lock.
//! - **Rising tokens.** Every later holder of a lock gets a larger fencing token, even if clocks are wrong, as long as
//!   the masters keep their fencing counters; if a restart erases the counters, tokens still rise as long as the
//!   restart guard is on and the masters' clocks differ by less than `max_ttl`.
//! - **A minority may fail.** Locks are granted and renewed while a minority of the masters is dead, hung or
//!   unreachable; if no majority answers, nobody gets a lock, and the error is "no quorum" instead of "held by
//!   another".
//! - **Notice of a loss.** If the masters stop answering, the holder is notified before its lock expires; if an
//!   operator force-releases the lock, the holder is notified at its next renewal, a third of the TTL later at most; a
//!   paused process is notified only when it continues.
//!
//! `docs/promises.md` explains each condition, and `docs/safety.md` answers the known objections to Redlock. The drift
//! is a setting ([`Drift`]), and so are [`RestartGuard`] and [`max_ttl`](RedlockBuilder::max_ttl).
//!
//! Pass the [fencing token](LockGuard::fencing_token) to every system to which the holder writes. Only such a system
//! can stop a holder that was paused, by rejecting every token below the largest token that it has seen. [`Fence`] is
//! such a system for data in Rust, and `docs/fencing.md` shows others.
//!
//! # A tour
//!
//! - [`Redlock`] takes locks: [`acquire`](Redlock::acquire), [`try_acquire`](Redlock::try_acquire),
//!   [`lock`](Redlock::lock) with options, [`scope`](Redlock::scope). [`RedlockBuilder`] lists every setting with its
//!   default, and [`inspect`](Redlock::inspect) checks the configuration of the masters.
//! - [`acquire`](Redlock::acquire) and [`scope`](Redlock::scope) wait for up to 30 s by default ([`Wait`]). A periodic
//!   task should make one attempt, or use [`Once`] or [`Election`], so that it does not queue up. `docs/library.md`
//!   shows this, and the errors of a scope ([`ScopeError`]; [`try_scope`](Redlock::try_scope) is for closures that can
//!   fail).
//! - Locks are not re-entrant. If a caller acquires a lock that it already holds, the acquire waits until the caller
//!   releases the lock. If the wait ends with an error, the error shows the reason ([`FailedAcquire::held_here`]).
//! - [`LockGuard`] is a held lock: fencing token, validity, [`lost`](LockGuard::lost), [`extend`](LockGuard::extend),
//!   [`release`](LockGuard::release).
//! - [`Quota`] and [`Once`] keep a value under a lock: a limited number of units, and work that runs once per period.
//! - [`Election`] elects a leader and announces it to all observers. A [`Note`] describes the holder of a lock, and
//!   [`list`](Redlock::list) shows all locks that are held now.
//! - [`AcquireError`] distinguishes contention (another client holds the lock), outage (no majority answers) and
//!   lateness (the majority answered too slowly). Every error and every guard carries a [`NodeReport`] of each master.
//! - [`Settings`] and [`RedlockBuilder::from_env`] read the configuration of a service. The module `blocking` (feature
//!   `blocking`) has the same functions without async.
//! - `Redlock::in_memory` (feature `testing`) lets you test your own code without a server: `docs/testing.md`. The
//!   modules `node` and `runtime` (features `node`, `testing`) are the interfaces for other back ends and for
//!   simulations.
//!
//! # Platforms
//!
//! The library runs on Linux, macOS and other Unix systems; every change is tested on Linux. It does not compile on
//! Windows, because it uses Unix sockets, `uname` and Unix clocks. On Windows, use WSL or a container.
//!
//! On Linux, the library measures leases with a clock that also advances while the machine is suspended. On some other
//! systems, the clock stops during a suspension. After the suspension, a holder can then use an expired lock, as after
//! a pause of the process.
//!
//! # Forked processes
//!
//! Build the `Redlock` after the last `fork`. In a process that was forked after the `Redlock` was built, the
//! background tasks of the `Redlock` do not run, and its connections belong to the parent process. So each acquire
//! fails at once with [`AcquireError::Forked`]. A copy of a guard there is not valid ([`LossCause::Forked`]), and does
//! not release the lock of the parent when it is dropped. A new `Redlock` works. Starting another program, for example
//! with `std::process::Command`, is no such fork.
//!
//! The library recognizes a forked process by its process id. The only forked process with the id of its parent is the
//! first process of a new PID namespace (`CLONE_NEWPID`), if its parent is the first process of its own namespace.
//! There, do not use a `Redlock` or a guard of the parent, and do not drop it.
//!
//! # Tracing
//!
//! Spans and events of target `quorate`:
//!
//! | name | level | fields |
//! |---|---|---|
//! | span `acquire` | debug | `resource`, `attempts`, `ahead` and `answering` (both from the first attempt), `outcome` (`acquired`, `held_by_other`, `held_by_owner`, `no_quorum`, `too_late`), `fencing_token` |
//! | `queued on the masters` | debug | `ticket` |
//! | `lock acquired` | debug | `fencing_token` |
//! | `fencing token confirmed by a second round` | debug | `token` |
//! | `lock renewed` | trace | `resource` |
//! | `missing key restored` | debug | `resource`, `node` (index) |
//! | `no majority for a renewal, trying again` | warn | `resource`, `said` (the replies of the masters) |
//! | `lock released` | debug | `resource`, `on`, `expired_on`, `unreachable` |
//! | `connected` | debug | `node` |
//! | `value read` | debug | `resource`, `reading` |
//! | `value written` | debug | `resource`, `writing` |
//! | `value removed` | debug | `resource` |
//! | `no connection`, `connection lost` | warn | `node`, `fault` |
//! | `master restarted recently ..` | warn | `node`; `uptime_s` for Redis and Valkey |
//! | `master reports an impossible uptime ..` | warn | `node` |
//! | `another address led to this server before ..` | warn | `node` |
//! | `master refuses this client's configuration` | warn | `node`, `fault` |
//! | `master has lost its generation marker ..` | warn | `node` |
//! | `clients have not watched this master for max_ttl yet ..` | warn | `node`, `age_ms` |
//! | `cannot write the age record` | warn | `node`, `fault` |
//! | `no wake-up messages: waiters use only timers` | warn | `node`, `why` |
//! | `changed TLS files cannot be used ..` | warn | `why` |
//! | `an even number of masters ..` | warn | `masters` |
//! | `internal failure: locks that were due are not renewed` | error | `why` (the text of the panic) |
//! | `a tokio runtime has stopped running tasks ..` | debug | `tasks` (the number of tasks) |
//!
//! No span or event contains a password.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(unix))]
compile_error!(
    "quorate runs on Unix systems only (Linux, macOS, the BSDs): Windows is not supported"
);

mod acquire;
#[cfg_attr(
    not(feature = "blocking"),
    allow(
        dead_code,
        unreachable_pub,
        reason = "without the feature `blocking`, the library itself uses only a part of this module"
    )
)]
mod background_runtime;
#[cfg(feature = "blocking")]
#[cfg_attr(docsrs, doc(cfg(feature = "blocking")))]
pub mod blocking;
mod builder;
mod clock;
mod config;
mod error;
mod fence;
#[doc(hidden)]
pub mod fork;
mod hold;
mod hosting;
#[cfg(feature = "serde")]
mod json;
mod keys;
mod kinds;
mod limit;
mod listing;
mod masters_change;
#[cfg(feature = "metrics")]
#[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
mod metrics;
#[cfg(any(test, feature = "testing", feature = "node"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "testing", feature = "node"))))]
pub mod node;
#[cfg(not(any(test, feature = "testing", feature = "node")))]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "without the feature `node`, parts of this module are unused"
)]
mod node;
mod options;
mod outcome;
mod panics;
#[doc(hidden)]
pub mod printable;
mod protocol;
#[doc(hidden)]
pub mod redact;
mod redlock;
mod repeats;
mod report;
#[doc(hidden)]
#[cfg(any(test, feature = "tls-rustls", feature = "node"))]
pub mod reread;
mod resource;
mod retry;
mod rounds;
#[cfg(any(test, feature = "testing", feature = "node"))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "testing", feature = "node"))))]
pub mod runtime;
#[cfg(not(any(test, feature = "testing", feature = "node")))]
#[allow(
    unreachable_pub,
    reason = "public for crates that add other kinds of masters"
)]
mod runtime;
mod sets;
mod settings;
mod sync;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(docsrs, doc(cfg(feature = "testing")))]
pub mod testing;
#[cfg(feature = "tls-rustls")]
mod tls;
mod values;
mod waiting;

#[doc(hidden)]
pub use background_runtime::one_thread;
pub use builder::RedlockBuilder;
pub use config::list::Settings;
#[doc(hidden)]
pub use config::{list, text};
pub use error::{AcquireError, BuildError, ExtendError, FailedAcquire, ScopeError};
pub use fence::{Fence, FenceReadGuard, FenceWriteGuard, StaleToken};
pub use hold::guard::LockGuard;
pub use hold::released::Released;
pub use hold::risk::{AtRisk, RiskReason, RiskWatch};
pub use kinds::election::{Election, Leader, Leadership, Observation};
pub use kinds::owner::{OwnedGuard, Owner};
pub use kinds::semaphore::SemaphoreStatus;
pub use kinds::shared::DowngradeError;
pub use listing::{Listed, ListedValue, Listing, LockName, NameList};
pub use masters_change::{CarriedValue, ChangeError, ChangeStage, MastersChange, Survey};
pub use node::change::{ChangeSeen, ClientKind, ClientSeen, MasterSeen};
pub use node::inspection::Inspection;
pub use node::note::{MAX_NOTE_LEN, NoteText};
pub use node::right::{MissingRight, Purpose};
pub use node::{Fault, Hold, KeyState, NodeName, Note, Phase, Token, Waiter};
pub use outcome::LossCause;
#[doc(hidden)]
pub use panics::catches_panics;
pub use protocol::fencing::TokenVerdict;
pub use protocol::instant::Instant;
pub use protocol::validity::Drift;
pub use redlock::Redlock;
pub use redlock::request::LockRequest;
pub use redlock::status::{NodeStatus, Status, StatusVerdict};
pub use redlock::try_acquire::{Refusal, TryAcquire};
pub use report::{NodeOutcome, NodeReport};
pub use resource::{InvalidResource, MAX_OWNER_LEN, MAX_PERMITS, MAX_RESOURCE_LEN, MAX_RESOURCES};
pub use retry::Retry;
pub use settings::{Order, RestartGuard, Wait};
#[cfg(feature = "tls-rustls")]
pub use tls::Tls;
pub use values::error::{ValueError, ValueTrouble};
pub use values::glance::{SeenContent, SeenValue};
pub use values::once::{Due, Once, OnceOutcome, Turn};
pub use values::quota::{Quota, Take};
pub use values::record::OnceRecord;
pub use waiting::Waiting;
