//! Writes RESP3 values, and the messages that a server sends on a channel.

use crate::keys::{LEADER_CHANNEL_PREFIX, WAKE_CHANNEL_PREFIX};

pub(super) fn write_header(kind: u8, number: impl std::fmt::Display, out: &mut Vec<u8>) {
    out.push(kind);
    out.extend_from_slice(format!("{number}\r\n").as_bytes());
}

/// Writes an integer.
pub fn number(number: i64, out: &mut Vec<u8>) {
    write_header(b':', number, out);
}

/// Writes a text; null for `None`.
pub fn bulk(text: Option<&[u8]>, out: &mut Vec<u8>) {
    let Some(text) = text else {
        return out.extend_from_slice(b"_\r\n");
    };
    write_header(b'$', text.len(), out);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Writes the beginning of an array. The caller writes this number of values after it.
pub(super) fn write_array(len: usize, out: &mut Vec<u8>) {
    write_header(b'*', len, out);
}

/// Writes the confirmation that the subscription to a channel has begun (`on` is true) or ended (`on` is false).
pub fn subscribed(on: bool, channel: &[u8], out: &mut Vec<u8>) {
    let kind: &[u8] = if on { b"subscribe" } else { b"unsubscribe" };
    write_header(b'>', 3, out);
    bulk(Some(kind), out);
    bulk(Some(channel), out);
    number(1, out);
}

/// The message that wakes the first waiter of the lock `key`. `process` is the id of the waiting client's `Redlock`.
pub fn wake_up(process: &str, key: &[u8]) -> Vec<u8> {
    message(&[WAKE_CHANNEL_PREFIX, process].concat().into_bytes(), key)
}

/// The message that announces a new leader of the election with the lock `key`.
pub fn announcement(key: &[u8]) -> Vec<u8> {
    message(&[LEADER_CHANNEL_PREFIX.as_bytes(), key].concat(), key)
}

fn message(channel: &[u8], text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_header(b'>', 3, &mut out);
    for word in [b"message", channel, text] {
        bulk(Some(word), &mut out);
    }
    out
}
