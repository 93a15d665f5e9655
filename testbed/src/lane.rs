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
use crate::fault::{Era, Rules, Shape, Way};

/// The number of bytes that a lane holds before its sender has to wait.
const LANE_ROOM: usize = 16 << 20;

/// How a proxied connection ends.
pub(crate) enum End {
    /// Both sides have closed the connection, and each close has reached the other side.
    Closed,
    /// Both sides are reset.
    Reset,
}

/// An event on one side of the connection, in transit to the other side.
struct Item {
    arrived: Instant,
    /// A random number from 0 to 1, drawn when the item arrives. The item is delayed by this number times the jitter.
    luck: f64,
    deed: Deed,
}

enum Deed {
    Bytes(Vec<u8>),
    HangUp,
    Reset,
}

/// The result of an attempt to deliver the first item in the queue of a lane.
enum Step {
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
    kept: Cell<usize>,
    filled: Notify,
    drained: Notify,
    /// Whether the sender's close has been forwarded to the receiver.
    finished: Cell<bool>,
}

impl<'a> Lane<'a> {
    pub(crate) fn new(way: Way, stats: &'a FlowStats) -> Self {
        Self {
            way,
            stats,
            items: RefCell::default(),
            kept: Cell::new(0),
            filled: Notify::new(),
            drained: Notify::new(),
            finished: Cell::new(false),
        }
    }

    fn push(&self, deed: Deed, luck: f64) {
        if let Deed::Bytes(bytes) = &deed {
            self.kept.set(self.kept.get() + bytes.len());
        }
        let arrived = Instant::now();
        self.items.borrow_mut().push_back(Item {
            arrived,
            luck,
            deed,
        });
        self.filled.notify_one();
    }

    /// Removes `n` bytes from the first item of the queue. Removes the whole item if it has no more bytes, or if it is
    /// a close or a reset.
    fn pop(&self, n: usize) {
        let mut items = self.items.borrow_mut();
        if let Some(Item {
            deed: Deed::Bytes(bytes),
            ..
        }) = items.front_mut()
        {
            let n = n.min(bytes.len());
            self.kept.set(self.kept.get() - n);
            self.drained.notify_one();
            if n < bytes.len() {
                bytes.drain(..n);
                return;
            }
        }
        items.pop_front();
    }

    /// Reads from the sender until the sender closes.
    pub(crate) async fn take_in(&self, from: Option<ReadHalf<'_>>, mut rng: StdRng) {
        let Some(mut from) = from else {
            return self.push(Deed::Reset, rng.random());
        };
        let mut buffer = vec![0; 16 << 10];
        loop {
            while self.kept.get() >= LANE_ROOM {
                self.drained.notified().await;
            }
            let deed = match from.read(&mut buffer).await {
                Ok(0) => Deed::HangUp,
                Ok(n) => {
                    self.stats.received.fetch_add(n as u64, Ordering::Relaxed);
                    Deed::Bytes(buffer[..n].to_vec())
                }
                Err(_) => Deed::Reset,
            };
            match deed {
                Deed::Bytes(_) => self.push(deed, rng.random()),
                Deed::Reset => return self.push(deed, rng.random()),
                Deed::HangUp => break,
            }
        }
        self.push(Deed::HangUp, rng.random());
        // The sender has closed its socket. If it then gets data from the other side, it sends a reset: wait for it.
        if from.ready(Interest::ERROR).await.is_ok() {
            self.push(Deed::Reset, rng.random());
        }
    }

    /// Delivers the items that are due, until the connection ends.
    pub(crate) async fn deliver(
        &self,
        mut to: Option<WriteHalf<'_>>,
        back: &Lane<'_>,
        born: Era,
        mut view: watch::Receiver<Rules>,
    ) -> End {
        let mut last_write = None;
        let mut countdown = Countdown::default();
        loop {
            if self.items.borrow().is_empty() {
                self.filled.notified().await;
                continue;
            }
            let step = {
                // Hold the lock of the rules during the write, so that `inject` cannot return before this write ends.
                let rules = view.borrow_and_update();
                if rules.era.spares(born) {
                    let shape = rules.shape(self.way, born);
                    countdown.follow(rules.reset_after.filter(|_| self.way == Way::ToClient));
                    self.step(shape, to.as_ref(), last_write, &mut countdown)
                } else {
                    Step::Wait(None) // `serve` is about to end this connection
                }
            };
            match step {
                Step::Wrote(n) => last_write = Some((Instant::now(), n)),
                Step::Lost => {}
                Step::Wait(due) => tokio::select! {
                    () = sleep_or_forever(due) => {}
                    _ = view.changed() => {}
                },
                // Wait until the receiver accepts bytes or the rules change.
                Step::Full => tokio::select! {
                    () = writable(to.as_ref()) => {}
                    _ = view.changed() => {}
                },
                // The receiver has closed. Discard the item and send a reset to the sender, as TCP would.
                Step::Gone => {
                    self.lose();
                    back.push(Deed::Reset, 0.0);
                }
                Step::HangUp => {
                    self.pop(usize::MAX);
                    if let Some(to) = &mut to {
                        let _ = to.shutdown().await;
                    }
                    self.finished.set(true);
                    if back.finished.get() {
                        return End::Closed;
                    }
                }
                Step::Reset => return End::Reset,
            }
        }
    }

    /// Applies the rules to the first item of the queue. Writes the item if it is due.
    fn step(
        &self,
        shape: Shape,
        to: Option<&WriteHalf<'_>>,
        last_write: Option<(Instant, usize)>,
        countdown: &mut Countdown,
    ) -> Step {
        if shape.drop {
            self.lose();
            return Step::Lost;
        }
        if let Err(due) = self.due(shape, last_write) {
            return Step::Wait(due);
        }
        let written = match &self.items.borrow()[0].deed {
            Deed::Reset => return Step::Reset,
            Deed::HangUp => return Step::HangUp,
            Deed::Bytes(_) if countdown.is_over() => return Step::Reset,
            Deed::Bytes(bytes) => {
                // Write at most the number of bytes that the rate allows in 20 ms, so that the bytes flow steadily.
                let slice = shape
                    .rate
                    .map_or(usize::MAX, |rate| (rate / 50).max(1) as usize);
                let most = bytes.len().min(slice).min(countdown.left());
                match to {
                    Some(to) => to.try_write(&bytes[..most]),
                    None => Err(io::ErrorKind::BrokenPipe.into()),
                }
            }
        };
        match written {
            Ok(n) => {
                self.stats.delivered.fetch_add(n as u64, Ordering::Relaxed);
                self.pop(n);
                countdown.pass(n);
                if countdown.is_over() {
                    Step::Reset
                } else {
                    Step::Wrote(n)
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Step::Full,
            Err(_) => Step::Gone,
        }
    }

    /// Checks whether the first item of the queue is due. If it must wait, returns `Err` with the time at which to
    /// check again. Returns `Err(None)` if only a change of the rules can end the wait.
    fn due(
        &self,
        shape: Shape,
        last_write: Option<(Instant, usize)>,
    ) -> Result<(), Option<Instant>> {
        if shape.hold {
            return Err(None);
        }
        let head = &self.items.borrow()[0];
        let delay = shape
            .latency
            .saturating_add(shape.jitter.mul_f64(head.luck));
        // If the due time is outside the clock's range, the item is never due.
        let mut due = head.arrived.checked_add(delay).ok_or(None)?;
        if let (Some(rate), Some((at, n))) = (shape.rate, last_write) {
            due = due.max(at + Duration::from_secs_f64(n as f64 / rate as f64));
        }
        if due <= Instant::now() {
            Ok(())
        } else {
            Err(Some(due))
        }
    }

    /// Discards the first item.
    fn lose(&self) {
        if let Deed::Bytes(bytes) = &self.items.borrow()[0].deed {
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

    fn left(&self) -> usize {
        self.fault.map_or(usize::MAX, |_| {
            usize::try_from(self.bytes).unwrap_or(usize::MAX)
        })
    }

    fn pass(&mut self, n: usize) {
        self.bytes = self.bytes.saturating_sub(n as u64);
    }

    fn is_over(&self) -> bool {
        self.left() == 0
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
