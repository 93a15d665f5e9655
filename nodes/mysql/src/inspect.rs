//! Inspects a server, for example for `quorate doctor`. The connection has the same settings as a connection that
//! acquires locks.

use std::time::{Duration, Instant};

use quorate::node::{Fault, NodeName, RoundTrip};
use quorate::{Inspection, MissingRight, Purpose};

use crate::connection::Connection;
use crate::run::FirstSight;
use crate::schema::set_up_and_greet;
use crate::session::number_at;
use crate::settings;
use crate::sql::CLOCK_EXPRESSION;
use crate::url::Address;

/// The time limit of the whole inspection.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// The number of round trips that are measured. The duration of the fastest one is reported.
const ROUND_TRIPS: usize = 5;
/// The optional rights. Locks work without them. Each row contains:
///
/// - the right,
/// - the table to which the right applies,
/// - a statement that needs the right but changes nothing,
/// - the purpose of the right.
const OPTIONAL_RIGHTS: [(&str, &str, &str, Purpose); 3] = [
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

pub(crate) async fn inspect(
    name: &NodeName,
    address: &Address,
    first_sight: &FirstSight,
) -> Inspection {
    let mut inspection = Inspection::new(name.clone());
    let outcome = tokio::time::timeout(
        TIME_LIMIT,
        fill_inspection(address, first_sight, &mut inspection),
    )
    .await;
    inspection.fault = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(fault)) => Some(fault),
        Err(_) => Some(Fault::Timeout(TIME_LIMIT)),
    };
    inspection
}

async fn fill_inspection(
    address: &Address,
    first_sight: &FirstSight,
    inspection: &mut Inspection,
) -> Result<(), Fault> {
    let started_at = Instant::now();
    let mut connection = Connection::open(address, true).await?;
    settings::read_settings(&mut connection, inspection).await?;
    settings::read_replication(address, inspection).await;
    let greeting = set_up_and_greet(&mut connection, address.timeout, first_sight).await?;
    inspection.connecting = Some(started_at.elapsed());
    inspection.run_id = Some(greeting.run.as_str().to_owned());
    inspection.uptime = greeting.uptime;
    inspection.identity = greeting.server;
    measure_round_trip(&mut connection, inspection).await?;
    for (right, table, statement, purpose) in OPTIONAL_RIGHTS {
        match connection.execute(statement).await {
            Ok(_) => {}
            Err(Fault::Denied(_)) => {
                let missing = MissingRight::on_table(right, &address.database, table, purpose);
                inspection.missing.push(missing);
                // After any error, the connection is unusable. So open another one for the next check.
                connection = Connection::open(address, true).await?;
            }
            Err(fault) => return Err(fault),
        }
    }
    let is_for_wake_ups = |missing: &MissingRight| missing.purposes().contains(&Purpose::WakeUps);
    inspection.wake_ups = !inspection.missing.iter().any(is_for_wake_ups);
    Ok(())
}

/// Measures the fastest round trip, and reads the server's clock in that round trip.
async fn measure_round_trip(
    connection: &mut Connection,
    inspection: &mut Inspection,
) -> Result<(), Fault> {
    let query = format!("SELECT {CLOCK_EXPRESSION}");
    for _ in 0..ROUND_TRIPS {
        let round_trip = RoundTrip::begin();
        let results = connection.execute(&query).await?;
        let server_clock = results
            .first()
            .and_then(|result| number_at(result.rows.first()?, 0));
        let server_micros = server_clock.and_then(|clock| i64::try_from(clock).ok());
        inspection.add_round_trip(round_trip, server_micros);
    }
    Ok(())
}
