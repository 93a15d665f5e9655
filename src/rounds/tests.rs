//! Tests of the results of one fan-out, answer by answer.
#![expect(
    clippy::unnecessary_wraps,
    reason = "all helpers have the return type of an answer, even those that never return a fault"
)]

use std::time::Duration;

use super::acquire::AcquireAnswers;
use super::fan_out::{Collect, Source};
use super::release::ReleaseAnswers;
use crate::node::{Answer, Fault, NodeName, Permit, QueueInfo};
use crate::protocol::instant::Instant;
use crate::protocol::permits::NextSlot;
use crate::protocol::quorum::{MasterSet, Quorum, Reason, Verdict};
use crate::report::NodeOutcome;

const STARTED_AT: Instant = Instant::from_nanos(1_000_000_000);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn source(node: usize, after: u64) -> Source {
    let now = STARTED_AT + ms(after);
    Source { node, now }
}

fn open_answers(nodes: usize) -> AcquireAnswers {
    AcquireAnswers::open(Quorum::new(nodes), STARTED_AT)
}

fn granted() -> Result<Answer, Fault> {
    let counter = Some(5);
    Ok(Answer::Granted { counter })
}

fn refused(left: u64, ahead: u64, ticket: u64, holder: Option<&str>) -> Result<Answer, Fault> {
    let holder = holder.map(|name| name.as_bytes().to_vec());
    let queue_info = QueueInfo {
        ahead,
        ticket,
        holder,
        ..QueueInfo::default()
    };
    Ok(Answer::Refused {
        ttl_left: Some(ms(left)),
        line: Some(Box::new(queue_info)),
    })
}

fn refused_without_queue() -> Result<Answer, Fault> {
    Ok(Answer::Refused {
        ttl_left: None,
        line: None,
    })
}

fn down() -> Result<Answer, Fault> {
    Err(Fault::Down("off".into()))
}

fn names(nodes: usize) -> Vec<NodeName> {
    let node_name = |node: usize| NodeName::new(format!("n{node}"));
    (0..nodes).map(node_name).collect()
}

#[test]
fn waiter_is_woken_once_for_the_verdict_and_once_for_the_reason_of_a_lost_round() {
    let mut won_round = open_answers(5);
    assert!(!won_round.record_answer(source(0, 1), granted()));
    assert!(!won_round.record_answer(source(1, 1), granted()));
    assert_eq!(won_round.verdict(), None);
    assert!(won_round.record_answer(source(2, 1), granted()));
    assert_eq!(won_round.verdict(), Some(Verdict::Won));
    assert!(
        !won_round.record_answer(source(3, 1), granted()),
        "the waiter must be woken only once"
    );
    // After two refusals and a fault, no majority is possible. The next answer decides between contention and an
    // outage.
    let mut failed_round = open_answers(5);
    assert!(!failed_round.record_answer(source(0, 1), refused_without_queue()));
    assert!(!failed_round.record_answer(source(1, 1), refused_without_queue()));
    assert!(failed_round.record_answer(source(2, 1), down()));
    assert_eq!(failed_round.verdict(), Some(Verdict::Failed));
    assert_eq!(failed_round.round.reason(), None);
    assert!(failed_round.record_answer(source(3, 1), refused_without_queue()));
    assert_eq!(failed_round.round.reason(), Some(Reason::Contention));
}

#[test]
fn each_answer_wakes_a_future_that_waits_for_the_masters_to_agree_on_a_fencing_token() {
    let granted_with = |number| {
        let counter = Some(number);
        Ok(Answer::Granted { counter })
    };
    let mut round = open_answers(5);
    for (node, number) in [(0, 5), (1, 6)] {
        assert!(!round.record_answer(source(node, 1), granted_with(number)));
    }
    assert!(round.record_answer(source(2, 1), granted_with(7)));
    // A majority granted the lock, with different numbers. No future waits for them yet.
    assert!(!round.record_answer(source(3, 1), granted_with(7)));
    assert_eq!(round.agreed_or_complete(), None);
    assert!(round.record_answer(source(4, 1), granted_with(7)));
    assert_eq!(round.agreed_or_complete(), Some(()));
}

#[test]
fn refused_round_reports_holder_and_queue() {
    let mut answers = open_answers(5);
    assert!(answers.refusals().is_none());
    assert_eq!(
        (answers.granting_masters(), answers.majority_free_in()),
        (MasterSet::default(), None)
    );
    answers.record_answer(source(1, 1), refused(90, 2, 7, Some("a")));
    answers.record_answer(source(3, 1), granted());
    assert_eq!(answers.granting_masters(), MasterSet::single(3));
    assert_eq!(
        answers.majority_free_in(),
        None,
        "two of five masters must not count as a majority"
    );
    answers.record_answer(source(4, 1), refused(40, 3, 6, Some("b")));
    answers.record_answer(source(2, 1), refused(60, 1, 9, None));
    // The lock is free on four masters in 0, 40, 60 and 90 ms. So it is free on a majority of the five in 60 ms.
    assert_eq!(answers.majority_free_in(), Some(ms(60)));
    assert_eq!(answers.ttl_left(), Some(ms(90)));
    let refusals = answers.refusals().expect("three");
    assert_eq!((refusals.largest_ticket, refusals.ahead), (9, Some(3)));
    assert_eq!(refusals.holder.as_deref(), Some(&b"a"[..]));
    // A refusal without details about the queue: the number of waiters is unknown.
    let mut plain_answers = open_answers(3);
    plain_answers.record_answer(source(0, 1), refused_without_queue());
    let refusals = plain_answers.refusals().expect("one");
    assert_eq!((refusals.largest_ticket, refusals.ahead), (0, None));
    assert_eq!(plain_answers.ttl_left(), None);
}

#[test]
fn lock_counts_as_foreign_only_if_foreign_values_prevent_a_majority() {
    let token = "0123456789abcdef".repeat(2);
    let mut mixed_answers = open_answers(3);
    let values = ["another program", &*token, "a third program"];
    for (node, (value, is_foreign)) in values.into_iter().zip([false, false, true]).enumerate() {
        mixed_answers.record_answer(source(node, 1), refused(90, 0, 0, Some(value)));
        assert_eq!(mixed_answers.is_foreign(), is_foreign, "{value}");
    }
    let mut own_answers = open_answers(3);
    let values = [&*token, "quorate:shared", "quorate:owner:me"];
    for (node, value) in values.into_iter().enumerate() {
        own_answers.record_answer(source(node, 1), refused(90, 0, 0, Some(value)));
        assert!(!own_answers.is_foreign(), "{value}");
    }
}

#[test]
fn granted_reply_is_replaced_if_the_votes_of_its_master_do_not_count() {
    let mut answers = open_answers(3);
    answers.record_answer(source(0, 1), granted());
    answers.record_answer(source(1, 1), granted());
    answers.record_doubt(1, STARTED_AT + ms(2), ms(900));
    let names = names(3);
    let reports = answers.reports(names.iter());
    assert_eq!(reports[0].outcome, NodeOutcome::Yes);
    let doubted = NodeOutcome::Fault(Fault::Quarantined(ms(900)));
    assert_eq!(reports[1].outcome, doubted);
    assert!(!reports[1].late);
}

#[test]
fn majority_counts_as_refused_only_if_refusals_alone_prevent_it() {
    let mut answers = open_answers(3);
    answers.record_answer(source(0, 1), refused_without_queue());
    assert!(!answers.majority_refused());
    answers.record_answer(source(1, 1), refused_without_queue());
    assert!(answers.majority_refused());
    let mut failed = open_answers(3);
    failed.record_answer(source(0, 1), down());
    failed.record_answer(source(1, 1), down());
    assert!(!failed.majority_refused());
}

#[test]
fn abandoned_round_counts_masters_that_stayed_silent_for_the_timeout_as_failed() {
    let mut early_answers = open_answers(3);
    early_answers.record_answer(source(0, 1), refused_without_queue());
    early_answers.fail_silent_masters(STARTED_AT + ms(49), ms(50));
    assert_eq!(
        early_answers.verdict(),
        None,
        "there must be no verdict while the silent masters have time left"
    );
    assert_eq!(early_answers.round.silent().count(), 2);
    let mut late_answers = open_answers(3);
    late_answers.record_answer(source(0, 1), refused_without_queue());
    late_answers.fail_silent_masters(STARTED_AT + ms(50), ms(50));
    assert_eq!(late_answers.round.silent().count(), 0);
    assert_eq!(late_answers.round.reason(), Some(Reason::Outage));
    // The silent masters may still execute the request, so they need a release.
    assert!(
        late_answers.round.must_undo(1)
            && late_answers.round.must_undo(2)
            && !late_answers.round.must_undo(0)
    );
    let names = names(3);
    let reports = late_answers.reports(names.iter());
    assert!(reports[1].to_string().contains("50ms"), "{}", reports[1]);
    assert!(!reports[1].late && !reports[2].late);
    // An answer that arrives after the timeout is reported as late.
    late_answers.record_answer(source(1, 60), granted());
    let reports = late_answers.reports(names.iter());
    assert!(reports[1].late && !reports[2].late);
    assert_eq!(reports[1].latency, Some(ms(60)));
}

#[test]
fn answer_after_the_verdict_is_reported_as_late() {
    let mut answers = open_answers(3);
    for node in 0..3 {
        answers.record_answer(source(node, node as u64), granted());
    }
    let names = names(3);
    let late_reports = answers.reports(names.iter()).into_iter();
    assert_eq!(
        late_reports.map(|report| report.late).collect::<Vec<_>>(),
        [false, false, true]
    );
    let mut timed_out = open_answers(1);
    timed_out.record_answer(source(0, 50), Err(Fault::Timeout(ms(50))));
    timed_out.record_late_answer(source(0, 70), &granted());
    assert!(timed_out.reports(names.iter())[0].late);
}

#[test]
fn lasting_faults_of_a_majority_make_waiting_hopeless() {
    let denied_answer = || Err(Fault::Denied("NOPERM".into()));
    let mut answers = open_answers(3);
    answers.record_answer(source(0, 1), denied_answer());
    answers.record_answer(source(1, 1), down());
    assert!(!answers.is_hopeless());
    answers.record_answer(source(2, 1), denied_answer());
    assert!(answers.is_hopeless());
}

#[test]
fn master_that_was_down_needs_no_release() {
    let mut answers = open_answers(3);
    answers.record_answer(source(0, 1), down());
    answers.record_answer(source(1, 1), Err(Fault::Timeout(ms(50))));
    answers.record_answer(source(2, 1), Ok(Answer::Confirmed));
    let must_undo: Vec<bool> = (0..3).map(|node| answers.round.must_undo(node)).collect();
    assert_eq!(must_undo, [false, true, true]);
}

#[test]
fn release_is_settled_when_a_majority_or_every_asked_master_has_answered() {
    let mut release = ReleaseAnswers::open(Quorum::new(5), 5, STARTED_AT);
    let released = |was_ours| Ok(Answer::Released(was_ours));
    assert!(!release.record_answer(source(0, 1), released(true)));
    assert!(!release.record_answer(source(1, 1), down()));
    assert!(!release.record_answer(source(2, 1), released(false)));
    assert!(!release.is_settled());
    assert!(release.record_answer(source(3, 1), released(true)));
    assert!(release.is_settled());
    assert!(
        release.record_answer(source(4, 1), down()),
        "the last answer must wake the waiter"
    );
    assert_eq!(release.counts(), (2, 1, 2));
    let mut more_releases = ReleaseAnswers::open(Quorum::new(5), 5, STARTED_AT);
    for node in 0..3 {
        more_releases.record_answer(source(node, 1), released(true));
    }
    assert!(
        !more_releases.record_answer(source(3, 1), released(true)),
        "an answer after the result is settled must not wake the waiter"
    );
    // If less than a majority was asked, the release waits for all masters that were asked.
    let mut few_masters = ReleaseAnswers::open(Quorum::new(5), 2, STARTED_AT);
    assert!(!few_masters.record_answer(source(0, 1), down()) && !few_masters.is_settled());
    assert!(few_masters.record_answer(source(1, 1), down()) && few_masters.is_settled());
}

#[test]
fn slot_is_free_if_a_majority_of_the_masters_shows_it_as_free() {
    let mut answers = open_answers(3);
    assert_eq!(answers.free_slots(), None);
    let last_slot = 1 << 63;
    let free_slots = [last_slot | 0b0011, last_slot | 0b0101, 0b0001];
    for (node, free) in free_slots.into_iter().enumerate() {
        let line = Some(Box::new(QueueInfo {
            free,
            ..QueueInfo::default()
        }));
        let ttl_left = Some(ms(9));
        answers.record_answer(source(node, 1), Ok(Answer::Refused { ttl_left, line }));
        let expected = if node == 0 { 0 } else { last_slot | 1 };
        assert_eq!(answers.free_slots(), Some(expected), "master {node}");
    }
}

#[test]
fn wait_for_an_agreement_ends_when_no_answer_is_missing() {
    let mut answers = open_answers(3);
    for (node, counter) in [5, 6, 7].into_iter().enumerate() {
        assert_eq!(answers.agreed_or_complete(), None);
        let counter = Some(counter);
        answers.record_answer(source(node, 1), Ok(Answer::Granted { counter }));
    }
    assert_eq!(answers.agreed_or_complete(), Some(()));
}

#[test]
fn wait_for_an_agreement_ends_when_a_majority_agrees_although_an_answer_is_missing() {
    let mut answers = open_answers(3);
    answers.record_answer(source(0, 1), granted());
    assert_eq!(answers.agreed_or_complete(), None);
    answers.record_answer(source(1, 1), granted());
    assert_eq!(answers.agreed_or_complete(), Some(()));
}

#[test]
fn no_other_slot_is_asked_for_behind_a_waiter_or_without_a_report_of_the_queue() {
    let permit = Permit::new(b"a"[..].into(), 0, 4);
    let all_held = Some(NextSlot::AllHeld);
    for (ahead, next_slot) in [(None, all_held), (Some(1), all_held), (Some(0), None)] {
        let mut answers = AcquireAnswers::open(Quorum::new(3), STARTED_AT);
        if let Some(ahead) = ahead {
            let queue_info = QueueInfo {
                ahead,
                free: 0b1110,
                ..QueueInfo::default()
            };
            let answer = Answer::Refused {
                ttl_left: None,
                line: Some(Box::new(queue_info)),
            };
            answers.record_answer(source(0, 1), Ok(answer));
        }
        assert_eq!(answers.next_slot(&permit, 0), next_slot, "{ahead:?}");
    }
}
