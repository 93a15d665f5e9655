//! Bytes as text for people and for shells: names of locks and tokens can contain any bytes.

use std::fmt::Write as _;

/// The bytes as text. Control characters and backslashes are escaped as in Rust, for example `\n`. Bytes that are not
/// UTF-8 become `\xNN`.
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '\\' {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// A name as text for JSON. A name that is UTF-8 is unchanged, because the JSON writer escapes it. Any other name is
/// escaped by [`printable()`].
pub fn json_name(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| printable(bytes), str::to_owned)
}

/// The bytes in hexadecimal, with lower-case letters.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Whether a character changes how the text around it is shown: control characters, characters of width zero, and
/// characters that change the direction of the text.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

/// Quotes a name as one word of a command that users copy. A name with bytes or characters that are not visible gets the
/// quotes `$'..'`, which bash and zsh know.
pub fn shell_word(name: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.,:/@+".contains(byte);
    match std::str::from_utf8(name) {
        Ok(text) if !name.is_empty() && name.iter().all(is_plain) => text.to_owned(),
        Ok(text) if !text.chars().any(is_hidden) => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let escaped = |byte: &u8| match byte {
                b' ' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(*byte).to_string(),
                _ => format!("\\x{byte:02x}"),
            };
            format!("$'{}'", name.iter().map(escaped).collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_backslashes_and_other_bytes_are_escaped() {
        assert_eq!(printable(b"a b"), "a b");
        assert_eq!(printable("\u{e9}\n\\".as_bytes()), "\u{e9}\\n\\\\");
        assert_eq!(printable(b"a\xffb"), "a\\xffb");
    }

    #[test]
    fn json_writer_escapes_text_itself() {
        assert_eq!(json_name(b"a\n\\"), "a\n\\");
        assert_eq!(json_name(b"a\n\xff"), "a\\n\\xff");
    }

    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(hex(b"\x00\xff\x0a"), "00ff0a");
    }

    #[test]
    fn name_in_a_command_is_one_word_for_a_shell() {
        for (name, word) in [
            (&b"deploy:web/1"[..], "deploy:web/1"),
            (b"", "''"),
            (b"a b", "'a b'"),
            (b"$(rm x)", "'$(rm x)'"),
            (b"it's", r"'it'\''s'"),
            ("\u{e4}".as_bytes(), "'\u{e4}'"),
            (b"a'\n\xff b", r"$'a\x27\x0a\xff b'"),
            ("a\u{202e}b".as_bytes(), r"$'a\xe2\x80\xaeb'"),
        ] {
            assert_eq!(shell_word(name), word);
        }
    }
}
