//! Makes foreign text safe for terminals and logs.

/// The first `most` characters; control characters are replaced visibly.
pub(crate) fn tame(text: &str, most: usize) -> String {
    let tame = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(most).map(tame).collect()
}
