//! Inspects a master over a connection of this library: whether locks can use the master, and what the server reports.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use super::conversation::Conversation;
use super::needs::{Names, Need, needs, purposes};
use super::refusal::{down, server_fault};
use super::resp::{Command, Value};
use super::shared::Shared;
use crate::node::Fault;
use crate::node::Scope;
use crate::node::inspection::{Inspection, plain};
use crate::node::numbers;
use crate::node::right::MissingRight;
use crate::protocol;
use crate::settings::RestartGuard;

/// How many times the clock and the round trip are measured. The fastest measurement is used.
const SAMPLES: usize = 5;

/// Inspects the master of `shared`, over a separate connection. `scope` has the settings that determine the rights to
/// check.
pub(super) async fn inspect(shared: &Arc<Shared>, scope: &Scope) -> Inspection {
    let mut found = Inspection::new(shared.address.name().clone());
    let began = Instant::now();
    // Connect exactly as a lock does. If this fails, no lock can use this master.
    let connection = match Conversation::begin(shared).await {
        Ok((connection, negotiated)) => {
            found.connecting = Some(began.elapsed());
            found.fault = negotiated.refused.or(negotiated.nameless);
            let now = protocol::instant::Instant::now();
            let left = negotiated.quarantined_until.saturating_since(now);
            found.marked = negotiated.marked;
            found.quarantined = (!left.is_zero()).then_some(left);
            Some(connection)
        }
        // The server answers, but this user lacks a right for the handshake, or the server lacks a command. Inspect
        // everything else over a connection without the full handshake.
        Err(fault @ (Fault::Denied(_) | Fault::Unsupported(_))) => {
            found.fault = Some(fault);
            Conversation::introduce(shared).await.ok()
        }
        Err(fault) => {
            found.fault = Some(fault);
            None
        }
    };
    let Some(mut connection) = connection else {
        return found;
    };
    let outcome = async {
        pace(shared, &mut connection, &mut found).await?;
        interview(shared, scope, &mut connection, &mut found).await
    };
    if let Err(fault) = outcome.await {
        found.fault.get_or_insert(fault);
    }
    found
}

/// Measures the shortest round trip, and the difference between the server's clock and this machine's clock.
async fn pace(
    shared: &Shared,
    connection: &mut Conversation,
    found: &mut Inspection,
) -> Result<(), Fault> {
    for _ in 0..SAMPLES {
        let wall = SystemTime::now();
        let sent = Instant::now();
        let mut theirs = None;
        Command::words(connection.out(), &["TIME"]);
        let limit = shared.options.node_timeout;
        within(
            limit,
            connection.exchange(1, |_, value| theirs = millis(&value)),
        )
        .await?;
        let took = sent.elapsed();
        if found.round_trip.is_none_or(|best| took < best) {
            found.round_trip = Some(took);
            let ours = (wall + took / 2).duration_since(UNIX_EPOCH);
            let ours = i64::try_from(ours.unwrap_or_default().as_millis()).unwrap_or(i64::MAX);
            found.clock_offset_ms = theirs.map(|theirs| theirs.saturating_sub(ours));
        }
    }
    Ok(())
}

/// Sends all requests of the inspection except TIME in one message. The time limit for all replies is one connect
/// timeout.
async fn interview(
    shared: &Shared,
    scope: &Scope,
    connection: &mut Conversation,
    found: &mut Inspection,
) -> Result<(), Fault> {
    let database = shared.address.target.database;
    let guarded = shared.options.restart_guard != RestartGuard::Off;
    let needs = needs(purposes(scope, guarded, database != 0));
    let names = Names::unheard_of(scope, database);
    for need in &needs {
        need.write(&names, connection.out());
    }
    Command::words(connection.out(), &["INFO"]);
    Command::words(connection.out(), &["CONFIG", "GET", "appendfsync"]);
    Command::words(connection.out(), &["CONFIG", "GET", "save"]);
    let count = needs.len() + 3;
    let exchange = connection.exchange(count, |index, value| match needs.get(index) {
        Some(need) => note(need, &scope.prefix, &value, found),
        None => match index - needs.len() {
            0 => {
                let info = value.text().unwrap_or_default();
                found.read(&String::from_utf8_lossy(info));
            }
            1 => found.append_fsync = setting(&value),
            _ => found.snapshots = setting(&value).map(|save| !save.is_empty()),
        },
    });
    within(shared.options.connect_timeout, exchange).await
}

fn note(need: &Need, prefix: &str, value: &Value<'_>, found: &mut Inspection) {
    if let Some(right) = need.missing(prefix, value) {
        MissingRight::add(&mut found.missing, right, need.purposes());
    }
    // A server that is out of memory, or cannot persist, refuses a command that writes before it executes the command.
    if let Value::Error(error) = value
        && let fault @ (Fault::OutOfMemory | Fault::Misconf) = server_fault(error)
    {
        found.fault.get_or_insert(fault);
    }
    // PUBLISH returns the number of subscribers. This connection is one of them if the earlier SUBSCRIBE succeeded.
    if need.is("PUBLISH {wake} x") {
        found.wake_ups = matches!(value, Value::Int(1..));
    }
}

async fn within(
    limit: Duration,
    exchange: impl Future<Output = io::Result<()>>,
) -> Result<(), Fault> {
    match tokio::time::timeout(limit, exchange).await {
        Ok(exchange) => exchange.map_err(down),
        Err(_) => Err(Fault::Timeout(limit)),
    }
}

/// Converts the reply to TIME into milliseconds since 1970; `None` if it is malformed.
fn millis(value: &Value<'_>) -> Option<i64> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [secs, micros] = &parts[..] else {
        return None;
    };
    let time = numbers::time(secs.text()?, micros.text()?)?;
    i64::try_from(time / 1_000).ok()
}

/// Reads the value of one setting from the reply to CONFIG GET; `None` if the server did not report it.
fn setting(value: &Value<'_>) -> Option<String> {
    match value {
        Value::Array(pair) => {
            let text = pair.get(1)?.text()?;
            Some(plain(&String::from_utf8_lossy(text)))
        }
        _ => None,
    }
}
