//! Searches the model, and prints the number of states of each case.
//!
//! - `quorate-model`: the cases of every `cargo test`.
//! - `quorate-model --all`: the further cases of the nightly tests as well.
//! - `quorate-model CASE ..`: only these cases.
//! - `--changed RULE`: with this changed rule. If a promise is broken, prints the shortest schedule.

use std::time::Instant;

use quorate_model::{ChangedRule, Rules, STATE_LIMIT, Search, cases, search};

fn main() -> Result<(), String> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let rules = match arguments
        .iter()
        .position(|argument| argument == "--changed")
    {
        None => Rules::PROTOCOL,
        Some(index) => {
            let name = arguments.drain(index..).nth(1).unwrap_or_default();
            let mut changes = ChangedRule::ALL.into_iter();
            let change = changes.find(|change| change.name() == name);
            Rules::with(change.ok_or_else(|| format!("there is no changed rule {name:?}"))?)
        }
    };
    let is_full = arguments.iter().any(|argument| argument == "--all");
    arguments.retain(|argument| argument != "--all");
    let all_cases = cases::SMALL.into_iter().chain(cases::LARGE);
    let known: Vec<&str> = all_cases.clone().map(|case| case.name).collect();
    if let Some(unknown) = arguments
        .iter()
        .find(|name| !known.contains(&name.as_str()))
    {
        return Err(format!(
            "there is no case {unknown:?}; the cases are {known:?}"
        ));
    }
    let is_chosen = |index: usize, name: &str| {
        if arguments.is_empty() {
            is_full || index < cases::SMALL.len()
        } else {
            arguments.iter().any(|chosen| chosen == name)
        }
    };
    let (began_at, mut states) = (Instant::now(), 0);
    for (_, case) in all_cases
        .enumerate()
        .filter(|(index, case)| is_chosen(*index, case.name))
    {
        let case_began_at = Instant::now();
        let outcome = search(&mut Search::new(case, rules), STATE_LIMIT);
        states += outcome.states;
        println!(
            "{:<24}{:>10} states, {:>10} actions, {:>3} steps, {:.1} s",
            case.name,
            outcome.states,
            outcome.actions,
            outcome.depth,
            case_began_at.elapsed().as_secs_f64()
        );
        if let Some(schedule) = outcome.schedule {
            println!("{schedule}");
        }
    }
    println!(
        "{states} states in {:.1} s",
        began_at.elapsed().as_secs_f64()
    );
    Ok(())
}
