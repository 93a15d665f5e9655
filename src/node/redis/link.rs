//! The state machine of the connection to one master. It decides what to write, what a reply means, which requests are
//! overdue, and when to connect again.
//!
//! Its caller reports events (connected, bytes received, time passed), and asks for the next action
//! ([`stage`](Link::stage), [`output`](Link::output), [`wake_at`](Link::wake_at)). The link reads no clock and uses no
//! socket, so simulations run the same code as production.
//!
//! A request waits at most:
//!
//! - three connect timeouts for a connection ([`CONNECT_STEPS`](crate::node::CONNECT_STEPS));
//! - [`MAX_QUEUE_TIMEOUTS`] node timeouts in the mailbox, if the master is slow;
//! - one node timeout for its answer, after it was sent.
//!
//! Releases that could not be delivered are sent first on the next connection. Their number is limited.
//!
//! # Why like this
//!
//! The first driver was a task that read and wrote a tokio stream. The simulation then used a model of this task, so
//! its schedules could not find a bug in the driver. A second test ran the driver over a simulated TCP, but only with a
//! few faults that were written by hand.
//!
//! The link now does no I/O. The simulation passes it bytes that are cut at any place, late replies, and the replies of
//! servers that have forgotten their scripts. A seed replays every such run.
//!
//! - One actor owns the link. If callers shared the connection under a lock, they would hold this lock across an await.
//! - There is one connection per master, because a release must not overtake its acquire. Stores have several sessions,
//!   and must choose one by the name of the record (`src/node/store/node.rs`).
//!
//! Not solved: the actor, the socket and TLS are outside of the link, so only tests with real sockets run them. One
//! connection uses at most one core, so this library is slow with a single master (evidence/benchmarks/notes.md, "Why
//! some goals are missed").

use std::sync::Arc;
use std::time::Duration;

use super::buffers::{Input, Output};
use super::connecting::{HelloHistory, Progress, before_first_answer};
use super::deletion::Deletion;
use super::handshake::{Handshake, HandshakeStage};
use super::online::Online;
use super::refusal::connection_fault;
use super::shared::Shared;
use crate::node::Fault;
use crate::node::actor::mailbox::Queued;
use crate::node::actor::outage::Outage;
use crate::node::actor::pending_releases::PendingReleases;
use crate::protocol::instant::Instant;

/// How long a link continues to deliver releases after the handle of the master was dropped: 1 s.
const LINGER: Duration = Duration::from_secs(1);

/// How long a request to a slow master may wait in this process before it is sent, in node timeouts. The node timeout
/// of the request itself begins when it is sent.
const MAX_QUEUE_TIMEOUTS: u32 = 10;

/// The text of the fault that requests get when the runtime of the link was shut down.
const SHUT_DOWN: &str = "the connection to the master was shut down";

/// The link to one master: the state of its connection, and the master's pending releases.
pub(super) struct Link {
    shared: Arc<Shared>,
    state: State,
    pending_releases: PendingReleases,
    outage: Outage,
    input: Input,
    output: Output,
    /// The time at which the link noticed that the handle of the master was dropped; `None` if the handle exists.
    closed_at: Option<Instant>,
    batch: Vec<Queued>,
    /// Whether the built-in delete command must not be tried again: a connection ended while the link tested it.
    must_not_try_deletion: bool,
    /// Whether another link continues the work of this one.
    handed_over: bool,
    /// Recognizes a proxy that closes each connection in answer to HELLO.
    hello_history: HelloHistory,
    seed: u64,
}

enum State {
    Dialing {
        until: Instant,
    },
    Handshaking {
        until: Instant,
        handshake: Box<Handshake>,
    },
    Online(Box<Online>),
    Pausing {
        until: Instant,
    },
    Over,
}

/// The next step for the code that opens a connection to a Redis master and transfers its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "public if the feature `testing` is on")]
pub enum Stage {
    /// Close the old connection, if there is one, and open a new one.
    Dial,
    /// Transfer bytes to and from the connection.
    Transfer,
    /// Close the connection, and open none until the link is in the stage [`Dial`](Self::Dial).
    Pause,
    /// The link has ended.
    End,
}

impl Link {
    /// Creates a link that needs a connection. `seed` determines the jitter of its pauses, and the names of the age
    /// records that it starts.
    pub(super) fn new(shared: Arc<Shared>, seed: u64, now: Instant) -> Self {
        // Requests wait at most one connect timeout for the first connection to open.
        let until = now + shared.options.connect_timeout;
        Self {
            shared,
            state: State::Dialing { until },
            pending_releases: PendingReleases::new(),
            outage: Outage::before_first_connection(seed, now, until),
            input: Input::new(),
            output: Output::new(),
            closed_at: None,
            batch: Vec::new(),
            must_not_try_deletion: false,
            handed_over: false,
            hello_history: HelloHistory::default(),
            seed,
        }
    }

    /// Makes this link continue the work of an earlier link. `pending` are the releases that the earlier link could not
    /// deliver.
    pub(super) fn continuing(mut self, pending: PendingReleases) -> Self {
        self.pending_releases = pending;
        self
    }

    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Dialing { .. } => Stage::Dial,
            State::Handshaking { .. } | State::Online(_) => Stage::Transfer,
            State::Pausing { .. } => Stage::Pause,
            State::Over => Stage::End,
        }
    }

    /// Whether the link waits for a connection to open, or for its handshake.
    pub(super) fn is_connecting(&self) -> bool {
        matches!(
            self.state,
            State::Dialing { .. } | State::Handshaking { .. }
        )
    }

    /// Whether a request is outstanding.
    pub(super) fn is_at_work(&self) -> bool {
        matches!(&self.state, State::Online(online) if online.is_at_work())
    }

    /// Whether more than one request is outstanding.
    pub(super) fn is_out_of_room(&self) -> bool {
        matches!(&self.state, State::Online(online) if online.is_out_of_room())
    }

    pub(super) fn input(&mut self) -> &mut Input {
        &mut self.input
    }

    pub(super) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Called when the driver begins to open the connection, which may be long after the link was created.
    pub(super) fn dialing(&mut self, now: Instant) {
        if let State::Dialing { until } = self.state {
            let until = self.restart_wait_of(until, now);
            self.state = State::Dialing { until };
        }
    }

    /// Called when the connection has been established.
    pub(super) fn dialed(&mut self, now: Instant) {
        let State::Dialing { until } = self.state else {
            return;
        };
        self.input.clear();
        self.output.clear();
        let handshake = Handshake::begin(
            &self.shared,
            self.hello_history.is_probing(),
            self.output.commands(),
        );
        let handshake = Box::new(handshake);
        let until = self.restart_wait_of(until, now);
        self.state = State::Handshaking { until, handshake };
        self.tick(now);
    }

    /// Returns the deadline of a step that begins at `now`: opening the connection, or one message of the handshake.
    ///
    /// `before` is the deadline of the previous step. Requests that were to wait until `before` now wait until the new
    /// deadline.
    fn restart_wait_of(&mut self, before: Instant, now: Instant) -> Instant {
        let until = now + self.shared.options.connect_timeout;
        if self.outage.waits_until() == Some(before) {
            self.outage.wait_until(until);
        }
        until
    }

    /// Called when the connection was lost, or could not be opened, for the reason `fault`.
    pub(super) fn cut(&mut self, fault: Fault, now: Instant) {
        if matches!(self.stage(), Stage::Dial | Stage::Transfer) {
            self.lose(fault, now);
        }
    }

    /// Called after a panic of the task that drives the link.
    pub(super) fn crash(&mut self, fault: Fault, now: Instant) {
        if !matches!(self.state, State::Over) {
            self.lose(fault, now);
        }
    }

    /// Ends the link after repeated panics. The next request starts another link.
    pub(super) fn abandon(&mut self) {
        self.state = State::Over;
    }

    /// How long the current connection has lasted; `None` if there is none.
    pub(super) fn connection_age(&self, now: Instant) -> Option<Duration> {
        match &self.state {
            State::Online(online) => Some(online.connection_age(now)),
            _ => None,
        }
    }

    /// Handles the received bytes. Returns `true` if they completed a reply, or if the connection was lost.
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        match self.handle_input(now) {
            Ok(received) => received,
            Err(fault) => {
                self.lose(fault, now);
                true
            }
        }
    }

    fn handle_input(&mut self, now: Instant) -> Result<bool, Fault> {
        let mut has_received = false;
        loop {
            match &mut self.state {
                State::Handshaking { handshake, .. } => {
                    // The fault of unreadable bytes depends on whether the master has replied before.
                    let had_connection = self.shared.run_history.has_connected();
                    let unreadable = |error| match handshake.progress() {
                        Progress::Nothing => before_first_answer(error, had_connection),
                        Progress::Probed | Progress::Greeted => connection_fault(error),
                    };
                    let Some(value) = self.input.next().map_err(unreadable)? else {
                        return Ok(has_received);
                    };
                    has_received = true;
                    let is_finished = match handshake.handle_reply(&self.shared, &value, now)? {
                        HandshakeStage::Waiting => false,
                        HandshakeStage::Done => true,
                        HandshakeStage::Probed => {
                            handshake.write_first_message(&self.shared, self.output.commands());
                            false
                        }
                        HandshakeStage::FirstMessageAnswered => {
                            // The first message has all its replies. Bytes after them would answer nothing.
                            if !self.input.is_empty() {
                                let why = "the master sent more replies than there were handshake requests";
                                return Err(Fault::Server(why.into()));
                            }
                            let out = self.output.commands();
                            let has_commands =
                                handshake.write_second_message(&self.shared, out, now)?;
                            self.restart_wait(now);
                            !has_commands
                        }
                    };
                    if is_finished {
                        self.finish_handshake(now);
                    }
                }
                State::Online(online) => {
                    while let Some(value) = self.input.next().map_err(connection_fault)? {
                        has_received = true;
                        online.receive(&self.shared, &mut self.pending_releases, &value, now)?;
                    }
                    // Only now can the connection know whether the next outstanding answer is overdue too.
                    if has_received {
                        online.check_next_overdue(self.shared.options.node_timeout, now);
                    }
                    return Ok(has_received);
                }
                _ => return Ok(has_received),
            }
        }
    }

    /// Sets a new time limit for the second message of the handshake.
    fn restart_wait(&mut self, now: Instant) {
        if let State::Handshaking { until, .. } = self.state {
            let extended = self.restart_wait_of(until, now);
            if let State::Handshaking { until, .. } = &mut self.state {
                *until = extended;
            }
        }
    }

    /// Completes the handshake: requests can be sent from now on.
    fn finish_handshake(&mut self, now: Instant) {
        let ended = State::Over;
        if let State::Handshaking { handshake, .. } = std::mem::replace(&mut self.state, ended) {
            tracing::debug!(node = %self.shared.address.name(), "connected");
            let mut negotiated = handshake.into_negotiated();
            if self.must_not_try_deletion {
                negotiated.deletion = Deletion::Script;
            }
            let online = Online::new(negotiated, &self.shared, self.seed, now);
            self.state = State::Online(Box::new(online));
            self.outage.end_wait();
        }
    }

    /// Takes requests from the mailbox and writes them. Returns `true` if the mailbox may contain more requests that
    /// can be sent now.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let State::Online(online) = &mut self.state else {
            // Refuse the requests if their waiting time is over. After `until`, the deadline of the
            // connection attempt, leave this to `tick`.
            if matches!(self.state, State::Dialing { until } | State::Handshaking { until, .. } if now < until)
            {
                self.refuse_after_wait(now);
            }
            return false;
        };
        if online.is_stalled() {
            self.refuse_all(&Fault::Stalled);
            return false;
        }
        let (out, batch) = (&mut self.output, &mut self.batch);
        online.take(&self.shared, &mut self.pending_releases, out, batch, now)
    }

    /// The latest time for the next call of [`tick`](Self::tick); `None` if the link has ended.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let wake_at = match &self.state {
            State::Over => return None,
            State::Online(online) => online.wake_at(&self.pending_releases, &self.shared),
            State::Dialing { until }
            | State::Handshaking { until, .. }
            | State::Pausing { until } => self
                .outage
                .waits_until()
                .map_or(*until, |waits_until| waits_until.min(*until)),
        };
        // If the handle of the master was dropped, the link ends at `closing` at the latest.
        let closing = self.closed_at.map(|closed| closed + LINGER);
        Some(closing.map_or(wake_at, |closing| closing.min(wake_at)))
    }

    /// Handles the deadlines that have passed, and refuses the queued requests that have waited too long.
    pub(super) fn tick(&mut self, now: Instant) {
        self.settle(now);
        match &mut self.state {
            State::Online(online) => {
                if let Err(fault) = online.tick(&self.shared, &mut self.output, now) {
                    return self.lose(fault, now);
                }
                if online.is_stalled() {
                    // Refuse the queued requests and all new requests until the master answers again.
                    self.refuse_all(&Fault::Stalled);
                }
                let queue_limit = MAX_QUEUE_TIMEOUTS * self.shared.options.node_timeout;
                self.shared
                    .mailbox
                    .take_overdue(now, queue_limit, &mut self.batch);
                self.refuse_batch(&Fault::Overloaded);
            }
            State::Dialing { until } | State::Handshaking { until, .. } if *until <= now => {
                let connect_timeout = self.shared.options.connect_timeout;
                self.lose(Fault::NoConnection(connect_timeout), now);
            }
            State::Pausing { until } if *until <= now => self.dial(now),
            State::Dialing { .. }
            | State::Handshaking { .. }
            | State::Pausing { .. }
            | State::Over => {}
        }
        self.refuse_after_wait(now);
    }

    /// Refuses the requests that wait for a connection, if their waiting time has passed.
    fn refuse_after_wait(&mut self, now: Instant) {
        if matches!(self.state, State::Online(_)) {
            return;
        }
        if self.outage.is_refusing(now) {
            let fault = self.outage.fault().clone();
            self.refuse_all(&fault);
            self.shared.mailbox.mark_idle();
        }
    }

    /// Ends the link if the handle of the master was dropped, and no request and no pending release is left. Pending
    /// releases delay the end by [`LINGER`] at most.
    pub(super) fn settle(&mut self, now: Instant) {
        let has_lingered = |closed: Instant| now >= closed + LINGER;
        if !self.closed_at.is_some_and(has_lingered) {
            if matches!(&self.state, State::Online(online) if !online.is_idle()) {
                return;
            }
            self.shared.mailbox.mark_idle();
            if !self.shared.mailbox.is_over() {
                return;
            }
            self.closed_at.get_or_insert(now);
            if !self.pending_releases.is_empty() {
                return;
            }
        }
        self.state = State::Over;
    }

    fn dial(&mut self, now: Instant) {
        let until = now + self.shared.options.connect_timeout;
        self.state = State::Dialing { until };
    }

    /// Ends the connection, or the attempt to connect, for the reason `fault`. Answers the outstanding requests, keeps
    /// the outstanding releases as pending, and sets the time of the next attempt to connect.
    fn lose(&mut self, fault: Fault, now: Instant) {
        let mut connection_age = None;
        let fault = match &self.state {
            State::Handshaking { handshake, .. } => {
                let fault = self.hello_history.record_end(handshake.progress(), fault);
                self.shared
                    .count_unanswered(self.hello_history.is_probing());
                fault
            }
            // The driver has found a server of another kind. It finds out again before the next handshake.
            State::Dialing { .. } if matches!(fault, Fault::Unsupported(_)) => fault,
            _ => {
                self.hello_history.reset();
                self.shared.count_unanswered(false);
                fault
            }
        };
        if let State::Online(online) = std::mem::replace(&mut self.state, State::Over) {
            connection_age = Some(online.connection_age(now));
            // A proxy may have closed the connection because it does not know the built-in delete command.
            self.must_not_try_deletion |= online.has_trial_outstanding();
            let fault_of_outstanding = Fault::Disconnected(fault.to_string().into());
            for queued in self.pending_releases.prepend(online.into_outstanding()) {
                queued.answer(Err(fault_of_outstanding.clone()));
            }
        }
        let shared = &self.shared;
        let (wait, log) = (
            shared.options.node_timeout,
            (shared.address.name(), &shared.repeats),
        );
        let pause = self
            .outage
            .handle_failure(fault, connection_age, wait, now, log);
        // A failed attempt also ends the wait for the first connection.
        if connection_age.is_none() {
            self.outage.end_wait();
        }
        self.state = State::Pausing { until: now + pause };
        if pause.is_zero() {
            self.dial(now);
        }
        self.refuse_after_wait(now);
        self.settle(now);
        self.shared.mailbox.mark_idle();
    }

    /// Answers all requests in the mailbox with `fault`.
    fn refuse_all(&mut self, fault: &Fault) {
        self.shared.mailbox.take(usize::MAX, &mut self.batch);
        self.refuse_batch(fault);
    }

    fn refuse_batch(&mut self, fault: &Fault) {
        for queued in self.batch.drain(..) {
            self.pending_releases.keep(&queued);
            queued.answer(Err(fault.clone()));
        }
    }

    /// Ends the link, because its runtime is being shut down. Answers the outstanding requests with a fault.
    ///
    /// Returns the releases that the next link must deliver. `None` if the master's handle was dropped and nothing is
    /// left to do.
    pub(super) fn hand_over(&mut self) -> Option<PendingReleases> {
        if let State::Online(online) = std::mem::replace(&mut self.state, State::Over) {
            let fault_of_outstanding = Fault::Disconnected(SHUT_DOWN.into());
            for queued in self.pending_releases.prepend(online.into_outstanding()) {
                queued.answer(Err(fault_of_outstanding.clone()));
            }
        }
        let pending = std::mem::replace(&mut self.pending_releases, PendingReleases::new());
        let continues = !pending.is_empty() || !self.shared.mailbox.is_over();
        self.handed_over = continues;
        continues.then_some(pending)
    }
}

/// Answers the remaining requests with a fault. Does nothing if another link continues the work of this one.
impl Drop for Link {
    fn drop(&mut self) {
        if self.handed_over {
            return;
        }
        if let State::Online(online) = std::mem::replace(&mut self.state, State::Over) {
            let fault_of_outstanding = Fault::Disconnected(SHUT_DOWN.into());
            for queued in online.into_outstanding() {
                queued.answer(Err(fault_of_outstanding.clone()));
            }
        }
        self.shared.mailbox.fail(&Fault::Down(SHUT_DOWN.into()));
    }
}

#[cfg(test)]
mod tests;
