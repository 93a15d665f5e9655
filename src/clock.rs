//! The time that leases are measured with: monotonic, and going on while the machine sleeps.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::protocol::instant::Instant;

impl Instant {
    /// The present time on the suspend-aware monotonic clock.
    pub fn now() -> Self {
        monotonic()
    }
}

/// `CLOCK_BOOTTIME`: tokio's and std's clock stand still while the machine sleeps, the masters'
/// ttl does not.
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

/// The clock of tokio, which a test can stop and push on (`tokio::time::pause`), on the scale of the others: what
/// masters in memory, and who locks over them, go by.
#[cfg(any(test, feature = "testing", feature = "node"))]
pub(crate) mod paced {
    use std::sync::LazyLock;
    use std::time::Duration;

    use crate::protocol::instant::Instant;

    /// One moment on all clocks.
    struct Origin {
        tokio: std::time::Instant,
        ours: Instant,
        wall_micros: u64,
    }

    static ORIGIN: LazyLock<Origin> = LazyLock::new(|| {
        let reading = || {
            // Ours first: read late, this clock is never ahead of it, and a lease never longer than it is.
            let ours = Instant::now();
            let tokio = std::time::Instant::now();
            (Instant::now().saturating_since(ours), ours, tokio)
        };
        // A reading that was interrupted is none.
        let readings = (0..16).map(|_| reading());
        let (_, ours, tokio) = readings
            .min_by_key(|(took, ..)| *took)
            .expect("there are sixteen");
        Origin {
            tokio,
            ours,
            wall_micros: super::wall_micros(),
        }
    });

    /// The distance of tokio's present from that moment: ahead of it, or behind it as where it was stopped before.
    fn since() -> Result<Duration, Duration> {
        let now = tokio::time::Instant::now().into_std();
        let ahead = now.checked_duration_since(ORIGIN.tokio);
        ahead.ok_or_else(|| ORIGIN.tokio.saturating_duration_since(now))
    }

    pub(crate) fn now() -> Instant {
        match since() {
            Ok(ahead) => ORIGIN.ours + ahead,
            Err(behind) => {
                let behind = u64::try_from(behind.as_nanos()).unwrap_or(u64::MAX);
                Instant::from_nanos(ORIGIN.ours.as_nanos().saturating_sub(behind))
            }
        }
    }

    pub(crate) fn wall_micros() -> u64 {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        match since() {
            Ok(ahead) => ORIGIN.wall_micros.saturating_add(micros(ahead)),
            Err(behind) => ORIGIN.wall_micros.saturating_sub(micros(behind)),
        }
    }
}

/// The wall clock in microseconds since 1970, only ever used to propose fencing numbers.
pub(crate) fn wall_micros() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
