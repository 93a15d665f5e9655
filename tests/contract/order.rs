//! Contract cases about several requests: a node keeps their order, and answers each exactly once.

use std::sync::Arc;

use quorate::node::{Answer, Claim, Class, Fairness, Fault, Group, Mode, Part, Ticket};

use crate::arm::{Arm, LONG, now};
use crate::support::PATIENCE;
use crate::support::asking::{Ears, acquire, claim, look, release, token};
use crate::support::secs;

const KEY: &[u8] = b"job";

/// More requests than a node sends at once.
const MANY: usize = 3_000;

pub(crate) async fn requests_take_effect_in_the_order_in_which_they_are_sent(arm: &Arm) {
    let mut ears = Ears::new();
    // The test awaits nothing between the requests. Each acquire is granted only if the release before it arrived
    // first.
    for n in 0..MANY / 2 {
        let claim = claim(KEY, n as u8);
        ears.ask(&*arm.node, 2 * n, acquire(&claim, LONG, now()));
        ears.ask(&*arm.node, 2 * n + 1, release(&claim));
    }
    let mut last = 0;
    for (place, (number, said)) in ears.all(MANY).await.into_iter().enumerate() {
        assert_eq!(
            number, place,
            "answers must come in the order of the requests"
        );
        match said {
            Ok(Answer::Granted { counter: Some(v) }) if place % 2 == 0 && v > last => last = v,
            Ok(Answer::Released(true)) if place % 2 == 1 => {}
            other => panic!("{place}: {other:?}"),
        }
    }
}

pub(crate) async fn every_request_is_answered_exactly_once(arm: &Arm) {
    let mut ears = Ears::new();
    // Wait until the node is connected, because the node treats requests differently before its first connection.
    arm.ask(look(KEY)).await.expect("the master must answer");
    let mut wanted = Vec::new();
    for n in 0..MANY {
        // Most requests are withdrawn, up to 1,200 in a row. They stay in the node's queue until their turn. So at
        // times the node's queue contains only requests that the node must not send.
        let withdrawn = n % 1_500 < 1_200;
        let claim = claim(format!("job {n}").as_bytes(), 1);
        if withdrawn {
            claim.withdraw();
        }
        wanted.push(withdrawn);
        ears.ask(&*arm.node, n, acquire(&claim, LONG, now()));
    }
    let mut seen = vec![false; MANY];
    for (number, said) in ears.all(MANY).await {
        assert!(
            !std::mem::replace(&mut seen[number], true),
            "request {number} must be answered only once"
        );
        assert_eq!(said == Err(Fault::Withdrawn), wanted[number], "{said:?}");
    }
    arm.ask(look(KEY))
        .await
        .expect("the master must still answer");
    assert!(ears.is_silent());
}

pub(crate) async fn node_is_idle_when_every_request_is_answered(arm: &Arm) {
    let mut ears = Ears::new();
    for round in 0..3 {
        for n in 0..100 {
            ears.ask(&*arm.node, n, look(KEY));
        }
        let idle = tokio::time::timeout(PATIENCE, arm.node.idle()).await;
        assert!(idle.is_ok(), "round {round}: the node must become idle");
        // An idle node must have answered all 100 requests.
        for _ in 0..100 {
            assert!(
                !ears.is_silent(),
                "round {round}: fewer than 100 answers have arrived"
            );
        }
        assert!(ears.is_silent(), "round {round}: too many answers");
    }
}

pub(crate) async fn repeated_acquire_by_a_holder_with_a_ticket_extends_its_place_in_the_queue(
    arm: &Arm,
) {
    let claimed = |heartbeat| {
        let part = Part {
            key: KEY.into(),
            mode: Mode::Class(Class::Owner("o".into())),
        };
        let ticket = Ticket {
            waiter: "0123456789abcdef:1".into(),
            number: 1,
            heartbeat,
        };
        let claim = Claim::new("", KEY, token(1), true).with_group(Group::new(vec![part]));
        Arc::new(claim.with_fairness(Fairness::Fair(Some(Box::new(ticket)))))
    };
    let number = arm.granted(acquire(&claimed(secs(20)), LONG, now())).await;
    let again = arm.granted(acquire(&claimed(secs(200)), LONG, now())).await;
    assert_eq!(
        again, number,
        "the repeated acquire must return the same fencing number"
    );
    let Ok(Answer::State(state)) = arm.ask(look(KEY)).await else {
        panic!("no state")
    };
    let lives: Vec<_> = state.queue.iter().map(|waiter| waiter.lives).collect();
    assert!(
        matches!(&lives[..], [lives] if *lives > secs(100)),
        "{lives:?}"
    );
}
