//! One direction of a proxied connection (a lane): a queue between a task that reads from the sender and a task that
//! writes to the receiver.
//!
//! Every event on the sender's side (data, close, reset) becomes an item of the queue. The writing task applies the
//! injected faults when it takes the item from the queue. So a fault also affects items that arrived before the fault
//! was injected.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use crate::counters::FlowStats;
use crate::fault::{DirectionRules, Era, Rules, Way};

/// The number of bytes that a lane holds before its sender has to wait.
const LANE_ROOM: usize = 16 << 20;

/// How a proxied connection ends.
pub(crate) enum ConnectionEnd {
    /// Both sides have closed the connection, and each close has reached the other side.
    Closed,
    /// Both sides are reset.
    Reset,
}

/// An event on one side of the connection, in transit to the other side.
struct Item {
    arrived_at: Instant,
    /// A random number from 0 to 1, drawn when the item arrives. The item is delayed by this number times the jitter.
    jitter_share: f64,
    event: LaneEvent,
}

enum LaneEvent {
    Bytes(Vec<u8>),
    HangUp,
    Reset,
}

/// The result of an attempt to deliver the first item in the queue of a lane.
enum DeliveryStep {
    Wrote(usize),
    /// A rule discards the item.
    Lost,
    /// The item must wait until this time, or until the rules change. With `None`, only a change of the rules ends the
    /// wait.
    Wait(Option<Instant>),
    /// Nothing was written, because the socket to the receiver accepts no more bytes for now.
    Full,
    /// The write failed, because the receiver has closed its connection.
    Gone,
    HangUp,
    /// The connection must be reset, because the sender reset it or a rule demands it.
    Reset,
}

/// One direction of a proxied connection.
pub(crate) struct Lane<'a> {
    way: Way,
    stats: &'a FlowStats,
    items: RefCell<VecDeque<Item>>,
    held_bytes: Cell<usize>,
    filled: Notify,
    drained: Notify,
    /// Whether the sender's close has been forwarded to the receiver.
    is_close_forwarded: Cell<bool>,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(way: Way, stats: &'a FlowStats) -> Self {
        Self {
            way,
            stats,
            items: RefCell::default(),
            held_bytes: Cell::new(0),
            filled: Notify::new(),
            drained: Notify::new(),
            is_close_forwarded: Cell::new(false),
        }
    }

    fn push(&self, event: LaneEvent, jitter_share: f64) {
        if let LaneEvent::Bytes(bytes) = &event {
            self.held_bytes.set(self.held_bytes.get() + bytes.len());
        }
        let arrived_at = Instant::now();
        self.items.borrow_mut().push_back(Item {
            arrived_at,
            jitter_share,
            event,
        });
        self.filled.notify_one();
    }

    /// Removes `n` bytes from the first item of the queue. Removes the whole item if it has no more bytes, or if it is
    /// a close or a reset.
    fn pop(&self, n: usize) {
        let mut items = self.items.borrow_mut();
        if let Some(Item {
            event: LaneEvent::Bytes(bytes),
            ..
        }) = items.front_mut()
        {
            let n = n.min(bytes.len());
            self.held_bytes.set(self.held_bytes.get() - n);
            self.drained.notify_one();
            if n < bytes.len() {
                bytes.drain(..n);
                return;
            }
        }
        items.pop_front();
    }

    /// Reads from the sender until the sender closes.
    pub(crate) async fn read_from_sender(&self, from: Option<ReadHalf<'_>>, mut rng: StdRng) {
        let Some(mut from) = from else {
            return self.push(LaneEvent::Reset, rng.random());
        };
        let mut buffer = vec![0; 16 << 10];
        loop {
            while self.held_bytes.get() >= LANE_ROOM {
                self.drained.notified().await;
            }
            let event = match from.read(&mut buffer).await {
                Ok(0) => LaneEvent::HangUp,
                Ok(n) => {
                    self.stats.received.fetch_add(n as u64, Ordering::Relaxed);
                    LaneEvent::Bytes(buffer[..n].to_vec())
                }
                Err(_) => LaneEvent::Reset,
            };
            match event {
                LaneEvent::Bytes(_) => self.push(event, rng.random()),
                LaneEvent::Reset => return self.push(event, rng.random()),
                LaneEvent::HangUp => break,
            }
        }
        self.push(LaneEvent::HangUp, rng.random());
        // The sender has closed its socket. If it then gets data from the other side, it sends a reset: wait for it.
        if from.ready(Interest::ERROR).await.is_ok() {
            self.push(LaneEvent::Reset, rng.random());
        }
    }

    /// Delivers the items that are due, until the connection ends.
    pub(crate) async fn deliver(
        &self,
        mut to: Option<WriteHalf<'_>>,
        reverse_lane: &Lane<'_>,
        accepted_in: Era,
        mut rules_view: watch::Receiver<Rules>,
    ) -> ConnectionEnd {
        let mut last_write = None;
        let mut countdown = Countdown::default();
        loop {
            if self.items.borrow().is_empty() {
                self.filled.notified().await;
                continue;
            }
            let step = {
                // Hold the lock of the rules during the write, so that `inject` cannot return before this write ends.
                let rules = rules_view.borrow_and_update();
                if rules.era.spares(accepted_in) {
                    let direction_rules = rules.direction_rules(self.way, accepted_in);
                    countdown.follow(rules.reset_after.filter(|_| self.way == Way::ToClient));
                    self.deliver_first(direction_rules, to.as_ref(), last_write, &mut countdown)
                } else {
                    DeliveryStep::Wait(None) // `serve` is about to end this connection
                }
            };
            match step {
                DeliveryStep::Wrote(n) => last_write = Some((Instant::now(), n)),
                DeliveryStep::Lost => {}
                DeliveryStep::Wait(due) => tokio::select! {
                    () = sleep_or_forever(due) => {}
                    _ = rules_view.changed() => {}
                },
                // Wait until the receiver accepts bytes or the rules change.
                DeliveryStep::Full => tokio::select! {
                    () = writable(to.as_ref()) => {}
                    _ = rules_view.changed() => {}
                },
                // The receiver has closed. Discard the item and send a reset to the sender, as TCP would.
                DeliveryStep::Gone => {
                    self.discard_first();
                    reverse_lane.push(LaneEvent::Reset, 0.0);
                }
                DeliveryStep::HangUp => {
                    self.pop(usize::MAX);
                    if let Some(to) = &mut to {
                        let _ = to.shutdown().await;
                    }
                    self.is_close_forwarded.set(true);
                    if reverse_lane.is_close_forwarded.get() {
                        return ConnectionEnd::Closed;
                    }
                }
                DeliveryStep::Reset => return ConnectionEnd::Reset,
            }
        }
    }

    /// Applies the rules to the first item of the queue. Writes the item if it is due.
    fn deliver_first(
        &self,
        rules: DirectionRules,
        to: Option<&WriteHalf<'_>>,
        last_write: Option<(Instant, usize)>,
        countdown: &mut Countdown,
    ) -> DeliveryStep {
        if rules.drop {
            self.discard_first();
            return DeliveryStep::Lost;
        }
        if let Err(due) = self.due(rules, last_write) {
            return DeliveryStep::Wait(due);
        }
        let write_result = match &self.items.borrow()[0].event {
            LaneEvent::Reset => return DeliveryStep::Reset,
            LaneEvent::HangUp => return DeliveryStep::HangUp,
            LaneEvent::Bytes(_) if countdown.is_over() => return DeliveryStep::Reset,
            LaneEvent::Bytes(bytes) => {
                // Write at most the number of bytes that the rate allows in 20 ms, so that the bytes flow steadily.
                let max_slice = rules
                    .rate
                    .map_or(usize::MAX, |rate| (rate / 50).max(1) as usize);
                let max_bytes = bytes.len().min(max_slice).min(countdown.remaining());
                match to {
                    Some(to) => to.try_write(&bytes[..max_bytes]),
                    None => Err(io::ErrorKind::BrokenPipe.into()),
                }
            }
        };
        match write_result {
            Ok(n) => {
                self.stats.delivered.fetch_add(n as u64, Ordering::Relaxed);
                self.pop(n);
                countdown.count_down(n);
                if countdown.is_over() {
                    DeliveryStep::Reset
                } else {
                    DeliveryStep::Wrote(n)
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => DeliveryStep::Full,
            Err(_) => DeliveryStep::Gone,
        }
    }

    /// Checks whether the first item of the queue is due. If it must wait, returns `Err` with the time at which to
    /// check again. Returns `Err(None)` if only a change of the rules can end the wait.
    fn due(
        &self,
        rules: DirectionRules,
        last_write: Option<(Instant, usize)>,
    ) -> Result<(), Option<Instant>> {
        if rules.hold {
            return Err(None);
        }
        let first_item = &self.items.borrow()[0];
        let delay = rules
            .latency
            .saturating_add(rules.jitter.mul_f64(first_item.jitter_share));
        // If the due time is outside the clock's range, the item is never due.
        let mut due_at = first_item.arrived_at.checked_add(delay).ok_or(None)?;
        if let (Some(rate), Some((written_at, n))) = (rules.rate, last_write) {
            due_at = due_at.max(written_at + Duration::from_secs_f64(n as f64 / rate as f64));
        }
        if due_at <= Instant::now() {
            Ok(())
        } else {
            Err(Some(due_at))
        }
    }

    /// Discards the first item.
    fn discard_first(&self) {
        if let LaneEvent::Bytes(bytes) = &self.items.borrow()[0].event {
            self.stats
                .dropped
                .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        self.pop(usize::MAX);
    }
}

/// Counts how many bytes one client may still receive before a `ResetAfter` fault resets its connection.
#[derive(Default)]
struct Countdown {
    fault: Option<u64>,
    bytes: u64,
}

impl Countdown {
    fn follow(&mut self, rule: Option<(u64, u64)>) {
        let fault = rule.map(|(id, _)| id);
        if fault != self.fault {
            self.fault = fault;
            self.bytes = rule.map_or(0, |(_, bytes)| bytes);
        }
    }

    fn remaining(&self) -> usize {
        self.fault.map_or(usize::MAX, |_| {
            usize::try_from(self.bytes).unwrap_or(usize::MAX)
        })
    }

    fn count_down(&mut self, n: usize) {
        self.bytes = self.bytes.saturating_sub(n as u64);
    }

    fn is_over(&self) -> bool {
        self.remaining() == 0
    }
}

async fn writable(to: Option<&WriteHalf<'_>>) {
    match to {
        Some(to) => drop(to.writable().await),
        None => pending().await,
    }
}

async fn sleep_or_forever(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}
