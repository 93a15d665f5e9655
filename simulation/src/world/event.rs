//! The events of a simulation run, and their order.

/// A scheduled event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A timer of a process fires. The process raises the `lap` of a slot when it drops the slot's timer. If the slot
    /// now has a different `lap`, the event is ignored.
    Timer { client: u8, slot: u32, lap: u32 },
    /// The actor of a link (one client's connection to one master) runs.
    Turn { link: u32 },
    /// The alarm with the number `lap` fires on a link. It is ignored if the link has set a newer alarm.
    Alarm { link: u32, lap: u32 },
    /// The first packet of a connection reaches the master.
    Accept { conn: u32 },
    /// The master's acceptance of a connection reaches the client.
    Dialed { conn: u32 },
    /// The oldest bytes in flight to the master reach the master.
    Arrive { conn: u32 },
    /// The oldest bytes in flight to the client reach the client.
    Receive { conn: u32 },
    /// The client is notified that its connection has ended.
    Closed { conn: u32 },
    /// A request reaches a store.
    Reach { asked: u32 },
    /// A store's answer reaches the client.
    Tell { asked: u32 },
    /// A client is notified that its store session has ended.
    Lost { session: u32 },
    /// A store's wake-up message reaches the client.
    Word { session: u32 },
    /// A delayed second copy of a message reaches a master, which executes it.
    Stray(u32),
    /// A task that was delayed at an await becomes ready.
    Wake(u32),
    /// A fault happens. The number is its index in the scenario's list of faults.
    Fault(u32),
    /// The next step of a force-release at the Redis masters. The number is its index in `World::force_releases`.
    Break(u32),
    /// A master that has crashed restarts.
    Restart(u8),
    /// The state of a master is saved to its disk. If the disk is stale, the next restart restores this state.
    Snapshot(u8),
    /// Another program removes the foreign value that it has stored under a lock key.
    ForeignKeyGoes { master: u8, resource: u8 },
    /// A paused process resumes.
    Resume(u8),
    /// A client process ends, because it has taken its only step.
    Ends(u8),
    /// A killed client process restarts. The executor starts it.
    Boot(u8),
    /// A client restarts with the masters that it must use at the end of the run (`ChangePlan::steps`).
    Reconfigured(u8),
    /// An operator's order reaches a master.
    Ordered { order: u32 },
    /// A master's reply to an order reaches the operator.
    Obeyed { order: u32 },
    /// The restart guard of a master ends, so the master votes again. Its generation marker was lost or set back when
    /// it restarted.
    Unguarded,
    /// The administrator, which the simulation plays, writes lost generation markers again.
    LookedAfter,
    /// All clocks advance, because nobody uses the masters for some days. The number is the index of the fault `Skip`
    /// in the scenario.
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
