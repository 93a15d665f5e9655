//! The tests of the testbed, linked once.

mod clock;
mod hostile;
mod mariadb;
mod names;
mod proxy;
mod server;
mod zookeeper;
