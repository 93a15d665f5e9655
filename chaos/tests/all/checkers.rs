//! Tests the checkers with histories made by hand: each checker must find the violations of its own rule, and no
//! others.

use crate::support::history_builder::{HistoryBuilder, MS, obtained, wait};
use crate::support::kind;
use quorate_chaos::checks::Verdict;
use quorate_chaos::event::Event;
use quorate_chaos::faults::Kind;
use quorate_chaos::node::NodeKind;
use quorate_chaos::scenario::{Scenario, Workload};

impl HistoryBuilder {
    /// Adds a hold of "file" with a token. The hold is valid for one second from its start, unless it is released.
    /// Times are in milliseconds.
    fn hold(self, who: &str, op: u64, from: u64, to: u64, token: u64) -> Self {
        let until = Some((from + 1_000) * MS);
        let token = Some(token);
        self.at(from - 1, who, wait(op))
            .at(from, who, obtained(op, token, until))
            .at(to, who, Event::Release { op, until })
    }

    fn verdict(self, checker: &str, faults: &[Kind]) -> (Verdict, usize) {
        let scenario = Scenario {
            masters: 1,
            clients: 2,
            faults: faults.to_vec(),
            workloads: vec![Workload::File],
            ..Scenario::default()
        };
        self.checker_verdict(checker, &scenario)
    }
}

#[test]
fn overlapping_holds_are_reported_but_consecutive_holds_are_not() {
    let consecutive = HistoryBuilder::default()
        .hold("c1", 1, 10, 20, 1)
        .hold("c2", 1, 20, 30, 2);
    assert_eq!(consecutive.verdict("exclusion", &[]), (Verdict::Valid, 0));
    let overlapping = HistoryBuilder::default()
        .hold("c1", 1, 10, 21, 1)
        .hold("c2", 1, 20, 30, 2);
    assert_eq!(overlapping.verdict("exclusion", &[]), (Verdict::Invalid, 1));
}

#[test]
fn client_counts_as_holder_only_until_its_lease_ends() {
    let late_release = HistoryBuilder::default()
        .hold("c1", 1, 10, 5_000, 1)
        .hold("c2", 1, 1_010, 1_020, 2);
    assert_eq!(late_release.verdict("exclusion", &[]), (Verdict::Valid, 0));
}

#[test]
fn client_counts_as_holder_only_until_its_process_ends() {
    let until = Some(1_010 * MS);
    let obtained = obtained(1, Some(1), until);
    let gone = Event::Gone {
        meant: true,
        how: "signal: 9".into(),
    };
    let killed = HistoryBuilder::default()
        .at(9, "c1", wait(1))
        .at(10, "c1", obtained)
        .at(100, "c1", gone)
        .hold("c2", 1, 100, 110, 2);
    assert_eq!(killed.verdict("exclusion", &[]), (Verdict::Valid, 0));
}

#[test]
fn overlap_of_holds_is_excused_only_by_a_recent_fault_that_allows_it() {
    let history = || {
        HistoryBuilder::default()
            .hold("c1", 1, 10, 21, 1)
            .hold("c2", 1, 20, 30, 2)
    };
    let near_fault = history().fault("flushall", "m1", 15, 16);
    assert_eq!(
        near_fault.verdict("exclusion", &[kind("flushall")]),
        (Verdict::Valid, 1)
    );
    let later_fault = history().fault("flushall", "m1", 40, 41);
    assert_eq!(
        later_fault.verdict("exclusion", &[kind("flushall")]),
        (Verdict::Invalid, 1)
    );
    let other_fault = history().fault("stop", "m1", 15, 16);
    assert_eq!(
        other_fault.verdict("exclusion", &[kind("stop")]),
        (Verdict::Invalid, 1)
    );
}

#[test]
fn exclusion_verdict_is_unknown_if_an_expected_overlap_of_holds_is_missing() {
    let calm = HistoryBuilder::default().hold("c1", 1, 10, 20, 1);
    let (verdict, _) = calm.verdict("exclusion", &[kind("clock-majority")]);
    assert_eq!(verdict, Verdict::Unknown);
}

#[test]
fn repeated_or_falling_tokens_are_reported() {
    let repeated = HistoryBuilder::default()
        .hold("c1", 1, 10, 20, 7)
        .hold("c2", 1, 30, 40, 7);
    assert_eq!(repeated.verdict("fencing", &[]).0, Verdict::Invalid);
    let falling = HistoryBuilder::default()
        .hold("c1", 1, 10, 20, 7)
        .hold("c2", 1, 30, 40, 6);
    assert_eq!(falling.verdict("fencing", &[]), (Verdict::Invalid, 1));
    // Both attempts began before either was granted, so the first grant may have the larger token.
    let until = Some(2_000 * MS);
    let obtained = |token| obtained(1, Some(token), until);
    let overlapping = HistoryBuilder::default()
        .at(1, "c1", wait(1))
        .at(2, "c2", wait(1))
        .at(10, "c1", obtained(7))
        .at(20, "c2", obtained(6));
    assert_eq!(overlapping.verdict("fencing", &[]), (Verdict::Valid, 0));
}

#[test]
fn stale_write_accepted_by_the_register_is_reported() {
    let applied = |by: &str, token| Event::Applied {
        by: by.to_owned(),
        key: "register".into(),
        token,
    };
    let correct = HistoryBuilder::default()
        .at(1, "register", applied("c1#1", 7))
        .at(2, "register", applied("c1#1", 7))
        .at(3, "register", applied("c2#1", 8));
    assert_eq!(correct.verdict("fencing", &[]), (Verdict::Valid, 0));
    let stale = HistoryBuilder::default()
        .at(1, "register", applied("c2#1", 8))
        .at(2, "register", applied("c1#1", 7));
    // A fault never excuses a violation of fencing.
    assert_eq!(
        stale
            .fault("flushall", "m1", 0, 1)
            .verdict("fencing", &[kind("flushall")])
            .0,
        Verdict::Invalid
    );
}

#[test]
fn checker_reports_a_lost_update_if_two_writes_replace_the_same_content() {
    let wrote = |op, from: &str, began: u64| Event::Wrote {
        op,
        key: "file".into(),
        from: from.to_owned(),
        to: from
            .parse()
            .ok()
            .map(|number: u64| (number + 1).to_string()),
        began: began * MS,
    };
    let history = || {
        HistoryBuilder::default()
            .hold("c1", 1, 10, 20, 1)
            .hold("c2", 1, 30, 40, 2)
            .at(15, "c1", wrote(1, "4", 15))
    };
    let correct = history().at(35, "c2", wrote(1, "5", 35));
    assert_eq!(correct.verdict("effects", &[]), (Verdict::Valid, 0));
    let lost_update = history().at(35, "c2", wrote(1, "4", 35));
    assert_eq!(lost_update.verdict("effects", &[]), (Verdict::Invalid, 1));
}

#[test]
fn checker_reports_a_hold_longer_than_its_lease_unless_the_client_was_paused() {
    let history = || HistoryBuilder::default().hold("c1", 1, 10, 2_000, 1);
    assert_eq!(history().verdict("notified", &[]), (Verdict::Invalid, 1));
    let stalled = Event::Suffered {
        disturbance: "stalled".into(),
        since: 1_005 * MS,
    };
    let paused = history().at(1_990, "c1", stalled);
    assert_eq!(paused.verdict("notified", &[]), (Verdict::Valid, 0));
}

#[test]
fn checker_reports_a_hold_longer_than_its_lease_unless_the_machine_was_busy() {
    // The release is 900 ms after the end of the lease (1,010 ms). Only a long wait for a CPU excuses this.
    let verdict_if_starved = |from: u64, to: u64, waited: u64| {
        let history = HistoryBuilder::default().hold("c1", 1, 10, 1_910, 1);
        let (since, waited) = (from * MS, waited * MS);
        history
            .at(to, "c1", Event::Starved { since, waited })
            .verdict("notified", &[])
    };
    assert_eq!(verdict_if_starved(1_000, 1_900, 700), (Verdict::Valid, 0));
    assert_eq!(
        verdict_if_starved(1_850, 2_400, 700),
        (Verdict::Invalid, 1),
        "the late release must be reported if the machine was busy mainly after it"
    );
    assert_eq!(
        verdict_if_starved(100, 1_000, 800),
        (Verdict::Invalid, 1),
        "the late release must be reported if the machine was busy only before the end of the lease"
    );
    assert_eq!(
        verdict_if_starved(1_000, 1_900, 300),
        (Verdict::Invalid, 1),
        "the late release must be reported if the machine was busy for too short a time"
    );
    // Two waits for a CPU overlap. The longer one is recorded last, and the checker must count it.
    let starved_event = |from: u64, waited: u64| Event::Starved {
        since: from * MS,
        waited: waited * MS,
    };
    let counted_late = HistoryBuilder::default()
        .hold("c1", 1, 10, 1_910, 1)
        .at(1_920, "c1", starved_event(1_915, 5))
        .at(1_930, "c1", starved_event(1_100, 830));
    assert_eq!(counted_late.verdict("notified", &[]), (Verdict::Valid, 0));
    // The history records one delay in two events, `Suffered` and `Starved`. The checker must count it once.
    let stalled = Event::Suffered {
        disturbance: "stalled".into(),
        since: 1_100 * MS,
    };
    let (since, waited) = (1_100 * MS, 400 * MS);
    let doubly_recorded = HistoryBuilder::default()
        .hold("c1", 1, 10, 1_910, 1)
        .at(1_500, "c1", stalled)
        .at(1_500, "c1", Event::Starved { since, waited });
    assert_eq!(
        doubly_recorded.verdict("notified", &[]),
        (Verdict::Invalid, 1)
    );
    // A delay of one client does not excuse a late release of another client.
    let (since, waited) = (1_000 * MS, 900 * MS);
    let other_client = HistoryBuilder::default().hold("c1", 1, 10, 1_910, 1).at(
        1_900,
        "c2",
        Event::Starved { since, waited },
    );
    assert_eq!(other_client.verdict("notified", &[]), (Verdict::Invalid, 1));
}

#[test]
fn client_that_gets_no_lock_after_all_faults_have_ended_is_reported() {
    let history = || {
        HistoryBuilder::default()
            .hold("c1", 1, 10, 20, 1)
            .at(100, "chaos", Event::Calm)
            .hold("c1", 2, 110, 120, 2)
    };
    let finished = |history: HistoryBuilder| history.at(900, "chaos", Event::Finish);
    let starved = finished(history());
    assert_eq!(starved.verdict("liveness", &[]), (Verdict::Invalid, 1));
    let served = finished(history().hold("c2", 1, 130, 140, 3));
    assert_eq!(served.verdict("liveness", &[]), (Verdict::Valid, 0));
    assert_eq!(history().verdict("liveness", &[]).0, Verdict::Unknown);
}

#[test]
fn client_that_gets_the_lock_before_an_earlier_waiter_is_reported() {
    let obtained = |op, token| obtained(op, Some(token), None);
    let history = |second_began_at: u64| {
        HistoryBuilder::default()
            .at(10_000, "c1", wait(1))
            .at(second_began_at, "c2", wait(1))
            .at(11_000, "c2", obtained(1, 1))
            .at(11_001, "c2", Event::Release { op: 1, until: None })
            .at(11_002, "c1", obtained(1, 2))
    };
    let overtaken = history(10_500);
    assert_eq!(overtaken.verdict("order", &[]), (Verdict::Invalid, 1));
    let simultaneous = history(10_010);
    assert_eq!(simultaneous.verdict("order", &[]), (Verdict::Valid, 0));
    let disturbed = history(10_500).fault("stop", "m1", 9_000, 9_500);
    assert_eq!(
        disturbed.verdict("order", &[kind("stop")]),
        (Verdict::Valid, 0)
    );
}

#[test]
fn refusal_without_any_other_holder_or_waiter_is_reported() {
    let history = |earlier_from: u64| {
        let missed = Event::Missed {
            op: 1,
            why: "held".into(),
        };
        HistoryBuilder::default()
            .hold("c1", 1, earlier_from, earlier_from + 10, 1)
            .at(60_000, "c2", wait(1))
            .at(60_010, "c2", missed)
    };
    assert_eq!(
        history(59_980).verdict("refusals", &[]),
        (Verdict::Valid, 0)
    );
    assert_eq!(
        history(60_005).verdict("refusals", &[]),
        (Verdict::Valid, 0)
    );
    assert_eq!(
        history(10_000).verdict("refusals", &[]),
        (Verdict::Invalid, 1)
    );
    let disturbed = history(10_000).fault("stop", "m1", 59_000, 59_500);
    assert_eq!(
        disturbed.verdict("refusals", &[kind("stop")]),
        (Verdict::Valid, 1)
    );
}

/// A client that is paused after the grant learns of its hold only when the validity has ended. Such a hold must not
/// count as a hold without an end.
#[test]
fn refusal_long_after_a_hold_that_ended_when_it_began_is_reported() {
    let missed = Event::Missed {
        op: 1,
        why: "held".into(),
    };
    let history = HistoryBuilder::default()
        .at(10_000, "c1", wait(1))
        .at(12_000, "c1", obtained(1, Some(1), Some(11_000 * MS)))
        .at(60_000, "c2", wait(1))
        .at(60_010, "c2", missed);
    assert_eq!(history.verdict("refusals", &[]), (Verdict::Invalid, 1));
}

#[test]
fn checker_reports_keys_that_remain_after_the_run() {
    let keys = |when: &str, left: &[&str], eternal: &[&str]| Event::Keys {
        when: when.to_owned(),
        left: left.iter().map(|key| (*key).to_owned()).collect(),
        eternal: eternal.iter().map(|key| (*key).to_owned()).collect(),
    };
    let verdict_of_lists =
        |at_once: &[&str], after_ttl: &[&str], after_notes: &[&str], eternal: &[&str]| {
            HistoryBuilder::default()
                .at(100_000, "chaos", Event::Finish)
                .at(100_001, "m1", keys("at-once", at_once, &[]))
                .at(101_000, "m1", keys("after-ttl", after_ttl, eternal))
                .at(104_000, "m1", keys("after-notes", after_notes, eternal))
                .verdict("leftovers", &[])
                .0
        };
    let verdict = |at_once: &[&str], after_ttl: &[&str], eternal: &[&str]| {
        verdict_of_lists(at_once, after_ttl, &[], eternal)
    };
    assert_eq!(verdict(&[], &[], &[]), Verdict::Valid);
    let note = "quorate:note:quorate:hold:ab:file";
    assert_eq!(verdict(&[note], &[], &[]), Verdict::Invalid);
    assert_eq!(
        verdict(&[], &[note], &[]),
        Verdict::Valid,
        "the note of a dead client may remain after the TTL"
    );
    assert_eq!(
        verdict_of_lists(&[], &[note], &[note], &[]),
        Verdict::Invalid
    );
    assert_eq!(verdict(&["file"], &[], &[]), Verdict::Invalid);
    assert_eq!(verdict(&[], &["file"], &[]), Verdict::Invalid);
    assert_eq!(
        verdict(&[], &[], &["quorate:fence:file"]),
        Verdict::Invalid,
        "a fencing counter without an expiry must be reported"
    );
    assert_eq!(
        HistoryBuilder::default().verdict("leftovers", &[]).0,
        Verdict::Unknown,
        "the verdict must be unknown if the keys were never listed"
    );
}

#[test]
fn checker_needs_no_list_of_zookeeper_keys_taken_right_after_the_run() {
    let verdict = |node: &str, remaining: &[&str]| {
        let node: NodeKind = node.parse().expect("a kind of master");
        let keys = |when: &str| Event::Keys {
            when: when.to_owned(),
            left: remaining.iter().map(|key| (*key).to_owned()).collect(),
            eternal: Vec::new(),
        };
        let history = HistoryBuilder::default()
            .at(100_000, "chaos", Event::Finish)
            .at(101_000, "m1", keys("after-ttl"))
            .at(104_000, "m1", keys("after-notes"));
        let scenario = Scenario::default().with_nodes(&[node]);
        history.checker_verdict("leftovers", &scenario).0
    };
    assert_eq!(verdict("ensemble", &[]), Verdict::Valid);
    assert_eq!(verdict("zookeeper", &["file"]), Verdict::Invalid);
    assert_eq!(verdict("mysql", &[]), Verdict::Unknown);
}

#[test]
fn unreleased_key_is_reported_if_no_fault_explains_it() {
    let leftover_events = |key: &str, healed: u64, kind: Kind| {
        let keys = |when: &str, left: &[&str]| Event::Keys {
            when: when.to_owned(),
            left: left.iter().map(|key| (*key).to_owned()).collect(),
            eternal: Vec::new(),
        };
        HistoryBuilder::default()
            .fault(kind.name(), "m1", healed - 500, healed)
            .at(100_000, "chaos", Event::Finish)
            .at(100_100, "m1", keys("at-once", &[key]))
            .at(101_500, "m1", keys("after-ttl", &[]))
            .at(104_500, "m1", keys("after-notes", &[]))
            .verdict("leftovers", &[kind])
            .0
    };
    // A leftover key is allowed for two seconds after a fault: the delay of a request (one second) plus the TTL (one
    // second).
    assert_eq!(
        leftover_events("file", 97_900, kind("late-requests")),
        Verdict::Invalid
    );
    assert_eq!(
        leftover_events("file", 98_500, kind("late-requests")),
        Verdict::Valid
    );
    // A leftover key is allowed for a longer time in these cases: the fault affected a network link or a clock, or the
    // key is the queue of a lock.
    assert_eq!(
        leftover_events("file", 97_900, kind("netns-partition")),
        Verdict::Valid
    );
    assert_eq!(
        leftover_events("file", 97_900, kind("clock-back")),
        Verdict::Valid
    );
    let queue_key = "quorate:queue:file";
    assert_eq!(
        leftover_events(queue_key, 97_900, kind("late-requests")),
        Verdict::Valid
    );
}

#[test]
fn fault_that_cannot_be_injected_makes_the_run_invalid() {
    let inject = Event::Inject {
        fault: 0,
        kind: "kill".into(),
        targets: vec!["m1".into()],
    };
    let failed = Event::Failed {
        fault: 0,
        why: "nobody died".into(),
    };
    let history = HistoryBuilder::default()
        .at(1, "chaos", inject)
        .at(2, "chaos", failed);
    assert_eq!(
        history.verdict("assumptions", &[kind("kill")]),
        (Verdict::Invalid, 1)
    );
}
