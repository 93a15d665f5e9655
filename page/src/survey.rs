//! Asks the masters, for all viewers together. Nobody else in the page asks a master.
//!
//! The survey is one future. It owns the requests that are under way, so dropping it ends them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use quorate::{Inspection, Listed, LockName, NameList, Redlock, SeenValue, Status};

use crate::elections::{Elections, LeaderWatch};
use crate::hub::{Hub, now_ms};
use crate::lock::{has_leader, lock_id};
use crate::master::Finding;
use crate::pace::Budget;
use crate::world::MAX_LOCKS;

/// The name whose status shows which masters vote. Nobody needs to lock it.
const PROBE: &str = "quorate-page";

/// How many locks one request for locks reads.
const LOCKS_AT_A_TIME: usize = 64;

/// The pause between two inspections, and between two readings of all values.
const INSPECT_PAUSE: Duration = Duration::from_secs(15);
const VALUES_PAUSE_MS: u64 = 10_000;

/// How long the survey waits at most before it looks again for locks that are due.
const MAX_IDLE_MS: u64 = 50;

/// Turns the inspections of the masters into findings, as `quorate doctor` does.
pub(crate) type Judge = Arc<dyn Fn(&[Inspection]) -> Vec<Finding> + Send + Sync>;

/// The kinds of requests. At most one of each kind is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Probe,
    Names,
    Locks,
    Inspect,
    Values,
}

const JOBS: [Job; 5] = [
    Job::Probe,
    Job::Names,
    Job::Locks,
    Job::Inspect,
    Job::Values,
];

/// The answer to a request, with the time that it took.
enum Answer {
    Probe(Option<Status>),
    Names {
        list: NameList,
        began_ms: u64,
    },
    Locks {
        asked: Vec<Arc<str>>,
        listed: Vec<Listed>,
        took: Duration,
    },
    Inspect(Vec<Inspection>),
    Values {
        seen: Vec<SeenValue>,
        took: Duration,
    },
}

/// When the next request of each kind is due, and what it may cost.
struct Plan {
    /// `None` while a request of this kind is under way.
    due: [Option<Instant>; 5],
    names: Budget,
    locks: Budget,
}

impl Plan {
    fn new(now: Instant, percent: f64) -> Self {
        let budget = || Budget::new(percent / 2.0, now_ms());
        Self {
            due: [Some(now); 5],
            names: budget(),
            locks: budget(),
        }
    }

    fn set(&mut self, job: Job, due: Option<Instant>) {
        self.due[job as usize] = due;
    }

    /// The jobs that are due.
    fn due(&self, now: Instant) -> impl Iterator<Item = Job> + use<> {
        let due = self.due;
        JOBS.into_iter()
            .filter(move |job| due[*job as usize].is_some_and(|due| due <= now))
    }

    fn next(&self) -> Option<Instant> {
        self.due.iter().flatten().min().copied()
    }
}

/// The elections with a leader among the locks of an answer.
fn led_elections(answer: &Answer) -> Vec<(Arc<str>, LockName)> {
    let Answer::Locks { listed, .. } = answer else {
        return Vec::new();
    };
    let led = listed.iter().filter(|listed| has_leader(listed));
    let named = led.map(|listed| {
        let name = LockName {
            resource: listed.resource.clone(),
            slot: listed.slot,
        };
        (lock_id(&name).into(), name)
    });
    named.collect()
}

/// The survey.
pub(crate) struct Survey {
    pub(crate) redlock: Redlock,
    pub(crate) hub: Arc<Hub>,
    pub(crate) interval: Duration,
    pub(crate) judge: Judge,
    /// The largest part of a master's time that the survey takes, in percent.
    pub(crate) percent: f64,
}

impl Survey {
    /// Asks the masters for as long as somebody watches. Never returns.
    pub(crate) async fn run(self) {
        loop {
            while !self.hub.is_watched() {
                self.hub.world().watch(false, now_ms());
                self.hub.arrived.notified().await;
            }
            self.hub.world().watch(true, now_ms());
            self.watch().await;
        }
    }

    /// Asks the masters until nobody watches.
    async fn watch(&self) {
        let mut plan = Plan::new(Instant::now(), self.percent);
        let mut elections = Elections::default();
        let mut leader_changes = FuturesUnordered::new();
        let mut under_way: FuturesUnordered<BoxFuture<'_, Answer>> = FuturesUnordered::new();
        while self.hub.is_watched() {
            let now = Instant::now();
            for job in plan.due(now) {
                match self.start(job) {
                    Some(request) => {
                        under_way.push(request);
                        plan.set(job, None);
                    }
                    None => plan.set(job, Some(now + self.idle_pause())),
                }
            }
            let next = plan.next().unwrap_or(now + self.interval);
            tokio::select! {
                Some(answer) = under_way.next(), if !under_way.is_empty() => {
                    let led = led_elections(&answer);
                    let watches = elections.observe_new(&self.redlock, led);
                    leader_changes.extend(watches.into_iter().map(LeaderWatch::wait_for_change));
                    self.take(answer, &mut plan);
                }
                Some(watch) = leader_changes.next(), if !leader_changes.is_empty() => {
                    self.hub.world().follow.plan(watch.id(), 0);
                    let watch = elections.after_change(watch);
                    leader_changes.extend(watch.map(LeaderWatch::wait_for_change));
                }
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
    }

    /// How long to wait if no lock is due.
    fn idle_pause(&self) -> Duration {
        let due_ms = self.hub.world().follow.next_due_ms();
        let pause_ms = due_ms.map_or(MAX_IDLE_MS, |due| {
            due.saturating_sub(now_ms()).clamp(5, MAX_IDLE_MS)
        });
        Duration::from_millis(pause_ms)
    }

    /// The request of a job; `None` if there is nothing to ask.
    fn start(&self, job: Job) -> Option<BoxFuture<'_, Answer>> {
        let began = Instant::now();
        Some(match job {
            Job::Probe => {
                Box::pin(async move { Answer::Probe(self.redlock.status(PROBE).await.ok()) })
            }
            Job::Names => {
                let began_ms = now_ms();
                Box::pin(async move {
                    let list = self.redlock.list_names("", MAX_LOCKS).await;
                    Answer::Names { list, began_ms }
                })
            }
            Job::Locks => {
                let (asked, names) = self.hub.world().due_locks(now_ms(), LOCKS_AT_A_TIME);
                if names.is_empty() {
                    return None;
                }
                Box::pin(async move {
                    let listed = self.redlock.statuses(&names).await;
                    Answer::Locks {
                        asked,
                        listed,
                        took: began.elapsed(),
                    }
                })
            }
            Job::Inspect => Box::pin(async move { Answer::Inspect(self.redlock.inspect().await) }),
            Job::Values => Box::pin(async move {
                let seen = self.redlock.glance_at_values().await;
                Answer::Values {
                    seen,
                    took: began.elapsed(),
                }
            }),
        })
    }

    /// Takes in an answer, and plans the next request of its kind.
    fn take(&self, answer: Answer, plan: &mut Plan) {
        let (now, time_ms) = (Instant::now(), now_ms());
        let interval_ms = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        let after_ms = |ms| Some(now + Duration::from_millis(ms));
        let trip_micros = self.trip_micros();
        let micros = |took: Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        match answer {
            Answer::Probe(status) => {
                let mut world = self.hub.world();
                if let Some(status) = &status {
                    world.take_probe(status, time_ms);
                }
                world.check_file(time_ms);
                plan.set(Job::Probe, after_ms(interval_ms));
                drop(world);
                self.hub.publish();
            }
            Answer::Names { list, began_ms } => {
                let took = list.fastest;
                self.hub
                    .world()
                    .take_names(list.names, list.complete, began_ms, time_ms);
                let pause_ms =
                    plan.names
                        .pause_ms(micros(took), trip_micros, 0, interval_ms, time_ms);
                plan.set(Job::Names, after_ms(pause_ms));
            }
            Answer::Locks {
                asked,
                listed,
                took,
            } => {
                let mut world = self.hub.world();
                let before = world.ring.last_seq();
                world.take_locks(&asked, &listed, time_ms);
                let has_news = world.ring.last_seq() != before;
                let pause_ms =
                    plan.locks
                        .pause_ms(micros(took), trip_micros, asked.len(), 5, time_ms);
                plan.set(Job::Locks, after_ms(pause_ms));
                drop(world);
                if has_news {
                    self.hub.publish();
                }
            }
            Answer::Inspect(inspections) => {
                let findings = (self.judge)(&inspections);
                self.hub
                    .world()
                    .take_inspections(inspections, findings, time_ms);
                plan.set(Job::Inspect, Some(now + INSPECT_PAUSE));
            }
            Answer::Values { seen, took } => {
                self.hub.world().take_values(&seen, time_ms);
                let pause_ms = plan.names.pause_ms(
                    micros(took),
                    trip_micros,
                    seen.len(),
                    VALUES_PAUSE_MS,
                    time_ms,
                );
                plan.set(Job::Values, after_ms(pause_ms));
            }
        }
    }

    /// The shortest last round trip to any master, in microseconds; 0 if none answered.
    fn trip_micros(&self) -> u64 {
        let world = self.hub.world();
        let trips = world
            .masters
            .iter()
            .filter_map(super::master::MasterRecord::trip_ms);
        let shortest = trips.fold(f32::INFINITY, f32::min);
        if shortest.is_finite() {
            (shortest * 1e3) as u64
        } else {
            0
        }
    }
}
