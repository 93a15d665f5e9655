//! The simulated world: one queue of events, masters, connections, client processes.
//!
//! Everything is decided by the scenario and its seed. The world calls into the library only
//! with its lock released: answers are collected as [`Effects`] and handed over afterwards.

mod link;
mod master;
mod watch;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use quorate::node::{Answer, Claim, Ear, Fault as NodeFault, Reply, Request};
use quorate::runtime::BoxFuture;

pub(crate) use link::Link;
use master::SimMaster;
pub(crate) use watch::Watch;

use crate::canary::Flaw;
use crate::clock::{BEGIN, Clock};
use crate::rng::Rng;
use crate::run::Play;
use crate::scenario::{FaultKind, Scenario};

/// What everybody shares.
pub(crate) struct Shared {
    now: AtomicU64,
    /// Tasks that have been woken. Apart from the world, so that waking needs nothing else.
    pub(crate) ready: Arc<Mutex<VecDeque<usize>>>,
    world: Mutex<World>,
}

impl Shared {
    pub(crate) fn new(scenario: Arc<Scenario>, play: Play) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(BEGIN),
            ready: Arc::default(),
            world: Mutex::new(World::new(scenario, play)),
        })
    }

    /// The true time.
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next event and moves the time to it. `None` at the end of time.
    pub(crate) fn step(&self, world: &mut World, deadline: u64) -> Option<Event> {
        let Reverse(next) = world.events.pop()?;
        if next.at > deadline {
            return None;
        }
        world.now = next.at;
        self.now.store(next.at, Ordering::Relaxed);
        Some(next.event)
    }

    /// Lets an event happen, and hands the answers to the library with the world unlocked.
    pub(crate) fn happen(&self, event: Event) {
        let mut effects = Effects::default();
        self.world().happen(event, &mut effects);
        self.carry_out(effects);
    }

    pub(crate) fn carry_out(&self, effects: Effects) {
        for (reply, answer) in effects.answers {
            reply.answer(answer);
        }
        if let Some((link, mut flights, fault)) = effects.overdue {
            for letter in &mut flights {
                letter.reply.time_out(fault.clone());
            }
            // Nothing was queued meanwhile: a stalled connection refuses everything.
            self.world().links[link].flights = flights;
        }
        for waker in effects.wake {
            waker.wake();
        }
        for (ear, key) in effects.heard {
            ear.sink.woken(ear.node, &key);
        }
    }

    /// Takes the world apart, so that nothing keeps itself alive in a circle.
    pub(crate) fn demolish(&self) {
        let mut world = self.world();
        for link in &mut world.links {
            link.dead = true;
        }
        let links: Vec<_> = world.links.iter_mut().map(Link::rest).collect();
        let rest = (
            std::mem::take(&mut world.watch.believers),
            std::mem::take(&mut world.spawned),
            std::mem::take(&mut world.timers),
            std::mem::take(&mut world.strays),
        );
        drop(world);
        drop((links, rest));
    }
}

/// What is to be handed to the library once the world is unlocked.
#[derive(Default)]
pub(crate) struct Effects {
    pub(crate) answers: Vec<(Reply, Result<Answer, NodeFault>)>,
    /// All requests of one connection that are overdue at once.
    overdue: Option<(usize, VecDeque<link::Letter>, NodeFault)>,
    wake: Vec<Waker>,
    heard: Vec<(Ear, Vec<u8>)>,
}

/// Something that will happen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A timer rings.
    Timer { client: u8, slot: u32, lap: u32 },
    /// The oldest message of a connection reaches the master.
    Deliver { link: u32, epoch: u32 },
    /// The oldest answer of a connection reaches the client.
    Answer { link: u32, epoch: u32 },
    /// A message reaches its master that no connection knows of any more.
    Stray(u32),
    /// A connection looks after its deadlines.
    Overdue { link: u32, epoch: u32 },
    /// A connection attempt begins.
    Dial { link: u32, epoch: u32 },
    /// The handshake reaches the master.
    Shake { link: u32, epoch: u32 },
    /// The handshake is over.
    Connected { link: u32, epoch: u32 },
    /// The attempt has failed.
    Failed { link: u32, epoch: u32 },
    /// The client learns that its connection is broken.
    Closed { link: u32, epoch: u32 },
    /// Requests that wait for a connection have waited long enough.
    Patience { link: u32, epoch: u32 },
    /// A paused task may go on.
    Wake(u32),
    /// A fault of the scenario.
    Fault(u32),
    /// A master that had crashed is back.
    Restart(u8),
    /// What a stale disk will show.
    Snapshot(u8),
    /// A paused process goes on.
    Resume(u8),
    /// A killed process starts anew; for the executor.
    Boot(u8),
}

struct Scheduled {
    at: u64,
    seq: u64,
    event: Event,
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

/// A client process as the world sees it.
pub(crate) struct Process {
    pub(crate) clock: Clock,
    pub(crate) wall_us: i64,
    /// Counts restarts.
    pub(crate) life: u32,
    pub(crate) paused_until: u64,
    /// Events that came while it was paused.
    parked: Vec<Event>,
    /// Tasks that were woken while it was paused.
    pub(crate) parked_tasks: Vec<usize>,
    /// The next step of its plan.
    pub(crate) step: usize,
    pub(crate) done: bool,
    pub(crate) killed: bool,
    /// The attempt that was begun last.
    attempt: Option<Arc<Claim>>,
}

#[derive(Default)]
pub(crate) struct TimerSlot {
    pub(crate) lap: u32,
    pub(crate) waker: Option<Waker>,
}

/// A message on its way outside of any connection.
struct Stray {
    master: usize,
    run: u32,
    request: Request,
}

/// The world.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) flaw: Option<Flaw>,
    events: BinaryHeap<Reverse<Scheduled>>,
    seq: u64,
    pub(crate) rng: Rng,
    masters: Vec<SimMaster>,
    pub(crate) links: Vec<Link>,
    pub(crate) processes: Vec<Process>,
    pub(crate) timers: Vec<TimerSlot>,
    pub(crate) free_timers: Vec<u32>,
    strays: Vec<Option<Stray>>,
    /// Tasks that were spawned and not yet seen by the executor.
    pub(crate) spawned: Vec<(usize, BoxFuture<()>)>,
    pub(crate) watch: Watch,
}

impl World {
    fn new(scenario: Arc<Scenario>, play: Play) -> Self {
        let process = |plan: &crate::scenario::ClientPlan| Process {
            clock: Clock::new(plan.origin, plan.ppm),
            wall_us: plan.wall_us,
            life: 0,
            paused_until: 0,
            parked: Vec::new(),
            parked_tasks: Vec::new(),
            step: 0,
            done: false,
            killed: false,
            attempt: None,
        };
        let mut world = Self {
            now: BEGIN,
            flaw: play.flaw,
            events: BinaryHeap::with_capacity(256),
            seq: 0,
            rng: Rng::stream(scenario.seed, 3),
            masters: scenario.masters.iter().map(SimMaster::new).collect(),
            links: Vec::new(),
            processes: scenario.clients.iter().map(process).collect(),
            timers: Vec::new(),
            free_timers: Vec::new(),
            strays: Vec::new(),
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
        world
    }

    /// Puts an event into the queue.
    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        let seq = self.seq;
        self.events.push(Reverse(Scheduled { at, seq, event }));
    }

    /// The faults are over.
    pub(crate) fn healed(&self) -> bool {
        self.now >= BEGIN + self.scenario.heal_at
    }

    /// The client whose process an event belongs to: it comes only when the process runs.
    fn owner(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Timer { client, .. } => Some(usize::from(*client)),
            Event::Answer { link, .. }
            | Event::Overdue { link, .. }
            | Event::Dial { link, .. }
            | Event::Connected { link, .. }
            | Event::Failed { link, .. }
            | Event::Closed { link, .. }
            | Event::Patience { link, .. } => Some(self.links[*link as usize].client),
            _ => None,
        }
    }

    fn happen(&mut self, event: Event, effects: &mut Effects) {
        self.watch.coverage.events += 1;
        self.watch.event += 1;
        if let Some(client) = self.owner(&event) {
            let process = &mut self.processes[client];
            if process.paused_until > self.now {
                process.parked.push(event);
                return;
            }
        }
        match event {
            Event::Timer { slot, lap, .. } => {
                let timer = &mut self.timers[slot as usize];
                if timer.lap == lap {
                    effects.wake.extend(timer.waker.take());
                }
            }
            Event::Deliver { link, epoch } => self.deliver(link as usize, epoch),
            Event::Answer { link, epoch } => self.land(link as usize, epoch, effects),
            Event::Stray(index) => self.stray(index as usize),
            Event::Overdue { link, epoch } => self.overdue(link as usize, epoch, effects),
            Event::Dial { link, epoch } => self.dial(link as usize, epoch),
            Event::Shake { link, epoch } => self.shake(link as usize, epoch),
            Event::Connected { link, epoch } => self.connected(link as usize, epoch, effects),
            Event::Failed { link, epoch } => self.failed(link as usize, epoch, effects),
            Event::Closed { link, epoch } => self.closed(link as usize, epoch, effects),
            Event::Patience { link, epoch } => self.impatient(link as usize, epoch, effects),
            Event::Fault(index) => self.fault(index as usize),
            Event::Restart(master) => self.restart(master.into()),
            Event::Snapshot(master) => self.masters[usize::from(master)].snapshot(),
            Event::Resume(client) => self.resume(client.into()),
            Event::Wake(_) | Event::Boot(_) => {}
        }
    }

    fn fault(&mut self, index: usize) {
        let fault = self.scenario.faults[index];
        self.say(|| format!("FAULT {:?}", fault.kind));
        let now = self.now;
        match fault.kind {
            FaultKind::Crash { master, down, .. } => self.crash(master.into(), down),
            FaultKind::Stall { master, lasts } => {
                self.watch.coverage.stalls += 1;
                let master = &mut self.masters[usize::from(master)];
                master.stalled_until = master.stalled_until.max(now + lasts);
            }
            FaultKind::Jump { master, by_us } => {
                self.watch.coverage.jumps += 1;
                self.masters[usize::from(master)]
                    .clock
                    .jump(now, by_us * 1_000);
            }
            // Partitions stand in the scenario: every message looks for itself.
            FaultKind::Partition { .. } => self.watch.coverage.partitions += 1,
            FaultKind::Reset { master } => self.cut_all(master.into(), true),
            FaultKind::Pause { client, lasts } => {
                self.watch.coverage.pauses += 1;
                let process = &mut self.processes[usize::from(client)];
                let until = process.paused_until.max(now + lasts);
                process.paused_until = until;
                self.watch.awake_since[usize::from(client)] = until;
                self.at(until, Event::Resume(client));
            }
            FaultKind::Kill { client, down } => {
                let process = &mut self.processes[usize::from(client)];
                if !process.done && !process.killed {
                    self.watch.coverage.kills += 1;
                    process.killed = true;
                    process.paused_until = 0;
                    self.at(now + down, Event::Boot(client));
                }
            }
        }
    }

    fn resume(&mut self, client: usize) {
        let process = &mut self.processes[client];
        if process.paused_until > self.now {
            return;
        }
        for event in std::mem::take(&mut process.parked) {
            self.at(self.now, event);
        }
        self.say(|| format!("client {client} goes on"));
    }

    /// Adds a line to the trace, if there is one.
    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        self.watch.say(now, line);
    }
}
