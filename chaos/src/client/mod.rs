//! A client process: it acquires locks, works under them, and records what it sees.

mod attempt_spec;
mod child;
mod context;
mod files;
mod follower;
mod hold;
mod owners;
mod prizes;
mod readers;
mod settings;
mod starvation;
mod transfer;
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
use crate::workload::{Order, Workload};

/// The number of worker threads of a client process. The fault `client-starve` blocks all of them.
const WORKERS: usize = 2;

/// The number of tasks per client that each try to get a permit of the semaphore. It is chosen so that all clients
/// together want more permits than exist.
const PERMIT_TASKS: usize = 3;

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
    let _runtime_context = runtime.enter();
    let redlock = redlock(&settings)?;
    let ctx = Arc::new(Shared::new(settings, redlock));
    let watched_ctx = ctx.clone();
    thread::spawn(move || starvation::watch(&watched_ctx));
    let (runtime_handle, instructed_ctx) = (runtime.handle().clone(), ctx.clone());
    thread::spawn(move || {
        for line in lines {
            let Ok(line) = line else { break };
            if let Ok(instruction) = serde_json::from_str(&line) {
                follow_instruction(&instruction, &instructed_ctx, &runtime_handle);
            }
        }
        // The input is closed, so the main process of the run has ended.
        std::process::exit(1);
    });
    let client_task = runtime.spawn(run(ctx));
    runtime.block_on(client_task)?;
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
    let builder = locking::builder_over(&settings.masters)?
        .next_masters(&settings.next_masters)
        .masters_generation(settings.generation)
        .ttl(settings.ttl)
        .max_ttl(settings.max_ttl)
        // Masters, proxies and clients share one machine, so the timeout is longer than the default: 100 ms instead of
        // 50 ms with the default TTL of one second.
        .node_timeout(settings.ttl / 10)
        .connect_timeout(connect_timeout(settings.ttl))
        .wait(Wait::For(PATIENCE))
        .restart_guard(match settings.guarding {
            Guarding::On => RestartGuard::On,
            Guarding::AfterFirstContact => RestartGuard::AfterFirstContact,
            Guarding::Off => RestartGuard::Off,
        });
    let order = match settings.order {
        Order::Fair => quorate::Order::Fair,
        Order::Unordered => quorate::Order::Unordered,
    };
    Ok(builder.order(order).build()?)
}

/// The time for each step of a connect: the default of 500 ms with the default TTL of one second, and longer with a
/// longer TTL, as all timeouts of a run. A login to a database takes several round trips.
fn connect_timeout(ttl: Duration) -> Duration {
    (ttl / 2).max(Duration::from_millis(500))
}

async fn run(ctx: Ctx) {
    if ctx.settings.guarding != Guarding::On {
        contact_all_masters(&ctx).await;
    }
    let pid = std::process::id();
    ctx.record(Event::Ready { pid });
    run_workloads(&ctx).await;
    // Wait until the masters have confirmed the releases, but not for ever: a dead master never answers.
    let _ = tokio::time::timeout(Duration::from_secs(2), ctx.redlock.flush()).await;
    ctx.record(Event::Bye);
    std::process::exit(0);
}

/// Runs all workloads at the same time until the client is asked to finish.
async fn run_workloads(ctx: &Ctx) {
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
                    tasks.spawn(prizes::create_quotas(ctx.clone()));
                }
            }
            _ => {
                let resource = workload.name();
                let task_count = match workload {
                    Workload::Permits => PERMIT_TASKS,
                    _ => 1,
                };
                for _ in 0..task_count {
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
async fn contact_all_masters(ctx: &Ctx) {
    for _ in 0..100 {
        if let Ok(status) = ctx.redlock.status("first-contact").await
            && status.nodes.iter().all(|node| has_answered(&node.state))
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether the master answered. This is also true if clients ignore the votes of this master after its restart.
fn has_answered(status: &Result<KeyState, Fault>) -> bool {
    matches!(status, Ok(_) | Err(Fault::Quarantined(_)))
}

fn follow_instruction(
    instruction: &Instruction,
    ctx: &Ctx,
    runtime_handle: &tokio::runtime::Handle,
) {
    let since = ctx.clock.now();
    let suffered_event = |disturbance: &str| Event::Suffered {
        disturbance: disturbance.to_owned(),
        since,
    };
    match *instruction {
        Instruction::Finish => ctx.finish(),
        Instruction::Starve(time) => {
            let blocking_tasks: Vec<_> = (0..WORKERS)
                .map(|_| runtime_handle.spawn(async move { thread::sleep(time) }))
                .collect();
            let (ctx, end_event) = (ctx.clone(), suffered_event("starved"));
            runtime_handle.spawn(async move {
                for task in blocking_tasks {
                    let _ = task.await;
                }
                ctx.record(end_event);
            });
        }
        Instruction::DropFutures(time) => {
            let until = since + time.as_nanos() as u64;
            ctx.drop_futures_until(until);
            let (ctx, end_event) = (ctx.clone(), suffered_event("dropped futures"));
            runtime_handle.spawn(async move {
                tokio::time::sleep(time).await;
                ctx.record(end_event);
            });
        }
    }
}
