//! The settings and commands of a client: one line of JSON each on its standard input, the settings first.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::workload::{Locker, Order, Workload};

/// How long clients wait for a lock, in their own process and in their children.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// The setting of the restart guard for a client; see [`RestartGuard`](quorate::RestartGuard).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Guarding {
    /// Guards from the first contact: for a client that starts while masters may just have been restarted.
    On,
    /// Guards only after the first contact: for the first clients, whose masters have just been started empty.
    AfterFirstContact,
    /// No guard: for scenarios that are meant to break exclusion.
    Off,
}

/// The settings of a client; the first line on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The name of the client in the history.
    pub name: String,
    /// The start of the run, in nanoseconds of the machine's clock.
    pub origin: u64,
    /// The addresses of the masters for this client.
    pub masters: Vec<String>,
    /// The addresses of the second set of masters, while masters are changed. Empty at other times.
    #[serde(default)]
    pub next_masters: Vec<String>,
    /// The number of completed changes of masters before this configuration.
    #[serde(default)]
    pub generation: u64,
    /// The restart guard of the client.
    pub guarding: Guarding,
    /// The lock implementation.
    pub locker: Locker,
    /// The order of waiters.
    pub waiting: Order,
    /// The workloads of the client.
    pub workloads: Vec<Workload>,
    /// The TTL of a lock.
    pub ttl: Duration,
    /// The longest TTL that the client may use.
    pub max_ttl: Duration,
    /// The longest pause between two attempts.
    pub pause: Duration,
    /// The share of holds that last about as long as the TTL or longer, from 0 to 1.
    pub long: f64,
    /// Whether holds are renewed. A renewal restores a key that a master has lost, often before another client asks for
    /// the lock. So holds are not renewed in a run that is meant to break exclusion.
    pub renewed: bool,
    /// The number of locks that the client holds at once in the workload `many`.
    pub many: usize,
    /// About how long the workload `many` holds each lock.
    pub many_hold: Duration,
    /// The folder of the files that all clients share.
    pub dir: PathBuf,
    /// The socket of the fenced register.
    pub register: PathBuf,
    /// The path of the `quorate` program; `None` if there is none.
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
    /// Finish the work and exit.
    Finish,
}
