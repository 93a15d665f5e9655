//! The SQL statements as text. Names and states of records are hexadecimal literals, so nothing needs to be escaped.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::store::{Change, Commit, WaitLock, Wake};

/// The SQL expression for the server's clock at the start of the statement, in microseconds since 1970.
///
/// Do not use `SYSDATE`, which depends on the time zone and on a server option.
pub(crate) const CLOCK_EXPRESSION: &str =
    "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";

/// The longest name of a record, in bytes: the size of the column `name`.
pub(crate) const LONGEST_NAME: usize = 2100;
/// The longest message (word) of a wake-up, in bytes: the size of its column.
pub(crate) const LONGEST_MESSAGE: usize = 2200;

/// The number of statements in [`session_settings`].
pub(crate) const SETTINGS_STATEMENT_COUNT: usize = 3;

/// The statements that set up a session. They override global settings and `init_connect`, so that later statements
/// have the same effect on every server.
///
/// On MariaDB, `limit` is the time limit of each later statement; zero means no limit. MySQL ignores `limit`.
pub(crate) fn session_settings(limit: Duration) -> String {
    let limit = limit.as_secs_f64();
    format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED,READ WRITE;SET NAMES utf8mb4;\
         SET SESSION autocommit=1,completion_type=0,sql_select_limit=18446744073709551615,\
         sql_big_selects=1,sql_safe_updates=0,sql_mode='STRICT_ALL_TABLES',innodb_lock_wait_timeout=1,\
         lock_wait_timeout=1,wait_timeout=28800/*M!,max_statement_time={limit}*/"
    )
}

/// Statements that are sent in one packet.
#[derive(Default)]
pub(crate) struct Packet {
    text: String,
    statements: usize,
}

impl Packet {
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Adds a statement to the packet, and returns its number in the packet, which is also the index of its result.
    pub(crate) fn add(&mut self, write: impl FnOnce(&mut String)) -> usize {
        if self.statements > 0 {
            self.text.push(';');
        }
        write(&mut self.text);
        self.statements += 1;
        self.statements - 1
    }
}

/// Appends bytes as a hexadecimal literal.
pub(crate) fn write_hex(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(2 * bytes.len() + 3);
    out.push_str("x'");
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    out.push('\'');
}

fn write_name_list<'a>(names: impl Iterator<Item = &'a Arc<[u8]>>, out: &mut String) {
    out.push('(');
    for (number, name) in names.enumerate() {
        if number > 0 {
            out.push(',');
        }
        write_hex(name, out);
    }
    out.push(')');
}

/// The query that reads these records together with the server's clock. If none of the records exists, the result is
/// one row with only the clock.
pub(crate) fn load_query(names: &[Arc<[u8]>]) -> String {
    let mut out = format!(
        "SELECT c.clock,r.name,r.version,r.state FROM (SELECT {CLOCK_EXPRESSION} AS clock) c \
         LEFT JOIN quorate_record r FORCE INDEX (PRIMARY) ON r.state IS NOT NULL AND r.name IN "
    );
    match names {
        [] => out.push_str("(NULL)"),
        names => write_name_list(names.iter(), &mut out),
    }
    out
}

/// The query that reads at most `count` records after the record with the name `last_name`. If `last_name` is `None`,
/// the query skips the first `from` records instead. The result has the form of [`load_query`].
pub(crate) fn page_query(from: u64, last_name: Option<&[u8]>, count: u32) -> String {
    let mut out = format!(
        "SELECT c.clock,r.name,r.version,r.state FROM (SELECT {CLOCK_EXPRESSION} AS clock) c \
         LEFT JOIN (SELECT name,version,state FROM quorate_record WHERE state IS NOT NULL"
    );
    if let Some(last_name) = last_name {
        out.push_str(" AND name>");
        write_hex(last_name, &mut out);
    }
    let offset = if last_name.is_some() { 0 } else { from };
    let _ = write!(
        out,
        " ORDER BY name LIMIT {count} OFFSET {offset}) r ON TRUE ORDER BY r.name"
    );
    out
}

/// Appends to `out` the statement that locks the row of the record `name` if it has this version and nobody else has
/// locked it. The statement sets `@free` to the number of rows that it has locked.
pub(crate) fn write_removal_lock(name: &[u8], version: u64, out: &mut String) {
    out.push_str(
        "SELECT COUNT(*) INTO @free FROM quorate_record FORCE INDEX (PRIMARY) WHERE name=",
    );
    write_hex(name, out);
    let _ = write!(out, " AND version={version} FOR UPDATE SKIP LOCKED");
}

/// Appends to `out` the statement that removes the record `name` only if it has this version. An earlier statement sets
/// `@free` ([`write_removal_lock`]). If `@free` is 0, the statement reads no row, so it waits for no lock.
pub(crate) fn write_remove(name: &[u8], version: u64, out: &mut String) {
    out.push_str("DELETE FROM quorate_record WHERE @free=1 AND name=");
    write_hex(name, out);
    let _ = write!(out, " AND version={version}");
}

/// Appends to `out` the statement that changes an existing record. Its result shows whether the record was changed, and
/// contains the server's clock.
pub(crate) fn write_update(change: &Change, state: &[u8], out: &mut String) {
    out.push_str("UPDATE quorate_record SET version=version+1,state=");
    write_hex(state, out);
    let _ = write!(
        out,
        ",changed=LAST_INSERT_ID({CLOCK_EXPRESSION}) WHERE name="
    );
    write_hex(&change.name, out);
    let _ = write!(out, " AND version={}", change.version);
}

/// Appends to `out` the statement that creates a record if it does not exist. A row with the state NULL counts as a
/// missing record: the statement fills this row.
pub(crate) fn write_insert(change: &Change, state: &[u8], version: u64, out: &mut String) {
    out.push_str("INSERT INTO quorate_record (name,version,state,changed) VALUES (");
    write_hex(&change.name, out);
    let _ = write!(out, ",{version},");
    write_hex(state, out);
    let _ = write!(
        out,
        ",LAST_INSERT_ID({CLOCK_EXPRESSION})) ON DUPLICATE KEY UPDATE \
         version=IF(state IS NULL,VALUES(version),version),\
         changed=IF(state IS NULL,VALUES(changed),changed),\
         state=IF(state IS NULL,VALUES(state),state)"
    );
}

/// Appends to `out` the query that checks whether a record has the version that the change expects. Its result also
/// contains the server's clock.
pub(crate) fn write_check(change: &Change, out: &mut String) {
    let _ = write!(
        out,
        "SELECT COUNT(*)=1,{CLOCK_EXPRESSION} FROM quorate_record WHERE "
    );
    write_condition(change, out);
    if change.version == 0 {
        // Version 0 means that the record must not exist. So require that the query finds no row.
        let condition_range = out.rfind("COUNT(*)=1").map(|start| start..start + 10);
        if let Some(condition_range) = condition_range {
            out.replace_range(condition_range, "COUNT(*)=0");
        }
    }
}

fn write_condition(change: &Change, out: &mut String) {
    out.push_str("name=");
    write_hex(&change.name, out);
    if change.version == 0 {
        out.push_str(" AND state IS NOT NULL");
    } else {
        let _ = write!(out, " AND version={}", change.version);
    }
}

/// Appends to `out` a statement that inserts a row with the state NULL for each record that has no row. So the commit's
/// transaction only locks and updates existing rows.
pub(crate) fn write_empty_rows(changes: &[&Change], out: &mut String) {
    out.push_str("INSERT IGNORE INTO quorate_record (name,version,state,changed) VALUES ");
    for (number, change) in changes.iter().enumerate() {
        out.push_str(if number > 0 { ",(" } else { "(" });
        write_hex(&change.name, out);
        let _ = write!(out, ",0,NULL,{CLOCK_EXPRESSION})");
    }
}

/// Appends to `out` the statement that locks the rows of these changes, sorted by row name. The statement sets `@fit`
/// to the number of rows that have the expected version.
pub(crate) fn write_row_locks(changes: &[&Change], out: &mut String) {
    out.push_str("SELECT COUNT(*) INTO @fit FROM quorate_record FORCE INDEX (PRIMARY) WHERE ");
    write_any_condition(changes.iter().copied(), out);
    out.push_str(" FOR UPDATE");
}

/// Appends a condition that selects the rows with the expected versions. The expected version 0 means that there is no
/// record: then the row may exist only with the state NULL.
fn write_any_condition<'a>(changes: impl Iterator<Item = &'a Change>, out: &mut String) {
    for (number, change) in changes.enumerate() {
        out.push_str(if number > 0 { " OR (name=" } else { "(name=" });
        write_hex(&change.name, out);
        if change.version == 0 {
            out.push_str(" AND state IS NULL)");
        } else {
            let _ = write!(out, " AND version={})", change.version);
        }
    }
}

/// Appends to `out` the statement that changes all of these records or none. An earlier statement sets `@fit` to the
/// number of records that have the expected version. The statement changes the records if `@fit` equals
/// `expected_count`.
///
/// It checks each version again: if the table has no row locks, another client can change a record after `@fit` was
/// set.
pub(crate) fn write_joint_update(
    changes: &[(&Change, &[u8], u64)],
    expected_count: usize,
    out: &mut String,
) {
    let _ = write!(
        out,
        "UPDATE quorate_record FORCE INDEX (PRIMARY) SET changed={CLOCK_EXPRESSION},version=CASE name"
    );
    for (change, _, version) in changes {
        out.push_str(" WHEN ");
        write_hex(&change.name, out);
        let _ = write!(out, " THEN {version}");
    }
    out.push_str(" END,state=CASE name");
    for (change, state, _) in changes {
        out.push_str(" WHEN ");
        write_hex(&change.name, out);
        out.push_str(" THEN ");
        write_hex(state, out);
    }
    let _ = write!(out, " END WHERE @fit={expected_count} AND (");
    write_any_condition(changes.iter().map(|(change, _, _)| *change), out);
    out.push(')');
}

/// Appends to `out` the statement that inserts wake-ups for listeners if the SQL condition `only_if` is true.
pub(crate) fn write_wake_ups(wakes: &[Wake], only_if: &str, out: &mut String) {
    let _ = write!(
        out,
        "INSERT INTO quorate_woken (process,word,at) SELECT q.process,q.word,{CLOCK_EXPRESSION} FROM ("
    );
    for (number, wake) in wakes.iter().enumerate() {
        out.push_str(if number > 0 {
            " UNION ALL SELECT "
        } else {
            "SELECT "
        });
        write_hex(wake.process.as_bytes(), out);
        out.push_str(" AS process,");
        write_hex(&wake.word, out);
        out.push_str(" AS word");
    }
    let _ = write!(out, ") q WHERE {only_if}");
}

/// Appends the SQL literal of the name under which the server knows a wait lock. The name has fewer than 64 characters,
/// the limit of MySQL.
pub(crate) fn write_wait_lock_name(name: &str, out: &mut String) {
    write_hex(format!("quorate:{name}").as_bytes(), out);
}

/// Appends a statement to `out`. If the SQL condition `only_if` is true, the statement takes or releases each wait
/// lock, as its [`WaitLock`] requests. It never blocks: a wait lock that another session holds is not taken.
pub(crate) fn write_wait_locks(changes: &[&WaitLock], only_if: &str, out: &mut String) {
    for (number, change) in changes.iter().enumerate() {
        out.push_str(if number > 0 { "," } else { "DO " });
        let _ = write!(out, "IF({only_if},");
        let (name, function, end) = match change {
            WaitLock::Keep(name) => (name, "GET_LOCK(", ",0),0)"),
            WaitLock::Release(name) => (name, "RELEASE_LOCK(", "),0)"),
        };
        out.push_str(function);
        write_wait_lock_name(name, out);
        out.push_str(end);
    }
}

/// Whether the record names and wake-up messages of a commit fit into their columns.
pub(crate) fn fits_columns(commit: &Commit) -> bool {
    let name_lengths = commit.changes.iter().map(|change| change.name.len());
    let message_lengths = commit.wakes.iter().map(|wake| wake.word.len());
    name_lengths.max().unwrap_or(0) <= LONGEST_NAME
        && message_lengths.max().unwrap_or(0) <= LONGEST_MESSAGE
}

/// The statements that remove the wake-ups of `process` up to the id `last_received`, and then wait for new wake-ups.
/// They sleep at most `polls` times for `pause` seconds. Each argument is an SQL expression.
///
/// The sleep is a separate statement, because a sleep inside the `SELECT` would keep the table locked.
pub(crate) fn listen_block(process: &str, last_received: &str, polls: &str, pause: &str) -> String {
    format!(
        "BEGIN \
         DECLARE looked INT DEFAULT 0;\
         DELETE FROM quorate_woken WHERE process={process} AND id<={last_received};\
         WHILE looked<{polls} AND NOT EXISTS (SELECT 1 FROM quorate_woken WHERE process={process}) DO \
         DO SLEEP({pause});SET looked=looked+1;\
         END WHILE;\
         SELECT id,word FROM quorate_woken WHERE process={process} ORDER BY id;\
         END"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(write: impl FnOnce(&mut String)) -> String {
        let mut out = String::new();
        write(&mut out);
        out
    }

    #[test]
    fn bytes_are_written_as_hexadecimal_literals() {
        assert_eq!(text_of(|out| write_hex(b"'\\;\0", out)), "x'275c3b00'");
        assert_eq!(text_of(|out| write_hex(b"", out)), "x''");
    }

    #[test]
    fn check_for_version_0_of_a_record_requires_that_no_record_exists() {
        let change = |version| Change {
            name: b"COUNT(*)=1"[..].into(),
            version,
            state: None,
        };
        assert!(text_of(|out| write_check(&change(0), out)).contains("COUNT(*)=0"));
        assert!(text_of(|out| write_check(&change(7), out)).contains("COUNT(*)=1"));
    }
}
