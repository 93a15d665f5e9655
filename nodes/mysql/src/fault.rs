//! Classifies errors of the server and of its connection as faults of a master.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use mysql_async::{DriverError, Error, IoError, ServerError};
use quorate::node::Fault;

use crate::url::Address;

/// The longest part of a server's message that is shown, in characters.
const LONGEST_MESSAGE: usize = 160;

/// The fault that an error of the server becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    Busy,
    ReadOnly,
    Misconf,
    OutOfMemory,
    Denied,
    Unsupported,
    Unprepared,
    Down,
    Server,
}

/// One row of the table of errors.
struct ErrorRow {
    /// The codes of the errors.
    codes: &'static [u16],
    /// If not empty, the row applies only if the message contains one of these texts.
    mentions: &'static [&'static str],
    kind: FaultKind,
    /// The beginning of the fault's text, if the server's message must not be shown. Otherwise empty.
    text: &'static str,
    /// The remedy, as the page shows it.
    remedy: &'static str,
}

/// The remedy for a server that does not understand a statement of quorate.
const NEWER_SERVER: &str = "use MariaDB 10.6 or newer, or MySQL 8";

/// The first row that fits decides. An error without a row is the fault `Server`, which can end by itself. The page
/// `docs/refusals.md` shows these rows; a test compares them.
///
/// If only a change of the configuration helps, the fault is `Denied`, `Unsupported` or `Unprepared`: an acquire stops
/// waiting as soon as such faults make a majority impossible.
#[rustfmt::skip]
static ERROR_ROWS: [ErrorRow; 25] = [
    // A lock wait timeout, a deadlock, a statement that was killed or took too long.
    ErrorRow { codes: &[1205, 1213, 1317, 1969, 3024], mentions: &[], kind: FaultKind::Busy, text: "",
        remedy: "wait until the server is less busy" },
    ErrorRow { codes: &[1290], mentions: &["read-only", "read_only"], kind: FaultKind::ReadOnly, text: "",
        remedy: "a failover can make this replica a primary; otherwise name its primary instead" },
    ErrorRow { codes: &[1036, 1792, 1836, 1874], mentions: &[], kind: FaultKind::ReadOnly, text: "",
        remedy: "a failover can make this replica a primary; otherwise name its primary instead" },
    // An option of the server forbids the statement. The message names the option.
    ErrorRow { codes: &[1290], mentions: &[], kind: FaultKind::Unsupported, text: "",
        remedy: "turn this option off, or use another server" },
    ErrorRow { codes: &[1021, 1026, 1030, 1114], mentions: &[], kind: FaultKind::Misconf, text: "",
        remedy: "make room on the disk of the server" },
    ErrorRow { codes: &[1037, 1038, 1041, 1206], mentions: &[], kind: FaultKind::OutOfMemory, text: "",
        remedy: "give the server more memory" },
    ErrorRow { codes: &[1129], mentions: &[], kind: FaultKind::Denied, text: "",
        remedy: "unblock the host of this client (mariadb-admin flush-hosts)" },
    ErrorRow { codes: &[1130], mentions: &[], kind: FaultKind::Denied, text: "",
        remedy: "allow the host of this client for the user in the URL" },
    ErrorRow { codes: &[3118, 3955, 4150, 4151], mentions: &[], kind: FaultKind::Denied, text: "",
        remedy: "unlock the user in the URL (ALTER USER .. ACCOUNT UNLOCK)" },
    ErrorRow { codes: &[1820, 1862], mentions: &[], kind: FaultKind::Denied,
        text: "the password of the user in the URL has expired",
        remedy: "set a new password (ALTER USER), and put it into the URL" },
    // Only a login gets this error: a connection becomes free when another session of the user ends.
    ErrorRow { codes: &[1203, 1226], mentions: &["max_user_connections"], kind: FaultKind::Down, text: "",
        remedy: "raise this limit, or open fewer sessions (?lanes= in the URL)" },
    // The limits of a user per hour, such as max_questions and MAX_QUERIES_PER_HOUR.
    ErrorRow { codes: &[1226], mentions: &[], kind: FaultKind::Server, text: "",
        remedy: "wait until the hour of this limit has ended, or raise the limit with ALTER USER" },
    ErrorRow { codes: &[1045, 1698], mentions: &[], kind: FaultKind::Denied, text: "",
        remedy: "correct the user and the password in the URL" },
    ErrorRow { codes: &[1044, 1095, 1142, 1143, 1227, 1370], mentions: &[], kind: FaultKind::Denied, text: "",
        remedy: "run the GRANTs that `quorate prepare-server URL` prints" },
    ErrorRow { codes: &[3159], mentions: &[], kind: FaultKind::Denied, text: "",
        remedy: "use mysqls://" },
    ErrorRow { codes: &[1251, 1275, 1524], mentions: &[], kind: FaultKind::Unsupported, text: "",
        remedy: PLUGIN_REMEDY },
    ErrorRow { codes: &[1040], mentions: &[], kind: FaultKind::Down, text: "",
        remedy: "raise max_connections, or open fewer sessions (?lanes= in the URL)" },
    ErrorRow { codes: &[1053], mentions: &[], kind: FaultKind::Down, text: "",
        remedy: "wait until the server has restarted" },
    // A node of a Galera cluster reports this while it joins the cluster.
    ErrorRow { codes: &[1047], mentions: &[], kind: FaultKind::Server, text: "",
        remedy: "wait until this Galera node has joined its cluster" },
    ErrorRow { codes: &[1461], mentions: &[], kind: FaultKind::Server, text: "",
        remedy: "raise max_prepared_stmt_count" },
    ErrorRow { codes: &[1049, 1054, 1146, 1305], mentions: &[], kind: FaultKind::Unprepared,
        text: "the tables of quorate are missing, or belong to another version",
        remedy: PREPARE_COMMAND },
    // A write at isolation level READ COMMITTED if the binary log is statement-based.
    ErrorRow { codes: &[1665], mentions: &[], kind: FaultKind::Unsupported,
        text: "binlog_format is STATEMENT, but must be ROW or MIXED",
        remedy: "run SET GLOBAL binlog_format = ROW" },
    // Do not show the server's message: it repeats a part of the statement, which may contain stored data.
    ErrorRow { codes: &[1064], mentions: &[], kind: FaultKind::Unsupported,
        text: "the server reports a syntax error in a statement of quorate",
        remedy: NEWER_SERVER },
    ErrorRow { codes: &[1128, 1193, 1235, 1286], mentions: &[], kind: FaultKind::Unsupported, text: "",
        remedy: NEWER_SERVER },
    ErrorRow { codes: &[1153], mentions: &[], kind: FaultKind::Unsupported, text: "",
        remedy: "raise max_allowed_packet" },
];

/// The remedy for a user whose authentication plugin this client does not have.
pub(crate) const PLUGIN_REMEDY: &str =
    "give the user in the URL the plugin mysql_native_password, caching_sha2_password or ed25519";
/// The command that creates the tables.
const PREPARE_COMMAND: &str = "run `quorate prepare-server URL`";

/// Classifies an error of a connection attempt. If the server refuses the login, adds the advice for this address to
/// the fault.
///
/// MariaDB reports a wrong password, missing TLS and a missing client certificate with the same error (1045). So only
/// the advice can mention TLS and the certificate.
pub(crate) fn classify_login_error(error: &Error, address: &Address) -> Fault {
    // If this process has logged in before, certificates are perhaps being replaced, and this ends by itself.
    if let Error::Io(why) = error
        && !address.has_logged_in.load(Ordering::Relaxed)
        && let Some(fault) = permanent_tls_fault(&why.to_string())
    {
        return fault;
    }
    match (error, classify(error, false), address.advice()) {
        (Error::Server(ServerError { code: 1045, .. }), Fault::Denied(why), Some(advice)) => {
            Fault::Denied(format!("{why}; {advice}").into())
        }
        (_, fault, _) => fault,
    }
}

/// The fault of an error of TLS that only a change of the configuration can repair; `None` for all other errors.
fn permanent_tls_fault(text: &str) -> Option<Fault> {
    let expiry_texts = ["Expired", "expired", "NotValidYet", "not valid yet"];
    let remedy = if text.contains("received fatal alert") {
        "correct ?cert= and ?key= in the URL, or the TLS settings of the server"
    } else if text.contains("invalid peer certificate")
        && !expiry_texts.iter().any(|expiry| text.contains(expiry))
    {
        "correct the host name and ?ca= in the URL, or the certificate of the server"
    } else {
        return None;
    };
    Some(Fault::Unsupported(
        format!("{}: {remedy}", sanitize(text)).into(),
    ))
}

/// Classifies an error. `is_connected` is false while the connection is being established.
pub(crate) fn classify(error: &Error, is_connected: bool) -> Fault {
    let connection_fault = |why: String| {
        if is_connected {
            Fault::Disconnected(why.into())
        } else {
            Fault::Down(why.into())
        }
    };
    match error {
        Error::Server(error) => classify_server_error(error),
        Error::Io(IoError::Io(why)) if why.kind() == ErrorKind::UnexpectedEof => {
            connection_fault("closed by the server".into())
        }
        Error::Io(why) => connection_fault(sanitize(&why.to_string())),
        Error::Driver(DriverError::ConnectionClosed) => {
            connection_fault("closed by the server".into())
        }
        // The text of these errors could contain data that was sent or received, so it is not shown.
        Error::Driver(
            DriverError::FromValue { .. }
            | DriverError::FromRow { .. }
            | DriverError::UnexpectedPacket { .. },
        ) => connection_fault("the server sent an answer that cannot be read".into()),
        Error::Driver(why @ DriverError::NoClientSslFlagFromServer) => Fault::Unsupported(
            format!(
                "{}: turn TLS on at the server, or use mysql://",
                sanitize(&why.to_string())
            )
            .into(),
        ),
        Error::Driver(
            why @ (DriverError::UnknownAuthPlugin { .. }
            | DriverError::MysqlOldPasswordDisabled
            | DriverError::CleartextPluginDisabled),
        ) => Fault::Unsupported(format!("{}: {PLUGIN_REMEDY}", sanitize(&why.to_string())).into()),
        Error::Driver(why) => connection_fault(sanitize(&why.to_string())),
        Error::Other(_) | Error::Url(_) => {
            connection_fault("the MySQL client library reported an unknown error".into())
        }
    }
}

fn classify_server_error(error: &ServerError) -> Fault {
    let ServerError { code, message, .. } = error;
    let quoted_message = || sanitize(&format!("{message} ({code})"));
    let applies = |row: &&ErrorRow| {
        let texts = row.mentions;
        row.codes.contains(code)
            && (texts.is_empty() || texts.iter().any(|text| message.contains(text)))
    };
    let Some(row) = ERROR_ROWS.iter().find(applies) else {
        return Fault::Server(quoted_message().into());
    };
    let fault_text = || {
        let start = match row.text {
            "" => quoted_message(),
            text => format!("{text} ({code})"),
        };
        format!("{start}: {}", row.remedy).into()
    };
    match row.kind {
        FaultKind::Busy => Fault::Busy,
        FaultKind::ReadOnly => Fault::ReadOnly,
        FaultKind::Misconf => Fault::Misconf,
        FaultKind::OutOfMemory => Fault::OutOfMemory,
        FaultKind::Denied => Fault::Denied(fault_text()),
        FaultKind::Unsupported => Fault::Unsupported(fault_text()),
        FaultKind::Unprepared => Fault::Unprepared(fault_text()),
        FaultKind::Down => Fault::Down(fault_text()),
        FaultKind::Server => Fault::Server(fault_text()),
    }
}

/// The fault of a server whose schema is missing or wrong. The message names the command that repairs the schema.
pub(crate) fn unprepared_fault(why: &str) -> Fault {
    Fault::Unprepared(format!("{why}: {PREPARE_COMMAND}").into())
}

/// Shortens a message of the server and replaces its control characters, so that it can be shown on terminals and in
/// logs.
pub(crate) fn sanitize(text: &str) -> String {
    let replace_control = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars()
        .take(LONGEST_MESSAGE)
        .map(replace_control)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault_of(code: u16, message: &str) -> Fault {
        let (message, state) = (message.to_owned(), "HY000".to_owned());
        let error = ServerError {
            code,
            message,
            state,
        };
        classify(&Error::Server(error), true)
    }

    #[test]
    fn error_codes_of_the_server_are_classified_as_faults() {
        assert_eq!(fault_of(1205, ""), Fault::Busy);
        assert_eq!(fault_of(1290, "--read-only"), Fault::ReadOnly);
        assert_eq!(
            fault_of(1036, "Table 'quorate_record' is read only"),
            Fault::ReadOnly
        );
        // Error 1290 is `ReadOnly` only if the message names a read-only option.
        let option_fault = fault_of(1290, "running with the --thread-handling option");
        assert_eq!(option_fault.kind(), "unsupported");
        assert!(
            option_fault.to_string().contains("--thread-handling"),
            "{option_fault}"
        );
        assert_eq!(fault_of(1114, ""), Fault::Misconf);
        assert_eq!(fault_of(1041, ""), Fault::OutOfMemory);
        let full_server_fault = fault_of(1040, "Too many connections");
        assert_eq!(full_server_fault.kind(), "down");
        assert!(
            full_server_fault
                .to_string()
                .contains("raise max_connections"),
            "{full_server_fault}"
        );
        assert_eq!(fault_of(1142, "SELECT denied").kind(), "denied");
        assert_eq!(fault_of(1665, "x").kind(), "unsupported");
        assert!(
            fault_of(1146, "")
                .to_string()
                .contains("quorate prepare-server")
        );
        assert!(fault_of(3159, "").to_string().contains("mysqls://"));
        assert_eq!(
            fault_of(9999, "odd\n"),
            Fault::Server("odd\u{fffd} (9999)".into())
        );
    }

    #[test]
    fn error_that_only_an_administrator_can_solve_is_classified_as_permanent() {
        for (code, message, expected) in [
            (1129, "Host '10.0.0.1' is blocked", "blocked"),
            (
                1130,
                "Host '10.0.0.1' is not allowed to connect",
                "not allowed",
            ),
            (
                1820,
                "You must SET PASSWORD",
                "password of the user in the URL has expired",
            ),
            (
                1862,
                "Your password has expired",
                "password of the user in the URL has expired",
            ),
            (3118, "Account is locked", "locked"),
            (4150, "User is blocked", "blocked"),
            (4151, "this account is locked", "locked"),
            (3159, "Connections using insecure transport", "mysqls://"),
        ] {
            let fault = fault_of(code, message);
            assert!(!fault.passes_by_itself(), "{code}: {fault}");
            assert!(fault.to_string().contains(expected), "{code}: {fault}");
        }
    }

    #[test]
    fn limit_of_a_user_that_time_can_repair_is_waited_for() {
        for (code, message, kind, remedy) in [
            (
                1203,
                "more than 'max_user_connections' active connections",
                "down",
                "?lanes=",
            ),
            (
                1226,
                "exceeded the 'max_user_connections' resource",
                "down",
                "?lanes=",
            ),
            (
                1226,
                "exceeded the 'max_questions' resource",
                "server_error",
                "the hour",
            ),
            (
                1226,
                "exceeded the 'max_connections_per_hour' resource",
                "server_error",
                "the hour",
            ),
        ] {
            let fault = fault_of(code, message);
            assert!(fault.passes_by_itself(), "{code}: {fault}");
            assert_eq!(fault.kind(), kind, "{fault}");
            assert!(fault.to_string().contains(remedy), "{fault}");
        }
    }

    #[test]
    fn error_of_a_refused_mysql_login_suggests_a_missing_url_option() {
        let (message, state) = ("Access denied".to_owned(), "28000".to_owned());
        let code = 1045;
        let refused = Error::Server(ServerError {
            code,
            message,
            state,
        });
        let error_text = |url: &str| {
            classify_login_error(&refused, &Address::parse(url).expect("a URL")).to_string()
        };
        assert!(error_text("mysql://u@h/d").contains("mysqls://"));
        assert!(!error_text("mysql://u@localhost/d?socket=/x").contains("mysqls://"));
        if cfg!(feature = "tls-rustls") {
            assert!(error_text("mysqls://u@h/d").contains("?cert="));
            let with_certificate = error_text("mysqls://u@h/d?cert=/c&key=/k");
            assert!(
                !with_certificate.contains("?cert=") && !with_certificate.contains("mysqls://"),
                "{with_certificate}"
            );
        }
    }

    #[test]
    fn fault_for_an_sql_syntax_error_contains_no_stored_data() {
        let fault_text = fault_of(1064, "near 'x'c0ffee''").to_string();
        assert!(!fault_text.contains("c0ffee"), "{fault_text}");
        assert!(fault_of(1, &"x".repeat(10_000)).to_string().len() < 300);
    }

    #[test]
    fn every_error_in_the_table_becomes_the_fault_of_its_row() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/refusals.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let (_, section) = page
            .split_once("## MySQL and MariaDB\n")
            .expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let rows_of_page: Vec<&str> = section
            .lines()
            .filter(|line| line.starts_with("| "))
            .skip(1)
            .collect();
        let mut rows_of_code = Vec::new();
        for row in &ERROR_ROWS {
            let message = row.mentions.first().unwrap_or(&"a message of the server");
            let (code, other_codes) = row.codes.split_first().expect("a code");
            let fault = fault_of(*code, message);
            for other_code in other_codes {
                assert_eq!(
                    fault_of(*other_code, message).kind(),
                    fault.kind(),
                    "{other_code}"
                );
            }
            let (kind, passes_by_itself) = (fault.kind(), fault.passes_by_itself());
            if !passes_by_itself {
                assert!(fault.to_string().contains(row.remedy), "{code}: {fault}");
            }
            let code_texts: Vec<String> = row.codes.iter().map(ToString::to_string).collect();
            let mentions = match row.mentions {
                [] => String::new(),
                texts => format!(", about {}", texts.join(" or ")),
            };
            let is_waited_for = if passes_by_itself { "yes" } else { "no" };
            let codes = code_texts.join(", ");
            rows_of_code.push(format!(
                "| {codes}{mentions} | {kind} | {is_waited_for} | {} |",
                row.remedy
            ));
        }
        assert_eq!(
            rows_of_page,
            rows_of_code,
            "docs/refusals.md must show:\n{}",
            rows_of_code.join("\n")
        );
    }

    #[test]
    fn refused_certificate_is_permanent_unless_it_can_be_renewed() {
        for (text, is_permanent) in [
            ("invalid peer certificate: UnknownIssuer", true),
            (
                "invalid peer certificate: certificate not valid for name \"h\"",
                true,
            ),
            ("received fatal alert: CertificateRequired", true),
            ("invalid peer certificate: certificate expired: ..", false),
            ("invalid peer certificate: NotValidYet", false),
            ("connection refused", false),
        ] {
            assert_eq!(permanent_tls_fault(text).is_some(), is_permanent, "{text}");
        }
        let io_error = std::io::Error::other("invalid peer certificate: UnknownIssuer");
        let error = Error::Io(IoError::Io(io_error));
        let address = Address::parse("mysql://u@h/d").expect("a URL");
        assert!(!classify_login_error(&error, &address).passes_by_itself());
        address.has_logged_in.store(true, Ordering::Relaxed);
        assert!(classify_login_error(&error, &address).passes_by_itself());
    }
}
