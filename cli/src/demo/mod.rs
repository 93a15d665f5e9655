//! `quorate demo`: shows a lock at work without any setup, while masters are killed.
//!
//! Eight workers sell ten prizes. To sell a prize, a worker reads the number of prizes left, waits, and writes this
//! number minus one. Without the lock, two workers could read the same number and sell the same prize. Progress is
//! printed on stderr, and the result on stdout.

#[cfg(feature = "page")]
mod live;
mod masters;

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
use masters::DemoMasters;

/// The text below the options of `quorate demo --help`.
pub(crate) const AFTER_HELP: &str = "\
Eight workers sell ten prizes under one lock, while masters are killed and restarted.

The demo starts five masters on free ports. It uses the server that QUORATE_SERVER names, or redis-server or
valkey-server from the PATH. If there is no such server, the masters run in memory.

With --page, clients take locks of several kinds until Ctrl-C, and a browser shows them (quorate page --help).

With --nodes, the demo starts one master for each kind in the list. If the server of a kind is not installed, this
master runs in memory, and a message says so.

At the end, the demo stops its masters. It changes nothing else and does not use QUORATE_MASTERS.

Examples:
    quorate demo
    quorate demo --page
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

    /// Show locks of all kinds on a live page for a browser, until Ctrl-C, instead of selling prizes
    #[cfg(feature = "page")]
    #[arg(long, conflicts_with = "json")]
    page: bool,

    /// Print the result as JSON
    #[arg(long, env = "QUORATE_JSON", value_parser = clap::builder::BoolishValueParser::new())]
    json: bool,
}

/// The result of the demo, which is printed as a table or as JSON.
#[derive(Debug, Serialize)]
struct Summary {
    masters: String,
    #[serde(skip)]
    masters_text: String,
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
    remaining_prizes: Mutex<usize>,
    workers_inside: AtomicUsize,
    overlaps: AtomicUsize,
    acquisitions: AtomicUsize,
    refused_writes: AtomicUsize,
    sales: Mutex<Vec<Sale>>,
    gap: Mutex<Gap>,
    sale_notify: Notify,
    started_at: Instant,
}

/// The times without a holder of the lock.
#[derive(Default)]
struct Gap {
    /// When the last release of the lock began; `None` before the first release, and while a worker holds the lock.
    begun_at: Option<Instant>,
    /// The longest time so far from the beginning of a release to the end of the next acquire.
    longest: Duration,
}

struct Sale {
    worker: usize,
    token: u64,
    sold_after: Duration,
}

/// Runs the demo, and prints its result.
pub(crate) fn run(args: DemoArgs) -> CommandResult {
    let masters = Arc::new(DemoMasters::start(args.nodes.as_deref())?);
    #[cfg(feature = "page")]
    if args.page {
        output::print_message(masters.describe());
        return config::block_on(crate::process::interruptible(
            live::run(&masters),
            "the demo was interrupted, and its masters were stopped",
        ));
    }
    output::print_message(format!(
        "{}; {WORKERS} workers sell {PRIZES} prizes under one lock",
        masters.describe()
    ));
    let progress = Arc::new(Progress::of_sales(PRIZES));
    let summary = config::block_on(async {
        let mut signals = Signals::receive().map_err(Failure::internal)?;
        tokio::select! {
            summary = sell_all(&masters, &progress) => summary,
            sig = signals.next_ending_signal() => Err(Failure::interrupted(sig, "the demo was interrupted, and its masters were stopped")),
        }
    })?;
    progress.finish();
    if args.json {
        output::print_json(&summary)?;
    } else {
        output::print(&summary.table())?;
    }
    if summary.is_correct() {
        Ok(exit::OK)
    } else {
        Err(Failure::internal(
            "the demo failed: quorate must never produce the result above; please report this bug",
        ))
    }
}

async fn sell_all(
    masters: &Arc<DemoMasters>,
    progress: &Arc<Progress>,
) -> Result<Summary, Failure> {
    masters.prepare().await?;
    let shop = Arc::new(Shop::new());
    let mut workers = tokio::task::JoinSet::new();
    for worker in 1..=WORKERS {
        let redlock = masters.redlock()?;
        let (shop, progress) = (shop.clone(), progress.clone());
        workers.spawn(async move { run_worker(worker, &redlock, &shop, &progress).await });
    }
    let faults = tokio::spawn(cause_faults(
        masters.clone(),
        shop.clone(),
        progress.clone(),
    ));
    while let Some(worker) = workers.join_next().await {
        worker.map_err(Failure::internal)??;
    }
    faults.await.map_err(Failure::internal)??;
    Ok(shop.summarize(masters).await)
}

/// Runs one worker: acquires the lock, sells a prize, and releases the lock, until no prize is left.
async fn run_worker(
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
                progress.print_message(
                    &shop.with_time(&format!("worker {worker}: {}", error.details())),
                );
                continue;
            }
            Err(error) => return Err(Failure::internal(error.details())),
        };
        let is_any_left = shop.sell(worker, &guard, progress).await;
        shop.gap.lock().await.begun_at = Some(Instant::now());
        guard.release().await;
        if !is_any_left {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(5 + worker as u64)).await;
    }
}

/// Kills and restarts masters. Each event of the stage begins when `event.sold` prizes have been sold.
async fn cause_faults(
    masters: Arc<DemoMasters>,
    shop: Arc<Shop>,
    progress: Arc<Progress>,
) -> Result<(), Failure> {
    for &event in masters.events() {
        while shop.sales.lock().await.len() < event.sales_before {
            // Check the number of sales again after at most 20 ms, in case a notification was missed.
            let notice = shop.sale_notify.notified();
            let _ = tokio::time::timeout(Duration::from_millis(20), notice).await;
        }
        progress.print_message(&shop.with_time(&masters.event_text(event)));
        let masters = masters.clone();
        tokio::task::spawn_blocking(move || masters.cause(event))
            .await
            .map_err(Failure::internal)??;
    }
    Ok(())
}

impl Shop {
    fn new() -> Self {
        Self {
            remaining_prizes: Mutex::new(PRIZES),
            workers_inside: AtomicUsize::new(0),
            overlaps: AtomicUsize::new(0),
            acquisitions: AtomicUsize::new(0),
            refused_writes: AtomicUsize::new(0),
            sales: Mutex::new(Vec::new()),
            gap: Mutex::default(),
            sale_notify: Notify::new(),
            started_at: Instant::now(),
        }
    }

    /// Sells one prize, if any is left: reads the number of prizes left, waits, and writes the new number. Returns
    /// false if no prize was left.
    async fn sell(&self, worker: usize, guard: &LockGuard, progress: &Progress) -> bool {
        self.acquisitions.fetch_add(1, Ordering::Relaxed);
        {
            let mut gap = self.gap.lock().await;
            if let Some(since) = gap.begun_at.take() {
                gap.longest = gap.longest.max(since.elapsed());
            }
        }
        if self.workers_inside.fetch_add(1, Ordering::SeqCst) > 0 {
            self.overlaps.fetch_add(1, Ordering::Relaxed);
        }
        let remaining_prizes = *self.remaining_prizes.lock().await;
        if remaining_prizes > 0 {
            tokio::time::sleep(Duration::from_millis(120 + 30 * worker as u64)).await;
            self.write_sale(
                worker,
                guard.fencing_token().unwrap_or(0),
                remaining_prizes - 1,
                progress,
            )
            .await;
        }
        self.workers_inside.fetch_sub(1, Ordering::SeqCst);
        remaining_prizes > 0
    }

    /// Writes the number of prizes left. Refuses the write if a holder with a larger fencing token has already written.
    async fn write_sale(
        &self,
        worker: usize,
        token: u64,
        remaining_prizes: usize,
        progress: &Progress,
    ) {
        let mut sales = self.sales.lock().await;
        if sales.last().is_some_and(|last| last.token >= token) {
            self.refused_writes.fetch_add(1, Ordering::Relaxed);
            progress.print_message(&self.with_time(&format!(
                "worker {worker}: write refused, because a later holder of the lock has already written"
            )));
            return;
        }
        *self.remaining_prizes.lock().await = remaining_prizes;
        sales.push(Sale {
            worker,
            token,
            sold_after: self.started_at.elapsed(),
        });
        progress.advance(&self.with_time(&format!(
            "worker {worker} sold prize {} of {PRIZES} (fencing token {token})",
            sales.len()
        )));
        self.sale_notify.notify_one();
    }

    fn with_time(&self, text: &str) -> String {
        format!("{:6.2}s  {text}", self.started_at.elapsed().as_secs_f64())
    }

    async fn summarize(&self, masters: &DemoMasters) -> Summary {
        let sales = self.sales.lock().await;
        let tokens: Vec<u64> = sales.iter().map(|sale| sale.token).collect();
        Summary {
            masters: masters.kinds(),
            masters_text: masters.masters_text(),
            prizes_sold: sales.len(),
            acquisitions: self.acquisitions.load(Ordering::Relaxed),
            overlaps: self.overlaps.load(Ordering::Relaxed),
            stale_writes_refused: self.refused_writes.load(Ordering::Relaxed),
            tokens_rising: tokens.is_sorted_by(|a, b| a < b),
            fencing_tokens: tokens,
            workers: sales.iter().map(|sale| sale.worker).collect(),
            longest_gap_ms: self.gap.lock().await.longest.as_millis() as u64,
            took_ms: sales
                .last()
                .map_or(0, |sale| sale.sold_after.as_millis() as u64),
        }
    }
}

impl Summary {
    fn is_correct(&self) -> bool {
        self.prizes_sold == PRIZES && self.overlaps == 0 && self.tokens_rising
    }

    fn table(&self) -> String {
        let coloured = |is_correct: bool, text: String| {
            Cell::styled(text, if is_correct { GREEN } else { RED })
        };
        let ms = |ms| human(Duration::from_millis(ms));
        let mut rows: Vec<Vec<Cell>> = vec![
            vec!["masters".into(), self.masters_text.clone().into()],
            vec![
                "prizes sold".into(),
                coloured(
                    self.prizes_sold == PRIZES,
                    format!("{} of {PRIZES}", self.prizes_sold),
                ),
            ],
            vec!["acquisitions".into(), self.acquisitions.to_string().into()],
            vec![
                "overlaps seen".into(),
                coloured(self.overlaps == 0, self.overlaps.to_string()),
            ],
            vec![
                "stale writes refused".into(),
                self.stale_writes_refused.to_string().into(),
            ],
            vec![
                "fencing tokens".into(),
                coloured(
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
