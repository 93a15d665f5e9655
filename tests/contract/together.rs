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
const BLUR: Duration = secs(2);

/// The short heartbeat time of waiters that must die during a test.
const BRIEF: Duration = ms(30);

/// One random operation that is applied to both masters.
#[derive(Clone, Debug)]
enum Step {
    /// A burst of requests. One master gets them one by one, the other master gets all of them in one call.
    Burst(Vec<Ask>),
    /// Adds waiters to the queue of the lock with this index, one waiter for each entry of the list. If the entry is
    /// `false`, the waiter sends no further heartbeat: it is dead, but still in the queue.
    Line(usize, Vec<bool>),
    /// Puts a key of a wrong data type. Its name consists of this prefix and the name of the lock with this index.
    Foreign(&'static str, usize),
    Counter(usize, &'static str),
    Put(usize),
    Delete(&'static str, usize),
    Note(usize),
    /// Makes both masters lose their loaded scripts.
    Forget,
    /// Makes both masters run out of memory (`true`), or have memory again (`false`).
    Full(bool),
}

/// One random request of a burst.
#[derive(Clone, Debug)]
struct Ask {
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

fn key_of_lock(before: &str, lock: usize) -> Vec<u8> {
    [before.as_bytes(), &key(lock)].concat()
}

fn ticket(number: u64, heartbeat: Duration) -> Ticket {
    Ticket {
        waiter: format!("{PROCESS}:{number}").into(),
        number,
        heartbeat,
    }
}

impl Ask {
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

/// Random requests. If `lines` is true, most requests are for locks with a queue, otherwise most are for unordered
/// locks. If `cut` is true, some proposed fencing numbers differ by 9 s from the masters' clocks, and the masters
/// replace these numbers.
fn ask(cut: bool, lines: bool) -> impl Strategy<Value = Ask> {
    let shift = move || {
        prop_oneof![
            // Use only a few different distances, so that a fencing counter sometimes equals a proposed number.
            6 => (-2..3_i64).prop_map(|by| 200 * by),
            u32::from(cut) => Just(-9_000),
            u32::from(cut) => Just(9_000),
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
        if lines { 1 } else { 30 } => Just(ClaimKind::Unordered),
        if lines { 30 } else { 1 } => Just(ClaimKind::Try),
        1 => (1..4_u64).prop_map(ClaimKind::Waiter),
    ];
    (verb, 0..LOCKS, 1..4_u8, kind).prop_map(|(verb, lock, token, kind)| Ask {
        verb,
        lock,
        token,
        kind,
    })
}

fn step(cut: bool) -> impl Strategy<Value = Step> {
    let lock = || 0..LOCKS;
    let families = || {
        prop::sample::select(vec![
            "",
            "quorate:fence:",
            "quorate:queue:",
            "quorate:note:",
        ])
    };
    let gone = || prop::sample::select(vec!["", "quorate:fence:", "quorate:alive:"]);
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
        12 => prop::collection::vec(ask(cut, true), 2..60).prop_map(Step::Burst),
        4 => prop::collection::vec(ask(cut, false), 2..60).prop_map(Step::Burst),
        4 => (lock(), prop::collection::vec(any::<bool>(), 1..4))
            .prop_map(|(lock, stay)| Step::Line(lock, stay)),
        2 => (families(), lock()).prop_map(|(before, lock)| Step::Foreign(before, lock)),
        2 => (lock(), prop::sample::select(counters))
            .prop_map(|(lock, text)| Step::Counter(lock, text)),
        1 => lock().prop_map(Step::Put),
        2 => (gone(), lock()).prop_map(|(before, lock)| Step::Delete(before, lock)),
        1 => lock().prop_map(Step::Note),
        1 => Just(Step::Forget),
        1 => any::<bool>().prop_map(Step::Full),
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
fn scripts(master: &RealMaster) -> u64 {
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
enum Wrong {
    Nothing,
    /// The master does not know that queues exist, because the queue marker (the key `quorate:lines`) was deleted.
    Lines,
    /// The master does not see which locks have queues, because the keys `quorate:ticket:*` were deleted.
    Tickets,
    /// The master loses a fencing counter.
    Counter,
    /// The master lets each lock expire after half of its TTL.
    Expiry,
}

struct Pair {
    apart: RealMaster,
    together: RealMaster,
    wake_ups: [WakeUps; 2],
    wrong: Wrong,
    /// True if some proposed fencing numbers are so far from the clock that the masters change them. The results of the
    /// two masters may then differ a little.
    cut: bool,
    seen: [AtomicUsize; 4],
}

impl Pair {
    async fn new(wrong: Wrong, cut: bool) -> Self {
        let (apart, together) = (RealMaster::start(), RealMaster::start());
        let wake_ups = [WakeUps::of(&apart.master), WakeUps::of(&together.master)];
        let pair = Self {
            apart,
            together,
            wake_ups,
            wrong,
            cut,
            seen: Default::default(),
        };
        // Scripts for several requests at once are loaded when they are first needed. Send several releases at once, so
        // that these scripts are loaded before the first burst.
        let all = (0..9).map(|lock| requests::release(&requests::claim(&key(lock), 1)));
        Self::send_at_once(&pair.together.master, &all.collect::<Vec<_>>()).await;
        pair
    }

    async fn send_at_once(master: &TestedMaster, burst: &[Request]) -> Vec<Reply> {
        let mut replies = ReplyCollector::new();
        for (number, request) in burst.iter().enumerate() {
            replies.send(master.node(), number, request.clone());
        }
        let replies: BTreeMap<usize, Reply> = replies.all(burst.len()).await.into_iter().collect();
        assert_eq!(
            replies.len(),
            burst.len(),
            "each request must be answered exactly once"
        );
        replies.into_values().collect()
    }

    async fn burst(&self, asks: &[Ask]) -> Result<(), TestCaseError> {
        let began = Instant::now();
        let now = now();
        let burst: Vec<Request> = asks.iter().map(|ask| ask.request(now)).collect();
        let mut alone = Vec::new();
        for request in &burst {
            alone.push(self.apart.master.send(request.clone()).await);
        }
        self.spoil();
        let combined = Self::send_at_once(&self.together.master, &burst).await;
        // A master replaces a proposal that is more than 1 s behind its clock. Some proposals are 400 ms behind when
        // the burst begins. So reject bursts that take longer than 500 ms.
        if began.elapsed() > ms(500) {
            return Err(TestCaseError::reject("too slow to compare"));
        }
        for (place, (a, b)) in alone.iter().zip(&combined).enumerate() {
            self.count(a);
            prop_assert!(
                self.same(a, b),
                "the answers must agree: alone {a:?}, in the burst {b:?}, to {:?}",
                asks[place]
            );
        }
        Ok(())
    }

    fn count(&self, reply: &Reply) {
        let kind = match reply {
            Ok(Answer::Granted { .. }) => 0,
            Ok(Answer::Refused { .. }) => 1,
            Ok(Answer::Released(true)) => 2,
            Err(_) => 3,
            Ok(_) => return,
        };
        self.seen[kind].fetch_add(1, Ordering::Relaxed);
    }

    fn same(&self, a: &Reply, b: &Reply) -> bool {
        let near = |a: u64, b: u64| a.abs_diff(b) < 1_500_000;
        match (a, b) {
            (
                Ok(Answer::Granted { counter: Some(a) }),
                Ok(Answer::Granted { counter: Some(b) }),
            )
            | (Ok(Answer::CounterAbove(a)), Ok(Answer::CounterAbove(b)))
                if self.cut =>
            {
                near(*a, *b)
            }
            (Ok(Answer::State(a)), Ok(Answer::State(b))) if self.cut => {
                let holders = a.holder == b.holder;
                holders && near(a.counter.unwrap_or(0), b.counter.unwrap_or(0))
            }
            (a, b) => agree(a, b, BLUR),
        }
    }

    fn spoil(&self) {
        for lock in 0..LOCKS {
            let (key, counter) = (key(lock), counter_key(&key(lock)));
            match self.wrong {
                Wrong::Nothing => {}
                Wrong::Lines => self.together.keys.delete(b"quorate:lines"),
                Wrong::Tickets => self
                    .together
                    .keys
                    .delete(&key_of_lock("quorate:ticket:", lock)),
                Wrong::Counter => self.together.keys.delete(&counter),
                Wrong::Expiry => {
                    self.together.keys.command(&[b"PEXPIRE", &key, b"30000"]);
                }
            }
        }
    }

    fn both(&self, args: &[&[u8]]) -> Result<(), TestCaseError> {
        let (a, b) = (
            self.apart.keys.command(args),
            self.together.keys.command(args),
        );
        prop_assert_eq!(a, b);
        Ok(())
    }

    async fn line(&self, lock: usize, stay: &[bool]) -> Result<(), TestCaseError> {
        let began = Instant::now();
        for (number, stay) in (1..).zip(stay) {
            let beat = if *stay { secs(240) } else { BRIEF };
            let place = Fairness::Fair(Some(Box::new(ticket(number, beat))));
            let claim = Claim::new("", &key(lock), requests::token(9), true);
            let asked = requests::acquire(&Arc::new(claim.with_fairness(place)), LONG, now());
            // If the request has acquired the lock, delete the lock key.
            for one in [&self.apart, &self.together] {
                let _ = one.master.send(asked.clone()).await;
                one.keys.delete(&key(lock));
            }
        }
        // If half of a heartbeat time has passed, a waiter may soon be dead on only one of the two masters.
        if began.elapsed() > BRIEF / 2 {
            return Err(TestCaseError::reject("too slow to compare"));
        }
        // Wait until the dead waiters' heartbeats (one `BRIEF`) and the queue marker (two) have expired.
        tokio::time::sleep(3 * BRIEF).await;
        Ok(())
    }

    async fn run(&self, steps: &[Step]) -> Result<(), TestCaseError> {
        self.both(&[b"CONFIG", b"SET", b"maxmemory", b"0"])?;
        self.apart.keys.clear();
        self.together.keys.clear();
        for step in steps {
            match step {
                Step::Burst(asks) => self.burst(asks).await?,
                Step::Line(lock, stay) => self.line(*lock, stay).await?,
                Step::Foreign(before, lock) => {
                    let key = key_of_lock(before, *lock);
                    for one in [&self.apart, &self.together] {
                        one.keys.put_foreign(&key);
                    }
                    // A master looks for a queue only if the lock's ticket key and the queue marker exist. So create
                    // both keys.
                    for key in [
                        key_of_lock("quorate:ticket:", *lock),
                        b"quorate:lines".to_vec(),
                    ] {
                        self.both(&[b"SET", &key, b"1", b"NX", b"PX", b"240000"])?;
                    }
                }
                Step::Counter(lock, text) => {
                    let key = counter_key(&key(*lock));
                    self.both(&[b"SET", &key, text.as_bytes(), b"PX", b"86400000"])?;
                }
                Step::Put(lock) => self.both(&[b"SET", &key(*lock), b"another client's"])?,
                Step::Delete(before, lock) => self.both(&[b"DEL", &key_of_lock(before, *lock)])?,
                Step::Note(lock) => {
                    let text = [&requests::token(1).to_hex()[..], b" says"].concat();
                    self.both(&[b"SET", &key_of_lock("quorate:note:", *lock), &text])?;
                }
                Step::Forget => self.both(&[b"SCRIPT", b"FLUSH"])?,
                Step::Full(full) => {
                    // Delete all queues, because a script may begin with the removal of a dead waiter. After this
                    // removal, a server that is out of memory accepts all later writes of the script.
                    for lock in 0..LOCKS {
                        for before in ["quorate:queue:", "quorate:alive:"] {
                            self.both(&[b"DEL", &key_of_lock(before, lock)])?;
                        }
                    }
                    let most: &[u8] = if *full { b"1" } else { b"0" };
                    self.both(&[b"CONFIG", b"SET", b"maxmemory", most])?;
                }
            }
            self.compare_keys()?;
            // A master sends the wake-ups that it has published before it answers the following request. So when both
            // requests are answered, all wake-ups have arrived.
            for one in [&self.apart, &self.together] {
                let _ = one.master.send(requests::status(b"another")).await;
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
            let texts = ["", "quorate:fence:", "quorate:ticket:", "quorate:note:"];
            for before in texts {
                let key = key_of_lock(before, lock);
                let [a, b] =
                    [&self.apart, &self.together].map(|one| one.keys.command(&[b"GET", &key]));
                let number = |reply: &ServerReply| reply.text()?.parse::<u64>().ok();
                match (number(&a), number(&b)) {
                    (Some(a), Some(b)) if self.cut => prop_assert!(a.abs_diff(b) < 1_500_000),
                    _ => prop_assert_eq!(a, b, "the values of {} must agree", key.escape_ascii()),
                }
                self.compare_expiries(&key)?;
            }
            for before in ["quorate:queue:", "quorate:alive:"] {
                let key = key_of_lock(before, lock);
                let [a, b] = [&self.apart, &self.together].map(|one| {
                    let reply = one.keys.command(&[b"ZRANGE", &key, b"0", b"-1"]);
                    match (before, reply) {
                        // Waiters with the same deadline may be listed in any order.
                        ("quorate:alive:", ServerReply::Array(mut all)) => {
                            all.sort_by_key(|one| one.text().map(Cow::into_owned));
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
        let left = |one: &RealMaster| one.keys.command(&[b"PTTL", key]).int();
        let (a, b) = (left(&self.apart), left(&self.together));
        let near = a.zip(b).is_some_and(|(a, b)| {
            let both = a >= 0 && b >= 0;
            a == b || both && a.abs_diff(b) < BLUR.as_millis() as u64
        });
        prop_assert!(
            near,
            "{}: the remaining times {a:?} and {b:?} must agree",
            key.escape_ascii()
        );
        Ok(())
    }
}

/// Runs random bursts on both masters, and compares their replies and states. Returns the first difference.
fn compare(wrong: Wrong, cut: bool, cases: u32) -> Result<(), String> {
    let seed = seed();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let pair = runtime.block_on(Pair::new(wrong, cut));
    let config = Config {
        cases,
        failure_persistence: None,
        // A seeded bug must cause a difference, so the failing sequence need not be shrunk.
        max_shrink_iters: if wrong == Wrong::Nothing { 300 } else { 0 },
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let steps = prop::collection::vec(step(cut), 1..12);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&steps, |steps| runtime.block_on(pair.run(&steps)));
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(why, steps)) => {
            return Err(format!("QUORATE_SEED={seed}: {why}\n{steps:#?}"));
        }
        Err(error) => panic!("QUORATE_SEED={seed}: {error}"),
    }
    let (alone, many) = (scripts(&pair.apart), scripts(&pair.together));
    let seen = pair
        .seen
        .each_ref()
        .map(|count| count.load(Ordering::Relaxed));
    println!(
        "{alone} script calls for single requests, {many} for combined ones; granted, refused, released, faults: \
         {seen:?}"
    );
    assert!(
        4 * many < 3 * alone,
        "the burst must need fewer script calls ({many}) than the single requests ({alone})"
    );
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
    Ok(())
}

#[test]
fn requests_combined_into_one_command_are_answered_like_single_requests() {
    compare(Wrong::Nothing, false, Sequences::of(10, 60).count())
        .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn combined_requests_with_out_of_range_tokens_are_answered_like_single_requests() {
    compare(Wrong::Nothing, true, Sequences::of(5, 24).count())
        .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn comparison_of_combined_and_single_requests_notices_seeded_bugs() {
    for wrong in [Wrong::Lines, Wrong::Tickets, Wrong::Counter, Wrong::Expiry] {
        assert!(compare(wrong, false, 40).is_err());
    }
}

#[tokio::test]
async fn combined_release_reports_the_lock_whose_queue_key_has_the_wrong_type() {
    let pair = Pair::new(Wrong::Nothing, false).await;
    let ask = |verb| {
        let ask = move |lock| Ask {
            verb,
            lock,
            token: 1,
            kind: ClaimKind::Try,
        };
        Step::Burst((0..9).map(ask).collect())
    };
    let steps = [
        ask(Verb::Acquire(0, 0)),
        Step::Foreign("quorate:queue:", 3),
        ask(Verb::Release(false)),
    ];
    pair.run(&steps).await.expect("the answers must agree");
    let faults = pair.seen[3].load(Ordering::Relaxed);
    assert_eq!(faults, 1, "the release of lock 3 must report the key");
}
