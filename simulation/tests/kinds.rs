//! Several resources, readers and owners in worlds written by hand: what drawn worlds meet too rarely.

use quorate_simulation::{Fault, FaultKind, Flaw, Kind, Outcome, Play, Scenario, Step};

const MS: u64 = 1_000_000;

/// Three masters whose clocks are so far apart that no two of them count alike.
fn apart(seed: u64, clients: usize) -> Scenario {
    let mut scenario = Scenario::quiet(seed, 3, clients);
    scenario.masters[0].offset_us = 1_500_000;
    scenario.masters[1].offset_us = 2_500_000;
    scenario
}

fn step(kind: Kind) -> Step {
    let first = Step::plain();
    Step { kind, ..first }
}

fn play(scenario: &Scenario, flaw: Option<Flaw>) -> Outcome {
    let play = Play {
        flaw,
        ..Play::default()
    };
    play.run(scenario)
}

/// Two resources in one lock, of which somebody breaks one at every tenth of a millisecond around the
/// round in which the number is confirmed.
fn one_of_two_is_broken() -> impl Iterator<Item = Scenario> {
    (0..400).map(|tenth| {
        let mut scenario = apart(tenth, 1);
        scenario.clients[0].steps = vec![step(Kind::Several(0b11))];
        let kind = FaultKind::Break { resource: 1 };
        let at = tenth * MS / 10;
        scenario.faults = vec![Fault { at, kind }];
        scenario
    })
}

#[test]
fn a_number_that_one_of_several_resources_confirms_is_caught() {
    let caught = |flaw| {
        let violation = |scenario: Scenario| play(&scenario, flaw).violation;
        one_of_two_is_broken().find_map(violation)
    };
    assert_eq!(caught(None), None, "the library");
    assert!(caught(Some(Flaw::ConfirmAnyKey)).is_some());
}

#[test]
fn holds_of_every_kind_share_one_resource() {
    let kinds = [
        Kind::Exclusive,
        Kind::Several(0b11),
        Kind::Shared,
        Kind::Owner(0),
        Kind::Downgraded,
        Kind::Counted(0),
    ];
    for seed in 0..20 {
        let mut scenario = apart(seed, kinds.len());
        for (client, kind) in scenario.clients.iter_mut().zip(kinds) {
            client.steps = vec![step(kind); 6];
        }
        let outcome = play(&scenario, None);
        assert_eq!(outcome.violation, None, "seed {seed}: {scenario}");
        let seen = outcome.coverage;
        // Six steps of each process and its last lock; who becomes a reader has had two holds.
        assert_eq!((seen.acquired, seen.downgraded), (7 * 6 + 6, 6), "{seed}");
        assert_eq!((seen.several, seen.lost), (7, 0), "{seed}");
    }
}

/// Where the counters differ, two first holds of one owner that meet cannot agree on a number: neither is
/// alone. They tried again at once, and one of them always stood there, for as long as anybody waited.
#[test]
fn holds_of_one_owner_that_meet_let_each_other_be_alone() {
    for seed in 0..40 {
        let mut scenario = apart(seed, 4);
        (scenario.net.delay, scenario.net.jitter) = (5 * MS, 8 * MS);
        scenario.settings.fair = seed % 2 == 0;
        scenario.settings.ttl = 300 * MS;
        for client in &mut scenario.clients {
            client.steps = vec![step(Kind::Owner(0)); 3];
        }
        let outcome = play(&scenario, None);
        assert_eq!(outcome.violation, None, "seed {seed}: {scenario}");
        // Those that were waited for in the steps, too.
        assert!(outcome.coverage.acquired >= 12, "seed {seed}");
    }
}
