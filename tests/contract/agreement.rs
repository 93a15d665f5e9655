//! The master in memory answers whatever a real one does: random sequences, reply by reply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use quorate::node::{Answer, Claim, KeyState, Order, Place, Request};

use crate::arm::{Arm, fence, hex, now};
use crate::support::asking::{self, Said, claim, classic};
use crate::support::seed::seed;
use crate::support::{ms, secs};

const KEYS: [&[u8]; 2] = [b"a", b"b"];

/// Far enough apart that a slow machine cannot blur them, and never over during a test.
const TTLS: [Duration; 3] = [secs(60), secs(240), secs(600)];

/// How far the two masters' times may differ: they are asked one after the other.
const BLUR: Duration = secs(1);

/// Of each waiter; two drew the same.
const TICKETS: [u64; 4] = [3, 1, 3, 7];

/// One thing that happens to a master.
#[derive(Clone, Debug)]
enum Deed {
    Acquire(Who, usize, i64),
    /// Relative to the counter as it stands.
    Confirm(Who, i64),
    Release(Who, bool),
    Extend(Vec<(Who, usize)>),
    Look(usize),
    Break(usize),
    /// By another client.
    Put(usize, Option<usize>),
    Foreign(usize),
    ForeignCounter(usize),
    Counter(usize, i64),
    Delete(usize),
    DeleteCounter(usize),
}

/// One of a few claims, so that they meet.
#[derive(Clone, Copy, Debug)]
struct Who {
    key: usize,
    token: u8,
    stand: Stand,
    withdrawn: bool,
}

/// How a claim stands to others.
#[derive(Clone, Copy, Debug)]
enum Stand {
    Classic,
    Unordered,
    /// In order, without a place.
    Try,
    /// In line, as one of a few waiters, which keep their tickets.
    Waiter(usize),
}

impl Who {
    fn claim(self) -> Arc<Claim> {
        let (key, token) = (KEYS[self.key], self.token);
        let order = |place: Option<Place>| {
            let fresh = Claim::new("", key, asking::token(token), true);
            Arc::new(fresh.with_order(Order::Fair(place.map(Box::new))))
        };
        let claim = match self.stand {
            Stand::Classic => classic(key, token),
            Stand::Unordered => claim(key, token),
            Stand::Try => order(None),
            Stand::Waiter(waiter) => order(Some(Place {
                waiter: format!("{:016x}:{waiter}", 7).into(),
                ticket: TICKETS[waiter],
                heartbeat: TTLS[1],
            })),
        };
        if self.withdrawn {
            claim.withdraw();
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

fn deed() -> impl Strategy<Value = Deed> {
    let key = || 0..KEYS.len();
    let ttl = || 0..TTLS.len();
    let who = || {
        (key(), 1..4u8, stand(), prop::bool::weighted(0.1)).prop_map(
            |(key, token, stand, withdrawn)| Who {
                key,
                token,
                stand,
                withdrawn,
            },
        )
    };
    // Inside the slack: what the clock decides is held by the contract cases.
    let shift = || -400_000..400_000i64;
    prop_oneof![
        8 => (who(), ttl(), shift()).prop_map(|(who, ttl, shift)| Deed::Acquire(who, ttl, shift)),
        4 => (who(), -2..3i64).prop_map(|(who, by)| Deed::Confirm(who, by)),
        4 => (who(), any::<bool>()).prop_map(|(who, leave)| Deed::Release(who, leave)),
        4 => prop::collection::vec((who(), ttl()), 1..4).prop_map(Deed::Extend),
        2 => key().prop_map(Deed::Look),
        1 => key().prop_map(Deed::Break),
        1 => (key(), prop::option::of(ttl())).prop_map(|(key, ttl)| Deed::Put(key, ttl)),
        1 => key().prop_map(Deed::Foreign),
        1 => key().prop_map(Deed::ForeignCounter),
        1 => (key(), shift()).prop_map(|(key, shift)| Deed::Counter(key, shift)),
        2 => key().prop_map(Deed::Delete),
        1 => key().prop_map(Deed::DeleteCounter),
    ]
}

fn shifted(by: i64) -> u64 {
    now().saturating_add_signed(by)
}

/// What a deed is in words that both masters understand.
enum Act {
    Ask(Request),
    Do(Box<dyn Fn(&Arm)>),
}

/// Decided once, so that both masters are asked the same.
fn act(deed: &Deed, model: &Arm) -> Act {
    let text = |number: u64| number.to_string().into_bytes();
    match deed.clone() {
        Deed::Acquire(who, ttl, shift) => {
            Act::Ask(asking::acquire(&who.claim(), TTLS[ttl], shifted(shift)))
        }
        Deed::Confirm(who, by) => {
            let counter = match model.read(&fence(KEYS[who.key])).as_deref() {
                None | Some(b"foreign") => now(),
                Some(_) => model.counter(KEYS[who.key]).unwrap_or_default(),
            };
            let number = counter.saturating_add_signed(by);
            Act::Ask(asking::confirm(&who.claim(), number))
        }
        Deed::Release(who, leave) => Act::Ask(Request::Release {
            claim: who.claim(),
            leave,
        }),
        Deed::Extend(items) => {
            let claims: Vec<_> = items.iter().map(|(who, _)| who.claim()).collect();
            let items: Vec<_> = claims
                .iter()
                .zip(&items)
                .map(|(c, i)| (c, TTLS[i.1]))
                .collect();
            Act::Ask(asking::extend(&items))
        }
        Deed::Look(key) => Act::Ask(asking::look(KEYS[key])),
        Deed::Break(key) => Act::Ask(asking::smash(KEYS[key])),
        Deed::Put(key, ttl) => Act::Do(Box::new(move |arm| {
            let value = hex(1);
            arm.put(KEYS[key], &value, ttl.map(|ttl| TTLS[ttl]));
        })),
        Deed::Foreign(key) => Act::Do(Box::new(move |arm| arm.put_foreign(KEYS[key]))),
        Deed::ForeignCounter(key) => {
            Act::Do(Box::new(move |arm| arm.put_foreign(&fence(KEYS[key]))))
        }
        Deed::Counter(key, shift) => {
            let value = text(shifted(shift));
            Act::Do(Box::new(move |arm| {
                arm.put(&fence(KEYS[key]), &value, Some(TTLS[2]));
            }))
        }
        Deed::Delete(key) => Act::Do(Box::new(move |arm| arm.delete(KEYS[key]))),
        Deed::DeleteCounter(key) => Act::Do(Box::new(move |arm| arm.delete(&fence(KEYS[key])))),
    }
}

fn close(a: Option<Duration>, b: Option<Duration>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) <= BLUR,
        (a, b) => a.is_none() && b.is_none(),
    }
}

fn agree(a: &Said, b: &Said) -> bool {
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
        ) => close(*a, *b) && l == m,
        (Ok(Answer::State(a)), Ok(Answer::State(b))) => {
            let timeless = |state: &KeyState| KeyState {
                ttl_left: None,
                queue: Vec::new(),
                ..state.clone()
            };
            let same_line = a.queue.len() == b.queue.len()
                && a.queue
                    .iter()
                    .zip(&b.queue)
                    .all(|(a, b)| a.id == b.id && close(Some(a.lives), Some(b.lives)));
            close(a.ttl_left, b.ttl_left) && timeless(a) == timeless(b) && same_line
        }
        (a, b) => a == b,
    }
}

async fn run(deeds: &[Deed], memory: &Arm, server: &Arm) -> Result<(), TestCaseError> {
    memory.clear();
    server.clear();
    for (place, deed) in deeds.iter().enumerate() {
        let began = Instant::now();
        match act(deed, memory) {
            Act::Ask(request) => {
                let a = memory.ask(request.clone()).await;
                let b = server.ask(request).await;
                if began.elapsed() > ms(300) {
                    // The machine stood still: the clock has had a say.
                    return Err(TestCaseError::reject("too slow to compare"));
                }
                prop_assert!(agree(&a, &b), "deed {place}: memory {a:?}, server {b:?}");
            }
            Act::Do(act) => {
                act(memory);
                act(server);
            }
        }
        for key in KEYS {
            let (a, b) = (
                memory.ask(asking::look(key)).await,
                server.ask(asking::look(key)).await,
            );
            prop_assert!(
                agree(&a, &b),
                "after deed {place}: memory {a:?}, server {b:?}"
            );
            for key in [key.to_vec(), fence(key)] {
                prop_assert_eq!(memory.read(&key), server.read(&key), "after deed {}", place);
                let (a, b) = (memory.ttl(&key), server.ttl(&key));
                prop_assert!(close(a, b), "after deed {place}: ttl {a:?} and {b:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_memory_master_agrees_with_a_real_one_reply_by_reply() {
    let seed = seed();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _inside = runtime.enter();
    let (memory, server) = (Arm::memory(), Arm::server(None));
    let config = Config {
        cases: 100,
        failure_persistence: None,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let sequences = prop::collection::vec(deed(), 1..40);
    let outcome = runner.run(&sequences, |deeds| {
        runtime.block_on(run(&deeds, &memory, &server))
    });
    if let Err(TestError::Fail(why, deeds)) = &outcome {
        panic!("QUORATE_SEED={seed}: {why}\n{deeds:#?}");
    }
    outcome.unwrap_or_else(|error| panic!("QUORATE_SEED={seed}: {error}"));
}
