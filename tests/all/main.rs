//! Integration tests of the library, linked into one program.

#[path = "../support/mod.rs"]
mod support;

mod acquire;
mod attempts;
mod bad_input;
#[cfg(feature = "blocking")]
mod blocking;
mod burst;
mod cancellation;
mod crates;
mod dead_holders;
mod deadline;
mod election;
mod fence;
mod fencing_proof;
mod foreign;
mod forgotten;
#[cfg(feature = "blocking")]
mod fork;
mod from_env;
mod full;
mod hostile;
mod inspect;
#[cfg(feature = "serde")]
mod json;
mod kind_contract;
mod language;
mod lease;
mod limits;
mod list;
mod local_queue;
mod lost;
mod marking;
mod marks;
mod masters;
mod memory;
#[cfg(feature = "metrics")]
mod metrics;
mod needs;
mod notes;
mod once;
mod owner;
mod pages;
mod passwords;
mod paused;
mod permit_line;
mod progress;
mod promises;
mod proposals;
mod quorums;
mod quota;
mod quota_faults;
mod readers;
mod redis_node;
#[cfg(feature = "redis")]
mod redis_types;
mod references;
mod refusals;
mod release;
mod renewal;
mod repository;
mod requests;
mod risk;
mod runtimes;

mod scope;
mod semaphore;
mod settings;
mod several;
mod stepping_out;
mod store;
mod store_faults;
mod sweep;
mod tidy;
mod tiers;
mod traced;
mod undoing;
mod waiting;
mod waiting_faults;
mod wakes;
