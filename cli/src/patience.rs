//! Longer timeouts for commands that do not wait for a lock: `--try`, `quota --wait none`, `status` and `break`.
//!
//! On a busy machine, masters may answer late. A command that waits for a lock tries again. A command that does not
//! wait would report that the masters are down.

use std::time::{Duration, Instant};

use quorate::{AcquireError, Fault, NodeOutcome, NodeReport, Redlock, Settings};

use crate::config::{self, MasterOptions};
use crate::exit::Failure;

/// How long a command retries if too few masters answer, but a majority may be up: 10 s.
const RETRY_FOR: Duration = Duration::from_secs(10);
/// The default `connect_timeout` of commands that do not wait for a lock: 5 s.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The default `node_timeout` of commands that do not wait for a lock. If a tenth of the ttl is shorter,
/// [`lengthen_timeouts`] uses that instead.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause between two attempts of a command that does not wait for a lock: 50 ms.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Gives masters more time to answer: lengthens `connect_timeout` and `node_timeout`, unless the user has set them.
pub(crate) fn lengthen_timeouts(settings: &mut Settings, ttl: Duration) {
    settings.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
    settings
        .node_timeout
        .get_or_insert(NODE_TIMEOUT.min(ttl / 10));
}

/// Builds the client for a command that does not wait for a lock. This client waits longer for slow masters.
pub(crate) fn patient_redlock(masters: &mut MasterOptions) -> Result<Redlock, Failure> {
    let ttl = masters.settings().ttl();
    lengthen_timeouts(masters.settings_mut(), ttl);
    config::redlock(masters, None)
}

/// Limits the retries of a command that does not wait for a lock.
pub(crate) struct Patience {
    started_at: Instant,
}

impl Patience {
    pub(crate) fn begin() -> Self {
        Self {
            started_at: Instant::now(),
        }
    }

    /// Returns whether the command may retry: only until the time [`RETRY_FOR`] has passed since
    /// [`begin`](Self::begin). Before it returns true, it pauses briefly.
    pub(crate) async fn pause_to_retry(&mut self) -> bool {
        if self.started_at.elapsed() >= RETRY_FOR {
            return false;
        }
        tokio::time::sleep(RETRY_PAUSE).await;
        true
    }
}

/// Whether a retry is useful: the acquire may have failed only because masters answered late, or because they did not
/// answer.
pub(crate) fn is_undecided(error: &AcquireError) -> bool {
    match error {
        AcquireError::TooLate(_) => true,
        AcquireError::NoQuorum(no_quorum_failure) => {
            let fault = |report: &NodeReport| match &report.outcome {
                NodeOutcome::Fault(fault) => Some(fault.clone()),
                _ => None,
            };
            let faults: Vec<Fault> = no_quorum_failure.reports.iter().filter_map(fault).collect();
            may_be_up(faults.iter(), no_quorum_failure.reports.len())
        }
        _ => false,
    }
}

/// Whether a majority of the masters may be up; `masters` is their number. `faults` are the faults of the masters that
/// failed. A master may be up if its request timed out or was cancelled by the client. A master with any other fault
/// counts as down.
pub(crate) fn may_be_up<'a>(faults: impl Iterator<Item = &'a Fault>, masters: usize) -> bool {
    let failed = faults.filter(|fault| !fault.is_silence() && **fault != Fault::Withdrawn);
    failed.count() <= masters.saturating_sub(1) / 2
}
