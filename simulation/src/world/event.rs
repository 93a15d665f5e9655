//! The events of a simulation run, and their order.

/// A scheduled event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A timer of a process fires, unless `lap` is outdated.
    Timer {
        client: u8,
        slot: u32,
        lap: u32,
    },
    /// The actor of a link (a client's connection state for one master) runs.
    Turn {
        link: u32,
    },
    /// The alarm of a link fires, unless `lap` is outdated.
    Alarm {
        link: u32,
        lap: u32,
    },
    /// The first packet of a connection reaches the master.
    Accept {
        conn: u32,
    },
    /// The master's acceptance of a connection reaches the client.
    Dialed {
        conn: u32,
    },
    /// The oldest bytes in flight to the master reach it.
    Arrive {
        conn: u32,
    },
    /// The oldest bytes in flight to the client reach it.
    Receive {
        conn: u32,
    },
    /// The client is notified that its connection has ended.
    Closed {
        conn: u32,
    },
    /// A request reaches a store (`Reach`), or its answer reaches the client (`Tell`).
    Reach {
        asked: u32,
    },
    Tell {
        asked: u32,
    },
    /// A client is notified that its store session has ended (`Lost`), or a wake-up message reaches it (`Word`).
    Lost {
        session: u32,
    },
    Word {
        session: u32,
    },
    /// A delayed second copy of a message reaches a master, which executes it.
    Stray(u32),
    /// A task that was delayed at an await becomes ready.
    Wake(u32),
    /// The fault of the scenario with this index happens.
    Fault(u32),
    /// A master that has crashed restarts.
    Restart(u8),
    /// The state of a master is saved. A stale disk restores this state at the next restart.
    Snapshot(u8),
    /// Another program removes the foreign value that it has stored under a lock key.
    ForeignKeyGoes {
        master: u8,
        resource: u8,
    },
    /// A paused process resumes.
    Resume(u8),
    /// A killed client process restarts. The executor handles this event.
    Boot(u8),
    /// A client is configured with the masters of its last step.
    Reconfigured(u8),
    /// An order of an operator reaches a master (`Ordered`), or its reply reaches the operator (`Obeyed`).
    Ordered {
        order: u32,
    },
    Obeyed {
        order: u32,
    },
    /// The restart guard ends on a master that came back from a restart with an older generation marker.
    Unguarded,
    /// The administrator checks for masters that have lost their generation markers.
    LookedAfter,
    /// All clocks advance by the time for which nobody uses the masters. The number is the index of the fault `Skip`.
    Skipped(u32),
}

pub(super) struct Scheduled {
    pub(super) at: u64,
    pub(super) seq: u64,
    pub(super) event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}
