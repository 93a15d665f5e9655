//! One of five masters stopped (SIGSTOP): acquire and release against the healthy cluster, in
//! alternating rounds of one run. `cargo bench -p quorate --bench stopped`

use std::time::{Duration, Instant};

use quorate::{Redlock, RestartGuard};
use quorate_testbed::Masters;

const ROUNDS: usize = 9;
const CYCLES: usize = 400;

fn main() {
    if std::env::args().any(|arg| arg == "--test") {
        return; // `cargo test --benches` only builds it.
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let masters = Masters::start(5).expect("five masters (is redis-server installed?)");
        let redlock = Redlock::builder()
            .masters(masters.urls())
            .restart_guard(RestartGuard::Off)
            .build()
            .expect("good settings");
        redlock
            .acquire("warm-up")
            .await
            .expect("a quorum")
            .release()
            .await;
        let (mut healthy, mut stopped) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            healthy.push(round(&redlock).await);
            masters[4].stop().expect("stopped");
            stopped.push(round(&redlock).await);
            masters[4].cont().expect("continued");
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        println!(
            "{:10} {:>12} {:>12} {:>8}",
            "", "healthy us", "stopped us", "ratio"
        );
        for (name, pick) in [
            ("acquire p50", 0),
            ("acquire p99", 1),
            ("release p50", 2),
            ("release p99", 3),
        ] {
            let (before, after) = (median(&healthy, pick), median(&stopped, pick));
            println!(
                "{name:10} {before:>12.1} {after:>12.1} {:>8.2}",
                after / before
            );
        }
    });
}

/// p50 and p99 of acquire and release, in microseconds.
async fn round(redlock: &Redlock) -> [f64; 4] {
    let (mut acquires, mut releases) = (Vec::new(), Vec::new());
    for _ in 0..CYCLES {
        let began = Instant::now();
        let guard = redlock.acquire("stopped").await.expect("a quorum");
        acquires.push(began.elapsed());
        let began = Instant::now();
        guard.release().await;
        releases.push(began.elapsed());
    }
    let share = |times: &mut Vec<Duration>, share: f64| {
        times.sort_unstable();
        times[(times.len() as f64 * share) as usize].as_secs_f64() * 1e6
    };
    [
        share(&mut acquires, 0.5),
        share(&mut acquires, 0.99),
        share(&mut releases, 0.5),
        share(&mut releases, 0.99),
    ]
}

fn median(rounds: &[[f64; 4]], pick: usize) -> f64 {
    let mut values: Vec<f64> = rounds.iter().map(|round| round[pick]).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
