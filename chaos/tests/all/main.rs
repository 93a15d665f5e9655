//! All tests of the chaos runs, linked into one program.

mod changes;
mod checkers;
mod export;
mod kinds;
mod mixes;
mod runs;
mod support;
