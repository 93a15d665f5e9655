//! A master that is a store: what kind of one.

/// What a store can do, and what goes wrong with it beside what goes wrong with every master.
#[derive(Clone, Copy, Debug)]
pub struct StorePlan {
    /// It tells what its clock shows, as a database does; a coordination service does not.
    pub clocked: bool,
    /// How long it may take to answer, in nanoseconds.
    pub timeout: u64,
    /// How many sessions share the work.
    pub lanes: u8,
    /// How many commits go out at once.
    pub batch: u8,
    /// Whether it wakes who waits.
    pub wakes: bool,
    /// It says that it loses nothing; only where its disk keeps everything.
    pub durable: bool,
    /// Wake-ups do not say what they are about.
    pub vague: bool,
    /// How many of a million reads are answered by a follower that lags behind.
    pub lag_ppm: u32,
    /// How many of a million wake-ups are lost, come late, or come twice.
    pub deaf_ppm: u32,
    /// How many of a million commits wait at the server for a while, as for the lock of a row.
    pub stuck_ppm: u32,
    /// For how long at the most.
    pub stuck: u64,
}
