//! Texts and checks of the command that are the same for MySQL, MariaDB and PostgreSQL. The checks do no I/O.
//!
//! Whether a crash can lose data depends on other settings in each kind: `mysql/doctor.rs` and `postgres/doctor.rs` have
//! a function `persistence` each.

use quorate::Inspection;

use super::backend::prepared;
use crate::finding::{Add, Severity};

/// `doctor` warns if a database server has fewer free connections than this, which is enough for two clients. Each
/// client opens four sessions and one connection for notifications.
const ROOM: u64 = 2 * 5;

/// A setting of the server that is a whole number; `None` if the server does not report it.
pub(super) fn number(master: &Inspection, setting: &str) -> Option<u64> {
    master.setting(setting)?.parse().ok()
}

/// Warns if a server has few free connections. `used_setting` is the setting with the number of used connections.
pub(super) fn room(master: &Inspection, used_setting: &str, add: &mut dyn Add) {
    let limit = number(master, "max_connections");
    let (Some(limit), Some(used)) = (limit, number(master, used_setting)) else {
        return;
    };
    let free = limit.saturating_sub(used);
    if free < ROOM {
        add(
            Severity::Warning,
            "connections",
            format!(
                "has room for only {free} more connections (max_connections {limit}), but each client that takes locks \
                 needs five connections"
            ),
            "raise max_connections, or use fewer sessions per client (?lanes= in its URL)",
        );
    }
}

/// The report of `prepare-server` for a database: what was created and repaired, and which rights a user needs.
pub(super) fn preparation_report(
    name: &str,
    made: bool,
    repaired: &[String],
    grants: &[String],
) -> String {
    let mut text = format!("{name}: {}\n", prepared(made));
    for repaired in repaired {
        text.push_str(&format!("  repaired: {repaired}\n"));
    }
    for grant in grants {
        text.push_str(&format!(
            "  grant for the account that takes locks: {grant}\n"
        ));
    }
    text
}
