//! One simulated Redis master. It consists of the library's in-memory master, which does the same as the Lua scripts,
//! and a simulated clock, disk and server process.

use std::sync::Arc;

use quorate::node::memory::Master;
use quorate::node::{Answer, Claim, ExtendItem, Extended, Fairness, Fault, Request, ServerRun};

use super::{Event, Records, World};
use crate::clock::{Clock, EPOCH_US, RUN_START};
use crate::facts::{Fact, LockState, Member, Verb, short_hex};
use crate::happening::Happening;
use crate::locker::{PLACES, is_semaphore_queue, key_of_place, place_of_key};
use crate::scenario::{Disk, MasterPlan, Refusal, StoreEvent};

pub(crate) struct SimMaster {
    pub(super) memory: Master,
    /// An older state of the master's memory. The next restart restores it if the disk is stale.
    disk_state: Master,
    /// The master's wall clock. It shows the nanoseconds since 1970.
    pub(crate) clock: Clock,
    preserves: Disk,
    /// The number of leaders of the store so far. A restart is followed by the election of a leader as well.
    pub(super) leaders: u64,
    /// The number of restarts of the server process. The run id contains this number.
    pub(crate) restarts: u32,
    pub(crate) up: bool,
    /// The event that has stopped this master, if it is a store and stopped for another reason than a crash.
    pub(super) event: Option<StoreEvent>,
    /// A number that an administrator changes after the store was set back.
    pub(super) identity: u32,
    /// The number of runs that clients of the store have begun.
    pub(super) runs: u32,
    /// The reading of the master's clock when the server started, in microseconds.
    pub(super) started_us: u64,
    pub(crate) stalled_until: u64,
    /// The true time until which the master refuses lock requests, and the reason; `None` if it has never refused
    /// requests.
    pub(crate) refusal: Option<(u64, Refusal)>,
    /// The happening that the checkers do not know yet: the master will refuse requests for the reason in `refusal`.
    pub(super) unreported_refusal: Option<Happening>,
    /// A shortage of memory: the true time at which it ends, and the resource whose lock it affects. `None` if there
    /// has been no shortage.
    pub(super) memory_shortage: Option<(u64, usize)>,
    /// Whether the checkers do not know the shortage of memory yet, because it has had no effect.
    pub(super) is_shortage_unreported: bool,
    /// The loaded scripts, as sets of bits (bit n is script n). `scripts[i]` has the scripts that begin with the
    /// generation marker check `World::marker_checks[i]`. `scripts[0]` has the scripts without a check.
    pub(crate) scripts: Vec<u32>,
    /// Whether the master was replaced and is stopped until the end of the run.
    pub(super) retired: bool,
    /// The resources whose lock keys hold foreign values (bit n is resource n).
    pub(super) foreign_keys: u32,
    /// The last recorded state of each lock.
    pub(super) lock_states: [LockState; PLACES],
}

impl SimMaster {
    pub(crate) fn new((index, plan): (usize, &MasterPlan)) -> Self {
        let first_reading_us = (EPOCH_US * 1_000).saturating_add_signed(plan.offset_us * 1_000);
        Self {
            memory: with_run_id(index, 0, Master::default()),
            disk_state: Master::default(),
            clock: Clock::new(first_reading_us, plan.ppm),
            preserves: plan.disk,
            leaders: 1,
            restarts: 0,
            up: true,
            event: None,
            identity: 0,
            runs: 0,
            // At the beginning of a run the server has been running for a day.
            started_us: first_reading_us / 1_000 - 86_400_000_000,
            stalled_until: 0,
            refusal: None,
            unreported_refusal: None,
            is_shortage_unreported: false,
            memory_shortage: None,
            scripts: Vec::new(),
            retired: false,
            foreign_keys: 0,
            lock_states: [LockState::default(); PLACES],
        }
    }

    /// The reading of the master's clock in microseconds, rounded down to whole milliseconds. Keys expire by this
    /// reading.
    pub(crate) fn clock_us(&self, now: u64) -> u64 {
        self.clock.read(now) / 1_000_000 * 1_000
    }

    /// The `uptime_in_seconds` that the server reports. As in a real server, the present time and the start time are
    /// each rounded down to seconds, and then subtracted. Negative if the clock was set back after the start.
    pub(crate) fn uptime(&self, now: u64) -> i64 {
        let seconds = |micros: u64| (micros / 1_000_000) as i64;
        seconds(self.clock_us(now)) - seconds(self.started_us)
    }

    /// Lets the master refuse requests until the true time `until`.
    pub(super) fn refuse_until(&mut self, until: u64, how: Refusal) {
        self.refusal = Some((until, how));
        self.unreported_refusal = Happening::from_refusal(how);
    }

    /// Takes away the memory for the lock of this resource until the true time `until`.
    pub(super) fn begin_shortage(&mut self, until: u64, resource: u8) {
        self.memory_shortage = Some((until, resource.into()));
        self.is_shortage_unreported = true;
    }

    pub(crate) fn snapshot(&mut self) {
        if self.preserves == Disk::Stale {
            self.disk_state = self.memory.clone();
        }
    }

    /// Returns the note of the lock's holder that this master stores, and the note's expiry in microseconds on the
    /// master's clock; `None` if there is no note.
    pub(super) fn note(&self, now_us: u64, key: &[u8]) -> Option<(Vec<u8>, u64)> {
        let note_key = [b"quorate:note:", key].concat();
        let stored = self.memory.peek(now_us, &note_key);
        Some((stored.holder?.to_vec(), stored.expires.unwrap_or(u64::MAX)))
    }

    /// Returns the value of a lock key; `None` if there is no such key.
    pub(super) fn holder(&self, now_us: u64, key: &[u8]) -> Option<&[u8]> {
        self.memory.peek(now_us, key).holder
    }

    pub(super) fn take_announced(&mut self) -> Vec<Vec<u8>> {
        self.memory.take_announced()
    }

    /// Records the present state of one lock in `lock_states`, and returns this state.
    pub(super) fn record_lock_state(&mut self, now_us: u64, key: &[u8]) -> LockState {
        let state = self.lock_state(now_us, key);
        self.lock_states[place_of_key(key)] = state;
        state
    }

    /// Records the present state of all locks in `lock_states`. Called after an event that is not a request, such as a
    /// clock jump. A key that `lock_states` shows as expired then stays expired, even if the clock is set back later.
    pub(super) fn record_all_lock_states(&mut self, now: u64) {
        for resource in 0..PLACES {
            let key = key_of_place(resource as u8).as_bytes();
            self.lock_states[resource] = self.lock_state(self.clock_us(now), key);
        }
    }

    pub(super) fn lock_state(&self, now_us: u64, key: &[u8]) -> LockState {
        let key_state = self.memory.peek(now_us, key);
        LockState {
            holder: key_state.holder.and_then(pad_lock_value),
            expires_us: key_state.expires.unwrap_or(0),
            counter: key_state.counter.unwrap_or(0),
            counter_expires_us: key_state.counter_expires.unwrap_or(0),
        }
    }

    /// Returns all holds of a shared lock: the holds of its readers, or of its owner.
    fn members(&self, key: &[u8]) -> Vec<Member> {
        let to_member = |(value, until_ms): &([u8; 32], u64)| Member {
            value: *value,
            expires_at: self
                .clock
                .time_of_reading(until_ms * 1_000_000)
                .unwrap_or(u64::MAX),
            expires_at_ms: *until_ms,
        };
        self.memory.standing(key).iter().map(to_member).collect()
    }
}

/// Returns `memory` with the run id of a server process. `restarts` is the number of the restarts of this master.
fn with_run_id(index: usize, restarts: u32, mut memory: Master) -> Master {
    memory.set_run(ServerRun::new(run_id(index, restarts)));
    memory
}

/// Returns the run id of a server process: the number of the master and the number of its restarts.
pub(super) fn run_id(index: usize, restarts: u32) -> String {
    format!("{index}.{restarts}")
}

/// Pads the content of a lock key with zeros to 32 bytes, the length of a lock value. If readers or an owner hold the
/// lock, the content is shorter than that.
fn pad_lock_value(holder: &[u8]) -> Option<[u8; 32]> {
    let mut padded = [0; 32];
    padded.get_mut(..holder.len())?.copy_from_slice(holder);
    Some(padded)
}

/// Formats the content of a lock key for traces. Shows the first six hex digits of a lock value. If readers or an owner
/// hold the lock, shows the text that marks them.
fn format_holder(holder: &[u8; 32]) -> String {
    let end = holder.iter().position(|byte| *byte == 0);
    match end {
        None => short_hex(holder),
        Some(end) => String::from_utf8_lossy(&holder[8..end]).into_owned(),
    }
}

/// Formats an answer briefly for traces.
fn format_answer(answer: &Result<Answer, Fault>) -> String {
    match answer {
        Ok(Answer::Granted { .. }) => "granted".to_owned(),
        Ok(Answer::Refused { line: queue, .. }) => match queue {
            Some(queue) => format!(
                "refused, {} waiters ahead, ticket {}",
                queue.ahead, queue.ticket
            ),
            None => "refused".to_owned(),
        },
        answer => format!("{answer:?}"),
    }
}

/// Returns each key of the lock that an item extends, together with the claim of the lock.
fn keys_with_claims(item: &ExtendItem) -> impl Iterator<Item = (&Arc<Claim>, &Arc<[u8]>)> {
    item.claim.keys().map(|key| (&item.claim, key))
}

fn claim_and_verb(request: &Request) -> Option<(&Arc<Claim>, Verb)> {
    Some(match request {
        Request::Acquire { claim, .. } => (claim, Verb::Acquire),
        Request::Confirm { claim, token } => (claim, Verb::Confirm(*token)),
        Request::Release { claim, .. } => (claim, Verb::Release),
        Request::Extend { items } => (&items.first()?.claim, Verb::Extend),
        _ => return None,
    })
}

impl World {
    /// Lets a master execute a request, and reports the request to the checkers. `live` is false for a delayed second
    /// copy of a request.
    pub(super) fn execute_and_report(
        &mut self,
        index: usize,
        request: &Request,
        live: bool,
    ) -> Result<Answer, Fault> {
        let now = self.now;
        let master = &mut self.masters[index];
        let now_us = master.clock_us(now);
        self.observer.coverage.messages += 1;
        if let Request::Read { .. } | Request::Write { .. } = request {
            return self.apply_value(index, request);
        }
        if let Request::Note { .. } = request {
            return self.apply_notes(index, request);
        }
        let Some((claim, verb)) = claim_and_verb(request) else {
            return master.memory.apply(now_us, request);
        };
        if let Request::Extend { items } = request {
            let locks = || items.iter().flat_map(keys_with_claims);
            let states_before: Vec<LockState> = locks()
                .map(|(_, key)| master.lock_state(now_us, key))
                .collect();
            let answer = master.memory.apply(now_us, request);
            for (position, ((claim, key), before)) in locks().zip(states_before).enumerate() {
                let master = &mut self.masters[index];
                let after = master.lock_state(now_us, key);
                master.lock_states[place_of_key(key)] = after;
                if before.holder.is_none() && after.holder.is_some() {
                    self.observer.coverage.restored += 1;
                }
                let extended = match &answer {
                    Ok(Answer::Extended(results)) => results.get(position).cloned(),
                    _ => None,
                };
                let result = (&answer, extended);
                self.report_executed((index, key), claim, (verb, live), result, (before, after));
            }
            return answer;
        }
        if claim.group().is_some() {
            return self.apply_group(index, request, (claim, verb, live));
        }
        if is_semaphore_queue(claim.key()) {
            let answer = master.memory.apply(now_us, request);
            self.finish_request(index, request);
            return answer;
        }
        let before = master.lock_states[place_of_key(claim.key())].without_expired_lock(now_us);
        let answer = master.memory.apply(now_us, request);
        let after = master.lock_state(now_us, claim.key());
        master.lock_states[place_of_key(claim.key())] = after;
        let result = (&answer, None);
        let key = claim.key();
        self.report_executed((index, key), claim, (verb, live), result, (before, after));
        self.finish_request(index, request);
        answer
    }

    /// Lets a master execute a request about several keys or shared holds, and reports each lock to the checkers.
    fn apply_group(
        &mut self,
        index: usize,
        request: &Request,
        (claim, verb, live): (&Arc<Claim>, Verb, bool),
    ) -> Result<Answer, Fault> {
        let master = &mut self.masters[index];
        let now_us = master.clock_us(self.now);
        self.observer.coverage.groups += 1;
        let states_before: Vec<LockState> = claim
            .keys()
            .map(|key| master.lock_state(now_us, key))
            .collect();
        let answer = master.memory.apply(now_us, request);
        for (key, before) in claim.keys().zip(states_before) {
            let master = &mut self.masters[index];
            let after = master.lock_state(now_us, key);
            master.lock_states[place_of_key(key)] = after;
            let result = (&answer, None);
            self.report_executed((index, key), claim, (verb, live), result, (before, after));
        }
        self.finish_request(index, request);
        answer
    }

    /// Does the work that follows the execution of a request: reports a waiter that has left its queue, and sends
    /// wake-ups.
    fn finish_request(&mut self, index: usize, request: &Request) {
        let now = self.now;
        let published = self.masters[index].memory.take_published();
        if let Request::Release { claim, leave: true } = request {
            self.observer.report_fact(
                now,
                &Fact::WaiterLeft {
                    master: index,
                    claim,
                },
            );
        }
        for (process, key) in published {
            self.send_wake_up(index, &process, &key);
        }
    }

    fn report_executed(
        &mut self,
        (master, key): (usize, &[u8]),
        claim: &Arc<Claim>,
        (verb, live): (Verb, bool),
        (answer, extended): (&Result<Answer, Fault>, Option<Extended>),
        (before, after): (LockState, LockState),
    ) {
        let now = self.now;
        let resource = place_of_key(key);
        self.observer.trace_line(now, || {
            let holder_text = after
                .holder
                .map_or_else(|| "free".to_owned(), |holder| format_holder(&holder));
            let ticket_text = match claim.fairness() {
                Fairness::Fair(Some(place)) => format!(" ({}, {})", place.number, place.waiter),
                _ => String::new(),
            };
            format!(
                "master {master}: {verb:?} of {}{ticket_text} on r{resource}: {}; now {holder_text}, counter {}",
                short_hex(&claim.token().to_hex()),
                format_answer(answer),
                after.counter
            )
        });
        let now_ms = self.masters[master].clock_us(now) / 1_000;
        let expires_at = self.masters[master]
            .clock
            .time_of_reading(after.expires_us * 1_000)
            .unwrap_or(u64::MAX);
        self.check_foreign_key(master, resource);
        let members = self.masters[master].members(key);
        self.observer.report_fact(
            now,
            &Fact::RequestExecuted {
                master,
                now_ms,
                resource,
                claim,
                verb,
                live,
                answer,
                extended,
                before,
                after,
                expires_at,
                members: &members,
            },
        );
        self.report_stored_note(master, key);
    }

    /// Returns the uptime that a master reports, in seconds.
    pub(super) fn uptime(&self, index: usize) -> i64 {
        self.masters[index].uptime(self.now)
    }

    pub(super) fn crash(&mut self, index: usize, down: u64) {
        if !self.masters[index].up {
            return;
        }
        self.observer.coverage.crashes += 1;
        self.stop(index, down);
    }

    /// Stops a server, and starts it again after `down` nanoseconds.
    pub(super) fn stop(&mut self, index: usize, down: u64) {
        self.masters[index].up = false;
        self.break_all_connections(index, false);
        self.break_all_sessions(index, false);
        self.schedule(self.now + down, Event::MasterRestarts(index as u8));
    }

    pub(super) fn restart(&mut self, index: usize) {
        if self.masters[index].retired {
            return;
        }
        if let Some(event) = self.masters[index].event.take() {
            return self.restart_after_event(index, event);
        }
        let now = self.now;
        let marker_before = self.marker_number(index);
        let records = &self.stores[index];
        let has_lost_records = match self.masters[index].preserves {
            Disk::None => records.last_change() > 0,
            Disk::Stale => records.last_change() > self.store_disks[index].last_change(),
            Disk::Always => false,
        };
        match self.masters[index].preserves {
            Disk::None => self.stores[index].restore_from(Records::default()),
            Disk::Stale => self.stores[index].restore_from(self.store_disks[index].clone()),
            Disk::Always => {}
        }
        self.crash_counted_store(index);
        let master = &mut self.masters[index];
        master.leaders += 1;
        master.record_all_lock_states(now);
        let states_before = master.lock_states;
        match master.preserves {
            Disk::None => master.memory = Master::default(),
            Disk::Stale => master.memory = master.disk_state.clone(),
            Disk::Always => {}
        }
        let restarts = master.restarts + 1;
        master.memory = with_run_id(index, restarts, std::mem::take(&mut master.memory));
        master.forget_foreign_keys(now);
        master.record_all_lock_states(now);
        if let Some(history) = &mut self.observer.history {
            let clock_us = master.clock_us(now);
            let states = master.lock_states.map(LockState::to_model);
            history.record_restart(now, (index, clock_us), &states);
        }
        let is_changed = has_lost_records || master.lock_states != states_before;
        let coverage = &mut self.observer.coverage;
        match master.preserves {
            Disk::None => coverage.empty_restarts += u64::from(is_changed),
            Disk::Stale => coverage.stale_restarts += u64::from(is_changed),
            Disk::Always => coverage.full_restarts += 1,
        }
        master.up = true;
        master.restarts = restarts;
        master.stalled_until = 0;
        master.scripts.clear();
        master.started_us = master.clock_us(now);
        let preserved = master.preserves;
        self.trace_line(|| {
            format!("master {index} restarts, and its disk has kept: {preserved:?}")
        });
        let lost_data = preserved != Disk::Always;
        self.observer.report_fact(
            now,
            &Fact::MasterRestarted {
                master: index,
                lost_data,
            },
        );
        self.record_marker_after_restart(index, marker_before);
        debug_assert!(now >= RUN_START);
    }
}
