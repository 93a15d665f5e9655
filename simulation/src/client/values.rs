//! The work of a client with the value under a lock: it takes units of a quota, or does some work once per period.

use std::sync::Arc;
use std::time::Duration;

use quorate::{Due, LockGuard, Once, OnceOutcome, Redlock, Take, ValueError, Wait};
use quorate_promises::{ValueEvent, ValueResult};

use super::{Client, PollLimit};
use crate::facts::{Call, Fact, result_of_error};
use crate::kind::ValueStep;
use crate::locker::{Hold, key_of_place};
use crate::scenario::Step;

fn token_of(guard: &LockGuard) -> u64 {
    guard.fencing_token().unwrap_or(0)
}

impl Client {
    /// Performs the operation `verb` on the value of the step's resource.
    pub(super) async fn run_value_step(&self, step: &Step, verb: ValueStep) {
        let redlock = self.library.redlock();
        self.report_value_call(step, verb);
        let work_nanos = match verb {
            ValueStep::AtLeastOnce => step.hold / 2,
            _ => 0,
        };
        let wait = step.wait + work_nanos;
        let call = self.begin_call(Call::Value { wait });
        let call_future = self.perform(step, verb, redlock);
        let result = match step.cut {
            Some(polls) => PollLimit::new(call_future, polls).await,
            None => Some(call_future.await),
        };
        call.returned();
        match result {
            Some(result) => self.report_result(step, verb, result),
            None => self.process.shared.world().observer.coverage.values_cut += 1,
        }
    }

    async fn perform(&self, step: &Step, verb: ValueStep, redlock: &Redlock) -> ValueResult {
        let wait = match step.wait {
            0 => Wait::None,
            wait => Wait::For(Duration::from_nanos(wait)),
        };
        let quota = redlock.quota(key_of_place(step.resource)).wait(wait);
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
            ValueStep::Take(units) => quota.take(units.into()).await.map(|take| match take {
                Take::Taken { left } => ValueResult::Taken(left),
                Take::SoldOut { left } => ValueResult::UnitsLeft(left),
            }),
            ValueStep::ReadRemaining => quota.left().await.map(ValueResult::UnitsLeft),
            ValueStep::AtLeastOnce => {
                let once = self.once(redlock, step).wait(wait);
                self.work_at_least_once(step, &once).await
            }
            ValueStep::AtMostOnce | ValueStep::SeparateCalls => {
                let once = self.once(redlock, step).wait(wait);
                let work = async |guard: &LockGuard| token_of(guard);
                once.at_most_once(work).await.map(|outcome| match outcome {
                    OnceOutcome::Done(token) => ValueResult::WorkDue(token),
                    _ => ValueResult::AlreadyDone,
                })
            }
        };
        result.unwrap_or_else(|error| result_of_error(&error))
    }

    /// Calls `at_least_once` with a closure that simulates work: it sleeps. If `step.drop` is set, the work fails.
    async fn work_at_least_once(
        &self,
        step: &Step,
        once: &Once,
    ) -> Result<ValueResult, ValueError> {
        let work = async |guard: &LockGuard| {
            self.sleep(step.hold / 2).await;
            if step.drop {
                Err(())
            } else {
                Ok(token_of(guard))
            }
        };
        let outcome = once.at_least_once(work).await?;
        let coverage = &mut self.process.shared.world().observer.coverage;
        Ok(match outcome {
            OnceOutcome::Done(Ok(token)) => {
                coverage.jobs_done_then_recorded += 1;
                ValueResult::WorkDue(token)
            }
            OnceOutcome::NotRecorded(..) => {
                coverage.jobs_not_recorded += 1;
                ValueResult::Unknown
            }
            OnceOutcome::AlreadyDone { .. } => ValueResult::AlreadyDone,
            _ => ValueResult::NotChanged,
        })
    }

    fn once(&self, redlock: &Redlock, step: &Step) -> Once {
        let period = self.process.shared.world().scenario.period;
        redlock.once(key_of_place(step.resource), Duration::from_nanos(period))
    }

    /// Reads the once-per-period record, waits for half of `step.hold`, and then writes the record if the work was due.
    /// The client already holds the lock.
    pub(super) async fn read_work_and_write(&self, step: &Step, hold: &Arc<Hold>) {
        let guard = hold.guard();
        self.report_value_call(step, ValueStep::SeparateCalls);
        let due = self.once(self.library.redlock(), step).due(guard).await;
        self.sleep(step.hold / 2).await;
        let result = match due {
            Ok(Due::Now(turn)) => turn
                .record()
                .await
                .map(|()| ValueResult::WorkDue(token_of(guard))),
            Ok(Due::AlreadyDone { .. }) => Ok(ValueResult::AlreadyDone),
            Err(error) => Err(error),
        };
        let result = result.unwrap_or_else(|error| result_of_error(&error));
        self.report_result(step, ValueStep::SeparateCalls, result);
    }

    fn report_value_call(&self, step: &Step, operation: ValueStep) {
        let client = self.process.client;
        let change_step = self.process.shared.world().step_of(client);
        self.report_fact(|task| Fact::Value {
            resource: step.resource.into(),
            operation: Some(operation),
            event: operation.called(client, task, change_step),
        });
    }

    fn report_result(&self, step: &Step, operation: ValueStep, result: ValueResult) {
        let resource = usize::from(step.resource);
        self.trace(|client| {
            format!("client {client} gets {result:?} for the value of r{resource}")
        });
        self.report_fact(|task| Fact::Value {
            resource,
            operation: Some(operation),
            event: ValueEvent::Returned(task as u64, result),
        });
        let units = match operation {
            ValueStep::Take(units) => units.into(),
            _ => 0,
        };
        let coverage = &mut self.process.shared.world().observer.coverage;
        match result {
            ValueResult::Created => coverage.values_created += 1,
            ValueResult::Removed => coverage.values_removed += 1,
            ValueResult::Taken(_) => coverage.units_taken += units,
            ValueResult::UnitsLeft(_) => coverage.units_left += 1,
            ValueResult::WorkDue(_) => coverage.once_jobs_done += 1,
            ValueResult::AlreadyDone => coverage.jobs_skipped += 1,
            ValueResult::Lost => coverage.values_lost += 1,
            ValueResult::Unknown => coverage.unknown_writes += 1,
            ValueResult::NotChanged => {}
        }
    }
}
