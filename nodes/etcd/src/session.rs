//! Reads and changes records over a connection to one member of a cluster.

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
    /// The position after the last page that was read, and the first key of the next page.
    paged: Option<(u64, Vec<u8>)>,
}

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
            paged: None,
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
        let paged = self.paged.take().filter(|(upto, _)| *upto == from);
        let (skipped, first) = match paged {
            Some((_, first)) => (0, first),
            None => (from, self.layout.records()),
        };
        let limit = u32::try_from(skipped)
            .unwrap_or(u32::MAX)
            .saturating_add(count);
        let end = self.layout.records_end();
        let operations = vec![txn::page_range(&first, &end, limit)];
        let request = txn::on_identity(&self.identity, operations);
        let answered = self.execute(&request).await?;
        self.date = answered.date;
        let responses = txn::of_identity(&answered.body)?;
        let found = txn::records(responses.first().ok_or_else(unreadable)?, self.versions)?;
        let found: Vec<NamedRecord> = found
            .into_iter()
            .skip(usize::try_from(skipped).unwrap_or(usize::MAX))
            .collect();
        self.paged = found.last().map(|(last, _)| {
            // A zero byte at the end makes the smallest key that is larger.
            let next = [last, &[0][..]].concat();
            (from + found.len() as u64, next)
        });
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

/// A result without the cluster's clock: the dates of its answers have whole seconds, and each member has its own
/// clock.
fn without_clock<T>(what: T) -> Clocked<T> {
    Clocked { what, clock: None }
}
