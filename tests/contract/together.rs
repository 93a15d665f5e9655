//! Tests that requests sent to a master as one call have the same replies and effects as requests sent one by one.
//! Random bursts of requests are sent to two real servers, in one call and one by one. The replies are compared.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use quorate::node::{Answer, Claim, Fairness, Request, Ticket};
use quorate_contract::agreement::{PROCESS, Sequences, WakeUps, agree};
use quorate_contract::fixtures::{LONG, counter_key, now};
use quorate_contract::requests::{self, Reply, ReplyCollector};
use quorate_contract::{KeyAccess as _, TestedMaster, seed};
use quorate_testbed::Reply as ServerReply;

use crate::server_keys::{ServerKeys, server_with_keys};
use crate::support::{ms, secs};

/// The number of locks. A large burst has more requests than this, so some of its requests use the same lock.
const LOCKS: usize = 24;

/// The largest allowed difference between the remaining times of two keys that were set at the same time.
const EXPIRY_TOLERANCE: Duration = secs(2);

/// The short heartbeat time of waiters that must die during a test.
const SHORT_HEARTBEAT: Duration = ms(30);

/// One random operation that is applied to both masters.
#[derive(Clone, Debug)]
enum Step {
    /// A burst of requests. One master gets them one by one, the other master gets all of them in one call.
    Burst(Vec<BurstItem>),
    /// Adds waiters to the queue of the lock with this index, one waiter for each entry of the list. If the entry is
    /// `false`, the waiter sends no further heartbeat: it is dead, but still in the queue.
    Queue(usize, Vec<bool>),
    /// Puts a key of a wrong data type. Its name consists of this prefix and the name of the lock with this index.
    Foreign(&'static str, usize),
    Counter(usize, &'static str),
    Put(usize),
    Delete(&'static str, usize),
    Note(usize),
    /// Makes both masters lose their loaded scripts.
    FlushScripts,
    /// Makes both masters run out of memory (`true`), or have memory again (`false`).
    SetOutOfMemory(bool),
}

/// One random request of a burst.
#[derive(Clone, Debug)]
struct BurstItem {
    verb: Verb,
    lock: usize,
    token: u8,
    kind: ClaimKind,
}

#[derive(Clone, Copy, Debug)]
enum Verb {
    /// Acquires a lock. The first field is the index of the TTL in [`TTLS`]. The second field is the difference between
    /// the proposed fencing number and the current time, in milliseconds.
    Acquire(usize, i64),
    Withdrawn,
    Release(bool),
    /// Releases a claim whose lock may have a note.
    ReleaseNoted,
    Confirm(i64),
    Status,
}

#[derive(Clone, Copy, Debug)]
enum ClaimKind {
    Classic,
    Unordered,
    Try,
    Waiter(u64),
}

/// The TTLs of acquires. The last TTL is longer than any master of these tests accepts.
const TTLS: [Duration; 3] = [secs(60), secs(500), secs(700)];

fn key(lock: usize) -> Vec<u8> {
    format!("lock {lock}").into_bytes()
}

fn key_of_lock(prefix: &str, lock: usize) -> Vec<u8> {
    [prefix.as_bytes(), &key(lock)].concat()
}

fn ticket(number: u64, heartbeat: Duration) -> Ticket {
    Ticket {
        waiter: format!("{PROCESS}:{number}").into(),
        number,
        heartbeat,
    }
}

impl BurstItem {
    fn claim(&self) -> Arc<Claim> {
        let fenced = !matches!(self.kind, ClaimKind::Classic);
        let claim = Claim::new("", &key(self.lock), requests::token(self.token), fenced);
        Arc::new(claim.with_fairness(match self.kind {
            ClaimKind::Classic | ClaimKind::Unordered => Fairness::Unordered,
            ClaimKind::Try => Fairness::Fair(None),
            ClaimKind::Waiter(number) => Fairness::Fair(Some(Box::new(ticket(number, secs(240))))),
        }))
    }

    /// The request to send at the time `now`.
    fn request(&self, now: u64) -> Request {
        let claim = self.claim();
        let shifted = |by: i64| now.saturating_add_signed(by * 1_000);
        match self.verb {
            Verb::Acquire(ttl, shift) => requests::acquire(&claim, TTLS[ttl], shifted(shift)),
            Verb::Withdrawn => {
                claim.withdraw();
                requests::acquire(&claim, LONG, now)
            }
            Verb::Release(leave) => Request::Release { claim, leave },
            Verb::ReleaseNoted => {
                claim.take_note();
                requests::release(&claim)
            }
            Verb::Confirm(shift) => requests::confirm(&claim, shifted(shift)),
            Verb::Status => requests::status(claim.key()),
        }
    }
}

/// Random requests. If `has_queues` is true, most requests are for locks with a queue, otherwise most are for unordered
/// locks. If `has_far_proposals` is true, some proposed fencing numbers differ by 9 s from the masters' clocks, and the masters
/// replace these numbers.
fn burst_item(has_far_proposals: bool, has_queues: bool) -> impl Strategy<Value = BurstItem> {
    let shift = move || {
        prop_oneof![
            // Use only a few different distances, so that a fencing counter sometimes equals a proposed number.
            6 => (-2..3_i64).prop_map(|by| 200 * by),
            u32::from(has_far_proposals) => Just(-9_000),
            u32::from(has_far_proposals) => Just(9_000),
        ]
    };
    let verb = prop_oneof![
        20 => shift().prop_map(|by| Verb::Acquire(0, by)),
        2 => shift().prop_map(|by| Verb::Acquire(1, by)),
        1 => shift().prop_map(|by| Verb::Acquire(2, by)),
        1 => Just(Verb::Withdrawn),
        18 => any::<bool>().prop_map(Verb::Release),
        1 => Just(Verb::ReleaseNoted),
        2 => (-2..3_i64).prop_map(|by| Verb::Confirm(200 * by)),
        1 => Just(Verb::Status),
    ];
    let kind = prop_oneof![
        1 => Just(ClaimKind::Classic),
        if has_queues { 1 } else { 30 } => Just(ClaimKind::Unordered),
        if has_queues { 30 } else { 1 } => Just(ClaimKind::Try),
        1 => (1..4_u64).prop_map(ClaimKind::Waiter),
    ];
    (verb, 0..LOCKS, 1..4_u8, kind).prop_map(|(verb, lock, token, kind)| BurstItem {
        verb,
        lock,
        token,
        kind,
    })
}

fn step(has_far_proposals: bool) -> impl Strategy<Value = Step> {
    let any_lock = || 0..LOCKS;
    let prefixes = || {
        prop::sample::select(vec![
            "",
            "quorate:fence:",
            "quorate:queue:",
            "quorate:note:",
        ])
    };
    let deletable_prefixes = || prop::sample::select(vec!["", "quorate:fence:", "quorate:alive:"]);
    let counters = vec![
        "0",
        "12",
        "-5",
        "1.5",
        "x",
        "0x10",
        " 1700000000000000",
        "170000000000000x",
        "1700000000000000",
        "0000000000000007",
        "4100000000000000",
        "9007199254740991",
        "9007199254740992",
        "9999999999999999",
        "99999999999999999",
    ];
    prop_oneof![
        12 => prop::collection::vec(burst_item(has_far_proposals, true), 2..60).prop_map(Step::Burst),
        4 => prop::collection::vec(burst_item(has_far_proposals, false), 2..60).prop_map(Step::Burst),
        4 => (any_lock(), prop::collection::vec(any::<bool>(), 1..4))
            .prop_map(|(lock, stay)| Step::Queue(lock, stay)),
        2 => (prefixes(), any_lock()).prop_map(|(prefix, lock)| Step::Foreign(prefix, lock)),
        2 => (any_lock(), prop::sample::select(counters))
            .prop_map(|(lock, text)| Step::Counter(lock, text)),
        1 => any_lock().prop_map(Step::Put),
        2 => (deletable_prefixes(), any_lock()).prop_map(|(prefix, lock)| Step::Delete(prefix, lock)),
        1 => any_lock().prop_map(Step::Note),
        1 => Just(Step::FlushScripts),
        1 => any::<bool>().prop_map(Step::SetOutOfMemory),
    ]
}

/// A real server, and direct access to it.
struct RealMaster {
    master: TestedMaster,
    keys: ServerKeys,
}

impl RealMaster {
    fn start() -> Self {
        let (master, keys) = server_with_keys(None);
        Self { master, keys }
    }
}

/// The number of scripts that a server has run so far.
fn script_calls(master: &RealMaster) -> u64 {
    let stats = master.keys.command(&[b"INFO", b"commandstats"]);
    let text = stats.text().expect("text").into_owned();
    let line = text.split("cmdstat_evalsha:calls=").nth(1);
    line.map_or(0, |line| {
        let digits = line.split(',').next().expect("a number");
        digits.parse().expect("a number")
    })
}

/// Defects that the test can cause on the master that gets all requests of a burst in one call. The comparison must
/// notice each defect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SeededBug {
    None,
    /// The master does not know that queues exist, because the queue marker (the key `quorate:lines`) was deleted.
    NoQueueMarker,
    /// The master does not see which locks have queues, because the keys `quorate:ticket:*` were deleted.
    NoTicketKeys,
    /// The master loses a fencing counter.
    LostCounter,
    /// The master lets each lock expire after half of its TTL.
    HalvedTtl,
}

struct Pair {
    unbatched: RealMaster,
    batched: RealMaster,
    wake_ups: [WakeUps; 2],
    seeded_bug: SeededBug,
    /// True if some proposed fencing numbers are so far from the clock that the masters change them. The results of the
    /// two masters may then differ a little.
    has_far_proposals: bool,
    reply_counts: [AtomicUsize; 4],
}

impl Pair {
    async fn new(seeded_bug: SeededBug, has_far_proposals: bool) -> Self {
        let (unbatched, batched) = (RealMaster::start(), RealMaster::start());
        let wake_ups = [
            WakeUps::subscribe(&unbatched.master),
            WakeUps::subscribe(&batched.master),
        ];
        let pair = Self {
            unbatched,
            batched,
            wake_ups,
            seeded_bug,
            has_far_proposals,
            reply_counts: Default::default(),
        };
        // Scripts for several requests at once are loaded when they are first needed. Send several releases at once, so
        // that these scripts are loaded before the first burst.
        let releases = (0..9).map(|lock| requests::release(&requests::claim(&key(lock), 1)));
        Self::send_at_once(&pair.batched.master, &releases.collect::<Vec<_>>()).await;
        pair
    }

    async fn send_at_once(master: &TestedMaster, burst: &[Request]) -> Vec<Reply> {
        let mut replies = ReplyCollector::new();
        for (number, request) in burst.iter().enumerate() {
            replies.send(master.node(), number, request.clone());
        }
        let replies: BTreeMap<usize, Reply> =
            replies.collect(burst.len()).await.into_iter().collect();
        assert_eq!(
            replies.len(),
            burst.len(),
            "each request must be answered exactly once"
        );
        replies.into_values().collect()
    }

    async fn send_burst(&self, items: &[BurstItem]) -> Result<(), TestCaseError> {
        let started_at = Instant::now();
        let now = now();
        let requests: Vec<Request> = items.iter().map(|item| item.request(now)).collect();
        let mut single_replies = Vec::new();
        for request in &requests {
            single_replies.push(self.unbatched.master.send(request.clone()).await);
        }
        self.cause_seeded_bug();
        let combined_replies = Self::send_at_once(&self.batched.master, &requests).await;
        // A master replaces a proposal that is more than 1 s behind its clock. Some proposals are 400 ms behind when
        // the burst begins. So reject bursts that take longer than 500 ms.
        if started_at.elapsed() > ms(500) {
            return Err(TestCaseError::reject("too slow to compare"));
        }
        for (index, (a, b)) in single_replies.iter().zip(&combined_replies).enumerate() {
            self.count_reply(a);
            prop_assert!(
                self.replies_agree(a, b),
                "the answers must agree: alone {a:?}, in the burst {b:?}, to {:?}",
                items[index]
            );
        }
        Ok(())
    }

    fn count_reply(&self, reply: &Reply) {
        let reply_kind = match reply {
            Ok(Answer::Granted { .. }) => 0,
            Ok(Answer::Refused { .. }) => 1,
            Ok(Answer::Released(true)) => 2,
            Err(_) => 3,
            Ok(_) => return,
        };
        self.reply_counts[reply_kind].fetch_add(1, Ordering::Relaxed);
    }

    fn replies_agree(&self, a: &Reply, b: &Reply) -> bool {
        let is_near = |a: u64, b: u64| a.abs_diff(b) < 1_500_000;
        match (a, b) {
            (
                Ok(Answer::Granted { counter: Some(a) }),
                Ok(Answer::Granted { counter: Some(b) }),
            )
            | (Ok(Answer::CounterAbove(a)), Ok(Answer::CounterAbove(b)))
                if self.has_far_proposals =>
            {
                is_near(*a, *b)
            }
            (Ok(Answer::State(a)), Ok(Answer::State(b))) if self.has_far_proposals => {
                let has_same_holder = a.holder == b.holder;
                has_same_holder && is_near(a.counter.unwrap_or(0), b.counter.unwrap_or(0))
            }
            (a, b) => agree(a, b, EXPIRY_TOLERANCE),
        }
    }

    fn cause_seeded_bug(&self) {
        for lock in 0..LOCKS {
            let (key, counter) = (key(lock), counter_key(&key(lock)));
            match self.seeded_bug {
                SeededBug::None => {}
                SeededBug::NoQueueMarker => self.batched.keys.delete(b"quorate:lines"),
                SeededBug::NoTicketKeys => self
                    .batched
                    .keys
                    .delete(&key_of_lock("quorate:ticket:", lock)),
                SeededBug::LostCounter => self.batched.keys.delete(&counter),
                SeededBug::HalvedTtl => {
                    self.batched.keys.command(&[b"PEXPIRE", &key, b"30000"]);
                }
            }
        }
    }

    fn send_to_both(&self, args: &[&[u8]]) -> Result<(), TestCaseError> {
        let (a, b) = (
            self.unbatched.keys.command(args),
            self.batched.keys.command(args),
        );
        prop_assert_eq!(a, b);
        Ok(())
    }

    async fn queue_waiters(&self, lock: usize, liveness: &[bool]) -> Result<(), TestCaseError> {
        let started_at = Instant::now();
        for (number, liveness) in (1..).zip(liveness) {
            let heartbeat = if *liveness {
                secs(240)
            } else {
                SHORT_HEARTBEAT
            };
            let fairness = Fairness::Fair(Some(Box::new(ticket(number, heartbeat))));
            let claim = Claim::new("", &key(lock), requests::token(9), true);
            let request = requests::acquire(&Arc::new(claim.with_fairness(fairness)), LONG, now());
            // If the request has acquired the lock, delete the lock key.
            for master in [&self.unbatched, &self.batched] {
                let _ = master.master.send(request.clone()).await;
                master.keys.delete(&key(lock));
            }
        }
        // If half of a heartbeat time has passed, a waiter may soon be dead on only one of the two masters.
        if started_at.elapsed() > SHORT_HEARTBEAT / 2 {
            return Err(TestCaseError::reject("too slow to compare"));
        }
        // Wait until the dead waiters' heartbeats (one `SHORT_HEARTBEAT`) and the queue marker (two) have expired.
        tokio::time::sleep(3 * SHORT_HEARTBEAT).await;
        Ok(())
    }

    async fn run_steps(&self, steps: &[Step]) -> Result<(), TestCaseError> {
        self.send_to_both(&[b"CONFIG", b"SET", b"maxmemory", b"0"])?;
        self.unbatched.keys.clear();
        self.batched.keys.clear();
        for step in steps {
            match step {
                Step::Burst(items) => self.send_burst(items).await?,
                Step::Queue(lock, liveness) => self.queue_waiters(*lock, liveness).await?,
                Step::Foreign(prefix, lock) => {
                    let key = key_of_lock(prefix, *lock);
                    for master in [&self.unbatched, &self.batched] {
                        master.keys.put_foreign(&key);
                    }
                    // A master looks for a queue only if the lock's ticket key and the queue marker exist. So create
                    // both keys.
                    for key in [
                        key_of_lock("quorate:ticket:", *lock),
                        b"quorate:lines".to_vec(),
                    ] {
                        self.send_to_both(&[b"SET", &key, b"1", b"NX", b"PX", b"240000"])?;
                    }
                }
                Step::Counter(lock, text) => {
                    let key = counter_key(&key(*lock));
                    self.send_to_both(&[b"SET", &key, text.as_bytes(), b"PX", b"86400000"])?;
                }
                Step::Put(lock) => {
                    self.send_to_both(&[b"SET", &key(*lock), b"another client's"])?;
                }
                Step::Delete(prefix, lock) => {
                    self.send_to_both(&[b"DEL", &key_of_lock(prefix, *lock)])?;
                }
                Step::Note(lock) => {
                    let text = [&requests::token(1).to_hex()[..], b" says"].concat();
                    self.send_to_both(&[b"SET", &key_of_lock("quorate:note:", *lock), &text])?;
                }
                Step::FlushScripts => self.send_to_both(&[b"SCRIPT", b"FLUSH"])?,
                Step::SetOutOfMemory(is_full) => {
                    // Delete all queues, because a script may begin with the removal of a dead waiter. After this
                    // removal, a server that is out of memory accepts all later writes of the script.
                    for lock in 0..LOCKS {
                        for prefix in ["quorate:queue:", "quorate:alive:"] {
                            self.send_to_both(&[b"DEL", &key_of_lock(prefix, lock)])?;
                        }
                    }
                    let max_memory: &[u8] = if *is_full { b"1" } else { b"0" };
                    self.send_to_both(&[b"CONFIG", b"SET", b"maxmemory", max_memory])?;
                }
            }
            self.compare_keys()?;
            // A master sends the wake-ups that it has published before it answers the following request. So when both
            // requests are answered, all wake-ups have arrived.
            for master in [&self.unbatched, &self.batched] {
                let _ = master.master.send(requests::status(b"another")).await;
            }
            let [mut a, mut b] = self.wake_ups.each_ref().map(WakeUps::take);
            a.sort();
            b.sort();
            prop_assert_eq!(a, b, "both masters must send the same wake-ups");
        }
        Ok(())
    }

    fn compare_keys(&self) -> Result<(), TestCaseError> {
        self.compare_expiries(b"quorate:lines")?;
        for lock in 0..LOCKS {
            let key_prefixes = ["", "quorate:fence:", "quorate:ticket:", "quorate:note:"];
            for prefix in key_prefixes {
                let key = key_of_lock(prefix, lock);
                let [a, b] = [&self.unbatched, &self.batched]
                    .map(|master| master.keys.command(&[b"GET", &key]));
                let number_in = |reply: &ServerReply| reply.text()?.parse::<u64>().ok();
                match (number_in(&a), number_in(&b)) {
                    (Some(a), Some(b)) if self.has_far_proposals => {
                        prop_assert!(a.abs_diff(b) < 1_500_000);
                    }
                    _ => prop_assert_eq!(a, b, "the values of {} must agree", key.escape_ascii()),
                }
                self.compare_expiries(&key)?;
            }
            for prefix in ["quorate:queue:", "quorate:alive:"] {
                let key = key_of_lock(prefix, lock);
                let [a, b] = [&self.unbatched, &self.batched].map(|master| {
                    let reply = master.keys.command(&[b"ZRANGE", &key, b"0", b"-1"]);
                    match (prefix, reply) {
                        // Waiters with the same deadline may be listed in any order.
                        ("quorate:alive:", ServerReply::Array(mut all)) => {
                            all.sort_by_key(|master| master.text().map(Cow::into_owned));
                            ServerReply::Array(all)
                        }
                        (_, reply) => reply,
                    }
                });
                prop_assert_eq!(a, b, "the values of {} must agree", key.escape_ascii());
                self.compare_expiries(&key)?;
            }
        }
        Ok(())
    }

    fn compare_expiries(&self, key: &[u8]) -> Result<(), TestCaseError> {
        let remaining_ms = |master: &RealMaster| master.keys.command(&[b"PTTL", key]).int();
        let (a, b) = (remaining_ms(&self.unbatched), remaining_ms(&self.batched));
        let is_near = a.zip(b).is_some_and(|(a, b)| {
            let are_set = a >= 0 && b >= 0;
            a == b || are_set && a.abs_diff(b) < EXPIRY_TOLERANCE.as_millis() as u64
        });
        prop_assert!(
            is_near,
            "{}: the remaining times {a:?} and {b:?} must agree",
            key.escape_ascii()
        );
        Ok(())
    }
}

/// Runs random bursts on both masters, and compares their replies and states. Returns the first difference.
fn compare(seeded_bug: SeededBug, has_far_proposals: bool, cases: u32) -> Result<(), String> {
    let seed = seed();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let pair = runtime.block_on(Pair::new(seeded_bug, has_far_proposals));
    let config = Config {
        cases,
        failure_persistence: None,
        // A seeded bug must cause a difference, so the failing sequence need not be shrunk.
        max_shrink_iters: if seeded_bug == SeededBug::None {
            300
        } else {
            0
        },
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let steps = prop::collection::vec(step(has_far_proposals), 1..12);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&steps, |steps| runtime.block_on(pair.run_steps(&steps)));
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, steps)) => {
            return Err(format!("QUORATE_SEED={seed}: {why}\n{steps:#?}"));
        }
        Err(error) => panic!("QUORATE_SEED={seed}: {error}"),
    }
    let (single_calls, combined_calls) =
        (script_calls(&pair.unbatched), script_calls(&pair.batched));
    let reply_counts = pair
        .reply_counts
        .each_ref()
        .map(|count| count.load(Ordering::Relaxed));
    println!(
        "{single_calls} script calls for single requests, {combined_calls} for combined ones; granted, refused, released, faults: \
         {reply_counts:?}"
    );
    assert!(
        4 * combined_calls < 3 * single_calls,
        "the burst must need fewer script calls ({combined_calls}) than the single requests ({single_calls})"
    );
    assert!(
        reply_counts.iter().all(|count| *count > 20),
        "{reply_counts:?}"
    );
    Ok(())
}

#[test]
fn requests_combined_into_one_command_are_answered_like_single_requests() {
    compare(SeededBug::None, false, Sequences::new(10, 60).count())
        .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn combined_requests_with_out_of_range_tokens_are_answered_like_single_requests() {
    compare(SeededBug::None, true, Sequences::new(10, 24).count())
        .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn comparison_of_combined_and_single_requests_notices_seeded_bugs() {
    for seeded_bug in [
        SeededBug::NoQueueMarker,
        SeededBug::NoTicketKeys,
        SeededBug::LostCounter,
        SeededBug::HalvedTtl,
    ] {
        assert!(compare(seeded_bug, false, 40).is_err());
    }
}

#[tokio::test]
async fn combined_release_reports_the_lock_whose_queue_key_has_the_wrong_type() {
    let pair = Pair::new(SeededBug::None, false).await;
    let burst = |verb| {
        let burst_item = move |lock| BurstItem {
            verb,
            lock,
            token: 1,
            kind: ClaimKind::Try,
        };
        Step::Burst((0..9).map(burst_item).collect())
    };
    let steps = [
        burst(Verb::Acquire(0, 0)),
        Step::Foreign("quorate:queue:", 3),
        burst(Verb::Release(false)),
    ];
    pair.run_steps(&steps)
        .await
        .expect("the answers must agree");
    let faults = pair.reply_counts[3].load(Ordering::Relaxed);
    assert_eq!(faults, 1, "the release of lock 3 must report the key");
}
