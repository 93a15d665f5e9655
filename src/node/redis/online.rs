//! One established connection, with its outstanding requests in the order in which they were sent.

use std::collections::VecDeque;
use std::time::Duration;

use super::buffers::Output;
use super::decode::{NoAnswer, decode};
use super::deletion::Deletion;
use super::handshake::Negotiated;
use super::loaded::Scripts;
use super::many::{Each, decode_many};
use super::refusal::{is_denied_key, is_noscript};
use super::resp::{Command, Value};
use super::runs::{Placed, Runs};
use super::script::{Script, Set};
use super::sent::{Sent, What};
use super::settle::settle;
use super::shared::Shared;
use super::votes::Votes;
use crate::keys::LEADER;
use crate::node::actor::mailbox::Queued;
use crate::node::actor::pending_releases::PendingReleases;
use crate::node::actor::trust::{Memory, ServerVote};
use crate::node::actor::window::Window;
use crate::node::{Fault, Request, Subscriber};
use crate::protocol::instant::Instant;

/// The largest number of requests that one call of [`take`](Online::take) takes from the mailbox.
const BATCH: usize = 512;

/// The connection takes no more requests while at least this number of bytes is unwritten.
const BACKLOG: usize = 256 << 10;

/// A connection is replaced if an answer has been overdue for 500 ms (this constant) or for four node timeouts,
/// whichever is longer.
const STALL: Duration = Duration::from_millis(500);

/// If the master sends no data for this time (2 s) while no request is outstanding, the client sends a PING. Without
/// it, a client that waits for wake-ups would not notice a broken connection.
const IDLE: Duration = Duration::from_secs(2);

pub(super) struct Online {
    scripts: Scripts,
    /// How this connection executes releases that are not part of a combined call: with a script or with a built-in
    /// command.
    deletion: Deletion,
    memory: Memory,
    /// While this connection is open, no other address of the client gets the vote of its server.
    _vote: Option<ServerVote>,
    votes: Votes,
    since: Instant,
    /// The time at which bytes last arrived from the master.
    last_reply: Instant,
    /// The outstanding requests, in the order in which they were sent.
    under_way: VecDeque<Sent>,
    /// Requests that wait until their scripts are loaded. Then they are sent before pending releases and new requests.
    again: Vec<Queued>,
    /// The sets of scripts that must be loaded for the requests in `again`.
    wanted: Vec<Set>,
    /// Requests to send again before all other requests, each as a separate script call. The master has refused to
    /// execute them in a combined call or with the built-in delete command.
    apart: Vec<Queued>,
    /// Groups the next requests: one call executes all requests of a group.
    runs: Runs<Queued>,
    placed: Vec<Placed<Queued>>,
    /// The requests that the current reply answers.
    answered: Vec<Queued>,
    each: Vec<Each>,
    /// Whether this connection has asked the master to load the scripts that execute many requests in one call.
    many_wanted: bool,
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
            since: now,
            last_reply: now,
            under_way: VecDeque::new(),
            again: Vec::new(),
            wanted: Vec::new(),
            apart: Vec::new(),
            runs: Runs::new(negotiated.least_acquires),
            placed: Vec::new(),
            answered: Vec::new(),
            each: Vec::new(),
            many_wanted: false,
            stalled_since: None,
            window: Window::new(shared.options.node_timeout),
        }
    }

    pub(super) fn lived(&self, now: Instant) -> Duration {
        now.saturating_since(self.since)
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_since.is_some()
    }

    pub(super) fn is_at_work(&self) -> bool {
        !self.under_way.is_empty()
    }

    pub(super) fn is_out_of_room(&self) -> bool {
        self.under_way.len() > 1
    }

    /// Whether the reply to the trial of the built-in delete command is outstanding.
    pub(super) fn is_trying(&self) -> bool {
        self.deletion == Deletion::Trying
    }

    /// Whether all requests that this connection has taken from the mailbox have been answered.
    pub(super) fn is_idle(&self) -> bool {
        let request = |sent: &Sent| matches!(sent.what, What::Request(_));
        let waits = !self.again.is_empty() || !self.apart.is_empty();
        !waits && !self.under_way.iter().any(request)
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
        let Some(Sent { what, at, along }) = self.under_way.pop_front() else {
            let fault = "the master sent a reply that answers no request";
            return Err(Fault::Down(fault.into()));
        };
        match what {
            // This reply answers the next `along` requests as well.
            What::Request(queued) if along > 0 => {
                self.answered.push(queued);
                for _ in 0..along {
                    if let Some(Sent {
                        what: What::Request(queued),
                        ..
                    }) = self.under_way.pop_front()
                    {
                        self.answered.push(queued);
                    }
                }
                self.receive_many(shared, pending_releases, value, (at, now))?;
            }
            What::Request(queued) => {
                self.window.learn(at, now);
                if let Some(queued) = self.ask_otherwise(queued, value) {
                    self.receive_one(shared, pending_releases, queued, value, now)?;
                }
            }
            // If the scripts for combined calls cannot be loaded, each request is sent as a separate command.
            What::Script(script)
                if script.row().set == Set::Many && matches!(value, Value::Error(_)) => {}
            What::Script(Script::Age) => self.age_script_loaded(value, now),
            What::Script(script) => self.scripts.loaded(script, value)?,
            What::Ping => match value {
                Value::Simple(_) | Value::Bulk(_) | Value::Error(_) => {}
                _ => return Err(Fault::Down("the reply to PING is malformed".into())),
            },
            What::Age => self.votes.handle_age(shared, value, now),
            What::Trial => self.deletion.tried(value),
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
        let (votes, noscript) = (&mut self.votes, is_noscript(value));
        settle(
            shared,
            votes,
            pending_releases,
            queued,
            answer,
            noscript,
            now,
        );
        Ok(())
    }

    /// Handles the reply to the command that loads the script of the age record. If the server refused it, locks work
    /// all the same.
    fn age_script_loaded(&mut self, value: &Value<'_>, now: Instant) {
        let loaded = self.scripts.loaded(Script::Age, value);
        self.votes.ages.loaded(loaded.is_err(), now);
    }

    /// If the master did not execute the request, but may execute it in another form, queues it again in this form: for
    /// example one request for each lock, instead of one request for several locks. Otherwise returns the request.
    fn ask_otherwise(&mut self, queued: Queued, value: &Value<'_>) -> Option<Queued> {
        if is_noscript(value) && !queued.resent {
            self.send_again(queued);
        } else if queued.compared && Deletion::is_refused(value) {
            self.deletion = Deletion::Script;
            self.ask_apart(queued);
        } else if queued.is_of_several()
            && matches!(value, Value::Error(error) if is_denied_key(error))
        {
            // The user lacks the right to the key of one of the locks. Send a separate request for each lock.
            self.apart.extend(queued.split());
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
        (at, now): (Instant, Instant),
    ) -> Result<(), Fault> {
        let mut answered = std::mem::take(&mut self.answered);
        let mut each = std::mem::take(&mut self.each);
        if let Err(fault) = decode_many(&answered, value, &mut each) {
            for queued in answered {
                pending_releases.keep(&queued);
                queued.answer(Err(fault.clone()));
            }
            return Err(fault);
        }
        let noscript = is_noscript(value);
        for (queued, said) in answered.drain(..).zip(each.drain(..)) {
            self.window.learn(at, now);
            if noscript && !queued.resent {
                self.send_again(queued);
            } else if let Some(answer) = said {
                settle(
                    shared,
                    &mut self.votes,
                    pending_releases,
                    queued,
                    answer,
                    noscript,
                    now,
                );
            } else {
                self.ask_apart(queued);
            }
        }
        (self.answered, self.each) = (answered, each);
        Ok(())
    }

    /// Queues a request that failed because the master had lost the scripts. First the scripts are loaded again, then
    /// the request is sent again.
    fn send_again(&mut self, mut queued: Queued) {
        queued.resent = true;
        self.again.push(queued);
        self.wanted = self.scripts.loaded_sets().collect();
    }

    /// Queues a request to be sent again as a separate call of a script.
    fn ask_apart(&mut self, mut queued: Queued) {
        queued.apart = true;
        self.apart.push(queued);
    }

    /// Whether a push is the reply to the oldest outstanding request. Only the replies to `Watch` requests are pushes.
    fn is_answer(&self, push: &[Value<'_>]) -> bool {
        let Some(What::Request(queued)) = self.under_way.front().map(|sent| &sent.what) else {
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
    pub(super) fn caught_up(&mut self, limit: Duration, now: Instant) {
        if self.stalled_since.is_some() {
            // The connection stays stalled if the next outstanding answer is overdue too.
            let next = self.under_way.front();
            self.stalled_since = next.filter(|sent| sent.at + limit <= now).map(|_| now);
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
        let room = self.window.width().saturating_sub(self.under_way.len());
        if room == 0 || out.rest().len() >= BACKLOG {
            return false;
        }
        if !self.again.is_empty() {
            // Wait for all outstanding answers: they may add more requests to `again`. Then all of these requests are
            // sent again in their original order.
            if !self.under_way.is_empty() {
                return false;
            }
            if !self.wanted.is_empty() {
                // Requests call scripts by digest. If a digest is not known from an earlier load, first wait for the
                // replies to SCRIPT LOAD.
                let known: Vec<Set> = self.scripts.loaded_sets().collect();
                let are_named = self.wanted.iter().all(|set| known.contains(set));
                for set in std::mem::take(&mut self.wanted) {
                    self.load(set, shared, out, now);
                }
                if !are_named {
                    return true;
                }
            }
            batch.append(&mut self.again);
        }
        // Send the requests in `apart` first, before later requests for the same locks.
        batch.splice(0..0, self.apart.drain(..));
        let room = room.min(BATCH);
        // Send pending releases before new requests. They fill at most half of `room`, the number of requests that can
        // be sent now, so new requests are sent too.
        batch.extend(pending_releases.take(room / 2, now));
        let room = room.saturating_sub(batch.len());
        if room > 0 {
            shared.mailbox.take(room, batch);
        }
        // More requests may be left in the mailbox after this batch. So return true: the actor then calls `take` again.
        let took = !batch.is_empty();
        if took {
            self.votes.handle_missing_marker(shared);
            self.raise_age(shared, out, now);
        }
        let quarantine = self.votes.quarantine(shared, now);
        for queued in batch.drain(..) {
            if let Some(fault) = self.votes.withheld(&queued.request, quarantine) {
                queued.answer(Err(fault));
            } else if let Some(set) = self.scripts.lacks(&queued.request) {
                if !self.wanted.contains(&set) {
                    self.wanted.push(set);
                }
                self.again.push(queued);
            } else if queued.request.is_withdrawn() || queued.request.is_void(now, &self.memory.run)
            {
                queued.answer(Err(Fault::Withdrawn));
            } else {
                self.runs.add(queued, &mut self.placed);
            }
        }
        self.runs.close(&mut self.placed);
        self.write(shared, out, now);
        took
    }

    /// Writes the requests that [`Runs`] has arranged, in the arranged order.
    fn write(&mut self, shared: &Shared, out: &mut Output, now: Instant) {
        let mut placed = std::mem::take(&mut self.placed);
        if placed.iter().any(|one| one.along > 0) && !self.scripts.has(Set::Many) {
            // The scripts for combined calls are not loaded yet. Do not wait for them: send each request as a separate
            // call.
            for one in &mut placed {
                one.along = 0;
            }
            if !std::mem::replace(&mut self.many_wanted, true) {
                self.load(Set::Many, shared, out, now);
            }
        }
        let mut at = 0;
        while let Some(first) = placed.get(at) {
            let next = at + 1 + first.along;
            match &mut placed[at..next] {
                [one] => self.write_one(&mut one.member, out.commands()),
                run => self.scripts.encode_many(run, out.commands()),
            }
            at = next;
        }
        let written = placed.iter().map(|one| &one.member.request);
        let tries = self.deletion.try_behind(written, out.commands());
        self.under_way
            .extend(placed.drain(..).map(|Placed { member, along }| Sent {
                what: What::Request(member),
                at: now,
                along,
            }));
        if tries {
            self.under_way.push_back(Sent::alone(What::Trial, now));
        }
        self.placed = placed;
    }

    fn write_one(&self, queued: &mut Queued, out: &mut Vec<u8>) {
        // Remember whether the built-in delete command was used, because the reply does not show it.
        queued.compared = self.deletion.write(&queued.request, out);
        if !queued.compared {
            (self.scripts).encode(&queued.request, &self.memory.run, out);
        }
    }

    fn load(&mut self, set: Set, shared: &Shared, out: &mut Output, now: Instant) {
        let scripts = (self.scripts).load(set, shared.options.max_ttl, out.commands());
        let load = |script| Sent::alone(What::Script(script), now);
        self.under_way.extend(scripts.map(load));
    }

    /// Raises the age record of the master, if that is due.
    fn raise_age(&mut self, shared: &Shared, out: &mut Output, now: Instant) {
        let ages = &mut self.votes.ages;
        ages.write(&self.scripts, shared, out, &mut self.under_way, now);
    }

    /// The latest time for the next call of [`tick`](Self::tick).
    pub(super) fn wake_at(&self, pending_releases: &PendingReleases, shared: &Shared) -> Instant {
        let limit = shared.options.node_timeout;
        let at = match (self.stalled_since, self.under_way.front()) {
            (Some(since), _) => return since + STALL.max(4 * limit),
            (None, Some(oldest)) => oldest.at + limit,
            (None, None) => {
                let idle = self.last_reply + IDLE;
                pending_releases
                    .wake_at()
                    .map_or(idle, |respite| respite.min(idle))
            }
        };
        let raise = self.votes.ages.due(shared.options.max_ttl);
        raise.map_or(at, |raise| raise.min(at))
    }

    /// If an answer is overdue, answers all outstanding requests with a timeout. If it stays overdue for too long,
    /// returns an error. Sends a PING if the connection is idle.
    pub(super) fn tick(
        &mut self,
        shared: &Shared,
        out: &mut Output,
        now: Instant,
    ) -> Result<(), Fault> {
        let limit = shared.options.node_timeout;
        if let Some(since) = self.stalled_since {
            return if now < since + STALL.max(4 * limit) {
                Ok(())
            } else {
                Err(Fault::Stalled)
            };
        }
        self.raise_age(shared, out, now);
        let Some(oldest) = self.under_way.front() else {
            if now >= self.last_reply + IDLE {
                Command::words(out.commands(), &["PING"]);
                self.under_way.push_back(Sent::alone(What::Ping, now));
            }
            return Ok(());
        };
        if now < oldest.at + limit {
            return Ok(());
        }
        self.stalled_since = Some(now);
        let open = self.under_way.iter_mut().filter_map(|sent| match sent {
            Sent {
                what: What::Request(queued),
                ..
            } => Some(queued),
            _ => None,
        });
        for queued in open.chain(&mut self.again).chain(&mut self.apart) {
            queued.time_out(Fault::Timeout(limit));
        }
        Ok(())
    }

    /// Ends the connection, and returns the requests that the master has not answered.
    pub(super) fn hang_up(self) -> impl Iterator<Item = Queued> {
        let open = self
            .under_way
            .into_iter()
            .filter_map(|sent| match sent.what {
                What::Request(queued) => Some(queued),
                What::Script(_) | What::Ping | What::Age | What::Trial => None,
            });
        open.chain(self.apart).chain(self.again)
    }
}

/// Passes a pushed message to the subscriber: a wake-up, or the announcement of a new leader.
fn wake(subscriber: Option<&Subscriber>, push: &[Value<'_>]) {
    if let (Some(subscriber), [kind, channel, key]) = (subscriber, push)
        && kind.text() == Some(b"message")
        && let (Some(channel), Some(key)) = (channel.text(), key.text())
    {
        if channel.starts_with(LEADER.as_bytes()) {
            subscriber.sink.announced(subscriber.node, key);
        } else {
            subscriber.sink.woken(subscriber.node, key);
        }
    }
}
