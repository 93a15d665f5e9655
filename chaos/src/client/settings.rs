//! The settings and commands of a client process. The client reads them from its standard input, each as one line of
//! JSON. The settings come first.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::workload::{Order, Workload};

/// How long an attempt waits for a lock before the attempt fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// Whether a client ignores the votes of masters that have just restarted; see [`RestartGuard`](quorate::RestartGuard).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guarding {
    /// The client ignores the votes of a master that has just started, even of a master to which it connects for the
    /// first time. Used for a client that starts while masters may just have been restarted.
    On,
    /// The client counts the votes of a master from its first connection on, and ignores them only after a later
    /// restart of this master. Used for the first clients of a run, whose masters have just been started empty.
    AfterFirstContact,
    /// There is no guard. Used in scenarios without the restart guard, e.g. those that are meant to break exclusion.
    Off,
}

/// The settings of a client; the first line on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The name of the client in the history.
    pub name: String,
    /// The start of the run on the machine's clock, which all processes share, in nanoseconds.
    pub origin: u64,
    /// The URLs through which this client reaches the masters.
    pub masters: Vec<String>,
    /// During a change of masters: the URLs of the new set of masters. Empty at all other times.
    #[serde(default)]
    pub next_masters: Vec<String>,
    /// The number of changes of masters that were completed before this client was started.
    #[serde(default)]
    pub generation: u64,
    /// The restart guard of the client.
    pub guarding: Guarding,
    /// The order of waiters.
    pub order: Order,
    /// The workloads of the client.
    pub workloads: Vec<Workload>,
    /// The TTL of a lock.
    pub ttl: Duration,
    /// The longest TTL that the client may use.
    pub max_ttl: Duration,
    /// The longest random pause before the client's next attempt to get a lock.
    pub pause: Duration,
    /// The share of holds, from 0 to 1, that last about as long as the TTL (0.7 to 1.4 TTLs). The other holds are much
    /// shorter.
    pub long_hold_share: f64,
    /// Whether the library renews locks. False in runs that must produce two holders at the same time: a renewal could
    /// restore a lock key that a master has lost, and so keep the second client out.
    pub renews_locks: bool,
    /// The number of locks that the client holds at the same time in the workload `many`.
    pub many: usize,
    /// The approximate time for which the workload `many` holds each lock.
    pub many_hold: Duration,
    /// The folder of the files that all clients share.
    pub dir: PathBuf,
    /// The socket of the fenced register.
    pub register: PathBuf,
    /// The path of the `quorate` program; `None` if it was not found.
    pub quorate: Option<PathBuf>,
}

impl Settings {
    /// The number of the client's configuration. In change `n` of the masters, counted from 0, it is `2 * n` with the
    /// old set of masters, and `2 * n + 1` with the old and the new set. With the new set, it is `2 * n + 2`.
    pub fn step(&self) -> u64 {
        2 * self.generation + u64::from(!self.next_masters.is_empty())
    }
}

/// An instruction of the run's main process to a running client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Instruction {
    /// Block all worker threads for this long.
    Starve(Duration),
    /// For this long, cancel operations by dropping their futures, and drop guards instead of releasing them.
    DropFutures(Duration),
    /// Finish the work and exit.
    Finish,
}
