//! The effects of the bugs of the simulated world on what masters reply to operators.

use quorate::node::memory::Master;

/// The effects of seeded bugs on the replies of one master to operators.
#[derive(Clone, Debug, Default)]
pub(super) struct FalseReplies {
    /// For `CarryBeforeClose`: the memory of the master when it received the first command of an operator. The operator
    /// reads the fencing counters from this memory, although they are outdated by then.
    pub(super) early_memory: Option<Master>,
    /// For `CloseMinority`: a generation marker, with its number, that the operator takes for written, although the
    /// master still has the marker that it had before.
    pub(super) marker: Option<(u64, String)>,
}
