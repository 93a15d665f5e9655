//! The RESP3 protocol: writes commands as bytes, and parses replies. A parsed reply borrows its texts from the input
//! buffer instead of copying them.

/// A command that is being written into the output buffer.
pub(super) struct Command<'a> {
    out: &'a mut Vec<u8>,
    words_left: usize,
}

impl<'a> Command<'a> {
    /// Begins a command with this number of words, including the name of the command.
    pub(super) fn new(out: &'a mut Vec<u8>, words: usize) -> Self {
        write_header(out, b'*', words as u64);
        Self {
            out,
            words_left: words,
        }
    }

    /// Writes a command that consists of these words.
    pub(super) fn write_words(out: &mut Vec<u8>, words: &[&str]) {
        let mut command = Command::new(out, words.len());
        for word in words {
            command.arg(word);
        }
    }

    pub(super) fn arg(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        let word = word.as_ref();
        write_header(self.out, b'$', word.len() as u64);
        self.out.extend_from_slice(word);
        self.out.extend_from_slice(b"\r\n");
        self.words_left = self.words_left.wrapping_sub(1);
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = [0; 20];
        self.arg(decimal(number, &mut digits))
    }
}

impl Drop for Command<'_> {
    fn drop(&mut self) {
        debug_assert_eq!(
            self.words_left, 0,
            "the command must have as many words as its header announces"
        );
    }
}

fn write_header(out: &mut Vec<u8>, kind: u8, number: u64) {
    let mut digits = [0; 20];
    out.push(kind);
    out.extend_from_slice(decimal(number, &mut digits));
    out.extend_from_slice(b"\r\n");
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut position = digits.len();
    loop {
        position -= 1;
        digits[position] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[position..];
        }
    }
}

/// One reply of the server, or one push (a message that the server sends without a request).
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Int(i64),
    /// A simple string: a text of one line, which RESP sends without its length.
    Simple(&'a [u8]),
    Bulk(&'a [u8]),
    Error(&'a [u8]),
    /// An array, a set, or a map. A map becomes alternating keys and values.
    Array(Vec<Value<'a>>),
    Push(Vec<Value<'a>>),
}

impl<'a> Value<'a> {
    /// The bytes of a simple or bulk string; `None` for other values.
    pub(super) fn text(&self) -> Option<&'a [u8]> {
        match self {
            Self::Simple(bytes) | Self::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The error that the input is not valid RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// How deep the values in a reply may be nested. The replies that this library needs are less deep.
const MAX_DEPTH: usize = 8;

/// The largest size of a reply that is accepted: 8 MiB, far more than any reply to this library needs.
pub(super) const MAX_REPLY_BYTES: usize = 8 << 20;

/// The largest number of bytes in a reply, the contents of its bulk strings not counted: 64 KiB.
///
/// The limit keeps parsing cheap: each time bytes arrive, an incomplete reply is parsed again from its beginning.
pub(super) const MAX_LINE_BYTES: usize = 64 << 10;

/// The first bytes of all kinds of values.
const TYPE_BYTES: &[u8; 15] = b"+-:$*_#,(!=%~>|";

/// Parses the first reply in `bytes`, and returns it with its length in bytes. `None` if the reply is incomplete.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Value<'_>, usize)>, Malformed> {
    // Do not wait for the end of the line: another protocol may have no lines.
    if bytes
        .first()
        .is_some_and(|first| !TYPE_BYTES.contains(first))
    {
        return Err(Malformed);
    }
    // A packet of MySQL begins with its length, which may be a byte of `TYPE_BYTES`, and two bytes 0.
    if bytes.get(1) == Some(&0) {
        return Err(Malformed);
    }
    let mut reader = Reader {
        bytes,
        position: 0,
        line_bytes_left: MAX_LINE_BYTES,
    };
    match reader.value(MAX_DEPTH) {
        Ok(value) => Ok(Some((value, reader.position))),
        Err(ParseStop::Incomplete) => Ok(None),
        Err(ParseStop::Malformed) => Err(Malformed),
    }
}

enum ParseStop {
    Incomplete,
    Malformed,
}

struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    /// How many bytes of the limit [`MAX_LINE_BYTES`] are left for this reply.
    line_bytes_left: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value<'a>, ParseStop> {
        let depth = depth.checked_sub(1).ok_or(ParseStop::Malformed)?;
        let line = self.line()?;
        let (kind, rest) = line.split_first().ok_or(ParseStop::Malformed)?;
        Ok(match kind {
            b'+' | b',' | b'(' => Value::Simple(rest),
            b'-' => Value::Error(rest),
            b':' => Value::Int(number(rest)?),
            b'#' if rest == b"t" => Value::Int(1),
            b'#' if rest == b"f" => Value::Int(0),
            b'_' if rest.is_empty() => Value::Nil,
            b'$' => self.bulk(rest)?.map_or(Value::Nil, Value::Bulk),
            b'!' => self.bulk(rest)?.map_or(Value::Nil, Value::Error),
            // A verbatim string begins with its format (three characters) and a colon. Drop these four characters.
            b'=' => {
                let text = self.bulk(rest)?.and_then(|text| text.get(4..));
                Value::Bulk(text.ok_or(ParseStop::Malformed)?)
            }
            b'*' | b'~' => match length(rest)? {
                Some(count) => Value::Array(self.values(count, depth)?),
                None => Value::Nil,
            },
            b'%' => {
                let pairs = length(rest)?.ok_or(ParseStop::Malformed)?;
                Value::Array(self.values(2 * pairs, depth)?)
            }
            b'>' => {
                let count = length(rest)?.ok_or(ParseStop::Malformed)?;
                Value::Push(self.values(count, depth)?)
            }
            // Skip the attributes of the next reply. This library never requests attributes.
            b'|' => {
                let pairs = length(rest)?.ok_or(ParseStop::Malformed)?;
                self.values(2 * pairs, depth)?;
                return self.value(depth);
            }
            _ => return Err(ParseStop::Malformed),
        })
    }

    fn values(&mut self, count: usize, depth: usize) -> Result<Vec<Value<'a>>, ParseStop> {
        // Reserve memory for a few elements only, because the announced elements may never arrive.
        let mut values = Vec::with_capacity(count.min(16));
        for _ in 0..count {
            values.push(self.value(depth)?);
        }
        Ok(values)
    }

    fn bulk(&mut self, len: &[u8]) -> Result<Option<&'a [u8]>, ParseStop> {
        let Some(len) = length(len)? else {
            return Ok(None);
        };
        let end = self.position + len;
        let text = self
            .bytes
            .get(self.position..end)
            .ok_or(ParseStop::Incomplete)?;
        match self.bytes.get(end..end + 2) {
            Some(b"\r\n") => {
                self.position = end + 2;
                Ok(Some(text))
            }
            Some(_) => Err(ParseStop::Malformed),
            None => Err(ParseStop::Incomplete),
        }
    }

    /// Reads up to the next line end, and returns the text before it.
    fn line(&mut self) -> Result<&'a [u8], ParseStop> {
        let rest = self.bytes.get(self.position..).unwrap_or_default();
        let searched = &rest[..rest.len().min(self.line_bytes_left)];
        let line = match searched.iter().position(|byte| *byte == b'\n') {
            Some(end) => &rest[..end],
            None if searched.len() < self.line_bytes_left => return Err(ParseStop::Incomplete),
            None => return Err(ParseStop::Malformed),
        };
        self.line_bytes_left -= line.len() + 1;
        self.position += line.len() + 1;
        line.strip_suffix(b"\r").ok_or(ParseStop::Malformed)
    }
}

fn number(digits: &[u8]) -> Result<i64, ParseStop> {
    let (negative, digits) = match digits.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, digits),
    };
    if digits.is_empty() {
        return Err(ParseStop::Malformed);
    }
    let mut number = 0_i64;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return Err(ParseStop::Malformed);
        }
        let digit = i64::from(digit);
        let next_number = number.checked_mul(10).and_then(|tens| {
            if negative {
                tens.checked_sub(digit)
            } else {
                tens.checked_add(digit)
            }
        });
        number = next_number.ok_or(ParseStop::Malformed)?;
    }
    Ok(number)
}

/// Parses a length. `None` for -1, with which RESP2 marks a null value.
fn length(digits: &[u8]) -> Result<Option<usize>, ParseStop> {
    match number(digits)? {
        -1 => Ok(None),
        len => match usize::try_from(len) {
            Ok(len) if len <= MAX_REPLY_BYTES => Ok(Some(len)),
            _ => Err(ParseStop::Malformed),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse_whole(bytes: &[u8]) -> Value<'_> {
        let (value, len) = parse(bytes)
            .unwrap_or_else(|_| {
                panic!(
                    "the reply must be valid RESP: {:?}",
                    bytes.escape_ascii().to_string()
                )
            })
            .expect("the reply must be complete");
        assert_eq!(len, bytes.len());
        value
    }

    #[test]
    fn commands_are_encoded_as_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        Command::new(&mut out, 4)
            .arg("SET")
            .arg(b"a\r\nb")
            .number(0)
            .number(u64::MAX);
        assert_eq!(
            out,
            b"*4\r\n$3\r\nSET\r\n$4\r\na\r\nb\r\n$1\r\n0\r\n$20\r\n18446744073709551615\r\n"
        );
    }

    #[test]
    fn all_types_of_replies_are_parsed() {
        assert_eq!(parse_whole(b"+OK\r\n"), Value::Simple(b"OK"));
        assert_eq!(parse_whole(b"-ERR no\r\n"), Value::Error(b"ERR no"));
        assert_eq!(parse_whole(b"!5\r\nERR x\r\n"), Value::Error(b"ERR x"));
        assert_eq!(parse_whole(b":-42\r\n"), Value::Int(-42));
        assert_eq!(parse_whole(b":+42\r\n"), Value::Int(42));
        assert_eq!(
            parse_whole(b":9223372036854775807\r\n"),
            Value::Int(i64::MAX)
        );
        assert_eq!(
            parse_whole(b":-9223372036854775808\r\n"),
            Value::Int(i64::MIN)
        );
        assert_eq!(parse_whole(b"$4\r\na\r\nb\r\n"), Value::Bulk(b"a\r\nb"));
        assert_eq!(parse_whole(b"$0\r\n\r\n"), Value::Bulk(b""));
        assert_eq!(parse_whole(b"=7\r\ntxt:abc\r\n"), Value::Bulk(b"abc"));
        for nil in [&b"_\r\n"[..], b"$-1\r\n", b"*-1\r\n"] {
            assert_eq!(parse_whole(nil), Value::Nil);
        }
        assert_eq!(parse_whole(b"#t\r\n"), Value::Int(1));
        assert_eq!(parse_whole(b"#f\r\n"), Value::Int(0));
        assert_eq!(parse_whole(b",1.5\r\n"), Value::Simple(b"1.5"));
        assert_eq!(
            parse_whole(b"*2\r\n:1\r\n*1\r\n+a\r\n"),
            Value::Array(vec![Value::Int(1), Value::Array(vec![Value::Simple(b"a")])])
        );
        assert_eq!(
            parse_whole(b"%1\r\n+a\r\n:1\r\n"),
            Value::Array(vec![Value::Simple(b"a"), Value::Int(1)])
        );
        assert_eq!(
            parse_whole(b"|1\r\n+ttl\r\n:3\r\n>1\r\n+message\r\n"),
            Value::Push(vec![Value::Simple(b"message")])
        );
        assert_eq!(parse_whole(b"|0\r\n:5\r\n"), Value::Int(5));
        assert_eq!(
            parse_whole(b"|2\r\n+ttl\r\n:3\r\n+age\r\n:4\r\n:5\r\n"),
            Value::Int(5)
        );
    }

    #[test]
    fn malformed_resp_is_refused_without_reserving_memory() {
        for bytes in [
            &b"HTTP/1.1 400\r\n"[..],
            b"\r\n",
            b":\r\n",
            b":1x\r\n",
            b":9223372036854775808\r\n",
            b"$-2\r\n",
            b"$3\r\nabcd\r\n",
            b"+no carriage return\n",
            b"*99999999999\r\n",
            b"=2\r\nab\r\n",
            b"_junk\r\n",
            b">\0\0\0\xff",
            b"#x\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        ] {
            assert_eq!(parse(bytes), Err(Malformed), "{}", bytes.escape_ascii());
        }
        // The reply announces a million elements, but none has arrived. The parser must not reserve memory for all of
        // them.
        assert_eq!(parse(b"*1000000\r\n"), Ok(None));
    }

    /// Generates random replies as bytes.
    fn reply() -> impl Strategy<Value = Vec<u8>> {
        let text = proptest::collection::vec(any::<u8>(), 0..20);
        let leaf = prop_oneof![
            any::<i64>().prop_map(|n| format!(":{n}\r\n").into_bytes()),
            "[a-z ]{0,12}".prop_map(|s| format!("+{s}\r\n").into_bytes()),
            "[A-Z]{1,8}( [a-z ]{0,12})?".prop_map(|s| format!("-{s}\r\n").into_bytes()),
            text.prop_map(|text| {
                let mut bytes = format!("${}\r\n", text.len()).into_bytes();
                bytes.extend(text);
                bytes.extend(b"\r\n");
                bytes
            }),
            Just(b"_\r\n".to_vec()),
        ];
        leaf.prop_recursive(4, 24, 5, |inner| {
            let elements = proptest::collection::vec(inner, 0..5);
            (prop_oneof![Just('*'), Just('>')], elements).prop_map(|(kind, elements)| {
                let mut bytes = format!("{kind}{}\r\n", elements.len()).into_bytes();
                bytes.extend(elements.concat());
                bytes
            })
        })
    }

    /// Whether a value equals the value that the parser of the `redis` crate returned for the same bytes.
    fn is_same_value(ours: &Value<'_>, theirs: &redis::Value) -> bool {
        use redis::Value as Theirs;
        match (ours, theirs) {
            (Value::Nil, Theirs::Nil) | (Value::Simple(b"OK"), Theirs::Okay) => true,
            (Value::Int(a), Theirs::Int(b)) => a == b,
            (Value::Simple(a), Theirs::SimpleString(b)) => *a == b.as_bytes(),
            (Value::Bulk(a), Theirs::BulkString(b)) => a == b,
            (Value::Error(a), Theirs::ServerError(b)) => {
                let a = String::from_utf8_lossy(a);
                let (code, details) = a.split_once(' ').unwrap_or((&a, ""));
                code == b.code() && details == b.details().unwrap_or_default()
            }
            (Value::Array(a), Theirs::Array(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same_value(a, b))
            }
            _ => false,
        }
    }

    fn has_push(value: &Value<'_>) -> bool {
        match value {
            Value::Push(_) => true,
            Value::Array(values) => values.iter().any(has_push),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn replies_are_parsed_to_the_same_values_as_by_the_redis_crate(bytes in reply()) {
            let (ours, len) = parse(&bytes).expect("the reply must be valid RESP").expect("the reply must be complete");
            prop_assert_eq!(len, bytes.len());
            // Skip replies with pushes: the `redis` crate rejects a push whose first element is not a string.
            if !has_push(&ours) {
                let theirs = redis::parse_redis_value(&bytes).expect("the `redis` crate must accept the reply");
                prop_assert!(is_same_value(&ours, &theirs), "{ours:?} / {theirs:?}");
            }
        }

        #[test]
        fn incomplete_reply_is_not_parsed(bytes in reply(), next_reply in reply()) {
            for cut in 0..bytes.len() {
                prop_assert_eq!(parse(&bytes[..cut]), Ok(None));
            }
            let both_replies = [&bytes[..], &next_reply].concat();
            let (first, len) = parse(&both_replies).expect("the reply must be valid RESP").expect("the reply must be complete");
            prop_assert_eq!(len, bytes.len());
            prop_assert_eq!(first, parse_whole(&bytes));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic_the_parser(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}
