//! A test that plays stale and fresh fencing tokens to a resource, and names what the resource does wrong.

use std::fmt;

use futures::future::join_all;

/// The answer of a resource to a write: the result of the write closure of a [`FencingProof`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FencedWrite {
    /// The resource has written the value.
    Accepted,
    /// The resource has written nothing, because it has already accepted a newer token.
    Refused,
}

impl FencedWrite {
    /// [`Accepted`](Self::Accepted) if the condition is true, otherwise [`Refused`](Self::Refused). For example:
    /// `FencedWrite::accepted_if(rows_affected == 1)`.
    pub fn accepted_if(accepted: bool) -> Self {
        if accepted {
            Self::Accepted
        } else {
            Self::Refused
        }
    }
}

/// The first mistake of a resource that a [`FencingProof`] found. The text (`Display`) says what the resource did, and
/// what to change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FencingFault {
    /// The resource refused the first token of the proof.
    RefusesFirst {
        /// The first token.
        token: u64,
    },
    /// The resource refused the second write with the same token. A holder may write several times.
    RefusesSame {
        /// The token of both writes.
        token: u64,
    },
    /// The resource accepted a write, and then refused the same value with the same token. A holder repeats a write
    /// whose answer it has lost.
    RefusesRepeated {
        /// The token of both writes.
        token: u64,
    },
    /// The resource refused a token that is larger than every token before.
    RefusesNewer {
        /// The largest token that the resource has accepted.
        newest: u64,
        /// The larger token that the resource refused.
        newer: u64,
    },
    /// The resource accepted a token that is smaller than a token that it had accepted before.
    AcceptsOlder {
        /// The largest token that the resource has accepted.
        newest: u64,
        /// The smaller token that the resource accepted afterwards.
        older: u64,
    },
    /// The resource refused an older token, and accepted the same older token at the second try.
    AcceptsOlderSecondTime {
        /// The largest token that the resource has accepted.
        newest: u64,
        /// The smaller token that the resource accepted afterwards.
        older: u64,
    },
    /// The resource answered that it refused an older token, but it has written the value.
    WritesWhatItRefuses {
        /// The largest token that the resource has accepted.
        newest: u64,
        /// The smaller token that the resource refused.
        older: u64,
    },
    /// The resource answered that it accepted the write, but it does not contain the value: right after the write,
    /// after a write that it refused, or after a restart.
    LosesAcceptedWrite {
        /// The token of the write.
        token: u64,
        /// The value that the resource contained afterwards.
        found: String,
    },
    /// After the restart, the resource accepted an older token, which it refused before the restart.
    ForgetsAtRestart {
        /// The largest token that the resource accepted before the restart.
        newest: u64,
        /// The smaller token that the resource accepted after the restart.
        older: u64,
    },
    /// The resource received an older and a newer token at the same time, and kept the older client's value or token in
    /// the end.
    CheckAndWriteNotAtomic {
        /// The newer token.
        newer: u64,
        /// The older token, whose value the resource contained in the end, or which it still accepted.
        older: u64,
    },
    /// A closure of the proof returned an error. So the proof does not know what the resource does.
    Failed {
        /// The step of the proof that failed, for example `write with token 9`.
        step: String,
        /// The error that the closure returned.
        error: String,
    },
}

impl fmt::Display for FencingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RefusesFirst { token } => write!(
                f,
                "the resource refused the first token, {token}: use a new resource, that has seen no token, for the \
                 proof; if it is new, it refuses tokens that it must accept"
            ),
            Self::RefusesSame { token } => write!(
                f,
                "the resource refused the second write with token {token}: a holder writes more than once with its \
                 token, so accept a token that is equal to the newest one (`>=`, not `>`)"
            ),
            Self::RefusesRepeated { token } => write!(
                f,
                "the resource refused a write with token {token} that it had accepted before with the same value: a \
                 holder repeats a write whose answer it has lost, so do not count only the rows that a write has changed"
            ),
            Self::RefusesNewer { newest, newer } => write!(
                f,
                "the resource refused token {newer} after token {newest}, which is smaller: {}",
                refused_newer(*newest, *newer)
            ),
            Self::AcceptsOlder { newest, older } => write!(
                f,
                "the resource accepted token {older} after token {newest}, which is larger: {}",
                accepted_older(*newest, *older)
            ),
            Self::AcceptsOlderSecondTime { newest, older } => write!(
                f,
                "after token {newest}, the resource refused token {older} once, and then accepted it: store the token \
                 only if the resource accepts it"
            ),
            Self::WritesWhatItRefuses { newest, older } => write!(
                f,
                "after token {newest}, the resource refused token {older}, but it has written the value of this \
                 token: compare the tokens before the write, or undo the write"
            ),
            Self::LosesAcceptedWrite { token, found } => write!(
                f,
                "the resource accepted a write with token {token}, but then contained {found:?} instead of the \
                 written value: answer \"accepted\" only after the write, and keep the value when a write is refused and \
                 at a restart"
            ),
            Self::ForgetsAtRestart { newest, older } => write!(
                f,
                "after a restart, the resource accepted token {older}, although it had accepted token {newest} before \
                 the restart: store the largest token together with the data"
            ),
            Self::CheckAndWriteNotAtomic { newer, older } => write!(
                f,
                "the resource received the tokens {older} and {newer} at the same time, accepted {newer}, and kept the \
                 value or the token of {older} in the end: check the token, and write both, in one step (one statement, \
                 one transaction or one lock)"
            ),
            Self::Failed { step, error } => write!(
                f,
                "cannot {step}: {error}; the closures must return an error only if the resource failed, and \
                 `Ok(FencedWrite::Refused)` if it refused the token"
            ),
        }
    }
}

/// The advice for a resource that refused `newer` after `newest`.
fn refused_newer(newest: u64, newer: u64) -> &'static str {
    if newest.to_string().len() < newer.to_string().len() {
        "compare tokens as numbers, not as texts"
    } else {
        "keep all digits of a token (a 64-bit integer)"
    }
}

/// The advice for a resource that accepted `older` after `newest`.
fn accepted_older(newest: u64, older: u64) -> &'static str {
    if newest.checked_sub(older) == Some(1) && older > 1 << 24 {
        "keep all digits of a token (a 64-bit integer, not a 32-bit float or a rounded time)"
    } else {
        "remember the largest token, and refuse a smaller one"
    }
}

impl std::error::Error for FencingFault {}

/// A test of **your** resource: it plays fencing tokens to the resource, and names the first mistake.
///
/// The proof needs a new resource, which has seen no token, and closures that use this resource:
///
/// - `write(token, value)` stores the value under the token, and returns what the resource did
///   ([`FencedWrite`]). Return an error only if the resource failed, for example if it cannot be reached.
/// - `read()` returns the stored value.
/// - `restart()`, optional ([`with_restart`](Self::with_restart)): restarts the resource, or opens its data again.
///
/// The proof calls `write` several times at the same time. If the closure serializes its calls, for example with a
/// mutex around one connection, then the proof cannot notice that check and write are two steps: give each call its own
/// connection.
///
/// ```
/// # use std::sync::Mutex;
/// # use std::convert::Infallible;
/// use quorate::testing::{FencedWrite, FencingProof};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// // The resource: the newest token, and a text.
/// let table = Mutex::new((0, String::new()));
/// let write = async |token: u64, value: String| {
///     let mut row = table.lock().unwrap();
///     if token < row.0 {
///         return Ok::<_, Infallible>(FencedWrite::Refused);
///     }
///     *row = (token, value);
///     Ok(FencedWrite::Accepted)
/// };
/// let read = async || Ok(table.lock().unwrap().1.clone());
/// FencingProof::new(write, read).run().await.unwrap();
/// # });
/// ```
///
/// # What it plays
///
/// Fresh tokens, the same token again with another value and with the same value, newer tokens, an older token twice,
/// and (with `restart`) an older token after a restart. After each write, the proof reads the value. It repeats this
/// with tokens of different lengths, because a resource that compares texts refuses 10 after 9, and with large
/// neighbours, because a 32-bit number cannot tell them apart. All tokens are from 1 to 2^53, like the tokens of
/// masters. Then it sends older and newer tokens at the same time, a hundred times.
///
/// If check and write are two steps, then whether a run notices this depends on chance: a passed proof does not exclude
/// it. The proof cannot see whether your program stores its token before it reads (`docs/fencing.md`), nor whether the
/// resource keeps the token in a crash: `restart` can be gentler than a crash.
pub struct FencingProof<W, R, S = NoRestart> {
    write: W,
    read: R,
    restart: Option<S>,
}

/// The type of the restart closure of a [`FencingProof`] without one.
pub type NoRestart = fn() -> std::future::Ready<Result<(), std::convert::Infallible>>;

impl<W, R, E> FencingProof<W, R>
where
    W: AsyncFn(u64, String) -> Result<FencedWrite, E>,
    R: AsyncFn() -> Result<String, E>,
    E: fmt::Display,
{
    /// A proof of the resource behind these closures, without a restart.
    pub fn new(write: W, read: R) -> Self {
        Self {
            write,
            read,
            restart: None,
        }
    }

    /// The same proof, which also restarts the resource. After the restart, the resource must still refuse the tokens
    /// that it refused before.
    pub fn with_restart<S, F>(self, restart: S) -> FencingProof<W, R, S>
    where
        S: AsyncFn() -> Result<(), F>,
        F: fmt::Display,
    {
        FencingProof {
            write: self.write,
            read: self.read,
            restart: Some(restart),
        }
    }
}

/// Groups of rising tokens. Each group is larger than the group before.
const TOKEN_GROUPS: [&[u64]; 5] = [
    // The number of digits grows.
    &[9, 10, 99, 100],
    // The lower 32 bits fall from all ones to zero.
    &[(1 << 32) - 1, 1 << 32],
    // Tokens of our days: microseconds since 1970. They differ by 1, and then by a millisecond.
    &[
        1_795_867_843_360_792,
        1_795_867_843_360_793,
        1_795_867_843_361_793,
    ],
    &[(1 << 52) - 1, 1 << 52],
    // The largest token is 2^53. The tokens between these two groups are for the concurrent writes.
    &[(1 << 53) - 2, (1 << 53) - 1],
];

/// The number of rounds in which older and newer tokens are sent at the same time.
const RACE_ROUNDS: u64 = 100;

/// The number of clients with an older token in each of these rounds.
const OLDER_WRITERS: u64 = 4;

impl<W, R, S, E, F> FencingProof<W, R, S>
where
    W: AsyncFn(u64, String) -> Result<FencedWrite, E>,
    R: AsyncFn() -> Result<String, E>,
    S: AsyncFn() -> Result<(), F>,
    E: fmt::Display,
    F: fmt::Display,
{
    /// Plays all steps. Stops at the first fault.
    ///
    /// # Errors
    ///
    /// The first [`FencingFault`] that the proof found.
    pub async fn run(self) -> Result<(), FencingFault> {
        let mut newest = None;
        let (last, first) = TOKEN_GROUPS.split_last().expect("there are groups");
        for group in first {
            self.check_group(group, &mut newest).await?;
        }
        let mut newest = newest.unwrap_or_default();
        for round in 0..RACE_ROUNDS {
            newest = self.write_concurrently(round, newest).await?;
        }
        self.check_group(last, &mut Some(newest)).await
    }

    /// Plays one group of rising tokens. `newest` is the largest token that the resource has accepted.
    async fn check_group(
        &self,
        group: &[u64],
        newest: &mut Option<u64>,
    ) -> Result<(), FencingFault> {
        for &token in group {
            let earlier_token = newest.replace(token);
            let refuses_first = match earlier_token {
                None => FencingFault::RefusesFirst { token },
                Some(newest) => FencingFault::RefusesNewer {
                    newest,
                    newer: token,
                },
            };
            self.expect_accepted(
                TestWrite {
                    token,
                    label: "first",
                },
                refuses_first,
            )
            .await?;
            let stored = TestWrite {
                token,
                label: "second",
            };
            self.expect_accepted(stored, FencingFault::RefusesSame { token })
                .await?;
            self.expect_accepted(stored, FencingFault::RefusesRepeated { token })
                .await?;
            let Some(older) = earlier_token else { continue };
            self.expect_older_refused(older, stored).await?;
            self.expect_accepted(
                TestWrite {
                    token,
                    label: "third",
                },
                FencingFault::RefusesSame { token },
            )
            .await?;
        }
        Ok(())
    }

    /// Writes with the token `older`, which the resource must refuse, because it has accepted the write `stored`:
    /// twice, and again after a restart.
    async fn expect_older_refused(
        &self,
        older: u64,
        stored: TestWrite<'_>,
    ) -> Result<(), FencingFault> {
        let newest = stored.token;
        let fault = FencingFault::AcceptsOlder { newest, older };
        self.expect_refused(
            TestWrite {
                token: older,
                label: "late",
            },
            stored,
            fault,
        )
        .await?;
        let fault = FencingFault::AcceptsOlderSecondTime { newest, older };
        self.expect_refused(
            TestWrite {
                token: older,
                label: "later",
            },
            stored,
            fault,
        )
        .await?;
        if !self.restart().await? {
            return Ok(());
        }
        let fault = FencingFault::ForgetsAtRestart { newest, older };
        self.expect_refused(
            TestWrite {
                token: older,
                label: "restarted",
            },
            stored,
            fault,
        )
        .await
    }

    /// Makes a write that the resource must accept. Returns `fault` if the resource refuses the write.
    async fn expect_accepted(
        &self,
        written: TestWrite<'_>,
        fault: FencingFault,
    ) -> Result<(), FencingFault> {
        if self.write(written).await? != ACCEPTED {
            return Err(fault);
        }
        let stored_text = self.read().await?;
        if stored_text != value(written) {
            let token = written.token;
            return Err(FencingFault::LosesAcceptedWrite {
                token,
                found: stored_text,
            });
        }
        Ok(())
    }

    /// Makes the write `older_write`, which the resource must refuse, because it has accepted the write `stored`.
    /// Returns `fault` if the resource accepts the write.
    async fn expect_refused(
        &self,
        older_write: TestWrite<'_>,
        stored: TestWrite<'_>,
        fault: FencingFault,
    ) -> Result<(), FencingFault> {
        if self.write(older_write).await? == ACCEPTED {
            return Err(fault);
        }
        let stored_text = self.read().await?;
        let (token, older) = (stored.token, older_write.token);
        if stored_text == value(stored) {
            Ok(())
        } else if stored_text == value(older_write) {
            let newest = token;
            Err(FencingFault::WritesWhatItRefuses { newest, older })
        } else {
            Err(FencingFault::LosesAcceptedWrite {
                token,
                found: stored_text,
            })
        }
    }

    /// Sends the newest token and some older tokens at the same time. Older tokens may be accepted, but only before the
    /// newest one. So in the end the resource must contain the value of the newest token. Returns this token.
    async fn write_concurrently(&self, round: u64, newest: u64) -> Result<u64, FencingFault> {
        let newer = newest + OLDER_WRITERS + 1;
        // The newest token is sent first, last, and in between.
        let mut tokens: Vec<u64> = (newest + 1..newer).collect();
        tokens.insert((round % (OLDER_WRITERS + 1)) as usize, newer);
        let writes = tokens.iter().map(|&token| {
            self.write(TestWrite {
                token,
                label: "race",
            })
        });
        let results = join_all(writes).await;
        for (&token, result) in tokens.iter().zip(results) {
            if result? != ACCEPTED && token == newer {
                return Err(FencingFault::RefusesNewer { newest, newer });
            }
        }
        let stored_text = self.read().await?;
        if stored_text
            == value(TestWrite {
                token: newer,
                label: "race",
            })
        {
            // The resource can have the newest value together with an older token.
            let older = newer - 1;
            let fault = FencingFault::CheckAndWriteNotAtomic { newer, older };
            self.expect_refused(
                TestWrite {
                    token: older,
                    label: "late",
                },
                TestWrite {
                    token: newer,
                    label: "race",
                },
                fault,
            )
            .await?;
            return Ok(newer);
        }
        let older = tokens.iter().find(|&&token| {
            stored_text
                == value(TestWrite {
                    token,
                    label: "race",
                })
        });
        Err(match older {
            Some(&older) => FencingFault::CheckAndWriteNotAtomic { newer, older },
            None => FencingFault::LosesAcceptedWrite {
                token: newer,
                found: stored_text,
            },
        })
    }

    async fn write(&self, written: TestWrite<'_>) -> Result<FencedWrite, FencingFault> {
        let token = written.token;
        let result = (self.write)(token, value(written)).await;
        result.map_err(|error| failed(format!("write with token {token}"), error))
    }

    async fn read(&self) -> Result<String, FencingFault> {
        let stored_text = (self.read)().await;
        stored_text.map_err(|error| failed("read the resource".to_owned(), error))
    }

    /// Restarts the resource. False if the proof has no restart closure.
    async fn restart(&self) -> Result<bool, FencingFault> {
        let Some(restart) = &self.restart else {
            return Ok(false);
        };
        let restarted = restart().await;
        restarted.map_err(|error| failed("restart the resource".to_owned(), error))?;
        Ok(true)
    }
}

const ACCEPTED: FencedWrite = FencedWrite::Accepted;

/// A write of the proof: the token, and a word that tells the writes with one token apart.
#[derive(Clone, Copy)]
struct TestWrite<'a> {
    token: u64,
    label: &'a str,
}

/// The value that the proof writes.
fn value(TestWrite { token, label }: TestWrite<'_>) -> String {
    format!("{label} value of token {token}")
}

fn failed(step: String, error: impl fmt::Display) -> FencingFault {
    let error = error.to_string();
    FencingFault::Failed { step, error }
}

impl<W, R, S> fmt::Debug for FencingProof<W, R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencingProof")
            .field("restarts", &self.restart.is_some())
            .finish_non_exhaustive()
    }
}
