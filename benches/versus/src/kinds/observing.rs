//! Measures the time from the moment when a new leader is elected until a follower is notified of this leader.

use std::time::{Duration, Instant};

use quorate::{Election, Leadership, Redlock};
use quorate_testbed::measure::quantile;
use tokio::sync::mpsc::UnboundedReceiver;

use super::figure::Figure;
use crate::contender::{Addresses, Name, builder_for};
use crate::goal::Bound;

/// The number of leaders that are elected in one round: 200 if masters notify the follower of a new leader, and 8 if
/// not. Without notifications, the follower notices a new leader only at its next poll.
const LEADERS: [usize; 2] = [200, 8];

const TTL: Duration = Duration::from_secs(1);

fn client(addresses: &Addresses, has_wake_ups: bool) -> Redlock {
    let builder = builder_for(Name::Default, &addresses.urls).ttl(TTL);
    let ordered_builder = if has_wake_ups {
        builder
    } else {
        builder.order(quorate::Order::Unordered)
    };
    ordered_builder.build().expect("the settings must be valid")
}

/// Two candidates that lead alternately.
struct Candidates {
    elections: [Election; 2],
    leadership: Option<Leadership>,
    election_count: usize,
}

impl Candidates {
    fn new(addresses: &Addresses, name: &str) -> Self {
        Self {
            elections: [client(addresses, true), client(addresses, true)]
                .map(|client| client.election(name)),
            leadership: None,
            election_count: 0,
        }
    }

    /// Makes the other candidate the leader. Returns the new leader's term and the time of its election.
    async fn next(&mut self) -> (u64, Instant) {
        let election = self.elections[self.election_count % 2].clone();
        self.election_count += 1;
        let campaign = tokio::spawn(async move {
            let leadership = election
                .campaign("bench")
                .await
                .expect("the campaign must win the election");
            (leadership, Instant::now())
        });
        if let Some(leadership) = self.leadership.take() {
            // Give the other candidate time to join the queue.
            tokio::time::sleep(Duration::from_millis(3)).await;
            leadership.resign().await;
        }
        let (leadership, elected_at) = campaign.await.expect("the task must not panic");
        let term = leadership.term();
        self.leadership = Some(leadership);
        (term, elected_at)
    }
}

/// Starts a follower. For each notification of a leader, the returned receiver gets the leader's term and the time of
/// the notification.
fn observe(
    addresses: &Addresses,
    has_wake_ups: bool,
    name: &str,
) -> UnboundedReceiver<(u64, Instant)> {
    let (sender, notifications) = tokio::sync::mpsc::unbounded_channel();
    let observer_result = client(addresses, has_wake_ups).election(name).observe();
    let mut observer = observer_result.expect("the name must be valid");
    tokio::spawn(async move {
        // Follow the leader until the receiver is dropped.
        while !sender.is_closed() {
            let leader = observer.next().await;
            let now = Instant::now();
            let _ = leader.map(|leader| sender.send((leader.term, now)));
        }
    });
    notifications
}

/// An election with two candidates, and one follower that is measured.
struct ObservedElection {
    candidates: Candidates,
    notifications: UnboundedReceiver<(u64, Instant)>,
}

impl ObservedElection {
    fn new(addresses: &Addresses, has_wake_ups: bool, name: &str) -> Self {
        Self {
            candidates: Candidates::new(addresses, name),
            notifications: observe(addresses, has_wake_ups, name),
        }
    }

    /// Elects `leaders` leaders, one after the other. For each leader, measures the time from the election until the
    /// follower is notified. Returns the 99th percentile of these times, in milliseconds.
    async fn p99(&mut self, leaders: usize) -> f64 {
        let mut delays = Vec::with_capacity(leaders);
        for _ in 0..leaders {
            let (term, elected_at) = self.candidates.next().await;
            let notified_at = loop {
                let (notified_term, at) = self
                    .notifications
                    .recv()
                    .await
                    .expect("the channel of notifications must stay open");
                if notified_term >= term {
                    break at;
                }
            };
            delays.push(notified_at.saturating_duration_since(elected_at).as_nanos() as u64);
        }
        delays.sort_unstable();
        quantile(&delays, 0.99) / 1e6
    }
}

/// Measures followers with and without wake-ups, and returns the figures.
pub(super) async fn measure(addresses: &Addresses, rounds: usize) -> Vec<Figure> {
    let mut with_wake_ups = ObservedElection::new(addresses, true, "observed:woken");
    let mut without_wake_ups = ObservedElection::new(addresses, false, "observed:alone");
    let (mut delays_with, mut delays_without) = (Vec::new(), Vec::new());
    with_wake_ups.p99(LEADERS[0] / 10).await;
    for _ in 0..rounds {
        delays_with.push(with_wake_ups.p99(LEADERS[0]).await);
        delays_without.push(without_wake_ups.p99(LEADERS[1]).await);
    }
    let bound = Bound::AtMost(50.0);
    vec![
        Figure::new(
            "time from the election of a leader to the notification of an observer, p99",
            bound,
            delays_with,
        )
        .in_unit("ms"),
        Figure::without_goal(
            "time from the election of a leader until a poll sees it (one poll every 333 ms), p99",
            "ms",
            delays_without,
        ),
    ]
}
