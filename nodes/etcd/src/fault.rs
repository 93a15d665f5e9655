//! Classifies errors of the cluster and of its connections as faults of a master.

use std::error::Error as _;
use std::io;
use std::sync::atomic::Ordering;

use quorate::node::Fault;
use serde_json::Value;

use crate::json;
use crate::url::Address;

/// The longest part of a server's message that is shown, in characters.
const LONGEST: usize = 160;
/// The command that writes the identity key.
const PREPARE: &str = "run `quorate prepare-server URL`";
/// The remedy for a cluster without a leader.
pub(crate) const NO_LEADER: &str = "start members until a majority of the cluster runs";

/// The fault that an error of the cluster becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    Busy,
    Denied,
    Unsupported,
    Server,
    Disconnected,
}

/// One row of the table of errors.
struct Row {
    /// The codes of the errors (gRPC).
    codes: &'static [u64],
    /// A part of the error's text; empty if the code alone decides.
    text: &'static str,
    becomes: Becomes,
    remedy: &'static str,
}

/// The first row that fits decides. The page `docs/refusals.md` shows these rows; a test compares them.
///
/// If only a change of the configuration helps, the fault is `Denied` or `Unsupported`: an acquire stops waiting as
/// soon as such faults make a majority impossible.
#[rustfmt::skip]
static ROWS: [Row; 13] = [
    Row { codes: &[3], text: "authentication failed", becomes: Becomes::Denied,
        remedy: "correct the user and the password in the URL" },
    Row { codes: &[3], text: "user name is empty", becomes: Becomes::Denied,
        remedy: "the cluster demands a user: write user:password@ before the host in the URL" },
    Row { codes: &[3], text: "revision of auth store is old", becomes: Becomes::Disconnected,
        remedy: "none: the client logs in again" },
    Row { codes: &[16], text: "", becomes: Becomes::Disconnected, remedy: "none: the client logs in again" },
    Row { codes: &[7], text: "", becomes: Becomes::Denied,
        remedy: "grant the rights that `quorate prepare-server URL` prints" },
    Row { codes: &[8], text: "database space exceeded", becomes: Becomes::Server,
        remedy: "the database is full: run `etcdctl compact REVISION`, `etcdctl defrag` and `etcdctl alarm disarm`, \
                 and turn on --auto-compaction-retention" },
    Row { codes: &[8], text: "", becomes: Becomes::Busy, remedy: "wait until the cluster is less busy" },
    Row { codes: &[3], text: "request is too large", becomes: Becomes::Unsupported,
        remedy: "set --max-request-bytes to at least 1572864, its default" },
    Row { codes: &[3], text: "too many operations", becomes: Becomes::Unsupported,
        remedy: "set --max-txn-ops to at least 128, its default" },
    Row { codes: &[14], text: "not supported for learner", becomes: Becomes::Disconnected,
        remedy: "none: the client connects to another member" },
    // etcd 3.4 reports a lost leader of a change as code 2, `context deadline exceeded`.
    Row { codes: &[1, 2, 4, 14], text: "", becomes: Becomes::Disconnected, remedy: NO_LEADER },
    Row { codes: &[12], text: "", becomes: Becomes::Unsupported, remedy: "use etcd 3.4 or newer" },
    Row { codes: &[15], text: "", becomes: Becomes::Server,
        remedy: "a member has damaged data: find it with `etcdctl alarm list`, and replace it" },
];

/// An error that the gateway has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: u64,
    pub(crate) text: String,
}

impl Refusal {
    /// The error in an answer or in a line of a stream; `None` if there is none.
    ///
    /// etcd 3.4 and 3.5 write `error`, `message` and `code`, and etcd 3.6 leaves out `error`. The error of a stream is an
    /// object in `error`; before etcd 3.6, its code is named `grpc_code`.
    pub(crate) fn read(body: &Value) -> Option<Self> {
        let (error, name) = match body.get("error") {
            Some(error) if error.get("grpc_code").is_some() => (error, "grpc_code"),
            Some(error) if error.is_object() => (error, "code"),
            Some(_) => (body, "code"),
            None if body.get("code").is_some() => (body, "code"),
            None => return None,
        };
        Some(Self {
            code: json::number(error, name)?,
            text: json::text(error, "message").to_owned(),
        })
    }

    /// Whether a new login may help. The request was not executed.
    pub(crate) fn needs_login(&self) -> bool {
        self.code == 16
            || (self.code == 3
                && ["user name is empty", "revision of auth store is old"]
                    .iter()
                    .any(|text| self.text.contains(text)))
    }

    /// Whether the cluster has authentication turned off.
    pub(crate) fn is_auth_off(&self) -> bool {
        self.code == 9 && self.text.contains("authentication is not enabled")
    }

    /// Whether a revision was asked for that is compacted.
    pub(crate) fn is_compacted(&self) -> bool {
        self.code == 11 && self.text.contains("compacted")
    }

    /// The fault that this error becomes.
    pub(crate) fn fault(&self) -> Fault {
        let quoted = plain(&format!("{} ({})", self.text, self.code));
        let fits = |row: &&Row| row.codes.contains(&self.code) && self.text.contains(row.text);
        let Some(row) = ROWS.iter().find(fits) else {
            return Fault::Server(quoted.into());
        };
        let why = format!("{quoted}: {}", row.remedy).into();
        match row.becomes {
            Becomes::Busy => Fault::Busy,
            Becomes::Denied => Fault::Denied(why),
            Becomes::Unsupported => Fault::Unsupported(why),
            Becomes::Server => Fault::Server(why),
            Becomes::Disconnected => Fault::Disconnected(why),
        }
    }
}

/// The fault of an answer that is none of etcd's gateway.
pub(crate) fn of_status(status: u16, body: &[u8]) -> Fault {
    let body = String::from_utf8_lossy(&body[..body.len().min(LONGEST)]);
    if body.contains("HTTP request to an HTTPS server") {
        let why = "the server expects TLS at this port: use etcd+tls:// in the URL";
        return Fault::Unsupported(why.into());
    }
    if status == 404 {
        let why = "there is no gateway of etcd at this address (HTTP 404): use etcd 3.4 or newer without \
                   --enable-grpc-gateway=false, or correct the host and the port in the URL";
        return Fault::Unsupported(why.into());
    }
    if status == 421 {
        let why = "the member does not accept the host name in the URL: add the name to --host-whitelist of the \
                   member, or use etcd+tls://";
        return Fault::Unsupported(why.into());
    }
    if body.contains("CommonName of client") {
        let why = "the member refuses a client certificate with a common name at its gateway: name a certificate \
                   without one in ?cert=, and write user:password@ before the host in the URL";
        return Fault::Unsupported(why.into());
    }
    if matches!(status, 300..=399 | 400 | 401 | 403 | 405) {
        let why = format!(
            "the server refuses requests with HTTP {status}, so it is no etcd, or there is a proxy before it: correct \
             the host and the port in the URL"
        );
        return Fault::Unsupported(why.into());
    }
    Fault::Disconnected(format!("the server answered with HTTP {status}").into())
}

/// Classifies an error of opening a stream.
pub(crate) fn of_io(error: &io::Error) -> Fault {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Fault::Down("closed by the server".into());
    }
    Fault::Down(plain(&error.to_string()).into())
}

/// Classifies an error of an HTTP connection.
pub(crate) fn of_http(error: &hyper::Error) -> Fault {
    if error.is_parse() {
        return Fault::Disconnected("the server does not answer in HTTP".into());
    }
    // Show only the cause that the operating system reports.
    let source = error.source();
    match source.and_then(|cause| cause.downcast_ref::<io::Error>()) {
        Some(why) if why.kind() != io::ErrorKind::UnexpectedEof => {
            Fault::Disconnected(plain(&why.to_string()).into())
        }
        _ => Fault::Disconnected("closed by the server".into()),
    }
}

/// Classifies an error of the TLS handshake. It is permanent if only a change of the configuration can repair it.
#[cfg(feature = "tls-rustls")]
pub(crate) fn of_tls(error: &io::Error, address: &Address) -> Fault {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    if matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe) {
        // etcd closes the connection if it does not offer TLS. Its answer is sometimes lost in this case.
        let why = "closed by the server in the TLS handshake: if the server does not offer TLS, use etcd:// in the URL";
        return Fault::Down(why.into());
    }
    of_encrypted(&plain(&error.to_string()), address)
}

/// Classifies the text of an error of an encrypted connection that was not used yet. With TLS 1.3, a server refuses a
/// client certificate only after the handshake.
pub(crate) fn of_encrypted(text: &str, address: &Address) -> Fault {
    let ends = ["Expired", "expired", "NotValidYet", "not valid yet"];
    let remedy = if text.contains("received fatal alert") {
        "correct ?cert= and ?key= in the URL, or the TLS settings of the server"
    } else if text.contains("invalid peer certificate")
        && !ends.iter().any(|end| text.contains(end))
    {
        "correct the host name and ?cacert= in the URL, or the certificate of the server"
    } else if text.contains("corrupt message") {
        "the server does not offer TLS at this port: use etcd:// in the URL, or turn TLS on at the server"
    } else {
        return Fault::Down(text.into());
    };
    // If this process has begun a session before, certificates are perhaps being replaced, and this ends by itself.
    if address.met.load(Ordering::Relaxed) {
        return Fault::Down(text.into());
    }
    Fault::Unsupported(format!("{text}: {remedy}").into())
}

/// The fault of a cluster without the identity key.
pub(crate) fn unprepared() -> Fault {
    let key = crate::layout::IDENTITY_NAME;
    Fault::Unprepared(
        format!("the key {key} with the identity of the cluster is missing: {PREPARE}").into(),
    )
}

/// The fault of an answer that lacks a part.
pub(crate) fn unreadable() -> Fault {
    Fault::Disconnected("the server sent an answer that cannot be read".into())
}

/// The text of a fault without its kind.
pub(crate) fn cause(fault: &Fault) -> String {
    match fault {
        Fault::Down(why) | Fault::Disconnected(why) | Fault::Server(why) => why.to_string(),
        other => other.to_string(),
    }
}

/// Shortens a message of the server and replaces its control characters, so that it can be shown on terminals and in
/// logs.
pub(crate) fn plain(text: &str) -> String {
    let sanitize = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(LONGEST).map(sanitize).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(code: u64, text: &str) -> Fault {
        let text = text.to_owned();
        Refusal { code, text }.fault()
    }

    #[test]
    fn errors_of_the_gateway_are_read_from_answers_and_streams() {
        let wanted = Some(Refusal {
            code: 7,
            text: "no".into(),
        });
        let answer = json!({"error": "no", "message": "no", "code": 7});
        assert_eq!(Refusal::read(&answer), wanted);
        let stream = json!({"error": {"grpc_code": 7, "message": "no", "http_status": "x"}});
        assert_eq!(Refusal::read(&stream), wanted);
        assert_eq!(Refusal::read(&json!({"header": {}})), None);
        // etcd 3.6.
        let answer = json!({"code": 7, "message": "no", "details": []});
        assert_eq!(Refusal::read(&answer), wanted);
        let stream = json!({"error": {"code": 7, "message": "no", "details": []}});
        assert_eq!(Refusal::read(&stream), wanted);
    }

    #[test]
    fn errors_of_the_cluster_are_classified_as_faults() {
        for (code, text, kind, permanent) in [
            (
                3,
                "etcdserver: authentication failed, invalid user ID or password",
                "denied",
                true,
            ),
            (3, "etcdserver: user name is empty", "denied", true),
            (7, "etcdserver: permission denied", "denied", true),
            (16, "etcdserver: invalid auth token", "disconnected", false),
            (
                8,
                "etcdserver: mvcc: database space exceeded",
                "server_error",
                false,
            ),
            (8, "etcdserver: too many requests", "busy", false),
            (2, "context deadline exceeded", "disconnected", false),
            (14, "etcdserver: request timed out", "disconnected", false),
            (3, "etcdserver: request is too large", "unsupported", true),
            (12, "unknown service", "unsupported", true),
            (13, "internal", "server_error", false),
        ] {
            let fault = of(code, text);
            let found = (fault.kind(), !fault.passes_by_itself());
            assert_eq!(found, (kind, permanent), "{code} {text}: {fault}");
        }
        assert!(
            of(8, "database space exceeded")
                .to_string()
                .contains("alarm disarm")
        );
        assert!(
            of(14, "etcdserver: no leader")
                .to_string()
                .contains(NO_LEADER)
        );
    }

    #[test]
    fn answers_that_are_none_of_the_gateway_say_how_to_correct_the_url() {
        let tls = b"Client sent an HTTP request to an HTTPS server.\n";
        assert!(of_status(400, tls).to_string().contains("etcd+tls://"));
        assert!(of_status(404, b"Not Found").to_string().contains("gateway"));
        assert!(!of_status(403, b"").passes_by_itself());
        assert!(of_status(502, b"").passes_by_itself());
        let redirected = of_status(301, b"");
        assert!(!redirected.passes_by_itself() && redirected.to_string().contains("301"));
        let host = b"\netcd received your request, but the Host header was unrecognized.";
        assert!(
            of_status(421, host)
                .to_string()
                .contains("--host-whitelist")
        );
        let name = b"CommonName of client sending a request against gateway will be ignored and not used as expected\n";
        assert!(of_status(400, name).to_string().contains("certificate"));
    }

    #[test]
    #[cfg(feature = "tls-rustls")]
    fn server_that_closes_the_connection_in_the_handshake_perhaps_does_not_offer_tls() {
        let address = Address::read("etcd+tls://h").expect("a URL");
        for kind in [
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::BrokenPipe,
        ] {
            let fault = of_tls(&kind.into(), &address);
            assert!(fault.passes_by_itself(), "{fault}");
            assert!(fault.to_string().contains("does not offer TLS"), "{fault}");
        }
    }

    #[test]
    fn fault_is_short_and_shows_no_control_character() {
        assert_eq!(of(13, "odd\n"), Fault::Server("odd\u{fffd} (13)".into()));
        assert!(of(13, &"x".repeat(10_000)).to_string().len() < 300);
    }

    #[test]
    fn every_error_in_the_table_becomes_the_fault_of_its_row() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/refusals.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let (_, section) = page.split_once("## etcd\n").expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let lines = section.lines().filter(|line| line.starts_with("| "));
        let shown: Vec<&str> = lines.skip(1).collect();
        let row = |row: &Row| {
            let fault = of(row.codes[0], row.text);
            let waits = if fault.passes_by_itself() {
                "yes"
            } else {
                "no"
            };
            let codes: Vec<String> = row.codes.iter().map(u64::to_string).collect();
            let (codes, text) = (codes.join(", "), row.text);
            let error = if text.is_empty() {
                codes
            } else {
                format!("{codes}, `{text}`")
            };
            format!("| {error} | {} | {waits} | {} |", fault.kind(), row.remedy)
        };
        let rows: Vec<String> = ROWS.iter().map(row).collect();
        assert_eq!(
            shown,
            rows,
            "docs/refusals.md must show:\n{}",
            rows.join("\n")
        );
    }
}
