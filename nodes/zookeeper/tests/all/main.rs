//! All tests of the ZooKeeper master, linked into one program.

mod acl;
mod faults;
mod lock;
mod store;
mod support;
