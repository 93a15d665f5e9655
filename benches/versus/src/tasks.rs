//! Measures whether a cycle (an acquire and its release) costs more if more tasks run concurrently.

use std::sync::Arc;
use std::time::Duration;

use quorate_testbed::Masters;
use quorate_testbed::measure::{Spread, number};
use quorate_testbed::table::{Table, ratio};

use crate::contender::{Addresses, Contender, Name};
use crate::goal::{Bound, largest_growth, print_goal};
use crate::versus::{Burst, burst, runtime};

/// Arguments of the subcommand `tasks`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The numbers of concurrent tasks, measured one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64, 256, 1024, 4096])]
    tasks: Vec<usize>,
    /// The number of rounds; in each round every implementation has one turn with each number of tasks
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

pub(crate) fn run(args: &Args) {
    let masters = Masters::start(5).expect("the masters must start (is redis-server installed?)");
    let names = [Name::Floor, Name::Rslock, Name::Classic, Name::Default];
    let mut results = vec![vec![Vec::<Burst>::new(); args.tasks.len()]; names.len()];
    runtime(false).block_on(async {
        let addresses = Addresses::direct(&masters);
        let mut clients = Vec::new();
        for name in names {
            clients.push(Arc::new(Contender::connect(name, &addresses).await));
        }
        for round in 0..=args.rounds {
            for (index, &tasks) in args.tasks.iter().enumerate() {
                for ((client, name), name_results) in clients.iter().zip(names).zip(&mut results) {
                    let time = Duration::from_millis(250);
                    let result = burst(client, name, &masters, tasks, time).await;
                    if round > 0 {
                        name_results[index].push(result);
                    }
                }
            }
        }
    });
    println!(
        "5 masters, {} interleaved rounds. Columns with the name of an implementation: median client CPU of a \
         cycle, in us. growth: this CPU as a ratio to the first row in the same round, median [smallest-largest]",
        args.rounds
    );
    let heading = names
        .iter()
        .flat_map(|name| [name.label(), "growth", "cycles/s"]);
    let mut table = Table::new(["tasks"].into_iter().chain(heading));
    let mut largest = [0.0_f64; 4];
    for (index, tasks) in args.tasks.iter().enumerate() {
        let mut row = vec![tasks.to_string()];
        for (name_results, largest) in results.iter().zip(&mut largest) {
            let pairs = name_results[index].iter().zip(&name_results[0]);
            let growth = Spread::of(pairs.map(|(now, first)| now.client_us / first.client_us));
            *largest = largest.max(growth.median);
            row.push(number(
                Spread::of(name_results[index].iter().map(|c| c.client_us)).median,
            ));
            row.push(ratio(growth));
            row.push(number(
                Spread::of(name_results[index].iter().map(|c| c.per_second)).median,
            ));
        }
        table.row(row);
    }
    print!("\nClient CPU of a cycle by the number of tasks\n{table}");
    println!();
    for ((name, largest), name_results) in names.iter().zip(largest).zip(&results) {
        if matches!(name, Name::Classic | Name::Default) {
            let description = format!(
                "{}, client CPU of a cycle: largest value in the column growth",
                name.label()
            );
            print_goal(&description, largest, Bound::AtMost(1.15));
            let description = format!(
                "{}, client CPU of a cycle: largest growth factor as the number of tasks increases",
                name.label()
            );
            let costs = name_results
                .iter()
                .map(|bursts| Spread::of(bursts.iter().map(|c| c.client_us)).median);
            print_goal(&description, largest_growth(costs), Bound::AtMost(1.15));
        }
    }
}
