//! One run of a scenario, and its result.

use std::sync::Arc;

use quorate_model::history::Settings;

use crate::check::{CheckedRules, Violation};
use crate::checks::{Healing, JudgedCases, Lateness, SOMETHING_HAPPENS};
use crate::clock::{LONGEST_READING, MS, RUN_START};
use crate::coverage::Coverage;
use crate::crossings::Crossings;
use crate::executor::Executor;
use crate::library::Library;
use crate::locker::PLACES;
use crate::process::Process;
use crate::run_options::RunOptions;
use crate::scenario::{Scenario, WORST_PPM};
use crate::world::{Event, Shared};

/// The result of one run of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunResult {
    /// The first rule that was broken; `None` if the run kept all rules.
    pub violation: Option<Violation>,
    /// How often each counted event happened in the run.
    pub coverage: Coverage,
    /// How many cases each rule has judged in the run. The order is that of [`RULES`](crate::RULES).
    pub judged_cases: JudgedCases,
    /// How often rules were checked after an event such as a restart, for each kind of lock or value and each kind of
    /// event.
    pub crossings: Crossings,
    /// The call that returned the latest after its timeout; `None` if no call was checked.
    pub latest_call: Option<Lateness>,
    /// The trace, line by line. Empty unless [`RunOptions::trace`] is set.
    pub trace: Vec<String>,
    /// The history of the plain locks on Redis masters. Empty unless [`RunOptions::history`] is set.
    pub history: Vec<quorate_model::history::Event>,
}

impl RunOptions {
    /// Plays `scenario` with these options.
    pub fn run(self, scenario: &Scenario) -> RunResult {
        Run::new(scenario, self).run_to_end()
    }
}

/// Plays a scenario with the real library.
pub fn run(scenario: &Scenario) -> RunResult {
    RunOptions::default().run(scenario)
}

impl Scenario {
    /// The facts about this scenario that the check of a history against the model needs.
    pub fn model_settings(&self) -> Settings {
        let promises = self.promises();
        let all_masters = (1 << self.masters.len()) - 1;
        Settings {
            masters: self.masters.len(),
            locks: PLACES,
            sets: (self.change.as_ref())
                .map_or_else(|| vec![all_masters], |plan| plan.sets.clone()),
            ttl: self.settings.ttl,
            max_ttl: self.settings.max_ttl,
            clock_error_ppm: WORST_PPM.unsigned_abs(),
            longest_reading: LONGEST_READING,
            fencing: self.settings.fencing,
            ordered: self.settings.fair,
            guard: self.settings.guard,
            one_holder: promises.exclusion,
            rising_tokens: promises.tokens,
        }
    }
}

struct Run {
    shared: Arc<Shared>,
    executor: Executor,
    scenario: Arc<Scenario>,
    checked_rules: CheckedRules,
    processes: Vec<Arc<Process>>,
}

impl Run {
    fn new(scenario: &Scenario, run_options: RunOptions) -> Self {
        let scenario = Arc::new(scenario.clone());
        let shared = Shared::new(scenario.clone(), run_options);
        let executor = Executor::new(shared.clone());
        let mut run = Self {
            shared,
            executor,
            scenario,
            checked_rules: run_options.checked_rules,
            processes: Vec::new(),
        };
        for client in 0..run.scenario.clients.len() {
            let process = run.start_process(client);
            run.processes.push(process);
        }
        run
    }

    /// Starts a client process. Each process has its own instance of the library.
    fn start_process(&mut self, client: usize) -> Arc<Process> {
        if self.scenario.is_operator(client) {
            return self.start_operator(client);
        }
        let (process, nodes) = Process::with_connections(&self.shared, client);
        let configuration = self.shared.world().start_next_step(client);
        let builder = configuration.configure(self.scenario.settings.builder());
        let redlock = builder
            .nodes(nodes)
            .runtime(process.clone())
            .build()
            .expect("the settings must be valid");
        let library = Arc::new(Library::new(redlock, process.clone()));
        self.shared.world().processes[client].running_tasks = self.scenario.tasks;
        for task in 0..self.scenario.tasks {
            let client_task = crate::client::run(process.clone(), library.clone(), task == 0);
            self.executor.spawn(client, Box::pin(client_task));
        }
        process
    }

    /// Starts the process of an operator, which only replaces masters.
    fn start_operator(&mut self, client: usize) -> Arc<Process> {
        let process = Process::without_connections(&self.shared, client);
        self.shared.world().processes[client].running_tasks = 1;
        let operator_task = crate::operator::run(process.clone());
        self.executor.spawn(client, Box::pin(operator_task));
        process
    }

    fn kill_process(&mut self, client: usize) {
        self.processes[client].end();
        let holds = {
            let mut world = self.shared.world();
            world.close_links_of_process(client);
            world.processes[client].postponed_tasks.clear();
            let now = world.now;
            let holds = world.observer.end_beliefs_of(now, client);
            let spawned = std::mem::take(&mut world.spawned_tasks);
            let (own_tasks, other_tasks): (Vec<_>, Vec<_>) =
                spawned.into_iter().partition(|(owner, _)| *owner == client);
            world.spawned_tasks = other_tasks;
            drop(world);
            drop(own_tasks);
            holds
        };
        drop((self.executor.remove_tasks(client), holds));
    }

    fn run_to_end(mut self) -> RunResult {
        let healing = Healing::new(&self.scenario);
        let waiting_clients = self.run_until(healing.deadline);
        let mut result = {
            let mut world = self.shared.world();
            world.observer.coverage.sim_ms = (world.now - RUN_START) / MS;
            RunResult {
                violation: world.observer.checkers.violation.take(),
                coverage: world.observer.coverage.clone(),
                judged_cases: world.observer.checkers.judged_cases(),
                crossings: world.observer.crossing_counter.crossings.clone(),
                latest_call: world.observer.checkers.latest_call(),
                trace: world.observer.trace.take().unwrap_or_default(),
                history: world.observer.take_history(),
            }
        };
        let unhealed = waiting_clients
            .and_then(|waiting| healing.violation(&waiting, self.scenario.healing_bound()));
        let idle = || Violation {
            rule: SOMETHING_HAPPENS,
            description: "no client has acquired a lock in this run".into(),
            at_nanos: self.scenario.heal_at,
        };
        let idle = (result.coverage.acquired == 0).then(idle);
        let is_checked = |violation: &Violation| self.checked_rules.includes(violation.rule);
        let at_end = unhealed.into_iter().chain(idle).find(is_checked);
        result.violation = result.violation.or(at_end);
        for process in &self.processes {
            process.end();
        }
        for client in 0..self.processes.len() {
            self.kill_process(client);
        }
        self.shared.clear_world();
        result
    }

    /// Plays until all clients are done, a rule is broken, or the deadline is reached. If the deadline is reached,
    /// returns the clients that are not done; otherwise `None`.
    fn run_until(&mut self, deadline: u64) -> Option<Vec<usize>> {
        loop {
            if !self.executor.poll_ready_tasks() {
                return None;
            }
            let world = self.shared.world();
            let is_violated = world.observer.checkers.violation.is_some();
            if is_violated || world.processes.iter().all(|process| process.is_done) {
                return None;
            }
            let Some(event) = self.shared.handle_next_event(world, deadline) else {
                let world = self.shared.world();
                let processes = world.processes.iter().enumerate();
                let unfinished = processes.filter(|(_, process)| !process.is_done);
                return Some(unfinished.map(|(client, _)| client).collect());
            };
            self.follow_up(event);
        }
    }

    /// Wakes tasks, and kills or starts processes, as `event` requires.
    fn follow_up(&mut self, event: Event) {
        match event {
            Event::TaskReady(task) => self.executor.wake([task as usize]),
            Event::ProcessResumes(client) => {
                let tasks = {
                    let mut world = self.shared.world();
                    let now = world.now;
                    let process = &mut world.processes[usize::from(client)];
                    if process.paused_until > now {
                        return;
                    }
                    std::mem::take(&mut process.postponed_tasks)
                };
                self.executor.wake(tasks);
            }
            Event::Fault(_) | Event::LastReconfiguration(_) | Event::ProcessEnds(_) => {
                let killed_clients: Vec<usize> = {
                    let world = self.shared.world();
                    let processes = world.processes.iter().enumerate();
                    processes
                        .filter(|(client, process)| {
                            process.is_killed && !self.processes[*client].is_dead()
                        })
                        .map(|(client, _)| client)
                        .collect()
                };
                for client in killed_clients {
                    self.kill_process(client);
                }
            }
            Event::ProcessStarts(client) => {
                let client = usize::from(client);
                self.shared.world().processes[client].is_killed = false;
                self.processes[client] = self.start_process(client);
            }
            _ => {}
        }
    }
}
