//! Checks the sign and the range of each number that a server reports, and converts it.
//!
//! A server can report any number: its clock may have been set, or another program may have written to its keys. So no
//! other code of the drivers parses or casts a server's numbers. A number that is out of range counts as unknown, or as
//! the value that earns the server nothing.

use std::time::Duration;

use crate::protocol::fencing::LARGEST_TOKEN;

/// The limit of fencing counters.
pub(in crate::node) const LARGEST_COUNTER: u64 = LARGEST_TOKEN;

/// The longest uptime that is believed: 100 years.
const LONGEST_UPTIME: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Parses a number that is written with digits only. `None` for a sign, for other text, and above the largest `u64`.
pub(in crate::node) fn parse_whole(text: &[u8]) -> Option<u64> {
    let begins_with_digit = text.first().is_some_and(u8::is_ascii_digit);
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|_| begins_with_digit)?;
    text.parse().ok()
}

/// The time since a server was started, from the text of `uptime_in_seconds`; `None` if the text is not a number.
///
/// Redis and Valkey compute the uptime from the wall clock. After this clock was set back, the uptime is negative. Such
/// an uptime, or one of more than 100 years, shows that the clock was set, so the server counts as just started.
pub(in crate::node) fn uptime(text: &str) -> Option<Uptime> {
    let seconds: i128 = text.trim().parse().ok()?;
    let believed = u64::try_from(seconds).ok().map(Duration::from_secs);
    let believed = believed.filter(|uptime| *uptime <= LONGEST_UPTIME);
    Some(Uptime {
        at_least: believed.unwrap_or_default(),
        is_credible: believed.is_some(),
    })
}

/// The time since a server was started, as the server reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) struct Uptime {
    /// Zero if the reported uptime is impossible.
    pub(in crate::node) at_least: Duration,
    /// False if the reported uptime is impossible, because the clock of the server was set.
    pub(in crate::node) is_credible: bool,
}

/// A time on a server's clock in microseconds since 1970; `None` if it is not after 1970 and before the year 2255.
pub(in crate::node) fn clock(micros: i64) -> Option<u64> {
    let micros = u64::try_from(micros).ok()?;
    (1..LARGEST_COUNTER).contains(&micros).then_some(micros)
}

/// A time on a server's clock from the two parts of the reply to TIME (seconds and microseconds), in microseconds since
/// 1970.
pub(in crate::node) fn time(secs: &[u8], micros: &[u8]) -> Option<u64> {
    let micros = parse_whole(micros).filter(|micros| *micros < 1_000_000)?;
    let time = parse_whole(secs)?
        .checked_mul(1_000_000)?
        .checked_add(micros)?;
    clock(i64::try_from(time).ok()?)
}

/// A fencing counter from the reply of a script. `None` unless it is from 1 to 2^53: any other number must not become a
/// token.
pub(in crate::node) fn counter(number: i64) -> Option<u64> {
    let counter = u64::try_from(number).ok()?;
    (1..=LARGEST_COUNTER).contains(&counter).then_some(counter)
}

/// A remaining time in milliseconds, for example from PTTL. `None` if it is negative: the key does not exist or does not
/// expire.
pub(in crate::node) fn ttl(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Integers near the limits of the types and of the checks.
    pub(in crate::node) fn hostile() -> impl Strategy<Value = i128> {
        let near_limits = prop_oneof![
            Just(0_i128),
            Just(i128::from(i64::MAX)),
            Just(i128::from(i64::MIN)),
            Just(i128::from(u64::MAX)),
            Just(i128::from(LARGEST_COUNTER)),
            Just(100 * 365 * 86_400),
            Just(i128::from(u32::MAX)),
            any::<i64>().prop_map(i128::from),
        ];
        (near_limits, -3_i128..4).prop_map(|(limit, off)| limit + off)
    }

    #[test]
    fn negative_or_impossible_uptime_counts_as_a_server_that_has_just_started() {
        let read_uptime = |text: &str| {
            uptime(text)
                .map(|read_uptime| (read_uptime.at_least.as_secs(), read_uptime.is_credible))
        };
        for (text, expected) in [
            ("0", Some((0, true))),
            ("61", Some((61, true))),
            (" 61 ", Some((61, true))),
            ("-1", Some((0, false))),
            ("-7200", Some((0, false))),
            ("3153600000", Some((3_153_600_000, true))),
            ("3153600001", Some((0, false))),
            // A negative number that was printed as an unsigned one.
            ("18446744073709544416", Some((0, false))),
            ("", None),
            ("1.5", None),
            ("soon", None),
        ] {
            assert_eq!(read_uptime(text), expected, "{text:?}");
        }
    }

    #[test]
    fn only_digits_are_a_whole_number() {
        assert_eq!(parse_whole(b"0"), Some(0));
        assert_eq!(parse_whole(b"18446744073709551615"), Some(u64::MAX));
        for text in [
            &b""[..],
            b"-1",
            b"+1",
            b" 1",
            b"1 ",
            b"1e3",
            b"18446744073709551616",
            b"\xff",
        ] {
            assert_eq!(parse_whole(text), None, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn impossible_clock_of_a_server_counts_as_unknown() {
        assert_eq!(clock(1_700_000_000_000_000), Some(1_700_000_000_000_000));
        for micros in [i64::MIN, -1, 0, 1 << 53, i64::MAX] {
            assert_eq!(clock(micros), None, "{micros}");
        }
        assert_eq!(time(b"1700000000", b"999999"), Some(1_700_000_000_999_999));
        for (secs, micros) in [
            ("-1", "0"),
            ("1", "1000000"),
            ("9007199255", "0"),
            ("x", "0"),
        ] {
            assert_eq!(
                time(secs.as_bytes(), micros.as_bytes()),
                None,
                "{secs} {micros}"
            );
        }
    }

    proptest! {
        #[test]
        fn no_number_of_a_server_causes_a_panic(number in hostile(), other in hostile()) {
            let (text, more) = (number.to_string(), other.to_string());
            let _ = (parse_whole(text.as_bytes()), time(text.as_bytes(), more.as_bytes()));
            let read_uptime = uptime(&text).map(|read| read.at_least);
            prop_assert!(read_uptime.is_some_and(|uptime| uptime <= LONGEST_UPTIME));
            if let Ok(number) = i64::try_from(number) {
                let _ = (clock(number), ttl(number));
                prop_assert!(counter(number).is_none_or(|counter| counter <= LARGEST_COUNTER));
            }
        }
    }
}
