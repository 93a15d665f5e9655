//! Inspects a master over a connection of this library: whether locks can use the master, and what the server reports.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::conversation::Conversation;
use super::needs::{Need, UnusedNames, needs, purposes};
use super::refusal::{connection_fault, server_fault};
use super::resp::{Command, Value};
use super::shared::Shared;
use crate::node::Fault;
use crate::node::Scope;
use crate::node::inspection::{Inspection, RoundTrip, server_text};
use crate::node::numbers;
use crate::node::right::MissingRight;
use crate::protocol;
use crate::settings::RestartGuard;

/// How many times the clock and the round trip are measured. The fastest measurement is used.
const SAMPLES: usize = 5;

/// Inspects the master of `shared`, over a separate connection. `scope` has the settings that determine the rights to
/// check.
pub(super) async fn inspect(shared: &Arc<Shared>, scope: &Scope) -> Inspection {
    let mut inspection = Inspection::new(shared.address.name().clone());
    let started_at = Instant::now();
    // Connect exactly as a lock does. If this fails, no lock can use this master.
    let connection = match Conversation::with_handshake(shared).await {
        Ok((connection, negotiated)) => {
            inspection.connecting = Some(started_at.elapsed());
            inspection.fault = negotiated.refusal.or(negotiated.name_refusal);
            let now = protocol::instant::Instant::now();
            let remaining = negotiated.quarantined_until.saturating_since(now);
            inspection.marked = negotiated.has_marker;
            inspection.quarantined = (!remaining.is_zero()).then_some(remaining);
            Some(connection)
        }
        // The server answers, but this user lacks a right for the handshake, or the server lacks a command. Inspect
        // everything else over a connection without the full handshake.
        Err(fault @ (Fault::Denied(_) | Fault::Unsupported(_))) => {
            inspection.fault = Some(fault);
            Conversation::with_hello_only(shared).await.ok()
        }
        Err(fault) => {
            inspection.fault = Some(fault);
            None
        }
    };
    let Some(mut connection) = connection else {
        return inspection;
    };
    let outcome = async {
        measure_clock(shared, &mut connection, &mut inspection).await?;
        check_rights_and_settings(shared, scope, &mut connection, &mut inspection).await
    };
    if let Err(fault) = outcome.await {
        inspection.fault.get_or_insert(fault);
    }
    inspection
}

/// Measures the shortest round trip, and the difference between the server's clock and this machine's clock.
async fn measure_clock(
    shared: &Shared,
    connection: &mut Conversation,
    inspection: &mut Inspection,
) -> Result<(), Fault> {
    for _ in 0..SAMPLES {
        let round_trip = RoundTrip::begin();
        let mut master_micros = None;
        Command::write_words(connection.out(), &["TIME"]);
        let node_timeout = shared.options.node_timeout;
        in_time(
            node_timeout,
            connection.exchange(1, |_, value| master_micros = clock_micros(&value)),
        )
        .await?;
        inspection.add_round_trip(round_trip, master_micros);
    }
    Ok(())
}

/// Sends all requests of the inspection except TIME in one message. The time limit for all replies is one connect
/// timeout.
async fn check_rights_and_settings(
    shared: &Shared,
    scope: &Scope,
    connection: &mut Conversation,
    inspection: &mut Inspection,
) -> Result<(), Fault> {
    let database = shared.address.target.database;
    let guarded = shared.options.restart_guard != RestartGuard::Off;
    let needs = needs(purposes(scope, guarded, database != 0));
    let names = UnusedNames::unused(scope, database);
    for need in &needs {
        need.write(&names, connection.out());
    }
    Command::write_words(connection.out(), &["INFO"]);
    Command::write_words(connection.out(), &["CONFIG", "GET", "appendfsync"]);
    Command::write_words(connection.out(), &["CONFIG", "GET", "save"]);
    let count = needs.len() + 3;
    let exchange = connection.exchange(count, |index, value| match needs.get(index) {
        Some(need) => record_reply(need, &scope.prefix, &value, inspection),
        None => match index - needs.len() {
            0 => {
                let info = value.text().unwrap_or_default();
                inspection.read(&String::from_utf8_lossy(info));
            }
            1 => inspection.append_fsync = setting(&value),
            _ => inspection.snapshots = setting(&value).map(|save| !save.is_empty()),
        },
    });
    in_time(shared.options.connect_timeout, exchange).await
}

fn record_reply(need: &Need, prefix: &str, value: &Value<'_>, inspection: &mut Inspection) {
    if let Some(right) = need.missing_right(prefix, value) {
        MissingRight::add(&mut inspection.missing, right, need.purposes());
    }
    // A server that is out of memory, or cannot persist, refuses a command that writes before it executes the command.
    if let Value::Error(error) = value
        && let fault @ (Fault::OutOfMemory | Fault::Misconf) = server_fault(error)
    {
        inspection.fault.get_or_insert(fault);
    }
    // PUBLISH returns the number of subscribers. This connection is one of them if the earlier SUBSCRIBE succeeded.
    if need.is_command("PUBLISH {wake} x") {
        inspection.wake_ups = matches!(value, Value::Int(1..));
    }
}

async fn in_time(
    limit: Duration,
    exchange: impl Future<Output = io::Result<()>>,
) -> Result<(), Fault> {
    match tokio::time::timeout(limit, exchange).await {
        Ok(exchange) => exchange.map_err(connection_fault),
        Err(_) => Err(Fault::Timeout(limit)),
    }
}

/// Converts the reply to TIME into microseconds since 1970; `None` if it is malformed.
fn clock_micros(value: &Value<'_>) -> Option<i64> {
    let Value::Array(parts) = value else {
        return None;
    };
    let [secs, micros] = &parts[..] else {
        return None;
    };
    i64::try_from(numbers::time(secs.text()?, micros.text()?)?).ok()
}

/// Reads the value of one setting from the reply to CONFIG GET; `None` if the server did not report it.
fn setting(value: &Value<'_>) -> Option<String> {
    match value {
        Value::Array(pair) => {
            let text = pair.get(1)?.text()?;
            Some(server_text(&String::from_utf8_lossy(text)))
        }
        _ => None,
    }
}
