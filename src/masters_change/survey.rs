//! The state of all masters during a replacement, and what it says about the next step.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::values::CarriedValue;
use crate::keys::{Family, OWNER_VALUE_PREFIX};
use crate::node::Fault;
use crate::node::change::{ClientKind, ClientSeen, MasterSeen};
use crate::protocol::instant::Instant;
use crate::protocol::marker::{Admission, Configuration, Marker};
use crate::protocol::quorum::{MasterSet, Quorum};
use crate::values::register::CarryResult;

/// The masters' clocks may differ by at most `max_ttl` minus `CLOCK_SLACK`, but a difference of 1 s is always allowed.
const CLOCK_SLACK: Duration = Duration::from_secs(2);

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
    /// The masters for whose state `is_selected` returns true.
    pub(super) fn masters_where(&self, is_selected: impl Fn(&MasterSeen) -> bool) -> MasterSet {
        let masters = self.masters.iter().enumerate();
        masters
            .filter(|(_, master)| is_selected(master))
            .map(|(index, _)| index)
            .collect()
    }

    /// For each key of a fencing counter, the largest number that an old master reports.
    pub(super) fn largest_counters(&self) -> BTreeMap<Vec<u8>, u64> {
        let mut largest_numbers: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        for master in self.masters.iter().filter(|master| master.is_old) {
            for (key, number) in &master.seen.counters {
                let largest = largest_numbers.entry(key.clone()).or_default();
                *largest = (*largest).max(*number);
            }
        }
        largest_numbers
    }

    /// The masters whose generation marker belongs to this replacement and has at least the number `first_marker() +
    /// by`.
    pub(super) fn masters_marked_at_least(&self, by: u64) -> MasterSet {
        let least_number = self.configuration.first_marker() + by;
        let is_ours = |marker: Marker| {
            let is_named = self.configuration.is_named_by(marker);
            marker.number >= least_number && is_named && !self.belongs_to_other_masters(marker)
        };
        self.masters_where(|master| master.marker().is_some_and(is_ours))
    }

    /// Whether any master of the same set (old or next) as the master at `index` has a marker of this replacement. In
    /// that case, a missing marker on another master of this set was lost.
    pub(super) fn has_marker_like(&self, index: usize) -> bool {
        let (marked, is_old) = (self.masters_marked_at_least(0), self.quorum.is_old(index));
        let mut masters = self.masters.iter().enumerate();
        masters.any(|(other_index, master)| master.is_old == is_old && marked.has(other_index))
    }

    /// Whether any master is open, so that it admits clients that know only the next masters.
    pub(super) fn is_any_open(&self) -> bool {
        self.masters_marked_at_least(2) != MasterSet::default()
    }

    /// Checks that no next master admits clients yet, so that values may be copied to the next masters. If one does,
    /// another operator has already copied the values, and the old masters may have outdated values: then the error is
    /// [`CarryResult::Nowhere`].
    ///
    /// The check needs the answers of only a majority of the next masters. Without them, the error is
    /// [`CarryResult::Undecided`].
    pub(super) fn check_next_masters_are_closed(&self) -> Result<(), CarryResult> {
        if self.is_any_open() {
            return Err(CarryResult::Nowhere);
        }
        let next_quorum = self.quorum.next_only();
        if next_quorum.is_met_by(self.masters_without_fault()) {
            return Ok(());
        }
        Err(CarryResult::Undecided(self.faults().join("; ")))
    }

    /// Whether the fingerprint in the marker differs from the fingerprint of the configured masters.
    pub(super) fn belongs_to_other_masters(&self, marker: Marker) -> bool {
        let own_print = self.configuration.print_at(marker.number);
        own_print.is_some_and(|own_print| own_print != marker.print)
    }

    /// Whether the marker belongs to a later replacement of the masters than this one.
    pub(super) fn is_later(&self, marker: Marker) -> bool {
        self.configuration.is_older_than(marker.number)
    }

    /// The stage of the replacement, derived from the generation markers of the masters.
    pub fn stage(&self) -> ChangeStage {
        let [old, next] = [self.quorum.old_only(), self.quorum.next_only()];
        if next.is_met_by(self.masters_marked_at_least(4)) {
            ChangeStage::Finished
        } else if next.is_met_by(self.masters_marked_at_least(2)) {
            ChangeStage::Open
        } else if old.is_met_by(self.masters_marked_at_least(1)) {
            ChangeStage::Closed
        } else if self.masters_marked_at_least(1) != MasterSet::default() {
            ChangeStage::PartlyClosed
        } else if self.quorum.is_met_by(self.masters_marked_at_least(0)) {
            ChangeStage::Begun
        } else {
            ChangeStage::Untouched
        }
    }

    /// Whether a majority of the old masters has a generation marker with at least this number. If so, the replacement
    /// that wrote this number had opened these masters.
    pub(super) fn is_open_for(&self, number: u64) -> bool {
        let marked = self.masters_where(|master| {
            master
                .marker()
                .is_some_and(|marker| marker.number >= number)
        });
        self.quorum.old_only().is_met_by(marked)
    }

    /// The masters that are closed in this survey and still closed in the later survey `now`. Leaves out a master whose
    /// server process has restarted between the two surveys.
    pub(super) fn closed_throughout(&self, later: &Self) -> MasterSet {
        let closed = self.masters_marked_at_least(1);
        let still_closed = later.masters_marked_at_least(1);
        let is_same_run = |index: &usize| {
            let run_id_in = |survey: &Self| survey.masters.get(*index)?.seen.run_id.clone();
            run_id_in(self).is_some() && run_id_in(self) == run_id_in(later)
        };
        let closed_in_both =
            (0..self.masters.len()).filter(|index| closed.has(*index) && still_closed.has(*index));
        closed_in_both.filter(is_same_run).collect()
    }

    /// The keys of all locks under which any master stores a value (quota or once-per-period record).
    pub(super) fn value_names(&self) -> Vec<Vec<u8>> {
        let all_names = self.masters.iter().flat_map(|master| &master.seen.names);
        let names: BTreeSet<&Vec<u8>> = all_names.collect();
        names.into_iter().cloned().collect()
    }

    /// One line for each fencing counter that was not raised on a majority of the next masters, because an
    /// [`Owner`](crate::Owner) holds the lock.
    pub(super) fn held_by_owners(&self) -> Vec<String> {
        let owners = self.masters.iter().flat_map(|master| &master.seen.owned);
        let owned: BTreeMap<&Vec<u8>, &Vec<u8>> = owners.map(|(key, owner)| (key, owner)).collect();
        let refused_owners = owned.into_iter().filter(|(key, _)| {
            let accepted_counter = |master: &MasterSeen| {
                let mut owned = master.seen.owned.iter();
                master.seen.fault.is_none() && !owned.any(|(other, _)| other == *key)
            };
            !self
                .quorum
                .next_only()
                .is_met_by(self.masters_where(accepted_counter))
        });
        let text_of_lock = |(key, owner): (&Vec<u8>, &Vec<u8>)| {
            let without_prefix = |text: &[u8], prefix: &str| {
                let rest = text.strip_prefix(prefix.as_bytes()).unwrap_or(text);
                String::from_utf8_lossy(rest).into_owned()
            };
            format!(
                "{:?}: the fencing counter of this lock cannot be raised while the owner {:?} holds the lock: wait \
                 until the owner releases the lock, then run the step `open` again",
                without_prefix(key, Family::Fence.key_prefix()),
                without_prefix(owner, OWNER_VALUE_PREFIX)
            )
        };
        refused_owners.map(text_of_lock).collect()
    }

    /// The masters that answered all requests.
    pub(super) fn masters_without_fault(&self) -> MasterSet {
        self.masters_where(|master| master.seen.fault.is_none())
    }

    /// Returns no lines if `is_met` is true. Otherwise returns the line `missing`, and the lines of
    /// [`faults`](Self::faults).
    pub(super) fn missing_unless(&self, is_met: bool, missing: &str) -> Vec<String> {
        if is_met {
            return Vec::new();
        }
        let mut missing = vec![missing.to_owned()];
        missing.extend(self.faults());
        missing
    }

    /// One line for each master that could not be asked, or did not answer every request.
    pub fn faults(&self) -> Vec<String> {
        self.faults_where(|_| true)
    }

    pub(super) fn faults_where(&self, is_selected: impl Fn(&MasterSeen) -> bool) -> Vec<String> {
        let masters = self.masters.iter().filter(|master| is_selected(master));
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
        let mut missing = self.faults_where(MasterSeen::lacks_rights);
        for (index, master) in self.masters.iter().enumerate() {
            let node = &master.node;
            if let (Some(text), None) = (&master.seen.mark, master.marker()) {
                missing.push(format!(
                    "{node}: key quorate:masters holds {text:?}, which is not a generation marker: delete this key if \
                     no other program needs it"
                ));
            }
            if let Some(marker) = master.marker()
                && (self.belongs_to_other_masters(marker) || self.is_later(marker))
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
            let run_id = master.seen.run_id.as_ref();
            let is_same_server =
                |other: &&MasterSeen| run_id.is_some() && other.seen.run_id.as_ref() == run_id;
            if let Some(other) = self.masters[..index].iter().find(is_same_server) {
                missing.push(format!(
                    "{node} is the same server as {}: name each server once",
                    other.node
                ));
            }
        }
        missing
    }

    /// One line for each master with a generation marker that lacks the configured name.
    pub(super) fn markers_without_name(&self) -> Vec<String> {
        let lacks_name = |marker: Marker| !self.configuration.is_named_by(marker);
        let masters = self
            .masters
            .iter()
            .filter(|master| master.marker().is_some_and(lacks_name));
        let text_of_master = |master: &MasterSeen| {
            format!(
                "{}: its generation marker does not bear the name in masters_name: run quorate masters mark without \
                 next_masters first",
                master.node
            )
        };
        masters.map(text_of_master).collect()
    }

    /// One line for each master whose address does not always lead to the same server. `again` are later connections to
    /// the masters of this survey.
    pub(super) fn alternating_addresses(&self, later_surveys: &[Self]) -> Vec<String> {
        let mut missing = Vec::new();
        for (index, master) in self.masters.iter().enumerate() {
            let later_ids = later_surveys.iter().filter_map(|later| {
                let later = later.masters.get(index)?;
                later.seen.run_id.as_ref()
            });
            let first_run_id = master.seen.run_id.as_ref();
            let run_ids: BTreeSet<&String> = later_ids.chain(first_run_id).collect();
            if run_ids.len() > 1 {
                missing.push(format!(
                    "{}: this address leads to {} servers in turn, but must always lead to the same server: name each \
                     server by an address of its own (if the server was just restarted, repeat the step)",
                    master.node,
                    run_ids.len()
                ));
            }
        }
        missing
    }

    /// The reasons why the next masters cannot replace the old ones, one line each.
    pub(super) fn unfit_next_masters(&self, max_ttl: Duration) -> Vec<String> {
        let mut missing = Vec::new();
        let required_uptime = max_ttl + Duration::from_secs(1);
        for master in self.masters.iter().filter(|master| master.is_next) {
            let (node, seen) = (&master.node, &master.seen);
            if seen.is_uptime_impossible && !master.is_old {
                missing.push(format!(
                    "{node} reports an impossible uptime, because its clock was set after its start: restart this \
                     server, and run the step `begin` again when it has been up for {required_uptime:?}"
                ));
            } else if let Some(uptime) = seen
                .uptime
                .filter(|up| *up < required_uptime && !master.is_old)
            {
                missing.push(format!(
                    "{node} has been up for only {uptime:?}, but its votes count only after {required_uptime:?}: run the step \
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
        let apart_ms = clocks.clone().max()?.abs_diff(clocks.min()?);
        let apart = Duration::from_millis(apart_ms);
        let allowed = max_ttl
            .saturating_sub(CLOCK_SLACK)
            .max(Duration::from_secs(1));
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
    /// notice the replacement, and must disconnect before the next step. If `allow_unknown_clients` is true, unknown
    /// clients are ignored.
    pub(super) fn clients_without_notice(&self, allow_unknown_clients: bool) -> Vec<String> {
        let mut missing = Vec::new();
        for master in self.masters.iter().filter(|master| master.is_old) {
            let unaware_clients = master
                .seen
                .clients
                .iter()
                .filter(|client| match client.kind {
                    ClientKind::AtStep(..) => false,
                    ClientKind::Untold => true,
                    ClientKind::Unknown => !allow_unknown_clients,
                });
            for client in unaware_clients {
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
        let own_print = self.configuration.tagged(step);
        own_print.is_some_and(|own_print| own_print.number() != print)
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
        let refusing_masters = self.masters_where(|master| {
            let admission = self.configuration.admission(master.marker());
            master.seen.fault.is_none() && admission != Admission::Admitted
        });
        !self.quorum.is_possible_without(refusing_masters)
    }

    /// Advice for the operator. Advice does not prevent a step of the replacement.
    pub fn advice(&self) -> &[String] {
        &self.advice
    }

    /// One line for each next master that already stores values (quotas and once-per-period records), before this step
    /// copies any.
    pub(super) fn next_masters_with_values(&self) -> Vec<String> {
        let masters = self.masters.iter();
        // Each master is an old master, a next master, or both.
        let next_masters = masters.filter(|master| !master.is_old && master.seen.values > 0);
        let advice = next_masters.map(|master| {
            format!(
                "{} already stores {} values (quotas or once-per-period records): if they are left from an earlier \
                 use, delete them now; the step `open` removes those that no old master has",
                master.node, master.seen.values
            )
        });
        advice.collect()
    }
}

#[cfg(test)]
pub(super) mod tests;
