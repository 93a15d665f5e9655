//! Writes the reply to one request.

use std::borrow::Cow;
use std::mem::discriminant;
use std::time::Duration;

use super::write::{bulk, number, subscribed, write_array, write_header};
use crate::keys::LEADER_CHANNEL_PREFIX;
use crate::node::note::{milliseconds, stored};
use crate::node::redis::decode::{extended_from_digit, shape_of_reply};
use crate::node::redis::refusal::{OTHER_MASTERS, YOUNG};
use crate::node::waiter_id::{READER_SUFFIX, describe};
use crate::node::{
    Answer, Extended, Fault, Hold, KeyState, NoteItem, Permit, QueueInfo, Request, Shape,
    StoredValue, Waiter,
};

/// In the reply to READ, the id of the server run that wrote the value, if it was not the run that replies.
const ANOTHER_RUN: &str = "another";

/// Writes the reply of a server to one request.
///
/// If `note` is given, it is the holder's note as the server stores it. Otherwise the reply contains the note in
/// `answer`.
pub fn reply(
    request: &Request,
    answer: &Result<Answer, Fault>,
    note: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    match answer {
        Ok(answer) => reply_with(request, answer, note, out),
        Err(fault) => error(fault, out),
    }
}

fn reply_with(request: &Request, answer: &Answer, note: Option<&[u8]>, out: &mut Vec<u8>) {
    match answer {
        Answer::Granted { counter: None } => out.extend_from_slice(b"+OK\r\n"),
        Answer::Granted {
            counter: Some(counter),
        }
        | Answer::CounterAbove(counter) => write_unsigned(*counter, out),
        Answer::Refused { ttl_left, line } => {
            write_refusal(request, *ttl_left, line.as_deref(), note, out);
        }
        Answer::Confirmed | Answer::Released(true) | Answer::Written { .. } => number(1, out),
        Answer::NotOurs | Answer::Released(false) => number(0, out),
        Answer::NotAlone => number(-1, out),
        Answer::Extended(each) => write_extended(each, out),
        Answer::State(state) => write_key_state(request, state, note, out),
        Answer::Value { run, stored, clock } => {
            write_array(2, out);
            let text = stored
                .as_ref()
                .map(|stored| encode_value(run.as_str(), stored));
            bulk(text.as_deref(), out);
            write_unsigned(clock.unwrap_or(0), out);
        }
        Answer::Noted(each) => write_noted(request, each, out),
        Answer::Keys { cursor, keys } => {
            write_array(2, out);
            bulk(Some(cursor.to_string().as_bytes()), out);
            write_array(keys.len(), out);
            for key in keys {
                bulk(Some(key), out);
            }
        }
        Answer::Watching => {
            if let Request::Watch { key, on } = request {
                subscribed(*on, &[LEADER_CHANNEL_PREFIX.as_bytes(), key].concat(), out);
            }
        }
    }
}

fn write_unsigned(number_value: u64, out: &mut Vec<u8>) {
    number(i64::try_from(number_value).unwrap_or(i64::MAX), out);
}

/// Writes a remaining TTL as the command PTTL returns it; -1 for `None`.
fn write_ttl(left: Option<Duration>, out: &mut Vec<u8>) {
    match left {
        Some(left) => write_header(b':', left.as_millis(), out),
        None => number(-1, out),
    }
}

/// Writes the refusal of an acquire.
fn write_refusal(
    request: &Request,
    left: Option<Duration>,
    line: Option<&QueueInfo>,
    note: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    let is_fenced = matches!(request, Request::Acquire { claim, .. } if claim.fenced());
    match (line, shape_of_reply(request)) {
        (Some(line), Shape::Permit(permit)) => {
            write_array(4, out);
            bulk(Some(&free_slots(permit, line.free)), out);
            write_ttl(left, out);
            write_unsigned(line.ahead, out);
            write_unsigned(line.ticket, out);
        }
        (Some(line), shape) => {
            let is_group = matches!(shape, Shape::Group(_));
            let holder = line.holder.as_deref().unwrap_or_default();
            let own_text = stored(line.note.as_ref(), None);
            let note = note_of_holder(note, own_text.as_deref(), holder);
            write_array(4 + usize::from(is_group) + usize::from(note.is_some()), out);
            write_ttl(left, out);
            write_unsigned(line.ahead, out);
            write_unsigned(line.ticket, out);
            bulk(Some(holder), out);
            if is_group {
                // The index of a key that is not free. Clients ignore the index, so it is always 1.
                number(1, out);
            }
            if note.is_some() {
                bulk(note.as_deref(), out);
            }
        }
        (None, _) if is_fenced => {
            write_array(2, out);
            write_ttl(left, out);
            // The fencing counter, which clients ignore.
            number(0, out);
        }
        (None, _) => bulk(None, out),
    }
}

/// The stored form of a note: `note` if it is given, otherwise the lock value `holder` and the text `own_text`. `None`
/// if there is no note.
fn note_of_holder<'a>(
    note: Option<&'a [u8]>,
    own_text: Option<&str>,
    holder: &[u8],
) -> Option<Cow<'a, [u8]>> {
    let stored_text = || Some([holder, b" ", own_text?.as_bytes()].concat());
    note.map(Cow::Borrowed)
        .or_else(|| stored_text().map(Cow::Owned))
}

/// One character for each slot: 1 if the slot is free, otherwise 0. Bit `i` of `free` is set if slot `i` is free.
fn free_slots(permit: &Permit, free: u64) -> Vec<u8> {
    let digit = |slot| b'0' + u8::from(free >> slot & 1 == 1);
    (0..permit.permits()).map(digit).collect()
}

/// The digit of one lock in the reply to an extension. The client half has the list of the digits.
fn digit_of(result: &Extended) -> u8 {
    let has_same_meaning = |digit: &u8| {
        let meaning = extended_from_digit(*digit);
        meaning.is_some_and(|meaning| discriminant(&meaning) == discriminant(result))
    };
    (b'0'..=b'9').find(has_same_meaning).unwrap_or(b'0')
}

/// Writes the reply to an extension: one digit for each lock, in one text. If the server could not extend some locks, the
/// reply is an array, with the error in place of the digit of each of these locks.
fn write_extended(results: &[Extended], out: &mut Vec<u8>) {
    let fault_of = |result: &Extended| match result {
        Extended::Unknown(fault) if *result != Extended::strange() => Some(fault.clone()),
        _ => None,
    };
    if results.iter().all(|result| fault_of(result).is_none()) {
        let digits: Vec<u8> = results.iter().map(digit_of).collect();
        return bulk(Some(&digits), out);
    }
    write_array(results.len(), out);
    for result in results {
        match fault_of(result) {
            Some(fault) => error(&fault, out),
            None => bulk(Some(&[digit_of(result)]), out),
        }
    }
}

/// Writes the reply to NOTE: one digit for each key, 1 if the note was written.
fn write_noted(request: &Request, are_written: &[bool], out: &mut Vec<u8>) {
    let Request::Note { items } = request else {
        return;
    };
    let digits = |(item, written): (&NoteItem, &bool)| {
        vec![b'0' + u8::from(*written); item.claim.keys().count()]
    };
    let digits: Vec<u8> = items.iter().zip(are_written).flat_map(digits).collect();
    bulk(Some(&digits), out);
}

/// A stored value in the form `NUMBER RUN BYTES`. `run` is the server run that replies.
fn encode_value(run: &str, stored: &StoredValue) -> Vec<u8> {
    let run = if stored.trusted { run } else { ANOTHER_RUN };
    let prefix = format!("{} {run} ", stored.number);
    [prefix.as_bytes(), &stored.bytes].concat()
}

/// Writes the state of a lock. The reply to BREAK does not contain the queue.
fn write_key_state(request: &Request, state: &KeyState, note: Option<&[u8]>, out: &mut Vec<u8>) {
    let with_queue = !matches!(request, Request::Break { .. });
    let holder = state.holder.as_deref();
    let own_text = stored(state.note.as_ref(), state.term);
    let note = note_of_holder(note, own_text.as_deref(), holder.unwrap_or_default());
    let is_shared = !state.holds.is_empty();
    let last = usize::from(is_shared || note.is_some());
    write_array(3 + 2 * usize::from(with_queue) + last, out);
    bulk(holder, out);
    write_ttl(state.ttl_left, out);
    let counter = state.counter.map(|counter| counter.to_string());
    bulk(counter.as_deref().map(str::as_bytes), out);
    if with_queue {
        write_array(state.queue.len(), out);
        for waiter in &state.queue {
            bulk(Some(full_id(waiter).as_bytes()), out);
        }
        write_array(state.queue.len(), out);
        for waiter in &state.queue {
            write_ttl(Some(waiter.lives), out);
        }
    }
    if is_shared {
        write_array(3 * state.holds.len(), out);
        state.holds.iter().for_each(|hold| write_hold(hold, out));
    } else if note.is_some() {
        bulk(note.as_deref(), out);
    }
}

/// Writes one of the holds that share a lock. The note of a hold without a note is empty.
fn write_hold(hold: &Hold, out: &mut Vec<u8>) {
    let own_text = stored(hold.note.as_ref(), None);
    let note = note_of_holder(None, own_text.as_deref(), &hold.value);
    bulk(Some(&hold.value), out);
    write_ttl(Some(hold.lives), out);
    bulk(Some(note.as_deref().unwrap_or_default()), out);
}

/// The id of a waiter as the server stores it: with the description of the waiter.
fn full_id(waiter: &Waiter) -> String {
    let (Some(pid), Some(since)) = (waiter.pid, waiter.since) else {
        return waiter.id.clone();
    };
    let (short, reader) = match waiter.id.strip_suffix(READER_SUFFIX) {
        Some(short) => (short, READER_SUFFIX),
        None => (&*waiter.id, ""),
    };
    let host = waiter.host.as_deref().unwrap_or_default();
    let described = describe(short, &format!("{host}:{pid}"), milliseconds(since));
    described + reader
}

/// Writes a fault as an error of a server. A fault that only a client can detect, for example a timeout, becomes an error
/// with the text of the fault.
pub fn error(fault: &Fault, out: &mut Vec<u8>) {
    let text = match fault {
        Fault::WrongType => "WRONGTYPE another type".to_owned(),
        Fault::Loading => "LOADING the data set is being loaded".to_owned(),
        Fault::ReadOnly => "READONLY You can't write".to_owned(),
        Fault::OutOfMemory => "OOM command not allowed".to_owned(),
        Fault::Misconf => "MISCONF Errors writing to the disk".to_owned(),
        Fault::Busy => "BUSY Redis is busy running a script.".to_owned(),
        Fault::Denied(why) => format!("NOPERM {why}"),
        Fault::Unsupported(why) => format!("CROSSSLOT {why}"),
        Fault::OtherMasters(why) => format!("ERR {OTHER_MASTERS}{why}"),
        Fault::Quarantined(left) => format!("ERR {YOUNG}{}", left.as_millis()),
        Fault::Server(why) if why.starts_with("ERR ") => why.to_string(),
        Fault::Down(_)
        | Fault::NoConnection(_)
        | Fault::Stalled
        | Fault::Overloaded
        | Fault::Withdrawn
        | Fault::Timeout(_)
        | Fault::Disconnected(_)
        | Fault::Unprepared(_)
        | Fault::SameServer(_)
        | Fault::Server(_) => format!("ERR {fault}"),
    };
    write_header(b'-', text, out);
}
