//! A simulated operator. It calls the library's functions to replace masters, over simulated connections. Its commands to
//! masters may be late or lost, and its process may pause or be killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate::node::Dial;
use quorate::runtime::{BoxFuture, Runtime};
use quorate::{ChangeError, ChangeStage, ClientKind, Instant, MastersChange, Redlock, Survey};
use quorate_promises::{ValueEvent, ValueResult};

use crate::change_plan::{ChangePlan, MASTER_NAMES};
use crate::clock::MS;
use crate::facts::{Fact, result_of_error};
use crate::flaw::Flaw;
use crate::kind::ValueStep;
use crate::locker::{PLACES, key_of_place};
use crate::process::Process;
use crate::rng::Rng;
use crate::world::open_stream;

/// Carries out all planned changes of the masters, one after another. Then reports to the world that the changes are
/// done.
pub(crate) async fn run(process: Arc<Process>) {
    let plan = {
        let world = process.shared.world();
        let plan = world.scenario.change.clone();
        plan.expect("the scenario of an operator must contain a replacement of masters")
    };
    let mut seed = [0; 8];
    process.random(&mut seed);
    let flaw = process.shared.world().flaw;
    let mut operator = Operator {
        rng: Rng::new(u64::from_le_bytes(seed)),
        clock: Arc::new(HurriedClock {
            process: process.clone(),
            skipped_nanos: AtomicU64::new(0),
        }),
        process,
        plan,
        flaw,
    };
    let replaces_without_operator = flaw.is_some_and(Flaw::replaces_without_operator)
        && operator.plan.only_replaced_master().is_some();
    let mut change = 0;
    while !replaces_without_operator && change < operator.plan.changes() {
        let goal = operator.plan.goal.checked_sub(4 * u64::from(change));
        let Some(goal) = goal else { break };
        if operator.carry_out_change(change, goal).await {
            change += 1;
        } else {
            change -= 1;
        }
    }
    let mut world = operator.process.shared.world();
    world.record_changes_complete();
    let process = &mut world.processes[operator.process.client];
    process.running_tasks -= 1;
    process.is_done = process.running_tasks == 0;
}

/// Returns the stage that a change of masters has reached when the number in the generation markers has risen by
/// `goal`. A whole change raises the number by 4.
fn stage_after(raised_by: u64) -> ChangeStage {
    match raised_by {
        0 => ChangeStage::Begun,
        1 => ChangeStage::Closed,
        2 | 3 => ChangeStage::Open,
        _ => ChangeStage::Finished,
    }
}

/// A part of the library's error message about a value that no majority of the old masters stores. The operator removes
/// this value.
const LOST_VALUE_TEXT: &str = "lost, or only partly created or removed";

/// The length of a period that the operator passes to the library to remove a once-per-period record. For a removal,
/// any length will do.
const ANY_PERIOD: Duration = Duration::from_secs(1);

/// Whether `error` lists an unmet condition whose description contains `condition`.
fn has_unmet_condition(error: &ChangeError, condition: &str) -> bool {
    matches!(error, ChangeError::Missing(missing) if missing.iter().any(|unmet| unmet.contains(condition)))
}

struct Operator {
    process: Arc<Process>,
    plan: ChangePlan,
    rng: Rng,
    clock: Arc<HurriedClock>,
    flaw: Option<Flaw>,
}

/// The clock, timers and tasks of an operator's process. The seeded bug `LeftoverLock` sets this clock ahead. The
/// operator then does not wait until the locks of the old masters' clients have expired.
struct HurriedClock {
    process: Arc<Process>,
    skipped_nanos: AtomicU64,
}

impl HurriedClock {
    fn skipped_time(&self) -> Duration {
        Duration::from_nanos(self.skipped_nanos.load(Ordering::Relaxed))
    }

    fn skip_time(&self, time: Duration) {
        self.skipped_nanos
            .fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Runtime for HurriedClock {
    fn now(&self) -> Instant {
        self.process.now() + self.skipped_time()
    }

    fn wall_micros(&self) -> u64 {
        self.process.wall_micros()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        let skipped_nanos = self.skipped_time().as_nanos() as u64;
        let process_time = Instant::from_nanos(at.as_nanos().saturating_sub(skipped_nanos));
        self.process.sleep_until(process_time)
    }

    fn spawn(&self, task: BoxFuture<()>) -> bool {
        self.process.spawn(task)
    }

    fn random(&self, bytes: &mut [u8]) {
        self.process.random(bytes);
    }
}

impl Operator {
    /// Returns the library, configured with the old and the new masters of this change.
    fn redlock(&self, change: u8) -> Redlock {
        let step = 2 * change + 1;
        let configuration = self.plan.masters_at(step);
        let client = self.process.client;
        self.process.shared.world().set_step(client, step);
        let (clock, dial) = (self.clock.clone(), self.dial());
        let nodes = (self.process).connect_with(|settings| settings.dial(dial).runtime(clock));
        let settings = self.process.shared.world().scenario.settings;
        let builder = configuration.configure(settings.builder());
        builder
            .nodes(nodes)
            .runtime(self.clock.clone())
            .build()
            .expect("the builder must accept the settings")
    }

    /// Returns the function that opens the connections over which this operator sends its orders.
    fn dial(&self) -> Dial {
        let shared = Arc::downgrade(&self.process.shared);
        let client = self.process.client;
        Arc::new(move |host, _port| {
            let master = MASTER_NAMES.iter().position(|name| *name == host);
            let master = master.expect("the host must be a master of the scenario");
            Box::pin(open_stream(shared.clone(), client, master))
        })
    }

    /// Takes the steps of one change of masters until the change has reached the stage `stage_after(goal)`.
    ///
    /// Returns false if masters have lost the generation markers of the previous change. The caller must then repeat
    /// the previous change.
    async fn carry_out_change(&mut self, change: u8, goal: u64) -> bool {
        let redlock = self.redlock(change);
        let masters_change = redlock
            .change()
            .expect("the settings must include next_masters");
        let goal_stage = stage_after(goal);
        loop {
            self.pause().await;
            let stage = masters_change.survey().await.stage();
            if stage >= goal_stage {
                break;
            }
            let step = if self.rng.chance(150_000) && self.has_faults() {
                self.repeat_step(&masters_change, stage).await
            } else {
                self.take_step(&masters_change, stage).await
            };
            let Err(error) = step else { continue };
            self.record_failed_step(&error);
            // Remove lost values with probability 1/2. After the faults, always remove them: otherwise the change would
            // not end.
            if self.rng.chance(500_000) || !self.has_faults() {
                self.drop_lost_values(&redlock, &error).await;
            }
            if change > 0 && has_unmet_condition(&error, "has not completed its step `open`") {
                return false;
            }
            let has_next_change = change + 1 < self.plan.changes() && self.plan.goal > 4;
            if has_next_change && has_unmet_condition(&error, "belongs to other masters") {
                // A master already has a generation marker of the next change. So stop working on this change.
                return true;
            }
        }
        if goal_stage == ChangeStage::Finished && self.plan.stops_replaced {
            let removed_masters =
                self.plan.sets[usize::from(change)] & !self.plan.sets[usize::from(change) + 1];
            let mut world = self.process.shared.world();
            for master in
                (0..MASTER_NAMES.len()).filter(|master| removed_masters >> master & 1 == 1)
            {
                world.retire_master(master);
            }
        }
        true
    }

    /// Removes the values that `error` reports as lost. A value is lost if no majority of the old masters stores it.
    async fn drop_lost_values(&self, redlock: &Redlock, error: &ChangeError) {
        let ChangeError::Missing(missing) = error else {
            return;
        };
        for condition in missing
            .iter()
            .filter(|condition| condition.contains(LOST_VALUE_TEXT))
        {
            let names_lock = |place: &usize| {
                condition.starts_with(&format!("{:?}:", key_of_place(*place as u8)))
            };
            let Some(resource) = (0..PLACES).find(names_lock) else {
                continue;
            };
            let record = condition.contains("\"once ");
            let (client, removal) = (self.process.client, ValueStep::Remove { record });
            self.report_fact(|task, step| Fact::Value {
                resource,
                operation: Some(removal),
                event: removal.called(client, task, step),
            });
            let name = key_of_place(resource as u8);
            self.process.shared.world().is_operator_removing = true;
            let dropped = if record {
                redlock.once(name, ANY_PERIOD).drop_record().await
            } else {
                redlock.quota(name).drop_quota().await
            };
            self.process.shared.world().is_operator_removing = false;
            let result =
                dropped.map_or_else(|error| result_of_error(&error), |_| ValueResult::Removed);
            self.report_fact(|task, _| Fact::Value {
                resource,
                operation: Some(removal),
                event: ValueEvent::Returned(task as u64, result),
            });
        }
    }

    fn report_fact<'a>(&self, fact: impl FnOnce(usize, u8) -> Fact<'a>) {
        let mut world = self.process.shared.world();
        let step = world.step_of(self.process.client);
        let (now, task) = (world.now, world.polled_task);
        let fact = fact(task, step);
        world.trace_line(|| match &fact {
            Fact::Value {
                resource,
                event: ValueEvent::Returned(_, result),
                ..
            } => {
                format!("the operator tried to remove the stored value r{resource}: {result:?}")
            }
            _ => "the operator begins to remove a lost value".to_owned(),
        });
        world.observer.report_fact(now, &fact);
    }

    fn record_failed_step(&self, error: &ChangeError) {
        let mut world = self.process.shared.world();
        world.observer.coverage.failed_operator_steps += 1;
        world.trace_line(|| format!("the operator cannot take the next step: {error}"));
    }

    fn has_faults(&self) -> bool {
        !self.process.shared.world().faults_have_ended()
    }

    async fn sleep(&self, time: Duration) {
        self.process.sleep_until(self.process.now() + time).await;
    }

    async fn pause(&mut self) {
        let longest = if self.has_faults() {
            self.plan.longest_pause
        } else {
            50 * MS
        };
        let pause = Duration::from_nanos(self.rng.range(MS, longest));
        self.sleep(pause).await;
    }

    /// Takes the step that follows `stage` in a change of masters.
    async fn take_step(
        &mut self,
        change: &MastersChange<'_>,
        stage: ChangeStage,
    ) -> Result<(), ChangeError> {
        match stage {
            ChangeStage::Untouched => change.begin().await.map(drop),
            ChangeStage::Begun | ChangeStage::PartlyClosed => change.close().await.map(drop),
            ChangeStage::Closed => self.open(change).await,
            _ => change.finish().await.map(drop),
        }
    }

    /// Repeats an earlier step of a change of masters. The change has reached the stage `stage`.
    async fn repeat_step(
        &mut self,
        change: &MastersChange<'_>,
        stage: ChangeStage,
    ) -> Result<(), ChangeError> {
        match (stage, self.rng.below(2)) {
            (ChangeStage::Open, 0) => change.open_again().await.map(drop),
            (ChangeStage::Closed | ChangeStage::Open, _) => change.close().await.map(drop),
            _ => change.begin().await.map(drop),
        }
    }

    async fn open(&mut self, change: &MastersChange<'_>) -> Result<(), ChangeError> {
        let closed = change.closed().await?;
        if self.must_wait(&closed) {
            self.sleep(change.wait()).await;
        } else {
            self.clock.skip_time(change.wait());
        }
        if self.rng.chance(300_000) {
            self.pause().await;
        }
        change.open(&closed).await.map(drop)
    }
}

impl Operator {
    /// Whether the operator waits until the locks of the old masters' clients have expired, before it lets the new
    /// masters vote. Only the seeded bug `LeftoverLock` skips this wait.
    fn must_wait(&self, survey: &Survey) -> bool {
        let old_client_count = |survey: &Survey| {
            let masters = survey.masters.iter().filter(|master| master.is_old);
            let clients = masters.flat_map(|master| &master.seen.clients);
            let old_clients = clients.filter(
                |client| matches!(client.kind, ClientKind::AtStep(step, _) if step % 4 == 0),
            );
            old_clients.count()
        };
        self.flaw != Some(Flaw::LeftoverLock) || old_client_count(survey) > 0
    }
}
