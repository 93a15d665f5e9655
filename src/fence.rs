//! [`Fence`]: a resource that refuses stale fencing tokens.

use std::fmt;
use std::ops::{Deref, DerefMut};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::protocol::fencing::LARGEST_TOKEN;

/// A resource that refuses stale fencing tokens: data, and the newest token with which the data was written.
///
/// A `Fence` is used like a lock around the data: the data can only be changed through the guard that
/// [`write`](Self::write) returns, and `write` returns a guard only for a token that is not older than the newest one.
/// While the guard lives, no other token is checked. So check and write are one step.
///
/// ```
/// use quorate::{Fence, StaleToken};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), StaleToken> {
/// let report = Fence::new(String::new());
/// report.write(17).await?.push_str("first page");
/// report.write(17).await?.push_str(", second page"); // a holder writes as often as it wants
/// report.write(18).await?.push_str(", third page"); // the next holder
///
/// let late = report.write(17).await.err().expect("the token is stale");
/// assert_eq!((late.token, late.newest), (17, Some(18)));
/// assert_eq!(*report.read().await, "first page, second page, third page");
/// # Ok(()) }
/// ```
///
/// # Reading before writing
///
/// Until the new holder of the lock has called [`write`](Self::write), the `Fence` still accepts the previous holder.
/// So a holder that reads before it writes must read through the guard of [`write`](Self::write), not through
/// [`read`](Self::read): otherwise the previous holder can write after the read, and the new holder undoes this write.
/// If the holder must drop the guard between the two, it calls [`write`](Self::write) once before it reads.
///
/// # Data that is elsewhere
///
/// If the data is not in memory, for example in a file or behind another service, use a `Fence<()>` or a `Fence` around
/// the handle, and **keep the guard until the store has answered**.
///
/// If a future is dropped, a request that has left the process is not stopped. For example, a web server drops the
/// handler if its client disconnects. The database then still executes the statement, perhaps after a newer holder has
/// written. So move the guard and the write into a task that nobody drops (`tokio::spawn`), and let the store itself
/// check the token if it can (`docs/fencing-recipes.md`). A process that is killed during a write leaves such a request
/// as well, and only the store can refuse it.
///
/// # Restarts
///
/// A resource that forgets the newest token accepts a stale one. So if the data survives a restart of the program, the
/// token must survive it, too: store [`FenceWriteGuard::token`] together with the data, in the same transaction or
/// file, and begin with [`resume`](Self::resume). Use [`new`](Self::new) only for data that is as new as the `Fence`.
///
/// Two `Fence`s do not know of each other. If several processes or several `Fence`s write the same data, the check must
/// be where the data is: see `docs/fencing.md`.
///
/// # Which tokens
///
/// Use one `Fence` for each lock name. Tokens of different names, or of different permits of a semaphore, say nothing
/// about each other: see `docs/fencing.md`. A `Fence` has no list of names, because it could never forget a name: keep
/// each `Fence` next to its data.
///
/// # Slow writes
///
/// Every other writer waits until the guard is dropped, also a writer with a newer token. So limit the time of a write,
/// and receive the whole request of a client before you call [`write`](Self::write): a client can be paused while it
/// sends. A task that calls [`write`](Self::write) while it has a guard waits for itself.
///
/// # Failed writes
///
/// [`write`](Self::write) remembers the token when it returns the guard. If the write then fails, older tokens are
/// still refused.
#[derive(Debug)]
pub struct Fence<T> {
    state: RwLock<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    /// The newest token with which the data was written; `None` if there was none.
    newest: Option<u64>,
    data: T,
}

impl<T> Fence<T> {
    /// A fence around new data, which no token has written yet.
    pub fn new(data: T) -> Self {
        let newest = None;
        let state = RwLock::new(State { newest, data });
        Self { state }
    }

    /// A fence around data that exists already, for example after a restart of the program. `newest` is the token that
    /// was stored together with the data.
    pub fn resume(newest: u64, data: T) -> Self {
        let newest = Some(newest);
        let state = RwLock::new(State { newest, data });
        Self { state }
    }

    /// Waits until no other guard exists, and then returns a guard with which the data can be changed.
    ///
    /// # Errors
    ///
    /// [`StaleToken`] if a newer token was used before, or if `token` is no fencing token (1 to 2^53).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing has changed.
    pub async fn write(&self, token: u64) -> Result<FenceWriteGuard<'_, T>, StaleToken> {
        FenceWriteGuard::new(self.state.write().await, token)
    }

    /// [`write`](Self::write) without async.
    ///
    /// # Panics
    ///
    /// If it is called in an async task.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn blocking_write(&self, token: u64) -> Result<FenceWriteGuard<'_, T>, StaleToken> {
        FenceWriteGuard::new(self.state.blocking_write(), token)
    }

    /// Waits until nobody writes, and then returns a guard with which the data can be read. Reading needs no token. A
    /// holder that changes the data afterwards must read through the guard of [`write`](Self::write) instead.
    pub async fn read(&self) -> FenceReadGuard<'_, T> {
        FenceReadGuard {
            state: self.state.read().await,
        }
    }

    /// [`read`](Self::read) without async.
    ///
    /// # Panics
    ///
    /// If it is called in an async task.
    pub fn blocking_read(&self) -> FenceReadGuard<'_, T> {
        FenceReadGuard {
            state: self.state.blocking_read(),
        }
    }
}

/// Access to the data of a [`Fence`], for a writer whose token was accepted. No other writer gets access while this
/// guard lives.
#[derive(Debug)]
#[must_use = "the check of the token ends with the guard, so write through the guard"]
pub struct FenceWriteGuard<'a, T> {
    state: RwLockWriteGuard<'a, State<T>>,
    token: u64,
}

impl<'a, T> FenceWriteGuard<'a, T> {
    fn new(mut state: RwLockWriteGuard<'a, State<T>>, token: u64) -> Result<Self, StaleToken> {
        state.newest = Some(accepted(state.newest, token)?);
        Ok(Self { state, token })
    }

    /// The token of this write. It is the newest token of the [`Fence`]: store it together with the data.
    pub fn token(&self) -> u64 {
        self.token
    }
}

/// Decides whether a write with `token` is accepted after writes with tokens up to `newest`. Returns the newest token
/// after this write.
fn accepted(newest: Option<u64>, token: u64) -> Result<u64, StaleToken> {
    // A larger number is no token. If it were accepted, all true tokens would be refused for ever.
    let is_token = (1..=LARGEST_TOKEN).contains(&token);
    if is_token && newest.is_none_or(|newest| token >= newest) {
        return Ok(token);
    }
    Err(StaleToken { token, newest })
}

impl<T> Deref for FenceWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state.data
    }
}

impl<T> DerefMut for FenceWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.state.data
    }
}

/// Access to the data of a [`Fence`], for reading.
#[derive(Debug)]
pub struct FenceReadGuard<'a, T> {
    state: RwLockReadGuard<'a, State<T>>,
}

impl<T> FenceReadGuard<'_, T> {
    /// The newest token with which the data was written. `None` if the data of [`Fence::new`] was not written yet.
    pub fn newest(&self) -> Option<u64> {
        self.state.newest
    }
}

impl<T> Deref for FenceReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state.data
    }
}

/// A [`Fence`] refused a write, because of the token of the writer. The writer must stop: its lock has ended, and a
/// later holder has already written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleToken {
    /// The refused token.
    pub token: u64,
    /// The newest token with which the data was written. `None` if there was no write: then the refused token is no
    /// fencing token (1 to 2^53).
    pub newest: Option<u64>,
}

impl fmt::Display for StaleToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, newest } = self;
        match newest {
            Some(newest) if token < newest && *token > 0 => write!(
                f,
                "stale fencing token {token}: a later holder of the lock has already written with token {newest}; stop \
                 the work, and acquire the lock again before you repeat it"
            ),
            _ => write!(
                f,
                "{token} is no fencing token: pass the token of the lock guard, a number from 1 to 2^53"
            ),
        }
    }
}

impl std::error::Error for StaleToken {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fence_accepts_equal_and_newer_tokens_and_refuses_older_ones() {
        assert_eq!(accepted(None, 7), Ok(7));
        assert_eq!(accepted(Some(7), 7), Ok(7));
        assert_eq!(accepted(Some(7), 8), Ok(8));
        let stale = StaleToken {
            token: 6,
            newest: Some(7),
        };
        assert_eq!(accepted(Some(7), 6), Err(stale));
        let text = stale.to_string();
        assert!(
            text.contains("token 6: a later holder") && text.contains("token 7"),
            "{text}"
        );
    }

    #[test]
    fn fence_refuses_numbers_that_are_no_tokens() {
        assert_eq!(accepted(None, LARGEST_TOKEN), Ok(LARGEST_TOKEN));
        for (newest, token) in [
            (None, 0),
            (Some(7), 0),
            (None, LARGEST_TOKEN + 1),
            (Some(7), u64::MAX),
        ] {
            let refused = accepted(newest, token).expect_err("no token");
            assert_eq!(refused, StaleToken { token, newest });
            assert!(
                refused.to_string().contains("is no fencing token"),
                "{refused}"
            );
        }
    }
}
