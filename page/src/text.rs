//! Names and durations as text for people and for shells.

use quorate::printable;

/// Quotes a name as the last word of a command that users copy ([`printable::shell_word`]). A name that begins with `-`
/// follows the word `--`, so that it is not an option of the command.
pub(crate) fn shell_word(name: &[u8]) -> String {
    let options_end = if name.first() == Some(&b'-') {
        "-- "
    } else {
        ""
    };
    format!("{options_end}{}", printable::shell_word(name))
}

/// Formats milliseconds as a duration for people, with at most two units.
pub(crate) fn human_duration(ms: u64) -> String {
    let seconds = ms / 1000;
    let two_units = |large: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {unit}"),
        _ => format!("{large} {unit} {small} {small_unit}"),
    };
    match seconds {
        0 => format!("{ms} ms"),
        1..120 => format!("{seconds} s"),
        120..3600 => two_units(seconds / 60, "min", seconds % 60, "s"),
        3600..172_800 => two_units(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => two_units(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// `1 lock`, `2 locks`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_becomes_one_word_of_a_shell() {
        assert_eq!(shell_word(b"deploy:web"), "deploy:web");
        assert_eq!(shell_word(b"a b'c"), r"'a b'\''c'");
        assert_eq!(shell_word(b"<img src=x>"), "'<img src=x>'");
        assert_eq!(shell_word(b"-rf"), "-- -rf");
        assert_eq!(shell_word(b"--yes ;"), "-- '--yes ;'");
        assert_eq!(
            shell_word(b"--config=/tmp/x\x03"),
            r"-- $'\x2d\x2dconfig\x3d\x2ftmp\x2fx\x03'"
        );
        assert_eq!(shell_word(b"$(reboot)"), "'$(reboot)'");
        assert_eq!(shell_word("a\u{202e}b".as_bytes()), r"$'a\xe2\x80\xaeb'");
        assert_eq!(shell_word("a\u{61c}b".as_bytes()), r"$'a\xd8\x9cb'");
        assert_eq!(shell_word(b"a\n\xff"), r"$'a\x0a\xff'");
        assert_eq!(shell_word(b""), "''");
    }

    #[test]
    fn duration_has_at_most_two_units() {
        for (ms, text) in [
            (0, "0 ms"),
            (4_900, "4 s"),
            (119_999, "119 s"),
            (120_000, "2 min"),
            (163_000, "2 min 43 s"),
            (3_600_000, "1 h"),
            (90_000_000, "25 h"),
            (200_000_000, "2 d 7 h"),
        ] {
            assert_eq!(human_duration(ms), text);
        }
    }
}
