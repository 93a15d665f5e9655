//! Kinds of events that may interfere with the use of locks and values. Each kind is a column of the tables in
//! `crossings.rs`.

use crate::scenario::{FaultKind, Refusal};

/// An event that may interfere with the use of a lock or of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// An operator takes a step of a replacement of masters on one master: it raises the master's generation marker.
    Change,
    /// A master refuses requests because it has no memory left for them.
    Full,
    /// A master restarts and has lost some or all of its memory.
    Empty,
    /// The clock of a master or of a client jumps.
    Clock,
    /// The process of a holder pauses.
    Pause,
    /// A master loses its cached Lua scripts.
    Flush,
    /// A master refuses requests because the client's user lacks a permission.
    Denied,
    /// A lock is force-released.
    Break,
    /// Nobody uses the masters for days.
    Unused,
}

impl Happening {
    /// All happenings, in the order of their columns in the table of `crossings.rs`.
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

    /// The name of the happening: the header of its column in the table of `crossings.rs`.
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
    /// Converts a fault into a happening; `None` if the fault does not count as a happening. The tuple contains:
    ///
    /// - the happening;
    /// - the client that the happening concerns; `None` for all clients;
    /// - the resource that the happening concerns; `None` for all resources.
    pub(crate) fn of(fault: FaultKind) -> Option<(Self, Option<usize>, Option<usize>)> {
        Some(match fault {
            FaultKind::Jump { .. } | FaultKind::Date { .. } => (Self::Clock, None, None),
            FaultKind::Flush { .. } => (Self::Flush, None, None),
            FaultKind::Refuse {
                how: Refusal::OutOfMemory,
                ..
            } => (Self::Full, None, None),
            FaultKind::Fill { resource, .. } => (Self::Full, None, Some(resource.into())),
            FaultKind::Refuse {
                how: Refusal::Denied,
                ..
            } => (Self::Denied, None, None),
            FaultKind::Pause { client, .. } => (Self::Pause, Some(client.into()), None),
            FaultKind::Break { resource, .. } => (Self::Break, None, Some(resource.into())),
            _ => return None,
        })
    }
}
