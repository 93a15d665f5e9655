//! Contract cases: releasing a lock on one master.

use std::sync::Arc;

use quorate::node::{Answer, Claim, Fault};

use crate::arm::{Arm, LONG, hex, now};
use crate::support::asking::{acquire, claim, classic, release};
use crate::support::ms;

const KEY: &[u8] = b"job";

pub(crate) async fn release_by_the_holder_deletes_the_lock_key_and_keeps_the_fencing_counter(
    arm: &Arm,
) {
    let claim = claim(KEY, 1);
    let counter = arm.granted(acquire(&claim, LONG, now())).await;
    assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(true)));
    assert_eq!(arm.read(KEY), None);
    assert_eq!(arm.counter(KEY), Some(counter));
}

/// Claims that are not withdrawn (`false`) and claims that are withdrawn (`true`). To release a withdrawn claim, a node
/// may use a command of the server instead of a script.
const GIVEN_UP: [bool; 2] = [false, true];

/// Claims with the token `n`: for each value of [`GIVEN_UP`], one with a fencing number and one without.
fn claims(n: u8) -> impl Iterator<Item = Arc<Claim>> {
    GIVEN_UP.into_iter().flat_map(move |given_up| {
        let claims = [claim(KEY, n), classic(KEY, n)];
        claims.into_iter().inspect(move |claim| {
            if given_up {
                claim.withdraw();
            }
        })
    })
}

pub(crate) async fn second_release_reports_that_it_deleted_nothing(arm: &Arm) {
    for given_up in GIVEN_UP {
        for claim in [claim(KEY, 1), classic(KEY, 1)] {
            let said = arm.ask(acquire(&claim, LONG, now())).await;
            assert!(matches!(said, Ok(Answer::Granted { .. })), "{said:?}");
            if given_up {
                claim.withdraw();
            }
            assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(true)));
            assert_eq!(arm.read(KEY), None);
            assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(false)));
        }
    }
}

pub(crate) async fn release_does_not_delete_the_lock_key_of_another_holder(arm: &Arm) {
    arm.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    for other in claims(2) {
        let said = arm.ask(release(&other)).await;
        assert_eq!(said, Ok(Answer::Released(false)));
        assert_eq!(arm.read(KEY), Some(hex(1)));
    }
    // A lock value that begins with the released token but is longer belongs to another client.
    let longer = [&hex(3)[..], b"0"].concat();
    arm.put(KEY, &longer, None);
    for other in claims(3) {
        let said = arm.ask(release(&other)).await;
        assert_eq!(said, Ok(Answer::Released(false)));
        assert_eq!(arm.read(KEY).as_ref(), Some(&longer));
    }
}

pub(crate) async fn release_does_not_delete_a_lock_key_of_another_data_type(arm: &Arm) {
    arm.put_foreign(KEY);
    for claim in claims(1) {
        let said = arm.ask(release(&claim)).await;
        assert_eq!(said, Err(Fault::WrongType));
        assert_eq!(arm.read(KEY).as_deref(), Some(&b"foreign"[..]));
    }
}

pub(crate) async fn lock_of_a_withdrawn_claim_can_be_released(arm: &Arm) {
    let claim = claim(KEY, 1);
    arm.granted(acquire(&claim, LONG, now())).await;
    claim.withdraw();
    assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(true)));
    assert_eq!(arm.read(KEY), None);
}

pub(crate) async fn release_of_an_expired_lock_reports_that_it_deleted_nothing(arm: &Arm) {
    arm.granted(acquire(&claim(KEY, 1), ms(20), now())).await;
    tokio::time::sleep(ms(60)).await;
    for claim in claims(1) {
        assert_eq!(arm.ask(release(&claim)).await, Ok(Answer::Released(false)));
    }
}
