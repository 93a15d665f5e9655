//! What a master says to an extension of many locks.

use crate::node::{Answer, Extended, Fault};
use crate::protocol::lease::Kept;

/// What one node said of one lock of an extension, as a vote and as a report.
pub(crate) fn said_of_lock(
    said: &Result<Vec<Extended>, Fault>,
    index: usize,
) -> (Kept, Result<Answer, Fault>) {
    match said.as_ref().map(|said| said.get(index)) {
        Ok(Some(Extended::Kept | Extended::Restored)) => (Kept::Yes, Ok(Answer::Confirmed)),
        Ok(Some(Extended::NotOurs)) => (Kept::No, Ok(Answer::NotOurs)),
        Ok(Some(Extended::Withdrawn) | None) => (Kept::Unknown, Err(Fault::Withdrawn)),
        Err(fault) => (Kept::Unknown, Err(fault.clone())),
    }
}

/// The answer to an extension of `count` locks.
pub(crate) fn extended(
    answer: Result<Answer, Fault>,
    count: usize,
) -> Result<Vec<Extended>, Fault> {
    match answer? {
        Answer::Extended(said) if said.len() == count => Ok(said),
        _ => Err(Fault::Server("an answer of another kind".into())),
    }
}
