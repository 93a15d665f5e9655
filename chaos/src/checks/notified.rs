//! Checks that a holder that loses its lock is notified by the deadline of its lease, even if masters do not answer.

use quorate_promises::LossNotice;

use super::{Case, Finding, Violation, seconds};

/// The accepted delay between the deadline of the lease and the recorded loss notification, in nanoseconds. Delays that
/// the machine caused are accepted in addition.
const ACCEPTED_DELAY: u64 = 250_000_000;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut violations = Vec::new();
    let (mut notice_count, mut longest_delay) = (0, 0);
    let mut loss_notice = LossNotice::new(ACCEPTED_DELAY);
    for attempt in &case.attempts {
        let (Some(_), Some(until)) = (attempt.obtained_at, attempt.until) else {
            continue;
        };
        let notified_at = attempt.loss.as_ref().map(|(t, _)| *t);
        notice_count += usize::from(notified_at.is_some());
        // The hold ended with its release or with its loss notification, whichever came first. The end must not be
        // later than the deadline of the lease.
        let ended_at = match (attempt.release_at, notified_at) {
            (Some(release), Some(notified_at)) => release.min(notified_at),
            (Some(t), None) | (None, Some(t)) => t,
            // The client was killed, or only part of its history is known, so there is nothing to check.
            (None, None) => continue,
        };
        // Time in which the client process could not run does not count towards the delay of the notification.
        let delay = case.delay_time(&attempt.process, until, ended_at);
        longest_delay = longest_delay.max(delay);
        if let Some(overrun) = loss_notice.judge(until, ended_at, delay) {
            violations.push(Violation {
                checker: "notified".into(),
                from: until,
                to: ended_at,
                processes: vec![attempt.process.clone()],
                resource: Some(attempt.resource.clone()),
                description: format!(
                    "{} continued to work on {:?} for {} after its lease had ended: the client was {}",
                    attempt.name(),
                    attempt.resource,
                    seconds(overrun),
                    if notified_at.is_some() {
                        "notified only then"
                    } else {
                        "never notified"
                    }
                ),
                excused: None,
            });
        }
    }
    let coverage = format!(
        "{notice_count} loss notifications, at most {} ms late; time in which the client could not run (at most {} ms) is \
         not counted",
        loss_notice.worst() / 1_000_000,
        longest_delay / 1_000_000
    );
    Finding::new("notified", coverage, violations)
}
