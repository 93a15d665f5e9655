//! Classifies errors of the server and of its connection as faults of a master.

use std::error::Error as _;
use std::io;
#[cfg(feature = "tls-rustls")]
use std::sync::atomic::Ordering;

use quorate::node::Fault;
use tokio_postgres::Error;
use tokio_postgres::error::DbError;

use crate::url::Address;

/// The longest part of a server's message that is shown, in characters.
const LONGEST: usize = 160;
/// The command that creates the tables.
const PREPARE: &str = "run `quorate prepare-server URL`";
/// The remedy for a server that does not understand a statement of quorate.
const NEWER: &str = "use PostgreSQL 14 or newer";

/// The fault that an error of the server becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    Busy,
    ReadOnly,
    Misconf,
    OutOfMemory,
    Denied,
    Unsupported,
    Unprepared,
    Down,
    Disconnected,
}

/// One row of the table of errors.
struct Row {
    /// The codes of the errors (SQLSTATE), or the beginnings of codes.
    codes: &'static [&'static str],
    becomes: Becomes,
    /// The beginning of the fault's text, if the server's message must not be shown. Otherwise empty.
    text: &'static str,
    remedy: &'static str,
}

/// The first row that fits decides. An error without a row is the fault `Server`, which can end by itself. The page
/// `docs/refusals.md` shows these rows; a test compares them.
///
/// If only a change of the configuration helps, the fault is `Denied`, `Unsupported` or `Unprepared`: an acquire stops
/// waiting as soon as such faults make a majority impossible.
#[rustfmt::skip]
static ROWS: [Row; 14] = [
    // A lock timeout, a canceled or too slow statement, a failed serialization, a deadlock.
    Row { codes: &["55P03", "57014", "40001", "40P01"], becomes: Becomes::Busy, text: "",
        remedy: "wait until the server is less busy" },
    Row { codes: &["25006"], becomes: Becomes::ReadOnly, text: "",
        remedy: "a failover can make this standby a primary; otherwise name its primary instead" },
    Row { codes: &["53100"], becomes: Becomes::Misconf, text: "",
        remedy: "make room on the disk of the server" },
    Row { codes: &["53200"], becomes: Becomes::OutOfMemory, text: "",
        remedy: "give the server more memory" },
    Row { codes: &["53300"], becomes: Becomes::Down, text: "",
        remedy: "raise max_connections or the limit of the user, or open fewer sessions (?lanes= in the URL)" },
    Row { codes: &["57P03"], becomes: Becomes::Down, text: "",
        remedy: "wait until the server has started" },
    Row { codes: &["28P01", "28000"], becomes: Becomes::Denied, text: "",
        remedy: "correct the user and the password in the URL, or pg_hba.conf of the server" },
    Row { codes: &["42501"], becomes: Becomes::Denied, text: "",
        remedy: "run the GRANTs that `quorate prepare-server URL` prints" },
    Row { codes: &["3D000"], becomes: Becomes::Unprepared, text: "the database in the URL does not exist",
        remedy: PREPARE },
    Row { codes: &["42P01", "3F000", "42703", "42P10", "42804", "42883"], becomes: Becomes::Unprepared,
        text: "the tables of quorate are missing, or belong to another version",
        remedy: PREPARE },
    // A named statement that the server does not know: somebody else uses the session, as a pooler does.
    Row { codes: &["26000"], becomes: Becomes::Disconnected, text: "", remedy: "connect again" },
    // A shutdown, a crash of another backend, a dropped database, a limit of the session, an error of the connection.
    Row { codes: &["57P01", "57P02", "57P04", "57P05", "25P03", "25P04", "08"], becomes: Becomes::Disconnected, text: "",
        remedy: "connect again" },
    // Do not show the server's message: it repeats a part of the statement, which may contain stored data.
    Row { codes: &["42601"], becomes: Becomes::Unsupported,
        text: "the server reports a syntax error in a statement of quorate",
        remedy: NEWER },
    Row { codes: &["0A000", "42704"], becomes: Becomes::Unsupported, text: "", remedy: NEWER },
];

/// Classifies an error of a login, and adds the advice for this address if the server refused it.
pub(crate) fn of_login(error: &Error, address: &Address) -> Fault {
    if error.as_db_error().is_none() && error.to_string().contains("invalid configuration") {
        let why = "the server demands a password: put it into the URL, or into a file that ?passfile= names";
        return Fault::Denied(why.into());
    }
    match (fault(error, false), address.advice()) {
        (Fault::Denied(why), Some(advice)) => Fault::Denied(format!("{why}; {advice}").into()),
        (fault, _) => fault,
    }
}

/// Classifies an error of opening a stream.
pub(crate) fn of_io(error: &io::Error) -> Fault {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Fault::Down("closed by the server".into());
    }
    Fault::Down(plain(&error.to_string()).into())
}

/// Classifies an error of the TLS handshake. It is permanent if only a change of the configuration can repair it.
#[cfg(feature = "tls-rustls")]
pub(crate) fn of_tls(error: &io::Error, address: &Address) -> Fault {
    let text = error.to_string();
    let ends = ["Expired", "expired", "NotValidYet", "not valid yet"];
    let remedy = if text.contains("received fatal alert") {
        "correct ?sslcert= and ?sslkey= in the URL, or the TLS settings of the server"
    } else if text.contains("invalid peer certificate")
        && !ends.iter().any(|end| text.contains(end))
    {
        "correct the host name and ?sslrootcert= in the URL, or the certificate of the server"
    } else {
        return of_io(error);
    };
    // If this process has logged in before, certificates are perhaps being replaced, and this ends by itself.
    if address.met.load(Ordering::Relaxed) {
        return of_io(error);
    }
    Fault::Unsupported(format!("{}: {remedy}", plain(&text)).into())
}

/// Whether the server has undone a statement because of other clients, for example because a row was locked.
pub(crate) fn is_busy(error: &Error) -> bool {
    fault(error, true) == Fault::Busy
}

/// Classifies an error. `connected` is false while the connection is being established.
pub(crate) fn fault(error: &Error, connected: bool) -> Fault {
    let lost = |why: String| {
        if connected {
            Fault::Disconnected(why.into())
        } else {
            Fault::Down(why.into())
        }
    };
    if let Some(error) = error.as_db_error() {
        return match of_server(error) {
            Fault::Disconnected(why) if !connected => Fault::Down(why),
            fault => fault,
        };
    }
    if error.is_closed() {
        return lost("closed by the server".into());
    }
    // Show only the cause that the operating system reports: other causes could contain data that was received.
    match error
        .source()
        .and_then(|cause| cause.downcast_ref::<io::Error>())
    {
        Some(why) if why.kind() == io::ErrorKind::UnexpectedEof => {
            lost("closed by the server".into())
        }
        Some(why) => lost(plain(&why.to_string())),
        None => lost("the server sent an answer that cannot be read".into()),
    }
}

fn of_server(error: &DbError) -> Fault {
    // The columns of a table were changed, so statements that were prepared before cannot be used.
    if error.routine() == Some("RevalidateCachedQuery") {
        return Fault::Disconnected(plain(error.message()).into());
    }
    of_code(error.code().code(), error.message())
}

fn of_code(code: &str, message: &str) -> Fault {
    let quoted = || plain(&format!("{message} ({code})"));
    let fits = |row: &&Row| row.codes.iter().any(|begin| code.starts_with(begin));
    let Some(row) = ROWS.iter().find(fits) else {
        return Fault::Server(quoted().into());
    };
    let why = || {
        let text = match row.text {
            "" => quoted(),
            text => format!("{text} ({code})"),
        };
        format!("{text}: {}", row.remedy).into()
    };
    match row.becomes {
        Becomes::Busy => Fault::Busy,
        Becomes::ReadOnly => Fault::ReadOnly,
        Becomes::Misconf => Fault::Misconf,
        Becomes::OutOfMemory => Fault::OutOfMemory,
        Becomes::Denied => Fault::Denied(why()),
        Becomes::Unsupported => Fault::Unsupported(why()),
        Becomes::Unprepared => Fault::Unprepared(why()),
        Becomes::Down => Fault::Down(why()),
        Becomes::Disconnected => Fault::Disconnected(quoted().into()),
    }
}

/// The fault of a server whose schema is missing or wrong. The message names the command that repairs the schema.
pub(crate) fn unprepared(why: &str) -> Fault {
    Fault::Unprepared(format!("{why}: {PREPARE}").into())
}

/// The fault of an answer that lacks a column or a row.
pub(crate) fn unreadable() -> Fault {
    Fault::Server("the server sent an answer that cannot be read".into())
}

/// Shortens a message of the server and replaces its control characters, so that it can be shown on terminals and in
/// logs.
pub(crate) fn plain(text: &str) -> String {
    let sanitize = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(LONGEST).map(sanitize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_of_the_server_are_classified_as_faults() {
        for busy in ["55P03", "57014", "40001", "40P01"] {
            assert_eq!(of_code(busy, "x"), Fault::Busy, "{busy}");
        }
        assert_eq!(of_code("25006", "x"), Fault::ReadOnly);
        assert_eq!(of_code("53100", "x"), Fault::Misconf);
        assert_eq!(of_code("53200", "x"), Fault::OutOfMemory);
        for (code, kind, permanent) in [
            ("53300", "down", false),
            ("57P03", "down", false),
            ("28P01", "denied", true),
            ("42501", "denied", true),
            ("3D000", "unprepared", true),
            ("42P01", "unprepared", true),
            ("57P01", "disconnected", false),
            ("08006", "disconnected", false),
            ("42601", "unsupported", true),
            ("XX000", "server_error", false),
        ] {
            let fault = of_code(code, "text");
            assert_eq!(
                (fault.kind(), !fault.passes_by_itself()),
                (kind, permanent),
                "{code}: {fault}"
            );
        }
    }

    #[test]
    fn fault_shows_no_statement_and_no_control_character() {
        assert!(
            !of_code("42601", "near '\\xc0ffee'")
                .to_string()
                .contains("c0ffee")
        );
        assert_eq!(
            of_code("99999", "odd\n"),
            Fault::Server("odd\u{fffd} (99999)".into())
        );
        assert!(of_code("XX000", &"x".repeat(10_000)).to_string().len() < 300);
    }
    #[test]
    fn every_error_in_the_table_becomes_the_fault_of_its_row() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/refusals.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let (_, section) = page.split_once("## PostgreSQL\n").expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let lines = section.lines().filter(|line| line.starts_with("| "));
        let shown: Vec<&str> = lines.skip(1).collect();
        let row = |row: &Row| {
            let faults = row.codes.iter().map(|code| of_code(code, "text"));
            let faults: Vec<Fault> = faults.collect();
            let fault = faults.first().expect("a code");
            assert!(faults.iter().all(|other| other.kind() == fault.kind()));
            let waits = if fault.passes_by_itself() {
                "yes"
            } else {
                "no"
            };
            let (codes, kind, remedy) = (row.codes.join(", "), fault.kind(), row.remedy);
            format!("| {codes} | {kind} | {waits} | {remedy} |")
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
