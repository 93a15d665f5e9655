//! The generation markers of the masters. A master's marker decides for which clients the master votes.
//!
//! If restarts remove too many markers, the library promises nothing. The checkers then stop checking exclusion,
//! fencing tokens and values.

use quorate::Redlock;
use quorate::node::Request;
use quorate::testing::server_half::bulk;

use super::arguments::{as_text, parse_number};
use super::master::SimMaster;
use super::{Event, World};
use crate::change_plan::{ChangePlan, ClientMasters, Sets, admits_step, is_majority};
use crate::clock::{MS, RUN_START};
use crate::facts::LockState;
use crate::flaw::Flaw;
use crate::locker::{PLACES, key_of_place};

/// The key of the generation marker.
pub(super) const MARKER_KEY: &[u8] = b"quorate:masters";

/// The interval at which the simulated administrator restores lost generation markers: 500 ms, in nanoseconds.
const RESTORE_INTERVAL: u64 = 500 * MS;

/// The check of the generation marker at the beginning of a script. If the check fails, the script does not vote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MarkerCheck {
    /// Whether the script refuses to vote if the master has no generation marker.
    is_marker_required: bool,
    /// The generation markers with which the master may vote. With any other marker the script refuses.
    accepted_markers: Vec<String>,
}

impl MarkerCheck {
    /// Parses the check in the first line of a script; `None` if this line checks no generation marker.
    fn parse(line: &str) -> Option<Self> {
        let conditions = line.strip_prefix(
            "local mark = redis.call('GET', 'quorate:masters') \
             mark = mark and string.match(mark, '^%d+ %x+') or mark if ",
        )?;
        let (condition, _) = conditions.split_once(" then ")?;
        let mut parts = condition.split(" and ");
        let is_marker_required = parts.next()? == "true";
        let marker_in = |part: &str| {
            Some(
                part.strip_prefix("mark ~= '")?
                    .strip_suffix('\'')?
                    .to_owned(),
            )
        };
        Some(Self {
            is_marker_required,
            accepted_markers: parts.map(marker_in).collect::<Option<_>>()?,
        })
    }

    fn accepts(&self, marker: Option<&str>) -> bool {
        marker.map_or(!self.is_marker_required, |marker| {
            self.accepted_markers
                .iter()
                .any(|accepted| accepted == marker)
        })
    }
}

impl MarkerCheck {
    /// For the seeded bug `ClosingOpens`: whether the master with this marker would accept the script after the
    /// operator opens the next masters, but not yet.
    fn accepts_after_open(&self, marker: Option<&str>) -> bool {
        let marker_number = number_in_marker(marker);
        let is_next = |accepted: &String| number_in_marker(Some(accepted)) == marker_number + 1;
        marker_number % 4 == 1 && self.accepted_markers.iter().any(is_next)
    }
}

/// Returns which check of the generation marker a script contains, as an index into `World::marker_checks`. The
/// script's simulated SHA begins with this index.
pub(super) fn marker_check_in_sha(sha: &[u8]) -> usize {
    sha.first_chunk::<38>()
        .map_or(0, |digits| parse_number(digits) as usize)
}

/// Returns the generation number in a marker; zero without a marker.
pub(super) fn number_in_marker(marker: Option<&str>) -> u64 {
    marker
        .and_then(|marker| marker.split(' ').next()?.parse().ok())
        .unwrap_or(0)
}

impl SimMaster {
    pub(super) fn marker(&self, now_us: u64) -> Option<&str> {
        self.memory.peek(now_us, MARKER_KEY).holder.map(as_text)
    }

    pub(super) fn set_marker(&mut self, now_us: u64, marker: &str) {
        (self.memory).put_text(now_us, MARKER_KEY, marker.as_bytes(), None);
    }

    /// Records that the master has loaded the script with the index `script`. `marker_check` is the index of the
    /// generation marker check in this script.
    pub(super) fn record_loaded_script(&mut self, marker_check: usize, script: usize) {
        if self.scripts.len() <= marker_check {
            self.scripts.resize(marker_check + 1, 0);
        }
        self.scripts[marker_check] |= 1 << script;
    }

    pub(super) fn has_loaded_script(&self, marker_check: usize, script: usize) -> bool {
        self.scripts
            .get(marker_check)
            .is_some_and(|scripts| scripts >> script & 1 == 1)
    }
}

impl World {
    /// Called when a client process connects. The client takes its next step in the replacement of masters. Returns the
    /// masters of this step.
    pub(crate) fn start_next_step(&mut self, client: usize) -> ClientMasters {
        let process = &mut self.processes[client];
        let is_changed = process.present_step != process.next_step;
        self.observer.coverage.reconfigured += u64::from(is_changed);
        process.present_step = process.next_step;
        self.masters_at_step(self.processes[client].present_step)
    }

    /// Sets the step of a client (see `change_plan.rs`), for now and for its next start.
    pub(crate) fn set_step(&mut self, client: usize, step: u8) {
        let process = &mut self.processes[client];
        (process.next_step, process.present_step) = (step, step);
    }

    pub(super) fn masters_at_step(&self, step: u8) -> ClientMasters {
        match &self.scenario.change {
            Some(plan) if self.replaces_without_operator() => plan.masters_without_operator(step),
            _ => self.scenario.masters_at(step),
        }
    }

    /// Whether the run has a seeded bug with which a master is replaced without an operator.
    fn replaces_without_operator(&self) -> bool {
        let plan = self.scenario.change.as_ref();
        self.flaw.is_some_and(Flaw::replaces_without_operator)
            && plan.is_some_and(|plan| plan.only_replaced_master().is_some())
    }

    /// The present step of a client in the replacement of masters.
    pub(crate) fn step_of(&self, client: usize) -> u8 {
        self.processes[client].present_step
    }

    /// Returns the client's sets of masters. The client needs a majority of each set. Call this function once for each
    /// obtained hold, because it also counts the holds that are obtained during or after a replacement.
    pub(crate) fn sets_of_new_hold(&mut self, client: usize) -> Sets {
        let step = self.processes[client].present_step;
        let coverage = &mut self.observer.coverage;
        coverage.joint_holds += u64::from(step % 2 == 1);
        coverage.holds_after_replacement += u64::from(step > 1);
        self.masters_at_step(step).sets()
    }

    /// Restarts a client at step `step` (see `change_plan.rs`).
    ///
    /// Some seeded bugs replace a master without an operator. With these bugs, the first call crashes the replaced
    /// master. With `DeadComesBack`, the client restarts only after this master has started again.
    pub(super) fn reconfigure_client(&mut self, fault: u32, (client, step): (u8, u8), down: u64) {
        let (now, plan) = (self.now, self.scenario.change.as_ref());
        if self.replaces_without_operator()
            && step > 0
            && let Some(dead) = plan.and_then(ChangePlan::only_replaced_master)
        {
            let comes_back = self.flaw == Some(Flaw::DeadComesBack);
            let wait = if comes_back {
                self.scenario.settings.max_ttl / 50 * 51
            } else {
                0
            };
            let dead_since = *self.dead_since.get_or_insert(now);
            if dead_since == now {
                self.crash(dead, if comes_back { wait } else { u64::MAX / 4 });
            }
            if now < dead_since + wait {
                return self.schedule(dead_since + wait, Event::Fault(fault));
            }
        }
        self.processes[usize::from(client)].next_step = step;
        self.kill_process(client, down);
    }

    /// Only for the seeded bug `ExtendUnrefused`: the master refuses requests of outdated clients, but never an
    /// extension. Returns the error reply if the master refuses `request`, otherwise `None`.
    pub(super) fn refusal_except_of_extensions(
        &self,
        conn: usize,
        request: &Request,
    ) -> Option<String> {
        let master = &self.masters[self.conns[conn].master];
        let marker = master.marker(master.clock_us(self.now))?;
        let is_unmarked_client = self.conns[conn].name.starts_with("quorate/0/");
        let is_checked_vote = request.is_vote() && !matches!(request, Request::Extend { .. });
        let is_refused = self.flaw == Some(Flaw::ExtendUnrefused)
            && is_unmarked_client
            && is_checked_vote
            && number_in_marker(Some(marker)) > 0;
        is_refused.then(|| format!("-ERR quorate: masters {marker}\r\n"))
    }

    /// Whether a client may take its last lock of the run: all replacements of masters are complete, and the masters
    /// accept the client's configuration. If they reject it after the replacements, reconfigures the client.
    pub(crate) fn may_take_last_lock(&mut self, client: usize) -> bool {
        let Some(plan) = &self.scenario.change else {
            return true;
        };
        let step = self.processes[client].present_step;
        let is_admitted = admits_step(plan.goal, step);
        if self.are_changes_complete && !is_admitted {
            self.schedule(self.now, Event::LastReconfiguration(client as u8));
        }
        self.are_changes_complete && is_admitted
    }

    /// Restores lost generation markers, as an administrator would do. Called when the faults have ended, and then
    /// repeatedly, because a master may start again later without its marker.
    pub(super) fn restore_lost_markers(&mut self) {
        let unfinished_clients = self
            .processes
            .iter()
            .enumerate()
            .filter(|(client, process)| !process.is_done && !self.scenario.is_operator(*client));
        let steps: Vec<u8> = unfinished_clients
            .map(|(_, process)| process.present_step)
            .collect();
        let goal = self.scenario.change.as_ref().map(|plan| plan.goal);
        for step in steps {
            if self.are_changes_complete && goal.is_some_and(|goal| admits_step(goal, step)) {
                self.write_lost_markers(step);
            }
        }
        self.schedule(self.now + RESTORE_INTERVAL, Event::RestoreMarkers);
    }

    /// Writes lost generation markers, as an administrator would do. Does nothing if clients at step `step` still get a
    /// majority, because these clients restore the markers themselves.
    fn write_lost_markers(&mut self, step: u8) {
        let is_marked = |master: &usize| {
            self.masters[*master].up && admits_step(self.marker_number(*master), step)
        };
        let marked_masters = (0..self.masters.len())
            .filter(is_marked)
            .fold(0, |masters, master| masters | 1 << master);
        let Some(plan) = self.scenario.change.clone() else {
            return;
        };
        let configuration = plan.masters_at(step);
        if self.replaces_without_operator() || is_majority(marked_masters, configuration.sets()) {
            return;
        }
        let change = (plan.goal / 4).min(u64::from(plan.changes()) - 1) as u8;
        let settings = plan
            .masters_at(2 * change + 1)
            .configure(Redlock::builder());
        let Some(marker) = quorate::testing::mark(&settings, plan.goal) else {
            return;
        };
        for master in configuration.all_masters() {
            if self.masters[master].up && self.marker_number(master) < plan.goal {
                let now_us = self.masters[master].clock_us(self.now);
                self.start_age_record(master, false);
                self.masters[master].set_marker(now_us, &marker);
                self.record_marker(master, false);
                self.observer.coverage.markers_written_by_hand += 1;
                self.trace_line(|| {
                    format!(
                        "master {master}: the administrator writes this master's generation marker by hand: {marker}"
                    )
                });
                self.update_outdated_markers(master);
            }
        }
    }

    /// Writes the generation markers and fencing counters that the masters have at the beginning of the run.
    pub(super) fn write_initial_markers(&mut self) {
        let Some(plan) = self.scenario.change.clone() else {
            return;
        };
        if self.replaces_without_operator() {
            return;
        }
        self.observer.coverage.marked_runs += 1;
        self.schedule(RUN_START + self.scenario.heal_at, Event::RestoreMarkers);
        let initial_number = plan.initial_number.unwrap_or(0);
        let change = (initial_number / 4).min(u64::from(plan.changes()) - 1);
        let configuration = plan.masters_at(2 * change as u8 + 1);
        let marker = plan.initial_number.and_then(|number| {
            quorate::testing::mark(&configuration.configure(Redlock::builder()), number)
        });
        let old_masters = plan.masters_at(2 * change as u8).sets()[0];
        for master in configuration.all_masters() {
            let now_us = self.masters[master].clock_us(self.now);
            if let Some(marker) = &marker {
                self.start_age_record(master, false);
                self.masters[master].set_marker(now_us, marker);
                self.record_marker(master, false);
            }
            let has_counters = initial_number % 4 > 1 || old_masters >> master & 1 == 1;
            if let Some(ahead) = plan.counters_ahead_us.filter(|_| has_counters) {
                for place in 0..PLACES {
                    let memory = &mut self.masters[master].memory;
                    memory.carry(now_us, key_of_place(place as u8).as_bytes(), now_us + ahead);
                }
            }
            self.masters[master].record_all_lock_states(self.now);
            if let Some(history) = &mut self.observer.history {
                let states = self.masters[master].lock_states.map(LockState::to_model);
                history.record_beginning(self.now, master, &states);
            }
        }
    }

    /// Records in the history that a master has got a generation marker. `is_step` is true for a step of an operator.
    pub(super) fn record_marker(&mut self, index: usize, is_step: bool) {
        let number = self.marker_number(index);
        let clock_us = self.masters[index].clock_us(self.now);
        if let Some(history) = &mut self.observer.history {
            history.record_marker(self.now, (index, clock_us), (number, is_step));
        }
    }

    /// Called when an operator has completed all changes of the masters. From then on, clients may take their last lock
    /// of the run.
    pub(crate) fn record_changes_complete(&mut self) {
        self.are_changes_complete = true;
    }

    /// Restarts a client with the list of masters of its last planned step (`ChangePlan::steps`).
    pub(super) fn restart_with_last_masters(&mut self, client: usize) {
        let plan = self.scenario.change.as_ref();
        let Some((_, last_step)) = plan.and_then(|plan| plan.steps.get(client).copied()) else {
            return;
        };
        self.processes[client].next_step = last_step;
        self.trace_line(|| {
            format!(
                "client {client} restarts with its last planned list of masters (step {last_step})"
            )
        });
        self.kill_process(client as u8, 0);
    }

    /// Finds the check of the generation marker in the first line of a script. Returns the check's index in
    /// `World::marker_checks`; 0 if the line contains no check.
    pub(super) fn marker_check_index(&mut self, line: &[u8]) -> usize {
        let Some(check) = MarkerCheck::parse(as_text(line)) else {
            return 0;
        };
        if let Some(index) = self.marker_checks.iter().position(|known| *known == check) {
            return index;
        }
        self.marker_checks.push(check);
        self.marker_checks.len() - 1
    }

    /// Returns the error reply if a script's check of the generation marker rejects this connection's client; otherwise
    /// `None`. `marker_check` is the check's index in `World::marker_checks`; 0 if the script has no check.
    pub(super) fn refusal_by_marker(&self, conn: usize, marker_check: usize) -> Option<String> {
        if marker_check == 0 || self.flaw == Some(Flaw::MarkersIgnored) {
            return None;
        }
        let master = &self.masters[self.conns[conn].master];
        let marker = master.marker(master.clock_us(self.now));
        let check = &self.marker_checks[marker_check];
        let opens_early = self.flaw == Some(Flaw::ClosingOpens) && check.accepts_after_open(marker);
        let is_refused = !check.accepts(marker) && !opens_early;
        is_refused.then(|| format!("-ERR quorate: masters {}\r\n", marker.unwrap_or("-")))
    }

    /// Writes the reply to a client that reads the generation marker: the marker, or null if the master has none.
    pub(super) fn reply_with_marker(&self, conn: usize, out: &mut Vec<u8>) {
        let master = &self.masters[self.conns[conn].master];
        let is_hidden = match self.flaw {
            Some(Flaw::MarkersIgnored) => true,
            Some(Flaw::ExtendUnrefused) => self.conns[conn].name.starts_with("quorate/0/"),
            _ => false,
        };
        let marker = master
            .marker(master.clock_us(self.now))
            .filter(|_| !is_hidden);
        bulk(marker.map(str::as_bytes), out);
    }

    /// Called when a client has restored the lost generation marker of a master.
    pub(super) fn report_restored_marker(&mut self, index: usize, marker: &str) {
        self.observer.coverage.restored_markers += 1;
        self.record_marker(index, false);
        self.trace_line(|| {
            format!("master {index}: a client restores the generation marker: {marker}")
        });
        self.update_outdated_markers(index);
    }

    pub(super) fn marker_number(&self, master: usize) -> u64 {
        let master = &self.masters[master];
        number_in_marker(master.marker(master.clock_us(self.now)))
    }

    /// Updates `outdated_markers` (the masters with lost or outdated generation markers) and the checkers after the
    /// marker of a master has been raised or restored.
    pub(super) fn update_outdated_markers(&mut self, master: usize) {
        let marker_number = self.marker_number(master);
        self.outdated_markers[master] = self.outdated_markers[master]
            .filter(|(previous_number, _)| *previous_number > marker_number);
        self.check_outdated_markers();
    }

    /// Called when a master has restarted. If its generation marker is now missing or has a smaller number than before
    /// (`previous_number`), records the master in `outdated_markers`.
    ///
    /// The seeded bug `MarkLostOnRestart` deletes the marker in any case, and records nothing.
    pub(super) fn record_marker_after_restart(&mut self, master: usize, previous_number: u64) {
        if self.flaw == Some(Flaw::MarkLostOnRestart) {
            let now_us = self.masters[master].clock_us(self.now);
            let expired = std::time::Duration::ZERO;
            self.masters[master]
                .memory
                .put_text(now_us, MARKER_KEY, b"", Some(expired));
            return;
        }
        self.check_marker_majority();
        if self.scenario.change.is_none() || self.marker_number(master) >= previous_number {
            return;
        }
        self.observer.coverage.restarts_with_older_marker += 1;
        let largest_number = self.outdated_markers[master]
            .map_or(previous_number, |(largest_number, _)| {
                largest_number.max(previous_number)
            });
        // The restart guard lasts `max_ttl` on the master's own clock. Subtract 1 %, because this clock may be fast.
        let guard_end = self.now + self.scenario.settings.max_ttl / 100 * 99;
        self.outdated_markers[master] = Some((largest_number, guard_end));
        self.guard_ends[master].get_or_insert(guard_end);
        self.schedule(guard_end, Event::RestartGuardEnds);
    }

    /// Stops the checks of exclusion, fencing tokens and values if a majority of the masters has lost its markers while
    /// clocks jump. A client that reaches only these masters sees no marker, so it uses their uptimes.
    fn check_marker_majority(&mut self) {
        if !self.scenario.has_jumps() || !self.scenario.jumps_while_guarded() {
            return;
        }
        let now = self.now;
        let is_unmarked = |master: &&SimMaster| master.marker(master.clock_us(now)).is_none();
        if 2 * self.masters.iter().filter(is_unmarked).count() > self.masters.len() {
            self.trace_line(|| {
                "a majority of the masters has lost its generation markers".to_owned()
            });
            self.observer.lose_promises();
        }
    }

    /// Stops the checks of exclusion, fencing tokens and values if too many generation markers were lost. Clients
    /// always exclude each other if their steps differ by at most one (see `change_plan.rs`). So the checks stop if
    /// clients at steps further apart could both get a majority.
    ///
    /// A client at step 0 reads a master's marker only when it connects. If the marker was missing then, the master
    /// keeps voting for this client, even after the marker was restored.
    pub(super) fn check_outdated_markers(&mut self) {
        let Some(plan) = &self.scenario.change else {
            return;
        };
        let now = self.now;
        let has_ended =
            |guard_end: Option<u64>| guard_end.is_some_and(|guard_end| guard_end <= now);
        let bit_mask = |bits: &mut dyn Iterator<Item = bool>| -> u16 {
            bits.enumerate()
                .fold(0, |set, (index, bit)| set | u16::from(bit) << index)
        };
        let outdated = bit_mask(
            &mut (self.outdated_markers.iter())
                .map(|marker| has_ended(marker.map(|(_, guard_end)| guard_end))),
        );
        let reopened_masters = bit_mask(
            &mut self
                .guard_ends
                .iter()
                .map(|guard_end| has_ended(*guard_end)),
        );
        if reopened_masters == 0 {
            return;
        }
        let unchecked_masters = |step: u8| if step == 0 { reopened_masters } else { 0 };
        let masters_admitting = |step: u8| {
            let admits_step = |master: &usize| admits_step(self.marker_number(*master), step);
            let admitting_masters = (0..self.masters.len()).filter(admits_step);
            admitting_masters.fold(unchecked_masters(step), |set, master| set | 1 << master)
        };
        let steps = 0..=2 * plan.changes();
        let steps_with_majority: Vec<(u8, u16)> = steps
            .map(|step| (step, masters_admitting(step)))
            .filter(|(step, masters)| is_majority(*masters, plan.masters_at(*step).sets()))
            .collect();
        let conflicts = |(step, masters): &(u8, u16)| {
            let doubtful = outdated | unchecked_masters(*step);
            let other = |(later_step, later_masters): &(u8, u16)| {
                *later_step >= step + 2 && (masters | later_masters) & doubtful != 0
            };
            steps_with_majority.iter().any(other)
        };
        if steps_with_majority.iter().any(conflicts) {
            self.trace_line(|| "too many masters have lost their generation markers".to_owned());
            self.observer.lose_promises();
        }
    }

    /// Stops a master that was replaced. It does not start again in this run.
    pub(crate) fn retire_master(&mut self, index: usize) {
        if std::mem::replace(&mut self.masters[index].retired, true) {
            return;
        }
        self.trace_line(|| format!("master {index} is stopped and never started again"));
        self.observer.coverage.retired_masters += 1;
        self.masters[index].up = false;
        self.break_all_connections(index, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_generation_markers_are_parsed_from_the_first_line_of_a_script() {
        let line = "local mark = redis.call('GET', 'quorate:masters') \
                    mark = mark and string.match(mark, '^%d+ %x+') or mark \
                    if mark and mark ~= '0 aa' and mark ~= '1 bb' then \
                    return redis.error_reply('ERR x' .. (mark or '-')) end local MAX_TTL = 1";
        let check = MarkerCheck::parse(line).expect("the line must contain the marker check");
        assert!(check.accepts(None) && check.accepts(Some("1 bb")));
        assert!(!check.accepts(Some("1 aa")));
        let required_line = line.replace("if mark and", "if true and");
        let required_check =
            MarkerCheck::parse(&required_line).expect("the line must contain the marker check");
        assert!(!required_check.accepts(None));
        assert_eq!(MarkerCheck::parse("local MAX_TTL = 1"), None);
    }
}
