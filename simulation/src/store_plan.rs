//! The plan of one master that is a store.

/// The abilities of a store, and the faults that it has in addition to the faults of every master.
#[derive(Clone, Copy, Debug)]
pub struct StorePlan {
    /// Whether the store reports its clock. A database does; a coordination service does not.
    pub clocked: bool,
    /// How long a client waits for an answer of the store, in nanoseconds.
    pub timeout: u64,
    /// The number of sessions that a client uses for requests.
    pub lanes: u8,
    /// The largest number of commits that a client sends at once.
    pub batch: u8,
    /// Whether the store sends wake-ups to waiters.
    pub wakes: bool,
    /// Whether the store reports that it loses nothing. Only true if its disk keeps everything.
    pub durable: bool,
    /// Whether wake-ups do not name the lock that they are about.
    pub vague: bool,
    /// The number of reads per million that a lagging follower answers.
    pub lag_ppm: u32,
    /// The number of wake-ups per million that are lost, late, or sent twice.
    pub deaf_ppm: u32,
    /// The number of commits per million that wait at the server, as if for a row lock.
    pub stuck_ppm: u32,
    /// The longest time that a commit waits at the server, in nanoseconds.
    pub stuck: u64,
}
