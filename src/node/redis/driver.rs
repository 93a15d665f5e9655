//! A link to a Redis master for simulations, which provide the network and the time. The simulation runs the same state
//! machine as production.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::address::Address;
use super::change;
use super::link::Link;
pub use super::link::Stage;
use super::refusal::brief_text;
use super::shared::{NodeOptions, Shared};
use crate::node::actor::mailbox::Queued;
use crate::node::{ChangeOrder, ChangeSeen, Fault, Node, NodeName, Reply, Request, Subscriber};
use crate::protocol::instant::Instant;
use crate::runtime::BoxFuture;

/// The protocol on one connection to a Redis master, without I/O. The caller transfers the bytes between the driver and
/// the connection, so no background task is needed.
///
/// A request that is [sent](Node::send) is queued until the next [`advance`](Self::advance). The caller has these duties:
///
/// - In the stage [`Stage::Dial`]: open a connection.
/// - In the stage [`Stage::Transfer`]: transfer bytes in both directions.
/// - In any other stage: close the connection.
/// - Call [`tick`](Self::tick) at the time [`wake_at`](Wants::wake_at).
/// - Take all times from one monotonic clock.
///
/// Orders of operators ([`Node::change`]) do not use this connection. They need the settings
/// [`dial`](crate::RedlockBuilder::dial) and [`runtime`](crate::RedlockBuilder::runtime).
///
/// The driver delivers answers only while one of its methods runs.
pub struct Driver {
    shared: Arc<Shared>,
    seed: u64,
    link: Mutex<Option<Link>>,
}

/// The next actions that a driver needs from its caller.
pub struct Wants {
    /// Whether the caller has to open the connection, transfer bytes, or close the connection.
    pub stage: Stage,
    /// The bytes that the caller must write to the connection.
    pub bytes: Vec<u8>,
    /// The time by which [`tick`](Driver::tick) must be called next; `None` if no call is due.
    pub wake_at: Option<Instant>,
}

impl Driver {
    pub(crate) fn new(address: Address, options: Arc<NodeOptions>, seed: u64) -> Self {
        Self {
            shared: Arc::new(Shared::new(address, options)),
            seed,
            link: Mutex::new(None),
        }
    }

    /// Calls `step` with the link. The first call creates the link. The time limit for the first connection starts
    /// then.
    fn link<T>(&self, now: Instant, step: impl FnOnce(&mut Link) -> T) -> T {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        step(link.get_or_insert_with(|| Link::new(self.shared.clone(), self.seed, now)))
    }

    /// Reports that the connection was established.
    pub fn dialed(&self, now: Instant) {
        self.link(now, |link| link.dialed(now));
    }

    /// Reports that the connection was lost or could not be established, for the reason `why`.
    pub fn cut(&self, why: &str, now: Instant) {
        self.link(now, |link| link.cut(Fault::Down(brief_text(why)), now));
    }

    /// Passes `bytes`, which the caller has received from the master, to the driver.
    pub fn receive_bytes(&self, bytes: &[u8], now: Instant) {
        self.link(now, |link| receive(link, bytes, now));
    }

    /// Returns the next actions of the caller. In the stage [`Stage::Transfer`], the bytes to write include queued
    /// requests, up to the limit on unanswered requests.
    pub fn advance(&self, now: Instant) -> Wants {
        self.link(now, |link| advance(link, now))
    }

    /// Handles all deadlines that have passed at `now`, for example answer timeouts.
    pub fn tick(&self, now: Instant) {
        self.link(now, |link| link.tick(now));
    }
}

fn receive(link: &mut Link, mut bytes: &[u8], now: Instant) {
    while !bytes.is_empty() && link.stage() == Stage::Transfer {
        match link.input().room() {
            Ok(room) => {
                let count = room.len().min(bytes.len());
                room[..count].copy_from_slice(&bytes[..count]);
                link.input().add_received(count);
                bytes = &bytes[count..];
                link.receive(now);
            }
            Err(error) => link.cut(Fault::Down(brief_text(&error.to_string())), now),
        }
    }
}

fn advance(link: &mut Link, now: Instant) -> Wants {
    let mut bytes = Vec::new();
    if link.stage() == Stage::Transfer {
        while link.take(now) {}
        if !link.is_at_work() {
            link.settle(now);
        }
        let output = link.output();
        bytes = output.unwritten().to_vec();
        output.mark_written(bytes.len());
    } else {
        link.tick(now);
    }
    Wants {
        stage: link.stage(),
        bytes,
        wake_at: link.wake_at(),
    }
}

impl Node for Driver {
    fn name(&self) -> &NodeName {
        self.shared.address.name()
    }

    fn send(&self, request: Request, reply: Reply) {
        if let Err(queued) = self.shared.mailbox.push(Queued::new(request, reply)) {
            queued.answer(Err(Fault::Overloaded));
        }
    }

    fn subscribe(&self, subscriber: Subscriber) {
        let _ = self.shared.subscriber.set(subscriber);
    }

    fn doubted_for(&self) -> Option<Duration> {
        self.shared.doubted_for()
    }

    fn idle(&self) -> BoxFuture<()> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.mailbox.idle().await })
    }

    /// Executes the order over a separate stream, which [`RedlockBuilder::dial`](crate::RedlockBuilder::dial) opens.
    fn change(&self, order: ChangeOrder) -> BoxFuture<ChangeSeen> {
        let shared = Arc::new(self.shared.for_another_connection());
        Box::pin(async move { change::change(&shared, order).await })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.mailbox.close();
    }
}
