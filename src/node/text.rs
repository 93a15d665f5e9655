//! Text of others, made fit for terminals and logs.

/// Text without anything that a terminal or a log would obey.
pub(crate) fn plain(text: &str) -> String {
    let tame = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(tame).collect()
}
