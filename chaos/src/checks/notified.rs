//! A holder whose lock has ended is notified in time: at the deadline, even while masters are silent.

use quorate_promises::LossNotice;

use super::{Case, Finding, Violation, seconds};

/// How much later than the deadline the notification may reach the client's own log, in addition to the time the
/// machine is known to have delayed the client.
const SLACK: u64 = 250_000_000;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut violations = Vec::new();
    let (mut told, mut waited) = (0, 0);
    let mut in_time = LossNotice::new(SLACK);
    for attempt in &case.attempts {
        let (Some(_), Some(until)) = (attempt.obtained, attempt.until) else {
            continue;
        };
        let news = attempt.notified.as_ref().map(|(t, _)| *t);
        told += usize::from(news.is_some());
        // For every way in which the hold ended, check whether it lasted past the deadline.
        let ended = match (attempt.release, news) {
            (Some(release), Some(news)) => release.min(news),
            (Some(t), None) | (None, Some(t)) => t,
            // The client was killed, or only a part of its history is known.
            (None, None) => continue,
        };
        // Time in which that process did not run does not count.
        let kept = case.kept_waiting(&attempt.who, until, ended);
        waited = waited.max(kept);
        if let Some(late) = in_time.judge(until, ended, kept) {
            violations.push(Violation {
                checker: "notified".into(),
                from: until,
                to: ended,
                who: vec![attempt.who.clone()],
                resource: Some(attempt.resource.clone()),
                what: format!(
                    "{} worked on {:?} for {} after its lock had ended, and was {}",
                    attempt.name(),
                    attempt.resource,
                    seconds(late),
                    if news.is_some() {
                        "notified only then"
                    } else {
                        "never notified"
                    }
                ),
                excused: None,
            });
        }
    }
    let looked_at = format!(
        "{told} losses notified, the latest {} ms late, with at most {} ms of not running",
        in_time.worst() / 1_000_000,
        waited / 1_000_000
    );
    Finding::of("notified", looked_at, violations)
}
