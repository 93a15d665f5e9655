//! Contract cases: the slots of a semaphore on one master.

use std::sync::Arc;

use quorate::node::{Answer, Claim, Fairness, Permit};

use crate::fixtures::{LONG, now};
use crate::requests::{acquire, token};
use crate::tested_master::TestedMaster;

fn slot_claim(n: u8, slot_claim: u8, permits: u8) -> Arc<Claim> {
    let permit = Permit::new(b"api".as_slice().into(), slot_claim, permits);
    let claim = Claim::new("", &permit.key(), token(n), true);
    Arc::new(
        claim
            .with_fairness(Fairness::Fair(None))
            .with_permit(permit),
    )
}

pub async fn refusal_of_a_permit_shows_which_slots_are_free(master: &TestedMaster) {
    for permits in [1, 2, 53, 54, 55, 63, 64] {
        master.keys().clear();
        let all_slots = u64::MAX >> (64 - permits);
        master
            .granted(acquire(&slot_claim(1, 0, permits), LONG, now()))
            .await;
        for held in [0, permits - 1] {
            if held != 0 {
                master
                    .granted(acquire(&slot_claim(2, held, permits), LONG, now()))
                    .await;
            }
            let reply = master
                .send(acquire(&slot_claim(3, 0, permits), LONG, now()))
                .await;
            let Ok(Answer::Refused {
                line: Some(line), ..
            }) = reply
            else {
                panic!("a semaphore of {permits} permits: {reply:?}")
            };
            assert_eq!(
                line.free,
                all_slots & !1 & !(1 << held),
                "a semaphore of {permits} permits"
            );
        }
    }
}
