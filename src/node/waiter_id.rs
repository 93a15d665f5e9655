//! The ids of waiters in the queues of the masters. An id can contain a description of its waiter.
//!
//! An id has the form `PROCESS:NUMBER`, or `PROCESS:NUMBER/HOST:PID:SINCE` with a description:
//!
//! - PROCESS: 16 hexadecimal digits that identify the waiter's [`Redlock`](crate::Redlock).
//! - NUMBER: the number of the waiter in this `Redlock`.
//! - HOST and PID: the host and the process id of the waiter.
//! - SINCE: the time at which the wait began, in milliseconds since 1970.
//!
//! In the queue of a key, the id of a reader ends with [`READER_SUFFIX`]. Masters interpret only PROCESS and
//! [`READER_SUFFIX`].

use std::time::SystemTime;

use super::note::{moment, name};

/// The suffix that marks the waiter id of a reader in the queue of a key.
pub(crate) const READER_SUFFIX: &str = ":r";

/// Separates a waiter's short id from its description. `/` sorts before all digits: `p:1/host` comes before
/// `p:12/host`, just as `p:1` comes before `p:12`.
pub(crate) const SEPARATOR: char = '/';

/// The description of a waiter in its id: host, process id, and start of the wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaiterDescription {
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) since: Option<SystemTime>,
}

/// Appends a description of the waiter to its id. `process` is `HOST:PID`. `since_ms` is the start of the wait, in
/// milliseconds since 1970.
pub(crate) fn describe(id: &str, process: &str, since_ms: u64) -> String {
    format!("{id}{SEPARATOR}{process}:{since_ms}")
}

/// Splits a waiter id into three parts: the short id, the description (`None` if there is none), and the suffix of a
/// reader (empty for other waiters).
fn parts(id: &str) -> (&str, Option<&str>, &str) {
    let (rest, reader) = match id.strip_suffix(READER_SUFFIX) {
        Some(rest) => (rest, READER_SUFFIX),
        None => (id, ""),
    };
    match rest.split_once(SEPARATOR) {
        Some((short, description)) => (short, Some(description), reader),
        None => (rest, None, reader),
    }
}

/// Splits a waiter id into the short id and the description. An id with a malformed description is returned unchanged.
pub(crate) fn read(id: &str) -> (String, WaiterDescription) {
    let (short, description, reader) = parts(id);
    match description.and_then(read_description) {
        Some(described) => (format!("{short}{reader}"), described),
        None => (id.to_owned(), WaiterDescription::default()),
    }
}

/// The short id in a waiter id: without the description, and without [`READER_SUFFIX`].
#[cfg(any(test, feature = "node"))]
pub(crate) fn short(id: &str) -> &str {
    parts(id).0
}

fn read_description(description: &str) -> Option<WaiterDescription> {
    let mut parts = description.rsplitn(3, ':');
    let since = moment(parts.next()?.parse().ok()?)?;
    let pid = parts.next()?.parse().ok()?;
    let host = Some(name(parts.next()?)).filter(|host| !host.is_empty());
    Some(WaiterDescription {
        host,
        pid: Some(pid),
        since: Some(since),
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::note::Identity;
    use super::*;

    #[test]
    fn written_waiter_id_is_read_back_unchanged() {
        let me = Identity::new("web-3", 4711, "backup").connection_label();
        let id = describe("0123456789abcdef:7", &me, 1_763_000_000_500);
        assert_eq!(id, "0123456789abcdef:7/web-3:4711:1763000000500");
        let expected = WaiterDescription {
            host: Some("web-3".into()),
            pid: Some(4711),
            since: Some(UNIX_EPOCH + Duration::from_millis(1_763_000_000_500)),
        };
        assert_eq!(read(&id), ("0123456789abcdef:7".into(), expected.clone()));
        let reader = format!("{id}{READER_SUFFIX}");
        assert_eq!(read(&reader), ("0123456789abcdef:7:r".into(), expected));
        assert_eq!(short(&id), "0123456789abcdef:7");
        let nameless = describe(
            "a:1",
            &Identity::new("\u{fc}", 7, "p").connection_label(),
            0,
        );
        let (_, description) = read(&nameless);
        assert_eq!((description.host, description.pid), (None, Some(7)));
    }

    #[test]
    fn waiter_id_with_a_malformed_description_is_returned_unchanged() {
        for id in [
            "",
            ":r",
            "/",
            "0123456789abcdef:7",
            "0123456789abcdef:7:r",
            "a:1/h:1",
            "a:1/h:x:1",
            "a:1/h:1:x",
            "a:1/h:4294967296:1",
            "a:1/h:1:1:r:r",
            // A time after the year 9999 cannot be displayed.
            "a:1/h:1:253402300800000",
            "a:1/h:1:18446744073709551616",
        ] {
            assert_eq!(
                read(id),
                (id.to_owned(), WaiterDescription::default()),
                "{id:?}"
            );
        }
    }

    #[test]
    fn waiter_ids_with_descriptions_sort_like_waiter_ids_without_descriptions() {
        let mut numbers: Vec<u64> = (0..200).chain([u64::MAX]).collect();
        let mut described = numbers.clone();
        let numbered_id = |number: &u64| format!("0123456789abcdef:{number}");
        numbers.sort_unstable_by_key(numbered_id);
        // Waiters with larger numbers began to wait later.
        described.sort_unstable_by_key(|number| describe(&numbered_id(number), "h:1", *number));
        assert_eq!(numbers, described);
    }

    #[test]
    fn longest_waiter_id_with_a_description_has_at_most_136_bytes() {
        let host = "h".repeat(200);
        let me = Identity::new(&host, u32::MAX, "p").connection_label();
        let id = describe(&format!("{}:{}", "f".repeat(16), u64::MAX), &me, u64::MAX);
        assert!(
            !id.ends_with(READER_SUFFIX),
            "{id} must not end with {READER_SUFFIX}"
        );
        assert!(
            id.len() <= 136,
            "the id must have at most 136 bytes, but has {}: {id}",
            id.len()
        );
    }
}
