//! Kinds of events that may interfere with the use of locks and values. Each kind is a column of the tables in
//! `crossings.rs`.

use crate::scenario::{FaultKind, Refusal};

/// An event that may interfere with the use of a lock or of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// An operator takes a step of a replacement of masters on one master: it raises the master's generation marker.
    MastersChanged,
    /// A master refuses requests because it has no memory left for them.
    OutOfMemory,
    /// A master restarts and has lost some or all of its memory.
    DataLost,
    /// The clock of a master or of a client jumps.
    ClockJump,
    /// The process of a holder pauses.
    Pause,
    /// A master loses its cached Lua scripts.
    ScriptsFlushed,
    /// A master refuses requests because the client's user lacks a permission.
    PermissionDenied,
    /// A lock is force-released.
    ForceRelease,
    /// Nobody uses the masters for days.
    UnusedDays,
    /// The row of a store's run is lost, or does not fit any more.
    NewRun,
    /// A store is set back to an earlier state, together with the numbers of its changes.
    SetBack,
}

impl Happening {
    /// All happenings, in the order of their columns in the table of `crossings.rs`.
    pub const ALL: [Self; 11] = [
        Self::MastersChanged,
        Self::OutOfMemory,
        Self::DataLost,
        Self::ClockJump,
        Self::Pause,
        Self::ScriptsFlushed,
        Self::PermissionDenied,
        Self::ForceRelease,
        Self::UnusedDays,
        Self::NewRun,
        Self::SetBack,
    ];

    /// The name of the happening: the header of its column in the table of `crossings.rs`.
    pub fn name(self) -> &'static str {
        match self {
            Self::MastersChanged => "change",
            Self::OutOfMemory => "full",
            Self::DataLost => "empty",
            Self::ClockJump => "clock",
            Self::Pause => "pause",
            Self::ScriptsFlushed => "flush",
            Self::PermissionDenied => "denied",
            Self::ForceRelease => "break",
            Self::UnusedDays => "unused",
            Self::NewRun => "run",
            Self::SetBack => "set back",
        }
    }
}

impl Happening {
    /// Converts a fault that takes effect at once into a happening, and the client that the happening concerns; `None`
    /// for all clients. Returns `None` if the fault does not count as a happening, or takes effect later.
    pub(crate) fn from_fault(fault: FaultKind) -> Option<(Self, Option<usize>)> {
        Some(match fault {
            FaultKind::ClockJump { .. } | FaultKind::WallClockJump { .. } => {
                (Self::ClockJump, None)
            }
            FaultKind::FlushScripts { .. } => (Self::ScriptsFlushed, None),
            FaultKind::Pause { client, .. } => (Self::Pause, Some(client.into())),
            _ => return None,
        })
    }

    /// Converts the reason for which a master refuses requests into a happening; `None` if it does not count as a
    /// happening.
    pub(crate) fn from_refusal(refusal: Refusal) -> Option<Self> {
        match refusal {
            Refusal::OutOfMemory => Some(Self::OutOfMemory),
            Refusal::Denied => Some(Self::PermissionDenied),
            _ => None,
        }
    }
}
