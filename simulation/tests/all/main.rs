//! All tests of the simulation, in one program.

mod changes;
mod clocks;
mod crossings;
mod kept;
mod kinds;
mod model;
mod operations;
mod seeds;
mod stores;
mod supervisor;
mod support;
mod tries;
mod values;
