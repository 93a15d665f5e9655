//! An operator's connection to one master while the masters are replaced (`docs/protocol.md`, "Replacing masters").
//! Over this connection, an operator:
//!
//! - reads and raises the fencing counters and the generation marker (the key `quorate:masters`);
//! - lists the connected clients, and disconnects clients that are configured for the old masters.

use std::sync::Arc;
use std::time::Duration;

use super::conversation::Conversation;
use super::encode::millis;
use super::loaded::FENCE_TTL;
use super::needs::{UnusedNames, keys_to_copy, needs, purposes_of_operators, right_to_key};
use super::refusal::{connection_fault, server_fault};
use super::resp::{Command, Value};
use super::script::OperatorScript;
use super::shared::Shared;
use crate::keys::{self, Family, MARKER_KEY};
use crate::node::change::{ChangeOrder, ChangeSeen, ClientKind, ClientSeen, Counter, OPERATOR};
use crate::node::numbers;
use crate::node::right::{MissingRight, Purpose, Right};
use crate::node::{Fault, Scope};
use crate::protocol::age::AgeRecord;
use crate::runtime::random_number;
use crate::settings::RestartGuard;

const SECOND: Duration = Duration::from_secs(1);

/// The time limit for the replies to one message: 5 s, far longer than a master needs.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many times the master's clock is read, unless a reply takes at most [`QUICK_REPLY`].
const CLOCK_READINGS: usize = 3;

/// A reading of the master's clock is precise enough if its reply takes at most this time. The error is then at most
/// 125 ms, and the clocks of masters may always differ by a second.
const QUICK_REPLY: Duration = Duration::from_millis(250);

/// The largest number of keys that one message to the master reads or writes.
const KEYS_PER_MESSAGE: usize = 500;

/// The scan that counts a master's stored values stops when it has found at least this number.
const MAX_VALUES_COUNTED: usize = 1000;

/// Connects to the master of `shared`, executes the operator's `order`, and then reads the master's state.
pub(super) async fn change(shared: &Arc<Shared>, order: ChangeOrder) -> ChangeSeen {
    let mut seen = ChangeSeen::default();
    if let Err(fault) = execute_order(shared, &order, &mut seen).await {
        seen.fault = Some(fault);
    }
    seen
}

async fn execute_order(
    shared: &Arc<Shared>,
    order: &ChangeOrder,
    seen: &mut ChangeSeen,
) -> Result<(), Fault> {
    let mut session = OperatorSession {
        conversation: Conversation::with_hello_only(shared).await?,
        shared: shared.clone(),
    };
    let database = shared.address.target.database;
    if database != 0 {
        let selected = session.execute(&["SELECT", &database.to_string()]).await;
        // If the order is `Rights`, ignore a refusal of this SELECT: `missing_rights` sends another SELECT, and reports
        // the missing right.
        if !matches!(order, ChangeOrder::Rights { .. }) {
            selected?;
        }
    }
    // The connection's name is for information only, so ignore an error in the reply.
    let _ = session.execute(&["CLIENT", "SETNAME", OPERATOR]).await;
    match order {
        ChangeOrder::ReadState => {}
        ChangeOrder::Identify => return session.identify(seen).await,
        ChangeOrder::Rights { scope, keys: None } => {
            session.missing_rights(scope, seen).await?;
        }
        ChangeOrder::Rights {
            scope,
            keys: Some(keys),
        } => session.missing_rights_to(keys, scope, seen).await?,
        ChangeOrder::Raise {
            number,
            print,
            step,
            restores,
        } => {
            let record = session.new_age_record(*restores).await?;
            if *restores {
                session.end_clients_without_marker().await?;
            }
            let raise = [
                "EVALSHA",
                &session.load(OperatorScript::RaiseMarker).await?,
                "1",
                MARKER_KEY,
                &number.to_string(),
                print,
                &record.to_string(),
            ];
            session.execute(&raise).await?;
            seen.ended = session.end_outdated_clients(*step).await?;
        }
        ChangeOrder::Counters(within) => {
            let within = u64::try_from(within.as_micros()).unwrap_or(u64::MAX);
            let min_number = session.clock().await?.saturating_sub(within);
            seen.counters = session.counters(min_number).await?;
        }
        ChangeOrder::Values => seen.names = session.value_names().await?,
        ChangeOrder::Carry(counters) => seen.owned = session.carry(counters).await?,
    }
    let state_result = session.read_state(seen).await;
    // If rights are missing, report only the missing rights: they may have caused the error in `state_result`.
    missing_rights_fault(&seen.missing).map_or(state_result, Err)
}

/// Returns the fault that names the missing rights of the operator's user; `None` if `missing` is empty.
fn missing_rights_fault(missing: &[MissingRight]) -> Option<Fault> {
    if missing.is_empty() {
        return None;
    }
    let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let why = format!(
        "the configured user has no right to use {}",
        names.join(", ")
    );
    let rules: Vec<&str> = missing.iter().map(MissingRight::rule).collect();
    Some(Fault::Denied(match rules.join(" ").trim() {
        "" => format!("{why}: rename-command has renamed these commands; restore them").into(),
        rules => format!("{why}: ACL SETUSER <user> {rules}").into(),
    }))
}

/// A copy of a server's reply that owns its data.
#[derive(Debug, PartialEq, Eq)]
enum OwnedValue {
    Nothing,
    Number(i64),
    Text(Vec<u8>),
    Array(Vec<OwnedValue>),
}

impl OwnedValue {
    fn copy_of(value: &Value<'_>) -> Result<Self, Fault> {
        Ok(match value {
            Value::Nil => Self::Nothing,
            Value::Int(number) => Self::Number(*number),
            Value::Simple(text) | Value::Bulk(text) => Self::Text(text.to_vec()),
            Value::Error(error) => return Err(server_fault(error)),
            Value::Array(values) | Value::Push(values) => {
                Self::Array(values.iter().map(Self::copy_of).collect::<Result<_, _>>()?)
            }
        })
    }

    fn into_text(self) -> String {
        match self {
            Self::Text(text) => String::from_utf8_lossy(&text).into_owned(),
            _ => String::new(),
        }
    }

    fn into_array(self) -> Vec<Self> {
        match self {
            Self::Array(values) => values,
            _ => Vec::new(),
        }
    }

    fn number(&self) -> Option<u64> {
        match self {
            Self::Text(text) => numbers::parse_whole(text),
            Self::Number(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }
}

/// The value of one line in a reply to `INFO`.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::trim)
}

struct OperatorSession {
    conversation: Conversation,
    shared: Arc<Shared>,
}

impl OperatorSession {
    async fn execute(&mut self, words: &[&str]) -> Result<OwnedValue, Fault> {
        Command::write_words(self.conversation.out(), words);
        let mut replies = self.replies(1).await?;
        replies.pop().unwrap_or(Ok(OwnedValue::Nothing))
    }

    async fn replies(&mut self, count: usize) -> Result<Vec<Result<OwnedValue, Fault>>, Fault> {
        let mut replies = Vec::with_capacity(count);
        self.receive(count, |_, value| replies.push(OwnedValue::copy_of(value)))
            .await?;
        Ok(replies)
    }

    /// Sends the `count` commands in the output buffer. Calls `handle_reply` for each reply, with the index of its
    /// command.
    async fn receive(
        &mut self,
        count: usize,
        mut handle_reply: impl FnMut(usize, &Value<'_>),
    ) -> Result<(), Fault> {
        let exchange = self
            .conversation
            .exchange(count, |index, value| handle_reply(index, &value));
        match self.shared.within(PATIENCE, exchange).await {
            Some(replies) => replies.map_err(connection_fault),
            None => Err(Fault::Timeout(PATIENCE)),
        }
    }

    /// Loads a script, and returns its SHA1 digest. Operators call scripts with EVALSHA, so they need no right to EVAL.
    async fn load(&mut self, script: OperatorScript) -> Result<String, Fault> {
        let load_command = ["SCRIPT", "LOAD", script.source()];
        Ok(self.execute(&load_command).await?.into_text())
    }

    /// Checks whether the user may run every command that an operator needs, and adds the missing rights to
    /// `seen.missing`. If no right is missing, lists the keys of all stored values and fencing counters in
    /// `seen.stored`.
    ///
    /// The check sends these commands with arguments that change nothing on the master.
    async fn missing_rights(&mut self, scope: &Scope, seen: &mut ChangeSeen) -> Result<(), Fault> {
        let shared = self.shared.clone();
        let guarded = shared.options.restart_guard != RestartGuard::Off;
        let database = shared.address.target.database;
        let needs = needs(purposes_of_operators(scope, guarded, database != 0));
        let names = UnusedNames::unused(scope, database);
        for need in &needs {
            need.write(&names, self.conversation.out());
        }
        let missing = &mut seen.missing;
        self.receive(needs.len(), |index, value| {
            let need = &needs[index];
            let Some(right) = need.missing_right(&scope.prefix, value) else {
                return;
            };
            // If no name prefix is configured, it is not known here which locks are used. So skip the rights to lock
            // keys: `missing_rights_to` checks them for the existing keys.
            let unclear = scope.prefix.is_empty() && need.is_about_a_lock();
            if !(unclear && matches!(right, Right::Keys(_))) {
                MissingRight::add(missing, right, need.purposes());
            }
        })
        .await?;
        if seen.missing.is_empty() {
            seen.stored = self.keys(Family::Value, usize::MAX).await?;
            let counters = self.keys(Family::Fence, usize::MAX).await?;
            seen.stored.extend(counters);
        }
        Ok(())
    }

    /// Checks whether the user has the rights to copy `keys` to a new master. Copying one key can also need rights to
    /// other keys of the same lock. Adds the missing rights to `seen.missing`. Changes nothing on the master.
    async fn missing_rights_to(
        &mut self,
        keys: &[Vec<u8>],
        scope: &Scope,
        seen: &mut ChangeSeen,
    ) -> Result<(), Fault> {
        let missing = &mut seen.missing;
        for page in keys.chunks(KEYS_PER_MESSAGE) {
            let copied_keys: Vec<_> = page.iter().flat_map(|key| keys_to_copy(key)).collect();
            for (_, key) in &copied_keys {
                Command::new(self.conversation.out(), 2)
                    .arg("PTTL")
                    .arg(key);
                // A SET with both NX and XX is invalid, so it changes nothing. The server checks the user's rights
                // first.
                let mut write_command = Command::new(self.conversation.out(), 5);
                write_command
                    .arg("SET")
                    .arg(key)
                    .arg("x")
                    .arg("NX")
                    .arg("XX");
            }
            self.receive(2 * copied_keys.len(), |index, value| {
                let (family, key) = &copied_keys[index / 2];
                if matches!(value, Value::Error(error) if error.starts_with(b"NOPERM")) {
                    let lock = &key[family.key_prefix().len()..];
                    let right = right_to_key(*family, lock, &scope.prefix);
                    MissingRight::add(missing, right, &[Purpose::Changing]);
                }
            })
            .await?;
        }
        Ok(())
    }

    /// If the master has no marker, ends the connections of all clients that check markers. They may have connected
    /// before the master lost its memory, and would count its votes as soon as it has a marker again. A client that
    /// connects again finds no marker, or the new age record.
    async fn end_clients_without_marker(&mut self) -> Result<(), Fault> {
        if self.execute(&["GET", MARKER_KEY]).await? != OwnedValue::Nothing {
            return Ok(());
        }
        for client in self.clients().await? {
            if matches!(client.kind, ClientKind::AtStep(..)) {
                let id = client.id.to_string();
                self.execute(&["CLIENT", "KILL", "ID", &id]).await?;
            }
        }
        Ok(())
    }

    /// Ends the connections of clients that are configured for an earlier step than `step`. Returns their number.
    ///
    /// Called after the marker was raised. A client names its connection before it reads the marker, so the list then
    /// includes every client that has read the old marker.
    async fn end_outdated_clients(&mut self, step: u64) -> Result<usize, Fault> {
        let mut ended = 0;
        for client in self.clients().await? {
            if matches!(client.kind, ClientKind::AtStep(client_step, _) if client_step < step) {
                let id = client.id.to_string();
                let kill_reply = self.execute(&["CLIENT", "KILL", "ID", &id]).await?;
                ended += usize::from(kill_reply == OwnedValue::Number(1));
            }
        }
        Ok(ended)
    }

    async fn clients(&mut self) -> Result<Vec<ClientSeen>, Fault> {
        let list = self.execute(&["CLIENT", "LIST"]).await?.into_text();
        Ok(list.lines().filter_map(ClientSeen::read).collect())
    }

    /// The age record to write together with a marker that the master does not have. If the marker was lost
    /// (`restores`), the age is zero. Otherwise it is the uptime of the server: the first marker trusts the uptime once
    /// (docs/protocol.md, "Age records").
    async fn new_age_record(&mut self, restores: bool) -> Result<AgeRecord, Fault> {
        let info = self.execute(&["INFO", "server"]).await?.into_text();
        let uptime = field(&info, "uptime_in_seconds").and_then(numbers::uptime);
        let age = match uptime {
            // The server subtracts two times in whole seconds, so the uptime can be one second too large.
            Some(uptime) if !restores => uptime.at_least.saturating_sub(SECOND),
            _ => Duration::ZERO,
        };
        let run_id = field(&info, "run_id").unwrap_or("-");
        let life = random_number(&*self.shared.options.runtime);
        Ok(AgeRecord::first(run_id, age, life, restores))
    }

    /// Reads the clock of the master, in microseconds since 1970.
    async fn clock(&mut self) -> Result<u64, Fault> {
        let reply = self.execute(&["TIME"]).await?.into_array();
        let clock = match &reply[..] {
            [OwnedValue::Text(secs), OwnedValue::Text(micros)] => numbers::time(secs, micros),
            _ => None,
        };
        clock.ok_or_else(|| {
            let why = "the reply to TIME is malformed, or the server's clock is not between 1970 and 2255";
            Fault::Server(why.into())
        })
    }

    /// Returns the master's clock minus this machine's clock, in milliseconds; `None` if it does not fit into the type.
    ///
    /// The master may have read its clock at any time between the request and the reply. So this reads the clock again if
    /// the reply took long, for example because this process was paused, and uses the reading with the fastest reply.
    async fn clock_offset_ms(&mut self) -> Result<Option<i64>, Fault> {
        let runtime = self.shared.options.runtime.clone();
        let mut fastest = (Duration::MAX, None);
        for _ in 0..CLOCK_READINGS {
            let asked_at = runtime.now();
            let own_micros = runtime.wall_micros();
            let master_micros = self.clock().await?;
            let elapsed = runtime.now().saturating_since(asked_at);
            if elapsed < fastest.0 {
                // Compare with the own clock in the middle of the round trip.
                let middle_micros = i128::from(own_micros) + elapsed.as_micros() as i128 / 2;
                let offset_micros = i128::from(master_micros) - middle_micros;
                fastest = (elapsed, i64::try_from(offset_micros / 1000).ok());
            }
            if elapsed <= QUICK_REPLY {
                break;
            }
        }
        Ok(fastest.1)
    }

    async fn identify(&mut self, seen: &mut ChangeSeen) -> Result<(), Fault> {
        let info = self.execute(&["INFO", "server"]).await?.into_text();
        let mut lines = info.lines();
        let run_id = lines.find_map(|line| line.strip_prefix("run_id:"));
        seen.run_id = run_id.map(|text| text.trim().to_owned());
        Ok(())
    }

    async fn read_state(&mut self, seen: &mut ChangeSeen) -> Result<(), Fault> {
        let info = self.execute(&["INFO"]).await?.into_text();
        let field = |name: &str| field(&info, name).map(str::to_owned);
        seen.run_id = field("run_id");
        let uptime = field("uptime_in_seconds").and_then(|secs| numbers::uptime(&secs));
        seen.uptime = uptime.map(|uptime| uptime.at_least);
        seen.is_uptime_impossible = uptime.is_some_and(|uptime| !uptime.is_credible);
        let limited = field("maxmemory").is_some_and(|limit| limit != "0");
        seen.eviction = field("maxmemory_policy").filter(|_| limited);
        seen.clock_offset_ms = self.clock_offset_ms().await?;
        seen.mark = match self.execute(&["GET", MARKER_KEY]).await {
            Ok(OwnedValue::Nothing) => None,
            Ok(marker) => Some(marker.into_text()),
            Err(Fault::WrongType) => {
                let why = format!(
                    "key {MARKER_KEY} holds another type of value (WRONGTYPE): delete this key if no other program \
                     needs it"
                );
                return Err(Fault::Server(why.into()));
            }
            Err(fault) => return Err(fault),
        };
        seen.values = self.keys(Family::Value, MAX_VALUES_COUNTED).await?.len();
        seen.clients = self.clients().await?;
        Ok(())
    }

    /// Reads the keys of the family (lock keys, counters, values and so on). Stops when it has found at least `limit`
    /// keys.
    async fn keys(&mut self, family: Family, limit: usize) -> Result<Vec<Vec<u8>>, Fault> {
        let pattern = keys::pattern_of_prefix(family.key_prefix().as_bytes());
        let pattern = String::from_utf8_lossy(&pattern).into_owned();
        let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let scan_command = ["SCAN", &cursor, "MATCH", &pattern, "COUNT", "1000"];
            let mut reply = self.execute(&scan_command).await?.into_array().into_iter();
            cursor = reply.next().map(OwnedValue::into_text).unwrap_or_default();
            for key in reply.next().map(OwnedValue::into_array).unwrap_or_default() {
                if let OwnedValue::Text(key) = key {
                    keys.push(key);
                }
            }
            if cursor == "0" || cursor.is_empty() || keys.len() >= limit {
                // A scan may return a key twice.
                keys.sort_unstable();
                keys.dedup();
                return Ok(keys);
            }
        }
    }

    /// Reads the lock keys under which values are stored.
    async fn value_names(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        let value_prefix = Family::Value.key_prefix().as_bytes();
        let keys = self.keys(Family::Value, usize::MAX).await?.into_iter();
        let value_names = keys.filter_map(|key| Some(key.strip_prefix(value_prefix)?.to_vec()));
        Ok(value_names.collect())
    }

    /// Reads the fencing counters whose number is at least `min_number`. Counters start from the time in microseconds
    /// since 1970, so `min_number` is such a time.
    async fn counters(&mut self, min_number: u64) -> Result<Vec<Counter>, Fault> {
        let keys = self.keys(Family::Fence, usize::MAX).await?;
        let mut counters = Vec::new();
        for page in keys.chunks(KEYS_PER_MESSAGE) {
            for key in page {
                Command::new(self.conversation.out(), 2).arg("GET").arg(key);
            }
            for (key, reply) in page.iter().zip(self.replies(page.len()).await?) {
                let number = reply?.number().filter(|number| *number >= min_number);
                counters.extend(number.map(|number| (key.clone(), number)));
            }
        }
        Ok(counters)
    }

    /// Raises each fencing counter to its number in `counters`. A counter that is already larger stays unchanged.
    ///
    /// If an owner holds the lock, its counter is not raised: all holds of one owner must get the same fencing number.
    /// Returns the key of each such counter, with the value of its lock key.
    async fn carry(&mut self, counters: &[Counter]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Fault> {
        let sha = self.load(OperatorScript::CarryCounters).await?;
        let mut owned = Vec::new();
        for page in counters.chunks(KEYS_PER_MESSAGE) {
            let mut command = Command::new(self.conversation.out(), 3 + 2 * page.len() + 1);
            command.arg("EVALSHA").arg(&sha).number(page.len() as u64);
            for (key, _) in page {
                command.arg(key);
            }
            command.number(millis(FENCE_TTL));
            for (_, number) in page {
                command.number(*number);
            }
            drop(command);
            for reply in self.replies(1).await? {
                let markers = page.iter().zip(reply?.into_array());
                owned.extend(markers.filter_map(|((key, _), marker)| match marker {
                    OwnedValue::Text(marker) => Some((key.clone(), marker)),
                    _ => None,
                }));
            }
        }
        Ok(owned)
    }
}

#[cfg(test)]
mod tests;
