//! The commands with which an operator reads and changes the keys of a master: parses them, executes them on a master in
//! memory, and writes the replies.
//!
//! `change.rs` is the client half. `tests/contract/orders.rs` compares this half with real servers.

use super::reply::error;
use super::write::{bulk, number, write_array};
use crate::keys::MARKER_KEY;
use crate::node::change::Counter;
use crate::node::memory::{Master, RaisedCounter};
use crate::node::numbers::parse_whole;
use crate::node::redis::script::OperatorScript;

/// A command of an operator that reads or changes the keys of a master, or that reads its clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperatorCommand<'a> {
    /// Reads the clock of the master.
    ReadClock,
    /// Reads the string under this key.
    Read(&'a [u8]),
    /// Lists the keys that match this pattern: a prefix followed by `*`.
    List(&'a [u8]),
    /// Raises the generation marker ([`Master::raise_marker`]).
    RaiseMarker {
        /// The number of the new marker.
        number: u64,
        /// The fingerprint of the masters in the new marker, and that of their name if they have one.
        print: &'a str,
        /// The age record to write if the master has no marker.
        age_record: &'a str,
    },
    /// Raises fencing counters ([`Master::raise_counters`]).
    RaiseCounters(Vec<Counter>),
}

impl<'a> OperatorCommand<'a> {
    /// Parses the words of a command. `script_of` returns the operator's script that the server has loaded with a SHA1
    /// digest. `None` if this is no such command of an operator.
    pub fn parse(
        words: &[&'a [u8]],
        script_of: impl FnOnce(&[u8]) -> Option<OperatorScript>,
    ) -> Option<Self> {
        match words {
            [b"TIME"] => Some(Self::ReadClock),
            [b"GET", key] => Some(Self::Read(key)),
            [b"SCAN", _, b"MATCH", pattern, b"COUNT", _] => Some(Self::List(pattern)),
            [b"EVALSHA", sha, keys, rest @ ..] => {
                let keys = usize::try_from(parse_whole(keys)?).ok()?;
                let (keys, args) = rest.split_at_checked(keys)?;
                match script_of(sha)? {
                    OperatorScript::RaiseMarker => raise_marker(keys, args),
                    OperatorScript::CarryCounters => raise_counters(keys, args),
                }
            }
            _ => None,
        }
    }

    /// Executes the command on `master`, and appends the reply to `out`. `now` is the master's clock in microseconds.
    pub fn execute(&self, master: &mut Master, now: u64, out: &mut Vec<u8>) {
        let result = match self {
            Self::ReadClock => return write_clock(now, out),
            Self::List(pattern) => return write_keys(&master.keys_matching(now, pattern), out),
            Self::Read(key) => master.text(now, key).map(|text| bulk(text, out)),
            Self::RaiseMarker {
                number,
                print,
                age_record,
            } => {
                let marker = master.raise_marker(now, (*number, print), age_record);
                marker.map(|marker| bulk(Some(&marker), out))
            }
            Self::RaiseCounters(counters) => {
                let raised = master.raise_counters(now, counters);
                raised.map(|raised| write_raised(&raised, out))
            }
        };
        if let Err(fault) = result {
            error(&fault, out);
        }
    }
}

fn raise_marker<'a>(keys: &[&[u8]], args: &[&'a [u8]]) -> Option<OperatorCommand<'a>> {
    let ([key], [number, print, age_record]) = (keys, args) else {
        return None;
    };
    let text = |word: &'a [u8]| std::str::from_utf8(word).ok();
    (*key == MARKER_KEY.as_bytes()).then_some(())?;
    Some(OperatorCommand::RaiseMarker {
        number: parse_whole(number)?,
        print: text(print)?,
        age_record: text(age_record)?,
    })
}

/// Parses the keys and numbers of fencing counters. Ignores their minimum expiry, which is the same for all clients.
fn raise_counters<'a>(keys: &[&[u8]], args: &[&[u8]]) -> Option<OperatorCommand<'a>> {
    let [_expiry, numbers @ ..] = args else {
        return None;
    };
    let counter = |(key, number): (&&[u8], &&[u8])| Some((key.to_vec(), parse_whole(number)?));
    let counters = keys.iter().zip(numbers).map(counter);
    (keys.len() == numbers.len()).then_some(())?;
    Some(OperatorCommand::RaiseCounters(
        counters.collect::<Option<_>>()?,
    ))
}

fn write_clock(now: u64, out: &mut Vec<u8>) {
    write_array(2, out);
    for part in [now / 1_000_000, now % 1_000_000] {
        bulk(Some(part.to_string().as_bytes()), out);
    }
}

/// Writes all keys in one page.
fn write_keys(keys: &[Vec<u8>], out: &mut Vec<u8>) {
    write_array(2, out);
    bulk(Some(b"0"), out);
    write_array(keys.len(), out);
    for key in keys {
        bulk(Some(key), out);
    }
}

fn write_raised(raised: &[RaisedCounter], out: &mut Vec<u8>) {
    write_array(raised.len(), out);
    for counter in raised {
        match counter {
            RaisedCounter::Unchanged => number(0, out),
            RaisedCounter::Raised => number(1, out),
            RaisedCounter::Owned(held) => bulk(Some(held), out),
        }
    }
}
