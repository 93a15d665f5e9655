//! The contract suite: the tests that every kind of master of a [`quorate`] lock must pass.
//!
//! A new kind of master (a back end) is an implementation of [`Store`](quorate::node::store::Store), or of
//! [`Node`](quorate::node::Node) itself. Its tests make two calls:
//!
//! - [`check_cases`] runs all cases of the contract, each on a new master. It panics with the names of the failed
//!   cases.
//! - [`compare_with_memory`] sends random sequences of requests to the master and to the memory master of the library.
//!   It panics with the first sequence whose replies or keys differ.
//!
//! Both calls need a function that opens an empty master. In this example, the master is a store in memory:
//!
//! ```no_run
//! use quorate::node::store::Table;
//! use quorate_contract::{TestedMaster, check_cases, compare_with_memory};
//!
//! /// Opens an empty store. A database would use `name` as the name of its tables.
//! async fn open(name: String) -> TestedMaster {
//!     let table = Table::new(&name, true);
//!     TestedMaster::store(table.clone(), table)
//! }
//!
//! // One test of the back end:
//! let runtime = tokio::runtime::Runtime::new().expect("a runtime");
//! runtime.block_on(check_cases(open));
//!
//! // Another test of the back end, which creates its own runtime:
//! compare_with_memory(open);
//! ```
//!
//! [`all_cases!`] defines one test for each case. A back end that does not use [`Store`](quorate::node::store::Store)
//! implements [`KeyAccess`], and calls [`TestedMaster::new`].
//!
//! Like the module `node` of `quorate`, this crate makes no semver promise.

pub mod agreement;
pub mod cases;
pub mod fixtures;
mod key_access;
mod record_keys;
pub mod requests;
mod seed;
mod suite;
mod tested_master;
#[doc(hidden)]
pub mod time;
#[doc(hidden)]
pub mod wall_clock;

pub use key_access::KeyAccess;
pub use seed::seed;
pub use suite::{check_cases, compare_with_memory};
pub use tested_master::TestedMaster;
