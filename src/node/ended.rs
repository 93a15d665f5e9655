//! The locks that a force-release ends, as the masters reported them.

use super::answer::KeyState;
use super::token::Token;
use crate::keys;

/// The largest number of holds of one shared lock in a break record. More than a majority of the masters can list, each
/// of which lists at most 100. The line with the fencing counter covers the holds that are left out.
const MAX_HOLDS: usize = 200;

/// A lock that a force-release ends. The operator's client builds it from the states that the masters reported.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// The value of the lock key; only its first 96 bytes if it is longer.
    pub value: Box<[u8]>,
    /// The lines that every master adds to the break record (the list of the force-released locks of this key):
    ///
    /// - for a plain lock: the value of the lock key;
    /// - for a lock of readers or of an owner: the value of the lock key, a tab and the largest fencing counter of the
    ///   masters, then the random value of each hold;
    /// - empty if another program set the lock key, because no client of this library renews that lock.
    pub record: Box<[u8]>,
}

impl Ended {
    /// Creates the entry from its two fields, as a request contains them.
    pub fn new(value: &[u8], record: &[u8]) -> Self {
        Self {
            value: value.into(),
            record: record.into(),
        }
    }

    /// The locks in `states`, each listed once. `states` are the states of one lock key on several masters.
    pub fn all<'a>(states: impl Iterator<Item = &'a KeyState> + Clone) -> Vec<Self> {
        let mut values: Vec<&[u8]> = states.clone().filter_map(|s| s.holder.as_deref()).collect();
        values.sort_unstable();
        values.dedup();
        let ended_lock = |value: &'a [u8]| {
            let matching = states.clone();
            let matching = matching.filter(move |state| state.holder.as_deref() == Some(value));
            Self::from_states(value, matching)
        };
        values.into_iter().map(ended_lock).collect()
    }

    /// The entry for the lock value `value`. `states` are the states that contain this value.
    fn from_states<'a>(value: &[u8], states: impl Iterator<Item = &'a KeyState>) -> Self {
        if Token::from_hex(value).is_some() {
            return Self::new(value, value);
        }
        if !keys::is_shared_value(value) {
            return Self::new(value, b"");
        }
        let (mut counter, mut holds) = (0, Vec::new());
        for state in states {
            counter = counter.max(state.counter.unwrap_or(0));
            holds.extend(state.holds.iter().map(|hold| &hold.value[..]));
        }
        holds.sort_unstable();
        holds.dedup();
        holds.truncate(MAX_HOLDS);
        let mut record = [value, b"\t", counter.to_string().as_bytes()].concat();
        for hold in holds {
            record.push(b'\n');
            record.extend_from_slice(hold);
        }
        Self::new(value, &record)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::node::Hold;

    fn state(holder: &str, counter: u64, holds: &[&str]) -> KeyState {
        let lifetime = Duration::from_secs(1);
        let hold_with_value = |value: &&str| Hold::new(value.as_bytes().to_vec(), lifetime, None);
        KeyState {
            holder: Some(holder.into()),
            counter: Some(counter),
            holds: holds.iter().map(hold_with_value).collect(),
            ..KeyState::default()
        }
    }

    #[test]
    fn ended_locks_contain_each_value_that_any_master_reported_once() {
        let (a, b) = ("a".repeat(32), "b".repeat(32));
        let states = [
            state(&b, 5, &[]),
            KeyState::default(),
            state(&a, 9, &[]),
            state(&b, 7, &[]),
            state("of another program", 7, &[]),
        ];
        let ended = Ended::all(states.iter());
        let plain_ended = |value: &str| Ended::new(value.as_bytes(), value.as_bytes());
        let foreign = Ended::new(b"of another program", b"");
        assert_eq!(ended, [plain_ended(&a), plain_ended(&b), foreign]);
        assert_eq!(Ended::all([].iter()), []);
    }

    #[test]
    fn ended_shared_lock_contains_all_holds_and_the_largest_counter_of_all_masters() {
        let shared = keys::SHARED_LOCK_VALUE;
        let states = [state(shared, 5, &["x", "y"]), state(shared, 9, &["y", "z"])];
        let record = format!("{shared}\t9\nx\ny\nz");
        let expected = Ended::new(shared.as_bytes(), record.as_bytes());
        assert_eq!(Ended::all(states.iter()), [expected]);
    }
}
