//! Reads and changes records in one session with a ZooKeeper server or ensemble.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use quorate::node::Fault;
use quorate::node::store::{
    Clocked, Commit, Committed, Date, NamedRecord, Record, Session, encode_messages,
};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::Instant;
use zookeeper_client::{
    Acl, Acls, Client, CreateMode, Error, MultiWriteError, MultiWriteResult, MultiWriter,
};

use crate::acl;
use crate::address::Address;
use crate::dial::{MemberConnection, SessionWatch};
use crate::fault;
use crate::greet::{date_of_change, date_of_results};
use crate::layout::{Layout, decode_name, parse_creation_id};
use crate::step::{CreationId, Step, change_steps, creation_id, record_version, removal_steps};

/// The largest data of one request, in bytes. ZooKeeper closes a connection that sends more than 1 MiB in one request.
const MAX_REQUEST_SIZE: usize = 1_000_000;

/// The largest number of records whose current znodes the session remembers (`creation_ids`). If there are more, it
/// forgets all records except those in the current request.
const MAX_REMEMBERED: usize = 16_384;

/// The number of attempts to read a record. An attempt fails if another client removes the record during the attempt.
const READ_ATTEMPTS: usize = 5;

/// If a session read the ACL for new records longer ago than this, it reads the ACL again before it creates a record.
const ACL_AGE: Duration = Duration::from_secs(30);

/// A session with a ZooKeeper server or ensemble, in which the client reads and changes the records of locks.
#[derive(Debug)]
pub struct ZooKeeperSession {
    client: Client,
    address: Arc<Address>,
    layout: Layout,
    /// The ACL that the znodes of new records get, and the time at which it was read (`acl_read_at`).
    acl: Vec<Acl>,
    acl_read_at: Instant,
    /// The names of all records, sorted, as they were when the first page was read. Later pages continue in this list.
    names: Vec<String>,
    /// The last known [`CreationId`] of each record. It is the name of the record's znode.
    creation_ids: HashMap<Arc<[u8]>, CreationId>,
    rng: StdRng,
    /// The latest timestamp (`mtime` of a znode) that this session has received from the ensemble; `None` if unknown.
    date: Mutex<Option<Date>>,
}

/// The result of a read if the record's parent znode exists, but contains no znode that this crate created. No commit
/// can change this record, because no znode has the version `u64::MAX`.
fn foreign_record() -> Record {
    Record::new(u64::MAX, vec![u8::MAX])
}

/// The outcome of one transaction on the ensemble.
enum TransactionResult {
    Done(Vec<u64>),
    Stale,
    /// Nothing was applied, because one wake-up is for a process that has no wake-up znode any more. The field is the
    /// index of this wake-up.
    ListenerGone(usize),
}

/// A transaction that was sent and is not answered yet.
struct SentTransaction {
    /// The names of the records that the transaction changes or checks.
    names: Vec<Arc<[u8]>>,
    /// The version of each record before the transaction, in the order of `names`.
    old_versions: Vec<u64>,
    /// The operations on each record, in the order of `names`.
    steps: Vec<Vec<Step>>,
    /// The number of wake-ups. In the transaction, they come after the operations on records.
    wake_up_count: usize,
}

impl SentTransaction {
    /// Returns the operation with this index in the transaction, and the name of its record. `None` if the operation is
    /// a wake-up.
    fn step(&self, index: usize) -> Option<(&[u8], Step)> {
        let steps_by_name = self.names.iter().zip(&self.steps);
        let mut operations = steps_by_name
            .flat_map(|(name, steps)| steps.iter().map(move |step| (&name[..], *step)));
        operations.nth(index)
    }
}

/// The id of a process, and the data that one commit writes to the wake-up znode of this process.
type Message = (Arc<str>, Vec<u8>);

impl ZooKeeperSession {
    pub(crate) fn new(
        connection: MemberConnection,
        address: Arc<Address>,
        acl: Vec<Acl>,
        date: Option<Date>,
    ) -> Self {
        Self {
            client: connection.client,
            layout: Layout::new(&address),
            acl,
            acl_read_at: Instant::now(),
            address,
            names: Vec::new(),
            creation_ids: HashMap::new(),
            rng: rand::make_rng(),
            date: Mutex::new(date),
        }
    }

    fn learn_date(&self, date: Option<Date>) {
        if date.is_some() {
            *self.date.lock().unwrap_or_else(PoisonError::into_inner) = date;
        }
    }

    /// Classifies the error of a request. `path` is the znode whose ACL permits or forbids the request.
    fn fault(&self, error: &Error, path: &str) -> Fault {
        fault::classify_request_error(error, path, &self.address)
    }

    async fn read_records(&mut self, names: &[Arc<[u8]>]) -> Result<Vec<Record>, Fault> {
        let mut records = vec![Record::default(); names.len()];
        let mut pending: Vec<usize> = (0..names.len()).collect();
        for _ in 0..READ_ATTEMPTS {
            self.find_creation_ids(names, &mut pending, &mut records)
                .await?;
            self.fetch_states(names, &mut pending, &mut records).await?;
            if pending.is_empty() {
                return Ok(records);
            }
        }
        let why = "a record was removed and created again during each attempt to read it";
        Err(Fault::Server(why.into()))
    }

    /// Finds the current [`CreationId`] of each record in `pending`, unless it is already in `self.creation_ids`.
    /// `pending` contains indexes of `names`.
    ///
    /// Removes from `pending` the records that [`fetch_states`](Self::fetch_states) must not read: they do not exist,
    /// or this user cannot read them.
    async fn find_creation_ids(
        &mut self,
        names: &[Arc<[u8]>],
        pending: &mut Vec<usize>,
        records: &mut [Record],
    ) -> Result<(), Fault> {
        let is_known = |index: &usize| self.creation_ids.contains_key(&names[*index]);
        let unknown: Vec<usize> = pending
            .iter()
            .copied()
            .filter(|index| !is_known(index))
            .collect();
        let paths: Vec<String> = unknown
            .iter()
            .map(|index| self.layout.record_parent(&names[*index]))
            .collect();
        let requests: Vec<_> = paths
            .iter()
            .map(|path| self.client.list_children(path))
            .collect();
        let listings = join_all(requests).await;
        if self.creation_ids.len() > MAX_REMEMBERED {
            self.creation_ids.retain(|name, _| names.contains(name));
        }
        for ((index, path), listing) in unknown.into_iter().zip(&paths).zip(listings) {
            let (children, exists) = match listing {
                Ok(children) => (children, true),
                Err(Error::NoNode) => (Vec::new(), false),
                Err(error @ Error::NoAuth) => {
                    pending.retain(|pending_index| *pending_index != index);
                    records[index] = Record::unreadable(self.fault(&error, path));
                    continue;
                }
                Err(error) => return Err(self.fault(&error, path)),
            };
            if let Some(id) = children.iter().find_map(|name| parse_creation_id(name)) {
                self.creation_ids.insert(names[index].clone(), id);
                continue;
            }
            pending.retain(|pending_index| *pending_index != index);
            if exists {
                records[index] = foreign_record();
            }
        }
        Ok(())
    }

    /// Reads the records in `pending` (indexes of `names`). Afterwards `pending` contains only the records that must be
    /// read again, because another client removed their znodes during the read.
    async fn fetch_states(
        &mut self,
        names: &[Arc<[u8]>],
        pending: &mut Vec<usize>,
        records: &mut [Record],
    ) -> Result<(), Fault> {
        let ids: Vec<CreationId> = pending
            .iter()
            .map(|index| self.creation_ids[&names[*index]])
            .collect();
        let znode_path =
            |(index, id): (&usize, &CreationId)| self.layout.record_znode(&names[*index], *id);
        let paths: Vec<String> = pending.iter().zip(&ids).map(znode_path).collect();
        // Each request is sent when the method is called, not when its future is polled.
        let requests: Vec<_> = paths
            .iter()
            .map(|path| self.client.get_data(path))
            .collect();
        let replies = join_all(requests).await;
        let requested = std::mem::take(pending).into_iter().zip(ids).zip(&paths);
        for (((index, id), path), reply) in requested.zip(replies) {
            match reply {
                Ok((state, stat)) => {
                    records[index] = Record::new(record_version(id, stat.version), state);
                }
                Err(Error::NoNode) => {
                    self.creation_ids.remove(&names[index]);
                    pending.push(index);
                }
                Err(error @ Error::NoAuth) => {
                    records[index] = Record::unreadable(self.fault(&error, path));
                }
                Err(error) => return Err(self.fault(&error, path)),
            }
        }
        Ok(())
    }

    async fn list_record_names(&self) -> Result<Vec<String>, Fault> {
        let records_path = self.layout.records();
        let listed = self.client.list_children(&records_path).await;
        let mut names = listed.map_err(|error| self.fault(&error, &records_path))?;
        // Leave out znodes that another program created.
        names.retain(|name| decode_name(name).is_some());
        names.sort_unstable();
        Ok(names)
    }

    /// Sends one commit immediately, and returns a future for its outcome. The commit and its wake-ups are one
    /// transaction, so a wake-up cannot be lost.
    fn send_commit(
        &self,
        commit: &Commit,
        steps: &[Vec<Step>],
        messages: &[Message],
    ) -> BoxFuture<'_, Result<TransactionResult, Fault>> {
        if let ([change], [only_steps], []) = (&*commit.changes, steps, messages)
            && let [Step::Set(id, znode_version)] = **only_steps
        {
            let state = change.state.as_deref().unwrap_or_default();
            let path = self.layout.record_znode(&change.name, id);
            let state_write = self.client.set_data(&path, state, Some(znode_version));
            return async move {
                match state_write.await {
                    Ok(stat) => {
                        self.learn_date(date_of_change(&stat, self.client.session_id()));
                        Ok(TransactionResult::Done(vec![record_version(
                            id,
                            stat.version,
                        )]))
                    }
                    Err(Error::BadVersion | Error::NoNode) => Ok(TransactionResult::Stale),
                    Err(error) => Err(self.fault(&error, &path)),
                }
            }
            .boxed();
        }
        let mut writer = self.client.new_multi_writer();
        let add_result = self.add_operations(&mut writer, commit, steps, messages);
        if let Err(error) = add_result {
            return std::future::ready(Err(self.fault(&error, self.layout.root()))).boxed();
        }
        let pending_commit = writer.commit();
        let (names, old_versions) = commit
            .changes
            .iter()
            .map(|change| (change.name.clone(), change.version))
            .unzip();
        let sent_transaction = SentTransaction {
            names,
            old_versions,
            steps: steps.to_vec(),
            wake_up_count: messages.len(),
        };
        async move { self.transaction_outcome(pending_commit.await, &sent_transaction) }.boxed()
    }

    fn add_operations(
        &self,
        writer: &mut MultiWriter<'_>,
        commit: &Commit,
        steps: &[Vec<Step>],
        messages: &[Message],
    ) -> Result<(), Error> {
        for (change, steps) in commit.changes.iter().zip(steps) {
            let state = change.state.as_deref().unwrap_or_default();
            self.add_record_operations(writer, &change.name, state, steps)?;
        }
        for (process, data) in messages {
            writer.add_set_data(&self.layout.wake_up(process), data, None)?;
        }
        Ok(())
    }

    fn add_record_operations(
        &self,
        writer: &mut MultiWriter<'_>,
        name: &[u8],
        state: &[u8],
        steps: &[Step],
    ) -> Result<(), Error> {
        let parent = || self.layout.record_parent(name);
        let znode = |id| self.layout.record_znode(name, id);
        let options = CreateMode::Persistent.with_acls(Acls::new(&self.acl));
        for step in steps {
            match *step {
                Step::CreateParent => writer.add_create(&parent(), b"", &options)?,
                Step::Create(id) => writer.add_create(&znode(id), state, &options)?,
                Step::Set(id, version) => writer.add_set_data(&znode(id), state, Some(version))?,
                Step::SetAgain(id) => writer.add_set_data(&znode(id), state, None)?,
                Step::Check(id, version) => writer.add_check_version(&znode(id), version)?,
                Step::Remove(id, version) => writer.add_delete(&znode(id), Some(version))?,
                Step::RemoveParent => writer.add_delete(&parent(), None)?,
            }
        }
        Ok(())
    }

    fn transaction_outcome(
        &self,
        answer: Result<Vec<MultiWriteResult>, MultiWriteError>,
        sent: &SentTransaction,
    ) -> Result<TransactionResult, Fault> {
        let record_operations: usize = sent.steps.iter().map(Vec::len).sum();
        match answer {
            Ok(results) if results.len() == record_operations + sent.wake_up_count => {
                self.learn_date(date_of_results(&results, self.client.session_id()));
                Ok(TransactionResult::Done(new_versions(
                    &results,
                    &sent.steps,
                    &sent.old_versions,
                )))
            }
            Ok(_) => Err(Fault::Disconnected("an incomplete answer".into())),
            Err(MultiWriteError::OperationFailed { index, source }) => {
                let creates_parent = sent
                    .step(index)
                    .is_some_and(|(_, step)| step == Step::CreateParent);
                match source {
                    _ if index >= record_operations => {
                        Ok(TransactionResult::ListenerGone(index - record_operations))
                    }
                    Error::BadVersion | Error::NodeExists => Ok(TransactionResult::Stale),
                    // The record's znode or its parent znode does not exist.
                    Error::NoNode if !creates_parent => Ok(TransactionResult::Stale),
                    error => Err(self.fault(&error, &self.acl_path(sent, index))),
                }
            }
            Err(MultiWriteError::RequestFailed { source }) => {
                Err(self.fault(&source, self.layout.root()))
            }
        }
    }

    /// The path of the znode whose ACL permits or forbids the operation with this index.
    fn acl_path(&self, sent: &SentTransaction, index: usize) -> String {
        let parent_of = |name: &[u8]| self.layout.record_parent(name);
        match sent.step(index) {
            None | Some((_, Step::CreateParent | Step::RemoveParent)) => self.layout.records(),
            Some((name, Step::Create(_) | Step::Remove(..))) => parent_of(name),
            Some((name, Step::Set(id, _) | Step::SetAgain(id) | Step::Check(id, _))) => {
                self.layout.record_znode(name, id)
            }
        }
    }

    /// Reads the ACL for new records again if the session read it more than [`ACL_AGE`] (30 s) ago.
    async fn refresh_acl(&mut self) -> Result<(), Fault> {
        if self.acl_read_at.elapsed() < ACL_AGE {
            return Ok(());
        }
        let watch = SessionWatch::start(&self.client)?;
        let records_path = self.layout.records();
        let acl = watch
            .result_of(acl::read_acl(&self.client, &records_path, &self.address))
            .await?;
        self.acl = acl;
        self.acl_read_at = Instant::now();
        Ok(())
    }

    /// Sends the removal of one record now. The server removes the record only if it has the expected version.
    fn send_removal(&self, name: &[u8], steps: &[Step]) -> BoxFuture<'_, Result<(), Fault>> {
        let mut writer = self.client.new_multi_writer();
        if let Err(error) = self.add_record_operations(&mut writer, name, b"", steps) {
            return std::future::ready(Err(self.fault(&error, self.layout.root()))).boxed();
        }
        let commit_future = writer.commit();
        async move {
            match commit_future.await {
                Ok(_) | Err(MultiWriteError::OperationFailed { .. }) => Ok(()),
                Err(MultiWriteError::RequestFailed { source }) => {
                    Err(self.fault(&source, self.layout.root()))
                }
            }
        }
        .boxed()
    }

    /// Stores the [`CreationId`] of each record that an applied commit changed.
    fn remember_creation_ids(&mut self, commits: &[Commit], outcomes: &[Committed]) {
        for (commit, outcome) in commits.iter().zip(outcomes) {
            let Committed::Done(versions) = outcome else {
                continue;
            };
            for (change, version) in commit.changes.iter().zip(versions) {
                if let Some(id) = creation_id(*version) {
                    self.creation_ids.insert(change.name.clone(), id);
                }
            }
        }
    }

    /// Waits for the outcome of a commit. If the commit failed because it wakes a process that has ended, sends the
    /// commit again without this wake-up.
    async fn await_outcome(
        &self,
        commit: &Commit,
        steps: &[Vec<Step>],
        mut messages: Vec<Message>,
        first_outcome: BoxFuture<'_, Result<TransactionResult, Fault>>,
    ) -> Result<Committed, Fault> {
        let mut outcome = first_outcome.await?;
        loop {
            match outcome {
                TransactionResult::Done(versions) => return Ok(Committed::Done(versions)),
                TransactionResult::Stale => return Ok(Committed::Stale),
                TransactionResult::ListenerGone(message) => messages.remove(message),
            };
            outcome = self.send_commit(commit, steps, &messages).await?;
        }
    }
}

impl Session for ZooKeeperSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let watch = SessionWatch::start(&self.client)?;
        watch
            .result_of(self.read_records(names))
            .await
            .map(without_clock)
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        let watch = SessionWatch::start(&self.client)?;
        let new_id = self.rng.random_range(1..=CreationId::MAX);
        let plan_results = commits.iter().map(|commit| plan_steps(commit, new_id));
        let plans = plan_results.collect::<Result<Vec<_>, _>>()?;
        let is_creation = |step: &Step| matches!(step, Step::CreateParent | Step::Create(_));
        if plans.iter().flatten().flatten().any(is_creation) {
            self.refresh_acl().await?;
        }
        // All commits are sent before the first result is awaited.
        let outcomes: Vec<_> = commits
            .iter()
            .zip(&plans)
            .map(|(commit, steps)| {
                let messages = messages_of(commit);
                let first_outcome = self.send_commit(commit, steps, &messages);
                self.await_outcome(commit, steps, messages, first_outcome)
            })
            .collect();
        let committed = watch.result_of(join_all(outcomes).map(combine)).await?;
        self.remember_creation_ids(commits, &committed);
        Ok(without_clock(committed))
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        let watch = SessionWatch::start(&self.client)?;
        if from == 0 || self.names.is_empty() {
            self.names = watch.result_of(self.list_record_names()).await?;
        }
        let skipped = usize::try_from(from).unwrap_or(usize::MAX);
        let page_items = self.names.iter().skip(skipped).take(count as usize);
        let page_names: Vec<Arc<[u8]>> = page_items
            .filter_map(|name| Some(decode_name(name)?.into()))
            .collect();
        let watch = SessionWatch::start(&self.client)?;
        let records = watch.result_of(self.read_records(&page_names)).await?;
        let owned_names = page_names.iter().map(|name| name.to_vec());
        Ok(without_clock(owned_names.zip(records).collect()))
    }

    fn date(&self) -> Option<Date> {
        *self.date.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        let watch = SessionWatch::start(&self.client)?;
        let removals: Vec<_> = records
            .iter()
            .filter_map(|(name, version)| Some((name, removal_steps(*version)?)))
            .map(|(name, steps)| self.send_removal(name, &steps))
            .collect();
        let all_removed = async { join_all(removals).await.into_iter().collect() };
        watch.result_of(all_removed).await
    }
}

/// A result without the server's clock. ZooKeeper's timestamps cannot measure a lease alone: they come from the clock
/// of the current leader, and the leader can change.
fn without_clock<T>(what: T) -> Clocked<T> {
    Clocked { what, clock: None }
}

/// The steps of a commit. Returns a fault if the commit is too large, or expects a version that no znode can have.
fn plan_steps(commit: &Commit, new_id: CreationId) -> Result<Vec<Vec<Step>>, Fault> {
    let states = commit
        .changes
        .iter()
        .filter_map(|change| change.state.as_ref());
    let size: usize = states.map(Vec::len).sum();
    if size > MAX_REQUEST_SIZE {
        let why = format!("the commit has {size} bytes, which is more than ZooKeeper accepts");
        return Err(Fault::Server(why.into()));
    }
    let plan: Option<_> = commit
        .changes
        .iter()
        .map(|change| change_steps(change, new_id))
        .collect();
    plan.ok_or_else(|| {
        Fault::Server("the commit expects a record version that no znode can have".into())
    })
}

/// The wake-ups of a commit: for each process, its id and the data for its wake-up znode.
fn messages_of(commit: &Commit) -> Vec<Message> {
    let mut messages: Vec<(Arc<str>, Vec<&[u8]>)> = Vec::new();
    for wake in &commit.wakes {
        match messages
            .iter_mut()
            .find(|(process, _)| *process == wake.process)
        {
            Some((_, words)) => words.push(&wake.word),
            None => messages.push((wake.process.clone(), vec![&wake.word])),
        }
    }
    let messages_by_process = messages.into_iter();
    messages_by_process
        .map(|(process, words)| (process, encode_messages(words)))
        .collect()
}

/// Returns the version of each record after a transaction that was applied. `old_versions` are the versions of the
/// records before the transaction.
fn new_versions(
    results: &[MultiWriteResult],
    steps: &[Vec<Step>],
    old_versions: &[u64],
) -> Vec<u64> {
    let mut results = results.iter();
    let versions = steps.iter().zip(old_versions).map(|(steps, old_version)| {
        match results.nth(steps.len() - 1) {
            Some(MultiWriteResult::Create { .. }) => created_version(steps).unwrap_or(*old_version),
            Some(MultiWriteResult::SetData { stat }) => {
                record_version(creation_id(*old_version).unwrap_or_default(), stat.version)
            }
            // The transaction checked this record and did not change it.
            _ => *old_version,
        }
    });
    versions.collect()
}

/// Returns the version of the record that these steps create; `None` if they create no record.
fn created_version(steps: &[Step]) -> Option<u64> {
    steps.iter().find_map(|step| match step {
        Step::Create(id) => Some(record_version(*id, 0)),
        _ => None,
    })
}

/// Combines the results of a batch of commits. If one commit has a fault, returns a fault for the whole batch.
///
/// Some faults say that their commit was not applied. If another commit of the batch was applied, this is false for the
/// batch, so the function returns a [`Fault::Server`] with the same text instead.
fn combine(outcomes: Vec<Result<Committed, Fault>>) -> Result<Vec<Committed>, Fault> {
    let is_any_applied = outcomes
        .iter()
        .any(|outcome| matches!(outcome, Ok(Committed::Done(_))));
    let committed: Result<Vec<_>, Fault> = outcomes.into_iter().collect();
    committed.map_err(|fault| match fault {
        fault if fault.left_nothing() && is_any_applied => Fault::Server(fault.to_string().into()),
        fault => fault,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_error_says_that_nothing_was_applied_only_if_no_commit_succeeded() {
        let missing_record = || Err(Fault::Unprepared("x".into()));
        let applied = || Ok(Committed::Done(vec![1]));
        assert!(
            combine(vec![missing_record(), missing_record()])
                .unwrap_err()
                .left_nothing()
        );
        assert!(
            !combine(vec![applied(), missing_record()])
                .unwrap_err()
                .left_nothing()
        );
        assert_eq!(
            combine(vec![applied(), Ok(Committed::Stale)])
                .unwrap()
                .len(),
            2
        );
    }
}
