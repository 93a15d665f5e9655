//! What a client is told, at first and while it runs: one line of JSON each on its standard input.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::workload::{Locker, Order, Workload};

/// How long everybody waits for a lock, in this process and in those that it starts.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// How a client goes about masters that restarted; see [`RestartGuard`](quorate::RestartGuard).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guarding {
    /// For a client that starts while masters may just have been restarted.
    On,
    /// For the first clients: their masters were started empty a moment ago, and nobody has held
    /// anything on them.
    AfterFirstContact,
    /// For scenarios that want to see it break.
    Off,
}

/// What a client needs to know; the first line on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Its name in the history.
    pub name: String,
    /// Where the time base begins.
    pub origin: u64,
    /// The masters, as this client can reach them.
    pub masters: Vec<String>,
    /// Those that it is to go by as well, while masters are changed.
    #[serde(default)]
    pub next_masters: Vec<String>,
    /// How often its masters were changed.
    #[serde(default)]
    pub generation: u64,
    /// How it goes about restarted masters.
    pub guarding: Guarding,
    /// Who locks.
    pub locker: Locker,
    /// How waiters are ordered.
    pub waiting: Order,
    /// What it does.
    pub workloads: Vec<Workload>,
    /// How long a grant lasts.
    pub ttl: Duration,
    /// The longest ttl.
    pub max_ttl: Duration,
    /// How long it pauses between two attempts, at most.
    pub pause: Duration,
    /// Which share of the holds is about as long as the ttl, or longer.
    pub long: f64,
    /// Whether holds are renewed. A renewal puts back what a master has forgotten, often before
    /// anybody else comes for it; where a lock is to be seen broken, it must not.
    pub renewed: bool,
    /// How many locks the workload of many holds.
    pub many: usize,
    /// How long it holds each of them, about.
    pub many_hold: Duration,
    /// Where the shared files are.
    pub dir: PathBuf,
    /// The socket of the fenced register.
    pub register: PathBuf,
    /// The `quorate` program.
    pub quorate: Option<PathBuf>,
}

impl Settings {
    /// The step of a change of masters that it stands at.
    pub fn step(&self) -> u64 {
        2 * self.generation + u64::from(!self.next_masters.is_empty())
    }
}

/// What a client can be told while it runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Instruction {
    /// Block all worker threads for this long.
    Starve(Duration),
    /// Drop futures and guards for this long.
    DropFutures(Duration),
    /// Finish and end.
    Finish,
}
