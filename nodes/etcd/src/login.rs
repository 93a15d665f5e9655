//! The login of the user of a URL: all connections of a process share one token.
//!
//! A login takes the cluster more than 100 ms, because it hashes the password. So the token is kept until the cluster
//! refuses it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Default)]
enum State {
    #[default]
    Unknown,
    /// The cluster has authentication turned off.
    Off,
    Token(Arc<str>),
}

/// The state of the login of this process.
#[derive(Default)]
pub(crate) struct Login(Mutex<State>);

/// Shows no token, because a reader of the output could use it.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(..)")
    }
}

impl Login {
    fn state(&self) -> State {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone()
    }

    fn set(&self, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// The token that requests are sent with; `None` if there is none.
    pub(crate) fn token(&self) -> Option<Arc<str>> {
        match self.state() {
            State::Token(token) => Some(token),
            State::Unknown | State::Off => None,
        }
    }

    /// Whether the first request must wait for a login.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.state(), State::Unknown)
    }

    /// Stores the token of a new login.
    pub(crate) fn succeeded(&self, token: &str) {
        self.set(State::Token(token.into()));
    }

    /// Notes that the cluster has authentication turned off.
    pub(crate) fn is_off(&self) {
        self.set(State::Off);
    }

    /// Forgets the token: the next request logs in again.
    pub(crate) fn forget(&self) {
        self.set(State::Unknown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_in_no_debug_output() {
        let login = Login::default();
        login.succeeded("secret.7");
        assert_eq!(login.token().as_deref(), Some("secret.7"));
        assert!(!format!("{login:?}").contains("secret"));
    }
}
