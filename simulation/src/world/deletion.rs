//! Servers with a command of their own that compares and deletes: which masters are such, and who may use it there.

use std::sync::Arc;

use quorate::node::{Claim, Request};

use super::World;
use super::words::token;

/// What such a server says of itself beside what all say.
const VERSION: &str = "valkey_version:9.0.0\r\n";

/// What who may not use it is told, and who comes by a proxy that does not know it.
const REFUSALS: [&str; 2] = [
    "-NOPERM User u has no permissions to run the 'delifeq' command\r\n",
    "-ERR unknown command 'DELIFEQ'\r\n",
];

/// The release that the command is.
pub(super) fn release(words: &[&[u8]]) -> Option<Request> {
    let [b"DELIFEQ", key, value] = words else {
        return None;
    };
    let claim = Arc::new(Claim::new("", key, token(value)?, true));
    Some(Request::Release { claim, leave: true })
}

impl World {
    /// What a master says of such a version. Every other one has it, by a rule that draws no number: what else
    /// happens in a seed stays what it was.
    pub(super) fn version_with_deletion(&self, master: usize) -> &'static str {
        let has = (self.scenario.seed + master as u64).is_multiple_of(2);
        if has { VERSION } else { "" }
    }

    /// What a connection is refused that may not use it: every third.
    pub(super) fn refused_deletion(
        &mut self,
        conn: usize,
        words: &[&[u8]],
    ) -> Option<&'static str> {
        if words.first() != Some(&&b"DELIFEQ"[..]) {
            return None;
        }
        if conn.is_multiple_of(3) {
            self.watch.coverage.deletions_refused += 1;
            return Some(REFUSALS[conn / 3 % 2]);
        }
        self.watch.coverage.deletions += 1;
        None
    }
}
