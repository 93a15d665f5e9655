//! Receives wake-ups for waiting clients. The listener sends a statement that makes the server itself poll a table, for
//! a fraction of a second per statement.
//!
//! No other session can end that statement early. (`KILL QUERY` could, but it blocks its caller for seconds if it
//! arrives at the wrong moment.) MariaDB accepts a block of statements directly; MySQL needs a stored procedure.
//! Received wake-ups are removed by the next statement, so no wake-up is lost together with a result.

use std::time::Duration;

use quorate::node::Fault;
use quorate::node::store::{Listener, Pace, Pacer};

use crate::connection::Connection;
use crate::schema::suits;
use crate::session::{bytes, number, word};
use crate::sql::{CLOCK, SETTINGS, hex, listening, settings};

/// If the server sends no result for this time, the listener takes it for stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// Wake-ups that no client has read are removed at this age, in microseconds.
const OLD: u64 = 60_000_000;
/// The number of polling statements between two removals of old wake-ups.
const BETWEEN_SWEEPS: u32 = 400;

/// A connection that receives wake-ups.
pub struct MySqlListener {
    connection: Connection,
    process: String,
    /// The id of the last wake-up that was received.
    last_received: u64,
    mariadb: bool,
    /// The number of polling statements until old wake-ups are removed again.
    until_sweep: u32,
    /// Decides how often the server polls the table.
    pacer: Pacer,
}

impl MySqlListener {
    pub(crate) async fn open(mut connection: Connection, process: &str) -> Result<Self, Fault> {
        let packet = format!(
            "{};SELECT MAX(version),VERSION() FROM quorate_schema",
            settings(Duration::ZERO)
        );
        let mut said = connection.ask(&packet).await?;
        let row = said.get_mut(SETTINGS).and_then(|one| one.rows.first_mut());
        let row = row.ok_or_else(|| Fault::Server("no answer".into()))?;
        suits(number(row, 0))?;
        let version = word(row, 1).unwrap_or_default();
        let mut literal = String::new();
        hex(process.as_bytes(), &mut literal);
        Ok(Self {
            connection,
            process: literal,
            last_received: 0,
            mariadb: version.contains("MariaDB"),
            until_sweep: 0,
            pacer: Pacer::default(),
        })
    }

    fn question(&mut self) -> String {
        let mut packet = String::new();
        if self.until_sweep == 0 {
            self.until_sweep = BETWEEN_SWEEPS;
            packet = format!("DELETE FROM quorate_woken WHERE at<{CLOCK}-{OLD};");
        }
        self.until_sweep -= 1;
        let (process, last_received) = (&self.process, self.last_received);
        let (looks, pause) = looks(self.pacer.pace());
        if self.mariadb {
            let body = listening(process, &last_received.to_string(), looks, pause);
            packet += &body.replacen("BEGIN", "BEGIN NOT ATOMIC", 1);
        } else {
            let last_received = last_received.to_string();
            packet.extend([
                "CALL quorate_listen(",
                process,
                ",",
                &last_received,
                ",",
                looks,
                ",",
                pause,
                ")",
            ]);
        }
        packet
    }
}

/// The number of polls per statement, and the pause between two polls in seconds, as SQL text.
///
/// One poll costs the server about 50 us: 1,000 polls a second for each waiter would cost more than all locks together.
/// The statements are short for two reasons. A new pace takes effect only with the next statement, and the server
/// notices that a client is gone only when it sends a result.
fn looks(pace: Pace) -> (&'static str, &'static str) {
    match pace {
        Pace::Next => ("25", "0.002"),
        Pace::Waiting => ("8", "0.01"),
        Pace::Idle => ("4", "0.05"),
    }
}

impl Listener for MySqlListener {
    fn follow(&mut self, pacer: Pacer) {
        self.pacer = pacer;
    }

    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        loop {
            let question = self.question();
            let asking = tokio::time::timeout(PATIENCE, self.connection.ask(&question));
            let said = asking.await.unwrap_or(Err(Fault::Timeout(PATIENCE)))?;
            let mut words = Vec::new();
            for mut row in said.into_iter().flat_map(|one| one.rows) {
                if let (Some(id), Some(word)) = (number(&row, 0), bytes(&mut row, 1)) {
                    self.last_received = self.last_received.max(id);
                    words.push(word);
                }
            }
            if !words.is_empty() {
                return Ok(words);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate_testbed::{MariaDb, MariaDbOptions, not_run};

    use super::*;
    use crate::schema::{make_procedure, prepare};
    use crate::url::Address;

    #[tokio::test]
    async fn mysql_procedure_returns_the_same_wake_ups_as_the_mariadb_block() {
        let server = match MariaDb::available() {
            Ok(()) => MariaDb::start(MariaDbOptions::new()).expect("a server"),
            Err(error) => {
                return not_run(
                    "mysql_procedure_returns_the_same_wake_ups_as_the_mariadb_block",
                    &error.to_string(),
                );
            }
        };
        let url = server.url("locks");
        prepare(&url).await.expect("prepared");
        let address = Address::read(&url).expect("a URL");
        let mut connection = Connection::open(&address, true).await.expect("connected");
        make_procedure(&mut connection).await.expect("made");
        let listener = MySqlListener::open(connection, "p").await;
        let mut listener = listener.expect("listens");
        listener.mariadb = false;
        let leave = "INSERT INTO locks.quorate_woken (process,word,at) \
                     VALUES ('p','one',UNIX_TIMESTAMP()*1000000)";
        for _ in 0..2 {
            server.sql(leave).expect("left");
            let received = listener.next().await;
            assert_eq!(received, Ok(vec![b"one".to_vec()]));
        }
    }
}
