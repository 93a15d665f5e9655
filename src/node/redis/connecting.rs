//! Classifies what goes wrong before the first answer of a Redis master: another protocol, TLS, a proxy that closes the
//! connection.
//!
//! Some of these faults end by themselves: the server restarts, or a certificate is replaced. Others end only if the
//! configuration changes: then the fault is [`Fault::Unsupported`], and an acquire does not wait for this master. The
//! table [`ROWS`] lists all of them; `docs/refusals.md` shows it, and a test compares the two.

use std::io;

use super::refusal::connection_fault;
use crate::node::Fault;

/// An event while the client connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectEvent {
    /// The first answer is an HTTP response.
    Http,
    /// The first answer is a TLS record, although the URL does not ask for TLS.
    Tls,
    /// The first answer does not belong to the protocol of Redis.
    Foreign,
    /// The server answers GET, but closes the connection when it receives HELLO.
    ClosesAtHello,
    /// The URL asks for TLS, and the server answers without TLS.
    #[cfg_attr(
        not(feature = "tls-rustls"),
        allow(dead_code, reason = "an event of TLS")
    )]
    NoTls,
    /// The server's certificate has expired, or is not valid yet.
    #[cfg_attr(
        not(feature = "tls-rustls"),
        allow(dead_code, reason = "an event of TLS")
    )]
    CertificateDate,
    /// The server's certificate was refused for another reason, in a process that had no connection before.
    #[cfg_attr(
        not(feature = "tls-rustls"),
        allow(dead_code, reason = "an event of TLS")
    )]
    Certificate,
    /// The server refused the TLS handshake, in a process that had no connection before.
    #[cfg_attr(
        not(feature = "tls-rustls"),
        allow(dead_code, reason = "an event of TLS")
    )]
    TlsRefused,
}

/// One row of the table: whether an event can end by itself, and the text of its fault.
struct EventRow {
    #[cfg_attr(not(test), allow(dead_code, reason = "only the tests read this"))]
    event: ConnectEvent,
    /// The event as the page describes it.
    #[cfg_attr(not(test), allow(dead_code, reason = "only the page shows this"))]
    observation: &'static str,
    is_temporary: bool,
    /// The text of the fault: the event and the remedy.
    text: &'static str,
}

/// The number of events.
const EVENT_COUNT: usize = ConnectEvent::TlsRefused as usize + 1;

/// The rows of all events, in the order of [`ConnectEvent`].
static ROWS: [EventRow; EVENT_COUNT] = [
    EventRow {
        event: ConnectEvent::Http,
        observation: "the first answer is HTTP",
        is_temporary: false,
        text: "the server speaks HTTP, not the protocol of Redis: correct the host and the port in the URL",
    },
    EventRow {
        event: ConnectEvent::Tls,
        observation: "the first answer is a TLS record, although the URL does not ask for TLS",
        is_temporary: false,
        text: "the server expects TLS: use rediss:// in the URL",
    },
    EventRow {
        event: ConnectEvent::Foreign,
        observation: "the first answer belongs to another protocol",
        is_temporary: false,
        text: "the server does not speak the protocol of Redis: correct the host and the port in the URL",
    },
    EventRow {
        event: ConnectEvent::ClosesAtHello,
        observation: "the server answers GET, but closes two connections in a row when it receives HELLO",
        is_temporary: false,
        text: "the server closes the connection in answer to HELLO, as the proxy twemproxy does: name the servers behind \
               the proxy",
    },
    EventRow {
        event: ConnectEvent::NoTls,
        observation: "the URL asks for TLS, and the server answers without TLS",
        is_temporary: false,
        text: "the server does not use TLS: use redis:// in the URL, or turn TLS on at the server",
    },
    EventRow {
        event: ConnectEvent::CertificateDate,
        observation: "the certificate of the server has expired, or is not valid yet",
        is_temporary: true,
        text: "renew the certificate of the server, or correct the clock of this machine",
    },
    EventRow {
        event: ConnectEvent::Certificate,
        observation: "the certificate of the server is refused for another reason, and this process had no connection before",
        is_temporary: false,
        text: "correct the host name in the URL, the CA of this client (ca_file), or the certificate of the server",
    },
    EventRow {
        event: ConnectEvent::TlsRefused,
        observation: "the server refuses the TLS handshake, and this process had no connection before",
        is_temporary: false,
        text: "correct the certificate and the key of this client (client_cert, client_key), or the TLS settings of the server",
    },
];

impl ConnectEvent {
    /// The fault of this event. `detail` is the error of TLS, which the text quotes; `None` if there is none.
    pub(super) fn fault(self, detail: Option<&str>) -> Fault {
        let row = &ROWS[self as usize];
        let why = match detail {
            Some(detail) => format!("{detail}: {}", row.text),
            None => row.text.to_owned(),
        };
        if row.is_temporary {
            Fault::Down(why.into())
        } else {
            Fault::Unsupported(why.into())
        }
    }
}

/// The first bytes of an answer that does not belong to the protocol of Redis.
#[derive(Debug, thiserror::Error)]
#[error("the reply is not valid RESP")]
pub(super) struct NotResp {
    event: ConnectEvent,
}

impl NotResp {
    /// `bytes` begin with the part of the answer that cannot be parsed.
    pub(super) fn error(bytes: &[u8]) -> io::Error {
        let event = match bytes {
            [b'H', b'T', b'T', b'P', ..] => ConnectEvent::Http,
            // A TLS alert, or a TLS handshake message.
            [0x15 | 0x16, 3, ..] => ConnectEvent::Tls,
            _ => ConnectEvent::Foreign,
        };
        io::Error::other(Self { event })
    }
}

/// The fault of an error that happened before the first answer on a connection. `had_connection` is the same as in
/// [`broken`].
pub(super) fn before_first_answer(error: io::Error, had_connection: bool) -> Fault {
    let not_resp = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<NotResp>());
    match not_resp.map(|not_resp| not_resp.event) {
        Some(event) => event.fault(None),
        None => broken(error, had_connection),
    }
}

/// The fault of a connection that cannot be used because of `error`, which may be an error of TLS. `had_connection` is
/// whether this process has had a connection to the master before: then certificates are perhaps being replaced, which
/// ends by itself.
#[cfg(feature = "tls-rustls")]
pub(super) fn broken(error: io::Error, had_connection: bool) -> Fault {
    use rustls::{CertificateError, Error};

    let event = match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<Error>())
    {
        Some(Error::InvalidMessage(_)) => ConnectEvent::NoTls,
        Some(Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => ConnectEvent::CertificateDate,
        Some(Error::InvalidCertificate(_)) if !had_connection => ConnectEvent::Certificate,
        Some(Error::AlertReceived(_)) if !had_connection => ConnectEvent::TlsRefused,
        _ => return connection_fault(error),
    };
    match connection_fault(error) {
        Fault::Down(why) => event.fault(Some(&why)),
        fault => fault,
    }
}

#[cfg(not(feature = "tls-rustls"))]
pub(super) fn broken(error: io::Error, _: bool) -> Fault {
    connection_fault(error)
}

/// How many connections in a row must be closed in answer to HELLO before the client takes the server for a proxy that
/// does not know HELLO. A server that ends for another reason closes only one of them.
const CLOSES_IN_A_ROW: u8 = 2;

/// Recognizes a server that closes each connection in answer to HELLO.
///
/// A proxy such as HAProxy also closes a connection at once while the server behind it is down, and this ends by itself.
/// So after a connection was closed before the first answer, the next handshake begins with a **probe**: it sends only
/// GET, and sends HELLO after the answer.
#[derive(Debug, Default)]
pub(super) struct HelloHistory {
    is_probing: bool,
    closed_count: u8,
}

/// How far a handshake got before its connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Nothing,
    /// The server has answered the probe, and not HELLO.
    Probed,
    Greeted,
}

impl HelloHistory {
    /// Whether the next handshake begins with a probe.
    pub(super) fn is_probing(&self) -> bool {
        self.is_probing
    }

    /// Handles the end of a connection during its handshake. Returns the fault of the master.
    pub(super) fn record_end(&mut self, progress: Progress, fault: Fault) -> Fault {
        match (progress, &fault) {
            (Progress::Nothing, Fault::Down(_)) => {
                *self = Self {
                    is_probing: true,
                    closed_count: 0,
                }
            }
            (Progress::Probed, Fault::Down(_)) => {
                self.closed_count = self.closed_count.saturating_add(1);
                if self.closed_count >= CLOSES_IN_A_ROW {
                    return ConnectEvent::ClosesAtHello.fault(None);
                }
            }
            _ => *self = Self::default(),
        }
        fault
    }

    /// Forgets earlier connections, because a connection ended after its handshake, or because none was made.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_answer_shows_which_other_protocol_a_server_speaks() {
        for (bytes, expected) in [
            (&b"HTTP/1.1 400 Bad Request\r\n"[..], "HTTP"),
            (b"\x15\x03\x03\x00\x02\x02\x46", "rediss://"),
            (b"\x16\x03\x01", "rediss://"),
            (b"SSH-2.0-OpenSSH_9.6\r\n", "does not speak"),
            (b"\x15\x07", "does not speak"),
        ] {
            let fault = before_first_answer(NotResp::error(bytes), false);
            assert!(!fault.passes_by_itself(), "{fault}");
            assert!(fault.to_string().contains(expected), "{fault}");
        }
        let closed_error = io::Error::new(io::ErrorKind::UnexpectedEof, "connection closed");
        assert!(before_first_answer(closed_error, false).passes_by_itself());
    }

    #[test]
    fn only_a_server_that_answers_the_probe_and_closes_at_hello_counts_as_a_proxy() {
        let closed_fault = || Fault::Down("connection closed".into());
        let mut proxy = HelloHistory::default();
        assert!(!proxy.is_probing());
        assert_eq!(
            proxy.record_end(Progress::Nothing, closed_fault()),
            closed_fault()
        );
        assert!(proxy.is_probing());
        assert_eq!(
            proxy.record_end(Progress::Probed, closed_fault()),
            closed_fault()
        );
        let fault = proxy.record_end(Progress::Probed, closed_fault());
        assert!(fault.to_string().contains("twemproxy"), "{fault}");
        assert!(!fault.passes_by_itself());
        // A load balancer without a server behind it closes the probe as well.
        let mut unreachable = HelloHistory::default();
        for _ in 0..10 {
            assert_eq!(
                unreachable.record_end(Progress::Nothing, closed_fault()),
                closed_fault()
            );
        }
        // Any other end between two closed connections begins again.
        assert_eq!(
            unreachable.record_end(Progress::Probed, closed_fault()),
            closed_fault()
        );
        assert_eq!(
            unreachable.record_end(Progress::Nothing, closed_fault()),
            closed_fault()
        );
        assert_eq!(
            unreachable.record_end(Progress::Probed, closed_fault()),
            closed_fault()
        );
        unreachable.reset();
        assert!(!unreachable.is_probing());
    }

    #[test]
    fn fault_of_every_event_has_the_text_of_its_row() {
        for row in &ROWS {
            let event = row.event;
            assert_eq!(ROWS[event as usize].event, event);
            let fault = event.fault(Some("bad certificate"));
            let expected = format!("bad certificate: {}", row.text);
            assert!(fault.to_string().contains(&expected), "{fault}");
            assert_eq!(fault.passes_by_itself(), row.is_temporary, "{fault}");
        }
    }

    #[test]
    fn page_lists_every_event() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/refusals.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let (_, section) = page
            .split_once("## While a client connects to Redis\n")
            .expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let page_rows = section.lines().filter(|line| line.starts_with("| "));
        let page_rows: Vec<&str> = page_rows.skip(1).collect();
        let row_text = |row: &EventRow| {
            let fault = row.event.fault(None);
            let waits_text = if fault.passes_by_itself() {
                "yes"
            } else {
                "no"
            };
            format!(
                "| {} | {} | {waits_text} | {} |",
                row.observation,
                fault.kind(),
                row.text
            )
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
