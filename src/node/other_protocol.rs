//! Finds out which protocol a server speaks that does not answer as the URL of a master demands: a URL may lead to a
//! server of another kind, and only a change of the configuration repairs this.
//!
//! The table [`ROWS`] lists the protocols; `docs/refusals.md` shows it, and a test compares the two.

use std::io;

use tokio::net::{TcpStream, ToSocketAddrs};

/// A protocol that a server may speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Redis or Valkey.
    Redis,
    /// MySQL or MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
    /// ZooKeeper.
    ZooKeeper,
    /// HTTP without TLS.
    Http,
    /// TLS from the first byte on.
    Tls,
    /// Any other protocol whose messages begin with text.
    Text,
}

/// One row of the table: a protocol, how the page describes its answer, and the text of the fault.
struct ProtocolRow {
    protocol: Protocol,
    #[cfg_attr(not(test), allow(dead_code, reason = "only the page shows this"))]
    observation: &'static str,
    text: &'static str,
}

#[rustfmt::skip]
static ROWS: [ProtocolRow; 7] = [
    ProtocolRow { protocol: Protocol::Redis, observation: "an error as Redis and Valkey send it",
        text: "this is a Redis or Valkey server: use redis:// in the URL, or correct the host and the port" },
    ProtocolRow { protocol: Protocol::MySql, observation: "the first packet of MySQL or MariaDB",
        text: "this is a MySQL or MariaDB server: use mysql:// in the URL, or correct the host and the port" },
    ProtocolRow { protocol: Protocol::Postgres, observation: "no answer, but the answer of PostgreSQL to a request for TLS",
        text: "this is a PostgreSQL server: use postgres:// in the URL, or correct the host and the port" },
    ProtocolRow { protocol: Protocol::ZooKeeper, observation: "the answer of ZooKeeper",
        text: "this is a ZooKeeper server: use zk:// in the URL, or correct the host and the port" },
    ProtocolRow { protocol: Protocol::Http, observation: "an HTTP response, or HTML",
        text: "the server speaks HTTP: correct the host and the port in the URL" },
    ProtocolRow { protocol: Protocol::Tls, observation: "a TLS record",
        text: "the server expects TLS at this port: correct the host and the port in the URL" },
    ProtocolRow { protocol: Protocol::Text, observation: "any other text",
        text: "the server speaks another protocol: correct the host and the port in the URL" },
];

/// The line that the client sends. Redis answers an unknown command with an error, ZooKeeper answers with its state,
/// and a web server with an error. MySQL sends its first packet without waiting for the client. PostgreSQL closes the
/// connection.
const PROBE: &[u8; 6] = b"srvr\r\n";

/// The request for TLS of PostgreSQL: its length, and a fixed number. The server answers `S` (TLS follows) or `N` (no
/// TLS).
const TLS_REQUEST: &[u8; 8] = b"\0\0\0\x08\x04\xd2\x16\x2f";

/// How many bytes of an answer are read: the longest beginning of an answer that [`Protocol::of_answer`] compares.
const PROBE_ANSWER_BYTES: usize = 14;

impl Protocol {
    /// The protocol of an answer that begins with these bytes; `None` if they show none.
    fn of_answer(bytes: &[u8]) -> Option<Self> {
        let zookeeper: [&[u8]; 3] = [b"Zookeeper", b"This ZooKeeper", b"srvr is not"];
        let is_text = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
        match bytes {
            [b'H', b'T', b'T', b'P', b'/', ..] | [b'<', b'!' | b'h' | b'H', ..] => Some(Self::Http),
            [0x15 | 0x16, 3, ..] => Some(Self::Tls),
            // The length of the packet, its number, and the version of the protocol or the mark of an error.
            [_, _, 0, 0, 10 | 0xff, ..] => Some(Self::MySql),
            [b'-' | b'+', b'A'..=b'Z', b'A'..=b'Z', ..] => Some(Self::Redis),
            _ if zookeeper
                .iter()
                .any(|beginning| bytes.starts_with(beginning)) =>
            {
                Some(Self::ZooKeeper)
            }
            [first @ .., _] if bytes.len() > 4 && is_text(&first[..4]) => Some(Self::Text),
            _ => None,
        }
    }

    fn text(self) -> &'static str {
        let row = ROWS.iter().find(|row| row.protocol == self);
        row.map_or("", |row| row.text)
    }
}

/// Connects to a server that does not answer in the protocol `expected`. If it speaks another one, returns what to
/// change. The caller limits the time.
pub async fn other_protocol(
    server: impl ToSocketAddrs,
    expected: Protocol,
) -> Option<&'static str> {
    let answer = answer_to(&server, PROBE).await.ok()?;
    let spoken = if answer.is_empty() {
        let answer = answer_to(&server, TLS_REQUEST).await.ok()?;
        matches!(answer[..], [b'S' | b'N']).then_some(Protocol::Postgres)?
    } else {
        Protocol::of_answer(&answer)?
    };
    // A client of Redis understands the answers of other servers that begin with text. A part of an answer of Redis may
    // look like one of them.
    let is_unclear = expected == Protocol::Redis && spoken == Protocol::Text;
    (spoken != expected && !is_unclear).then(|| spoken.text())
}

/// Sends a request on a new connection, and returns the first bytes of the answer. They are empty if the server closes
/// the connection without an answer.
async fn answer_to(server: impl ToSocketAddrs, request: &[u8]) -> io::Result<Vec<u8>> {
    let stream = TcpStream::connect(server).await?;
    // A new connection accepts a few bytes at once.
    stream.writable().await?;
    stream.try_write(request)?;
    // The answer to a request for TLS has one byte, after which the server waits.
    let wanted = if request == TLS_REQUEST {
        1
    } else {
        PROBE_ANSWER_BYTES
    };
    let mut bytes = [0; PROBE_ANSWER_BYTES];
    let mut count = 0;
    while count < wanted {
        stream.readable().await?;
        match stream.try_read(&mut bytes[count..]) {
            Ok(0) => break,
            Ok(count_read) => count += count_read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // ZooKeeper closes the connection after its answer, before it has read the whole line.
            Err(_) if count > 0 => break,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error),
        }
    }
    Ok(bytes[..count].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_of_an_answer_show_the_protocol() {
        let shown_protocol =
            |bytes: &[u8]| Protocol::of_answer(&bytes[..bytes.len().min(PROBE_ANSWER_BYTES)]);
        for (bytes, protocol) in [
            (&b"-ERR unknown command 'srvr'\r\n"[..], Protocol::Redis),
            (b"-NOAUTH Authentication required.\r\n", Protocol::Redis),
            (b"-DENIED Redis is running in protected", Protocol::Redis),
            (b"\x6c\0\0\0\x0a5.5.5-10.11.6-MariaDB\0", Protocol::MySql),
            (
                b"\x45\0\0\0\xff\x6a\x04Host is not allowed",
                Protocol::MySql,
            ),
            (b"Zookeeper version: 3.8.0", Protocol::ZooKeeper),
            (b"srvr is not executed because", Protocol::ZooKeeper),
            (
                b"This ZooKeeper instance is not currently serving",
                Protocol::ZooKeeper,
            ),
            (b"HTTP/1.1 400 Bad Request\r\n", Protocol::Http),
            (b"<!DOCTYPE HTML>", Protocol::Http),
            (b"\x15\x03\x03\0\x02\x02\x46", Protocol::Tls),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Protocol::Text),
            (b"220 mail.example\r\n", Protocol::Text),
        ] {
            assert_eq!(
                shown_protocol(bytes),
                Some(protocol),
                "{}",
                bytes.escape_ascii()
            );
        }
        for bytes in [&b""[..], b"-", b"abc", b"\0\0\0\x29\0\0\0\0"] {
            assert_eq!(shown_protocol(bytes), None, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn page_lists_every_protocol() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/refusals.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let (_, section) = page
            .split_once("## Servers of another kind\n")
            .expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let page_rows = section.lines().filter(|line| line.starts_with("| "));
        let page_rows: Vec<&str> = page_rows.skip(1).collect();
        let row_text = |row: &ProtocolRow| {
            format!("| {} | unsupported | no | {} |", row.observation, row.text)
        };
        let rows: Vec<String> = ROWS.iter().map(row_text).collect();
        assert_eq!(
            page_rows,
            rows,
            "docs/refusals.md must show:\n{}",
            rows.join("\n")
        );
    }
}
