//! All tests of the PostgreSQL master, linked into one program.

mod common;
mod connecting;
mod locks;
mod runs;
mod store;
mod unfit;
