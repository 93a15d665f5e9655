//! A session with a server. Each load and each commit of records is sent as one packet.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mysql_async::{Row, Value};
use quorate::node::Fault;
use quorate::node::store::{
    Change, Clocked, Commit, Committed, NamedRecord, Record, Session, WaitLock,
};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::connection::{Connection, StatementResult};
use crate::sql::{self, CLOCK_EXPRESSION, Packet};

/// A session with one server, in which the client reads and changes the records of locks.
pub struct MySqlSession {
    connection: Connection,
    rng: StdRng,
    /// Where the last page that was read ends: the number of records up to there, and the name of the page's last
    /// record. `None` if no page was read.
    last_page: Option<(u64, Vec<u8>)>,
    /// The names of the wait locks (`GET_LOCK`) that this session holds on the server.
    wait_locks: HashSet<Arc<str>>,
    /// Whether the server has refused to remove records, because the user in the URL lacks the right `DELETE`.
    removal_denied: Arc<AtomicBool>,
}

/// How the results of a packet show whether a commit was applied.
enum CommitProof {
    /// The commit was applied if the statement with the index `statement` changed a row.
    ByChange { statement: usize, new_version: u64 },
    /// The statement with the index `statement` returns one row. The commit was applied if the first column of the row
    /// is true.
    ByRow {
        statement: usize,
        new_versions: Vec<u64>,
    },
    /// A commit of several records. It was applied if both of these conditions are true:
    ///
    /// - The statement with the index `row` returns one row, and its first column is true.
    /// - If `update` is `Some((index, count))`, the statement with this index has changed `count` rows.
    Jointly {
        update: Option<(usize, u64)>,
        row: usize,
        versions: Vec<u64>,
    },
}

impl MySqlSession {
    pub(crate) fn new(connection: Connection, removal_denied: Arc<AtomicBool>) -> Self {
        let rng = rand::make_rng();
        Self {
            connection,
            rng,
            last_page: None,
            wait_locks: HashSet::new(),
            removal_denied,
        }
    }

    /// Returns a random first version for a new record. If a record is removed and created again, its versions then
    /// almost certainly differ from the earlier versions.
    fn first_version(&mut self) -> u64 {
        self.rng.random_range(1..1 << 62)
    }

    /// Adds these commits to the packet. Returns which statement shows the outcome of each commit.
    fn write_commits(&mut self, commits: &[Commit], packet: &mut Packet) -> Vec<CommitProof> {
        let mut proofs: Vec<Option<CommitProof>> = commits.iter().map(|_| None).collect();
        let mut single_changes: Vec<(usize, &Change, &[u8])> = Vec::new();
        for (index, commit) in commits.iter().enumerate() {
            if let [change] = &commit.changes[..] {
                match &change.state {
                    Some(state) => single_changes.push((index, change, state)),
                    None => proofs[index] = Some(self.write_check(change, commit, packet)),
                }
            }
        }
        self.write_single(commits, single_changes, packet, &mut proofs);
        for (commit, proof) in commits.iter().zip(&mut proofs) {
            if proof.is_none() {
                *proof = Some(self.write_joint(commit, packet));
            }
        }
        proofs.into_iter().flatten().collect()
    }

    /// Adds commits of one record each to the packet as one transaction, so that the server waits for the disk only
    /// once. Sorting the commits by record name prevents deadlocks between sessions.
    fn write_single(
        &mut self,
        commits: &[Commit],
        mut single_changes: Vec<(usize, &Change, &[u8])>,
        packet: &mut Packet,
        proofs: &mut [Option<CommitProof>],
    ) {
        let in_transaction = single_changes.len() > 1;
        single_changes.sort_by(|a, b| a.1.name.cmp(&b.1.name));
        if in_transaction {
            packet.add(|out| out.push_str("BEGIN"));
        }
        for (index, change, state) in &single_changes {
            let (statement, version) = if change.version == 0 {
                let version = self.first_version();
                let statement = packet.add(|out| sql::write_insert(change, state, version, out));
                (statement, version)
            } else {
                let statement = packet.add(|out| sql::write_update(change, state, out));
                (statement, change.version + 1)
            };
            proofs[*index] = Some(CommitProof::ByChange {
                statement,
                new_version: version,
            });
            let has_hints =
                !commits[*index].wakes.is_empty() || !commits[*index].wait_locks.is_empty();
            if in_transaction && has_hints {
                packet.add(|out| out.extend(["SET @done", &index.to_string(), "=ROW_COUNT()"]));
            }
        }
        if in_transaction {
            packet.add(|out| out.push_str("COMMIT"));
        }
        for (index, _, _) in &single_changes {
            let only_if = if in_transaction {
                format!("@done{index}>0")
            } else {
                // The number of rows that the previous statement has changed: the commit, or the insertion of its
                // wake-ups. The number is 0 if the commit was not applied.
                "ROW_COUNT()>0".to_owned()
            };
            self.write_hints(&commits[*index], &only_if, packet);
        }
    }

    /// Adds statements for the commit's wake-ups and wait locks to the packet. These statements take effect only if the
    /// SQL condition `only_if` is true.
    fn write_hints(&self, commit: &Commit, only_if: &str, packet: &mut Packet) {
        if !commit.wakes.is_empty() {
            packet.add(|out| sql::write_wake_ups(&commit.wakes, only_if, out));
        }
        let is_needed = |change: &&WaitLock| match change {
            WaitLock::Keep(name) => !self.wait_locks.contains(name),
            WaitLock::Release(name) => self.wait_locks.contains(name),
        };
        let needed: Vec<&WaitLock> = commit.wait_locks.iter().filter(is_needed).collect();
        if !needed.is_empty() {
            packet.add(|out| sql::write_wait_locks(&needed, only_if, out));
        }
    }

    /// Updates `wait_locks` after a commit that was applied.
    fn update_wait_locks(&mut self, commit: &Commit) {
        for change in &commit.wait_locks {
            match change {
                WaitLock::Keep(name) => drop(self.wait_locks.insert(name.clone())),
                WaitLock::Release(name) => drop(self.wait_locks.remove(name)),
            }
        }
    }

    /// Adds a commit of several records in a transaction of its own.
    fn write_joint(&mut self, commit: &Commit, packet: &mut Packet) -> CommitProof {
        let versions: Vec<u64> = commit
            .changes
            .iter()
            .map(|change| match (&change.state, change.version) {
                (None, version) => version,
                (Some(_), 0) => self.first_version(),
                (Some(_), version) => version + 1,
            })
            .collect();
        let mut numbered_changes: Vec<(&Change, u64)> =
            commit.changes.iter().zip(versions.clone()).collect();
        numbered_changes.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        let sorted_changes: Vec<&Change> =
            numbered_changes.iter().map(|(change, _)| *change).collect();
        let absent: Vec<&Change> = sorted_changes
            .iter()
            .filter(|change| change.version == 0)
            .copied()
            .collect();
        if !absent.is_empty() {
            packet.add(|out| sql::write_empty_rows(&absent, out));
        }
        packet.add(|out| out.push_str("BEGIN"));
        packet.add(|out| sql::write_row_locks(&sorted_changes, out));
        let states: Vec<(&Change, &[u8], u64)> = numbered_changes
            .iter()
            .filter_map(|(change, version)| Some((*change, change.state.as_deref()?, *version)))
            .collect();
        let expected_count = sorted_changes.len();
        let update = (!states.is_empty())
            .then(|| packet.add(|out| sql::write_joint_update(&states, expected_count, out)))
            .map(|statement| (statement, states.len() as u64));
        packet.add(|out| out.push_str("COMMIT"));
        let statement = packet.add(|out| {
            out.extend([
                "SELECT @fit=",
                &expected_count.to_string(),
                ",",
                CLOCK_EXPRESSION,
            ]);
        });
        self.write_hints(commit, &format!("@fit={expected_count}"), packet);
        CommitProof::Jointly {
            update,
            row: statement,
            versions,
        }
    }

    fn write_check(&self, change: &Change, commit: &Commit, packet: &mut Packet) -> CommitProof {
        let statement = packet.add(|out| sql::write_check(change, out));
        self.write_hints(commit, "TRUE", packet);
        CommitProof::ByRow {
            statement,
            new_versions: vec![change.version],
        }
    }

    async fn read_clock(&mut self) -> Result<Option<u64>, Fault> {
        let results = self
            .connection
            .execute(&format!("SELECT {CLOCK_EXPRESSION}"))
            .await?;
        Ok(results
            .first()
            .and_then(|result| number_at(result.rows.first()?, 0)))
    }
}

/// Returns the outcome of a commit and the server's clock. The clock is `None` if the result does not contain it.
fn commit_outcome(
    proof: CommitProof,
    results: &[StatementResult],
) -> Result<(Committed, Option<u64>), Fault> {
    let result_at = |index: usize| results.get(index).ok_or_else(unreadable_answer);
    let (is_applied, clock, versions) = match proof {
        CommitProof::ByChange {
            statement,
            new_version,
        } => {
            let result = result_at(statement)?;
            let is_applied = result.changed > 0;
            (is_applied, result.last_insert_id, vec![new_version])
        }
        CommitProof::ByRow {
            statement,
            new_versions,
        } => {
            let (is_applied, clock) = read_check_row(result_at(statement)?)?;
            (is_applied, clock, new_versions)
        }
        CommitProof::Jointly {
            update,
            row,
            versions,
        } => {
            let (fits, clock) = read_check_row(result_at(row)?)?;
            let (changed, records) = match update {
                Some((update, records)) => (result_at(update)?.changed, records),
                None => (0, 0),
            };
            if fits && changed > 0 && changed < records {
                let why = "the server applied only part of a commit: run `quorate doctor` to see what is wrong \
                           with its tables";
                return Err(Fault::Server(why.into()));
            }
            (fits && changed == records, clock, versions)
        }
    };
    let committed = if is_applied {
        Committed::Done(versions)
    } else {
        Committed::Stale
    };
    Ok((committed, clock))
}

fn read_check_row(result: &StatementResult) -> Result<(bool, Option<u64>), Fault> {
    let row = result.rows.first().ok_or_else(unreadable_answer)?;
    let is_applied = number_at(row, 0).ok_or_else(unreadable_answer)?;
    Ok((is_applied == 1, number_at(row, 1)))
}

fn unreadable_answer() -> Fault {
    Fault::Server("the server sent an answer that cannot be read".into())
}

impl Session for MySqlSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let results = self.connection.execute(&sql::load_query(names)).await?;
        let (clock, found_records) = parse_records(results)?;
        let mut records_by_name: HashMap<Vec<u8>, Record> = found_records.into_iter().collect();
        // `names` can contain a name several times. The last occurrence takes the record; the others need a clone.
        let is_last_occurrence = |index: usize| !names[index + 1..].contains(&names[index]);
        let records = names.iter().enumerate().map(|(index, name)| {
            let record = if is_last_occurrence(index) {
                records_by_name.remove(&name[..])
            } else {
                records_by_name.get(&name[..]).cloned()
            };
            record.unwrap_or_default()
        });
        Ok(Clocked {
            what: records.collect(),
            clock,
        })
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        if !commits.iter().all(sql::fits_columns) {
            return Err(Fault::Unsupported(
                "the name of a record has more than 2,100 bytes".into(),
            ));
        }
        let mut packet = Packet::default();
        let proofs = self.write_commits(commits, &mut packet);
        let mut clock = None;
        let mut outcomes = Vec::with_capacity(commits.len());
        if !proofs.is_empty() {
            let results = self.connection.execute(packet.text()).await?;
            for (proof, commit) in proofs.into_iter().zip(commits) {
                let (committed, commit_clock) = commit_outcome(proof, &results)?;
                if matches!(committed, Committed::Done(_)) {
                    self.update_wait_locks(commit);
                }
                clock = clock.max(commit_clock);
                outcomes.push(committed);
            }
        }
        // If no result contains the clock, query it. An `UPDATE` returns the clock only if it changes a row.
        if clock.is_none() {
            clock = self.read_clock().await?;
        }
        Ok(Clocked {
            what: outcomes,
            clock,
        })
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        // Continue after the last record of the previous page. Counting records from the first one would take longer
        // with every page.
        let last_page = self
            .last_page
            .take()
            .filter(|(page_end, _)| *page_end == from);
        let last_name = last_page.as_ref().map(|(_, name)| &name[..]);
        let results = self
            .connection
            .execute(&sql::page_query(from, last_name, count))
            .await?;
        let (clock, records) = parse_records(results)?;
        let new_last_name = records.last().map(|(name, _)| name.clone());
        self.last_page = new_last_name.map(|name| (from + records.len() as u64, name));
        Ok(Clocked {
            what: records,
            clock,
        })
    }

    /// Removes the records in one transaction, so that the server waits for the disk once. Sorting the records by name
    /// prevents deadlocks between sessions. Skips records whose rows somebody has locked: a statement that waited for them
    /// would fail, and end the session.
    ///
    /// If the user lacks the right to remove records, the error makes the session unusable. After such an error, no
    /// session of this process tries to remove records again.
    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        if self.removal_denied.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut sorted = records.to_vec();
        sorted.sort_unstable();
        let mut packet = Packet::default();
        packet.add(|out| out.push_str("BEGIN"));
        for (name, version) in &sorted {
            packet.add(|out| sql::write_removal_lock(name, *version, out));
            packet.add(|out| sql::write_remove(name, *version, out));
        }
        packet.add(|out| out.push_str("COMMIT"));
        match self.connection.execute(packet.text()).await {
            Ok(_) => Ok(()),
            Err(Fault::Denied(why)) => {
                self.removal_denied.store(true, Ordering::Relaxed);
                let why = format!("cannot remove records that no lock needs any more: {why}");
                Err(Fault::Denied(why.into()))
            }
            Err(fault) => Err(fault),
        }
    }
}

/// Returns the server's clock and the existing records in the result of a read. Returns an error if the clock is
/// missing, so the clock is never `None`.
fn parse_records(results: Vec<StatementResult>) -> Result<(Option<u64>, Vec<NamedRecord>), Fault> {
    let rows = results
        .into_iter()
        .next()
        .ok_or_else(unreadable_answer)?
        .rows;
    let clock = rows.first().and_then(|row| number_at(row, 0));
    clock.ok_or_else(unreadable_answer)?;
    let mut records = Vec::new();
    for mut row in rows {
        if let (Some(name), Some(version), Some(state)) = (
            bytes_at(&mut row, 1),
            number_at(&row, 2),
            bytes_at(&mut row, 3),
        ) {
            records.push((name, Record::new(version, state)));
        }
    }
    Ok((clock, records))
}

/// The value of a column as bytes; `None` if the column is missing or NULL.
pub(crate) fn bytes_at(row: &mut Row, column: usize) -> Option<Vec<u8>> {
    match row.take(column)? {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// The value of a column as a number. A negative number becomes 0; `None` if the column is missing, NULL or not a
/// number.
pub(crate) fn number_at(row: &Row, column: usize) -> Option<u64> {
    match row.as_ref(column)? {
        Value::UInt(number) => Some(*number),
        Value::Int(number) => Some(u64::try_from(*number).unwrap_or(0)),
        Value::Bytes(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// The value of a column as text; `None` if the column is missing, NULL or not text.
pub(crate) fn text_at(row: &mut Row, column: usize) -> Option<String> {
    bytes_at(row, column).and_then(|bytes| String::from_utf8(bytes).ok())
}
