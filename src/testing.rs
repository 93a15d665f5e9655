//! Doors for tests and simulations (feature `testing`): no promise of stability.

pub use crate::builder::{connect, context, drivers, known_as};
pub use crate::hold::guard::look;
pub use crate::node::redis::driver::{Driver, Stage, Wants};
