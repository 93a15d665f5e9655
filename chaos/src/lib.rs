//! Chaos runs: real masters, real client processes and real faults. At the end, each run gives a verdict and a report.
//!
//! A run takes these steps:
//!
//! - It starts servers and client processes.
//! - It injects faults at times that a seed determines.
//! - It records the events of every client.
//! - It heals the faults.
//! - It checks the recorded history.
//!
//! The chaos runs use only the public API of `quorate`.
//!
//! Modules:
//!
//! - Description of a run: [`scenario`], [`workload`]; [`schedule`] draws the faults from the seed
//! - Faults: [`faults`]; injecting and healing are both verified
//! - Parts of a run: [`world`] (masters and network), [`fleet`] (client processes), [`client`] (the code of a client
//!   process)
//! - Masters: [`node`] (kinds of servers), [`master`] (one master), [`road`] (the network path to a master),
//!   [`locking`] (builds a lock)
//! - Inspection of masters: [`probe`] (does a server answer?), [`observer`] (which locks are held?)
//! - Replacement of masters during a run: [`changes`], [`walk`] (the steps), [`walker`] (takes the steps), [`hazards`]
//!   (faults)
//! - Services that check fencing tokens: [`register`], [`bank`]
//! - Recorded events: [`event`], [`claim`], [`recorder`], [`history`], [`pace`] (locks obtained per second, and times
//!   without a lock)
//! - Results: [`checks`] (the verdict), [`report`] (the files that a run writes)
//! - Runs: [`run`] (one run), [`matrix`] (many short runs), [`soak`] (one long run), [`progress`] (the display on the
//!   terminal)
//!
//! # Non-goals
//!
//! The crate is not an API: the program is the interface, and the library exists for the tests. A run cannot be
//! repeated event by event. The same seed gives the same schedule of faults, but the timing of real processes differs
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
