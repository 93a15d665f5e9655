//! The age of a server run, counted by the clients on their own monotonic clocks (docs/protocol.md, "Age records").
//!
//! A server may keep its memory only within one run, from the start of its process to its end. The server's own uptime
//! depends on its wall clock, so a client that has just started cannot rely on it. Instead, the server stores an **age
//! record**: for how long clients have watched the present run. Each client raises this age.
//!
//! # Why like this
//!
//! Other measures of the age were rejected:
//!
//! - **The uptime that the server reports** follows its wall clock. If this clock is corrected after a restart, the
//!   server seems old, and two clients hold one lock (seeded bug `age-from-uptime`).
//! - **Dates that the server has stored, and the remaining expiry of its marker,** follow the same clock.
//! - **The clock of another machine** may be wrong as well.
//!
//! For MariaDB, the age that clients count was rejected, because it does not grow while no client is connected. MariaDB
//! shows a monotonic clock to its clients (docs/nodes.md, "How long a run has lasted"). Redis and Valkey show none, so
//! the age records accept this disadvantage.
//!
//! Not solved: a master without a marker is still judged by its uptime, and the first marker takes the age from the
//! uptime once. A connected client with `masters_generation` 0 and without a name does not notice `FLUSHALL`.

use std::fmt;
use std::time::Duration;

use super::instant::Instant;

/// Clients stop raising the age at one day. No lock has a longer TTL, so a larger age makes no difference.
const LONGEST_AGE: Duration = Duration::from_secs(86_400);

/// The longest pause before a client raises the age again while the master's votes do not count yet: 1 s.
const LONGEST_RAISE_PAUSE: Duration = Duration::from_secs(1);

/// The begin of the life of an age record that was started after the server had lost its generation marker.
const DATA_LOSS_PREFIX: &str = "lost-";

/// The age record, as the server stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgeRecord {
    /// The run id of the server. In any other run, the record has no meaning.
    pub(crate) run: String,
    /// The server has kept its memory for at least this time.
    pub(crate) age: Duration,
    /// A random text that identifies the record within the run. If the server loses its memory without a restart, for
    /// example by `FLUSHALL`, the next record has another life. So a client that has watched the earlier memory does
    /// not raise the age of the later one.
    pub(crate) life: String,
}

impl AgeRecord {
    /// The first record of a server run. `lost` is true if the server has lost its generation marker in this run, or in
    /// an earlier one.
    pub(crate) fn first(run: &str, age: Duration, life: u64, is_data_lost: bool) -> Self {
        let prefix = if is_data_lost { DATA_LOSS_PREFIX } else { "" };
        Self {
            run: run.to_owned(),
            age: age.min(LONGEST_AGE),
            life: format!("{prefix}{life:016x}"),
        }
    }

    /// Parses a stored record; `None` if the text is no age record.
    pub(crate) fn read(text: &[u8]) -> Option<Self> {
        let mut fields = std::str::from_utf8(text).ok()?.split(' ');
        let (run, age, life) = (fields.next()?, fields.next()?, fields.next()?);
        let record = Self {
            run: run.to_owned(),
            age: Duration::from_millis(age.parse().ok()?),
            life: life.to_owned(),
        };
        // Accept only the exact text that `Display` writes, so nothing may follow the life.
        let is_complete = !run.is_empty() && !life.is_empty();
        (is_complete && record.to_string().as_bytes() == text).then_some(record)
    }
}

impl fmt::Display for AgeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.run, self.age.as_millis(), self.life)
    }
}

/// The knowledge of one client about the age of a server run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    run: String,
    /// The life of the age record; `None` while the server has no record of this run.
    life: Option<String>,
    /// The age at the time `measured_at`.
    age: Duration,
    measured_at: Instant,
}

impl Watch {
    /// Returns what the client knows after the server has shown `record` in the run `run`. The reply arrived at `now`,
    /// and `earlier` is what the client knew until then.
    ///
    /// The client goes on counting only while the run and the life of the record stay the same. Otherwise it counts
    /// from the age in the record; without a record of this run, it counts from zero.
    pub(crate) fn after(
        earlier: Option<Self>,
        run: &str,
        record: Option<AgeRecord>,
        now: Instant,
    ) -> Self {
        let earlier = earlier.filter(|watch| watch.run == run);
        let record = record.filter(|record| record.run == run);
        let life = record.as_ref().map(|record| record.life.clone());
        let recorded_age = record.map_or(Duration::ZERO, |record| record.age);
        let same_life = earlier.filter(|earlier| earlier.life == life);
        let counted_age = same_life.map_or(Duration::ZERO, |earlier| earlier.age(now));
        Self {
            run: run.to_owned(),
            life,
            age: recorded_age.max(counted_age),
            measured_at: now,
        }
    }

    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    /// The server has kept its memory for at least this time at `now`.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        self.age + now.saturating_since(self.measured_at)
    }

    /// The life of the age record; empty while the server has no record of this run.
    pub(crate) fn life(&self) -> &str {
        self.life.as_deref().unwrap_or_default()
    }

    /// Whether the server has lost its generation marker before this age record began.
    pub(crate) fn is_after_loss(&self) -> bool {
        self.life().starts_with(DATA_LOSS_PREFIX)
    }

    /// For how much longer the votes of the master do not count; zero if they count.
    pub(crate) fn guarded_for(&self, now: Instant, max_ttl: Duration) -> Duration {
        max_ttl.saturating_sub(self.age(now))
    }

    /// The time at which the client raises the age record next; `None` if it is old enough for every client.
    ///
    /// While the master's votes do not count, other clients wait for the age, so the client raises it often. Later it
    /// raises it after each growth by a quarter: 36 times from 30 s to one day.
    pub(crate) fn raise_at(&self, max_ttl: Duration) -> Option<Instant> {
        let pause = if self.life.is_none() {
            Duration::ZERO
        } else if self.age < max_ttl {
            (max_ttl / 32).min(LONGEST_RAISE_PAUSE)
        } else {
            self.age / 4
        };
        (self.age < LONGEST_AGE).then(|| self.measured_at + pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_TTL: Duration = Duration::from_secs(30);

    fn at_secs(secs: u64) -> Instant {
        Instant::from_nanos(secs * 1_000_000_000)
    }

    #[expect(
        clippy::unnecessary_wraps,
        reason = "the tests compare it with a missing record"
    )]
    fn record(run: &str, secs: u64, life: u64) -> Option<AgeRecord> {
        let age = Duration::from_secs(secs);
        Some(AgeRecord::first(run, age, life, false))
    }

    fn age(watch: &Watch, now: u64) -> u64 {
        watch.age(at_secs(now)).as_secs()
    }

    #[test]
    fn age_of_a_server_run_grows_from_the_age_at_first_contact() {
        let watch = Watch::after(None, "a", record("a", 20, 1), at_secs(100));
        assert_eq!((age(&watch, 100), age(&watch, 107)), (20, 27));
        assert_eq!(
            watch.guarded_for(at_secs(107), MAX_TTL),
            Duration::from_secs(3)
        );
        assert_eq!(watch.guarded_for(at_secs(110), MAX_TTL), Duration::ZERO);
        // Another client has raised the record further, or not as far.
        for (recorded, expected_secs) in [(29, 29), (25, 27)] {
            let watch = Watch::after(
                Some(watch.clone()),
                "a",
                record("a", recorded, 1),
                at_secs(107),
            );
            assert_eq!(age(&watch, 107), expected_secs);
        }
    }

    #[test]
    fn age_begins_at_zero_without_an_age_record_of_the_present_server_run() {
        for recorded in [None, record("old", 86_400, 1)] {
            let watch = Watch::after(None, "a", recorded, at_secs(100));
            assert_eq!((age(&watch, 100), age(&watch, 130)), (0, 30));
            assert_eq!(watch.life(), "");
        }
        // This client has connected to the same run before, so it goes on counting.
        let watch = Watch::after(None, "a", None, at_secs(100));
        let watch = Watch::after(Some(watch), "a", None, at_secs(110));
        assert_eq!(age(&watch, 115), 15);
        let watch = Watch::after(Some(watch), "b", None, at_secs(115));
        assert_eq!(age(&watch, 115), 0);
    }

    /// A server that was emptied without a restart has the same run id, but its next record has another life.
    #[test]
    fn age_counted_for_an_earlier_memory_of_the_same_run_is_dropped() {
        let watch = Watch::after(None, "a", record("a", 1000, 1), at_secs(0));
        for recorded in [None, record("a", 5, 2)] {
            let age_shown = recorded.as_ref().map_or(0, |record| record.age.as_secs());
            let watch = Watch::after(Some(watch.clone()), "a", recorded, at_secs(10));
            assert_eq!(age(&watch, 10), age_shown);
        }
    }

    #[test]
    fn age_record_is_raised_often_while_votes_are_ignored_and_not_after_one_day() {
        let raise_time = |secs| {
            let watch = Watch::after(None, "a", record("a", secs, 1), at_secs(0));
            let raise_at = watch.raise_at(MAX_TTL);
            raise_at.map(|instant| instant.saturating_since(Instant::from_nanos(0)))
        };
        assert_eq!(raise_time(0), Some(MAX_TTL / 32));
        assert_eq!(raise_time(29), Some(MAX_TTL / 32));
        assert_eq!(raise_time(30), Some(Duration::from_millis(7_500)));
        assert_eq!(raise_time(86_399), Some(Duration::from_millis(21_599_750)));
        assert_eq!(raise_time(86_400), None);
        let unrecorded = Watch::after(None, "a", None, at_secs(7));
        assert_eq!(unrecorded.raise_at(MAX_TTL), Some(at_secs(7)));
        // With a long max_ttl, the pause while the votes do not count is one second.
        let recorded = Watch::after(None, "abc", record("abc", 1, 7), at_secs(7));
        let raise_at = |max_ttl| recorded.raise_at(Duration::from_secs(max_ttl));
        assert_eq!(raise_at(16), Some(at_secs(7) + Duration::from_millis(500)));
        assert_eq!([raise_at(32), raise_at(3_600)], [Some(at_secs(8)); 2]);
    }

    #[test]
    fn age_record_is_read_only_from_well_formed_text() {
        let written = AgeRecord::first("abc", Duration::from_millis(1_234), 7, true);
        assert_eq!(written.to_string(), "abc 1234 lost-0000000000000007");
        let record_read = AgeRecord::read(written.to_string().as_bytes());
        assert_eq!(record_read.as_ref(), Some(&written));
        assert!(Watch::after(None, "abc", record_read, at_secs(0)).is_after_loss());
        let first = record("abc", 1, 7);
        assert!(!Watch::after(None, "abc", first, at_secs(0)).is_after_loss());
        for malformed in [
            "",
            "abc",
            "abc 5",
            "abc 5 ",
            "abc -5 x",
            "abc +5 x",
            "abc 05 x",
            " 5 x",
            "abc 5 x y",
            "abc 5 x ",
            "abc 5.0 x",
            "abc 99999999999999999999 x",
        ] {
            assert_eq!(AgeRecord::read(malformed.as_bytes()), None, "{malformed}");
        }
    }
}
