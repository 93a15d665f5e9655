use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::node::{Class, ExtendItem, Fairness, Group, Mode, Part, Token};

fn memory() -> Memory {
    Memory::new(Some("run"), false)
}

/// Decodes a reply to the script READ.
fn decode_read(read: &Request, value: Value<'_>, clock: i64) -> Result<Answer, NoAnswer> {
    let reply = Value::Array(vec![value, Value::Int(clock)]);
    decode(read, &reply, &memory())
}

#[test]
fn malformed_stored_value_is_rejected() {
    let claim = Arc::new(Claim::new("", b"job", Token::from_bytes([1; 16]), true));
    let read = Request::Read { claim, token: 9 };
    let decode_value = |text: &[u8]| decode_read(&read, Value::Bulk(text), 7_000);
    let value_answer = |number, bytes: &[u8], trusted| {
        let bytes = bytes.to_vec();
        let stored = Some(StoredValue {
            number,
            bytes,
            trusted,
        });
        Ok(Answer::Value {
            run: memory().run,
            stored,
            clock: Some(7_000),
        })
    };
    assert_eq!(
        decode_value(b"7 run quota 3"),
        value_answer(7, b"quota 3", true)
    );
    assert_eq!(
        decode_value(b"7 old \xff \r\n"),
        value_answer(7, b"\xff \r\n", false)
    );
    assert_eq!(decode_value(b"7 run "), value_answer(7, b"", true));
    for malformed in [
        &b""[..],
        b"7",
        b"7 run",
        b"x run y",
        b"0 run y",
        b"-7 run y",
    ] {
        assert!(
            matches!(decode_value(malformed), Err(NoAnswer::Malformed(_))),
            "{malformed:?}"
        );
    }
    for (clock_reply, clock) in [(5, Some(5)), (0, None), (-1, None), (i64::MAX, None)] {
        let nothing = Answer::Value {
            run: memory().run,
            stored: None,
            clock,
        };
        assert_eq!(
            decode_read(&read, Value::Nil, clock_reply),
            Ok(nothing),
            "{clock_reply}"
        );
    }
    let without_clock = decode(&read, &Value::Array(vec![Value::Nil]), &memory());
    assert!(matches!(without_clock, Err(NoAnswer::Malformed(_))));
}

/// Values of replies with numbers near the limits of the integer types.
fn hostile() -> impl Strategy<Value = Value<'static>> {
    let number = prop_oneof![
        Just(0_i64),
        Just(i64::MAX),
        Just(i64::MIN),
        Just(1_i64 << 53),
        -9_i64..9,
        any::<i64>(),
    ];
    let leaf = prop_oneof![
        number.prop_map(Value::Int),
        Just(Value::Nil),
        prop::sample::select(vec![
            &b""[..],
            b"0",
            b"1",
            b"-1",
            b"18446744073709551615",
            b"18446744073709551616",
            b"9007199254740993 run x",
            b"18446744073709551615 run x",
            b"11111111111111111111111111111111 h\x1f18446744073709551615\x1f4294967296\x1fp",
            b"aaaaaaaaaaaaaaaabbbb@h:18446744073709551615:4294967295",
        ])
        .prop_map(Value::Bulk),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        prop::collection::vec(inner, 0..7).prop_map(Value::Array)
    })
}

proptest! {
    #[test]
    fn reply_with_hostile_numbers_is_decoded_without_a_panic(value in hostile()) {
        let claim = Arc::new(Claim::new("", b"job", Token::from_bytes([1; 16]), true));
        let key: Arc<[u8]> = (*b"job").into();
        let [plain, fenced, fair] = claims();
        let requests = [
            plain,
            fenced,
            fair,
            Request::Confirm { claim: claim.clone(), token: 9 },
            Request::Release { claim: claim.clone(), leave: true },
            Request::Read { claim, token: 9 },
            Request::Status { key: key.clone() },
            Request::Break {
                key,
                ended: [].into(),
                delete: false,
            },
        ];
        for request in requests {
            match decode(&request, &value, &memory()) {
                Ok(Answer::Granted { counter: Some(counter) } | Answer::CounterAbove(counter)) => {
                    prop_assert!((1..=1 << 53).contains(&counter));
                }
                Ok(Answer::Value { clock, .. }) => {
                    prop_assert!(clock.is_none_or(|clock| (1..1 << 53).contains(&clock)));
                }
                _ => {}
            }
        }
    }
}

fn claims() -> [Request; 3] {
    let claim = |fenced, order| {
        let claim = Claim::new("", b"job", Token::from_bytes([1; 16]), fenced);
        Request::Acquire {
            claim: Arc::new(claim.with_fairness(order)),
            ttl: Duration::from_secs(1),
            proposal: 7,
        }
    };
    [
        claim(false, Fairness::Unordered),
        claim(true, Fairness::Unordered),
        claim(true, Fairness::Fair(None)),
    ]
}

#[test]
fn reply_with_an_impossible_fencing_counter_is_rejected() {
    let [_, fenced, fair] = claims();
    for request in [&fenced, &fair] {
        for malformed in [0, -1, (1 << 53) + 1, i64::MAX, i64::MIN] {
            let answer = decode(request, &Value::Int(malformed), &memory());
            assert!(
                matches!(answer, Err(NoAnswer::Malformed(_))),
                "{malformed}: {answer:?}"
            );
        }
        for counter in [1, 1 << 53] {
            let answer = decode(request, &Value::Int(counter), &memory());
            let counter = Some(counter.unsigned_abs());
            assert_eq!(answer, Ok(Answer::Granted { counter }));
        }
    }
}

#[test]
fn reply_of_a_type_that_does_not_fit_the_request_is_rejected() {
    let [classic, fenced, fair] = claims();
    let error = Value::Error(b"ERR");
    let (ok, text) = (Value::Simple(b"OK"), Value::Bulk(b"1"));
    let two = Value::Array(vec![Value::Int(5), Value::Int(6)]);
    let four = Value::Array(vec![
        Value::Int(5),
        Value::Int(0),
        Value::Int(1),
        Value::Bulk(b"x"),
    ]);
    let nested = Value::Array(vec![Value::Int(5), error.clone()]);
    let key: Arc<[u8]> = b"job".as_slice().into();
    let status = Request::Status { key };
    for (request, wrong_reply) in [
        (&classic, vec![&Value::Int(1), &text, &two, &nested]),
        (&fenced, vec![&Value::Nil, &ok, &text, &four, &nested]),
        (&fair, vec![&Value::Nil, &ok, &text, &two, &nested]),
        (&status, vec![&Value::Nil, &ok, &Value::Int(1), &two, &four]),
    ] {
        for value in wrong_reply {
            let answer = decode(request, value, &memory());
            assert_eq!(answer, Err(NoAnswer::malformed()), "{request:?}: {value:?}");
        }
        let answer = decode(request, &error, &memory());
        assert!(
            matches!(answer, Err(NoAnswer::Fault(_))),
            "an error reply must be a fault: {answer:?}"
        );
    }
    for (request, fitting_reply) in [(&classic, &Value::Nil), (&fenced, &two), (&fair, &four)] {
        let answer = decode(request, fitting_reply, &memory());
        assert!(
            matches!(answer, Ok(Answer::Refused { .. })),
            "the reply must be a refusal: {answer:?}"
        );
    }
}

#[test]
fn reply_about_more_or_fewer_keys_than_the_request_has_is_rejected() {
    let claim = Arc::new(Claim::new("", b"job", Token::from_bytes([1; 16]), true));
    let item = ExtendItem::new(claim.clone(), Duration::from_secs(1));
    let extend = Request::Extend {
        items: vec![item.clone(), item].into(),
    };
    let release = Request::Release {
        claim,
        leave: false,
    };
    let three_digits = Value::Array(vec![Value::Bulk(b"1"); 3]);
    for (request, wrong_reply) in [
        (&extend, Value::Bulk(b"1")),
        (&extend, three_digits),
        (&release, Value::Int(2)),
    ] {
        let answer = decode(request, &wrong_reply, &memory());
        assert_eq!(
            answer,
            Err(NoAnswer::malformed()),
            "{request:?}: {wrong_reply:?}"
        );
    }
}

#[test]
fn reply_that_refuses_a_permit_must_have_exactly_one_digit_per_slot() {
    let permit = Permit::new(b"pool"[..].into(), 0, 3);
    let refused_reply = |free: &'static [u8]| {
        let reply = Value::Array(vec![
            Value::Bulk(free),
            Value::Int(250),
            Value::Int(2),
            Value::Int(7),
        ]);
        permit_answer(&permit, &reply)
    };
    let queue = QueueInfo {
        ahead: 2,
        ticket: 7,
        holder: None,
        free: 0b101,
        note: None,
    };
    let ttl_left = Some(Duration::from_millis(250));
    let queue_info = Some(Box::new(queue));
    assert_eq!(
        refused_reply(b"101"),
        Ok(Answer::Refused {
            ttl_left,
            line: queue_info
        })
    );
    for malformed in [&b"10"[..], b"1010", b"1x1", b""] {
        assert_eq!(
            refused_reply(malformed),
            Err(NoAnswer::malformed()),
            "{malformed:?}"
        );
    }
}

#[test]
fn lock_state_reply_with_too_many_elements_is_rejected() {
    let key: Arc<[u8]> = b"job".as_slice().into();
    let decode_status = |extra: &[Value<'static>]| {
        let empty_array = || Value::Array(Vec::new());
        let mut state = vec![
            Value::Nil,
            Value::Int(-2),
            Value::Nil,
            empty_array(),
            empty_array(),
        ];
        state.extend_from_slice(extra);
        let key = key.clone();
        decode(&Request::Status { key }, &Value::Array(state), &memory())
    };
    assert!(matches!(decode_status(&[]), Ok(Answer::State(_))));
    assert!(matches!(decode_status(&[Value::Nil]), Ok(Answer::State(_))));
    assert_eq!(
        decode_status(&[Value::Nil, Value::Nil]),
        Err(NoAnswer::malformed())
    );
}

#[test]
fn confirmed_number_is_refused_for_other_holds_only_if_the_claim_has_an_owner() {
    let confirm = |claim: Claim| Request::Confirm {
        claim: Arc::new(claim),
        token: 9,
    };
    let plain = || Claim::new("", b"job", Token::from_bytes([1; 16]), true);
    let part = Part {
        key: plain().shared_key().clone(),
        mode: Mode::Class(Class::Owner("owner".into())),
    };
    let owned = plain().with_group(Group::new(vec![part]));
    let refused = Value::Int(-1);
    assert_eq!(
        decode(&confirm(owned), &refused, &memory()),
        Ok(Answer::NotAlone)
    );
    let answer = decode(&confirm(plain()), &refused, &memory());
    assert!(
        matches!(answer, Err(NoAnswer::Malformed(_))),
        "a plain lock has no other holds: {answer:?}"
    );
}

#[test]
fn refused_fair_claim_gets_the_state_of_the_queue() {
    // A fair claim gets a number even if it is not fenced: the number of its ticket.
    let claim = Claim::new("", b"job", Token::from_bytes([1; 16]), false);
    let claim = claim.with_fairness(Fairness::Fair(None));
    assert_eq!(
        acquire_answer(&claim, &Value::Int(5)),
        Ok(Answer::Granted { counter: Some(5) })
    );
    for of_unordered_claim in [Value::Simple(b"OK"), Value::Nil] {
        let answer = acquire_answer(&claim, &of_unordered_claim);
        assert_eq!(answer, Err(NoAnswer::malformed()));
    }
    let refused = |numbers: [i64; 2], rest: &[&'static [u8]]| {
        let numbers = [250, numbers[0], numbers[1]].map(Value::Int);
        let rest = rest.iter().map(|text| Value::Bulk(text));
        acquire_answer(
            &claim,
            &Value::Array(numbers.into_iter().chain(rest).collect()),
        )
    };
    let state = |ahead, ticket, holder: Option<&[u8]>| {
        let line = QueueInfo {
            ahead,
            ticket,
            holder: holder.map(<[u8]>::to_vec),
            free: 0,
            note: None,
        };
        Ok(Answer::Refused {
            ttl_left: Some(Duration::from_millis(250)),
            line: Some(Box::new(line)),
        })
    };
    assert_eq!(refused([2, 7], &[b"holder"]), state(2, 7, Some(b"holder")));
    assert_eq!(refused([2, 7], &[b""]), state(2, 7, None));
    assert_eq!(refused([-2, -7], &[b"", b"a note"]), state(0, 0, None));
    let too_many: &[&[u8]] = &[b"holder", b"note", b"more"];
    for malformed in [&[], too_many] {
        assert_eq!(
            refused([2, 7], malformed),
            Err(NoAnswer::malformed()),
            "{malformed:?}"
        );
    }
}

#[test]
fn refusal_of_a_group_has_at_most_one_element_after_the_index_of_the_key() {
    let refused = |rest: &[&'static [u8]]| {
        let [ttl, ahead, ticket, index] = [250, 2, 7, 1].map(Value::Int);
        let first = [ttl, ahead, ticket, Value::Bulk(b"holder"), index];
        let rest = rest.iter().map(|text| Value::Bulk(text));
        claim_answer(&Value::Array(first.into_iter().chain(rest).collect()))
    };
    let line = QueueInfo {
        ahead: 2,
        ticket: 7,
        holder: Some(b"holder".to_vec()),
        free: 0,
        note: None,
    };
    let refusal = Answer::Refused {
        ttl_left: Some(Duration::from_millis(250)),
        line: Some(Box::new(line)),
    };
    assert_eq!(refused(&[]).as_ref(), Ok(&refusal));
    assert_eq!(refused(&[b"a note"]).as_ref(), Ok(&refusal));
    assert_eq!(refused(&[b"a note", b"more"]), Err(NoAnswer::malformed()));
}
