//! Contract cases: releasing a lock on one master.

use std::sync::Arc;

use quorate::node::{Answer, Claim, Fault};

use crate::fixtures::{LONG, now, token_text};
use crate::requests::{acquire, claim, classic, release};
use crate::tested_master::TestedMaster;
use crate::time::ms;

const KEY: &[u8] = b"job";

pub async fn release_by_the_holder_deletes_the_lock_key_and_keeps_the_fencing_counter(
    master: &TestedMaster,
) {
    let claim = claim(KEY, 1);
    let counter = master.granted(acquire(&claim, LONG, now())).await;
    assert_eq!(
        master.send(release(&claim)).await,
        Ok(Answer::Released(true))
    );
    assert_eq!(master.keys().read(KEY), None);
    assert_eq!(master.keys().counter(KEY), Some(counter));
}

/// Claims that are not withdrawn (`false`) and claims that are withdrawn (`true`). To release a withdrawn claim, a node
/// may use a command of the server instead of a script.
const WITHDRAWN_OR_NOT: [bool; 2] = [false, true];

/// Claims with the token `n`: for each value of [`WITHDRAWN_OR_NOT`], one with a fencing number and one without.
fn claims(n: u8) -> impl Iterator<Item = Arc<Claim>> {
    WITHDRAWN_OR_NOT.into_iter().flat_map(move |is_withdrawn| {
        let claims = [claim(KEY, n), classic(KEY, n)];
        claims.into_iter().inspect(move |claim| {
            if is_withdrawn {
                claim.withdraw();
            }
        })
    })
}

pub async fn second_release_reports_that_it_deleted_nothing(master: &TestedMaster) {
    for is_withdrawn in WITHDRAWN_OR_NOT {
        for claim in [claim(KEY, 1), classic(KEY, 1)] {
            let reply = master.send(acquire(&claim, LONG, now())).await;
            assert!(matches!(reply, Ok(Answer::Granted { .. })), "{reply:?}");
            if is_withdrawn {
                claim.withdraw();
            }
            assert_eq!(
                master.send(release(&claim)).await,
                Ok(Answer::Released(true))
            );
            assert_eq!(master.keys().read(KEY), None);
            assert_eq!(
                master.send(release(&claim)).await,
                Ok(Answer::Released(false))
            );
        }
    }
}

pub async fn release_does_not_delete_the_lock_key_of_another_holder(master: &TestedMaster) {
    master.granted(acquire(&claim(KEY, 1), LONG, now())).await;
    for other in claims(2) {
        let reply = master.send(release(&other)).await;
        assert_eq!(reply, Ok(Answer::Released(false)));
        assert_eq!(master.keys().read(KEY), Some(token_text(1)));
    }
    // A lock value that begins with the released token but is longer belongs to another client.
    let longer = [&token_text(3)[..], b"0"].concat();
    master.keys().put(KEY, &longer, None);
    for other in claims(3) {
        let reply = master.send(release(&other)).await;
        assert_eq!(reply, Ok(Answer::Released(false)));
        assert_eq!(master.keys().read(KEY).as_ref(), Some(&longer));
    }
}

pub async fn release_does_not_delete_a_lock_key_of_another_data_type(master: &TestedMaster) {
    master.keys().put_foreign(KEY);
    for claim in claims(1) {
        let reply = master.send(release(&claim)).await;
        assert_eq!(reply, Err(Fault::WrongType));
        assert_eq!(master.keys().read(KEY).as_deref(), Some(&b"foreign"[..]));
    }
}

pub async fn lock_of_a_withdrawn_claim_can_be_released(master: &TestedMaster) {
    let claim = claim(KEY, 1);
    master.granted(acquire(&claim, LONG, now())).await;
    claim.withdraw();
    assert_eq!(
        master.send(release(&claim)).await,
        Ok(Answer::Released(true))
    );
    assert_eq!(master.keys().read(KEY), None);
}

pub async fn release_of_an_expired_lock_reports_that_it_deleted_nothing(master: &TestedMaster) {
    master.granted(acquire(&claim(KEY, 1), ms(20), now())).await;
    // On a busy machine, the client of a store knows the store's time only to some 100 ms.
    tokio::time::sleep(ms(if master.is_store() { 500 } else { 60 })).await;
    for claim in claims(1) {
        assert_eq!(
            master.send(release(&claim)).await,
            Ok(Answer::Released(false))
        );
    }
}
