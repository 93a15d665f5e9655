//! Measures how much throughput many tasks of one client lose while one of five masters does not answer.

use std::sync::Arc;
use std::time::Duration;

use quorate_testbed::Masters;
use quorate_testbed::measure::{Spread, number};
use quorate_testbed::table::{Table, ratio};
use tokio::runtime::Runtime;

use crate::contender::{Addresses, Contender, Name};
use crate::goal::{Bound, goal};
use crate::versus::rush;

const TASKS: usize = 64;

/// The implementations that are measured: `quorate` with three different settings.
const NAMES: [Name; 3] = [Name::Classic, Name::Fenced, Name::Default];

/// The time of one measurement. In each round, every implementation is measured for this time with healthy masters, and
/// again while one master is stopped.
const TURN: Duration = Duration::from_secs(1);

/// The rates of one implementation, in cycles (an acquire and its release) per second: while all masters are healthy,
/// and while one master is stopped.
struct Rates {
    healthy: f64,
    hung: f64,
    failed: u64,
}

pub(crate) fn run(runtime: &Runtime, masters: &Masters, rounds: usize) {
    let mut seen = NAMES.map(|_| Vec::<Rates>::new());
    runtime.block_on(async {
        let addresses = Addresses::of(masters);
        let mut clients = Vec::new();
        for name in NAMES {
            clients.push(Arc::new(Contender::connect(name, &addresses).await));
        }
        for _ in 0..rounds {
            for ((client, name), seen) in clients.iter().zip(NAMES).zip(&mut seen) {
                seen.push(turn(client, name, masters).await);
                // Give all clients time to reconnect and to deliver their pending releases.
                tokio::time::sleep(Duration::from_millis(900)).await;
            }
        }
    });
    let mut table = Table::new(["", "rate x", "healthy, cycles/s", "failed"]);
    let over = |seen: &[Rates]| Spread::of(seen.iter().map(|r| r.hung / r.healthy));
    for (name, seen) in NAMES.iter().zip(&seen) {
        let healthy = Spread::of(seen.iter().map(|r| r.healthy)).median;
        let failed: u64 = seen.iter().map(|r| r.failed).sum();
        table.row([
            name.label().to_owned(),
            ratio(over(seen)),
            number(healthy),
            failed.to_string(),
        ]);
    }
    print!(
        "\nCycles per second of {TASKS} tasks while one of five masters is stopped; x = ratio to five healthy \
         masters\n{table}\n"
    );
    let what = "quorate default, cycles per second with one of five masters stopped, ratio to five healthy masters";
    goal(what, over(&seen[2]).median, Bound::Least(0.95));
    println!();
}

async fn turn(client: &Arc<Contender>, name: Name, masters: &Masters) -> Rates {
    let (healthy, before) = rush(client, name, TASKS, TURN).await;
    masters[4].stop().expect("the master must stop");
    let (hung, after) = rush(client, name, TASKS, TURN).await;
    masters[4].cont().expect("the master must resume");
    let rate = |cycles: u64| cycles as f64 / TURN.as_secs_f64();
    Rates {
        healthy: rate(healthy),
        hung: rate(hung),
        failed: before + after,
    }
}
