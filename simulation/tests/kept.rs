//! What the simulation has found, kept as cases of its own.
//!
//! They stand here as scenarios and not as seeds: a seed means another scenario as soon as
//! anything is drawn differently.

use quorate_simulation::{Kind, Outcome, Play, Scenario, Step};

const MS: u64 = 1_000_000;

fn passes(scenario: &Scenario) -> Outcome {
    let outcome = Play::default().run(scenario);
    if let Some(violation) = &outcome.violation {
        let play = Play {
            trace: true,
            ..Play::default()
        };
        let trace = play.run(scenario).trace.join("\n");
        panic!("{scenario}\n{trace}\n{violation}");
    }
    outcome
}

/// The renewal task took the end of such a lease again and again, in one poll, without end.
#[test]
fn a_fixed_lease_that_runs_out_lets_the_renewal_task_go_on() {
    let mut scenario = Scenario::quiet(1, 3, 1);
    let runs_out = Step {
        renew: false,
        hold: 2_000 * MS,
        ..Step::plain()
    };
    scenario.clients[0].steps = vec![runs_out, Step::plain()];
    let outcome = passes(&scenario);
    assert_eq!(outcome.coverage.lost, 1);
    assert_eq!(outcome.coverage.acquired, 3);
}

/// Who was woken asked for the slot that it had asked for before, was shown that another was free, and asked for
/// that one only where the number of its attempts so far allowed it: or else when another wake-up or a timer
/// said so.
#[test]
fn who_is_woken_for_another_slot_than_its_own_asks_for_it_at_once() {
    for seed in 0..40 {
        let mut scenario = Scenario::quiet(seed, 2, 3);
        let takes = |think, hold| Step {
            think: think * MS,
            hold: hold * MS,
            kind: Kind::Permit(2),
            ..Step::plain()
        };
        for (client, (think, hold)) in [(1, 900), (20, 50), (40, 10)].into_iter().enumerate() {
            scenario.clients[client].steps = vec![takes(think, hold)];
        }
        let outcome = passes(&scenario);
        assert_eq!(outcome.coverage.permits, 6, "seed {seed}");
    }
}
