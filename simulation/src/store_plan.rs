//! The plan of one master that is a store.

/// The abilities of a store, and the faults that only stores have.
#[derive(Clone, Copy, Debug)]
pub struct StorePlan {
    /// Whether the store reports its clock. Databases report it; a coordination service like ZooKeeper does not.
    pub clocked: bool,
    /// The time that a client waits for an answer of the store, in nanoseconds.
    pub timeout: u64,
    /// The number of sessions that each client opens to the store for requests.
    pub sessions: u8,
    /// The largest number of commits that a client sends in one request.
    pub commits_per_request: u8,
    /// Whether the store sends wake-ups to waiters.
    pub sends_wakes: bool,
    /// Whether the store reports that a restart loses nothing. True only if the store's disk keeps everything.
    pub durable: bool,
    /// Whether the store's wake-ups name no lock. Each of them then wakes all waiters of a client process.
    pub wakes_name_no_lock: bool,
    /// The number of reads per million that a lagging follower answers, possibly with an older state.
    pub lagging_reads_ppm: u32,
    /// The number of wake-ups per million that are lost, late, or sent twice.
    pub disturbed_wakes_ppm: u32,
    /// The number of commits per million that the server delays, like a wait for a row lock.
    pub delayed_commits_ppm: u32,
    /// The longest time that a commit waits at the server, in nanoseconds.
    pub longest_commit_delay: u64,
}
