//! Chooses how a connection releases locks: with a script of this library, or with the faster built-in command DELIFEQ.
//! Both delete a lock key only if it still has the client's value.
//!
//! A server with this command may refuse it to the user, or a proxy may block it. So each connection first makes a
//! trial: it sends one release with the script, and repeats it with the command.

use super::resp::{Command, Value};
use super::script::Script;
use crate::node::{Claim, Request};

/// How a connection executes releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deletion {
    /// Releases use the script, because the server does not have the command, or because the trial failed.
    Script,
    /// Releases use the script. The server has the command, but the trial has not been sent yet.
    Untried,
    /// The trial was sent, but not answered yet. Releases use the script.
    Trying,
    /// Releases use the command `DELIFEQ key value`, which Valkey has from version 9 on.
    DelIfEq,
}

impl Deletion {
    /// Chooses how a new connection executes releases. `valkey` is the server's Valkey version; `None` for other
    /// servers. Valkey also reports a Redis version, which only shows compatibility and is ignored.
    pub(super) fn for_version(valkey: Option<&str>) -> Self {
        let major = valkey.and_then(|text| text.split('.').next()?.parse::<u32>().ok());
        if major.is_some_and(|major| major >= 9) {
            Self::Untried
        } else {
            Self::Script
        }
    }

    /// Writes a release as the built-in command, and returns `true`. If the release needs the script, writes nothing
    /// and returns `false`.
    pub(super) fn write(self, request: &Request, out: &mut Vec<u8>) -> bool {
        self == Self::DelIfEq && write(request, out)
    }

    /// If no trial was sent before, appends one to `out`: the first release in `requests` that DELIFEQ can execute.
    /// Returns whether a trial was appended.
    pub(super) fn write_trial<'a>(
        &mut self,
        mut requests: impl Iterator<Item = &'a Request>,
        out: &mut Vec<u8>,
    ) -> bool {
        let has_trial = *self == Self::Untried && requests.any(|request| write(request, out));
        if has_trial {
            *self = Self::Trying;
        }
        has_trial
    }

    /// Handles the reply to the trial: from now on, releases use the command if the trial succeeded, and otherwise the
    /// script.
    pub(super) fn handle_trial_reply(&mut self, value: &Value<'_>) {
        *self = match value {
            Value::Int(_) => Self::DelIfEq,
            _ => Self::Script,
        };
    }

    /// Whether the server refused the command, so that the script must be used. This can happen after a successful
    /// trial: the user's rights may have changed, or the server may have become read-only.
    pub(super) fn is_refused(value: &Value<'_>) -> bool {
        matches!(value, Value::Error(error) if !error.starts_with(b"WRONGTYPE "))
    }
}

fn write(request: &Request, out: &mut Vec<u8>) -> bool {
    match request {
        Request::Release { claim, .. } if only_deletes_key(request, claim) => {
            let mut command = Command::new(out, 3);
            command.arg("DELIFEQ").arg(claim.key());
            command.arg(claim.token().to_hex());
            true
        }
        _ => false,
    }
}

/// Whether the built-in command can execute this release. Two conditions must be met:
///
/// - The release only compares the lock value and deletes the lock key.
/// - The claim is withdrawn: no more acquires are sent for it. Otherwise a repeated acquire could take the lock after
///   the release.
fn only_deletes_key(release: &Request, claim: &Claim) -> bool {
    let is_plain_release = matches!(Script::for_request(release), Some(Script::Release));
    is_plain_release && !claim.is_noted() && claim.is_withdrawn()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::node::{Class, Fairness, Group, Mode, Part, Ticket, Token};

    #[test]
    fn delifeq_command_is_used_only_from_valkey_9_on() {
        for (version, is_supported) in [
            (Some("9.0.0"), true),
            (Some("9.1.2"), true),
            (Some("10.0.0-rc1"), true),
            (Some("8.1.8"), false),
            (Some("unstable"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(
                Deletion::for_version(version) == Deletion::Untried,
                is_supported,
                "{version:?}"
            );
        }
    }

    fn plain_claim(fenced: bool) -> Claim {
        Claim::new("", b"job", Token::from_bytes([1; 16]), fenced)
    }

    fn release_command(deletion: Deletion, claim: Claim) -> Option<String> {
        let claim = Arc::new(claim);
        let request = Request::Release { claim, leave: true };
        let mut out = Vec::new();
        let is_written = deletion.write(&request, &mut out);
        assert_eq!(is_written, !out.is_empty());
        is_written.then(|| String::from_utf8(out).expect("the command must be text"))
    }

    fn withdrawn(claim: Claim) -> Claim {
        claim.withdraw();
        claim
    }

    #[test]
    fn plain_release_is_written_as_one_command() {
        for fenced in [false, true] {
            let command = release_command(Deletion::DelIfEq, withdrawn(plain_claim(fenced)));
            let value = "01".repeat(16);
            let expected = format!("*3\r\n$7\r\nDELIFEQ\r\n$3\r\njob\r\n$32\r\n{value}\r\n");
            assert_eq!(command, Some(expected));
            assert_eq!(
                release_command(Deletion::Script, withdrawn(plain_claim(fenced))),
                None
            );
        }
    }

    #[test]
    fn release_that_does_more_than_delete_its_key_uses_the_script() {
        let ticket = Ticket {
            waiter: "w".into(),
            number: 1,
            heartbeat: Duration::from_secs(1),
        };
        let part = Part {
            key: plain_claim(true).shared_key().clone(),
            mode: Mode::Class(Class::Shared),
        };
        let noted = plain_claim(true);
        noted.take_note();
        for claim in [
            plain_claim(true).with_fairness(Fairness::Fair(None)),
            plain_claim(true).with_fairness(Fairness::Fair(Some(Box::new(ticket)))),
            plain_claim(true).with_group(Group::new(vec![part])),
            noted,
        ] {
            let claim_text = format!("{claim:?}");
            assert_eq!(
                release_command(Deletion::DelIfEq, withdrawn(claim)),
                None,
                "{claim_text}"
            );
        }
        // This release must use the script. `Claim::withdraw` was not called, so the acquire may be sent again.
        assert_eq!(release_command(Deletion::DelIfEq, plain_claim(true)), None);
    }
}
