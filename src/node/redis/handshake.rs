//! The handshake of a new connection, before the first request. It consists of two messages:
//!
//! - The first message asks for the server's identity and uptime, and loads the scripts.
//! - The second message closes the previous connection at the server, and subscribes to wake-ups.
//!
//! Each command of a message must get exactly one reply, of the expected type. Otherwise the client could take a reply
//! for the answer to a different command.

use std::collections::VecDeque;

use super::connecting::Progress;
use super::deletion::Deletion;
use super::loaded::Scripts;
use super::many::min_acquires;
use super::refusal::{
    NO_HELLO, Quoting, admission_fault, fault_in_table, server_fault, unguarded_fault,
};
use super::resp::{Command, Value};
use super::script::{Script, ScriptSet};
use super::shared::Shared;
use crate::keys::{AGE_KEY, MARKER_KEY, WAKE_CHANNEL_PREFIX};
use crate::node::Fault;
use crate::node::actor::trust::{Memory, ServerVote};
use crate::node::numbers;
use crate::protocol::age::{AgeRecord, Watch};
use crate::protocol::instant::Instant;
use crate::protocol::marker::{Admission, Marker};
use crate::protocol::restart::quarantined_until;
use crate::repeats::warn_seldom;
use crate::settings::RestartGuard;

/// The result of a handshake: the initial state of a connection.
pub(super) struct Negotiated {
    pub(super) scripts: Scripts,
    /// The time until which this master's votes do not count because it may have restarted.
    pub(super) quarantined_until: Instant,
    /// Keeps other addresses from using the vote of this server; `None` if the server reports no run id.
    pub(super) vote: Option<ServerVote>,
    pub(super) memory: Memory,
    /// Why this master must not vote for this client, for example an outdated configuration. `None` if it may vote.
    pub(super) refusal: Option<Fault>,
    /// Why the scripts refuse the requests of this client until an operator marks the master: the generation marker does
    /// not bear the client's name. `None` if it does, or if the client has no name.
    pub(super) name_refusal: Option<Fault>,
    /// Whether the key of the generation marker exists on the master; `None` if this user has no right to read it.
    pub(super) has_marker: Option<bool>,
    /// The time at which the handshake found no generation marker on the master. `None` if there is a marker, or if
    /// this user has no right to read it.
    pub(super) unmarked_since: Option<Instant>,
    /// For how long clients have watched this run of the server. `None` if the master shows no generation marker that
    /// admits this client, or if the restart guard is off.
    pub(super) watch: Option<Watch>,
    /// The smallest number of acquires that this server executes faster in one script call than in separate calls.
    pub(super) min_acquires: usize,
    /// How releases are executed on this server: with a script or with a built-in command.
    pub(super) deletion: Deletion,
}

/// A handshake in progress.
pub(super) struct Handshake {
    /// The commands of the handshake that are not answered yet, in the order of sending.
    outstanding: VecDeque<AwaitedReply>,
    progress: Progress,
    is_second_message: bool,
    scripts: Scripts,
    info: Vec<u8>,
    /// The fault with which the server refused INFO; `None` if it did not refuse.
    info_fault: Option<Fault>,
    /// The client id that the server gave this connection; `None` if the user has no right to read it.
    connection_id: Option<i64>,
    quarantined_until: Instant,
    vote: Option<ServerVote>,
    memory: Memory,
    marker: Option<MarkerReply>,
    /// Whether the server refused CLIENT SETNAME. Operators cannot find a connection without a name.
    is_unnamed: bool,
    refusal: Option<Fault>,
    name_refusal: Option<Fault>,
    unmarked_since: Option<Instant>,
    watch: Option<Watch>,
}

/// The value of the key that holds the generation marker.
#[derive(Clone, Copy)]
enum MarkerReply {
    Absent,
    Marker(Marker),
    /// The key has a value, but the value is not a generation marker.
    Unreadable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedReply {
    /// A command that every server and proxy answers, perhaps with an error. HELLO follows after the reply.
    Probe,
    Hello,
    Database,
    /// Sets the names of the library and the process in `CLIENT LIST`. An error is ignored: some servers do not have
    /// the command, and some users have no right to run it.
    IgnoredReply,
    /// Sets the name of the connection. The name contains a fingerprint of the client's masters, so operators see for
    /// which masters the client is configured.
    Name,
    Info,
    /// Reads the generation marker.
    Marker,
    /// Reads the age record. Only a master with a generation marker has one.
    Age,
    Script(Script),
    Id,
    /// Closes the client's previous connection at the server.
    Kill,
    Subscription,
}

/// The state of a handshake after a reply was handled.
pub(super) enum HandshakeStage {
    /// More replies to the last message are outstanding.
    Waiting,
    /// The probe was answered. The first message can be written ([`Handshake::write_first_message`]).
    Probed,
    /// All replies to the first message have arrived. The second message can be written.
    FirstMessageAnswered,
    Done,
}

impl Handshake {
    /// Begins a handshake: writes the first message, or the probe before it ([`Greeted`](super::connecting::Greeted)).
    pub(super) fn begin(shared: &Shared, probes: bool, out: &mut Vec<u8>) -> Self {
        let mut handshake = Self {
            outstanding: VecDeque::new(),
            progress: Progress::Nothing,
            is_second_message: false,
            scripts: Scripts::new(shared.options.configuration, shared.options.restart_guard),
            info: Vec::new(),
            info_fault: None,
            connection_id: None,
            quarantined_until: NEVER_GUARDED,
            vote: None,
            memory: Memory::new(None, false),
            marker: None,
            is_unnamed: false,
            refusal: None,
            name_refusal: None,
            unmarked_since: None,
            watch: None,
        };
        if probes {
            handshake.send(&["GET", MARKER_KEY], AwaitedReply::Probe, out);
        } else {
            handshake.write_first_message(shared, out);
        }
        handshake
    }

    /// Writes the first message of the handshake.
    pub(super) fn write_first_message(&mut self, shared: &Shared, out: &mut Vec<u8>) {
        write_hello(shared, out);
        self.outstanding.push_back(AwaitedReply::Hello);
        let database = shared.address.target.database;
        if database != 0 {
            let select_command = ["SELECT", &database.to_string()];
            self.send(&select_command, AwaitedReply::Database, out);
        }
        for (attribute, value) in [
            ("LIB-NAME", "quorate"),
            ("LIB-VER", env!("CARGO_PKG_VERSION")),
        ] {
            let command = ["CLIENT", "SETINFO", attribute, value];
            self.send(&command, AwaitedReply::IgnoredReply, out);
        }
        let name = shared.options.full_name();
        self.send(&["CLIENT", "SETNAME", &name], AwaitedReply::Name, out);
        self.send(&["INFO", "server"], AwaitedReply::Info, out);
        // The connection's name is already set. An operator who raises the marker finds the clients that have read the
        // old marker by their names.
        self.send(&["GET", MARKER_KEY], AwaitedReply::Marker, out);
        self.load_plain_scripts(shared, out);
        self.send(&["CLIENT", "ID"], AwaitedReply::Id, out);
    }

    /// Writes the commands that load the scripts of plain locks.
    fn load_plain_scripts(&mut self, shared: &Shared, out: &mut Vec<u8>) {
        let max_ttl = shared.options.max_ttl;
        let loading_scripts = self.scripts.load(ScriptSet::Plain, max_ttl, out);
        self.outstanding
            .extend(loading_scripts.map(AwaitedReply::Script));
    }

    /// Writes a command whose reply the handshake then awaits.
    fn send(&mut self, words: &[&str], awaited: AwaitedReply, out: &mut Vec<u8>) {
        Command::write_words(out, words);
        self.outstanding.push_back(awaited);
    }

    /// How far the handshake has got.
    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    /// Handles one reply. The first fault ends the handshake. Later replies are then ignored, because their faults may
    /// only be consequences of the first fault.
    pub(super) fn handle_reply(
        &mut self,
        shared: &Shared,
        value: &Value<'_>,
        now: Instant,
    ) -> Result<HandshakeStage, Fault> {
        let unrequested = "the master sent a reply that answers no request";
        let command = self.outstanding.front().copied();
        let command = command.ok_or_else(|| malformed_fault(unrequested))?;
        match (command, value) {
            (AwaitedReply::Subscription, Value::Push(push)) if is_subscribe_reply(push) => {}
            // A server that sends pushes before the client has subscribed might never stop sending them. So end the
            // handshake with a fault.
            (_, Value::Push(_)) => {
                return Err(malformed_fault(
                    "the master sent a message before the client subscribed to any channel",
                ));
            }
            // A server without a free connection sends this error, and closes the connection.
            (AwaitedReply::Probe, Value::Error(error))
                if matches!(server_fault(error), Fault::Server(_)) =>
            {
                return Err(server_fault(error));
            }
            (AwaitedReply::Probe, _) => self.progress = Progress::Probed,
            (AwaitedReply::Hello, value) => {
                self.progress = Progress::Greeted;
                check_hello_reply(shared, value)?;
            }
            (AwaitedReply::Name, Value::Error(_)) => self.is_unnamed = true,
            (
                AwaitedReply::IgnoredReply | AwaitedReply::Name | AwaitedReply::Kill,
                Value::Error(_) | Value::Simple(_) | Value::Int(_),
            )
            | (AwaitedReply::Id, Value::Error(_))
            | (AwaitedReply::Database, Value::Simple(_)) => {}
            (AwaitedReply::Info, Value::Error(error)) => {
                self.info_fault = Some(server_fault(error));
            }
            (AwaitedReply::Info, Value::Bulk(text) | Value::Simple(text)) => {
                self.info = text.to_vec();
            }
            (AwaitedReply::Marker, value) => self.marker = read_marker_reply(shared, value)?,
            (AwaitedReply::Age, value) => self.read_age(shared, value, now)?,
            (AwaitedReply::Script(script), value) => {
                self.scripts.handle_load_reply(script, value)?;
            }
            (AwaitedReply::Id, Value::Int(id)) => self.connection_id = Some(*id),
            (AwaitedReply::Subscription, Value::Error(error)) => {
                handle_subscribe_error(shared, error, now)?;
            }
            (_, Value::Error(error)) => return Err(server_fault(error)),
            (command, _) => {
                return Err(malformed_fault(&format!(
                    "the reply to the handshake request {command:?} is malformed"
                )));
            }
        }
        self.outstanding.pop_front();
        let is_answered = self.outstanding.is_empty();
        Ok(match (is_answered, self.is_second_message) {
            _ if command == AwaitedReply::Probe => HandshakeStage::Probed,
            (false, _) => HandshakeStage::Waiting,
            (true, false) => HandshakeStage::FirstMessageAnswered,
            (true, true) => HandshakeStage::Done,
        })
    }

    /// Evaluates the replies to the first message, and writes the second message. Returns `false` if no second message
    /// is needed.
    pub(super) fn write_second_message(
        &mut self,
        shared: &Shared,
        out: &mut Vec<u8>,
        answered: Instant,
    ) -> Result<bool, Fault> {
        self.is_second_message = true;
        let run = self.field("run_id").map(str::to_owned);
        // Note a change of the run before the roster can refuse the connection: both waiting times then run together.
        self.quarantined_until = self.quarantine(shared, answered)?;
        if let Some(run) = &run {
            self.claim_vote(shared, run, answered)?;
        }
        let is_kept = shared.options.restart_guard == RestartGuard::Off;
        self.memory = Memory::new(run.as_deref(), is_kept);
        self.judge_marker(shared, out, answered);
        // Close the previous connection at the server. Otherwise the server could execute a late acquire of that
        // connection after its release on this connection. The lock key would then exist until its TTL expires.
        if let (Some(run), Some(connection_id)) = (&run, self.connection_id)
            && let Some(previous_id) = shared.run_history.replace_connection(run, connection_id)
        {
            let kill_command = ["CLIENT", "KILL", "ID", &previous_id.to_string()];
            self.send(&kill_command, AwaitedReply::Kill, out);
        }
        if let Some(subscriber) = shared.subscriber.get() {
            let channel = format!("{WAKE_CHANNEL_PREFIX}{}", subscriber.process);
            let subscribe_command = ["SUBSCRIBE", &*channel];
            self.send(&subscribe_command, AwaitedReply::Subscription, out);
        }
        Ok(!self.outstanding.is_empty())
    }

    /// Makes sure that the server does not vote at two addresses of this client.
    fn claim_vote(&mut self, shared: &Shared, run: &str, answered: Instant) -> Result<(), Fault> {
        let node = shared.address.name();
        let vote = shared.options.roster.claim_vote(run, node)?;
        if !vote.withheld_for.is_zero() {
            self.quarantined_until = self.quarantined_until.max(answered + vote.withheld_for);
            warn_seldom!(
                (shared.repeats, "moved", answered),
                %node,
                "another address led to this server before, so its votes are ignored until max_ttl has passed"
            );
        }
        self.vote = Some(vote);
        Ok(())
    }

    pub(super) fn into_negotiated(self) -> Negotiated {
        Negotiated {
            min_acquires: min_acquires(self.field("redis_version")),
            deletion: Deletion::for_version(self.field("valkey_version")),
            scripts: self.scripts,
            quarantined_until: self.quarantined_until,
            vote: self.vote,
            memory: self.memory,
            refusal: self.refusal,
            name_refusal: self.name_refusal,
            has_marker: self
                .marker
                .map(|reply| !matches!(reply, MarkerReply::Absent)),
            unmarked_since: self.unmarked_since,
            watch: self.watch,
        }
    }

    /// Decides whether this master votes for this client (docs/protocol.md, "Replacing masters").
    ///
    /// If the configuration of the client is newer than the marker, or if the marker lacks the client's name, this
    /// function does not refuse the client. The scripts refuse its requests until an operator raises the marker.
    fn judge_marker(&mut self, shared: &Shared, out: &mut Vec<u8>, answered: Instant) {
        let (options, name) = (&shared.options, shared.address.name());
        let marker = match self.marker {
            Some(MarkerReply::Marker(marker)) => Some(marker),
            Some(MarkerReply::Absent) => None,
            Some(MarkerReply::Unreadable) => {
                let why =
                    format!("the key {MARKER_KEY} holds something that is not a generation marker");
                self.refusal = Some(Fault::OtherMasters(why.into()));
                return;
            }
            None => {
                // This user has no right to read the marker. The plain name shows operators that this client does not
                // check the marker.
                let rename_command = ["CLIENT", "SETNAME", &options.plain_name()];
                self.send(&rename_command, AwaitedReply::IgnoredReply, out);
                return;
            }
        };
        let admission = options.configuration.admission(marker);
        match marker {
            Some(marker) => {
                (options.markers).record_marker(name, marker, admission == Admission::Admitted);
            }
            None => options.markers.record_no_marker(name),
        }
        if self.is_unnamed && !options.configuration.checks_each_request() {
            // Operators find and close the connections of outdated clients by name. This connection has no name, so its
            // scripts must check the marker.
            self.scripts = Scripts::with_marker_check(options.configuration, options.restart_guard);
            self.load_plain_scripts(shared, out);
        }
        self.unmarked_since = marker.is_none().then_some(answered);
        let fault = admission_fault(options.configuration, marker);
        match admission {
            Admission::Early => {}
            Admission::Nameless => self.name_refusal = fault,
            _ => self.refusal = fault,
        }
        let is_guarded = options.restart_guard != RestartGuard::Off;
        if marker.is_some() && self.refusal.is_none() && is_guarded {
            self.send(&["GET", AGE_KEY], AwaitedReply::Age, out);
        }
        if let Some(fault) = self.refusal.as_ref().or(self.name_refusal.as_ref()) {
            let text = fault.to_string();
            warn_seldom!((shared.repeats, &text, answered), node = %name, %fault, "master refuses this client's configuration");
        }
    }

    /// Handles the age record of a master with a generation marker. It shows for how long the master's votes must not
    /// count yet (docs/protocol.md, "Age records").
    fn read_age(&mut self, shared: &Shared, value: &Value<'_>, now: Instant) -> Result<(), Fault> {
        let record = match value {
            Value::Nil => None,
            Value::Bulk(text) => AgeRecord::read(text),
            Value::Error(error) => match server_fault(error) {
                Fault::WrongType => None,
                Fault::Denied(why) => {
                    let why = format!(
                        "no right to the age record (ACL SETUSER <user> ~{AGE_KEY}): {why}"
                    );
                    return Err(Fault::Denied(why.into()));
                }
                fault => return Err(fault),
            },
            _ => {
                return Err(malformed_fault(
                    "the reply to the request for the age record is malformed",
                ));
            }
        };
        let run_id = self.memory.run.as_str();
        let watch = shared.run_history.record_age(run_id, record, now);
        let remaining = shared.guarded_by_age(&watch, now);
        if !remaining.is_zero() {
            self.quarantined_until = self.quarantined_until.max(now + remaining);
            warn_seldom!(
                (shared.repeats, "young", now),
                node = %shared.address.name(),
                age_ms = watch.age(now).as_millis() as u64,
                "clients have not watched this master for max_ttl yet, so its votes are ignored (restart guard)"
            );
        }
        self.watch = Some(watch);
        Ok(())
    }

    fn field(&self, name: &str) -> Option<&str> {
        let info = std::str::from_utf8(&self.info).unwrap_or_default();
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
            .filter(|value| !value.is_empty())
    }

    /// The time until which this master must not vote, because it may have forgotten a lock (docs/protocol.md, "Restart
    /// guard").
    fn quarantine(&self, shared: &Shared, answered: Instant) -> Result<Instant, Fault> {
        if shared.options.restart_guard == RestartGuard::Off {
            return Ok(NEVER_GUARDED);
        }
        match &self.info_fault {
            Some(Fault::Unsupported(_)) => {
                return Err(unguarded_fault("the server does not have the command INFO"));
            }
            Some(fault) => return Err(fault.clone()),
            None => {}
        }
        let uptime = self.field("uptime_in_seconds");
        let (Some(run), Some(uptime)) = (self.field("run_id"), uptime.and_then(numbers::uptime))
        else {
            return Err(unguarded_fault(
                "INFO does not contain run_id and uptime_in_seconds",
            ));
        };
        let max_ttl = shared.options.max_ttl;
        let first_seen = shared.run_history.first_seen(run, answered);
        // After a change of the run id, the address may lead to a different server. Its votes do not count before the
        // time `moved_until`.
        let moved_until = shared.run_history.guarded_until(run, answered, max_ttl);
        let is_first_run = shared.options.restart_guard == RestartGuard::AfterFirstContact
            && shared.run_history.is_first_run(run);
        // The uptime follows the wall clock of the server. So for a master with a generation marker, the age record
        // decides (`read_age`).
        let has_marker = matches!(self.marker, Some(MarkerReply::Marker(_)));
        let uptime_secs = uptime.at_least.as_secs();
        let young_until = quarantined_until(answered, uptime_secs, max_ttl)
            .filter(|_| !is_first_run && !has_marker);
        // The run has lasted at least since this client first saw it, whatever uptime the server reports.
        let young_until = young_until.map(|until| until.min(first_seen + max_ttl));
        let until = young_until.unwrap_or(NEVER_GUARDED).max(moved_until);
        let node = shared.address.name();
        if until > answered && !uptime.is_credible {
            warn_seldom!(
                (shared.repeats, "clock", answered),
                %node,
                "master reports an impossible uptime, because its clock was set after its start, so its votes are ignored until this client has known it for max_ttl (restart guard)"
            );
        } else if until > answered {
            warn_seldom!(
                (shared.repeats, "restarted", answered),
                %node,
                uptime_s = uptime_secs,
                "master restarted recently, so its votes are ignored until max_ttl has passed (restart guard)"
            );
        }
        Ok(until)
    }
}

/// Handles an error in answer to SUBSCRIBE. A client that cannot subscribe can still take locks: the user has no right
/// to subscribe, or the server does not have the command. Waiters of this process then poll by timer.
fn handle_subscribe_error(shared: &Shared, error: &[u8], now: Instant) -> Result<(), Fault> {
    match server_fault(error) {
        Fault::Denied(why) | Fault::Unsupported(why) => {
            let node = shared.address.name();
            warn_seldom!(
                (shared.repeats, &why, now),
                %node,
                %why,
                "no wake-up messages: waiters use only timers"
            );
            Ok(())
        }
        fault => Err(fault),
    }
}

/// Decodes the generation marker.
///
/// If the user has no right to read it, the result depends on the client's configuration. It is `None` if the client's
/// masters were never replaced, and an error otherwise.
fn read_marker_reply(shared: &Shared, value: &Value<'_>) -> Result<Option<MarkerReply>, Fault> {
    Ok(Some(match value {
        Value::Nil => MarkerReply::Absent,
        Value::Bulk(text) => {
            Marker::read(text).map_or(MarkerReply::Unreadable, MarkerReply::Marker)
        }
        Value::Error(error) => match server_fault(error) {
            Fault::WrongType => MarkerReply::Unreadable,
            // Masters that were never replaced and have no name need no marker, so the user needs no right to read it.
            Fault::Denied(_) if !shared.options.configuration.checks_each_request() => {
                return Ok(None);
            }
            fault => return Err(fault),
        },
        _ => {
            return Err(malformed_fault(
                "the reply to the request for the generation marker is malformed",
            ));
        }
    }))
}

const NEVER_GUARDED: Instant = Instant::from_nanos(0);

fn malformed_fault(text: &str) -> Fault {
    Fault::Server(text.into())
}

fn is_subscribe_reply(push: &[Value<'_>]) -> bool {
    push.first().and_then(Value::text) == Some(b"subscribe")
}

/// Writes the command that selects the protocol version and authenticates.
pub(super) fn write_hello(shared: &Shared, out: &mut Vec<u8>) {
    let target = &shared.address.target;
    if let Some(password) = &target.password {
        let user = target.user.as_deref().unwrap_or("default");
        Command::write_words(out, &["HELLO", "3", "AUTH", user, password]);
    } else {
        Command::write_words(out, &["HELLO", "3"]);
    }
}

/// Returns a fault if the reply to HELLO is an error or malformed.
pub(super) fn check_hello_reply(shared: &Shared, value: &Value<'_>) -> Result<(), Fault> {
    match value {
        Value::Array(_) => Ok(()),
        Value::Error(error) => {
            let has_password = shared.address.target.password.is_some();
            Err(hello_fault(error, has_password))
        }
        _ => Err(malformed_fault("the reply to HELLO is malformed")),
    }
}

/// Converts an error reply to HELLO into a fault. If the connection uses a password (`has_password` is true), the fault
/// does not quote the reply, because servers may quote a part of the password.
fn hello_fault(error: &[u8], has_password: bool) -> Fault {
    let text = String::from_utf8_lossy(error);
    if text.to_ascii_lowercase().starts_with("err unknown command") {
        return Fault::Unsupported(NO_HELLO.into());
    }
    if !has_password {
        return server_fault(error);
    }
    fault_in_table(&text, None, Quoting::Nothing).unwrap_or_else(|| {
        let code = if text.starts_with("ERR ") { "ERR" } else { "an error" };
        let why = format!(
            "{code} in answer to HELLO; the error text is hidden, because it can contain the password"
        );
        Fault::Server(why.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_for_a_refused_hello_never_contains_the_password() {
        for (error, expected) in [
            (
                "ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `u`, `s3cr",
                "Redis 6",
            ),
            ("NOPROTO unsupported protocol version s3cr", "Redis 6"),
            ("WRONGPASS invalid username-password pair s3cr", "WRONGPASS"),
            (
                "ERR Syntax error in HELLO option 's3cr'",
                "ERR in answer to HELLO",
            ),
            ("s3cret is wrong", "an error in answer to HELLO"),
            ("S3CR", "an error in answer to HELLO"),
            (
                "ERR max number of clients reached s3cr",
                "max number of clients",
            ),
            ("LOADING s3cr", "LOADING"),
            (
                "ERR AUTH s3cr called without any password configured for the default user",
                "no password set",
            ),
        ] {
            let fault = hello_fault(error.as_bytes(), true).to_string();
            assert!(fault.contains(expected), "{error}: {fault}");
            assert!(
                !fault.to_lowercase().contains("s3c"),
                "the fault must not contain the password: {fault}"
            );
        }
    }

    #[test]
    fn fault_for_a_refused_hello_without_a_password_contains_the_server_error() {
        let fault = hello_fault(b"ERR odd weather", false);
        assert_eq!(fault, Fault::Server("ERR odd weather".into()));
        let denied = hello_fault(b"NOAUTH Authentication required.", false);
        assert!(matches!(denied, Fault::Denied(_)));
    }
}
