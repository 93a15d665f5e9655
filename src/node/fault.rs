//! The reasons why a master gives no usable answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::fork::FORKED;

/// Why a master gave no usable answer. A fault is neither a grant nor a refusal.
///
/// The texts in a fault come from the master or from the operating system. They never contain a password.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// There is no connection to the master. The request was not sent.
    Down(Arc<str>),
    /// No connection to the master was made, because one step of connecting took longer than the connect timeout. The
    /// field is this timeout. The request was not sent.
    NoConnection(Duration),
    /// The master has stopped answering. The request was not sent.
    Stalled,
    /// Too many requests are queued for this master. The request was not sent.
    Overloaded,
    /// The master restarted recently and may have forgotten a lock, so the request was not sent. The field is the time
    /// for which the restart guard will still ignore the votes of the master.
    Quarantined(Duration),
    /// The request was not sent, because it was withdrawn, or is an outdated write
    /// ([`Request::is_void`](super::Request::is_void)).
    Withdrawn,
    /// The request was sent, but no answer came within the node timeout. The field is this timeout. It is unknown
    /// whether the request took effect.
    Timeout(Duration),
    /// The request was sent, but the connection broke before the answer. It is unknown whether the request took effect.
    Disconnected(Arc<str>),
    /// The master is loading its data set (`-LOADING`).
    Loading,
    /// The master is a replica or has been made read-only (`-READONLY`).
    ReadOnly,
    /// The master is out of memory (`-OOM`).
    OutOfMemory,
    /// The master cannot write to its disk and therefore refuses writes (`-MISCONF`).
    Misconf,
    /// The master is busy with a long-running script (`-BUSY`).
    Busy,
    /// The type of the key is not the type that the command expects (`-WRONGTYPE`). The key was not changed.
    WrongType,
    /// The server refused the user name or the password, or the user has no right to a command or a key (`-NOAUTH`,
    /// `-WRONGPASS`, `-NOPERM`). The contained text names the command or the keys.
    Denied(Arc<str>),
    /// The server lacks a feature that locks need, for example because it is too old.
    Unsupported(Arc<str>),
    /// The server was not prepared for locks (a schema or a path is missing), or was prepared by another version of
    /// this library. The text names the command that prepares the server.
    Unprepared(Arc<str>),
    /// This master refuses the client's configuration: its list of masters, its `masters_generation` or its
    /// `masters_name` is not the one of this master. The contained text states the reason.
    OtherMasters(Arc<str>),
    /// Two addresses of the same `Redlock` lead to one server. The request was refused, so that this server does not
    /// get two votes. The contained text names the other address.
    SameServer(Arc<str>),
    /// Any other error that the master returned.
    Server(Arc<str>),
}

impl Fault {
    /// The fault of every request in a process that was forked from the one that built the `Redlock`. Nothing was sent.
    pub(crate) fn forked() -> Self {
        Self::Unsupported(FORKED.into())
    }

    /// True if the master did not answer in time. False if the master or the network reported an error, for example a
    /// refused connection.
    pub fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_) | Self::Stalled | Self::NoConnection(_)
        )
    }

    /// Returns one fault of each variant, for metrics. The `match` has no wildcard arm, so the compiler rejects a new
    /// variant that is missing here.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let (none, no_time) = ("", Duration::ZERO);
        std::iter::successors(Some(Fault::Down(none.into())), move |fault| match fault {
            Fault::Down(_) => Some(Fault::NoConnection(no_time)),
            Fault::NoConnection(_) => Some(Fault::Stalled),
            Fault::Stalled => Some(Fault::Overloaded),
            Fault::Overloaded => Some(Fault::Quarantined(no_time)),
            Fault::Quarantined(_) => Some(Fault::Withdrawn),
            Fault::Withdrawn => Some(Fault::Timeout(no_time)),
            Fault::Timeout(_) => Some(Fault::Disconnected(none.into())),
            Fault::Disconnected(_) => Some(Fault::Loading),
            Fault::Loading => Some(Fault::ReadOnly),
            Fault::ReadOnly => Some(Fault::OutOfMemory),
            Fault::OutOfMemory => Some(Fault::Misconf),
            Fault::Misconf => Some(Fault::Busy),
            Fault::Busy => Some(Fault::WrongType),
            Fault::WrongType => Some(Fault::Denied(none.into())),
            Fault::Denied(_) => Some(Fault::Unsupported(none.into())),
            Fault::Unsupported(_) => Some(Fault::Unprepared(none.into())),
            Fault::Unprepared(_) => Some(Fault::OtherMasters(none.into())),
            Fault::OtherMasters(_) => Some(Fault::SameServer(none.into())),
            Fault::SameServer(_) => Some(Fault::Server(none.into())),
            Fault::Server(_) => None,
        })
    }

    /// Whether the request certainly changed nothing on the master. Either the client never sent the request, or the
    /// master refused the request before it executed any part.
    ///
    /// This is false for [`Unsupported`](Self::Unsupported) and [`Denied`](Self::Denied): a script may have executed some
    /// of its commands before the server refused another command.
    pub fn left_nothing(&self) -> bool {
        matches!(
            self,
            Self::Down(_)
                | Self::NoConnection(_)
                | Self::Stalled
                | Self::Overloaded
                | Self::Quarantined(_)
                | Self::Withdrawn
                | Self::Loading
                | Self::Unprepared(_)
                | Self::OtherMasters(_)
                | Self::SameServer(_)
        )
    }

    /// Whether the fault can end without an operator's intervention. False for a permanent fault. If the masters with
    /// permanent faults make a majority impossible, an acquire stops waiting and fails.
    pub fn passes_by_itself(&self) -> bool {
        !matches!(
            self,
            Self::Denied(_)
                | Self::Unsupported(_)
                | Self::Unprepared(_)
                | Self::OtherMasters(_)
                | Self::SameServer(_)
        )
    }

    /// The fault as one word, for log fields and machine-readable output. The word is stable across versions of this
    /// library.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Down(_) | Self::NoConnection(_) => "down",
            Self::Stalled => "stalled",
            Self::Overloaded => "overloaded",
            Self::Quarantined(_) => "quarantined",
            Self::Withdrawn => "withdrawn",
            Self::Timeout(_) => "timeout",
            Self::Disconnected(_) => "disconnected",
            Self::Loading => "loading",
            Self::ReadOnly => "read_only",
            Self::OutOfMemory => "out_of_memory",
            Self::Misconf => "misconf",
            Self::Busy => "busy",
            Self::WrongType => "wrong_type",
            Self::Denied(_) => "denied",
            Self::Unsupported(_) => "unsupported",
            Self::Unprepared(_) => "unprepared",
            Self::OtherMasters(_) => "other_masters",
            Self::SameServer(_) => "same_server",
            Self::Server(_) => "server_error",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(why) => write!(f, "down ({why})"),
            Self::NoConnection(limit) => {
                let limit_text = humantime::format_duration(*limit);
                write!(f, "down (no connection within {limit_text})")
            }
            Self::Stalled => f.write_str("not answering"),
            Self::Overloaded => f.write_str("too many requests queued"),
            Self::Quarantined(left) => {
                let remaining_text =
                    humantime::format_duration(Duration::from_secs(left.as_secs() + 1));
                write!(
                    f,
                    "restart guard: can vote after clients have been connected for another {remaining_text}"
                )
            }
            Self::Withdrawn => f.write_str("request withdrawn before it was sent"),
            Self::Timeout(after) => {
                write!(f, "no answer within {}", humantime::format_duration(*after))
            }
            Self::Disconnected(why) => write!(f, "connection lost ({why})"),
            Self::Loading => f.write_str("loading its data set (LOADING)"),
            Self::ReadOnly => f.write_str("read-only, probably a replica (READONLY)"),
            Self::OutOfMemory => f.write_str("out of memory (OOM)"),
            Self::Misconf => f.write_str("cannot persist and refuses writes (MISCONF)"),
            Self::Busy => f.write_str("busy with a long script (BUSY)"),
            Self::WrongType => {
                f.write_str("the key holds another type of value and was not changed (WRONGTYPE)")
            }
            Self::Denied(why) => write!(f, "access denied ({why})"),
            Self::Unsupported(why) => write!(f, "not supported ({why})"),
            Self::Unprepared(why) => write!(f, "not prepared ({why})"),
            Self::OtherMasters(why) => write!(f, "refuses this configuration ({why})"),
            Self::SameServer(other) => write!(
                f,
                "the same server as {other}, which already has a vote: name each server once"
            ),
            Self::Server(why) => write!(f, "error from the server ({why})"),
        }
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each fault of `Fault::all`, in the same order: its name, whether the request changed nothing on the master,
    /// and whether the fault passes by itself.
    const EXPECTED: [(&str, bool, bool); 20] = [
        ("down", true, true),
        ("down", true, true),
        ("stalled", true, true),
        ("overloaded", true, true),
        ("quarantined", true, true),
        ("withdrawn", true, true),
        ("timeout", false, true),
        ("disconnected", false, true),
        ("loading", true, true),
        ("read_only", false, true),
        ("out_of_memory", false, true),
        ("misconf", false, true),
        ("busy", false, true),
        ("wrong_type", false, true),
        ("denied", false, false),
        ("unsupported", false, false),
        ("unprepared", true, false),
        ("other_masters", true, false),
        ("same_server", true, false),
        ("server_error", false, true),
    ];

    #[test]
    fn every_fault_has_the_kind_and_properties_listed_in_the_test() {
        let properties = |fault: Fault| {
            let (left_nothing, passes_by_itself) = (fault.left_nothing(), fault.passes_by_itself());
            (fault.kind(), left_nothing, passes_by_itself)
        };
        assert_eq!(Fault::all().map(properties).collect::<Vec<_>>(), EXPECTED);
    }

    #[test]
    fn fault_counts_as_silence_only_if_the_master_did_not_answer_in_time() {
        let timeout = Duration::from_millis(500);
        let no_connection = Fault::NoConnection(timeout);
        assert_eq!(
            no_connection.to_string(),
            "down (no connection within 500ms)"
        );
        for fault in [no_connection, Fault::Timeout(timeout), Fault::Stalled] {
            assert!(
                fault.is_silence(),
                "is_silence() must be true for {fault:?}"
            );
        }
        let refused = Fault::Down("Connection refused (os error 111)".into());
        let text = Fault::Down("no connection within a thousand miles".into());
        for fault in [refused, text, Fault::Loading, Fault::Quarantined(timeout)] {
            assert!(
                !fault.is_silence(),
                "is_silence() must be false for {fault:?}"
            );
        }
    }

    #[test]
    fn remaining_quarantine_in_an_error_is_rounded_up_to_whole_seconds() {
        let fault = Fault::Quarantined(Duration::from_millis(1_500));
        assert_eq!(
            fault.to_string(),
            "restart guard: can vote after clients have been connected for another 2s"
        );
    }
}
