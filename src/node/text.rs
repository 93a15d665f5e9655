//! Makes text from other programs safe for terminals and logs.

/// Returns the first `most` characters of `text`, with each control character replaced by `U+FFFD`.
pub(crate) fn sanitize(text: &str, most: usize) -> String {
    let sanitize = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(most).map(sanitize).collect()
}
