//! A store that is restored from a snapshot.

use crate::clock::MS;
use crate::kind::ValueStep;
use crate::scenario::{Fault, FaultKind, Scenario, Step, StoreEvent};
use crate::store_plan::{RunRule, StorePlan};

/// A scenario whose only master is a store that is restored 2 s after the beginning of the run, from a snapshot taken
/// 500 ms before. An administrator then gives the store another identity.
fn scenario_with_a_restore(clients: usize) -> Scenario {
    let mut scenario = Scenario::quiet(7, 1, clients);
    scenario.masters[0].store = Some(StorePlan {
        // Each session has a cache of its own.
        sessions: 1,
        ..StorePlan::quiet(RunRule::Numbered)
    });
    scenario.faults = vec![
        Fault::at_ms(1_900, FaultKind::ResetConnections { master: 0 }),
        Fault::at_ms(
            2_000,
            FaultKind::StoreEvent {
                master: 0,
                event: StoreEvent::SetBack,
                down: 50 * MS,
                age: 500 * MS,
            },
        ),
    ];
    (scenario.settings.ttl, scenario.settings.max_ttl) = (1_000 * MS, 1_000 * MS);
    scenario.heal_at = 9_000 * MS;
    scenario
}

/// A client takes a unit of a quota after the snapshot. The restored store shows that unit as if it were not taken, so
/// no client may trust the quota after the restore.
pub(super) fn quota_of_a_restored_store(_: u64) -> Scenario {
    let mut scenario = scenario_with_a_restore(1);
    // A shorter time would be too short for the promise `stock`.
    scenario.settings.max_ttl = 3_000 * MS;
    let step = |think: u64, kind| Step {
        think: think * MS,
        resource: 0,
        ..Step::of_record(kind)
    };
    scenario.clients[0].steps = vec![
        step(100, ValueStep::Create(5)),
        step(1_550, ValueStep::Take(1)),
        step(5_000, ValueStep::ReadRemaining),
        step(1, ValueStep::Take(1)),
    ];
    scenario
}

/// Client 0 uses a lock one to three times after the snapshot, and so remembers a version that is lost. After the
/// snapshot is restored, both clients connect again. When the restart guard has ended, client 1 makes up to five
/// changes, and then holds the same lock, which it extends in every second variant. If the record then has the version
/// that client 0 remembers, client 0 may overwrite it.
pub(super) fn version_repeats_after_a_restore(variant: u64) -> Scenario {
    let (used, changes, extends) = (1 + variant / 12, variant / 2 % 6, variant % 2 == 1);
    let mut scenario = scenario_with_a_restore(2);
    let step = |think: u64, resource: u8, hold: u64| Step {
        think: think * MS,
        resource,
        wait: 0,
        hold: hold * MS,
        renew: false,
        ..Step::plain()
    };
    let [client, holder] = &mut scenario.clients[..] else {
        unreachable!("the scenario has two clients")
    };
    client.steps = vec![step(1_600, 0, 1)];
    client.steps.extend((1..used).map(|_| step(1, 0, 1)));
    client.steps.extend([step(2_400, 2, 1), step(2_700, 0, 1)]);
    holder.steps = vec![step(1_850, 1, 1), step(2_200, 2, 1), step(2_000, 1, 1)];
    holder.steps.extend((0..changes).map(|_| step(1, 1, 1)));
    holder.steps.push(Step {
        extend: extends.then_some(1_000 * MS),
        ..step(1, 0, 900)
    });
    scenario
}
