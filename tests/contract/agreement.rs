//! Tests that the memory master answers exactly like a real master. Random sequences of requests are sent to both
//! masters, and their replies are compared one by one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use quorate::node::{
    Answer, Claim, Class, Ended, ExtendItem, Extended, Fairness, Fault, Group, Hold, KeyState,
    Mode, NoteItem, Part, Permit, Request, Subscriber, Ticket, Waiter, WakeSink,
};

use crate::arm::{Arm, LONG, Master, fence, hex, now};
use crate::support::asking::{self, Said, claim, classic};
use crate::support::seed::seed;
use crate::support::{ms, secs};

const KEYS: [&[u8]; 2] = [b"a", b"b"];

/// The durations used in one random sequence of operations.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    ttls: [Duration; 3],
    /// The heartbeat time of each waiter.
    heartbeats: [Duration; TICKETS.len()],
}

/// Durations that outlast every test. The TTLs differ by far more than [`BLUR`], so the test notices a wrong TTL.
pub(crate) const LASTING: Times = Times {
    ttls: [secs(60), secs(240), LONG],
    heartbeats: [secs(240); TICKETS.len()],
};

/// Durations for tests of expiry. Some of them end during a test, so some locks expire and some waiters die.
pub(crate) const FLEETING: Times = Times {
    ttls: [BLINK, BLINK, LONG],
    heartbeats: [BLINK, BLINK, secs(240), secs(240)],
};

const BLINK: Duration = ms(60);

const MONTH: Duration = secs(30 * 86_400);

/// Each of the two compared masters rounds the expiry time of a key to whole milliseconds. So the two expiry times may
/// differ by this much.
const GRAIN: Duration = ms(2);

/// The test reads the remaining time of a key on one master and then on the other. So the two results may differ by
/// this much.
const BLUR: Duration = secs(1);

/// The prefix of all waiter ids, which is the id of the process.
const PROCESS: &str = "0000000000000007";

/// The tickets of the four waiters, which determine their order in the queue. Two waiters have the same ticket.
const TICKETS: [u64; 4] = [3, 1, 3, 7];

/// One random operation that is applied to both masters.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    Acquire(Who, usize, i64),
    /// Confirms the fencing token that is the sum of the current fencing counter and this `i64`.
    Confirm(Who, i64),
    Value(ValueDeed),
    Release(Who, bool),
    Extend(Vec<(Who, usize)>),
    Look(usize),
    /// One step of a force-release: the index of the key, and bits that select the locks to end, and whether to delete
    /// the lock key.
    Break(usize, u8),
    /// Writes a lock key as another client would: the index of the key, and the index of the TTL (`None`: no expiry).
    Put(usize, Option<usize>),
    Foreign(usize),
    ForeignCounter(usize),
    Counter(usize, i64),
    Delete(usize),
    DeleteCounter(usize),
    /// Sets the fencing counter as a client whose clock is a month ahead would.
    CounterAhead(usize),
    DeleteTicket(usize),
    /// Puts a key of another data type in place of a break record (the record of a forced release).
    ForeignMark(usize),
    /// Waits for 30 ms, half of [`BLINK`].
    Nap,
    /// Waits until all waiters, and all keys with a short lifetime, have expired.
    Rest,
    /// Writes notes for the claims of several holders. Some of these claims may be withdrawn.
    Note(Vec<Who>),
    /// Replaces a note with a key of another data type (`true`) or with another client's text (`false`).
    StrangeNote(usize, bool),
}

/// One operation on the value that is stored under a lock.
#[derive(Clone, Debug)]
pub(crate) enum ValueDeed {
    /// Reads the stored value with a fencing token: the sum of the current fencing counter and this `i64`.
    Read(Who, i64),
    /// Stores this digit, or removes the stored value if it is `None`. The fencing token of the write is the sum of the
    /// current fencing counter and the `i64`.
    Write(Who, i64, Option<u8>),
    Foreign(usize),
    /// Puts a string that is not a valid stored value under the key of the stored value.
    Strange(usize),
    Delete(usize),
}

/// The claim that an operation uses. Only a few different claims exist, so that several operations use the same keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    key: usize,
    token: u8,
    stand: Stand,
    withdrawn: bool,
    noted: bool,
}

/// How a claim waits for its lock and which kind of lock it asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stand {
    Classic,
    Unordered,
    /// The claim has no ticket, and is refused while waiters are queued for the lock.
    Try,
    /// The claim is queued in order of arrival. The index selects one of a few waiters, each with a fixed ticket.
    Waiter(usize),
    /// The first field is the index of an entry of [`SHAPES`]: the claim is for the keys of this entry. The second
    /// field is the index of the waiter whose ticket the claim has (`None`: no ticket).
    Group(usize, Option<usize>),
    /// Requests the slot with this number. The second field is the index of the waiter whose ticket the claim has
    /// (`None`: no ticket).
    Permit(u8, Option<usize>),
}

/// How a claim holds one key of a group.
#[derive(Clone, Copy)]
enum As {
    Exclusive,
    Reader,
    Owner(&'static str),
}

/// The groups of keys that a claim can lock, with the mode of each key.
const SHAPES: [&[(usize, As)]; 7] = [
    &[(0, As::Exclusive), (1, As::Exclusive)],
    &[(1, As::Exclusive), (0, As::Exclusive)],
    &[(0, As::Reader)],
    &[(0, As::Reader)],
    &[(0, As::Reader), (1, As::Exclusive)],
    &[(0, As::Owner("one"))],
    &[(0, As::Owner("two"))],
];

fn group(shape: usize) -> Group {
    let part = |(key, mode): &(usize, As)| Part {
        key: KEYS[*key].into(),
        mode: match mode {
            As::Exclusive => Mode::Exclusive,
            As::Reader => Mode::Class(Class::Shared),
            As::Owner(id) => Mode::Class(Class::Owner((*id).into())),
        },
    };
    Group::new(SHAPES[shape].iter().map(part).collect())
}

fn ticket(waiter: usize, times: &Times) -> Ticket {
    // The ids of two of the four waiters contain a description: the host, the process id, and the time at which the
    // wait began.
    let description = ["", "/host:1:1763000000500"][waiter / 2];
    Ticket {
        waiter: format!("{PROCESS}:{waiter}{description}").into(),
        number: TICKETS[waiter],
        heartbeat: times.heartbeats[waiter],
    }
}

impl Who {
    fn claim(self, times: &Times) -> Arc<Claim> {
        let key = match self.stand {
            Stand::Group(shape, _) => KEYS[SHAPES[shape][0].0],
            Stand::Permit(slot, waiter) => {
                let permit = Permit::new(KEYS[0].into(), slot, 3);
                let fresh = Claim::new("", &permit.key(), asking::token(self.token), true);
                let place = waiter.map(|waiter| Box::new(ticket(waiter, times)));
                let claim = fresh.with_fairness(Fairness::Fair(place));
                let claim = Arc::new(claim.with_permit(permit));
                if self.withdrawn {
                    claim.withdraw();
                }
                return claim;
            }
            _ => KEYS[self.key],
        };
        let token = self.token;
        let order = |place: Option<Ticket>| {
            let fresh = Claim::new("", key, asking::token(token), true);
            Arc::new(fresh.with_fairness(Fairness::Fair(place.map(Box::new))))
        };
        let claim = match self.stand {
            Stand::Classic => classic(key, token),
            Stand::Unordered => claim(key, token),
            Stand::Try => order(None),
            Stand::Waiter(waiter) => order(Some(ticket(waiter, times))),
            Stand::Permit(..) => unreachable!("made above"),
            Stand::Group(shape, waiter) => {
                let fresh = Claim::new("", key, asking::token(token), true);
                let place = Fairness::Fair(waiter.map(|waiter| Box::new(ticket(waiter, times))));
                // In these tests, the holder with token 1 downgrades its exclusive lock with a claim that has token 4.
                let group = match token {
                    4 => group(shape).instead_of(asking::token(1)),
                    _ => group(shape),
                };
                Arc::new(fresh.with_fairness(place).with_group(group))
            }
        };
        if self.withdrawn {
            claim.withdraw();
        }
        if self.noted {
            claim.take_note();
        }
        claim
    }
}

fn stand() -> impl Strategy<Value = Stand> {
    prop_oneof![
        1 => Just(Stand::Classic),
        2 => Just(Stand::Unordered),
        1 => Just(Stand::Try),
        3 => (0..TICKETS.len()).prop_map(Stand::Waiter),
    ]
}

pub(crate) fn deed() -> impl Strategy<Value = Deed> {
    let key = || 0..KEYS.len();
    let ttl = || 0..LASTING.ttls.len();
    let who = || {
        let noted = any::<bool>();
        (key(), 1..4u8, stand(), prop::bool::weighted(0.1), noted).prop_map(
            |(key, token, stand, withdrawn, noted)| Who {
                key,
                token,
                stand,
                withdrawn,
                noted,
            },
        )
    };
    // Keep proposed fencing numbers within 400 ms of the clock, so that masters do not change them.
    let shift = || -400_000..400_000i64;
    prop_oneof![
        8 => (who(), ttl(), shift()).prop_map(|(who, ttl, shift)| Deed::Acquire(who, ttl, shift)),
        4 => (who(), -2..3i64).prop_map(|(who, by)| Deed::Confirm(who, by)),
        3 => (who(), -2..3i64).prop_map(|(who, by)| Deed::Value(ValueDeed::Read(who, by))),
        3 => (who(), -2..3i64, prop::option::weighted(0.8, 0..9u8))
            .prop_map(|(who, by, digit)| Deed::Value(ValueDeed::Write(who, by, digit))),
        1 => key().prop_map(|key| Deed::Value(ValueDeed::Foreign(key))),
        1 => key().prop_map(|key| Deed::Value(ValueDeed::Strange(key))),
        2 => key().prop_map(|key| Deed::Value(ValueDeed::Delete(key))),
        4 => (who(), any::<bool>()).prop_map(|(who, leave)| Deed::Release(who, leave)),
        4 => prop::collection::vec((who(), ttl()), 1..4).prop_map(Deed::Extend),
        2 => key().prop_map(Deed::Look),
        2 => (key(), any::<u8>()).prop_map(|(key, bits)| Deed::Break(key, bits)),
        1 => (key(), prop::option::of(ttl())).prop_map(|(key, ttl)| Deed::Put(key, ttl)),
        1 => key().prop_map(Deed::Foreign),
        1 => key().prop_map(Deed::ForeignCounter),
        1 => (key(), shift()).prop_map(|(key, shift)| Deed::Counter(key, shift)),
        2 => key().prop_map(Deed::Delete),
        1 => key().prop_map(Deed::DeleteCounter),
        1 => key().prop_map(Deed::CounterAhead),
        1 => key().prop_map(Deed::DeleteTicket),
        1 => key().prop_map(Deed::ForeignMark),
        3 => Just(Deed::Nap),
        2 => Just(Deed::Rest),
        4 => prop::collection::vec(who(), 1..4).prop_map(Deed::Note),
        1 => (key(), any::<bool>()).prop_map(|(key, foreign)| Deed::StrangeNote(key, foreign)),
    ]
}

/// A random operation on a queue: its waiters arrive, send heartbeats, get the lock, leave and die.
pub(crate) fn line_deed() -> impl Strategy<Value = Deed> {
    let waiter = || {
        (1..4u8, 0..TICKETS.len()).prop_map(|(token, waiter)| Who {
            key: 0,
            token,
            stand: Stand::Waiter(waiter),
            withdrawn: false,
            noted: true,
        })
    };
    let ttl = || 0..LASTING.ttls.len();
    prop_oneof![
        8 => (waiter(), ttl()).prop_map(|(who, ttl)| Deed::Acquire(who, ttl, 0)),
        5 => (waiter(), prop::bool::weighted(0.8)).prop_map(|(who, leave)| Deed::Release(who, leave)),
        3 => Just(Deed::Delete(0)),
        1 => Just(Deed::DeleteTicket(0)),
        2 => any::<u8>().prop_map(|bits| Deed::Break(0, bits)),
        4 => Just(Deed::Nap),
        1 => Just(Deed::Rest),
        2 => waiter().prop_map(|who| Deed::Note(vec![who])),
    ]
}

/// A random operation on a lock on several resources, a shared lock (readers or holds of one owner), a semaphore, or a
/// plain lock.
pub(crate) fn group_deed() -> impl Strategy<Value = Deed> {
    let waiter = || prop::option::weighted(0.6, 0..TICKETS.len());
    let stand = prop_oneof![
        6 => (0..SHAPES.len(), waiter()).prop_map(|(shape, waiter)| Stand::Group(shape, waiter)),
        1 => Just(Stand::Unordered),
        1 => (0..TICKETS.len()).prop_map(Stand::Waiter),
        4 => (0..3u8, waiter()).prop_map(|(slot, waiter)| Stand::Permit(slot, waiter)),
    ];
    let who = move || {
        (
            0..KEYS.len(),
            1..5u8,
            stand.clone(),
            prop::bool::weighted(0.05),
        )
            .prop_map(|(key, token, stand, withdrawn)| Who {
                noted: token == 1,
                key,
                token,
                stand,
                withdrawn,
            })
    };
    let ttl = || 0..LASTING.ttls.len();
    prop_oneof![
        9 => (who(), ttl(), -400_000..400_000i64).prop_map(|(who, ttl, by)| Deed::Acquire(who, ttl, by)),
        3 => (who(), -1..2i64).prop_map(|(who, by)| Deed::Confirm(who, by)),
        6 => (who(), any::<bool>()).prop_map(|(who, leave)| Deed::Release(who, leave)),
        2 => prop::collection::vec(who(), 1..3).prop_map(Deed::Note),
        4 => prop::collection::vec((who(), ttl()), 1..4).prop_map(Deed::Extend),
        1 => (0..KEYS.len()).prop_map(Deed::Look),
        2 => (0..KEYS.len(), any::<u8>()).prop_map(|(key, bits)| Deed::Break(key, bits)),
        1 => (0..KEYS.len()).prop_map(Deed::Foreign),
        1 => (0..KEYS.len()).prop_map(Deed::ForeignCounter),
        2 => (0..KEYS.len()).prop_map(Deed::Delete),
        1 => (0..KEYS.len()).prop_map(Deed::CounterAhead),
        1 => (0..KEYS.len()).prop_map(Deed::DeleteTicket),
        1 => (0..KEYS.len()).prop_map(Deed::ForeignMark),
        2 => Just(Deed::Nap),
        1 => Just(Deed::Rest),
    ]
}

fn value(key: &[u8]) -> Vec<u8> {
    [b"quorate:value:", key].concat()
}

/// Sets a fencing counter, with the same expiry that a script of the library would give it.
fn put_counter(arm: &Arm, key: &[u8], number: u64) {
    let ahead = Duration::from_micros(number.saturating_sub(now()));
    let ttl = secs(86_400 + 1_001) + ahead;
    arm.put(&fence(key), number.to_string().as_bytes(), Some(ttl));
}

fn shifted(by: i64) -> u64 {
    now().saturating_add_signed(by)
}

/// An operation that can be applied to both masters: a request, a direct change of the keys, or a pause. `Pass(None)`
/// waits until all short TTLs and heartbeat times have ended.
enum Act {
    Ask(Request),
    Do(Box<dyn Fn(&Arm)>),
    Pass(Option<Duration>),
}

/// Turns a random operation into an [`Act`]. Its fencing numbers are chosen close to the counters of the master
/// `model`.
fn act(deed: &Deed, model: &Arm, times: &Times) -> Act {
    let ttls = times.ttls;
    match deed.clone() {
        Deed::Acquire(who, ttl, shift) => Act::Ask(asking::acquire(
            &who.claim(times),
            ttls[ttl],
            shifted(shift),
        )),
        Deed::Confirm(who, by) => {
            let claim = who.claim(times);
            let number = counter(model, claim.key()).saturating_add_signed(by);
            Act::Ask(asking::confirm(&claim, number))
        }
        Deed::Value(deed) => value_act(deed, model, times),
        Deed::Release(who, leave) => Act::Ask(Request::Release {
            claim: who.claim(times),
            leave,
        }),
        Deed::Extend(items) => extend_act(&items, model, times),
        Deed::Look(key) => Act::Ask(asking::look(KEYS[key])),
        Deed::Break(key, bits) => break_act(KEYS[key], bits, model),
        Deed::Put(key, ttl) => Act::Do(Box::new(move |arm| {
            let value = hex(1);
            arm.put(KEYS[key], &value, ttl.map(|ttl| ttls[ttl]));
        })),
        Deed::Foreign(key) => Act::Do(Box::new(move |arm| arm.put_foreign(KEYS[key]))),
        Deed::ForeignCounter(key) => {
            Act::Do(Box::new(move |arm| arm.put_foreign(&fence(KEYS[key]))))
        }
        Deed::Counter(key, shift) => {
            let number = shifted(shift);
            Act::Do(Box::new(move |arm| put_counter(arm, KEYS[key], number)))
        }
        Deed::Delete(key) => Act::Do(Box::new(move |arm| arm.delete(KEYS[key]))),
        Deed::DeleteCounter(key) => Act::Do(Box::new(move |arm| arm.delete(&fence(KEYS[key])))),
        Deed::CounterAhead(key) => {
            let ahead = now() + MONTH.as_micros() as u64;
            Act::Do(Box::new(move |arm| put_counter(arm, KEYS[key], ahead)))
        }
        Deed::DeleteTicket(key) => Act::Do(Box::new(move |arm| arm.delete_ticket(KEYS[key]))),
        Deed::ForeignMark(key) => Act::Do(Box::new(move |arm| {
            arm.put_foreign(&[b"quorate:broken:", KEYS[key]].concat());
        })),
        Deed::Nap => Act::Pass(Some(BLINK / 2)),
        Deed::Rest => Act::Pass(None),
        Deed::Note(holders) => {
            let items = holders.iter().map(|who| NoteItem {
                claim: who.claim(times),
                says: format!("{}\thost\tprogram\t", who.token).into(),
                since: 1,
                announce: who.noted,
            });
            let items = items.collect();
            Act::Ask(Request::Note { items })
        }
        Deed::StrangeNote(key, foreign) => Act::Do(Box::new(move |arm| {
            let note = [b"quorate:note:", KEYS[key]].concat();
            if foreign {
                arm.put_foreign(&note);
            } else {
                arm.put(&note, b"somebody", Some(ttls[2]));
            }
        })),
    }
}

/// A step of a force-release. Each of the four lowest bits selects a lock to end: the exclusive locks with the tokens 1
/// to 3, and the readers' lock with the holds of the tokens 1 and 2. The next bit says whether the lock key is deleted.
fn break_act(key: &[u8], bits: u8, model: &Arm) -> Act {
    let plain = (1..4).map(|n| Ended::new(&hex(n), &hex(n)));
    let marker = Class::Shared.marker();
    let number = format!("\t{}\n", counter(model, key));
    let record = [&marker[..], number.as_bytes(), &hex(1), b"\n", &hex(2)].concat();
    let all = plain.chain([Ended::new(&marker, &record)]).enumerate();
    let ended = all.filter(|(bit, _)| bits & 1 << bit != 0);
    let ended: Vec<_> = ended.map(|(_, one)| one).collect();
    Act::Ask(asking::smash(key, &ended, bits & 16 != 0))
}

fn extend_act(items: &[(Who, usize)], model: &Arm, times: &Times) -> Act {
    let claims: Vec<_> = items.iter().map(|(who, _)| who.claim(times)).collect();
    for claim in &claims {
        if let Some(group) = claim.group() {
            // Set the claim's fencing number to the current counter, to one less, or to one more.
            let stands = counter(model, claim.key());
            let by = i64::from(claim.token().to_hex()[31] % 3) - 1;
            group.agreed(stands.saturating_add_signed(by));
        }
    }
    let items: Vec<_> = claims
        .iter()
        .zip(items)
        .map(|(claim, (_, ttl))| (claim, times.ttls[*ttl]))
        .collect();
    Act::Ask(asking::extend(&items))
}

fn value_act(deed: ValueDeed, model: &Arm, times: &Times) -> Act {
    let near = |claim: &Claim, by: i64| counter(model, claim.key()).saturating_add_signed(by);
    match deed {
        ValueDeed::Read(who, by) => {
            let claim = who.claim(times);
            Act::Ask(asking::read(&claim, near(&claim, by)))
        }
        ValueDeed::Write(who, by, digit) => {
            let claim = who.claim(times);
            let number = near(&claim, by);
            Act::Ask(match digit {
                Some(digit) => asking::write(&claim, number, &[b'0' + digit]),
                None => asking::remove(&claim, number),
            })
        }
        ValueDeed::Foreign(key) => Act::Do(Box::new(move |arm| arm.put_foreign(&value(KEYS[key])))),
        ValueDeed::Strange(key) => Act::Do(Box::new(move |arm| {
            arm.put(&value(KEYS[key]), b"somebody else's", None);
        })),
        ValueDeed::Delete(key) => Act::Do(Box::new(move |arm| arm.delete(&value(KEYS[key])))),
    }
}

/// The fencing counter of a lock on `model`, or the current time if the counter is missing or has another data type.
fn counter(model: &Arm, key: &[u8]) -> u64 {
    match model.read(&fence(key)).as_deref() {
        None | Some(b"foreign") => now(),
        Some(_) => model.counter(key).unwrap_or_default(),
    }
}

fn close(a: Option<Duration>, b: Option<Duration>, blur: Duration) -> bool {
    match (a, b) {
        // A store without a clock may report a remaining time that is too long by up to 1/32 of itself.
        (Some(a), Some(b)) => a.abs_diff(b) <= blur + a / 32,
        (a, b) => a.is_none() && b.is_none(),
    }
}

pub(crate) fn agree(a: &Said, b: &Said, blur: Duration) -> bool {
    match (a, b) {
        (
            Ok(Answer::Refused {
                ttl_left: a,
                line: l,
            }),
            Ok(Answer::Refused {
                ttl_left: b,
                line: m,
            }),
        ) => close(*a, *b, blur) && l == m,
        (Ok(Answer::State(a)), Ok(Answer::State(b))) => {
            let timeless = |state: &KeyState| KeyState {
                ttl_left: None,
                queue: Vec::new(),
                holds: Vec::new(),
                ..state.clone()
            };
            let held = |holds: &[Hold], other: &[Hold]| {
                let same = |one: &Hold, other: &Hold| {
                    let times = close(Some(one.lives), Some(other.lives), blur);
                    times && (&one.value, &one.note) == (&other.value, &other.note)
                };
                let among = |one: &Hold| other.iter().any(|other| same(one, other));
                holds.iter().all(|one| one.lives <= blur || among(one))
            };
            let same_holds = held(&a.holds, &b.holds) && held(&b.holds, &a.holds);
            // A waiter whose heartbeat is about to expire may be missing on one master only, because the two masters
            // were not asked at the same moment.
            let of = |one: &Waiter, queue: &[Waiter]| {
                let mut same = queue.iter().filter(|other| other.id == one.id);
                same.any(|other| close(Some(one.lives), Some(other.lives), blur))
            };
            let stands = |queue: &[Waiter], other: &[Waiter]| {
                queue.iter().all(|one| one.lives <= blur || of(one, other))
            };
            let common = |queue: &[Waiter], other: &[Waiter]| -> Vec<String> {
                let both = queue.iter().filter(|one| of(one, other));
                both.map(|one| one.id.clone()).collect()
            };
            let same_line = stands(&a.queue, &b.queue)
                && stands(&b.queue, &a.queue)
                && common(&a.queue, &b.queue) == common(&b.queue, &a.queue);
            close(a.ttl_left, b.ttl_left, blur)
                && timeless(a) == timeless(b)
                && same_line
                && same_holds
        }
        // The ids of the server runs are not compared, because every master has a different id.
        (Ok(Answer::Value { stored: a, .. }), Ok(Answer::Value { stored: b, .. })) => a == b,
        (Ok(Answer::Written { .. }), Ok(Answer::Written { .. })) => true,
        (a, b) => a == b,
    }
}

/// The wake-ups that one master sent.
#[derive(Clone, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<Vec<u8>>>>);

impl WakeSink for Heard {
    fn woken(&self, _: usize, key: &[u8]) {
        self.0.lock().expect("no panic").push(key.to_vec());
    }
}

impl Heard {
    pub(crate) fn of(arm: &Arm) -> Self {
        let heard = Self::default();
        arm.node.subscribe(Subscriber {
            process: PROCESS.into(),
            node: 0,
            sink: Arc::new(heard.clone()),
        });
        heard
    }

    pub(crate) fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

/// Pauses the test while a key may have expired on only one of the two masters. The masters could not be compared then.
/// Assumes that every operation creates a key that expires after [`BLINK`].
#[derive(Default)]
struct Dusk {
    ends: Vec<(Instant, Instant)>,
    longest: Duration,
}

impl Dusk {
    /// If `act` is a pause, first waits for its duration. Then, also for every other `act`, waits until no key is about
    /// to expire.
    async fn before(&mut self, act: &Act) {
        match act {
            Act::Pass(Some(nap)) => tokio::time::sleep(*nap).await,
            Act::Pass(None) => self.night().await,
            _ => {}
        }
        self.pass().await;
    }

    /// Records that an operation ran from `began` until now. Returns false if something may have expired during the
    /// operation.
    fn saw(&mut self, began: Instant) -> bool {
        let done = Instant::now();
        self.longest = self.longest.max(done - began);
        // The effects of the operation must not expire before they are compared.
        let is_clear = done < began + BLINK.saturating_sub(GRAIN)
            && self
                .ends
                .iter()
                .all(|(from, to)| done < *from || *to < began);
        self.ends.retain(|(_, to)| began < *to);
        self.ends
            .push((began + BLINK.saturating_sub(GRAIN), done + BLINK + GRAIN));
        is_clear
    }

    /// Waits until no key can expire during the next operation.
    async fn pass(&self) {
        let soon = self.longest + GRAIN;
        while let Some(to) = self.ends.iter().find_map(|(from, to)| {
            let now = Instant::now();
            (*from <= now + soon && now <= *to).then_some(*to)
        }) {
            tokio::time::sleep_until((to + ms(1)).into()).await;
        }
    }

    /// Waits until everything short-lived has expired.
    async fn night(&self) {
        if let Some(last) = self.ends.iter().map(|(_, to)| *to).max() {
            tokio::time::sleep_until((last + ms(1)).into()).await;
        }
    }

    /// The largest allowed difference between remaining times that are read now from the two masters.
    fn blur(&self) -> Duration {
        2 * self.longest + 2 * GRAIN
    }
}

/// The memory master and the master that is compared with it.
struct Pair {
    memory: Arm,
    server: Arm,
    heard: [Heard; 2],
    /// The number of operations that were compared.
    compared: AtomicUsize,
    /// The number of sequences that were aborted because an operation took too long.
    cut: AtomicUsize,
}

impl Pair {
    fn with(server: Arm) -> Self {
        let memory = Arm::memory();
        let heard = [Heard::of(&memory), Heard::of(&server)];
        Self {
            memory,
            server,
            heard,
            compared: AtomicUsize::new(0),
            cut: AtomicUsize::new(0),
        }
    }

    /// Removes all keys, and all wake-ups that an aborted sequence has left.
    fn clear(&self) {
        self.memory.clear();
        self.server.clear();
        for heard in &self.heard {
            heard.take();
        }
    }

    /// Carries out one operation on both masters. Returns their answers; `None` if the operation is no request.
    async fn carry_out(&self, act: Act) -> Option<(Said, Said)> {
        match act {
            Act::Ask(request) => {
                let a = self.memory.ask(request.clone()).await;
                Some((a, self.ask_server(request).await))
            }
            Act::Do(act) => {
                act(&self.memory);
                act(&self.server);
                None
            }
            Act::Pass(_) => None,
        }
    }

    async fn run(&self, deeds: &[Deed], times: &Times) -> Result<(), TestCaseError> {
        self.clear();
        let is_fleeting = times.ttls.contains(&BLINK);
        let mut dusk = Dusk::default();
        for (place, deed) in deeds.iter().enumerate() {
            let act = act(deed, &self.memory, times);
            if is_fleeting {
                dusk.before(&act).await;
            }
            let began = Instant::now();
            let mut said = self.carry_out(act).await;
            let asked = began.elapsed();
            let mut seen = self.look().await;
            if is_fleeting {
                // Do not compare notes. A note lives for four times the remaining TTL of its lock, so `dusk` cannot
                // predict when the note expires.
                if let Some((a, b)) = &mut said {
                    forget_notes([a, b]);
                }
                for (a, b) in &mut seen {
                    a.forget_note(b);
                }
            }
            if is_fleeting && !dusk.saw(began) {
                // The operation took too long. Its effects may have expired, so nothing can be compared.
                self.cut.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            let took = began.elapsed();
            if !is_fleeting && (asked > ms(300) || took > secs(5)) {
                // A master may have changed a proposed fencing number because it arrived too late, or the machine was
                // too slow for a comparison of remaining times. The second limit is longer, because reading all keys
                // takes longer than one request. With one short limit, a busy machine repeated nearly every sequence.
                return Err(TestCaseError::reject("too slow to compare"));
            }
            let blur = if is_fleeting {
                dusk.blur()
            } else {
                BLUR + 2 * took
            };
            if let Some((a, b)) = said {
                prop_assert!(
                    agree(&a, &b, blur),
                    "the answers to step {place} must agree: memory {a:?}, server {b:?}"
                );
            }
            for (a, b) in seen {
                prop_assert!(
                    agree(&a.0, &b.0, blur),
                    "the states after step {place} must agree: memory {a:?}, server {b:?}"
                );
                for (at, (a, b)) in a.1.into_iter().zip(b.1).enumerate() {
                    prop_assert_eq!(&a.0, &b.0, "the keys after step {} must agree", place);
                    let (a, b) = (a.1, b.1);
                    prop_assert!(
                        close(a, b, if at == NOTE { 4 * blur } else { blur }),
                        "the TTLs after step {place} must agree: memory {a:?}, server {b:?}"
                    );
                }
            }
            // Wake-ups arrive on the connections that `look` has just used. So all earlier wake-ups have arrived.
            self.compare_wake_ups(place)?;
            self.compared.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sends a request to the compared master. A store may process the locks of a request in any order. So if these
    /// locks share a key, a store gets a separate request for each lock.
    async fn ask_server(&self, request: Request) -> Said {
        let parts = match self.server.master {
            Master::Store(_) => one_by_one(&request),
            _ => Vec::new(),
        };
        if parts.is_empty() {
            return self.server.ask(request).await;
        }
        let (mut extended, mut noted, mut answered) = (Vec::new(), Vec::new(), false);
        for (part, keys) in parts {
            match self.server.ask(part).await {
                Ok(Answer::Extended(said)) => {
                    extended.extend(said);
                    answered = true;
                }
                Ok(Answer::Noted(said)) => {
                    noted.extend(said);
                    answered = true;
                }
                Err(Fault::Withdrawn) => {
                    extended.extend(vec![Extended::Withdrawn; keys]);
                    noted.push(false);
                }
                other => return other,
            }
        }
        match request {
            _ if !answered => Err(Fault::Withdrawn),
            // If a claim is for a group of keys, do not compare the answers about notes.
            Request::Extend { items } if items.iter().any(|i| i.claim.group().is_some()) => {
                let mut said = Ok(Answer::Extended(extended));
                forget_note(&mut said);
                said
            }
            Request::Extend { .. } => Ok(Answer::Extended(extended)),
            _ => Ok(Answer::Noted(noted)),
        }
    }

    fn compare_wake_ups(&self, place: usize) -> Result<(), TestCaseError> {
        let [a, b] = self.heard.each_ref().map(Heard::take);
        if let Master::Store(_) = self.server.master {
            // When a client begins to listen, a store sends it a wake-up for every lock for which it waits. So the
            // store may send more wake-ups than the memory master, but not fewer.
            let missed = a.iter().find(|key| !b.contains(key));
            prop_assert_eq!(missed, None, "a wake-up of step {} was not sent", place);
        } else {
            prop_assert_eq!(a, b, "the wake-ups of step {} must agree", place);
        }
        Ok(())
    }

    /// The visible state of every key on the memory master and on the compared master.
    async fn look(&self) -> Vec<(Seen, Seen)> {
        let mut seen = Vec::new();
        for key in KEYS {
            seen.push((
                Seen::on(&self.memory, key).await,
                Seen::on(&self.server, key).await,
            ));
        }
        seen
    }
}

/// If locks in the request share a key, returns one request for each lock, together with the number of the lock's keys.
/// Otherwise returns an empty list.
fn one_by_one(request: &Request) -> Vec<(Request, usize)> {
    let (parts, claims): (Vec<_>, Vec<&Claim>) = match request {
        Request::Extend { items } => {
            let part = |item: &ExtendItem| Request::Extend {
                items: [item.clone()].into(),
            };
            items.iter().map(|i| (part(i), &*i.claim)).unzip()
        }
        Request::Note { items } => {
            let part = |item: &NoteItem| Request::Note {
                items: [item.clone()].into(),
            };
            items.iter().map(|i| (part(i), &*i.claim)).unzip()
        }
        _ => return Vec::new(),
    };
    let keys: Vec<_> = claims.iter().flat_map(|claim| claim.keys()).collect();
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    if distinct.len() == keys.len() {
        return Vec::new();
    }
    let counts = claims.iter().map(|claim| claim.keys().count());
    parts.into_iter().zip(counts).collect()
}

/// The visible state of one key: the answer to a status request, followed by the lock key, its fencing counter and its
/// note, each with its remaining time.
#[derive(Debug)]
struct Seen(Said, Vec<(Option<Vec<u8>>, Option<Duration>)>);

/// The index of the note in the list of [`Seen`]. The remaining times of a note on the two masters may differ by four
/// times as much as those of other keys.
const NOTE: usize = 2;

fn forget_notes(said: [&mut Said; 2]) {
    for one in said {
        forget_note(one);
    }
}

fn forget_note(said: &mut Said) {
    match said {
        Ok(Answer::State(state)) => state.note = None,
        Ok(Answer::Refused {
            line: Some(line), ..
        }) => line.note = None,
        Ok(Answer::Extended(all)) => {
            for said in all.iter_mut().filter(|said| **said == Extended::Unnoted) {
                *said = Extended::Kept;
            }
        }
        _ => {}
    }
}

impl Seen {
    /// Removes the notes from this state and from the state `other`.
    fn forget_note(&mut self, other: &mut Self) {
        forget_notes([&mut self.0, &mut other.0]);
        self.1.truncate(NOTE);
        other.1.truncate(NOTE);
    }

    async fn on(arm: &Arm, key: &[u8]) -> Self {
        let said = arm.ask(asking::look(key)).await;
        let note = [b"quorate:note:", key].concat();
        let keys = [key.to_vec(), fence(key), note];
        let read = keys.map(|key| arm.read_with_ttl(&key));
        Self(said, read.into())
    }
}

/// How many random sequences a comparison runs.
#[derive(Clone, Copy)]
pub(crate) struct Sequences {
    short: u32,
    all: u32,
}

impl Sequences {
    /// `short` sequences in `scripts/test`, and `all` sequences in `scripts/test --all`.
    pub(crate) const fn of(short: u32, all: u32) -> Self {
        Self { short, all }
    }

    /// `scripts/test --all` sets `QUORATE_SEQUENCES` to `all`.
    pub(crate) fn count(self) -> u32 {
        match std::env::var("QUORATE_SEQUENCES").as_deref() {
            Ok("all") => self.all,
            _ => self.short,
        }
    }
}

/// Compares the memory master with another master in random sequences of operations.
pub(crate) fn compare_with(
    other: impl FnOnce() -> Arm,
    times: &Times,
    sequences: Sequences,
    deeds: impl Strategy<Value = Deed>,
) {
    let cases = sequences.count();
    let seed = seed();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let pair = Pair::with(other());
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let sequences = prop::collection::vec(deeds, 1..40);
    let outcome = runner.run(&sequences, |deeds| {
        runtime.block_on(pair.run(&deeds, times))
    });
    if let Err(TestError::Fail(why, deeds)) = &outcome {
        panic!("QUORATE_SEED={seed}: {why}\n{deeds:#?}");
    }
    outcome.unwrap_or_else(|error| panic!("QUORATE_SEED={seed}: {error}"));
    let [compared, cut] = [&pair.compared, &pair.cut].map(|count| count.load(Ordering::Relaxed));
    println!("{compared} steps compared, {cut} of {cases} sequences cut short");
}
