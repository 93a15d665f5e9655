//! The scripts that one connection has loaded, and the SHA1 names under which the master runs them.

use std::fmt::Write as _;
use std::ops::Range;
use std::time::Duration;

use super::refusal::{OTHER_MASTERS, server_fault};
use super::resp::{Command, Value};
use super::script::{MARKED, SETS, SOURCES, Script, sources};
use crate::keys::MASTERS;
use crate::node::note::{NOTE_LIVES, NOTE_TOLD};
use crate::node::{Fault, Request};
use crate::protocol::mark::Configuration;

/// How long a fencing counter outlives its last grant: one day, so that counters do not accumulate. A counter that is ahead
/// of the master's clock lives longer by that difference (`scripts/fence/lives.lua`).
const FENCE_TTL: Duration = Duration::from_secs(86_400);

/// The SHA1 names under which the master of this connection runs the scripts. The name of a script that is not loaded is
/// empty.
#[derive(Clone, Default)]
pub(super) struct Scripts {
    shas: [Vec<u8>; SOURCES.len()],
    /// The Lua code that checks the generation marker, in front of every script of [`MARKED`]. Empty if this client needs no
    /// check.
    check: String,
}

/// Lua code that returns an error unless the master's generation marker admits this client. The handshake has checked the
/// marker once; this check stops a client whose connection lasts while the masters change, or that connects through a proxy.
fn check(configuration: Configuration) -> String {
    let mut wrong = String::from(if configuration.needs_no_mark() {
        "mark"
    } else {
        "true"
    });
    for mark in configuration.marks() {
        let _ = write!(wrong, " and mark ~= '{mark}'");
    }
    format!(
        "local mark = redis.call('GET', '{MASTERS}') if {wrong} then \
         return redis.error_reply('ERR {OTHER_MASTERS}' .. (mark or '-')) end "
    )
}

impl Scripts {
    /// The scripts of a client with this configuration. If the masters were never replaced, no script checks the marker,
    /// so that such users pay nothing: their handshake checks the marker, and the change of masters ends their connections.
    pub(super) fn of(configuration: Configuration) -> Self {
        if configuration.step() == 0 {
            Self::default()
        } else {
            Self::checked(configuration)
        }
    }

    /// The scripts with the check of the generation marker, at every step of a change.
    pub(super) fn checked(configuration: Configuration) -> Self {
        Self {
            check: check(configuration),
            ..Self::default()
        }
    }

    /// The set that every handshake loads.
    pub(super) const PLAIN: usize = 0;

    /// The set of the scripts that handle many requests in one call.
    pub(super) const MANY: usize = 6;

    /// Writes the commands that load a set, and returns which scripts these are. One line with the deployment's constants
    /// is put in front of each source.
    pub(super) fn load(&self, set: usize, max_ttl: Duration, out: &mut Vec<u8>) -> Range<usize> {
        for script in SETS[set].clone() {
            let check = if MARKED.contains(&script) {
                &*self.check
            } else {
                ""
            };
            let source = &sources()[script];
            let source = format!(
                "{check}local MAX_TTL, FENCE_TTL, NOTE_LIVES, NOTE_TOLD = {}, '{}', {NOTE_LIVES}, {NOTE_TOLD}\n{source}",
                max_ttl.as_millis(),
                FENCE_TTL.as_millis()
            );
            Command::words(out, &["SCRIPT", "LOAD", &source]);
        }
        SETS[set].clone()
    }

    /// Whether the scripts check the generation marker.
    pub(super) fn is_checked(&self) -> bool {
        !self.check.is_empty()
    }

    /// The set that this connection must load before it can run the request; `None` if nothing is missing.
    pub(super) fn lacks(&self, request: &Request) -> Option<usize> {
        let script = self.script(request)? as usize;
        let missing = self.shas[script].is_empty();
        missing.then(|| SETS.iter().position(|set| set.contains(&script)))?
    }

    /// The script that a request runs on this connection. An acquire without a fencing token is a plain command, unless
    /// the generation marker must be checked first.
    fn script(&self, request: &Request) -> Option<Script> {
        let classic = matches!(request, Request::Acquire { .. }) && self.is_checked();
        Script::of(request).or(classic.then_some(Script::Classic))
    }

    /// Whether a script handles many requests in one call.
    pub(super) fn is_of_many(script: usize) -> bool {
        SETS[Self::MANY].contains(&script)
    }

    /// Whether this connection has loaded a set.
    pub(super) fn has(&self, set: usize) -> bool {
        self.shas[SETS[set].clone()]
            .iter()
            .all(|sha| !sha.is_empty())
    }

    /// The sets that this connection has loaded.
    pub(super) fn loaded_sets(&self) -> impl Iterator<Item = usize> {
        (0..SETS.len()).filter(|set| self.has(*set))
    }

    /// Reads one reply to a command that [`load`](Self::load) wrote.
    pub(super) fn loaded(&mut self, index: usize, reply: &Value<'_>) -> Result<(), Fault> {
        match reply {
            Value::Bulk(sha) if sha.len() == 40 => self.shas[index] = sha.to_vec(),
            Value::Error(error) => return Err(server_fault(error)),
            _ => return Err(Fault::Server("no name for a script that was loaded".into())),
        }
        Ok(())
    }

    /// Begins the command that runs a script with this number of keys and arguments.
    pub(super) fn call<'a>(
        &self,
        script: Script,
        keys: usize,
        args: usize,
        out: &'a mut Vec<u8>,
    ) -> Command<'a> {
        let mut command = Command::of(out, 3 + keys + args);
        command
            .arg("EVALSHA")
            .arg(&self.shas[script as usize])
            .number(keys as u64);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::mark::Fingerprint;

    #[test]
    fn scripts_that_vote_or_write_look_at_the_mark_first_while_masters_change_and_never_else() {
        let print = |name| Fingerprint::of([name]);
        let loaded = |configuration: Configuration| {
            let (scripts, mut out) = (Scripts::of(configuration), Vec::new());
            for set in 0..SETS.len() {
                scripts.load(set, Duration::from_secs(30), &mut out);
            }
            String::from_utf8(out).expect("text")
        };
        let never = loaded(Configuration::new(0, print("a"), None));
        assert!(!never.contains(MASTERS), "{never}");
        let both = loaded(Configuration::new(0, print("a"), Some(print("b"))));
        assert_eq!(
            both.matches("if mark and mark ~= '0 ").count(),
            MARKED.len()
        );
        let next = loaded(Configuration::new(1, print("b"), None));
        assert_eq!(
            next.matches("if true and mark ~= '2 ").count(),
            MARKED.len()
        );
    }

    #[test]
    fn every_part_of_a_script_is_put_in() {
        let mut out = Vec::new();
        for set in 0..SETS.len() {
            Scripts::default().load(set, Duration::from_secs(30), &mut out);
        }
        let text = String::from_utf8(out).expect("text");
        assert!(!text.contains("--+"), "{text}");
        assert_eq!(text.matches("local fence = ").count(), 10);
        assert!(
            !text.contains("{fence}") && !text.contains("{shared}"),
            "{text}"
        );
        assert!(SETS.iter().flat_map(Clone::clone).eq(0..SOURCES.len()));
    }
}
