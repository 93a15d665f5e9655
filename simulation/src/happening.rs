//! What crosses the use of locks and values.

use crate::scenario::{FaultKind, Refusal};

/// Something that crosses the use of a lock or of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// A mark of the masters is raised.
    Change,
    /// A master has no memory left.
    Full,
    /// A master comes back without all that it knew.
    Empty,
    /// The clock of a master jumps: also to a wrong date, and back.
    Clock,
    /// The process of a holder stands still.
    Pause,
    /// A master loses its scripts.
    Flush,
    /// A user loses its rights on a master.
    Denied,
    /// A lock is broken by hand.
    Break,
    /// Nobody uses the masters for days.
    Unused,
}

impl Happening {
    /// The columns of the table.
    pub const ALL: [Self; 9] = [
        Self::Change,
        Self::Full,
        Self::Empty,
        Self::Clock,
        Self::Pause,
        Self::Flush,
        Self::Denied,
        Self::Break,
        Self::Unused,
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Change => "change",
            Self::Full => "full",
            Self::Empty => "empty",
            Self::Clock => "clock",
            Self::Pause => "pause",
            Self::Flush => "flush",
            Self::Denied => "denied",
            Self::Break => "break",
            Self::Unused => "unused",
        }
    }
}

impl Happening {
    /// What a fault is, and which client or resource alone it concerns; none for what crosses nothing.
    pub(crate) fn of(fault: FaultKind) -> Option<(Self, Option<usize>, Option<usize>)> {
        Some(match fault {
            FaultKind::Jump { .. } => (Self::Clock, None, None),
            FaultKind::Flush { .. } => (Self::Flush, None, None),
            FaultKind::Refuse {
                how: Refusal::OutOfMemory,
                ..
            } => (Self::Full, None, None),
            FaultKind::Refuse {
                how: Refusal::Denied,
                ..
            } => (Self::Denied, None, None),
            FaultKind::Pause { client, .. } => (Self::Pause, Some(client.into()), None),
            FaultKind::Break { resource } => (Self::Break, None, Some(resource.into())),
            _ => return None,
        })
    }
}
