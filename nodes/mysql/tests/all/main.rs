//! The tests of the MySQL and MariaDB master, linked once.

mod common;
mod locks;
mod runs;
mod store;
mod unfit;
