//! A step of the search, and its text in a schedule.

use std::fmt;

use crate::rules::Masters;
use crate::world::{ACQUIRE, CONFIRM, EXTEND, members};

/// One step. Attempts and masters are given by their indexes.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the variants explain their fields")]
pub enum Action {
    /// A client begins an attempt: it sends an acquire to all masters of its sets.
    Begin {
        attempt: usize,
        step: u8,
        proposal: u8,
    },
    /// A request of an attempt reaches a master. `again` if the same request may reach the master once more.
    Arrive {
        attempt: usize,
        master: usize,
        request: u8,
        again: bool,
    },
    /// A release of an attempt reaches a master.
    ReleaseArrives { attempt: usize, master: usize },
    /// A client counts the votes of these masters.
    CountVotes { attempt: usize, voters: Masters },
    /// A client counts the confirmations of its token.
    CountConfirmations { attempt: usize },
    /// A client gives up, and releases the lock keys of its attempt.
    GiveUp { attempt: usize },
    /// A holder releases its lock.
    Release { attempt: usize },
    /// A holder sends an extension to all masters of its sets.
    Extend { attempt: usize, ttl: u8 },
    /// A holder counts the answers to its extension.
    CountExtension { attempt: usize },
    /// One tick passes.
    Tick,
    /// A lock key expires on a master whose clock is fast.
    ExpireEarly { master: usize },
    /// A master restarts, and forgets its lock key. It may forget the fencing counter as well.
    Restart { master: usize, keeps_counter: bool },
    /// The operator closes an old master.
    Close { master: usize },
    /// The operator reads the fencing counters of these masters.
    ReadCounters { from: Masters },
    /// The operator raises the fencing counter of a next master to the number that it has read.
    RaiseCounter { master: usize },
    /// The operator opens a next master.
    Open { master: usize },
    /// The operator ends the change on a master.
    Finish { master: usize },
}

fn letter(attempt: usize) -> char {
    char::from(b'A' + attempt as u8)
}

fn names(masters: Masters) -> String {
    let names = members(masters).map(|master| format!("m{}", master + 1));
    names.collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = |attempt: &usize| letter(*attempt);
        let name = |master: &usize| format!("m{}", master + 1);
        match self {
            Self::Begin { attempt, step, .. } => {
                let clients = ["the old masters", "both sets", "the next masters"];
                let clients = clients[usize::from(*step)];
                write!(
                    f,
                    "{} sends its acquires, as a client of {clients}",
                    client(attempt)
                )
            }
            Self::Arrive {
                attempt,
                master,
                request,
                again,
            } => {
                let request = match *request {
                    ACQUIRE => "acquire",
                    CONFIRM => "confirm",
                    EXTEND => "extension",
                    _ => "earlier extension",
                };
                let again = if *again {
                    ", and will arrive once more"
                } else {
                    ""
                };
                let (client, name) = (client(attempt), name(master));
                write!(f, "{client}'s {request} arrives at {name}{again}")
            }
            Self::ReleaseArrives { attempt, master } => {
                write!(
                    f,
                    "{}'s release arrives at {}",
                    client(attempt),
                    name(master)
                )
            }
            Self::CountVotes { attempt, voters } => {
                write!(
                    f,
                    "{} counts the votes of {}",
                    client(attempt),
                    names(*voters)
                )
            }
            Self::CountConfirmations { attempt } => {
                write!(f, "{} counts the confirmations", client(attempt))
            }
            Self::GiveUp { attempt } => write!(f, "{} gives up", client(attempt)),
            Self::Release { attempt } => write!(f, "{} releases its lock", client(attempt)),
            Self::Extend { attempt, ttl } => {
                write!(f, "{} sends extensions by {ttl} ticks", client(attempt))
            }
            Self::CountExtension { attempt } => {
                write!(f, "{} counts the answers to its extension", client(attempt))
            }
            _ => self.fmt_event(f),
        }
    }
}

impl Action {
    /// Writes the text of a step that no client takes.
    fn fmt_event(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |master: &usize| format!("m{}", master + 1);
        match self {
            Self::Tick => write!(f, "a tick passes"),
            Self::ExpireEarly { master } => {
                write!(
                    f,
                    "the key expires on {}, whose clock is fast",
                    name(master)
                )
            }
            Self::Restart {
                master,
                keeps_counter,
            } => {
                let keeps = if *keeps_counter {
                    "the counter"
                } else {
                    "nothing"
                };
                write!(f, "{} restarts, and keeps {keeps}", name(master))
            }
            Self::Close { master } => write!(f, "the operator closes {}", name(master)),
            Self::ReadCounters { from } => {
                write!(f, "the operator reads the counters of {}", names(*from))
            }
            Self::RaiseCounter { master } => {
                write!(f, "the operator raises the counter of {}", name(master))
            }
            Self::Open { master } => write!(f, "the operator opens {}", name(master)),
            Self::Finish { master } => write!(f, "the operator finishes on {}", name(master)),
            _ => Ok(()),
        }
    }
}
