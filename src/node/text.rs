//! Text of others, made fit for terminals and logs.

/// The first `most` characters, without anything that a terminal or a log would obey. That something was
/// there is seen.
pub(crate) fn tame(text: &str, most: usize) -> String {
    let tame = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(most).map(tame).collect()
}
