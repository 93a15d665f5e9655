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
use crate::sql::{self, CLOCK, Packet};

/// A session with one server, in which the client reads and changes the records of locks.
pub struct MySqlSession {
    connection: Connection,
    draw: StdRng,
    /// Where the last page that was read ends: the number of records up to there, and the name of the page's last
    /// record. `None` if no page was read.
    paged: Option<(u64, Vec<u8>)>,
    /// The names of the wait locks (`GET_LOCK`) that this session holds on the server.
    wait_locks: HashSet<Arc<str>>,
    /// Whether the server has refused to remove records, because the user in the URL lacks the right `DELETE`.
    removal_denied: Arc<AtomicBool>,
}

/// How the results of a packet show whether a commit was applied.
enum Proof {
    /// The index of a statement, and the new version of the record. The commit was applied if this statement changed a
    /// row.
    ByChange(usize, u64),
    /// The index of a statement that returns one row, and the new versions of the records. The commit was applied if
    /// the first column of the row is true.
    ByRow(usize, Vec<u64>),
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
        let draw = rand::make_rng();
        Self {
            connection,
            draw,
            paged: None,
            wait_locks: HashSet::new(),
            removal_denied,
        }
    }

    /// Returns a random first version for a new record. If a record is removed and created again, its versions then
    /// almost certainly differ from the earlier versions.
    fn first_version(&mut self) -> u64 {
        self.draw.random_range(1..1 << 62)
    }

    /// Adds these commits to the packet. Returns which statement shows the outcome of each commit.
    fn write(&mut self, commits: &[Commit], packet: &mut Packet) -> Vec<Proof> {
        let mut proofs: Vec<Option<Proof>> = commits.iter().map(|_| None).collect();
        let mut single: Vec<(usize, &Change, &[u8])> = Vec::new();
        for (number, commit) in commits.iter().enumerate() {
            if let [change] = &commit.changes[..] {
                match &change.state {
                    Some(state) => single.push((number, change, state)),
                    None => proofs[number] = Some(self.check(change, commit, packet)),
                }
            }
        }
        self.write_single(commits, single, packet, &mut proofs);
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
        mut single: Vec<(usize, &Change, &[u8])>,
        packet: &mut Packet,
        proofs: &mut [Option<Proof>],
    ) {
        let joined = single.len() > 1;
        single.sort_by(|a, b| a.1.name.cmp(&b.1.name));
        if joined {
            packet.add(|out| out.push_str("BEGIN"));
        }
        for (number, change, state) in &single {
            let (at, version) = if change.version == 0 {
                let version = self.first_version();
                let at = packet.add(|out| sql::insert(change, state, version, out));
                (at, version)
            } else {
                let at = packet.add(|out| sql::update(change, state, out));
                (at, change.version + 1)
            };
            proofs[*number] = Some(Proof::ByChange(at, version));
            let follows =
                !commits[*number].wakes.is_empty() || !commits[*number].wait_locks.is_empty();
            if joined && follows {
                packet.add(|out| out.extend(["SET @done", &number.to_string(), "=ROW_COUNT()"]));
            }
        }
        if joined {
            packet.add(|out| out.push_str("COMMIT"));
        }
        for (number, _, _) in &single {
            let only_if = if joined {
                format!("@done{number}>0")
            } else {
                // The number of rows that the previous statement has changed: the commit, or the insertion of its
                // wake-ups. The number is 0 if the commit was not applied.
                "ROW_COUNT()>0".to_owned()
            };
            self.write_hints(&commits[*number], &only_if, packet);
        }
    }

    /// Adds statements for the commit's wake-ups and wait locks to the packet. These statements take effect only if the
    /// SQL condition `only_if` is true.
    fn write_hints(&self, commit: &Commit, only_if: &str, packet: &mut Packet) {
        if !commit.wakes.is_empty() {
            packet.add(|out| sql::wake(&commit.wakes, only_if, out));
        }
        let needed = |change: &&WaitLock| match change {
            WaitLock::Keep(name) => !self.wait_locks.contains(name),
            WaitLock::Release(name) => self.wait_locks.contains(name),
        };
        let needed: Vec<&WaitLock> = commit.wait_locks.iter().filter(needed).collect();
        if !needed.is_empty() {
            packet.add(|out| sql::wait_locks(&needed, only_if, out));
        }
    }

    /// Updates `wait_locks` after a commit that was applied.
    fn note_wait_locks(&mut self, commit: &Commit) {
        for change in &commit.wait_locks {
            match change {
                WaitLock::Keep(name) => drop(self.wait_locks.insert(name.clone())),
                WaitLock::Release(name) => drop(self.wait_locks.remove(name)),
            }
        }
    }

    /// Adds a commit of several records in a transaction of its own.
    fn write_joint(&mut self, commit: &Commit, packet: &mut Packet) -> Proof {
        let versions: Vec<u64> = commit
            .changes
            .iter()
            .map(|change| match (&change.state, change.version) {
                (None, version) => version,
                (Some(_), 0) => self.first_version(),
                (Some(_), version) => version + 1,
            })
            .collect();
        let mut changes: Vec<(&Change, u64)> =
            commit.changes.iter().zip(versions.clone()).collect();
        changes.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        let all: Vec<&Change> = changes.iter().map(|(change, _)| *change).collect();
        let absent: Vec<&Change> = all.iter().filter(|one| one.version == 0).copied().collect();
        if !absent.is_empty() {
            packet.add(|out| sql::make_room(&absent, out));
        }
        packet.add(|out| out.push_str("BEGIN"));
        packet.add(|out| sql::lock(&all, out));
        let states: Vec<(&Change, &[u8], u64)> = changes
            .iter()
            .filter_map(|(change, version)| Some((*change, change.state.as_deref()?, *version)))
            .collect();
        let fit = all.len();
        let update = (!states.is_empty())
            .then(|| packet.add(|out| sql::update_all(&states, fit, out)))
            .map(|at| (at, states.len() as u64));
        packet.add(|out| out.push_str("COMMIT"));
        let at = packet.add(|out| out.extend(["SELECT @fit=", &fit.to_string(), ",", CLOCK]));
        self.write_hints(commit, &format!("@fit={fit}"), packet);
        Proof::Jointly {
            update,
            row: at,
            versions,
        }
    }

    fn check(&self, change: &Change, commit: &Commit, packet: &mut Packet) -> Proof {
        let at = packet.add(|out| sql::check(change, out));
        self.write_hints(commit, "TRUE", packet);
        Proof::ByRow(at, vec![change.version])
    }

    async fn clock(&mut self) -> Result<Option<u64>, Fault> {
        let said = self.connection.ask(&format!("SELECT {CLOCK}")).await?;
        Ok(said.first().and_then(|one| number(one.rows.first()?, 0)))
    }
}

/// Returns the outcome of a commit and the server's clock. The clock is `None` if the result does not contain it.
fn became(proof: Proof, said: &[StatementResult]) -> Result<(Committed, Option<u64>), Fault> {
    let at = |at: usize| said.get(at).ok_or_else(unreadable);
    let (done, clock, versions) = match proof {
        Proof::ByChange(change, version) => {
            let outcome = at(change)?;
            (outcome.changed > 0, outcome.number, vec![version])
        }
        Proof::ByRow(row, versions) => {
            let (done, clock) = by_row(at(row)?)?;
            (done, clock, versions)
        }
        Proof::Jointly {
            update,
            row,
            versions,
        } => {
            let (fit, clock) = by_row(at(row)?)?;
            let (changed, records) = match update {
                Some((update, records)) => (at(update)?.changed, records),
                None => (0, 0),
            };
            if fit && changed > 0 && changed < records {
                let why = "the server applied only part of a commit: run `quorate doctor` to see what is wrong \
                           with its tables";
                return Err(Fault::Server(why.into()));
            }
            (fit && changed == records, clock, versions)
        }
    };
    let committed = if done {
        Committed::Done(versions)
    } else {
        Committed::Stale
    };
    Ok((committed, clock))
}

fn by_row(outcome: &StatementResult) -> Result<(bool, Option<u64>), Fault> {
    let row = outcome.rows.first().ok_or_else(unreadable)?;
    let done = number(row, 0).ok_or_else(unreadable)?;
    Ok((done == 1, number(row, 1)))
}

fn unreadable() -> Fault {
    Fault::Server("the server sent an answer that cannot be read".into())
}

impl Session for MySqlSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let said = self.connection.ask(&sql::load(names)).await?;
        let (clock, found) = records(said)?;
        let mut found: HashMap<Vec<u8>, Record> = found.into_iter().collect();
        // `names` can contain a name several times. The last occurrence takes the record; the others need a clone.
        let last = |number: usize| !names[number + 1..].contains(&names[number]);
        let what = names.iter().enumerate().map(|(number, name)| {
            let record = if last(number) {
                found.remove(&name[..])
            } else {
                found.get(&name[..]).cloned()
            };
            record.unwrap_or_default()
        });
        let what = what.collect();
        Ok(Clocked { what, clock })
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        if !commits.iter().all(sql::has_room) {
            return Err(Fault::Unsupported(
                "the name of a record has more than 2,100 bytes".into(),
            ));
        }
        let mut packet = Packet::default();
        let proofs = self.write(commits, &mut packet);
        let mut clock = None;
        let mut what = Vec::with_capacity(commits.len());
        if !proofs.is_empty() {
            let said = self.connection.ask(packet.text()).await?;
            for (proof, commit) in proofs.into_iter().zip(commits) {
                let (committed, shown) = became(proof, &said)?;
                if matches!(committed, Committed::Done(_)) {
                    self.note_wait_locks(commit);
                }
                clock = clock.max(shown);
                what.push(committed);
            }
        }
        // If no result contains the clock, query it. An `UPDATE` returns the clock only if it changes a row.
        if clock.is_none() {
            clock = self.clock().await?;
        }
        Ok(Clocked { what, clock })
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        // Continue after the last record of the previous page. Counting records from the first one would take longer
        // with every page.
        let paged = self.paged.take().filter(|(upto, _)| *upto == from);
        let behind = paged.as_ref().map(|(_, last)| &last[..]);
        let said = self.connection.ask(&sql::page(from, behind, count)).await?;
        let (clock, what) = records(said)?;
        let last = what.last().map(|(name, _)| name.clone());
        self.paged = last.map(|last| (from + what.len() as u64, last));
        Ok(Clocked { what, clock })
    }

    /// Removes the records in one transaction, so that the server waits for the disk once. Sorting the records by name
    /// prevents deadlocks between sessions.
    ///
    /// If the user lacks the right to remove records, the error makes the session unusable. After such an error, no
    /// session of this process tries to remove records again.
    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        if self.removal_denied.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut records = records.to_vec();
        records.sort_unstable();
        let mut packet = Packet::default();
        packet.add(|out| out.push_str("BEGIN"));
        for (name, version) in &records {
            packet.add(|out| sql::remove(name, *version, out));
        }
        packet.add(|out| out.push_str("COMMIT"));
        match self.connection.ask(packet.text()).await {
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
fn records(said: Vec<StatementResult>) -> Result<(Option<u64>, Vec<NamedRecord>), Fault> {
    let rows = said.into_iter().next().ok_or_else(unreadable)?.rows;
    let clock = rows.first().and_then(|row| number(row, 0));
    clock.ok_or_else(unreadable)?;
    let mut found = Vec::new();
    for mut row in rows {
        if let (Some(name), Some(version), Some(state)) =
            (bytes(&mut row, 1), number(&row, 2), bytes(&mut row, 3))
        {
            found.push((name, Record::new(version, state)));
        }
    }
    Ok((clock, found))
}

/// The value of a column as bytes; `None` if the column is missing or NULL.
pub(crate) fn bytes(row: &mut Row, column: usize) -> Option<Vec<u8>> {
    match row.take(column)? {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

/// The value of a column as a number. A negative number becomes 0; `None` if the column is missing, NULL or not a
/// number.
pub(crate) fn number(row: &Row, column: usize) -> Option<u64> {
    match row.as_ref(column)? {
        Value::UInt(number) => Some(*number),
        Value::Int(number) => Some(u64::try_from(*number).unwrap_or(0)),
        Value::Bytes(digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
        _ => None,
    }
}

/// The value of a column as text; `None` if the column is missing, NULL or not text.
pub(crate) fn word(row: &mut Row, column: usize) -> Option<String> {
    bytes(row, column).and_then(|bytes| String::from_utf8(bytes).ok())
}
