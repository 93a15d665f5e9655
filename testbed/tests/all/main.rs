//! All tests of the testbed, linked into one program.

mod clock;
mod etcd;
mod hostile;
mod mariadb;
mod names;
mod postgres;
mod proxy;
mod server;
mod zookeeper;
