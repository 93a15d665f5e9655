//! Parses the words (arguments) of a command, such as numbers.

use std::time::Duration;

use quorate::node::Token;

pub(super) fn text(word: &[u8]) -> &str {
    std::str::from_utf8(word).unwrap_or_default()
}

/// Parses a decimal number. The driver writes the commands, so the input is always valid.
pub(super) fn number(word: &[u8]) -> u64 {
    let digit = |number, byte: &u8| 10 * number + u64::from(byte - b'0');
    word.iter().fold(0, digit)
}

pub(super) fn token(hex: &[u8]) -> Option<Token> {
    let digit = |byte: u8| (byte & 15) + 9 * (byte >> 6);
    let (pairs, []) = hex.as_chunks::<2>() else {
        return None;
    };
    let mut bytes = [0; 16];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high) << 4 | digit(*low);
    }
    (hex.len() == 32).then(|| Token::from_bytes(bytes))
}

pub(super) fn millis(word: &[u8]) -> Duration {
    Duration::from_millis(number(word))
}
