//! Force-releases on the master in memory. A force-release leaves a break record, so that the former holder's renewals
//! do not restore the lock.

use std::time::Duration;

use super::group::SHOWN;
use super::master::{Master, parse};
use crate::keys::{self, Family};
use crate::node::{Ended, Fault, KeyState};
use crate::protocol::fencing::COUNTER_TTL_US;

/// How long the break record of a force-released lock is kept: two days, twice the longest TTL that any client can
/// configure.
const BROKEN_TTL_US: u64 = 2 * COUNTER_TTL_US;

/// The largest size of a break record in bytes: 64 KiB, enough for 1,927 force-releases of a plain lock in two days.
const MOST: usize = 65_536;

impl Master {
    /// Executes one step of a force-release: adds the locks `ended` to the break record, and deletes the lock key if
    /// `delete` is true and the force-release ends the lock. `was` is the state of the lock.
    pub(super) fn break_lock(
        &mut self,
        now: u64,
        key: &[u8],
        ended: &[Ended],
        delete: bool,
        was: KeyState,
    ) -> Result<KeyState, Fault> {
        self.record(now, key, ended)?;
        let is_held = |one: &Ended| was.holder.as_deref() == Some(&one.value[..]);
        if delete && ended.iter().any(is_held) && self.are_ended(now, key, &was)? {
            self.remove(key);
            if was.holder.as_deref().is_some_and(keys::is_marker) {
                for hold in &was.holds {
                    self.remove(&keys::hold_note_key(&hold.value, key));
                }
            } else {
                self.drop_note(now, key);
            }
            let mut living = was.queue.iter().filter(|waiter| !waiter.lives.is_zero());
            if let Some(first) = living.next() {
                self.publish(&first.id, &keys::queue_name_of(key));
            }
        }
        let queue = Vec::new();
        Ok(KeyState { queue, ..was })
    }

    /// Whether the break record contains every listed hold of the lock. True if the lock lists 100 holds, because only
    /// the 100 holds with the longest remaining TTL are listed, and these change with every renewal.
    fn are_ended(&mut self, now: u64, key: &[u8], was: &KeyState) -> Result<bool, Fault> {
        if was.holds.len() >= SHOWN {
            return Ok(true);
        }
        for hold in &was.holds {
            if !self.is_broken(now, key, &hold.value)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds force-released locks to the front of the break record of their key (the list of force-released locks), and
    /// begins the lifetime of the record again. Fails if the record would become too large: a holder whose line is
    /// dropped could restore its lock.
    fn record(&mut self, now: u64, key: &[u8], ended: &[Ended]) -> Result<(), Fault> {
        let mut ours = ended.iter().filter(|one| !one.record.is_empty()).peekable();
        if ours.peek().is_none() {
            return Ok(());
        }
        let mark = Family::Broken.of(key);
        let mut all = self.text(now, &mark)?.unwrap_or(b"").to_vec();
        for one in ours {
            let line = [b"\n", &one.record[..], b"\n"].concat();
            if !all.windows(line.len()).any(|piece| piece == line) {
                all = [line, all].concat();
            }
        }
        if all.len() > MOST {
            let mark = String::from_utf8_lossy(&mark);
            let why = format!(
                "ERR quorate: the break record is full: repeat this in two days, or delete the key {mark} if the \
                 holders of all earlier force-releases have ended"
            );
            return Err(Fault::Server(why.into()));
        }
        let lives = Duration::from_micros(BROKEN_TTL_US);
        self.set(now, &mark, all, Some(lives));
        Ok(())
    }

    /// Whether a force-release has ended the lock with the value `ours`. This is so if the break record contains this
    /// value.
    pub(super) fn is_broken(&mut self, now: u64, key: &[u8], ours: &[u8]) -> Result<bool, Fault> {
        let mark = self.text(now, &Family::Broken.of(key))?.unwrap_or(b"");
        let line = [b"\n", ours, b"\n"].concat();
        Ok(mark.windows(line.len()).any(|piece| piece == line))
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
        let mark = self.text(now, &Family::Broken.of(key))?.unwrap_or(b"");
        let before = [b"\n", marker, b"\t"].concat();
        let at = mark.windows(before.len()).position(|piece| piece == before);
        let last = at.and_then(|at| {
            let rest = &mark[at + before.len()..];
            let end = rest.iter().position(|byte| *byte == b'\n')?;
            parse(&rest[..end])
        });
        Ok(last.is_some_and(|last| number <= last))
    }
}
