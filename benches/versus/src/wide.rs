//! Measures locks over masters that are far apart. An acquisition should return as soon as a majority of the masters
//! has granted the lock, without waiting for more distant masters.

use std::sync::Arc;
use std::time::Duration;

use quorate_testbed::measure::{Samples, Spread, number, quantile};
use quorate_testbed::table::Table;
use quorate_testbed::{Fault, Injected, Masters, Proxy, Way};

use crate::contender::{Addresses, Contender, Name, builder_for};
use crate::goal::{Bound, print_goal};
use crate::versus::{alone, runtime};

/// Arguments of the subcommand `wide`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The round-trip time to each master, in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 40, 80, 150])]
    ms: Vec<u64>,
    /// The number of rounds; in each round every implementation has one turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The number of cycles of one client per round
    #[arg(long, default_value_t = 12)]
    cycles: usize,
}

pub(crate) fn run(args: &Args) {
    let masters =
        Masters::start(args.ms.len()).expect("the masters must start (is redis-server installed?)");
    let proxies: Vec<Proxy> = masters
        .iter()
        .map(|master| Proxy::start(master.addr()).expect("the proxy must start"))
        .collect();
    let addresses = Addresses {
        urls: masters
            .iter()
            .zip(&proxies)
            .map(|(master, proxy)| master.url_at(proxy.addr()))
            .collect(),
        sockets: proxies.iter().map(Proxy::addr).collect(),
    };
    let faults: Vec<Injected> = proxies
        .iter()
        .zip(&args.ms)
        .map(|(proxy, &ms)| proxy.inject(Fault::latency(Way::ToClient, Duration::from_millis(ms))))
        .collect();
    let slowest = args.ms.iter().max().copied().unwrap_or(0);
    let names = Name::ALL;
    let mut results = vec![Vec::<Samples>::new(); names.len()];
    runtime(false).block_on(async {
        let mut clients = Vec::new();
        for name in names {
            let client = match name {
                // For distant masters, raise the node timeout of `quorate`: its default is 50 ms.
                Name::Classic | Name::Fenced | Name::Default => Contender::Quorate(
                    builder_for(name, &addresses.urls)
                        .node_timeout(Duration::from_millis(2 * slowest + 50))
                        .connect_timeout(Duration::from_millis(10 * slowest + 500))
                        .build()
                        .expect("the settings must be valid"),
                ),
                _ => Contender::connect(name, &addresses).await,
            };
            clients.push(Arc::new(client));
        }
        for (client, name) in clients.iter().zip(names) {
            alone(client, name, 2).await;
        }
        for _ in 0..args.rounds {
            for ((client, name), rounds) in clients.iter().zip(names).zip(&mut results) {
                rounds.push(alone(client, name, args.cycles).await);
            }
        }
    });
    print_results(args, names, &results);
    drop(faults);
}

fn print_results(args: &Args, names: [Name; Name::ALL.len()], results: &[Vec<Samples>]) {
    let slowest = args.ms.iter().max().copied().unwrap_or(0);
    let mut sorted = args.ms.clone();
    sorted.sort_unstable();
    let ideal_ms = sorted[sorted.len() / 2] as f64;
    println!(
        "{} masters with round trips of {:?} ms: a majority has answered after {ideal_ms} ms, and all masters after \
         {slowest} ms. {} interleaved rounds of {} cycles",
        args.ms.len(),
        args.ms,
        args.rounds,
        args.cycles
    );
    let mut table = Table::new([
        "one client",
        "acquire p50 ms",
        "over theory",
        "p99 ms",
        "release p50 ms",
        "over theory",
        "failed",
    ]);
    let mut goals = Vec::new();
    for (name, rounds) in names.iter().zip(results) {
        let median_ms = |pick: fn(&Samples) -> &Vec<u64>, share: f64| {
            Spread::of(
                rounds
                    .iter()
                    .map(|round| quantile(pick(round), share) / 1e6),
            )
            .median
        };
        let (acquire, release) = (
            median_ms(|r| &r.acquire, 0.5),
            median_ms(|r| &r.release, 0.5),
        );
        let failed: u64 = rounds.iter().map(|round| round.failed).sum();
        if matches!(name, Name::Classic | Name::Fenced | Name::Default) {
            goals.push((name.label(), acquire / ideal_ms));
        }
        table.row([
            name.label().to_owned(),
            number(acquire),
            number(acquire / ideal_ms),
            number(median_ms(|r| &r.acquire, 0.99)),
            number(release),
            number(release / ideal_ms),
            if failed == 0 {
                String::new()
            } else {
                failed.to_string()
            },
        ]);
    }
    print!("\nWide area\n{table}");
    println!();
    for (label, value) in goals {
        let description =
            format!("{label}, time to acquire, ratio to the time in which a majority can answer");
        print_goal(&description, value, Bound::AtMost(1.1));
    }
}
