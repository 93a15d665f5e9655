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
use crate::schema::check_version;
use crate::session::{bytes_at, number_at, text_at};
use crate::sql::{
    CLOCK_EXPRESSION, SETTINGS_STATEMENT_COUNT, listen_block, session_settings, write_hex,
    write_wait_lock_name,
};
use crate::url::Address;

/// The longest time for which one `GET_LOCK` statement blocks: 15 s. The limit is needed because the listener notices a
/// network failure only by a missing result.
const LONGEST_BLOCK: Duration = Duration::from_secs(15);
/// The listener reports a timeout if a result is missing this long after the expected end of the statement.
const RESULT_DELAY_LIMIT: Duration = Duration::from_secs(5);
/// The age at which listeners remove a wake-up, even if no client has read it: 60 s, in microseconds.
const REMOVAL_AGE_US: u64 = 60_000_000;
/// The time between two removals of old wake-ups.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// The pause between two polls is the time waited so far, divided by this number. After 1 s, the pause is 20 ms.
const PAUSE_DIVISOR: u32 = 50;
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
const POLL_DURATION: Duration = Duration::from_millis(50);

/// A connection that receives wake-ups from a server, for tasks that wait for a lock or observe an election.
pub struct MySqlListener {
    address: Arc<Address>,
    connection: Connection,
    process: String,
    /// The id of the last wake-up that this listener has received.
    last_received: u64,
    /// The id of the last wake-up that this listener has removed from the table.
    last_removed: u64,
    is_mariadb: bool,
    /// Whether statements of this listener may block or sleep at the server.
    may_block: bool,
    /// When this listener last removed old wake-ups; `None` before the first time.
    last_sweep_at: Option<Instant>,
    /// Reports which wake-ups this process needs.
    pacer: Pacer,
    /// The current [`Pace`], and since when the process waits at this pace (`paced_since`). The longer it waits, the
    /// longer are the pauses between two polls.
    pace: Pace,
    paced_since: Instant,
    /// The [`Pace::Behind`] whose wait lock the client ahead did not hold at the last check. The listener then polls,
    /// because `GET_LOCK` would return immediately.
    pace_without_wait_lock: Option<Pace>,
}

impl MySqlListener {
    pub(crate) async fn open(address: Arc<Address>, process: &str) -> Result<Self, Fault> {
        let mut connection = Connection::open(&address, true).await?;
        let packet = format!(
            "{};SELECT MAX(version),VERSION() FROM quorate_schema;{THREAD_VARIABLES}",
            session_settings(Duration::ZERO)
        );
        let mut results = connection.execute(&packet).await?;
        let variable_rows = results
            .get_mut(SETTINGS_STATEMENT_COUNT + 1)
            .map(|result| &mut result.rows[..]);
        let variables: HashMap<String, String> = variable_rows
            .unwrap_or_default()
            .iter_mut()
            .filter_map(|row| Some((text_at(row, 0)?, text_at(row, 1)?)))
            .collect();
        let schema_row = results
            .get_mut(SETTINGS_STATEMENT_COUNT)
            .and_then(|result| result.rows.first_mut());
        let row = schema_row.ok_or_else(|| Fault::Server("no answer".into()))?;
        check_version(number_at(row, 0))?;
        let version = text_at(row, 1).unwrap_or_default();
        let mut literal = String::new();
        write_hex(process.as_bytes(), &mut literal);
        Ok(Self {
            address,
            connection,
            process: literal,
            last_received: 0,
            last_removed: 0,
            is_mariadb: version.contains("MariaDB"),
            may_block: has_enough_threads(&variables),
            last_sweep_at: None,
            pacer: Pacer::default(),
            pace: Pace::Idle,
            paced_since: Instant::now(),
            pace_without_wait_lock: None,
        })
    }

    /// The statement that removes old wake-ups, to be put first in a packet. Empty if the removal is not due yet.
    fn sweep(&mut self) -> String {
        if self
            .last_sweep_at
            .is_some_and(|swept_at| swept_at.elapsed() < SWEEP_INTERVAL)
        {
            return String::new();
        }
        self.last_sweep_at = Some(Instant::now());
        format!("DELETE FROM quorate_woken WHERE at<{CLOCK_EXPRESSION}-{REMOVAL_AGE_US};")
    }

    /// The statement that removes the received wake-ups from the table.
    fn removal(&self) -> String {
        let (process, last_received) = (&self.process, self.last_received);
        format!("DELETE FROM quorate_woken WHERE process={process} AND id<={last_received};")
    }

    /// Returns the messages of the wake-ups in the last result, and updates `last_received`.
    fn take_messages(&mut self, results: &mut Vec<StatementResult>) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        for mut row in results.pop().map(|result| result.rows).unwrap_or_default() {
            if let (Some(id), Some(message)) = (number_at(&row, 0), bytes_at(&mut row, 1)) {
                self.last_received = self.last_received.max(id);
                messages.push(message);
            }
        }
        messages
    }

    async fn execute(
        &mut self,
        packet: &str,
        duration: Duration,
    ) -> Result<Vec<StatementResult>, Fault> {
        let limit = duration + RESULT_DELAY_LIMIT;
        let execution = tokio::time::timeout(limit, self.connection.execute(packet));
        execution.await.unwrap_or(Err(Fault::Timeout(limit)))
    }

    /// Removes the received wake-ups from the table. Then waits until the pace is not [`Pace::Idle`].
    async fn idle(&mut self) -> Result<(), Fault> {
        if self.last_removed < self.last_received {
            let packet = self.removal();
            self.execute(packet.trim_end_matches(';'), Duration::ZERO)
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
        let removed_upto = self.last_received;
        let mut results = self.execute(&packet, Duration::ZERO).await?;
        self.last_removed = removed_upto;
        let messages = self.take_messages(&mut results);
        if messages.is_empty() {
            tokio::time::sleep(pause_between_polls(pace, self.paced_since.elapsed())).await;
        }
        Ok(messages)
    }

    /// Lets the server poll the table for [`POLL_DURATION`], and returns the new wake-ups. Clears
    /// `self.pace_without_wait_lock` if the client ahead holds its wait lock again.
    async fn poll(&mut self, pace: &Pace) -> Result<Vec<Vec<u8>>, Fault> {
        let mut packet = self.sweep();
        let (polls, pause) = polls_and_pause(pace, self.paced_since.elapsed());
        let (process, last_received) = (&self.process, self.last_received);
        let checked_lock = self.pace_without_wait_lock.as_ref().and_then(wait_lock_of);
        if let Some(name) = &checked_lock {
            let _ = write!(packet, "SELECT GET_LOCK({name},0);DO RELEASE_LOCK({name});");
        }
        let first_block_result = packet.matches(';').count();
        if self.is_mariadb {
            let body = listen_block(
                process,
                &last_received.to_string(),
                &polls.to_string(),
                &pause,
            );
            packet += &body.replacen("BEGIN", "BEGIN NOT ATOMIC", 1);
        } else {
            let _ = write!(
                packet,
                "CALL quorate_listen({process},{last_received},{polls},{pause})"
            );
        }
        let mut results = self.execute(&packet, POLL_DURATION).await?;
        self.last_removed = last_received;
        if checked_lock.is_some()
            && results
                .get(first_block_result - 2)
                .is_some_and(|result| first_number(result) == Some(0))
        {
            self.pace_without_wait_lock = None;
        }
        Ok(self.messages_of_block(results.split_off(first_block_result)))
    }

    fn messages_of_block(&mut self, mut results: Vec<StatementResult>) -> Vec<Vec<u8>> {
        // Drop results without rows: they contain no wake-ups.
        results.retain(|result| !result.rows.is_empty());
        self.take_messages(&mut results)
    }

    /// Blocks until the wait lock `name` is free. Returns the new wake-ups; the list can be empty.
    /// Returns `None` in two cases:
    ///
    /// - This process needs other wake-ups now, which this wait does not deliver ([`must_end_block`]).
    /// - After [`LONGEST_BLOCK`], the wait lock is still held, and no wake-up has arrived.
    async fn wait_behind(
        &mut self,
        pace: &Pace,
        name: &str,
    ) -> Result<Option<Vec<Vec<u8>>>, Fault> {
        let mut packet = self.sweep();
        if self.last_removed < self.last_received {
            packet += &self.removal();
        }
        let lock_result_index = packet.matches(';').count();
        let _ = write!(
            packet,
            "SELECT GET_LOCK({name},{});DO RELEASE_LOCK({name});\
             SELECT id,word FROM quorate_woken WHERE process={} ORDER BY id",
            LONGEST_BLOCK.as_secs(),
            self.process
        );
        let removed_upto = self.last_received;
        let pacer = self.pacer.clone();
        let finished = {
            let execution = self.execute(&packet, LONGEST_BLOCK);
            tokio::select! {
                biased;
                results = execution => Some(results?),
                () = pacer.until(|new_pace| must_end_block(new_pace, pace)) => None,
            }
        };
        let Some(mut results) = finished else {
            // The running statement cannot be cancelled, so replace its connection. The server then ends the
            // statement within a second.
            let opening = Self::open(self.address.clone(), "");
            let opened = tokio::time::timeout(RESULT_DELAY_LIMIT, opening).await;
            self.connection = opened
                .unwrap_or(Err(Fault::Timeout(RESULT_DELAY_LIMIT)))?
                .connection;
            return Ok(None);
        };
        self.last_removed = removed_upto;
        let is_free = results
            .get(lock_result_index)
            .is_some_and(|result| first_number(result) == Some(1));
        let messages = self.take_messages(&mut results);
        if is_free {
            self.pace_without_wait_lock = Some(pace.clone());
            // The client ahead does not hold its wait lock: it may soon be done. So use the shortest pause again.
            self.paced_since = Instant::now();
        }
        // If the wait lock is free, return a list, even an empty one, so that the waiter tries to acquire the lock.
        Ok((is_free || !messages.is_empty()).then_some(messages))
    }
}

/// The statement that reads how many threads the server has. It needs no right.
const THREAD_VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
                       ('thread_handling','thread_pool_max_threads','max_connections')";

/// Whether statements that wait for a long time cannot occupy all threads of a server with these variables: the server
/// has a thread for each connection, or its thread pool may have more threads than the server has connections.
fn has_enough_threads(variables: &HashMap<String, String>) -> bool {
    let number_of = |name| {
        variables
            .get(name)
            .and_then(|value| value.parse::<u64>().ok())
    };
    let handling = variables.get("thread_handling").map(String::as_str);
    if !matches!(handling, Some("pool-of-threads" | "loaded-dynamically")) {
        return true;
    }
    let threads = number_of("thread_pool_max_threads").zip(number_of("max_connections"));
    // Each group of the pool has one more thread, which waits for packets.
    threads.is_some_and(|(threads, connections)| threads >= 2 * connections)
}

/// The value of the first column of the first row, as a number; `None` if there is no row.
fn first_number(result: &StatementResult) -> Option<u64> {
    result.rows.first().and_then(|row| number_at(row, 0))
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
    write_wait_lock_name(name, &mut literal);
    Some(literal)
}

/// Whether a change of the pace from `before` to `now` must end a blocked `GET_LOCK`. After two changes, the statement
/// can stay blocked:
///
/// - to [`Pace::Idle`]: the process needs no wake-ups, and a blocked statement costs nothing,
/// - to a different wait lock for the same waiter: the blocked statement still wakes this waiter.
fn must_end_block(now: &Pace, before: &Pace) -> bool {
    match (now, before) {
        (Pace::Idle, _) => false,
        (
            Pace::Behind {
                waiter: new_waiter, ..
            },
            Pace::Behind { waiter, .. },
        ) => new_waiter != waiter,
        _ => now != before,
    }
}

/// The pause between two polls. It grows with the time waited so far (`waited`), because each poll costs the server
/// about 50 us.
fn pause_between_polls(pace: &Pace, waited: Duration) -> Duration {
    let growing_pause = (waited / PAUSE_DIVISOR).max(SHORTEST_PAUSE);
    match pace {
        Pace::Observing | Pace::Idle => OBSERVING_PAUSE,
        Pace::Waiting => growing_pause.min(LONGEST_PAUSE),
        Pace::Behind { .. } => growing_pause.min(LONGEST_PAUSE_BEHIND),
    }
}

/// Returns the number of polls in one statement, and the pause between two polls as SQL text in seconds.
fn polls_and_pause(pace: &Pace, waited: Duration) -> (u32, String) {
    let pause = pause_between_polls(pace, waited);
    let polls = POLL_DURATION.as_micros().div_ceil(pause.as_micros());
    (
        u32::try_from(polls).unwrap_or(1),
        format!("{:.3}", pause.as_secs_f64()),
    )
}

impl Listener for MySqlListener {
    fn follow(&mut self, pacer: Pacer) {
        self.pacer = pacer;
    }

    async fn next(&mut self) -> Result<Vec<Vec<u8>>, Fault> {
        loop {
            let pace = self.pacer.pace();
            if self.pace != pace {
                self.pace = pace.clone();
                self.paced_since = Instant::now();
            }
            let may_block_now =
                self.may_block && self.pace_without_wait_lock.as_ref() != Some(&pace);
            match wait_lock_of(&pace).filter(|_| may_block_now) {
                _ if pace == Pace::Idle => self.idle().await?,
                Some(name) => {
                    if let Some(messages) = self.wait_behind(&pace, &name).await? {
                        return Ok(messages);
                    }
                }
                None => {
                    let messages = if self.may_block {
                        self.poll(&pace).await?
                    } else {
                        self.poll_briefly(&pace).await?
                    };
                    if !messages.is_empty() {
                        return Ok(messages);
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
        let pace_behind = Pace::Behind {
            waiter: "a:1".into(),
            wait_lock: "b:1".into(),
        };
        let polls = |pace, waited_ms| polls_and_pause(pace, Duration::from_millis(waited_ms));
        assert_eq!(polls(&Pace::Waiting, 0), (25, "0.002".to_owned()));
        assert_eq!(polls(&Pace::Waiting, 500), (5, "0.010".to_owned()));
        assert_eq!(polls(&Pace::Waiting, 60_000), (3, "0.020".to_owned()));
        assert_eq!(polls(&pace_behind, 500), (5, "0.010".to_owned()));
        assert_eq!(polls(&pace_behind, 60_000), (1, "0.100".to_owned()));
        assert_eq!(polls(&Pace::Observing, 0), (1, "0.050".to_owned()));
    }

    #[test]
    fn statements_may_block_only_if_the_pool_has_more_threads_than_connections() {
        let may_block = |handling: &str, threads: &str| {
            let variables = [
                ("thread_handling", handling),
                ("thread_pool_max_threads", threads),
                ("max_connections", "151"),
            ];
            let to_owned_pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            has_enough_threads(&variables.into_iter().map(to_owned_pair).collect())
        };
        assert!(may_block("one-thread-per-connection", "8"));
        assert!(may_block("pool-of-threads", "65536"));
        assert!(!may_block("pool-of-threads", "8"));
        assert!(!may_block("pool-of-threads", "151"));
        assert!(!may_block("loaded-dynamically", ""));
        assert!(has_enough_threads(&HashMap::new()));
    }

    #[test]
    fn blocked_listener_is_interrupted_only_if_it_would_miss_a_needed_wake_up() {
        let pace_behind = |waiter: &str, wait_lock: &str| Pace::Behind {
            waiter: waiter.into(),
            wait_lock: wait_lock.into(),
        };
        let pace_before = pace_behind("a:1", "b:1");
        assert!(!must_end_block(&pace_behind("a:1", "c:1"), &pace_before));
        assert!(!must_end_block(&Pace::Idle, &pace_before));
        assert!(must_end_block(&pace_behind("a:2", "b:1"), &pace_before));
        assert!(must_end_block(&Pace::Waiting, &pace_before));
        assert!(must_end_block(&Pace::Observing, &pace_before));
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
        let address = Address::parse(&url).expect("a URL");
        let mut connection = Connection::open(&address, true).await.expect("connected");
        make_procedure(&mut connection).await.expect("made");
        let opened = MySqlListener::open(Arc::new(address), "p").await;
        let mut listener = opened.expect("listens");
        listener.is_mariadb = false;
        let insert_wake_up = "INSERT INTO locks.quorate_woken (process,word,at) \
                     VALUES ('p','one',UNIX_TIMESTAMP()*1000000)";
        for _ in 0..2 {
            server.sql(insert_wake_up).expect("left");
            let received = listener.next().await;
            assert_eq!(received, Ok(vec![b"one".to_vec()]));
        }
    }
}
