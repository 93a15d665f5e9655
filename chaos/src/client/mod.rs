//! A client process: it locks, works under the locks, and writes down what it saw.

mod canary;
mod child;
mod hold;
mod starvation;
mod work;

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use quorate::{Redlock, RestartGuard, Wait};
use serde::{Deserialize, Serialize};

pub use child::main as child_main;

use crate::event::{Clock, Event, Line};
use crate::scenario::{Locker, Order as Waiting, Workload};

/// What a client says that was not run by the machine for a while.
pub const STALLED: &str = "stalled";

/// How many worker threads a client has; all of them are blocked when it starves.
const WORKERS: usize = 2;

/// How a client goes about masters that restarted; see [`RestartGuard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guarding {
    /// For a client that starts while masters may just have been restarted.
    On,
    /// For the first clients: their masters were started empty a moment ago, and nobody has held
    /// anything on them.
    AfterFirstContact,
    /// For scenarios that want to see it break.
    Off,
}

/// What a client needs to know; the first line on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Its name in the history.
    pub name: String,
    /// Where the time base begins.
    pub origin: u64,
    /// The masters, as this client can reach them.
    pub masters: Vec<String>,
    /// How it goes about restarted masters.
    pub guarding: Guarding,
    /// Who locks.
    pub locker: Locker,
    /// How waiters are ordered.
    pub waiting: Waiting,
    /// What it does.
    pub workloads: Vec<Workload>,
    /// How long a grant lasts.
    pub ttl: Duration,
    /// The longest ttl.
    pub max_ttl: Duration,
    /// How long it pauses between two attempts, at most.
    pub pause: Duration,
    /// Which share of the holds is about as long as the ttl, or longer.
    pub long: f64,
    /// Whether holds are renewed. A renewal puts back what a master has forgotten, often before
    /// anybody else comes for it; where a lock is to be seen broken, it must not.
    pub renewed: bool,
    /// How many locks the workload of many holds.
    pub many: usize,
    /// How long it holds each of them, about.
    pub many_hold: Duration,
    /// Where the shared files are.
    pub dir: PathBuf,
    /// The socket of the fenced register.
    pub register: PathBuf,
    /// The `quorate` program.
    pub quorate: Option<PathBuf>,
}

/// What a client can be told while it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Block all worker threads for this long.
    Starve(Duration),
    /// Drop futures and guards for this long.
    DropFutures(Duration),
    /// Finish and end.
    Finish,
}

/// What all tasks of a client share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    pub(crate) redlock: Redlock,
    ops: AtomicU64,
    finishing: AtomicBool,
    /// Until when futures are dropped, in nanoseconds of the run.
    drop_until: AtomicU64,
}

pub(crate) type Ctx = Arc<Shared>;

impl Shared {
    pub(crate) fn next_op(&self) -> u64 {
        self.ops.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn is_finishing(&self) -> bool {
        self.finishing.load(Ordering::Relaxed)
    }

    pub(crate) fn drops_futures(&self) -> bool {
        self.clock.now() < self.drop_until.load(Ordering::Relaxed)
    }

    /// Writes down something that happens now.
    pub(crate) fn note(&self, what: Event) {
        self.note_at(self.clock.now(), what);
    }

    /// Writes down something that happened at `t`.
    pub(crate) fn note_at(&self, t: u64, what: Event) {
        let who = self.settings.name.clone();
        let line = Line { t, who, what };
        let Ok(mut text) = serde_json::to_vec(&line) else {
            return;
        };
        text.push(b'\n');
        let since = self.clock.now();
        // One write a line: whoever kills us cuts off at most the last one.
        let mut out = std::io::stdout().lock();
        if out.write_all(&text).and_then(|()| out.flush()).is_err() {
            std::process::exit(1);
        }
        drop(out);
        // Whoever reads us was too busy, and so we stood still.
        let stood_still = self.clock.now() - since > starvation::LATE;
        if stood_still && !matches!(line.what, Event::Suffered { .. }) {
            let what = STALLED.to_owned();
            self.note(Event::Suffered { what, since });
        }
    }
}

/// The whole life of a client process.
///
/// # Errors
///
/// When it cannot begin.
pub fn main() -> anyhow::Result<()> {
    die_with_parent();
    let mut lines = BufReader::new(std::io::stdin()).lines();
    let settings = lines.next().context("no settings on standard input")??;
    let settings: Settings = serde_json::from_str(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()?;
    let _inside = runtime.enter();
    let ctx = Arc::new(Shared {
        clock: Clock::at(settings.origin),
        redlock: redlock(&settings)?,
        settings,
        ops: AtomicU64::new(0),
        finishing: AtomicBool::new(false),
        drop_until: AtomicU64::new(0),
    });
    let watcher = ctx.clone();
    thread::spawn(move || starvation::watch(&watcher));
    let (handle, listener) = (runtime.handle().clone(), ctx.clone());
    thread::spawn(move || {
        for line in lines {
            let Ok(line) = line else { break };
            if let Ok(order) = serde_json::from_str(&line) {
                obey(&order, &listener, &handle);
            }
        }
        // Whoever started us is gone.
        std::process::exit(1);
    });
    let task = runtime.spawn(live(ctx));
    runtime.block_on(task)?;
    Ok(())
}

/// A stopped client would not see that its input has ended; the kernel does.
fn die_with_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}

fn redlock(settings: &Settings) -> anyhow::Result<Redlock> {
    let builder = Redlock::builder()
        .masters(settings.masters.clone())
        .ttl(settings.ttl)
        .max_ttl(settings.max_ttl)
        // Twice the default: masters, proxies and clients share the machine.
        .node_timeout(settings.ttl / 10)
        .wait(Wait::For(Duration::from_secs(3)))
        .restart_guard(match settings.guarding {
            Guarding::On => RestartGuard::On,
            Guarding::AfterFirstContact => RestartGuard::AfterFirstContact,
            Guarding::Off => RestartGuard::Off,
        });
    let builder = match settings.waiting {
        Waiting::Fair if settings.locker != Locker::JumpsLine => builder.fair(),
        _ => builder.unordered(),
    };
    Ok(builder.build()?)
}

async fn live(ctx: Ctx) {
    if ctx.settings.guarding != Guarding::On {
        meet_all(&ctx).await;
    }
    let pid = std::process::id();
    ctx.note(Event::Ready { pid });
    work::all(&ctx).await;
    // Every release is on its way; bounded, because a master may be gone for good.
    let _ = tokio::time::timeout(Duration::from_secs(2), ctx.redlock.flush()).await;
    ctx.note(Event::Bye);
    std::process::exit(0);
}

/// Speaks to every master once, so that first contact lies before the first fault.
async fn meet_all(ctx: &Ctx) {
    for _ in 0..100 {
        if let Ok(status) = ctx.redlock.status("first-contact").await
            && status.nodes.iter().all(|node| node.state.is_ok())
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn obey(order: &Order, ctx: &Ctx, handle: &tokio::runtime::Handle) {
    let since = ctx.clock.now();
    let suffered = |what: &str| Event::Suffered {
        what: what.to_owned(),
        since,
    };
    match *order {
        Order::Finish => ctx.finishing.store(true, Ordering::Relaxed),
        Order::Starve(time) => {
            let blocked: Vec<_> = (0..WORKERS)
                .map(|_| handle.spawn(async move { thread::sleep(time) }))
                .collect();
            let (ctx, done) = (ctx.clone(), suffered("starved"));
            handle.spawn(async move {
                for task in blocked {
                    let _ = task.await;
                }
                ctx.note(done);
            });
        }
        Order::DropFutures(time) => {
            let until = since + time.as_nanos() as u64;
            ctx.drop_until.store(until, Ordering::Relaxed);
            let (ctx, done) = (ctx.clone(), suffered("dropped futures"));
            handle.spawn(async move {
                tokio::time::sleep(time).await;
                ctx.note(done);
            });
        }
    }
}
