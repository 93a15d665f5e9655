//! The plan of a master that is a store.

/// The abilities of a store, and the faults that it has in addition to those of every master.
#[derive(Clone, Copy, Debug)]
pub struct StorePlan {
    /// It reports its clock, as a database does; a coordination service does not.
    pub clocked: bool,
    /// The longest time for an answer, in nanoseconds.
    pub timeout: u64,
    /// The number of sessions for requests.
    pub lanes: u8,
    /// The number of commits that are sent at once.
    pub batch: u8,
    /// Whether it sends wake-ups to waiters.
    pub wakes: bool,
    /// It reports that it loses nothing. Only if its disk keeps everything.
    pub durable: bool,
    /// Wake-ups do not name their subject.
    pub vague: bool,
    /// The number of reads per million that are answered by a follower that lags.
    pub lag_ppm: u32,
    /// The number of wake-ups per million that are lost, late, or sent twice.
    pub deaf_ppm: u32,
    /// The number of commits per million that wait at the server, as for a row lock.
    pub stuck_ppm: u32,
    /// The longest such wait, in nanoseconds.
    pub stuck: u64,
}
