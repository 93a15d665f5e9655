//! The work of a client with the value under a lock: it takes units of a quota, or does some work once per period.

use std::sync::Arc;
use std::time::Duration;

use quorate::{Due, LockGuard, Once, OnceOutcome, Redlock, Take, ValueError, Wait};

use super::{Client, Cut};
use crate::facts::{Call, Fact, ValueResult};
use crate::kind::{Kind, ValueStep};
use crate::locker::{Hold, name};
use crate::scenario::Step;
use crate::seeded_bugs::WrongRegister;

/// Converts the error of a call about a value into a result for the checkers.
pub(crate) fn failed(error: &ValueError) -> ValueResult {
    match error {
        ValueError::Unknown(_) => ValueResult::Unknown,
        ValueError::Missing(_) | ValueError::Lost(_) => ValueResult::Lost,
        ValueError::OtherKind { .. } | ValueError::Invalid(_) => {
            panic!("a master stores a value that no client has written: {error}")
        }
        _ => ValueResult::Nothing,
    }
}

fn number(guard: &LockGuard) -> u64 {
    guard.fencing_token().unwrap_or(0)
}

impl Client {
    /// Performs the operation `verb` on the value of the step's resource.
    pub(super) async fn value(&self, step: &Step, verb: ValueStep) {
        let Some(redlock) = self.locker.redlock() else {
            return;
        };
        self.asks(step, verb);
        let runs = match verb {
            ValueStep::AtLeast => step.hold / 2,
            _ => 0,
        };
        let wait = step.wait + runs;
        let call = self.call(Call::Value { wait });
        let result = self.result_of(step, verb, redlock);
        let result = match step.cut {
            Some(polls) => Cut::after(result, polls).await,
            None => Some(result.await),
        };
        call.over();
        match result {
            Some(result) => self.report(step, result),
            None => self.process.shared.world().watch.coverage.values_cut += 1,
        }
    }

    async fn result_of(&self, step: &Step, verb: ValueStep, redlock: &Redlock) -> ValueResult {
        let wait = match step.wait {
            0 => Wait::None,
            wait => Wait::For(Duration::from_nanos(wait)),
        };
        let quota = redlock.quota(name(step.resource)).wait(wait);
        let result = match verb {
            ValueStep::Create(0) => {
                let once = self.once(redlock, step).wait(wait);
                once.create().await.map(|()| ValueResult::Created)
            }
            ValueStep::Create(units) => {
                let created = quota.create(units.into()).await;
                created.map(|()| ValueResult::Created)
            }
            ValueStep::Remove { record: true } => {
                let once = self.once(redlock, step).wait(wait);
                once.drop_record().await.map(|_| ValueResult::Removed)
            }
            ValueStep::Remove { record: false } => {
                quota.drop_quota().await.map(|_| ValueResult::Removed)
            }
            ValueStep::Take(units) => quota.take(units.into()).await.map(|took| match took {
                Take::Taken { left } => ValueResult::Taken(left),
                Take::SoldOut { left } => ValueResult::Left(left),
            }),
            ValueStep::Left => quota.left().await.map(ValueResult::Left),
            ValueStep::AtLeast => {
                let once = self.once(redlock, step).wait(wait);
                self.at_least(step, &once).await
            }
            ValueStep::Once | ValueStep::Turn => {
                let once = self.once(redlock, step).wait(wait);
                let body = async |guard: &LockGuard| number(guard);
                once.at_most_once(body).await.map(|outcome| match outcome {
                    OnceOutcome::Done(number) => ValueResult::Due(number),
                    _ => ValueResult::Done,
                })
            }
        };
        result.unwrap_or_else(|error| failed(&error))
    }

    /// Calls `at_least_once` with a closure that simulates work: it sleeps. If `step.drop` is set, the work fails.
    async fn at_least(&self, step: &Step, once: &Once) -> Result<ValueResult, ValueError> {
        let body = async |guard: &LockGuard| {
            self.sleep(step.hold / 2).await;
            if step.drop {
                Err(())
            } else {
                Ok(number(guard))
            }
        };
        let outcome = once.at_least_once(body).await?;
        let coverage = &mut self.process.shared.world().watch.coverage;
        Ok(match outcome {
            OnceOutcome::Done(Ok(number)) => {
                coverage.done_at_least += 1;
                ValueResult::Due(number)
            }
            OnceOutcome::NotRecorded(..) => {
                coverage.not_recorded += 1;
                ValueResult::Unknown
            }
            OnceOutcome::AlreadyDone { .. } => ValueResult::Done,
            _ => ValueResult::Nothing,
        })
    }

    fn once(&self, redlock: &Redlock, step: &Step) -> Once {
        let period = self.process.shared.world().scenario.period;
        redlock.once(name(step.resource), Duration::from_nanos(period))
    }

    /// Reads the once-per-period record, waits for half of `step.hold`, and then writes the record if the work was due.
    /// The client already holds the lock.
    pub(super) async fn turn(&self, step: &Step, hold: &Arc<dyn Hold>) {
        let (Some(redlock), Some(guard)) = (self.locker.redlock(), hold.guard()) else {
            return self.sleep(step.hold / 2).await;
        };
        self.asks(step, ValueStep::Turn);
        let result = if let Some(register) = self.locker.register() {
            self.wrong_turn(step, register, guard).await
        } else {
            let once = self.once(redlock, step);
            self.right_turn(step, &once, guard).await
        };
        self.report(step, result);
    }

    async fn right_turn(&self, step: &Step, once: &Once, guard: &LockGuard) -> ValueResult {
        let due = once.due(guard).await;
        self.sleep(step.hold / 2).await;
        let result = match due {
            Ok(Due::Now(turn)) => turn
                .record()
                .await
                .map(|()| ValueResult::Due(number(guard))),
            Ok(Due::AlreadyDone { .. }) => Ok(ValueResult::Done),
            Err(error) => Err(error),
        };
        result.unwrap_or_else(|error| failed(&error))
    }

    /// Does the same as `right_turn`, but with a faulty implementation (a seeded bug) instead of the library.
    async fn wrong_turn(
        &self,
        step: &Step,
        register: &WrongRegister,
        guard: &LockGuard,
    ) -> ValueResult {
        use quorate::runtime::Runtime;

        let Some(known) = register.read(step.resource, guard).await else {
            return ValueResult::Nothing;
        };
        let period = self.process.shared.world().scenario.period / 1_000;
        let now = self.process.wall_micros();
        self.sleep(step.hold / 2).await;
        if !guard.is_valid() {
            return ValueResult::Nothing;
        }
        match known.record(now - now % period).await {
            None => ValueResult::Done,
            Some(true) => ValueResult::Due(number(guard)),
            Some(false) => ValueResult::Unknown,
        }
    }

    fn asks(&self, step: &Step, verb: ValueStep) {
        let resource = step.resource.into();
        let step = self.process.shared.world().step_of(self.process.client);
        self.tell(|task| Fact::Asks {
            task,
            resource,
            verb,
            step,
        });
    }

    fn report(&self, step: &Step, result: ValueResult) {
        let (client, resource) = (self.process.client, usize::from(step.resource));
        self.say(|client| format!("client {client} gets {result:?} for the value of r{resource}"));
        self.tell(|task| Fact::ValueReturned {
            client,
            task,
            resource,
            result,
        });
        let units = match step.kind {
            Kind::Value(ValueStep::Take(units)) => units.into(),
            _ => 0,
        };
        let coverage = &mut self.process.shared.world().watch.coverage;
        match result {
            ValueResult::Created => coverage.created += 1,
            ValueResult::Removed => coverage.removed += 1,
            ValueResult::Taken(_) => coverage.taken += units,
            ValueResult::Left(_) => coverage.units_left += 1,
            ValueResult::Due(_) => coverage.due += 1,
            ValueResult::Done => coverage.done_before += 1,
            ValueResult::Lost => coverage.values_lost += 1,
            ValueResult::Unknown => coverage.unknown += 1,
            ValueResult::Nothing => {}
        }
    }
}
