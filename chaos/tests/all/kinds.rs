//! Tests the checkers for shared locks, semaphores, owners, quotas, elections, and locks on several resources. The
//! histories are made by hand. Each checker must find the violations of its own rule, and nothing else.

use std::collections::BTreeMap;

use crate::support::history_builder::{HistoryBuilder, MS};
use quorate_chaos::checks::Verdict::{self, Invalid, Unknown, Valid};
use quorate_chaos::claim::Claim;
use quorate_chaos::event::Event;
use quorate_chaos::scenario::{Scenario, Workload};

/// A hold in the history: client, attempt, resources, mode, start and end in milliseconds, token.
struct Hold<'a>(&'a str, u64, &'a [&'a str], Claim, u64, u64, u64);

impl HistoryBuilder {
    /// Adds a hold to the history. Its lock is valid for one second and is released at the end of the hold.
    fn with_hold(self, hold: Hold<'_>) -> Self {
        self.with_permit_hold(None, hold)
    }

    fn with_permit_hold(self, slot: Option<usize>, hold: Hold<'_>) -> Self {
        let Hold(who, op, resources, claim, from, to, token) = hold;
        let until = Some((from + 1_000) * MS);
        let obtained = Event::Obtained {
            op,
            token: Some(token),
            until,
            slot,
        };
        let wait = Event::Wait {
            op,
            resource: resources[0].to_owned(),
            further_resources: resources[1..].iter().map(|one| (*one).to_owned()).collect(),
            claim,
            continued_hold: None,
        };
        self.at(from - 1, who, wait).at(from, who, obtained).at(
            to,
            who,
            Event::Release { op, until },
        )
    }

    fn verdict_for(self, workload: Workload, checker: &str) -> (Verdict, usize) {
        let scenario = Scenario {
            masters: 1,
            clients: 2,
            faults: Vec::new(),
            workloads: vec![workload],
            ..Scenario::default()
        };
        self.checker_verdict(checker, &scenario)
    }
}

#[test]
fn holds_of_several_resources_conflict_only_if_they_share_a_resource() {
    let history = |resources: &[&str]| {
        let first_resources = ["transfer-1", "transfer-2"];
        HistoryBuilder::default()
            .with_hold(Hold("c1", 1, &first_resources, Claim::Alone, 10, 30, 1))
            .with_hold(Hold("c2", 1, resources, Claim::Alone, 20, 40, 1))
    };
    let separate = || history(&["transfer-3"]);
    let shared = || history(&["transfer-3", "transfer-2"]);
    assert_eq!(
        separate().verdict_for(Workload::Transfer, "exclusion"),
        (Valid, 0)
    );
    assert_eq!(
        shared().verdict_for(Workload::Transfer, "exclusion"),
        (Invalid, 1)
    );
    assert_eq!(
        separate().verdict_for(Workload::Transfer, "fencing"),
        (Valid, 0)
    );
    assert_eq!(
        shared().verdict_for(Workload::Transfer, "fencing"),
        (Invalid, 1)
    );
}

#[test]
fn ledger_checker_reports_bookings_that_lose_money_or_have_a_stale_token() {
    let moved = |token, balances: &[(&str, i64)]| Event::Moved {
        by: format!("c1#{token}"),
        token,
        balances: balances
            .iter()
            .map(|(name, balance)| ((*name).to_owned(), *balance))
            .collect::<BTreeMap<_, _>>(),
    };
    let ledger_verdict =
        |history: HistoryBuilder| history.verdict_for(Workload::Transfer, "ledger");
    let one_transfer = HistoryBuilder::default().at(
        1,
        "bank",
        moved(7, &[("transfer-1", 90), ("transfer-2", 110)]),
    );
    assert_eq!(ledger_verdict(one_transfer.clone()), (Valid, 0));
    let correct = moved(8, &[("transfer-2", 100), ("transfer-3", 110)]);
    assert_eq!(
        ledger_verdict(one_transfer.clone().at(2, "bank", correct)),
        (Valid, 0)
    );
    // The second transfer was computed from the balances before the first transfer. So ten units of money, the amount
    // of the first transfer, are lost.
    let lost_update = moved(8, &[("transfer-2", 90), ("transfer-3", 110)]);
    assert_eq!(
        ledger_verdict(one_transfer.clone().at(2, "bank", lost_update)),
        (Invalid, 1)
    );
    let stale = moved(6, &[("transfer-2", 100), ("transfer-3", 110)]);
    assert_eq!(
        ledger_verdict(one_transfer.at(2, "bank", stale)),
        (Invalid, 1)
    );
    assert_eq!(
        ledger_verdict(HistoryBuilder::default()),
        (Unknown, 0),
        "the verdict must be unknown without a transfer"
    );
}

#[test]
fn readers_may_overlap_each_other_but_not_a_writer() {
    let history = |second_claim: Claim, token| {
        HistoryBuilder::default()
            .with_hold(Hold("c1", 1, &["readers"], Claim::Reader, 10, 30, 5))
            .with_hold(Hold("c2", 1, &["readers"], second_claim, 20, 40, token))
    };
    let exclusion_verdict =
        |history: HistoryBuilder| history.verdict_for(Workload::Readers, "exclusion");
    assert_eq!(exclusion_verdict(history(Claim::Reader, 5)), (Valid, 0));
    assert_eq!(exclusion_verdict(history(Claim::Alone, 6)), (Invalid, 1));
    // Readers may share a token, but no writer shares it with them.
    let fencing_verdict =
        |history: HistoryBuilder| history.verdict_for(Workload::Readers, "fencing");
    assert_eq!(fencing_verdict(history(Claim::Reader, 5)), (Valid, 0));
    assert_eq!(
        fencing_verdict(history(Claim::Reader, 4)),
        (Invalid, 1),
        "a smaller token must be reported if its attempt began after the other hold was obtained"
    );
    assert_eq!(fencing_verdict(history(Claim::Alone, 5)), (Invalid, 1));
}

fn found(op: u64, key: &str, expected: &str, found: &str, writer: &str) -> Event {
    Event::Found {
        op,
        key: key.to_owned(),
        expected: expected.to_owned(),
        found: found.to_owned(),
        writer: writer.to_owned(),
    }
}

fn wrote(op: u64, key: &str) -> Event {
    Event::Wrote {
        op,
        key: key.to_owned(),
        from: String::new(),
        to: None,
        began: 0,
    }
}

#[test]
fn checker_excuses_an_incomplete_write_only_if_the_writer_stopped_early() {
    // `until` is the end of the writer's hold. The reader obtains the lock at 20 ms, before or after `until`.
    let history = |until: u64| {
        HistoryBuilder::default()
            .with_hold(Hold("c1", 1, &["readers"], Claim::Alone, 10, until, 5))
            .at(12, "c1", wrote(1, "readers-1"))
            .with_hold(Hold("c2", 1, &["readers"], Claim::Reader, 20, 40, 6))
    };
    let views_verdict = |history: HistoryBuilder| history.verdict_for(Workload::Readers, "views");
    let complete_read = found(1, "readers", "4 c3#1", "4 c3#1", "c3#1");
    let incomplete_read = found(1, "readers", "5 c1#1", "4 c3#1", "c1#1");
    assert_eq!(
        views_verdict(history(30).at(30, "c2", complete_read)),
        (Valid, 0)
    );
    assert_eq!(
        views_verdict(history(30).at(30, "c2", incomplete_read.clone())),
        (Invalid, 1)
    );
    assert_eq!(
        views_verdict(history(15).at(30, "c2", incomplete_read.clone())),
        (Valid, 0)
    );
    // The writer has updated both files. The reader must not find the old content of the second file.
    let finished = history(15).at(14, "c1", wrote(1, "readers-2"));
    assert_eq!(
        views_verdict(finished.at(30, "c2", incomplete_read)),
        (Invalid, 1)
    );
    // The client c2 wrote `4 c2#1` and then became a reader. Now it finds a write by c1 instead of its own write.
    let changed = found(1, "readers-1", "4 c2#1", "5 c1#1", "c1#1");
    assert_eq!(
        views_verdict(history(15).at(30, "c2", changed.clone())),
        (Invalid, 1)
    );
    let stalled = Event::Suffered {
        disturbance: "stalled".into(),
        since: 14 * MS,
    };
    let paused = history(15).at(25, "c1", stalled).at(30, "c2", changed);
    assert_eq!(
        views_verdict(paused),
        (Valid, 1),
        "a late write of a paused writer must be excused"
    );
    assert_eq!(
        views_verdict(history(15)),
        (Unknown, 0),
        "the verdict must be unknown without reads"
    );
}

#[test]
fn checkers_report_too_many_permits_or_two_holders_of_one_slot() {
    let history = |slots: &[(usize, u64)]| {
        let mut history = HistoryBuilder::default();
        for (index, (slot, from)) in slots.iter().enumerate() {
            let (op, token) = (index as u64 + 1, index as u64 + 1);
            let claim = Claim::Permit(2);
            let hold = Hold("c1", op, &["permits"], claim, *from, *from + 20, token);
            history = history.with_permit_hold(Some(*slot), hold);
        }
        history
    };
    let permits_verdict =
        |slots: &[(usize, u64)]| history(slots).verdict_for(Workload::Permits, "permits");
    let exclusion_verdict =
        |slots: &[(usize, u64)]| history(slots).verdict_for(Workload::Permits, "exclusion");
    assert_eq!(permits_verdict(&[(0, 10), (1, 15), (0, 30)]), (Valid, 0));
    assert_eq!(exclusion_verdict(&[(0, 10), (1, 15), (0, 30)]), (Valid, 0));
    assert_eq!(exclusion_verdict(&[(0, 10), (0, 15)]), (Invalid, 1));
    // The semaphore has two permits. Three holders at the same time are a violation.
    assert_eq!(permits_verdict(&[(0, 10), (1, 15), (2, 20)]), (Invalid, 2));
    assert_eq!(permits_verdict(&[(0, 10), (1, 15), (1, 20)]), (Invalid, 1));
    assert_eq!(permits_verdict(&[]), (Unknown, 0));
}

#[test]
fn checker_reports_a_waiter_that_gets_a_permit_long_before_an_earlier_waiter() {
    let history = |first_served: u64| {
        let first = Hold(
            "c1",
            1,
            &["permits"],
            Claim::Permit(2),
            10_001,
            first_served + 50,
            1,
        );
        let mut history = HistoryBuilder::default().with_permit_hold(Some(0), first);
        // The first attempt begins to wait at 10,000 ms, and obtains its permit at `first_served` milliseconds.
        history.0[1].t = first_served * MS;
        let second = Hold("c2", 1, &["permits"], Claim::Permit(2), 11_000, 11_100, 2);
        let mut second = HistoryBuilder::default().with_permit_hold(Some(1), second);
        second.0[0].t = 10_500 * MS;
        history.0.extend(second.0);
        history.verdict_for(Workload::Permits, "order")
    };
    assert_eq!(history(11_010), (Valid, 0));
    assert_eq!(history(11_500), (Invalid, 1));
}

#[test]
fn checkers_report_two_simultaneous_owners_or_two_tokens_of_one_owner() {
    let owner = |id: &str| Claim::Owner(id.to_owned());
    let history = |id: &str, token| {
        HistoryBuilder::default()
            .with_hold(Hold("c1", 1, &["owners"], owner("order-1"), 10, 30, 5))
            .with_hold(Hold("c2", 1, &["owners"], owner(id), 20, 40, token))
    };
    let owners_verdict = |history: HistoryBuilder| history.verdict_for(Workload::Owners, "owners");
    let exclusion_verdict =
        |history: HistoryBuilder| history.verdict_for(Workload::Owners, "exclusion");
    assert_eq!(owners_verdict(history("order-1", 5)), (Valid, 0));
    assert_eq!(exclusion_verdict(history("order-1", 5)), (Valid, 0));
    assert_eq!(owners_verdict(history("order-1", 6)), (Invalid, 1));
    assert_eq!(exclusion_verdict(history("order-2", 6)), (Invalid, 1));
    assert_eq!(
        owners_verdict(history("order-2", 6)),
        (Unknown, 0),
        "the verdict must be unknown if no client joined another hold"
    );
    // The owner order-1 holds the lock with token 5. The owner order-2 gets token 7 at 20 ms.
    //
    // At 50 ms, order-1 gets the lock again, with token 5 again. This is valid only if order-1 still holds the lock.
    // Otherwise, its new token must exceed 7.
    let fencing_verdict = |until| {
        history("order-2", 7)
            .with_hold(Hold("c3", 1, &["owners"], owner("order-1"), 15, until, 5))
            .with_hold(Hold("c3", 2, &["owners"], owner("order-1"), 50, 60, 5))
            .verdict_for(Workload::Owners, "fencing")
    };
    assert_eq!(fencing_verdict(70), (Valid, 0));
    assert_eq!(fencing_verdict(45), (Invalid, 1));
    let found_owner = |found_id| found(1, "owners", "order-1", found_id, "c2#1");
    let views_verdict = |history: HistoryBuilder| history.verdict_for(Workload::Owners, "views");
    let correct = history("order-1", 5).at(25, "c1", found_owner("order-1"));
    assert_eq!(views_verdict(correct), (Valid, 0));
    let wrong = history("order-2", 6).at(25, "c1", found_owner("order-2"));
    assert_eq!(views_verdict(wrong), (Invalid, 1));
}

#[test]
fn quota_unit_handed_out_twice_or_above_the_limit_is_reported() {
    let answered = |op, answer: &str, left| Event::Answered {
        op,
        answer: answer.to_owned(),
        left,
    };
    let wait = |op| Event::Wait {
        op,
        resource: "prizes-1".into(),
        further_resources: Vec::new(),
        claim: Claim::Alone,
        continued_hold: None,
    };
    // Each answer: the start and end of the request, the reply, and the number of units left in the quota.
    let prizes_verdict = |answers: &[(u64, u64, &str, u64)]| {
        let created = Event::Created {
            quota: "prizes-1".into(),
            pieces: 2,
        };
        let mut history = HistoryBuilder::default().at(1, "c1", created);
        for (index, (from, to, answer, left)) in answers.iter().enumerate() {
            let op = index as u64 + 1;
            history = history.at(*from, "c1", wait(op));
            history = history.at(*to, "c1", answered(op, answer, Some(*left)));
        }
        history.verdict_for(Workload::Prizes, "prizes")
    };
    let (first, second) = ((10, 11, "taken", 1), (12, 13, "taken", 0));
    assert_eq!(
        prizes_verdict(&[first, second, (14, 15, "sold_out", 0)]),
        (Valid, 0)
    );
    assert_eq!(
        prizes_verdict(&[first, (10, 12, "taken", 0)]),
        (Valid, 0),
        "overlapping requests may be answered in any order"
    );
    assert_eq!(
        prizes_verdict(&[(10, 13, "taken", 1), (10, 12, "taken", 0)]),
        (Valid, 0)
    );
    assert_eq!(
        prizes_verdict(&[first, (10, 13, "taken", 1)]),
        (Invalid, 1),
        "a unit that is handed out twice must be reported"
    );
    assert_eq!(
        prizes_verdict(&[first, (10, 13, "taken", 2)]),
        (Invalid, 1),
        "a take that leaves as many units as were created must be reported"
    );
    assert_eq!(
        prizes_verdict(&[second, (14, 15, "taken", 1)]),
        (Invalid, 1),
        "a rise of the number of units left must be reported"
    );
    let sold_out = (11, 12, "sold_out", 0);
    assert_eq!(
        prizes_verdict(&[first, sold_out, (14, 15, "taken", 0)]),
        (Invalid, 1),
        "a unit handed out after the quota was sold out must be reported"
    );
    assert_eq!(
        prizes_verdict(&[first, (14, 15, "sold_out", 1)]),
        (Invalid, 1),
        "a quota that is sold out although a unit is left must be reported"
    );
    // No unit was handed out, so the checker had nothing to check.
    assert_eq!(prizes_verdict(&[sold_out]), (Unknown, 0));
}

#[test]
fn leader_checker_reports_falling_terms_and_terms_with_two_leaders() {
    let followed = |term, leader: &str| Event::Followed {
        term: Some(term),
        leader: Some(leader.to_owned()),
    };
    let history = || {
        HistoryBuilder::default()
            .with_hold(Hold("c1", 1, &["leader"], Claim::Alone, 10, 20, 5))
            .with_hold(Hold("c2", 1, &["leader"], Claim::Alone, 30, 40, 7))
            .at(12, "c1", followed(5, "c1#1"))
            .at(13, "c2", followed(5, "c1#1"))
            .at(32, "c1", followed(7, "c2#1"))
    };
    let leaders_verdict =
        |history: HistoryBuilder| history.verdict_for(Workload::Leader, "leaders");
    assert_eq!(leaders_verdict(history()), (Valid, 0));
    // A leader may be killed before it writes its election to the history. So `c1` may name a leader of term 8 that the
    // history does not contain.
    assert_eq!(
        leaders_verdict(history().at(50, "c1", followed(8, "c3#9"))),
        (Valid, 0)
    );
    assert_eq!(
        leaders_verdict(history().at(50, "c1", followed(5, "c1#1"))),
        (Invalid, 1),
        "a falling term must be reported"
    );
    assert_eq!(
        leaders_verdict(history().at(50, "c2", followed(7, "c3#9"))),
        (Invalid, 1),
        "one term with two leaders must be reported"
    );
    assert_eq!(
        leaders_verdict(history().at(50, "c2", followed(8, "c2#1"))),
        (Invalid, 1),
        "a leader that is shown with a term that is not its own must be reported"
    );
    assert_eq!(
        leaders_verdict(HistoryBuilder::default()),
        (Unknown, 0),
        "the verdict must be unknown if no client followed the election"
    );
}

#[test]
fn liveness_checker_reports_a_client_without_progress_after_the_faults() {
    let finished = |history: HistoryBuilder| history.at(900, "chaos", Event::Finish);
    let followed = Event::Followed {
        term: Some(7),
        leader: None,
    };
    let with_leaders = || {
        HistoryBuilder::default()
            .at(100, "chaos", Event::Calm)
            .with_hold(Hold("c1", 1, &["leader"], Claim::Alone, 110, 120, 5))
            .with_hold(Hold("c2", 1, &["leader"], Claim::Alone, 130, 140, 7))
            .at(111, "c1", followed.clone())
    };
    let one_follower = finished(with_leaders()).verdict_for(Workload::Leader, "liveness");
    assert_eq!(one_follower, (Invalid, 1));
    let all_follow = finished(with_leaders().at(131, "c2", followed.clone()));
    assert_eq!(
        all_follow.verdict_for(Workload::Leader, "liveness"),
        (Valid, 0)
    );
    let one_client = HistoryBuilder::default()
        .at(100, "chaos", Event::Calm)
        .with_hold(Hold(
            "c1",
            1,
            &["transfer-1", "transfer-2"],
            Claim::Alone,
            110,
            120,
            5,
        ));
    assert_eq!(
        finished(one_client).verdict_for(Workload::Transfer, "liveness"),
        (Invalid, 1)
    );
}
