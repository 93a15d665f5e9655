//! The tables of the schema, and the check that a server's tables match them.
//!
//! A table with a wrong definition would seem to work, but with these faults:
//!
//! - Without transactions, a commit of several records could be applied in part.
//! - If the table `quorate_run` were stored on disk, a restart of the server would not empty it. So clients would not
//!   notice the restart.
//! - If names were compared as text, two names that differ only in case would be equal.

use mysql_async::Row;

use crate::session::{number_at, text_at};
use crate::sql::{LONGEST_MESSAGE, LONGEST_NAME};

/// A table of the schema.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    engine: &'static str,
    columns: &'static [Column],
    /// Two parts of the `CREATE TABLE` statement: the text inside the parentheses after the columns, and the text after
    /// the closing parenthesis.
    after_columns: [&'static str; 2],
    /// The rights that a user who acquires locks needs on this table.
    pub(crate) rights: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
struct Column {
    name: &'static str,
    kind: &'static str,
    /// The size of the column in bytes; 0 if the type has no size.
    size: usize,
    attributes: &'static str,
}

const fn column(
    name: &'static str,
    kind: &'static str,
    size: usize,
    attributes: &'static str,
) -> Column {
    Column {
        name,
        kind,
        size,
        attributes,
    }
}

const READ_AND_WRITE: &str = "SELECT, INSERT, UPDATE, DELETE";
const NUMBER_ATTRIBUTES: &str = "UNSIGNED NOT NULL";

/// The table with one row that marks the schema as complete and stores the server's name.
pub(crate) const SCHEMA: Table = Table {
    name: "quorate_schema",
    engine: "InnoDB",
    columns: &[
        column("version", "bigint", 0, "UNSIGNED NOT NULL PRIMARY KEY"),
        column("server", "varbinary", 64, "NOT NULL"),
    ],
    after_columns: ["", ""],
    rights: "SELECT",
};
/// The table of the records: one row per record, with its name, version and state.
pub(crate) const RECORD: Table = Table {
    name: "quorate_record",
    engine: "InnoDB",
    columns: &[
        column("name", "varbinary", LONGEST_NAME, "NOT NULL PRIMARY KEY"),
        column("version", "bigint", 0, NUMBER_ATTRIBUTES),
        column("state", "mediumblob", 0, ""),
        column("changed", "bigint", 0, NUMBER_ATTRIBUTES),
    ],
    after_columns: ["", " ROW_FORMAT=DYNAMIC"],
    rights: READ_AND_WRITE,
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
        column("word", "varbinary", LONGEST_MESSAGE, "NOT NULL"),
        column("at", "bigint", 0, NUMBER_ATTRIBUTES),
    ],
    after_columns: [",KEY (process)", ""],
    rights: READ_AND_WRITE,
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
    after_columns: ["", ""],
    rights: "SELECT, INSERT",
};
/// All tables of the schema.
pub(crate) const TABLES: [&Table; 4] = [&SCHEMA, &RECORD, &WOKEN, &RUN];

impl Column {
    fn is_key(&self) -> bool {
        self.attributes.ends_with("PRIMARY KEY")
    }
}

impl Table {
    /// The statement that creates the table if it is missing.
    pub(crate) fn create_statement(&self) -> String {
        let column_texts = self.columns.iter().map(|column| {
            let size_text = match column.size {
                0 => String::new(),
                size => format!("({size})"),
            };
            format!(
                "{} {}{size_text} {}",
                column.name, column.kind, column.attributes
            )
        });
        let columns: Vec<String> = column_texts.collect();
        let [inside, after] = self.after_columns;
        format!(
            "CREATE TABLE IF NOT EXISTS {} ({}{inside}) ENGINE={}{after}",
            self.name,
            columns.join(","),
            self.engine
        )
    }

    /// The statement that converts the table to its engine and keeps its rows.
    pub(crate) fn convert_statement(&self) -> String {
        format!("ALTER TABLE {} ENGINE={}", self.name, self.engine)
    }
}

/// The query whose result [`find_misfits`] parses. The query names the tables, so that the server does not open all
/// tables
/// of the database.
pub(crate) fn columns_query() -> String {
    let query_of_table = |table: &&Table| {
        let name = table.name;
        format!(
            "SELECT '{name}',t.engine,c.column_name,c.data_type,COALESCE(c.character_octet_length,0),c.column_key='PRI' \
             FROM information_schema.tables t JOIN information_schema.columns c \
             ON c.table_schema=DATABASE() AND c.table_name='{name}' \
             WHERE t.table_schema=DATABASE() AND t.table_name='{name}'"
        )
    };
    let queries: Vec<String> = TABLES.iter().map(query_of_table).collect();
    queries.join(" UNION ALL ")
}

/// A table that does not match the schema.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Misfit {
    pub(crate) table: &'static Table,
    pub(crate) mismatch: Mismatch,
}

/// The way in which a table does not match the schema.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
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
        match &self.mismatch {
            Mismatch::Missing => format!(
                "the table {name} is missing, or the user in the URL has no right to read it"
            ),
            Mismatch::Engine(found) => {
                format!("the table {name} has the engine {found} instead of {engine}")
            }
            Mismatch::Column(why) => format!("the table {name} is wrong: {why}"),
        }
    }
}

/// A column of a table, as the server describes it.
#[derive(Clone)]
struct FoundColumn {
    table: String,
    engine: String,
    column: String,
    kind: String,
    size: u64,
    is_key: bool,
}

/// Finds the faults of the tables in the result of [`columns_query`].
pub(crate) fn find_misfits(rows: Vec<Row>) -> Vec<Misfit> {
    let parsed = rows.into_iter().filter_map(|mut row| {
        Some(FoundColumn {
            table: text_at(&mut row, 0)?,
            engine: text_at(&mut row, 1).unwrap_or_default(),
            column: text_at(&mut row, 2)?,
            kind: text_at(&mut row, 3)?,
            size: number_at(&row, 4)?,
            is_key: number_at(&row, 5) == Some(1),
        })
    });
    let columns: Vec<FoundColumn> = parsed.collect();
    let misfits = TABLES.into_iter().filter_map(|table| {
        let mismatch = find_mismatch(table, &columns)?;
        Some(Misfit { table, mismatch })
    });
    misfits.collect()
}

fn find_mismatch(table: &Table, all_columns: &[FoundColumn]) -> Option<Mismatch> {
    let found_columns: Vec<&FoundColumn> = all_columns
        .iter()
        .filter(|column| column.table == table.name)
        .collect();
    let Some(first_column) = found_columns.first() else {
        return Some(Mismatch::Missing);
    };
    // Check the columns before the engine: converting the engine does not repair a wrong column.
    let column_fault = table.columns.iter().find_map(|column| {
        let same_name = found_columns
            .iter()
            .find(|found| found.column == column.name);
        let name = column.name;
        let Some(found) = same_name else {
            return Some(format!("the column {name} is missing"));
        };
        let has_expected_size = column.size == 0 || found.size == column.size as u64;
        if !found.kind.eq_ignore_ascii_case(column.kind) || !has_expected_size {
            let Column { kind, size, .. } = column;
            let size_text = if *size > 0 {
                format!("({size})")
            } else {
                String::new()
            };
            return Some(format!(
                "the column {name} is {} instead of {kind}{size_text}",
                found.kind
            ));
        }
        (found.is_key != column.is_key()).then(|| {
            let verb = if column.is_key() {
                "is not"
            } else {
                "must not be"
            };
            format!("the column {name} {verb} the primary key")
        })
    });
    let other_key = found_columns
        .iter()
        .filter(|found| found.is_key)
        .find(|found| table.columns.iter().all(|one| one.name != found.column))
        .map(|found| format!("the column {} must not be in the primary key", found.column));
    if let Some(why) = column_fault.or(other_key) {
        return Some(Mismatch::Column(why));
    }
    let has_right_engine = first_column.engine.eq_ignore_ascii_case(table.engine);
    (!has_right_engine).then(|| Mismatch::Engine(first_column.engine.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns_of(table: &Table) -> Vec<FoundColumn> {
        let found_column = |column: &Column| FoundColumn {
            table: table.name.into(),
            engine: table.engine.to_uppercase(),
            column: column.name.into(),
            kind: column.kind.into(),
            size: column.size as u64,
            is_key: column.is_key(),
        };
        table.columns.iter().map(found_column).collect()
    }

    #[test]
    fn table_with_every_required_column_is_accepted_even_with_other_columns() {
        let mut columns = columns_of(&RECORD);
        columns.push(FoundColumn {
            column: "note".into(),
            is_key: false,
            ..columns[0].clone()
        });
        assert_eq!(find_mismatch(&RECORD, &columns), None);
        // Two rows with the same name could have different notes.
        columns[RECORD.columns.len()].is_key = true;
        let mismatch = find_mismatch(&RECORD, &columns);
        assert!(
            matches!(&mismatch, Some(Mismatch::Column(why)) if why.contains("note")),
            "{mismatch:?}"
        );
        assert_eq!(find_mismatch(&RUN, &columns), Some(Mismatch::Missing));
    }

    #[test]
    fn wrong_column_is_reported_even_if_the_storage_engine_is_wrong_as_well() {
        let column_changes: [fn(&mut FoundColumn); 4] = [
            |column| column.kind = "varchar".into(),
            |column| column.size = 700,
            |column| column.is_key = false,
            |column| column.column = "title".into(),
        ];
        for change in column_changes {
            let mut columns = columns_of(&RECORD);
            change(&mut columns[0]);
            columns[0].engine = "Aria".into();
            let mismatch = find_mismatch(&RECORD, &columns);
            assert!(
                matches!(&mismatch, Some(Mismatch::Column(why)) if why.contains("name")),
                "{mismatch:?}"
            );
        }
        let mut columns = columns_of(&RECORD);
        columns[1].is_key = true;
        assert!(matches!(
            find_mismatch(&RECORD, &columns),
            Some(Mismatch::Column(_))
        ));
    }

    #[test]
    fn storage_engine_is_compared_without_regard_to_case() {
        let mut columns = columns_of(&RUN);
        assert_eq!(find_mismatch(&RUN, &columns), None);
        for column in &mut columns {
            column.engine = "InnoDB".into();
        }
        let mismatch = find_mismatch(&RUN, &columns).expect("another engine");
        let text = Misfit {
            table: &RUN,
            mismatch,
        }
        .text();
        assert_eq!(
            text,
            "the table quorate_run has the engine InnoDB instead of MEMORY"
        );
    }
}
