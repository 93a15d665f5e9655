//! Classifies errors of the server and of its connection as faults of a master.

use std::io::ErrorKind;

use mysql_async::{DriverError, Error, IoError, ServerError};
use quorate::node::Fault;

/// The longest part of a server's message that is shown, in characters.
const LONGEST: usize = 160;

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
        ) => lost("an answer that cannot be read".into()),
        Error::Driver(why @ DriverError::NoClientSslFlagFromServer) => {
            Fault::Unsupported(plain(&why.to_string()).into())
        }
        Error::Driver(why) => lost(plain(&why.to_string())),
        Error::Other(_) | Error::Url(_) => lost("the client library failed".into()),
    }
}

fn of_server(said: &ServerError) -> Fault {
    let ServerError { code, message, .. } = said;
    let text = || plain(&format!("{message} ({code})")).into();
    match code {
        // The codes of a lock wait timeout, a deadlock, and a statement that was killed or took too long.
        1205 | 1213 | 1317 | 1969 | 3024 => Fault::Busy,
        // An option forbids the statement; usually the option is `read_only`.
        1290 if message.contains("read") => Fault::ReadOnly,
        1792 | 1836 => Fault::ReadOnly,
        1021 | 1026 | 1030 | 1114 => Fault::Misconf,
        1037 | 1038 | 1041 => Fault::OutOfMemory,
        1044 | 1045 | 1095 | 1142 | 1143 | 1227 | 1370 | 1698 => Fault::Denied(text()),
        // The codes of too many connections, a blocked host, and a server that is shutting down.
        1040 | 1053 | 1129 | 1203 => Fault::Down(text()),
        3159 => Fault::Denied("the server wants an encrypted connection: use mysqls://".into()),
        1049 | 1054 | 1146 | 1305 => unprepared("the tables are missing or of another version"),
        // The code of a write at isolation level READ COMMITTED with a statement-based binary log.
        1665 => Fault::Unsupported("binlog_format=STATEMENT: it must be ROW or MIXED".into()),
        // The server's message would repeat a part of the statement, which contains stored data, so it is not shown.
        1064 => Fault::Server("the server does not understand a statement (1064)".into()),
        _ => Fault::Server(text()),
    }
}

/// The fault of a schema that is missing or wrong. Its message names the command that repairs the schema.
pub(crate) fn unprepared(why: &str) -> Fault {
    Fault::Unprepared(format!("{why}: run `quorate prepare-server URL`").into())
}

/// Shortens and escapes a message of the server before it goes to terminals and logs.
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
    fn server_error_codes_map_to_their_faults() {
        assert_eq!(of(1205, ""), Fault::Busy);
        assert_eq!(of(1290, "--read-only"), Fault::ReadOnly);
        let engine = of(1290, "--enforce-storage-engine").to_string();
        assert!(engine.contains("enforce-storage-engine"), "{engine}");
        assert_eq!(of(1114, ""), Fault::Misconf);
        assert_eq!(of(1041, ""), Fault::OutOfMemory);
        assert_eq!(of(1040, "Too many").kind(), "down");
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
    fn syntax_error_does_not_repeat_stored_data() {
        let said = of(1064, "near 'x'c0ffee''").to_string();
        assert!(!said.contains("c0ffee"), "{said}");
        assert!(of(1, &"x".repeat(10_000)).to_string().len() < 300);
    }
}
