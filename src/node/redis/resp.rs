//! The bytes of the protocol: commands out, RESP3 replies in.
//!
//! A reply borrows from the buffer it lies in: a vote costs no allocation.

/// One command, written straight into the buffer that goes out.
pub(super) struct Command<'a> {
    out: &'a mut Vec<u8>,
    left: usize,
}

impl<'a> Command<'a> {
    /// A command of so many words, its name included.
    pub(super) fn of(out: &'a mut Vec<u8>, words: usize) -> Self {
        head(out, b'*', words as u64);
        Self { out, left: words }
    }

    /// A whole command of plain words.
    pub(super) fn words(out: &mut Vec<u8>, words: &[&str]) {
        let mut command = Command::of(out, words.len());
        for word in words {
            command.arg(word);
        }
    }

    pub(super) fn arg(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        let word = word.as_ref();
        head(self.out, b'$', word.len() as u64);
        self.out.extend_from_slice(word);
        self.out.extend_from_slice(b"\r\n");
        self.left = self.left.wrapping_sub(1);
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = [0; 20];
        self.arg(decimal(number, &mut digits))
    }
}

impl Drop for Command<'_> {
    fn drop(&mut self) {
        debug_assert_eq!(self.left, 0, "as many words as were announced");
    }
}

fn head(out: &mut Vec<u8>, kind: u8, number: u64) {
    let mut digits = [0; 20];
    out.push(kind);
    out.extend_from_slice(decimal(number, &mut digits));
    out.extend_from_slice(b"\r\n");
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// One reply, or one message that nobody asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Int(i64),
    /// Text of one line.
    Simple(&'a [u8]),
    Bulk(&'a [u8]),
    Error(&'a [u8]),
    /// Also sets, and maps as keys and values in turn.
    Array(Vec<Value<'a>>),
    Push(Vec<Value<'a>>),
}

impl<'a> Value<'a> {
    /// The bytes of a text, however it was sent.
    pub(super) fn text(&self) -> Option<&'a [u8]> {
        match self {
            Self::Simple(bytes) | Self::Bulk(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// Bytes that are not RESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// No reply that we ask for is nested deeper.
const DEPTH: usize = 8;

/// The largest reply: far above all that we ask for.
pub(super) const LARGEST: usize = 8 << 20;

/// The most of a reply that is not the text of bulk strings: far above all that we ask for. A reply that
/// is not whole is read anew whenever more of it has come, and one that never ends must not keep those
/// waiting who share the thread (`a_reply_of_pieces_without_end_is_given_up_soon`).
pub(super) const LINES: usize = 64 << 10;

/// The first reply in `bytes` and its length; none when it is not there whole.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Value<'_>, usize)>, Malformed> {
    let mut reader = Reader {
        bytes,
        at: 0,
        lines: LINES,
    };
    match reader.value(DEPTH) {
        Ok(value) => Ok(Some((value, reader.at))),
        Err(Stop::Short) => Ok(None),
        Err(Stop::Malformed) => Err(Malformed),
    }
}

enum Stop {
    Short,
    Malformed,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// How much of [`LINES`] is left.
    lines: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value<'a>, Stop> {
        let depth = depth.checked_sub(1).ok_or(Stop::Malformed)?;
        let line = self.line()?;
        let (kind, rest) = line.split_first().ok_or(Stop::Malformed)?;
        Ok(match kind {
            b'+' | b',' | b'(' => Value::Simple(rest),
            b'-' => Value::Error(rest),
            b':' => Value::Int(number(rest)?),
            b'#' if rest == b"t" => Value::Int(1),
            b'#' if rest == b"f" => Value::Int(0),
            b'_' if rest.is_empty() => Value::Nil,
            b'$' => self.bulk(rest)?.map_or(Value::Nil, Value::Bulk),
            b'!' => self.bulk(rest)?.map_or(Value::Nil, Value::Error),
            // Three requests that say how to read it, and a colon.
            b'=' => {
                let text = self.bulk(rest)?.and_then(|text| text.get(4..));
                Value::Bulk(text.ok_or(Stop::Malformed)?)
            }
            b'*' | b'~' => match length(rest)? {
                Some(count) => Value::Array(self.values(count, depth)?),
                None => Value::Nil,
            },
            b'%' => {
                let pairs = length(rest)?.ok_or(Stop::Malformed)?;
                Value::Array(self.values(2 * pairs, depth)?)
            }
            b'>' => {
                let count = length(rest)?.ok_or(Stop::Malformed)?;
                Value::Push(self.values(count, depth)?)
            }
            // Attributes of the reply that follows: not asked for.
            b'|' => {
                let pairs = length(rest)?.ok_or(Stop::Malformed)?;
                self.values(2 * pairs, depth)?;
                return self.value(depth);
            }
            _ => return Err(Stop::Malformed),
        })
    }

    fn values(&mut self, count: usize, depth: usize) -> Result<Vec<Value<'a>>, Stop> {
        // Not as many as the other side claims: only as many as come.
        let mut values = Vec::with_capacity(count.min(16));
        for _ in 0..count {
            values.push(self.value(depth)?);
        }
        Ok(values)
    }

    fn bulk(&mut self, len: &[u8]) -> Result<Option<&'a [u8]>, Stop> {
        let Some(len) = length(len)? else {
            return Ok(None);
        };
        let end = self.at + len;
        let text = self.bytes.get(self.at..end).ok_or(Stop::Short)?;
        match self.bytes.get(end..end + 2) {
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(Some(text))
            }
            Some(_) => Err(Stop::Malformed),
            None => Err(Stop::Short),
        }
    }

    /// Up to the next line end, which is taken off.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let within = &rest[..rest.len().min(self.lines)];
        let line = match within.iter().position(|byte| *byte == b'\n') {
            Some(end) => &rest[..end],
            None if within.len() < self.lines => return Err(Stop::Short),
            None => return Err(Stop::Malformed),
        };
        self.lines -= line.len() + 1;
        self.at += line.len() + 1;
        line.strip_suffix(b"\r").ok_or(Stop::Malformed)
    }
}

fn number(digits: &[u8]) -> Result<i64, Stop> {
    let (negative, digits) = match digits.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, digits),
    };
    if digits.is_empty() {
        return Err(Stop::Malformed);
    }
    let mut number = 0_i64;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Stop::Malformed);
        }
        let digit = i64::from(digit);
        let next = number.checked_mul(10).and_then(|tens| {
            if negative {
                tens.checked_sub(digit)
            } else {
                tens.checked_add(digit)
            }
        });
        number = next.ok_or(Stop::Malformed)?;
    }
    Ok(number)
}

/// A length; `None` for the -1 of an older null.
fn length(digits: &[u8]) -> Result<Option<usize>, Stop> {
    match number(digits)? {
        -1 => Ok(None),
        len => match usize::try_from(len) {
            Ok(len) if len <= LARGEST => Ok(Some(len)),
            _ => Err(Stop::Malformed),
        },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(bytes: &[u8]) -> Value<'_> {
        let (value, len) = parse(bytes)
            .unwrap_or_else(|_| panic!("malformed: {:?}", bytes.escape_ascii().to_string()))
            .expect("whole");
        assert_eq!(len, bytes.len());
        value
    }

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        Command::of(&mut out, 4)
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
    fn every_kind_of_reply_is_parsed() {
        assert_eq!(whole(b"+OK\r\n"), Value::Simple(b"OK"));
        assert_eq!(whole(b"-ERR no\r\n"), Value::Error(b"ERR no"));
        assert_eq!(whole(b"!5\r\nERR x\r\n"), Value::Error(b"ERR x"));
        assert_eq!(whole(b":-42\r\n"), Value::Int(-42));
        assert_eq!(whole(b":+42\r\n"), Value::Int(42));
        assert_eq!(whole(b":9223372036854775807\r\n"), Value::Int(i64::MAX));
        assert_eq!(whole(b":-9223372036854775808\r\n"), Value::Int(i64::MIN));
        assert_eq!(whole(b"$4\r\na\r\nb\r\n"), Value::Bulk(b"a\r\nb"));
        assert_eq!(whole(b"$0\r\n\r\n"), Value::Bulk(b""));
        assert_eq!(whole(b"=7\r\ntxt:abc\r\n"), Value::Bulk(b"abc"));
        for nil in [&b"_\r\n"[..], b"$-1\r\n", b"*-1\r\n"] {
            assert_eq!(whole(nil), Value::Nil);
        }
        assert_eq!(whole(b"#t\r\n"), Value::Int(1));
        assert_eq!(whole(b"#f\r\n"), Value::Int(0));
        assert_eq!(whole(b",1.5\r\n"), Value::Simple(b"1.5"));
        assert_eq!(
            whole(b"*2\r\n:1\r\n*1\r\n+a\r\n"),
            Value::Array(vec![Value::Int(1), Value::Array(vec![Value::Simple(b"a")])])
        );
        assert_eq!(
            whole(b"%1\r\n+a\r\n:1\r\n"),
            Value::Array(vec![Value::Simple(b"a"), Value::Int(1)])
        );
        assert_eq!(
            whole(b"|1\r\n+ttl\r\n:3\r\n>1\r\n+message\r\n"),
            Value::Push(vec![Value::Simple(b"message")])
        );
    }

    #[test]
    fn what_is_not_resp_is_refused_and_nothing_is_believed() {
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
            b"#x\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        ] {
            assert_eq!(parse(bytes), Err(Malformed), "{}", bytes.escape_ascii());
        }
        // A million elements are announced and none has come: nothing is set aside for them.
        assert_eq!(parse(b"*1000000\r\n"), Ok(None));
    }

    /// Any reply, as bytes.
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
            let many = proptest::collection::vec(inner, 0..5);
            (prop_oneof![Just('*'), Just('>')], many).prop_map(|(kind, many)| {
                let mut bytes = format!("{kind}{}\r\n", many.len()).into_bytes();
                bytes.extend(many.concat());
                bytes
            })
        })
    }

    /// The same as the `redis` crate reads it.
    fn same(ours: &Value<'_>, theirs: &redis::Value) -> bool {
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
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
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
        fn replies_are_read_as_another_parser_reads_them(bytes in reply()) {
            let (ours, len) = parse(&bytes).expect("RESP").expect("whole");
            prop_assert_eq!(len, bytes.len());
            // The other parser wants pushes to begin with a text.
            if !has_push(&ours) {
                let theirs = redis::parse_redis_value(&bytes).expect("RESP");
                prop_assert!(same(&ours, &theirs), "{ours:?} / {theirs:?}");
            }
        }

        #[test]
        fn a_reply_cut_anywhere_is_waited_for(bytes in reply(), behind in reply()) {
            for cut in 0..bytes.len() {
                prop_assert_eq!(parse(&bytes[..cut]), Ok(None));
            }
            let both = [&bytes[..], &behind].concat();
            let (first, len) = parse(&both).expect("RESP").expect("whole");
            prop_assert_eq!(len, bytes.len());
            prop_assert_eq!(first, whole(&bytes));
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = parse(&bytes);
        }
    }
}
