//! Tests that the client needs only a limited amount of memory for requests to a master that does not answer.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::time::Instant;

use crate::support::{PATIENCE, ask_server, eventually, masters, ms, secs, settings};
use quorate::node::Answer;
use quorate_contract::requests::{self, ReplyCollector, claim, send, status};

/// The resident memory of this process, in kilobytes.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let digits = line.and_then(|line| line.split_whitespace().nth(1));
    digits.expect("a number").parse().expect("a number")
}

#[test]
fn requests_to_a_stopped_master_do_not_increase_memory_use() {
    let program = std::env::current_exe().expect("this program");
    let child_output = Command::new(program)
        .args([
            "memory::child_process_measures_its_memory_while_a_master_is_stopped",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD_VARIABLE, "1")
        .output()
        .expect("it runs");
    let child_text = String::from_utf8_lossy(&child_output.stdout);
    assert!(
        child_text.contains("grown by") && child_text.contains("1 passed"),
        "{child_text:?}"
    );
}

/// This environment variable is set only in the child process, which runs the same test program.
const CHILD_VARIABLE: &str = "QUORATE_TEST_MEMORY";

/// Not a test by itself. Another test runs it in a child process, so that it does not measure the memory of other
/// tests.
#[tokio::test]
async fn child_process_measures_its_memory_while_a_master_is_stopped() {
    if std::env::var_os(CHILD_VARIABLE).is_none() {
        return;
    }
    let masters = masters(1);
    let settings = settings([""; 0]).node_timeout(ms(100));
    let node =
        quorate::testing::connect(&masters[0].url(), &settings).expect("the address must be valid");
    send(&*node, status(b"warm"))
        .await
        .expect("the master must answer");
    masters[0].stop().expect("stopped");
    let bytes_before = resident_kib();
    let mut replies = ReplyCollector::new();
    for round in 0..100 {
        let mut claims = Vec::new();
        for n in 0..1000 {
            let claim = claim(format!("job {round} {n}").as_bytes(), 1);
            replies.send(&*node, n, requests::acquire(&claim, secs(30), 0));
            claims.push(claim);
        }
        tokio::task::yield_now().await;
        for claim in &claims {
            claim.withdraw();
            replies.send(&*node, 0, requests::release(claim));
        }
        for (_, output) in replies.collect(2000).await {
            assert!(output.is_err(), "{output:?}");
        }
    }
    let growth = resident_kib().saturating_sub(bytes_before);
    println!("grown by {growth} kB");
    // If the client kept all 200,000 requests of this test in memory, it would need far more than 40 MB.
    assert!(
        growth < 40_000,
        "the memory must grow by less than 40 MB, but grew by {growth} kB"
    );
    masters[0].cont().expect("continued");
    let started_at = Instant::now();
    while !matches!(send(&*node, status(b"warm")).await, Ok(Answer::State(_))) {
        assert!(
            started_at.elapsed() < PATIENCE,
            "the master must answer again when it continues"
        );
        tokio::time::sleep(ms(10)).await;
    }
    eventually("no master may have a key left", || {
        let keys = ask_server(&masters[0], &["KEYS", "job*"]);
        keys == quorate_testbed::Reply::Array(Vec::new())
    })
    .await;
}
