//! Seeded bugs in the replacement of masters. Clients count votes wrongly, masters admit clients that they should
//! refuse, or operators take wrong steps.

use std::sync::Arc;

use quorate::RedlockBuilder;
use quorate::node::{Answer, Fault, Node, Request};

use crate::change_plan::{ChangePlan, ClientMasters};
use crate::flaw::Flaw;

impl Flaw {
    /// The seeded bugs in the replacement of masters. Only scenarios in which masters are replaced can reveal them.
    pub const CHANGE_BUGS: [Self; 23] = [
        Self::JointUnion,
        Self::JointOldOnly,
        Self::JointNextOnly,
        Self::MarkersIgnored,
        Self::LeftoverLock,
        Self::FenceOneSet,
        Self::ConfirmAtLeastJoint,
        Self::NoCarry,
        Self::CarryBeforeClose,
        Self::CarryMinority,
        Self::TicketOneSet,
        Self::CloseMinority,
        Self::OpenWithoutWait,
        Self::ClosingOpens,
        Self::ExtendUnrefused,
        Self::MarkWithoutKill,
        Self::MarkLostOnRestart,
        Self::ReplaceDeadAtOnce,
        Self::DeadComesBack,
        Self::WarmSpare,
        Self::ValuesLeftBehind,
        Self::CarryOneShown,
        Self::CarryWithoutLock,
    ];

    /// Whether this bug concerns the replacement of masters.
    pub fn is_of_changes(self) -> bool {
        Self::CHANGE_BUGS.contains(&self)
    }

    /// The name of a seeded bug in the replacement of masters, for commands and tables.
    pub(crate) fn name_at_changes(self) -> &'static str {
        match self {
            Self::JointUnion => "joint-union",
            Self::JointOldOnly => "joint-old-only",
            Self::JointNextOnly => "joint-next-only",
            Self::MarkersIgnored => "markers-ignored",
            Self::LeftoverLock => "leftover-lock",
            Self::FenceOneSet => "fence-one-set",
            Self::ConfirmAtLeastJoint => "confirm-at-least-joint",
            Self::NoCarry => "no-carry",
            Self::CarryBeforeClose => "carry-before-close",
            Self::CarryMinority => "carry-minority",
            Self::TicketOneSet => "ticket-one-set",
            Self::CloseMinority => "close-minority",
            Self::OpenWithoutWait => "open-without-wait",
            Self::ClosingOpens => "closing-opens",
            Self::ExtendUnrefused => "extend-unrefused",
            Self::MarkWithoutKill => "mark-without-kill",
            Self::MarkLostOnRestart => "mark-lost-on-restart",
            Self::ReplaceDeadAtOnce => "replace-dead-at-once",
            Self::DeadComesBack => "dead-comes-back",
            Self::ValuesLeftBehind => "values-left-behind",
            Self::CarryOneShown => "carry-one-shown",
            Self::CarryWithoutLock => "carry-without-lock",
            _ => "warm-spare",
        }
    }

    /// Whether this bug is in the copying of values to the new masters.
    pub fn is_of_carrying(self) -> bool {
        matches!(
            self,
            Self::ValuesLeftBehind | Self::CarryOneShown | Self::CarryWithoutLock
        )
    }

    /// Whether, with this bug, a master is replaced only by reconfiguring the clients, without an operator.
    pub(crate) fn replaces_without_operator(self) -> bool {
        matches!(self, Self::ReplaceDeadAtOnce | Self::DeadComesBack)
    }

    /// Returns `settings` with the client's masters (`configuration`). With some bugs, a client that should use two
    /// sets uses only one: the old set, the new set, or the union of both.
    pub(crate) fn configure_client(
        self,
        configuration: &ClientMasters,
        settings: RedlockBuilder,
        nodes: &[Arc<dyn Node>],
    ) -> RedlockBuilder {
        let [old, next] = configuration.sets();
        let set = match self {
            _ if old == next => None,
            Self::JointUnion => Some(old | next),
            Self::JointOldOnly => Some(old),
            Self::JointNextOnly => Some(next),
            _ => None,
        };
        let Some(set) = set else {
            return configuration.configure(settings).nodes(nodes.to_vec());
        };
        let masters_with_nodes = configuration.all_masters().into_iter().zip(nodes);
        let counted_nodes = masters_with_nodes.filter(|(master, _)| set >> master & 1 == 1);
        settings.nodes(counted_nodes.map(|(_, node)| node.clone()).collect())
    }

    /// Falsifies an answer from a master that is only in the new set, so that the client ignores the number in the
    /// answer. `FenceOneSet` sets the fencing counter of a grant to 1. `TicketOneSet` sets the ticket in a refusal to
    /// 0.
    pub(crate) fn falsify_answer_of_next_set(
        self,
        request: &Request,
        answer: &mut Result<Answer, Fault>,
    ) {
        match (self, request, answer) {
            (Self::FenceOneSet, Request::Acquire { .. }, Ok(Answer::Granted { counter })) => {
                *counter = counter.map(|_| 1);
            }
            (
                Self::TicketOneSet,
                Request::Acquire { .. },
                Ok(Answer::Refused {
                    line: Some(queue), ..
                }),
            ) => queue.ticket = 0,
            _ => {}
        }
    }
}

impl ChangePlan {
    /// For the bugs that replace a master without an operator: returns the masters that a client uses at this step. At
    /// step 0, it uses the first set of masters, and later the second set.
    pub(crate) fn masters_without_operator(&self, step: u8) -> ClientMasters {
        ClientMasters::of_one_set(self.sets[usize::from(step > 0)])
    }

    /// Returns the number of the master that is replaced, if the plan's first change replaces exactly one of at least
    /// three masters; otherwise `None`.
    pub(crate) fn only_replaced_master(&self) -> Option<usize> {
        let [old, next] = [self.sets[0], self.sets[1]];
        let (removed, added) = (old & !next, next & !old);
        let is_single =
            removed.is_power_of_two() && added.is_power_of_two() && old.count_ones() > 2;
        is_single.then(|| removed.trailing_zeros() as usize)
    }
}
