//! All lock implementations that are compared, with one common interface: connect, acquire and release.

use std::net::SocketAddr;
use std::time::Duration;

use quorate::{LockGuard, Redlock, RedlockBuilder, RestartGuard};
use quorate_testbed::Masters;

use crate::floor::{Floor, ReleaseCondition};
use crate::wire::{QuorateScripts, Wire};

/// The TTL of every lock in these measurements. It is much longer than a hold, so that no lock expires during a
/// measurement.
pub(crate) const TTL: Duration = Duration::from_secs(10);

/// The lock implementations that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Name {
    /// The baseline: the least work that a Redlock client must do, with redis-rs
    Floor,
    /// The baseline, but a release waits for all masters
    FloorAll,
    /// The least work that a Redlock client must do, with hand-written RESP instead of redis-rs
    Wire,
    /// Hand-written RESP that calls the same scripts as quorate with default settings
    WireDefault,
    /// rslock, as published in the registry
    Rslock,
    /// quorate with `fencing(false)`: only SET NX PX
    Classic,
    /// quorate with fencing tokens and `Order::Unordered`
    Fenced,
    /// quorate with default settings: fencing tokens, and waiters served in the order of their arrival
    Default,
}

impl Name {
    /// All implementations, in the order in which the tables list them.
    pub(crate) const ALL: [Self; 8] = [
        Self::Floor,
        Self::FloorAll,
        Self::Wire,
        Self::WireDefault,
        Self::Rslock,
        Self::Classic,
        Self::Fenced,
        Self::Default,
    ];

    /// The name of the implementation in tables.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Floor => "floor (redis-rs)",
            Self::FloorAll => "floor, all releases",
            Self::Wire => "wire floor",
            Self::WireDefault => "wire, our scripts",
            Self::Rslock => "rslock",
            Self::Classic => "quorate classic",
            Self::Fenced => "quorate fenced",
            Self::Default => "quorate default",
        }
    }

    /// The prefix of the names of the locked resources. It is different for each implementation, because some
    /// implementations leave keys on the masters for a short time after a release.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::FloorAll => "floor-all",
            Self::Wire => "wire",
            Self::WireDefault => "wire-default",
            Self::Rslock => "rslock",
            Self::Classic => "classic",
            Self::Fenced => "fenced",
            Self::Default => "default",
        }
    }

    /// The settings of the implementation, as text for the report.
    pub(crate) fn setup(self) -> &'static str {
        match self {
            Self::Floor => {
                "redis-rs: 1 multiplexed connection per master, pipeline buffer 8,192, no response timeout. \
                 Acquire: SET NX PX. Release: EVALSHA (compare and delete). Both wait for a majority of answers"
            }
            Self::FloorAll => "like \"floor (redis-rs)\", but a release waits for all masters",
            Self::Wire => {
                "minimal RESP client with the commands of \"floor (redis-rs)\": 1 connection and 1 task per master; \
                 one write sends all queued requests"
            }
            Self::WireDefault => "like \"wire floor\", but with the scripts of \"quorate default\"",
            Self::Rslock => "LockManager::new, no settings",
            Self::Classic => "fencing(false), Order::Unordered, restart_guard(Off)",
            Self::Fenced => "Order::Unordered, restart_guard(Off)",
            Self::Default => "restart_guard(Off)",
        }
    }

    /// Whether the implementation sends the command SET itself. Other implementations call SET from a script.
    pub(crate) fn sends_set(self) -> bool {
        !matches!(self, Self::Fenced | Self::Default | Self::WireDefault)
    }
}

/// The addresses that one client connects to: masters, or proxies in front of masters.
#[derive(Clone, Debug)]
pub(crate) struct Addresses {
    pub(crate) urls: Vec<String>,
    pub(crate) sockets: Vec<SocketAddr>,
}

impl Addresses {
    /// The addresses of these masters, reached without proxies.
    pub(crate) fn direct(masters: &Masters) -> Self {
        Self {
            urls: masters.urls(),
            sockets: masters.iter().map(quorate_testbed::Server::addr).collect(),
        }
    }
}

/// One connected client of one implementation.
pub(crate) enum Contender {
    Floor(Floor),
    Wire(Wire),
    Rslock(rslock::LockManager),
    Quorate(Redlock),
}

/// A held lock of one implementation.
pub(crate) enum Held {
    Token(String),
    Rslock(rslock::Lock),
    Quorate(LockGuard),
}

/// A builder of `quorate` locks with the settings that `name` stands for.
pub(crate) fn builder_for(name: Name, urls: &[String]) -> RedlockBuilder {
    let builder = Redlock::builder()
        .masters(urls.to_vec())
        .ttl(TTL)
        .restart_guard(RestartGuard::Off);
    match name {
        Name::Classic => builder.fencing(false).order(quorate::Order::Unordered),
        Name::Fenced => builder.order(quorate::Order::Unordered),
        _ => builder,
    }
}

impl Contender {
    /// Connects a client, and then acquires and releases one lock, so that the connections are established before the
    /// measurement.
    pub(crate) async fn connect(name: Name, addresses: &Addresses) -> Self {
        let client = match name {
            Name::Floor => {
                Self::Floor(Floor::connect(&addresses.urls, ReleaseCondition::Majority).await)
            }
            Name::FloorAll => {
                Self::Floor(Floor::connect(&addresses.urls, ReleaseCondition::All).await)
            }
            Name::Wire => Self::Wire(Wire::connect(&addresses.sockets, None).await),
            Name::WireDefault => {
                let scripts = QuorateScripts::record(&addresses.sockets, async {
                    let redlock = builder_for(Name::Default, &addresses.urls).build();
                    let redlock = redlock.expect("the settings must be valid");
                    redlock
                        .acquire("wire-default:look")
                        .await
                        .expect("the lock must be free")
                        .release()
                        .await;
                    redlock
                });
                Self::Wire(Wire::connect(&addresses.sockets, Some(&scripts.await)).await)
            }
            Name::Rslock => Self::Rslock(rslock::LockManager::new(addresses.urls.clone())),
            _ => Self::Quorate(
                builder_for(name, &addresses.urls)
                    .build()
                    .expect("the settings must be valid"),
            ),
        };
        let resource = format!("{}:warm-up", name.prefix());
        let warm_up_lock = client
            .acquire(&resource)
            .await
            .expect("healthy masters must grant the lock");
        client.release(&resource, warm_up_lock).await;
        client
    }

    /// Acquires the lock. Returns `None` if the lock was not granted or an error occurred.
    pub(crate) async fn acquire(&self, resource: &str) -> Option<Held> {
        match self {
            Self::Floor(floor) => floor.acquire(resource, TTL).await.map(Held::Token),
            Self::Wire(wire) => wire.acquire(resource, TTL).await.map(Held::Token),
            Self::Rslock(locks) => locks.lock(resource, TTL).await.ok().map(Held::Rslock),
            Self::Quorate(redlock) => redlock.acquire(resource).await.ok().map(Held::Quorate),
        }
    }

    /// Releases the lock.
    pub(crate) async fn release(&self, resource: &str, held: Held) {
        match (self, held) {
            (Self::Floor(floor), Held::Token(token)) => {
                floor.release(resource, &token).await;
            }
            (Self::Wire(wire), Held::Token(token)) => {
                wire.release(resource, &token).await;
            }
            (Self::Rslock(locks), Held::Rslock(lock)) => locks.unlock(&lock).await,
            (_, Held::Quorate(guard)) => {
                guard.release().await;
            }
            _ => unreachable!("a lock must be released by the implementation that acquired it"),
        }
    }
}
