//! The generation markers of the masters. A master's marker decides for which clients the master votes.
//!
//! If restarts remove too many markers, the library promises nothing. The checkers then stop checking exclusion,
//! fencing tokens and values.

use quorate::Redlock;
use quorate::node::Request;
use quorate::testing::server_half::bulk;

use super::master::SimMaster;
use super::words::{number, text};
use super::{Event, World};
use crate::change_plan::{ChangePlan, Named, Sets, admits, is_majority};
use crate::clock::{BEGIN, MS};
use crate::locker::{PLACES, name};
use crate::seeded_bugs::Flaw;

/// The key of the generation marker.
const MASTERS: &[u8] = b"quorate:masters";

/// The interval at which the simulated administrator restores lost generation markers: 500 ms, in nanoseconds.
const LOOKED_AFTER: u64 = 500 * MS;

/// The check of the generation marker at the beginning of a script. If the check fails, the script does not vote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Looks {
    /// Whether the script refuses to vote if the master has no generation marker.
    needed: bool,
    /// The generation markers with which the master may vote. With any other marker the script refuses.
    marks: Vec<String>,
}

impl Looks {
    /// Parses the check in the first line of a script; `None` if this line checks no generation marker.
    fn read(line: &str) -> Option<Self> {
        let wrong = line.strip_prefix(
            "local mark = redis.call('GET', 'quorate:masters') \
             mark = mark and string.match(mark, '^%d+ %x+') or mark if ",
        )?;
        let (wrong, _) = wrong.split_once(" then ")?;
        let mut parts = wrong.split(" and ");
        let needed = parts.next()? == "true";
        let mark = |part: &str| {
            Some(
                part.strip_prefix("mark ~= '")?
                    .strip_suffix('\'')?
                    .to_owned(),
            )
        };
        Some(Self {
            needed,
            marks: parts.map(mark).collect::<Option<_>>()?,
        })
    }

    fn lets_in(&self, mark: Option<&str>) -> bool {
        mark.map_or(!self.needed, |mark| {
            self.marks.iter().any(|ours| ours == mark)
        })
    }
}

impl Looks {
    /// For the seeded bug `ClosingOpens`: whether the master with the marker `mark` would accept the script after the
    /// next step of the operator (`open`), but not yet.
    fn is_opened_by_closing(&self, mark: Option<&str>) -> bool {
        let number = number_of(mark);
        let next = |ours: &String| number_of(Some(ours)) == number + 1;
        number % 4 == 1 && self.marks.iter().any(next)
    }
}

/// Returns which check of the generation marker a script contains, as an index into `World::looks`. The script's
/// simulated SHA begins with this index.
pub(super) fn looks_in(sha: &[u8]) -> usize {
    sha.first_chunk::<38>()
        .map_or(0, |looks| number(looks) as usize)
}

/// Returns the generation number in a marker; zero without a marker.
pub(crate) fn number_of(mark: Option<&str>) -> u64 {
    mark.and_then(|mark| mark.split(' ').next()?.parse().ok())
        .unwrap_or(0)
}

/// Returns the lock key to which the key of a fencing counter belongs.
fn lock_of(counter: &[u8]) -> &[u8] {
    counter.strip_prefix(b"quorate:fence:").unwrap_or(counter)
}

impl SimMaster {
    pub(super) fn mark(&self, now_us: u64) -> Option<&str> {
        self.memory.peek(now_us, MASTERS).holder.map(text)
    }

    pub(super) fn set_mark(&mut self, now_us: u64, mark: &str) {
        (self.memory).put_text(now_us, MASTERS, mark.as_bytes(), None);
    }

    /// Records that the master has loaded the script with the index `script`. `looks` is the index of the generation
    /// marker check in this script.
    pub(super) fn learn(&mut self, looks: usize, script: usize) {
        if self.scripts.len() <= looks {
            self.scripts.resize(looks + 1, 0);
        }
        self.scripts[looks] |= 1 << script;
    }

    pub(super) fn knows(&self, looks: usize, script: usize) -> bool {
        self.scripts
            .get(looks)
            .is_some_and(|all| all >> script & 1 == 1)
    }

    /// If an owner (`quorate::Owner`) holds the lock, returns the value of the lock key, which names the owner. Returns
    /// `None` if no owner holds it, or if the lock's fencing counter is larger than `number`.
    pub(super) fn owner_below(&self, now_us: u64, key: &[u8], number: u64) -> Option<Vec<u8>> {
        let peek = self.memory.peek(now_us, lock_of(key));
        let holder = peek.holder?;
        let owned = holder.starts_with(b"quorate:owner:");
        (owned && peek.counter.unwrap_or(0) <= number).then(|| holder.to_vec())
    }

    /// Raises the fencing counter of a lock to `number`, if the counter is smaller. Returns true if it was raised.
    pub(super) fn raise_counter(&mut self, now_us: u64, key: &[u8], number: u64) -> bool {
        self.memory.carry(now_us, lock_of(key), number)
    }
}

impl World {
    /// Called when a client process connects. The client takes its next step in the replacement of masters. Returns the
    /// masters of this step.
    pub(crate) fn named(&mut self, client: usize) -> Named {
        let process = &mut self.processes[client];
        process.step_now = process.next_step;
        self.named_at(self.processes[client].step_now)
    }

    /// Sets the step of a client (see `change_plan.rs`), for now and for its next start.
    pub(crate) fn set_step(&mut self, client: usize, step: u8) {
        let process = &mut self.processes[client];
        (process.next_step, process.step_now) = (step, step);
    }

    fn named_at(&self, step: u8) -> Named {
        match &self.scenario.change {
            Some(plan) if self.is_replacing() => plan.replaced(step),
            _ => self.scenario.named(step),
        }
    }

    /// Whether the run has a seeded bug with which a master is replaced without an operator.
    fn is_replacing(&self) -> bool {
        let plan = self.scenario.change.as_ref();
        self.flaw.is_some_and(Flaw::replaces)
            && plan.is_some_and(|plan| plan.one_replaced().is_some())
    }

    /// For the seeded bug `CounterForADay`: removes all fencing counters from all masters.
    pub(super) fn forget_counters(&mut self) {
        for master in &mut self.masters {
            let now_us = master.micros(self.now);
            for place in 0..PLACES {
                let key = format!("quorate:fence:{}", name(place as u8));
                let over = std::time::Duration::ZERO;
                master
                    .memory
                    .put_text(now_us, key.as_bytes(), b"0", Some(over));
            }
        }
    }

    /// The present step of a client in the replacement of masters.
    pub(crate) fn step_of(&self, client: usize) -> u8 {
        self.processes[client].step_now
    }

    /// Returns the client's sets of masters. The client needs a majority of each set. Call this function once for each
    /// obtained hold, because it also counts the holds that are obtained during or after a replacement.
    pub(crate) fn sets(&mut self, client: usize) -> Sets {
        let step = self.processes[client].step_now;
        let coverage = &mut self.watch.coverage;
        coverage.joint += u64::from(step % 2 == 1);
        coverage.later += u64::from(step > 1);
        self.named_at(step).sets()
    }

    /// Restarts a client at step `step` (see `change_plan.rs`).
    ///
    /// Some seeded bugs replace a master without an operator. With these bugs, the first call crashes the replaced
    /// master. With `DeadComesBack`, the client restarts only after this master has started again.
    pub(super) fn tell_masters(&mut self, fault: u32, (client, step): (u8, u8), down: u64) {
        let (now, plan) = (self.now, self.scenario.change.as_ref());
        if self.is_replacing()
            && step > 0
            && let Some(dead) = plan.and_then(ChangePlan::one_replaced)
        {
            let comes_back = self.flaw == Some(Flaw::DeadComesBack);
            let wait = if comes_back {
                self.scenario.settings.max_ttl / 50 * 51
            } else {
                0
            };
            let died = *self.died.get_or_insert(now);
            if died == now {
                self.crash(dead, if comes_back { wait } else { u64::MAX / 4 });
            }
            if now < died + wait {
                return self.at(died + wait, Event::Fault(fault));
            }
        }
        self.processes[usize::from(client)].next_step = step;
        self.kill_process(client, down);
    }

    /// Whether this connection's client knows two sets of masters, and the connection's master is only in the new set.
    pub(super) fn is_next_of(&self, conn: usize) -> bool {
        let conn = &self.conns[conn];
        let step = self.processes[self.links[conn.link].client].step_now;
        step % 2 == 1 && self.named_at(step).sets()[0] >> conn.master & 1 == 0
    }

    /// Only for the seeded bug `ExtendUnrefused`: the master refuses requests of outdated clients, but never an
    /// extension. Returns the error reply if the master refuses `request`, otherwise `None`.
    pub(super) fn refusal_but_of_extensions(
        &self,
        conn: usize,
        request: &Request,
    ) -> Option<String> {
        let master = &self.masters[self.conns[conn].master];
        let mark = master.mark(master.micros(self.now))?;
        let old = self.conns[conn].name.starts_with("quorate/0/");
        let vote = request.is_vote() && !matches!(request, Request::Extend { .. });
        let refused =
            self.flaw == Some(Flaw::ExtendUnrefused) && old && vote && number_of(Some(mark)) > 0;
        refused.then(|| format!("-ERR quorate: masters {mark}\r\n"))
    }

    /// Whether a client may take its last lock of the run: all replacements of masters are complete, and the masters
    /// accept the client's configuration. If they reject it after the replacements, reconfigures the client.
    pub(crate) fn may_lock(&mut self, client: usize) -> bool {
        let Some(plan) = &self.scenario.change else {
            return true;
        };
        let step = self.processes[client].step_now;
        let may = admits(plan.goal, step);
        if self.arrived && !may {
            self.at(self.now, Event::Reconfigured(client as u8));
        }
        self.arrived && may
    }

    /// Restores lost generation markers, as an administrator would do. Called when the faults have ended, and then
    /// repeatedly, because a master may start again later without its marker.
    pub(super) fn look_after(&mut self) {
        let clients = self.processes.iter().enumerate();
        let clients = clients
            .filter(|(client, process)| !process.done && !self.scenario.is_operator(*client));
        let steps: Vec<u8> = clients.map(|(_, process)| process.step_now).collect();
        let goal = self.scenario.change.as_ref().map(|plan| plan.goal);
        for step in steps {
            if self.arrived && goal.is_some_and(|goal| admits(goal, step)) {
                self.mend_marks(step);
            }
        }
        self.at(self.now + LOOKED_AFTER, Event::LookedAfter);
    }

    /// Writes lost generation markers, as an administrator would do. Does nothing if clients at step `step` still get a
    /// majority, because these clients restore the markers themselves.
    fn mend_marks(&mut self, step: u8) {
        let marked =
            |master: &usize| self.masters[*master].up && admits(self.mark_number(*master), step);
        let marked = (0..self.masters.len()).filter(marked);
        let marked = marked.fold(0, |all, master| all | 1 << master);
        let Some(plan) = self.scenario.change.clone() else {
            return;
        };
        let named = plan.named(step);
        if self.is_replacing() || is_majority(marked, named.sets()) {
            return;
        }
        let change = (plan.goal / 4).min(u64::from(plan.changes()) - 1) as u8;
        let both = plan.named(2 * change + 1).in_settings(Redlock::builder());
        let Some(mark) = quorate::testing::mark(&both, plan.goal) else {
            return;
        };
        for master in named.asked() {
            if self.masters[master].up && self.mark_number(master) < plan.goal {
                let now_us = self.masters[master].micros(self.now);
                self.begin_age(master, false);
                self.masters[master].set_mark(now_us, &mark);
                self.watch.coverage.mended += 1;
                self.say(|| {
                    format!(
                        "master {master}: the administrator writes this master's generation marker by hand: {mark}"
                    )
                });
                self.raised(master);
            }
        }
    }

    /// Writes the generation markers and fencing counters that the masters have at the beginning of the run.
    pub(super) fn begin_change(&mut self) {
        let Some(plan) = self.scenario.change.clone() else {
            return;
        };
        if self.is_replacing() {
            return;
        }
        self.watch.coverage.reconfigured += 1;
        self.at(BEGIN + self.scenario.heal_at, Event::LookedAfter);
        let begins = plan.begins.unwrap_or(0);
        let change = (begins / 4).min(u64::from(plan.changes()) - 1);
        let named = plan.named(2 * change as u8 + 1);
        let mark = plan.begins.and_then(|number| {
            quorate::testing::mark(&named.in_settings(Redlock::builder()), number)
        });
        let old = plan.named(2 * change as u8).sets()[0];
        for master in named.asked() {
            let now_us = self.masters[master].micros(self.now);
            if let Some(mark) = &mark {
                self.begin_age(master, false);
                self.masters[master].set_mark(now_us, mark);
            }
            let counted = begins % 4 > 1 || old >> master & 1 == 1;
            if let Some(ahead) = plan.ahead.filter(|_| counted) {
                for place in 0..PLACES {
                    let key = format!("quorate:fence:{}", name(place as u8));
                    self.masters[master].raise_counter(now_us, key.as_bytes(), now_us + ahead);
                }
            }
            self.masters[master].look_at_all(self.now);
        }
    }

    /// Called when an operator has completed all changes of the masters. From then on, clients may take their last lock
    /// of the run.
    pub(crate) fn change_done(&mut self) {
        self.arrived = true;
    }

    /// Restarts a client with the list of masters of its last planned step (`ChangePlan::steps`).
    pub(super) fn configure_last(&mut self, client: usize) {
        let steps = self.scenario.change.as_ref();
        let Some((_, last)) = steps.and_then(|plan| plan.steps.get(client).copied()) else {
            return;
        };
        self.processes[client].next_step = last;
        self.say(|| {
            format!("client {client} restarts with its last planned list of masters (step {last})")
        });
        self.kill_process(client as u8, 0);
    }

    /// Finds the check of the generation marker in the first line of a script. Returns the check's index in
    /// `World::looks`; 0 if the line contains no check.
    pub(super) fn looks_of(&mut self, line: &[u8]) -> usize {
        let Some(looks) = Looks::read(text(line)) else {
            return 0;
        };
        if let Some(known) = self.looks.iter().position(|known| *known == looks) {
            return known;
        }
        self.looks.push(looks);
        self.looks.len() - 1
    }

    /// Returns the error reply if a script's check of the generation marker rejects this connection's client; otherwise
    /// `None`. `looks` is the check's index in `World::looks`; 0 if the script has no check.
    pub(super) fn refusal_by_mark(&self, conn: usize, looks: usize) -> Option<String> {
        if looks == 0 || self.flaw == Some(Flaw::NextBesideOld) {
            return None;
        }
        let master = &self.masters[self.conns[conn].master];
        let mark = master.mark(master.micros(self.now));
        let looks = &self.looks[looks];
        let opens = self.flaw == Some(Flaw::ClosingOpens) && looks.is_opened_by_closing(mark);
        let refused = !looks.lets_in(mark) && !opens;
        refused.then(|| format!("-ERR quorate: masters {}\r\n", mark.unwrap_or("-")))
    }

    /// Writes the reply to a client that reads the generation marker: the marker, or null if the master has none.
    pub(super) fn tell_mark(&self, conn: usize, out: &mut Vec<u8>) {
        let master = &self.masters[self.conns[conn].master];
        let silent = match self.flaw {
            Some(Flaw::NextBesideOld) => true,
            Some(Flaw::ExtendUnrefused) => self.conns[conn].name.starts_with("quorate/0/"),
            _ => false,
        };
        let mark = master.mark(master.micros(self.now)).filter(|_| !silent);
        bulk(mark.map(str::as_bytes), out);
    }

    /// Restores the lost generation marker of a master for a client.
    pub(super) fn restore_mark(&mut self, index: usize, mark: &str) {
        self.watch.coverage.given_again += 1;
        let now_us = self.masters[index].micros(self.now);
        self.masters[index].set_mark(now_us, mark);
        self.say(|| format!("master {index}: a client restores the generation marker: {mark}"));
        self.raised(index);
    }

    pub(super) fn mark_number(&self, master: usize) -> u64 {
        let master = &self.masters[master];
        number_of(master.mark(master.micros(self.now)))
    }

    /// Updates `fallen` (the masters with lost or outdated generation markers) and the checkers after the marker of a
    /// master has been raised or restored.
    pub(super) fn raised(&mut self, master: usize) {
        let number = self.mark_number(master);
        self.fallen[master] = self.fallen[master].filter(|(was, _)| *was > number);
        self.judge_marks();
    }

    /// Called when a master has restarted. If its generation marker is now missing or has a smaller number than before
    /// (`was`), records the master in `fallen`.
    ///
    /// The seeded bug `MarkLostOnRestart` deletes the marker in any case, and records nothing.
    pub(super) fn look_at_fallen(&mut self, master: usize, was: u64) {
        if self.flaw == Some(Flaw::MarkLostOnRestart) {
            let now_us = self.masters[master].micros(self.now);
            let now = std::time::Duration::ZERO;
            self.masters[master]
                .memory
                .put_text(now_us, MASTERS, b"", Some(now));
            return;
        }
        self.judge_unmarked();
        if self.scenario.change.is_none() || self.mark_number(master) >= was {
            return;
        }
        self.watch.coverage.fallen += 1;
        let most = self.fallen[master].map_or(was, |(most, _)| most.max(was));
        // The restart guard lasts `max_ttl` on the master's own clock. Subtract 1 %, because this clock may be fast.
        let until = self.now + self.scenario.settings.max_ttl / 100 * 99;
        self.fallen[master] = Some((most, until));
        self.reopened[master].get_or_insert(until);
        self.at(until, Event::Unguarded);
    }

    /// Stops the checks of exclusion, fencing tokens and values if a majority of the masters has lost its markers while
    /// clocks jump. A client that reaches only these masters sees no marker, so it uses their uptimes.
    fn judge_unmarked(&mut self) {
        if !self.scenario.has_jumps() || !self.scenario.jumps_while_guarded() {
            return;
        }
        let now = self.now;
        let unmarked = |master: &&SimMaster| master.mark(master.micros(now)).is_none();
        if 2 * self.masters.iter().filter(unmarked).count() > self.masters.len() {
            self.say(|| "a majority of the masters has lost its generation markers".to_owned());
            self.watch.lose_promises();
        }
    }

    /// Stops the checks of exclusion, fencing tokens and values if too many generation markers were lost. Clients
    /// always exclude each other if their steps differ by at most one (see `change_plan.rs`). So the checks stop if
    /// clients at steps further apart could both get a majority.
    ///
    /// A client at step 0 reads a master's marker only when it connects. If the marker was missing then, the master
    /// keeps voting for this client, even after the marker was restored.
    pub(super) fn judge_marks(&mut self) {
        let Some(plan) = &self.scenario.change else {
            return;
        };
        let now = self.now;
        let voting = |until: Option<u64>| until.is_some_and(|until| until <= now);
        let mask = |bits: &mut dyn Iterator<Item = bool>| -> u16 {
            bits.enumerate()
                .fold(0, |all, (at, bit)| all | u16::from(bit) << at)
        };
        let fallen =
            mask(&mut (self.fallen.iter()).map(|fallen| voting(fallen.map(|(_, until)| until))));
        let reopened = mask(&mut self.reopened.iter().map(|until| voting(*until)));
        if reopened == 0 {
            return;
        }
        let unchecked = |step: u8| if step == 0 { reopened } else { 0 };
        let admitting = |step: u8| {
            let admits = |master: &usize| admits(self.mark_number(*master), step);
            let admitted = (0..self.masters.len()).filter(admits);
            admitted.fold(unchecked(step), |all, one| all | 1 << one)
        };
        let steps = 0..=2 * plan.changes();
        let open: Vec<(u8, u16)> = steps
            .map(|step| (step, admitting(step)))
            .filter(|(step, masters)| is_majority(*masters, plan.named(*step).sets()))
            .collect();
        let apart = |(one, by): &(u8, u16)| {
            let doubtful = fallen | unchecked(*one);
            let other = |(other, to): &(u8, u16)| *other >= one + 2 && (by | to) & doubtful != 0;
            open.iter().any(other)
        };
        if open.iter().any(apart) {
            self.say(|| "too many masters have lost their generation markers".to_owned());
            self.watch.lose_promises();
        }
    }

    /// Stops a master that was replaced. It does not start again in this run.
    pub(crate) fn retire(&mut self, index: usize) {
        if std::mem::replace(&mut self.masters[index].retired, true) {
            return;
        }
        self.say(|| format!("master {index} is stopped and never started again"));
        self.watch.coverage.retired += 1;
        self.masters[index].up = false;
        self.cut_all(index, false);
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
        let looks = Looks::read(line).expect("the line must contain the marker check");
        assert!(looks.lets_in(None) && looks.lets_in(Some("1 bb")));
        assert!(!looks.lets_in(Some("1 aa")));
        let next = line.replace("if mark and", "if true and");
        let next = Looks::read(&next).expect("the line must contain the marker check");
        assert!(!next.lets_in(None));
        assert_eq!(Looks::read("local MAX_TTL = 1"), None);
    }
}
