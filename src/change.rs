//! Replacing the masters while they are in use: the steps that an operator executes. Each step can be repeated
//! (`docs/operations.md`, "Changing the masters").

mod marking;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use self::values::CarriedValue;
use self::values::Carrier;
use crate::keys::{Family, OWNER};
use crate::node::change::{ChangeOrder, ChangeSeen, ClientKind, Counter, MasterSeen};
use crate::node::{Fault, NodeName};
use crate::protocol::instant::Instant;
use crate::protocol::marker::{Admission, Configuration, Marker};
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::redlock::Redlock;

/// A fencing counter is copied to the next masters unless it is behind its master's clock by more than this time plus
/// the wait before `open`. An older counter need not be copied, because every token that the next masters grant is
/// larger. A new counter starts from the master's clock, and the masters' clocks differ by less than the longest ttl.
const CARRIED: Duration = Duration::from_secs(10);

/// The masters' clocks may differ by at most `max_ttl` minus this time, or by 1 s if that is more. Then fencing tokens
/// rise even if all masters lose their memory.
const SLACK: Duration = Duration::from_secs(2);

/// A replacement of the masters, whose steps an operator executes; see [`Redlock::change`].
#[derive(Debug)]
pub struct MastersChange<'a> {
    redlock: &'a Redlock,
    configuration: Configuration,
    strangers_pass: bool,
}

/// Why a step of the replacement was not executed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// This `Redlock` has no next masters, or its masters cannot store a generation marker.
    #[error(
        "no replacement of masters is configured: set next_masters, and use Redis or Valkey masters only"
    )]
    NothingToChange,
    /// Some conditions of the step are not met, so the step stopped before anything unsafe was done. Each text
    /// describes one problem that an operator must solve.
    #[error("{}", .0.join("; "))]
    Missing(Vec<String>),
}

/// How far a replacement of the masters has come, according to the generation markers on majorities of the masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ChangeStage {
    /// No majority of the masters has a generation marker of this replacement.
    Untouched,
    /// Both sets of masters have generation markers. Two groups of clients get votes: those that know only the old
    /// masters, and those that know both sets.
    Begun,
    /// Some of the old masters are closed: they reject clients that know only the old masters. These are not a majority
    /// of the old masters.
    PartlyClosed,
    /// A majority of the old masters is closed. Only clients that know both sets of masters can acquire locks.
    Closed,
    /// A majority of the next masters is open. Two groups of clients get votes: those that know both sets, and those
    /// that know only the next masters.
    Open,
    /// The next masters have replaced the old ones: clients that know both sets get no votes any more.
    Finished,
}

/// The state of all masters during a replacement, as seen at the beginning or at the end of one step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The state of each master.
    pub masters: Vec<MasterSeen>,
    /// The values (quotas and once-per-period records) that this step has copied to the next masters, or has removed
    /// from them.
    pub carried: Vec<CarriedValue>,
    advice: Vec<String>,
    configuration: Configuration,
    quorum: Quorum,
    /// The time at which this step had raised the generation markers of the masters and had ended the connections of
    /// clients that know only the old masters. `None` if the step only read the state of the masters.
    closed_at: Option<Instant>,
}

impl Redlock {
    /// The replacement that the settings describe: from [`masters`](crate::RedlockBuilder::masters) to
    /// [`next_masters`](crate::RedlockBuilder::next_masters).
    ///
    /// # Errors
    ///
    /// [`ChangeError::NothingToChange`] if no next masters are set.
    pub fn change(&self) -> Result<MastersChange<'_>, ChangeError> {
        let change = self.masters_as_marked()?;
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
        Ok(self.masters_as_marked()?.look().await)
    }

    fn masters_as_marked(&self) -> Result<MastersChange<'_>, ChangeError> {
        let configuration = self.core.coordinator.configuration;
        Ok(MastersChange {
            redlock: self,
            configuration: configuration.ok_or(ChangeError::NothingToChange)?,
            strangers_pass: false,
        })
    }
}

impl MastersChange<'_> {
    /// With `true`, a step is executed even if unknown clients that run scripts are connected to the masters. Use
    /// `true` only if these clients do not use the locks. Never use it if other Redlock clients use the same locks.
    /// Default: `false`.
    #[must_use]
    pub fn strangers_pass(self, strangers_pass: bool) -> Self {
        Self {
            strangers_pass,
            ..self
        }
    }

    /// Reads the state of all masters; changes nothing.
    pub async fn look(&self) -> Survey {
        self.order(&ChangeOrder::Look).await
    }

    /// How long to wait between closing the old masters and opening the next masters: `max_ttl` for the longest lease,
    /// plus 1 % and 2 ms for clock drift during that lease.
    pub fn wait(&self) -> Duration {
        let max_ttl = self.redlock.core.options.max_ttl;
        max_ttl + max_ttl / 100 + Duration::from_millis(2)
    }

    /// First step: writes the generation marker to all masters, after checking that the next masters are ready. This
    /// step also copies the values (quotas and once-per-period records) to the next masters for the first time. Clients
    /// that know both sets can then use the values.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`], which lists all conditions that are not met.
    pub async fn begin(&self) -> Result<Survey, ChangeError> {
        let before = self.look().await;
        let mut missing = before.obstacles();
        missing.extend(before.faults_of(|master| master.is_next));
        missing.extend(before.unfit(self.redlock.core.options.max_ttl));
        if self.configuration.first_marker() > 0
            && !before.is_open_for(self.configuration.first_marker() - 2)
        {
            missing.push(
                "masters_generation is above 0, but these masters were never opened: first finish the replacement that \
                 leads to them"
                    .into(),
            );
        }
        missing.extend(before.clients_of_other_masters());
        none(missing)?;
        let after = self
            .raise_where(0, |master| before.has_marker_like(master))
            .await;
        let reached = after.stage() >= ChangeStage::Begun;
        none(after.unless(
            reached,
            "no majority of masters, or none of next_masters, has the generation marker: run the step begin again",
        ))?;
        let after = self.carry_early(after).await;
        let mut advice = before.holding_values();
        advice.extend(after.advice);
        Ok(Survey { advice, ..after })
    }

    /// Second step: closes the old masters, so that clients that know only the old masters get no votes any more. This
    /// step copies the values (quotas and once-per-period records) to the next masters again, because clients may have
    /// created values since `begin`.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`] in two cases: some clients cannot be notified and would go on taking locks, or no
    /// majority of the old masters could be closed. Masters that were closed stay closed.
    pub async fn close(&self) -> Result<Survey, ChangeError> {
        let before = self.look().await;
        let mut missing = before.obstacles();
        if before.stage() < ChangeStage::Begun {
            missing.push(
                "no majority of masters, or none of next_masters, has the generation marker of this change: run the step begin first"
                    .into(),
            );
        }
        missing.extend(before.clients_without_notice(self.strangers_pass));
        none(missing)?;
        let after = self.raise(1).await;
        let reached = after.stage() >= ChangeStage::Closed;
        none(after.unless(
            reached,
            "no majority of the old masters is closed: run the step close again",
        ))?;
        Ok(self.carry_early(after).await)
    }

    /// Repeats the last part of [`close`](Self::close): ends again the connections of clients that know only the old
    /// masters. Returns which of the old masters are closed now. The [`wait`](Self::wait) before `open` begins when
    /// this call returns.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`] if no majority of the old masters is closed.
    pub async fn closed(&self) -> Result<Survey, ChangeError> {
        let before = self.look().await;
        none(before.obstacles())?;
        if before.stage() < ChangeStage::Closed {
            let missing =
                vec!["no majority of the old masters is closed: run the step close first".into()];
            return Err(ChangeError::Missing(missing));
        }
        // Raising the markers again also closes old masters that could not be reached before.
        let survey = self.raise(1).await;
        none(survey.clients_without_notice(self.strangers_pass))?;
        Ok(survey)
    }

    /// Third step: opens the next masters. `closed` is the result of a call of [`closed`](Self::closed) that returned
    /// at least [`wait`](Self::wait) ago. Before opening, this step copies the values (quotas and once-per-period
    /// records) to the next masters, each value under its lock. It also copies the fencing counters, except those that
    /// are far behind the masters' clocks.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`], without opening any master:
    ///
    /// - if `open` was called too early, or a majority of the old masters was not closed all the time;
    /// - if no majority of the old masters has the last state of a value;
    /// - if the lock of a value stays held by another client for longer than [`wait`](Self::wait);
    /// - if an owner holds a lock whose fencing counter must be raised;
    /// - if the masters' clocks differ too much.
    pub async fn open(&self, closed: &Survey) -> Result<Survey, ChangeError> {
        let waited = closed.closed_at.map(|at| self.now().saturating_since(at));
        let now = self.look().await;
        let mut missing = now.obstacles();
        if waited.is_none_or(|waited| waited < self.wait()) {
            missing.push(format!(
                "the old masters must be closed for {:?} before the step open: run the step close again, or wait longer",
                self.wait()
            ));
        }
        if !self.old_only().is_met_by(closed.closed_until(&now)) {
            missing.push(
                "no majority of the old masters stayed closed without a restart: run the step close again"
                    .into(),
            );
        }
        missing.extend(now.clients_without_notice(self.strangers_pass));
        none(missing)?;
        // If any next master is open, an earlier call has already copied all values and counters. Nothing may be copied
        // now, because clients that know only the next masters may have written since.
        let carried = if now.is_any_open() {
            Vec::new()
        } else {
            self.carry_values(closed).await?
        };
        match self.carry_counters_and_raise(closed).await {
            Err(ChangeError::Missing(mut missing)) => {
                missing.extend(values::removed(&carried));
                Err(ChangeError::Missing(missing))
            }
            opened => opened.map(|after| Survey { carried, ..after }),
        }
    }

    async fn carry_counters_and_raise(&self, closed: &Survey) -> Result<Survey, ChangeError> {
        self.carry_counters(closed).await?;
        let after = self.raise(2).await;
        let reached = after.stage() >= ChangeStage::Open;
        none(after.unless(
            reached,
            "no majority of the next masters is open: run the step open again",
        ))?;
        Ok(after)
    }

    /// Opens those of the next masters that could not be reached during `open`. A majority of the next masters must be open already.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`] if no majority of the next masters is open.
    pub async fn open_again(&self) -> Result<Survey, ChangeError> {
        let before = self.look().await;
        let mut missing = before.obstacles();
        if before.stage() < ChangeStage::Open {
            missing.push("the next masters are not open: run the step open first".into());
        }
        none(missing)?;
        Ok(self.raise(2).await)
    }

    /// Last step: ends the replacement. Clients that know both sets get no votes any more.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Missing`] if no majority of the next masters is open.
    pub async fn finish(&self) -> Result<Survey, ChangeError> {
        let before = self.look().await;
        let mut missing = before.obstacles();
        if before.stage() < ChangeStage::Open {
            missing.push("the next masters are not open: run the step open first".into());
        }
        none(missing)?;
        let after = self.raise(4).await;
        let reached = after.stage() >= ChangeStage::Finished;
        none(after.unless(
            reached,
            "no majority of the next masters is marked as finished: run the step finish again",
        ))?;
        Ok(after)
    }

    /// Copies to the next masters every value (quota or once-per-period record) that any master lists. A majority of
    /// the closed old masters and a majority of the next masters must have listed their values. A closed master accepts
    /// no late writes, so the lists contain every value that a client of the old masters has created.
    async fn carry_values(&self, closed: &Survey) -> Result<Vec<CarriedValue>, ChangeError> {
        let read = self.order(&ChangeOrder::Values).await;
        let enough = self.old_only().is_met_by(closed.closed_until(&read));
        none(read.unless(
            enough,
            "no majority of the old masters is closed and listed its values: run the step close again",
        ))?;
        let enough = self.next_only().is_met_by(read.well());
        none(read.unless(
            enough,
            "no majority of the next masters listed its values: run the step open again",
        ))?;
        let carrier = Carrier {
            redlock: self.redlock,
            wait: self.wait(),
            open: read.marked(2),
            removes: true,
        };
        let (carried, mut missing) = carrier.carry_all(&read.names()).await;
        if missing.is_empty() {
            return Ok(carried);
        }
        missing.extend(values::removed(&carried));
        Err(ChangeError::Missing(missing))
    }

    /// Copies values before the next masters are opened, so that clients that know both sets can use values that
    /// clients of the old masters have written. A value that cannot be copied does not stop the step, because `open`
    /// copies all values again.
    async fn carry_early(&self, after: Survey) -> Survey {
        if after.stage() >= ChangeStage::Open {
            return after;
        }
        let read = self.order(&ChangeOrder::Values).await;
        let carrier = Carrier {
            redlock: self.redlock,
            wait: Duration::ZERO,
            open: read.marked(2),
            removes: false,
        };
        let (carried, advice) = carrier.carry_all(&read.names()).await;
        Survey {
            carried,
            advice,
            ..after
        }
    }

    /// Copies the fencing counters of a majority of the closed old masters to a majority of the next masters. No
    /// counter is lowered. Counters far behind the masters' clocks are left out, because the next masters grant larger
    /// tokens anyway.
    async fn carry_counters(&self, closed: &Survey) -> Result<(), ChangeError> {
        let within = CARRIED + self.wait();
        let read = self.order(&ChangeOrder::Counters(within)).await;
        let enough = self.old_only().is_met_by(closed.closed_until(&read));
        none(read.unless(
            enough,
            "no majority of the old masters is closed and listed its fencing counters: run the step close again",
        ))?;
        none(Vec::from_iter(
            read.clocks_apart(self.redlock.core.options.max_ttl),
        ))?;
        let largest = read.largest();
        if largest.is_empty() {
            return Ok(());
        }
        let counters: Arc<[Counter]> = largest.into_iter().collect();
        let written = self.order(&ChangeOrder::Carry(counters)).await;
        let enough = self.next_only().is_met_by(written.well());
        none(written.unless(
            enough,
            "no majority of the next masters accepted the fencing counters: run the step open again",
        ))?;
        none(written.held_by_owners())
    }

    fn old_only(&self) -> Quorum {
        self.redlock.core.coordinator.quorum.old_only()
    }

    fn next_only(&self) -> Quorum {
        self.redlock.core.coordinator.quorum.next_only()
    }

    /// Raises the generation markers of all masters to this replacement's first marker number plus `by`. All masters
    /// had a marker before. If a master has none now, it has lost its marker, and the marker is restored.
    async fn raise(&self, by: u64) -> Survey {
        self.raise_where(by, |_| true).await
    }

    /// Raises the generation markers of all masters to this replacement's first marker number plus `by`. `restores`
    /// gets the index of a master and returns whether this master, if it has no marker, has lost one. A lost marker is
    /// restored; otherwise the master gets its first marker.
    async fn raise_where(&self, by: u64, restores: impl Fn(usize) -> bool) -> Survey {
        let number = self.configuration.first_marker() + by;
        let Some(print) = self.configuration.print_at(number) else {
            return self.look().await;
        };
        let print: Arc<str> = print.to_string().into();
        let order = |index| ChangeOrder::Raise {
            number,
            print: print.clone(),
            step: number.div_ceil(2),
            restores: restores(index),
        };
        let survey = self.order_each(order).await;
        Survey {
            closed_at: (by > 0).then(|| self.now()),
            ..survey
        }
    }

    fn now(&self) -> Instant {
        self.redlock.core.coordinator.now()
    }

    async fn order(&self, order: &ChangeOrder) -> Survey {
        self.order_each(|_| order.clone()).await
    }

    async fn order_each(&self, order: impl Fn(usize) -> ChangeOrder) -> Survey {
        let coordinator = &self.redlock.core.coordinator;
        let asked = coordinator
            .nodes()
            .iter()
            .enumerate()
            .map(|(index, node)| node.change(order(index)));
        let seen = futures::future::join_all(asked).await;
        let quorum = coordinator.quorum;
        let masters = coordinator.names().zip(seen).enumerate();
        let masters =
            masters.map(
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

/// Returns an error with these lines, each only once, if there are any.
fn none(mut missing: Vec<String>) -> Result<(), ChangeError> {
    let mut known = BTreeSet::new();
    missing.retain(|line| known.insert(line.clone()));
    if missing.is_empty() {
        Ok(())
    } else {
        Err(ChangeError::Missing(missing))
    }
}

impl MasterSeen {
    fn marker(&self) -> Option<Marker> {
        Marker::read(self.seen.mark.as_ref()?.as_bytes())
    }

    /// Whether the master answered, but the operator's user lacks a right that the steps of a replacement need
    /// ([`ChangeSeen::missing`]). No step is executed then.
    pub fn lacks_rights(&self) -> bool {
        !self.seen.missing.is_empty()
    }
}

impl Survey {
    /// The masters whose state satisfies `such`.
    fn those(&self, such: impl Fn(&MasterSeen) -> bool) -> MasterSet {
        let masters = self.masters.iter().enumerate();
        masters
            .filter(|(_, master)| such(master))
            .map(|(index, _)| index)
            .collect()
    }

    /// For each key of a fencing counter, the largest number that an old master reports.
    fn largest(&self) -> BTreeMap<Vec<u8>, u64> {
        let mut largest: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for master in self.masters.iter().filter(|master| master.is_old) {
            for (key, number) in &master.seen.counters {
                let known = largest.entry(key.clone()).or_default();
                *known = (*known).max(*number);
            }
        }
        largest
    }

    /// The masters whose generation marker belongs to this replacement and has a high enough number: at least this
    /// replacement's first marker number plus `by`.
    fn marked(&self, by: u64) -> MasterSet {
        let least = self.configuration.first_marker() + by;
        let ours = |marker: Marker| marker.number >= least && !self.is_of_others(marker);
        self.those(|master| master.marker().is_some_and(ours))
    }

    /// Whether any master of the same set (old or next) as the master at `index` has a marker of this replacement. If
    /// so, a master of that set without a marker has lost its marker.
    fn has_marker_like(&self, index: usize) -> bool {
        let (marked, is_old) = (self.marked(0), self.quorum.is_old(index));
        let mut masters = self.masters.iter().enumerate();
        masters.any(|(other, master)| master.is_old == is_old && marked.has(other))
    }

    /// Whether any master is open, so that it admits clients that know only the next masters.
    fn is_any_open(&self) -> bool {
        self.marked(2) != MasterSet::default()
    }

    /// Whether the marker was written for other masters than this configuration expects at the marker's number.
    fn is_of_others(&self, marker: Marker) -> bool {
        let ours = self.configuration.print_at(marker.number);
        ours.is_some_and(|ours| ours != marker.print)
    }

    /// Whether the marker belongs to a later replacement of the masters than this one.
    fn is_later(&self, marker: Marker) -> bool {
        let unknown = self.configuration.print_at(marker.number).is_none();
        unknown && marker.number >= self.configuration.first_marker()
    }

    /// How far the replacement has come, according to the generation markers on majorities of the masters.
    pub fn stage(&self) -> ChangeStage {
        let [old, next] = [self.quorum.old_only(), self.quorum.next_only()];
        if next.is_met_by(self.marked(4)) {
            ChangeStage::Finished
        } else if next.is_met_by(self.marked(2)) {
            ChangeStage::Open
        } else if old.is_met_by(self.marked(1)) {
            ChangeStage::Closed
        } else if self.marked(1) != MasterSet::default() {
            ChangeStage::PartlyClosed
        } else if self.quorum.is_met_by(self.marked(0)) {
            ChangeStage::Begun
        } else {
            ChangeStage::Untouched
        }
    }

    /// Whether a majority of the old masters has a generation marker with this number or a larger one.
    fn is_open_for(&self, number: u64) -> bool {
        let marked = self.those(|master| {
            master
                .marker()
                .is_some_and(|marker| marker.number >= number)
        });
        self.quorum.old_only().is_met_by(marked)
    }

    /// The masters that are closed both in this survey and in the later survey `now`, and whose server process has not
    /// restarted between the two surveys.
    fn closed_until(&self, now: &Self) -> MasterSet {
        let closed = self.marked(1);
        let still = now.marked(1);
        let same = |index: &usize| {
            let run = |survey: &Self| survey.masters.get(*index)?.seen.run_id.clone();
            run(self).is_some() && run(self) == run(now)
        };
        let both = (0..self.masters.len()).filter(|index| closed.has(*index) && still.has(*index));
        both.filter(same).collect()
    }

    /// The keys of all locks under which any master stores a value (quota or once-per-period record).
    fn names(&self) -> Vec<Vec<u8>> {
        let names = self.masters.iter().flat_map(|master| &master.seen.names);
        let names: BTreeSet<&Vec<u8>> = names.collect();
        names.into_iter().cloned().collect()
    }

    /// One line for each fencing counter that no majority of the next masters could raise, because an owner holds its
    /// lock.
    fn held_by_owners(&self) -> Vec<String> {
        let owned = self.masters.iter().flat_map(|master| &master.seen.owned);
        let owned: BTreeMap<&Vec<u8>, &Vec<u8>> = owned.map(|(key, owner)| (key, owner)).collect();
        let left = owned.into_iter().filter(|(key, _)| {
            let took = |master: &MasterSeen| {
                let mut owned = master.seen.owned.iter();
                master.seen.fault.is_none() && !owned.any(|(other, _)| other == *key)
            };
            !self.quorum.next_only().is_met_by(self.those(took))
        });
        let line = |(key, owner): (&Vec<u8>, &Vec<u8>)| {
            let without = |text: &[u8], before: &str| {
                let rest = text.strip_prefix(before.as_bytes()).unwrap_or(text);
                String::from_utf8_lossy(rest).into_owned()
            };
            format!(
                "{:?}: the owner {:?} holds this lock, and the fencing number of this hold would change: run the step \
                 open again when the owner has released the lock",
                without(key, Family::Fence.before()),
                without(owner, OWNER)
            )
        };
        left.map(line).collect()
    }

    /// The masters that answered all requests.
    fn well(&self) -> MasterSet {
        self.those(|master| master.seen.fault.is_none())
    }

    /// Returns no lines if `so` is true. Otherwise returns the line `missing`, and one line for each fault of a master,
    /// because the faults may be the cause.
    fn unless(&self, so: bool, missing: &str) -> Vec<String> {
        if so {
            return Vec::new();
        }
        let mut missing = vec![missing.to_owned()];
        missing.extend(self.faults());
        missing
    }

    /// One line for each master that could not be asked, or did not answer every request.
    pub fn faults(&self) -> Vec<String> {
        self.faults_of(|_| true)
    }

    fn faults_of(&self, such: impl Fn(&MasterSeen) -> bool) -> Vec<String> {
        let masters = self.masters.iter().filter(|master| such(master));
        let faults = masters.filter_map(|master| {
            let fault: &Fault = master.seen.fault.as_ref()?;
            Some(format!("{}: {fault}", master.node))
        });
        faults.collect()
    }

    /// The reasons why no step may be executed, one line each: markers that do not belong to this replacement, servers
    /// that are named as two masters, and masters whose user lacks a right. A step that finds a missing right only when
    /// it writes would be half done.
    fn obstacles(&self) -> Vec<String> {
        let mut missing = self.faults_of(MasterSeen::lacks_rights);
        for (index, master) in self.masters.iter().enumerate() {
            let node = &master.node;
            if let (Some(text), None) = (&master.seen.mark, master.marker()) {
                missing.push(format!(
                    "{node}: key quorate:masters holds {text:?}, which is not a generation marker: remove it if it is not yours"
                ));
            }
            if let Some(marker) = master.marker()
                && (self.is_of_others(marker) || self.is_later(marker))
            {
                missing.push(format!(
                    "{node}: its generation marker {marker} belongs to other masters: compare masters, next_masters and \
                     masters_generation with the settings of the replacement that wrote this marker"
                ));
            }
            let run = master.seen.run_id.as_ref();
            let twin = |other: &&MasterSeen| run.is_some() && other.seen.run_id.as_ref() == run;
            if let Some(other) = self.masters[..index].iter().find(twin) {
                missing.push(format!(
                    "{node} is the same server as {}: name each server once",
                    other.node
                ));
            }
        }
        missing
    }

    /// The reasons why the next masters cannot replace the old ones, one line each.
    fn unfit(&self, max_ttl: Duration) -> Vec<String> {
        let mut missing = Vec::new();
        let young = max_ttl + Duration::from_secs(1);
        for master in self.masters.iter().filter(|master| master.is_next) {
            let (node, seen) = (&master.node, &master.seen);
            if let Some(uptime) = seen.uptime.filter(|up| *up < young && !master.is_old) {
                missing.push(format!(
                    "{node} has been up for only {uptime:?}, but its votes count only after {young:?}: try again then"
                ));
            }
            if let Some(policy) = seen
                .eviction
                .as_ref()
                .filter(|policy| *policy != "noeviction")
            {
                missing.push(format!(
                    "{node} evicts keys ({policy}): set maxmemory-policy noeviction"
                ));
            }
        }
        missing.extend(self.clocks_apart(max_ttl));
        missing
    }

    /// One line if the masters' clocks differ too much. Then the numbers of the next masters might not rise above those
    /// of the old masters.
    fn clocks_apart(&self, max_ttl: Duration) -> Option<String> {
        let masters = self.masters.iter();
        let clocks = masters.filter_map(|master| master.seen.clock_offset_ms);
        let apart = clocks.clone().max()?.abs_diff(clocks.min()?);
        let apart = Duration::from_millis(apart);
        let allowed = max_ttl.saturating_sub(SLACK).max(Duration::from_secs(1));
        (apart > allowed).then(|| {
            format!(
                "the masters' clocks differ by {apart:?}, and at most {allowed:?} is allowed: synchronise them"
            )
        })
    }

    /// One line for each client that is configured with other masters. The masters reject such a client once they have
    /// the generation marker.
    fn clients_of_other_masters(&self) -> Vec<String> {
        let configuration = self.configuration;
        let mut missing = Vec::new();
        for master in &self.masters {
            for client in &master.seen.clients {
                if let ClientKind::AtStep(step, print) = client.kind
                    && configuration
                        .tagged(step)
                        .is_some_and(|ours| ours.number() != print)
                {
                    missing.push(format!(
                        "{}: {} at {} is configured with other masters, or with other names for them: configure \
                         that client with the hosts and ports that are named here",
                        master.node, client.name, client.address
                    ));
                }
            }
        }
        missing
    }

    /// One line for each client of the old masters that does not check the generation marker, so that it cannot learn
    /// of the replacement. The next step is not safe while such a client is connected.
    fn clients_without_notice(&self, strangers_pass: bool) -> Vec<String> {
        let mut missing = Vec::new();
        for master in self.masters.iter().filter(|master| master.is_old) {
            let unaware = master
                .seen
                .clients
                .iter()
                .filter(|client| match client.kind {
                    ClientKind::AtStep(..) => false,
                    ClientKind::Untold => true,
                    ClientKind::Stranger => !strangers_pass,
                });
            for client in unaware {
                missing.push(format!(
                    "{}: {} at {} takes locks but does not check the generation marker: stop that client, or revoke its rights",
                    master.node,
                    if client.name.is_empty() { "a client without a name" } else { &client.name },
                    client.address
                ));
            }
        }
        missing
    }

    /// Whether next masters are configured, so that a replacement is in progress or planned.
    pub fn is_change(&self) -> bool {
        self.configuration.has_next()
    }

    /// Whether this client cannot get a majority, because too many masters reject its configuration. A master rejects
    /// it for one of two reasons: the client still uses masters that have been replaced, or it already uses the masters
    /// that replace them, and `open` has not opened these yet.
    pub fn refuses(&self) -> bool {
        let refused = self.those(|master| {
            let admission = self.configuration.admission(master.marker());
            master.seen.fault.is_none() && admission != Admission::Admitted
        });
        !self.quorum.possible_without(refused)
    }

    /// Advice for the operator. A step is executed even if there is advice.
    pub fn advice(&self) -> &[String] {
        &self.advice
    }

    /// One line for each next master that already stores values (quotas and once-per-period records), before this step
    /// copies any.
    fn holding_values(&self) -> Vec<String> {
        let next = self.masters.iter();
        let next = next.filter(|master| master.is_next && !master.is_old && master.seen.values > 0);
        let advice = next.map(|master| {
            format!(
                "{} holds {} values (quota, once): the step open copies the values of the old masters to it and removes all \
                 others; empty the server now if it was used before",
                master.node, master.seen.values
            )
        });
        advice.collect()
    }
}
