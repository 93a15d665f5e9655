//! The rules of docs/protocol.md keep the promises in every state that a case can reach.

use std::time::Instant;

use quorate_model::{
    Action, Case, Counts, Model, Rules, STATE_LIMIT, Search, World, cases, search,
};

// `tests/all/tiers.rs` compares the numbers of states with the table in CONTRIBUTING.md. If you change the model, set
// them to the numbers that these tests print.
const SMALL_STATES: usize = 7_483_145;
const ALL_STATES: usize = 27_611_106;

/// Searches these cases. Returns the number of all states, and what the searches have tested.
fn search_all(cases: &[Case]) -> (usize, Counts) {
    let (mut states, mut counts) = (0, Counts::default());
    let began_at = Instant::now();
    for case in cases {
        let mut model = Search::new(*case, Rules::PROTOCOL);
        let outcome = search(&mut model, STATE_LIMIT);
        println!(
            "{}: {} states, {} actions, at most {} steps",
            case.name, outcome.states, outcome.actions, outcome.depth
        );
        if let Some(schedule) = outcome.schedule {
            panic!("{}:\n{schedule}", case.name);
        }
        states += outcome.states;
        counts.add(model.counts);
    }
    println!(
        "{states} states in {:.1} s",
        began_at.elapsed().as_secs_f64()
    );
    println!("{counts:#?}");
    (states, counts)
}

#[test]
fn rules_keep_the_promises_in_every_state_of_the_small_cases() {
    let (states, counts) = search_all(&cases::SMALL);
    assert_eq!(counts.never_counted(), Vec::<&str>::new());
    assert_eq!(states, SMALL_STATES);
}

#[test]
#[ignore = "nightly"]
fn rules_keep_the_promises_in_every_state_of_the_large_cases() {
    let (small_states, _) = search_all(&cases::SMALL);
    let (large_states, _) = search_all(&cases::LARGE);
    assert_eq!(small_states + large_states, ALL_STATES);
}

/// A search that does not exchange equal masters.
struct WithoutExchange(Search);

impl Model for WithoutExchange {
    type State = World;
    type Action = Action;

    fn initial_state(&self) -> World {
        self.0.initial_state()
    }

    fn add_actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.0.add_actions(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        self.0.next_state(world, action)
    }

    fn normalize(&self, _: &mut World) {}

    fn broken_promise(&self, world: &World) -> Option<&'static str> {
        self.0.broken_promise(world)
    }

    fn count(&mut self, _: &World, _: Action, _: &World) {}

    fn describe(&self, world: &World) -> String {
        self.0.describe(world)
    }
}

/// The numbers of states that `stateright` 0.31 has counted for the same model.
#[test]
fn search_without_the_exchange_of_masters_visits_as_many_states_as_stateright() {
    let counted = [
        (cases::ATTEMPTS, 292_958),
        (cases::TOKENS, 198_233),
        (cases::RESTARTS, 875_826),
    ];
    for (case, states) in counted {
        let mut model = WithoutExchange(Search::new(case, Rules::PROTOCOL));
        let outcome = search(&mut model, STATE_LIMIT);
        assert!(outcome.schedule.is_none(), "{}", case.name);
        assert_eq!(outcome.states, states, "{}", case.name);
    }
}
