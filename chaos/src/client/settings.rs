//! The settings and commands of a client: one line of JSON each on its standard input, the settings first.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::workload::{Locker, Order, Workload};

/// How long clients wait for a lock, in this process and in its children.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// The restart guard of a client; see [`RestartGuard`](quorate::RestartGuard).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guarding {
    /// For a client that starts while masters may just have been restarted.
    On,
    /// For the first clients: their masters have just been started empty, and nobody has held anything on them.
    AfterFirstContact,
    /// For scenarios that are meant to break exclusion.
    Off,
}

/// The settings of a client; the first line on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Its name in the history.
    pub name: String,
    /// The start of the time base.
    pub origin: u64,
    /// The addresses of the masters for this client.
    pub masters: Vec<String>,
    /// The masters of the second set, while masters are changed.
    #[serde(default)]
    pub next_masters: Vec<String>,
    /// The number of changes of masters before this configuration.
    #[serde(default)]
    pub generation: u64,
    /// Its restart guard.
    pub guarding: Guarding,
    /// The lock implementation.
    pub locker: Locker,
    /// The order of waiters.
    pub waiting: Order,
    /// The work it does.
    pub workloads: Vec<Workload>,
    /// The TTL of a lock.
    pub ttl: Duration,
    /// The longest ttl.
    pub max_ttl: Duration,
    /// The longest pause between two attempts.
    pub pause: Duration,
    /// The share of holds that are about as long as the TTL, or longer.
    pub long: f64,
    /// Whether holds are renewed. A renewal restores a key that a master has lost, often before another client asks for
    /// it. In a run that is meant to break exclusion, it must not.
    pub renewed: bool,
    /// The number of locks that the workload `many` holds.
    pub many: usize,
    /// About how long it holds each of them.
    pub many_hold: Duration,
    /// The folder of the shared files.
    pub dir: PathBuf,
    /// The socket of the fenced register.
    pub register: PathBuf,
    /// The `quorate` program.
    pub quorate: Option<PathBuf>,
}

impl Settings {
    /// The step of a change of masters that this configuration belongs to.
    pub fn step(&self) -> u64 {
        2 * self.generation + u64::from(!self.next_masters.is_empty())
    }
}

/// Commands for a running client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Instruction {
    /// Block all worker threads for this long.
    Starve(Duration),
    /// Drop futures and guards for this long.
    DropFutures(Duration),
    /// Finish and end.
    Finish,
}
