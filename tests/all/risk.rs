//! Tests of the notice that a held lock may be lost soon.

use std::time::Duration;

use quorate::testing::{Condition, Masters};
use quorate::{AtRisk, LockGuard, LossCause, NodeOutcome, Redlock, RiskReason, RiskWatch};

use crate::support::{self, PATIENCE, ms, secs};

const TTL: Duration = secs(30);
const MARGIN: Duration = secs(8);
/// More than any test waits for something that happens.
const LONG: Duration = secs(1_000_000);

fn client_of(masters: &Masters) -> Redlock {
    let settings = Redlock::builder().in_memory_on(masters);
    let settings = settings.max_ttl(TTL).ttl(TTL);
    settings.build().expect("good settings")
}

async fn acquire(masters: &Masters) -> LockGuard {
    client_of(masters).acquire("r").await.expect("free")
}

fn set_majority(masters: &Masters, condition: Condition) {
    masters[0].set_condition(condition);
    masters[1].set_condition(condition);
}

async fn notice(risks: &mut RiskWatch) -> AtRisk {
    let notice = tokio::time::timeout(LONG, risks.next()).await;
    notice.expect("a notice").expect("the lock is held")
}

/// Checks that there is no notice within this time, and that the lock is still held.
async fn assert_no_notice(risks: &mut RiskWatch, time: Duration) {
    let notice = tokio::time::timeout(time, risks.next()).await;
    assert!(notice.is_err(), "{notice:?}");
}

#[tokio::test(start_paused = true)]
async fn notice_comes_once_in_each_outage_and_before_the_loss() {
    let masters = Masters::new(3);
    let guard = acquire(&masters).await;
    let mut risks = guard.at_risk(MARGIN);
    assert_no_notice(&mut risks, 10 * TTL).await;
    for condition in [Condition::Down, Condition::Mute, Condition::Down] {
        set_majority(&masters, condition);
        let risk = notice(&mut risks).await;
        assert_eq!(risk.reason, RiskReason::RenewalFailed, "{risk:?}");
        assert_eq!(risk.valid_until, guard.valid_until());
        let slack = ms(5);
        assert!(
            risk.remaining <= MARGIN && risk.remaining + slack > MARGIN,
            "{risk:?}"
        );
        assert!(matches!(risk.reports[0].outcome, NodeOutcome::Fault(_)));
        assert!(matches!(risk.reports[2].outcome, NodeOutcome::Yes));
        assert!(risk.to_string().contains("unless it is extended"), "{risk}");
        let master = risk.reports[0].node.to_string();
        assert!(risk.details().contains(&master), "{}", risk.details());
        assert!(!risk.to_string().contains(&master), "{risk}");
        assert_no_notice(&mut risks, MARGIN / 2).await;
        assert!(guard.is_valid());
        let checked = guard.risk(MARGIN).expect("held").expect("at risk");
        assert_eq!(checked.reason, RiskReason::RenewalFailed);
        assert_eq!(guard.risk(ms(1)), Ok(None));
        set_majority(&masters, Condition::Up);
        assert_no_notice(&mut risks, 3 * TTL).await;
        assert_eq!(guard.risk(MARGIN), Ok(None));
    }
    set_majority(&masters, Condition::Down);
    notice(&mut risks).await;
    assert_eq!(risks.next().await, Err(LossCause::Expired));
    assert_eq!(risks.next().await, Err(LossCause::Expired));
    assert_eq!(guard.risk(MARGIN), Err(LossCause::Expired));
}

#[tokio::test(start_paused = true)]
async fn margin_above_half_of_the_ttl_gives_no_notice_while_renewals_succeed() {
    let masters = Masters::new(3);
    let guard = acquire(&masters).await;
    let mut risks = guard.at_risk(10 * TTL);
    assert_no_notice(&mut risks, 20 * TTL).await;
    set_majority(&masters, Condition::Down);
    let risk = notice(&mut risks).await;
    assert!(
        risk.remaining < TTL / 2 && risk.remaining > TTL / 3,
        "{risk:?}"
    );
    assert_eq!(risk.reason, RiskReason::RenewalFailed);
}

#[tokio::test(start_paused = true)]
async fn margin_of_zero_gives_no_notice_before_the_loss() {
    let masters = Masters::new(3);
    let guard = acquire(&masters).await;
    set_majority(&masters, Condition::Down);
    let mut risks = guard.at_risk(Duration::ZERO);
    assert_eq!(risks.next().await, Err(LossCause::Expired));
}

#[tokio::test(start_paused = true)]
async fn watches_with_different_margins_and_dropped_waits_are_independent() {
    let masters = Masters::new(3);
    let guard = acquire(&masters).await;
    let (mut early, mut late) = (guard.at_risk(MARGIN), guard.at_risk(MARGIN / 2));
    set_majority(&masters, Condition::Down);
    // Each of these waits is dropped after a while.
    let mut dropped_waits = 0;
    let early_risk = loop {
        match tokio::time::timeout(ms(70), early.next()).await {
            Ok(risk) => break risk.expect("held"),
            Err(_) => dropped_waits += 1,
        }
    };
    assert!(dropped_waits > 10);
    let late_risk = notice(&mut late).await;
    assert!(late_risk.remaining <= MARGIN / 2 && early_risk.remaining > MARGIN / 2);
    assert_eq!(late_risk.valid_until, early_risk.valid_until);
    // A watch that is made during an episode gives a notice at once.
    let now = tokio::time::Instant::now();
    notice(&mut guard.at_risk(MARGIN)).await;
    assert_eq!(now.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_and_max_hold_give_a_notice_with_their_own_reason() {
    let redlock = client_of(&Masters::new(3));
    let fixed = redlock.lock("fixed").renewal(false).acquire().await;
    let fixed = fixed.expect("free");
    let mut risks = fixed.at_risk(2 * TTL / 3);
    let risk = notice(&mut risks).await;
    assert_eq!(risk.reason, RiskReason::NotRenewed);
    assert!(risk.remaining <= 2 * TTL / 3 && risk.reports.is_empty());
    fixed.extend(TTL).await.expect("extended");
    assert_eq!(notice(&mut risks).await.reason, RiskReason::NotRenewed);
    let at_once = notice(&mut fixed.at_risk(10 * TTL)).await;
    assert_eq!(at_once.reason, RiskReason::NotRenewed);
    assert_eq!(risks.next().await, Err(LossCause::Expired));
    let limited = redlock.lock("limited").max_hold(3 * TTL).acquire().await;
    let limited = limited.expect("free");
    let mut risks = limited.at_risk(MARGIN);
    assert_eq!(notice(&mut risks).await.reason, RiskReason::MaxHold);
    assert_eq!(risks.next().await, Err(LossCause::MaxHold));
}

#[tokio::test(start_paused = true)]
async fn lock_that_is_released_taken_away_or_paused_ends_the_watch_without_a_notice() {
    let masters = Masters::new(3);
    let redlock = client_of(&masters);
    let guard = acquire(&masters).await;
    let mut risks = guard.at_risk(MARGIN);
    drop(guard);
    assert_eq!(risks.next().await, Err(LossCause::Released));
    let guard = acquire(&masters).await;
    let mut risks = guard.at_risk(MARGIN);
    redlock.break_lock("r").await.expect("a valid name");
    assert_eq!(risks.next().await, Err(LossCause::TakenAway));
    let guard = redlock.acquire("r").await.expect("free");
    let mut risks = guard.at_risk(MARGIN);
    // As if the process were paused: no other task runs.
    tokio::time::advance(2 * TTL).await;
    assert_eq!(risks.next().await, Err(LossCause::Expired));
}

#[tokio::test]
async fn holder_has_the_margin_left_when_real_masters_are_killed() {
    let masters = support::masters(3);
    let redlock = support::redlock(&masters);
    let request = redlock.lock("job").ttl(secs(6));
    let guard = request.acquire().await.expect("free");
    let mut risks = guard.at_risk(secs(2));
    assert_no_notice(&mut risks, secs(7)).await;
    masters[0].kill().expect("killed");
    assert_no_notice(&mut risks, secs(7)).await;
    masters[1].kill().expect("killed");
    let risk = tokio::time::timeout(PATIENCE, risks.next()).await;
    let risk = risk.expect("a notice").expect("the lock is still held");
    assert_eq!(risk.reason, RiskReason::RenewalFailed, "{risk:?}");
    // A busy machine may delay this task, but not by so much that the lock is lost.
    assert!(
        !risk.remaining.is_zero() && risk.remaining <= secs(2),
        "{risk:?}"
    );
    let fault_count = risk.reports.iter();
    let fault_count = fault_count.filter(|report| matches!(report.outcome, NodeOutcome::Fault(_)));
    assert_eq!(fault_count.count(), 2, "{risk:?}");
    assert!(guard.is_valid());
    let loss = tokio::time::timeout(PATIENCE, risks.next()).await;
    assert_eq!(loss.expect("a loss"), Err(LossCause::Expired));
}
