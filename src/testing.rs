//! Masters in memory for tests of your own code, a proof that your resource refuses older fencing tokens
//! ([`FencingProof`]), and hooks for simulations (feature `testing`). The hooks may change in any version.

mod fencing_proof;

pub use self::fencing_proof::{FencedWrite, FencingFault, FencingProof, NoRestart};
pub use crate::builder::hooks::{connect, context, drivers, known_as, mark};
pub use crate::hold::guard::end_of_validity;
pub use crate::node::memory::{Condition, Masters, MemoryNode};
pub use crate::node::redis::driver::{Driver, Stage, Wants};
pub use crate::node::redis::script::{OperatorScript, Script};
#[doc(hidden)]
pub use crate::node::redis::server_half;
