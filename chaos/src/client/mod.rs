//! A client process: it acquires locks, works under them, and records what it sees.

mod child;
mod context;
mod files;
mod follower;
mod hold;
mod known_bad;
mod owners;
mod prizes;
mod readers;
mod settings;
mod starvation;
mod transfer;
mod wanted;
mod work;

use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use quorate::{Fault, KeyState, Redlock, RestartGuard, Wait};

pub use child::main as child_main;
pub use settings::{Guarding, Instruction, Settings};

use context::{Ctx, Shared};
use settings::PATIENCE;

use crate::event::Event;
use crate::locking;
use crate::workload::{Locker, Order, Workload};

/// The number of worker threads of a client process. The fault `client-starve` blocks all of them.
const WORKERS: usize = 2;

/// The number of tasks per client that each try to get a permit of the semaphore. It is chosen so that all clients
/// together want more permits than exist.
const PERMITTED: usize = 3;

/// The main function of a client process.
///
/// # Errors
///
/// If the client process cannot start.
pub fn main() -> anyhow::Result<()> {
    die_with_parent();
    let mut lines = BufReader::new(std::io::stdin()).lines();
    let settings = lines
        .next()
        .context("the client got no settings on its standard input")??;
    let settings: Settings = serde_json::from_str(&settings)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build()?;
    let _inside = runtime.enter();
    let redlock = redlock(&settings)?;
    let ctx = Arc::new(Shared::new(settings, redlock));
    let watcher = ctx.clone();
    thread::spawn(move || starvation::watch(&watcher));
    let (handle, listener) = (runtime.handle().clone(), ctx.clone());
    thread::spawn(move || {
        for line in lines {
            let Ok(line) = line else { break };
            if let Ok(told) = serde_json::from_str(&line) {
                obey(&told, &listener, &handle);
            }
        }
        // The input is closed, so the main process of the run has ended.
        std::process::exit(1);
    });
    let task = runtime.spawn(live(ctx));
    runtime.block_on(task)?;
    Ok(())
}

/// Makes the kernel kill this client when its parent dies. Otherwise a client that is stopped (SIGSTOP) would remain,
/// because it cannot notice that its input was closed.
fn die_with_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}

fn redlock(settings: &Settings) -> anyhow::Result<Redlock> {
    let builder = locking::over(&settings.masters)?
        .next_masters(&settings.next_masters)
        .masters_generation(settings.generation)
        .ttl(settings.ttl)
        .max_ttl(settings.max_ttl)
        // Masters, proxies and clients share one machine, so the timeout is longer than the default: 100 ms instead of
        // 50 ms with the default TTL of one second.
        .node_timeout(settings.ttl / 10)
        .wait(Wait::For(PATIENCE))
        .restart_guard(match settings.guarding {
            Guarding::On => RestartGuard::On,
            Guarding::AfterFirstContact => RestartGuard::AfterFirstContact,
            Guarding::Off => RestartGuard::Off,
        });
    let builder = match settings.waiting {
        Order::Fair if settings.locker != Locker::JumpsLine => builder.order(quorate::Order::Fair),
        _ => builder.order(quorate::Order::Unordered),
    };
    Ok(builder.build()?)
}

async fn live(ctx: Ctx) {
    if ctx.settings.guarding != Guarding::On {
        meet_all(&ctx).await;
    }
    let pid = std::process::id();
    ctx.note(Event::Ready { pid });
    work_all(&ctx).await;
    // Wait until the masters have confirmed the releases, but not for ever: a dead master never answers.
    let _ = tokio::time::timeout(Duration::from_secs(2), ctx.redlock.flush()).await;
    ctx.note(Event::Bye);
    std::process::exit(0);
}

/// Runs all workloads at the same time until the client is asked to finish.
async fn work_all(ctx: &Ctx) {
    let mut tasks = tokio::task::JoinSet::new();
    for workload in ctx.settings.workloads.clone() {
        match workload {
            Workload::Many => {
                // A restarted client uses the same lock names as before: without the number after the dot in its own
                // name. New lock names would leave fencing counters on the masters for a day.
                let name = ctx.settings.name.split('.').next().unwrap_or_default();
                for number in 0..ctx.settings.many {
                    let resource = format!("many-{name}-{number}");
                    tasks.spawn(work::repeat(ctx.clone(), workload, resource));
                }
            }
            Workload::Run => {
                tasks.spawn(child::repeat(ctx.clone()));
            }
            Workload::Prizes => {
                tasks.spawn(prizes::repeat(ctx.clone()));
                if ctx.settings.name.split('.').next() == Some("c1") {
                    tasks.spawn(prizes::operate(ctx.clone()));
                }
            }
            _ => {
                let resource = workload.name();
                let side_by_side = match workload {
                    Workload::Permits => PERMITTED,
                    _ => 1,
                };
                for _ in 0..side_by_side {
                    tasks.spawn(work::repeat(ctx.clone(), workload, resource.to_owned()));
                }
                if workload == Workload::Leader {
                    tasks.spawn(follower::repeat(ctx.clone()));
                }
            }
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Waits until every master has answered a request of this client. Gives up after 100 requests.
async fn meet_all(ctx: &Ctx) {
    for _ in 0..100 {
        if let Ok(status) = ctx.redlock.status("first-contact").await
            && status.nodes.iter().all(|node| is_met(&node.state))
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether the master answered. This is also true if clients ignore the votes of this master after its restart.
fn is_met(said: &Result<KeyState, Fault>) -> bool {
    matches!(said, Ok(_) | Err(Fault::Quarantined(_)))
}

fn obey(told: &Instruction, ctx: &Ctx, handle: &tokio::runtime::Handle) {
    let since = ctx.clock.now();
    let suffered = |what: &str| Event::Suffered {
        what: what.to_owned(),
        since,
    };
    match *told {
        Instruction::Finish => ctx.finish(),
        Instruction::Starve(time) => {
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
        Instruction::DropFutures(time) => {
            let until = since + time.as_nanos() as u64;
            ctx.drop_futures_until(until);
            let (ctx, done) = (ctx.clone(), suffered("dropped futures"));
            handle.spawn(async move {
                tokio::time::sleep(time).await;
                ctx.note(done);
            });
        }
    }
}
