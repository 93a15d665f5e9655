//! Locks on several resources, and semaphores.

use crate::clock::MS;
use crate::kind::Kind;
use crate::scenario::{Fault, FaultKind, Refusal, Scenario, Step};

/// A client takes one lock on two resources, and one of the resources is force-released. Each variant force-releases it
/// 0.1 ms later than the variant before. So in some of the variants, the force-release happens while masters confirm the
/// fencing token. The clocks of the masters are so far apart that their fencing counters always differ.
pub(super) fn force_release_during_confirm(tenth: u64) -> Scenario {
    let mut scenario = Scenario::quiet(tenth, 3, 1);
    scenario.masters[0].offset_us = 1_500_000;
    scenario.masters[1].offset_us = 2_500_000;
    scenario.clients[0].steps = vec![Step::of_kind(Kind::Several(0b11))];
    let kind = FaultKind::ForceRelease {
        resource: 1,
        missed: 0,
    };
    let at = tenth * MS / 10;
    scenario.faults = vec![Fault { at, kind }];
    scenario
}

/// Three clients acquire a semaphore with two permits at the same moment.
pub(super) fn three_clients_two_permits(seed: u64) -> Scenario {
    let mut scenario = Scenario::quiet(seed, 3, 3);
    (scenario.net.delay, scenario.net.jitter) = (MS, 4 * MS);
    for client in &mut scenario.clients {
        client.steps = vec![Step::of_kind(Kind::Permit(2)); 4];
    }
    scenario
}

/// Client 0 holds a permit on masters 0 and 2 only, because master 1 refuses requests for the first 50 ms. Then master
/// 2 crashes. So of the two remaining masters, only master 0 reports the client's slot as taken.
pub(super) fn slot_on_two_masters(seed: u64) -> Scenario {
    let mut scenario = Scenario::quiet(seed, 3, 2);
    let permit_step = |think, wait, hold| Step {
        think: think * MS,
        wait: wait * MS,
        hold: hold * MS,
        renew: false,
        ..Step::of_kind(Kind::Permit(2))
    };
    scenario.clients[0].steps = vec![permit_step(5, 0, 900)];
    scenario.clients[1].steps = vec![permit_step(150, 500, 10)];
    let (master, how, lasts) = (1, Refusal::Busy, 50 * MS);
    let refuses = FaultKind::Refuse { master, how, lasts };
    let (master, down, age) = (2, 3_000 * MS, MS);
    let crashes = FaultKind::Crash { master, down, age };
    scenario.faults = vec![Fault::at_ms(0, refuses), Fault::at_ms(100, crashes)];
    scenario
}

/// Each client locks one of two resources in some steps, and both resources in the other steps. The clients name the
/// two resources in different orders.
pub(super) fn one_resource_or_both(seed: u64) -> Scenario {
    let mut scenario = Scenario::quiet(seed, 3, 8);
    (scenario.net.delay, scenario.net.jitter) = (MS, 8 * MS);
    for (index, client) in scenario.clients.iter_mut().enumerate() {
        let step_on = |kind, resource| Step {
            resource,
            ..Step::of_kind(kind)
        };
        let (first, both_resources) = (index as u8 % 2, Kind::Several(0b11));
        let one_resource = step_on(Kind::Exclusive, first);
        client.steps = vec![
            one_resource,
            step_on(both_resources, first),
            step_on(both_resources, 1 - first),
        ];
        client.steps.rotate_left(index % 3);
        client.steps.push(step_on(both_resources, first));
    }
    scenario
}

/// A client locks two keys. Another program has stored a value that is not a string under one of them.
pub(super) fn value_of_another_program(_: u64) -> Scenario {
    let mut scenario = Scenario::quiet(1, 3, 1);
    scenario.clients[0].steps = vec![Step::of_kind(Kind::Several(0b11)); 3];
    let (master, resource, lasts) = (0, 1, 1_000 * MS);
    let kind = FaultKind::ForeignKey {
        master,
        resource,
        lasts,
    };
    scenario.faults = vec![Fault::at_ms(0, kind)];
    scenario
}
