//! Deterministic simulation of quorate: millions of schedules, and every one can be replayed.
//!
//! The **real** library runs here, down to the bytes that its Redis driver writes and reads
//! (`quorate::testing::Driver`). The network, the servers and the clocks are simulated. One seed decides everything:
//! [`Scenario::draw`] turns it into plain data, [`run`] plays that scenario, and the checkers look at the state after
//! every event. The same seed gives the same run on every machine.
//!
//! Each run has two phases. In the first, faults happen, and safety is checked all the time. Then everything heals:
//! every client asks for the lock once more, and each must get it within [`Scenario::bound`].
//!
//! Some scenarios are calm: nothing breaks. There the checkers also forbid what faults would excuse. No key is left
//! behind, no renewed lock is lost, no lock is idle while a client waits, waiters are served in order, and a holder
//! that lost its lock is notified at once. Each rule counts the cases that it has judged ([`RULES`]), because a rule
//! that judged no case proves nothing.
//!
//! # What is simulated
//!
//! - 1 to 9 masters with the semantics of the scripts. Each has its own clock (offset, rate, jumps), by whose
//!   milliseconds keys expire, and a disk (none, stale, always). Masters crash, restart and stall.
//! - Servers that read commands and write replies (`world/server.rs`). They lose their scripts, are busy, out of memory
//!   or read-only, deny access, close the connection at the first command, and send replies that nobody asked for.
//! - One connection for each client and master: two streams of bytes with delay and jitter. Writes are split into
//!   packets anywhere. Packets are lost, connections are reset in the middle of a reply, forgotten by one side, or
//!   partitioned in one or both directions. Bytes in flight may arrive after the connection has ended, and commands may
//!   be executed twice. Bytes on one connection are never reordered.
//! - Client processes with up to six tasks and twenty resources. They pause and are killed, their tasks are delayed at
//!   any await, and their futures are dropped at any await. Time passes between two readings of a clock: a moment, or
//!   as long as a preempted thread does not run while masters and network go on.
//! - In every third scenario several kinds of locks on the same resources: exclusive locks, locks on several resources,
//!   readers, owners, writers that downgrade to readers. In every seventh, semaphores. Their seeded bugs are faulty
//!   masters under the real library (`seeded_bugs/scripts.rs`).
//! - In some scenarios values under locks: quotas and once-per-period records. These scenarios last longer, and masters
//!   crash one after another (`draw/values.rs`). In others holders leave notes, leaders are elected, and elections are
//!   observed (`draw/notes.rs`).
//! - With `--stores`, masters that are stores, under the real driver for stores (`world/session.rs`). A commit compares
//!   and sets several records. It may be late or partly executed when its session is lost, or wait behind others. Reads
//!   may come from a follower that lags. Wake-ups are lost, late and doubled. Stores have their own clocks, or none.
//!   Except for released values, the checkers do not look into the records: stores are judged by what they answer to
//!   clients.
//! - With `--changes`, masters that are replaced while clients take locks. Clients are at different steps of the change
//!   and are reconfigured at any time. Generation markers are checked as the driver's handshakes and scripts ask for
//!   it. One or two operators take the library's own steps, late, repeatedly, killed in between, over orders that get
//!   lost. The connection of an operator is not simulated byte by byte: its orders are executed directly. Quotas,
//!   records, leaders and observers go on meanwhile, used by clients of every step. An operator carries values over and
//!   removes lost ones.
//! - In some scenarios nobody uses the masters for days, often after a wrong date has left numbers far in the future
//!   (`draw/days.rs`).
//!
//! `crossings.rs` counts which kind of lock or value met which happening while a rule could complain.
//! `tests/all/crossings.rs` requires that no cell of this table is empty, or names the reason.
//!
//! # What is not simulated
//!
//! Sockets, TLS, name resolution, and the actor around the driver, which makes no decision of its own. Threads:
//! everything runs on one.
//!
//! # Why a package
//!
//! It is a library, a command and tests: `scripts/simulate` plays a million seeds on all cores, and `cargo test` plays
//! thousands of the same seeds. A folder of `tests/` could only be the tests.

mod change_plan;
mod checks;
mod client;
mod clock;
mod coverage;
mod crossings;
mod draw;
mod executor;
mod facts;
mod happening;
mod kind;
mod library;
mod locker;
mod operator;
mod place;
mod play;
mod process;
mod rng;
mod run;
mod scenario;
mod seeded_bugs;
mod shrink;
mod store_node;
mod store_plan;
mod sweep;
mod world;

pub use change_plan::ChangePlan;
pub use checks::{HARM, Judged, Lateness, RULES, Violation};
pub use coverage::{Coverage, grouped};
pub use crossings::{Crossings, HELD, Masters};
pub use happening::Happening;
pub use kind::{Kind, ValueStep};
pub use play::Play;
pub use rng::Rng;
pub use run::{Outcome, run};
pub use scenario::{
    ClientPlan, Disk, Fault, FaultKind, MasterPlan, Net, Promises, Refusal, Scenario, Settings,
    Step,
};
pub use seeded_bugs::Flaw;
pub use shrink::shrink;
pub use store_plan::StorePlan;
pub use sweep::{Failure, Summary, Sweep, Worlds, first_caught};
