//! Asks the masters, for all viewers together. Nobody else in the page asks a master.
//!
//! The survey is one future. It owns the requests that are under way, so dropping it ends them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use quorate::{Inspection, Listed, LockName, NameList, NodeName, Redlock, SeenValue, Status};

use crate::elections::{Elections, LeaderWatch};
use crate::hub::{Hub, now_ms};
use crate::lock::{has_leader, lock_id};
use crate::master::Finding;
use crate::page_state::MAX_LOCKS;
use crate::schedule::Budget;

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

/// The answer to a request.
enum Answer {
    Probe(Option<Status>),
    Names {
        list: NameList,
        started_at_ms: u64,
    },
    Locks {
        requested_ids: Vec<Arc<str>>,
        listed: Vec<Listed>,
    },
    Inspect(Vec<Inspection>),
    Values {
        values: Vec<SeenValue>,
        /// The time until the answer arrived.
        elapsed: Duration,
    },
}

/// How long the fastest master took to answer about all these locks: an upper bound of the time that it worked. Zero if
/// no master answered. The slowest master says nothing about this time: perhaps it does not work at all.
fn fastest_answers(listed: &[Listed]) -> Duration {
    let mut slowest_by_node: HashMap<&NodeName, Duration> = HashMap::new();
    for node in listed.iter().flat_map(|listed| &listed.status.nodes) {
        let slowest = slowest_by_node.entry(&node.node).or_default();
        // A master without an answer about one of the locks cannot be the fastest one.
        let latency = node.state.as_ref().map_or(Duration::MAX, |_| node.latency);
        *slowest = latency.max(*slowest);
    }
    let answered = slowest_by_node.into_values();
    let fastest = answered.filter(|latency| *latency < Duration::MAX).min();
    fastest.unwrap_or_default()
}

/// When the next request of each kind is due, and what it may cost.
struct JobSchedule {
    /// `None` while a request of this kind is under way.
    due: [Option<Instant>; 5],
    names: Budget,
    locks: Budget,
    /// How long the fastest master took for the last search for names.
    last_search: Duration,
}

impl JobSchedule {
    fn new(now: Instant, percent: f64) -> Self {
        let budget = || Budget::new(percent / 2.0, now_ms());
        Self {
            due: [Some(now); 5],
            names: budget(),
            locks: budget(),
            last_search: Duration::ZERO,
        }
    }

    fn set_due(&mut self, job: Job, due: Option<Instant>) {
        self.due[job as usize] = due;
    }

    /// The jobs that are due.
    fn due_jobs(&self, now: Instant) -> impl Iterator<Item = Job> + use<> {
        let due = self.due;
        JOBS.into_iter()
            .filter(move |job| due[*job as usize].is_some_and(|due| due <= now))
    }

    fn next_due(&self) -> Option<Instant> {
        self.due.iter().flatten().min().copied()
    }
}

/// The elections with a leader among the locks of an answer.
fn elections_with_leader(answer: &Answer) -> Vec<(Arc<str>, LockName)> {
    let Answer::Locks { listed, .. } = answer else {
        return Vec::new();
    };
    let with_leader = listed.iter().filter(|listed| has_leader(listed));
    let named = with_leader.map(|listed| {
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
                self.hub.page_state().set_watched(false, now_ms());
                self.hub.arrived.notified().await;
            }
            self.hub.page_state().set_watched(true, now_ms());
            self.ask_while_watched().await;
        }
    }

    /// Asks the masters until nobody watches.
    async fn ask_while_watched(&self) {
        let mut schedule = JobSchedule::new(Instant::now(), self.percent);
        let mut elections = Elections::default();
        let mut leader_changes = FuturesUnordered::new();
        let mut under_way: FuturesUnordered<BoxFuture<'_, Answer>> = FuturesUnordered::new();
        while self.hub.is_watched() {
            let now = Instant::now();
            for job in schedule.due_jobs(now) {
                match self.start(job) {
                    Some(request) => {
                        under_way.push(request);
                        schedule.set_due(job, None);
                    }
                    None => schedule.set_due(job, Some(now + self.idle_pause())),
                }
            }
            let next = schedule.next_due().unwrap_or(now + self.interval);
            tokio::select! {
                Some(answer) = under_way.next(), if !under_way.is_empty() => {
                    let led = elections_with_leader(&answer);
                    let watches = elections.observe_new(&self.redlock, led);
                    leader_changes.extend(watches.into_iter().map(LeaderWatch::wait_for_change));
                    self.apply_answer(answer, &mut schedule);
                }
                Some(watch) = leader_changes.next(), if !leader_changes.is_empty() => {
                    self.hub.page_state().read_schedule.plan(watch.id(), 0);
                    let watch = elections.after_change(watch);
                    leader_changes.extend(watch.map(LeaderWatch::wait_for_change));
                }
                () = tokio::time::sleep_until(next.into()) => {}
            }
        }
    }

    /// How long to wait if no lock is due.
    fn idle_pause(&self) -> Duration {
        let due_ms = self.hub.page_state().read_schedule.next_due_ms();
        let pause_ms = due_ms.map_or(MAX_IDLE_MS, |due| {
            due.saturating_sub(now_ms()).clamp(5, MAX_IDLE_MS)
        });
        Duration::from_millis(pause_ms)
    }

    /// The request of a job; `None` if there is nothing to ask.
    fn start(&self, job: Job) -> Option<BoxFuture<'_, Answer>> {
        let started_at = Instant::now();
        Some(match job {
            Job::Probe => {
                Box::pin(async move { Answer::Probe(self.redlock.status(PROBE).await.ok()) })
            }
            Job::Names => {
                let started_at_ms = now_ms();
                Box::pin(async move {
                    let list = self.redlock.list_names("", MAX_LOCKS).await;
                    Answer::Names {
                        list,
                        started_at_ms,
                    }
                })
            }
            Job::Locks => {
                let (requested_ids, names) =
                    self.hub.page_state().due_locks(now_ms(), LOCKS_AT_A_TIME);
                if names.is_empty() {
                    return None;
                }
                Box::pin(async move {
                    let listed = self.redlock.statuses(&names).await;
                    Answer::Locks {
                        requested_ids,
                        listed,
                    }
                })
            }
            Job::Inspect => Box::pin(async move { Answer::Inspect(self.redlock.inspect().await) }),
            Job::Values => Box::pin(async move {
                let values = self.redlock.glance_at_values().await;
                Answer::Values {
                    values,
                    elapsed: started_at.elapsed(),
                }
            }),
        })
    }

    /// Takes in an answer, and plans the next request of its kind.
    fn apply_answer(&self, answer: Answer, schedule: &mut JobSchedule) {
        let (now, time_ms) = (Instant::now(), now_ms());
        let interval_ms = u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX);
        let after_ms = |ms| Some(now + Duration::from_millis(ms));
        let round_trip_micros = self.round_trip_micros();
        let micros = |elapsed: Duration| u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        match answer {
            Answer::Probe(status) => {
                let mut page_state = self.hub.page_state();
                if let Some(status) = &status {
                    page_state.apply_probe(status, time_ms);
                }
                page_state.check_file(time_ms);
                schedule.set_due(Job::Probe, after_ms(interval_ms));
                drop(page_state);
                self.hub.publish();
            }
            Answer::Names {
                list,
                started_at_ms,
            } => {
                let elapsed = list.fastest;
                schedule.last_search = elapsed;
                self.hub.page_state().apply_names(
                    list.names,
                    list.complete,
                    started_at_ms,
                    time_ms,
                );
                let pause_ms = schedule.names.pause_ms(
                    micros(elapsed),
                    round_trip_micros,
                    0,
                    interval_ms,
                    time_ms,
                );
                schedule.set_due(Job::Names, after_ms(pause_ms));
            }
            Answer::Locks {
                requested_ids,
                listed,
            } => {
                let mut page_state = self.hub.page_state();
                let last_seq_before = page_state.ring.last_seq();
                page_state.apply_locks(&requested_ids, &listed, time_ms);
                let has_news = page_state.ring.last_seq() != last_seq_before;
                let pause_ms = schedule.locks.pause_ms(
                    micros(fastest_answers(&listed)),
                    round_trip_micros,
                    requested_ids.len(),
                    5,
                    time_ms,
                );
                schedule.set_due(Job::Locks, after_ms(pause_ms));
                drop(page_state);
                if has_news {
                    self.hub.publish();
                }
            }
            Answer::Inspect(inspections) => {
                let findings = (self.judge)(&inspections);
                self.hub
                    .page_state()
                    .apply_inspections(inspections, findings, time_ms);
                schedule.set_due(Job::Inspect, Some(now + INSPECT_PAUSE));
            }
            Answer::Values { values, elapsed } => {
                self.hub.page_state().apply_values(&values, time_ms);
                // A search for values searches the same keys as a search for names. It took longer if a master is slow.
                let pause_ms = schedule.names.pause_ms(
                    micros(elapsed.min(schedule.last_search)),
                    round_trip_micros,
                    values.len(),
                    VALUES_PAUSE_MS,
                    time_ms,
                );
                schedule.set_due(Job::Values, after_ms(pause_ms));
            }
        }
    }

    /// The shortest last round trip to any master, in microseconds; 0 if none answered.
    fn round_trip_micros(&self) -> u64 {
        let page_state = self.hub.page_state();
        let round_trips = page_state
            .masters
            .iter()
            .filter_map(super::master::MasterRecord::last_round_trip_ms);
        let shortest = round_trips.fold(f32::INFINITY, f32::min);
        if shortest.is_finite() {
            (shortest * 1e3) as u64
        } else {
            0
        }
    }
}
