//! All tests of the command in one test program, so that it is linked only once.

mod bad_input;
mod bench;
mod common;
mod demo;
mod doctor;
mod hold;
mod kinds;
mod leading;
mod leavings;
mod looking;
mod masters;
mod metrics;
mod nodes;
mod packaging;
mod pages;
mod run;
mod scripts;
mod start;
mod stores;
mod survivors;
mod terminal;
mod tls;
mod values;
mod variables;
mod words;
