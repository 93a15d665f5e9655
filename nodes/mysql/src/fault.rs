//! Classifies errors of the server and of its connection as faults of a master.

use std::io::ErrorKind;

use mysql_async::{DriverError, Error, IoError, ServerError};
use quorate::node::Fault;

/// The longest part of a server's message that is shown, in characters.
const LONGEST: usize = 160;

/// The advice for a server that accepts no more connections.
const FEWER_SESSIONS: &str = "or open fewer sessions (?lanes= in the URL)";
/// The advice for a server that requires TLS.
const USE_TLS: &str = "use mysqls://";

/// Classifies an error of a connection attempt. If the server refuses the login, adds `advice` to the fault.
///
/// MariaDB reports a wrong password, missing TLS and a missing client certificate with the same error (1045). So only
/// `advice` can mention TLS and the certificate.
pub(crate) fn of_login(error: &Error, advice: Option<&str>) -> Fault {
    match (error, fault(error, false), advice) {
        (Error::Server(ServerError { code: 1045, .. }), Fault::Denied(why), Some(advice)) => {
            Fault::Denied(format!("{why}: {advice}").into())
        }
        (_, fault, _) => fault,
    }
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
        Error::Driver(
            why @ (DriverError::NoClientSslFlagFromServer
            | DriverError::UnknownAuthPlugin { .. }
            | DriverError::MysqlOldPasswordDisabled
            | DriverError::CleartextPluginDisabled),
        ) => Fault::Unsupported(plain(&why.to_string()).into()),
        Error::Driver(why) => lost(plain(&why.to_string())),
        Error::Other(_) | Error::Url(_) => {
            lost("the MySQL client library reported an unknown error".into())
        }
    }
}

fn of_server(said: &ServerError) -> Fault {
    let ServerError { code, message, .. } = said;
    let text = || plain(&format!("{message} ({code})"));
    let denied = |why: String| Fault::Denied(why.into());
    match code {
        // The error codes for a lock wait timeout, a deadlock, and a statement that was killed or took too long.
        1205 | 1213 | 1317 | 1969 | 3024 => Fault::Busy,
        // An option of the server forbids the statement. The message names the option.
        1290 if message.contains("read-only") || message.contains("read_only") => Fault::ReadOnly,
        1290 => Fault::Unsupported(text().into()),
        1036 | 1792 | 1836 | 1874 => Fault::ReadOnly,
        1021 | 1026 | 1030 | 1114 => Fault::Misconf,
        1037 | 1038 | 1041 => Fault::OutOfMemory,
        1044 | 1045 | 1095 | 1142 | 1143 | 1227 | 1370 | 1698
        // The account is locked, or the client's host is blocked or not allowed to connect.
        | 1129 | 1130 | 3118 | 3955 | 4150 | 4151 => denied(text()),
        1820 | 1862 => denied(format!("the password of the user in the URL has expired ({code})")),
        // The user has reached the limit of connections per user.
        1203 | 1226 if message.contains("max_user_connections") => {
            denied(format!("{}: raise this limit, {FEWER_SESSIONS}", text()))
        }
        1226 => denied(format!("{}: raise this limit with ALTER USER", text())),
        1040 => Fault::Down(format!("{}: raise max_connections, {FEWER_SESSIONS}", text()).into()),
        1053 => Fault::Down(text().into()),
        3159 => denied(format!("{}: {USE_TLS}", text())),
        1049 | 1054 | 1146 | 1305 => unprepared("the tables of quorate are missing, or belong to another version"),
        // The error code for a write at isolation level READ COMMITTED if the binary log is statement-based.
        1665 => Fault::Unsupported("binlog_format is STATEMENT, but must be ROW or MIXED".into()),
        // Do not show the server's message: it repeats a part of the statement, which may contain stored data.
        1064 => Fault::Server("the server reports a syntax error in a statement of quorate (1064)".into()),
        _ => Fault::Server(text().into()),
    }
}

/// The fault of a server whose schema is missing or wrong. The message names the command that repairs the schema.
pub(crate) fn unprepared(why: &str) -> Fault {
    Fault::Unprepared(format!("{why}: run `quorate prepare-server URL`").into())
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
                1203,
                "more than 'max_user_connections' active connections",
                "?lanes=",
            ),
            (
                1226,
                "exceeded the 'max_user_connections' resource",
                "?lanes=",
            ),
            (
                1226,
                "exceeded the 'max_updates_per_hour' resource",
                "per_hour",
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
    fn error_of_a_refused_mysql_login_suggests_a_missing_url_option() {
        let (message, state) = ("Access denied".to_owned(), "28000".to_owned());
        let code = 1045;
        let refused = Error::Server(ServerError {
            code,
            message,
            state,
        });
        let said = |url: &str| {
            let advice = crate::url::Address::read(url).expect("a URL").advice();
            of_login(&refused, advice).to_string()
        };
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
}
