//! Runs the recipe for `tokio-cron-scheduler` of `docs/schedulers.md`: three schedulers, as in three replicas.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quorate::testing::Masters;
use quorate::{OnceOutcome, Redlock};
use tokio_cron_scheduler::{Job, JobScheduler};

/// The number of times the job ran.
static RUNS: AtomicUsize = AtomicUsize::new(0);

async fn send_report() {
    tokio::task::yield_now().await;
    RUNS.fetch_add(1, Ordering::Relaxed);
}

// BEGIN of the recipe
/// Adds the job to the scheduler of this replica. `expression` must start it in the middle of each period.
async fn add_report(
    scheduler: &JobScheduler,
    redlock: Redlock,
    expression: &str,
    period: Duration,
) -> Result<(), Box<dyn Error>> {
    let report = Arc::new(redlock.once("report", period));
    let job = Job::new_async(expression, move |_id, _scheduler| {
        let report = Arc::clone(&report);
        Box::pin(async move {
            match report.at_most_once(async |_turn| send_report().await).await {
                Ok(OnceOutcome::AlreadyDone { .. }) => {} // another replica has run it
                Ok(_) => println!("this replica has run the report"),
                Err(error) => eprintln!("the report did not run here: {error}"),
            }
        })
    })?;
    scheduler.add(job).await?;
    Ok(())
}
// END of the recipe

/// Each firing is in the middle of a period of ten seconds: only a stall of five seconds could move it into the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_firing_runs_the_job_in_only_one_of_three_replicas() {
    let masters = Masters::new(3);
    let redlock = || {
        let builder = Redlock::builder().in_memory_on(&masters);
        builder.build().expect("the settings must be valid")
    };
    let period = Duration::from_secs(10);
    let created = redlock().once("report", period).create().await;
    created.expect("the record must be created");
    let mut schedulers = Vec::new();
    for _ in 0..3 {
        let scheduler = JobScheduler::new().await.expect("a scheduler");
        let added = add_report(&scheduler, redlock(), "5/10 * * * * *", period).await;
        added.expect("the job must be added");
        scheduler.start().await.expect("the scheduler must start");
        schedulers.push(scheduler);
    }
    // The first firing comes within ten seconds.
    let first_run = async {
        while RUNS.load(Ordering::Relaxed) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), first_run).await;
    waited.expect("a replica must run the job");
    // Wait for all schedulers of this firing. The next one comes ten seconds later.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(RUNS.load(Ordering::Relaxed), 1, "three replicas, one run");
    for scheduler in &mut schedulers {
        scheduler.shutdown().await.expect("the scheduler must stop");
    }
}

#[test]
fn page_has_the_code_that_runs_here() {
    let (_, rest) = include_str!("cron.rs")
        .split_once("// BEGIN of the recipe\n")
        .expect("the beginning of the recipe");
    let (code, _) = rest
        .split_once("// END of the recipe\n")
        .expect("the end of the recipe");
    let page = include_str!("../../../docs/schedulers.md");
    assert!(page.contains(code), "docs/schedulers.md has another text");
}
