//! Makes foreign text safe for terminals and logs.

/// The first `most` characters; control characters are replaced visibly.
pub(crate) fn sanitize(text: &str, most: usize) -> String {
    let sanitize = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(most).map(sanitize).collect()
}
