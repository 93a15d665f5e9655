//! `quorate demo`: shows a lock at work without any setup, while masters are killed.
//!
//! Eight workers sell ten prizes. To sell a prize, a worker reads the number of prizes left, waits, and writes this
//! number minus one. Without the lock, two workers could read the same number and sell the same prize. Progress is
//! printed on stderr, and the result on stdout.

mod stage;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use quorate::{AcquireError, LockGuard, Redlock};
use serde::Serialize;
use tokio::sync::{Mutex, Notify};

use crate::backends::{self, Backend};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::output::{self, Cell, GREEN, RED, human};
use crate::process::Signals;
use crate::{config, progress::Progress};
use stage::Stage;

/// The text below the options of `quorate demo --help`.
pub(crate) const AFTER_HELP: &str = "\
Eight workers sell ten prizes under one lock, while masters are killed and restarted.

The demo starts five masters on free ports. It uses the server that QUORATE_SERVER names, or redis-server or
valkey-server from the PATH. If there is no such server, the masters run in memory.

With --nodes, the demo starts one master for each kind in the list. If the server of a kind is not installed, this
master runs in memory, and a message says so.

At the end, the demo stops its masters. It changes nothing else and does not use QUORATE_MASTERS.

Examples:
    quorate demo
    quorate demo --nodes redis,redis,mysql

JSON fields (stable): masters (redis-server, valkey-server, mariadbd, zookeeper or memory; a list
separated by commas if they differ), prizes_sold, acquisitions, overlaps, stale_writes_refused,
fencing_tokens[], tokens_rising, longest_gap_ms, took_ms.";

/// The exit codes of `quorate demo`, with their meanings.
pub(crate) const CODES: [Meaning; 4] = [
    (
        "0",
        "ten prizes were sold, no two workers held the lock at the same time, and the fencing tokens increased",
    ),
    ("64", ""),
    (
        "70",
        "the result of the demo is wrong, or the masters could not be started",
    ),
    (
        "128+n",
        "signal number n ended the demo, and its masters were stopped",
    ),
];

const WORKERS: usize = 8;
const PRIZES: usize = 10;
const RESOURCE: &str = "demo:prizes";

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// The kind of each master, separated by commas [default: five redis]
    #[arg(
        long,
        value_name = "KIND,KIND,..",
        env = "QUORATE_NODES",
        value_delimiter = ',',
        value_parser = backends::parser()
    )]
    nodes: Option<Vec<&'static dyn Backend>>,

    /// Print the result as JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// The result of the demo, which is printed as a table or as JSON.
#[derive(Debug, Serialize)]
struct Summary {
    masters: String,
    #[serde(skip)]
    cast: String,
    prizes_sold: usize,
    acquisitions: usize,
    overlaps: usize,
    stale_writes_refused: usize,
    fencing_tokens: Vec<u64>,
    #[serde(skip)]
    workers: Vec<usize>,
    tokens_rising: bool,
    longest_gap_ms: u64,
    took_ms: u64,
}

/// The shop that all workers share. It has no lock of its own, only counters that detect errors.
struct Shop {
    /// The number of prizes left. Workers read it and write it in two separate steps.
    left: Mutex<usize>,
    inside: AtomicUsize,
    overlaps: AtomicUsize,
    acquisitions: AtomicUsize,
    refused: AtomicUsize,
    sales: Mutex<Vec<Sale>>,
    /// Two values:
    ///
    /// - when the last release of the lock began; `None` before the first release, and while a worker holds the lock
    /// - the longest time so far from the beginning of a release to the end of the next acquire
    gap: Mutex<(Option<Instant>, Duration)>,
    sold_one: Notify,
    started: Instant,
}

struct Sale {
    worker: usize,
    token: u64,
    at: Duration,
}

/// Runs the demo, and prints its result.
pub(crate) fn run(args: DemoArgs) -> CommandResult {
    let stage = Arc::new(Stage::set(args.nodes.as_deref())?);
    output::say(format!(
        "{}; {WORKERS} workers sell {PRIZES} prizes under one lock",
        stage.describe()
    ));
    let progress = Arc::new(Progress::new(PRIZES));
    let summary = config::block_on(async {
        let mut signals = Signals::receive().map_err(Failure::internal)?;
        tokio::select! {
            summary = sell_out(&stage, &progress) => summary,
            sig = signals.next_that_ends() => Err(Failure::cut_short(sig, "the demo was interrupted, and its masters were stopped")),
        }
    })?;
    progress.finish();
    if args.json {
        output::print_json(&summary)?;
    } else {
        output::print(&summary.table())?;
    }
    if summary.is_right() {
        Ok(exit::OK)
    } else {
        Err(Failure::internal(
            "the demo failed: quorate must never produce the result above; please report this bug",
        ))
    }
}

async fn sell_out(stage: &Arc<Stage>, progress: &Arc<Progress>) -> Result<Summary, Failure> {
    stage.prepare().await?;
    let shop = Arc::new(Shop::open());
    let mut workers = tokio::task::JoinSet::new();
    for worker in 1..=WORKERS {
        let redlock = stage.redlock()?;
        let (shop, progress) = (shop.clone(), progress.clone());
        workers.spawn(async move { work(worker, &redlock, &shop, &progress).await });
    }
    let faults = tokio::spawn(trouble(stage.clone(), shop.clone(), progress.clone()));
    while let Some(worker) = workers.join_next().await {
        worker.map_err(Failure::internal)??;
    }
    faults.await.map_err(Failure::internal)??;
    Ok(shop.close(stage).await)
}

/// Runs one worker: acquires the lock, sells a prize, and releases the lock, until no prize is left.
async fn work(
    worker: usize,
    redlock: &Redlock,
    shop: &Shop,
    progress: &Progress,
) -> Result<(), Failure> {
    loop {
        let guard = match redlock.acquire(RESOURCE).await {
            Ok(guard) => guard,
            // Too few masters voted for this worker in time: try again.
            Err(error @ (AcquireError::NoQuorum(_) | AcquireError::TooLate(_))) => {
                progress.line(&shop.stamp(&format!("worker {worker}: {}", error.details())));
                continue;
            }
            Err(error) => return Err(Failure::internal(error.details())),
        };
        let more = shop.sell(worker, &guard, progress).await;
        shop.gap.lock().await.0 = Some(Instant::now());
        guard.release().await;
        if !more {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5 + worker as u64)).await;
    }
}

/// Kills and restarts masters. Each event of the stage begins when `event.sold` prizes have been sold.
async fn trouble(
    stage: Arc<Stage>,
    shop: Arc<Shop>,
    progress: Arc<Progress>,
) -> Result<(), Failure> {
    for &event in stage.events() {
        while shop.sales.lock().await.len() < event.sold {
            // Check the number of sales again after at most 20 ms, in case a notification was missed.
            let notice = shop.sold_one.notified();
            let _ = tokio::time::timeout(Duration::from_millis(20), notice).await;
        }
        progress.line(&shop.stamp(&stage.words(event)));
        let stage = stage.clone();
        tokio::task::spawn_blocking(move || stage.happen(event))
            .await
            .map_err(Failure::internal)??;
    }
    Ok(())
}

impl Shop {
    fn open() -> Self {
        Self {
            left: Mutex::new(PRIZES),
            inside: AtomicUsize::new(0),
            overlaps: AtomicUsize::new(0),
            acquisitions: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            sales: Mutex::new(Vec::new()),
            gap: Mutex::new((None, Duration::ZERO)),
            sold_one: Notify::new(),
            started: Instant::now(),
        }
    }

    /// Sells one prize, if any is left: reads the number of prizes left, waits, and writes the new number. Returns
    /// false if no prize was left.
    async fn sell(&self, worker: usize, guard: &LockGuard, progress: &Progress) -> bool {
        self.acquisitions.fetch_add(1, Ordering::Relaxed);
        {
            let mut gap = self.gap.lock().await;
            if let Some(since) = gap.0.take() {
                gap.1 = gap.1.max(since.elapsed());
            }
        }
        if self.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            self.overlaps.fetch_add(1, Ordering::Relaxed);
        }
        let left = *self.left.lock().await;
        if left > 0 {
            tokio::time::sleep(Duration::from_millis(120 + 30 * worker as u64)).await;
            self.write(
                worker,
                guard.fencing_token().unwrap_or(0),
                left - 1,
                progress,
            )
            .await;
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        left > 0
    }

    /// Writes the number of prizes left. Refuses the write if a holder with a larger fencing token has already written.
    async fn write(&self, worker: usize, token: u64, left: usize, progress: &Progress) {
        let mut sales = self.sales.lock().await;
        if sales.last().is_some_and(|last| last.token >= token) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            progress.line(&self.stamp(&format!(
                "worker {worker}: write refused, because a later holder of the lock has already written"
            )));
            return;
        }
        *self.left.lock().await = left;
        sales.push(Sale {
            worker,
            token,
            at: self.started.elapsed(),
        });
        progress.advance(&self.stamp(&format!(
            "worker {worker} sold prize {} of {PRIZES} (fencing token {token})",
            sales.len()
        )));
        self.sold_one.notify_one();
    }

    fn stamp(&self, line: &str) -> String {
        format!("{:6.2}s  {line}", self.started.elapsed().as_secs_f64())
    }

    async fn close(&self, stage: &Stage) -> Summary {
        let sales = self.sales.lock().await;
        let tokens: Vec<u64> = sales.iter().map(|sale| sale.token).collect();
        Summary {
            masters: stage.kinds(),
            cast: stage.cast(),
            prizes_sold: sales.len(),
            acquisitions: self.acquisitions.load(Ordering::Relaxed),
            overlaps: self.overlaps.load(Ordering::Relaxed),
            stale_writes_refused: self.refused.load(Ordering::Relaxed),
            tokens_rising: tokens.is_sorted_by(|a, b| a < b),
            fencing_tokens: tokens,
            workers: sales.iter().map(|sale| sale.worker).collect(),
            longest_gap_ms: self.gap.lock().await.1.as_millis() as u64,
            took_ms: sales.last().map_or(0, |sale| sale.at.as_millis() as u64),
        }
    }
}

impl Summary {
    fn is_right(&self) -> bool {
        self.prizes_sold == PRIZES && self.overlaps == 0 && self.tokens_rising
    }

    fn table(&self) -> String {
        let ok = |right: bool, text: String| Cell::styled(text, if right { GREEN } else { RED });
        let ms = |ms| human(Duration::from_millis(ms));
        let mut rows: Vec<Vec<Cell>> = vec![
            vec!["masters".into(), self.cast.clone().into()],
            vec![
                "prizes sold".into(),
                ok(
                    self.prizes_sold == PRIZES,
                    format!("{} of {PRIZES}", self.prizes_sold),
                ),
            ],
            vec!["acquisitions".into(), self.acquisitions.to_string().into()],
            vec![
                "overlaps seen".into(),
                ok(self.overlaps == 0, self.overlaps.to_string()),
            ],
            vec![
                "stale writes refused".into(),
                self.stale_writes_refused.to_string().into(),
            ],
            vec![
                "fencing tokens".into(),
                ok(
                    self.tokens_rising,
                    if self.tokens_rising {
                        "increasing"
                    } else {
                        "NOT INCREASING"
                    }
                    .to_owned(),
                ),
            ],
        ];
        for (n, (token, worker)) in self.fencing_tokens.iter().zip(&self.workers).enumerate() {
            rows.push(vec![
                format!("  prize {}, worker {worker}", n + 1).into(),
                token.to_string().into(),
            ]);
        }
        rows.push(vec![
            "longest time without a holder of the lock".into(),
            ms(self.longest_gap_ms).into(),
        ]);
        rows.push(vec!["took".into(), ms(self.took_ms).into()]);
        output::table(&["RESULT", ""], &rows)
    }
}
