//! The promises of a value under a lock (docs/protocol.md, "Values under a lock"). A value is a quota (units that clients
//! take), or a record of the last period (for example a day) whose work was done.
//!
//! - A quota hands out each of its units at most once, and no other units.
//! - The work of a period starts at most once.
//! - The number of remaining units that a call reports agrees with the earlier calls. A take is refused only if fewer
//!   units are left than it asks for.
//! - A quota that was reported as lost hands out no units. The same rule applies to the work of a period.
//! - No value is lost unless a master restarts.
//! - A value is created a second time only after its removal, or after a majority of the masters has lost data.

use std::collections::{HashMap, HashSet};

use crate::history::{
    Assumption, Breach, Event, Moment, Party, Promise, ValueCall, ValueEvent, ValueResult,
};

/// The checker of the promises of values.
#[derive(Debug, Default)]
pub struct Values {
    by_place: HashMap<u64, Value>,
    masters: Masters,
    /// The numbers of calls that took units, that found too few units, and that found no value.
    answers: [u64; 3],
}

/// The facts that are known about the masters.
#[derive(Clone, Copy, Debug, Default)]
struct Masters {
    /// The smallest number of masters with lost data after which a client may create a value a second time; `None` if the
    /// history is incomplete.
    majority: Option<usize>,
    /// Whether any master has restarted. Before the first restart, no value may be lost.
    restarted: bool,
}

/// One value.
#[derive(Debug, Default)]
struct Value {
    /// By task: its current call.
    calls: HashMap<u64, Call>,
    /// The number of units with which the quota was created.
    units: u64,
    /// The largest number of units that clients may have taken: the units requested by all calls, except calls that
    /// certainly took none.
    requested_units: u64,
    /// The smallest number of units that a call has reported as left.
    fewest_left: Option<u64>,
    /// The task that took each unit. Units are numbered from zero.
    takers: HashMap<u64, Party>,
    /// The task that did the work of each period. A period is named by the bytes that the client wrote into the record.
    workers: HashMap<Vec<u8>, Party>,
    /// The bytes that some master has stored, by fencing token.
    stored: HashMap<u64, Vec<u8>>,
    /// If the value was reported as lost: the order of the first report, and the smallest step of a client that received
    /// a report. A later call at this or a later step must take no units and start no work.
    lost: Option<(u64, u8)>,
    created_at: Option<u64>,
    /// The masters that have lost data since the value was created.
    forgetful_masters: HashSet<u64>,
    /// Whether the value was removed, and no client has begun to create a new value since.
    is_removed: bool,
    /// When the last removal ended. A call that began before may still report the removed value.
    removal_ended_at: u64,
    /// The number of removals that have not returned yet, or whose result is uncertain.
    open_removals: usize,
    /// The fencing token under which the last confirmed removal was written.
    removal_token: Option<u64>,
    /// The largest fencing token of a write that creates the value.
    creation_token: Option<u64>,
    judged: u64,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    verb: ValueCall,
    caller: Party,
    began: Moment,
    step: u8,
    /// The smallest number of units that had been reported as left when the call began.
    fewest_before: Option<u64>,
    /// If the call creates a quota: the number of units of the earlier quota; 0 if there was none.
    earlier_units: u64,
    /// The fencing token under which the call writes; `None` until the call sends a write.
    token: Option<u64>,
}

impl Call {
    fn creates(&self) -> bool {
        matches!(self.verb, ValueCall::Create(_))
    }

    /// The number of units that the call takes from the quota.
    fn units(&self) -> u64 {
        match self.verb {
            ValueCall::Take(units) => units,
            _ => 0,
        }
    }
}

/// The text of a breach, and the earlier call that took part in it. In the text, the caller is the last party.
type Judged = Result<(), (String, Option<Party>)>;

fn breach(text: String) -> Judged {
    Err((text, None))
}

impl Value {
    fn begin(&mut self, task: u64, mut call: Call) {
        match call.verb {
            ValueCall::Create(units) => {
                let running_creation = self.calls.values().find(|call| call.creates());
                call.earlier_units =
                    running_creation.map_or(self.units, |creation| creation.earlier_units);
                // A creation fails if there is a value already, so it does not change the number of units.
                if self.created_at.is_none() {
                    self.units = units;
                }
                self.is_removed = false;
            }
            ValueCall::Take(units) => self.requested_units += units,
            ValueCall::Remove => {
                self.open_removals += 1;
                // While this removal runs, a call may or may not find the value. So forget earlier reports.
                self.lost = None;
                self.created_at = None;
            }
            ValueCall::ReadUnits | ValueCall::Work => {}
        }
        self.calls.insert(task, call);
    }

    /// Records the fencing token under which the call of a task writes. If a creation has a larger token than the last
    /// removal, there is a value again.
    fn write(&mut self, task: u64, token: u64) {
        let Some(call) = self.calls.get_mut(&task) else {
            return;
        };
        call.token = Some(token);
        if call.creates() {
            self.creation_token = self.creation_token.max(Some(token));
            if self.removal_token.is_some_and(|removal| removal < token) {
                self.is_removed = false;
            }
        }
    }

    /// Records that a removal has returned: the old value is gone from every master. If a creation has a larger fencing
    /// token than the removal, the creation came later, and its value stays.
    fn remove(&mut self, now: u64, removal: Call) {
        self.judged += 1;
        let token = removal.token.unwrap_or(u64::MAX);
        self.removal_token = Some(token);
        self.forget();
        if self.creation_token <= Some(token) {
            self.requested_units = self.calls.values().map(Call::units).sum();
            self.is_removed |= !self.calls.values().any(Call::creates);
        }
        let is_removal = |call: &&Call| call.verb == ValueCall::Remove;
        self.open_removals = self.calls.values().filter(is_removal).count();
        self.removal_ended_at = now;
    }

    /// Forgets which units were taken and which work was done with an earlier value. The calls that are running may use
    /// the earlier or the new value.
    fn forget(&mut self) {
        self.takers.clear();
        self.workers.clear();
        self.lost = None;
        self.fewest_left = None;
        for call in self.calls.values_mut() {
            call.fewest_before = None;
        }
    }

    /// Updates the number of units when a creation has returned. If several clients create a quota at the same time, at
    /// most one call succeeds.
    fn learn_units(&mut self, call: Call, result: ValueResult) {
        match (call.verb, result) {
            (ValueCall::Create(units), ValueResult::Created) => {
                self.units = units;
                for other in self.calls.values_mut().filter(|other| other.creates()) {
                    other.earlier_units = units;
                }
            }
            (ValueCall::Create(_), ValueResult::NotChanged) if call.earlier_units > 0 => {
                self.units = call.earlier_units;
            }
            _ => {}
        }
    }

    fn finish(&mut self, now: u64, call: Call, result: ValueResult, masters: Masters) -> Judged {
        use ValueResult::{Created, Lost, NotChanged, Removed, Taken, UnitsLeft, WorkDue};
        if result == Removed {
            self.remove(now, call);
            return Ok(());
        }
        if matches!(result, NotChanged | Lost | UnitsLeft(_)) {
            self.requested_units = self.requested_units.saturating_sub(call.units());
        }
        self.learn_units(call, result);
        let may_be_removed = self.open_removals > 0 || self.removal_ended_at > call.began.order;
        if may_be_removed || self.calls.values().any(Call::creates) {
            return Ok(());
        }
        self.check_exists(call, result)?;
        match result {
            Created => self.check_creation(now, call, masters),
            Lost if call.step.is_multiple_of(2) && self.was_created_before(call) => {
                self.judged += 1;
                if !masters.restarted {
                    return breach(
                        "$0 gets Lost for the value $place, although no master has restarted"
                            .to_owned(),
                    );
                }
                let report = self.lost.get_or_insert((now, call.step));
                report.1 = report.1.min(call.step);
                Ok(())
            }
            Taken(left) => {
                self.report_left(left);
                self.check_taken_units(left..left + call.units(), call.caller)?;
                self.check_left(call, left + call.units(), masters)
            }
            UnitsLeft(left) => {
                self.report_left(left);
                if call.units() > 0 && call.units() <= left {
                    return breach(format!(
                        "$0 gets no unit of the quota $place, although {left} units are left"
                    ));
                }
                self.check_left(call, left, masters)
            }
            WorkDue(token) => self.check_work(token, call.caller),
            _ => Ok(()),
        }
    }

    /// Checks that the value was neither removed nor lost before a call that found it.
    fn check_exists(&self, call: Call, result: ValueResult) -> Judged {
        use ValueResult::{AlreadyDone, Taken, UnitsLeft, WorkDue};
        let hands_out = matches!(result, Taken(_) | WorkDue(_));
        if self.is_removed && (hands_out || matches!(result, UnitsLeft(_) | AlreadyDone)) {
            return breach(format!(
                "$0 gets {result:?} for the value $place after its removal"
            ));
        }
        let is_later = |(order, step): (u64, u8)| order < call.began.order && step <= call.step;
        if hands_out && self.lost.is_some_and(is_later) {
            return breach(format!(
                "$0 gets {result:?} for the value $place, which was reported as lost before the call"
            ));
        }
        Ok(())
    }

    fn report_left(&mut self, left: u64) {
        self.fewest_left = Some(self.fewest_left.map_or(left, |fewest| fewest.min(left)));
    }

    fn was_created_before(&self, call: Call) -> bool {
        self.created_at
            .is_some_and(|created_at| created_at < call.began.order)
    }

    /// Checks that a majority of the masters has lost the value that a client creates a second time. Such a creation is
    /// the decision of an operator, who then begins with a new value.
    fn check_creation(&mut self, now: u64, call: Call, masters: Masters) -> Judged {
        if self.was_created_before(call) {
            self.judged += 1;
            let forgetful = self.forgetful_masters.len();
            if masters
                .majority
                .is_some_and(|majority| forgetful < majority)
            {
                return breach(format!(
                    "$0 creates the value $place a second time, although only {forgetful} masters have lost data since \
                     it was created"
                ));
            }
            self.forget();
        }
        self.created_at = Some(now);
        self.forgetful_masters.clear();
        Ok(())
    }

    /// Checks that each unit that a call has taken exists and was not taken before.
    fn check_taken_units(&mut self, taken: std::ops::Range<u64>, caller: Party) -> Judged {
        self.judged += 1;
        for unit in taken {
            if unit >= self.units {
                return breach(format!(
                    "$0 took a unit of the quota $place and {unit} units were left, but the quota was created with only \
                     {} units",
                    self.units
                ));
            }
            if let Some(other) = self.takers.insert(unit, caller) {
                let text = format!(
                    "$0 and $1 took the same unit of the quota $place: after each take, {unit} units were left"
                );
                return Err((text, Some(other)));
            }
        }
        Ok(())
    }

    /// Checks that the number of units that a call found agrees with the earlier calls.
    fn check_left(&mut self, call: Call, left: u64, masters: Masters) -> Judged {
        self.judged += 1;
        let fewest_before = call.fewest_before.unwrap_or(self.units);
        let largest = self.units.min(fewest_before);
        let smallest = masters
            .majority
            .map_or(0, |_| self.units.saturating_sub(self.requested_units));
        if left > largest || left < smallest {
            return breach(format!(
                "$0 finds {left} units left of $place, but only {smallest} to {largest} are possible (created: {}; left \
                 before this call: {fewest_before}; requested by all calls: {})",
                self.units, self.requested_units
            ));
        }
        Ok(())
    }

    /// Checks that no client has done the work of this period before.
    fn check_work(&mut self, token: u64, caller: Party) -> Judged {
        self.judged += 1;
        let Some(period) = self.stored.get(&token) else {
            return breach(format!(
                "$0 runs the once job $place under the fencing token {token}, but no master has a record with this token"
            ));
        };
        match self.workers.insert(period.clone(), caller) {
            None => Ok(()),
            Some(other) => {
                let period = String::from_utf8_lossy(period);
                let text =
                    format!("$0 and $1 both run the once job $place in the period {period:?}");
                Err((text, Some(other)))
            }
        }
    }
}

impl Values {
    /// The checker for a complete history: it contains every call and every restart of a master. A client may create a
    /// value a second time if at least `majority` masters have lost data. In an incomplete history
    /// ([`default`](Self::default)), units may be gone that no call has taken, and values may be created again.
    pub fn complete(majority: usize) -> Self {
        let mut values = Self::default();
        values.masters.majority = Some(majority);
        values
    }

    fn finish(
        &mut self,
        now: Moment,
        task: u64,
        place: u64,
        result: ValueResult,
    ) -> Option<Breach> {
        let value = self.by_place.get_mut(&place)?;
        let call = value.calls.remove(&task)?;
        match result {
            ValueResult::Taken(_) => self.answers[0] += 1,
            ValueResult::UnitsLeft(_) => self.answers[1] += 1,
            ValueResult::Lost => self.answers[2] += 1,
            _ => {}
        }
        let judged = value.finish(now.order, call, result, self.masters);
        let (text, other) = judged.err()?;
        Some(Breach {
            from: call.began.time,
            to: now.time,
            place: Some(place),
            parties: other.into_iter().chain([call.caller]).collect(),
            text,
            assumption: Assumption::Nothing,
        })
    }
}

impl Promise for Values {
    fn observe(&mut self, moment: Moment, event: &Event<'_>) -> Vec<Breach> {
        match *event {
            Event::Value { place, event } => match event {
                ValueEvent::Called {
                    task,
                    caller,
                    call: verb,
                    step,
                } => {
                    // A task makes one call at a time, so its last call is over even if it has not returned.
                    for value in self.by_place.values_mut() {
                        value.calls.remove(&task);
                    }
                    let value = self.by_place.entry(place).or_default();
                    let call = Call {
                        verb,
                        caller,
                        began: moment,
                        step,
                        fewest_before: value.fewest_left,
                        earlier_units: 0,
                        token: None,
                    };
                    value.begin(task, call);
                }
                ValueEvent::Written(task, token) => {
                    self.by_place.entry(place).or_default().write(task, token);
                }
                ValueEvent::Stored(token, bytes) => {
                    let value = self.by_place.entry(place).or_default();
                    value.stored.insert(token, bytes.to_vec());
                }
                ValueEvent::Returned(task, result) => {
                    let breach = self.finish(moment, task, place, result);
                    return breach.into_iter().collect();
                }
            },
            Event::MasterRestarted { master, lost_data } => {
                self.masters.restarted = true;
                let created = |value: &&mut Value| lost_data && value.created_at.is_some();
                for value in self.by_place.values_mut().filter(created) {
                    value.forgetful_masters.insert(master);
                }
            }
            _ => {}
        }
        Vec::new()
    }

    fn judged(&self) -> u64 {
        self.by_place.values().map(|value| value.judged).sum()
    }

    fn summary(&self) -> String {
        let [taken, refused, lost] = self.answers;
        let created = self.by_place.values().filter(|v| v.created_at.is_some());
        format!(
            "units taken {taken} times from {} quotas; {refused} attempts found too few units left; {lost} attempts found \
             no quota, because the masters had lost it",
            created.count()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::ValueCall::{Create, ReadUnits, Remove, Take, Work};
    use super::ValueResult::{Created, Lost, Removed, Taken, UnitsLeft, Unknown, WorkDue};
    use super::*;
    use crate::history::testing::breaches;

    /// A call of a task on resource 4: the task, when the call begins and ends, what it asks for, and its result.
    type Made = (u64, u64, u64, ValueCall, ValueResult);

    /// Plays `earlier` events and then calls. Task 1 creates a quota of three units at the time 1. Expects one breach
    /// whose text contains `expected`, or no breach if `expected` is empty.
    fn expect(expected: &str, earlier: &[Event<'_>], calls: &[Made]) {
        let value = |event| Event::Value { place: 4, event };
        let mut history: Vec<_> = earlier.iter().map(|event| (5, *event)).collect();
        for (task, from, to, call, result) in [(1, 1, 2, Create(3), Created)].iter().chain(calls) {
            let called = ValueEvent::Called {
                task: *task,
                caller: Party::Client(*task),
                call: *call,
                step: 0,
            };
            history.push((*from, value(called)));
            history.push((*to, value(ValueEvent::Returned(*task, *result))));
        }
        history.sort_by_key(|(time, _)| *time);
        let texts = breaches(&mut Values::complete(2), &history);
        let is_expected = match &texts[..] {
            [] => expected.is_empty(),
            [text] => !expected.is_empty() && text.contains(expected),
            _ => false,
        };
        assert!(is_expected, "{calls:?}: {texts:?} must be {expected:?}");
    }

    #[test]
    fn units_that_do_not_agree_with_earlier_calls_are_reported() {
        let first = (1, 10, 20, Take(1), Taken(2));
        let second = |from, call, result| [first, (2, from, 30, call, result)];
        expect("", &[], &second(25, Take(1), Taken(1)));
        expect("", &[], &second(25, ReadUnits, UnitsLeft(2)));
        // The two calls overlap, so the one that ends later may have taken its unit first.
        let overlapping = [
            (1, 10, 40, Take(1), Taken(2)),
            (2, 10, 20, Take(1), Taken(1)),
        ];
        expect("", &[], &overlapping);
        expect(
            "c1 and c2 took the same unit of the quota r4",
            &[],
            &second(15, Take(1), Taken(2)),
        );
        expect(
            "created with only 3 units",
            &[],
            &second(15, Take(1), Taken(3)),
        );
        expect("c2 gets no unit", &[], &second(25, Take(1), UnitsLeft(1)));
        expect(
            "c2 finds 3 units",
            &[],
            &second(25, ReadUnits, UnitsLeft(3)),
        );
        expect(
            "c2 finds 1 units",
            &[],
            &second(25, ReadUnits, UnitsLeft(1)),
        );
        // The result of the first call is unknown, but the second call shows that it has taken a unit.
        let unknown = (1, 10, 20, Take(1), Unknown);
        let read = (2, 25, 30, ReadUnits, UnitsLeft(2));
        expect("", &[], &[unknown, read, (3, 35, 40, Take(1), Taken(1))]);
        expect(
            "c3 finds 3 units",
            &[],
            &[unknown, read, (3, 35, 40, Take(1), Taken(2))],
        );
    }

    #[test]
    fn lost_and_removed_values_hand_out_nothing_and_a_second_creation_needs_a_cause() {
        let [one, two] = [1, 2].map(|master| Event::MasterRestarted {
            master,
            lost_data: true,
        });
        let lost = (1, 10, 15, Take(1), Lost);
        let taken = (2, 30, 35, Take(1), Taken(2));
        expect("although no master has restarted", &[], &[lost]);
        expect("", &[one], &[lost]);
        expect("reported as lost before the call", &[one], &[lost, taken]);
        let removed = (1, 10, 15, Remove, Removed);
        let again = (1, 20, 25, Create(3), Created);
        expect("after its removal", &[], &[removed, taken]);
        expect("", &[], &[removed, (2, 14, 18, Take(1), Taken(2))]);
        expect("", &[], &[removed, again, taken]);
        expect("creates the value r4 a second time", &[one], &[again]);
        expect(
            "",
            &[one, two],
            &[(3, 10, 15, Take(1), Taken(2)), again, taken],
        );
    }

    #[test]
    fn work_of_a_period_that_starts_twice_or_is_recorded_nowhere_is_reported() {
        let [monday, tuesday, monday_again]: [(u64, &[u8]); 3] =
            [(7, b"monday"), (8, b"tuesday"), (8, b"monday")];
        let stored = |(token, bytes)| Event::Value {
            place: 4,
            event: ValueEvent::Stored(token, bytes),
        };
        let calls = [(1, 10, 15, Work, WorkDue(7)), (2, 20, 25, Work, WorkDue(8))];
        expect("", &[stored(monday), stored(tuesday)], &calls);
        let twice = "c1 and c2 both run the once job r4 in the period \"monday\"";
        expect(twice, &[stored(monday), stored(monday_again)], &calls);
        expect("no master has a record", &[stored(monday)], &calls);
    }
}
