//! The bytes that a Redis or Valkey server sends, as the driver of the library reads them: handshake, replies and
//! pushes.
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
pub const ALL_AT_ONCE: u8 = 1 << 7;

/// A TTL, a heartbeat, and other durations of the requests.
const REQUEST_DURATION: Duration = Duration::from_secs(10);

/// The settings of the driver, for a master at `url`.
pub fn driver_settings(url: &str) -> RedlockBuilder {
    Redlock::builder()
        .master(url)
        .node_timeout(Duration::from_millis(50))
        .restart_guard(RestartGuard::Off)
}

/// The claims of the requests, one for each kind of lock.
struct Claims {
    plain: Arc<Claim>,
    /// Waits in the queue for the plain lock.
    queued_plain: Arc<Claim>,
    group: Arc<Claim>,
    permit: Arc<Claim>,
    unordered: Arc<Claim>,
}

fn token(byte: u8) -> Token {
    Token::from_bytes([byte; 16])
}

impl Claims {
    fn new() -> Self {
        let ticket = Ticket {
            waiter: "00112233aabbccdd:1".into(),
            number: 1,
            heartbeat: REQUEST_DURATION,
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
        let claim = |key: &[u8], token_number| Claim::new("lock:", key, token(token_number), true);
        let fair_order = |ticket| Fairness::Fair(ticket);
        Self {
            plain: Arc::new(claim(b"plain", 1).with_fairness(fair_order(None))),
            queued_plain: Arc::new(
                claim(b"plain", 2).with_fairness(fair_order(Some(Box::new(ticket)))),
            ),
            group: Arc::new(claim(b"page", 3).with_group(group)),
            permit: Arc::new(Claim::new("", &permit.key(), token(4), true).with_permit(permit)),
            unordered: Arc::new(claim(b"quota", 5).with_fairness(Fairness::Unordered)),
        }
    }
}

fn acquire(claim: &Arc<Claim>) -> (Phase, Request) {
    let claim = claim.clone();
    let proposal = 1_700_000_000_000_000;
    let ttl = REQUEST_DURATION;
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
    let item = |claim: &&Arc<Claim>| ExtendItem::new((*claim).clone(), REQUEST_DURATION).note(true);
    let items = claims.iter().map(item).collect();
    (Phase::Extend, Request::Extend { items })
}

fn read_status(key: &[u8]) -> (Phase, Request) {
    (Phase::Look, Request::Status { key: key.into() })
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
        queued_plain,
        group,
        permit,
        unordered,
    } = Claims::new();
    let confirm_request = Request::Confirm {
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
    let break_request = Request::Break {
        key: b"lock:page"[..].into(),
        ended: [Ended::new(&token(3).to_hex(), &token(3).to_hex())].into(),
        delete: true,
    };
    vec![
        acquire(&plain),
        acquire(&queued_plain),
        (Phase::Confirm, confirm_request),
        (
            Phase::Value,
            Request::Note {
                items: [note].into(),
            },
        ),
        extend(&[&plain]),
        read_status(b"lock:plain"),
        acquire(&group),
        extend(&[&group, &plain]),
        read_status(b"lock:page"),
        acquire(&permit),
        read_status(b"lock:permits"),
        acquire(&unordered),
        read(&unordered, 1),
        (Phase::Value, write),
        read(&unordered, 2),
        (Phase::Look, Request::List { page: page.into() }),
        watch(b"lock:plain"),
        (Phase::Look, break_request),
        release(&permit),
        release(&group),
        release(&queued_plain),
        release(&unordered),
        release(&plain),
    ]
}

/// Counts the answers, and how many of them a server gave.
#[derive(Default)]
pub struct Counts {
    answered: AtomicUsize,
    answers_from_server: AtomicUsize,
}

impl ReplySink for Counts {
    fn answered(&self, _node: usize, _phase: Phase, answer: Result<Answer, Fault>) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        match answer {
            Ok(_) => {
                self.answers_from_server.fetch_add(1, Ordering::Relaxed);
            }
            // The texts of faults contain parts of what the server sent.
            Err(fault) => assert!(fault.to_string().len() < 4_096, "{fault}"),
        }
    }
}

struct IgnoringSink;

impl WakeSink for IgnoringSink {
    fn woken(&self, _node: usize, _key: &[u8]) {}
}

/// A driver whose requests are sent as the first byte of an input says.
pub struct Conversation {
    /// The driver.
    pub driver: Driver,
    counts: Arc<Counts>,
    remaining: std::vec::IntoIter<(Phase, Request)>,
    sent_count: usize,
    all_at_once: bool,
}

impl Conversation {
    /// Begins with the driver of a master at `url`.
    ///
    /// # Panics
    ///
    /// If the URL is not valid.
    pub fn new(url: &str, first_byte: u8) -> Self {
        let mut all_drivers =
            drivers(&driver_settings(url), 1).expect("the settings must be valid");
        let driver = all_drivers.pop().expect("one master");
        driver.subscribe(Subscriber {
            process: "00112233aabbccdd".into(),
            node: 0,
            sink: Arc::new(IgnoringSink),
        });
        let mut remaining = requests();
        remaining.drain(..usize::from(first_byte & !ALL_AT_ONCE).min(remaining.len()));
        let mut conversation = Self {
            driver,
            counts: Arc::default(),
            remaining: remaining.into_iter(),
            sent_count: 0,
            all_at_once: first_byte & ALL_AT_ONCE != 0,
        };
        conversation.send_next();
        conversation
    }

    /// Sends the next request, or all of them.
    pub fn send_next(&mut self) {
        let count = if self.all_at_once { usize::MAX } else { 1 };
        for (phase, request) in self.remaining.by_ref().take(count) {
            self.sent_count += 1;
            let reply = Reply::new(self.counts.clone(), 0, phase);
            self.driver.send(request, reply);
        }
    }

    /// Whether every request was sent and answered.
    pub fn is_finished(&self) -> bool {
        self.remaining.len() == 0 && self.counts.answered.load(Ordering::Relaxed) == self.sent_count
    }

    /// The number of requests that the server answered.
    pub fn answers_from_server(&self) -> usize {
        self.counts.answers_from_server.load(Ordering::Relaxed)
    }
}

/// Passes an input to a driver.
///
/// # Panics
///
/// If the driver panics, or does not answer every request exactly once.
pub fn run(input: &[u8]) -> Depth {
    let (&first_byte, mut remaining_input) = input.split_first().unwrap_or((&0, &[]));
    let mut conversation = Conversation::new("redis://127.0.0.1:6379", first_byte);
    let mut now = Instant::from_nanos(1);
    while !remaining_input.is_empty() {
        let turn = conversation.driver.advance(now);
        match turn.stage {
            Stage::Dial => conversation.driver.dialed(now),
            Stage::Transfer => {
                let separator = remaining_input
                    .windows(2)
                    .position(|pair| pair == SEPARATOR);
                let (chunk, after_chunk) =
                    separator.map_or((remaining_input, &[][..]), |separator| {
                        (
                            &remaining_input[..separator],
                            &remaining_input[separator + SEPARATOR.len()..],
                        )
                    });
                now = now + Duration::from_millis(1);
                conversation.driver.receive_bytes(chunk, now);
                conversation.send_next();
                remaining_input = after_chunk;
            }
            // After a loss of the connection, each later chunk arrives on a new connection.
            Stage::Pause => match turn.wake_at {
                Some(wake_at) => {
                    now = wake_at.max(now + Duration::from_millis(1));
                    conversation.driver.tick(now);
                }
                None => break,
            },
            Stage::End => break,
        }
    }
    let Conversation {
        driver,
        counts,
        sent_count,
        ..
    } = conversation;
    driver.tick(now + Duration::from_secs(3_600));
    drop(driver);
    let answered = counts.answered.load(Ordering::Relaxed);
    assert_eq!(
        answered, sent_count,
        "each request must be answered exactly once"
    );
    match counts.answers_from_server.load(Ordering::Relaxed) {
        0 => Depth::Refused,
        _ => Depth::Accepted,
    }
}
