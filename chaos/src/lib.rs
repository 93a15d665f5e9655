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
//! The most important modules:
//!
//! - [`scenario`] describes a run.
//! - [`run`] executes it.
//! - [`faults`] contains all kinds of faults.
//! - [`checks`] computes the verdict from the history.
//!
//! # Non-goals
//!
//! - A public API: use the program `quorate-chaos`. The library exists only for the tests.
//! - Exact repetition of a run: the same seed gives the same schedule of faults, but the timing differs.

pub mod bank;
pub mod change_statistics;
pub mod changes;
pub mod checks;
pub mod claim;
pub mod client;
pub mod event;
pub mod export;
pub mod faults;
pub mod fleet;
pub mod hazards;
pub mod history;
pub mod locking;
pub mod master;
pub mod matrix;
pub mod node;
pub mod observer;
pub mod operator_run;
pub mod operator_tasks;
pub mod progress;
pub mod proxied_path;
pub mod recorder;
pub mod register;
pub mod report;
pub mod run;
pub mod scenario;
pub mod schedule;
pub mod soak;
pub mod usage;
pub mod workload;
pub mod world;
