//! The tests of the ZooKeeper master, linked once.

mod faults;
mod lock;
mod store;
mod support;
