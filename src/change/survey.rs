//! The state of all masters during a replacement, and what it says about the next step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::values::CarriedValue;
use crate::keys::{Family, OWNER};
use crate::node::Fault;
use crate::node::change::{ClientKind, ClientSeen, MasterSeen};
use crate::protocol::instant::Instant;
use crate::protocol::marker::{Admission, Configuration, Marker};
use crate::protocol::quorum::{MasterSet, Quorum};

/// The masters' clocks may differ by at most `max_ttl` minus `SLACK`, but a difference of 1 s is always allowed.
const SLACK: Duration = Duration::from_secs(2);

/// The stage of a replacement of the masters, derived from the generation markers of the masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ChangeStage {
    /// The replacement has not begun: in at least one of the two sets, the masters with a generation marker of this
    /// replacement are not a majority.
    Untouched,
    /// In each set, a majority of the masters has a generation marker of this replacement. Two groups of clients can
    /// acquire locks: those that know only the old masters, and those that know both sets.
    Begun,
    /// Some of the old masters are closed: they reject clients that know only the old masters. The closed masters are
    /// not a majority of the old masters.
    PartlyClosed,
    /// A majority of the old masters is closed. Only clients that know both sets of masters can acquire locks.
    Closed,
    /// A majority of the next masters is open. Two groups of clients get votes: those that know both sets, and those
    /// that know only the next masters.
    Open,
    /// The next masters have replaced the old ones: clients that know both sets get no votes any more.
    Finished,
}

/// The state of all masters: the result of [`Redlock::survey`](crate::Redlock::survey), and of each step of a
/// replacement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The state of each master.
    pub masters: Vec<MasterSeen>,
    /// The values (quotas and once-per-period records) that this call has copied to the next masters or removed from
    /// the next masters.
    pub carried: Vec<CarriedValue>,
    pub(super) advice: Vec<String>,
    pub(super) configuration: Configuration,
    pub(super) quorum: Quorum,
    /// If this survey is the result of a step that raises generation markers: the time after the step had raised the
    /// markers and ended the connections of outdated clients. `None` for other surveys.
    pub(super) closed_at: Option<Instant>,
}

impl MasterSeen {
    pub(super) fn marker(&self) -> Option<Marker> {
        Marker::read(self.seen.mark.as_ref()?.as_bytes())
    }

    /// Whether the configured user lacks a right that a replacement needs on this master. If true, no step of the
    /// replacement is executed. False if the master did not answer.
    ///
    /// [`ChangeSeen::missing`](crate::node::change::ChangeSeen::missing) lists the missing rights.
    pub fn lacks_rights(&self) -> bool {
        !self.seen.missing.is_empty()
    }
}

impl Survey {
    /// The masters for whose state `such` returns true.
    pub(super) fn those(&self, such: impl Fn(&MasterSeen) -> bool) -> MasterSet {
        let masters = self.masters.iter().enumerate();
        masters
            .filter(|(_, master)| such(master))
            .map(|(index, _)| index)
            .collect()
    }

    /// For each key of a fencing counter, the largest number that an old master reports.
    pub(super) fn largest(&self) -> BTreeMap<Vec<u8>, u64> {
        let mut largest: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for master in self.masters.iter().filter(|master| master.is_old) {
            for (key, number) in &master.seen.counters {
                let known = largest.entry(key.clone()).or_default();
                *known = (*known).max(*number);
            }
        }
        largest
    }

    /// The masters whose generation marker belongs to this replacement and has at least the number `first_marker() +
    /// by`.
    pub(super) fn marked(&self, by: u64) -> MasterSet {
        let least = self.configuration.first_marker() + by;
        let ours = |marker: Marker| {
            let named = self.configuration.is_named_by(marker);
            marker.number >= least && named && !self.is_of_others(marker)
        };
        self.those(|master| master.marker().is_some_and(ours))
    }

    /// Whether any master of the same set (old or next) as the master at `index` has a marker of this replacement. In
    /// that case, a missing marker on another master of this set was lost.
    pub(super) fn has_marker_like(&self, index: usize) -> bool {
        let (marked, is_old) = (self.marked(0), self.quorum.is_old(index));
        let mut masters = self.masters.iter().enumerate();
        masters.any(|(other, master)| master.is_old == is_old && marked.has(other))
    }

    /// Whether any master is open, so that it admits clients that know only the next masters.
    pub(super) fn is_any_open(&self) -> bool {
        self.marked(2) != MasterSet::default()
    }

    /// Whether the fingerprint in the marker differs from the fingerprint of the configured masters.
    pub(super) fn is_of_others(&self, marker: Marker) -> bool {
        let ours = self.configuration.print_at(marker.number);
        ours.is_some_and(|ours| ours != marker.print)
    }

    /// Whether the marker belongs to a later replacement of the masters than this one.
    pub(super) fn is_later(&self, marker: Marker) -> bool {
        let unknown = self.configuration.print_at(marker.number).is_none();
        unknown && marker.number >= self.configuration.first_marker()
    }

    /// The stage of the replacement, derived from the generation markers of the masters.
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

    /// Whether a majority of the old masters has a generation marker with at least this number. If so, the replacement
    /// that wrote this number had opened these masters.
    pub(super) fn is_open_for(&self, number: u64) -> bool {
        let marked = self.those(|master| {
            master
                .marker()
                .is_some_and(|marker| marker.number >= number)
        });
        self.quorum.old_only().is_met_by(marked)
    }

    /// The masters that are closed in this survey and still closed in the later survey `now`. Leaves out a master whose
    /// server process has restarted between the two surveys.
    pub(super) fn closed_until(&self, now: &Self) -> MasterSet {
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
    pub(super) fn names(&self) -> Vec<Vec<u8>> {
        let names = self.masters.iter().flat_map(|master| &master.seen.names);
        let names: BTreeSet<&Vec<u8>> = names.collect();
        names.into_iter().cloned().collect()
    }

    /// One line for each fencing counter that was not raised on a majority of the next masters, because an
    /// [`Owner`](crate::Owner) holds the lock.
    pub(super) fn held_by_owners(&self) -> Vec<String> {
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
                "{:?}: the fencing counter of this lock cannot be raised while the owner {:?} holds the lock: wait \
                 until the owner releases the lock, then run the step `open` again",
                without(key, Family::Fence.before()),
                without(owner, OWNER)
            )
        };
        left.map(line).collect()
    }

    /// The masters that answered all requests.
    pub(super) fn well(&self) -> MasterSet {
        self.those(|master| master.seen.fault.is_none())
    }

    /// Returns no lines if `so` is true. Otherwise returns the line `missing`, and the lines of
    /// [`faults`](Self::faults).
    pub(super) fn unless(&self, so: bool, missing: &str) -> Vec<String> {
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

    pub(super) fn faults_of(&self, such: impl Fn(&MasterSeen) -> bool) -> Vec<String> {
        let masters = self.masters.iter().filter(|master| such(master));
        let faults = masters.filter_map(|master| {
            let fault: &Fault = master.seen.fault.as_ref()?;
            Some(format!("{}: {fault}", master.node))
        });
        faults.collect()
    }

    /// The reasons why no step may be executed, one line each:
    ///
    /// - a generation marker that is malformed or belongs to another replacement
    /// - a server that is named as two masters
    /// - a master on which the operator's user lacks a right; without this check, a step could fail in the middle of
    ///   its writes
    pub(super) fn obstacles(&self) -> Vec<String> {
        let mut missing = self.faults_of(MasterSeen::lacks_rights);
        for (index, master) in self.masters.iter().enumerate() {
            let node = &master.node;
            if let (Some(text), None) = (&master.seen.mark, master.marker()) {
                missing.push(format!(
                    "{node}: key quorate:masters holds {text:?}, which is not a generation marker: delete this key if \
                     no other program needs it"
                ));
            }
            if let Some(marker) = master.marker()
                && (self.is_of_others(marker) || self.is_later(marker))
            {
                missing.push(format!(
                    "{node}: its generation marker {marker} belongs to other masters or a later replacement: check \
                     masters, next_masters and masters_generation"
                ));
            }
            if let Some(Marker {
                name: Some(name), ..
            }) = master.marker()
                && self.configuration.name() != Some(name)
            {
                missing.push(format!(
                    "{node}: its generation marker bears a name, which is not the name in masters_name: correct \
                     masters_name"
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

    /// One line for each master with a generation marker that lacks the configured name.
    pub(super) fn without_name(&self) -> Vec<String> {
        let lacks = |marker: Marker| !self.configuration.is_named_by(marker);
        let masters = self.masters.iter();
        let masters = masters.filter(|master| master.marker().is_some_and(lacks));
        let line = |master: &MasterSeen| {
            format!(
                "{}: its generation marker does not bear the name in masters_name: run quorate masters mark without \
                 next_masters first",
                master.node
            )
        };
        masters.map(line).collect()
    }

    /// One line for each master whose address does not always lead to the same server. `again` are later connections to
    /// the masters of this survey.
    pub(super) fn alternating(&self, again: &[Self]) -> Vec<String> {
        let mut missing = Vec::new();
        for (index, master) in self.masters.iter().enumerate() {
            let runs = again.iter().filter_map(|later| {
                let later = later.masters.get(index)?;
                later.seen.run_id.as_ref()
            });
            let first = master.seen.run_id.as_ref();
            let runs: BTreeSet<&String> = runs.chain(first).collect();
            if runs.len() > 1 {
                missing.push(format!(
                    "{}: this address leads to {} servers in turn, but must always lead to the same server: name each \
                     server by an address of its own (if the server was just restarted, repeat the step)",
                    master.node,
                    runs.len()
                ));
            }
        }
        missing
    }

    /// The reasons why the next masters cannot replace the old ones, one line each.
    pub(super) fn unfit(&self, max_ttl: Duration) -> Vec<String> {
        let mut missing = Vec::new();
        let young = max_ttl + Duration::from_secs(1);
        for master in self.masters.iter().filter(|master| master.is_next) {
            let (node, seen) = (&master.node, &master.seen);
            if seen.is_uptime_impossible && !master.is_old {
                missing.push(format!(
                    "{node} reports an impossible uptime, because its clock was set after its start: restart this \
                     server, and run the step `begin` again when it has been up for {young:?}"
                ));
            } else if let Some(uptime) = seen.uptime.filter(|up| *up < young && !master.is_old) {
                missing.push(format!(
                    "{node} has been up for only {uptime:?}, but its votes count only after {young:?}: run the step \
                     `begin` again when the server has been up for this long"
                ));
            }
            if let Some(policy) = seen
                .eviction
                .as_ref()
                .filter(|policy| *policy != "noeviction")
            {
                missing.push(format!(
                    "{node} evicts keys ({policy}): set maxmemory-policy noeviction, or use another server if this one is \
                     also a cache"
                ));
            }
        }
        missing.extend(self.clocks_apart(max_ttl));
        missing
    }

    /// If the masters' clocks differ too much, returns one line about this problem; otherwise `None`. With such clocks,
    /// the next masters could grant smaller fencing tokens than the old masters.
    pub(super) fn clocks_apart(&self, max_ttl: Duration) -> Option<String> {
        let masters = self.masters.iter();
        let clocks = masters.filter_map(|master| master.seen.clock_offset_ms);
        let apart = clocks.clone().max()?.abs_diff(clocks.min()?);
        let apart = Duration::from_millis(apart);
        let allowed = max_ttl.saturating_sub(SLACK).max(Duration::from_secs(1));
        (apart > allowed).then(|| {
            format!(
                "the masters' clocks differ by {apart:?}, but at most {allowed:?} is allowed: synchronise the clocks \
                 without a step (slew), or one master at a time with a wait of {max_ttl:?} in between"
            )
        })
    }

    /// One line for each client that is configured with other masters. The masters reject such a client once they have
    /// the generation marker.
    pub(super) fn clients_of_other_masters(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for master in &self.masters {
            for client in &master.seen.clients {
                if self.is_of_other_masters(client) {
                    missing.push(format!(
                        "{}: the client {} at {} is configured with other masters: use the same hosts, ports and \
                         databases as in this configuration",
                        master.node, client.name, client.address
                    ));
                }
            }
        }
        missing
    }

    /// One line for each client of the old masters that does not check the generation marker. Such a client does not
    /// notice the replacement, and must disconnect before the next step. If `allow_unknown_clients` is true, unknown clients
    /// are ignored.
    pub(super) fn clients_without_notice(&self, allow_unknown_clients: bool) -> Vec<String> {
        let mut missing = Vec::new();
        for master in self.masters.iter().filter(|master| master.is_old) {
            let unaware = master
                .seen
                .clients
                .iter()
                .filter(|client| match client.kind {
                    ClientKind::AtStep(..) => false,
                    ClientKind::Untold => true,
                    ClientKind::Unknown => !allow_unknown_clients,
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

    /// Whether `client` uses a different set of masters than this `Redlock`, or names the same masters differently (for
    /// example by another host name). False if the two sets cannot be compared.
    pub fn is_of_other_masters(&self, client: &ClientSeen) -> bool {
        let ClientKind::AtStep(step, print) = client.kind else {
            return false;
        };
        let ours = self.configuration.tagged(step);
        ours.is_some_and(|ours| ours.number() != print)
    }

    /// The step of this `Redlock`: twice its [generation](crate::RedlockBuilder::masters_generation), plus one if next
    /// masters are configured. A client with a lower step ([`ClientKind::AtStep`]) has an older configuration.
    pub fn step(&self) -> u64 {
        self.configuration.step()
    }

    /// Whether next masters are configured: a replacement is in progress or planned.
    pub fn is_change(&self) -> bool {
        self.configuration.has_next()
    }

    /// Whether this `Redlock` cannot get a majority because too many masters reject its configuration. A master rejects
    /// a configuration for one of these reasons:
    ///
    /// - The configuration names masters that have been replaced.
    /// - The configuration names only the next masters, which [`open`](crate::MastersChange::open) has not opened yet.
    /// - The generation marker of the master was written for other masters.
    pub fn refuses(&self) -> bool {
        let refused = self.those(|master| {
            let admission = self.configuration.admission(master.marker());
            master.seen.fault.is_none() && admission != Admission::Admitted
        });
        !self.quorum.possible_without(refused)
    }

    /// Advice for the operator. Advice does not prevent a step of the replacement.
    pub fn advice(&self) -> &[String] {
        &self.advice
    }

    /// One line for each next master that already stores values (quotas and once-per-period records), before this step
    /// copies any.
    pub(super) fn holding_values(&self) -> Vec<String> {
        let next = self.masters.iter();
        let next = next.filter(|master| master.is_next && !master.is_old && master.seen.values > 0);
        let advice = next.map(|master| {
            format!(
                "{} already stores {} values (quotas or once-per-period records): if they are left from an earlier \
                 use, delete them now; the step `open` removes those that no old master has",
                master.node, master.seen.values
            )
        });
        advice.collect()
    }
}
