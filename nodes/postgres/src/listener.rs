//! Receives wake-ups for waiting clients, by `LISTEN` and `NOTIFY`.
//!
//! # Why like this
//!
//! - **The process listens only while somebody waits.** Each notification signals all listeners of the database, also
//!   those of other channels: with 150 other listeners, a change and its notification took 5.8 instead of 0.53 ms.
//! - **The listener reads all the time, and never opens a transaction.** A listener that stands still fills the queue
//!   of notifications, which the whole server shares. `NOTIFY` then fails for all clients.
//! - **The session sends notifications behind the change, in a transaction of its own** ([`crate::sql::Kind::Wake`]). A
//!   notification is lost if its session ends before. Then the waiter polls: it repeats its request at its heartbeat.
//!
//! A notification is text, so a message is written in hexadecimal form.

use std::future::Future;
use std::time::Duration;

use quorate::node::Fault;
use quorate::node::store::{Listener, Pace, Pacer};
use tokio::time::Instant;
use tokio_postgres::Notification;

use crate::connection::Connection;
use crate::greet::suits;
use crate::sql::{VANISHED, settings};
use crate::tables::{self, Schema};
use crate::url::Address;

/// How long the listener waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often the listener checks a connection on which nothing arrives. A network failure shows itself only by a
/// missing answer.
const CHECKED: Duration = Duration::from_secs(15);
/// The largest number of notifications that the listener keeps until they are read. It drops further ones: a waiter whose
/// wake-up is lost repeats its request at its heartbeat.
const MOST_NOTIFICATIONS: usize = 8192;
/// How long the listener still listens when nobody waits: another waiter often follows.
const GRACE: Duration = Duration::from_secs(2);

/// A connection that receives wake-ups from a server, for tasks that wait for a lock or observe an election.
pub struct PostgresListener {
    connection: Connection,
    /// When the last answer or notification arrived.
    answered_at: Instant,
    channel: String,
    /// Whether the server sends the notifications of the channel to this connection.
    listens: bool,
    /// Reports which wake-ups this process needs.
    pacer: Pacer,
}

/// The name of the channel of a process. It has fewer than 64 characters, the limit of PostgreSQL.
pub(crate) fn channel(process: &str) -> String {
    let allowed = process.chars().filter(char::is_ascii_alphanumeric).take(40);
    format!("quorate_{}", allowed.collect::<String>())
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect()
}

impl PostgresListener {
    pub(crate) async fn open(address: &Address, process: &str) -> Result<Self, Fault> {
        let mut connection = Connection::open(address).await?;
        connection.driver.room = MOST_NOTIFICATIONS;
        connection.ask(&settings(PATIENCE)).await?;
        for setting in VANISHED {
            // Not every operating system supports these settings.
            let _ = connection.ask(setting).await;
        }
        suits(&Schema::read(&connection.ask(&tables::question()).await?))?;
        let mut listener = Self {
            connection,
            answered_at: Instant::now(),
            channel: channel(process),
            listens: false,
            pacer: Pacer::default(),
        };
        listener.listen(true).await?;
        Ok(listener)
    }

    async fn ask(&mut self, statement: &str) -> Result<(), Fault> {
        let asking = tokio::time::timeout(PATIENCE, self.connection.ask(statement));
        let asked = asking.await.unwrap_or(Err(Fault::Timeout(PATIENCE)));
        asked?;
        self.answered_at = Instant::now();
        Ok(())
    }

    /// Begins or ends to listen.
    async fn listen(&mut self, listens: bool) -> Result<(), Fault> {
        let verb = if listens { "LISTEN" } else { "UNLISTEN" };
        let statement = format!("{verb} \"{}\"", self.channel);
        self.ask(&statement).await?;
        self.listens = listens;
        Ok(())
    }

    /// Reads notifications until `end` is ready. Returns `None` if there are none. If nothing has arrived for
    /// [`CHECKED`], checks the connection first. Each change of the pace ends a call, so this time covers all calls.
    async fn receive(
        &mut self,
        end: impl Future<Output = ()>,
    ) -> Result<Option<Vec<Notification>>, Fault> {
        tokio::select! {
            biased;
            received = self.connection.driver.next_notifications() => {
                self.answered_at = Instant::now();
                received.map(Some)
            }
            () = tokio::time::sleep_until(self.answered_at + CHECKED) => {
                self.ask("SELECT 1").await?;
                Ok(None)
            }
            () = end => Ok(None),
        }
    }
}

/// The messages in these notifications; an empty list if one has an unknown text.
fn words(notifications: &[Notification]) -> Vec<Vec<u8>> {
    let words: Option<Vec<_>> = notifications
        .iter()
        .map(|one| decode(one.payload()))
        .collect();
    words.unwrap_or_default()
}

impl Listener for PostgresListener {
    fn follow(&mut self, pacer: Pacer) {
        self.pacer = pacer;
    }

    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        loop {
            let pacer = self.pacer.clone();
            let is_idle = pacer.pace() == Pace::Idle;
            if !self.listens && !is_idle {
                self.listen(true).await?;
                // Wake-ups may have been lost before.
                return Ok(Vec::new());
            }
            let received = if !self.listens {
                self.receive(pacer.until(|pace| *pace != Pace::Idle))
                    .await?
            } else if is_idle {
                let rest = async {
                    let wanted = pacer.until(|pace| *pace != Pace::Idle);
                    let _ = tokio::time::timeout(GRACE, wanted).await;
                };
                let received = self.receive(rest).await?;
                if received.is_none() && pacer.pace() == Pace::Idle {
                    self.listen(false).await?;
                }
                received
            } else {
                self.receive(pacer.until(|pace| *pace == Pace::Idle))
                    .await?
            };
            if let Some(received) = received {
                return Ok(words(&received));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quorate::printable::hex;

    use super::*;

    #[test]
    fn message_is_unchanged_after_encoding_and_decoding() {
        let all: Vec<u8> = (0..=255).collect();
        for word in [&b""[..], b"a", &all] {
            assert_eq!(decode(&hex(word)).as_deref(), Some(word));
        }
        for odd in ["a", "zz", "+1", "\u{e4}0"] {
            assert_eq!(decode(odd), None, "{odd}");
        }
    }

    #[test]
    fn name_of_a_channel_is_short_and_needs_no_quoting() {
        assert_eq!(channel("0123456789abcdef"), "quorate_0123456789abcdef");
        assert!(channel(&"x".repeat(500)).len() < 64);
        assert_eq!(channel("a\";b"), "quorate_ab");
    }
}
