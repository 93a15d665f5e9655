//! The simulated world: one queue of events, the masters, the connections and the client processes.
//!
//! The scenario and its seed decide everything that happens in the world. A mutex protects the world. It must be
//! unlocked whenever the library is called, because the library calls back into the world.

mod ages;
mod arguments;
mod client_end;
mod deletion;
mod event;
mod faults;
mod force_release;
mod foreign_key;
mod full;
mod link;
mod markers;
mod master;
mod net;
mod notes;
mod observer;
mod orders;
mod records;
mod register;
mod run_row;
mod server;
mod session;
mod store;
mod store_run;
mod stream;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use quorate::node::{Claim, Ended, Request};
use quorate::runtime::BoxFuture;

use client_end::DriverCall;
pub(crate) use event::Event;
use event::ScheduledEvent;
pub(crate) use link::Link;
use markers::MarkerCheck;
use master::SimMaster;
use net::Conn;
pub(crate) use observer::RunObserver;
use records::Records;
pub(crate) use run_row::{RowChange, RunRow, StoreState};
use session::{PendingRequest, Session};
pub(crate) use session::{SessionAnswer, SessionRequest};
use store::{StoreConnection, StoreForceRelease};
pub(crate) use stream::open_stream;

use crate::clock::{Clock, RUN_START};
use crate::flaw::Flaw;
use crate::rng::Rng;
use crate::run_options::RunOptions;
use crate::scenario::{FaultKind, Scenario};

/// The state that all tasks and nodes of a simulation run share.
pub(crate) struct Shared {
    /// The true time in nanoseconds. It advances from event to event, and a little at each reading of a clock.
    now: AtomicU64,
    /// Whether a task is being polled. Only a task that is being polled may be preempted when it reads a clock.
    is_task_polled: AtomicBool,
    /// The tasks that have been woken. This list is not in `World`, so a wake-up does not lock the mutex `world`.
    pub(crate) ready_tasks: Arc<Mutex<VecDeque<usize>>>,
    world: Mutex<World>,
}

impl Shared {
    pub(crate) fn new(scenario: Arc<Scenario>, run_options: RunOptions) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(RUN_START),
            is_task_polled: AtomicBool::new(false),
            ready_tasks: Arc::default(),
            world: Mutex::new(World::new(scenario, run_options)),
        })
    }

    /// Returns the true time, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        world.now = self.now();
        world
    }

    /// Sets whether a task is being polled (true) or not. Returns the previous value.
    pub(crate) fn set_polling(&self, polls: bool) -> bool {
        self.is_task_polled.swap(polls, Ordering::Relaxed)
    }

    /// Reads the state of all holds of a client process, and then runs the checkers on it.
    pub(crate) fn check_client(&self, client: usize) {
        let mut world = self.world();
        let now = world.now;
        world.observer.check_after_event(now, Some(client));
    }

    /// Advances the true time by `duration` nanoseconds, the time that a reading of a clock takes. Returns the new true
    /// time.
    pub(crate) fn advance_clock(&self, duration: u64) -> u64 {
        // A simulation run has one thread, so the load and the store need not be one atomic operation.
        let now = self.now() + duration;
        self.now.store(now, Ordering::Relaxed);
        now
    }

    /// Preempts the task that is being polled, for at most `longest` nanoseconds. Masters, network and drivers
    /// continue, but no task runs. An event that the executor must handle ends the preemption.
    pub(crate) fn preempt(&self, client: usize, longest: u64) {
        // Preempt only a task that is being polled. A driver may also read the clock.
        if !self.is_task_polled.swap(false, Ordering::Relaxed) {
            return;
        }
        let until = self.now() + longest;
        if self.world().is_preemption_off(client) {
            return;
        }
        let began_at = self.now();
        loop {
            let world = self.world();
            let Some(Reverse(next)) = world.events.peek() else {
                break;
            };
            if next.time > until {
                self.now.store(until.max(self.now()), Ordering::Relaxed);
                break;
            }
            if matches!(
                next.event,
                Event::TaskReady(_)
                    | Event::Fault(_)
                    | Event::LastReconfiguration(_)
                    | Event::ProcessEnds(_)
                    | Event::ProcessResumes(_)
                    | Event::ProcessStarts(_)
            ) {
                break;
            }
            if self.handle_next_event(world, until).is_none() {
                break;
            }
        }
        self.is_task_polled.store(true, Ordering::Relaxed);
        let has_waited = self.now() > began_at;
        self.world().observer.coverage.preemptions += u64::from(has_waited);
    }

    /// Handles the next event and runs the checkers. First advances the true time to the event. Unlocks the world
    /// before it calls the library. Returns the event; `None` if there is no event until `deadline`.
    pub(crate) fn handle_next_event(
        &self,
        mut world: MutexGuard<'_, World>,
        deadline: u64,
    ) -> Option<Event> {
        let Reverse(next) = world.events.pop()?;
        if next.time > deadline {
            return None;
        }
        // Readings of clocks also advance the time, so the time may already be later than the event's time.
        world.now = next.time.max(self.now());
        self.now.store(world.now, Ordering::Relaxed);
        let unlocked_work = world.handle_event(next.event);
        let now = world.now;
        match unlocked_work {
            // Do not run the checkers yet: they run after the woken task.
            Some(UnlockedWork::Wake(waker)) => {
                drop(world);
                waker.wake();
            }
            Some(UnlockedWork::CallDriver(link, call)) => self.call_driver(world, link, call),
            Some(UnlockedWork::ForceRelease(breaks)) => {
                drop(world);
                breaks.send();
            }
            None => world.observer.check_after_event(now, None),
        }
        Some(next.event)
    }

    /// Empties the world at the end of a run, to break reference cycles.
    pub(crate) fn clear_world(&self) {
        let mut world = self.world();
        let links = std::mem::take(&mut world.links);
        let remaining = (
            std::mem::take(&mut world.observer.believers),
            std::mem::take(&mut world.spawned_tasks),
            std::mem::take(&mut world.timers),
            std::mem::take(&mut world.duplicates),
            std::mem::take(&mut world.store_connections),
        );
        drop(world);
        drop((links, remaining));
    }
}

/// The part of an event's work that must be done while the world is unlocked: wake a task, call a driver, or send a
/// force-release.
enum UnlockedWork {
    Wake(Waker),
    CallDriver(usize, DriverCall),
    ForceRelease(StoreForceRelease),
}

/// A client process as the world sees it.
pub(crate) struct Process {
    pub(crate) clock: Clock,
    pub(crate) wall_us: Arc<AtomicI64>,
    /// The number of times that the process has started.
    pub(crate) starts: u32,
    pub(crate) paused_until: u64,
    /// The events that arrived while the process was paused.
    postponed_events: Vec<Event>,
    /// The tasks that were woken while the process was paused.
    pub(crate) postponed_tasks: Vec<usize>,
    /// The index of the next step in the process's plan.
    pub(crate) next_step_index: usize,
    /// The number of tasks of the process that are still running.
    pub(crate) running_tasks: u8,
    pub(crate) is_done: bool,
    pub(crate) is_killed: bool,
    /// The latest attempt of the process; `None` if there was none.
    latest_attempt: Option<Arc<Claim>>,
    /// When the process sent its first request over its present connections; `None` if it has not sent one.
    pub(crate) first_request: Option<u64>,
    /// The step that the process will have after its next start. It says which masters the process uses (see
    /// `change_plan.rs`).
    next_step: u8,
    /// The present step of the process.
    present_step: u8,
}

/// A force-release whose first step, reading the lock from the masters, is done.
struct ForceRelease {
    resource: u8,
    /// The masters that the operator does not reach, as bits.
    missed: u16,
    ended: Arc<[Ended]>,
    /// Whether a majority of the masters has the break record, so that the next step deletes the lock keys.
    recorded: bool,
}

#[derive(Default)]
pub(crate) struct TimerSlot {
    pub(crate) serial: u32,
    pub(crate) waker: Option<Waker>,
}

/// A second copy of a message, which arrives late. The master executes it even if the client has closed the connection.
struct DuplicateMessage {
    master: usize,
    restarts: u32,
    /// The connection on which the client sent the original message.
    conn: usize,
    /// Which check of the generation marker the message contains, as an index into `World::marker_checks`; 0 if it
    /// contains no check.
    marker_check: usize,
    request: Request,
}

/// The whole state of the simulation, except the state of the library and the tasks.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) flaw: Option<Flaw>,
    /// The index of the task that is being polled.
    pub(crate) polled_task: usize,
    events: BinaryHeap<Reverse<ScheduledEvent>>,
    last_sequence_number: u64,
    pub(crate) rng: Rng,
    masters: Vec<SimMaster>,
    /// The records of each master. Only a store (a master like MariaDB or ZooKeeper) has records.
    stores: Vec<Records>,
    /// For each master that is a store: the records that a stale disk restores at the next restart.
    store_disks: Vec<Records>,
    /// For each client process and each store: the number of the latest change that the process has seen.
    seen_numbers: HashMap<(usize, usize), u64>,
    sessions: Vec<Session>,
    pending_requests: Vec<Option<PendingRequest>>,
    /// For the seeded bug `KeptSession`: the indexes of the sessions with unread answers that clients will reuse.
    reusable_sessions: Vec<usize>,
    /// The lock values that stores have reported as released. Each pair is the index of the store, and the lock value.
    released_values: HashSet<(usize, [u8; 32])>,
    /// The lock values that a force-release has added to the break records of stores.
    force_released_values: store::ForceReleasedValues,
    /// The resources whose locks were force-released at stores since the checkers were notified.
    finished_force_releases: store::FinishedForceReleases,
    /// The waiters that have left the queue of a store. Each pair is the index of the store, and the waiter.
    left_waiters: HashSet<(usize, Arc<str>)>,
    /// The clients' connections to stores, one for each client and store. The simulation sends force-releases through
    /// them.
    store_connections: Vec<StoreConnection>,
    /// The force-releases at Redis masters so far.
    force_releases: Vec<ForceRelease>,
    pub(crate) links: Vec<Link>,
    conns: Vec<Conn>,
    pub(crate) processes: Vec<Process>,
    pub(crate) timers: Vec<TimerSlot>,
    pub(crate) free_timers: Vec<u32>,
    duplicates: Vec<Option<DuplicateMessage>>,
    /// Whether an operator has finished every replacement of masters in this run. Always true without operators.
    are_changes_complete: bool,
    /// The checks of generation markers that scripts contain. Scripts refer to a check by its index.
    marker_checks: Vec<MarkerCheck>,
    /// By master: `None`, unless a restart has removed or set back the master's generation marker. Then:
    ///
    /// - the number that the marker had before the restart (the largest one after several such restarts);
    /// - the true time at which the restart guard ends.
    ///
    /// An entry becomes `None` again when the number in the marker is no longer smaller.
    outdated_markers: Vec<Option<(u64, u64)>>,
    /// By master: the true time at which the restart guard ends after the first restart that removed or set back the
    /// generation marker; `None` if there was none. Unlike `outdated_markers`, this does not change when the marker is
    /// restored.
    guard_ends: Vec<Option<u64>>,
    /// For seeded bugs that replace a master without an operator: the true time at which that master died. `None`
    /// before its death.
    dead_since: Option<u64>,
    /// Whether the operator is removing a stored value. While it is, the seeded bug `CarryWithoutLock` is switched off.
    pub(crate) is_operator_removing: bool,
    /// The spawned tasks that the executor has not taken yet.
    pub(crate) spawned_tasks: Vec<(usize, BoxFuture<()>)>,
    pub(crate) observer: RunObserver,
}

impl World {
    fn new(scenario: Arc<Scenario>, run_options: RunOptions) -> Self {
        let process = |(client, plan): (usize, &crate::scenario::ClientPlan)| Process {
            next_step: scenario.first_step(client),
            present_step: scenario.first_step(client),
            clock: Clock::new(plan.origin, plan.ppm),
            wall_us: Arc::new(AtomicI64::new(plan.wall_us)),
            starts: 0,
            paused_until: 0,
            postponed_events: Vec::new(),
            postponed_tasks: Vec::new(),
            next_step_index: 0,
            running_tasks: 0,
            is_done: false,
            is_killed: false,
            latest_attempt: None,
            first_request: None,
        };
        let all_masters = scenario.masters.iter().enumerate();
        let mut world = Self {
            now: RUN_START,
            flaw: run_options.flaw,
            polled_task: 0,
            events: BinaryHeap::with_capacity(256),
            last_sequence_number: 0,
            rng: Rng::stream(scenario.seed, 3),
            masters: all_masters.map(SimMaster::new).collect(),
            stores: vec![Records::default(); scenario.masters.len()],
            store_disks: vec![Records::default(); scenario.masters.len()],
            seen_numbers: HashMap::new(),
            sessions: Vec::new(),
            pending_requests: Vec::new(),
            reusable_sessions: Vec::new(),
            released_values: HashSet::new(),
            force_released_values: store::ForceReleasedValues::default(),
            finished_force_releases: store::FinishedForceReleases::default(),
            left_waiters: HashSet::new(),
            store_connections: Vec::new(),
            force_releases: Vec::new(),
            links: Vec::new(),
            conns: Vec::new(),
            processes: scenario.clients.iter().enumerate().map(process).collect(),
            timers: Vec::new(),
            free_timers: Vec::new(),
            duplicates: Vec::new(),
            are_changes_complete: scenario
                .change
                .as_ref()
                .is_none_or(|plan| plan.operators == 0),
            marker_checks: vec![MarkerCheck::default()],
            outdated_markers: vec![None; scenario.masters.len()],
            guard_ends: vec![None; scenario.masters.len()],
            dead_since: None,
            is_operator_removing: false,
            spawned_tasks: Vec::new(),
            observer: RunObserver::new(&scenario, run_options),
            scenario: scenario.clone(),
        };
        world.schedule_faults();
        world.write_initial_markers();
        world.write_initial_rows();
        world
    }

    /// Schedules the faults of the scenario, and the snapshots of the disks that restarts restore.
    fn schedule_faults(&mut self) {
        let scenario = self.scenario.clone();
        for (index, fault) in scenario.faults.iter().enumerate() {
            let at = RUN_START + fault.at;
            if let FaultKind::Crash { master, age, .. }
            | FaultKind::StoreEvent { master, age, .. } = fault.kind
            {
                self.schedule(
                    at.saturating_sub(age).max(RUN_START),
                    Event::DiskSnapshot(master),
                );
            }
            self.schedule(at, Event::Fault(index as u32));
        }
    }

    /// Schedules an event at the true time `at`.
    pub(crate) fn schedule(&mut self, time: u64, event: Event) {
        self.last_sequence_number += 1;
        let sequence_number = self.last_sequence_number;
        self.events.push(Reverse(ScheduledEvent {
            time,
            sequence_number,
            event,
        }));
    }

    /// Whether all faults of the scenario have ended.
    pub(crate) fn faults_have_ended(&self) -> bool {
        self.now >= RUN_START + self.scenario.heal_at
    }

    /// Whether the process `client` is no longer preempted: after the faults have ended, if it is an operator, or in a
    /// run with stores. An operator and the driver for stores read the clock so often that preemptions, which each
    /// reading can cause, would make up most of the run.
    fn is_preemption_off(&self, client: usize) -> bool {
        let reads_often = self.scenario.store_masters() != 0 || self.scenario.is_operator(client);
        self.faults_have_ended() && reads_often
    }

    /// Returns the client whose process receives the event; `None` if no client process receives it.
    fn receiving_client(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Timer { client, .. } => Some(usize::from(*client)),
            Event::RunActor { link } | Event::Alarm { link, .. } => {
                Some(self.links[*link as usize].client)
            }
            Event::ConnectAnswered { conn }
            | Event::BytesReachClient { conn }
            | Event::ConnectionClosed { conn } => {
                let link = self.conns[*conn as usize].link;
                Some(self.links[link].client)
            }
            Event::AnswerReachesClient { request } => self.client_of_request(*request),
            Event::SessionLost { session } | Event::WakeUpReachesClient { session } => {
                Some(self.client_of_session(*session))
            }
            _ => None,
        }
    }

    /// Postpones an event whose client process is paused. Returns true if the event was postponed.
    fn postpone_while_paused(&mut self, event: Event) -> bool {
        let Some(client) = self.receiving_client(&event) else {
            return false;
        };
        let process = &mut self.processes[client];
        let is_paused = process.paused_until > self.now;
        if is_paused {
            process.postponed_events.push(event);
        }
        is_paused
    }

    fn handle_event(&mut self, event: Event) -> Option<UnlockedWork> {
        self.observer.coverage.events += 1;
        self.observer.event += 1;
        self.report_finished_force_releases();
        if self.postpone_while_paused(event) {
            return None;
        }
        let call_driver = |(link, call)| UnlockedWork::CallDriver(link, call);
        let to_index = |index: u32| index as usize;
        match event {
            Event::Timer { slot, serial, .. } => {
                let timer = &mut self.timers[slot as usize];
                let is_due = timer.serial == serial;
                let waker = is_due.then(|| timer.waker.take()).flatten();
                return waker.map(UnlockedWork::Wake);
            }
            Event::RunActor { link } => {
                let call = self.start_actor(to_index(link));
                return Some(call_driver((to_index(link), call)));
            }
            Event::Alarm { link, serial } => {
                let call = self.fire_alarm(to_index(link), serial);
                return call.map(|call| call_driver((to_index(link), call)));
            }
            Event::ConnectAnswered { conn } => {
                let link = self.conns[to_index(conn)].link;
                let call = self.handle_connect_answer(to_index(conn))?;
                return self.notify_client_end(link, call);
            }
            Event::BytesReachClient { conn } => {
                let (link, call) = self.deliver_to_client(to_index(conn))?;
                return self.notify_client_end(link, call);
            }
            Event::ConnectionClosed { conn } => {
                let (link, call) = self.deliver_close(to_index(conn))?;
                return self.notify_client_end(link, call);
            }
            Event::ConnectReachesMaster { conn } => self.handle_connect(to_index(conn)),
            Event::BytesReachMaster { conn } => self.deliver_to_master(to_index(conn)),
            Event::DuplicateReachesMaster(index) => self.deliver_duplicate(to_index(index)),
            Event::Fault(index) => return self.inject_fault(to_index(index)),
            Event::RequestReachesStore { request } => self.deliver_request(to_index(request)),
            Event::AnswerReachesClient { request } => {
                return self.deliver_answer(to_index(request));
            }
            Event::SessionLost { session } => return self.deliver_session_loss(to_index(session)),
            Event::WakeUpReachesClient { session } => {
                return self.deliver_wake_up(to_index(session));
            }
            Event::MasterRestarts(master) => self.restart(master.into()),
            Event::StoreRepaired(master) => self.repair_store(master.into()),
            Event::DiskSnapshot(master) => self.snapshot(master.into()),
            Event::ForeignKeyRemoved { master, resource } => {
                self.remove_foreign_key(master, resource);
            }
            Event::ProcessResumes(client) => self.resume(client.into()),
            Event::ProcessEnds(client) => self.end_process(client),
            Event::LastReconfiguration(client) => self.restart_with_last_masters(client.into()),
            Event::RestartGuardEnds => self.check_outdated_markers(),
            Event::ForceReleaseStep(index) => self.continue_force_release(index as usize),
            Event::RestoreMarkers => self.restore_lost_markers(),
            Event::ClocksAdvance(fault) => self.advance_all_clocks(to_index(fault)),
            Event::TaskReady(_) | Event::ProcessStarts(_) => {}
        }
        None
    }

    /// Adds a line to the trace, if the run has a trace.
    pub(crate) fn trace_line(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        self.observer.trace_line(now, line);
    }
}
