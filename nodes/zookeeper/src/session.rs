//! Reading and changing records over one session.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use quorate::node::Fault;
use quorate::node::store::{Clocked, Commit, Committed, NamedRecord, Record, Session};
use zookeeper_client::{Client, CreateMode, Error, MultiWriteError, MultiWriteResult, MultiWriter};

use crate::address::Address;
use crate::dial::{Dialled, Watch};
use crate::fault;
use crate::layout::{Layout, unhex};
use crate::step::{Step, steps, version};
use crate::words;

/// ZooKeeper cuts the connection of who sends more than a MiB.
const LARGEST: usize = 1_000_000;

/// One session with a ZooKeeper.
#[derive(Debug)]
pub struct ZooKeeperSession {
    client: Client,
    address: Arc<Address>,
    layout: Layout,
    /// The names of all records, as they were when the first page was asked for.
    names: Vec<String>,
}

/// What became of one transaction.
enum Outcome {
    Done(Vec<u64>),
    Stale,
    /// Nothing of it is done, for this one of the wake-ups cannot be put where it belongs: the process is gone.
    Unheard(usize),
}

/// A process, and all that it is told by one commit.
type Told = (Arc<str>, Vec<u8>);

impl ZooKeeperSession {
    pub(crate) fn new(dialled: Dialled, address: Arc<Address>) -> Self {
        Self {
            client: dialled.client,
            layout: Layout::new(&address),
            address,
            names: Vec::new(),
        }
    }

    fn fault(&self, error: &Error) -> Fault {
        fault::of_request(error, &self.address)
    }

    async fn read(&self, paths: Vec<String>) -> Result<Vec<Record>, Fault> {
        // Each is sent when it is called, not when it is polled.
        let asked: Vec<_> = paths
            .iter()
            .map(|path| self.client.get_data(path))
            .collect();
        let said = join_all(asked).await.into_iter();
        said.map(|said| match said {
            Ok((state, stat)) => Ok(Record {
                version: version(stat.version),
                state,
            }),
            Err(Error::NoNode) => Ok(Record::default()),
            Err(error) => Err(self.fault(&error)),
        })
        .collect()
    }

    async fn list(&self) -> Result<Vec<String>, Fault> {
        let records = self.layout.records();
        let listed = self.client.list_children(&records).await;
        let mut names = listed.map_err(|error| self.fault(&error))?;
        // What an inspection tries is no record.
        names.retain(|name| unhex(name).is_some());
        names.sort_unstable();
        Ok(names)
    }

    /// Sends one commit now; what became of it comes later. A release and the wake-up behind it are one transaction:
    /// one write to the disks of the ensemble, and the wake-up cannot be lost.
    fn send(
        &self,
        commit: &Commit,
        steps: &[Vec<Step>],
        told: &[Told],
    ) -> BoxFuture<'_, Result<Outcome, Fault>> {
        if let ([change], [only], []) = (&*commit.changes, steps, told)
            && let [Step::Set(at)] = **only
        {
            let state = change.state.as_deref().unwrap_or_default();
            let path = self.layout.record(&change.name);
            let set = self.client.set_data(&path, state, Some(at));
            return async move {
                match set.await {
                    Ok(stat) => Ok(Outcome::Done(vec![version(stat.version)])),
                    Err(Error::BadVersion | Error::NoNode) => Ok(Outcome::Stale),
                    Err(error) => Err(self.fault(&error)),
                }
            }
            .boxed();
        }
        let mut writer = self.client.new_multi_writer();
        let added = self.write(&mut writer, commit, steps, told);
        if let Err(error) = added {
            return std::future::ready(Err(self.fault(&error))).boxed();
        }
        let sent = writer.commit();
        let before: Vec<u64> = commit.changes.iter().map(|change| change.version).collect();
        let (steps, told) = (steps.to_vec(), told.len());
        async move { self.judge(sent.await, &steps, &before, told) }.boxed()
    }

    fn write(
        &self,
        writer: &mut MultiWriter<'_>,
        commit: &Commit,
        steps: &[Vec<Step>],
        told: &[Told],
    ) -> Result<(), Error> {
        for (change, steps) in commit.changes.iter().zip(steps) {
            let path = self.layout.record(&change.name);
            let state = change.state.as_deref().unwrap_or_default();
            for step in steps {
                match *step {
                    Step::Create => {
                        let options = self.layout.options(CreateMode::Persistent);
                        writer.add_create(&path, state, &options)?;
                    }
                    Step::Set(at) => writer.add_set_data(&path, state, Some(at))?,
                    Step::SetAgain => writer.add_set_data(&path, state, None)?,
                    Step::Check(at) => writer.add_check_version(&path, at)?,
                    Step::Remove => writer.add_delete(&path, None)?,
                }
            }
        }
        for (process, data) in told {
            writer.add_set_data(&self.layout.wake(process), data, None)?;
        }
        Ok(())
    }

    fn judge(
        &self,
        said: Result<Vec<MultiWriteResult>, MultiWriteError>,
        steps: &[Vec<Step>],
        before: &[u64],
        told: usize,
    ) -> Result<Outcome, Fault> {
        let of_records: usize = steps.iter().map(Vec::len).sum();
        match said {
            Ok(results) if results.len() == of_records + told => {
                Ok(Outcome::Done(versions(&results, steps, before)))
            }
            Ok(_) => Err(Fault::Disconnected("half an answer".into())),
            Err(MultiWriteError::OperationFailed { index, source }) => {
                let created = steps.iter().flatten().nth(index) == Some(&Step::Create);
                match source {
                    _ if index >= of_records => Ok(Outcome::Unheard(index - of_records)),
                    Error::BadVersion | Error::NodeExists => Ok(Outcome::Stale),
                    // There is no record of this version; to make one there is no place.
                    Error::NoNode if !created => Ok(Outcome::Stale),
                    error => Err(self.fault(&error)),
                }
            }
            Err(MultiWriteError::RequestFailed { source }) => Err(self.fault(&source)),
        }
    }

    /// What becomes of a commit, without whoever cannot be told any more.
    async fn settle(
        &self,
        commit: &Commit,
        steps: &[Vec<Step>],
        mut told: Vec<Told>,
        first: BoxFuture<'_, Result<Outcome, Fault>>,
    ) -> Result<Committed, Fault> {
        let mut outcome = first.await?;
        loop {
            match outcome {
                Outcome::Done(versions) => return Ok(Committed::Done(versions)),
                Outcome::Stale => return Ok(Committed::Stale),
                Outcome::Unheard(gone) => told.remove(gone),
            };
            outcome = self.send(commit, steps, &told).await?;
        }
    }
}

impl Session for ZooKeeperSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let watch = Watch::on(&self.client)?;
        let paths = names.iter().map(|name| self.layout.record(name)).collect();
        watch.over(self.read(paths)).await.map(without_clock)
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        let watch = Watch::on(&self.client)?;
        let planned = commits.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
        // All are sent before the first answer is waited for.
        let sent: Vec<_> = commits
            .iter()
            .zip(&planned)
            .map(|(commit, steps)| {
                let told = told(commit);
                let first = self.send(commit, steps, &told);
                self.settle(commit, steps, told, first)
            })
            .collect();
        let settled = join_all(sent).map(together);
        watch.over(settled).await.map(without_clock)
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        let watch = Watch::on(&self.client)?;
        if from == 0 || self.names.is_empty() {
            self.names = watch.over(self.list()).await?;
        }
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let page = self.names.iter().skip(from).take(count as usize);
        let named: Vec<Vec<u8>> = page.filter_map(|name| unhex(name)).collect();
        let paths = named.iter().map(|name| self.layout.record(name)).collect();
        let records = Watch::on(&self.client)?.over(self.read(paths)).await?;
        Ok(without_clock(named.into_iter().zip(records).collect()))
    }
}

/// A server of ZooKeeper does not say what time it is.
fn without_clock<T>(what: T) -> Clocked<T> {
    Clocked { what, clock: None }
}

/// What a commit is to ZooKeeper; a fault where it must not be sent.
fn plan(commit: &Commit) -> Result<Vec<Vec<Step>>, Fault> {
    let states = commit.changes.iter().filter_map(|it| it.state.as_ref());
    let size: usize = states.map(Vec::len).sum();
    if size > LARGEST {
        let why = format!("{size} bytes in one change are more than ZooKeeper takes");
        return Err(Fault::Server(why.into()));
    }
    let planned: Option<_> = commit.changes.iter().map(steps).collect();
    planned
        .ok_or_else(|| Fault::Server("no znode can be asked for this version of a record".into()))
}

/// Whom a commit tells what: all words for one process in one.
fn told(commit: &Commit) -> Vec<Told> {
    let mut told: Vec<(Arc<str>, Vec<&[u8]>)> = Vec::new();
    for wake in &commit.wakes {
        match told
            .iter_mut()
            .find(|(process, _)| *process == wake.process)
        {
            Some((_, all)) => all.push(&wake.word),
            None => told.push((wake.process.clone(), vec![&wake.word])),
        }
    }
    let written = told.into_iter();
    written
        .map(|(process, all)| (process, words::write(all)))
        .collect()
}

/// The versions of the records of a transaction that is done.
fn versions(results: &[MultiWriteResult], steps: &[Vec<Step>], before: &[u64]) -> Vec<u64> {
    let mut results = results.iter();
    let last = steps
        .iter()
        .zip(before)
        .map(|(steps, before)| match results.nth(steps.len() - 1) {
            Some(MultiWriteResult::Create { .. }) => version(0),
            Some(MultiWriteResult::SetData { stat }) => version(stat.version),
            // It was only looked at.
            _ => *before,
        });
    last.collect()
}

/// All that became of a batch, or why that is not known. A fault that says that nothing was left must be true of
/// the whole batch.
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
    fn a_fault_that_left_nothing_is_not_said_of_a_batch_that_did() {
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
