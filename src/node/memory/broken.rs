//! Force-releases on the master in memory. A force-release leaves a break record, so that the former holder's renewals
//! do not restore the lock.

use std::time::Duration;

use super::master::{Master, Outcome, parse, shown_value};
use crate::keys::{self, Family};
use crate::node::{KeyState, Token};
use crate::protocol::fencing::COUNTER_TTL_US;

/// How long the break record of a force-released lock is kept: two days, twice the longest TTL that any client can
/// configure.
const BROKEN_TTL_US: u64 = 2 * COUNTER_TTL_US;

impl Master {
    pub(super) fn break_lock(&mut self, now: u64, key: &[u8], was: KeyState) -> Outcome<KeyState> {
        if let Some(holder) = self.text(now, key)?.map(shown_value) {
            self.mark_as_broken(now, key, &holder, &was)?;
            self.remove(key);
            if keys::is_marker(&holder) {
                for hold in &was.holds {
                    self.remove(&keys::hold(&hold.value, key));
                }
            } else {
                self.drop_note(now, key);
            }
            let mut living = was.queue.iter().filter(|waiter| !waiter.lives.is_zero());
            if let Some(first) = living.next() {
                self.publish(&first.id, &keys::line_of(key));
            }
        }
        let queue = Vec::new();
        Ok(KeyState { queue, ..was })
    }

    /// Adds a force-released lock to the front of the break record of its key (the list of force-released locks):
    ///
    /// - for a plain lock: the value of the lock key;
    /// - for a lock of readers or of an owner: the value of the lock key, the fencing counter, and the random value of
    ///   each hold.
    ///
    /// Adds nothing if another program set the lock key, because no client of this library renews that lock.
    fn mark_as_broken(
        &mut self,
        now: u64,
        key: &[u8],
        holder: &[u8],
        was: &KeyState,
    ) -> Outcome<()> {
        if !keys::is_marker(holder) && Token::from_hex(holder).is_none() {
            return Ok(());
        }
        let mark = Family::Broken.of(key);
        let others = self.text(now, &mark)?.unwrap_or(b"");
        let counter = was.counter.unwrap_or(0).to_string();
        let mut all = if keys::is_marker(holder) {
            [b"\n", holder, b"\t", counter.as_bytes(), b"\n"].concat()
        } else {
            [b"\n", holder, b"\n"].concat()
        };
        for hold in &was.holds {
            all.extend([&hold.value[..], b"\n"].concat());
        }
        all.extend_from_slice(others);
        all.truncate(16_384);
        let lives = Duration::from_micros(BROKEN_TTL_US);
        self.set(now, &mark, all, Some(lives));
        Ok(())
    }

    /// Whether a force-release has ended the lock with the value `ours`. This is so if the break record contains this
    /// value.
    pub(super) fn is_broken(&mut self, now: u64, key: &[u8], ours: &[u8]) -> Outcome<bool> {
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
    ) -> Outcome<bool> {
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
