//! One chaos run, from starting the first server to the verdict.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::changes::Changes;
use crate::checks::{self, Findings, NOTE_LIVES, is_note};
use crate::client::{Guarding, Settings};
use crate::event::{Clock, Event};
use crate::faults::{Injection, Landed};
use crate::fleet::Fleet;
use crate::hazards::Hazards;
use crate::history::History;
use crate::progress::Progress;
use crate::recorder::{FOLLOWING, Recorder};
use crate::register::Register;
use crate::report;
use crate::scenario::{Exclusion, Scenario};
use crate::schedule::{Planned, schedule};
use crate::usage::usage;
use crate::walker::{Busy, Now, Walker};
use crate::workload::Workload;
use crate::world::{Needs, Tools, World};

/// The warm-up: the time between the start of the clients and the start of the schedule of faults.
const WARM: Duration = Duration::from_millis(300);
/// The interval between two measurements of the resource usage of clients and masters.
const GAUGE_EVERY: Duration = Duration::from_secs(20);

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

/// Runs the scenario and writes the report to `out`. If `stop` becomes true, the run ends early, and the report covers
/// the events up to then.
///
/// # Errors
///
/// If the servers or clients cannot be started, or the report cannot be written. Violations that the checkers find are
/// not errors: they are part of the returned outcome.
pub fn run(
    scenario: &Scenario,
    out: &Path,
    progress: &mut Progress,
    stop: &AtomicBool,
) -> anyhow::Result<RunResult> {
    scenario.check()?;
    for (index, node) in scenario.nodes().into_iter().enumerate() {
        if let Some(why) = node.lack() {
            anyhow::bail!("m{} cannot be started on this machine: {why}", index + 1);
        }
    }
    std::fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let recorder = Recorder::new(Clock::start());
    let driven = Driver::set_out(scenario, out, &recorder, progress)?.drive(stop);
    // The history is stored even if the run fails midway.
    let history = History::new(recorder.entries());
    report::store(scenario, &history, out)?;
    driven?;
    let findings = checks::all::check(scenario, &history);
    report::write(scenario, &history, &findings, out)?;
    Ok(RunResult {
        scenario: scenario.clone(),
        history,
        findings,
        out: out.to_owned(),
    })
}

struct Driver<'a> {
    scenario: &'a Scenario,
    recorder: Recorder,
    progress: &'a mut Progress,
    world: World,
    plan: Vec<Planned>,
    gauged: Option<Instant>,
    /// The folder of the files that the clients share. This must be the last field: fields are dropped in order, and
    /// the clients must end before the folder is removed.
    dir: tempfile::TempDir,
}

/// A fault whose effect was observed and which has not ended yet.
struct Active {
    number: usize,
    fault: Injection,
    until: Instant,
    landed: Landed,
}

impl<'a> Driver<'a> {
    fn set_out(
        scenario: &'a Scenario,
        out: &Path,
        recorder: &Recorder,
        progress: &'a mut Progress,
    ) -> anyhow::Result<Self> {
        let tools = Tools::build(&scenario.layout().needs);
        let mut possible = scenario.clone();
        possible.faults.clear();
        for &kind in &scenario.faults {
            match kind.unavailable(&scenario.nodes(), &tools) {
                None => possible.faults.push(kind),
                Some(why) => recorder.note("chaos", unavailable(kind.name(), why)),
            }
        }
        let quorate = find_quorate();
        if quorate.is_none() && scenario.workloads.contains(&Workload::Run) {
            let why = "the program `quorate` is missing: build it, or set QUORATE_CLI to its path"
                .to_owned();
            recorder.note("chaos", unavailable(Workload::Run.name(), why));
        }
        // Keep this path short: `Register` creates a Unix socket in the folder, and the length of a socket's path is
        // limited.
        let dir = tempfile::Builder::new()
            .prefix("quorate-chaos-")
            .tempdir()?;
        let mut world = World::build(&possible.layout(), tools, Fleet::new(recorder, out)?)?;
        let register = Register::open(dir.path(), recorder)?;
        let common = settings(scenario, recorder.clock(), dir.path(), &register, quorate);
        let settings = (0..scenario.clients).map(|client| Settings {
            masters: match &scenario.changes {
                None => world.urls(client),
                Some(changes) => world.urls_of(client, &changes.sets[0]),
            },
            ..common.clone()
        });
        let (settings, env) = (settings.collect(), world.env());
        world.clients.start(settings, env)?;
        Ok(Self {
            scenario,
            recorder: recorder.clone(),
            progress,
            world,
            plan: match scenario.changes {
                None => schedule(&possible),
                Some(_) => Vec::new(),
            },
            gauged: None,
            dir,
        })
    }

    fn drive(mut self, stop: &AtomicBool) -> anyhow::Result<()> {
        wait(WARM, stop);
        self.gauge();
        match &self.scenario.changes {
            None => self.run_faults(stop),
            Some(changes) => self.change_masters(changes, stop)?,
        }
        if !stop.load(Ordering::Relaxed) {
            self.recorder.note("chaos", Event::Calm);
            self.await_progress(stop);
        }
        self.gauge();
        if !stop.load(Ordering::Relaxed) {
            self.recorder.note("chaos", Event::Finish);
        }
        self.progress.phase("finishing");
        self.world.clients.finish(Duration::from_secs(20));
        self.leftovers()?;
        self.progress.done();
        Ok(())
    }

    /// Injects the faults of the schedule and ends them, until the run's duration has passed or `stop` is set.
    fn run_faults(&mut self, stop: &AtomicBool) {
        let began = Instant::now();
        let end = began + self.scenario.duration;
        let mut plan = std::mem::take(&mut self.plan)
            .into_iter()
            .enumerate()
            .peekable();
        let mut active: Vec<Active> = Vec::new();
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            active = self.heal_due(active);
            // Wait while an active fault has a target in common with the next fault. This happens if the run is behind
            // the schedule.
            let free =
                |planned: &Planned| !active.iter().any(|one| one.fault.meets(&planned.fault));
            let ready = |planned: &Planned| began + planned.at <= now && free(planned);
            if let Some((number, planned)) = plan.next_if(|(_, planned)| ready(planned)) {
                active.extend(self.inject(number, &planned));
            }
            self.tick(end.saturating_duration_since(Instant::now()));
            thread::sleep(Duration::from_millis(3));
        }
        for one in active {
            self.heal(one);
        }
    }

    /// Replaces masters step by step, and injects faults between the steps.
    fn change_masters(&mut self, changes: &Changes, stop: &AtomicBool) -> anyhow::Result<()> {
        let quorate = find_quorate().context(NO_QUORATE)?;
        let mut walker = Walker::new(self.scenario, changes, &quorate, self.dir.path());
        let mut hazards = Hazards::new(self.scenario);
        let (mut active, mut number) = (Vec::new(), 0);
        while !stop.load(Ordering::Relaxed) {
            active = self.heal_due(active);
            let busy = busy(&active);
            let due = match walker.go_on(&mut self.world, &self.recorder, &busy)? {
                Now::Over => break,
                Now::Goes => {
                    let held = [walker.moving(), busy.clients].concat();
                    let idle = (0..self.scenario.clients).filter(|one| !held.contains(one));
                    hazards.on_clients(&idle.collect::<Vec<_>>())
                }
                Now::Wants(moment) => {
                    let due = hazards.on_masters(moment, &walker.sets());
                    if due.is_some() {
                        walker.went_wrong();
                    }
                    due
                }
            };
            if let Some(fault) = due {
                let at = Duration::ZERO;
                active.extend(self.inject(number, &Planned { at, fault }));
                number += 1;
            }
            self.progress.place(&walker.place());
            self.tick(Duration::ZERO);
            thread::sleep(Duration::from_millis(3));
        }
        for one in active {
            self.heal(one);
        }
        Ok(())
    }

    fn heal_due(&mut self, active: Vec<Active>) -> Vec<Active> {
        let now = Instant::now();
        let (due, active): (Vec<_>, _) = active.into_iter().partition(|one| one.until <= now);
        for one in due {
            self.heal(one);
        }
        active
    }

    fn inject(&mut self, number: usize, planned: &Planned) -> Option<Active> {
        let fault = &planned.fault;
        let kind = fault.kind.name().to_owned();
        let targets = fault.targets();
        let begin = Event::Inject {
            fault: number,
            kind,
            targets,
        };
        self.recorder.note("chaos", begin);
        match fault.inject(&mut self.world) {
            Ok(landed) => {
                let seen = landed.seen.clone();
                let fault_landed = Event::Landed {
                    fault: number,
                    seen,
                };
                self.recorder.note("chaos", fault_landed);
                Some(Active {
                    number,
                    fault: fault.clone(),
                    until: Instant::now() + fault.lasts,
                    landed,
                })
            }
            Err(error) => {
                self.fail(number, &error);
                None
            }
        }
    }

    fn heal(&mut self, one: Active) {
        let fault = one.number;
        match one.landed.heal(&mut self.world) {
            Ok(()) => self.recorder.note("chaos", Event::Healed { fault }),
            Err(error) => self.fail(fault, &error),
        }
    }

    fn fail(&mut self, fault: usize, error: &anyhow::Error) {
        let why = format!("{error:#}");
        self.progress.say(&format!("fault {fault} failed: {why}"));
        self.recorder.note("chaos", Event::Failed { fault, why });
    }

    /// Waits until every client has obtained a lock in each workload that `wanted` returns, and the time
    /// `Scenario::settling` has passed since this call. Waits for at most the scenario's `patience`.
    fn await_progress(&mut self, stop: &AtomicBool) {
        let since = self.recorder.clock().now();
        let began = Instant::now();
        let end = began + self.scenario.patience;
        let settled = began + self.scenario.settling().unwrap_or_default();
        let wanted = self.wanted();
        self.progress
            .phase("all faults have ended; every client must get a lock again");
        while Instant::now() < end && !stop.load(Ordering::Relaxed) {
            let all = (0..self.scenario.clients).all(|client| {
                wanted.iter().all(|workload| {
                    self.recorder
                        .last_served(client, workload)
                        .is_some_and(|at| at > since)
                })
            });
            if all && Instant::now() > settled {
                return;
            }
            self.tick(end.saturating_duration_since(Instant::now()));
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The names of the workloads in which every client must make progress.
    fn wanted(&self) -> Vec<&'static str> {
        let workloads = &self.scenario.workloads;
        let shared = workloads.iter().filter(|workload| match workload {
            Workload::Run => find_quorate().is_some(),
            other => other.is_shared(),
        });
        let mut wanted: Vec<_> = shared.map(|workload| workload.name()).collect();
        if workloads.contains(&Workload::Leader) {
            wanted.push(FOLLOWING);
        }
        wanted
    }

    /// Records which keys remain on the masters, at three times:
    ///
    /// - when the clients have ended
    /// - one TTL later, when the keys of locks must have expired
    /// - when the notes about a lock must have expired, for example the name of its holder
    fn leftovers(&mut self) -> anyhow::Result<()> {
        let scenario = self.scenario;
        self.keys("at-once")?;
        let mut slack = Duration::from_millis(500);
        if scenario.has(Needs::Clocks) {
            // A fault may have moved a master's clock back after a key was set. Then the key expires later.
            slack += Duration::from_secs(4);
        }
        let begun = Instant::now();
        self.gone_by(begun + scenario.ttl + slack, |key| !is_note(key));
        self.keys("after-ttl")?;
        self.gone_by(begun + NOTE_LIVES * scenario.ttl + slack, |_| true);
        self.keys("after-notes")
    }

    /// Waits until all keys that `which` selects are gone from the masters, at most until `end`.
    fn gone_by(&self, end: Instant, which: impl Fn(&str) -> bool) {
        let stands = |master| {
            if self.is_retired(master) {
                return false;
            }
            let keys = self.world.keys(master);
            keys.is_ok_and(|(left, _)| left.iter().any(|key| which(key)))
        };
        while Instant::now() < end && (0..self.world.masters.len()).any(stands) {
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn keys(&self, when: &str) -> anyhow::Result<()> {
        for master in 0..self.world.masters.len() {
            if self.is_retired(master) {
                continue;
            }
            // A ZooKeeper master does not expire locks. The first call of `keys` starts to watch the locks. Only a call
            // after one TTL knows which locks have expired, so ignore the first result.
            if when == "at-once" && !self.world.masters[master].kind().has_clock {
                let _ = self.world.keys(master);
                continue;
            }
            let (left, eternal) = self
                .world
                .keys(master)
                .with_context(|| format!("cannot read the keys of m{}", master + 1))?;
            let keys = Event::Keys {
                when: when.to_owned(),
                left,
                eternal,
            };
            self.recorder.note(format!("m{}", master + 1), keys);
        }
        Ok(())
    }

    fn is_retired(&self, master: usize) -> bool {
        self.recorder.is_retired(&format!("m{}", master + 1))
    }

    fn tick(&mut self, left: Duration) {
        self.progress.tick(self.recorder.totals(), left);
        if self.gauged.is_some_and(|at| at.elapsed() >= GAUGE_EVERY) {
            self.gauge();
        }
    }

    /// Records the memory and the file descriptors of all clients and of all masters that answer. For these masters,
    /// also records the number of client connections.
    fn gauge(&mut self) {
        self.gauged = Some(Instant::now());
        for (name, pid) in self.world.clients.pids() {
            if let Some((memory, handles)) = usage(pid) {
                let gauge = Event::Gauge {
                    memory,
                    handles,
                    connections: None,
                };
                self.recorder.note(name, gauge);
            }
        }
        for master in 0..self.world.masters.len() {
            // Ask only masters that answer immediately, because the request to a stopped master would block the run.
            if self.world.answers(master)
                && let Some(gauge) = self.world.gauge(master)
            {
                let gauge = Event::Gauge {
                    memory: gauge.memory,
                    handles: gauge.handles,
                    connections: Some(gauge.connections),
                };
                self.recorder.note(format!("m{}", master + 1), gauge);
            }
        }
    }
}

fn busy(active: &[Active]) -> Busy {
    let faults = || active.iter().map(|one| &one.fault);
    Busy {
        masters: faults().flat_map(|fault| fault.masters.clone()).collect(),
        clients: faults().flat_map(|fault| fault.clients.clone()).collect(),
    }
}

fn unavailable(kind: &str, why: String) -> Event {
    let kind = kind.to_owned();
    Event::Unavailable { kind, why }
}

/// The settings that all clients share. The name and the masters of each client are filled in later.
fn settings(
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
        locker: scenario.locker,
        waiting: scenario.order,
        workloads: scenario.workloads.clone(),
        ttl: scenario.ttl,
        max_ttl: scenario.max_ttl,
        pause: scenario.pause,
        // A run that must show two simultaneous holders has more long holds, so that faults hit held locks more often.
        long: if must_break { 0.3 } else { 0.06 },
        renewed: !must_break,
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
    let named = std::env::var_os("QUORATE_CLI").map(PathBuf::from);
    let neighbour = || Some(std::env::current_exe().ok()?.with_file_name("quorate"));
    named.or_else(neighbour).filter(|path| path.is_file())
}

fn wait(time: Duration, stop: &AtomicBool) {
    let end = Instant::now() + time;
    while Instant::now() < end && !stop.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(5));
    }
}
