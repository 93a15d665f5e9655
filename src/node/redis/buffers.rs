//! The buffers of a connection: for bytes to be written, and for bytes that were read.

use std::io;

use super::connecting::NotResp;
use super::resp::{MAX_REPLY_BYTES, Malformed, Value, parse};

/// The initial size of a buffer in bytes. When a buffer has become empty, its memory is reduced if it is larger than
/// four times this size.
const BUFFER_BYTES: usize = 16 << 10;

/// The bytes to be written to the socket.
pub(super) struct Output {
    bytes: Vec<u8>,
    /// How many bytes of `bytes` the socket has accepted so far.
    written_len: usize,
}

impl Output {
    pub(super) fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(BUFFER_BYTES),
            written_len: 0,
        }
    }

    /// The buffer to which commands are appended, in the order in which they are to be sent.
    pub(super) fn commands(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The bytes that the socket has not accepted yet.
    pub(super) fn unwritten(&self) -> &[u8] {
        &self.bytes[self.written_len..]
    }

    /// Records that the socket has accepted `count` more bytes.
    pub(super) fn mark_written(&mut self, count: usize) {
        self.written_len = (self.written_len + count).min(self.bytes.len());
        if self.written_len == self.bytes.len() {
            self.clear();
        }
    }

    /// Clears the buffer, either for a new connection or because the socket has accepted all bytes.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.written_len = 0;
        self.bytes.shrink_to(4 * BUFFER_BYTES);
    }
}

/// The bytes that were read from the socket and not parsed yet.
pub(super) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
        }
    }

    /// The free space into which the socket reads, at least one byte. An error means that the reply is longer than
    /// [`MAX_REPLY_BYTES`].
    pub(super) fn room(&mut self) -> io::Result<&mut [u8]> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            if self.bytes.len() > 4 * BUFFER_BYTES {
                self.bytes.truncate(BUFFER_BYTES);
                self.bytes.shrink_to_fit();
            }
        }
        if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.bytes.len() {
            if self.end >= MAX_REPLY_BYTES {
                return Err(io::Error::other("the reply is too long"));
            }
            self.bytes.resize(2 * self.end, 0);
        }
        Ok(&mut self.bytes[self.end..])
    }

    /// Records that `count` bytes were read into the free space.
    pub(super) fn add_received(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Clears the buffer for a new connection.
    pub(super) fn clear(&mut self) {
        self.start = self.end;
    }

    /// Parses and returns the next reply; `None` if it is incomplete.
    pub(super) fn next(&mut self) -> io::Result<Option<Value<'_>>> {
        match parse(&self.bytes[self.start..self.end]) {
            Ok(Some((value, len))) => {
                self.start += len;
                Ok(Some(value))
            }
            Ok(None) => Ok(None),
            Err(Malformed) => Err(NotResp::error(&self.bytes[self.start..self.end])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::resp::MAX_LINE_BYTES;
    use super::*;

    fn feed(input: &mut Input, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = input.room().expect("the buffer must accept more bytes");
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            input.add_received(count);
            bytes = &bytes[count..];
        }
    }

    #[test]
    fn input_buffer_shrinks_again_after_a_reply_longer_than_the_buffer() {
        let long = "x".repeat(10 * BUFFER_BYTES);
        let mut input = Input::new();
        feed(
            &mut input,
            format!("${}\r\n{long}\r\n+OK\r\n", long.len()).as_bytes(),
        );
        for expected_len in [10 * BUFFER_BYTES, 2] {
            let value = input
                .next()
                .expect("the reply must be valid RESP")
                .expect("the reply must be complete");
            assert_eq!(value.text().map(<[u8]>::len), Some(expected_len));
        }
        assert!(input.is_empty());
        input.room().expect("the buffer must accept more bytes");
        assert_eq!(input.bytes.len(), BUFFER_BYTES);
    }

    #[test]
    fn reply_longer_than_the_limit_is_an_error() {
        let mut input = Input::new();
        let piece = [b'x'; 1 << 10];
        let refused_at = (0..2 * MAX_REPLY_BYTES / piece.len()).find(|_| {
            let Ok(room) = input.room() else { return true };
            let count = room.len().min(piece.len());
            room[..count].copy_from_slice(&piece[..count]);
            input.add_received(count);
            false
        });
        assert!(
            refused_at.is_some(),
            "the buffer must refuse a reply that never ends"
        );
    }

    #[test]
    fn endless_reply_is_an_error_after_a_limited_number_of_bytes() {
        for (start, piece) in [
            ("*8000000\r\n", "_\r\n"),
            ("*8000000\r\n", "*1\r\n:1\r\n"),
            ("%4000000\r\n", "$0\r\n\r\n"),
            ("+", "an endless line"),
        ] {
            let mut input = Input::new();
            feed(&mut input, start.as_bytes());
            let pieces = 2 * MAX_LINE_BYTES / piece.len();
            let is_refused = (0..pieces).any(|n| {
                feed(&mut input, piece.as_bytes());
                n % 100 == 0 && input.next().is_err()
            });
            assert!(is_refused, "{start:?} {piece:?}");
        }
    }

    #[test]
    fn output_written_in_parts_is_sent_completely() {
        let mut output = Output::new();
        output.commands().extend_from_slice(b"abc");
        output.mark_written(2);
        output.commands().extend_from_slice(b"de");
        assert_eq!(output.unwritten(), b"cde");
        output.mark_written(3);
        assert_eq!(output.unwritten(), b"");
        assert!(output.commands().is_empty());
    }
}
