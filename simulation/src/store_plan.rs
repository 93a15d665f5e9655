//! The plan of one master that is a store.

/// The abilities of a store, and the faults that only stores have.
#[derive(Clone, Copy, Debug)]
pub struct StorePlan {
    /// Whether the store reports its clock. A database does; a coordination service does not.
    pub clocked: bool,
    /// The time that a client waits for an answer of the store, in nanoseconds.
    pub timeout: u64,
    /// The number of sessions that a client uses for requests.
    pub lanes: u8,
    /// The largest number of commits that a client sends in one request.
    pub batch: u8,
    /// Whether the store sends wake-ups to waiters.
    pub wakes: bool,
    /// Whether the store reports that it loses nothing at a restart. True only if the store's disk keeps everything.
    pub durable: bool,
    /// Whether the store's wake-ups do not name the lock that became free.
    pub vague: bool,
    /// The share of reads that a lagging follower answers, per million.
    pub lag_ppm: u32,
    /// The share of wake-ups that are lost, late, or sent twice, per million.
    pub deaf_ppm: u32,
    /// The share of commits that wait at the server, as if for a row lock, per million.
    pub stuck_ppm: u32,
    /// The longest time that a commit waits at the server, in nanoseconds.
    pub stuck: u64,
}
