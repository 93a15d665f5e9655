//! The check of histories accepts a history of a correct client, and refuses it after one event was changed.

use quorate_model::history::{AttemptId, Event, EventKind, Sent, Settings, Verb};
use quorate_model::rules::{Answer, LockKey, StoredLock};
use quorate_model::{Accepted, Refusal, Replay};

/// One millisecond in nanoseconds.
const MS: u64 = 1_000_000;

const TTL: u64 = 1_000 * MS;

/// The clock of the masters at the beginning, in microseconds.
const CLOCK: u64 = 1_790_000_000_000_000;

fn settings() -> Settings {
    Settings {
        masters: 3,
        locks: 1,
        sets: vec![0b111],
        ttl: TTL,
        max_ttl: 3 * TTL,
        clock_error_ppm: 0,
        longest_reading: 0,
        fencing: true,
        ordered: false,
        guard: true,
        one_holder: true,
        rising_tokens: true,
    }
}

fn attempt(client: usize) -> AttemptId {
    AttemptId {
        client,
        lock: 0,
        value: client as u128 + 1,
    }
}

fn sent(at: u64, client: usize, master: usize, request: Sent) -> Event {
    let kind = EventKind::Sent {
        attempt: attempt(client),
        step: 0,
        master,
        request,
        reading: at,
    };
    Event { at, kind }
}

/// A master executes a request. Afterwards it has the key of this client, until `expires_at` in true time, and this
/// counter.
fn executed(
    at: u64,
    (client, master): (usize, usize),
    (verb, answer): (Verb, Answer),
    (expires_at, counter): (Option<u64>, u64),
) -> Event {
    let key = expires_at.map(|expires_at| LockKey {
        value: attempt(client).value,
        expires: CLOCK + expires_at / 1_000,
    });
    let kind = EventKind::Executed {
        master,
        lock: 0,
        value: attempt(client).value,
        verb,
        answer: Some(answer),
        is_live: true,
        clock: CLOCK + at / 1_000,
        after: StoredLock { key, counter },
    };
    Event { at, kind }
}

fn obtained(at: u64, client: usize, token: u64, valid_until: u64) -> Event {
    let kind = EventKind::Obtained {
        attempt: attempt(client),
        sets: [0b111, 0b111],
        token: Some(token),
        reading: at,
        valid_until,
        ends_at: valid_until,
    };
    Event { at, kind }
}

/// A client gets the lock from the masters 0 and 1 at `at` plus 2 ms, with this token.
fn acquire(at: u64, client: usize, token: u64) -> Vec<Event> {
    let grant = |at: u64, master: usize| {
        let request = (Verb::Acquire, Answer::Granted(token));
        executed(at, (client, master), request, (Some(at + TTL), token))
    };
    let mut events: Vec<Event> = (0..3)
        .map(|master| sent(at, client, master, Sent::Acquire))
        .collect();
    events.extend([grant(at + MS, 0), grant(at + MS, 1)]);
    events.push(obtained(at + 2 * MS, client, token, at + 988 * MS));
    events
}

/// A client extends and releases its lock, and another client gets it.
fn history() -> Vec<Event> {
    let extend = |at: u64, master: usize| {
        let request = (Verb::Extend, Answer::Extended);
        executed(at, (0, master), request, (Some(at + TTL), CLOCK))
    };
    let release = |at: u64, master: usize| {
        executed(
            at,
            (0, master),
            (Verb::Release, Answer::Released(true)),
            (None, CLOCK),
        )
    };
    let mut events = acquire(0, 0, CLOCK);
    events.extend((0..3).map(|master| sent(300 * MS, 0, master, Sent::Extend(TTL))));
    events.extend([extend(301 * MS, 0), extend(301 * MS, 1)]);
    let extended = EventKind::Extended {
        attempt: attempt(0),
        reading: 302 * MS,
        old_end: 988 * MS,
        valid_until: 1_288 * MS,
        ends_at: 1_288 * MS,
    };
    events.push(Event {
        at: 302 * MS,
        kind: extended,
    });
    events.push(Event {
        at: 400 * MS,
        kind: EventKind::Ended {
            attempt: attempt(0),
        },
    });
    events.extend((0..3).map(|master| sent(400 * MS, 0, master, Sent::Release)));
    events.extend([release(401 * MS, 0), release(401 * MS, 1)]);
    events.extend(acquire(500 * MS, 1, CLOCK + 500_000));
    events
}

fn check(events: &[Event]) -> Result<Accepted, Refusal> {
    Replay::check(settings(), events)
}

/// The rule by which the check refuses the history after `change` has changed it.
fn refused_by(change: impl FnOnce(&mut Vec<Event>)) -> &'static str {
    let mut events = history();
    change(&mut events);
    check(&events).expect_err("the history is wrong").rule
}

/// The index of the `n`-th event of this kind.
fn index_of(events: &[Event], n: usize, is_wanted: impl Fn(&EventKind) -> bool) -> usize {
    let indexes = (0..events.len()).filter(|index| is_wanted(&events[*index].kind));
    indexes.into_iter().nth(n).expect("an event of this kind")
}

fn is_obtained(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Obtained { .. })
}

fn is_verb(wanted: Verb) -> impl Fn(&EventKind) -> bool {
    move |kind| matches!(kind, EventKind::Executed { verb, .. } if *verb == wanted)
}

#[test]
fn history_of_correct_clients_is_accepted_and_counted() {
    let accepted = check(&history()).expect("the history is right");
    let expected = Accepted {
        sent: 12,
        granted: 4,
        extensions: 2,
        released: 2,
        obtained: 2,
        extended: 1,
        ended: 1,
        ..Accepted::default()
    };
    assert_eq!(accepted, expected);
}

#[test]
fn history_is_refused_if_a_vote_is_missing() {
    let rule = refused_by(|events| {
        events.remove(index_of(events, 0, is_verb(Verb::Acquire)));
    });
    assert_eq!(rule, "majority");
}

#[test]
fn history_is_refused_if_the_validity_is_a_millisecond_too_long() {
    let rule = refused_by(|events| {
        let index = index_of(events, 0, is_obtained);
        events[index] = obtained(2 * MS, 0, CLOCK, 989 * MS);
    });
    assert_eq!(rule, "validity");
}

#[test]
fn history_is_refused_if_the_token_is_not_that_of_a_majority() {
    let rule = refused_by(|events| {
        let index = index_of(events, 0, is_obtained);
        events[index] = obtained(2 * MS, 0, CLOCK + 1, 988 * MS);
    });
    assert_eq!(rule, "fencing tokens");
}

#[test]
fn history_is_refused_if_an_extension_has_one_vote() {
    let rule = refused_by(|events| {
        events.remove(index_of(events, 0, is_verb(Verb::Extend)));
    });
    assert_eq!(rule, "renewal");
}

#[test]
fn history_is_refused_if_a_master_grants_a_lock_that_it_has() {
    let rule = refused_by(|events| {
        events.remove(index_of(events, 0, is_verb(Verb::Release)));
    });
    assert_eq!(rule, "majority");
}

#[test]
fn history_is_refused_if_a_release_deletes_the_key_of_another_client() {
    let rule = refused_by(|events| {
        let released = (Verb::Release, Answer::Released(true));
        events.push(executed(
            600 * MS,
            (0, 0),
            released,
            (None, CLOCK + 500_000),
        ));
    });
    assert_eq!(rule, "release");
}

#[test]
fn history_is_refused_if_a_client_uses_a_value_again() {
    let rule = refused_by(|events| events.push(sent(700 * MS, 0, 0, Sent::Acquire)));
    assert_eq!(rule, "one value per attempt");
}

#[test]
fn history_is_refused_if_a_restarted_master_votes_at_once() {
    let rule = refused_by(|events| {
        let index = index_of(events, 0, is_verb(Verb::Acquire));
        let restarted = EventKind::Restarted {
            master: 0,
            clock: CLOCK,
            locks: vec![StoredLock::default()],
        };
        events.insert(
            index,
            Event {
                at: 0,
                kind: restarted,
            },
        );
    });
    assert_eq!(rule, "restart guard");
}

#[test]
fn history_is_refused_if_a_restarted_master_has_a_key_that_it_never_had() {
    let rule = refused_by(|events| {
        let key = LockKey {
            value: 9,
            expires: CLOCK + 1_000_000,
        };
        let stored = StoredLock {
            key: Some(key),
            counter: 0,
        };
        let restarted = EventKind::Restarted {
            master: 0,
            clock: CLOCK,
            locks: vec![stored],
        };
        events.insert(
            0,
            Event {
                at: 0,
                kind: restarted,
            },
        );
    });
    assert_eq!(rule, "restart guard");
}

/// The masters grant different numbers, so the client asks all masters to confirm `CLOCK + 5`. Master 2 refuses, because
/// its number is `CLOCK + 9`, so the client asks all masters to confirm this number. Then master 0 executes the first of
/// these requests, and the masters 0 and 1 confirm the tokens `confirmed`.
fn history_with_two_confirmations(confirmed: [u64; 2]) -> Vec<Event> {
    let expires_at = Some(MS + TTL);
    let execute = |at: u64, master: usize, request: (Verb, Answer), counter: u64| {
        executed(at * MS, (0, master), request, (expires_at, counter))
    };
    let confirm = |at: u64, token: u64| {
        let request = Sent::Confirm(token);
        (0..3).map(move |master| sent(at * MS, 0, master, request))
    };
    let numbers = [CLOCK, CLOCK + 5, CLOCK + 9];
    let mut events: Vec<Event> = (0..3)
        .map(|master| sent(0, 0, master, Sent::Acquire))
        .collect();
    events.extend((0..3).map(|master| {
        let number = numbers[master];
        execute(1, master, (Verb::Acquire, Answer::Granted(number)), number)
    }));
    let above = (Verb::Confirm(numbers[1]), Answer::CounterAbove);
    let yes = |token: u64| (Verb::Confirm(token), Answer::Confirmed);
    events.extend(confirm(2, numbers[1]));
    events.push(execute(3, 2, above, numbers[2]));
    events.extend(confirm(4, numbers[2]));
    events.push(execute(5, 0, yes(numbers[1]), numbers[1]));
    events
        .extend((0..2).map(|master| execute(6, master, yes(confirmed[master]), confirmed[master])));
    events.push(obtained(7 * MS, 0, numbers[2], 988 * MS));
    events
}

#[test]
fn history_is_accepted_if_an_earlier_request_to_confirm_arrives_after_a_later_one_was_sent() {
    let accepted = check(&history_with_two_confirmations([CLOCK + 9; 2]));
    let accepted = accepted.expect("the history is right");
    assert_eq!((accepted.confirmed, accepted.obtained_by_confirm), (3, 1));
}

#[test]
fn history_is_refused_if_a_confirmation_of_an_earlier_token_counts_for_a_later_one() {
    let history = history_with_two_confirmations([CLOCK + 5; 2]);
    let refusal = check(&history).expect_err("the history is wrong");
    assert_eq!(refusal.rule, "fencing tokens");
    assert!(refusal.to_string().contains("takes the token"), "{refusal}");
}

#[test]
fn history_is_refused_if_a_master_refuses_a_token_above_its_counter() {
    let mut history = history_with_two_confirmations([CLOCK + 9; 2]);
    let index = index_of(&history, 0, is_verb(Verb::Confirm(CLOCK + 9)));
    let refused = (Verb::Confirm(CLOCK + 9), Answer::CounterAbove);
    history[index] = executed(6 * MS, (0, 0), refused, (Some(MS + TTL), CLOCK + 5));
    let refusal = check(&history).expect_err("the history is wrong");
    assert!(refusal.to_string().contains("CounterAbove"), "{refusal}");
}
