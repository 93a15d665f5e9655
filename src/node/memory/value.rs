//! Reads and writes the application's value that is stored under a lock, on the master in memory.

use super::master::{Master, parse_number};
use crate::keys::Family;
use crate::node::numbers::LARGEST_COUNTER;
use crate::node::{Answer, Claim, Fault, StoredValue};

impl Master {
    pub(super) fn read_value(
        &mut self,
        now: u64,
        claim: &Claim,
        token: u64,
    ) -> Result<Answer, Fault> {
        let stored = self.stored_value(now, claim.key())?;
        if !self.is_ours(now, claim)? {
            return Ok(Answer::NotOurs);
        }
        if let Some(above) = self.number_above(now, claim.key(), stored.as_ref(), token)? {
            // A stored value contains the fencing number of its writer. If the counter is smaller, raise it to this
            // number, so that the next holder gets a larger number.
            if self.counter(now, claim.key())? < above {
                self.set_counter(now, claim.key(), above);
            }
            return Ok(Answer::CounterAbove(above));
        }
        self.set_counter(now, claim.key(), token);
        let (run, clock) = (self.run().clone(), self.clock(now));
        Ok(Answer::Value { run, stored, clock })
    }

    pub(super) fn write_value(
        &mut self,
        now: u64,
        claim: &Claim,
        token: u64,
        bytes: Option<&[u8]>,
    ) -> Result<Answer, Fault> {
        let stored = self.stored_value(now, claim.key())?;
        if let Some(above) = self.number_above(now, claim.key(), stored.as_ref(), token)? {
            return Ok(Answer::CounterAbove(above));
        }
        let key = Family::Value.key_of(claim.key());
        let run = self.run().clone();
        if let Some(bytes) = bytes {
            let prefix = format!("{token} {} ", run.as_str());
            self.set(now, &key, [prefix.as_bytes(), bytes].concat(), None);
        } else {
            self.remove(&key);
            self.set_counter(now, claim.key(), token);
        }
        Ok(Answer::Written { run })
    }

    /// Returns the larger of the lock's fencing counter and the fencing number of the stored value. `None` if neither
    /// is larger than `token`.
    pub(super) fn number_above(
        &mut self,
        now: u64,
        key: &[u8],
        stored: Option<&StoredValue>,
        token: u64,
    ) -> Result<Option<u64>, Fault> {
        let number = stored.map_or(0, |stored| stored.number);
        let largest = self.counter(now, key)?.max(number);
        Ok(Some(largest).filter(|largest| *largest > token))
    }

    fn stored_value(&mut self, now: u64, key: &[u8]) -> Result<Option<StoredValue>, Fault> {
        let run = self.run().clone();
        let key = Family::Value.key_of(key);
        let Some(text) = self.text(now, &key)? else {
            return Ok(None);
        };
        let mut parts = text.splitn(3, |byte| *byte == b' ');
        let number = parts.next().filter(|digits| !digits.starts_with(b"+"));
        match (number.and_then(parse_number), parts.next(), parts.next()) {
            (Some(number @ 1..LARGEST_COUNTER), Some(run_of_value), Some(bytes))
                if !run_of_value.is_empty() =>
            {
                Ok(Some(StoredValue {
                    number,
                    bytes: bytes.to_vec(),
                    trusted: run_of_value == run.as_str().as_bytes(),
                }))
            }
            _ => {
                let key = String::from_utf8_lossy(&key);
                let why =
                    format!("ERR quorate: {key} was not written by quorate and is not changed");
                Err(Fault::Server(why.into()))
            }
        }
    }
}
