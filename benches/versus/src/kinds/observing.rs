//! Measures the time from the moment when a new leader is elected until a follower is notified of this leader.

use std::time::{Duration, Instant};

use quorate::{Election, Leadership, Redlock};
use quorate_testbed::measure::quantile;
use tokio::sync::mpsc::UnboundedReceiver;

use super::figure::Figure;
use crate::contender::{Addresses, Name, settings};
use crate::goal::Bound;

/// The number of leaders that are elected in one round: 200 if masters notify the follower of a new leader, and 8 if
/// not. Without notifications, the follower notices a new leader only at its next poll.
const LEADERS: [usize; 2] = [200, 8];

const TTL: Duration = Duration::from_secs(1);

fn client(at: &Addresses, wakes: bool) -> Redlock {
    let settings = settings(Name::Default, &at.urls).ttl(TTL);
    let settings = if wakes {
        settings
    } else {
        settings.order(quorate::Order::Unordered)
    };
    settings.build().expect("the settings must be valid")
}

/// Two candidates that lead alternately.
struct Candidates {
    elections: [Election; 2],
    leads: Option<Leadership>,
    turn: usize,
}

impl Candidates {
    fn new(at: &Addresses, name: &str) -> Self {
        Self {
            elections: [client(at, true), client(at, true)].map(|client| client.election(name)),
            leads: None,
            turn: 0,
        }
    }

    /// Makes the other candidate the leader. Returns the new leader's term and the time of its election.
    async fn next(&mut self) -> (u64, Instant) {
        let election = self.elections[self.turn % 2].clone();
        self.turn += 1;
        let campaign = tokio::spawn(async move {
            let leads = election
                .campaign("bench")
                .await
                .expect("the campaign must win the election");
            (leads, Instant::now())
        });
        if let Some(leads) = self.leads.take() {
            // Give the other candidate time to join the queue.
            tokio::time::sleep(Duration::from_millis(3)).await;
            leads.resign().await;
        }
        let (leads, since) = campaign.await.expect("the task must not panic");
        let term = leads.term();
        self.leads = Some(leads);
        (term, since)
    }
}

/// Starts a follower. For each notification of a leader, the returned receiver gets the leader's term and the time of
/// the notification.
fn observe(at: &Addresses, wakes: bool, name: &str) -> UnboundedReceiver<(u64, Instant)> {
    let (sender, heard) = tokio::sync::mpsc::unbounded_channel();
    let observed = client(at, wakes).election(name).observe();
    let mut observed = observed.expect("the name must be valid");
    tokio::spawn(async move {
        // Follow the leader until the receiver is dropped.
        while !sender.is_closed() {
            let leader = observed.next().await;
            let now = Instant::now();
            let _ = leader.map(|leader| sender.send((leader.term, now)));
        }
    });
    heard
}

/// An election with two candidates, and one follower that is measured.
struct Watched {
    candidates: Candidates,
    heard: UnboundedReceiver<(u64, Instant)>,
}

impl Watched {
    fn new(at: &Addresses, wakes: bool, name: &str) -> Self {
        Self {
            candidates: Candidates::new(at, name),
            heard: observe(at, wakes, name),
        }
    }

    /// Elects `leaders` leaders, one after the other. For each leader, measures the time from the election until the
    /// follower is notified. Returns the 99th percentile of these times, in milliseconds.
    async fn p99(&mut self, leaders: usize) -> f64 {
        let mut delays = Vec::with_capacity(leaders);
        for _ in 0..leaders {
            let (term, since) = self.candidates.next().await;
            let seen = loop {
                let (heard, at) = self
                    .heard
                    .recv()
                    .await
                    .expect("the channel of notifications must stay open");
                if heard >= term {
                    break at;
                }
            };
            delays.push(seen.saturating_duration_since(since).as_nanos() as u64);
        }
        delays.sort_unstable();
        quantile(&delays, 0.99) / 1e6
    }
}

/// Measures followers with and without wake-ups, and returns the figures.
pub(super) async fn measure(at: &Addresses, rounds: usize) -> Vec<Figure> {
    let mut woken = Watched::new(at, true, "observed:woken");
    let mut alone = Watched::new(at, false, "observed:alone");
    let (mut with, mut without) = (Vec::new(), Vec::new());
    woken.p99(LEADERS[0] / 10).await;
    for _ in 0..rounds {
        with.push(woken.p99(LEADERS[0]).await);
        without.push(alone.p99(LEADERS[1]).await);
    }
    let bound = Bound::Most(50.0);
    vec![
        Figure::new(
            "time from the election of a leader to the notification of an observer, p99",
            bound,
            with,
        )
        .in_unit("ms"),
        Figure::stated(
            "time from the election of a leader until a poll sees it (one poll every 333 ms), p99",
            "ms",
            without,
        ),
    ]
}
