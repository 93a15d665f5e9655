//! Masters in memory for tests of your own code, and hooks for simulations (feature `testing`). The hooks may change in
//! any version.

pub use crate::builder::hooks::{connect, context, drivers, known_as, mark};
pub use crate::hold::guard::look;
pub use crate::node::change::clients;
pub use crate::node::memory::{Condition, Masters, MemoryNode};
pub use crate::node::redis::driver::{Driver, Stage, Wants};
pub use crate::node::redis::script::Script;
