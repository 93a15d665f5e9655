//! Holds that stand beside each other on one master.

use std::sync::Arc;

use quorate::node::{Answer, Claim, Class, Extended, Fairness, Fault, Group};
use quorate::node::{KeyState, Mode, Part};

use crate::arm::{Arm, LONG, fence, now};
use crate::support::asking::{acquire, extend, look, token};

const KEY: &[u8] = b"doc";

fn of_class(key: &[u8], n: u8, class: Class, number: u64) -> Arc<Claim> {
    let part = Part {
        key: key.into(),
        mode: Mode::Class(class),
    };
    let group = Group::new(vec![part]);
    group.agreed(number);
    let claim = Claim::new("", key, token(n), true).with_fairness(Fairness::Fair(None));
    Arc::new(claim.with_group(group))
}

async fn state(arm: &Arm, key: &[u8]) -> KeyState {
    match arm.ask(look(key)).await {
        Ok(Answer::State(state)) => state,
        other => panic!("{other:?}"),
    }
}

fn each(said: &[Extended]) -> Result<Answer, Fault> {
    Ok(Answer::Extended(said.to_vec()))
}

pub(crate) async fn who_joins_where_the_counter_is_gone_gets_no_number_and_no_place(arm: &Arm) {
    for class in [Class::Shared, Class::Owner("o".into())] {
        arm.clear();
        let hold = |n, number| of_class(KEY, n, class.clone(), number);
        let number = arm.granted(acquire(&hold(1, 0), LONG, now())).await;
        arm.delete(&fence(KEY));
        let said = arm.ask(acquire(&hold(2, 0), LONG, now())).await;
        let Err(Fault::Server(why)) = &said else {
            panic!("{said:?}")
        };
        assert!(why.contains("is gone"), "{why}");
        assert_eq!(state(arm, KEY).await.holds.len(), 1);
        // The next renewal of who is there puts it back, and then there is a number to give.
        let renewed = arm.ask(extend(&[(&hold(1, number), LONG)])).await;
        assert_eq!(renewed, each(&[Extended::Kept]));
        let joined = arm.granted(acquire(&hold(2, 0), LONG, now())).await;
        assert_eq!(joined, number);
    }
}
