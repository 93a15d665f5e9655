//! The events of a simulation run, and their order.

/// A scheduled event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A timer of a process fires. The process raises the `serial` of a slot when it drops the slot's timer. If the
    /// slot now has a different `serial`, the event is ignored.
    Timer { client: u8, slot: u32, serial: u32 },
    /// The actor of a link (one client's connection to one master) runs.
    RunActor { link: u32 },
    /// The alarm with the number `serial` fires on a link. It is ignored if the link has set a newer alarm.
    Alarm { link: u32, serial: u32 },
    /// The first packet of a connection reaches the master.
    ConnectReachesMaster { conn: u32 },
    /// The master's acceptance of a connection reaches the client.
    ConnectAnswered { conn: u32 },
    /// The oldest bytes in flight to the master reach the master.
    BytesReachMaster { conn: u32 },
    /// The oldest bytes in flight to the client reach the client.
    BytesReachClient { conn: u32 },
    /// The client is notified that its connection has ended.
    ConnectionClosed { conn: u32 },
    /// A request reaches a store.
    RequestReachesStore { request: u32 },
    /// A store's answer reaches the client.
    AnswerReachesClient { request: u32 },
    /// A client is notified that its store session has ended.
    SessionLost { session: u32 },
    /// A store's wake-up message reaches the client.
    WakeUpReachesClient { session: u32 },
    /// A delayed second copy of a message reaches a master, which executes it.
    DuplicateReachesMaster(u32),
    /// A task that was delayed at an await becomes ready.
    TaskReady(u32),
    /// A fault happens. The number is its index in the scenario's list of faults.
    Fault(u32),
    /// The next step of a force-release at the Redis masters. The number is its index in `World::force_releases`.
    ForceReleaseStep(u32),
    /// A master that has crashed restarts.
    MasterRestarts(u8),
    /// An administrator gives another identity to a store that was set back.
    StoreRepaired(u8),
    /// The state of a master is saved to its disk. If the disk is stale, the next restart restores this state.
    DiskSnapshot(u8),
    /// Another program removes the foreign value that it has stored under a lock key.
    ForeignKeyRemoved { master: u8, resource: u8 },
    /// A paused process resumes.
    ProcessResumes(u8),
    /// A client process ends, because it has taken its only step.
    ProcessEnds(u8),
    /// A killed client process restarts. The executor starts it.
    ProcessStarts(u8),
    /// A client restarts with the masters that it must use at the end of the run (`ChangePlan::steps`).
    LastReconfiguration(u8),
    /// The restart guard of a master ends, so the master votes again. Its generation marker was lost or set back when
    /// it restarted.
    RestartGuardEnds,
    /// The administrator, which the simulation plays, writes lost generation markers again.
    RestoreMarkers,
    /// All clocks advance, because nobody uses the masters for some days. The number is the index of the fault
    /// `UnusedDays` in the scenario.
    ClocksAdvance(u32),
}

pub(super) struct ScheduledEvent {
    pub(super) time: u64,
    pub(super) sequence_number: u64,
    pub(super) event: Event,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        (self.time, self.sequence_number) == (other.time, other.sequence_number)
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.sequence_number).cmp(&(other.time, other.sequence_number))
    }
}
