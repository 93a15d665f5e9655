//! Deterministic simulation of quorate. It plays millions of schedules, and every schedule can be replayed.
//!
//! The **real** library runs in the simulation, down to the bytes that its Redis driver writes and reads
//! (`quorate::testing::Driver`). The network, the servers and the clocks are simulated.
//!
//! One seed decides everything. [`Scenario::draw`] turns the seed into a scenario (plain data), and [`run`] plays the
//! scenario. Checkers look at the state after every event. The same seed gives the same run on every machine.
//!
//! Each run has two phases:
//!
//! - While faults happen, no lock may become unsafe.
//! - After all faults have ended, every client asks for a lock once more. It must get the lock within
//!   [`Scenario::healing_bound`].
//!
//! In some scenarios no faults happen. The checkers then also require:
//!
//! - No key is leaked.
//! - No renewed lock is lost.
//! - No lock stays free while a client waits for it.
//! - Waiters get the lock in the order of its queue.
//! - A holder that has lost its lock is notified immediately.
//! - The holder of a renewed lock gets no notice that the lock may be lost soon.
//!
//! Each rule counts the cases that it has checked ([`RULES`]). A rule that checked no case has tested nothing.
//!
//! # What is simulated
//!
//! - 1 to 9 masters, which reply like the library's Lua scripts. Masters crash, restart and stall. After a restart, a
//!   master has no data, old data, or all its data.
//! - A clock for each master, which decides when the master's keys expire. The clock has an offset and a rate error,
//!   and may jump.
//! - Servers that execute commands (`world/server.rs`). The library parses the commands and writes the replies
//!   (`quorate::testing::server_half`). A server may lose its cached scripts, refuse
//!   requests, close a connection when the first command arrives, or send unsolicited replies.
//! - One connection for each client and master, and one for each order of an operator: two streams of bytes with delay and jitter. Writes are split into
//!   packets at any byte, and packets are lost. The bytes of a connection are never reordered.
//! - Broken connections. A connection may be reset in the middle of a reply, or a master may drop it without notifying
//!   the client. A partition may delay packets in one or both directions. Bytes in flight may arrive after the
//!   connection has ended.
//! - Commands that a master executes twice.
//! - Client processes with up to six tasks, which use up to twenty resources. Processes pause and are killed. At any
//!   await, a task may be delayed, and a future may be dropped.
//! - Readings of clocks, which take time, and preemption of the client's thread before a reading.
//!
//! Some scenarios also contain:
//!
//! - Several kinds of locks on the same resources (about every third scenario): exclusive locks, locks on several
//!   resources, locks of readers, locks of owners, and writers that downgrade to readers.
//! - Semaphores (about every seventh scenario).
//! - Quotas and once-per-period records under locks (`draw/values.rs`). These scenarios last longer, and masters crash
//!   one after another.
//! - Notes of holders, elected leaders, and observers of elections (`draw/notes.rs`).
//! - Days in which nobody uses the masters (`draw/days.rs`). Before these days, a master's clock often shows a wrong
//!   date. This can leave fencing counters far in the future.
//!
//! # Stores
//!
//! With `--stores`, some or all masters are stores (databases, ZooKeeper or etcd). Clients use the library's real driver for
//! stores (`world/session.rs`):
//!
//! - A commit compares the versions of several records and then writes the records.
//! - A commit may be late, or wait at the server. If the client's session is lost, the store may execute only a part of
//!   the commit.
//! - A lagging follower may answer reads.
//! - Wake-ups may be lost, late, or sent twice.
//! - A store has a clock of its own, or none.
//! - Clients notice in one of four ways that a store may have forgotten locks ([`RunRule`]): not at all, by its uptime,
//!   by a row whose age clients count (PostgreSQL), or by the number of its latest change (etcd). The library counts the
//!   age and compares the numbers (`quorate::node::store::LastRun`).
//! - The last two have events of their own ([`StoreEvent`]): crashes that empty the row, promotions, old copies, emptied
//!   tables, and snapshots.
//!
//! A snapshot is restored only if every client process can notice it: each has seen a later change, and none starts
//! later. `docs/nodes.md` names the processes that do not notice a snapshot.
//!
//! The checkers see only the answers from stores, with one exception: they read the records to check that a released
//! lock does not come back.
//!
//! # Replacement of masters
//!
//! With `--changes`, operators replace masters while clients take locks:
//!
//! - Clients are at different steps of the replacement, and are reconfigured at any time.
//! - The driver's handshakes and scripts contain checks of generation markers. The simulated masters execute these
//!   checks.
//! - One or two operators call the library's functions for the steps. An operator may be late, repeat a step, or be
//!   killed between two steps.
//! - Some requests from operators to masters are lost.
//! - Operators copy values to the new masters, and remove values that have no majority.
//!
//! # Untested combinations
//!
//! `crossings.rs` counts how often rules were checked after an event such as a restart, for each kind of lock or value
//! and each kind of event. `tests/all/crossings.rs` requires a reason for every zero.
//!
//! # What is not simulated
//!
//! Sockets, TLS, name resolution, threads, and the library's task that passes bytes between a socket and the driver.
//! Everything runs on one thread.
//!
//! # Why a package
//!
//! The tests and the command behind `scripts/simulate` both use this library. A folder of `tests/` could not contain
//! the command.

mod change_plan;
mod check;
mod checks;
mod client;
mod clock;
mod coverage;
mod crossings;
mod draw;
mod executor;
mod facts;
mod flaw;
mod hand_written;
mod happening;
mod history;
mod kind;
mod library;
mod locker;
mod operator;
mod place;
mod process;
mod rng;
mod run;
mod run_options;
mod scenario;
mod shrink;
mod store_node;
mod store_plan;
mod sweep;
mod world;

pub use change_plan::ChangePlan;
pub use check::{CheckedRules, HARMFUL_RULES, Violation};
pub use checks::{JudgedCases, Lateness, RULES, rule_by_name};
pub use coverage::{Coverage, format_grouped};
pub use crossings::{Crossings, LOCK_OR_VALUE_KINDS, Masters};
pub use flaw::Flaw;
pub use hand_written::{HAND_WRITTEN, HandWritten, hand_written};
pub use happening::Happening;
pub use kind::{Kind, ValueStep};
pub use rng::Rng;
pub use run::{RunResult, run};
pub use run_options::RunOptions;
pub use scenario::{
    ClientPlan, Disk, Fault, FaultKind, MasterPlan, Net, Promises, Refusal, Scenario, Settings,
    Step, StoreEvent,
};
pub use shrink::shrink;
pub use store_plan::{RunRule, StorePlan};
pub use sweep::{Failure, ScenarioFamily, Search, Subject, Summary, Sweep};
