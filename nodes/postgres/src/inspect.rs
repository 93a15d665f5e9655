//! Inspects a server, for example for `quorate doctor`. The connection has the same settings as a connection that
//! acquires locks.

use std::time::{Duration, Instant};

use quorate::node::{Fault, NodeName, RoundTrip};
use quorate::{Inspection, MissingRight, Purpose};

use crate::abandoned::Abandoned;
use crate::connection::Connection;
use crate::fault::plain;
use crate::greet::greet;
use crate::run::FirstSight;
use crate::tables::{self, Schema};
use crate::url::Address;

/// The time limit of the whole inspection.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of round trips that are measured. The duration of the fastest one is reported.
const TRIPS: usize = 5;
/// The settings and figures that are read, as pairs of name and SQL expression. Reading them needs no right.
const FACTS: [(&str, &str); 9] = [
    ("fsync", "current_setting('fsync')"),
    ("full_page_writes", "current_setting('full_page_writes')"),
    (
        "synchronous_commit",
        "(SELECT reset_val FROM pg_settings WHERE name='synchronous_commit')",
    ),
    (
        "synchronous_standby_names",
        "current_setting('synchronous_standby_names')",
    ),
    (
        "default_transaction_read_only",
        "current_setting('default_transaction_read_only')",
    ),
    ("max_connections", "current_setting('max_connections')"),
    (
        "connections",
        // An ordinary user may not see the kinds of backends of other users.
        "(SELECT sum(numbackends) FROM pg_stat_database)",
    ),
    // The part of the queue of notifications that is in use. NOTIFY fails if the queue is full.
    ("notification_queue_usage", "pg_notification_queue_usage()"),
    // The age of the oldest snapshot that the user may see. A snapshot that is held stops the removal of old versions.
    (
        "oldest_snapshot_age",
        "(SELECT coalesce(max(age(backend_xmin)),0) FROM pg_stat_activity)",
    ),
];

pub(crate) async fn inspect(
    name: &NodeName,
    address: &Address,
    seen: &FirstSight,
    abandoned: &Abandoned,
) -> Inspection {
    let mut found = Inspection::new(name.clone());
    let examining = examine(address, seen, abandoned, &mut found);
    let looking = tokio::time::timeout(PATIENCE, examining).await;
    found.fault = match looking {
        Ok(Ok(())) => None,
        Ok(Err(fault)) => Some(fault),
        Err(_) => Some(Fault::Timeout(PATIENCE)),
    };
    found
}

async fn examine(
    address: &Address,
    seen: &FirstSight,
    abandoned: &Abandoned,
    found: &mut Inspection,
) -> Result<(), Fault> {
    let began = Instant::now();
    let mut connection = Connection::open(address).await?;
    found.server = Some("postgresql".to_owned());
    // The text behind the number names the package.
    let number = connection.version().split(' ').next().unwrap_or_default();
    found.version = Some(plain(number));
    facts(&mut connection, found).await?;
    let met = greet(&mut connection, address.timeout, seen, abandoned).await?;
    found.connecting = Some(began.elapsed());
    let greeting = met.greeting();
    found.run_id = Some(greeting.run.as_str().to_owned());
    found.uptime = greeting.uptime;
    found.identity = greeting.server;
    measure(&mut connection, found).await?;
    let rows = connection.ask(&tables::question()).await?;
    if !Schema::read(&rows).may_delete() {
        let missing = MissingRight::on_table("DELETE", tables::SCHEMA, "record", Purpose::Removal);
        found
            .missing
            .push(missing.granted_by("GRANT DELETE ON quorate.record TO USER"));
    }
    // No right is needed to listen or to notify.
    found.wake_ups = true;
    Ok(())
}

/// Reads the settings and the role of the server.
async fn facts(connection: &mut Connection, found: &mut Inspection) -> Result<(), Fault> {
    let columns: Vec<String> = FACTS
        .iter()
        .map(|(_, value)| format!("({value})::text"))
        .collect();
    let question = format!("SELECT pg_is_in_recovery()::text,{}", columns.join(","));
    let rows = connection.ask(&question).await?;
    let values = rows.into_iter().next().unwrap_or_default();
    let mut values = values
        .into_iter()
        .map(|value| plain(&value.unwrap_or_default()));
    let is_standby = values.next().is_some_and(|value| value == "true");
    let names = FACTS.iter().map(|(name, _)| (*name).to_owned());
    found.settings.extend(names.zip(values));
    let is_read_only = found.setting("default_transaction_read_only") == Some("on");
    let role = match (is_standby, is_read_only) {
        (true, _) => "slave",
        (_, true) => "read-only",
        _ => "master",
    };
    found.role = Some(role.to_owned());
    Ok(())
}

/// Measures the fastest round trip, and reads the server's clock in that round trip.
async fn measure(connection: &mut Connection, found: &mut Inspection) -> Result<(), Fault> {
    let question = "SELECT (extract(epoch from clock_timestamp())*1000000)::bigint";
    for _ in 0..TRIPS {
        let round_trip = RoundTrip::begin();
        let rows = connection.ask(question).await?;
        let clock: Option<i64> = rows
            .first()
            .and_then(|row| row.first()?.as_ref()?.parse().ok());
        found.add_round_trip(round_trip, clock);
    }
    Ok(())
}
