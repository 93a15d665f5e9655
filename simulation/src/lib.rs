//! Deterministic simulation of quorate. It plays millions of schedules, and every schedule can be replayed.
//!
//! The **real** library runs in the simulation, down to the bytes that its Redis driver writes and reads
//! (`quorate::testing::Driver`). The network, the servers and the clocks are simulated. One seed decides everything:
//! [`Scenario::draw`] turns the seed into plain data, [`run`] plays this scenario, and the checkers look at the state
//! after every event. The same seed gives the same run on every machine.
//!
//! Each run has two phases. In the first phase, faults happen, and safety is checked all the time. In the second phase,
//! all faults have ended: every client asks for a lock once more, and must get it within [`Scenario::bound`].
//!
//! Some scenarios are calm: no faults happen, so the checkers demand more. No key is left behind, no renewed lock is
//! lost, no lock is idle while a client waits, waiters are served in order, and a holder that lost its lock is notified
//! at once. Each rule counts the cases that it has judged ([`RULES`]), because a rule that judged no case has tested
//! nothing.
//!
//! # What is simulated
//!
//! - 1 to 9 masters with the semantics of the Lua scripts. Each master has its own clock (offset, rate, jumps), which
//!   decides when keys expire, and a disk that keeps nothing, an old state or everything over a restart. Masters crash,
//!   restart and stall.
//! - Servers that read commands and write replies (`world/server.rs`). A server may lose its cached scripts, be busy,
//!   out of memory or read-only, deny access, close the connection at the first command, or send replies that no
//!   command asked for.
//! - One connection for each client and master: two streams of bytes with delay and jitter. Writes are split into
//!   packets anywhere. Packets are lost. Connections are reset in the middle of a reply, forgotten by one side, or
//!   partitioned in one or both directions. Bytes in flight may arrive after the connection has ended, and commands may
//!   be executed twice. Bytes on one connection are never reordered.
//! - Client processes with up to six tasks, which use up to twenty resources. Processes pause and are killed. Tasks are
//!   delayed at any await, and futures are dropped at any await. Time passes between two readings of a clock: less than
//!   two microseconds, or longer if the thread is preempted while masters and network continue.
//! - In about every third scenario, several kinds of locks on the same resources: exclusive locks, locks on several
//!   resources, locks of readers, locks of owners, and writers that downgrade to readers. In about every seventh
//!   scenario, semaphores. The seeded bugs for these locks are faulty masters under the real library
//!   (`seeded_bugs/scripts.rs`).
//! - In some scenarios, values under locks: quotas and once-per-period records. These scenarios last longer, and
//!   masters crash one after another (`draw/values.rs`). In other scenarios, holders leave notes, leaders are elected,
//!   and elections are observed (`draw/notes.rs`).
//! - With `--stores`, masters that are stores (databases or ZooKeeper), under the real driver for stores
//!   (`world/session.rs`). A commit compares the versions of several records and then writes them. A commit may be
//!   late, may wait behind other commits, or may be executed in part when its session is lost. A lagging follower may
//!   answer reads. Wake-ups are lost, late and doubled. Stores have their own clocks, or none. The checkers judge
//!   stores by their answers to clients. They read the records of stores only to check that released values stay
//!   released.
//! - With `--changes`, masters that are replaced while clients take locks. Clients are at different steps of the
//!   replacement and are reconfigured at any time. Simulated masters make the checks of generation markers that the
//!   driver's handshakes and scripts contain. One or two operators take the library's own steps: late, repeatedly, or
//!   killed in between, and some of their orders get lost. An operator's connection is not simulated byte by byte: its
//!   orders are executed directly. While the masters are replaced, clients at every step of the replacement use quotas,
//!   records, leaders and observers. An operator copies values to the new masters and removes lost values.
//! - In some scenarios, nobody uses the masters for days. Often a clock with a wrong date has left counters far in the
//!   future before these days (`draw/days.rs`).
//!
//! `crossings.rs` keeps a table with a row for each kind of lock or value, and a column for each happening (an event
//! that may interfere). A cell counts how often a rule was checked for this kind of lock or value after this happening.
//! `tests/all/crossings.rs` requires that no cell is empty, or gives the reason for an empty cell.
//!
//! # What is not simulated
//!
//! Sockets, TLS, name resolution, threads, and the actor around the driver, which makes no decision of its own.
//! Everything runs on one thread.
//!
//! # Why a package
//!
//! The simulation is a library, a command and tests. `scripts/simulate` plays a million seeds on all cores, and `cargo
//! test` plays thousands of the same seeds. A folder of `tests/` could only contain the tests.

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
