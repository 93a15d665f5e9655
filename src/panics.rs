//! Catches panics of the library's own tasks, so that a bug in the work for one master ends neither the task nor the
//! program.

#![cfg_attr(
    not(any(feature = "node", feature = "testing")),
    allow(unreachable_pub)
)]

use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;

use crate::redact::redact;

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Whether the library catches a panic of the calling thread at the moment, and reports it as an error. A panic hook of
/// the program can then print nothing.
pub fn catches_panics() -> bool {
    CATCHES.get()
}

/// The payload of a panic.
pub type Panic = Box<dyn Any + Send>;

/// The longest text of a panic that is shown, in characters.
const LONGEST_TEXT: usize = 160;

/// The text of a panic without passwords, up to the first colon and blank, or line break: the rest may show values.
pub fn text(panic: &Panic) -> String {
    let owned_text = panic.downcast_ref::<String>().map(String::as_str);
    let panic_text = owned_text.or_else(|| panic.downcast_ref::<&str>().copied());
    // Before the text is cut: a password may contain a colon, a blank or a line break.
    let redacted = redact(panic_text.unwrap_or("a panic without a text"));
    let first_line = redacted.split(['\n', '\r']).next().unwrap_or_default();
    let before_values = first_line.split(": ").next().unwrap_or_default();
    let text = before_values.trim_end_matches(':');
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(LONGEST_TEXT).map(visible).collect()
}

/// Runs `work`, and catches its panic.
///
/// # Errors
///
/// The panic of `work`.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    let was_catching = CATCHES.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    CATCHES.set(was_catching);
    result
}

/// Polls the future `work`, and catches its panic. After a panic, the future is only dropped.
///
/// # Errors
///
/// The panic of `work`.
pub async fn caught_in<T>(work: impl Future<Output = T>) -> Result<T, Panic> {
    let mut work = pin!(work);
    std::future::poll_fn(|cx| match caught(|| work.as_mut().poll(cx)) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => std::task::Poll::Ready(Err(panic)),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_panic_shows_no_values() {
        let text_of = |panic: Panic| text(&panic);
        let failing_call = || -> Result<(), &str> { Err("s3cret") };
        let panic = caught(|| failing_call().unwrap()).unwrap_err();
        assert_eq!(
            text_of(panic),
            "called `Result::unwrap()` on an `Err` value"
        );
        assert_eq!(text_of(Box::new("one\ntwo")), "one");
        assert_eq!(text_of(Box::new("left\u{1b}[2J")), "left\u{fffd}[2J");
        for (secret, shown) in [
            (
                "cannot use redis://bob:s3: cr\net@h",
                "cannot use redis://***@h",
            ),
            ("no right for bob:s3cret@h:1", "no right for ***@h:1"),
            ("password=s3 cret", "password=***"),
        ] {
            assert_eq!(text_of(Box::new(secret)), shown);
        }
        assert_eq!(text_of(Box::new(7)), "a panic without a text");
        assert!(!catches_panics());
        assert_eq!(caught(catches_panics).ok(), Some(true));
    }
}
