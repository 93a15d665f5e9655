//! The simulated world: one queue of events, the masters, the connections and the client processes.
//!
//! The scenario and its seed decide everything that happens in the world. A mutex protects the world. It must be
//! unlocked whenever the library is called, because the library calls back into the world.

mod ages;
mod deletion;
mod event;
mod faults;
mod force_release;
mod foreign_key;
mod full;
mod link;
mod marks;
mod master;
mod net;
mod notes;
mod orders;
mod records;
mod register;
mod server;
mod session;
mod store;
mod watch;
mod words;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use quorate::node::{Claim, Ended, Request};
use quorate::runtime::BoxFuture;

pub(crate) use event::Event;
use event::Scheduled;
use link::Call;
pub(crate) use link::Link;
use marks::Looks;
pub(crate) use marks::number_of;
use master::SimMaster;
use net::Conn;
use orders::Order;
pub(crate) use orders::{Heard, Word};
use records::Records;
use session::{Asked, Session};
pub(crate) use session::{Question, Said};
use store::{Breaker, Breaks};
pub(crate) use watch::Watch;

use crate::clock::{BEGIN, Clock, MS};
use crate::play::Play;
use crate::rng::Rng;
use crate::scenario::{FaultKind, Scenario};
use crate::seeded_bugs::Flaw;

/// The state that all tasks and nodes of a simulation run share.
pub(crate) struct Shared {
    /// The true time in nanoseconds. It advances from event to event, and a little at each reading of a clock.
    now: AtomicU64,
    /// Whether a task is being polled. Only a task that is being polled may be preempted when it reads a clock.
    polled: AtomicBool,
    /// The tasks that have been woken. This list is not in `World`, so a wake-up does not lock the mutex `world`.
    pub(crate) ready: Arc<Mutex<VecDeque<usize>>>,
    world: Mutex<World>,
}

impl Shared {
    pub(crate) fn new(scenario: Arc<Scenario>, play: Play) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(BEGIN),
            polled: AtomicBool::new(false),
            ready: Arc::default(),
            world: Mutex::new(World::new(scenario, play)),
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
    pub(crate) fn polls(&self, polls: bool) -> bool {
        self.polled.swap(polls, Ordering::Relaxed)
    }

    /// Reads the state of all holds of a client process, and then runs the checkers on it.
    pub(crate) fn after(&self, client: usize) {
        let mut world = self.world();
        let now = world.now;
        world.watch.after(now, Some(client));
    }

    /// Advances the true time by `moment` nanoseconds, the time that a reading of a clock takes. Returns the new true
    /// time.
    pub(crate) fn advance_clock(&self, moment: u64) -> u64 {
        // A simulation run has one thread, so the load and the store need not be one atomic operation.
        let now = self.now() + moment;
        self.now.store(now, Ordering::Relaxed);
        now
    }

    /// Preempts the task that is being polled, for at most `lasts` nanoseconds. Masters, network and drivers continue,
    /// but no task runs. An event that the executor must handle ends the preemption.
    pub(crate) fn preempt(&self, lasts: u64) {
        // Preempt only a task that is being polled. A driver may also read the clock.
        if !self.polled.swap(false, Ordering::Relaxed) {
            return;
        }
        let until = self.now() + lasts;
        if self.world().is_rested() {
            return;
        }
        self.world().watch.coverage.preempted += 1;
        loop {
            let world = self.world();
            let Some(Reverse(next)) = world.events.peek() else {
                break;
            };
            if next.at > until {
                self.now.store(until.max(self.now()), Ordering::Relaxed);
                break;
            }
            if matches!(
                next.event,
                Event::Wake(_)
                    | Event::Fault(_)
                    | Event::Reconfigured(_)
                    | Event::Ends(_)
                    | Event::Resume(_)
                    | Event::Boot(_)
            ) {
                break;
            }
            if self.happen(world, until).is_none() {
                break;
            }
        }
        self.polled.store(true, Ordering::Relaxed);
    }

    /// Handles the next event and runs the checkers. First advances the true time to the event. Unlocks the world
    /// before it calls the library. Returns the event; `None` if there is no event until `deadline`.
    pub(crate) fn happen(&self, mut world: MutexGuard<'_, World>, deadline: u64) -> Option<Event> {
        let Reverse(next) = world.events.pop()?;
        if next.at > deadline {
            return None;
        }
        // Readings of clocks also advance the time, so the time may already be later than the event's time.
        world.now = next.at.max(self.now());
        self.now.store(world.now, Ordering::Relaxed);
        let todo = world.happen(next.event);
        let now = world.now;
        match todo {
            // Do not run the checkers yet: they run after the woken task.
            Some(Todo::Wake(waker)) => {
                drop(world);
                waker.wake();
            }
            Some(Todo::Step(link, call)) => self.step_link(world, link, call),
            Some(Todo::Break(breaks)) => {
                drop(world);
                breaks.send();
            }
            None => world.watch.after(now, None),
        }
        Some(next.event)
    }

    /// Empties the world at the end of a run, to break reference cycles.
    pub(crate) fn demolish(&self) {
        let mut world = self.world();
        let links = std::mem::take(&mut world.links);
        let rest = (
            std::mem::take(&mut world.watch.believers),
            std::mem::take(&mut world.spawned),
            std::mem::take(&mut world.timers),
            std::mem::take(&mut world.strays),
            std::mem::take(&mut world.breakers),
            std::mem::take(&mut world.orders),
        );
        drop(world);
        drop((links, rest));
    }
}

/// The part of an event's work that must be done while the world is unlocked: wake a task, call a driver, or send a
/// force-release.
enum Todo {
    Wake(Waker),
    Step(usize, Call),
    Break(Breaks),
}

/// A client process as the world sees it.
pub(crate) struct Process {
    pub(crate) clock: Clock,
    pub(crate) wall_us: Arc<AtomicI64>,
    /// The number of times that the process has started.
    pub(crate) life: u32,
    pub(crate) paused_until: u64,
    /// The events that arrived while the process was paused.
    parked: Vec<Event>,
    /// The tasks that were woken while the process was paused.
    pub(crate) parked_tasks: Vec<usize>,
    /// The index of the next step in the process's plan.
    pub(crate) step: usize,
    /// The number of tasks of the process that are still running.
    pub(crate) tasks: u8,
    pub(crate) done: bool,
    pub(crate) killed: bool,
    /// The latest attempt of the process; `None` if there was none.
    attempt: Option<Arc<Claim>>,
    /// When the process sent its first request over its present connections; `None` if it has not sent one.
    pub(crate) first_request: Option<u64>,
    /// The step that the process will have after its next start. It says which masters the process uses (see
    /// `change_plan.rs`).
    next_step: u8,
    /// The present step of the process.
    step_now: u8,
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
    pub(crate) lap: u32,
    pub(crate) waker: Option<Waker>,
}

/// A second copy of a message, which arrives late. The master executes it even if the client has closed the connection.
struct Stray {
    master: usize,
    run: u32,
    /// The connection on which the client sent the original message.
    conn: usize,
    /// Which check of the generation marker the message contains, as an index into `World::looks`; 0 if it contains no
    /// check.
    looks: usize,
    request: Request,
}

/// The whole state of the simulation, except the state of the library and the tasks.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) flaw: Option<Flaw>,
    /// The index of the task that is being polled.
    pub(crate) task: usize,
    events: BinaryHeap<Reverse<Scheduled>>,
    seq: u64,
    pub(crate) rng: Rng,
    masters: Vec<SimMaster>,
    /// The records of each master. Only a store (a master like MariaDB or ZooKeeper) has records.
    stores: Vec<Records>,
    /// For each master that is a store: the records that a stale disk restores at the next restart.
    store_disks: Vec<Records>,
    sessions: Vec<Session>,
    asked: Vec<Option<Asked>>,
    /// For the seeded bug `KeptSession`: the indexes of the sessions with unread answers that clients will reuse.
    pool: Vec<usize>,
    /// The lock values that stores have reported as released. Each pair is the index of the store, and the lock value.
    released: HashSet<(usize, [u8; 32])>,
    /// The lock values that a force-release has added to the break records of stores.
    force_released: store::ForceReleased,
    /// The waiters that have left the queue of a store. Each pair is the index of the store, and the waiter.
    left: HashSet<(usize, Arc<str>)>,
    /// The clients' connections to stores, one for each client and store. The simulation sends force-releases through
    /// them.
    breakers: Vec<Breaker>,
    /// The force-releases at Redis masters so far.
    force_releases: Vec<ForceRelease>,
    pub(crate) links: Vec<Link>,
    conns: Vec<Conn>,
    pub(crate) processes: Vec<Process>,
    pub(crate) timers: Vec<TimerSlot>,
    pub(crate) free_timers: Vec<u32>,
    strays: Vec<Option<Stray>>,
    /// All orders that operators have sent, by index.
    orders: Vec<Order>,
    /// Whether an operator has finished every replacement of masters in this run. Always true without operators.
    arrived: bool,
    /// The checks of generation markers that scripts contain. Scripts refer to a check by its index.
    looks: Vec<Looks>,
    /// By master: `None`, unless a restart has removed or set back the master's generation marker. Then:
    ///
    /// - the number that the marker had before the restart (the largest one after several such restarts);
    /// - the true time at which the restart guard ends.
    ///
    /// An entry becomes `None` again when the number in the marker is no longer smaller.
    fallen: Vec<Option<(u64, u64)>>,
    /// By master: the true time at which the restart guard ends after the first restart that removed or set back the
    /// generation marker; `None` if there was none. Unlike `fallen`, this does not change when the marker is restored.
    reopened: Vec<Option<u64>>,
    /// For seeded bugs that replace a master without an operator: the true time at which that master died. `None`
    /// before its death.
    died: Option<u64>,
    /// The fencing counters of each master when it received its first order from an operator; `None` before. With the
    /// seeded bug `CarryBeforeClose`, the operator copies these counters to the new masters, although they are outdated
    /// by then.
    counted: Vec<Option<Vec<orders::Counter>>>,
    /// Whether the operator is removing a stored value. While it is, the seeded bug `CarryWithoutLock` is switched off.
    pub(crate) is_dropping: bool,
    /// The spawned tasks that the executor has not taken yet.
    pub(crate) spawned: Vec<(usize, BoxFuture<()>)>,
    pub(crate) watch: Watch,
}

impl World {
    fn new(scenario: Arc<Scenario>, play: Play) -> Self {
        let process = |(client, plan): (usize, &crate::scenario::ClientPlan)| Process {
            next_step: scenario.first_step(client),
            step_now: scenario.first_step(client),
            clock: Clock::new(plan.origin, plan.ppm),
            wall_us: Arc::new(AtomicI64::new(plan.wall_us)),
            life: 0,
            paused_until: 0,
            parked: Vec::new(),
            parked_tasks: Vec::new(),
            step: 0,
            tasks: 0,
            done: false,
            killed: false,
            attempt: None,
            first_request: None,
        };
        let all_masters = scenario.masters.iter().enumerate();
        let mut world = Self {
            now: BEGIN,
            flaw: play.flaw,
            task: 0,
            events: BinaryHeap::with_capacity(256),
            seq: 0,
            rng: Rng::stream(scenario.seed, 3),
            masters: all_masters.map(SimMaster::new).collect(),
            stores: vec![Records::default(); scenario.masters.len()],
            store_disks: vec![Records::default(); scenario.masters.len()],
            sessions: Vec::new(),
            asked: Vec::new(),
            pool: Vec::new(),
            released: HashSet::new(),
            force_released: store::ForceReleased::default(),
            left: HashSet::new(),
            breakers: Vec::new(),
            force_releases: Vec::new(),
            links: Vec::new(),
            conns: Vec::new(),
            processes: scenario.clients.iter().enumerate().map(process).collect(),
            timers: Vec::new(),
            free_timers: Vec::new(),
            strays: Vec::new(),
            orders: Vec::new(),
            arrived: scenario
                .change
                .as_ref()
                .is_none_or(|plan| plan.operators == 0),
            looks: vec![Looks::default()],
            fallen: vec![None; scenario.masters.len()],
            reopened: vec![None; scenario.masters.len()],
            died: None,
            counted: vec![None; scenario.masters.len()],
            is_dropping: false,
            spawned: Vec::new(),
            watch: Watch::new(&scenario, play),
            scenario: scenario.clone(),
        };
        for (index, fault) in scenario.faults.iter().enumerate() {
            let at = BEGIN + fault.at;
            if let FaultKind::Crash { master, age, .. } = fault.kind {
                world.at(at.saturating_sub(age).max(BEGIN), Event::Snapshot(master));
            }
            world.at(at, Event::Fault(index as u32));
        }
        world.begin_change();
        world
    }

    /// Schedules an event at the true time `at`.
    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        let seq = self.seq;
        self.events.push(Reverse(Scheduled { at, seq, event }));
    }

    /// Whether all faults of the scenario have ended.
    pub(crate) fn healed(&self) -> bool {
        self.now >= BEGIN + self.scenario.heal_at
    }

    /// Whether preemption is switched off: in a run with stores, after the faults have ended. There would be too many
    /// preemptions, because each clock reading can cause one, and the driver for stores reads the clock very often.
    fn is_rested(&self) -> bool {
        self.healed() && self.scenario.stores() != 0
    }

    /// Returns the client whose process receives the event; `None` if no client process receives it.
    fn owner(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Timer { client, .. } => Some(usize::from(*client)),
            Event::Turn { link } | Event::Alarm { link, .. } => {
                Some(self.links[*link as usize].client)
            }
            Event::Dialed { conn } | Event::Receive { conn } | Event::Closed { conn } => {
                let link = self.conns[*conn as usize].link;
                Some(self.links[link].client)
            }
            Event::Tell { asked } => self.client_of_asked(*asked),
            Event::Obeyed { order } => Some(self.orders[*order as usize].client),
            Event::Lost { session } | Event::Word { session } => {
                Some(self.client_of_session(*session))
            }
            _ => None,
        }
    }

    fn happen(&mut self, event: Event) -> Option<Todo> {
        self.watch.coverage.events += 1;
        self.watch.event += 1;
        if let Some(client) = self.owner(&event) {
            let process = &mut self.processes[client];
            if process.paused_until > self.now {
                process.parked.push(event);
                return None;
            }
        }
        let step = |(link, call)| Todo::Step(link, call);
        let at = |index: u32| index as usize;
        match event {
            Event::Timer { slot, lap, .. } => {
                let timer = &mut self.timers[slot as usize];
                let due = timer.lap == lap;
                return due.then(|| timer.waker.take()).flatten().map(Todo::Wake);
            }
            Event::Turn { link } => {
                let call = self.turn(at(link));
                return Some(step((at(link), call)));
            }
            Event::Alarm { link, lap } => {
                let call = self.alarm(at(link), lap);
                return call.map(|call| step((at(link), call)));
            }
            Event::Dialed { conn } => {
                let link = self.conns[at(conn)].link;
                return self.dialed(at(conn)).map(|call| step((link, call)));
            }
            Event::Receive { conn } => return self.receive(at(conn)).map(step),
            Event::Closed { conn } => return self.closed(at(conn)).map(step),
            Event::Accept { conn } => self.accept(at(conn)),
            Event::Arrive { conn } => self.arrive(at(conn)),
            Event::Stray(index) => self.stray(at(index)),
            Event::Fault(index) => return self.fault(at(index)),
            Event::Reach { asked } => self.reach(at(asked)),
            Event::Tell { asked } => return self.tell(at(asked)),
            Event::Lost { session } => return self.lost_session(at(session)),
            Event::Word { session } => return self.word(at(session)),
            Event::Restart(master) => self.restart(master.into()),
            Event::Snapshot(master) => self.snapshot(master.into()),
            Event::ForeignKeyGoes { master, resource } => self.remove_foreign_key(master, resource),
            Event::Resume(client) => self.resume(client.into()),
            Event::Ends(client) => {
                self.watch.coverage.ended_processes += 1;
                self.kill_process(client, 2 * MS);
            }
            Event::Reconfigured(client) => self.configure_last(client.into()),
            Event::Ordered { order } => self.ordered(at(order)),
            Event::Obeyed { order } => return self.obeyed(at(order)).map(Todo::Wake),
            Event::Unguarded => self.judge_marks(),
            Event::Break(index) => self.break_step(index as usize),
            Event::LookedAfter => self.look_after(),
            Event::Skipped(fault) => self.skip(at(fault)),
            Event::Wake(_) | Event::Boot(_) => {}
        }
        None
    }

    /// Adds a line to the trace, if the run has a trace.
    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        self.watch.say(now, line);
    }
}
