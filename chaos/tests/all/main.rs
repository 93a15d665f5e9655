//! The tests of the chaos runs, linked once.

mod changes;
mod checkers;
mod kinds;
mod mixes;
mod runs;
mod support;
