//! Deterministic simulation of quorate: millions of schedules, every one replayable.
//!
//! The **real** library runs here, down to the bytes that its Redis driver writes and reads
//! (`quorate::testing::Driver`), over a simulated network, simulated servers and clocks that stand wrong. One seed decides everything: [`Scenario::draw`]
//! makes it into plain data, [`run`] plays it, and the checkers look after every event. The same
//! seed gives the same run on every machine.
//!
//! Each run has two phases. In the first, faults happen and safety is checked all the time. Then
//! everything heals, every client wants the lock once more, and all must have had it within a
//! bound ([`Scenario::bound`]).
//!
//! In some worlds nothing breaks at all. There the checkers hold the library to what faults would excuse:
//! no key is left behind, no renewed lock is lost, no lock lies idle while somebody waits, who comes
//! first is served first, and who has lost a lock hears of it at once. Each rule counts the cases that it
//! has judged ([`RULES`]); a rule that judged none says nothing.
//!
//! # What is simulated
//!
//! - 1 to 9 masters with the scripts' semantics, each with a clock of its own (offset, rate,
//!   jumps) by whose milliseconds keys expire, a disk (none, stale, always), crashes, restarts, stalls.
//! - Servers that read commands and write replies (`world/server.rs`): they lose their scripts, are busy,
//!   out of memory, read-only, deny, hang up at the first question, say what nobody asked for.
//! - Per client and master a connection: two streams of bytes with delay and jitter, cut into packets
//!   anywhere, lost, reset in the middle of a reply, forgotten by one side, partitioned in one or both
//!   directions; what was on its way may arrive after its connection, and commands may be executed
//!   twice. On one connection nothing overtakes anything.
//! - Client processes with up to six tasks and twenty resources, that pause, are killed, whose tasks are kept waiting at any await, and
//!   whose futures are dropped at any await. Time passes between two looks at a clock: a moment, or as
//!   long as a thread may be kept from running while masters and network go on.
//!
//! - In every third world several kinds of locks on the same resources: one alone, several at once, readers,
//!   owners, writers that become readers. In every seventh, semaphores. Their canaries are wrong masters under the real library
//!   (`canary/scripts.rs`).
//! - In some worlds values are kept under locks: quotas, and what is done once a period. They last longer, with
//!   masters that crash one after another (`draw/values.rs`). In others holders say who they are, leaders are
//!   elected, and elections are watched (`draw/notes.rs`).
//!
//! - Where asked for (`--stores`), masters that are stores, under the real driver of stores (`world/session.rs`): commits of
//!   several records by compare-and-set, late and partly done for sessions that are lost, stuck behind others, reads by
//!   followers that lag, wake-ups lost, late and doubled, clocks of their own or none. Their records are not looked into,
//!   but for what was given back: they are judged by what clients are told.
//!
//! - Where asked for (`--changes`), masters that change while clients take locks: clients of every step that are told others at
//!   any time, marks on the masters, checked as the driver's handshakes and scripts ask for it, and one or two operators who take
//!   the library's own steps, late, again, killed in between, over words that get lost. An operator's own connection is not
//!   the library's: its words are executed as such. Quotas, records, leaders and observers go on meanwhile,
//!   used by clients of every step; an operator carries values, and drops those that are lost.
//!
//! - In some worlds nobody uses the masters for days, often while a wrong date has left numbers far ahead (`draw/days.rs`).
//!
//! Which kind of lock or value met which happening while a rule could complain is counted (`crossings.rs`) and printed;
//! `tests/all/crossings.rs` demands that no cell is empty, or names the reason.
//!
//! # What is not
//!
//! Sockets, TLS, name look-ups and the actor around the driver, which has no decision of its own.
//! Threads: everything runs on one.
//!
//! # Why a crate
//!
//! It is a library, a command line and tests at once: `scripts/simulate` plays a million seeds
//! with both cores, and `cargo test` plays thousands of the same. A folder of `tests/` could be
//! only the last of these.

mod canary;
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
mod shrink;
mod store_node;
mod store_plan;
mod sweep;
mod world;

pub use canary::Flaw;
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
pub use shrink::shrink;
pub use store_plan::StorePlan;
pub use sweep::{Failure, Summary, Sweep, Worlds, first_caught};
