//! The statements, as text: names and states are hexadecimal literals, so that nothing has to be escaped.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use quorate::node::store::{Change, Commit, Wake};

/// The server's clock, in microseconds since 1970: that of the beginning of the statement, which is a moment between
/// question and answer, also where the statement then waits for a row. `SYSDATE` is that of when it is
/// evaluated, but follows the time zone and an option of the server, and is refused by a binary log of statements.
pub(crate) const CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND,'1970-01-01',UTC_TIMESTAMP(6))";

/// The longest name of a record.
pub(crate) const LONGEST_NAME: usize = 2100;
/// The longest word that wakes somebody.
pub(crate) const LONGEST_WORD: usize = 2200;

/// How many statements [`settings`] has.
pub(crate) const SETTINGS: usize = 3;

/// Sets a session up whose statements may take that long, for ever if it is zero. All that the statements here depend on and
/// an administrator can set for everybody, by a variable or in `init_connect`, is set: they mean the same on every server.
pub(crate) fn settings(limit: Duration) -> String {
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

    /// Adds a statement; its number.
    pub(crate) fn add(&mut self, write: impl FnOnce(&mut String)) -> usize {
        if self.statements > 0 {
            self.text.push(';');
        }
        write(&mut self.text);
        self.statements += 1;
        self.statements - 1
    }
}

/// Bytes as a literal.
pub(crate) fn hex(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(2 * bytes.len() + 3);
    out.push_str("x'");
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    out.push('\'');
}

fn list<'a>(names: impl Iterator<Item = &'a Arc<[u8]>>, out: &mut String) {
    out.push('(');
    for (number, name) in names.enumerate() {
        if number > 0 {
            out.push(',');
        }
        hex(name, out);
    }
    out.push(')');
}

/// These records, each row beside the clock; one row with nothing but the clock where there is none of them.
pub(crate) fn load(names: &[Arc<[u8]>]) -> String {
    let mut out = format!(
        "SELECT c.clock,r.name,r.version,r.state FROM (SELECT {CLOCK} AS clock) c \
         LEFT JOIN quorate_record r FORCE INDEX (PRIMARY) ON r.state IS NOT NULL AND r.name IN "
    );
    match names {
        [] => out.push_str("(NULL)"),
        names => list(names.iter(), &mut out),
    }
    out
}

/// A page of the records, as [`load`] gives them: behind that name, or behind so many of them.
pub(crate) fn page(from: u64, behind: Option<&[u8]>, count: u32) -> String {
    let mut out = format!(
        "SELECT c.clock,r.name,r.version,r.state FROM (SELECT {CLOCK} AS clock) c \
         LEFT JOIN (SELECT name,version,state FROM quorate_record WHERE state IS NOT NULL"
    );
    if let Some(behind) = behind {
        out.push_str(" AND name>");
        hex(behind, &mut out);
    }
    let offset = if behind.is_some() { 0 } else { from };
    let _ = write!(
        out,
        " ORDER BY name LIMIT {count} OFFSET {offset}) r ON TRUE ORDER BY r.name"
    );
    out
}

/// Removes a record where it has this version.
pub(crate) fn remove(name: &[u8], version: u64, out: &mut String) {
    out.push_str("DELETE FROM quorate_record WHERE name=");
    hex(name, out);
    let _ = write!(out, " AND version={version}");
}

/// Changes a record that is there. Its answer says whether it did, and the clock.
pub(crate) fn update(change: &Change, state: &[u8], out: &mut String) {
    out.push_str("UPDATE quorate_record SET version=version+1,state=");
    hex(state, out);
    let _ = write!(out, ",changed=LAST_INSERT_ID({CLOCK}) WHERE name=");
    hex(&change.name, out);
    let _ = write!(out, " AND version={}", change.version);
}

/// Makes a record that is not there. A row without a state is none.
pub(crate) fn insert(change: &Change, state: &[u8], version: u64, out: &mut String) {
    out.push_str("INSERT INTO quorate_record (name,version,state,changed) VALUES (");
    hex(&change.name, out);
    let _ = write!(out, ",{version},");
    hex(state, out);
    let _ = write!(
        out,
        ",LAST_INSERT_ID({CLOCK})) ON DUPLICATE KEY UPDATE \
         version=IF(state IS NULL,VALUES(version),version),\
         changed=IF(state IS NULL,VALUES(changed),changed),\
         state=IF(state IS NULL,VALUES(state),state)"
    );
}

/// Whether a record has its version, and the clock.
pub(crate) fn check(change: &Change, out: &mut String) {
    let _ = write!(out, "SELECT COUNT(*)=1,{CLOCK} FROM quorate_record WHERE ");
    fits(change, out);
    if change.version == 0 {
        // There is none to be counted.
        let counted = out.rfind("COUNT(*)=1").map(|at| at..at + 10);
        if let Some(counted) = counted {
            out.replace_range(counted, "COUNT(*)=0");
        }
    }
}

fn fits(change: &Change, out: &mut String) {
    out.push_str("name=");
    hex(&change.name, out);
    if change.version == 0 {
        out.push_str(" AND state IS NOT NULL");
    } else {
        let _ = write!(out, " AND version={}", change.version);
    }
}

/// Makes rows without a state for records that are not there yet, so that there is something to lock: nothing is
/// ever inserted while rows are locked. In the order of their names.
pub(crate) fn make_room(changes: &[&Change], out: &mut String) {
    out.push_str("INSERT IGNORE INTO quorate_record (name,version,state,changed) VALUES ");
    for (number, change) in changes.iter().enumerate() {
        out.push_str(if number > 0 { ",(" } else { "(" });
        hex(&change.name, out);
        let _ = write!(out, ",0,NULL,{CLOCK})");
    }
}

/// Locks the rows of these changes in the order of their names, and counts in `@fit` which have their version.
pub(crate) fn lock(changes: &[&Change], out: &mut String) {
    out.push_str("SELECT COUNT(*) INTO @fit FROM quorate_record FORCE INDEX (PRIMARY) WHERE ");
    any_of(changes.iter().copied(), out);
    out.push_str(" FOR UPDATE");
}

/// Whether a row is one of these records, of its version. A row without a state is no record.
fn any_of<'a>(changes: impl Iterator<Item = &'a Change>, out: &mut String) {
    for (number, change) in changes.enumerate() {
        out.push_str(if number > 0 { " OR (name=" } else { "(name=" });
        hex(&change.name, out);
        if change.version == 0 {
            out.push_str(" AND state IS NULL)");
        } else {
            let _ = write!(out, " AND version={})", change.version);
        }
    }
}

/// Changes all of these records if `@fit` says so. Each has its version still, for its row is locked; it is compared once more all
/// the same, so that a table that locks no rows overwrites no version that was never read.
pub(crate) fn update_all(changes: &[(&Change, &[u8], u64)], fit: usize, out: &mut String) {
    let _ = write!(
        out,
        "UPDATE quorate_record FORCE INDEX (PRIMARY) SET changed={CLOCK},version=CASE name"
    );
    for (change, _, version) in changes {
        out.push_str(" WHEN ");
        hex(&change.name, out);
        let _ = write!(out, " THEN {version}");
    }
    out.push_str(" END,state=CASE name");
    for (change, state, _) in changes {
        out.push_str(" WHEN ");
        hex(&change.name, out);
        out.push_str(" THEN ");
        hex(state, out);
    }
    let _ = write!(out, " END WHERE @fit={fit} AND (");
    any_of(changes.iter().map(|(change, _, _)| *change), out);
    out.push(')');
}

/// Leaves words for those who listen, if `only_if` holds.
pub(crate) fn wake(wakes: &[Wake], only_if: &str, out: &mut String) {
    let _ = write!(
        out,
        "INSERT INTO quorate_woken (process,word,at) SELECT q.process,q.word,{CLOCK} FROM ("
    );
    for (number, wake) in wakes.iter().enumerate() {
        out.push_str(if number > 0 {
            " UNION ALL SELECT "
        } else {
            "SELECT "
        });
        hex(wake.process.as_bytes(), out);
        out.push_str(" AS process,");
        hex(&wake.word, out);
        out.push_str(" AS word");
    }
    let _ = write!(out, ") q WHERE {only_if}");
}

/// Whether all names and words of a commit have room.
pub(crate) fn has_room(commit: &Commit) -> bool {
    let names = commit.changes.iter().map(|change| change.name.len());
    let words = commit.wakes.iter().map(|wake| wake.word.len());
    names.max().unwrap_or(0) <= LONGEST_NAME && words.max().unwrap_or(0) <= LONGEST_WORD
}

/// What a server is to do that listens for a process, from a word on, looking so often with so many seconds in between:
/// each stands there as an expression. It sleeps in a statement of its own: in that of the look, the table stays locked.
pub(crate) fn listening(process: &str, heard: &str, looks: &str, pause: &str) -> String {
    format!(
        "BEGIN \
         DECLARE looked INT DEFAULT 0;\
         DELETE FROM quorate_woken WHERE process={process} AND id<={heard};\
         WHILE looked<{looks} AND NOT EXISTS (SELECT 1 FROM quorate_woken WHERE process={process}) DO \
         DO SLEEP({pause});SET looked=looked+1;\
         END WHILE;\
         SELECT id,word FROM quorate_woken WHERE process={process} ORDER BY id;\
         END"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut String)) -> String {
        let mut out = String::new();
        write(&mut out);
        out
    }

    #[test]
    fn bytes_cannot_end_their_literal() {
        assert_eq!(written(|out| hex(b"'\\;\0", out)), "x'275c3b00'");
        assert_eq!(written(|out| hex(b"", out)), "x''");
    }

    #[test]
    fn a_record_that_must_not_be_there_is_counted_as_none() {
        let change = |version| Change {
            name: b"COUNT(*)=1"[..].into(),
            version,
            state: None,
        };
        assert!(written(|out| check(&change(0), out)).contains("COUNT(*)=0"));
        assert!(written(|out| check(&change(7), out)).contains("COUNT(*)=1"));
    }
}
