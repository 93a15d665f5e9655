//! The bytes that a Redis or Valkey server sends, as the driver of the library reads them: handshake, replies and pushes.
//!
//! The first byte of an input says how many requests are left out, and whether all requests are sent at once or one
//! after each chunk. The rest are the chunks in which the bytes arrive, separated by [`SEPARATOR`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quorate::node::{
    Answer, Claim, Class, Ended, ExtendItem, Fairness, Fault, Group, Mode, NewValue, Node,
    NoteItem, Page, Part, Permit, Phase, Reply, ReplySink, Request, Subscriber, Ticket, Token,
    WakeSink,
};
use quorate::testing::{Driver, Stage, drivers};
use quorate::{Instant, Redlock, RedlockBuilder, RestartGuard};

use crate::Depth;

/// Ends a chunk.
pub const SEPARATOR: [u8; 2] = [0xff, 0xff];

/// The bit of the first byte that means: send all requests before the first chunk.
pub const AT_ONCE: u8 = 1 << 7;

/// A TTL, a heartbeat, and other durations of the requests.
const LONG: Duration = Duration::from_secs(10);

/// The settings of the driver, for a master at `url`.
pub fn settings(url: &str) -> RedlockBuilder {
    Redlock::builder()
        .master(url)
        .node_timeout(Duration::from_millis(50))
        .restart_guard(RestartGuard::Off)
}

/// The claims of the requests, one for each kind of lock.
struct Claims {
    plain: Arc<Claim>,
    /// Waits in the queue for the plain lock.
    waits: Arc<Claim>,
    group: Arc<Claim>,
    permit: Arc<Claim>,
    unordered: Arc<Claim>,
}

fn token(n: u8) -> Token {
    Token::from_bytes([n; 16])
}

impl Claims {
    fn new() -> Self {
        let ticket = Ticket {
            waiter: "00112233aabbccdd:1".into(),
            number: 1,
            heartbeat: LONG,
        };
        let part = |key: &[u8], mode| Part {
            key: key.into(),
            mode,
        };
        let group = Group::new(vec![
            part(b"lock:page", Mode::Class(Class::Shared)),
            part(b"lock:other", Mode::Exclusive),
        ]);
        let permit = Permit::new(b"lock:permits"[..].into(), 0, 2);
        let claim = |key: &[u8], n| Claim::new("lock:", key, token(n), true);
        let fair = |ticket| Fairness::Fair(ticket);
        Self {
            plain: Arc::new(claim(b"plain", 1).with_fairness(fair(None))),
            waits: Arc::new(claim(b"plain", 2).with_fairness(fair(Some(Box::new(ticket))))),
            group: Arc::new(claim(b"page", 3).with_group(group)),
            permit: Arc::new(Claim::new("", &permit.key(), token(4), true).with_permit(permit)),
            unordered: Arc::new(claim(b"quota", 5).with_fairness(Fairness::Unordered)),
        }
    }
}

fn acquire(claim: &Arc<Claim>) -> (Phase, Request) {
    let claim = claim.clone();
    let proposal = 1_700_000_000_000_000;
    let ttl = LONG;
    (
        Phase::Acquire,
        Request::Acquire {
            claim,
            ttl,
            proposal,
        },
    )
}

fn extend(claims: &[&Arc<Claim>]) -> (Phase, Request) {
    let item = |claim: &&Arc<Claim>| ExtendItem {
        claim: (*claim).clone(),
        ttl: LONG,
        note: true,
    };
    let items = claims.iter().map(item).collect();
    (Phase::Extend, Request::Extend { items })
}

fn look(key: &[u8]) -> (Phase, Request) {
    (Phase::Look, Request::Look { key: key.into() })
}

fn watch(key: &[u8]) -> (Phase, Request) {
    let key = key.into();
    (Phase::Look, Request::Watch { key, on: true })
}

fn read(claim: &Arc<Claim>, token: u64) -> (Phase, Request) {
    let claim = claim.clone();
    (Phase::Value, Request::Read { claim, token })
}

fn release(claim: &Arc<Claim>) -> (Phase, Request) {
    let claim = claim.clone();
    (Phase::Release, Request::Release { claim, leave: true })
}

/// Requests of every kind, in an order in which a server grants most of them.
pub fn requests() -> Vec<(Phase, Request)> {
    let Claims {
        plain,
        waits,
        group,
        permit,
        unordered,
    } = Claims::new();
    let confirm = Request::Confirm {
        claim: plain.clone(),
        token: 1_700_000_000_000_001,
    };
    let note = NoteItem {
        claim: plain.clone(),
        says: "host\t1\tprogram".into(),
        since: 1_700_000_000_000,
        announce: true,
    };
    let value = NewValue {
        bytes: Some(b"7"[..].into()),
        until: Instant::from_nanos(u64::MAX),
        run: None,
    };
    let write = Request::Write {
        claim: unordered.clone(),
        token: 1,
        value: value.into(),
    };
    let page = Page {
        pattern: b"lock:*"[..].into(),
        cursor: 0,
        count: 100,
    };
    let broken = Request::Break {
        key: b"lock:page"[..].into(),
        ended: [Ended::new(&token(3).to_hex(), &token(3).to_hex())].into(),
        delete: true,
    };
    vec![
        acquire(&plain),
        acquire(&waits),
        (Phase::Confirm, confirm),
        (
            Phase::Value,
            Request::Note {
                items: [note].into(),
            },
        ),
        extend(&[&plain]),
        look(b"lock:plain"),
        acquire(&group),
        extend(&[&group, &plain]),
        look(b"lock:page"),
        acquire(&permit),
        look(b"lock:permits"),
        acquire(&unordered),
        read(&unordered, 1),
        (Phase::Value, write),
        read(&unordered, 2),
        (Phase::Look, Request::List { page: page.into() }),
        watch(b"lock:plain"),
        (Phase::Look, broken),
        release(&permit),
        release(&group),
        release(&waits),
        release(&unordered),
        release(&plain),
    ]
}

/// Counts the answers, and how many of them a server gave.
#[derive(Default)]
pub struct Counts {
    answered: AtomicUsize,
    from_server: AtomicUsize,
}

impl ReplySink for Counts {
    fn answered(&self, _node: usize, _phase: Phase, answer: Result<Answer, Fault>) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        match answer {
            Ok(_) => {
                self.from_server.fetch_add(1, Ordering::Relaxed);
            }
            // The texts of faults contain parts of what the server sent.
            Err(fault) => assert!(fault.to_string().len() < 4_096, "{fault}"),
        }
    }
}

struct Ignores;

impl WakeSink for Ignores {
    fn woken(&self, _node: usize, _key: &[u8]) {}
}

/// A driver whose requests are sent as the first byte of an input says.
pub struct Talk {
    /// The driver.
    pub driver: Driver,
    counts: Arc<Counts>,
    left: std::vec::IntoIter<(Phase, Request)>,
    sent: usize,
    at_once: bool,
}

impl Talk {
    /// Begins with the driver of a master at `url`.
    ///
    /// # Panics
    ///
    /// If the URL is not valid.
    pub fn new(url: &str, how: u8) -> Self {
        let mut all = drivers(&settings(url), 1).expect("the settings must be valid");
        let driver = all.pop().expect("one master");
        driver.subscribe(Subscriber {
            process: "00112233aabbccdd".into(),
            node: 0,
            sink: Arc::new(Ignores),
        });
        let mut left = requests();
        left.drain(..usize::from(how & !AT_ONCE).min(left.len()));
        let mut talk = Self {
            driver,
            counts: Arc::default(),
            left: left.into_iter(),
            sent: 0,
            at_once: how & AT_ONCE != 0,
        };
        talk.ask();
        talk
    }

    /// Sends the next request, or all of them.
    pub fn ask(&mut self) {
        let many = if self.at_once { usize::MAX } else { 1 };
        for (phase, request) in self.left.by_ref().take(many) {
            self.sent += 1;
            let reply = Reply::new(self.counts.clone(), 0, phase);
            self.driver.send(request, reply);
        }
    }

    /// Whether every request was sent and answered.
    pub fn is_over(&self) -> bool {
        self.left.len() == 0 && self.counts.answered.load(Ordering::Relaxed) == self.sent
    }

    /// The number of requests that the server answered.
    pub fn from_server(&self) -> usize {
        self.counts.from_server.load(Ordering::Relaxed)
    }
}

/// Passes an input to a driver.
///
/// # Panics
///
/// If the driver panics, or does not answer every request exactly once.
pub fn run(input: &[u8]) -> Depth {
    let (&how, mut rest) = input.split_first().unwrap_or((&0, &[]));
    let mut talk = Talk::new("redis://127.0.0.1:6379", how);
    let mut now = Instant::from_nanos(1);
    while !rest.is_empty() {
        let wants = talk.driver.turn(now);
        match wants.stage {
            Stage::Dial => talk.driver.dialed(now),
            Stage::Talk => {
                let end = rest.windows(2).position(|two| two == SEPARATOR);
                let (chunk, after) = end.map_or((rest, &[][..]), |end| {
                    (&rest[..end], &rest[end + SEPARATOR.len()..])
                });
                now = now + Duration::from_millis(1);
                talk.driver.hear(chunk, now);
                talk.ask();
                rest = after;
            }
            // After a loss of the connection, each later chunk arrives on a new connection.
            Stage::Rest => match wants.wake_at {
                Some(wake_at) => {
                    now = wake_at.max(now + Duration::from_millis(1));
                    talk.driver.tick(now);
                }
                None => break,
            },
            Stage::Over => break,
        }
    }
    let Talk {
        driver,
        counts,
        sent,
        ..
    } = talk;
    driver.tick(now + Duration::from_secs(3_600));
    drop(driver);
    let answered = counts.answered.load(Ordering::Relaxed);
    assert_eq!(answered, sent, "each request must be answered exactly once");
    match counts.from_server.load(Ordering::Relaxed) {
        0 => Depth::Refused,
        _ => Depth::Accepted,
    }
}
