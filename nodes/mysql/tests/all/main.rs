//! All tests of the MySQL and MariaDB master, linked into one program.

mod common;
mod locks;
mod plugins;
mod runs;
mod store;
mod unfit;
