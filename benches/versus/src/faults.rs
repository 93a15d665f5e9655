//! Measures how much slower locks are while a minority of the masters is stopped, dead or slow. Also measures how long
//! a client cannot acquire a lock after masters die or return.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quorate::Wait;
use quorate_testbed::measure::{Samples, Spread, number, quantile};
use quorate_testbed::table::{Table, ratio};
use quorate_testbed::{Fault, Injected, Masters, Proxy, Way};

use crate::contender::{Addresses, Contender, Name, builder_for};
use crate::goal::{Bound, print_goal};
use crate::hung;
use crate::versus::{alone, runtime};

/// Arguments of the subcommand `faults`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The number of rounds; in each round every implementation is measured once under every fault
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// The number of cycles that one client makes in each round for each fault; a cycle is an acquire and its release
    #[arg(long, default_value_t = 1500)]
    cycles: usize,
    /// Leave rslock out, because each of its acquisitions and releases waits half a second for a stopped master
    #[arg(long)]
    no_peer: bool,
}

const MASTERS: usize = 5;
const SLOW: Duration = Duration::from_millis(20);

/// A fault. The field is the number of affected masters: 1 means the fifth master, 2 the fourth and the fifth.
#[derive(Clone, Copy, PartialEq)]
enum MasterFault {
    Stopped(usize),
    Dead(usize),
    /// The proxies in front of the affected masters delay replies by 20 ms.
    Slow(usize),
}

impl MasterFault {
    const ALL: [Self; 6] = [
        Self::Stopped(1),
        Self::Stopped(2),
        Self::Dead(1),
        Self::Dead(2),
        Self::Slow(1),
        Self::Slow(2),
    ];

    fn label(self) -> String {
        match self {
            Self::Stopped(n) => format!("{n} stopped"),
            Self::Dead(n) => format!("{n} dead"),
            Self::Slow(n) => format!("{n} slow by 20 ms"),
        }
    }

    fn begin(self, masters: &Masters, proxies: &[Proxy]) -> Vec<Injected> {
        match self {
            Self::Stopped(n) => {
                for master in masters.iter().skip(MASTERS - n) {
                    master.stop().expect("the master must stop");
                }
            }
            Self::Dead(n) => {
                for master in masters.iter().skip(MASTERS - n) {
                    master.kill().expect("the master must die");
                }
            }
            Self::Slow(n) => {
                let slow = Fault::latency(Way::ToClient, SLOW);
                return proxies[..n]
                    .iter()
                    .map(|p| p.inject(slow.clone()))
                    .collect();
            }
        }
        Vec::new()
    }

    fn end(self, masters: &Masters) {
        match self {
            Self::Stopped(n) => {
                for master in masters.iter().skip(MASTERS - n) {
                    master.cont().expect("the master must resume");
                }
            }
            Self::Dead(n) => {
                for master in masters.iter().skip(MASTERS - n) {
                    master.restart().expect("the master must restart");
                    master.wait_ready().expect("the master must become ready");
                }
            }
            Self::Slow(_) => {}
        }
    }
}

struct Client {
    name: Name,
    direct: Arc<Contender>,
    proxied: Arc<Contender>,
}

pub(crate) fn run(args: &Args) {
    let masters =
        Masters::start(MASTERS).expect("the masters must start (is redis-server installed?)");
    let proxies: Vec<Proxy> = masters
        .iter()
        .skip(3)
        .map(|master| Proxy::start(master.addr()).expect("the proxy must start"))
        .collect();
    let runtime = runtime(false);
    let names: Vec<Name> = [Name::Classic, Name::Fenced, Name::Default, Name::Rslock]
        .into_iter()
        .filter(|name| !(args.no_peer && *name == Name::Rslock))
        .collect();
    let mut results = vec![vec![Vec::<Pair>::new(); MasterFault::ALL.len()]; names.len()];
    runtime.block_on(async {
        let direct_addresses = Addresses::direct(&masters);
        let mut proxied_addresses = direct_addresses.clone();
        for (index, proxy) in proxies.iter().enumerate() {
            proxied_addresses.urls[3 + index] = masters[3 + index].url_at(proxy.addr());
            proxied_addresses.sockets[3 + index] = proxy.addr();
        }
        let mut clients = Vec::new();
        for &name in &names {
            clients.push(Client {
                name,
                direct: Arc::new(Contender::connect(name, &direct_addresses).await),
                proxied: Arc::new(Contender::connect(name, &proxied_addresses).await),
            });
        }
        for _ in 0..args.rounds {
            for (fault_index, fault) in MasterFault::ALL.into_iter().enumerate() {
                for (client, client_results) in clients.iter().zip(&mut results) {
                    let client_path = match fault {
                        MasterFault::Slow(_) => &client.proxied,
                        _ => &client.direct,
                    };
                    let healthy = alone(client_path, client.name, args.cycles).await;
                    let injected = fault.begin(&masters, &proxies);
                    let is_slow = client.name == Name::Rslock;
                    let cycles = if is_slow { 4 } else { args.cycles };
                    let faulty = alone(client_path, client.name, cycles).await;
                    client_results[fault_index].push(Pair { healthy, faulty });
                    drop(injected);
                    fault.end(&masters);
                    // Give all clients time to reconnect and to deliver their pending releases.
                    tokio::time::sleep(Duration::from_millis(900)).await;
                }
            }
        }
    });
    println!(
        "{MASTERS} masters, {} interleaved rounds. Each round: {} cycles on healthy masters, then the same number \
         while a minority of the masters fails (rslock: 4). x = ratio to healthy masters, median [smallest-largest]",
        args.rounds, args.cycles
    );
    print_results(&names, &results);
    hung::run(&runtime, &masters, args.rounds);
    drop(proxies);
    drop(masters);
    measure_pauses(&runtime, args.rounds);
}

/// The measured cycles of one implementation. A cycle is an acquire and its release. `healthy` has the cycles just
/// before a fault. `faulty` has the cycles after the fault began.
#[derive(Clone)]
struct Pair {
    healthy: Samples,
    faulty: Samples,
}

fn print_results(names: &[Name], results: &[Vec<Vec<Pair>>]) {
    let mut goals = Vec::new();
    for (name, client_results) in names.iter().zip(results) {
        let (mut ratios_when_stopped, mut failed_in_all) = (None, 0);
        let heading = ["acquire p50 x", "us", "p99 x", "us", "slowest ms"];
        let release_heading = ["release p50 x", "us", "p99 x", "us", "failed"];
        let mut table = Table::new(
            [name.label()]
                .into_iter()
                .chain(heading)
                .chain(release_heading),
        );
        for (fault, pairs) in MasterFault::ALL.iter().zip(client_results) {
            let cells_of = |pick: fn(&Samples) -> &Vec<u64>, share: f64| {
                let value_of = |round: &Samples| quantile(pick(round), share) / 1e3;
                let ratios = pairs
                    .iter()
                    .map(|p| value_of(&p.faulty) / value_of(&p.healthy));
                let values = pairs.iter().map(|p| value_of(&p.faulty));
                [ratio(Spread::of(ratios)), number(Spread::of(values).median)]
            };
            let worst = pairs
                .iter()
                .filter_map(|pair| pair.faulty.acquire.last())
                .max();
            let failed: u64 = pairs.iter().map(|pair| pair.faulty.failed).sum();
            let median_ratio = |share: f64| {
                let value_of = |round: &Samples| quantile(&round.acquire, share);
                Spread::of(
                    pairs
                        .iter()
                        .map(|p| value_of(&p.faulty) / value_of(&p.healthy)),
                )
                .median
            };
            if *fault == MasterFault::Stopped(1) {
                ratios_when_stopped = Some((median_ratio(0.5), median_ratio(0.99)));
            }
            failed_in_all += failed;
            let mut row = vec![fault.label()];
            row.extend(cells_of(|r| &r.acquire, 0.5));
            row.extend(cells_of(|r| &r.acquire, 0.99));
            row.push(number(worst.map_or(f64::NAN, |ns| *ns as f64 / 1e6)));
            row.extend(cells_of(|r| &r.release, 0.5));
            row.extend(cells_of(|r| &r.release, 0.99));
            row.push(failed.to_string());
            table.row(row);
        }
        print!(
            "\n{}, while a minority of the masters fails\n{table}",
            name.label()
        );
        if *name != Name::Rslock {
            goals.extend(ratios_when_stopped.map(|ratios| (name.label(), ratios, failed_in_all)));
        }
    }
    println!();
    for (label, (p50, p99), failed_in_all) in goals {
        let description = format!(
            "{label}, acquire p50 with one of five masters stopped, ratio to five healthy masters"
        );
        print_goal(&description, p50, Bound::AtMost(1.2));
        let description = format!(
            "{label}, acquire p99 with one of five masters stopped, ratio to five healthy masters"
        );
        print_goal(&description, p99, Bound::AtMost(2.0));
        let description = format!("{label}, number of acquires that failed");
        print_goal(&description, failed_in_all as f64, Bound::AtMost(0.0));
    }
}

/// A function that changes the state of the masters.
type Event = fn(&Masters);

/// The events in the order in which they happen, each with its label in the table. Masters are not reset between two
/// events.
const EVENTS: [(&str, Event); 7] = [
    ("nothing happens", |_| {}),
    ("one of five dies", |m| {
        m[4].kill().expect("the master must die");
    }),
    ("a second dies", |m| {
        m[3].kill().expect("the master must die");
    }),
    ("one returns", |m| {
        m[4].restart().expect("the master must restart");
    }),
    ("the other returns", |m| {
        m[3].restart().expect("the master must restart");
    }),
    ("one is stopped", |m| {
        m[4].stop().expect("the master must stop");
    }),
    ("it goes on", |m| {
        m[4].cont().expect("the master must resume");
    }),
];

/// Lets one client acquire and release a lock in a loop while masters die and return. Measures the longest time from
/// one acquisition to the next.
fn measure_pauses(runtime: &tokio::runtime::Runtime, rounds: usize) {
    let masters = Arc::new(Masters::start(MASTERS).expect("the masters must start"));
    let mut pauses = vec![Vec::new(); EVENTS.len()];
    let mut recovery_times = Vec::new();
    runtime.block_on(async {
        for _ in 0..rounds {
            let client = builder_for(Name::Default, &masters.urls())
                .build()
                .expect("the settings must be valid");
            for ((_, event), event_pauses) in EVENTS.iter().zip(&mut pauses) {
                let pause = longest_pause(&client, &masters, *event).await;
                event_pauses.push(pause.as_secs_f64() * 1e3);
            }
        }
        for _ in 0..rounds {
            recovery_times.push(recovery_time(&masters).await.as_secs_f64() * 1e3);
        }
    });
    let mut table = Table::new(["quorate default", "pause ms", "of the rounds"]);
    let cells_of = |values: &[f64]| {
        let spread = Spread::of(values.iter().copied());
        let range = format!("[{}-{}]", number(spread.least), number(spread.most));
        [number(spread.median), range]
    };
    for ((label, _), values) in EVENTS.iter().zip(&pauses) {
        table.row([(*label).to_owned()].into_iter().chain(cells_of(values)));
    }
    let label =
        "3 of 5 masters killed, 1 restarted: time from its first PING reply to the next acquisition"
            .to_owned();
    table.row([label].into_iter().chain(cells_of(&recovery_times)));
    let title = "Time without service: the longest pause between two acquisitions of one client";
    print!("\n{title}\n{table}");
    println!();
    for (label, index) in [("dies", 1), ("returns", 4)] {
        let description = format!("longest pause in ms when one of five masters {label}");
        let pause = Spread::of(pauses[index].iter().copied()).median;
        print_goal(&description, pause, Bound::AtMost(100.0));
    }
}

/// Kills three of the five masters, so that no majority is left, and then restarts one of these three. Returns the time
/// from the moment when the restarted master answers PING until a waiting client has acquired the lock.
async fn recovery_time(masters: &Arc<Masters>) -> Duration {
    let client = builder_for(Name::Default, &masters.urls())
        .wait(Wait::Forever)
        .build()
        .expect("the settings must be valid");
    client
        .acquire("gap")
        .await
        .expect("healthy masters must grant the lock")
        .release()
        .await;
    for master in masters.iter().skip(2) {
        master.kill().expect("the master must die");
    }
    let waiter = tokio::spawn(async move {
        let guard = client
            .acquire("gap")
            .await
            .expect("the acquire must succeed, because it waits without a time limit");
        let served_at = Instant::now();
        guard.release().await;
        served_at
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    let restart = tokio::task::spawn_blocking({
        let masters = masters.clone();
        move || {
            masters[2].restart().expect("the master must restart");
            masters[2]
                .wait_ready()
                .expect("the master must become ready");
            Instant::now()
        }
    });
    let returned_at = restart.await.expect("the task must not panic");
    let served_at = waiter.await.expect("the task must not panic");
    for master in masters.iter().skip(3) {
        master.restart().expect("the master must restart");
        master.wait_ready().expect("the master must become ready");
    }
    served_at.saturating_duration_since(returned_at)
}

/// The longest time from one acquisition of this client to its next. The measurement begins 100 ms before `event` and
/// ends 900 ms after it.
async fn longest_pause(
    client: &quorate::Redlock,
    masters: &Arc<Masters>,
    event: Event,
) -> Duration {
    let is_over = Arc::new(AtomicBool::new(false));
    let worker = tokio::spawn({
        let (client, is_over) = (client.clone(), is_over.clone());
        async move {
            let mut last_acquired_at = Instant::now();
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                if let Ok(guard) = client.acquire("gap").await {
                    longest = longest.max(last_acquired_at.elapsed());
                    last_acquired_at = Instant::now();
                    guard.release().await;
                }
            }
            longest.max(last_acquired_at.elapsed())
        }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let masters = masters.clone();
    tokio::task::spawn_blocking(move || event(&masters))
        .await
        .expect("the task must not panic");
    tokio::time::sleep(Duration::from_millis(900)).await;
    is_over.store(true, Ordering::Relaxed);
    worker.await.expect("the task must not panic")
}
