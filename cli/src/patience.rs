//! Commands that do not wait for a lock have longer timeouts: `--try`, `quota --wait none`, `status` and `break`.
//!
//! On a busy machine, masters may answer late. With the usual timeouts, these commands would report that the masters
//! are down.

use std::time::{Duration, Instant};

use quorate::{AcquireError, Fault, NodeOutcome, NodeReport, Redlock, Settings};

use crate::config::{self, MasterOptions};
use crate::exit::Failure;

/// How long a command retries if too few masters answer, but a majority may be up: 10 s.
const UNDECIDED: Duration = Duration::from_secs(10);
/// The default `connect_timeout` of commands that do not wait for a lock: 5 s.
const CONNECT: Duration = Duration::from_secs(5);
/// The default `node_timeout` of commands that do not wait for a lock: 1 s, or a tenth of the ttl if that is shorter.
const ANSWER: Duration = Duration::from_secs(1);
/// The pause between two attempts of a command that does not wait for a lock: 50 ms.
const PAUSE: Duration = Duration::from_millis(50);

/// Gives masters more time to answer: uses [`CONNECT`] and [`ANSWER`] for the timeouts that the user has not set.
pub(crate) fn be_patient(settings: &mut Settings, ttl: Duration) {
    settings.connect_timeout.get_or_insert(CONNECT);
    settings.node_timeout.get_or_insert(ANSWER.min(ttl / 10));
}

/// Builds the client for a command that does not wait for a lock. This client waits longer for slow masters.
pub(crate) fn patient(masters: &mut MasterOptions) -> Result<Redlock, Failure> {
    let ttl = masters.settings().ttl();
    be_patient(masters.settings_mut(), ttl);
    config::redlock(masters, None)
}

/// Limits the retries of a command that does not wait for a lock.
pub(crate) struct Patience {
    began: Instant,
}

impl Patience {
    pub(crate) fn begin() -> Self {
        Self {
            began: Instant::now(),
        }
    }

    /// Pauses for [`PAUSE`] and returns true: the command may retry. Returns false immediately if [`UNDECIDED`] has
    /// passed since [`begin`](Self::begin).
    pub(crate) async fn lets_ask_again(&mut self) -> bool {
        if self.began.elapsed() >= UNDECIDED {
            return false;
        }
        tokio::time::sleep(PAUSE).await;
        true
    }
}

/// Whether the acquire may have failed only because masters answered late or not at all. If so, a retry is useful.
pub(crate) fn is_undecided(error: &AcquireError) -> bool {
    match error {
        AcquireError::TooLate(_) => true,
        AcquireError::NoQuorum(missed) => {
            let fault = |report: &NodeReport| match &report.outcome {
                NodeOutcome::Fault(fault) => Some(fault.clone()),
                _ => None,
            };
            let faults: Vec<Fault> = missed.reports.iter().filter_map(fault).collect();
            may_be_up(faults.iter(), missed.reports.len())
        }
        _ => false,
    }
}

/// Whether a majority of the `all` masters may be up. `faults` are the faults of the masters that failed. A master with
/// a timeout or a withdrawn request may be up; a master with any other fault counts as down.
pub(crate) fn may_be_up<'a>(faults: impl Iterator<Item = &'a Fault>, all: usize) -> bool {
    let failed = faults.filter(|fault| !fault.is_silence() && **fault != Fault::Withdrawn);
    failed.count() <= all.saturating_sub(1) / 2
}
