//! The scripts that one connection has loaded, and the SHA1 digests by which the connection calls them (EVALSHA).

use std::fmt::Write as _;
use std::time::Duration;

use super::refusal::{OTHER_MASTERS, YOUNG, server_fault};
use super::resp::{Command, Value};
use super::script::{Script, ScriptSet};
use crate::keys::{AGE_KEY, MARKER_KEY};
use crate::node::note::{NOTE_LIVES, NOTE_SHOWN};
use crate::node::{Fault, Request};
use crate::protocol::fencing::{COUNTER_PERIOD_US, COUNTER_TTL_US, PROPOSAL_SLACK_US};
use crate::protocol::marker::Configuration;
use crate::settings::RestartGuard;

/// The TTL that scripts give a fencing counter. It is the sum of:
///
/// - one day: a counter must last this long after the last grant of its lock;
/// - 1,000 s: only the first grant in each period of 1,000 s renews the TTL (`scripts/fence/raise.lua`);
/// - one second: the number in a new counter, read as a time, can be this far ahead of the master's clock.
///
/// If the number is further ahead, the scripts make the TTL longer (`scripts/fence/lives.lua`).
pub(super) const FENCE_TTL: Duration =
    Duration::from_micros(COUNTER_TTL_US + COUNTER_PERIOD_US + PROPOSAL_SLACK_US);

/// The SHA1 digests by which this connection calls the scripts; empty for a script that is not loaded.
#[derive(Clone, Default)]
pub(super) struct Scripts {
    shas: [Vec<u8>; Script::ALL.len()],
    /// Lua code that begins each script and checks the generation marker. Empty if no check is needed.
    marker_check: String,
    /// Whether scripts with a check that grant locks also check the age record. False if the restart guard is off.
    checks_age: bool,
}

/// Returns Lua code that ends a script with an error if the server has lost its generation marker within the last
/// `max_ttl`, and another client has restored it. The server may have forgotten locks, and a client that was connected
/// before does not notice it otherwise (docs/protocol.md, "Age records").
fn age_check_code(max_ttl: Duration) -> String {
    let max_ttl_ms = max_ttl.as_millis();
    format!(
        "local aged = redis.pcall('GET', '{AGE_KEY}') \
         aged = type(aged) == 'string' and tonumber(string.match(aged, '^%S+ (%d+) lost%-%S+$') or nil) \
         if aged and aged < {max_ttl_ms} then return redis.error_reply('ERR {YOUNG}' .. ({max_ttl_ms} - aged)) end "
    )
}

/// Returns Lua code that ends a script with an error if the master's generation marker does not admit this client. A
/// check in the handshake is not enough, because an operator may raise the marker later.
fn marker_check_code(configuration: Configuration) -> String {
    let mut wrong = String::from(if configuration.needs_no_marker() {
        "mark"
    } else {
        "true"
    });
    for marker in configuration.markers() {
        let _ = write!(wrong, " and mark ~= '{marker}'");
    }
    // A client without a name ignores the name that a marker bears.
    let nameless = if configuration.name().is_none() {
        "mark = mark and string.match(mark, '^%d+ %x+') or mark "
    } else {
        ""
    };
    format!(
        "local mark = redis.call('GET', '{MARKER_KEY}') {nameless}if {wrong} then \
         return redis.error_reply('ERR {OTHER_MASTERS}' .. (mark or '-')) end "
    )
}

impl Scripts {
    /// The scripts of a client with this configuration. If the client's masters were never replaced and it has no name,
    /// the scripts do not check the generation marker.
    ///
    /// For such a client, the check in the handshake is enough. An operator who replaces the masters closes the
    /// client's connections, and the next handshake then refuses the client.
    pub(super) fn new(configuration: Configuration, restart_guard: RestartGuard) -> Self {
        if configuration.checks_each_request() {
            Self::with_marker_check(configuration, restart_guard)
        } else {
            Self::default()
        }
    }

    /// The scripts of a client with this configuration. They check the generation marker even if the client's masters
    /// were never replaced.
    pub(super) fn with_marker_check(
        configuration: Configuration,
        restart_guard: RestartGuard,
    ) -> Self {
        Self {
            marker_check: marker_check_code(configuration),
            checks_age: restart_guard != RestartGuard::Off,
            ..Self::default()
        }
    }

    /// Writes the commands that load one set of scripts, and returns the scripts of the set. The first line of each
    /// loaded script defines constants that depend on the client's settings.
    pub(super) fn load(
        &self,
        set: ScriptSet,
        max_ttl: Duration,
        out: &mut Vec<u8>,
    ) -> impl Iterator<Item = Script> + use<> {
        for script in set.scripts() {
            let marker_check = if script.checks_marker() {
                &*self.marker_check
            } else {
                ""
            };
            let age_check = if self.checks_age && script.grants() {
                age_check_code(max_ttl)
            } else {
                String::new()
            };
            let source = format!(
                "{marker_check}{age_check}local MAX_TTL, FENCE_TTL, NOTE_LIVES, NOTE_SHOWN = {}, '{}', {NOTE_LIVES}, {NOTE_SHOWN}\n{}",
                max_ttl.as_millis(),
                FENCE_TTL.as_millis(),
                script.source()
            );
            Command::write_words(out, &["SCRIPT", "LOAD", &source]);
        }
        set.scripts()
    }

    /// Whether the scripts check the generation marker.
    pub(super) fn is_checked(&self) -> bool {
        !self.marker_check.is_empty()
    }

    /// The set of scripts that this connection must load before it can execute the request; `None` if nothing is
    /// missing.
    pub(super) fn set_to_load(&self, request: &Request) -> Option<ScriptSet> {
        let script = self.script(request)?;
        let is_missing = self.shas[script as usize].is_empty();
        is_missing.then(|| script.row().set)
    }

    /// The script that executes a request on this connection; `None` if a plain Redis command executes it. An acquire
    /// without a fencing token needs a script only if the generation marker must be checked.
    fn script(&self, request: &Request) -> Option<Script> {
        let is_checked_classic = matches!(request, Request::Acquire { .. }) && self.is_checked();
        Script::for_request(request).or(is_checked_classic.then_some(Script::Classic))
    }

    /// Whether this connection has loaded a set of scripts.
    pub(super) fn has_loaded(&self, set: ScriptSet) -> bool {
        set.scripts()
            .all(|script| !self.shas[script as usize].is_empty())
    }

    /// The sets of scripts that this connection has loaded.
    pub(super) fn loaded_sets(&self) -> impl Iterator<Item = ScriptSet> {
        ScriptSet::ALL
            .into_iter()
            .filter(|set| self.has_loaded(*set))
    }

    /// Handles the reply to one command that [`load`](Self::load) wrote.
    pub(super) fn handle_load_reply(
        &mut self,
        script: Script,
        reply: &Value<'_>,
    ) -> Result<(), Fault> {
        match reply {
            Value::Bulk(sha) if sha.len() == 40 => self.shas[script as usize] = sha.to_vec(),
            Value::Error(error) => return Err(server_fault(error)),
            _ => {
                return Err(Fault::Server(
                    "the reply to SCRIPT LOAD is not a SHA1".into(),
                ));
            }
        }
        Ok(())
    }

    /// Begins the command that runs `script` with `keys` keys and `args` arguments.
    pub(super) fn begin_call<'a>(
        &self,
        script: Script,
        keys: usize,
        args: usize,
        out: &'a mut Vec<u8>,
    ) -> Command<'a> {
        debug_assert!(
            script.accepts(keys, args),
            "the script {script:?} does not take {keys} keys and {args} arguments"
        );
        let mut command = Command::new(out, 3 + keys + args);
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
    use crate::protocol::marker::Fingerprint;

    #[test]
    fn loaded_scripts_check_no_generation_marker_if_masters_were_never_replaced() {
        let fingerprint = |name| Fingerprint::new([name]);
        let load_all = |configuration: Configuration| {
            let (scripts, mut out) = (Scripts::new(configuration, RestartGuard::On), Vec::new());
            for set in ScriptSet::ALL {
                let _ = scripts.load(set, Duration::from_secs(30), &mut out);
            }
            String::from_utf8(out).expect("the commands must be text")
        };
        let unchanged = load_all(Configuration::new(0, fingerprint("a"), None));
        let marker_check = format!("local mark = redis.call('GET', '{MARKER_KEY}') if ");
        assert!(
            !unchanged.contains(&marker_check),
            "scripts must not check the marker if masters were never replaced: {unchanged}"
        );
        let scripts = Script::ALL.into_iter();
        let checking_count = scripts.filter(|script| script.checks_marker()).count();
        assert!(
            (1..Script::ALL.len()).contains(&checking_count),
            "some scripts must check the marker, but not all: {checking_count}"
        );
        let change_begun = load_all(Configuration::new(
            0,
            fingerprint("a"),
            Some(fingerprint("b")),
        ));
        assert_eq!(
            change_begun.matches("if mark and mark ~= '0 ").count(),
            checking_count
        );
        let change_done = load_all(Configuration::new(1, fingerprint("b"), None));
        assert_eq!(
            change_done.matches("if true and mark ~= '2 ").count(),
            checking_count
        );
        // Scripts that grant locks also check the age record.
        assert!(!unchanged.contains(YOUNG));
        let granting = Script::ALL.into_iter().filter(|script| script.grants());
        let granting = granting.inspect(|script| assert!(script.checks_marker(), "{script:?}"));
        let granting_count = granting.count();
        for scripts_text in [change_begun, change_done] {
            assert_eq!(scripts_text.matches(YOUNG).count(), granting_count);
        }
        let unguarded = Scripts::with_marker_check(
            Configuration::new(1, fingerprint("b"), None),
            RestartGuard::Off,
        );
        let mut out = Vec::new();
        let _ = unguarded.load(ScriptSet::Plain, Duration::from_secs(30), &mut out);
        assert!(!String::from_utf8_lossy(&out).contains(YOUNG));
    }

    #[test]
    fn loaded_scripts_contain_no_placeholder() {
        let mut out = Vec::new();
        for set in ScriptSet::ALL {
            let _ = Scripts::default().load(set, Duration::from_secs(30), &mut out);
        }
        let text = String::from_utf8(out).expect("the commands must be text");
        assert!(
            !text.contains("--+"),
            "every shared part must be inserted: {text}"
        );
        let reads_counter = |script: &Script| script.row().source.contains("--+ fence/read.lua\n");
        let fenced = Script::ALL
            .iter()
            .filter(|script| reads_counter(script))
            .count();
        assert!(fenced > 0);
        assert_eq!(text.matches("local fence = ").count(), fenced);
        assert!(
            !text.contains("{fence}") && !text.contains("{shared}"),
            "every name of a key must be inserted: {text}"
        );
    }
}
