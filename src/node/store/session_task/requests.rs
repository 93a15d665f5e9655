//! How the task executes the jobs of a batch: it reads the records, decides on them, and commits the changes.

use std::sync::Arc;
use std::time::Duration;

use super::{Online, SessionTask};
use crate::node::actor::mailbox::Queued;
use crate::node::store::codec::StoredItem;
use crate::node::store::contract::{Clocked, Commit, Committed, Session, Store, WaitLock};
use crate::node::store::job::{Decision, DecisionInput, Job, JobRequest, SUBSCRIPTION_TIME};
use crate::node::store::listening::QueuedWaiter;
use crate::node::store::names::{self, Name};
use crate::node::store::wait_lock;
use crate::node::store::wake_ups::deliver;
use crate::node::{Answer, Claim, Fault, Request};

/// The largest number of wait locks that the task stores in order to release them with its next commit. All other wait
/// locks are released when the session ends.
const MAX_WAIT_LOCKS: usize = 1024;

/// For how long the task decides jobs before it refuses the rest of them: three quarters of the store's timeout.
pub(super) fn serving_time(store_timeout: Duration) -> Duration {
    store_timeout / 4 * 3
}

impl<S: Store> SessionTask<S> {
    /// Executes all jobs and list requests. If there are none, reads the store's clock to check that the store answers.
    pub(super) async fn serve(&mut self, online: &mut Online<S::Session>) -> Result<(), Fault> {
        self.cache.start_batch();
        if self.jobs.is_empty() && self.batch.is_empty() {
            return self.load_records(online, true).await;
        }
        // Stop in time: if the timeout of the store passed here, the session would end.
        let serve_until = self.now() + serving_time(self.shared.traits.timeout);
        while !self.jobs.is_empty() {
            if self.now() >= serve_until {
                self.refuse_jobs();
                break;
            }
            // One round: read what the jobs need, decide all jobs, and commit their changes together.
            self.load_records(online, false).await?;
            let mut commits = Vec::new();
            let mut open_jobs = Vec::new();
            for mut job in std::mem::take(&mut self.jobs) {
                self.stamp = self.stamp.wrapping_add(1);
                let now = self.now();
                // Read the wall clock after `now`, so that a new lease never seems older than it is.
                let wall = self.shared.context().runtime.wall_micros();
                let input = DecisionInput {
                    time: &self.time,
                    now,
                    stamp: self.stamp,
                    reading: self.time.reading(now, wall),
                    run: &online.run,
                    process: (self.shared.subscriber.get()).map(|subscriber| &subscriber.process),
                    wait_locks: self.shared.traits.looks,
                };
                // Unchanged jobs are done. Changed jobs need a commit. A job that may rest on old records reads again.
                match job.decide(&self.cache, &input) {
                    Decision::NoChange => {
                        if self.shared.traits.looks {
                            self.queue_wait_lock_releases(&job);
                        }
                        self.answer_job(job, online);
                    }
                    Decision::Change(commit, stored) => {
                        commits.push((commit, stored));
                        open_jobs.push(job);
                    }
                    Decision::NeedsRead => {
                        job.is_stale = true;
                        self.jobs.push(job);
                    }
                }
            }
            self.commit_jobs(online, open_jobs, commits).await?;
        }
        self.list(online).await
    }

    /// Answers all unfinished jobs with `Overloaded`. None of their commits took effect.
    ///
    /// Called before the store's timeout, because a timeout ends the session.
    fn refuse_jobs(&mut self) {
        for request in std::mem::take(&mut self.jobs)
            .into_iter()
            .flat_map(|job| job.requests)
        {
            self.pending_releases.keep(&request.queued);
            request.queued.answer(Err(Fault::Overloaded));
        }
    }

    /// Reads the records that the jobs use, if the cache does not have them or may have an outdated state. If `clock`
    /// is true, the store is asked for its clock even if no record has to be read.
    pub(super) async fn load_records(
        &mut self,
        online: &mut Online<S::Session>,
        must_read_clock: bool,
    ) -> Result<(), Fault> {
        let now = self.now();
        let has_no_time = self.time.now(now).is_none();
        let mut names: Vec<Name> = Vec::new();
        for job in &mut self.jobs {
            let is_cached = self.cache.get_all(&job.names).is_some();
            let is_fresh = self.cache.are_fresh(&job.names);
            if !is_cached || (job.is_stale && !is_fresh) {
                names.extend(job.names.iter().cloned());
            }
            job.is_stale = false;
        }
        names.sort_unstable();
        names.dedup();
        if names.is_empty() && !has_no_time && !must_read_clock {
            return Ok(());
        }
        let Clocked { what, clock } = online.session.load(&names).await?;
        let answered_at = self.learn_time(online, clock, now);
        let Some((_, moment)) = self.moment(answered_at) else {
            return Err(Fault::Server("the store's clock does not advance".into()));
        };
        for (name, record) in names.iter().zip(&what) {
            if !self.cache.read(name, record, moment) {
                let name_text = name.escape_ascii();
                let fault = record.fault.clone().unwrap_or_else(|| {
                    let why = format!(
                        "the record of {name_text} was not written by quorate and is not changed"
                    );
                    Fault::Server(why.into())
                });
                self.refuse_record(name, &fault);
            }
        }
        Ok(())
    }

    /// Sends the answer `fault` to every request that needs the record `name`. A request for several locks is split, so
    /// that its other locks can still get an answer.
    fn refuse_record(&mut self, name: &Name, fault: &Fault) {
        let uses_record = |job: &Job| job.names.contains(name);
        let (affected, rest) = std::mem::take(&mut self.jobs)
            .into_iter()
            .partition(uses_record);
        self.jobs = rest;
        let affected: Vec<Job> = affected;
        for request in affected.into_iter().flat_map(|job| job.requests) {
            let uses_name =
                |queued: &Queued| names::records_of_request(&queued.request).contains(name);
            let parts = if request.queued.is_of_several() && uses_name(&request.queued) {
                request.queued.split()
            } else {
                vec![request.queued]
            };
            for queued in parts {
                if uses_name(&queued) {
                    queued.answer(Err(fault.clone()));
                } else {
                    Job::add_to(&mut self.jobs, queued);
                }
            }
        }
    }

    /// Commits the decided jobs. If another session has changed a record of a job since the record was read, the commit
    /// has no effect, and the job is decided again.
    async fn commit_jobs(
        &mut self,
        online: &mut Online<S::Session>,
        mut open_jobs: Vec<Job>,
        commits: Vec<(Commit, Vec<Vec<StoredItem>>)>,
    ) -> Result<(), Fault> {
        if commits.is_empty() {
            return Ok(());
        }
        // The first commit also releases wait locks of earlier jobs. The task delivers wake-ups to itself directly.
        let (mut commits, stored): (Vec<Commit>, Vec<Vec<Vec<StoredItem>>>) =
            commits.into_iter().unzip();
        if let Some(first_commit) = commits.first_mut() {
            first_commit.wait_locks.append(&mut self.wait_locks);
        }
        let mut stored = stored.into_iter();
        let own_messages: Vec<Vec<Vec<u8>>> = commits
            .iter_mut()
            .map(|commit| self.take_own_messages(commit))
            .collect();
        let mut own_messages = own_messages.into_iter();
        // Put the open jobs back before the first await. If this future is dropped, they still get an answer.
        self.jobs.append(&mut open_jobs);
        let first_job = self.jobs.len() - commits.len();
        let mut were_committed = Vec::new();
        for chunk in commits.chunks(self.shared.traits.batch.max(1)) {
            let changes = chunk.iter().flat_map(|commit| &commit.changes);
            // If this or a later call of `commit` fails, requests for the records in `unanswered_records` get a fault.
            self.unanswered_records
                .extend(changes.map(|change| change.name.clone()));
            let asked_at = self.now();
            let Clocked { what, clock } = online.session.commit(chunk).await?;
            self.learn_time(online, clock, asked_at);
            for (commit, committed) in chunk.iter().zip(what) {
                let (stored, own_messages) = (stored.next(), own_messages.next());
                // Another session was faster. The cache is outdated, so read the records again.
                let (Committed::Done(versions), Some(stored)) = (committed, stored) else {
                    for change in &commit.changes {
                        self.cache.mark_doubtful(&change.name);
                    }
                    were_committed.push(false);
                    continue;
                };
                for ((change, version), stored) in commit.changes.iter().zip(versions).zip(stored) {
                    self.cache.note_written(&change.name, version, stored);
                }
                self.deliver_own(&own_messages.unwrap_or_default());
                were_committed.push(true);
            }
        }
        // All commits have an answer. Finish the jobs that took effect, and let the others read again.
        self.unanswered_records.clear();
        let open_jobs = self.jobs.split_off(first_job);
        for (mut job, is_committed) in open_jobs.into_iter().zip(were_committed) {
            if is_committed {
                self.answer_job(job, online);
            } else {
                job.is_stale = true;
                self.jobs.push(job);
            }
        }
        Ok(())
    }

    /// Removes from the commit all wake-ups for this process, and returns their messages. The task delivers them
    /// directly, without the store.
    fn take_own_messages(&self, commit: &mut Commit) -> Vec<Vec<u8>> {
        let Some(subscriber) = self.shared.subscriber.get() else {
            return Vec::new();
        };
        let own_wakes = commit
            .wakes
            .extract_if(.., |wake| wake.process == subscriber.process);
        own_wakes.map(|wake| wake.word).collect()
    }

    fn deliver_own(&self, messages: &[Vec<u8>]) {
        if let Some(subscriber) = self.shared.subscriber.get() {
            for message in messages {
                deliver(subscriber, message);
            }
        }
    }

    /// Passes the answers of a job to their callers.
    fn answer_job(&mut self, job: Job, online: &Online<S::Session>) {
        let now = self.now();
        for JobRequest { queued, answer } in job.requests {
            let mut answer = answer.unwrap_or(Err(Fault::Withdrawn));
            self.note_waiter(&queued.request, &answer);
            match (&queued.request, &mut answer) {
                (Request::Watch { key, on: true }, Ok(_)) => {
                    let next = now + SUBSCRIPTION_TIME / 3;
                    self.watch_renewals.insert(key.clone(), next);
                }
                (Request::Watch { key, .. }, Ok(_)) => drop(self.watch_renewals.remove(key)),
                (_, Ok(Answer::Value { stored, .. })) => {
                    if let Some(stored) = stored.as_mut().filter(|_| online.is_durable) {
                        stored.trusted = true;
                    }
                }
                _ => {}
            }
            queued.answer(answer);
        }
    }

    /// Stores that a waiter of this process is queued, or has left the queue: a listener may rest while nobody waits. If
    /// the listener polls, also stores which client is directly ahead of the waiter.
    fn note_waiter(&self, request: &Request, answer: &Result<Answer, Fault>) {
        let (claim, is_waiting) = match (request, answer) {
            (Request::Acquire { claim, .. }, Ok(Answer::Granted { .. }))
            | (Request::Release { claim, leave: true }, _) => (claim, false),
            (Request::Acquire { claim, .. }, Ok(Answer::Refused { .. })) => (claim, true),
            _ => return,
        };
        let Some(ticket) = claim.ticket() else { return };
        let names = names::records_of_claim(claim);
        let waiter = is_waiting.then(|| QueuedWaiter {
            id: ticket.waiter.clone(),
            behind: if self.shared.traits.looks {
                self.client_ahead(claim, &names)
            } else {
                None
            },
        });
        self.shared.listening.note_waiter(&names, waiter.as_ref());
    }

    /// The name of the wait lock (a named lock of the server) that belongs to the client directly ahead of this claim's
    /// waiter. `None` if different clients are ahead at different keys, or if the records are not cached.
    pub(super) fn client_ahead(&self, claim: &Claim, names: &[Name]) -> Option<Arc<str>> {
        let cached_records = self.cache.get_all(names)?;
        let items: Vec<_> = cached_records
            .iter()
            .flat_map(|(_, stored)| stored.iter())
            .collect();
        wait_lock::lock_of_client_ahead(claim, &items)
    }

    /// Stores the wait locks that the session no longer needs after `job`. The session's next commit, for any job,
    /// releases them.
    pub(super) fn queue_wait_lock_releases(&mut self, job: &Job) {
        let cached_records = self.cache.get_all(&job.names).unwrap_or_default();
        let after = cached_records.iter().flat_map(|(_, stored)| stored.iter());
        let changes = job.wait_locks(after).into_iter();
        let released = changes.filter(|change| matches!(change, WaitLock::Release(_)));
        let room = MAX_WAIT_LOCKS.saturating_sub(self.wait_locks.len());
        self.wait_locks.extend(released.take(room));
    }
}
