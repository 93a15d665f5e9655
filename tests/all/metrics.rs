//! Tests of the metrics about acquires, held locks, losses, waiters and masters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use quorate::node::memory::{Condition, MemoryNode};
use quorate::node::{Node, NodeName, Reply, Request};
use quorate::runtime::BoxFuture;
use quorate::{LockGuard, Redlock, Wait};

type Seen = BTreeMap<String, DebugValue>;

/// Runs the function `scene`, and returns all metrics that it recorded. The keys have the form `name{label=value,...}`.
fn recorded(scene: impl AsyncFnOnce()) -> Seen {
    recorded_with_looks(async |_| scene().await)
}

/// Like [`recorded`], but `scene` can also read the metrics while it runs. Each reading resets the metrics to zero.
fn recorded_with_looks(scene: impl AsyncFnOnce(&Snapshotter)) -> Seen {
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
    look(&snapshotter)
}

fn look(snapshotter: &Snapshotter) -> Seen {
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

/// The TTL of the tested locks. It is short, because tests wait for renewals and expiries. It is long enough that a
/// renewal may be delayed by more than a second without the loss of the lock.
const TTL: Duration = Duration::from_secs(2);

fn redlock(nodes: &[MemoryNode]) -> Redlock {
    let nodes = nodes
        .iter()
        .map(|node| Arc::new(node.clone()) as Arc<dyn Node>);
    Redlock::builder()
        .nodes(nodes.collect())
        .ttl(TTL)
        .wait(Wait::For(Duration::from_millis(200)))
        .build()
        .expect("good settings")
}

fn masters() -> Vec<MemoryNode> {
    (1..=3).map(|n| MemoryNode::new(&format!("m{n}"))).collect()
}

/// Waits until the lock has been renewed this many times.
async fn renewed(guard: &LockGuard, times: usize) {
    for _ in 0..times {
        let before = guard.valid_until();
        while guard.valid_until() == before {
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
    for cause in ["expired", "taken_away", "max_hold"] {
        let name = format!("quorate_locks_lost_total{{cause={cause}}}");
        assert_eq!(counter(&seen, &name), 0, "{seen:#?}");
    }
}

#[test]
fn metrics_count_unsuccessful_waits_by_reason() {
    let seen = recorded(async || {
        let nodes = masters();
        let (holder, waiter) = (redlock(&nodes), redlock(&nodes));
        let guard = holder.acquire("a").await.expect("free");
        waiter.acquire("a").await.expect_err("held");
        guard.release().await;
        for node in &nodes[1..] {
            node.set_condition(Condition::Down);
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
fn metrics_record_the_time_left_at_each_renewal_and_the_cause_of_each_loss() {
    let seen = recorded(async || {
        let nodes = masters();
        let redlock = redlock(&nodes);
        let guard = redlock.acquire("a").await.expect("free");
        renewed(&guard, 2).await;
        for node in &nodes {
            node.set_condition(Condition::Down);
        }
        guard.lost().await;
    });
    let margins = samples(&seen, "quorate_renewal_margin_seconds{}");
    // On a slow machine a third renewal may be recorded before the masters go down.
    assert!((2..=3).contains(&margins.len()), "{seen:#?}");
    let within = |margin: &f64| (0.0..TTL.as_secs_f64()).contains(margin);
    assert!(margins.iter().all(within), "{margins:?}");
    let renewals = counter(&seen, "quorate_renewals_total{outcome=renewed}");
    assert_eq!(renewals, margins.len() as u64, "{seen:#?}");
    assert!(
        counter(&seen, "quorate_renewals_total{outcome=unknown}") >= 1,
        "{seen:#?}"
    );
    assert_eq!(counter(&seen, "quorate_locks_lost_total{cause=expired}"), 1);
    assert_eq!(samples(&seen, "quorate_hold_seconds{end=expired}").len(), 1);
}

#[test]
fn lost_lock_counter_exists_with_value_zero_before_the_first_loss() {
    const LOST: &str = "quorate_locks_lost_total{cause=max_hold}";
    let mut before = Seen::new();
    let after = recorded_with_looks(async |figures| {
        let redlock = redlock(&masters());
        before = look(figures);
        let lock = redlock.lock("a").max_hold(Duration::from_millis(50));
        lock.acquire().await.expect("free").lost().await;
    });
    assert_eq!(before.get(LOST), Some(&DebugValue::Counter(0)));
    assert_eq!(counter(&after, LOST), 1);
}

/// Tests that all time series exist as soon as a client is built. An event of a lock, such as a loss, only changes
/// them.
#[test]
fn every_metric_series_exists_before_its_first_event() {
    let mut before = Seen::new();
    let after = recorded_with_looks(async |figures| {
        let nodes = masters();
        let (one, other) = (redlock(&nodes), redlock(&nodes));
        before = look(figures);
        let guard = one.acquire("a").await.expect("free");
        other.acquire("a").await.expect_err("held");
        one.status("a").await.expect("the name must be valid");
        renewed(&guard, 1).await;
        one.break_lock("a").await.expect("the name must be valid");
        guard.lost().await;
        let guard = one.acquire("b").await.expect("free");
        for node in &nodes {
            node.set_condition(Condition::Down);
        }
        other.acquire("c").await.expect_err("no quorum");
        guard.lost().await;
    });
    assert!(counter(&after, "quorate_locks_lost_total{cause=expired}") >= 1);
    assert!(counter(&after, "quorate_locks_lost_total{cause=taken_away}") >= 1);
    for name in after.keys() {
        assert!(
            before.contains_key(name),
            "{name} must exist before its first event"
        );
    }
    for metric in quorate::metrics::ALL {
        let of_it = |name: &&String| name.split('{').next() == Some(metric.name);
        assert!(before.keys().any(|name| of_it(&name)), "{metric:?}");
    }
}

#[test]
fn describing_the_metrics_creates_every_series_except_those_with_a_node_label() {
    let seen = recorded(async || {});
    let lost = "quorate_locks_lost_total{cause=expired}";
    assert_eq!(seen.get(lost), Some(&DebugValue::Counter(0)));
    assert!(!seen.keys().any(|name| name.contains("node=")), "{seen:#?}");
}

/// Each histogram has one series for each bucket that docs/metrics.md recommends, plus three: the bucket without an
/// upper limit, the sum and the count.
#[test]
fn metrics_page_states_the_number_of_series_for_five_masters() {
    let read_result =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metrics.md"));
    let page = read_result.expect("the page");
    let buckets = page.split("let buckets = [").nth(1).expect("the buckets");
    let buckets = buckets.split(']').next().map(|all| all.split(',').count());
    let of_histogram = buckets.expect("the buckets") + 3;
    let seen = recorded(async || {
        let nodes: Vec<MemoryNode> = (0..5).map(|n| MemoryNode::new(&format!("m{n}"))).collect();
        drop(redlock(&nodes));
    });
    let series = |value: &DebugValue| match value {
        DebugValue::Histogram(_) => of_histogram,
        _ => 1,
    };
    let all: usize = seen.values().map(series).sum();
    let said = format!("has {all} series");
    let text = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&said), "docs/metrics.md must contain: {said}");
}

#[test]
fn every_metric_that_is_recorded_is_described() {
    let names: Vec<&str> = quorate::metrics::ALL
        .iter()
        .map(|metric| metric.name)
        .collect();
    let docs = include_str!("../../docs/metrics.md");
    let rules = include_str!("../../docs/metrics/alerts.yml");
    let tests_of_rules = include_str!("../../docs/metrics/alerts_test.yml");
    let dashboard = include_str!("../../docs/metrics/grafana.json");
    // The check of the lowest versions compiles this file without the command, so read its code only when the test runs.
    let of_command = crate::repository::root().join("cli/src/metrics.rs");
    let of_command = std::fs::read_to_string(of_command).expect("the metrics of the command");
    for name in &names {
        assert!(
            docs.contains(name),
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
                word.starts_with("quorate_run_") && of_command.contains(&format!("\"{word}\""));
            assert!(
                is_of_command || names.contains(&stem),
                "the alert rules and the dashboard may use only metrics that the library or the command records, but use {word}"
            );
        }
    }
}

/// A node that drops every request without an answer.
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
fn request_whose_reply_channel_is_dropped_is_counted_as_disconnected() {
    let seen = recorded(async || {
        let node = |n| Arc::new(Gone(NodeName::new(format!("m{n}")))) as Arc<dyn Node>;
        let redlock = Redlock::builder().nodes((1..=3).map(node).collect());
        let redlock = redlock.build().expect("good settings");
        redlock
            .try_acquire("x")
            .await
            .expect_err("the attempt must fail, because no master is up");
    });
    let count = |outcome: &str| {
        let labels = format!("node=m1,outcome={outcome},phase=acquire");
        counter(&seen, &format!("quorate_node_replies_total{{{labels}}}"))
    };
    assert_eq!((count("disconnected"), count("ok")), (1, 0));
}

/// Tests that the labels in alert rules exist. An alert rule with an unknown label would never fire.
#[test]
fn labels_used_by_alert_rules_and_dashboard_exist() {
    let seen = recorded(async || drop(redlock(&masters())));
    let rules = include_str!("../../docs/metrics/alerts.yml");
    let dashboard = include_str!("../../docs/metrics/grafana.json").replace("\\\"", "\"");
    let mut asked = 0;
    for text in [rules, &dashboard] {
        for label in ["cause", "end", "outcome", "phase", "verdict"] {
            for operator in ["=", "!=", "=~", "!~"] {
                let start = format!("{label}{operator}\"");
                for rest in text.split(&start).skip(1) {
                    let values = rest.split('"').next().unwrap_or_default();
                    for value in values.split('|') {
                        let wanted = format!("{label}={value}");
                        let bears =
                            |name: &String| name.split(['{', ',', '}']).any(|l| l == wanted);
                        assert!(
                            seen.keys().any(bears),
                            "a recorded series must have the label {wanted} of the alert rules or the dashboard"
                        );
                        asked += 1;
                    }
                }
            }
        }
    }
    assert!(
        asked >= 5,
        "at least 5 labels must be found in the alert rules and the dashboard, but only {asked} were"
    );
}
