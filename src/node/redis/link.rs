//! The link to one master without its socket: what to write, what a reply means, which requests are overdue, and when
//! to connect again.
//!
//! Its driver reports events (connected, bytes received, time passed), and reads what the link needs
//! ([`stage`](Link::stage), [`output`](Link::output), [`wake_at`](Link::wake_at)). The link reads no clock and touches
//! no socket, so a simulation drives the same state machine that runs in production.
//!
//! Every request is answered, whatever the master does: a request that was sent within the node timeout, one that waits
//! for a connection within the connect timeout, and one in a burst within [`BURST_TIMEOUTS`]. Undelivered releases are
//! kept (up to a limit), and sent first on the next connection.

use std::sync::Arc;
use std::time::Duration;

use super::buffers::{Input, Output};
use super::deletion::Deletion;
use super::handshake::{Handshake, Step};
use super::online::Online;
use super::refusal::down;
use super::shared::Shared;
use crate::node::Fault;
use crate::node::actor::back_off::{BackOff, STEADY};
use crate::node::actor::mailbox::Queued;
use crate::node::actor::pending_releases::PendingReleases;
use crate::protocol::instant::Instant;

/// How long a link whose handle is gone goes on trying to deliver releases.
const LINGER: Duration = Duration::from_secs(1);

/// How long a request may wait in a burst before it is sent, in node timeouts. The master is busy meanwhile. A request
/// that waits here does not time out at the master and is not repeated
/// (`more_requests_than_a_master_can_process_wait_without_timeouts`).
const BURST_TIMEOUTS: u32 = 10;

/// The link to one master.
pub(super) struct Link {
    shared: Arc<Shared>,
    state: State,
    pending_releases: PendingReleases,
    back_off: BackOff,
    input: Input,
    output: Output,
    /// Until when requests wait for a connection instead of being refused.
    patience: Option<Instant>,
    /// When requests last began to wait for a connection. They do not wait again and again for an unstable master.
    patient_at: Instant,
    /// Why there is no connection.
    fault: Fault,
    /// When the handle was seen to be gone.
    closed_at: Option<Instant>,
    batch: Vec<Queued>,
    /// Whether a connection has ended while the server's delete command was tried. It is not tried again then.
    never_try: bool,
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

/// The needs of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(unreachable_pub, reason = "public with the feature testing")]
pub enum Stage {
    /// A new connection; an older one must be closed.
    Dial,
    /// Bytes moved to and from the connection.
    Talk,
    /// No connection for now.
    Rest,
    /// Nothing any more.
    Over,
}

impl Link {
    /// A link that needs a connection. `seed` determines the jitter of its pauses.
    pub(super) fn new(shared: Arc<Shared>, seed: u64, now: Instant) -> Self {
        // The first request waits for the first connection.
        let until = now + shared.options.connect_timeout;
        Self {
            shared,
            state: State::Dialing { until },
            pending_releases: PendingReleases::new(),
            back_off: BackOff::new(seed),
            input: Input::new(),
            output: Output::new(),
            patience: Some(until),
            patient_at: now,
            fault: Fault::Down("connecting".into()),
            closed_at: None,
            batch: Vec::new(),
            never_try: false,
        }
    }

    pub(super) fn stage(&self) -> Stage {
        match self.state {
            State::Dialing { .. } => Stage::Dial,
            State::Handshaking { .. } | State::Online(_) => Stage::Talk,
            State::Pausing { .. } => Stage::Rest,
            State::Over => Stage::Over,
        }
    }

    /// Whether a request is outstanding.
    pub(super) fn is_at_work(&self) -> bool {
        matches!(&self.state, State::Online(online) if online.is_at_work())
    }

    /// Whether more than one request is outstanding.
    pub(super) fn is_crowded(&self) -> bool {
        matches!(&self.state, State::Online(online) if online.is_crowded())
    }

    pub(super) fn input(&mut self) -> &mut Input {
        &mut self.input
    }

    pub(super) fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Reports that a connection has been made.
    pub(super) fn dialed(&mut self, now: Instant) {
        let State::Dialing { until } = self.state else {
            return;
        };
        self.input.clear();
        self.output.clear();
        let handshake = Box::new(Handshake::begin(&self.shared, self.output.commands()));
        self.state = State::Handshaking { until, handshake };
        self.tick(now);
    }

    /// Reports that the connection has ended, or could not be made.
    pub(super) fn cut(&mut self, fault: Fault, now: Instant) {
        if matches!(self.stage(), Stage::Dial | Stage::Talk) {
            self.lose(fault, now);
        }
    }

    /// Parses the received bytes; `true` if the master sent anything.
    pub(super) fn receive(&mut self, now: Instant) -> bool {
        match self.listen(now) {
            Ok(received) => received,
            Err(fault) => {
                self.lose(fault, now);
                true
            }
        }
    }

    fn listen(&mut self, now: Instant) -> Result<bool, Fault> {
        let mut received = false;
        loop {
            match &mut self.state {
                State::Handshaking { handshake, .. } => {
                    let Some(value) = self.input.next().map_err(down)? else {
                        return Ok(received);
                    };
                    received = true;
                    let ready = match handshake.note(&self.shared, &value)? {
                        Step::Waits => false,
                        Step::Done => true,
                        Step::Turns => {
                            if !self.input.is_empty() {
                                let why = "more answers to the handshake than questions";
                                return Err(Fault::Server(why.into()));
                            }
                            let out = self.output.commands();
                            !handshake.turn(&self.shared, out, now)?
                        }
                    };
                    if ready {
                        self.ready(now);
                    }
                }
                State::Online(online) => {
                    while let Some(value) = self.input.next().map_err(down)? {
                        received = true;
                        online.receive(&self.shared, &mut self.pending_releases, &value, now)?;
                    }
                    if received {
                        online.caught_up(self.shared.options.node_timeout, now);
                    }
                    return Ok(received);
                }
                _ => return Ok(received),
            }
        }
    }

    /// Ends the handshake.
    fn ready(&mut self, now: Instant) {
        let over = State::Over;
        if let State::Handshaking { handshake, .. } = std::mem::replace(&mut self.state, over) {
            tracing::debug!(node = %self.shared.address.name(), "connected");
            let mut negotiated = handshake.done();
            if self.never_try {
                negotiated.deletion = Deletion::Script;
            }
            let online = Online::new(negotiated, &self.shared, now);
            self.state = State::Online(Box::new(online));
            self.patience = None;
        }
    }

    /// Writes queued requests; `true` if there may be more.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let State::Online(online) = &mut self.state else {
            // A request that comes during a handshake waits no longer than earlier ones. Once its own time is over, it
            // gets that fault.
            if matches!(self.state, State::Handshaking { until, .. } if now < until) {
                self.lose_patience(now);
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

    /// The latest time of the next [`tick`](Self::tick).
    pub(super) fn wake_at(&self) -> Option<Instant> {
        let at = match &self.state {
            State::Over => return None,
            State::Online(online) => {
                online.wake_at(&self.pending_releases, self.shared.options.node_timeout)
            }
            State::Dialing { until }
            | State::Handshaking { until, .. }
            | State::Pausing { until } => self
                .patience
                .map_or(*until, |patience| patience.min(*until)),
        };
        // A closing link watches its pending releases and the time limit.
        let closing = self.closed_at.map(|closed| closed + LINGER);
        Some(closing.map_or(at, |closing| closing.min(at)))
    }

    /// Handles passed deadlines and queued requests.
    pub(super) fn tick(&mut self, now: Instant) {
        self.settle(now);
        match &mut self.state {
            State::Online(online) => {
                if let Err(fault) = online.tick(&self.shared, &mut self.output, now) {
                    return self.lose(fault, now);
                }
                if online.is_stalled() {
                    // Requests that are queued or come from now on are refused until the master answers.
                    self.refuse_all(&Fault::Stalled);
                }
                let limit = BURST_TIMEOUTS * self.shared.options.node_timeout;
                self.shared.mailbox.overdue(now, limit, &mut self.batch);
                self.refuse_batch(&Fault::Overloaded);
            }
            State::Dialing { until } | State::Handshaking { until, .. } if *until <= now => {
                let limit = humantime::format_duration(self.shared.options.connect_timeout);
                let why = format!("no connection within {limit}");
                self.lose(Fault::Down(why.into()), now);
            }
            State::Pausing { until } if *until <= now => self.dial(now),
            State::Dialing { .. }
            | State::Handshaking { .. }
            | State::Pausing { .. }
            | State::Over => {}
        }
        self.lose_patience(now);
    }

    /// Refuses the requests that wait for a connection, once their time is over.
    fn lose_patience(&mut self, now: Instant) {
        if matches!(self.state, State::Online(_)) {
            return;
        }
        if self.patience.is_none_or(|until| until <= now) {
            self.patience = None;
            let fault = self.fault.clone();
            self.refuse_all(&fault);
            self.shared.mailbox.rest();
        }
    }

    /// Reports when nothing is outstanding. When the handle is gone the link ends as soon as nothing is left to
    /// deliver, or nothing could be delivered for [`LINGER`].
    pub(super) fn settle(&mut self, now: Instant) {
        let closed_for_good = |closed: Instant| now >= closed + LINGER;
        if !self.closed_at.is_some_and(closed_for_good) {
            if matches!(&self.state, State::Online(online) if !online.is_idle()) {
                return;
            }
            self.shared.mailbox.rest();
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

    /// Handles the loss of the connection, or a failure to connect.
    fn lose(&mut self, fault: Fault, now: Instant) {
        let node = self.shared.address.name();
        let stalled = matches!(fault, Fault::Stalled);
        let mut lived = None;
        if let State::Online(online) = std::mem::replace(&mut self.state, State::Over) {
            tracing::warn!(%node, %fault, "connection lost");
            lived = Some(online.lived(now));
            // A proxy may close connections that send an unknown command.
            self.never_try |= online.is_trying();
            let gone = Fault::Disconnected(fault.to_string().into());
            for queued in self.pending_releases.put_first(online.hang_up()) {
                queued.answer(Err(gone.clone()));
            }
        } else if fault != self.fault {
            tracing::warn!(%node, %fault, "no connection");
        }
        let pause = self.back_off.pause(&fault, lived);
        // Requests that come later get the cause of the loss as it applies to them.
        self.fault = match (lived, fault) {
            (None, fault) | (_, fault @ (Fault::Stalled | Fault::Down(_))) => fault,
            (Some(_), fault) => Fault::Down(fault.to_string().into()),
        };
        // A restart takes only a moment, so requests wait for it. They do not wait for a master that has stopped
        // answering, nor again and again.
        let again = now.saturating_since(self.patient_at) < STEADY;
        self.patience = None;
        if lived.is_some() && !stalled && !again {
            self.patience = Some(now + self.shared.options.node_timeout);
            self.patient_at = now;
        }
        self.state = State::Pausing { until: now + pause };
        if pause.is_zero() {
            self.dial(now);
        }
        self.lose_patience(now);
        self.settle(now);
        self.shared.mailbox.rest();
    }

    /// Answers all waiting requests with `fault`.
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
}

/// Answers the remaining requests, and returns the mailbox, even if the runtime is shut down while the link is used.
impl Drop for Link {
    fn drop(&mut self) {
        let fault = Fault::Down("its connection was shut down".into());
        if let State::Online(online) = std::mem::replace(&mut self.state, State::Over) {
            let gone = Fault::Disconnected("its connection was shut down".into());
            for queued in online.hang_up() {
                queued.answer(Err(gone.clone()));
            }
        }
        self.shared.mailbox.fail(&fault);
    }
}

#[cfg(test)]
mod tests;
