//! What the metrics say of acquires, holds, losses, waiters and masters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use quorate::node::memory::{MemoryNode, Mode};
use quorate::node::{Node, NodeName, Reply, Request};
use quorate::runtime::BoxFuture;
use quorate::{Redlock, Wait};

type Seen = BTreeMap<String, DebugValue>;

/// Everything that was recorded meanwhile, by name and labels.
fn recorded(scene: impl AsyncFnOnce()) -> Seen {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    metrics::with_local_recorder(&recorder, || {
        quorate::metrics::describe();
        runtime.block_on(scene());
    });
    let all = snapshotter.snapshot().into_vec();
    all.into_iter()
        .map(|(key, _, _, value)| {
            let key = key.key();
            let mut labels: Vec<String> = key
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            labels.sort();
            (format!("{}{{{}}}", key.name(), labels.join(",")), value)
        })
        .collect()
}

fn counter(seen: &Seen, name: &str) -> u64 {
    match seen.get(name) {
        Some(DebugValue::Counter(count)) => *count,
        None => 0,
        other => panic!("{name} is {other:?}"),
    }
}

fn gauge(seen: &Seen, name: &str) -> f64 {
    match seen.get(name) {
        Some(DebugValue::Gauge(value)) => **value,
        other => panic!("{name} is {other:?}"),
    }
}

fn samples(seen: &Seen, name: &str) -> Vec<f64> {
    match seen.get(name) {
        Some(DebugValue::Histogram(values)) => values.iter().map(|value| **value).collect(),
        None => Vec::new(),
        other => panic!("{name} is {other:?}"),
    }
}

fn redlock(nodes: &[MemoryNode]) -> Redlock {
    let nodes = nodes
        .iter()
        .map(|node| Arc::new(node.clone()) as Arc<dyn Node>);
    Redlock::builder()
        .nodes(nodes.collect())
        .ttl(Duration::from_millis(900))
        .wait(Wait::For(Duration::from_millis(200)))
        .build()
        .expect("good settings")
}

fn masters() -> Vec<MemoryNode> {
    (1..=3).map(|n| MemoryNode::new(&format!("m{n}"))).collect()
}

#[test]
fn a_lock_that_is_taken_and_returned_is_counted_once() {
    let seen = recorded(async || {
        let nodes = masters();
        redlock(&nodes)
            .acquire("a")
            .await
            .expect("free")
            .release()
            .await;
    });
    assert_eq!(
        samples(&seen, "quorate_acquire_seconds{outcome=acquired}").len(),
        1
    );
    assert_eq!(counter(&seen, "quorate_rounds_total{verdict=won}"), 1);
    assert_eq!(
        samples(&seen, "quorate_hold_seconds{end=released}").len(),
        1
    );
    assert!(gauge(&seen, "quorate_locks_held{}").abs() < f64::EPSILON);
    for node in ["m1", "m2", "m3"] {
        for phase in ["acquire", "release"] {
            let name =
                format!("quorate_node_replies_total{{node={node},outcome=ok,phase={phase}}}");
            assert_eq!(counter(&seen, &name), 1, "{seen:#?}");
            let name = format!("quorate_node_reply_seconds{{node={node},phase={phase}}}");
            assert_eq!(samples(&seen, &name).len(), 1, "{seen:#?}");
        }
    }
    assert!(!seen.keys().any(|name| name.contains("lost")), "{seen:#?}");
}

#[test]
fn waiters_that_give_up_say_what_stood_in_the_way() {
    let seen = recorded(async || {
        let nodes = masters();
        let (holder, waiter) = (redlock(&nodes), redlock(&nodes));
        let guard = holder.acquire("a").await.expect("free");
        waiter.acquire("a").await.expect_err("held");
        guard.release().await;
        for node in &nodes[1..] {
            node.set_mode(Mode::Down);
        }
        waiter.acquire("b").await.expect_err("no quorum");
    });
    let waited = samples(&seen, "quorate_acquire_seconds{outcome=held_by_other}");
    assert_eq!(waited.len(), 1, "{seen:#?}");
    assert!(waited[0] >= 0.2, "{waited:?}");
    assert!(counter(&seen, "quorate_rounds_total{verdict=held_by_other}") >= 1);
    assert_eq!(
        samples(&seen, "quorate_acquire_seconds{outcome=no_quorum}").len(),
        1
    );
    assert!(
        !samples(&seen, "quorate_queue_ahead{}").is_empty(),
        "{seen:#?}"
    );
    let down = "quorate_node_replies_total{node=m2,outcome=down,phase=acquire}";
    assert!(counter(&seen, down) >= 1, "{seen:#?}");
}

#[test]
fn renewals_tell_their_margin_and_losses_their_cause() {
    let seen = recorded(async || {
        let nodes = masters();
        let redlock = redlock(&nodes);
        let guard = redlock.acquire("a").await.expect("free");
        tokio::time::sleep(Duration::from_millis(750)).await;
        for node in &nodes {
            node.set_mode(Mode::Down);
        }
        guard.lost().await;
    });
    let margins = samples(&seen, "quorate_renewal_margin_seconds{}");
    assert_eq!(margins.len(), 2, "{seen:#?}");
    assert_eq!(counter(&seen, "quorate_renewals_total{outcome=renewed}"), 2);
    assert!(
        counter(&seen, "quorate_renewals_total{outcome=unknown}") >= 1,
        "{seen:#?}"
    );
    assert_eq!(counter(&seen, "quorate_locks_lost_total{cause=expired}"), 1);
    assert_eq!(samples(&seen, "quorate_hold_seconds{end=expired}").len(), 1);
}

#[test]
fn every_metric_that_is_recorded_is_described() {
    let names: Vec<&str> = quorate::metrics::ALL
        .iter()
        .map(|metric| metric.name)
        .collect();
    let docs = include_str!("../docs/metrics.md");
    let rules = include_str!("../docs/metrics/alerts.yml");
    let dashboard = include_str!("../docs/metrics/grafana.json");
    for name in &names {
        assert!(docs.contains(name), "docs/metrics.md does not name {name}");
    }
    for text in [rules, dashboard] {
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
            if !word.starts_with("quorate_") {
                continue;
            }
            let stem = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| word.strip_suffix(end))
                .unwrap_or(word);
            assert!(names.contains(&stem), "{word} is no metric");
        }
    }
}

/// A node whose task is gone: it drops what it is asked.
struct Gone(NodeName);

impl Node for Gone {
    fn name(&self) -> &NodeName {
        &self.0
    }

    fn send(&self, _: Request, _: Reply) {}

    fn idle(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn a_reply_that_is_dropped_unanswered_is_counted_as_disconnected() {
    let seen = recorded(async || {
        let node = |n| Arc::new(Gone(NodeName::new(format!("m{n}")))) as Arc<dyn Node>;
        let redlock = Redlock::builder().nodes((1..=3).map(node).collect());
        let redlock = redlock.build().expect("good settings");
        redlock.try_acquire("x").await.expect_err("nobody is there");
    });
    let count = |outcome: &str| {
        let labels = format!("node=m1,outcome={outcome},phase=acquire");
        counter(&seen, &format!("quorate_node_replies_total{{{labels}}}"))
    };
    assert_eq!((count("disconnected"), count("ok")), (1, 0));
}
