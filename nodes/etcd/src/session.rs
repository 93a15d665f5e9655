//! Reads and changes records over a connection to one member of a cluster.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::Fault;
use quorate::node::store::{Clocked, Commit, Committed, Date, NamedRecord, Record, Session};
use serde_json::Value;

use crate::fault::unreadable;
use crate::greet::{Met, TXN};
use crate::layout::Layout;
use crate::member::{Member, header};
use crate::txn::{self, MOST_RECORDS};
use crate::versions::Versions;

/// The precision of the dates of a member: the header `Date` has whole seconds.
const GRAIN: Duration = Duration::from_secs(1);

/// A session with an etcd cluster, in which the client reads and changes the records of locks.
pub struct EtcdSession {
    member: Member,
    layout: Layout,
    /// The identity of the cluster. Every request takes effect only if the cluster still has it.
    identity: String,
    versions: Versions,
    /// The name of the cluster, and its number.
    name: String,
    cluster_id: u64,
    /// Identifies the clock that gives the dates.
    era: u64,
    /// The date of the last answer, in microseconds since 1970.
    date: Option<u64>,
    /// The positions after the last pages that were read, with the first key of the next page.
    paged: VecDeque<(u64, Vec<u8>)>,
}

/// The number of positions that are remembered. Several searches can read pages over one session.
const MOST_POSITIONS: usize = 8;
/// The number of keys that one request skips.
const SKIPPED_KEYS: u64 = 10_000;

/// The answer to a transaction.
struct Answered {
    body: Value,
    /// The revision of the cluster after the transaction.
    revision: u64,
    date: Option<u64>,
}

impl EtcdSession {
    pub(crate) fn new(member: Member, met: Met, era: u64) -> Self {
        let (name, layout) = (met.name(), member.shared.address.layout());
        Self {
            member,
            layout,
            versions: Versions::new(&met.identity),
            identity: met.identity,
            name,
            cluster_id: met.cluster_id,
            era,
            date: met.date,
            paged: VecDeque::new(),
        }
    }

    /// Executes a transaction, and checks that the same cluster has answered it, with no lower revision than before.
    async fn execute(&mut self, request: &Value) -> Result<Answered, Fault> {
        let seen = &self.member.shared.clone().seen;
        let floor = seen.floor(&self.name);
        let answer = self.member.call(TXN, request).await?;
        let (cluster_id, revision) = header(&answer.body)?;
        if cluster_id != self.cluster_id {
            return Err(Fault::Disconnected(
                "another cluster answers at this address".into(),
            ));
        }
        seen.check(&self.name, floor, revision)?;
        Ok(Answered {
            body: answer.body,
            revision,
            date: answer.date,
        })
    }

    /// Executes commits: one transaction for all of them, or several ones if they do not fit into one.
    async fn commit_all(&mut self, commits: &[Commit]) -> Result<Vec<Committed>, Fault> {
        // All parts are checked before the first one is sent.
        let parts = txn::parts(commits, &self.layout)?;
        let mut committed = Vec::with_capacity(commits.len());
        for part in parts {
            let commits = &commits[part];
            let request = txn::change(commits, &self.layout, self.versions, &self.identity);
            let outcome = match self.execute(&request).await {
                Ok(answered) => {
                    self.date = answered.date;
                    let version = self.versions.of_revision(answered.revision);
                    txn::results(&answered.body, commits, version, &self.identity)
                }
                Err(fault) => Err(fault),
            };
            match outcome {
                Ok(results) => committed.extend(results),
                // The earlier parts took effect, so the fault must not say that nothing did.
                Err(fault) if fault.left_nothing() && !committed.is_empty() => {
                    return Err(Fault::Disconnected(fault.to_string().into()));
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(committed)
    }

    /// Reads records whose number fits into one transaction.
    async fn read(&mut self, names: &[Arc<[u8]>]) -> Result<Vec<Record>, Fault> {
        let range = |name: &Arc<[u8]>| txn::range(&self.layout.record(name));
        let operations = names.iter().map(range).collect();
        let request = txn::on_identity(&self.identity, operations);
        let answered = self.execute(&request).await?;
        let responses = txn::of_identity(&answered.body)?;
        if responses.len() != names.len() {
            return Err(unreadable());
        }
        self.date = answered.date;
        let record = |response| {
            let found = txn::records(response, self.versions)?;
            Ok(found.into_iter().next().map(|(_, record)| record))
        };
        let records = responses.iter().map(record);
        records
            .map(|found| found.map(Option::unwrap_or_default))
            .collect()
    }

    /// The first key of the page at this position.
    async fn first_key(&mut self, from: u64) -> Result<Vec<u8>, Fault> {
        let known = self.paged.iter().position(|(upto, _)| *upto == from);
        if let Some((_, first)) = known.and_then(|index| self.paged.remove(index)) {
            return Ok(first);
        }
        // Another session has read the pages before. Skip their keys without the contents of the records.
        let (mut first, mut left) = (self.layout.records(), from);
        while left > 0 {
            let count = left.min(SKIPPED_KEYS);
            let limit = u32::try_from(count).unwrap_or(u32::MAX);
            let operation = txn::key_range(&first, &self.layout.records_end(), limit);
            let found = self.read_range(operation).await?;
            let Some((last, _)) = found.last() else { break };
            first = after(last);
            left = left.saturating_sub(found.len() as u64);
        }
        Ok(first)
    }

    /// Reads a range of records.
    async fn read_range(&mut self, operation: Value) -> Result<Vec<NamedRecord>, Fault> {
        let request = txn::on_identity(&self.identity, vec![operation]);
        let answered = self.execute(&request).await?;
        let responses = txn::of_identity(&answered.body)?;
        let found = txn::records(responses.first().ok_or_else(unreadable)?, self.versions)?;
        self.date = answered.date;
        Ok(found)
    }

    /// Reads each record alone, because this user has no right to read one of them.
    async fn read_each(&mut self, names: &[Arc<[u8]>]) -> Result<Vec<Record>, Fault> {
        let mut records = Vec::new();
        for name in names {
            match self.read(std::slice::from_ref(name)).await {
                Ok(found) => records.extend(found),
                Err(fault @ Fault::Denied(_)) => records.push(Record::unreadable(fault)),
                Err(fault) => return Err(fault),
            }
        }
        Ok(records)
    }
}

impl Session for EtcdSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let mut records = Vec::with_capacity(names.len());
        for names in names.chunks(MOST_RECORDS) {
            let found = match self.read(names).await {
                Err(Fault::Denied(_)) => self.read_each(names).await?,
                found => found?,
            };
            records.extend(found);
        }
        Ok(without_clock(records))
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        self.commit_all(commits).await.map(without_clock)
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        // Continue after the last record of the previous page. Counting records from the first one would take longer
        // with every page.
        let first = self.first_key(from).await?;
        let end = self.layout.records_end();
        let found = self
            .read_range(txn::page_range(&first, &end, count))
            .await?;
        if let Some((last, _)) = found.last() {
            if self.paged.len() >= MOST_POSITIONS {
                self.paged.pop_front();
            }
            let position = from.saturating_add(found.len() as u64);
            self.paged.push_back((position, after(last)));
        }
        let prefix = self.layout.records().len();
        let named = found.into_iter().map(|(mut key, record)| {
            key.drain(..prefix.min(key.len()));
            (key, record)
        });
        Ok(without_clock(named.collect()))
    }

    /// The date of the last answer that brought records or changed them.
    fn date(&self) -> Option<Date> {
        self.date
            .map(|micros| Date::new(micros, self.era).grain(GRAIN))
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        for records in records.chunks(MOST_RECORDS) {
            let removal = |(name, version): &(Arc<[u8]>, u64)| {
                txn::removal(&self.layout.record(name), self.versions.revision(*version))
            };
            let operations = records.iter().map(removal).collect();
            // The caller does not pair the date of this answer with the time of its request, so do not store it.
            let request = txn::on_identity(&self.identity, operations);
            let answered = self.execute(&request).await?;
            txn::of_identity(&answered.body)?;
        }
        Ok(())
    }
}

/// The smallest key that is larger than this one.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0][..]].concat()
}

/// A result without the cluster's clock: the dates of its answers have whole seconds, and each member has its own
/// clock.
fn without_clock<T>(what: T) -> Clocked<T> {
    Clocked { what, clock: None }
}
