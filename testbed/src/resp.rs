//! A minimal RESP2 client, with which tests send commands to a server.
//!
//! The client sends one request and blocks until it has read the reply, with a time limit for each read and write. It
//! deliberately supports no pipelines, pub/sub, RESP3 or reconnects.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status line such as `OK` or `PONG`.
    Status(String),
    /// An error; its first word is the code (`ERR`, `NOAUTH`, `LOADING`).
    Error(String),
    /// An integer.
    Int(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// Nil, for example for a missing key or a `SET NX` that did not set the key.
    Nil,
    /// A list of replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// Whether the reply is the status `OK`.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Status(line) if line == "OK")
    }

    /// The text of a status, an error or a string; `None` for every other kind of reply.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Status(line) | Self::Error(line) => Some(line.into()),
            Self::Bulk(bytes) => Some(String::from_utf8_lossy(bytes)),
            Self::Int(_) | Self::Nil | Self::Array(_) => None,
        }
    }

    /// The integer, or the number that a string of digits contains; `None` for every other reply.
    pub fn int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::Bulk(_) => self.text()?.parse().ok(),
            _ => None,
        }
    }
}

impl Reply {
    /// Reads one reply.
    ///
    /// # Errors
    ///
    /// Those of [`Connection::receive`].
    pub fn read(reader: &mut impl BufRead) -> io::Result<Self> {
        read_reply(reader, MAX_DEPTH)
    }
}

impl From<&str> for Reply {
    /// The reply that a `GET` returns for a key with this value. Tests use it to compare replies with `assert_eq!`.
    fn from(value: &str) -> Self {
        Self::Bulk(value.as_bytes().to_vec())
    }
}

/// A blocking connection to a server.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<Stream>,
}

impl Connection {
    /// Connects over TCP. `timeout` bounds the connect, and each later read and write.
    ///
    /// # Errors
    ///
    /// The error of the system; `TimedOut` if the connect takes longer than `timeout`.
    pub fn tcp(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self::over(Stream::Tcp(stream)))
    }

    /// Connects to a Unix socket. `timeout` bounds each single read and write.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn unix(path: &Path, timeout: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self::over(Stream::Unix(stream)))
    }

    fn over(stream: Stream) -> Self {
        Self {
            stream: BufReader::new(stream),
        }
    }

    /// Sends one command and reads its reply. An error reply of the server is an `Ok(Reply::Error)`.
    ///
    /// # Errors
    ///
    /// `TimedOut` if the server is silent, `UnexpectedEof` if it hangs up, `InvalidData` if it does not speak RESP2,
    /// otherwise the error of the system. After any of these errors the connection is unusable.
    pub fn command<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<Reply> {
        self.send(args)?;
        self.receive()
    }

    /// Sends one command and does not wait for the reply.
    ///
    /// # Errors
    ///
    /// As for [`command`](Self::command).
    pub fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args.iter().map(AsRef::as_ref) {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream
            .get_mut()
            .write_all(&request)
            .map_err(as_timeout)
    }

    /// Reads the next reply.
    ///
    /// # Errors
    ///
    /// As for [`command`](Self::command).
    pub fn receive(&mut self) -> io::Result<Reply> {
        read_reply(&mut self.stream, MAX_DEPTH).map_err(as_timeout)
    }
}

/// Turns the error `WouldBlock` into `TimedOut`, because a socket timeout returns `WouldBlock` on Unix.
fn as_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time")
    } else {
        error
    }
}

/// How deep the arrays of a reply may be nested.
const MAX_DEPTH: usize = 32;

/// The longest line of a reply, in bytes. Only status lines and errors are longer than a few digits.
const LONGEST_LINE: u64 = 64 << 10;

fn read_reply(from: &mut impl BufRead, depth: usize) -> io::Result<Reply> {
    let invalid_data = |reason: &str| io::Error::new(io::ErrorKind::InvalidData, reason.to_owned());
    let depth = depth
        .checked_sub(1)
        .ok_or_else(|| invalid_data("the reply is nested too deeply"))?;
    let mut line = String::new();
    let read_bytes = Read::take(&mut *from, LONGEST_LINE).read_line(&mut line)?;
    if read_bytes as u64 == LONGEST_LINE {
        return Err(invalid_data("a line of the reply is too long"));
    }
    let Some(line) = line.strip_suffix("\r\n") else {
        return Err(io::ErrorKind::UnexpectedEof.into());
    };
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("not RESP2: {line:?}"));
    let (kind, rest) = line.split_at_checked(1).ok_or_else(invalid)?;
    let parse_number = || rest.parse::<i64>().map_err(|_| invalid());
    Ok(match kind {
        "+" => Reply::Status(rest.into()),
        "-" => Reply::Error(rest.into()),
        ":" => Reply::Int(parse_number()?),
        "$" => match usize::try_from(parse_number()?) {
            Err(_) => Reply::Nil,
            Ok(length) => {
                // Do not reserve memory for the announced length, because the bytes may never arrive.
                let mut bytes = Vec::new();
                let length_with_end = (length as u64).saturating_add(2);
                let read_bytes = Read::take(&mut *from, length_with_end).read_to_end(&mut bytes)?;
                if (read_bytes as u64) < length_with_end {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                bytes.truncate(length);
                Reply::Bulk(bytes)
            }
        },
        "*" => match usize::try_from(parse_number()?) {
            Err(_) => Reply::Nil,
            Ok(length) => Reply::Array(
                (0..length)
                    .map(|_| read_reply(from, depth))
                    .collect::<Result<_, _>>()?,
            ),
        },
        _ => return Err(invalid()),
    })
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buf),
            Self::Unix(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buf),
            Self::Unix(stream) => stream.write(buf),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> io::Result<Reply> {
        read_reply(&mut text.as_bytes(), MAX_DEPTH)
    }

    #[test]
    fn every_kind_of_reply_is_parsed() {
        let reply = parse("*5\r\n+OK\r\n-ERR no\r\n:-7\r\n$4\r\na\r\nb\r\n$-1\r\n").unwrap();
        let Reply::Array(parts) = reply else {
            panic!("{reply:?}")
        };
        assert!(parts[0].is_ok());
        assert_eq!(parts[1], Reply::Error("ERR no".into()));
        assert_eq!(parts[2].int(), Some(-7));
        assert_eq!(parts[3], Reply::from("a\r\nb"));
        assert_eq!(parts[4], Reply::Nil);
    }

    #[test]
    fn reply_that_announces_too_much_is_an_error_and_reserves_no_memory() {
        let deep = "*1\r\n".repeat(100_000);
        let long = format!("+{}", "a".repeat(1 << 20));
        for reply in [
            "$9223372036854775807\r\nab\r\n",
            "*9223372036854775807\r\n:1\r\n",
            &deep,
            &long,
        ] {
            assert!(parse(reply).is_err());
        }
    }

    #[test]
    fn parse_error_kind_distinguishes_truncated_replies_from_garbage() {
        for torn in ["", "+O", "$5\r\nab", "*2\r\n:1\r\n"] {
            let kind = parse(torn).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::UnexpectedEof, "{torn:?}");
        }
        for nonsense in ["HTTP/1.1 200 OK\r\n", "\r\n", ":x\r\n"] {
            let kind = parse(nonsense).unwrap_err().kind();
            assert_eq!(kind, io::ErrorKind::InvalidData, "{nonsense:?}");
        }
    }
}
