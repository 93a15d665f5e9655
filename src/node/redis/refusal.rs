//! The table of the errors with which a server refuses a command, and the conversion of these errors into faults.
//!
//! Each row of [`ROWS`] says how the client recognizes an error, which fault it becomes, and what helps. The page
//! `docs/refusals.md` shows the same rows; a test compares them.
//!
//! If only a change of the configuration helps, the row has the fault `Denied` or `Unsupported`: an acquire then stops
//! waiting as soon as such faults make a majority impossible ([`Fault::passes_by_itself`]).

use std::sync::Arc;
use std::time::Duration;

use super::denied::Denied;
use super::raised::Raised;
use super::resp::Value;
use super::script::Script;
use crate::node::Fault;
use crate::node::text::sanitize;
use crate::protocol::marker::{Admission, Configuration, Marker};

/// The prefix of a script's error if the master's generation marker does not admit the client. The text of the marker
/// follows the prefix.
pub(super) const OTHER_MASTERS: &str = "quorate: masters ";

/// The prefix of a script's error if the age record of the server is too young. The rest of `max_ttl` in milliseconds
/// follows the prefix.
pub(super) const YOUNG: &str = "quorate: age record too young by ";

/// The longest time for which an error with [`YOUNG`] can refuse a client: one day, the largest `max_ttl`.
const MAX_REMAINING_MS: u64 = 86_400_000;

/// How an error of the server is recognized. An error begins with a code in capitals, usually followed by a space and a
/// text.
#[derive(Clone, Copy, Debug)]
enum ErrorSign {
    /// The error begins with one of these codes.
    Code(&'static [&'static str]),
    /// The code is `ERR`, and the text begins with one of these beginnings. Upper and lower case do not matter.
    Text(&'static [&'static str]),
    /// The code is `ERR`, and the text contains one of these parts. Upper and lower case do not matter.
    Part(&'static [&'static str]),
}

/// The fault that a refusal becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultingFault {
    WrongType,
    Loading,
    ReadOnly,
    OutOfMemory,
    Misconf,
    Busy,
    Denied,
    Unsupported,
    Server,
    /// The command is missing on the server: the fault is `Unsupported`, and its text names the command.
    Missing,
}

/// One row of the table.
#[derive(Debug)]
struct RefusalRow {
    sign: ErrorSign,
    becomes: ResultingFault,
    /// The remedy. The texts of the faults `Denied`, `Unsupported` and `Server` contain this.
    remedy: &'static str,
}

/// Why a node of a cluster can never be a master, whatever the state of the cluster is. So the client does not wait
/// until the cluster has recovered: the next refusal would then be `MOVED`.
const CLUSTER_TEXT: &str = "this server is a node of a cluster, which stores only some of the keys: use servers with cluster-enabled no";

/// The text of the fault of a server without the command HELLO, or without the protocol version that the client needs.
pub(super) const NO_HELLO: &str =
    "the server does not support RESP3: use Redis 6 or newer, or Valkey";

/// The first row whose sign fits an error decides. An error without a row is the fault `Server`, which time can repair.
static ROWS: [RefusalRow; 19] = [
    RefusalRow {
        sign: ErrorSign::Code(&["WRONGTYPE"]),
        becomes: ResultingFault::WrongType,
        remedy: "delete the key that is not a lock, or wait until it expires",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["LOADING"]),
        becomes: ResultingFault::Loading,
        remedy: "wait until the server has loaded its data set",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["READONLY", "MASTERDOWN"]),
        becomes: ResultingFault::ReadOnly,
        remedy: "a failover can make this replica a master; otherwise name its master instead",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["OOM"]),
        becomes: ResultingFault::OutOfMemory,
        remedy: "wait until keys expire, or raise maxmemory",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["MISCONF"]),
        becomes: ResultingFault::Misconf,
        remedy: "make room on the disk of the server",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["BUSY"]),
        becomes: ResultingFault::Busy,
        remedy: "wait until the script of another client has ended",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["NOREPLICAS"]),
        becomes: ResultingFault::Server,
        remedy: "start the replicas that min-replicas-to-write demands",
    },
    RefusalRow {
        sign: ErrorSign::Text(&["max number of clients"]),
        becomes: ResultingFault::Server,
        remedy: "raise maxclients, or close connections of other clients",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["NOAUTH"]),
        becomes: ResultingFault::Denied,
        remedy: "put a user and a password into the URL",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["WRONGPASS"]),
        becomes: ResultingFault::Denied,
        remedy: "correct the user and the password in the URL",
    },
    RefusalRow {
        sign: ErrorSign::Part(&["without any password configured", "but no password is set"]),
        becomes: ResultingFault::Denied,
        remedy: "this server has no password set: remove the password from the URL, or set requirepass",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["NOPERM"]),
        becomes: ResultingFault::Denied,
        remedy: "`quorate doctor` names all missing rights",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["DENIED"]),
        becomes: ResultingFault::Denied,
        remedy: "the server is in protected mode: set a password, or protected-mode no",
    },
    RefusalRow {
        sign: ErrorSign::Code(&["NOPROTO"]),
        becomes: ResultingFault::Unsupported,
        remedy: NO_HELLO,
    },
    RefusalRow {
        sign: ErrorSign::Code(&["MOVED", "ASK", "CROSSSLOT", "CLUSTERDOWN", "TRYAGAIN"]),
        becomes: ResultingFault::Unsupported,
        remedy: CLUSTER_TEXT,
    },
    RefusalRow {
        sign: ErrorSign::Text(&["Script attempted to access"]),
        becomes: ResultingFault::Unsupported,
        remedy: CLUSTER_TEXT,
    },
    RefusalRow {
        sign: ErrorSign::Text(&[
            "DB index is out of range",
            "SELECT is not allowed in cluster mode",
        ]),
        becomes: ResultingFault::Unsupported,
        remedy: "the database in the URL cannot be used: remove it from the URL, or raise databases on the server",
    },
    RefusalRow {
        sign: ErrorSign::Text(&[
            "unknown command",
            "unknown subcommand",
            "unsupported command",
            "command is not available",
            "command not supported",
        ]),
        becomes: ResultingFault::Missing,
        remedy: RESTORE_REMEDY,
    },
    RefusalRow {
        sign: ErrorSign::Text(&[
            "Unknown Redis command called from",
            "Unknown command called from",
        ]),
        becomes: ResultingFault::Missing,
        remedy: RESTORE_REMEDY,
    },
];

/// The remedy for a command that the server does not have.
const RESTORE_REMEDY: &str = "restore its name (rename-command), or use a server that has it";

impl ErrorSign {
    fn fits(self, code: &str, rest: &str) -> bool {
        let rest = || rest.to_ascii_lowercase();
        let lower = |text: &str| text.to_ascii_lowercase();
        match self {
            Self::Code(codes) => codes.contains(&code),
            Self::Text(texts) => {
                code == "ERR" && texts.iter().any(|text| rest().starts_with(&lower(text)))
            }
            Self::Part(texts) => {
                code == "ERR" && texts.iter().any(|text| rest().contains(&lower(text)))
            }
        }
    }

    /// The sign as text, for a fault that must not quote the server.
    fn name(self) -> &'static str {
        match self {
            Self::Code(texts) | Self::Text(texts) | Self::Part(texts) => {
                texts.first().unwrap_or(&"ERR")
            }
        }
    }
}

/// Whether the text of a fault may quote the error of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quoting {
    Whole,
    /// The error is the answer to a command with a password, and may contain a part of it.
    Nothing,
}

impl RefusalRow {
    fn fault(
        &self,
        raised: &Raised<'_>,
        code: &str,
        source: Option<&str>,
        quoting: Quoting,
    ) -> Fault {
        let why = || -> Arc<str> {
            let quoted = match (quoting, self.sign) {
                (Quoting::Whole, _) => brief_text(raised.text),
                (Quoting::Nothing, ErrorSign::Code(_)) => code.into(),
                (Quoting::Nothing, sign) => sign.name().into(),
            };
            format!("{quoted}: {}", self.remedy).into()
        };
        match self.becomes {
            ResultingFault::WrongType => Fault::WrongType,
            ResultingFault::Loading => Fault::Loading,
            ResultingFault::ReadOnly => Fault::ReadOnly,
            ResultingFault::OutOfMemory => Fault::OutOfMemory,
            ResultingFault::Misconf => Fault::Misconf,
            ResultingFault::Busy => Fault::Busy,
            ResultingFault::Denied => Fault::Denied(why()),
            ResultingFault::Unsupported => Fault::Unsupported(why()),
            ResultingFault::Server => Fault::Server(why()),
            ResultingFault::Missing => {
                missing_command_fault(raised.missing_command(source).as_deref())
            }
        }
    }
}

/// The fault of a server that does not have a command; `None` if its name is unknown.
fn missing_command_fault(command: Option<&str>) -> Fault {
    let command = match command {
        Some(name) => format!("the command {name}"),
        None => "a command".to_owned(),
    };
    let why = format!("the server does not have {command}, which locks need: {RESTORE_REMEDY}");
    Fault::Unsupported(why.into())
}

/// The fault of a server that does not report what the restart guard needs. `missing_text` says what is missing.
pub(super) fn unguarded_fault(missing_text: &str) -> Fault {
    let why = format!(
        "{missing_text}, which the restart guard needs: use a server that reports it, or turn the restart guard off \
         (restart_guard) if no restart loses data"
    );
    Fault::Unsupported(why.into())
}

/// Whether the error says that the master does not have the script, because of a restart or a SCRIPT FLUSH.
pub(super) fn is_noscript(value: &Value<'_>) -> bool {
    matches!(value, Value::Error(error) if error.starts_with(b"NOSCRIPT"))
}

/// Converts a connection error into [`Fault::Down`], the fault of requests that were not sent. Outstanding requests get
/// [`Fault::Disconnected`] instead.
pub(super) fn connection_fault(error: std::io::Error) -> Fault {
    Fault::Down(brief_text(&error.to_string()))
}

/// Converts the error reply of a command that ran no script into a fault.
pub(super) fn server_fault(error: &[u8]) -> Fault {
    fault_by_code(&String::from_utf8_lossy(error), None)
}

/// Whether the user lacks the right to a key that is an argument of the command. Only lock keys are arguments; scripts
/// build the names of all other keys.
pub(super) fn is_denied_key(error: &[u8]) -> bool {
    let text = String::from_utf8_lossy(error);
    text.starts_with("NOPERM ") && Denied::from_error(&text) == Denied::Key
}

/// Converts an error reply into a fault. `script` is the script that the command ran; `None` for a plain command.
pub(super) fn reply_fault(script: Option<Script>, error: &[u8]) -> Fault {
    let text = String::from_utf8_lossy(error);
    match script {
        _ if is_denied_key(error) => {
            Fault::Denied(brief_text(&format!("no right to use the lock key: {text}")))
        }
        script => fault_by_code(&text, script.map(Script::source)),
    }
}

/// Chooses the fault by the code at the beginning of an error. A code elsewhere in the error is ignored, because the
/// error may quote any text.
fn fault_by_code(text: &str, source: Option<&str>) -> Fault {
    fault_in_table(text, source, Quoting::Whole).unwrap_or_else(|| Fault::Server(brief_text(text)))
}

/// The fault of an error that the table contains; `None` if there is no row for it.
pub(super) fn fault_in_table(text: &str, source: Option<&str>, quoting: Quoting) -> Option<Fault> {
    let raised = Raised::read(text);
    let (code, rest) = raised.text.split_once(' ').unwrap_or((raised.text, ""));
    if let ("ERR", Some(marker)) = (code, rest.strip_prefix(OTHER_MASTERS)) {
        return Some(Fault::OtherMasters(brief_text(marker)));
    }
    if let ("ERR", Some(Ok(remaining))) = (code, rest.strip_prefix(YOUNG).map(str::parse::<u64>)) {
        return Some(Fault::Quarantined(Duration::from_millis(
            remaining.min(MAX_REMAINING_MS),
        )));
    }
    if let Some(why) = raised.denied_message(source) {
        return Some(Fault::Denied(brief_text(&why)));
    }
    // Redis 6.2 reports an error of a script without the code `ERR`.
    let rest = if raised.has_code() { rest } else { raised.text };
    let code = if raised.has_code() { code } else { "ERR" };
    let row = ROWS.iter().find(|row| row.sign.fits(code, rest))?;
    Some(row.fault(&raised, code, source, quoting))
}

/// Why a master with this generation marker does not admit this client, with advice for the operator. `None` if the
/// master admits the client.
pub(super) fn admission_fault(
    configuration: Configuration,
    marker: Option<Marker>,
) -> Option<Fault> {
    // A marker number 4g means that generation g is current. Between 4g and 4g + 4, generation g + 1 is replacing it.
    let master_text = match marker.map(|marker| (marker.number / 4, marker.number % 4)) {
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
    let generations_text = format!(
        "this client has masters_generation {}{next}, and {master_text}",
        configuration.step() / 2
    );
    let why = match configuration.admission(marker) {
        Admission::Admitted => return None,
        Admission::Outdated => format!(
            "{generations_text}: the masters have been replaced; set masters, next_masters and masters_generation to the current \
             values (see quorate masters status)"
        ),
        Admission::Early => format!(
            "{generations_text}: if this is one of the next masters, run quorate masters open; otherwise correct masters_generation"
        ),
        Admission::Nameless if marker.is_none() => "this server has no generation marker, so it has no vote for a \
             client with masters_name: if it is the right server, run quorate masters mark"
            .to_owned(),
        Admission::Nameless => "the generation marker of this server does not bear the name in masters_name, so it has \
             no vote: correct masters_name, or, if it is the right server, run quorate masters mark"
            .to_owned(),
        Admission::Other => format!(
            "{generations_text}, but its generation marker is for another list of masters than the list of this client: use the \
             list with which quorate masters mark was run, with the same host names; correct masters, next_masters or \
             masters_generation"
        ),
    };
    Some(Fault::OtherMasters(why.into()))
}

/// The largest number of characters of an error of a server that are shown. The longest known text has 215: the error
/// `NOAUTH` of HELLO.
const MAX_BRIEF_CHARS: usize = 240;

/// The first line of a text from a server, shortened and without control characters, because an error may contain any
/// text.
pub(super) fn brief_text(text: &str) -> Arc<str> {
    sanitize(
        text.lines().next().unwrap_or_default().trim(),
        MAX_BRIEF_CHARS,
    )
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::marker::Fingerprint;

    #[test]
    fn generation_marker_error_is_recognised_only_at_the_beginning_of_a_server_error() {
        let error = b"ERR quorate: masters 2 0123456789abcdef";
        let expected = Fault::OtherMasters("2 0123456789abcdef".into());
        assert_eq!(server_fault(error), expected);
        assert!(matches!(
            server_fault(b"ERR x quorate: masters 2"),
            Fault::Server(_)
        ));
    }

    #[test]
    fn fault_says_whether_the_marker_is_missing_or_has_another_name() {
        let print = Fingerprint::new(["a"]);
        let named = Configuration::new(0, print, None).named(Some("shop"));
        let fault_of = |marker| {
            let fault = admission_fault(named, marker);
            fault.map(|fault| fault.to_string()).unwrap_or_default()
        };
        let marker_named = |name| Marker {
            number: 0,
            print,
            name,
        };
        let fault = fault_of(None);
        assert!(
            fault.contains("this server has no generation marker"),
            "{fault}"
        );
        for other_name in [None, Some(Fingerprint::new(["other"]))] {
            let fault = fault_of(Some(marker_named(other_name)));
            assert!(fault.contains("does not bear the name"), "{fault}");
        }
        assert_eq!(fault_of(Some(marker_named(named.name()))), "");
    }

    #[test]
    fn error_about_a_young_age_record_shows_when_the_votes_count_again() {
        let fault_with = |error: &str| server_fault(format!("ERR {YOUNG}{error}").as_bytes());
        let quarantined = |ms| Fault::Quarantined(Duration::from_millis(ms));
        assert_eq!(fault_with("29500"), quarantined(29_500));
        assert_eq!(
            fault_with(&u64::MAX.to_string()),
            quarantined(MAX_REMAINING_MS)
        );
        for malformed in ["", "-5", "1.5", "29500 x", "99999999999999999999999"] {
            assert!(
                matches!(fault_with(malformed), Fault::Server(_)),
                "{malformed}"
            );
        }
    }

    #[test]
    fn fault_that_must_not_quote_the_server_begins_with_the_sign_of_its_row() {
        let fault_of = |error: &str| {
            let fault = fault_in_table(error, None, Quoting::Nothing);
            fault.map(|fault| fault.to_string()).unwrap_or_default()
        };
        let fault = fault_of("ERR DB index is out of range s3cret");
        assert!(
            fault.contains("DB index is out of range:") && !fault.contains("s3cret"),
            "{fault}"
        );
        assert_eq!(ErrorSign::Text(&["first", "second"]).name(), "first");
        assert_eq!(ErrorSign::Code(&[]).name(), "ERR");
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
    fn long_error_about_a_missing_password_is_shown_whole() {
        let text = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                    <user> <pass> option can be used to authenticate the client and select the RESP protocol version \
                    at the same time";
        let fault = server_fault(text.as_bytes()).to_string();
        assert!(fault.contains("at the same time"), "{fault}");
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

    /// The errors of one row, one for each sign.
    fn errors(row: &RefusalRow) -> Vec<String> {
        let errors_with = |texts: &[&str], before: &str| {
            let error_text = |text: &&str| format!("{before}{text} 'x', and more");
            texts.iter().map(error_text).collect()
        };
        match row.sign {
            ErrorSign::Code(texts) => errors_with(texts, ""),
            ErrorSign::Text(texts) => errors_with(texts, "ERR "),
            ErrorSign::Part(texts) => errors_with(texts, "ERR AUTH "),
        }
    }

    #[test]
    fn every_error_in_the_table_becomes_the_fault_of_its_row() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/refusals.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let (_, section) = page
            .split_once("## Errors of Redis and Valkey\n")
            .expect("a section");
        let section = section.split("\n## ").next().unwrap_or_default();
        let page_rows = section.lines().filter(|line| line.starts_with("| "));
        let page_rows: Vec<&str> = page_rows.skip(1).collect();
        let mut row_texts = Vec::new();
        for row in &ROWS {
            let faults: Vec<Fault> = errors(row)
                .iter()
                .map(|error| server_fault(error.as_bytes()))
                .collect();
            let first_fault = faults.first().expect("a sign");
            for fault in &faults {
                assert_eq!(fault.kind(), first_fault.kind(), "{row:?}: {fault}");
                let fault_text = fault.to_string();
                assert!(
                    first_fault.passes_by_itself() || fault_text.contains(row.remedy),
                    "{row:?}: {fault}"
                );
            }
            let (ErrorSign::Code(texts) | ErrorSign::Text(texts) | ErrorSign::Part(texts)) =
                row.sign;
            let code_text = match row.sign {
                ErrorSign::Code(_) => "",
                ErrorSign::Text(_) => "ERR ",
                ErrorSign::Part(_) => "ERR .. ",
            };
            let signs: Vec<String> = texts
                .iter()
                .map(|sign| format!("`{code_text}{sign}`"))
                .collect();
            let waits_text = if first_fault.passes_by_itself() {
                "yes"
            } else {
                "no"
            };
            let (signs, kind) = (signs.join(", "), first_fault.kind());
            row_texts.push(format!(
                "| {signs} | {kind} | {waits_text} | {} |",
                row.remedy
            ));
        }
        assert_eq!(
            page_rows,
            row_texts,
            "docs/refusals.md must show:\n{}",
            row_texts.join("\n")
        );
    }

    #[test]
    fn text_of_an_error_is_compared_only_if_its_code_is_err() {
        for text in [
            "max number of clients reached",
            "Client sent AUTH, but no password is set",
        ] {
            for (code, is_known) in [("ERR", true), ("ODD", false)] {
                let error = format!("{code} {text}");
                let fault = fault_in_table(&error, None, Quoting::Whole);
                assert_eq!(fault.is_some(), is_known, "{error}");
            }
        }
    }

    #[test]
    fn missing_command_is_named_whether_a_client_or_a_script_calls_it() {
        let source = Some("-- a script\nlocal call = redis.call\ncall('TIME')\n");
        for (error, source, name) in [
            (
                "ERR unknown command 'EVALSHA', with args beginning with: 'x' ",
                None,
                "EVALSHA",
            ),
            (
                "ERR unknown command `evalsha`, with args beginning with: `x`, ",
                None,
                "EVALSHA",
            ),
            (
                "ERR unknown subcommand 'LOAD'. Try SCRIPT HELP.",
                None,
                "LOAD",
            ),
            (
                "ERR Unknown Redis command called from script script: c6, on @user_script:4.",
                source,
                "TIME",
            ),
            (
                "ERR Error running script (call to f_1): @user_script:4: @user_script: 4: Unknown Redis command called \
                 from Lua script",
                source,
                "TIME",
            ),
        ] {
            let fault = fault_by_code(error, source);
            assert!(!fault.passes_by_itself(), "{error}: {fault}");
            assert!(
                !fault.left_nothing(),
                "a part of the script may have run: {error}"
            );
            let expected = format!("the command {name},");
            assert!(fault.to_string().contains(&expected), "{error}: {fault}");
        }
        let odd = fault_by_code("ERR unknown command '\u{1b}[2J'", None).to_string();
        assert!(odd.contains("does not have a command,"), "{odd}");
    }
}
