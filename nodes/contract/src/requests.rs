//! Makes requests, sends them directly to a single node, and collects the replies.

use std::sync::Arc;
use std::time::Duration;

use quorate::node::{
    self, Answer, Claim, Ended, ExtendItem, Fairness, Fault, NewValue, Node, Phase, ReplySink,
    Request, Ticket,
};
use quorate::{Instant, Token};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::time::PATIENCE;

/// The reply to a request: the answer of the master, or the fault for which there is no answer.
pub type Reply = Result<Answer, Fault>;

/// Sends requests to nodes and collects the replies. The caller gives each request a number, and the reply is returned
/// with this number.
pub struct ReplyCollector {
    sender: UnboundedSender<(usize, Reply)>,
    receiver: UnboundedReceiver<(usize, Reply)>,
}

struct Sink(UnboundedSender<(usize, Reply)>);

impl ReplySink for Sink {
    fn answered(&self, number: usize, _: Phase, reply: Reply) {
        let _ = self.0.send((number, reply));
    }
}

impl Default for ReplyCollector {
    fn default() -> Self {
        Self::new()
    }
}

impl ReplyCollector {
    /// A collector without replies.
    pub fn new() -> Self {
        let (sender, receiver) = unbounded_channel();
        Self { sender, receiver }
    }

    /// Sends a request whose reply is to be returned with the number `number`.
    pub fn send(&self, node: &dyn Node, number: usize, request: Request) {
        let sink = Arc::new(Sink(self.sender.clone()));
        node.send(request, node::Reply::new(sink, number, Phase::Look));
    }

    /// Waits for the next reply. Returns it with the number of its request.
    pub async fn next(&mut self) -> (usize, Reply) {
        tokio::time::timeout(PATIENCE, self.receiver.recv())
            .await
            .expect("every request must be answered")
            .expect("the channel of the answers must stay open")
    }

    /// Waits for the next `count` replies. Returns each with the number of its request.
    pub async fn collect(&mut self, count: usize) -> Vec<(usize, Reply)> {
        let mut replies = Vec::with_capacity(count);
        while replies.len() < count {
            replies.push(self.next().await);
        }
        replies
    }

    /// Takes one reply if one has arrived. Returns true if none has arrived.
    pub fn is_silent(&mut self) -> bool {
        self.receiver.try_recv().is_err()
    }
}

/// Sends a request and waits for the reply. Checks that there is only one reply.
///
/// # Errors
///
/// The fault for which there is no answer.
pub async fn send(node: &dyn Node, request: Request) -> Reply {
    let mut replies = ReplyCollector::new();
    replies.send(node, 0, request);
    let (_, reply) = replies.next().await;
    tokio::task::yield_now().await;
    assert!(replies.is_silent(), "a request must be answered only once");
    reply
}

/// The token whose bytes are all `n`.
pub fn token(n: u8) -> Token {
    Token::from_bytes([n; 16])
}

/// A claim with a fencing counter. `token(n)` is its lock token.
pub fn claim(key: &[u8], n: u8) -> Arc<Claim> {
    Arc::new(Claim::new("", key, token(n), true))
}

/// A claim without a fencing counter.
pub fn classic(key: &[u8], n: u8) -> Arc<Claim> {
    Arc::new(Claim::new("", key, token(n), false))
}

/// A claim with a fencing counter and the ticket `number`. `token(n)` is its lock token.
pub fn queued(key: &[u8], n: u8, number: u64) -> Arc<Claim> {
    let ticket = Ticket {
        waiter: format!("{n:016x}:1").into(),
        number,
        heartbeat: Duration::from_secs(240),
    };
    let claim = Claim::new("", key, token(n), true);
    Arc::new(claim.with_fairness(Fairness::Fair(Some(Box::new(ticket)))))
}

/// A request to acquire the lock of `claim`. `proposal` is the proposed fencing number.
pub fn acquire(claim: &Arc<Claim>, ttl: Duration, proposal: u64) -> Request {
    Request::Acquire {
        claim: claim.clone(),
        ttl,
        proposal,
    }
}

/// A request to confirm the fencing token of a holder.
pub fn confirm(claim: &Arc<Claim>, token: u64) -> Request {
    Request::Confirm {
        claim: claim.clone(),
        token,
    }
}

/// A request to read the stored value, by the holder with this fencing token.
pub fn read(claim: &Arc<Claim>, token: u64) -> Request {
    let claim = claim.clone();
    Request::Read { claim, token }
}

/// A request to write the stored value, with a deadline that is far away.
pub fn write(claim: &Arc<Claim>, token: u64, bytes: &[u8]) -> Request {
    write_or_remove(claim, token, Some(bytes.into()))
}

/// A request to remove the stored value, with a deadline that is far away.
pub fn remove(claim: &Arc<Claim>, token: u64) -> Request {
    write_or_remove(claim, token, None)
}

fn write_or_remove(claim: &Arc<Claim>, token: u64, bytes: Option<Arc<[u8]>>) -> Request {
    let until = Instant::now() + Duration::from_secs(600);
    Request::Write {
        claim: claim.clone(),
        token,
        value: Arc::new(NewValue {
            bytes,
            until,
            run: None,
        }),
    }
}

/// A request to release the lock of `claim`, and to remove its waiter from the queue.
pub fn release(claim: &Arc<Claim>) -> Request {
    Request::Release {
        claim: claim.clone(),
        leave: true,
    }
}

/// A request to extend several locks, each to its TTL.
pub fn extend(items: &[(&Arc<Claim>, Duration)]) -> Request {
    let item = |&(claim, ttl): &(&Arc<Claim>, Duration)| {
        ExtendItem::new(claim.clone(), ttl).note(claim.is_noted())
    };
    Request::Extend {
        items: items.iter().map(item).collect(),
    }
}

/// A request for the status of a lock.
pub fn status(key: &[u8]) -> Request {
    Request::Status { key: key.into() }
}

/// A request for one step of a force-release, which ends the locks `ended`. If `delete` is true, the step deletes the
/// lock key if it has one of these locks.
pub fn force_release(key: &[u8], ended: &[Ended], delete: bool) -> Request {
    Request::Break {
        key: key.into(),
        ended: ended.into(),
        delete,
    }
}
