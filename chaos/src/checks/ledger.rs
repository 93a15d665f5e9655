//! Checks the accounts of the bank, even in runs in which locks are lost:
//!
//! - The sum of all balances never changes. A transfer that is computed from outdated balances can change the sum.
//! - No account gets a booking with a smaller token than its previous booking.

use std::collections::BTreeMap;

use super::{Case, Finding, Verdict, Violation};
use crate::bank::{ACCOUNTS, OPENING};
use crate::event::Event;

pub(super) fn check(case: &Case<'_>) -> Finding {
    let mut accounts: BTreeMap<&str, (i64, u64)> = BTreeMap::new();
    let mut violations = Vec::new();
    let mut transfers = 0;
    let whole = ACCOUNTS as i64 * OPENING;
    let mut expected = whole;
    for line in &case.history.lines {
        let Event::Moved {
            by,
            token,
            balances,
        } = &line.what
        else {
            continue;
        };
        transfers += 1;
        let mut bad = |what: String| {
            violations.push(Violation {
                checker: "ledger".into(),
                from: line.t,
                to: line.t,
                who: vec![by.split('#').next().unwrap_or(by).to_owned()],
                resource: balances.keys().next().cloned(),
                what,
                excused: None,
            });
        };
        for (name, balance) in balances {
            let account = accounts.entry(name).or_insert((OPENING, 0));
            if *token < account.1 {
                let before = account.1;
                bad(format!(
                    "{by} booked on account {name} with token {token} after the larger token {before}"
                ));
            }
            *account = (*balance, *token);
        }
        let untouched = ACCOUNTS.saturating_sub(accounts.len()) as i64 * OPENING;
        let sum: i64 = accounts.values().map(|(balance, _)| balance).sum();
        if sum + untouched != expected {
            let now = sum + untouched;
            bad(format!(
                "the sum of all accounts is {now} after the booking of {by}, but must be {expected}"
            ));
            // Expect the changed sum from here on, so that each change of the sum is reported only once.
            expected = now;
        }
    }
    let looked_at = format!(
        "{transfers} transfers, the sum of all accounts was {whole} before them and {expected} after them"
    );
    let finding = Finding::of("ledger", looked_at, violations);
    if transfers == 0 {
        return finding.at_least(Verdict::Unknown);
    }
    finding
}
