//! The tables of the schema, and the check that a server's tables match them.
//!
//! A table with a wrong definition would seem to work, but with these faults:
//!
//! - Without transactions, a commit of several records could be applied in part.
//! - If the table `quorate_run` were stored on disk, a restart of the server would not empty it. So clients would not
//!   notice the restart.
//! - If names were compared as text, two names that differ only in case would be equal.

use mysql_async::Row;

use crate::session::{number, word};
use crate::sql::{LONGEST_NAME, LONGEST_WORD};

/// A table of the schema.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    engine: &'static str,
    columns: &'static [Column],
    /// Two parts of the `CREATE TABLE` statement: the text inside the parentheses after the columns, and the text after
    /// the closing parenthesis.
    more: [&'static str; 2],
    /// The rights that a user who acquires locks needs on this table.
    pub(crate) rights: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
struct Column {
    name: &'static str,
    kind: &'static str,
    /// The size of the column in bytes; 0 if the type has no size.
    room: usize,
    rest: &'static str,
}

const fn column(name: &'static str, kind: &'static str, room: usize, rest: &'static str) -> Column {
    Column {
        name,
        kind,
        room,
        rest,
    }
}

const ALL: &str = "SELECT, INSERT, UPDATE, DELETE";
const NUMBER: &str = "UNSIGNED NOT NULL";

/// The table with one row that marks the schema as complete and stores the server's name.
pub(crate) const SCHEMA: Table = Table {
    name: "quorate_schema",
    engine: "InnoDB",
    columns: &[
        column("version", "bigint", 0, "UNSIGNED NOT NULL PRIMARY KEY"),
        column("server", "varbinary", 64, "NOT NULL"),
    ],
    more: ["", ""],
    rights: "SELECT",
};
/// The table of the records: one row per record, with its name, version and state.
pub(crate) const RECORD: Table = Table {
    name: "quorate_record",
    engine: "InnoDB",
    columns: &[
        column("name", "varbinary", LONGEST_NAME, "NOT NULL PRIMARY KEY"),
        column("version", "bigint", 0, NUMBER),
        column("state", "mediumblob", 0, ""),
        column("changed", "bigint", 0, NUMBER),
    ],
    more: ["", " ROW_FORMAT=DYNAMIC"],
    rights: ALL,
};
/// The table of wake-ups. It is kept in memory, so a wake-up does not wait for the disk.
///
/// A restart of the server empties the table. No waiter misses a wake-up, because a listener wakes all its waiters
/// after it has connected again.
pub(crate) const WOKEN: Table = Table {
    name: "quorate_woken",
    engine: "MEMORY",
    columns: &[
        column(
            "id",
            "bigint",
            0,
            "UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY",
        ),
        column("process", "varbinary", 64, "NOT NULL"),
        column("word", "varbinary", LONGEST_WORD, "NOT NULL"),
        column("at", "bigint", 0, NUMBER),
    ],
    more: [",KEY (process)", ""],
    rights: ALL,
};
/// The table with the current run of the server. It is kept in memory, so it is empty after a restart, and the next
/// client writes the new run.
pub(crate) const RUN: Table = Table {
    name: "quorate_run",
    engine: "MEMORY",
    columns: &[
        column("one", "tinyint", 0, "NOT NULL PRIMARY KEY"),
        column("run", "varbinary", 64, "NOT NULL"),
    ],
    more: ["", ""],
    rights: "SELECT, INSERT",
};
/// All tables of the schema.
pub(crate) const TABLES: [&Table; 4] = [&SCHEMA, &RECORD, &WOKEN, &RUN];

impl Column {
    fn is_key(&self) -> bool {
        self.rest.ends_with("PRIMARY KEY")
    }
}

impl Table {
    /// The statement that creates the table if it is missing.
    pub(crate) fn create(&self) -> String {
        let columns = self.columns.iter().map(|column| {
            let room = match column.room {
                0 => String::new(),
                room => format!("({room})"),
            };
            format!("{} {}{room} {}", column.name, column.kind, column.rest)
        });
        let columns: Vec<String> = columns.collect();
        let [within, behind] = self.more;
        format!(
            "CREATE TABLE IF NOT EXISTS {} ({}{within}) ENGINE={}{behind}",
            self.name,
            columns.join(","),
            self.engine
        )
    }

    /// The statement that converts the table to its engine and keeps its rows.
    pub(crate) fn convert(&self) -> String {
        format!("ALTER TABLE {} ENGINE={}", self.name, self.engine)
    }
}

/// The query whose result [`misfits`] parses. The query names the tables, so that the server does not open all tables
/// of the database.
pub(crate) fn question() -> String {
    let one = |table: &&Table| {
        let name = table.name;
        format!(
            "SELECT '{name}',t.engine,c.column_name,c.data_type,COALESCE(c.character_octet_length,0),c.column_key='PRI' \
             FROM information_schema.tables t JOIN information_schema.columns c \
             ON c.table_schema=DATABASE() AND c.table_name='{name}' \
             WHERE t.table_schema=DATABASE() AND t.table_name='{name}'"
        )
    };
    let all: Vec<String> = TABLES.iter().map(one).collect();
    all.join(" UNION ALL ")
}

/// A table that does not match the schema.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    pub(crate) table: &'static Table,
    pub(crate) what: What,
}

/// The way in which a table does not match the schema.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The table does not exist, or the user cannot see it.
    Missing,
    /// The table has the wrong storage engine. The field is the name of that engine.
    Engine(String),
    /// A column is missing or wrong. The field describes the fault.
    Column(String),
}

impl Misfit {
    /// The fault of the table as a clause of an error message.
    pub(crate) fn text(&self) -> String {
        let Table { name, engine, .. } = self.table;
        match &self.what {
            What::Missing => format!(
                "the table {name} is missing, or the user in the URL has no right to read it"
            ),
            What::Engine(found) => {
                format!("the table {name} has the engine {found} instead of {engine}")
            }
            What::Column(why) => format!("the table {name} is wrong: {why}"),
        }
    }
}

/// A column of a table, as the server describes it.
#[derive(Clone)]
struct Seen {
    table: String,
    engine: String,
    column: String,
    kind: String,
    room: u64,
    is_key: bool,
}

/// Finds the faults of the tables in the result of [`question`].
pub(crate) fn misfits(rows: Vec<Row>) -> Vec<Misfit> {
    let seen = rows.into_iter().filter_map(|mut row| {
        Some(Seen {
            table: word(&mut row, 0)?,
            engine: word(&mut row, 1).unwrap_or_default(),
            column: word(&mut row, 2)?,
            kind: word(&mut row, 3)?,
            room: number(&row, 4)?,
            is_key: number(&row, 5) == Some(1),
        })
    });
    let seen: Vec<Seen> = seen.collect();
    let judged = TABLES.into_iter().filter_map(|table| {
        let what = judge(table, &seen)?;
        Some(Misfit { table, what })
    });
    judged.collect()
}

fn judge(table: &Table, seen: &[Seen]) -> Option<What> {
    let seen: Vec<&Seen> = seen.iter().filter(|one| one.table == table.name).collect();
    let Some(first) = seen.first() else {
        return Some(What::Missing);
    };
    // Check the columns before the engine: converting the engine does not repair a wrong column.
    let wrong = table.columns.iter().find_map(|column| {
        let found = seen.iter().find(|one| one.column == column.name);
        let name = column.name;
        let Some(found) = found else {
            return Some(format!("the column {name} is missing"));
        };
        let has_room = column.room == 0 || found.room == column.room as u64;
        if !found.kind.eq_ignore_ascii_case(column.kind) || !has_room {
            let Column { kind, room, .. } = column;
            let room = if *room > 0 {
                format!("({room})")
            } else {
                String::new()
            };
            return Some(format!(
                "the column {name} is {} instead of {kind}{room}",
                found.kind
            ));
        }
        (found.is_key != column.is_key()).then(|| {
            let is = if column.is_key() {
                "is not"
            } else {
                "must not be"
            };
            format!("the column {name} {is} the primary key")
        })
    });
    if let Some(why) = wrong {
        return Some(What::Column(why));
    }
    let is_right = first.engine.eq_ignore_ascii_case(table.engine);
    (!is_right).then(|| What::Engine(first.engine.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(table: &Table) -> Vec<Seen> {
        let one = |column: &Column| Seen {
            table: table.name.into(),
            engine: table.engine.to_uppercase(),
            column: column.name.into(),
            kind: column.kind.into(),
            room: column.room as u64,
            is_key: column.is_key(),
        };
        table.columns.iter().map(one).collect()
    }

    #[test]
    fn table_with_every_required_column_is_accepted_even_with_other_columns() {
        let mut fit = seen(&RECORD);
        fit.push(Seen {
            column: "note".into(),
            ..fit[0].clone()
        });
        assert_eq!(judge(&RECORD, &fit), None);
        assert_eq!(judge(&RUN, &fit), Some(What::Missing));
    }

    #[test]
    fn wrong_column_is_reported_even_if_the_storage_engine_is_wrong_as_well() {
        let changes: [fn(&mut Seen); 4] = [
            |one| one.kind = "varchar".into(),
            |one| one.room = 700,
            |one| one.is_key = false,
            |one| one.column = "title".into(),
        ];
        for change in changes {
            let mut other = seen(&RECORD);
            change(&mut other[0]);
            other[0].engine = "Aria".into();
            let what = judge(&RECORD, &other);
            assert!(
                matches!(&what, Some(What::Column(why)) if why.contains("name")),
                "{what:?}"
            );
        }
        let mut joint = seen(&RECORD);
        joint[1].is_key = true;
        assert!(matches!(judge(&RECORD, &joint), Some(What::Column(_))));
    }

    #[test]
    fn storage_engine_is_compared_without_regard_to_case() {
        let mut other = seen(&RUN);
        assert_eq!(judge(&RUN, &other), None);
        for one in &mut other {
            one.engine = "InnoDB".into();
        }
        let what = judge(&RUN, &other).expect("another engine");
        let text = Misfit { table: &RUN, what }.text();
        assert_eq!(
            text,
            "the table quorate_run has the engine InnoDB instead of MEMORY"
        );
    }
}
