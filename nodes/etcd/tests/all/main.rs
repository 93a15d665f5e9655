//! Tests of the etcd master on real clusters, linked into one program.

mod faults;
mod gateway;
mod hostile;
mod listening;
mod locks;
mod store;
mod support;
