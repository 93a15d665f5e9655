//! Real masters, real processes, real faults, and a verdict that can be read.
//!
//! A run starts servers and client processes, injects faults from a seeded schedule, writes down what
//! every client saw, heals, and checks the history. It uses the public API of `quorate` alone.
//!
//! - [`scenario`], [`workload`]: what a run is to be and what it promises; [`schedule`]: what follows from its seed
//! - [`faults`]: what can go wrong, injected and healed and seen both times
//! - [`world`], [`fleet`]: masters and network, client processes
//! - [`node`], [`master`], [`road`], [`probe`], [`observer`]: what masters are, the way to them, and looking at them;
//!   [`locking`]: the library over any of them
//! - [`changes`]: masters that are replaced during a run; [`walk`], [`walker`]: what an operator does then, and doing
//!   it; [`hazards`]: what goes wrong meanwhile
//! - [`register`], [`bank`]: what the fencing tokens protect
//! - [`client`]: what runs in a client process
//! - [`event`], [`claim`], [`recorder`], [`history`]: what is written down; [`pace`]: how it went on
//! - [`checks`]: the verdict; [`report`]: what is left for readers
//! - [`run`]: all of it in order; [`matrix`] and [`soak`]: many runs, and a long one
//!
//! # What it deliberately does not do
//!
//! It is not an API: the program is the interface, the library is there for the tests. It does not
//! repeat a run event by event: the same seed gives the same schedule, and real processes do the rest.

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
