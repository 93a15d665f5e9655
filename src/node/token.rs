//! The random value of one attempt to take a lock.

use std::fmt;

use crate::keys;

/// Whether a client of quorate wrote `value` to a lock key: the value is a token, or the marker of readers or of an
/// owner. The locks of most other Redlock libraries have other values.
pub(crate) fn is_of_quorate(value: &[u8]) -> bool {
    keys::is_shared_value(value) || Token::from_hex(value).is_some()
}

/// The random value of one attempt to take a lock: 128 bits from the operating system's generator. It is written to the
/// lock key as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// Creates a token from these 16 bytes, which should be random.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The token as 16 bytes.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// Parses the value of a lock key into a token; `None` if the value is not a token (32 hexadecimal digits).
    pub(crate) fn from_hex(value: &[u8]) -> Option<Self> {
        let is_hex_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_token = value.len() == 32 && value.iter().all(is_hex_digit);
        let number = u128::from_str_radix(std::str::from_utf8(value).ok()?, 16);
        Some(Self(number.ok().filter(|_| is_token)?.to_be_bytes()))
    }

    /// The token as it is stored in the lock key: 32 lower-case hexadecimal digits.
    pub fn to_hex(self) -> [u8; 32] {
        // Compute the digits instead of looking them up in a table, so that the compiler can vectorize the loop.
        let hex_digit = |nibble: u8| nibble + b'0' + u8::from(nibble > 9) * (b'a' - b'0' - 10);
        let mut hex = [0; 32];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            pair[0] = hex_digit(byte >> 4);
            pair[1] = hex_digit(byte & 15);
        }
        hex
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
