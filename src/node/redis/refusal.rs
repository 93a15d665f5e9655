//! Converts error replies and broken connections into faults.

use std::sync::Arc;

use super::denied::Denied;
use super::raised::Raised;
use super::resp::Value;
use super::script::Script;
use crate::node::Fault;
use crate::node::inspection::plain;
use crate::protocol::marker::{Admission, Configuration, Marker};

/// The prefix of a script's error if the master's generation marker does not admit the client. The text of the marker
/// follows the prefix.
pub(super) const OTHER_MASTERS: &str = "quorate: masters ";

/// Whether the error says that the master does not have the script, because of a restart or a SCRIPT FLUSH.
pub(super) fn is_noscript(value: &Value<'_>) -> bool {
    matches!(value, Value::Error(error) if error.starts_with(b"NOSCRIPT"))
}

/// Converts a connection error into [`Fault::Down`], the fault of requests that were not sent. Outstanding requests get
/// [`Fault::Disconnected`] instead.
pub(super) fn down(error: std::io::Error) -> Fault {
    Fault::Down(brief(&error.to_string()))
}

/// Converts the error reply of a command that ran no script into a fault.
pub(super) fn server_fault(error: &[u8]) -> Fault {
    by_code(&String::from_utf8_lossy(error), None)
}

/// Whether the user lacks the right to a key that is an argument of the command. Only lock keys are arguments; scripts
/// build the names of all other keys.
pub(super) fn is_denied_key(error: &[u8]) -> bool {
    let text = String::from_utf8_lossy(error);
    text.starts_with("NOPERM ") && Denied::of(&text) == Denied::Key
}

/// The first words of the errors with which a server refuses the command SELECT.
const NO_DATABASE: [&str; 2] = [
    "DB index is out of range",
    "SELECT is not allowed in cluster mode",
];

/// Converts an error reply into a fault. `script` is the script that the command ran; `None` for a plain command.
pub(super) fn refused(script: Option<Script>, error: &[u8]) -> Fault {
    let text = String::from_utf8_lossy(error);
    match script {
        _ if is_denied_key(error) => {
            Fault::Denied(brief(&format!("no right to use the lock key: {text}")))
        }
        script => by_code(&text, script.map(Script::source)),
    }
}

/// Chooses the fault by the code at the beginning of an error. A code elsewhere in the error is ignored, because the
/// error may quote any text.
fn by_code(text: &str, source: Option<&str>) -> Fault {
    let raised = Raised::read(text);
    let (code, rest) = raised.text.split_once(' ').unwrap_or((raised.text, ""));
    if let ("ERR", Some(marker)) = (code, rest.strip_prefix(OTHER_MASTERS)) {
        return Fault::OtherMasters(brief(marker));
    }
    match code {
        "WRONGTYPE" => Fault::WrongType,
        "LOADING" => Fault::Loading,
        "READONLY" => Fault::ReadOnly,
        "OOM" => Fault::OutOfMemory,
        "MISCONF" => Fault::Misconf,
        "BUSY" => Fault::Busy,
        "NOAUTH" | "WRONGPASS" | "NOPERM" => Fault::Denied(brief(raised.text)),
        // The server refused SELECT: it does not have the database that the URL names.
        "ERR" if NO_DATABASE.iter().any(|why| rest.starts_with(why)) => Fault::Unsupported(brief(
            &format!("the database in the URL cannot be used: {rest}"),
        )),
        _ => match raised.denied(source) {
            Some(why) => Fault::Denied(brief(&why)),
            None => Fault::Server(brief(text)),
        },
    }
}

/// Why a master with this generation marker does not admit this client, with advice for the operator. `None` if the
/// master admits the client.
pub(super) fn not_admitted(configuration: Configuration, marker: Option<Marker>) -> Option<Fault> {
    // A marker number 4g means that generation g is current. Between 4g and 4g + 4, generation g + 1 is replacing it.
    let there = match marker.map(|marker| (marker.number / 4, marker.number % 4)) {
        Some((generation, 0)) => format!("this master is at generation {generation}"),
        Some((generation, _)) => format!(
            "this master is being changed from generation {generation} to {}",
            generation + 1
        ),
        None => "this master has no generation marker".to_owned(),
    };
    let next = if configuration.has_next() {
        " (with next_masters)"
    } else {
        ""
    };
    let both = format!(
        "this client has masters_generation {}{next}, and {there}",
        configuration.step() / 2
    );
    let why = match configuration.admission(marker) {
        Admission::Admitted => return None,
        Admission::Outdated => format!(
            "{both}: the masters have been replaced; set masters, next_masters and masters_generation to the current \
             values (see quorate masters status)"
        ),
        Admission::Early => format!(
            "{both}: if this is one of the next masters, run quorate masters open; otherwise correct masters_generation"
        ),
        Admission::Other => format!(
            "{both}, but the generation marker names other masters: correct masters, next_masters or \
             masters_generation"
        ),
    };
    Some(Fault::OtherMasters(why.into()))
}

/// The first line of a text from a server, shortened and without control characters, because an error may contain any
/// text.
pub(super) fn brief(text: &str) -> Arc<str> {
    plain(text.lines().next().unwrap_or_default().trim()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_marker_error_is_recognised_only_at_the_beginning_of_a_server_error() {
        let error = b"ERR quorate: masters 2 0123456789abcdef";
        let said = Fault::OtherMasters("2 0123456789abcdef".into());
        assert_eq!(server_fault(error), said);
        assert!(matches!(
            server_fault(b"ERR x quorate: masters 2"),
            Fault::Server(_)
        ));
    }

    #[test]
    fn server_errors_are_stripped_of_control_characters() {
        let fault = server_fault(b"ERR \x1b[31mred\x07 \xc2\x9b2J\rover").to_string();
        assert!(
            !fault.chars().any(char::is_control),
            "the fault must contain no control character: {fault:?}"
        );
        assert!(
            fault.contains("red"),
            "printable characters must be kept: {fault:?}"
        );
    }

    #[test]
    fn error_code_is_recognised_only_at_the_beginning_of_a_server_error() {
        for (text, kind) in [
            ("WRONGTYPE Operation against a key", "wrong_type"),
            (
                "OOM command not allowed script: 1, on @user_script:8.",
                "out_of_memory",
            ),
            (
                "NOPERM User u has no permissions to run the 'evalsha' command",
                "denied",
            ),
            (
                "ERR somebody's key is called NOPERM and WRONGTYPE x",
                "server_error",
            ),
            ("ERR quorate: ttl above max_ttl", "server_error"),
            (
                "BUSYGROUP Consumer Group name already exists",
                "server_error",
            ),
            ("", "server_error"),
            // On Redis 6.2, the error of a script begins with "ERR Error running script".
            (
                "ERR Error running script (call to f_1): @user_script:8: @user_script: 8: -READONLY You can't write",
                "read_only",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:8: WRONGTYPE Operation",
                "wrong_type",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:8: a value with OOM in it",
                "server_error",
            ),
        ] {
            assert_eq!(server_fault(text.as_bytes()).kind(), kind, "{text}");
        }
    }
}
