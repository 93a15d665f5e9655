//! A simulated operator. It calls the library's functions to replace masters. Its requests to masters may be late or
//! lost, and its process may pause or be killed.

mod node;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate::node::Node;
use quorate::runtime::{BoxFuture, Runtime};
use quorate::{ChangeError, ChangeStage, ClientKind, Instant, MastersChange, Redlock, Survey};

use self::node::{Claims, OperatorNode};
use crate::change_plan::{ChangePlan, NAMES};
use crate::client::failed;
use crate::clock::MS;
use crate::facts::{Fact, ValueResult};
use crate::kind::ValueStep;
use crate::locker::{PLACES, name};
use crate::process::Process;
use crate::rng::Rng;
use crate::seeded_bugs::Flaw;

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
        clock: Arc::new(Hasty {
            process: process.clone(),
            ahead: AtomicU64::new(0),
        }),
        claims: Arc::default(),
        process,
        plan,
        flaw,
    };
    let replaces = flaw.is_some_and(Flaw::replaces) && operator.plan.one_replaced().is_some();
    let mut change = 0;
    while !replaces && change < operator.plan.changes() {
        let goal = operator.plan.goal.checked_sub(4 * u64::from(change));
        let Some(goal) = goal else { break };
        if operator.walk(change, goal).await {
            change += 1;
        } else {
            change -= 1;
        }
    }
    let mut world = operator.process.shared.world();
    world.change_done();
    let process = &mut world.processes[operator.process.client];
    process.tasks -= 1;
    process.done = process.tasks == 0;
}

/// Returns the stage that a change of masters has reached when the number in the generation markers has risen by
/// `goal`. A whole change raises the number by 4.
fn stage_at(goal: u64) -> ChangeStage {
    match goal {
        0 => ChangeStage::Begun,
        1 => ChangeStage::Closed,
        2 | 3 => ChangeStage::Open,
        _ => ChangeStage::Finished,
    }
}

/// A part of the library's error message about a value that no majority of the old masters stores. The operator removes
/// this value.
const LOST: &str = "lost, or only partly created or removed";

/// The length of a period that the operator passes to the library to remove a once-per-period record. For a removal,
/// any length will do.
const PERIOD: Duration = Duration::from_secs(1);

/// Whether `error` lists an unmet condition whose description contains `what`.
fn misses(error: &ChangeError, what: &str) -> bool {
    matches!(error, ChangeError::Missing(missing) if missing.iter().any(|one| one.contains(what)))
}

struct Operator {
    process: Arc<Process>,
    plan: ChangePlan,
    rng: Rng,
    clock: Arc<Hasty>,
    claims: Claims,
    flaw: Option<Flaw>,
}

/// The clock, timers and tasks of an operator's process. Some seeded bugs set this clock ahead. The operator then does
/// not wait until the locks of the old masters' clients have expired.
struct Hasty {
    process: Arc<Process>,
    ahead: AtomicU64,
}

impl Hasty {
    fn ahead(&self) -> Duration {
        Duration::from_nanos(self.ahead.load(Ordering::Relaxed))
    }

    fn skip(&self, time: Duration) {
        self.ahead
            .fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Runtime for Hasty {
    fn now(&self) -> Instant {
        self.process.now() + self.ahead()
    }

    fn wall_micros(&self) -> u64 {
        self.process.wall_micros()
    }

    fn sleep_until(&self, at: Instant) -> BoxFuture<()> {
        let ahead = self.ahead().as_nanos() as u64;
        let at = Instant::from_nanos(at.as_nanos().saturating_sub(ahead));
        self.process.sleep_until(at)
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
        let named = self.plan.named(step);
        let client = self.process.client;
        self.process.shared.world().set_step(client, step);
        let node = |(master, locks): (usize, Arc<dyn Node>)| {
            Arc::new(OperatorNode {
                process: self.process.clone(),
                master,
                locks,
                first: named.asked().first() == Some(&master),
                flaw: self.flaw,
                claims: self.claims.clone(),
            }) as Arc<dyn Node>
        };
        let masters = named.asked().into_iter().zip(self.process.connect());
        let nodes = masters.map(node).collect();
        let settings = self.process.shared.world().scenario.settings;
        let builder = named.in_settings(settings.builder());
        let builder = builder.nodes(nodes).runtime(self.clock.clone());
        builder
            .build()
            .expect("the builder must accept the settings")
    }

    /// Takes the steps of one change of masters until the change has reached the stage `stage_at(goal)`.
    ///
    /// Returns false if masters have lost the generation markers of the previous change. The caller must then repeat
    /// the previous change.
    async fn walk(&mut self, change: u8, goal: u64) -> bool {
        let redlock = self.redlock(change);
        let change_of = redlock
            .change()
            .expect("the settings must include next_masters");
        let wanted = stage_at(goal);
        loop {
            self.pause().await;
            let stage = change_of.survey().await.stage();
            if stage >= wanted {
                break;
            }
            let step = if self.rng.chance(150_000) && self.is_early() {
                self.again(&change_of, stage).await
            } else {
                self.next(&change_of, stage).await
            };
            let Err(error) = step else { continue };
            self.note_not_yet(&error);
            // Remove lost values with probability 1/2. After the faults, always remove them: otherwise the change would
            // not end.
            if self.rng.chance(500_000) || !self.is_early() {
                self.drop_lost(&redlock, &error).await;
            }
            if change > 0 && misses(&error, "has not completed its step `open`") {
                return false;
            }
            let later = change + 1 < self.plan.changes() && self.plan.goal > 4;
            if later && misses(&error, "belongs to other masters") {
                // A master already has a generation marker of the next change. So stop working on this change.
                return true;
            }
        }
        if wanted == ChangeStage::Finished && self.plan.retires {
            let left =
                self.plan.sets[usize::from(change)] & !self.plan.sets[usize::from(change) + 1];
            let mut world = self.process.shared.world();
            for master in (0..NAMES.len()).filter(|master| left >> master & 1 == 1) {
                world.retire(master);
            }
        }
        true
    }

    /// Removes the values that `error` reports as lost. A value is lost if no majority of the old masters stores it.
    async fn drop_lost(&self, redlock: &Redlock, error: &ChangeError) {
        let ChangeError::Missing(missing) = error else {
            return;
        };
        for line in missing.iter().filter(|line| line.contains(LOST)) {
            let named = |place: &usize| line.starts_with(&format!("{:?}:", name(*place as u8)));
            let Some(resource) = (0..PLACES).find(named) else {
                continue;
            };
            let record = line.contains("\"once ");
            self.tell(|task, step| Fact::Asks {
                task,
                resource,
                verb: ValueStep::Remove { record },
                step,
            });
            let name = name(resource as u8);
            self.process.shared.world().is_dropping = true;
            let dropped = if record {
                redlock.once(name, PERIOD).drop_record().await
            } else {
                redlock.quota(name).drop_quota().await
            };
            self.process.shared.world().is_dropping = false;
            let result = dropped.map_or_else(|error| failed(&error), |_| ValueResult::Removed);
            let client = self.process.client;
            self.tell(|task, _| Fact::ValueReturned {
                client,
                task,
                resource,
                result,
            });
        }
    }

    fn tell<'a>(&self, fact: impl FnOnce(usize, u8) -> Fact<'a>) {
        let mut world = self.process.shared.world();
        let step = world.step_of(self.process.client);
        let (now, task) = (world.now, world.task);
        let fact = fact(task, step);
        world.say(|| match &fact {
            Fact::ValueReturned {
                resource, result, ..
            } => {
                format!("the operator tried to remove the stored value r{resource}: {result:?}")
            }
            _ => "the operator begins to remove a lost value".to_owned(),
        });
        world.watch.fact(now, &fact);
    }

    fn note_not_yet(&self, error: &ChangeError) {
        let mut world = self.process.shared.world();
        world.watch.coverage.not_yet += 1;
        world.say(|| format!("the operator cannot take the next step: {error}"));
    }

    fn is_early(&self) -> bool {
        !self.process.shared.world().healed()
    }

    async fn sleep(&self, time: Duration) {
        self.process.sleep_until(self.process.now() + time).await;
    }

    async fn pause(&mut self) {
        let most = if self.is_early() {
            self.plan.pause
        } else {
            50 * MS
        };
        let pause = Duration::from_nanos(self.rng.range(MS, most));
        self.sleep(pause).await;
    }

    /// Takes the step that follows `stage` in a change of masters.
    async fn next(
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
    async fn again(
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
        if self.waits(&closed) {
            self.sleep(change.wait()).await;
        } else {
            self.clock.skip(change.wait());
        }
        if self.rng.chance(300_000) {
            self.pause().await;
        }
        change.open(&closed).await.map(drop)
    }
}

impl Operator {
    /// Whether the operator waits until the locks of the old masters' clients have expired, before it lets the new
    /// masters vote. Only two seeded bugs (`OpenWithoutWait` and `LeftoverLock`) skip this wait.
    fn waits(&self, closed: &Survey) -> bool {
        let clients = |survey: &Survey| {
            let masters = survey.masters.iter().filter(|master| master.is_old);
            let old = masters.flat_map(|master| &master.seen.clients);
            let known = old.filter(
                |client| matches!(client.kind, ClientKind::AtStep(step, _) if step % 4 == 0),
            );
            known.count()
        };
        match self.flaw {
            Some(Flaw::OpenWithoutWait) => false,
            Some(Flaw::LeftoverLock) => clients(closed) > 0,
            _ => true,
        }
    }
}
