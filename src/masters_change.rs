//! Replacing the masters while they are in use: the steps that an operator executes. Each step can be repeated
//! (`docs/operations.md`, "Changing the masters").

mod marking;
mod survey;
mod values;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub use self::survey::{ChangeStage, Survey};
pub use self::values::CarriedValue;
use self::values::{CarryResults, ValueCarrier};
use crate::node::NodeName;
use crate::node::change::{ChangeOrder, ChangeSeen, Counter, MasterSeen};
use crate::protocol::instant::Instant;
use crate::protocol::marker::Configuration;
use crate::protocol::quorum::Quorum;
use crate::redlock::Redlock;

/// How many times an operator's step connects to each master, to find out whether its address always leads to the same
/// server. If an address leads to one of two servers at random, the step misses this with a probability of 1 : 256.
const IDENTIFYING_CONNECTIONS: usize = 8;

/// A replacement of the old masters by the next masters; see [`Redlock::change`]. Call its steps in this order:
/// `begin`, `close`, `closed`, `open`, `finish`.
#[derive(Debug)]
pub struct MastersChange<'a> {
    redlock: &'a Redlock,
    configuration: Configuration,
    allow_unknown_clients: bool,
}

/// Why a step of a replacement of the masters failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// This `Redlock` has no next masters, or one of its masters cannot store a generation marker.
    #[error(
        "no replacement of masters is configured: set next_masters, and use Redis or Valkey masters only"
    )]
    NothingToChange,
    /// Some conditions of the step are not met, so the step stopped before anything unsafe was done. Each text
    /// describes one problem that an operator must solve.
    #[error("{}", .0.join("; "))]
    Missing(Vec<String>),
}

impl Redlock {
    /// Returns the replacement of the current [`masters`](crate::RedlockBuilder::masters) by the
    /// [`next_masters`](crate::RedlockBuilder::next_masters).
    ///
    /// # Errors
    ///
    /// [`ChangeError::NothingToChange`] if no next masters are set.
    pub fn change(&self) -> Result<MastersChange<'_>, ChangeError> {
        let change = self.masters_change()?;
        if change.configuration.has_next() {
            Ok(change)
        } else {
            Err(ChangeError::NothingToChange)
        }
    }

    /// Reads the state of the masters, whether next masters are set or not.
    ///
    /// # Errors
    ///
    /// [`ChangeError::NothingToChange`] if the masters cannot store a generation marker.
    pub async fn survey(&self) -> Result<Survey, ChangeError> {
        Ok(self.masters_change()?.survey().await)
    }

    fn masters_change(&self) -> Result<MastersChange<'_>, ChangeError> {
        let configuration = self.core.coordinator.configuration;
        Ok(MastersChange {
            redlock: self,
            configuration: configuration.ok_or(ChangeError::NothingToChange)?,
            allow_unknown_clients: false,
        })
    }
}

impl MastersChange<'_> {
    /// With `true`, the steps of the replacement run even if unknown clients are connected to the masters. A client is
    /// unknown if it runs scripts or sets keys, but does not use this library. Default: `false`.
    ///
    /// Use `true` only if you know that these clients do not use the locks. Never use it if clients of other Redlock
    /// libraries use the same locks.
    #[must_use]
    pub fn allow_unknown_clients(self, allow_unknown_clients: bool) -> Self {
        Self {
            allow_unknown_clients,
            ..self
        }
    }

    /// Reads the state of all masters, and changes nothing. The result also lists missing rights: rights on the masters
    /// that the replacement needs, but that the configured user does not have.
    pub async fn survey(&self) -> Survey {
        let scope = self.redlock.scope_of_rights();
        let rights_order = |keys| ChangeOrder::Rights {
            scope: scope.clone(),
            keys,
        };
        let survey = self.send_order(&rights_order(None)).await;
        // Check the user's rights for every stored key on all masters, because a later step can copy a key to masters
        // that do not store it yet.
        let all_stored = survey.masters.iter().flat_map(|master| &master.seen.stored);
        let stored_values: BTreeSet<Vec<u8>> = all_stored.cloned().collect();
        if stored_values.is_empty() || survey.masters.iter().any(MasterSeen::lacks_rights) {
            return survey;
        }
        self.send_order(&rights_order(Some(stored_values.into_iter().collect())))
            .await
    }

    /// How long to wait between closing the old masters and opening the next masters, so that all leases on the old
    /// masters expire. This is `max_ttl` plus 1 % of `max_ttl` plus 2 ms, because clocks drift.
    pub fn wait(&self) -> Duration {
        let max_ttl = self.redlock.core.options.max_ttl;
        max_ttl + max_ttl / 100 + Duration::from_millis(2)
    }

    /// First step:
    ///
    /// - checks that the next masters are ready;
    /// - writes the generation marker to all masters;
    /// - copies the values (quotas and once-per-period records) to the next masters.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`], which lists all conditions that are not met. If the checks pass but a later part of
    /// the step fails, some or all markers have already been written.
    pub async fn begin(&self) -> Result<Survey, ChangeError> {
        let survey_before = self.survey().await;
        let mut missing_conditions = survey_before.obstacles();
        missing_conditions.extend(survey_before.faults_where(|master| master.is_next));
        missing_conditions
            .extend(survey_before.unfit_next_masters(self.redlock.core.options.max_ttl));
        // The number with which the previous replacement opened the masters. Generation 0 has no previous one.
        let opening_number = self.configuration.first_marker().checked_sub(2);
        if opening_number.is_some_and(|number| !survey_before.is_open_for(number)) {
            missing_conditions.push(
                "masters_generation is above 0, but the previous replacement has not completed its step `open`: finish \
                 that replacement first"
                    .into(),
            );
        }
        missing_conditions.extend(survey_before.clients_of_other_masters());
        missing_conditions.extend(survey_before.markers_without_name());
        missing_conditions.extend(self.alternating_addresses(&survey_before).await);
        refuse_if_missing(missing_conditions)?;
        let survey_after = self
            .raise_markers_restoring(0, |master| survey_before.has_marker_like(master))
            .await;
        let has_begun = survey_after.stage() >= ChangeStage::Begun;
        refuse_if_missing(survey_after.missing_unless(
            has_begun,
            "too few old masters or too few next masters have the generation marker: run the step `begin` again",
        ))?;
        let survey_after = self.carry_early(survey_after).await?;
        let mut advice = survey_before.next_masters_with_values();
        advice.extend(survey_after.advice);
        Ok(Survey {
            advice,
            ..survey_after
        })
    }

    /// Second step: closes the old masters. From then on, clients that know only the old masters get no votes. Then
    /// copies the values (quotas and once-per-period records) to the next masters again, because clients may have
    /// created values after `begin`.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`], which lists all conditions that are not met. For example:
    ///
    /// - The step [`begin`](Self::begin) has not been completed.
    /// - A client does not check the generation marker, so it would not notice that its masters are closed.
    /// - No majority of the old masters could be closed. Those that were closed stay closed.
    /// - The configured user lacks a right on a master.
    pub async fn close(&self) -> Result<Survey, ChangeError> {
        let survey_before = self.survey().await;
        let mut missing_conditions = survey_before.obstacles();
        if survey_before.stage() < ChangeStage::Begun {
            missing_conditions.push(
                "too few old masters or too few next masters have the generation marker of this replacement: run the \
                 step `begin` first"
                    .into(),
            );
        }
        missing_conditions.extend(survey_before.clients_without_notice(self.allow_unknown_clients));
        refuse_if_missing(missing_conditions)?;
        let survey_after = self.raise_markers(1).await;
        let is_closed = survey_after.stage() >= ChangeStage::Closed;
        refuse_if_missing(survey_after.missing_unless(
            is_closed,
            "no majority of the old masters is closed: run the step `close` again",
        ))?;
        self.carry_early(survey_after).await
    }

    /// Repeats the last part of [`close`](Self::close):
    ///
    /// - closes old masters that could not be reached before;
    /// - ends the connections of clients that know only the old masters.
    ///
    /// The result shows which old masters are closed now. After this call, wait for the duration [`wait`](Self::wait)
    /// and then call [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`], which lists all conditions that are not met: for example, no majority of the old
    /// masters is closed, or a client does not check the generation marker.
    pub async fn closed(&self) -> Result<Survey, ChangeError> {
        let survey_before = self.survey().await;
        refuse_if_missing(survey_before.obstacles())?;
        if survey_before.stage() < ChangeStage::Closed {
            let missing_conditions =
                vec!["no majority of the old masters is closed: run the step `close` first".into()];
            return Err(ChangeError::Missing(missing_conditions));
        }
        // Raise the markers again, because an earlier call possibly did not reach all old masters.
        let survey = self.raise_markers(1).await;
        refuse_if_missing(survey.clients_without_notice(self.allow_unknown_clients))?;
        Ok(survey)
    }

    /// Third step: opens the next masters. `closed` is the result of a call of [`closed`](Self::closed) that returned
    /// at least [`wait`](Self::wait) ago.
    ///
    /// Before this step opens the next masters, it copies to them:
    ///
    /// - the values (quotas and once-per-period records);
    /// - the fencing counters, except counters that are far behind the clocks: new fencing tokens are larger anyway.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`], which lists all conditions that are not met. For example:
    ///
    /// - The step was called too early, or no majority of the old masters stayed closed since `closed`.
    /// - A value exists on some old masters, but not on a majority of them.
    /// - The step waited for the lock that protects a value, and another client held it for longer than
    ///   [`wait`](Self::wait).
    /// - The fencing counter of a lock cannot be copied, because an [`Owner`](crate::Owner) holds the lock.
    /// - The masters' clocks differ too much.
    /// - No majority of the next masters could be opened. Those that were opened stay open.
    pub async fn open(&self, closed: &Survey) -> Result<Survey, ChangeError> {
        let closed_for = closed
            .closed_at
            .map(|closed_at| self.now().saturating_since(closed_at));
        let survey = self.survey().await;
        let mut missing_conditions = survey.obstacles();
        if closed_for.is_none_or(|closed_for| closed_for < self.wait()) {
            missing_conditions.push(format!(
                "the old masters must be closed for at least {:?} before the step `open`: wait longer, or run the step \
                 `close` again",
                self.wait()
            ));
        }
        if !self.old_only().is_met_by(closed.closed_throughout(&survey)) {
            missing_conditions.push(
                "too few of the old masters have stayed closed and running since the step `close`: run the step \
                 `close` again"
                    .into(),
            );
        }
        missing_conditions.extend(survey.clients_without_notice(self.allow_unknown_clients));
        refuse_if_missing(missing_conditions)?;
        // If any next master is open, an earlier call has copied all values. A new copy could overwrite values that
        // clients have changed on the next masters.
        let carried_values = if survey.is_any_open() {
            Vec::new()
        } else {
            self.carry_values(closed).await?
        };
        match self.carry_counters_and_raise(closed).await {
            Err(ChangeError::Missing(mut missing_conditions)) => {
                missing_conditions.extend(values::removed_texts(&carried_values));
                Err(ChangeError::Missing(missing_conditions))
            }
            result => result.map(|after| Survey {
                carried: carried_values,
                ..after
            }),
        }
    }

    async fn carry_counters_and_raise(&self, closed: &Survey) -> Result<Survey, ChangeError> {
        self.carry_counters(closed).await?;
        let survey_after = self.raise_markers(2).await;
        let is_open = survey_after.stage() >= ChangeStage::Open;
        refuse_if_missing(survey_after.missing_unless(
            is_open,
            "no majority of the next masters is open: run the step `open` again",
        ))?;
        Ok(survey_after)
    }

    /// Opens the next masters that could not be reached during `open`. A majority of the next masters must be open
    /// already.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`], which lists all conditions that are not met: for example, no majority of the next
    /// masters is open.
    pub async fn open_again(&self) -> Result<Survey, ChangeError> {
        let survey_before = self.survey().await;
        let mut missing_conditions = survey_before.obstacles();
        if survey_before.stage() < ChangeStage::Open {
            missing_conditions
                .push("the next masters are not open: run the step `open` first".into());
        }
        refuse_if_missing(missing_conditions)?;
        Ok(self.raise_markers(2).await)
    }

    /// Last step: ends the replacement. Clients that know both sets get no votes any more.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`], which lists all conditions that are not met: for example, no majority of the next
    /// masters is open.
    pub async fn finish(&self) -> Result<Survey, ChangeError> {
        let survey_before = self.survey().await;
        let mut missing_conditions = survey_before.obstacles();
        if survey_before.stage() < ChangeStage::Open {
            missing_conditions
                .push("the next masters are not open: run the step `open` first".into());
        }
        refuse_if_missing(missing_conditions)?;
        let survey_after = self.raise_markers(4).await;
        let is_finished = survey_after.stage() >= ChangeStage::Finished;
        refuse_if_missing(survey_after.missing_unless(
            is_finished,
            "no majority of the next masters is marked as finished: run the step `finish` again",
        ))?;
        Ok(survey_after)
    }

    /// Copies the values (quotas and once-per-period records) to the next masters. Includes every value that at least
    /// one master lists.
    async fn carry_values(&self, closed: &Survey) -> Result<Vec<CarriedValue>, ChangeError> {
        let value_survey = self.send_order(&ChangeOrder::Values).await;
        let is_enough = self
            .old_only()
            .is_met_by(closed.closed_throughout(&value_survey));
        refuse_if_missing(value_survey.missing_unless(
            is_enough,
            "too few of the old masters stayed closed and listed their quotas and records: run the step `close` again",
        ))?;
        let is_enough = self
            .next_only()
            .is_met_by(value_survey.masters_without_fault());
        refuse_if_missing(value_survey.missing_unless(
            is_enough,
            "too few of the next masters listed their quotas and records: run the step `open` again",
        ))?;
        let carrier = ValueCarrier {
            redlock: self.redlock,
            wait: self.wait(),
            open: value_survey.masters_marked_at_least(2),
            removes: true,
        };
        let CarryResults {
            carried,
            not_carried,
            denied: mut missing,
        } = carrier.carry_all(&value_survey.value_names()).await;
        missing.extend(not_carried);
        if missing.is_empty() {
            return Ok(carried);
        }
        missing.extend(values::removed_texts(&carried));
        Err(ChangeError::Missing(missing))
    }

    /// Copies values before the step `open`, so that clients that know both sets of masters can use the values.
    ///
    /// Returns an error if the operator's user lacks a right. If a value cannot be copied for any other reason, returns
    /// no error: the step `open` copies the value.
    async fn carry_early(&self, after: Survey) -> Result<Survey, ChangeError> {
        if after.stage() >= ChangeStage::Open {
            return Ok(after);
        }
        let value_survey = self.send_order(&ChangeOrder::Values).await;
        let carrier = ValueCarrier {
            redlock: self.redlock,
            wait: Duration::ZERO,
            open: value_survey.masters_marked_at_least(2),
            removes: false,
        };
        let CarryResults {
            carried,
            not_carried,
            denied,
        } = carrier.carry_all(&value_survey.value_names()).await;
        refuse_if_missing(denied)?;
        Ok(Survey {
            carried,
            advice: not_carried,
            ..after
        })
    }

    /// Raises the fencing counters of the next masters to those of the old masters. Never lowers a counter.
    ///
    /// Returns an error in these cases:
    ///
    /// - Too few of the old masters have stayed closed and have listed their counters: a majority is needed.
    /// - The masters' clocks differ too much.
    /// - No majority of the next masters has raised the counters.
    async fn carry_counters(&self, closed: &Survey) -> Result<(), ChangeError> {
        let counter_survey = self
            .send_order(&ChangeOrder::Counters(counter_age_limit(self.wait())))
            .await;
        let is_enough = self
            .old_only()
            .is_met_by(closed.closed_throughout(&counter_survey));
        refuse_if_missing(counter_survey.missing_unless(
            is_enough,
            "too few of the old masters have stayed closed and have listed their fencing counters: run the step \
             `close` again",
        ))?;
        refuse_if_missing(Vec::from_iter(
            counter_survey.clocks_apart(self.redlock.core.options.max_ttl),
        ))?;
        let largest_counters = counter_survey.largest_counters();
        if largest_counters.is_empty() {
            return Ok(());
        }
        let counters: Arc<[Counter]> = largest_counters.into_iter().collect();
        let write_survey = self.send_order(&ChangeOrder::Carry(counters)).await;
        let is_enough = self
            .next_only()
            .is_met_by(write_survey.masters_without_fault());
        refuse_if_missing(write_survey.missing_unless(
            is_enough,
            "no majority of the next masters accepted the fencing counters: run the step `open` again",
        ))?;
        refuse_if_missing(write_survey.held_by_owners())
    }

    fn old_only(&self) -> Quorum {
        self.redlock.core.coordinator.quorum.old_only()
    }

    fn next_only(&self) -> Quorum {
        self.redlock.core.coordinator.quorum.next_only()
    }

    /// Raises the generation marker of every master to `first_marker() + by`, and restores lost markers. The steps of a
    /// replacement call this with three numbers: 1 closes the old masters, 2 opens the next masters, and 4 ends the
    /// replacement.
    async fn raise_markers(&self, by: u64) -> Survey {
        self.raise_markers_restoring(by, |_| true).await
    }

    /// Raises the generation marker of every master to `first_marker() + by`.
    ///
    /// `restores` receives the index of each master. If this master has no marker, true means that its marker was lost,
    /// and false means that it never had one.
    async fn raise_markers_restoring(&self, by: u64, restores: impl Fn(usize) -> bool) -> Survey {
        let marker_number = self.configuration.first_marker() + by;
        let Some(print) = self.configuration.print_at(marker_number) else {
            return self.survey().await;
        };
        let name_print = self.configuration.name();
        let name_argument = name_print.map_or_else(String::new, |name| format!(" {name}"));
        let marker_text: Arc<str> = format!("{print}{name_argument}").into();
        let raise_order = |index| ChangeOrder::Raise {
            number: marker_number,
            print: marker_text.clone(),
            step: marker_number.div_ceil(2),
            restores: restores(index),
        };
        let survey = self.send_order_to_each(raise_order).await;
        Survey {
            closed_at: (by > 0).then(|| self.now()),
            ..survey
        }
    }

    /// Connects to every master [`IDENTIFYING_CONNECTIONS`] times. Returns one line for each master whose address does
    /// not always lead to the server that `before` shows.
    async fn alternating_addresses(&self, before: &Survey) -> Vec<String> {
        let identify_orders =
            (0..IDENTIFYING_CONNECTIONS).map(|_| self.send_order(&ChangeOrder::Identify));
        let later_surveys = futures::future::join_all(identify_orders).await;
        before.alternating_addresses(&later_surveys)
    }

    fn now(&self) -> Instant {
        self.redlock.core.coordinator.now()
    }

    async fn send_order(&self, order: &ChangeOrder) -> Survey {
        self.send_order_to_each(|_| order.clone()).await
    }

    async fn send_order_to_each(&self, order: impl Fn(usize) -> ChangeOrder) -> Survey {
        let coordinator = &self.redlock.core.coordinator;
        let answers = coordinator
            .nodes()
            .iter()
            .enumerate()
            .map(|(index, node)| node.change(order(index)));
        let seen_masters = futures::future::join_all(answers).await;
        let quorum = coordinator.quorum;
        let numbered = coordinator.names().zip(seen_masters).enumerate();
        let masters =
            numbered.map(
                |(index, (node, seen)): (usize, (&NodeName, ChangeSeen))| MasterSeen {
                    node: node.clone(),
                    is_old: quorum.is_old(index),
                    is_next: self.configuration.has_next() && quorum.is_next(index),
                    seen,
                },
            );
        Survey {
            masters: masters.collect(),
            carried: Vec::new(),
            advice: Vec::new(),
            configuration: self.configuration,
            quorum,
            closed_at: None,
        }
    }
}

/// Returns the lines as an error, without repeated lines. Returns `Ok` if there are no lines.
fn refuse_if_missing(mut missing: Vec<String>) -> Result<(), ChangeError> {
    let mut distinct = BTreeSet::new();
    missing.retain(|line| distinct.insert(line.clone()));
    if missing.is_empty() {
        Ok(())
    } else {
        Err(ChangeError::Missing(missing))
    }
}

/// Returns how far a fencing counter, read as a time, may be behind its master's clock and still be copied. Older
/// counters need no copy: every new fencing token is derived from a master's clock, and is larger.
///
/// `wait` is the wait before the step `open`.
fn counter_age_limit(wait: Duration) -> Duration {
    wait + Duration::from_secs(10)
}

#[cfg(test)]
mod tests;
