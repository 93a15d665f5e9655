//! Reads and changes records in one session with a ZooKeeper server or ensemble.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use quorate::node::Fault;
use quorate::node::store::{Clocked, Commit, Committed, Date, NamedRecord, Record, Session};
use rand::RngExt;
use rand::rngs::StdRng;
use tokio::time::Instant;
use zookeeper_client::{
    Acl, Acls, Client, CreateMode, Error, MultiWriteError, MultiWriteResult, MultiWriter,
};

use crate::acl;
use crate::address::Address;
use crate::dial::{Dialled, Watch};
use crate::fault;
use crate::greet::{date_of, date_of_all};
use crate::layout::{Layout, life_of, unhex};
use crate::step::{Life, Step, life, removal, steps, version};
use crate::words;

/// The largest data of one request, in bytes. ZooKeeper closes a connection that sends more than 1 MiB in one request.
const LARGEST: usize = 1_000_000;

/// The largest number of records whose current znodes the session remembers (`lives`). If there are more, it forgets
/// all records except those in the current request.
const MOST: usize = 16_384;

/// The number of attempts to read a record. An attempt fails if another client removes the record during the attempt.
const TRIES: usize = 5;

/// If a session read the ACL for new records longer ago than this, it reads the ACL again before it creates a record.
const ACL_AGE: Duration = Duration::from_secs(30);

/// A session with a ZooKeeper server or ensemble, in which the client reads and changes the records of locks.
#[derive(Debug)]
pub struct ZooKeeperSession {
    client: Client,
    address: Arc<Address>,
    layout: Layout,
    /// The ACL that the znodes of new records get, and the time at which it was read.
    acl: (Vec<Acl>, Instant),
    /// The names of all records, sorted, as they were when the first page was read. Later pages continue in this list.
    names: Vec<String>,
    /// The last known [`Life`] of each record. It is the name of the record's znode.
    lives: HashMap<Arc<[u8]>, Life>,
    draw: StdRng,
    /// The latest timestamp (`mtime` of a znode) that this session has received from the ensemble; `None` if unknown.
    date: Mutex<Option<Date>>,
}

/// The result of a read if the record's parent znode exists, but contains no znode that this crate created. No commit
/// can change this record, because no znode has the version `u64::MAX`.
fn strange() -> Record {
    Record::new(u64::MAX, vec![u8::MAX])
}

/// The outcome of one transaction on the ensemble.
enum TransactionResult {
    Done(Vec<u64>),
    Stale,
    /// Nothing was applied, because one wake-up is for a process that has no wake-up znode any more. The field is the
    /// index of this wake-up.
    ReaderGone(usize),
}

/// A transaction that was sent and is not answered yet.
struct Sent {
    /// The names of the records that the transaction changes or checks.
    names: Vec<Arc<[u8]>>,
    /// The version of each record before the transaction, in the order of `names`.
    before: Vec<u64>,
    /// The operations on each record, in the order of `names`.
    steps: Vec<Vec<Step>>,
    /// The number of wake-ups. In the transaction, they come after the operations on records.
    messages: usize,
}

impl Sent {
    /// Returns the operation with this index in the transaction, and the name of its record. `None` if the operation is
    /// a wake-up.
    fn step(&self, index: usize) -> Option<(&[u8], Step)> {
        let names = self.names.iter().zip(&self.steps);
        let mut all =
            names.flat_map(|(name, steps)| steps.iter().map(move |step| (&name[..], *step)));
        all.nth(index)
    }
}

/// The id of a process, and the data that one commit writes to the wake-up znode of this process.
type Message = (Arc<str>, Vec<u8>);

impl ZooKeeperSession {
    pub(crate) fn new(
        dialled: Dialled,
        address: Arc<Address>,
        acl: Vec<Acl>,
        date: Option<Date>,
    ) -> Self {
        Self {
            client: dialled.client,
            layout: Layout::new(&address),
            acl: (acl, Instant::now()),
            address,
            names: Vec::new(),
            lives: HashMap::new(),
            draw: rand::make_rng(),
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
        fault::of_request(error, path, &self.address)
    }

    async fn read(&mut self, names: &[Arc<[u8]>]) -> Result<Vec<Record>, Fault> {
        let mut records = vec![Record::default(); names.len()];
        let mut open: Vec<usize> = (0..names.len()).collect();
        for _ in 0..TRIES {
            self.find(names, &mut open, &mut records).await?;
            self.fetch(names, &mut open, &mut records).await?;
            if open.is_empty() {
                return Ok(records);
            }
        }
        let why = "a record was removed and created again during each attempt to read it";
        Err(Fault::Server(why.into()))
    }

    /// Finds the current [`Life`] of each record in `open`, unless it is already in `self.lives`. `open` contains
    /// indexes of `names`.
    ///
    /// Removes from `open` the records that [`fetch`](Self::fetch) must not read: they do not exist, or this user
    /// cannot read them.
    async fn find(
        &mut self,
        names: &[Arc<[u8]>],
        open: &mut Vec<usize>,
        records: &mut [Record],
    ) -> Result<(), Fault> {
        let known = |at: &usize| self.lives.contains_key(&names[*at]);
        let unknown: Vec<usize> = open.iter().copied().filter(|at| !known(at)).collect();
        let paths: Vec<String> = unknown
            .iter()
            .map(|at| self.layout.record(&names[*at]))
            .collect();
        let asked: Vec<_> = paths
            .iter()
            .map(|path| self.client.list_children(path))
            .collect();
        let said = join_all(asked).await;
        if self.lives.len() > MOST {
            self.lives.retain(|name, _| names.contains(name));
        }
        for ((at, path), said) in unknown.into_iter().zip(&paths).zip(said) {
            let (lives, foreign) = match said {
                Ok(lives) => (lives, true),
                Err(Error::NoNode) => (Vec::new(), false),
                Err(error @ Error::NoAuth) => {
                    open.retain(|one| *one != at);
                    records[at] = Record::unreadable(self.fault(&error, path));
                    continue;
                }
                Err(error) => return Err(self.fault(&error, path)),
            };
            if let Some(life) = lives.iter().find_map(|life| life_of(life)) {
                self.lives.insert(names[at].clone(), life);
                continue;
            }
            open.retain(|one| *one != at);
            if foreign {
                records[at] = strange();
            }
        }
        Ok(())
    }

    /// Reads the records in `open` (indexes of `names`). Afterwards `open` contains only the records that must be read
    /// again, because another client removed their znodes during the read.
    async fn fetch(
        &mut self,
        names: &[Arc<[u8]>],
        open: &mut Vec<usize>,
        records: &mut [Record],
    ) -> Result<(), Fault> {
        let lives: Vec<Life> = open.iter().map(|at| self.lives[&names[*at]]).collect();
        let path = |(at, life): (&usize, &Life)| self.layout.of_life(&names[*at], *life);
        let paths: Vec<String> = open.iter().zip(&lives).map(path).collect();
        // Each request is sent when the method is called, not when its future is polled.
        let asked: Vec<_> = paths
            .iter()
            .map(|path| self.client.get_data(path))
            .collect();
        let said = join_all(asked).await;
        let asked = std::mem::take(open);
        let asked = asked.into_iter().zip(lives).zip(&paths);
        for (((at, life), path), said) in asked.zip(said) {
            match said {
                Ok((state, stat)) => {
                    records[at] = Record::new(version(life, stat.version), state);
                }
                Err(Error::NoNode) => {
                    self.lives.remove(&names[at]);
                    open.push(at);
                }
                Err(error @ Error::NoAuth) => {
                    records[at] = Record::unreadable(self.fault(&error, path));
                }
                Err(error) => return Err(self.fault(&error, path)),
            }
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<String>, Fault> {
        let records = self.layout.records();
        let listed = self.client.list_children(&records).await;
        let mut names = listed.map_err(|error| self.fault(&error, &records))?;
        // Leave out znodes that another program created.
        names.retain(|name| unhex(name).is_some());
        names.sort_unstable();
        Ok(names)
    }

    /// Sends one commit immediately, and returns a future for its outcome. The commit and its wake-ups are one
    /// transaction, so a wake-up cannot be lost.
    fn send(
        &self,
        commit: &Commit,
        steps: &[Vec<Step>],
        messages: &[Message],
    ) -> BoxFuture<'_, Result<TransactionResult, Fault>> {
        if let ([change], [only], []) = (&*commit.changes, steps, messages)
            && let [Step::Set(life, at)] = **only
        {
            let state = change.state.as_deref().unwrap_or_default();
            let path = self.layout.of_life(&change.name, life);
            let set = self.client.set_data(&path, state, Some(at));
            return async move {
                match set.await {
                    Ok(stat) => {
                        self.learn_date(date_of(&stat, self.client.session_id()));
                        Ok(TransactionResult::Done(vec![version(life, stat.version)]))
                    }
                    Err(Error::BadVersion | Error::NoNode) => Ok(TransactionResult::Stale),
                    Err(error) => Err(self.fault(&error, &path)),
                }
            }
            .boxed();
        }
        let mut writer = self.client.new_multi_writer();
        let added = self.write(&mut writer, commit, steps, messages);
        if let Err(error) = added {
            return std::future::ready(Err(self.fault(&error, self.layout.root()))).boxed();
        }
        let sent = writer.commit();
        let (names, before) = commit
            .changes
            .iter()
            .map(|change| (change.name.clone(), change.version))
            .unzip();
        let sent_steps = Sent {
            names,
            before,
            steps: steps.to_vec(),
            messages: messages.len(),
        };
        async move { self.judge(sent.await, &sent_steps) }.boxed()
    }

    fn write(
        &self,
        writer: &mut MultiWriter<'_>,
        commit: &Commit,
        steps: &[Vec<Step>],
        messages: &[Message],
    ) -> Result<(), Error> {
        for (change, steps) in commit.changes.iter().zip(steps) {
            let state = change.state.as_deref().unwrap_or_default();
            self.write_record(writer, &change.name, state, steps)?;
        }
        for (process, data) in messages {
            writer.add_set_data(&self.layout.wake(process), data, None)?;
        }
        Ok(())
    }

    fn write_record(
        &self,
        writer: &mut MultiWriter<'_>,
        name: &[u8],
        state: &[u8],
        steps: &[Step],
    ) -> Result<(), Error> {
        let record = || self.layout.record(name);
        let of_life = |life| self.layout.of_life(name, life);
        let options = CreateMode::Persistent.with_acls(Acls::new(&self.acl.0));
        for step in steps {
            match *step {
                Step::Room => writer.add_create(&record(), b"", &options)?,
                Step::Create(life) => writer.add_create(&of_life(life), state, &options)?,
                Step::Set(life, at) => writer.add_set_data(&of_life(life), state, Some(at))?,
                Step::SetAgain(life) => writer.add_set_data(&of_life(life), state, None)?,
                Step::Check(life, at) => writer.add_check_version(&of_life(life), at)?,
                Step::Remove(life, at) => writer.add_delete(&of_life(life), Some(at))?,
                Step::Clear => writer.add_delete(&record(), None)?,
            }
        }
        Ok(())
    }

    fn judge(
        &self,
        said: Result<Vec<MultiWriteResult>, MultiWriteError>,
        sent: &Sent,
    ) -> Result<TransactionResult, Fault> {
        let of_records: usize = sent.steps.iter().map(Vec::len).sum();
        match said {
            Ok(results) if results.len() == of_records + sent.messages => {
                self.learn_date(date_of_all(&results, self.client.session_id()));
                Ok(TransactionResult::Done(versions(
                    &results,
                    &sent.steps,
                    &sent.before,
                )))
            }
            Ok(_) => Err(Fault::Disconnected("an incomplete answer".into())),
            Err(MultiWriteError::OperationFailed { index, source }) => {
                let created = sent.step(index).is_some_and(|(_, step)| step == Step::Room);
                match source {
                    _ if index >= of_records => {
                        Ok(TransactionResult::ReaderGone(index - of_records))
                    }
                    Error::BadVersion | Error::NodeExists => Ok(TransactionResult::Stale),
                    // The record's znode or its parent znode does not exist.
                    Error::NoNode if !created => Ok(TransactionResult::Stale),
                    error => Err(self.fault(&error, &self.decided_by(sent, index))),
                }
            }
            Err(MultiWriteError::RequestFailed { source }) => {
                Err(self.fault(&source, self.layout.root()))
            }
        }
    }

    /// The path of the znode whose ACL permits or forbids the operation with this index.
    fn decided_by(&self, sent: &Sent, index: usize) -> String {
        let record = |name: &[u8]| self.layout.record(name);
        match sent.step(index) {
            None | Some((_, Step::Room | Step::Clear)) => self.layout.records(),
            Some((name, Step::Create(_) | Step::Remove(..))) => record(name),
            Some((name, Step::Set(life, _) | Step::SetAgain(life) | Step::Check(life, _))) => {
                self.layout.of_life(name, life)
            }
        }
    }

    /// Reads the ACL for new records again if the session read it more than [`ACL_AGE`] (30 s) ago.
    async fn refresh_acl(&mut self) -> Result<(), Fault> {
        if self.acl.1.elapsed() < ACL_AGE {
            return Ok(());
        }
        let watch = Watch::on(&self.client)?;
        let records = self.layout.records();
        let acl = watch
            .over(acl::read(&self.client, &records, &self.address))
            .await?;
        self.acl = (acl, Instant::now());
        Ok(())
    }

    /// Sends the removal of one record now. The server removes the record only if it has the expected version.
    fn send_removal(&self, name: &[u8], steps: &[Step]) -> BoxFuture<'_, Result<(), Fault>> {
        let mut writer = self.client.new_multi_writer();
        if let Err(error) = self.write_record(&mut writer, name, b"", steps) {
            return std::future::ready(Err(self.fault(&error, self.layout.root()))).boxed();
        }
        let sent = writer.commit();
        async move {
            match sent.await {
                Ok(_) | Err(MultiWriteError::OperationFailed { .. }) => Ok(()),
                Err(MultiWriteError::RequestFailed { source }) => {
                    Err(self.fault(&source, self.layout.root()))
                }
            }
        }
        .boxed()
    }

    /// Stores the [`Life`] of each record that an applied commit changed.
    fn remember(&mut self, commits: &[Commit], settled: &[Committed]) {
        for (commit, settled) in commits.iter().zip(settled) {
            let Committed::Done(versions) = settled else {
                continue;
            };
            for (change, version) in commit.changes.iter().zip(versions) {
                if let Some(life) = life(*version) {
                    self.lives.insert(change.name.clone(), life);
                }
            }
        }
    }

    /// Waits for the outcome of a commit. If the commit failed because it wakes a process that has ended, sends the
    /// commit again without this wake-up.
    async fn settle(
        &self,
        commit: &Commit,
        steps: &[Vec<Step>],
        mut messages: Vec<Message>,
        first: BoxFuture<'_, Result<TransactionResult, Fault>>,
    ) -> Result<Committed, Fault> {
        let mut outcome = first.await?;
        loop {
            match outcome {
                TransactionResult::Done(versions) => return Ok(Committed::Done(versions)),
                TransactionResult::Stale => return Ok(Committed::Stale),
                TransactionResult::ReaderGone(gone) => messages.remove(gone),
            };
            outcome = self.send(commit, steps, &messages).await?;
        }
    }
}

impl Session for ZooKeeperSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let watch = Watch::on(&self.client)?;
        watch.over(self.read(names)).await.map(without_clock)
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        let watch = Watch::on(&self.client)?;
        let life = self.draw.random_range(1..=Life::MAX);
        let planned = commits.iter().map(|commit| plan(commit, life));
        let planned = planned.collect::<Result<Vec<_>, _>>()?;
        let creates = |step: &Step| matches!(step, Step::Room | Step::Create(_));
        if planned.iter().flatten().flatten().any(creates) {
            self.refresh_acl().await?;
        }
        // All commits are sent before the first result is awaited.
        let sent: Vec<_> = commits
            .iter()
            .zip(&planned)
            .map(|(commit, steps)| {
                let messages = messages_of(commit);
                let first = self.send(commit, steps, &messages);
                self.settle(commit, steps, messages, first)
            })
            .collect();
        let settled = watch.over(join_all(sent).map(together)).await?;
        self.remember(commits, &settled);
        Ok(without_clock(settled))
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        let watch = Watch::on(&self.client)?;
        if from == 0 || self.names.is_empty() {
            self.names = watch.over(self.list()).await?;
        }
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let page = self.names.iter().skip(from).take(count as usize);
        let named: Vec<Arc<[u8]>> = page.filter_map(|name| Some(unhex(name)?.into())).collect();
        let watch = Watch::on(&self.client)?;
        let records = watch.over(self.read(&named)).await?;
        let named = named.iter().map(|name| name.to_vec());
        Ok(without_clock(named.zip(records).collect()))
    }

    fn date(&self) -> Option<Date> {
        *self.date.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        let watch = Watch::on(&self.client)?;
        let sent: Vec<_> = records
            .iter()
            .filter_map(|(name, version)| Some((name, removal(*version)?)))
            .map(|(name, steps)| self.send_removal(name, &steps))
            .collect();
        let all = async { join_all(sent).await.into_iter().collect() };
        watch.over(all).await
    }
}

/// A result without the server's clock. ZooKeeper's timestamps cannot measure a lease alone: they come from the clock of
/// the current leader, and the leader can change.
fn without_clock<T>(what: T) -> Clocked<T> {
    Clocked { what, clock: None }
}

/// The steps of a commit. Returns a fault if the commit is too large, or expects a version that no znode can have.
fn plan(commit: &Commit, life: Life) -> Result<Vec<Vec<Step>>, Fault> {
    let states = commit.changes.iter().filter_map(|it| it.state.as_ref());
    let size: usize = states.map(Vec::len).sum();
    if size > LARGEST {
        let why = format!("the commit has {size} bytes, which is more than ZooKeeper accepts");
        return Err(Fault::Server(why.into()));
    }
    let planned: Option<_> = commit
        .changes
        .iter()
        .map(|change| steps(change, life))
        .collect();
    planned.ok_or_else(|| {
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
            Some((_, all)) => all.push(&wake.word),
            None => messages.push((wake.process.clone(), vec![&wake.word])),
        }
    }
    let written = messages.into_iter();
    written
        .map(|(process, all)| (process, words::write(all)))
        .collect()
}

/// Returns the version of each record after a transaction that was applied. `before` are the versions of the records
/// before the transaction.
fn versions(results: &[MultiWriteResult], steps: &[Vec<Step>], before: &[u64]) -> Vec<u64> {
    let mut results = results.iter();
    let last = steps
        .iter()
        .zip(before)
        .map(|(steps, before)| match results.nth(steps.len() - 1) {
            Some(MultiWriteResult::Create { .. }) => made(steps).unwrap_or(*before),
            Some(MultiWriteResult::SetData { stat }) => {
                version(life(*before).unwrap_or_default(), stat.version)
            }
            // The transaction checked this record and did not change it.
            _ => *before,
        });
    last.collect()
}

/// Returns the version of the record that these steps create; `None` if they create no record.
fn made(steps: &[Step]) -> Option<u64> {
    steps.iter().find_map(|step| match step {
        Step::Create(life) => Some(version(*life, 0)),
        _ => None,
    })
}

/// Combines the results of a batch of commits. If one commit has a fault, returns a fault for the whole batch.
///
/// Some faults say that their commit was not applied. If another commit of the batch was applied, this is false for the
/// batch, so the function returns a [`Fault::Server`] with the same text instead.
fn together(all: Vec<Result<Committed, Fault>>) -> Result<Vec<Committed>, Fault> {
    let some_done = all.iter().any(|one| matches!(one, Ok(Committed::Done(_))));
    let all: Result<Vec<_>, Fault> = all.into_iter().collect();
    all.map_err(|fault| match fault {
        fault if fault.left_nothing() && some_done => Fault::Server(fault.to_string().into()),
        fault => fault,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_error_says_that_nothing_was_applied_only_if_no_commit_succeeded() {
        let missing = || Err(Fault::Unprepared("x".into()));
        let done = || Ok(Committed::Done(vec![1]));
        assert!(
            together(vec![missing(), missing()])
                .unwrap_err()
                .left_nothing()
        );
        assert!(
            !together(vec![done(), missing()])
                .unwrap_err()
                .left_nothing()
        );
        assert_eq!(
            together(vec![done(), Ok(Committed::Stale)]).unwrap().len(),
            2
        );
    }
}
