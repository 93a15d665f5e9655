//! The bank: accounts that are protected by fencing tokens. A client locks two accounts with one lock, and sends the
//! token of this lock with every request. The bank knows nothing about locks. For each account, it remembers the
//! largest token of all read and write requests so far. It rejects a request with a smaller token.

use std::collections::BTreeMap;

/// The number of accounts.
pub const ACCOUNTS: usize = 3;
/// The balance of each account at the start.
pub const OPENING_BALANCE: i64 = 100;

/// The accounts, by name.
#[derive(Debug, Default)]
pub struct Bank {
    accounts: BTreeMap<String, Account>,
}

#[derive(Clone, Copy, Debug)]
struct Account {
    balance: i64,
    highest_token: u64,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            balance: OPENING_BALANCE,
            highest_token: 0,
        }
    }
}

/// The reason why the bank rejected a token: the account that has already seen a larger token, and that larger token.
pub type Stale = (String, u64);

impl Bank {
    /// Returns the balances of these accounts, and records the token for each of them. If one of the accounts has seen
    /// a larger token, returns an error and records nothing.
    ///
    /// # Errors
    ///
    /// [`Stale`] if an account has seen a larger token.
    pub fn balances(&mut self, names: &[&str], token: u64) -> Result<Vec<i64>, Stale> {
        self.admit(names, token)?;
        let balance_of = |name: &&str| {
            self.accounts
                .get(*name)
                .map_or(OPENING_BALANCE, |account| account.balance)
        };
        Ok(names.iter().map(balance_of).collect())
    }

    /// Sets the balances of these accounts, and records the token for each of them. If one of the accounts has seen a
    /// larger token, changes nothing.
    ///
    /// # Errors
    ///
    /// [`Stale`] if an account has seen a larger token.
    pub fn book(&mut self, balances: &BTreeMap<String, i64>, token: u64) -> Result<(), Stale> {
        let names: Vec<&str> = balances.keys().map(String::as_str).collect();
        self.admit(&names, token)?;
        for (name, balance) in balances {
            self.accounts.entry(name.clone()).or_default().balance = *balance;
        }
        Ok(())
    }

    /// Records the token for each of these accounts. If one of the accounts has seen a larger token, records nothing.
    fn admit(&mut self, names: &[&str], token: u64) -> Result<(), Stale> {
        let stale = names.iter().find_map(|name| {
            let highest_token = self.accounts.get(*name)?.highest_token;
            (token < highest_token).then(|| ((*name).to_owned(), highest_token))
        });
        if let Some(stale) = stale {
            return Err(stale);
        }
        for name in names {
            self.accounts
                .entry((*name).to_owned())
                .or_default()
                .highest_token = token;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bank_rejects_a_booking_with_a_token_smaller_than_an_earlier_one() {
        let mut bank = Bank::default();
        let balances = |first: i64, second: i64| {
            BTreeMap::from([("a".to_owned(), first), ("b".to_owned(), second)])
        };
        assert_eq!(bank.balances(&["a", "b"], 5), Ok(vec![100, 100]));
        assert_eq!(bank.balances(&["b", "c"], 7), Ok(vec![100, 100]));
        let stale = Err(("b".to_owned(), 7));
        assert_eq!(bank.book(&balances(90, 110), 5), stale);
        assert_eq!(
            bank.balances(&["a"], 5),
            Ok(vec![100]),
            "a rejected transfer must change no balance"
        );
        assert_eq!(bank.book(&balances(80, 120), 8), Ok(()));
        assert_eq!(bank.balances(&["b", "a"], 8), Ok(vec![120, 80]));
    }
}
