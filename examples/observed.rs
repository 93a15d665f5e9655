//! Observes the locks of a service: tracing on stderr, and metrics.
//!
//! `cargo run -p quorate --features testing,metrics --example observed`
//!
//! This example prints its metrics at the end. A service installs an exporter, for example
//! `metrics_exporter_prometheus` as in `examples/service/examples/axum.rs`.

use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use quorate::testing::Masters;
use quorate::{Redlock, TryAcquire};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Print all events of the library, including the debug events for each step of an acquire.
    let filter = Targets::new().with_target("quorate", LevelFilter::DEBUG);
    let printer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    tracing_subscriber::registry()
        .with(printer)
        .with(filter)
        .init();

    // Install the recorder before the first `Redlock` is built, so that every metric exists from the start.
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install()?;
    quorate::metrics::describe();

    let masters = Masters::new(3);
    let redlock = Redlock::builder().in_memory_on(&masters).build()?;
    let other_client = Redlock::builder().in_memory_on(&masters).build()?;
    let guard = redlock.acquire("report").await?;
    if let TryAcquire::Held(refusal) = other_client.try_acquire("report").await? {
        println!(
            "another client holds the lock, which expires within {:?} if nobody renews it",
            refusal.ttl_left
        );
    }
    guard.release().await;
    let unrenewed = redlock
        .lock("brief")
        .ttl(Duration::from_millis(300))
        .renewal(false);
    println!("{}", unrenewed.acquire().await?.lost().await);

    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        let labels: Vec<_> = key.labels().map(metrics::Label::value).collect();
        match value {
            DebugValue::Counter(count) if count > 0 => {
                println!("{} {}: {count}", key.name(), labels.join(" "));
            }
            _ => {}
        }
    }
    Ok(())
}
