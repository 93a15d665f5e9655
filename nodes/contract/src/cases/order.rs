//! Contract cases about several requests: a node keeps their order, and answers each exactly once.

use std::sync::Arc;

use quorate::node::{Answer, Claim, Class, Fairness, Fault, Group, Mode, Part, Ticket};

use crate::fixtures::{LONG, now};
use crate::requests::{ReplyCollector, acquire, claim, release, status, token};
use crate::tested_master::TestedMaster;
use crate::time::PATIENCE;
use crate::time::secs;

const KEY: &[u8] = b"job";

/// More requests than a node sends at once.
const MANY: usize = 3_000;

pub async fn requests_take_effect_in_the_order_in_which_they_are_sent(master: &TestedMaster) {
    let mut replies = ReplyCollector::new();
    // The test awaits nothing between the requests. Each acquire is granted only if the release before it arrived
    // first.
    for n in 0..MANY / 2 {
        let claim = claim(KEY, n as u8);
        replies.send(master.node(), 2 * n, acquire(&claim, LONG, now()));
        replies.send(master.node(), 2 * n + 1, release(&claim));
    }
    let mut last_counter = 0;
    for (index, (number, reply)) in replies.collect(MANY).await.into_iter().enumerate() {
        assert_eq!(
            number, index,
            "answers must come in the order of the requests"
        );
        match reply {
            Ok(Answer::Granted { counter: Some(v) }) if index % 2 == 0 && v > last_counter => {
                last_counter = v;
            }
            Ok(Answer::Released(true)) if index % 2 == 1 => {}
            other => panic!("{index}: {other:?}"),
        }
    }
}

pub async fn every_request_is_answered_exactly_once(master: &TestedMaster) {
    let mut replies = ReplyCollector::new();
    // Wait until the node is connected, because the node treats requests differently before its first connection.
    master
        .send(status(KEY))
        .await
        .expect("the master must answer");
    let mut withdrawn = Vec::new();
    for n in 0..MANY {
        // Most requests are withdrawn, up to 1,200 in a row. They stay in the node's queue until their turn. So at
        // times the node's queue contains only requests that the node must not send.
        let is_withdrawn = n % 1_500 < 1_200;
        let claim = claim(format!("job {n}").as_bytes(), 1);
        if is_withdrawn {
            claim.withdraw();
        }
        withdrawn.push(is_withdrawn);
        replies.send(master.node(), n, acquire(&claim, LONG, now()));
    }
    let mut is_answered = vec![false; MANY];
    for (number, reply) in replies.collect(MANY).await {
        assert!(
            !std::mem::replace(&mut is_answered[number], true),
            "request {number} must be answered only once"
        );
        assert_eq!(
            reply == Err(Fault::Withdrawn),
            withdrawn[number],
            "{reply:?}"
        );
    }
    master
        .send(status(KEY))
        .await
        .expect("the master must still answer");
    assert!(replies.is_silent());
}

pub async fn node_is_idle_when_every_request_is_answered(master: &TestedMaster) {
    let mut replies = ReplyCollector::new();
    for round in 0..3 {
        for n in 0..100 {
            replies.send(master.node(), n, status(KEY));
        }
        let idle = tokio::time::timeout(PATIENCE, master.node().idle()).await;
        assert!(idle.is_ok(), "round {round}: the node must become idle");
        // An idle node must have answered all 100 requests.
        for _ in 0..100 {
            assert!(
                !replies.is_silent(),
                "round {round}: fewer than 100 answers have arrived"
            );
        }
        assert!(replies.is_silent(), "round {round}: too many answers");
    }
}

pub async fn repeated_acquire_by_a_holder_with_a_ticket_extends_its_place_in_the_queue(
    master: &TestedMaster,
) {
    let owner_claim = |heartbeat| {
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
    let number = master
        .granted(acquire(&owner_claim(secs(20)), LONG, now()))
        .await;
    let again = master
        .granted(acquire(&owner_claim(secs(200)), LONG, now()))
        .await;
    assert_eq!(
        again, number,
        "the repeated acquire must return the same fencing number"
    );
    let Ok(Answer::State(state)) = master.send(status(KEY)).await else {
        panic!("no state")
    };
    let remaining_times: Vec<_> = state.queue.iter().map(|waiter| waiter.lives).collect();
    assert!(
        matches!(&remaining_times[..], [remaining_times] if *remaining_times > secs(100)),
        "{remaining_times:?}"
    );
}
