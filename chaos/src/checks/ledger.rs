//! Checks the accounts of the bank, even in runs in which locks are lost:
//!
//! - The sum of all balances never changes. A transfer that is computed from outdated balances can change the sum.
//! - No account gets a booking with a smaller token than its previous booking.

use std::collections::BTreeMap;

use super::{Case, Finding, Verdict, Violation};
use crate::bank::{ACCOUNTS, OPENING_BALANCE};
use crate::event::Event;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut accounts: BTreeMap<&str, (i64, u64)> = BTreeMap::new();
    let mut violations = Vec::new();
    let mut transfers = 0;
    let initial_sum = ACCOUNTS as i64 * OPENING_BALANCE;
    let mut expected_sum = initial_sum;
    for entry in &case.history.entries {
        let Event::Moved {
            by,
            token,
            balances,
        } = &entry.event
        else {
            continue;
        };
        transfers += 1;
        let mut report = |description: String| {
            violations.push(Violation {
                checker: "ledger".into(),
                from: entry.t,
                to: entry.t,
                processes: vec![by.split('#').next().unwrap_or(by).to_owned()],
                resource: balances.keys().next().cloned(),
                description,
                excused: None,
            });
        };
        for (name, balance) in balances {
            let account = accounts.entry(name).or_insert((OPENING_BALANCE, 0));
            if *token < account.1 {
                let earlier_token = account.1;
                report(format!(
                    "{by} booked on account {name} with token {token} after the larger token {earlier_token}"
                ));
            }
            *account = (*balance, *token);
        }
        let untouched = ACCOUNTS.saturating_sub(accounts.len()) as i64 * OPENING_BALANCE;
        let booked_sum: i64 = accounts.values().map(|(balance, _)| balance).sum();
        if booked_sum + untouched != expected_sum {
            let actual_sum = booked_sum + untouched;
            report(format!(
                "the sum of all accounts is {actual_sum} after the booking of {by}, but must be {expected_sum}"
            ));
            // Expect the changed sum from here on, so that each change of the sum is reported only once.
            expected_sum = actual_sum;
        }
    }
    let coverage = format!(
        "{transfers} transfers, the sum of all accounts was {initial_sum} before them and {expected_sum} after them"
    );
    let finding = Finding::new("ledger", coverage, violations);
    if transfers == 0 {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}
