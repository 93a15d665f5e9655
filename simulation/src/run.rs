//! One run of a scenario, and its result.

use std::sync::Arc;

use crate::checks::{Healing, Judged, Lateness, Violation};
use crate::clock::{BEGIN, MS};
use crate::coverage::Coverage;
use crate::crossings::Crossings;
use crate::executor::Executor;
use crate::library::Library;
use crate::locker::Locker;
use crate::play::Play;
use crate::process::Process;
use crate::scenario::Scenario;
use crate::seeded_bugs::{self, Flaw};
use crate::world::{Event, Shared};

/// The result of one run of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunResult {
    /// The first rule that was broken; `None` if the run kept all rules.
    pub violation: Option<Violation>,
    /// How often each counted event happened in the run.
    pub coverage: Coverage,
    /// How many cases each rule has judged in the run. The order is that of [`RULES`](crate::RULES).
    pub judged: Judged,
    /// How often rules were checked after an event such as a restart, for each kind of lock or value and each kind of
    /// event.
    pub crossings: Crossings,
    /// The call that returned the latest after its timeout; `None` if no call was checked.
    pub worst: Option<Lateness>,
    /// The trace, line by line. Empty unless [`Play::trace`] is set.
    pub trace: Vec<String>,
}

impl Play {
    /// Plays `scenario` with these options.
    pub fn run(self, scenario: &Scenario) -> RunResult {
        Run::new(scenario, self).finish()
    }
}

/// Plays a scenario with the real library.
pub fn run(scenario: &Scenario) -> RunResult {
    Play::default().run(scenario)
}

struct Run {
    shared: Arc<Shared>,
    executor: Executor,
    scenario: Arc<Scenario>,
    flaw: Option<Flaw>,
    lives: Vec<Arc<Process>>,
}

impl Run {
    fn new(scenario: &Scenario, play: Play) -> Self {
        // Some seeded bugs replace the library with a small client that supports only exclusive locks.
        let scenario = Arc::new(match play.flaw {
            Some(flaw) if flaw.is_locker() => scenario.plain(),
            _ => scenario.clone(),
        });
        // The library's driver for stores contains seeded bugs for tests. This call selects one or none, for this
        // thread only. So this thread must play the whole run.
        quorate::node::store::set_flaw(play.flaw.and_then(Flaw::of_driver));
        let shared = Shared::new(scenario.clone(), play);
        let executor = Executor::new(shared.clone());
        let mut run = Self {
            shared,
            executor,
            scenario,
            flaw: play.flaw,
            lives: Vec::new(),
        };
        for client in 0..run.scenario.clients.len() {
            let life = run.boot(client);
            run.lives.push(life);
        }
        run
    }

    /// Starts a client process. Each process has its own instance of the lock implementation (the library or a seeded
    /// bug).
    fn boot(&mut self, client: usize) -> Arc<Process> {
        if self.scenario.is_operator(client) {
            return self.boot_operator(client);
        }
        let (process, nodes) = Process::boot(&self.shared, client);
        let mut settings = self.scenario.settings;
        settings.guard &= self.flaw != Some(Flaw::StoreGuardOff);
        let flaw = self.flaw.filter(|flaw| flaw.is_locker());
        let locker: Arc<dyn Locker> = if let Some(flaw) = flaw {
            let process = process.clone();
            Arc::new(seeded_bugs::WrongLocker::new(
                flaw, process, nodes, settings,
            ))
        } else {
            let named = self.shared.world().named(client);
            let counted = self.flaw.unwrap_or(Flaw::Sound);
            let builder = counted.counted_by(&named, settings.builder(), &nodes);
            let redlock = builder
                .runtime(process.clone())
                .build()
                .expect("the settings must be valid");
            Arc::new(Arc::new(Library::new(
                redlock,
                nodes,
                process.clone(),
                self.flaw,
            )))
        };
        self.shared.world().processes[client].tasks = self.scenario.tasks;
        for task in 0..self.scenario.tasks {
            let script = crate::client::run(process.clone(), locker.clone(), task == 0);
            self.executor.spawn(client, Box::pin(script));
        }
        process
    }

    /// Starts the process of an operator, which only replaces masters.
    fn boot_operator(&mut self, client: usize) -> Arc<Process> {
        let process = Process::alone(&self.shared, client);
        self.shared.world().processes[client].tasks = 1;
        let walk = crate::operator::run(process.clone());
        self.executor.spawn(client, Box::pin(walk));
        process
    }

    fn kill(&mut self, client: usize) {
        self.lives[client].die();
        let holds = {
            let mut world = self.shared.world();
            world.kill_links(client);
            world.processes[client].parked_tasks.clear();
            let now = world.now;
            let dead = world.watch.kill(now, client);
            let spawned = std::mem::take(&mut world.spawned);
            let (of, rest): (Vec<_>, Vec<_>) =
                spawned.into_iter().partition(|(of, _)| *of == client);
            world.spawned = rest;
            drop(world);
            drop(of);
            dead
        };
        drop((self.executor.take(client), holds));
    }

    fn finish(mut self) -> RunResult {
        let healing = Healing::new(&self.scenario);
        let late = self.play(healing.deadline);
        let mut outcome = {
            let mut world = self.shared.world();
            world.watch.coverage.sim_ms = (world.now - BEGIN) / MS;
            RunResult {
                violation: world.watch.checkers.violation.take(),
                coverage: world.watch.coverage.clone(),
                judged: world.watch.checkers.judged(),
                crossings: world.watch.watched.crossings.clone(),
                worst: world.watch.checkers.worst(),
                trace: world.watch.trace.take().unwrap_or_default(),
            }
        };
        if outcome.violation.is_none() {
            outcome.violation =
                late.and_then(|waiting| healing.overdue(&waiting, self.scenario.bound()));
        }
        if outcome.violation.is_none() && outcome.coverage.acquired == 0 {
            outcome.violation = Some(Violation {
                rule: "something happens",
                what: "no client has acquired a lock in this run".into(),
                at: self.scenario.heal_at,
            });
        }
        for life in &self.lives {
            life.die();
        }
        for client in 0..self.lives.len() {
            self.kill(client);
        }
        self.shared.demolish();
        outcome
    }

    /// Plays until all clients are done, a rule is broken, or the deadline is reached. If the deadline is reached,
    /// returns the clients that are not done; otherwise `None`.
    fn play(&mut self, deadline: u64) -> Option<Vec<usize>> {
        loop {
            if !self.executor.settle() {
                return None;
            }
            let world = self.shared.world();
            let complaint = world.watch.checkers.violation.is_some();
            if complaint || world.processes.iter().all(|process| process.done) {
                return None;
            }
            let Some(event) = self.shared.happen(world, deadline) else {
                let world = self.shared.world();
                let processes = world.processes.iter().enumerate();
                let waiting = processes.filter(|(_, process)| !process.done);
                return Some(waiting.map(|(client, _)| client).collect());
            };
            self.follow_up(event);
        }
    }

    /// Wakes tasks, and kills or starts processes, as `event` requires.
    fn follow_up(&mut self, event: Event) {
        match event {
            Event::Wake(task) => self.executor.wake([task as usize]),
            Event::Resume(client) => {
                let tasks = {
                    let mut world = self.shared.world();
                    let now = world.now;
                    let process = &mut world.processes[usize::from(client)];
                    if process.paused_until > now {
                        return;
                    }
                    std::mem::take(&mut process.parked_tasks)
                };
                self.executor.wake(tasks);
            }
            Event::Fault(_) | Event::Reconfigured(_) | Event::Ends(_) => {
                let killed: Vec<usize> = {
                    let world = self.shared.world();
                    let processes = world.processes.iter().enumerate();
                    processes
                        .filter(|(client, process)| {
                            process.killed && !self.lives[*client].is_dead()
                        })
                        .map(|(client, _)| client)
                        .collect()
                };
                for client in killed {
                    self.kill(client);
                }
            }
            Event::Boot(client) => {
                let client = usize::from(client);
                self.shared.world().processes[client].killed = false;
                self.lives[client] = self.boot(client);
            }
            _ => {}
        }
    }
}
