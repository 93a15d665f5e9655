//! Measures how much throughput many tasks of one client lose while one of five masters does not answer.

use std::sync::Arc;
use std::time::Duration;

use quorate_testbed::Masters;
use quorate_testbed::measure::{Spread, number};
use quorate_testbed::table::{Table, ratio};
use tokio::runtime::Runtime;

use crate::contender::{Addresses, Contender, Name};
use crate::goal::{Bound, print_goal};
use crate::versus::run_concurrent_cycles;

const TASKS: usize = 64;

/// The implementations that are measured: `quorate` with three different settings.
const NAMES: [Name; 3] = [Name::Classic, Name::Fenced, Name::Default];

/// The time of one measurement. In each round, every implementation is measured for this time with healthy masters, and
/// again while one master is stopped.
const MEASURED_TIME: Duration = Duration::from_secs(1);

/// The rates of one implementation, in cycles (an acquire and its release) per second: while all masters are healthy,
/// and while one master is stopped.
struct Rates {
    healthy: f64,
    hung: f64,
    failed: u64,
}

pub(crate) fn run(runtime: &Runtime, masters: &Masters, rounds: usize) {
    let mut results = NAMES.map(|_| Vec::<Rates>::new());
    runtime.block_on(async {
        let addresses = Addresses::direct(masters);
        let mut clients = Vec::new();
        for name in NAMES {
            clients.push(Arc::new(Contender::connect(name, &addresses).await));
        }
        for _ in 0..rounds {
            for ((client, name), rates) in clients.iter().zip(NAMES).zip(&mut results) {
                rates.push(measure_rates(client, name, masters).await);
                // Give all clients time to reconnect and to deliver their pending releases.
                tokio::time::sleep(Duration::from_millis(900)).await;
            }
        }
    });
    let mut table = Table::new(["", "rate x", "healthy, cycles/s", "failed"]);
    let ratios_to_healthy = |rates: &[Rates]| Spread::of(rates.iter().map(|r| r.hung / r.healthy));
    for (name, rates) in NAMES.iter().zip(&results) {
        let healthy = Spread::of(rates.iter().map(|r| r.healthy)).median;
        let failed: u64 = rates.iter().map(|r| r.failed).sum();
        table.row([
            name.label().to_owned(),
            ratio(ratios_to_healthy(rates)),
            number(healthy),
            failed.to_string(),
        ]);
    }
    print!(
        "\nCycles per second of {TASKS} tasks while one of five masters is stopped; x = ratio to five healthy \
         masters\n{table}\n"
    );
    let description = "quorate default, cycles per second with one of five masters stopped, ratio to five healthy masters";
    print_goal(
        description,
        ratios_to_healthy(&results[2]).median,
        Bound::AtLeast(0.95),
    );
    println!();
}

async fn measure_rates(client: &Arc<Contender>, name: Name, masters: &Masters) -> Rates {
    let (healthy, failed_before) = run_concurrent_cycles(client, name, TASKS, MEASURED_TIME).await;
    masters[4].stop().expect("the master must stop");
    let (hung, failed_after) = run_concurrent_cycles(client, name, TASKS, MEASURED_TIME).await;
    masters[4].cont().expect("the master must resume");
    let rate = |cycles: u64| cycles as f64 / MEASURED_TIME.as_secs_f64();
    Rates {
        healthy: rate(healthy),
        hung: rate(hung),
        failed: failed_before + failed_after,
    }
}
