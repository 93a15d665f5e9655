//! The task of one master: it connects the master's [`Link`] to a socket and a timer.
//!
//! # Why like this
//!
//! At first, the driver used the connection of the `redis` crate. This crate builds a list of arguments, copies each
//! command twice, and passes commands and replies through channels. Without it, the throughput with 512 tasks rose from
//! 1.51 to about 1.9 times the baseline's (evidence/benchmarks/notes.md, "Optimizations that helped"). The library now
//! has its own parser; tests compare it with the parser of the `redis` crate.
//!
//! - A task for the requests and another for the socket were rejected, because each request would need a task switch.
//! - If a reply is outstanding, the actor yields once before it writes. Callers can then queue more requests: with 512
//!   tasks, the number of `send` calls per cycle fell from 2.5 to 0.7. If only one request is outstanding, the actor no
//!   longer yields, because this only delayed the request.
//!
//! Not solved: TLS, `AUTH`, RESP3 and the refusals of each server version are now our own work (`scripts/versions`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant as Tick, Sleep};

use super::connecting::broken;
use super::dial::dial;
use super::link::{Link, Stage};
use super::refusal::connection_fault;
use super::shared::Shared;
use super::socket::Socket;
use crate::fork;
use crate::hosting;
use crate::node::Fault;
use crate::node::actor::panicked::PanicHistory;
use crate::node::actor::pending_releases::PendingReleases;
use crate::panics::{self, Panic};
use crate::protocol::instant::Instant;

/// The number of reads from the socket after which the task yields. Without this limit, a master that never stops
/// sending would block the thread of the task.
const READS_PER_POLL: usize = 8;

/// Runs an actor: the task that exchanges all messages with one master. It ends when the handle of the master is
/// dropped and no request or pending release is left.
///
/// `pending` are releases that an earlier actor of this master could not deliver, because its tokio runtime was shut
/// down.
pub(super) fn run(
    shared: Arc<Shared>,
    pending: PendingReleases,
) -> impl Future<Output = ()> + Send + 'static {
    // Create the actor here, not at the first poll. A runtime that is shutting down may drop the task without a poll,
    // and the actor's `drop` must then answer the queued requests.
    let mut actor = Actor::new(shared, pending);
    std::future::poll_fn(move |cx| {
        // After one panic, the link connects again. After a second panic in the same poll, the task ends, and its
        // requests are answered; the next request starts a new task.
        for _ in 0..2 {
            match panics::caught(|| actor.poll(cx)) {
                Ok(polled) => return polled,
                Err(panic) => actor.panicked(&panic),
            }
        }
        actor.link.abandon();
        Poll::Ready(())
    })
}

type Dialing = Pin<Box<dyn Future<Output = Result<Socket, Fault>> + Send>>;

struct Actor {
    shared: Arc<Shared>,
    link: Link,
    clock: Clock,
    dialing: Option<Dialing>,
    socket: Option<Socket>,
    timer: Option<Pin<Box<Sleep>>>,
    /// The time at which the timer fires; `None` if the timer is not set.
    timer_at: Option<Instant>,
    panic_history: PanicHistory,
    /// Whether the task has yielded so that other tasks can queue requests. One write then sends all of them.
    is_gathering: bool,
}

/// Converts between the time of tokio's clock and the `Instant`s that the link uses. If a test pauses tokio's clock,
/// time also stands still for the link.
#[derive(Clone, Copy)]
struct Clock {
    origin: Tick,
}

impl Clock {
    /// The `Instant` at which the first actor of the master is created. It is defined as 1 s.
    const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

    fn now(self) -> Instant {
        Self::BEGIN + self.origin.elapsed()
    }

    fn tick(self, at: Instant) -> Tick {
        // Limit the time since `BEGIN` to 2^32 s. A longer time could overflow tokio's `Instant`.
        let from_here = at.saturating_since(Self::BEGIN);
        self.origin + from_here.min(Duration::from_secs(1 << 32))
    }
}

/// What the actor does next: continue immediately, or wait for an event.
#[derive(PartialEq, Eq)]
enum NextAction {
    Continue,
    Wait,
}

impl Actor {
    fn new(shared: Arc<Shared>, pending: PendingReleases) -> Self {
        // If this actor continues the work of another one, it needs the same origin: pending releases and the restart
        // guard contain times of the earlier actor.
        let clock = Clock {
            origin: *shared.origin.get_or_init(Tick::now),
        };
        // The seed makes the random pauses before reconnecting differ between processes. It need not be secret.
        let seed =
            crate::protocol::instant::Instant::now().as_nanos() ^ u64::from(std::process::id());
        Self {
            link: Link::new(shared.clone(), seed, clock.now()).continuing(pending),
            shared,
            clock,
            dialing: None,
            socket: None,
            timer: None,
            timer_at: None,
            panic_history: PanicHistory::default(),
            is_gathering: false,
        }
    }

    /// Starts another actor that continues the work of this one. Starts none if the master's handle was dropped and no
    /// release is left to deliver.
    fn hand_over(&mut self) {
        let Some(pending) = self.link.hand_over() else {
            return;
        };
        if let Some(background) = hosting::background() {
            background.spawn(fork::bind_to_process(Box::pin(run(
                self.shared.clone(),
                pending,
            ))));
        } else {
            let fault = Fault::Down("no tokio runtime is running".into());
            self.shared.mailbox.fail(&fault);
        }
    }

    /// Handles a panic of this task: drops the connection, and connects again after a pause.
    fn panicked(&mut self, panic: &Panic) {
        self.socket = None;
        self.dialing = None;
        (self.timer, self.timer_at, self.is_gathering) = (None, None, false);
        let now = self.clock.now();
        let fault = self
            .panic_history
            .fault(panic, self.link.connection_age(now));
        self.link.crash(fault, now);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.shared.mailbox.register(cx.waker());
            let stage = self.link.stage();
            if stage != Stage::Transfer {
                self.socket = None;
                self.is_gathering = false;
            }
            if stage != Stage::Dial {
                self.dialing = None;
            }
            if matches!(stage, Stage::Pause | Stage::End) {
                self.link.tick(self.clock.now());
            }
            let next = match stage {
                Stage::End => return Poll::Ready(()),
                Stage::Dial => self.dial(cx),
                Stage::Transfer => self.transfer(cx),
                Stage::Pause => NextAction::Wait,
            };
            let has_changed = self.link.stage() != stage;
            if !has_changed && next == NextAction::Wait && self.set_timer(cx) == NextAction::Wait {
                return Poll::Pending;
            }
        }
    }

    fn dial(&mut self, cx: &mut Context<'_>) -> NextAction {
        let (shared, link, clock) = (&self.shared, &mut self.link, self.clock);
        let dialing = self.dialing.get_or_insert_with(|| {
            link.dialing(clock.now());
            Box::pin(dial(shared.clone()))
        });
        let Poll::Ready(dialed) = dialing.as_mut().poll(cx) else {
            // Refuse the requests that have waited too long for a connection. If the handle of the master was dropped,
            // end the link.
            let now = self.clock.now();
            self.link.take(now);
            self.link.settle(now);
            return NextAction::Wait;
        };
        self.dialing = None;
        let now = self.clock.now();
        match dialed {
            Ok(socket) => {
                self.socket = Some(socket);
                self.link.dialed(now);
            }
            Err(fault) => self.link.cut(fault, now),
        }
        NextAction::Continue
    }

    /// Moves bytes in both directions between the link and the socket. Returns what the actor does next.
    fn transfer(&mut self, cx: &mut Context<'_>) -> NextAction {
        // If several replies are outstanding, first read, then yield once. Callers that get a reply can then queue new
        // requests, and one write sends all of them.
        if !self.is_gathering && self.link.is_out_of_room() {
            self.read(cx);
            return self.yield_once(cx);
        }
        self.is_gathering = false;
        loop {
            self.shared.mailbox.register(cx.waker());
            let is_full = self.link.is_out_of_room();
            let has_taken = self.link.take(self.clock.now());
            let write_result = self.write(cx);
            // Read even if writing failed, because an answer may have arrived before the failure.
            let (has_received, has_more) = self.read(cx);
            if let Err(fault) = write_result {
                self.link.cut(fault, self.clock.now());
            }
            if self.link.stage() != Stage::Transfer {
                return NextAction::Continue;
            }
            if has_more || (has_received && is_full) {
                return self.yield_once(cx);
            }
            if !has_taken && !has_received {
                break;
            }
        }
        if !self.link.is_at_work() {
            self.link.settle(self.clock.now());
        }
        NextAction::Wait
    }

    /// Yields once, so that other tasks can queue their requests.
    fn yield_once(&mut self, cx: &mut Context<'_>) -> NextAction {
        self.is_gathering = true;
        cx.waker().wake_by_ref();
        NextAction::Wait
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Fault> {
        match &mut self.socket {
            Some(socket) => socket
                .poll_write(self.link.output(), cx)
                .map_err(connection_fault),
            None => Ok(()),
        }
    }

    /// Reads from the socket, at most [`READS_PER_POLL`] times. Returns two flags:
    ///
    /// - whether the master sent anything;
    /// - whether more data may be available. The actor reads this data after other tasks have run.
    fn read(&mut self, cx: &mut Context<'_>) -> (bool, bool) {
        let mut has_received = false;
        for _ in 0..READS_PER_POLL {
            let (Stage::Transfer, Some(socket)) = (self.link.stage(), &mut self.socket) else {
                return (has_received, false);
            };
            match socket.poll_read(self.link.input(), cx) {
                Poll::Pending => return (has_received, false),
                Poll::Ready(Ok(())) => has_received |= self.link.receive(self.clock.now()),
                Poll::Ready(Err(error)) => {
                    let fault = broken(error, self.shared.run_history.has_connected());
                    self.link.cut(fault, self.clock.now());
                }
            }
        }
        (has_received, true)
    }

    /// Sets the timer to the link's next deadline. Returns `Continue` if a deadline has passed and was handled.
    fn set_timer(&mut self, cx: &mut Context<'_>) -> NextAction {
        loop {
            let Some(wake_at) = self.link.wake_at() else {
                self.timer_at = None;
                return NextAction::Wait;
            };
            // Also check the clock: the timer does not fire after the task has used up tokio's cooperative budget.
            // While the link connects, use only the timer: before tokio fires it, tokio checks for a ready connection.
            let now = self.clock.now();
            if now >= wake_at && !self.link.is_connecting() {
                self.timer_at = None;
                self.link.tick(now);
                return NextAction::Continue;
            }
            let tick = self.clock.tick(wake_at);
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(tick)));
            // Do not move the timer to a later time: when it fires, this loop sets it to the next deadline.
            if self.timer_at.is_none_or(|armed_at| armed_at > wake_at) {
                self.timer_at = Some(wake_at);
                timer.as_mut().reset(tick);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return NextAction::Wait;
            }
            // The request with this deadline may have been answered. Call `tick` anyway: other requests may be overdue.
            self.timer_at = None;
            self.link.tick(self.clock.now());
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        if self.link.stage() != Stage::End && !std::thread::panicking() {
            self.hand_over();
        }
    }
}
