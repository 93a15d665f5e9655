//! The command `DELIFEQ`, which deletes a key if it has a given value. Only some masters know the command, and only
//! some connections are permitted to use it.

use super::World;

/// The additional line in the version report of a server that knows `DELIFEQ`.
const VALKEY_VERSION_LINE: &str = "valkey_version:9.0.0\r\n";

/// Two error replies to `DELIFEQ`: the user lacks the permission, or a proxy does not know the command.
const DELIFEQ_REFUSALS: [&str; 2] = [
    "-NOPERM User u has no permissions to run the 'delifeq' command\r\n",
    "-ERR unknown command 'DELIFEQ'\r\n",
];

impl World {
    /// Returns the additional version line of a master that knows `DELIFEQ`, otherwise an empty string. Every second
    /// master knows the command.
    pub(super) fn version_with_deletion(&self, master: usize) -> &'static str {
        let knows_command = (self.scenario.seed + master as u64).is_multiple_of(2);
        if knows_command {
            VALKEY_VERSION_LINE
        } else {
            ""
        }
    }

    /// Returns an error reply if the command is `DELIFEQ` and the server refuses it. The server refuses it on every
    /// third connection.
    pub(super) fn refused_deletion(
        &mut self,
        conn: usize,
        arguments: &[&[u8]],
    ) -> Option<&'static str> {
        if arguments.first() != Some(&&b"DELIFEQ"[..]) {
            return None;
        }
        if conn.is_multiple_of(3) {
            self.observer.coverage.deletions_refused += 1;
            return Some(DELIFEQ_REFUSALS[conn / 3 % 2]);
        }
        self.observer.coverage.deletions += 1;
        None
    }
}
