//! Receives wake-ups for waiting clients.
//!
//! The listener has two ways to wait:
//!
//! - **It blocks** if this process has only one queued waiter, which waits for exactly one other client. While that
//!   client is queued or holds the lock, it also holds a named lock of the server, a [wait lock][WaitLock]. The
//!   listener calls `GET_LOCK` for this wait lock. The call returns when the other client releases the lock, leaves the
//!   queue or loses its session. A blocked call costs nothing.
//! - **It polls in all other cases.** Each statement makes the server poll the table of wake-ups for 50 ms. MySQL needs
//!   a stored procedure for this statement.
//!
//! A statement that blocks or sleeps occupies a thread of the server. If the threads of the server are fewer than its
//! connections, all of them may be occupied. Then no client can renew its lock. So at such a server, the listener uses
//! only short statements, and sleeps itself between two polls ([`has_enough_threads`]).
//!
//! The listener reads new wake-ups with one packet, and removes them with a later packet. So a broken connection loses
//! no wake-up.
//!
//! [WaitLock]: quorate::node::store::WaitLock

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::Fault;
use quorate::node::store::{Listener, Pace, Pacer};
use tokio::time::Instant;

use crate::connection::{Connection, StatementResult};
use crate::schema::suits;
use crate::session::{bytes, number, word};
use crate::sql::{CLOCK, SETTINGS, hex, listening, settings, wait_lock};
use crate::url::Address;

/// The longest time for which one `GET_LOCK` statement blocks: 15 s. The limit is needed because the listener notices a
/// network failure only by a missing result.
const BLOCKED: Duration = Duration::from_secs(15);
/// The listener reports a timeout if a result is missing this long after the expected end of the statement.
const PATIENCE: Duration = Duration::from_secs(5);
/// The age at which listeners remove a wake-up, even if no client has read it: 60 s, in microseconds.
const OLD: u64 = 60_000_000;
/// The time between two removals of old wake-ups.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(30);
/// The pause between two polls is the time waited so far, divided by this number. After 1 s, the pause is 20 ms.
const PART: u32 = 50;
/// The shortest pause between two polls, used at the beginning of a wait.
const SHORTEST_PAUSE: Duration = Duration::from_millis(2);
/// The longest pause between two polls for [`Pace::Waiting`].
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two polls for [`Pace::Behind`], if the client ahead does not hold its wait lock.
const LONGEST_PAUSE_BEHIND: Duration = Duration::from_millis(100);
/// The pause between two polls if this process only observes elections and waits for no lock.
const OBSERVING_PAUSE: Duration = Duration::from_millis(50);
/// The duration of one polling statement. It is short for two reasons:
///
/// - The listener cannot react to a new [`Pace`] before the statement ends.
/// - The server notices a closed connection only when it sends the result.
const POLLED: Duration = Duration::from_millis(50);

/// A connection that receives wake-ups from a server, for tasks that wait for a lock or observe an election.
pub struct MySqlListener {
    address: Arc<Address>,
    connection: Connection,
    process: String,
    /// The id of the last wake-up that this listener has received.
    last_received: u64,
    /// The id of the last wake-up that this listener has removed from the table.
    last_removed: u64,
    mariadb: bool,
    /// Whether statements of this listener may block or sleep at the server.
    may_block: bool,
    /// When this listener last removed old wake-ups; `None` before the first time.
    swept: Option<Instant>,
    /// Reports which wake-ups this process needs.
    pacer: Pacer,
    /// The current [`Pace`], and since when the process waits at this pace. The longer it waits, the longer are the
    /// pauses between two polls.
    awaited: (Pace, Instant),
    /// The [`Pace::Behind`] whose wait lock the client ahead did not hold at the last check. The listener then polls,
    /// because `GET_LOCK` would return immediately.
    unkept: Option<Pace>,
}

impl MySqlListener {
    pub(crate) async fn open(address: Arc<Address>, process: &str) -> Result<Self, Fault> {
        let mut connection = Connection::open(&address, true).await?;
        let packet = format!(
            "{};SELECT MAX(version),VERSION() FROM quorate_schema;{THREADS}",
            settings(Duration::ZERO)
        );
        let mut said = connection.ask(&packet).await?;
        let variables = said.get_mut(SETTINGS + 1).map(|one| &mut one.rows[..]);
        let variables = variables.unwrap_or_default().iter_mut();
        let variables: HashMap<String, String> = variables
            .filter_map(|row| Some((word(row, 0)?, word(row, 1)?)))
            .collect();
        let row = said.get_mut(SETTINGS).and_then(|one| one.rows.first_mut());
        let row = row.ok_or_else(|| Fault::Server("no answer".into()))?;
        suits(number(row, 0))?;
        let version = word(row, 1).unwrap_or_default();
        let mut literal = String::new();
        hex(process.as_bytes(), &mut literal);
        Ok(Self {
            address,
            connection,
            process: literal,
            last_received: 0,
            last_removed: 0,
            mariadb: version.contains("MariaDB"),
            may_block: has_enough_threads(&variables),
            swept: None,
            pacer: Pacer::default(),
            awaited: (Pace::Idle, Instant::now()),
            unkept: None,
        })
    }

    /// The statement that removes old wake-ups, to be put first in a packet. Empty if the removal is not due yet.
    fn sweep(&mut self) -> String {
        if self
            .swept
            .is_some_and(|swept| swept.elapsed() < BETWEEN_SWEEPS)
        {
            return String::new();
        }
        self.swept = Some(Instant::now());
        format!("DELETE FROM quorate_woken WHERE at<{CLOCK}-{OLD};")
    }

    /// The statement that removes the received wake-ups from the table.
    fn removal(&self) -> String {
        let (process, last) = (&self.process, self.last_received);
        format!("DELETE FROM quorate_woken WHERE process={process} AND id<={last};")
    }

    /// Returns the messages of the wake-ups in the last result, and updates `last_received`.
    fn words(&mut self, said: &mut Vec<StatementResult>) -> Vec<Vec<u8>> {
        let mut words = Vec::new();
        for mut row in said.pop().map(|one| one.rows).unwrap_or_default() {
            if let (Some(id), Some(word)) = (number(&row, 0), bytes(&mut row, 1)) {
                self.last_received = self.last_received.max(id);
                words.push(word);
            }
        }
        words
    }

    async fn ask(&mut self, packet: &str, lasts: Duration) -> Result<Vec<StatementResult>, Fault> {
        let limit = lasts + PATIENCE;
        let asking = tokio::time::timeout(limit, self.connection.ask(packet));
        asking.await.unwrap_or(Err(Fault::Timeout(limit)))
    }

    /// Removes the received wake-ups from the table. Then waits until the pace is not [`Pace::Idle`].
    async fn idle(&mut self) -> Result<(), Fault> {
        if self.last_removed < self.last_received {
            let packet = self.removal();
            self.ask(packet.trim_end_matches(';'), Duration::ZERO)
                .await?;
            self.last_removed = self.last_received;
        }
        self.pacer.until(|pace| *pace != Pace::Idle).await;
        Ok(())
    }

    /// Reads new wake-ups with a short statement. If there are none, sleeps until the next poll.
    async fn poll_briefly(&mut self, pace: &Pace) -> Result<Vec<Vec<u8>>, Fault> {
        let mut packet = self.sweep();
        if self.last_removed < self.last_received {
            packet += &self.removal();
        }
        let process = &self.process;
        let _ = write!(
            packet,
            "SELECT id,word FROM quorate_woken WHERE process={process} ORDER BY id"
        );
        let removed = self.last_received;
        let mut said = self.ask(&packet, Duration::ZERO).await?;
        self.last_removed = removed;
        let words = self.words(&mut said);
        if words.is_empty() {
            tokio::time::sleep(pause(pace, self.awaited.1.elapsed())).await;
        }
        Ok(words)
    }

    /// Lets the server poll the table for [`POLLED`], and returns the new wake-ups. Clears `self.unkept` if the client
    /// ahead holds its wait lock again.
    async fn poll(&mut self, pace: &Pace) -> Result<Vec<Vec<u8>>, Fault> {
        let mut packet = self.sweep();
        let (looks, pause) = looks(pace, self.awaited.1.elapsed());
        let (process, last) = (&self.process, self.last_received);
        let checked = self.unkept.as_ref().and_then(wait_lock_of);
        if let Some(name) = &checked {
            let _ = write!(packet, "SELECT GET_LOCK({name},0);DO RELEASE_LOCK({name});");
        }
        let at = packet.matches(';').count();
        if self.mariadb {
            let body = listening(process, &last.to_string(), &looks.to_string(), &pause);
            packet += &body.replacen("BEGIN", "BEGIN NOT ATOMIC", 1);
        } else {
            let _ = write!(
                packet,
                "CALL quorate_listen({process},{last},{looks},{pause})"
            );
        }
        let mut said = self.ask(&packet, POLLED).await?;
        self.last_removed = last;
        if checked.is_some() && said.get(at - 2).is_some_and(|one| first(one) == Some(0)) {
            self.unkept = None;
        }
        Ok(self.words_of_block(said.split_off(at)))
    }

    fn words_of_block(&mut self, mut said: Vec<StatementResult>) -> Vec<Vec<u8>> {
        // Drop results without rows: they contain no wake-ups.
        said.retain(|one| !one.rows.is_empty());
        self.words(&mut said)
    }

    /// Blocks until the wait lock `name` is free. Returns the new wake-ups; the list can be empty.
    /// Returns `None` in two cases:
    ///
    /// - This process needs other wake-ups now, which this wait does not deliver ([`is_for_another`]).
    /// - After [`BLOCKED`], the wait lock is still held, and no wake-up has arrived.
    async fn wait_behind(
        &mut self,
        pace: &Pace,
        name: &str,
    ) -> Result<Option<Vec<Vec<u8>>>, Fault> {
        let mut packet = self.sweep();
        if self.last_removed < self.last_received {
            packet += &self.removal();
        }
        let at = packet.matches(';').count();
        let _ = write!(
            packet,
            "SELECT GET_LOCK({name},{});DO RELEASE_LOCK({name});\
             SELECT id,word FROM quorate_woken WHERE process={} ORDER BY id",
            BLOCKED.as_secs(),
            self.process
        );
        let removed = self.last_received;
        let pacer = self.pacer.clone();
        let asked = {
            let asking = self.ask(&packet, BLOCKED);
            tokio::select! {
                biased;
                said = asking => Some(said?),
                () = pacer.until(|now| is_for_another(now, pace)) => None,
            }
        };
        let Some(mut said) = asked else {
            // The running statement cannot be cancelled, so replace its connection. The server then ends the
            // statement within a second.
            let next = Self::open(self.address.clone(), "").await?;
            self.connection = next.connection;
            return Ok(None);
        };
        self.last_removed = removed;
        let is_free = said.get(at).is_some_and(|one| first(one) == Some(1));
        let words = self.words(&mut said);
        if is_free {
            self.unkept = Some(pace.clone());
            // The client ahead does not hold its wait lock: it may soon be done. So use the shortest pause again.
            self.awaited.1 = Instant::now();
        }
        // If the wait lock is free, return a list, even an empty one, so that the waiter tries to acquire the lock.
        Ok((is_free || !words.is_empty()).then_some(words))
    }
}

/// The statement that reads how many threads the server has. It needs no right.
const THREADS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
                       ('thread_handling','thread_pool_max_threads','max_connections')";

/// Whether statements that wait for a long time cannot occupy all threads of a server with these variables: the server
/// has a thread for each connection, or its thread pool may have more threads than the server has connections.
fn has_enough_threads(variables: &HashMap<String, String>) -> bool {
    let number = |name| {
        variables
            .get(name)
            .and_then(|value| value.parse::<u64>().ok())
    };
    let handling = variables.get("thread_handling").map(String::as_str);
    if !matches!(handling, Some("pool-of-threads" | "loaded-dynamically")) {
        return true;
    }
    let threads = number("thread_pool_max_threads").zip(number("max_connections"));
    // Each group of the pool has one more thread, which waits for packets.
    threads.is_some_and(|(threads, connections)| threads >= 2 * connections)
}

/// The value of the first column of the first row, as a number; `None` if there is no row.
fn first(one: &StatementResult) -> Option<u64> {
    one.rows.first().and_then(|row| number(row, 0))
}

/// The name of the wait lock that `pace` contains, as an SQL literal; `None` if `pace` contains none.
fn wait_lock_of(pace: &Pace) -> Option<String> {
    let Pace::Behind {
        wait_lock: name, ..
    } = pace
    else {
        return None;
    };
    let mut literal = String::new();
    wait_lock(name, &mut literal);
    Some(literal)
}

/// Whether a change of the pace from `before` to `now` must end a blocked `GET_LOCK`. After two changes, the statement
/// can stay blocked:
///
/// - to [`Pace::Idle`]: the process needs no wake-ups, and a blocked statement costs nothing,
/// - to a different wait lock for the same waiter: the blocked statement still wakes this waiter.
fn is_for_another(now: &Pace, before: &Pace) -> bool {
    match (now, before) {
        (Pace::Idle, _) => false,
        (Pace::Behind { waiter: now, .. }, Pace::Behind { waiter, .. }) => now != waiter,
        _ => now != before,
    }
}

/// The pause between two polls. It grows with the time waited so far (`waited`), because each poll costs the server
/// about 50 us.
fn pause(pace: &Pace, waited: Duration) -> Duration {
    let grown = (waited / PART).max(SHORTEST_PAUSE);
    match pace {
        Pace::Observing | Pace::Idle => OBSERVING_PAUSE,
        Pace::Waiting => grown.min(LONGEST_PAUSE),
        Pace::Behind { .. } => grown.min(LONGEST_PAUSE_BEHIND),
    }
}

/// Returns the number of polls in one statement, and the pause between two polls as SQL text in seconds.
fn looks(pace: &Pace, waited: Duration) -> (u32, String) {
    let pause = pause(pace, waited);
    let looks = POLLED.as_micros().div_ceil(pause.as_micros());
    let looks = u32::try_from(looks).unwrap_or(1);
    (looks, format!("{:.3}", pause.as_secs_f64()))
}

impl Listener for MySqlListener {
    fn follow(&mut self, pacer: Pacer) {
        self.pacer = pacer;
    }

    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        loop {
            let pace = self.pacer.pace();
            if self.awaited.0 != pace {
                self.awaited = (pace.clone(), Instant::now());
            }
            let blocks = self.may_block && self.unkept.as_ref() != Some(&pace);
            match wait_lock_of(&pace).filter(|_| blocks) {
                _ if pace == Pace::Idle => self.idle().await?,
                Some(name) => {
                    if let Some(words) = self.wait_behind(&pace, &name).await? {
                        return Ok(words);
                    }
                }
                None => {
                    let words = if self.may_block {
                        self.poll(&pace).await?
                    } else {
                        self.poll_briefly(&pace).await?
                    };
                    if !words.is_empty() {
                        return Ok(words);
                    }
                }
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

    #[test]
    fn wake_up_table_is_polled_less_often_during_a_long_wait() {
        let behind = Pace::Behind {
            waiter: "a:1".into(),
            wait_lock: "b:1".into(),
        };
        let looks = |pace, waited| looks(pace, Duration::from_millis(waited));
        assert_eq!(looks(&Pace::Waiting, 0), (25, "0.002".to_owned()));
        assert_eq!(looks(&Pace::Waiting, 500), (5, "0.010".to_owned()));
        assert_eq!(looks(&Pace::Waiting, 60_000), (3, "0.020".to_owned()));
        assert_eq!(looks(&behind, 500), (5, "0.010".to_owned()));
        assert_eq!(looks(&behind, 60_000), (1, "0.100".to_owned()));
        assert_eq!(looks(&Pace::Observing, 0), (1, "0.050".to_owned()));
    }

    #[test]
    fn statements_may_block_only_if_the_pool_has_more_threads_than_connections() {
        let blocks = |handling: &str, threads: &str| {
            let variables = [
                ("thread_handling", handling),
                ("thread_pool_max_threads", threads),
                ("max_connections", "151"),
            ];
            let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            has_enough_threads(&variables.into_iter().map(owned).collect())
        };
        assert!(blocks("one-thread-per-connection", "8"));
        assert!(blocks("pool-of-threads", "65536"));
        assert!(!blocks("pool-of-threads", "8"));
        assert!(!blocks("pool-of-threads", "151"));
        assert!(!blocks("loaded-dynamically", ""));
        assert!(has_enough_threads(&HashMap::new()));
    }

    #[test]
    fn blocked_listener_is_interrupted_only_if_it_would_miss_a_needed_wake_up() {
        let behind = |waiter: &str, wait_lock: &str| Pace::Behind {
            waiter: waiter.into(),
            wait_lock: wait_lock.into(),
        };
        let before = behind("a:1", "b:1");
        assert!(!is_for_another(&behind("a:1", "c:1"), &before));
        assert!(!is_for_another(&Pace::Idle, &before));
        assert!(is_for_another(&behind("a:2", "b:1"), &before));
        assert!(is_for_another(&Pace::Waiting, &before));
        assert!(is_for_another(&Pace::Observing, &before));
    }

    #[tokio::test]
    async fn stored_procedure_for_mysql_reads_wake_ups_from_their_table() {
        let server = match MariaDb::available() {
            Ok(()) => MariaDb::start(MariaDbOptions::new()).expect("a server"),
            Err(error) => {
                return not_run(
                    "stored_procedure_for_mysql_reads_wake_ups_from_their_table",
                    &error.to_string(),
                );
            }
        };
        let url = server.url("locks");
        prepare(&url).await.expect("prepared");
        let address = Address::read(&url).expect("a URL");
        let mut connection = Connection::open(&address, true).await.expect("connected");
        make_procedure(&mut connection).await.expect("made");
        let listener = MySqlListener::open(Arc::new(address), "p").await;
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
