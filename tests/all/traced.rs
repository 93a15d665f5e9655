//! Tests of the events that the library traces when a lock is lost.

use std::sync::Arc;
use std::time::Duration;

use crate::support::stubborn::Stubborn;
use crate::support::stubborn::Treatment::Fails;
use crate::support::{self, PATIENCE, ms, take};
use quorate::node::Node;
use quorate::testing::Masters;
use quorate::{Fault, LossCause, Redlock};

/// The number of warnings with this text among the traced events in `trace`.
fn count_warnings(trace: &str, text: &str) -> usize {
    let lines = trace.lines().filter(|line| line.contains(text));
    lines.filter(|line| line.contains("level=WARN")).count()
}

#[tokio::test]
async fn master_whose_connection_breaks_again_and_again_causes_few_warnings() {
    let masters = support::masters(3);
    let listener = support::listener::Listener::default();
    let _listening = listener.listen();
    let redlock = support::settings(masters.urls())
        .build()
        .expect("good settings");
    let mut lost_connection_count = 0;
    for _ in 0..500 {
        take(&redlock, "job").await.release().await;
        for kind in ["normal", "pubsub"] {
            let reply = masters[0].command(&["CLIENT", "KILL", "TYPE", kind]);
            reply.expect("alive");
        }
        tokio::time::sleep(ms(20)).await;
        lost_connection_count = listener.output().matches("connection lost").count();
        if lost_connection_count >= 10 {
            break;
        }
    }
    assert!(lost_connection_count >= 10, "{lost_connection_count}");
    let trace = listener.output();
    assert!(
        count_warnings(&trace, "connection lost") <= 4,
        "1 to 4 of the {lost_connection_count} lost connections must cause a warning: {trace}"
    );
    assert!(
        count_warnings(&trace, "connection lost") >= 1,
        "1 to 4 of the {lost_connection_count} lost connections must cause a warning: {trace}"
    );
}

#[tokio::test]
async fn master_that_refuses_the_configuration_of_the_client_causes_a_warning() {
    let masters = support::masters(3);
    let listener = support::listener::Listener::default();
    let _listening = listener.listen();
    let settings = support::settings(masters.urls());
    // The marker of a client whose configuration is one generation newer.
    let mark = quorate::testing::mark(&settings.clone().masters_generation(1), 4);
    let mark = mark.expect("the generation must have this marker");
    for master in &masters {
        support::ask_server(master, &["SET", "quorate:masters", &mark]);
    }
    let redlock = settings.build().expect("good settings");
    let refused = redlock.try_acquire("job").await;
    assert!(refused.is_err(), "{refused:?}");
    let trace = listener.output();
    let text = "master refuses this client's configuration";
    assert!(count_warnings(&trace, text) >= 1, "{trace}");
}

/// Switches two of three masters off while a lock is held. Returns the events that were traced until the holder was
/// notified of the loss.
async fn trace_of_lock_lost_without_majority() -> String {
    let listener = support::listener::Listener::default();
    let _listening = listener.listen();
    let nodes = ["a", "b", "c"].map(Stubborn::honest);
    let dyn_nodes = nodes.iter().map(|node| node.clone() as Arc<dyn Node>);
    let redlock = Redlock::builder().nodes(dyn_nodes.collect()).ttl(ms(900));
    let redlock = redlock.build().expect("good settings");
    let guard = take(&redlock, "job").await;
    for node in &nodes[..2] {
        node.set_rule(|_| Fails(Fault::Down("switched off".into()), Duration::ZERO));
    }
    let lost_result = tokio::time::timeout(PATIENCE, guard.lost()).await;
    assert_eq!(lost_result, Ok(LossCause::Expired));
    listener.output()
}

#[tokio::test]
async fn repeated_renewals_without_a_majority_cause_only_one_warning() {
    let trace = trace_of_lock_lost_without_majority().await;
    assert!(
        trace.matches("no majority for a renewal").count() > 1,
        "{trace}"
    );
    assert_eq!(
        count_warnings(&trace, "no majority for a renewal"),
        1,
        "{trace}"
    );
}

#[tokio::test]
async fn loss_of_a_lock_is_traced_with_each_masters_answer() {
    let trace = trace_of_lock_lost_without_majority().await;
    let mut lines = trace.lines();
    let names_the_fault = lines
        .any(|line| line.contains("no majority for a renewal") && line.contains("switched off"));
    assert!(names_the_fault, "{trace}");
}

#[tokio::test]
async fn renewal_that_restores_a_lock_key_is_traced() {
    let listener = support::listener::Listener::default();
    let _listening = listener.listen();
    let masters = Masters::new(3);
    let redlock = Redlock::builder().in_memory_on(&masters).ttl(ms(900));
    let redlock = redlock.build().expect("good settings");
    let _guard = take(&redlock, "job").await;
    let forgetful = masters.iter().next().expect("three masters");
    forgetful.forget();
    let is_traced = || listener.output().contains("missing key restored");
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !is_traced() && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(ms(20)).await;
    }
    let trace = listener.output();
    assert!(is_traced(), "{trace}");
    // The other masters have kept the key. The renewals before the loss have restored nothing.
    let restored_lines = trace
        .lines()
        .filter(|line| line.contains("missing key restored"));
    let restored_on_first = restored_lines
        .clone()
        .filter(|line| line.contains("node=0"));
    assert_eq!(
        (restored_lines.count(), restored_on_first.count()),
        (1, 1),
        "{trace}"
    );
}
