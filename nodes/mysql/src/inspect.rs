//! Inspects a server, for example for `quorate doctor`. The connection has the same settings as a connection that
//! acquires locks.

use std::time::{Duration, Instant, SystemTime};

use quorate::node::{Fault, NodeName};
use quorate::{Inspection, MissingRight, Purpose};

use crate::connection::Connection;
use crate::run::FirstSight;
use crate::schema::greet;
use crate::session::number;
use crate::settings;
use crate::sql::CLOCK;
use crate::url::Address;

/// The time limit of the whole inspection.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of round trips that are measured. The duration of the fastest one is reported.
const TRIPS: usize = 5;
/// The optional rights. Locks work without them. Each row contains:
///
/// - the right,
/// - the table to which the right applies,
/// - a statement that needs the right but changes nothing,
/// - the purpose of the right.
const RIGHTS: [(&str, &str, &str, Purpose); 3] = [
    (
        "DELETE",
        "quorate_record",
        "DELETE FROM quorate_record WHERE FALSE",
        Purpose::Removal,
    ),
    (
        "SELECT",
        "quorate_woken",
        "SELECT id FROM quorate_woken WHERE FALSE",
        Purpose::WakeUps,
    ),
    (
        "DELETE",
        "quorate_woken",
        "DELETE FROM quorate_woken WHERE FALSE",
        Purpose::WakeUps,
    ),
];

pub(crate) async fn inspect(name: &NodeName, address: &Address, seen: &FirstSight) -> Inspection {
    let mut found = Inspection::new(name.clone());
    let looking = tokio::time::timeout(PATIENCE, examine(address, seen, &mut found)).await;
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
    found: &mut Inspection,
) -> Result<(), Fault> {
    let began = Instant::now();
    let mut connection = Connection::open(address, true).await?;
    settings::read(&mut connection, found).await?;
    settings::source(address, found).await;
    let greeting = greet(&mut connection, address.timeout, seen).await?;
    found.connecting = Some(began.elapsed());
    found.run_id = Some(greeting.run.as_str().to_owned());
    found.uptime = greeting.uptime;
    found.identity = greeting.server;
    measure(&mut connection, found).await?;
    for (right, table, statement, purpose) in RIGHTS {
        match connection.ask(statement).await {
            Ok(_) => {}
            Err(Fault::Denied(_)) => {
                let missing = MissingRight::on_table(right, &address.database, table, purpose);
                found.missing.push(missing);
                // After any error, the connection is unusable. So open another one for the next check.
                connection = Connection::open(address, true).await?;
            }
            Err(fault) => return Err(fault),
        }
    }
    let wakes = |missing: &MissingRight| missing.purposes().contains(&Purpose::WakeUps);
    found.wake_ups = !found.missing.iter().any(wakes);
    Ok(())
}

/// Measures the fastest round trip, and reads the server's clock in that round trip.
async fn measure(connection: &mut Connection, found: &mut Inspection) -> Result<(), Fault> {
    let question = format!("SELECT {CLOCK}");
    for _ in 0..TRIPS {
        let (asked, wall) = (Instant::now(), SystemTime::now());
        let said = connection.ask(&question).await?;
        let trip = asked.elapsed();
        if found.round_trip.is_some_and(|fastest| fastest <= trip) {
            continue;
        }
        found.round_trip = Some(trip);
        let clock = said.first().and_then(|one| number(one.rows.first()?, 0));
        let ours = wall + trip / 2;
        let ours = ours.duration_since(SystemTime::UNIX_EPOCH);
        if let (Some(clock), Ok(ours)) = (clock, ours) {
            let ours = i64::try_from(ours.as_micros()).unwrap_or(i64::MAX);
            let clock = i64::try_from(clock).unwrap_or(i64::MAX);
            found.clock_offset_ms = Some((clock - ours) / 1000);
        }
    }
    Ok(())
}
