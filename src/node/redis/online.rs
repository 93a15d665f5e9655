//! One established connection, with its outstanding requests in the order in which they were sent.

use std::collections::VecDeque;
use std::time::Duration;

use super::buffers::Output;
use super::decode::{NoAnswer, decode};
use super::deletion::Deletion;
use super::handshake::Negotiated;
use super::loaded::Scripts;
use super::many::{EachAnswer, decode_many};
use super::refusal::{is_denied_key, is_noscript};
use super::resp::{Command, Value};
use super::runs::{PlacedRequest, RequestRuns};
use super::script::{Script, ScriptSet};
use super::sent::{SentCommand, SentMessage};
use super::settle::settle;
use super::shared::Shared;
use super::votes::Votes;
use crate::keys::LEADER_CHANNEL_PREFIX;
use crate::node::actor::mailbox::Queued;
use crate::node::actor::pending_releases::PendingReleases;
use crate::node::actor::trust::{Memory, ServerVote};
use crate::node::actor::window::Window;
use crate::node::{Fault, Request, Subscriber};
use crate::protocol::instant::Instant;

/// The largest number of requests that one call of [`take`](Online::take) takes from the mailbox.
const MAX_BATCH: usize = 512;

/// The connection takes no more requests while at least this number of bytes is unwritten.
const MAX_UNWRITTEN: usize = 256 << 10;

/// A connection is replaced if an answer has been overdue for 500 ms (this constant) or for four node timeouts,
/// whichever is longer.
const STALL_LIMIT: Duration = Duration::from_millis(500);

/// If the master sends no data for this time (2 s) while no request is outstanding, the client sends a PING. Without
/// it, a client that waits for wake-ups would not notice a broken connection.
const IDLE_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct Online {
    scripts: Scripts,
    /// How this connection executes releases that are not part of a combined call: with a script or with a built-in
    /// command.
    deletion: Deletion,
    memory: Memory,
    /// While this connection is open, no other address of the client gets the vote of its server.
    _vote: Option<ServerVote>,
    votes: Votes,
    connected_at: Instant,
    /// The time at which bytes last arrived from the master.
    last_reply: Instant,
    /// The outstanding requests, in the order in which they were sent.
    outstanding: VecDeque<SentMessage>,
    /// Requests that wait until their scripts are loaded. Then they are sent before pending releases and new requests.
    to_resend: Vec<Queued>,
    /// The sets of scripts that must be loaded for the requests in `to_resend`.
    sets_to_load: Vec<ScriptSet>,
    /// Requests to send again before all other requests, each as a separate script call. The master has refused to
    /// execute them in a combined call or with the built-in delete command.
    to_send_apart: Vec<Queued>,
    /// Groups the next requests: one call executes all requests of a group.
    runs: RequestRuns<Queued>,
    placed: Vec<PlacedRequest<Queued>>,
    /// The requests that the current reply answers.
    answered: Vec<Queued>,
    answers: Vec<EachAnswer>,
    /// Whether this connection has asked the master to load the scripts that execute many requests in one call.
    is_many_requested: bool,
    /// The time since which an answer has been overdue; `None` if no answer is overdue. While an answer is overdue, no
    /// request is sent.
    stalled_since: Option<Instant>,
    window: Window,
}

impl Online {
    pub(super) fn new(negotiated: Negotiated, shared: &Shared, seed: u64, now: Instant) -> Self {
        Self {
            votes: Votes::new(&negotiated, seed),
            scripts: negotiated.scripts,
            deletion: negotiated.deletion,
            memory: negotiated.memory,
            _vote: negotiated.vote,
            connected_at: now,
            last_reply: now,
            outstanding: VecDeque::new(),
            to_resend: Vec::new(),
            sets_to_load: Vec::new(),
            to_send_apart: Vec::new(),
            runs: RequestRuns::new(negotiated.min_acquires),
            placed: Vec::new(),
            answered: Vec::new(),
            answers: Vec::new(),
            is_many_requested: false,
            stalled_since: None,
            window: Window::new(shared.options.node_timeout),
        }
    }

    pub(super) fn connection_age(&self, now: Instant) -> Duration {
        now.saturating_since(self.connected_at)
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_since.is_some()
    }

    pub(super) fn is_at_work(&self) -> bool {
        !self.outstanding.is_empty()
    }

    pub(super) fn is_out_of_room(&self) -> bool {
        self.outstanding.len() > 1
    }

    /// Whether the reply to the trial of the built-in delete command is outstanding.
    pub(super) fn has_trial_outstanding(&self) -> bool {
        self.deletion == Deletion::Trying
    }

    /// Whether all requests that this connection has taken from the mailbox have been answered.
    pub(super) fn is_idle(&self) -> bool {
        let is_request = |sent: &SentMessage| matches!(sent.command, SentCommand::Request(_));
        let has_unsent = !self.to_resend.is_empty() || !self.to_send_apart.is_empty();
        !has_unsent && !self.outstanding.iter().any(is_request)
    }

    /// Handles one reply or push from the master. An error means that the connection must be closed, because the
    /// message does not fit the outstanding requests.
    pub(super) fn receive(
        &mut self,
        shared: &Shared,
        pending_releases: &mut PendingReleases,
        value: &Value<'_>,
        now: Instant,
    ) -> Result<(), Fault> {
        self.last_reply = now;
        if let Value::Push(push) = value
            && !self.is_answer(push)
        {
            wake(shared.subscriber.get(), push);
            return Ok(());
        }
        let Some(SentMessage {
            command,
            sent_at,
            followers,
        }) = self.outstanding.pop_front()
        else {
            let fault = "the master sent a reply that answers no request";
            return Err(Fault::Down(fault.into()));
        };
        match command {
            // This reply answers the next `followers` requests as well.
            SentCommand::Request(queued) if followers > 0 => {
                self.answered.push(queued);
                for _ in 0..followers {
                    if let Some(SentMessage {
                        command: SentCommand::Request(queued),
                        ..
                    }) = self.outstanding.pop_front()
                    {
                        self.answered.push(queued);
                    }
                }
                self.receive_many(shared, pending_releases, value, (sent_at, now))?;
            }
            SentCommand::Request(queued) => {
                self.window.learn(sent_at, now);
                if let Some(queued) = self.retry_otherwise(queued, value) {
                    self.receive_one(shared, pending_releases, queued, value, now)?;
                }
            }
            // If the scripts for combined calls cannot be loaded, each request is sent as a separate command.
            SentCommand::LoadScript(script)
                if script.row().set == ScriptSet::Many && matches!(value, Value::Error(_)) => {}
            SentCommand::LoadScript(Script::Age) => self.age_script_loaded(value, now),
            SentCommand::LoadScript(script) => self.scripts.handle_load_reply(script, value)?,
            SentCommand::Ping => match value {
                Value::Simple(_) | Value::Bulk(_) | Value::Error(_) => {}
                _ => return Err(Fault::Down("the reply to PING is malformed".into())),
            },
            SentCommand::RaiseAge => self.votes.handle_age(shared, value, now),
            SentCommand::DeletionTrial => self.deletion.handle_trial_reply(value),
        }
        Ok(())
    }

    /// Passes the reply to one request to its caller.
    fn receive_one(
        &mut self,
        shared: &Shared,
        pending_releases: &mut PendingReleases,
        queued: Queued,
        value: &Value<'_>,
        now: Instant,
    ) -> Result<(), Fault> {
        let answer = match decode(&queued.request, value, &self.memory) {
            Ok(answer) => Ok(answer),
            Err(NoAnswer::Fault(fault)) => Err(fault),
            Err(NoAnswer::Malformed(fault)) => {
                pending_releases.keep(&queued);
                queued.answer(Err(fault.clone()));
                return Err(fault);
            }
        };
        let (votes, has_no_script) = (&mut self.votes, is_noscript(value));
        settle(
            shared,
            votes,
            pending_releases,
            queued,
            answer,
            has_no_script,
            now,
        );
        Ok(())
    }

    /// Handles the reply to the command that loads the script of the age record. If the server refused it, locks work
    /// all the same.
    fn age_script_loaded(&mut self, value: &Value<'_>, now: Instant) {
        let loaded = self.scripts.handle_load_reply(Script::Age, value);
        self.votes.ages.handle_load_reply(loaded.is_err(), now);
    }

    /// If the master did not execute the request, but may execute it in another form, queues it again in this form: for
    /// example one request for each lock, instead of one request for several locks. Otherwise returns the request.
    fn retry_otherwise(&mut self, queued: Queued, value: &Value<'_>) -> Option<Queued> {
        if is_noscript(value) && !queued.is_resent {
            self.queue_resend(queued);
        } else if queued.is_conditional_delete && Deletion::is_refused(value) {
            self.deletion = Deletion::Script;
            self.queue_apart(queued);
        } else if queued.is_of_several()
            && matches!(value, Value::Error(error) if is_denied_key(error))
        {
            // The user lacks the right to the key of one of the locks. Send a separate request for each lock.
            self.to_send_apart.extend(queued.split());
        } else {
            return Some(queued);
        }
        None
    }

    /// Handles the one reply to all requests in `answered`.
    fn receive_many(
        &mut self,
        shared: &Shared,
        pending_releases: &mut PendingReleases,
        value: &Value<'_>,
        (sent_at, now): (Instant, Instant),
    ) -> Result<(), Fault> {
        let mut answered = std::mem::take(&mut self.answered);
        let mut answers = std::mem::take(&mut self.answers);
        if let Err(fault) = decode_many(&answered, value, &mut answers) {
            for queued in answered {
                pending_releases.keep(&queued);
                queued.answer(Err(fault.clone()));
            }
            return Err(fault);
        }
        let has_no_script = is_noscript(value);
        for (queued, answer) in answered.drain(..).zip(answers.drain(..)) {
            self.window.learn(sent_at, now);
            if has_no_script && !queued.is_resent {
                self.queue_resend(queued);
            } else if let Some(answer) = answer {
                settle(
                    shared,
                    &mut self.votes,
                    pending_releases,
                    queued,
                    answer,
                    has_no_script,
                    now,
                );
            } else {
                self.queue_apart(queued);
            }
        }
        (self.answered, self.answers) = (answered, answers);
        Ok(())
    }

    /// Queues a request that failed because the master had lost the scripts. First the scripts are loaded again, then
    /// the request is sent again.
    fn queue_resend(&mut self, mut queued: Queued) {
        queued.is_resent = true;
        self.to_resend.push(queued);
        self.sets_to_load = self.scripts.loaded_sets().collect();
    }

    /// Queues a request to be sent again as a separate call of a script.
    fn queue_apart(&mut self, mut queued: Queued) {
        queued.needs_own_call = true;
        self.to_send_apart.push(queued);
    }

    /// Whether a push is the reply to the oldest outstanding request. Only the replies to `Watch` requests are pushes.
    fn is_answer(&self, push: &[Value<'_>]) -> bool {
        let Some(SentCommand::Request(queued)) = self.outstanding.front().map(|sent| &sent.command)
        else {
            return false;
        };
        let kind = match queued.request {
            Request::Watch { on: true, .. } => &b"subscribe"[..],
            Request::Watch { on: false, .. } => b"unsubscribe",
            _ => return false,
        };
        push.first().and_then(Value::text) == Some(kind)
    }

    /// Checks, after an overdue answer has arrived, whether the next answer is overdue too. Call it after all received
    /// replies have been handled.
    pub(super) fn check_next_overdue(&mut self, limit: Duration, now: Instant) {
        if self.stalled_since.is_some() {
            // The connection stays stalled if the next outstanding answer is overdue too.
            let next = self.outstanding.front();
            self.stalled_since = next.filter(|sent| sent.sent_at + limit <= now).map(|_| now);
        }
    }

    /// Takes requests from the mailbox and writes them. Returns `true` if there may be more requests that can be sent
    /// now. Must not be called while an answer is overdue.
    pub(super) fn take(
        &mut self,
        shared: &Shared,
        pending_releases: &mut PendingReleases,
        out: &mut Output,
        batch: &mut Vec<Queued>,
        now: Instant,
    ) -> bool {
        let room = self.window.width().saturating_sub(self.outstanding.len());
        if room == 0 || out.unwritten().len() >= MAX_UNWRITTEN {
            return false;
        }
        if !self.to_resend.is_empty() {
            // Wait for all outstanding answers: they may add more requests to `to_resend`. Then all of these requests
            // are sent again in their original order.
            if !self.outstanding.is_empty() {
                return false;
            }
            if !self.sets_to_load.is_empty() {
                // Requests call scripts by digest. If a digest is not known from an earlier load, first wait for the
                // replies to SCRIPT LOAD.
                let loaded_sets: Vec<ScriptSet> = self.scripts.loaded_sets().collect();
                let missing_sets = std::mem::take(&mut self.sets_to_load);
                let are_loaded = missing_sets.iter().all(|set| loaded_sets.contains(set));
                for set in missing_sets {
                    self.load(set, shared, out, now);
                }
                if !are_loaded {
                    return true;
                }
            }
            batch.append(&mut self.to_resend);
        }
        // Send the requests in `to_send_apart` first, before later requests for the same locks.
        batch.splice(0..0, self.to_send_apart.drain(..));
        let room = room.min(MAX_BATCH);
        // Send pending releases before new requests. They fill at most half of `room`, the number of requests that can
        // be sent now, so new requests are sent too.
        batch.extend(pending_releases.take(room / 2, now));
        let room = room.saturating_sub(batch.len());
        shared.mailbox.take(room, batch);
        // More requests may be left in the mailbox after this batch. So return true: the actor then calls `take` again.
        let has_taken = !batch.is_empty();
        if has_taken {
            self.votes.handle_missing_marker(shared);
            self.raise_age(shared, out, now);
        }
        let quarantine = self.votes.quarantine(shared, now);
        for queued in batch.drain(..) {
            if let Some(fault) = self.votes.withholding_fault(&queued.request, quarantine) {
                queued.answer(Err(fault));
            } else if let Some(set) = self.scripts.set_to_load(&queued.request) {
                if !self.sets_to_load.contains(&set) {
                    self.sets_to_load.push(set);
                }
                self.to_resend.push(queued);
            } else if queued.request.is_withdrawn() || queued.request.is_void(now, &self.memory.run)
            {
                queued.answer(Err(Fault::Withdrawn));
            } else {
                self.runs.add(queued, &mut self.placed);
            }
        }
        self.runs.close(&mut self.placed);
        self.write(shared, out, now);
        has_taken
    }

    /// Writes the requests that [`RequestRuns`] has arranged, in the arranged order.
    fn write(&mut self, shared: &Shared, out: &mut Output, now: Instant) {
        let mut placed = std::mem::take(&mut self.placed);
        if placed
            .iter()
            .any(|placed_request| placed_request.followers > 0)
            && !self.scripts.has_loaded(ScriptSet::Many)
        {
            // The scripts for combined calls are not loaded yet. Do not wait for them: send each request as a separate
            // call.
            for placed_request in &mut placed {
                placed_request.followers = 0;
            }
            if !std::mem::replace(&mut self.is_many_requested, true) {
                self.load(ScriptSet::Many, shared, out, now);
            }
        }
        let mut start = 0;
        while let Some(first) = placed.get(start) {
            let end = start + 1 + first.followers;
            match &mut placed[start..end] {
                [placed_request] => self.write_one(&mut placed_request.member, out.commands()),
                run => self.scripts.encode_many(run, out.commands()),
            }
            start = end;
        }
        let written = placed
            .iter()
            .map(|placed_request| &placed_request.member.request);
        let has_trial = self.deletion.write_trial(written, out.commands());
        self.outstanding
            .extend(
                placed
                    .drain(..)
                    .map(|PlacedRequest { member, followers }| SentMessage {
                        command: SentCommand::Request(member),
                        sent_at: now,
                        followers,
                    }),
            );
        if has_trial {
            self.outstanding
                .push_back(SentMessage::alone(SentCommand::DeletionTrial, now));
        }
        self.placed = placed;
    }

    fn write_one(&self, queued: &mut Queued, out: &mut Vec<u8>) {
        // Remember whether the built-in delete command was used, because the reply does not show it.
        queued.is_conditional_delete = self.deletion.write(&queued.request, out);
        if !queued.is_conditional_delete {
            (self.scripts).encode(&queued.request, &self.memory.run, out);
        }
    }

    fn load(&mut self, set: ScriptSet, shared: &Shared, out: &mut Output, now: Instant) {
        let scripts = (self.scripts).load(set, shared.options.max_ttl, out.commands());
        let to_sent = |script| SentMessage::alone(SentCommand::LoadScript(script), now);
        self.outstanding.extend(scripts.map(to_sent));
    }

    /// Raises the age record of the master, if that is due.
    fn raise_age(&mut self, shared: &Shared, out: &mut Output, now: Instant) {
        let ages = &mut self.votes.ages;
        ages.write(&self.scripts, shared, out, &mut self.outstanding, now);
    }

    /// The latest time for the next call of [`tick`](Self::tick).
    pub(super) fn wake_at(&self, pending_releases: &PendingReleases, shared: &Shared) -> Instant {
        let node_timeout = shared.options.node_timeout;
        let wake_at = match (self.stalled_since, self.outstanding.front()) {
            (Some(stalled_at), _) => return stalled_at + STALL_LIMIT.max(4 * node_timeout),
            (None, Some(oldest)) => oldest.sent_at + node_timeout,
            (None, None) => {
                let idle_at = self.last_reply + IDLE_LIMIT;
                pending_releases
                    .wake_at()
                    .map_or(idle_at, |release_at| release_at.min(idle_at))
            }
        };
        let raise_at = self.votes.ages.due_at(shared.options.max_ttl);
        raise_at.map_or(wake_at, |raise_at| raise_at.min(wake_at))
    }

    /// If an answer is overdue, answers all outstanding requests with a timeout. If it stays overdue for too long,
    /// returns an error. Sends a PING if the connection is idle.
    pub(super) fn tick(
        &mut self,
        shared: &Shared,
        out: &mut Output,
        now: Instant,
    ) -> Result<(), Fault> {
        let node_timeout = shared.options.node_timeout;
        if let Some(stalled_at) = self.stalled_since {
            return if now < stalled_at + STALL_LIMIT.max(4 * node_timeout) {
                Ok(())
            } else {
                Err(Fault::Stalled)
            };
        }
        self.raise_age(shared, out, now);
        let Some(oldest) = self.outstanding.front() else {
            if now >= self.last_reply + IDLE_LIMIT {
                Command::write_words(out.commands(), &["PING"]);
                self.outstanding
                    .push_back(SentMessage::alone(SentCommand::Ping, now));
            }
            return Ok(());
        };
        if now < oldest.sent_at + node_timeout {
            return Ok(());
        }
        self.stalled_since = Some(now);
        let open_requests = self.outstanding.iter_mut().filter_map(|sent| match sent {
            SentMessage {
                command: SentCommand::Request(queued),
                ..
            } => Some(queued),
            _ => None,
        });
        for queued in open_requests
            .chain(&mut self.to_resend)
            .chain(&mut self.to_send_apart)
        {
            queued.time_out(Fault::Timeout(node_timeout));
        }
        Ok(())
    }

    /// Ends the connection, and returns the requests that the master has not answered.
    pub(super) fn into_outstanding(self) -> impl Iterator<Item = Queued> {
        let open_requests = self
            .outstanding
            .into_iter()
            .filter_map(|sent| match sent.command {
                SentCommand::Request(queued) => Some(queued),
                SentCommand::LoadScript(_)
                | SentCommand::Ping
                | SentCommand::RaiseAge
                | SentCommand::DeletionTrial => None,
            });
        open_requests
            .chain(self.to_send_apart)
            .chain(self.to_resend)
    }
}

/// Passes a pushed message to the subscriber: a wake-up, or the announcement of a new leader.
fn wake(subscriber: Option<&Subscriber>, push: &[Value<'_>]) {
    if let (Some(subscriber), [kind, channel, key]) = (subscriber, push)
        && kind.text() == Some(b"message")
        && let (Some(channel), Some(key)) = (channel.text(), key.text())
    {
        if channel.starts_with(LEADER_CHANNEL_PREFIX.as_bytes()) {
            subscriber.sink.announced(subscriber.node, key);
        } else {
            subscriber.sink.woken(subscriber.node, key);
        }
    }
}
