//! Force-releases on the master in memory. A force-release leaves a break record, so that the former holder's renewals
//! do not restore the lock.

use std::time::Duration;

use super::group::MAX_HOLDS_SHOWN;
use super::master::{Master, parse_number};
use crate::keys::{self, Family};
use crate::node::{Ended, Fault, KeyState};
use crate::protocol::fencing::COUNTER_TTL_US;

/// How long the break record of a force-released lock is kept: two days, twice the longest TTL that any client can
/// configure.
const BROKEN_TTL_US: u64 = 2 * COUNTER_TTL_US;

/// The largest size of a break record in bytes: 64 KiB, enough for 1,927 force-releases of a plain lock in two days.
const MAX_RECORD_BYTES: usize = 65_536;

impl Master {
    /// Executes one step of a force-release: adds the locks `ended` to the break record, and deletes the lock key if
    /// `delete` is true and the force-release ends the lock. `state` is the state of the lock.
    pub(super) fn break_lock(
        &mut self,
        now: u64,
        key: &[u8],
        ended: &[Ended],
        delete: bool,
        state: KeyState,
    ) -> Result<KeyState, Fault> {
        self.add_to_break_record(now, key, ended)?;
        let is_held = |ended_lock: &Ended| state.holder.as_deref() == Some(&ended_lock.value[..]);
        if delete && ended.iter().any(is_held) && self.are_ended(now, key, &state)? {
            self.remove(key);
            if state.holder.as_deref().is_some_and(keys::is_shared_value) {
                for hold in &state.holds {
                    self.remove(&keys::hold_note_key(&hold.value, key));
                }
            } else {
                self.drop_note(now, key);
            }
            let mut live_waiters = state.queue.iter().filter(|waiter| !waiter.lives.is_zero());
            if let Some(first) = live_waiters.next() {
                self.publish(&first.id, &keys::queue_name_of(key));
            }
        }
        let queue = Vec::new();
        Ok(KeyState { queue, ..state })
    }

    /// Whether the break record contains every listed hold of the lock. True if the lock lists 100 holds, because only
    /// the 100 holds with the longest remaining TTL are listed, and these change with every renewal.
    fn are_ended(&mut self, now: u64, key: &[u8], state: &KeyState) -> Result<bool, Fault> {
        if state.holds.len() >= MAX_HOLDS_SHOWN {
            return Ok(true);
        }
        for hold in &state.holds {
            if !self.is_broken(now, key, &hold.value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds force-released locks to the front of the break record of their key (the list of force-released locks), and
    /// begins the lifetime of the record again. Fails if the record would become too large: a holder whose line is
    /// dropped could restore its lock.
    fn add_to_break_record(&mut self, now: u64, key: &[u8], ended: &[Ended]) -> Result<(), Fault> {
        let mut own_locks = ended
            .iter()
            .filter(|ended_lock| !ended_lock.record.is_empty())
            .peekable();
        if own_locks.peek().is_none() {
            return Ok(());
        }
        let record_key = Family::Broken.key_of(key);
        let mut record = self.text(now, &record_key)?.unwrap_or(b"").to_vec();
        for ended_lock in own_locks {
            let entry = [b"\n", &ended_lock.record[..], b"\n"].concat();
            if !record.windows(entry.len()).any(|piece| piece == entry) {
                record = [entry, record].concat();
            }
        }
        if record.len() > MAX_RECORD_BYTES {
            let record_key = String::from_utf8_lossy(&record_key);
            let why = format!(
                "ERR quorate: the break record is full: repeat this in two days, or delete the key {record_key} if the \
                 holders of all earlier force-releases have ended"
            );
            return Err(Fault::Server(why.into()));
        }
        let record_ttl = Duration::from_micros(BROKEN_TTL_US);
        self.set(now, &record_key, record, Some(record_ttl));
        Ok(())
    }

    /// Whether a force-release has ended the lock with the value `value`. This is so if the break record contains this
    /// value.
    pub(super) fn is_broken(&mut self, now: u64, key: &[u8], value: &[u8]) -> Result<bool, Fault> {
        let record = self.text(now, &Family::Broken.key_of(key))?.unwrap_or(b"");
        let entry = [b"\n", value, b"\n"].concat();
        Ok(record.windows(entry.len()).any(|piece| piece == entry))
    }

    /// Whether a force-release has ended the hold `value` of a shared lock. True in two cases:
    ///
    /// - The break record contains `value`.
    /// - The break record contains the lock value `marker` with a fencing counter, and the hold's fencing number
    ///   (`number`) is not larger. The hold was then acquired before the force-release.
    pub(super) fn is_hold_broken(
        &mut self,
        now: u64,
        key: &[u8],
        marker: &[u8],
        (value, number): (&[u8], u64),
    ) -> Result<bool, Fault> {
        if self.is_broken(now, key, value)? {
            return Ok(true);
        }
        let record = self.text(now, &Family::Broken.key_of(key))?.unwrap_or(b"");
        let entry_start = [b"\n", marker, b"\t"].concat();
        let position = record
            .windows(entry_start.len())
            .position(|piece| piece == entry_start);
        let last_counter = position.and_then(|position| {
            let rest = &record[position + entry_start.len()..];
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            parse_number(&rest[..end])
        });
        Ok(last_counter.is_some_and(|last_counter| number <= last_counter))
    }
}
