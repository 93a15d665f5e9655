//! Classifies errors of the server and of its connection as faults of a master.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use mysql_async::{DriverError, Error, IoError, ServerError};
use quorate::node::Fault;

use crate::url::Address;

/// The longest part of a server's message that is shown, in characters.
const LONGEST: usize = 160;

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
    Server,
}

/// One row of the table of errors.
struct Row {
    /// The codes of the errors.
    codes: &'static [u16],
    /// If not empty, the row applies only if the message contains one of these texts.
    about: &'static [&'static str],
    becomes: Becomes,
    /// The beginning of the fault's text, if the server's message must not be shown. Otherwise empty.
    said: &'static str,
    /// The remedy, as the page shows it.
    remedy: &'static str,
}

/// The remedy for a server that does not understand a statement of quorate.
const NEWER: &str = "use MariaDB 10.6 or newer, or MySQL 8";

/// The first row that fits decides. An error without a row is the fault `Server`, which can end by itself. The page
/// `docs/refusals.md` shows these rows; a test compares them.
///
/// If only a change of the configuration helps, the fault is `Denied`, `Unsupported` or `Unprepared`: an acquire stops
/// waiting as soon as such faults make a majority impossible.
#[rustfmt::skip]
static ROWS: [Row; 25] = [
    // A lock wait timeout, a deadlock, a statement that was killed or took too long.
    Row { codes: &[1205, 1213, 1317, 1969, 3024], about: &[], becomes: Becomes::Busy, said: "",
        remedy: "wait until the server is less busy" },
    Row { codes: &[1290], about: &["read-only", "read_only"], becomes: Becomes::ReadOnly, said: "",
        remedy: "a failover can make this replica a primary; otherwise name its primary instead" },
    Row { codes: &[1036, 1792, 1836, 1874], about: &[], becomes: Becomes::ReadOnly, said: "",
        remedy: "a failover can make this replica a primary; otherwise name its primary instead" },
    // An option of the server forbids the statement. The message names the option.
    Row { codes: &[1290], about: &[], becomes: Becomes::Unsupported, said: "",
        remedy: "turn this option off, or use another server" },
    Row { codes: &[1021, 1026, 1030, 1114], about: &[], becomes: Becomes::Misconf, said: "",
        remedy: "make room on the disk of the server" },
    Row { codes: &[1037, 1038, 1041, 1206], about: &[], becomes: Becomes::OutOfMemory, said: "",
        remedy: "give the server more memory" },
    Row { codes: &[1129], about: &[], becomes: Becomes::Denied, said: "",
        remedy: "unblock the host of this client (mariadb-admin flush-hosts)" },
    Row { codes: &[1130], about: &[], becomes: Becomes::Denied, said: "",
        remedy: "allow the host of this client for the user in the URL" },
    Row { codes: &[3118, 3955, 4150, 4151], about: &[], becomes: Becomes::Denied, said: "",
        remedy: "unlock the user in the URL (ALTER USER .. ACCOUNT UNLOCK)" },
    Row { codes: &[1820, 1862], about: &[], becomes: Becomes::Denied,
        said: "the password of the user in the URL has expired",
        remedy: "set a new password (ALTER USER), and put it into the URL" },
    // Only a login gets this error: a connection becomes free when another session of the user ends.
    Row { codes: &[1203, 1226], about: &["max_user_connections"], becomes: Becomes::Down, said: "",
        remedy: "raise this limit, or open fewer sessions (?lanes= in the URL)" },
    // The limits of a user per hour, such as max_questions and MAX_QUERIES_PER_HOUR.
    Row { codes: &[1226], about: &[], becomes: Becomes::Server, said: "",
        remedy: "wait until the hour of this limit has ended, or raise the limit with ALTER USER" },
    Row { codes: &[1045, 1698], about: &[], becomes: Becomes::Denied, said: "",
        remedy: "correct the user and the password in the URL" },
    Row { codes: &[1044, 1095, 1142, 1143, 1227, 1370], about: &[], becomes: Becomes::Denied, said: "",
        remedy: "run the GRANTs that `quorate prepare-server URL` prints" },
    Row { codes: &[3159], about: &[], becomes: Becomes::Denied, said: "",
        remedy: "use mysqls://" },
    Row { codes: &[1251, 1275, 1524], about: &[], becomes: Becomes::Unsupported, said: "",
        remedy: PLUGINS },
    Row { codes: &[1040], about: &[], becomes: Becomes::Down, said: "",
        remedy: "raise max_connections, or open fewer sessions (?lanes= in the URL)" },
    Row { codes: &[1053], about: &[], becomes: Becomes::Down, said: "",
        remedy: "wait until the server has restarted" },
    // A node of a Galera cluster reports this while it joins the cluster.
    Row { codes: &[1047], about: &[], becomes: Becomes::Server, said: "",
        remedy: "wait until this Galera node has joined its cluster" },
    Row { codes: &[1461], about: &[], becomes: Becomes::Server, said: "",
        remedy: "raise max_prepared_stmt_count" },
    Row { codes: &[1049, 1054, 1146, 1305], about: &[], becomes: Becomes::Unprepared,
        said: "the tables of quorate are missing, or belong to another version",
        remedy: PREPARE },
    // A write at isolation level READ COMMITTED if the binary log is statement-based.
    Row { codes: &[1665], about: &[], becomes: Becomes::Unsupported,
        said: "binlog_format is STATEMENT, but must be ROW or MIXED",
        remedy: "run SET GLOBAL binlog_format = ROW" },
    // Do not show the server's message: it repeats a part of the statement, which may contain stored data.
    Row { codes: &[1064], about: &[], becomes: Becomes::Unsupported,
        said: "the server reports a syntax error in a statement of quorate",
        remedy: NEWER },
    Row { codes: &[1128, 1193, 1235, 1286], about: &[], becomes: Becomes::Unsupported, said: "",
        remedy: NEWER },
    Row { codes: &[1153], about: &[], becomes: Becomes::Unsupported, said: "",
        remedy: "raise max_allowed_packet" },
];

/// The remedy for a user whose authentication plugin this client does not have.
pub(crate) const PLUGINS: &str =
    "give the user in the URL the plugin mysql_native_password, caching_sha2_password or ed25519";
/// The command that creates the tables.
const PREPARE: &str = "run `quorate prepare-server URL`";

/// Classifies an error of a connection attempt. If the server refuses the login, adds the advice for this address to the
/// fault.
///
/// MariaDB reports a wrong password, missing TLS and a missing client certificate with the same error (1045). So only
/// the advice can mention TLS and the certificate.
pub(crate) fn of_login(error: &Error, address: &Address) -> Fault {
    // If this process has logged in before, certificates are perhaps being replaced, and this ends by itself.
    if let Error::Io(why) = error
        && !address.met.load(Ordering::Relaxed)
        && let Some(fault) = of_tls(&why.to_string())
    {
        return fault;
    }
    match (error, fault(error, false), address.advice()) {
        (Error::Server(ServerError { code: 1045, .. }), Fault::Denied(why), Some(advice)) => {
            Fault::Denied(format!("{why}; {advice}").into())
        }
        (_, fault, _) => fault,
    }
}

/// The fault of an error of TLS that only a change of the configuration can repair; `None` for all other errors.
fn of_tls(text: &str) -> Option<Fault> {
    let ends = ["Expired", "expired", "NotValidYet", "not valid yet"];
    let remedy = if text.contains("received fatal alert") {
        "correct ?cert= and ?key= in the URL, or the TLS settings of the server"
    } else if text.contains("invalid peer certificate")
        && !ends.iter().any(|end| text.contains(end))
    {
        "correct the host name and ?ca= in the URL, or the certificate of the server"
    } else {
        return None;
    };
    Some(Fault::Unsupported(
        format!("{}: {remedy}", plain(text)).into(),
    ))
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
    match error {
        Error::Server(said) => of_server(said),
        Error::Io(IoError::Io(why)) if why.kind() == ErrorKind::UnexpectedEof => {
            lost("closed by the server".into())
        }
        Error::Io(why) => lost(plain(&why.to_string())),
        Error::Driver(DriverError::ConnectionClosed) => lost("closed by the server".into()),
        // The text of these errors could contain data that was sent or received, so it is not shown.
        Error::Driver(
            DriverError::FromValue { .. }
            | DriverError::FromRow { .. }
            | DriverError::UnexpectedPacket { .. },
        ) => lost("the server sent an answer that cannot be read".into()),
        Error::Driver(why @ DriverError::NoClientSslFlagFromServer) => Fault::Unsupported(
            format!(
                "{}: turn TLS on at the server, or use mysql://",
                plain(&why.to_string())
            )
            .into(),
        ),
        Error::Driver(
            why @ (DriverError::UnknownAuthPlugin { .. }
            | DriverError::MysqlOldPasswordDisabled
            | DriverError::CleartextPluginDisabled),
        ) => Fault::Unsupported(format!("{}: {PLUGINS}", plain(&why.to_string())).into()),
        Error::Driver(why) => lost(plain(&why.to_string())),
        Error::Other(_) | Error::Url(_) => {
            lost("the MySQL client library reported an unknown error".into())
        }
    }
}

fn of_server(said: &ServerError) -> Fault {
    let ServerError { code, message, .. } = said;
    let quoted = || plain(&format!("{message} ({code})"));
    let fits = |row: &&Row| {
        let about = row.about;
        row.codes.contains(code)
            && (about.is_empty() || about.iter().any(|text| message.contains(text)))
    };
    let Some(row) = ROWS.iter().find(fits) else {
        return Fault::Server(quoted().into());
    };
    let why = || {
        let said = match row.said {
            "" => quoted(),
            said => format!("{said} ({code})"),
        };
        format!("{said}: {}", row.remedy).into()
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
        Becomes::Server => Fault::Server(why()),
    }
}

/// The fault of a server whose schema is missing or wrong. The message names the command that repairs the schema.
pub(crate) fn unprepared(why: &str) -> Fault {
    Fault::Unprepared(format!("{why}: {PREPARE}").into())
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

    fn of(code: u16, message: &str) -> Fault {
        let (message, state) = (message.to_owned(), "HY000".to_owned());
        let said = ServerError {
            code,
            message,
            state,
        };
        fault(&Error::Server(said), true)
    }

    #[test]
    fn error_codes_of_the_server_are_classified_as_faults() {
        assert_eq!(of(1205, ""), Fault::Busy);
        assert_eq!(of(1290, "--read-only"), Fault::ReadOnly);
        assert_eq!(
            of(1036, "Table 'quorate_record' is read only"),
            Fault::ReadOnly
        );
        // Error 1290 is `ReadOnly` only if the message names a read-only option.
        let option = of(1290, "running with the --thread-handling option");
        assert_eq!(option.kind(), "unsupported");
        assert!(option.to_string().contains("--thread-handling"), "{option}");
        assert_eq!(of(1114, ""), Fault::Misconf);
        assert_eq!(of(1041, ""), Fault::OutOfMemory);
        let full = of(1040, "Too many connections");
        assert_eq!(full.kind(), "down");
        assert!(full.to_string().contains("raise max_connections"), "{full}");
        assert_eq!(of(1142, "SELECT denied").kind(), "denied");
        assert_eq!(of(1665, "x").kind(), "unsupported");
        assert!(of(1146, "").to_string().contains("quorate prepare-server"));
        assert!(of(3159, "").to_string().contains("mysqls://"));
        assert_eq!(
            of(9999, "odd\n"),
            Fault::Server("odd\u{fffd} (9999)".into())
        );
    }

    #[test]
    fn error_that_only_an_administrator_can_solve_is_classified_as_permanent() {
        for (code, message, said) in [
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
            let fault = of(code, message);
            assert!(!fault.passes_by_itself(), "{code}: {fault}");
            assert!(fault.to_string().contains(said), "{code}: {fault}");
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
            let fault = of(code, message);
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
        let said = |url: &str| of_login(&refused, &Address::read(url).expect("a URL")).to_string();
        assert!(said("mysql://u@h/d").contains("mysqls://"));
        assert!(!said("mysql://u@localhost/d?socket=/x").contains("mysqls://"));
        if cfg!(feature = "tls-rustls") {
            assert!(said("mysqls://u@h/d").contains("?cert="));
            let with = said("mysqls://u@h/d?cert=/c&key=/k");
            assert!(
                !with.contains("?cert=") && !with.contains("mysqls://"),
                "{with}"
            );
        }
    }

    #[test]
    fn fault_for_an_sql_syntax_error_contains_no_stored_data() {
        let said = of(1064, "near 'x'c0ffee''").to_string();
        assert!(!said.contains("c0ffee"), "{said}");
        assert!(of(1, &"x".repeat(10_000)).to_string().len() < 300);
    }

    #[test]
    fn every_error_in_the_table_becomes_the_fault_of_its_row() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/refusals.md");
        let page = std::fs::read_to_string(path).expect("the page");
        let (_, section) = page
            .split_once("## MySQL and MariaDB\n")
            .expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let shown: Vec<&str> = section
            .lines()
            .filter(|line| line.starts_with("| "))
            .skip(1)
            .collect();
        let mut rows = Vec::new();
        for row in &ROWS {
            let message = row.about.first().unwrap_or(&"a message of the server");
            let (code, rest) = row.codes.split_first().expect("a code");
            let fault = of(*code, message);
            for other in rest {
                assert_eq!(of(*other, message).kind(), fault.kind(), "{other}");
            }
            let (kind, passes) = (fault.kind(), fault.passes_by_itself());
            if !passes {
                assert!(fault.to_string().contains(row.remedy), "{code}: {fault}");
            }
            let codes: Vec<String> = row.codes.iter().map(ToString::to_string).collect();
            let about = match row.about {
                [] => String::new(),
                about => format!(", about {}", about.join(" or ")),
            };
            let waits = if passes { "yes" } else { "no" };
            let codes = codes.join(", ");
            rows.push(format!(
                "| {codes}{about} | {kind} | {waits} | {} |",
                row.remedy
            ));
        }
        assert_eq!(
            shown,
            rows,
            "docs/refusals.md must show:\n{}",
            rows.join("\n")
        );
    }

    #[test]
    fn refused_certificate_is_permanent_unless_it_can_be_renewed() {
        for (text, permanent) in [
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
            assert_eq!(of_tls(text).is_some(), permanent, "{text}");
        }
        let error = std::io::Error::other("invalid peer certificate: UnknownIssuer");
        let error = Error::Io(IoError::Io(error));
        let address = Address::read("mysql://u@h/d").expect("a URL");
        assert!(!of_login(&error, &address).passes_by_itself());
        address.met.store(true, Ordering::Relaxed);
        assert!(of_login(&error, &address).passes_by_itself());
    }
}
