//! Checks that a holder that loses its lock is notified by the deadline of its lease, even if masters do not answer.

use quorate_promises::LossNotice;

use super::{Case, Finding, Violation, seconds};

/// The accepted delay between the deadline of the lease and the recorded loss notification, in nanoseconds. Delays that
/// the machine caused are accepted in addition.
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
        // The hold ended with its release or with its loss notification, whichever came first. The end must not be
        // later than the deadline of the lease.
        let ended = match (attempt.release, news) {
            (Some(release), Some(news)) => release.min(news),
            (Some(t), None) | (None, Some(t)) => t,
            // The client was killed, or only part of its history is known, so there is nothing to check.
            (None, None) => continue,
        };
        // Time in which the client process could not run does not count towards the delay of the notification.
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
                    "{} continued to work on {:?} for {} after its lease had ended: the client was {}",
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
        "{told} loss notifications, at most {} ms late; time in which the client could not run (at most {} ms) is \
         not counted",
        in_time.worst() / 1_000_000,
        waited / 1_000_000
    );
    Finding::of("notified", looked_at, violations)
}
