//! Tests of the metrics about acquires, held locks, losses, waiters and masters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use quorate::node::memory::{Condition, MemoryNode};
use quorate::node::{Node, NodeName, Reply, Request};
use quorate::runtime::BoxFuture;
use quorate::{LockGuard, Redlock, Wait};

type Metrics = BTreeMap<String, DebugValue>;

/// Runs the function `scene`, and returns all metrics that it recorded. The keys have the form `name{label=value,...}`.
fn record_metrics(scene: impl AsyncFnOnce()) -> Metrics {
    record_with_snapshots(async |_| scene().await)
}

/// Like [`record_metrics`], but `scene` can also read the metrics while it runs. Each reading resets the metrics to zero.
fn record_with_snapshots(scene: impl AsyncFnOnce(&Snapshotter)) -> Metrics {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    metrics::with_local_recorder(&recorder, || {
        quorate::metrics::describe();
        runtime.block_on(scene(&snapshotter));
    });
    take_snapshot(&snapshotter)
}

fn take_snapshot(snapshotter: &Snapshotter) -> Metrics {
    let entries = snapshotter.snapshot().into_vec();
    entries
        .into_iter()
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

fn counter_value(metrics: &Metrics, name: &str) -> u64 {
    match metrics.get(name) {
        Some(DebugValue::Counter(count)) => *count,
        None => 0,
        second_client => panic!("{name} is {second_client:?}"),
    }
}

fn gauge_value(metrics: &Metrics, name: &str) -> f64 {
    match metrics.get(name) {
        Some(DebugValue::Gauge(value)) => **value,
        second_client => panic!("{name} is {second_client:?}"),
    }
}

fn samples(metrics: &Metrics, name: &str) -> Vec<f64> {
    match metrics.get(name) {
        Some(DebugValue::Histogram(values)) => values.iter().map(|value| **value).collect(),
        None => Vec::new(),
        second_client => panic!("{name} is {second_client:?}"),
    }
}

/// The TTL of the tested locks. It is short, because tests wait for renewals and expiries. It is long enough that a
/// renewal may be delayed by more than a second without the loss of the lock.
const TTL: Duration = Duration::from_secs(2);

fn client_of(nodes: &[MemoryNode]) -> Redlock {
    let dyn_nodes = nodes
        .iter()
        .map(|node| Arc::new(node.clone()) as Arc<dyn Node>);
    Redlock::builder()
        .nodes(dyn_nodes.collect())
        .ttl(TTL)
        .wait(Wait::For(Duration::from_millis(200)))
        .build()
        .expect("good settings")
}

fn three_masters() -> Vec<MemoryNode> {
    (1..=3).map(|n| MemoryNode::new(&format!("m{n}"))).collect()
}

/// Waits until the lock has been renewed this many times.
async fn wait_for_renewals(guard: &LockGuard, renewals: usize) {
    for _ in 0..renewals {
        let valid_before = guard.valid_until();
        while guard.valid_until() == valid_before {
            assert!(
                guard.is_valid(),
                "the lock must not be lost before it is renewed"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[test]
fn metrics_count_an_acquired_and_released_lock_once() {
    let metrics = record_metrics(async || {
        let nodes = three_masters();
        client_of(&nodes)
            .acquire("a")
            .await
            .expect("free")
            .release()
            .await;
    });
    assert_eq!(
        samples(&metrics, "quorate_acquire_seconds{outcome=acquired}").len(),
        1
    );
    assert_eq!(
        counter_value(&metrics, "quorate_rounds_total{verdict=won}"),
        1
    );
    assert_eq!(
        samples(&metrics, "quorate_hold_seconds{end=released}").len(),
        1
    );
    assert!(gauge_value(&metrics, "quorate_locks_held{}").abs() < f64::EPSILON);
    for node in ["m1", "m2", "m3"] {
        for phase in ["acquire", "release"] {
            let name =
                format!("quorate_node_replies_total{{node={node},outcome=ok,phase={phase}}}");
            assert_eq!(counter_value(&metrics, &name), 1, "{metrics:#?}");
            let name = format!("quorate_node_reply_seconds{{node={node},phase={phase}}}");
            assert_eq!(samples(&metrics, &name).len(), 1, "{metrics:#?}");
        }
    }
    for cause in ["expired", "taken_away", "max_hold"] {
        let name = format!("quorate_locks_lost_total{{cause={cause}}}");
        assert_eq!(counter_value(&metrics, &name), 0, "{metrics:#?}");
    }
}

#[test]
fn metrics_count_the_tasks_ahead_of_a_waiter_of_the_same_process() {
    let metrics = record_metrics(async || {
        let redlock = client_of(&three_masters());
        let _guard = redlock.acquire("a").await.expect("free");
        let waiter = redlock.lock("a").wait(Wait::For(Duration::from_millis(1)));
        waiter.acquire().await.expect_err("held");
    });
    let ahead = samples(&metrics, "quorate_queue_ahead{}");
    assert!(
        matches!(ahead[..], [count] if (count - 1.0).abs() < f64::EPSILON),
        "only the holder is ahead: {ahead:?}"
    );
}

#[test]
fn metrics_count_unsuccessful_waits_by_reason() {
    let metrics = record_metrics(async || {
        let nodes = three_masters();
        let (holder, waiter) = (client_of(&nodes), client_of(&nodes));
        let guard = holder.acquire("a").await.expect("free");
        waiter.acquire("a").await.expect_err("held");
        guard.release().await;
        for node in &nodes[1..] {
            node.set_condition(Condition::Down);
        }
        waiter.acquire("b").await.expect_err("no quorum");
    });
    let waited = samples(&metrics, "quorate_acquire_seconds{outcome=held_by_other}");
    assert_eq!(waited.len(), 1, "{metrics:#?}");
    assert!(waited[0] >= 0.2, "{waited:?}");
    assert!(counter_value(&metrics, "quorate_rounds_total{verdict=held_by_other}") >= 1);
    assert_eq!(
        samples(&metrics, "quorate_acquire_seconds{outcome=no_quorum}").len(),
        1
    );
    assert!(
        !samples(&metrics, "quorate_queue_ahead{}").is_empty(),
        "{metrics:#?}"
    );
    let down_metric = "quorate_node_replies_total{node=m2,outcome=down,phase=acquire}";
    assert!(counter_value(&metrics, down_metric) >= 1, "{metrics:#?}");
}

#[test]
fn metrics_record_the_time_left_at_each_renewal_and_the_cause_of_each_loss() {
    let metrics = record_metrics(async || {
        let nodes = three_masters();
        let client_of = client_of(&nodes);
        let guard = client_of.acquire("a").await.expect("free");
        wait_for_renewals(&guard, 2).await;
        for node in &nodes {
            node.set_condition(Condition::Down);
        }
        guard.lost().await;
    });
    let margins = samples(&metrics, "quorate_renewal_margin_seconds{}");
    // On a slow machine a third renewal may be recorded before the masters go down.
    assert!((2..=3).contains(&margins.len()), "{metrics:#?}");
    let is_below_ttl = |margin: &f64| (0.0..TTL.as_secs_f64()).contains(margin);
    assert!(margins.iter().all(is_below_ttl), "{margins:?}");
    let renewals = counter_value(&metrics, "quorate_renewals_total{outcome=renewed}");
    assert_eq!(renewals, margins.len() as u64, "{metrics:#?}");
    assert!(
        counter_value(&metrics, "quorate_renewals_total{outcome=unknown}") >= 1,
        "{metrics:#?}"
    );
    assert_eq!(
        counter_value(&metrics, "quorate_locks_lost_total{cause=expired}"),
        1
    );
    assert_eq!(
        samples(&metrics, "quorate_hold_seconds{end=expired}").len(),
        1
    );
}

#[test]
fn lost_lock_counter_exists_with_value_zero_before_the_first_loss() {
    const LOST_METRIC: &str = "quorate_locks_lost_total{cause=max_hold}";
    let mut first_client_metrics = Metrics::new();
    let last_metrics = record_with_snapshots(async |snapshotter| {
        let client_of = client_of(&three_masters());
        first_client_metrics = take_snapshot(snapshotter);
        let lock = client_of.lock("a").max_hold(Duration::from_millis(50));
        lock.acquire().await.expect("free").lost().await;
    });
    assert_eq!(
        first_client_metrics.get(LOST_METRIC),
        Some(&DebugValue::Counter(0))
    );
    assert_eq!(counter_value(&last_metrics, LOST_METRIC), 1);
}

/// Tests that all time series exist as soon as a client is built. An event of a lock, such as a loss, only changes
/// them.
#[test]
fn every_metric_series_exists_before_its_first_event() {
    let mut first_metrics = Metrics::new();
    let last_metrics = record_with_snapshots(async |snapshotter| {
        let nodes = three_masters();
        let (first_client, second_client) = (client_of(&nodes), client_of(&nodes));
        first_metrics = take_snapshot(snapshotter);
        let guard = first_client.acquire("a").await.expect("free");
        second_client.acquire("a").await.expect_err("held");
        first_client
            .status("a")
            .await
            .expect("the name must be valid");
        wait_for_renewals(&guard, 1).await;
        first_client
            .break_lock("a")
            .await
            .expect("the name must be valid");
        guard.lost().await;
        let guard = first_client.acquire("b").await.expect("free");
        for node in &nodes {
            node.set_condition(Condition::Down);
        }
        second_client.acquire("c").await.expect_err("no quorum");
        guard.lost().await;
    });
    assert!(counter_value(&last_metrics, "quorate_locks_lost_total{cause=expired}") >= 1);
    assert!(counter_value(&last_metrics, "quorate_locks_lost_total{cause=taken_away}") >= 1);
    for name in last_metrics.keys() {
        assert!(
            first_metrics.contains_key(name),
            "{name} must exist before its first event"
        );
    }
    for metric in quorate::metrics::ALL {
        let has_name = |name: &&String| name.split('{').next() == Some(metric.name);
        assert!(
            first_metrics.keys().any(|name| has_name(&name)),
            "{metric:?}"
        );
    }
}

#[test]
fn describing_the_metrics_creates_every_series_except_those_with_a_node_label() {
    let metrics = record_metrics(async || {});
    let lost = "quorate_locks_lost_total{cause=expired}";
    assert_eq!(metrics.get(lost), Some(&DebugValue::Counter(0)));
    assert!(
        !metrics.keys().any(|name| name.contains("node=")),
        "{metrics:#?}"
    );
}

/// Each histogram has one series for each bucket that docs/metrics.md recommends, plus three: the bucket without an
/// upper limit, the sum and the count.
#[test]
fn metrics_page_states_the_number_of_series_for_five_masters() {
    let read_result =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md"));
    let page = read_result.expect("the page");
    let buckets = page.split("let buckets = [").nth(1).expect("the buckets");
    let buckets = buckets
        .split(']')
        .next()
        .map(|entries| entries.split(',').count());
    let series_per_histogram = buckets.expect("the buckets") + 3;
    let metrics = record_metrics(async || {
        let nodes: Vec<MemoryNode> = (0..5).map(|n| MemoryNode::new(&format!("m{n}"))).collect();
        drop(client_of(&nodes));
    });
    let series = |value: &DebugValue| match value {
        DebugValue::Histogram(_) => series_per_histogram,
        _ => 1,
    };
    let entries: usize = metrics.values().map(series).sum();
    let sentence = format!("has {entries} series");
    let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        text.contains(&sentence),
        "docs/metrics.md must contain: {sentence}"
    );
}

#[test]
fn every_metric_that_is_recorded_is_described() {
    let names: Vec<&str> = quorate::metrics::ALL
        .iter()
        .map(|metric| metric.name)
        .collect();
    let page = include_str!("../../docs/metrics.md");
    let rules = include_str!("../../docs/metrics/alerts.yml");
    let tests_of_rules = include_str!("../../docs/metrics/alerts_test.yml");
    let dashboard = include_str!("../../docs/metrics/grafana.json");
    // The check of the lowest versions compiles this file without the command, so read its code only when the test runs.
    let command_code = crate::repository::root().join("cli/src/metrics.rs");
    let command_code = std::fs::read_to_string(command_code).expect("the metrics of the command");
    for name in &names {
        assert!(
            page.contains(name),
            "docs/metrics.md must name the metric {name}"
        );
    }
    for text in [rules, tests_of_rules, dashboard] {
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
            if !word.starts_with("quorate_") {
                continue;
            }
            let stem = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| word.strip_suffix(end))
                .unwrap_or(word);
            let is_of_command =
                word.starts_with("quorate_run_") && command_code.contains(&format!("\"{word}\""));
            assert!(
                is_of_command || names.contains(&stem),
                "the alert rules and the dashboard may use only metrics that the library or the command records, but use {word}"
            );
        }
    }
}

/// A node that drops every request without an answer.
struct DropsReplies(NodeName);

impl Node for DropsReplies {
    fn name(&self) -> &NodeName {
        &self.0
    }

    fn send(&self, _: Request, _: Reply) {}

    fn idle(&self) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

#[test]
fn request_whose_reply_channel_is_dropped_is_counted_as_disconnected() {
    let metrics = record_metrics(async || {
        let node = |n| Arc::new(DropsReplies(NodeName::new(format!("m{n}")))) as Arc<dyn Node>;
        let builder = Redlock::builder().nodes((1..=3).map(node).collect());
        let client = builder.build().expect("good settings");
        client
            .try_acquire("x")
            .await
            .expect_err("the attempt must fail, because no master is up");
    });
    let count_of = |outcome: &str| {
        let labels = format!("node=m1,outcome={outcome},phase=acquire");
        counter_value(&metrics, &format!("quorate_node_replies_total{{{labels}}}"))
    };
    assert_eq!((count_of("disconnected"), count_of("ok")), (1, 0));
}

/// Tests that the labels in alert rules exist. An alert rule with an unknown label would never fire.
#[test]
fn labels_used_by_alert_rules_and_dashboard_exist() {
    let metrics = record_metrics(async || drop(client_of(&three_masters())));
    let rules = include_str!("../../docs/metrics/alerts.yml");
    let dashboard = include_str!("../../docs/metrics/grafana.json").replace("\\\"", "\"");
    let mut compared_labels = 0;
    for text in [rules, &dashboard] {
        for label in ["cause", "end", "outcome", "phase", "verdict"] {
            for operator in ["=", "!=", "=~", "!~"] {
                let start = format!("{label}{operator}\"");
                for rest in text.split(&start).skip(1) {
                    let values = rest.split('"').next().unwrap_or_default();
                    for value in values.split('|') {
                        let label = format!("{label}={value}");
                        let has_label =
                            |name: &String| name.split(['{', ',', '}']).any(|l| l == label);
                        assert!(
                            metrics.keys().any(has_label),
                            "a recorded series must have the label {label} of the alert rules or the dashboard"
                        );
                        compared_labels += 1;
                    }
                }
            }
        }
    }
    assert!(
        compared_labels >= 5,
        "at least 5 labels must be found in the alert rules and the dashboard, but only {compared_labels} were"
    );
}
