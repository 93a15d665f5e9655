//! All tests of the command line. They are modules of one test program, because linking a program for each file would
//! take longer.

mod bad_input;
mod bench;
mod check;
mod common;
mod demo;
mod doctor;
mod help;
mod hold;
mod kinds;
mod lead;
mod leaked_keys;
mod masters;
mod messages;
mod metrics;
mod nodes;
mod packaging;
mod page;
mod pages;
mod refusals;
mod run;
mod scripts;
mod start;
mod status;
mod stores;
mod survivors;
mod terminal;
mod tls;
mod values;
mod variables;
