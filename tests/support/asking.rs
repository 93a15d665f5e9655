//! Sends requests directly to a single node.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quorate::node::{
    Answer, Claim, Ended, ExtendItem, Fairness, Fault, NewValue, Node, Phase, Reply, ReplySink,
    Request, Ticket,
};
use quorate::{Instant, Token};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::PATIENCE;

pub(crate) type Said = Result<Answer, Fault>;

/// Sends requests to nodes and collects the answers. The caller gives each request a number, and the answer is returned
/// with this number.
pub(crate) struct Ears {
    sender: UnboundedSender<(usize, Said)>,
    receiver: UnboundedReceiver<(usize, Said)>,
}

struct Answers(UnboundedSender<(usize, Said)>);

impl ReplySink for Answers {
    fn answered(&self, number: usize, _: Phase, said: Said) {
        let _ = self.0.send((number, said));
    }
}

impl Ears {
    pub(crate) fn new() -> Self {
        let (sender, receiver) = unbounded_channel();
        Self { sender, receiver }
    }

    /// Sends a request whose answer is to be returned with the number `number`.
    pub(crate) fn ask(&self, node: &dyn Node, number: usize, request: Request) {
        let answers = Arc::new(Answers(self.sender.clone()));
        node.send(request, Reply::new(answers, number, Phase::Look));
    }

    /// Waits for the next answer. Returns it with the number of its request.
    pub(crate) async fn next(&mut self) -> (usize, Said) {
        tokio::time::timeout(PATIENCE, self.receiver.recv())
            .await
            .expect("every request must be answered")
            .expect("the channel of the answers must stay open")
    }

    /// Waits for the next `count` answers. Returns each with the number of its request.
    pub(crate) async fn all(&mut self, count: usize) -> Vec<(usize, Said)> {
        let mut said = Vec::with_capacity(count);
        while said.len() < count {
            said.push(self.next().await);
        }
        said
    }

    /// Takes one answer if one has arrived. Returns true if none has arrived.
    pub(crate) fn is_silent(&mut self) -> bool {
        self.receiver.try_recv().is_err()
    }
}

/// Sends a request and waits for the answer.
pub(crate) async fn ask(node: &dyn Node, request: Request) -> Said {
    let mut ears = Ears::new();
    ears.ask(node, 0, request);
    let (_, said) = ears.next().await;
    tokio::task::yield_now().await;
    assert!(ears.is_silent(), "a request must be answered only once");
    said
}

/// Counts all answers, and counts separately how often each fault was the answer.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) answers: AtomicUsize,
    pub(crate) faults: Mutex<Vec<(Fault, usize)>>,
}

impl ReplySink for Tally {
    fn answered(&self, _: usize, _: Phase, said: Said) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        if let Err(fault) = said {
            let mut faults = self.faults.lock().expect("no panic");
            match faults.iter_mut().find(|(known, _)| *known == fault) {
                Some((_, count)) => *count += 1,
                None => faults.push((fault, 1)),
            }
        }
    }
}

/// The token whose bytes are all `n`.
pub(crate) fn token(n: u8) -> Token {
    Token::from_bytes([n; 16])
}

/// A claim with a fencing counter. `token(n)` is its lock token.
pub(crate) fn claim(key: &[u8], n: u8) -> Arc<Claim> {
    Arc::new(Claim::new("", key, token(n), true))
}

/// A claim without a fencing counter.
pub(crate) fn classic(key: &[u8], n: u8) -> Arc<Claim> {
    Arc::new(Claim::new("", key, token(n), false))
}

/// A claim with a fencing counter and the ticket `number`. `token(n)` is its lock token.
pub(crate) fn queued(key: &[u8], n: u8, number: u64) -> Arc<Claim> {
    let place = Ticket {
        waiter: format!("{n:016x}:1").into(),
        number,
        heartbeat: Duration::from_secs(240),
    };
    let claim = Claim::new("", key, token(n), true);
    Arc::new(claim.with_fairness(Fairness::Fair(Some(Box::new(place)))))
}

pub(crate) fn acquire(claim: &Arc<Claim>, ttl: Duration, proposal: u64) -> Request {
    Request::Acquire {
        claim: claim.clone(),
        ttl,
        proposal,
    }
}

pub(crate) fn confirm(claim: &Arc<Claim>, token: u64) -> Request {
    Request::Confirm {
        claim: claim.clone(),
        token,
    }
}

pub(crate) fn read(claim: &Arc<Claim>, token: u64) -> Request {
    let claim = claim.clone();
    Request::Read { claim, token }
}

/// A request to write the stored value, with a deadline that is far away.
pub(crate) fn write(claim: &Arc<Claim>, token: u64, bytes: &[u8]) -> Request {
    put(claim, token, Some(bytes.into()))
}

pub(crate) fn remove(claim: &Arc<Claim>, token: u64) -> Request {
    put(claim, token, None)
}

fn put(claim: &Arc<Claim>, token: u64, bytes: Option<Arc<[u8]>>) -> Request {
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

pub(crate) fn release(claim: &Arc<Claim>) -> Request {
    Request::Release {
        claim: claim.clone(),
        leave: true,
    }
}

pub(crate) fn extend(items: &[(&Arc<Claim>, Duration)]) -> Request {
    let item = |&(claim, ttl): &(&Arc<Claim>, Duration)| ExtendItem {
        claim: claim.clone(),
        ttl,
        note: claim.is_noted(),
    };
    Request::Extend {
        items: items.iter().map(item).collect(),
    }
}

pub(crate) fn look(key: &[u8]) -> Request {
    Request::Look { key: key.into() }
}

/// One step of a force-release, which ends the locks `ended`.
pub(crate) fn smash(key: &[u8], ended: &[Ended], delete: bool) -> Request {
    Request::Break {
        key: key.into(),
        ended: ended.into(),
        delete,
    }
}
