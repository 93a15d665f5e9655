//! One chaos run, from starting the first server to the verdict.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::changes::MasterChanges;
use crate::checks::{self, Findings, NOTE_LIFETIME_IN_TTLS, is_note};
use crate::client::{Guarding, Settings};
use crate::event::{Clock, Event};
use crate::faults::{Injection, Landed};
use crate::fleet::Fleet;
use crate::hazards::Hazards;
use crate::history::History;
use crate::operator_run::{AffectedTargets, NextAction, OperatorRun};
use crate::progress::Progress;
use crate::recorder::{FOLLOWERS, Recorder};
use crate::register::Register;
use crate::report;
use crate::scenario::{Exclusion, Scenario};
use crate::schedule::{Planned, schedule};
use crate::usage::usage;
use crate::workload::Workload;
use crate::world::{Needs, Tools, World};

/// The warm-up: the time between the start of the clients and the start of the schedule of faults.
const WARM_UP: Duration = Duration::from_millis(300);
/// The interval between two measurements of the resource usage of clients and masters.
const GAUGE_INTERVAL: Duration = Duration::from_secs(20);

/// How long a master may take to list its keys at the end of the run, even on a busy machine.
const KEYS_PATIENCE: Duration = Duration::from_secs(30);

/// The environment variable that switches a seeded bug on. Only client processes get it: in the process that checks the
/// run, a bug could hide what it does.
const SEEDED_BUG_VARIABLE: &str = "QUORATE_MUTANT";

/// The error message if a scenario changes masters but the program `quorate` was not found.
const NO_QUORATE: &str =
    "replacing masters needs the program `quorate`: build it, or set QUORATE_CLI to its path";

/// The result of a run.
#[derive(Debug)]
pub struct RunResult {
    /// The scenario as it was requested, including faults that this machine does not support.
    pub scenario: Scenario,
    /// The recorded history.
    pub history: History,
    /// The verdicts of the checkers.
    pub findings: Findings,
    /// The folder that the report was written to.
    pub out: PathBuf,
}

/// Runs the scenario and writes the report to `report_dir`. If `stop` becomes true, the run ends early, and the report
/// covers the events up to then.
///
/// # Errors
///
/// If the servers or clients cannot be started, or the report cannot be written. Violations that the checkers find are
/// not errors: they are part of the returned outcome.
pub fn run(
    scenario: &Scenario,
    report_dir: &Path,
    progress: &mut Progress,
    stop: &AtomicBool,
) -> anyhow::Result<RunResult> {
    scenario.check()?;
    for (index, node) in scenario.nodes().into_iter().enumerate() {
        if let Some(why) = node.missing_reason() {
            anyhow::bail!("m{} cannot be started on this machine: {why}", index + 1);
        }
    }
    std::fs::create_dir_all(report_dir)
        .with_context(|| format!("create {}", report_dir.display()))?;
    let recorder = Recorder::new(Clock::start());
    let outcome = Driver::start(scenario, report_dir, &recorder, progress)?.run_to_end(stop);
    // The history is stored even if the run fails midway.
    let history = History::new(recorder.entries());
    report::store(scenario, &history, report_dir)?;
    outcome?;
    let findings = checks::all::check(scenario, &history);
    report::write(scenario, &history, &findings, report_dir)?;
    Ok(RunResult {
        scenario: scenario.clone(),
        history,
        findings,
        out: report_dir.to_owned(),
    })
}

struct Driver<'a> {
    scenario: &'a Scenario,
    recorder: Recorder,
    progress: &'a mut Progress,
    world: World,
    schedule: Vec<Planned>,
    gauged_at: Option<Instant>,
    /// The folder of the files that the clients share. This must be the last field: fields are dropped in order, and
    /// the clients must end before the folder is removed.
    dir: tempfile::TempDir,
}

/// A fault whose effect was observed and which has not ended yet.
struct ActiveFault {
    number: usize,
    fault: Injection,
    until: Instant,
    landed: Landed,
}

impl<'a> Driver<'a> {
    fn start(
        scenario: &'a Scenario,
        report_dir: &Path,
        recorder: &Recorder,
        progress: &'a mut Progress,
    ) -> anyhow::Result<Self> {
        let tools = Tools::build(&scenario.layout().needs);
        let mut supported = scenario.clone();
        supported.faults.clear();
        for &kind in &scenario.faults {
            match kind.unavailable(&scenario.nodes(), &tools) {
                None => supported.faults.push(kind),
                Some(reason) => recorder.record("chaos", unavailable_event(kind.name(), reason)),
            }
        }
        let quorate = find_quorate();
        if quorate.is_none() && scenario.workloads.contains(&Workload::Run) {
            let reason =
                "the program `quorate` is missing: build it, or set QUORATE_CLI to its path"
                    .to_owned();
            recorder.record("chaos", unavailable_event(Workload::Run.name(), reason));
        }
        // Keep this path short: `Register` creates a Unix socket in the folder, and the length of a socket's path is
        // limited.
        let dir = tempfile::Builder::new()
            .prefix("quorate-chaos-")
            .tempdir()?;
        let mut world = World::build(
            &supported.layout(),
            tools,
            Fleet::new(recorder, report_dir)?,
        )?;
        let register = Register::open(dir.path(), recorder)?;
        let common_settings =
            client_settings(scenario, recorder.clock(), dir.path(), &register, quorate);
        let client_settings = (0..scenario.clients).map(|client| Settings {
            masters: match &scenario.changes {
                None => world.urls(client),
                Some(changes) => world.urls_of(client, &changes.sets[0]),
            },
            ..common_settings.clone()
        });
        let (client_settings, mut env) = (client_settings.collect(), world.env());
        let bug_number = scenario.seeded_bug.map(|number| number.to_string());
        env.extend(bug_number.map(|number| (SEEDED_BUG_VARIABLE.into(), number.into())));
        world.clients.start(client_settings, env)?;
        Ok(Self {
            scenario,
            recorder: recorder.clone(),
            progress,
            world,
            schedule: match scenario.changes {
                None => schedule(&supported),
                Some(_) => Vec::new(),
            },
            gauged_at: None,
            dir,
        })
    }

    fn run_to_end(mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        wait_unless_stopped(WARM_UP, stop);
        self.record_gauges();
        match &self.scenario.changes {
            None => self.inject_scheduled_faults(stop),
            Some(changes) => self.change_masters(changes, stop)?,
        }
        if !stop.load(Ordering::Relaxed) {
            self.recorder.record("chaos", Event::Calm);
            self.await_progress(stop);
        }
        self.record_gauges();
        if !stop.load(Ordering::Relaxed) {
            self.recorder.record("chaos", Event::Finish);
        }
        self.progress.phase("finishing");
        self.world.clients.finish(Duration::from_secs(20));
        self.record_leftovers()?;
        self.progress.finish();
        Ok(())
    }

    /// Injects the faults of the schedule and ends them, until the run's duration has passed or `stop` is set.
    fn inject_scheduled_faults(&mut self, stop: &AtomicBool) {
        let started_at = Instant::now();
        let end = started_at + self.scenario.duration;
        let mut schedule = std::mem::take(&mut self.schedule)
            .into_iter()
            .enumerate()
            .peekable();
        let mut active: Vec<ActiveFault> = Vec::new();
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            active = self.heal_due(active);
            // Wait while an active fault has a target in common with the next fault. This happens if the run is behind
            // the schedule.
            let has_free_targets = |planned: &Planned| {
                !active
                    .iter()
                    .any(|active_fault| active_fault.fault.shares_target(&planned.fault))
            };
            let is_due =
                |planned: &Planned| started_at + planned.at <= now && has_free_targets(planned);
            if let Some((number, planned)) = schedule.next_if(|(_, planned)| is_due(planned)) {
                active.extend(self.inject(number, &planned));
            }
            self.tick(end.saturating_duration_since(Instant::now()));
            thread::sleep(Duration::from_millis(3));
        }
        for active_fault in active {
            self.heal(active_fault);
        }
    }

    /// Replaces masters step by step, and injects faults between the steps.
    fn change_masters(&mut self, changes: &MasterChanges, stop: &AtomicBool) -> anyhow::Result<()> {
        let quorate = find_quorate().context(NO_QUORATE)?;
        let mut operator_run = OperatorRun::new(self.scenario, changes, &quorate, self.dir.path());
        let mut hazards = Hazards::new(self.scenario);
        let (mut active, mut fault_number) = (Vec::new(), 0);
        while !stop.load(Ordering::Relaxed) {
            active = self.heal_due(active);
            let affected = targets_of(&active);
            let due_fault =
                match operator_run.advance(&mut self.world, &self.recorder, &affected)? {
                    NextAction::Finished => break,
                    NextAction::Continue => {
                        let busy_clients =
                            [operator_run.restarting_clients(), affected.clients].concat();
                        let idle = (0..self.scenario.clients)
                            .filter(|client| !busy_clients.contains(client));
                        hazards.draw_client_fault(&idle.collect::<Vec<_>>())
                    }
                    NextAction::InjectFault(moment) => {
                        let due_fault =
                            hazards.draw_master_fault(moment, &operator_run.current_sets());
                        if due_fault.is_some() {
                            operator_run.fault_injected();
                        }
                        due_fault
                    }
                };
            if let Some(fault) = due_fault {
                let start = Duration::ZERO;
                active.extend(self.inject(fault_number, &Planned { at: start, fault }));
                fault_number += 1;
            }
            self.progress.show_part(&operator_run.progress_text());
            self.tick(Duration::ZERO);
            thread::sleep(Duration::from_millis(3));
        }
        for active_fault in active {
            self.heal(active_fault);
        }
        Ok(())
    }

    fn heal_due(&mut self, active: Vec<ActiveFault>) -> Vec<ActiveFault> {
        let now = Instant::now();
        let (due_faults, active): (Vec<_>, _) =
            active.into_iter().partition(|fault| fault.until <= now);
        for fault in due_faults {
            self.heal(fault);
        }
        active
    }

    fn inject(&mut self, number: usize, planned: &Planned) -> Option<ActiveFault> {
        let fault = &planned.fault;
        let kind = fault.kind.name().to_owned();
        let targets = fault.targets();
        let inject_event = Event::Inject {
            fault: number,
            kind,
            targets,
        };
        self.recorder.record("chaos", inject_event);
        match fault.inject(&mut self.world) {
            Ok(landed) => {
                let seen = landed.effect.clone();
                let fault_landed = Event::Landed {
                    fault: number,
                    effect: seen,
                };
                self.recorder.record("chaos", fault_landed);
                Some(ActiveFault {
                    number,
                    fault: fault.clone(),
                    until: Instant::now() + fault.lasts,
                    landed,
                })
            }
            Err(error) => {
                self.record_failure(number, &error);
                None
            }
        }
    }

    fn heal(&mut self, active_fault: ActiveFault) {
        let fault_number = active_fault.number;
        match active_fault.landed.heal(&mut self.world) {
            Ok(()) => self.recorder.record(
                "chaos",
                Event::Healed {
                    fault: fault_number,
                },
            ),
            Err(error) => self.record_failure(fault_number, &error),
        }
    }

    fn record_failure(&mut self, fault: usize, error: &anyhow::Error) {
        let why = format!("{error:#}");
        self.progress
            .print_line(&format!("fault {fault} failed: {why}"));
        self.recorder.record("chaos", Event::Failed { fault, why });
    }

    /// Waits until every client has obtained a lock in each workload that `workloads` returns, and the time
    /// `Scenario::settling_time` has passed since this call. Waits for at most the scenario's `patience`.
    fn await_progress(&mut self, stop: &AtomicBool) {
        let since = self.recorder.clock().now();
        let started_at = Instant::now();
        let end = started_at + self.scenario.patience;
        let settled_at = started_at + self.scenario.settling_time().unwrap_or_default();
        let workloads = self.progress_workloads();
        self.progress
            .phase("all faults have ended; every client must get a lock again");
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            let all_served = (0..self.scenario.clients).all(|client| {
                workloads.iter().all(|workload| {
                    self.recorder
                        .last_served(client, workload)
                        .is_some_and(|served_at| served_at > since)
                })
            });
            if all_served && Instant::now() > settled_at {
                return;
            }
            self.tick(end.saturating_duration_since(Instant::now()));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The names of the workloads in which every client must make progress.
    fn progress_workloads(&self) -> Vec<&'static str> {
        let workloads = &self.scenario.workloads;
        let shared_workloads = workloads.iter().filter(|workload| match workload {
            Workload::Run => find_quorate().is_some(),
            workload => workload.is_shared(),
        });
        let mut names: Vec<_> = shared_workloads.map(|workload| workload.name()).collect();
        if workloads.contains(&Workload::Leader) {
            names.push(FOLLOWERS);
        }
        names
    }

    /// Records which keys remain on the masters, at three times:
    ///
    /// - when the clients have ended
    /// - one TTL later, when the keys of locks must have expired
    /// - when the notes about a lock must have expired, for example the name of its holder
    fn record_leftovers(&mut self) -> anyhow::Result<()> {
        let scenario = self.scenario;
        self.record_keys("at-once")?;
        let mut slack = Duration::from_millis(500);
        if scenario.needs_feature(Needs::Clocks) {
            // A fault may have moved a master's clock back after a key was set. Then the key expires later.
            slack += Duration::from_secs(4);
        }
        let ended_at = Instant::now();
        self.await_gone(ended_at + scenario.ttl + slack, |key| !is_note(key));
        self.record_keys("after-ttl")?;
        self.await_gone(
            ended_at + NOTE_LIFETIME_IN_TTLS * scenario.ttl + slack,
            |_| true,
        );
        self.record_keys("after-notes")
    }

    /// Waits until all keys that `is_awaited` selects are gone from the masters, at most until `end`.
    fn await_gone(&self, end: Instant, is_awaited: impl Fn(&str) -> bool) {
        let has_awaited_keys = |master| {
            if self.is_retired(master) {
                return false;
            }
            // A master that does not answer may still have such keys.
            let keys = self.world.keys(master);
            keys.map_or(true, |(remaining, _)| {
                remaining.iter().any(|key| is_awaited(key))
            })
        };
        while Instant::now() < end && (0..self.world.masters.len()).any(has_awaited_keys) {
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn record_keys(&self, when: &str) -> anyhow::Result<()> {
        for master in 0..self.world.masters.len() {
            if self.is_retired(master) {
                continue;
            }
            let (remaining, eternal) = self.await_keys(master)?;
            // A master without a clock does not expire locks. The first call of `keys` starts to watch the locks. Only a
            // call after one TTL knows which locks have expired, so ignore the first result.
            if when == "at-once" && !self.world.masters[master].kind().has_clock {
                continue;
            }
            let keys = Event::Keys {
                when: when.to_owned(),
                left: remaining,
                eternal,
            };
            self.recorder.record(format!("m{}", master + 1), keys);
        }
        Ok(())
    }

    /// The keys on a master ([`World::keys`]). Asks again for up to [`KEYS_PATIENCE`] if the master does not answer.
    fn await_keys(&self, master: usize) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        let end = Instant::now() + KEYS_PATIENCE;
        loop {
            match self.world.keys(master) {
                Err(_) if Instant::now() < end => thread::sleep(Duration::from_millis(50)),
                keys => {
                    return keys
                        .with_context(|| format!("cannot read the keys of m{}", master + 1));
                }
            }
        }
    }

    fn is_retired(&self, master: usize) -> bool {
        self.recorder.is_retired(&format!("m{}", master + 1))
    }

    fn tick(&mut self, remaining: Duration) {
        self.progress.tick(self.recorder.totals(), remaining);
        if self
            .gauged_at
            .is_some_and(|gauged_at| gauged_at.elapsed() >= GAUGE_INTERVAL)
        {
            self.record_gauges();
        }
    }

    /// Records the memory and the file descriptors of all clients and of all masters that answer. For these masters,
    /// also records the number of client connections.
    fn record_gauges(&mut self) {
        self.gauged_at = Some(Instant::now());
        for (name, pid) in self.world.clients.pids() {
            if let Some((memory, handles)) = usage(pid) {
                let record_gauges = Event::Gauge {
                    memory,
                    handles,
                    connections: None,
                };
                self.recorder.record(name, record_gauges);
            }
        }
        for master in 0..self.world.masters.len() {
            // Ask only masters that answer immediately, because the request to a stopped master would block the run.
            if self.world.answers(master)
                && let Some(record_gauges) = self.world.gauge(master)
            {
                let record_gauges = Event::Gauge {
                    memory: record_gauges.memory,
                    handles: record_gauges.handles,
                    connections: Some(record_gauges.connections),
                };
                self.recorder
                    .record(format!("m{}", master + 1), record_gauges);
            }
        }
    }
}

fn targets_of(active: &[ActiveFault]) -> AffectedTargets {
    let injections = || active.iter().map(|active_fault| &active_fault.fault);
    AffectedTargets {
        masters: injections()
            .flat_map(|fault| fault.masters.clone())
            .collect(),
        clients: injections()
            .flat_map(|fault| fault.clients.clone())
            .collect(),
    }
}

fn unavailable_event(kind: &str, why: String) -> Event {
    let kind = kind.to_owned();
    Event::Unavailable { kind, why }
}

/// The settings that all clients share. The name and the masters of each client are filled in later.
fn client_settings(
    scenario: &Scenario,
    clock: Clock,
    dir: &Path,
    register: &Register,
    quorate: Option<PathBuf>,
) -> Settings {
    let must_break = scenario.exclusion() == Exclusion::MustBreak;
    Settings {
        name: String::new(),
        origin: clock.origin(),
        masters: Vec::new(),
        next_masters: Vec::new(),
        generation: 0,
        guarding: if scenario.guarded {
            Guarding::AfterFirstContact
        } else {
            Guarding::Off
        },
        order: scenario.order,
        workloads: scenario.workloads.clone(),
        ttl: scenario.ttl,
        max_ttl: scenario.max_ttl,
        pause: scenario.pause,
        // A run that must show two simultaneous holders has more long holds, so that faults hit held locks more often.
        long_hold_share: if must_break { 0.3 } else { 0.06 },
        renews_locks: !must_break,
        many: scenario.many,
        many_hold: scenario.many_hold,
        dir: dir.to_owned(),
        register: register.path().to_owned(),
        quorate,
    }
}

/// The path of the program `quorate`: the value of the variable `QUORATE_CLI`, or else `quorate` in the folder of this
/// program. `None` if no file exists at that path.
fn find_quorate() -> Option<PathBuf> {
    let configured = std::env::var_os("QUORATE_CLI").map(PathBuf::from);
    let neighbour_path = || Some(std::env::current_exe().ok()?.with_file_name("quorate"));
    configured
        .or_else(neighbour_path)
        .filter(|path| path.is_file())
}

fn wait_unless_stopped(time: Duration, stop: &AtomicBool) {
    let end = Instant::now() + time;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
}
