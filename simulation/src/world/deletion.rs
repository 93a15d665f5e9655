//! Servers with a command that compares and deletes: which masters have it, and which connections may use it.

use std::sync::Arc;

use quorate::node::{Claim, Request};

use super::World;
use super::words::token;

/// The additional line in the version report of such a server.
const VERSION: &str = "valkey_version:9.0.0\r\n";

/// The error replies for a user without the right, and for a client behind a proxy that does not know the command.
const REFUSALS: [&str; 2] = [
    "-NOPERM User u has no permissions to run the 'delifeq' command\r\n",
    "-ERR unknown command 'DELIFEQ'\r\n",
];

/// The release that the command stands for.
pub(super) fn release(words: &[&[u8]]) -> Option<Request> {
    let [b"DELIFEQ", key, value] = words else {
        return None;
    };
    let claim = Arc::new(Claim::new("", key, token(value)?, true));
    Some(Request::Release { claim, leave: true })
}

impl World {
    /// The version that a master reports. Every second master has the command, without drawing a random number, so that
    /// seeds keep their meaning.
    pub(super) fn version_with_deletion(&self, master: usize) -> &'static str {
        let has = (self.scenario.seed + master as u64).is_multiple_of(2);
        if has { VERSION } else { "" }
    }

    /// The refusal for a connection that may not use the command: every third.
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
