//! Parses the words (arguments) of a command, such as numbers.

pub(super) fn as_text(argument: &[u8]) -> &str {
    std::str::from_utf8(argument).unwrap_or_default()
}

/// Parses a decimal number. The driver writes the commands, so the input is always valid.
pub(super) fn parse_number(argument: &[u8]) -> u64 {
    let digit = |number, byte: &u8| 10 * number + u64::from(byte - b'0');
    argument.iter().fold(0, digit)
}
