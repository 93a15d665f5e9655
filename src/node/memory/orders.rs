//! The scripts that maintain generation markers and age records, and those that operators run to replace masters, on
//! the master in memory.

use super::master::{Master, parse_number};
use crate::keys::{AGE_KEY, Family, MARKER_KEY, OWNER_VALUE_PREFIX};
use crate::node::Fault;
use crate::node::age_call::AgeCall;

/// The result of raising one fencing counter ([`Master::raise_counters`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RaisedCounter {
    /// The counter was already high enough.
    Unchanged,
    /// The counter was raised.
    Raised,
    /// The counter was not raised, because an owner holds the lock. The bytes are the value of the lock key.
    Owned(Vec<u8>),
}

impl Master {
    /// Raises the generation marker, and never lowers it. The new marker has the number `number`, and then `print`: the
    /// fingerprint of the masters, and that of their name if they have one. `now` is in microseconds on the master's
    /// clock.
    ///
    /// Writes `age_record` only together with a marker that the master did not have. Returns the marker that the master
    /// has now.
    ///
    /// # Errors
    ///
    /// [`Fault::WrongType`] if the marker's key does not have the type string.
    pub fn raise_marker(
        &mut self,
        now: u64,
        (number, print): (u64, &str),
        age_record: &str,
    ) -> Result<Vec<u8>, Fault> {
        let raised = format!("{number} {print}").into_bytes();
        match self.text(now, MARKER_KEY.as_bytes())? {
            None => self.put_text(now, AGE_KEY.as_bytes(), age_record.as_bytes(), None),
            Some(marker) => {
                let gets_name = print
                    .split_once(' ')
                    .is_some_and(|(print, _)| marker == format!("{number} {print}").into_bytes());
                let is_lower = number_of(marker).is_some_and(|present| present < number as f64);
                if !is_lower && !gets_name {
                    return Ok(marker.to_vec());
                }
            }
        }
        self.put_text(now, MARKER_KEY.as_bytes(), &raised, None);
        Ok(raised)
    }

    /// Raises the age record of the server, and restores a lost generation marker. Returns the age record; empty if the
    /// server has no generation marker. `now` is in microseconds on the master's clock.
    ///
    /// # Errors
    ///
    /// [`Fault::WrongType`] if the marker's key does not have the type string.
    pub fn raise_age(&mut self, now: u64, call: &AgeCall<'_>) -> Result<Vec<u8>, Fault> {
        let is_marker_lost = self.text(now, MARKER_KEY.as_bytes())?.is_none();
        if is_marker_lost && call.marker.is_empty() {
            return Ok(Vec::new());
        }
        // A record of another type is overwritten.
        let record = self.text(now, AGE_KEY.as_bytes()).unwrap_or_default();
        let raised = match record.and_then(split_record) {
            _ if is_marker_lost => format!("{} 0 lost-{}", call.run, call.new_life),
            Some((run, age, life)) if run == call.run => {
                if life != call.life || age >= call.age_ms as f64 {
                    return Ok(record.unwrap_or_default().to_vec());
                }
                format!("{run} {} {life}", call.age_ms)
            }
            _ => {
                let age_ms = if call.life.is_empty() { call.age_ms } else { 0 };
                format!("{} {age_ms} {}", call.run, call.new_life)
            }
        };
        self.put_text(now, AGE_KEY.as_bytes(), raised.as_bytes(), None);
        if is_marker_lost {
            self.put_text(now, MARKER_KEY.as_bytes(), call.marker.as_bytes(), None);
        }
        Ok(raised.into_bytes())
    }

    /// Raises each fencing counter in `counters` (its key, and its number), and never lowers a counter. Does not raise
    /// the counter of a lock that an owner holds. `now` is in microseconds on the master's clock.
    ///
    /// # Errors
    ///
    /// A fault if a key does not contain a counter. The counters before this key are raised then.
    pub fn raise_counters(
        &mut self,
        now: u64,
        counters: &[(Vec<u8>, u64)],
    ) -> Result<Vec<RaisedCounter>, Fault> {
        let raise = |(key, number): &(Vec<u8>, u64)| {
            let lock = key.strip_prefix(Family::Fence.key_prefix().as_bytes());
            self.raise_one_counter(now, lock.unwrap_or_default(), *number)
        };
        counters.iter().map(raise).collect()
    }

    fn raise_one_counter(
        &mut self,
        now: u64,
        lock: &[u8],
        number: u64,
    ) -> Result<RaisedCounter, Fault> {
        let counter = match self.text(now, &Family::Fence.key_of(lock))? {
            None => 0,
            Some(text) => parse_number(text)
                .ok_or_else(|| Fault::Server("attempt to compare nil with number".into()))?,
        };
        // A lock key of another type is not an owner's.
        let held = self.text(now, lock).unwrap_or_default();
        let owned = held.filter(|held| held.starts_with(OWNER_VALUE_PREFIX.as_bytes()));
        if let Some(held) = owned.filter(|_| counter <= number) {
            return Ok(RaisedCounter::Owned(held.to_vec()));
        }
        if counter >= number {
            return Ok(RaisedCounter::Unchanged);
        }
        self.set_counter(now, lock, number);
        Ok(RaisedCounter::Raised)
    }
}

/// The number of a generation marker; `None` if the text is not a number that is followed by one or two fingerprints.
/// The scripts compare the numbers of markers as floating-point numbers.
fn number_of(marker: &[u8]) -> Option<f64> {
    let (number, prints) = std::str::from_utf8(marker).ok()?.split_once(' ')?;
    let is_print =
        |print: &str| !print.is_empty() && print.bytes().all(|byte| byte.is_ascii_hexdigit());
    let are_prints = match prints.split_once(' ') {
        Some((set, name)) => is_print(set) && is_print(name),
        None => is_print(prints),
    };
    let has_digits_only = number.bytes().all(|byte| byte.is_ascii_digit());
    let number = number.parse().ok();
    number.filter(|_| are_prints && has_digits_only)
}

/// The run id, the age and the life in an age record; `None` if the text is no age record. The script compares ages as
/// floating-point numbers.
fn split_record(record: &[u8]) -> Option<(&str, f64, &str)> {
    let (run, rest) = std::str::from_utf8(record).ok()?.split_once(' ')?;
    let (age, life) = rest.split_once(' ')?;
    let is_word =
        |word: &str| !word.is_empty() && !word.contains(|c: char| c.is_ascii_whitespace());
    let has_digits_only = age.bytes().all(|byte| byte.is_ascii_digit());
    let is_record = is_word(run) && is_word(life) && has_digits_only;
    Some((run, age.parse().ok().filter(|_| is_record)?, life))
}
