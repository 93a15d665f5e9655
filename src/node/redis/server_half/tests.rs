use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;
use crate::node::actor::mailbox::Queued;
use crate::node::actor::trust::Memory;
use crate::node::redis::decode::{NoAnswer, decode};
use crate::node::redis::deletion::Deletion;
use crate::node::redis::layout::{AGE_ARGS, write_age_call};
use crate::node::redis::loaded::Scripts;
use crate::node::redis::many::decode_many;
use crate::node::redis::runs::PlacedRequest;
use crate::node::{
    Answer, Claim, Class, Ended, ExtendItem, Extended, Fairness, Fault, Group, Hold, KeyState,
    Mode, NewValue, Note, NoteItem, Page, Part, Permit, QueueInfo, Reply, ServerRun, StoredValue,
    Ticket, Token, Waiter,
};
use crate::protocol::instant::Instant;
use crate::protocol::marker::{Configuration, Fingerprint};
use crate::settings::RestartGuard;

const RUN: &str = "run-7";

/// The largest number that is exact in a reply.
const MAX_NUMBER: u64 = 1 << 53;

fn memory() -> Memory {
    Memory::new(Some(RUN), false)
}

/// The scripts of a connection that has loaded all of them. The SHA1 digest of a script is its index.
fn scripts(checked: bool) -> Scripts {
    let configuration = Configuration::new(1, Fingerprint::new(["a"]), None);
    let mut scripts = if checked {
        Scripts::with_marker_check(configuration, RestartGuard::On)
    } else {
        Scripts::default()
    };
    for script in Script::ALL {
        let sha = format!("{:040}", script as usize);
        let loaded = scripts.handle_load_reply(script, &Value::Bulk(sha.as_bytes()));
        loaded.expect("the digest must be accepted");
    }
    scripts
}

fn script_of(sha: &[u8]) -> Option<Script> {
    let index = usize::try_from(parse_whole(sha.strip_prefix(&[b'0'; 37])?)?).ok()?;
    Script::ALL.get(index).copied()
}

fn sent_bytes(request: &Request, checked: bool) -> Vec<u8> {
    let mut out = Vec::new();
    scripts(checked).encode(request, &ServerRun::new(RUN), &mut out);
    out
}

fn split_words(bytes: &[u8]) -> Vec<&[u8]> {
    let (words, len) = command(bytes).expect("the command must be complete");
    assert_eq!(len, bytes.len());
    words
}

fn receive_one(bytes: &[u8]) -> Request {
    match received(&split_words(bytes), script_of) {
        Some(Received::One(request)) => request,
        other => panic!("one request must be received, not {other:?}"),
    }
}

fn token() -> impl Strategy<Value = Token> {
    any::<[u8; 16]>().prop_map(Token::from_bytes)
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..9)
}

fn any_millis() -> impl Strategy<Value = Duration> {
    (1..86_400_000_u64).prop_map(Duration::from_millis)
}

fn any_word() -> impl Strategy<Value = String> {
    vec(
        prop::sample::select(vec!['a', 'b', '\u{e9}', '-', '7']),
        1..6,
    )
    .prop_map(|letters| letters.into_iter().collect())
}

fn any_ticket() -> impl Strategy<Value = Ticket> {
    (any_word(), any::<u64>(), any_millis()).prop_map(|(waiter, number, heartbeat)| Ticket {
        waiter: waiter.into(),
        number,
        heartbeat,
    })
}

fn queued_fairness() -> impl Strategy<Value = Fairness> {
    of(any_ticket()).prop_map(|ticket| Fairness::Fair(ticket.map(Box::new)))
}

/// Removes the parts of a place that a release does not carry.
fn leaving_queue(fairness: Fairness) -> Fairness {
    let only_id = |ticket: Box<Ticket>| {
        Box::new(Ticket {
            number: 0,
            heartbeat: Duration::ZERO,
            ..*ticket
        })
    };
    match fairness {
        Fairness::Fair(ticket) => Fairness::Fair(ticket.map(only_id)),
        Fairness::Unordered => Fairness::Unordered,
    }
}

fn any_group() -> impl Strategy<Value = Group> {
    let mode = prop_oneof![
        Just(Mode::Exclusive),
        Just(Mode::Class(Class::Shared)),
        any_word().prop_map(|id| Mode::Class(Class::Owner(id.into()))),
    ];
    let part = (key(), mode).prop_map(|(key, mode)| Part {
        key: key.into(),
        mode,
    });
    vec(part, 1..4).prop_map(Group::new)
}

fn plain_claim() -> impl Strategy<Value = Claim> {
    (key(), token()).prop_map(|(key, token)| Claim::new("", &key, token, true))
}

fn group_claim() -> impl Strategy<Value = Claim> {
    (any_group(), token()).prop_map(|(group, token)| {
        let key = group.parts()[0].key.clone();
        Claim::new("", &key, token, true).with_group(group)
    })
}

fn permit_claim(permits: impl Strategy<Value = u8>) -> impl Strategy<Value = Claim> {
    (key(), token(), 0..64_u8, permits).prop_map(|(name, token, slot, permits)| {
        let permit = Permit::new(name.into(), slot, permits);
        Claim::new("", &permit.key(), token, true).with_permit(permit)
    })
}

fn acquire_requests() -> impl Strategy<Value = Request> {
    let fair = |(claim, fairness): (Claim, Fairness)| claim.with_fairness(fairness);
    let replacing = (any_group(), token(), token(), queued_fairness());
    let claim = prop_oneof![
        plain_claim(),
        (plain_claim(), queued_fairness()).prop_map(fair),
        (group_claim(), queued_fairness()).prop_map(fair),
        (permit_claim(1..=64_u8), queued_fairness()).prop_map(fair),
        replacing.prop_map(|(group, token, replaced_token, fairness)| {
            let key = group.parts()[0].key.clone();
            let claim = Claim::new("", &key, token, true).with_fairness(fairness);
            claim.with_group(group.instead_of(replaced_token))
        }),
    ];
    let unfenced = (key(), token(), any_millis()).prop_map(|(key, token, ttl)| Request::Acquire {
        claim: Arc::new(Claim::new("", &key, token, false)),
        ttl,
        proposal: 0,
    });
    let fenced = (claim, any_millis(), any::<u64>());
    prop_oneof![
        1 => unfenced,
        5 => fenced.prop_map(|(claim, ttl, proposal)| Request::Acquire {
            claim: Arc::new(claim),
            ttl,
            proposal,
        }),
    ]
}

fn confirm_requests() -> impl Strategy<Value = Request> {
    let claim = prop_oneof![plain_claim(), group_claim()];
    (claim, any::<u64>()).prop_map(|(claim, token)| Request::Confirm {
        claim: Arc::new(claim),
        token,
    })
}

fn release_requests() -> impl Strategy<Value = Request> {
    let fair = |(claim, fairness): (Claim, Fairness)| claim.with_fairness(leaving_queue(fairness));
    let claim = prop_oneof![
        plain_claim(),
        (plain_claim(), queued_fairness()).prop_map(fair),
        (group_claim(), queued_fairness()).prop_map(fair),
        // The release of a slot does not carry the number of slots.
        (permit_claim(Just(1)), queued_fairness()).prop_map(fair),
    ];
    (claim, any::<bool>(), any::<bool>()).prop_map(|(claim, leave, noted)| {
        if noted {
            claim.take_note();
        }
        // Only a client with a place in a queue can stay in it; the release of a group carries the flag in any case.
        let leave = leave || claim.ticket().is_none() && claim.group().is_none();
        let claim = Arc::new(claim);
        Request::Release { claim, leave }
    })
}

/// Extensions of plain locks, and of groups. Each lock has another lock value.
fn extend_requests() -> impl Strategy<Value = Request> {
    let extend_item = |claim: Claim, ttl: Duration, note: bool| {
        let claim = Arc::new(claim);
        if ttl.is_zero() {
            claim.withdraw();
        }
        ExtendItem::new(claim, ttl).note(note)
    };
    let ttl = || prop_oneof![1 => Just(Duration::ZERO), 3 => any_millis()];
    let item = (plain_claim(), ttl(), any::<bool>()).prop_map(move |(claim, ttl, note)| {
        let note = note && !ttl.is_zero();
        if note {
            claim.take_note();
        }
        extend_item(claim, ttl, note)
    });
    let agreed = (group_claim(), 1..MAX_NUMBER).prop_map(|(claim, number)| {
        claim.agreed(Some(number));
        claim
    });
    let of_group = prop_oneof![plain_claim(), agreed.boxed()];
    let of_group = (of_group, ttl());
    let of_group = of_group.prop_map(move |(claim, ttl)| extend_item(claim, ttl, false));
    let is_group = |items: &Vec<ExtendItem>| items.iter().any(|item| item.claim.group().is_some());
    prop_oneof![
        vec(item, 1..5),
        vec(of_group, 1..5).prop_filter("at least one lock must be a group", is_group),
    ]
    .prop_map(|items| Request::Extend {
        items: items.into(),
    })
}

fn force_release_requests() -> impl Strategy<Value = Request> {
    let ended = (key(), key()).prop_map(|(value, record)| Ended::new(&value, &record));
    (key(), vec(ended, 0..4), any::<bool>()).prop_map(|(key, ended, delete)| Request::Break {
        key: key.into(),
        ended: ended.into(),
        delete,
    })
}

/// Looks at locks, and at slots of semaphores, whose queue has another name.
fn status_requests() -> impl Strategy<Value = Request> {
    let key = prop_oneof![
        key(),
        permit_claim(Just(1)).prop_map(|claim| claim.key().to_vec()),
    ];
    key.prop_map(|key| Request::Status { key: key.into() })
}

fn value_requests() -> impl Strategy<Value = Request> {
    let reads = (plain_claim(), any::<u64>()).prop_map(|(claim, token)| Request::Read {
        claim: Arc::new(claim),
        token,
    });
    // The script WRITE carries neither the lock value nor the time limit of the write.
    let writes = (key(), any::<u64>(), of(key())).prop_map(|(key, token, bytes)| Request::Write {
        claim: Arc::new(Claim::new("", &key, Token::from_bytes([0; 16]), true)),
        token,
        value: Arc::new(NewValue {
            bytes: bytes.map(Into::into),
            until: Instant::from_nanos(u64::MAX),
            run: Some(ServerRun::new(RUN)),
        }),
    });
    prop_oneof![reads, writes]
}

fn note_requests() -> impl Strategy<Value = Request> {
    let item = (plain_claim(), of((any_word(), any::<u64>())), any::<bool>());
    let item = item.prop_map(|(claim, note, announce)| {
        let claim = Arc::new(claim);
        if note.is_none() {
            claim.withdraw();
        }
        let (says, since) = note.unwrap_or_default();
        let says = says.into();
        NoteItem {
            claim,
            says,
            since,
            announce,
        }
    });
    vec(item, 1..5).prop_map(|items| Request::Note {
        items: items.into(),
    })
}

fn list_requests() -> impl Strategy<Value = Request> {
    (key(), any::<u64>(), any::<u32>()).prop_map(|(pattern, cursor, count)| Request::List {
        page: Arc::new(Page {
            pattern: pattern.into(),
            cursor,
            count,
        }),
    })
}

fn watch_requests() -> impl Strategy<Value = Request> {
    (key(), any::<bool>()).prop_map(|(key, on)| Request::Watch {
        key: key.into(),
        on,
    })
}

/// Requests that contain only parts that a command carries.
fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => acquire_requests(),
        2 => confirm_requests(),
        4 => release_requests(),
        2 => extend_requests(),
        1 => force_release_requests(),
        1 => status_requests(),
        2 => value_requests(),
        1 => note_requests(),
        1 => list_requests(),
        1 => watch_requests(),
    ]
}

/// The number of variants of `Request`.
const REQUESTS: usize = 11;

/// The index of a request's variant. A new variant does not compile until it has an index here. Then
/// `every_kind_of_request_answer_and_script_is_drawn` demands that `any_request` draws it.
fn kind_of(request: &Request) -> usize {
    match request {
        Request::Acquire { .. } => 0,
        Request::Confirm { .. } => 1,
        Request::Release { .. } => 2,
        Request::Extend { .. } => 3,
        Request::Status { .. } => 4,
        Request::Break { .. } => 5,
        Request::Read { .. } => 6,
        Request::Write { .. } => 7,
        Request::Note { .. } => 8,
        Request::List { .. } => 9,
        Request::Watch { .. } => 10,
    }
}

/// The number of variants of `Answer`, and of `Extended`, which is a part of an answer.
const ANSWERS: usize = 20;

/// The indexes of the variants in an answer. A new variant does not compile until it has an index here.
fn kinds_in(answer: &Answer) -> Vec<usize> {
    let extended = |item: &Extended| match item {
        Extended::Kept => 14,
        Extended::Restored => 15,
        Extended::NotOurs => 16,
        Extended::Withdrawn => 17,
        Extended::Unnoted => 18,
        Extended::Unknown(_) => 19,
    };
    let index = match answer {
        Answer::Granted { .. } => 0,
        Answer::Refused { .. } => 1,
        Answer::Confirmed => 2,
        Answer::CounterAbove(_) => 3,
        Answer::NotOurs => 4,
        Answer::NotAlone => 5,
        Answer::Released(_) => 6,
        Answer::Extended(each) => return each.iter().map(extended).chain([7]).collect(),
        Answer::State(_) => 8,
        Answer::Value { .. } => 9,
        Answer::Written { .. } => 10,
        Answer::Noted(_) => 11,
        Answer::Keys { .. } => 12,
        Answer::Watching => 13,
    };
    vec![index]
}

/// Faults whose error a server can send, and which the client reads without a change.
fn any_fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        prop::sample::select(vec![
            Fault::WrongType,
            Fault::Loading,
            Fault::ReadOnly,
            Fault::OutOfMemory,
            Fault::Misconf,
            Fault::Busy,
        ]),
        any_word().prop_map(|word| Fault::OtherMasters(format!("2 {word}").into())),
        any_word().prop_map(|word| Fault::Server(format!("ERR {word}").into())),
        any_millis().prop_map(Fault::Quarantined),
    ]
}

fn any_note() -> impl Strategy<Value = Note> {
    let since = (0..4_000_000_000_000_u64).prop_map(|ms| UNIX_EPOCH + Duration::from_millis(ms));
    (any_word(), 1..=u32::MAX, any_word(), since, of(any_word())).prop_map(
        |(host, pid, process, since, text)| Note {
            host,
            pid,
            process,
            since,
            text,
        },
    )
}

fn queue_info(with_note: bool) -> impl Strategy<Value = QueueInfo> {
    let number = || 0..MAX_NUMBER;
    (number(), number(), of((key(), of(any_note())))).prop_map(move |(ahead, ticket, holder)| {
        let (holder, note) = holder.unzip();
        QueueInfo {
            ahead,
            ticket,
            holder,
            free: 0,
            note: note.flatten().filter(|_| with_note),
        }
    })
}

fn free_slots(permits: u8) -> impl Strategy<Value = QueueInfo> {
    (0..MAX_NUMBER, 0..MAX_NUMBER, any::<u64>()).prop_map(move |(ahead, ticket, free)| QueueInfo {
        ahead,
        ticket,
        holder: None,
        free: free & (u64::MAX >> (64 - u32::from(permits))),
        note: None,
    })
}

fn acquired_answer(claim: &Claim) -> BoxedStrategy<Answer> {
    let numbered = claim.fenced() || claim.is_fair();
    let counter = if numbered {
        (1..=MAX_NUMBER).prop_map(Some).boxed()
    } else {
        Just(None).boxed()
    };
    let line = match claim.permit() {
        Some(permit) => free_slots(permit.permits()).prop_map(Some).boxed(),
        None if claim.is_fair() => queue_info(true).prop_map(Some).boxed(),
        None => Just(None).boxed(),
    };
    let ttl = if numbered {
        of(any_millis()).boxed()
    } else {
        Just(None).boxed()
    };
    let refused = (ttl, line).prop_map(|(ttl_left, line)| Answer::Refused {
        ttl_left,
        line: line.map(Box::new),
    });
    prop_oneof![
        counter.prop_map(|counter| Answer::Granted { counter }),
        refused,
    ]
    .boxed()
}

fn extended_answer(keys: usize) -> impl Strategy<Value = Answer> {
    let item = prop_oneof![
        4 => prop::sample::select(vec![
            Extended::Kept,
            Extended::Restored,
            Extended::NotOurs,
            Extended::Withdrawn,
            Extended::Unnoted,
            Extended::strange(),
        ]),
        1 => any_fault().prop_map(Extended::Unknown),
    ];
    vec(item, keys).prop_map(Answer::Extended)
}

fn any_waiter() -> impl Strategy<Value = Waiter> {
    let id = (any_word(), any::<bool>());
    let described = of((any_word(), any::<u32>(), 0..4_000_000_000_000_u64));
    (id, described, any_millis()).prop_map(|((short, reads), described, lives)| {
        let full = match described {
            Some((host, pid, since)) => format!("{short}/{host}:{pid}:{since}"),
            None => short,
        };
        Waiter::new(full + if reads { ":r" } else { "" }, lives)
    })
}

/// States of locks: of a plain lock with a note, or of a lock with several holds.
fn any_state(with_queue: bool) -> impl Strategy<Value = Answer> {
    let held = (key(), of(any_note()), of(any::<u64>()));
    let hold = (key(), any_millis(), of(any_note()));
    let hold = hold.prop_map(|(value, lives, note)| Hold::new(value, lives, note));
    let queue = vec(any_waiter(), if with_queue { 0..3 } else { 0..1 });
    let rest = (of(any_millis()), of(any::<u64>()), queue);
    (of(held), vec(hold, 0..3), rest).prop_map(|(held, holds, (ttl_left, counter, queue))| {
        let (holder, note, term) = match held {
            Some((holder, note, term)) => (Some(holder), note, term),
            None => (None, None, None),
        };
        let alone = holds.is_empty();
        Answer::State(KeyState {
            holder,
            ttl_left,
            counter,
            queue,
            note: note.filter(|_| alone),
            term: term.filter(|_| alone),
            holds,
        })
    })
}

fn value_read() -> impl Strategy<Value = Answer> {
    let stored = (1..=MAX_NUMBER, key(), any::<bool>());
    let stored = stored.prop_map(|(number, bytes, trusted)| StoredValue {
        number,
        bytes,
        trusted,
    });
    (of(stored), of(1..MAX_NUMBER)).prop_map(|(stored, clock)| Answer::Value {
        run: ServerRun::new(RUN),
        stored,
        clock,
    })
}

/// Answers that fit a request.
fn answers_to(request: &Request) -> BoxedStrategy<Answer> {
    // A counter of 1 in a reply to `Confirm` or `Write` is the sign of success.
    let above = || (2..=MAX_NUMBER).prop_map(Answer::CounterAbove);
    match request {
        Request::Acquire { claim, .. } => acquired_answer(claim),
        Request::Confirm { claim, .. } => {
            let alone = match claim.group() {
                Some(_) => Answer::NotAlone,
                None => Answer::Confirmed,
            };
            let fixed = vec![Answer::Confirmed, Answer::NotOurs, alone];
            prop_oneof![prop::sample::select(fixed), above()].boxed()
        }
        Request::Release { .. } => any::<bool>().prop_map(Answer::Released).boxed(),
        Request::Extend { items } => {
            let keys = items.iter().map(|item| item.claim.keys().count());
            extended_answer(keys.sum()).boxed()
        }
        Request::Status { .. } => any_state(true).boxed(),
        Request::Break { .. } => any_state(false).boxed(),
        Request::Read { .. } => prop_oneof![value_read(), Just(Answer::NotOurs), above()].boxed(),
        Request::Write { .. } => {
            let run = ServerRun::new(RUN);
            prop_oneof![Just(Answer::Written { run }), above()].boxed()
        }
        Request::Note { items } => vec(any::<bool>(), items.len())
            .prop_map(Answer::Noted)
            .boxed(),
        Request::List { .. } => (any::<u64>(), vec(key(), 0..4))
            .prop_map(|(cursor, keys)| Answer::Keys { cursor, keys })
            .boxed(),
        Request::Watch { .. } => Just(Answer::Watching).boxed(),
    }
}

/// Requests, each with a fitting answer or with a fault.
fn any_exchange() -> impl Strategy<Value = (Request, Result<Answer, Fault>)> {
    any_request().prop_flat_map(|request| {
        let answer = prop_oneof![
            5 => answers_to(&request).prop_map(Ok),
            1 => any_fault().prop_map(Err),
        ];
        (Just(request), answer)
    })
}

/// Several requests of one kind that one command can carry, each with a fitting answer or with a fault.
fn batched_exchanges() -> impl Strategy<Value = Vec<(Request, Result<Answer, Fault>)>> {
    let item = (plain_claim(), any::<u64>());
    (vec(item, 1..6), any::<bool>(), any::<bool>(), any_millis()).prop_flat_map(
        |(claims, queues, acquires, ttl)| {
            let exchange = |(claim, proposal): (Claim, u64)| {
                let claim = Arc::new(claim.with_fairness(if queues {
                    Fairness::Fair(None)
                } else {
                    Fairness::Unordered
                }));
                let request = if acquires {
                    Request::Acquire {
                        claim,
                        ttl,
                        // Some answers grant the proposed number.
                        proposal: 1 + proposal % MAX_NUMBER,
                    }
                } else {
                    Request::Release { claim, leave: true }
                };
                let proposed = match &request {
                    Request::Acquire { proposal, .. } => Answer::Granted {
                        counter: Some(*proposal),
                    },
                    _ => Answer::Released(true),
                };
                let answer = prop_oneof![
                    3 => answers_to(&request).prop_map(Ok),
                    1 => Just(Ok(proposed)),
                    1 => any_fault().prop_map(Err),
                ];
                (Just(request), answer)
            };
            claims.into_iter().map(exchange).collect::<Vec<_>>()
        },
    )
}

proptest! {
    #[test]
    fn server_half_receives_the_request_that_the_client_half_sent(
        request in any_request(),
        checked in any::<bool>(),
    ) {
        let received = receive_one(&sent_bytes(&request, checked));
        prop_assert_eq!(format!("{received:?}"), format!("{request:?}"));
    }

    #[test]
    fn client_half_reads_the_answer_that_the_server_half_wrote((request, answer) in any_exchange()) {
        let mut out = Vec::new();
        reply(&request, &answer, None, &mut out);
        let parsed = resp::parse(&out).expect("the reply must be valid");
        let (value, len) = parsed.expect("the reply must be complete");
        prop_assert_eq!(len, out.len());
        let read = decode(&request, &value, &memory());
        prop_assert_eq!(read, answer.map_err(NoAnswer::Fault));
    }

    #[test]
    fn many_requests_and_their_answers_pass_through_both_halves(exchanges in batched_exchanges()) {
        let place = |(request, _): &(Request, _)| PlacedRequest {
            member: Queued::new(request.clone(), Reply::ignored()),
            followers: 0,
        };
        let run: Vec<PlacedRequest<Queued>> = exchanges.iter().map(place).collect();
        let mut bytes = Vec::new();
        scripts(false).encode_many(&run, &mut bytes);
        let Some(Received::Many(requests)) = received(&split_words(&bytes), script_of) else {
            panic!("many requests must be received");
        };
        let expected: Vec<&Request> = exchanges.iter().map(|(request, _)| request).collect();
        prop_assert_eq!(format!("{requests:?}"), format!("{expected:?}"));
        let each: Vec<Vec<u8>> = exchanges
            .iter()
            .map(|(request, answer)| {
                let mut out = Vec::new();
                reply(request, answer, None, &mut out);
                out
            })
            .collect();
        let mut out = Vec::new();
        reply_to_many(&requests, &each, &mut out);
        let (value, _) = resp::parse(&out).expect("a valid reply").expect("a complete reply");
        let run: Vec<Queued> = run.into_iter().map(|placed| placed.member).collect();
        let mut read = Vec::new();
        decode_many(&run, &value, &mut read).expect("the reply must fit the requests");
        let expected = exchanges.into_iter().map(|(_, answer)| answer.ok().map(Ok));
        prop_assert_eq!(read, expected.collect::<Vec<_>>());
    }

    #[test]
    fn age_call_passes_through_both_halves(
        words_sent in vec(any_word(), 3),
        marker in prop_oneof![Just(String::new()), any_word()],
        age_ms in any::<u64>(),
    ) {
        let call = AgeCall {
            run: &words_sent[0],
            life: &words_sent[1],
            age_ms,
            new_life: &words_sent[2],
            marker: &marker,
        };
        let mut bytes = Vec::new();
        write_age_call(
            &call,
            &mut scripts(false).begin_call(Script::Age, 0, AGE_ARGS, &mut bytes),
        );
        let Some(Received::Age(read)) = received(&split_words(&bytes), script_of) else {
            panic!("the call must be received");
        };
        prop_assert_eq!(read, call);
    }
}

#[test]
fn every_kind_of_request_answer_and_script_is_drawn() {
    let mut runner = TestRunner::deterministic();
    let (mut requests, mut answers, mut called) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for _ in 0..2_000 {
        let drawn = any_exchange().new_tree(&mut runner).expect("an exchange");
        let (request, answer) = drawn.current();
        requests.insert(kind_of(&request));
        answers.extend(answer.iter().flat_map(kinds_in));
        let bytes = sent_bytes(&request, true);
        if let [b"EVALSHA", sha, ..] = split_words(&bytes)[..] {
            called.push(script_of(sha).expect("the script must be loaded"));
        }
    }
    assert!(requests.into_iter().eq(0..REQUESTS));
    assert!(answers.into_iter().eq(0..ANSWERS));
    // Other tests pass these scripts through both halves.
    called.extend([Script::AcquireMany, Script::ReleaseMany, Script::Age]);
    let missing = Script::ALL
        .into_iter()
        .filter(|script| !called.contains(script));
    assert_eq!(missing.collect::<Vec<_>>(), []);
}

/// A request can contain parts that no command carries, for example the prefix of a key. If both halves pass it on, the
/// second command equals the first one.
#[test]
fn received_request_is_sent_again_as_the_same_command() {
    let place = Ticket {
        waiter: "w:1".into(),
        number: 7,
        heartbeat: Duration::from_millis(9),
    };
    let fair = Fairness::Fair(Some(Box::new(place)));
    let claim = |key: &[u8]| Claim::new("app:", key, Token::from_bytes([3; 16]), true);
    let group = |keys: &[&[u8]]| {
        let part = |key: &&[u8]| Part {
            key: [b"app:", *key].concat().into(),
            mode: Mode::Exclusive,
        };
        let group = Group::new(keys.iter().map(part).collect());
        group.agreed(40);
        claim(keys[0]).with_group(group).with_fairness(fair.clone())
    };
    let permit = Permit::new(b"app:pool"[..].into(), 2, 5);
    let slot = Claim::new("", &permit.key(), Token::from_bytes([4; 16]), true);
    let slot = Arc::new(slot.with_permit(permit).with_fairness(fair.clone()));
    let (one, two) = (Arc::new(group(&[b"a"])), Arc::new(group(&[b"a", b"b"])));
    let ttl = Duration::from_micros(1_500);
    let item = |claim: &Arc<Claim>| ExtendItem::new(claim.clone(), ttl);
    let note = |claim: &Arc<Claim>| NoteItem {
        claim: claim.clone(),
        says: "1\th\tp\t".into(),
        since: 5,
        announce: true,
    };
    let (token, leave) = (9, false);
    for request in [
        Request::Confirm {
            claim: slot.clone(),
            token,
        },
        Request::Release {
            claim: slot.clone(),
            leave,
        },
        Request::Release {
            claim: Arc::new(claim(b"a").with_fairness(fair.clone())),
            leave,
        },
        Request::Confirm {
            claim: two.clone(),
            token,
        },
        Request::Extend {
            items: [item(&one), item(&two)].into(),
        },
        Request::Extend {
            items: [item(&slot)].into(),
        },
        Request::Note {
            items: [note(&two), note(&slot)].into(),
        },
    ] {
        let first = sent_bytes(&request, false);
        let again = sent_bytes(&receive_one(&first), false);
        assert_eq!(
            first.escape_ascii().to_string(),
            again.escape_ascii().to_string()
        );
    }
}

#[test]
fn delifeq_command_is_received_as_the_release_of_a_plain_lock() {
    let claim = || Claim::new("", b"job", Token::from_bytes([3; 16]), true);
    let withdrawn = Arc::new(claim());
    withdrawn.withdraw();
    let release = |claim: Arc<Claim>| Request::Release { claim, leave: true };
    let mut out = Vec::new();
    assert!(Deletion::DelIfEq.write(&release(withdrawn), &mut out));
    // The command does not carry whether the claim was withdrawn.
    let expected = release(Arc::new(claim()));
    assert_eq!(format!("{:?}", receive_one(&out)), format!("{expected:?}"));
}

/// The client adds a remedy to some errors, so the texts of these faults are not equal.
#[test]
fn every_fault_that_a_server_can_cause_is_read_as_the_same_kind() {
    let of_client = [
        "down",
        "stalled",
        "overloaded",
        "withdrawn",
        "timeout",
        "disconnected",
        "unprepared",
        "same_server",
    ];
    for fault in Fault::all() {
        let request = Request::Status {
            key: b"job"[..].into(),
        };
        let mut out = Vec::new();
        reply(&request, &Err(fault.clone()), None, &mut out);
        let (value, _) = resp::parse(&out)
            .expect("a valid reply")
            .expect("a complete reply");
        let Err(NoAnswer::Fault(read)) = decode(&request, &value, &memory()) else {
            panic!("the reply must be a fault: {fault:?}");
        };
        let kind = fault.kind();
        let expected = if of_client.contains(&kind) {
            "server_error"
        } else {
            kind
        };
        assert_eq!(read.kind(), expected, "{fault:?}: {read:?}");
    }
}

#[test]
fn stored_note_of_the_server_has_precedence_over_the_note_in_the_answer() {
    let request = Request::Status {
        key: b"job"[..].into(),
    };
    let answer = Ok(Answer::State(KeyState {
        holder: Some(b"another".to_vec()),
        ..KeyState::default()
    }));
    let mut out = Vec::new();
    reply(&request, &answer, Some(b"first 5\t1\th\tp\t"), &mut out);
    let text = String::from_utf8_lossy(&out);
    assert!(text.ends_with("$14\r\nfirst 5\t1\th\tp\t\r\n"), "{text:?}");
}

#[test]
fn command_is_parsed_only_when_it_is_complete() {
    let bytes = b"*2\r\n$3\r\nSET\r\n$1\r\na\r\n*1\r\n";
    for cut in 0..20 {
        assert_eq!(command(&bytes[..cut]), None, "{cut} bytes of 20");
    }
    assert_eq!(command(bytes), Some((vec![&b"SET"[..], b"a"], 20)));
}

#[test]
fn malformed_arguments_are_not_received() {
    let value = [b'0'; 32];
    for words in [
        &[&b"SET"[..], b"job", b"not a lock value", b"NX", b"PX", b"5"][..],
        &[b"SET", b"job", &value, b"NX", b"PX", b"5x"],
        &[b"DELIFEQ", b"job", b""],
        &[b"EVALSHA", b"0", b"1", b"job"],
        &[b"EVALSHA", b"0", b"9", b"job", &value, b"5"],
        &[b"SUBSCRIBE", b"another channel"],
        &[b"FLUSHALL"],
    ] {
        let received = received(words, |_| Some(Script::Classic));
        assert!(received.is_none(), "{received:?}");
    }
}
