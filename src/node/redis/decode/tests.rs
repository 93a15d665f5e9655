use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::node::{ExtendItem, Token};

fn memory() -> Memory {
    Memory::of(Some("run"), false)
}

/// Decodes a reply to the script READ.
fn found(read: &Request, value: Value<'_>, clock: i64) -> Result<Answer, NoAnswer> {
    let reply = Value::Array(vec![value, Value::Int(clock)]);
    decode(read, &reply, &memory())
}

#[test]
fn malformed_stored_value_is_rejected() {
    let claim = Arc::new(Claim::new("", b"job", Token::from_bytes([1; 16]), true));
    let read = Request::Read { claim, token: 9 };
    let said = |text: &[u8]| found(&read, Value::Bulk(text), 7_000);
    let value = |number, bytes: &[u8], trusted| {
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
    assert_eq!(said(b"7 run quota 3"), value(7, b"quota 3", true));
    assert_eq!(said(b"7 old \xff \r\n"), value(7, b"\xff \r\n", false));
    assert_eq!(said(b"7 run "), value(7, b"", true));
    for malformed in [
        &b""[..],
        b"7",
        b"7 run",
        b"x run y",
        b"0 run y",
        b"-7 run y",
    ] {
        assert!(
            matches!(said(malformed), Err(NoAnswer::Malformed(_))),
            "{malformed:?}"
        );
    }
    for (shown, clock) in [(5, Some(5)), (0, None), (-1, None), (i64::MAX, None)] {
        let nothing = Answer::Value {
            run: memory().run,
            stored: None,
            clock,
        };
        assert_eq!(found(&read, Value::Nil, shown), Ok(nothing), "{shown}");
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
            Request::Look { key: key.clone() },
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
            let said = decode(request, &Value::Int(malformed), &memory());
            assert!(
                matches!(said, Err(NoAnswer::Malformed(_))),
                "{malformed}: {said:?}"
            );
        }
        for counter in [1, 1 << 53] {
            let said = decode(request, &Value::Int(counter), &memory());
            let counter = Some(counter.unsigned_abs());
            assert_eq!(said, Ok(Answer::Granted { counter }));
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
    let look = Request::Look { key };
    for (request, wrong) in [
        (&classic, vec![&Value::Int(1), &text, &two, &nested]),
        (&fenced, vec![&Value::Nil, &ok, &text, &four, &nested]),
        (&fair, vec![&Value::Nil, &ok, &text, &two, &nested]),
        (&look, vec![&Value::Nil, &ok, &Value::Int(1), &two, &four]),
    ] {
        for value in wrong {
            let said = decode(request, value, &memory());
            assert_eq!(said, Err(NoAnswer::malformed()), "{request:?}: {value:?}");
        }
        let said = decode(request, &error, &memory());
        assert!(
            matches!(said, Err(NoAnswer::Fault(_))),
            "an error reply must be a fault: {said:?}"
        );
    }
    for (request, right) in [(&classic, &Value::Nil), (&fenced, &two), (&fair, &four)] {
        let said = decode(request, right, &memory());
        assert!(
            matches!(said, Ok(Answer::Refused { .. })),
            "the reply must be a refusal: {said:?}"
        );
    }
}

#[test]
fn reply_about_more_or_fewer_keys_than_the_request_has_is_rejected() {
    let claim = Arc::new(Claim::new("", b"job", Token::from_bytes([1; 16]), true));
    let item = ExtendItem {
        claim: claim.clone(),
        ttl: Duration::from_secs(1),
        note: false,
    };
    let extend = Request::Extend {
        items: vec![item.clone(), item].into(),
    };
    let release = Request::Release {
        claim,
        leave: false,
    };
    let three = Value::Array(vec![Value::Bulk(b"1"); 3]);
    for (request, wrong) in [
        (&extend, Value::Bulk(b"1")),
        (&extend, three),
        (&release, Value::Int(2)),
    ] {
        let said = decode(request, &wrong, &memory());
        assert_eq!(said, Err(NoAnswer::malformed()), "{request:?}: {wrong:?}");
    }
}

#[test]
fn reply_that_refuses_a_permit_must_have_exactly_one_digit_per_slot() {
    let permit = Permit::new(b"pool"[..].into(), 0, 3);
    let refused = |free: &'static [u8]| {
        let said = Value::Array(vec![
            Value::Bulk(free),
            Value::Int(250),
            Value::Int(2),
            Value::Int(7),
        ]);
        permitted(&permit, &said)
    };
    let line = QueueInfo {
        ahead: 2,
        ticket: 7,
        holder: None,
        free: 0b101,
        note: None,
    };
    let ttl_left = Some(Duration::from_millis(250));
    let line = Some(Box::new(line));
    assert_eq!(refused(b"101"), Ok(Answer::Refused { ttl_left, line }));
    for malformed in [&b"10"[..], b"1010", b"1x1", b""] {
        assert_eq!(
            refused(malformed),
            Err(NoAnswer::malformed()),
            "{malformed:?}"
        );
    }
}

#[test]
fn lock_state_reply_with_too_many_elements_is_rejected() {
    let key: Arc<[u8]> = b"job".as_slice().into();
    let look = |said: &[Value<'static>]| {
        let none = || Value::Array(Vec::new());
        let mut state = vec![Value::Nil, Value::Int(-2), Value::Nil, none(), none()];
        state.extend_from_slice(said);
        let key = key.clone();
        decode(&Request::Look { key }, &Value::Array(state), &memory())
    };
    assert!(matches!(look(&[]), Ok(Answer::State(_))));
    assert!(matches!(look(&[Value::Nil]), Ok(Answer::State(_))));
    assert_eq!(look(&[Value::Nil, Value::Nil]), Err(NoAnswer::malformed()));
}
