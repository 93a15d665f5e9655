//! Makes text from other programs safe for terminals and logs.

/// Returns the first `max_chars` characters of `text`, with each control character replaced by `U+FFFD`.
pub(crate) fn sanitize(text: &str, max_chars: usize) -> String {
    let replace_control = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(max_chars).map(replace_control).collect()
}
