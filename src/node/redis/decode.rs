//! Decodes replies of the server into answers to requests.

use std::time::Duration;

use super::refusal::reply_fault;
use super::resp::Value;
use super::script::Script;
use crate::node::actor::trust::Memory;
use crate::node::inspection::server_text;
use crate::node::numbers;
use crate::node::{
    Answer, Claim, Extended, Fault, Hold, KeyState, Note, NoteItem, Permit, QueueInfo, Request,
    Shape, StoredValue, Waiter,
};

/// Why a reply is not an answer to its request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The master replied with an error.
    Fault(Fault),
    /// The reply cannot belong to this request. The connection must be closed, because the client
    /// may match later replies to the wrong requests, too.
    Malformed(Fault),
}

impl NoAnswer {
    pub(super) fn malformed() -> Self {
        Self::Malformed(Fault::Server("the reply does not fit the request".into()))
    }
}

/// Decodes a reply into the answer to its request. If the reply contains a stored value, `memory` decides whether this
/// value is trusted: a server may have loaded an outdated value after a restart.
pub(super) fn decode(
    request: &Request,
    value: &Value<'_>,
    memory: &Memory,
) -> Result<Answer, NoAnswer> {
    let script_fault = |error: &[u8]| reply_fault(Script::for_request(request), error);
    if let Value::Error(error) = value {
        return Err(NoAnswer::Fault(script_fault(error)));
    }
    let shape = shape_of_reply(request);
    // Match the request together with the form of the reply. Every other combination is malformed.
    Ok(match (request, value) {
        (Request::Acquire { claim, .. }, value) => match shape {
            Shape::Plain => acquire_answer(claim, value)?,
            Shape::Group(_) => claim_answer(value)?,
            Shape::Permit(permit) => permit_answer(permit, value)?,
        },
        (Request::Confirm { .. } | Request::Read { .. }, Value::Int(0)) => Answer::NotOurs,
        (Request::Confirm { .. }, Value::Int(1)) => Answer::Confirmed,
        (Request::Confirm { .. }, Value::Int(-1)) if matches!(shape, Shape::Group(_)) => {
            Answer::NotAlone
        }
        (Request::Confirm { .. }, Value::Int(above)) => Answer::CounterAbove(counter(*above)?),
        (Request::Release { claim, .. }, Value::Int(deleted @ 0..))
            if usize::try_from(*deleted).is_ok_and(|deleted| deleted <= claim.keys().count()) =>
        {
            Answer::Released(*deleted > 0)
        }
        (Request::Extend { items }, Value::Bulk(reply))
            if reply.len() == items.iter().map(|item| item.claim.keys().count()).sum() =>
        {
            let results = reply
                .iter()
                .copied()
                .map(extended_from_digit)
                .collect::<Option<_>>();
            Answer::Extended(results.ok_or_else(NoAnswer::malformed)?)
        }
        (Request::Extend { items }, Value::Array(reply))
            if reply.len() == items.iter().map(|item| item.claim.keys().count()).sum() =>
        {
            let decode_element = |element: &Value<'_>| match element {
                Value::Bulk([digit]) => extended_from_digit(*digit),
                Value::Error(error) => Some(Extended::Unknown(script_fault(error))),
                _ => None,
            };
            let results = reply.iter().map(decode_element).collect::<Option<_>>();
            Answer::Extended(results.ok_or_else(NoAnswer::malformed)?)
        }
        (Request::Status { .. } | Request::Break { .. }, Value::Array(state)) => {
            Answer::State(key_state(state).ok_or_else(NoAnswer::malformed)?)
        }
        (Request::Read { .. }, Value::Array(reply)) => read_answer(reply, memory)?,
        (Request::Write { .. }, Value::Int(1)) => {
            let run = memory.run.clone();
            Answer::Written { run }
        }
        (Request::Read { .. } | Request::Write { .. }, Value::Int(above)) => {
            Answer::CounterAbove(counter(*above)?)
        }
        (Request::Note { items }, Value::Bulk(reply)) => {
            note_answer(items, reply).ok_or_else(NoAnswer::malformed)?
        }
        (Request::List { .. }, Value::Array(page)) => {
            list_answer(page).ok_or_else(NoAnswer::malformed)?
        }
        (Request::Watch { .. }, Value::Push(_)) => Answer::Watching,
        _ => return Err(NoAnswer::malformed()),
    })
}

/// The kind of lock that decides about the form of the reply. The reply to an extension has the same form for every kind
/// of lock, so its kind is a plain lock.
pub(super) fn shape_of_reply(request: &Request) -> &Shape {
    match request {
        Request::Extend { .. } => Shape::plain(),
        _ => request.shape(),
    }
}

/// Decodes the reply to an acquire of a plain lock.
pub(super) fn acquire_answer(claim: &Claim, value: &Value<'_>) -> Result<Answer, NoAnswer> {
    let queued = claim.is_fair();
    match value {
        Value::Int(number) if claim.fenced() || queued => {
            let counter = Some(counter(*number)?);
            return Ok(Answer::Granted { counter });
        }
        Value::Array(refusal) if queued => {
            if let [
                ttl @ Value::Int(_),
                Value::Int(ahead),
                Value::Int(ticket),
                Value::Bulk(holder),
                // The fifth element, the note of the lock's holder, is optional.
                rest @ ..,
            ] = &refusal[..]
            {
                let queue = queue_info([*ahead, *ticket], holder, optional_last(rest)?);
                let (ttl_left, line) = (ttl_of(ttl), Some(Box::new(queue)));
                return Ok(Answer::Refused { ttl_left, line });
            }
        }
        Value::Array(refusal) if claim.fenced() => {
            if let [ttl @ Value::Int(_), Value::Int(_)] = &refusal[..] {
                let (ttl_left, line) = (ttl_of(ttl), None);
                return Ok(Answer::Refused { ttl_left, line });
            }
        }
        Value::Simple(b"OK") if !claim.fenced() && !queued => {
            return Ok(Answer::Granted { counter: None });
        }
        Value::Nil if !claim.fenced() && !queued => {
            let (ttl_left, line) = (None, None);
            return Ok(Answer::Refused { ttl_left, line });
        }
        _ => {}
    }
    Err(NoAnswer::malformed())
}

/// The optional last element of a reply, which follows the other elements. Malformed if there are more elements.
fn optional_last<'a, 'b>(rest: &'a [Value<'b>]) -> Result<Option<&'a Value<'b>>, NoAnswer> {
    match rest {
        [] => Ok(None),
        [last] => Ok(Some(last)),
        _ => Err(NoAnswer::malformed()),
    }
}

/// Decodes the reply to an acquire of a semaphore's slot.
fn permit_answer(permit: &Permit, value: &Value<'_>) -> Result<Answer, NoAnswer> {
    match value {
        Value::Int(number) => {
            let counter = Some(counter(*number)?);
            Ok(Answer::Granted { counter })
        }
        Value::Array(refusal) => {
            let [
                Value::Bulk(free),
                ttl @ Value::Int(_),
                Value::Int(ahead @ 0..),
                Value::Int(ticket @ 0..),
            ] = &refusal[..]
            else {
                return Err(NoAnswer::malformed());
            };
            let queue_info = QueueInfo {
                ahead: ahead.unsigned_abs(),
                ticket: ticket.unsigned_abs(),
                holder: None,
                free: free_slots(permit, free).ok_or_else(NoAnswer::malformed)?,
                note: None,
            };
            let (ttl_left, queue_info) = (ttl_of(ttl), Some(Box::new(queue_info)));
            Ok(Answer::Refused {
                ttl_left,
                line: queue_info,
            })
        }
        _ => Err(NoAnswer::malformed()),
    }
}

/// Decodes one digit for each slot: 1 if the slot is free, otherwise 0. Bit `i` of the result is set if slot `i` is
/// free. `None` if the digits are malformed.
fn free_slots(permit: &Permit, digits: &[u8]) -> Option<u64> {
    if digits.len() != usize::from(permit.permits()) {
        return None;
    }
    let bit = |(slot, digit): (usize, &u8)| match digit {
        b'0' => Some(0),
        b'1' => 1_u64.checked_shl(u32::try_from(slot).ok()?),
        _ => None,
    };
    digits.iter().enumerate().map(bit).sum()
}

/// Decodes the reply to an acquire of a group.
fn claim_answer(value: &Value<'_>) -> Result<Answer, NoAnswer> {
    match value {
        Value::Int(number) => {
            let counter = Some(counter(*number)?);
            Ok(Answer::Granted { counter })
        }
        Value::Array(refusal) => {
            let [
                ttl @ Value::Int(_),
                Value::Int(ahead),
                Value::Int(ticket),
                Value::Bulk(holder),
                Value::Int(1..),
                // The sixth element is optional: the note of the holder of the lock that refused the group.
                rest @ ..,
            ] = &refusal[..]
            else {
                return Err(NoAnswer::malformed());
            };
            let queue = queue_info([*ahead, *ticket], holder, optional_last(rest)?);
            let (ttl_left, line) = (ttl_of(ttl), Some(Box::new(queue)));
            Ok(Answer::Refused { ttl_left, line })
        }
        _ => Err(NoAnswer::malformed()),
    }
}

/// Decodes a fencing counter. The scripts return only numbers from 1 to 2^53. Any other number is malformed, and must
/// not become a token.
pub(super) fn counter(number: i64) -> Result<u64, NoAnswer> {
    numbers::counter(number).ok_or_else(|| {
        let why = format!("an impossible fencing counter: {number}");
        NoAnswer::Malformed(Fault::Server(why.into()))
    })
}

/// Decodes the reply to the script READ: the stored value of a lock, and the master's clock.
fn read_answer(reply: &[Value<'_>], memory: &Memory) -> Result<Answer, NoAnswer> {
    let [text, Value::Int(clock)] = reply else {
        return Err(NoAnswer::malformed());
    };
    Ok(Answer::Value {
        run: memory.run.clone(),
        stored: stored_value(text, memory)?,
        clock: numbers::clock(*clock),
    })
}

/// Decodes the stored value of a lock. Its format is `NUMBER RUN BYTES`: the fencing token of the writer, the id of the
/// server run (the time from one start of the server to its end) in which the value was written, and the content.
/// `None` if no value is stored.
fn stored_value(reply: &Value<'_>, memory: &Memory) -> Result<Option<StoredValue>, NoAnswer> {
    let text = match reply {
        Value::Nil => return Ok(None),
        Value::Bulk(text) => text,
        _ => return Err(NoAnswer::malformed()),
    };
    let mut parts = text.splitn(3, |byte| *byte == b' ');
    let (Some(number), Some(run), Some(bytes)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(NoAnswer::malformed());
    };
    let number = numbers::parse_whole(number).and_then(|number| i64::try_from(number).ok());
    Ok(Some(StoredValue {
        number: counter(number.ok_or_else(NoAnswer::malformed)?)?,
        bytes: bytes.to_vec(),
        trusted: memory.trusts(run),
    }))
}

/// Decodes one digit of the reply to the script EXTEND or KEEP: the result for one lock. `None` for an unknown digit.
pub(super) fn extended_from_digit(digit: u8) -> Option<Extended> {
    Some(match digit {
        b'0' => Extended::NotOurs,
        b'1' => Extended::Kept,
        b'2' => Extended::Restored,
        b'3' => Extended::Withdrawn,
        b'4' => Extended::Unnoted,
        b'5' => Extended::strange(),
        _ => return None,
    })
}

/// Decodes the state of the queue from the refusal of an acquire. A negative number counts as 0.
fn queue_info(numbers: [i64; 2], holder: &[u8], note: Option<&Value<'_>>) -> QueueInfo {
    let [ahead, ticket] = numbers.map(|number| u64::try_from(number).unwrap_or_default());
    let holder = Some(holder).filter(|holder| !holder.is_empty());
    QueueInfo {
        ahead,
        ticket,
        note: read_note(note, holder),
        holder: holder.map(<[u8]>::to_vec),
        free: 0,
    }
}

/// Decodes the note of a lock. `holder` is the value of the lock key. `None` if there is no readable note, or if the
/// note belongs to another holder.
fn read_note(note: Option<&Value<'_>>, holder: Option<&[u8]>) -> Option<Note> {
    match note {
        Some(Value::Bulk(note)) => Note::read(note, holder?),
        _ => None,
    }
}

/// Decodes the reply to the script NOTE: for each lock, whether its note was written. For a lock on several keys, the
/// result is true only if the note was written for every key. `None` if the reply is malformed.
fn note_answer(items: &[NoteItem], mut digits: &[u8]) -> Option<Answer> {
    let mut written_notes = Vec::with_capacity(items.len());
    for item in items {
        let (item_digits, rest) = digits.split_at_checked(item.claim.keys().count())?;
        written_notes.push(item_digits.iter().all(|digit| *digit == b'1'));
        digits = rest;
    }
    digits.is_empty().then_some(Answer::Noted(written_notes))
}

/// Decodes one page of keys, and the cursor of the next page. `None` if the reply is malformed.
fn list_answer(page: &[Value<'_>]) -> Option<Answer> {
    let [cursor, Value::Array(keys)] = page else {
        return None;
    };
    let cursor = numbers::parse_whole(cursor.text()?)?;
    let keys = keys.iter().map(|key| Some(key.text()?.to_vec()));
    Some(Answer::Keys {
        cursor,
        keys: keys.collect::<Option<_>>()?,
    })
}

/// Decodes the state of a lock from the reply of the script STATUS or BREAK. `None` if the reply is malformed.
fn key_state(state: &[Value<'_>]) -> Option<KeyState> {
    let (holder, ttl, counter, queue, ttls, rest) = match state {
        [
            holder,
            ttl,
            counter,
            Value::Array(queue),
            Value::Array(ttls),
            rest @ ..,
        ] => (holder, ttl, counter, &queue[..], &ttls[..], rest),
        // The reply to BREAK does not contain the queue.
        [holder, ttl, counter, rest @ ..] => (holder, ttl, counter, &[][..], &[][..], rest),
        _ => return None,
    };
    let extra = optional_last(rest).ok()?;
    let text = |value: &Value<'_>| match value {
        Value::Nil => Some(None),
        Value::Bulk(bytes) => Some(Some(bytes.to_vec())),
        _ => None,
    };
    let (holder, counter) = (text(holder)?, text(counter)?);
    let holds = match extra {
        Some(Value::Array(holds)) => holds.chunks(3).map(read_hold).collect::<Option<_>>()?,
        _ => Vec::new(),
    };
    Some(KeyState {
        note: read_note(extra, holder.as_deref()),
        term: extra.and_then(|note| read_term(note, holder.as_deref())),
        holds,
        holder,
        ttl_left: ttl_of(ttl),
        counter: counter.and_then(|text| numbers::parse_whole(&text)),
        queue: queue
            .iter()
            .zip(ttls)
            .map(read_waiter)
            .collect::<Option<_>>()?,
    })
}

/// Decodes the leader's term from the holder's note. `holder` is the value of the lock key. `None` if the note is
/// missing or contains no term.
fn read_term(reply: &Value<'_>, holder: Option<&[u8]>) -> Option<u64> {
    match reply {
        Value::Bulk(note) => Note::term(note, holder?),
        _ => None,
    }
}

/// Decodes one of the holds that share a lock: its value, its remaining TTL, and its note. `None` if it is malformed.
fn read_hold(elements: &[Value<'_>]) -> Option<Hold> {
    let [Value::Bulk(value), ttl @ Value::Int(_), note] = elements else {
        return None;
    };
    Some(Hold {
        value: value.to_vec(),
        lives: ttl_of(ttl).unwrap_or_default(),
        note: read_note(Some(note), Some(value)),
    })
}

/// Decodes one waiter in the queue: its id, and how long it keeps its place without another heartbeat. `None` if it is
/// malformed.
fn read_waiter((id, ttl): (&Value<'_>, &Value<'_>)) -> Option<Waiter> {
    let id = String::from_utf8_lossy(id.text()?).into_owned();
    Some(Waiter::new(
        server_text(&id),
        ttl_of(ttl).unwrap_or_default(),
    ))
}

/// Decodes the reply to PTTL. A negative reply gives `None`: the key does not exist or has no expiry.
fn ttl_of(value: &Value<'_>) -> Option<Duration> {
    match value {
        Value::Int(ms) => numbers::ttl(*ms),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
