//! The plan of one master that is a store.

use crate::clock::MS;

/// The abilities of a store, and the faults that only stores have.
#[derive(Clone, Copy, Debug)]
pub struct StorePlan {
    /// Whether the store reports its clock. Databases report it; coordination services like ZooKeeper and etcd do not.
    pub clocked: bool,
    /// The precision of the dates that a store without a clock gives to changes, in nanoseconds; 0 if it gives no dates.
    pub date_grain: u64,
    /// The time that a client waits for an answer of the store, in nanoseconds.
    pub timeout: u64,
    /// The number of sessions that each client opens to the store for requests.
    pub sessions: u8,
    /// The largest number of commits that a client sends in one request.
    pub commits_per_request: u8,
    /// Whether the store sends wake-ups to waiters.
    pub sends_wakes: bool,
    /// How clients notice that the store may have forgotten locks.
    pub run: RunRule,
    /// Whether the store's wake-ups name no lock. Each of them then wakes all waiters of a client process.
    pub wakes_name_no_lock: bool,
    /// The number of reads per million that a lagging follower answers, possibly with an older state.
    pub lagging_reads_ppm: u32,
    /// The number of wake-ups per million that are lost, late, or sent twice.
    pub disturbed_wakes_ppm: u32,
    /// Whether a disturbed wake-up may also be late or sent twice. If false, each disturbed wake-up is lost.
    pub repeats_wakes: bool,
    /// The number of commits per million that the server delays, like a wait for a row lock.
    pub delayed_commits_ppm: u32,
    /// The longest time that a commit waits at the server, in nanoseconds.
    pub longest_commit_delay: u64,
}

impl StorePlan {
    /// The plan of a store without faults that are random.
    pub fn quiet(run: RunRule) -> Self {
        let clocked = run == RunRule::Counted;
        Self {
            clocked,
            date_grain: if clocked { 0 } else { 1_000 * MS },
            timeout: 100 * MS,
            sessions: 2,
            commits_per_request: 2,
            sends_wakes: true,
            run,
            wakes_name_no_lock: false,
            lagging_reads_ppm: 0,
            disturbed_wakes_ppm: 0,
            repeats_wakes: false,
            delayed_commits_ppm: 0,
            longest_commit_delay: MS,
        }
    }
}

/// How clients notice that a store may have forgotten locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunRule {
    /// Not at all: the store reports that it never loses an acknowledged change. True for ZooKeeper, and for databases
    /// whose disk keeps everything.
    Durable,
    /// By the time since the server's start, which the server computes from its wall clock, as in MySQL.
    Uptime,
    /// By a row of the server that every event empties after which locks may be forgotten, as in PostgreSQL. The age of
    /// the row is counted by the connected clients.
    Counted,
    /// By the number of the latest change, which each answer shows, as in etcd. A restart forgets nothing, but an
    /// administrator can restore a snapshot.
    Numbered,
}
