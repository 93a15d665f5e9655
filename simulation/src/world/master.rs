//! One simulated Redis master. It consists of the library's in-memory master, which does the same as the Lua scripts,
//! and a simulated clock, disk and server process.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::memory::Master;
use quorate::node::{Answer, Claim, ExtendItem, Extended, Fairness, Fault, Request, ServerRun};

use super::{Event, Records, World};
use crate::clock::{BEGIN, Clock, EPOCH_US};
use crate::facts::{Fact, Member, Seen, Verb, short};
use crate::locker::{PLACES, is_line, name, resource_of};
use crate::scenario::{Disk, MasterPlan, Refusal};
use crate::seeded_bugs::{Flaw, WrongScripts, wrong_note, wrong_value};

pub(crate) struct SimMaster {
    pub(super) memory: Master,
    /// An older state of the master's memory. The next restart restores it if the disk is stale.
    disk: Master,
    /// The master's wall clock. It shows the nanoseconds since 1970.
    pub(crate) clock: Clock,
    keeps: Disk,
    /// The number of leaders of the store so far. A restart is followed by the election of a leader as well.
    pub(super) leaders: u64,
    /// The number of restarts of the server process. The run id contains this number.
    pub(crate) run: u32,
    pub(crate) up: bool,
    /// The reading of the master's clock when the server started, in microseconds.
    started_us: u64,
    pub(crate) stalled_until: u64,
    /// The true time until which the master refuses lock requests, and the reason; `None` if it has never refused
    /// requests.
    pub(crate) refusing: Option<(u64, Refusal)>,
    /// A shortage of memory: the true time at which it ends, and the resource whose lock it affects. `None` if there
    /// has been no shortage.
    pub(super) full: Option<(u64, usize)>,
    /// The loaded scripts, as sets of bits (bit n is script n). `scripts[i]` has the scripts that begin with the
    /// generation marker check `World::looks[i]`. `scripts[0]` has the scripts without a check.
    pub(crate) scripts: Vec<u32>,
    /// Whether the master was replaced and is stopped until the end of the run.
    pub(super) retired: bool,
    wrong: WrongScripts,
    /// The resources whose lock keys hold foreign values (bit n is resource n).
    pub(super) foreign_keys: u32,
    /// The last recorded state of each lock.
    pub(super) seen: [Seen; PLACES],
}

impl SimMaster {
    pub(crate) fn new((index, plan): (usize, &MasterPlan)) -> Self {
        let begins = (EPOCH_US * 1_000).saturating_add_signed(plan.offset_us * 1_000);
        Self {
            memory: started(index, 0, Master::default()),
            disk: Master::default(),
            clock: Clock::new(begins, plan.ppm),
            keeps: plan.disk,
            leaders: 1,
            run: 0,
            up: true,
            // At the beginning of a run the server has been running for a day.
            started_us: begins / 1_000 - 86_400_000_000,
            stalled_until: 0,
            refusing: None,
            full: None,
            scripts: Vec::new(),
            retired: false,
            wrong: WrongScripts::default(),
            foreign_keys: 0,
            seen: [Seen::default(); PLACES],
        }
    }

    /// The reading of the master's clock in microseconds, rounded down to whole milliseconds. Keys expire by this
    /// reading.
    pub(crate) fn micros(&self, now: u64) -> u64 {
        self.clock.read(now) / 1_000_000 * 1_000
    }

    /// The `uptime_in_seconds` that the server reports. As in a real server, the present time and the start time are
    /// each rounded down to seconds, and then subtracted. Negative if the clock was set back after the start.
    pub(crate) fn uptime(&self, now: u64) -> i64 {
        let seconds = |micros: u64| (micros / 1_000_000) as i64;
        seconds(self.micros(now)) - seconds(self.started_us)
    }

    pub(crate) fn snapshot(&mut self) {
        if self.keeps == Disk::Stale {
            self.disk = self.memory.clone();
        }
    }

    /// Returns the note of the lock's holder that this master stores, and the note's expiry in microseconds on the
    /// master's clock; `None` if there is no note.
    pub(super) fn note(&self, now_us: u64, key: &[u8]) -> Option<(Vec<u8>, u64)> {
        let key = [b"quorate:note:", key].concat();
        let peek = self.memory.peek(now_us, &key);
        Some((peek.holder?.to_vec(), peek.expires.unwrap_or(u64::MAX)))
    }

    /// Returns the value of a lock key; `None` if there is no such key.
    pub(super) fn holder(&self, now_us: u64, key: &[u8]) -> Option<&[u8]> {
        self.memory.peek(now_us, key).holder
    }

    pub(super) fn take_announced(&mut self) -> Vec<Vec<u8>> {
        self.memory.take_announced()
    }

    /// Records the present state of one lock in `seen`, and returns this state.
    pub(super) fn look_again(&mut self, now_us: u64, key: &[u8]) -> Seen {
        let seen = self.peek_key(now_us, key);
        self.seen[resource_of(key)] = seen;
        seen
    }

    /// Records the present state of all locks in `seen`. Called after an event that is not a request, such as a clock
    /// jump. A key that `seen` shows as expired then stays expired, even if the clock is set back later.
    pub(super) fn look_at_all(&mut self, now: u64) {
        for resource in 0..PLACES {
            let key = name(resource as u8).as_bytes();
            self.seen[resource] = self.peek_key(self.micros(now), key);
        }
    }

    pub(super) fn peek_key(&self, now_us: u64, key: &[u8]) -> Seen {
        let peek = self.memory.peek(now_us, key);
        Seen {
            holder: peek.holder.and_then(padded),
            expires: peek.expires.unwrap_or(0),
            counter: peek.counter.unwrap_or(0),
            counter_expires: peek.counter_expires.unwrap_or(0),
        }
    }

    /// Returns all holds of a shared lock: the holds of its readers, or of its owner.
    fn members(&self, key: &[u8]) -> Vec<Member> {
        let member = |(value, until_ms): &([u8; 32], u64)| Member {
            value: *value,
            until: self.clock.when(until_ms * 1_000_000).unwrap_or(u64::MAX),
            until_ms: *until_ms,
        };
        self.memory.standing(key).iter().map(member).collect()
    }

    /// Executes a request in this master's memory. The seeded bug `flaw` may change the memory or the answer.
    pub(super) fn execute(
        &mut self,
        now_us: u64,
        request: &Request,
        flaw: Option<Flaw>,
    ) -> Result<Answer, Fault> {
        if let Some(flaw) = flaw.filter(|flaw| flaw.is_of_kinds()) {
            let said = self.wrong.execute(flaw, &mut self.memory, now_us, request);
            return said.unwrap_or_else(|| self.memory.apply(now_us, request));
        }
        if let Some(flaw) = flaw.filter(|flaw| flaw.is_of_values()) {
            let said = wrong_value(flaw, &mut self.memory, now_us, request);
            return said.unwrap_or_else(|| self.memory.apply(now_us, request));
        }
        if let Some(flaw) = flaw.filter(|flaw| flaw.is_of_notes()) {
            let said = wrong_note(flaw, &mut self.memory, now_us, request);
            return said.unwrap_or_else(|| self.memory.apply(now_us, request));
        }
        match (flaw, request) {
            (Some(Flaw::UnconditionalDelete), Request::Release { claim, .. }) => {
                if self.peek_key(now_us, claim.key()).holder.is_some() {
                    let (key, value) = (claim.key(), claim.token().to_hex());
                    self.memory.put_text(now_us, key, &value, None);
                }
                self.memory.apply(now_us, request)
            }
            (Some(Flaw::ConfirmAtLeast | Flaw::ConfirmAtLeastJoint), Request::Confirm { .. }) => {
                match self.memory.apply(now_us, request) {
                    Ok(Answer::CounterAbove(_)) => Ok(Answer::Confirmed),
                    answer => answer,
                }
            }
            (Some(Flaw::TicketNotRaised), _) => {
                let mut answer = self.memory.apply(now_us, request);
                if let Ok(Answer::Refused {
                    line: Some(line), ..
                }) = &mut answer
                {
                    line.ticket = line.ticket.saturating_sub(1);
                }
                answer
            }
            (Some(Flaw::ShorteningExtend), Request::Extend { items }) => {
                let answer = self.memory.apply(now_us, request);
                for item in items.iter() {
                    let value = item.claim.token().to_hex();
                    let ours = self.peek_key(now_us, item.claim.key()).holder == Some(value);
                    if ours && !item.claim.is_withdrawn() {
                        self.memory
                            .put_text(now_us, item.claim.key(), &value, Some(item.ttl));
                    }
                }
                answer
            }
            (Some(Flaw::CounterKeepsExpiry), Request::Acquire { claim, .. }) => {
                let before = self.memory.peek(now_us, claim.key()).counter_expires;
                let answer = self.memory.apply(now_us, request);
                let after = self.memory.peek(now_us, claim.key());
                if let (Some(expires), Some(counter)) = (before, after.counter) {
                    let left = Duration::from_micros(expires.saturating_sub(now_us));
                    let key = [b"quorate:fence:", claim.key()].concat();
                    let number = counter.to_string();
                    self.memory
                        .put_text(now_us, &key, number.as_bytes(), Some(left));
                }
                answer
            }
            _ => self.memory.apply(now_us, request),
        }
    }
}

/// Returns `memory` with the run id of a server process. `run` is the number of the restarts of this master.
fn started(index: usize, run: u32, mut memory: Master) -> Master {
    memory.set_run(ServerRun::new(run_id(index, run)));
    memory
}

/// Returns the run id of a server process: the number of the master and the number of its restarts.
pub(super) fn run_id(index: usize, run: u32) -> String {
    format!("{index}.{run}")
}

/// Pads the content of a lock key with zeros to 32 bytes, the length of a lock value. If readers or an owner hold the
/// lock, the content is shorter than that.
fn padded(holder: &[u8]) -> Option<[u8; 32]> {
    let mut whole = [0; 32];
    whole.get_mut(..holder.len())?.copy_from_slice(holder);
    Some(whole)
}

/// Formats the content of a lock key for traces. Shows the first six hex digits of a lock value. If readers or an owner
/// hold the lock, shows the text that marks them.
fn stands_as(holder: &[u8; 32]) -> String {
    let end = holder.iter().position(|byte| *byte == 0);
    match end {
        None => short(holder),
        Some(end) => String::from_utf8_lossy(&holder[8..end]).into_owned(),
    }
}

/// Formats an answer briefly for traces.
fn plain(answer: &Result<Answer, Fault>) -> String {
    match answer {
        Ok(Answer::Granted { .. }) => "granted".to_owned(),
        Ok(Answer::Refused { line, .. }) => match line {
            Some(line) => format!(
                "refused, {} waiters ahead, ticket {}",
                line.ahead, line.ticket
            ),
            None => "refused".to_owned(),
        },
        answer => format!("{answer:?}"),
    }
}

/// Returns each key of the lock that an item extends, together with the claim of the lock.
fn keys_of(item: &ExtendItem) -> impl Iterator<Item = (&Arc<Claim>, &Arc<[u8]>)> {
    item.claim.keys().map(|key| (&item.claim, key))
}

fn verb(request: &Request) -> Option<(&Arc<Claim>, Verb)> {
    Some(match request {
        Request::Acquire { claim, .. } => (claim, Verb::Acquire),
        Request::Confirm { claim, .. } => (claim, Verb::Confirm),
        Request::Release { claim, .. } => (claim, Verb::Release),
        Request::Extend { items } => (&items.first()?.claim, Verb::Extend),
        _ => return None,
    })
}

impl World {
    /// Lets a master execute a request, and reports the request to the checkers. `live` is false for a delayed second
    /// copy of a request.
    pub(super) fn apply(
        &mut self,
        index: usize,
        request: &Request,
        live: bool,
    ) -> Result<Answer, Fault> {
        let now = self.now;
        let master = &mut self.masters[index];
        let now_us = master.micros(now);
        self.watch.coverage.messages += 1;
        if let Request::Read { .. } | Request::Write { .. } = request {
            return self.apply_value(index, request);
        }
        if let Request::Note { .. } = request {
            return self.apply_notes(index, request);
        }
        let Some((claim, verb)) = verb(request) else {
            return master.execute(now_us, request, self.flaw);
        };
        if let Request::Extend { items } = request {
            let locks = || items.iter().flat_map(keys_of);
            let before: Vec<Seen> = locks()
                .map(|(_, key)| master.peek_key(now_us, key))
                .collect();
            let answer = master.execute(now_us, request, self.flaw);
            for (number, ((claim, key), before)) in locks().zip(before).enumerate() {
                let master = &mut self.masters[index];
                let after = master.peek_key(now_us, key);
                master.seen[resource_of(key)] = after;
                if before.holder.is_none() && after.holder.is_some() {
                    self.watch.coverage.restored += 1;
                }
                let extended = match &answer {
                    Ok(Answer::Extended(each)) => each.get(number).cloned(),
                    _ => None,
                };
                let said = (&answer, extended);
                self.applied((index, key), claim, (verb, live), said, (before, after));
            }
            return answer;
        }
        if claim.group().is_some() {
            return self.apply_group(index, request, (claim, verb, live));
        }
        if is_line(claim.key()) {
            let answer = master.execute(now_us, request, self.flaw);
            self.behind(index, request);
            return answer;
        }
        let before = master.seen[resource_of(claim.key())].at(now_us);
        let answer = master.execute(now_us, request, self.flaw);
        let after = master.peek_key(now_us, claim.key());
        master.seen[resource_of(claim.key())] = after;
        let said = (&answer, None);
        let key = claim.key();
        self.applied((index, key), claim, (verb, live), said, (before, after));
        self.behind(index, request);
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
        let now_us = master.micros(self.now);
        self.watch.coverage.groups += 1;
        let before: Vec<Seen> = claim
            .keys()
            .map(|key| master.peek_key(now_us, key))
            .collect();
        let answer = master.execute(now_us, request, self.flaw);
        for (key, before) in claim.keys().zip(before) {
            let master = &mut self.masters[index];
            let after = master.peek_key(now_us, key);
            master.seen[resource_of(key)] = after;
            let said = (&answer, None);
            self.applied((index, key), claim, (verb, live), said, (before, after));
        }
        self.behind(index, request);
        answer
    }

    /// Does the work that follows the execution of a request: reports a waiter that has left its queue, and sends
    /// wake-ups.
    fn behind(&mut self, index: usize, request: &Request) {
        let now = self.now;
        let published = self.masters[index].memory.take_published();
        if let Request::Release { claim, leave: true } = request {
            self.watch.fact(
                now,
                &Fact::Left {
                    master: index,
                    claim,
                },
            );
        }
        for (process, key) in published {
            self.publish(index, &process, &key);
        }
    }

    fn applied(
        &mut self,
        (master, key): (usize, &[u8]),
        claim: &Arc<Claim>,
        verb: (Verb, bool),
        (answer, extended): (&Result<Answer, Fault>, Option<Extended>),
        (before, after): (Seen, Seen),
    ) {
        let (verb, live) = verb;
        let now = self.now;
        let resource = resource_of(key);
        self.watch.say(now, || {
            let stands = after
                .holder
                .map_or_else(|| "free".to_owned(), |holder| stands_as(&holder));
            let waits = match claim.fairness() {
                Fairness::Fair(Some(place)) => format!(" ({}, {})", place.number, place.waiter),
                _ => String::new(),
            };
            format!(
                "master {master}: {verb:?} of {}{waits} on r{resource}: {}; now {stands}, counter {}",
                short(&claim.token().to_hex()),
                plain(answer),
                after.counter
            )
        });
        let now_ms = self.masters[master].micros(now) / 1_000;
        let expires = self.masters[master].clock.when(after.expires * 1_000);
        let expires = expires.unwrap_or(u64::MAX);
        self.check_foreign_key(master, resource);
        let members = self.masters[master].members(key);
        self.watch.fact(
            now,
            &Fact::Applied {
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
                expires,
                members: &members,
            },
        );
        self.show_note(master, key);
    }

    /// Returns the uptime that a master reports, in seconds.
    pub(super) fn uptime(&self, index: usize) -> i64 {
        let ahead = if self.flaw == Some(Flaw::UptimeAhead) {
            2
        } else {
            0
        };
        self.masters[index].uptime(self.now) + ahead
    }

    pub(super) fn crash(&mut self, index: usize, down: u64) {
        if !self.masters[index].up {
            return;
        }
        self.watch.coverage.crashes += 1;
        self.masters[index].up = false;
        self.cut_all(index, false);
        self.cut_sessions(index, false);
        self.at(self.now + down, Event::Restart(index as u8));
    }

    pub(super) fn restart(&mut self, index: usize) {
        if self.masters[index].retired {
            return;
        }
        let now = self.now;
        let marked = self.mark_number(index);
        match self.masters[index].keeps {
            Disk::None => self.stores[index].fall_back_to(Records::default()),
            Disk::Stale => self.stores[index].fall_back_to(self.store_disks[index].clone()),
            Disk::Always => {}
        }
        let coverage = &mut self.watch.coverage;
        let master = &mut self.masters[index];
        master.leaders += 1;
        match master.keeps {
            Disk::None => {
                coverage.empty_restarts += 1;
                master.memory = Master::default();
            }
            Disk::Stale => {
                coverage.stale_restarts += 1;
                master.memory = master.disk.clone();
            }
            Disk::Always => coverage.full_restarts += 1,
        }
        let run = master.run + 1;
        master.memory = started(index, run, std::mem::take(&mut master.memory));
        master.forget_foreign_keys(now);
        master.look_at_all(now);
        master.up = true;
        master.run = run;
        master.stalled_until = 0;
        master.scripts.clear();
        if self.flaw != Some(Flaw::WarmSpare) {
            master.started_us = master.micros(now);
        }
        let kept = master.keeps;
        self.say(|| format!("master {index} restarts, and its disk has kept: {kept:?}"));
        let forgot = kept != Disk::Always;
        self.watch.fact(
            now,
            &Fact::Restarted {
                master: index,
                forgot,
            },
        );
        self.look_at_fallen(index, marked);
        debug_assert!(now >= BEGIN);
    }
}
