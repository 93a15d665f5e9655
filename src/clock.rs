//! The clock that measures leases: monotonic, and on Linux it also advances while the machine is suspended.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::protocol::instant::Instant;

impl Instant {
    /// The current time on the monotonic clock that measures leases. On Linux this clock also advances while the
    /// machine is suspended.
    pub fn now() -> Self {
        monotonic()
    }
}

/// Converts to a `std` instant that is equally far from now. The result is wrong after a suspension of the machine,
/// because the `std` clock may stop during a suspension.
impl From<Instant> for std::time::Instant {
    fn from(instant: Instant) -> Self {
        let (now, std) = (Instant::now(), Self::now());
        let remaining = instant.saturating_since(now);
        let elapsed = now.saturating_since(instant);
        // `std` cannot represent `Instant::NEVER` on every system, so use 100 years from now.
        let far_future = || std + Duration::from_secs(100 * 365 * 24 * 3_600);
        let later_time = std.checked_add(remaining).unwrap_or_else(far_future);
        later_time.checked_sub(elapsed).unwrap_or(std)
    }
}

/// Converts to an [`Instant`] that is equally far from now.
impl From<std::time::Instant> for Instant {
    fn from(instant: std::time::Instant) -> Self {
        let (now, std) = (Self::now(), std::time::Instant::now());
        let elapsed = std.saturating_duration_since(instant);
        let later_time = now + instant.saturating_duration_since(std);
        let elapsed_nanos = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        Self::from_nanos(later_time.as_nanos().saturating_sub(elapsed_nanos))
    }
}

impl From<Instant> for tokio::time::Instant {
    fn from(instant: Instant) -> Self {
        std::time::Instant::from(instant).into()
    }
}

impl From<tokio::time::Instant> for Instant {
    fn from(instant: tokio::time::Instant) -> Self {
        instant.into_std().into()
    }
}

/// Returns the time of `CLOCK_BOOTTIME`. This clock advances while the machine is suspended, as the TTL on the masters
/// does. The clocks of tokio and std stop during a suspension.
#[cfg(target_os = "linux")]
fn monotonic() -> Instant {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::Boottime);
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(secs * 1_000_000_000 + nanos)
}

#[cfg(not(target_os = "linux"))]
fn monotonic() -> Instant {
    use std::sync::LazyLock;
    static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    Instant::from_nanos(u64::try_from(ORIGIN.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Identifies this machine since its last start, or the container if containers of this machine have clocks of their
/// own. All processes with this number read the same monotonic clock. `None` if the system does not say it.
#[cfg(target_os = "linux")]
pub(crate) fn machine_id() -> Option<u64> {
    use std::sync::LazyLock;
    static MACHINE_ID: LazyLock<Option<u64>> = LazyLock::new(|| {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        // Processes in different time namespaces may read different monotonic clocks.
        let clocks = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
        let text = [boot.as_bytes(), clocks.as_os_str().as_encoded_bytes()].concat();
        // FNV-1a gives the same number in every program.
        let hash_byte =
            |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Some(text.iter().fold(0xcbf2_9ce4_8422_2325, hash_byte))
    });
    *MACHINE_ID
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn machine_id() -> Option<u64> {
    None
}

/// Tokio's clock, converted to [`Instant`] and to wall-clock time. A test can pause and advance Tokio's clock
/// (`tokio::time::pause`). Masters in memory and their clients use this clock.
#[cfg(any(test, feature = "testing", feature = "node"))]
pub(crate) mod paced {
    use std::sync::LazyLock;
    use std::time::Duration;

    use crate::protocol::instant::Instant;

    /// One moment, as three clocks show it: tokio's, the library's and the wall clock.
    struct Origin {
        tokio: std::time::Instant,
        own: Instant,
        wall_micros: u64,
    }

    static ORIGIN: LazyLock<Origin> = LazyLock::new(|| {
        let read_clocks = || {
            // Read the library's clock first. If the thread is interrupted between the two readings, a lease then ends
            // too early, never too late.
            let own_now = Instant::now();
            let tokio = std::time::Instant::now();
            (Instant::now().saturating_since(own_now), own_now, tokio)
        };
        // Keep the fastest of 16 readings, because the thread may be interrupted between reading the two clocks.
        let readings = (0..16).map(|_| read_clocks());
        let (_, own, tokio) = readings
            .min_by_key(|(elapsed, ..)| *elapsed)
            .expect("at least one clock reading must exist");
        Origin {
            tokio,
            own,
            wall_micros: super::wall_micros(),
        }
    });

    /// The time on tokio's clock since the origin. If tokio's clock is behind the origin, returns the difference as an
    /// error. This happens if a test paused the clock before the origin was read.
    fn since_origin() -> Result<Duration, Duration> {
        let now = tokio::time::Instant::now().into_std();
        let ahead = now.checked_duration_since(ORIGIN.tokio);
        ahead.ok_or_else(|| ORIGIN.tokio.saturating_duration_since(now))
    }

    pub(crate) fn now() -> Instant {
        match since_origin() {
            Ok(ahead) => ORIGIN.own + ahead,
            Err(behind) => {
                let behind = u64::try_from(behind.as_nanos()).unwrap_or(u64::MAX);
                Instant::from_nanos(ORIGIN.own.as_nanos().saturating_sub(behind))
            }
        }
    }

    pub(crate) fn wall_micros() -> u64 {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        match since_origin() {
            Ok(ahead) => ORIGIN.wall_micros.saturating_add(micros(ahead)),
            Err(behind) => ORIGIN.wall_micros.saturating_sub(micros(behind)),
        }
    }
}

/// The wall clock in microseconds since 1970 (UTC), for example for fencing tokens and notes.
pub(crate) fn wall_micros() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instant_converted_to_std_and_back_differs_by_less_than_five_seconds() {
        let minute = Duration::from_secs(60);
        let later = Instant::now() + minute;
        let converted_back = Instant::from(std::time::Instant::from(later));
        let difference =
            converted_back.saturating_since(later) + later.saturating_since(converted_back);
        assert!(difference < Duration::from_secs(5), "{difference:?}");
        let remaining = std::time::Instant::from(later).elapsed();
        assert!(remaining.is_zero());
        let converted_never = std::time::Instant::from(Instant::NEVER);
        assert!(converted_never > std::time::Instant::now() + minute);
    }
}
