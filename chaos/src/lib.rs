//! Chaos runs: real masters, real processes and real faults, and at the end a verdict and a readable report.
//!
//! A run starts servers and client processes, injects faults by a seeded schedule, records what every client sees,
//! heals the faults, and checks the history. It uses only the public API of `quorate`.
//!
//! - [`scenario`], [`workload`]: the description of a run and its promises; [`schedule`]: the faults that follow from
//!   its seed
//! - [`faults`]: the kinds of faults; injecting and healing are both verified
//! - [`world`]: masters and network; [`fleet`]: client processes
//! - [`node`], [`master`], [`road`], [`probe`], [`observer`]: the kinds of masters, the network path to them, and
//!   inspecting them; [`locking`]: builds a lock of the library over any kinds of masters
//! - [`changes`]: changes of masters during a run; [`walk`]: the operator's steps of a change; [`walker`]: takes the
//!   steps; [`hazards`]: faults during the steps
//! - [`register`], [`bank`]: services protected by fencing tokens
//! - [`client`]: the code of a client process
//! - [`event`], [`claim`], [`recorder`], [`history`]: the recorded events; [`pace`]: the number of locks obtained per
//!   second, and the times in which no lock was obtained
//! - [`checks`]: the verdict; [`report`]: the files that a run writes
//! - [`run`]: the phases of one run; [`matrix`]: many short runs; [`soak`]: one long run
//!
//! # Non-goals
//!
//! The crate is not an API: the program is the interface, and the library exists for the tests. A run cannot be
//! repeated event by event: the same seed gives the same schedule of faults, but the timing of real processes differs
//! from run to run.

pub mod bank;
pub mod changes;
pub mod checks;
pub mod claim;
pub mod client;
pub mod event;
pub mod faults;
pub mod fleet;
pub mod hazards;
pub mod history;
pub mod locking;
pub mod master;
pub mod matrix;
pub mod node;
pub mod observer;
pub mod pace;
pub mod probe;
pub mod progress;
pub mod recorder;
pub mod register;
pub mod report;
pub mod road;
pub mod run;
pub mod scenario;
pub mod schedule;
pub mod soak;
pub mod walk;
pub mod walker;
pub mod workload;
pub mod world;
