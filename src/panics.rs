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
const LONGEST: usize = 160;

/// The text of a panic without passwords, up to the first colon and blank, or line break: the rest may show values.
pub fn text(panic: &Panic) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("a panic without a text");
    // Before the text is cut: a password may contain a colon, a blank or a line break.
    let text = redact(text);
    let text = text.split(['\n', '\r']).next().unwrap_or_default();
    let text = text.split(": ").next().unwrap_or_default();
    let text = text.trim_end_matches(':');
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(LONGEST).map(visible).collect()
}

/// Runs `work`, and catches its panic.
///
/// # Errors
///
/// The panic of `work`.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    let before = CATCHES.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    CATCHES.set(before);
    done
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
        let said = |panic: Panic| text(&panic);
        let fails = || -> Result<(), &str> { Err("s3cret") };
        let panic = caught(|| fails().unwrap()).unwrap_err();
        assert_eq!(said(panic), "called `Result::unwrap()` on an `Err` value");
        assert_eq!(said(Box::new("one\ntwo")), "one");
        assert_eq!(said(Box::new("left\u{1b}[2J")), "left\u{fffd}[2J");
        for (secret, shown) in [
            (
                "cannot use redis://bob:s3: cr\net@h",
                "cannot use redis://***@h",
            ),
            ("no right for bob:s3cret@h:1", "no right for ***@h:1"),
            ("password=s3 cret", "password=***"),
        ] {
            assert_eq!(said(Box::new(secret)), shown);
        }
        assert_eq!(said(Box::new(7)), "a panic without a text");
        assert!(!catches_panics());
        assert_eq!(caught(catches_panics).ok(), Some(true));
    }
}
