//! The tables of quorate in a database, and the rights on them.
//!
//! All tables are in a schema of their own, because PostgreSQL 15 lets only the owner of a database create tables in
//! the schema `public`. Statements name the schema, so they do not depend on `search_path`.
//!
//! # Why like this
//!
//! - **The row of `quorate.run` begins a run of the server.** The table is UNLOGGED: the server empties it after each
//!   event in which it may have lost commits. These are a crash of the server or of one backend, the promotion of a
//!   standby, and a start on a copy of the files of a running server.
//! - **The row also contains the time at which the server was started.** A clean restart keeps the row, and so does a
//!   start on a copy of the files that was made after a clean shutdown. The time alone would not do:
//!   `pg_postmaster_start_time()` does not change if one backend crashes, although commits are lost (PostgreSQL 15).
//! - **`fillfactor=50`** keeps room for the next version of a row on its page. So 99.99 % of 200,000 changes wrote no
//!   index entry, and the table stayed at 106 kB. The thresholds of autovacuum are absolute, because the table is small
//!   and changes often; `toast.` is for queues of more than 2 kB, which the server stores elsewhere.
//! - **The tables are checked for everything on which the statements depend.** Without the primary key, for example after
//!   a dump whose restore was broken off, two clients could create the same record, and both would hold the lock.
//! - **The place of the records contains `xmin` of three rows of the catalog**: those of the table, the schema and the
//!   database. A rename changes it, so records that were renamed away and back do not get the age of their earlier run.
//!   `VACUUM` does not change it. A `GRANT` does, and costs one restart guard.

/// The schema of all tables.
pub(crate) const SCHEMA: &str = "quorate";
/// The version of the tables that this version of the crate uses.
pub(crate) const VERSION: u64 = 1;
/// The beginning of the comment on the schema. The rest is the version of the tables.
const COMMENT: &str = "tables of quorate, version ";

/// A table of the schema.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) name: &'static str,
    /// The persistence of the table, as `pg_class` shows it: `p` for a logged table, `u` for an UNLOGGED table.
    persistence: &'static str,
    /// The statement that creates the table if it is missing.
    pub(crate) create: &'static str,
    /// The column that is the primary key.
    key: &'static str,
    /// The columns that the statements use, with their types. None of them has a default.
    columns: &'static [(&'static str, &'static str)],
    /// The rights that a user who acquires locks cannot do without.
    needed: &'static [&'static str],
    /// All rights that a user who acquires locks should have.
    rights: &'static str,
}

/// The table of the records: one row per record, with its name, version and state. The state is NULL if the record does
/// not exist.
pub(crate) const RECORD: Table = Table {
    name: "record",
    persistence: "p",
    create: "CREATE TABLE IF NOT EXISTS quorate.record (\
             name bytea PRIMARY KEY,version bigint NOT NULL,state bytea) WITH (fillfactor=50,\
             autovacuum_vacuum_scale_factor=0,autovacuum_vacuum_threshold=1000,\
             toast.autovacuum_vacuum_scale_factor=0,toast.autovacuum_vacuum_threshold=1000)",
    key: "name",
    columns: &[("name", "bytea"), ("version", "bigint"), ("state", "bytea")],
    needed: &["SELECT", "INSERT", "UPDATE"],
    rights: "SELECT, INSERT, UPDATE, DELETE",
};
/// The table with one row, which describes the current run of the server.
pub(crate) const RUN: Table = Table {
    name: "run",
    persistence: "u",
    create: "CREATE UNLOGGED TABLE IF NOT EXISTS quorate.run (\
             one int PRIMARY KEY,id text NOT NULL,file text NOT NULL,server text NOT NULL,\
             started bigint NOT NULL,aged bigint NOT NULL)",
    key: "one",
    columns: &[
        ("one", "integer"),
        ("id", "text"),
        ("file", "text"),
        ("server", "text"),
        ("started", "bigint"),
        ("aged", "bigint"),
    ],
    needed: &["SELECT", "INSERT", "UPDATE"],
    rights: "SELECT, INSERT, UPDATE",
};
/// All tables of the schema.
pub(crate) const TABLES: [&Table; 2] = [&RECORD, &RUN];

/// The statement that marks the schema as complete.
pub(crate) fn mark_complete() -> String {
    format!("COMMENT ON SCHEMA {SCHEMA} IS '{COMMENT}{VERSION}'")
}

/// The `GRANT` statements for a user that acquires locks; `USER` is a placeholder.
pub(crate) fn grants() -> Vec<String> {
    let usage = format!("GRANT USAGE ON SCHEMA {SCHEMA} TO USER");
    let tables = TABLES.iter().map(|table| {
        let Table { name, rights, .. } = table;
        format!("GRANT {rights} ON {SCHEMA}.{name} TO USER")
    });
    std::iter::once(usage).chain(tables).collect()
}

/// Whether a role is trusted: the owner of the database, a member of it, or a superuser. These can read and change
/// everything in the database anyway.
fn is_trusted(role: &str) -> String {
    format!(
        "(pg_has_role({role},(SELECT datdba FROM pg_database WHERE datname=current_database()),'MEMBER') \
         OR {role}=(SELECT oid FROM pg_roles WHERE rolname='pg_database_owner'))"
    )
}

/// Whether a trigger, a rule or a policy may change the effect of statements on a table, whether statements on a parent
/// or child table affect the same rows, or whether logical replication changes the rows.
const ACTIVE: &str = "(c.relrowsecurity OR EXISTS(SELECT FROM pg_rewrite WHERE ev_class=c.oid) \
     OR EXISTS(SELECT FROM pg_trigger WHERE tgrelid=c.oid AND NOT tgisinternal) \
     OR EXISTS(SELECT FROM pg_inherits WHERE c.oid IN (inhparent,inhrelid)) \
     OR EXISTS(SELECT FROM pg_subscription_rel WHERE srrelid=c.oid))";

/// The place of the records: the path of their file in the data directory, and the transactions that last changed the
/// catalog's rows of the table, of the schema and of the database.
const PLACE: &str = "concat_ws(' ',pg_relation_filepath(c.oid),c.xmin,n.xmin,\
     (SELECT xmin FROM pg_database WHERE datname=current_database()))";

/// Whether a table has a primary key on exactly its key column. A deferrable key does not count, because it does not stop
/// a second row of a record immediately.
fn has_key() -> String {
    let is_key = TABLES.map(|Table { name, key, .. }| format!("('{name}','{key}')"));
    format!(
        "EXISTS(SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid=i.indrelid AND a.attnum=i.indkey[0] \
         WHERE i.indrelid=c.oid AND i.indisprimary AND i.indisvalid AND i.indimmediate AND i.indnkeyatts=1 \
         AND (c.relname,a.attname) IN ({}))",
        is_key.join(",")
    )
}

/// Whether a table has the columns that the statements use, with their types and without defaults.
fn has_columns() -> String {
    let of = |Table { name, columns, .. }: &Table| {
        let found = columns
            .iter()
            .map(|(column, kind)| format!("('{column}','{kind}')"));
        let found: Vec<String> = found.collect();
        format!(
            "WHEN '{name}' THEN (SELECT count(*) FROM pg_attribute a WHERE a.attrelid=c.oid AND NOT a.attisdropped \
             AND NOT a.atthasdef AND (a.attname,format_type(a.atttypid,a.atttypmod)) IN ({}))={}",
            found.join(","),
            columns.len()
        )
    };
    format!("CASE c.relname {} END", TABLES.map(of).join(" "))
}

/// The query whose rows [`Schema::read`] parses. It needs no right on the schema or its tables.
pub(crate) fn question() -> String {
    let has = |right: &str| {
        format!("has_schema_privilege(n.oid,'USAGE') AND has_table_privilege(c.oid,'{right}')")
    };
    let (table_owner, schema_owner) = (is_trusted("c.relowner"), is_trusted("n.nspowner"));
    let is_foreign = format!("(c.relowner<>n.nspowner AND NOT {table_owner})");
    format!(
        "SELECT obj_description(n.oid,'pg_namespace'),c.relname,c.relpersistence,pg_relation_filenode(c.oid),\
         {PLACE},{},{},{},{},{is_foreign},{ACTIVE},NOT {schema_owner},{},{} FROM pg_namespace n \
         LEFT JOIN pg_class c ON c.relnamespace=n.oid AND c.relkind='r' AND c.relname IN ('record','run') \
         WHERE n.nspname='{SCHEMA}'",
        has("SELECT"),
        has("INSERT"),
        has("UPDATE"),
        has("DELETE"),
        has_key(),
        has_columns()
    )
}

/// The rights in the order of the columns of [`question`].
const RIGHTS: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

/// The schema of a database, as the server describes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Schema {
    pub(crate) exists: bool,
    /// The version of the tables; `None` if they are not complete.
    pub(crate) version: Option<u64>,
    /// Whether the schema belongs to a user that is not trusted.
    is_foreign: bool,
    tables: Vec<Found>,
}

/// A table, as the server describes it.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    name: String,
    persistence: String,
    filenode: Option<i64>,
    place: Option<String>,
    rights: Vec<&'static str>,
    is_foreign: bool,
    is_active: bool,
    has_key: bool,
    has_columns: bool,
}

/// The fault of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// The schema belongs to a user who is neither the owner of the database nor a superuser. This user may drop the
    /// tables and create others.
    ForeignSchema,
    Missing(&'static str),
    /// The table `record` is UNLOGGED, so a crash of the server would empty it.
    Unlogged,
    /// The table `run` is not UNLOGGED, so it would not show a crash of the server.
    Logged,
    /// The table belongs to a user who owns neither the schema nor the database.
    Foreign(&'static str),
    /// The table has a trigger, a rule, row security, a parent or child table, or a subscription.
    Active(&'static str),
    /// The table lacks its primary key.
    Keyless(&'static Table),
    /// The table lacks a column, or a column has another type or a default.
    OtherColumns(&'static str),
}

impl Misfit {
    /// Whether only an administrator can decide how to correct the table.
    pub(crate) fn needs_administrator(self) -> bool {
        matches!(
            self,
            Self::ForeignSchema
                | Self::Foreign(_)
                | Self::Active(_)
                | Self::Keyless(_)
                | Self::OtherColumns(_)
        )
    }

    /// The fault of the table as a clause of an error message.
    pub(crate) fn text(self) -> String {
        match self {
            Self::ForeignSchema => format!(
                "the schema {SCHEMA} belongs to a user who is neither the owner of the database nor a superuser: drop \
                 the schema if you do not trust this user, or run ALTER SCHEMA {SCHEMA} OWNER TO the owner of the \
                 database"
            ),
            Self::Foreign(name) => format!(
                "the table {SCHEMA}.{name} belongs to another user than the schema: drop the table if you do not trust \
                 this user, or change its owner"
            ),
            Self::Active(name) => {
                format!(
                    "the table {SCHEMA}.{name} has a trigger, a rule, row security, a parent or child table, or a \
                     subscription of logical replication: remove it"
                )
            }
            Self::Keyless(Table { name, key, .. }) => format!(
                "the table {SCHEMA}.{name} has no primary key on its column {key} alone, so it may contain a row twice: \
                 add the key, or drop the table and prepare the server again"
            ),
            Self::OtherColumns(name) => format!(
                "the table {SCHEMA}.{name} has other columns than this program expects, or a column with a default: \
                 correct the columns, or drop the table and prepare the server again"
            ),
            Self::Missing(name) => format!("the table {SCHEMA}.{name} is missing"),
            Self::Unlogged => format!(
                "the table {SCHEMA}.record is UNLOGGED, so a crash of the server would empty it"
            ),
            Self::Logged => {
                format!(
                    "the table {SCHEMA}.run is not UNLOGGED, so it would not show a crash of the server"
                )
            }
        }
    }
}

impl Schema {
    /// Parses the rows of [`question`].
    pub(crate) fn read(rows: &[Vec<Option<String>>]) -> Self {
        let mut schema = Self::default();
        for row in rows {
            let column = |number: usize| row.get(number).and_then(|value| value.as_deref());
            schema.exists = true;
            schema.is_foreign = column(11) == Some("t");
            schema.version = column(0).and_then(|text| text.strip_prefix(COMMENT)?.parse().ok());
            let (Some(name), Some(persistence)) = (column(1), column(2)) else {
                continue;
            };
            let has = |(number, _): &(usize, &&str)| column(5 + number) == Some("t");
            let rights = RIGHTS
                .iter()
                .enumerate()
                .filter(has)
                .map(|(_, right)| *right);
            schema.tables.push(Found {
                name: name.to_owned(),
                persistence: persistence.to_owned(),
                filenode: column(3).and_then(|number| number.parse().ok()),
                place: column(4).map(str::to_owned),
                rights: rights.collect(),
                is_foreign: column(9) == Some("t"),
                is_active: column(10) == Some("t"),
                has_key: column(12) == Some("t"),
                has_columns: column(13) == Some("t"),
            });
        }
        schema
    }

    fn find(&self, table: &Table) -> Option<&Found> {
        self.tables.iter().find(|found| found.name == table.name)
    }

    /// The number of the file of the records. It changes if the table is created again, emptied or rewritten.
    pub(crate) fn filenode(&self) -> Option<i64> {
        self.find(&RECORD)?.filenode
    }

    /// The place of the records: the path of their file in the data directory, and the transactions that last changed
    /// the table, its schema and the database. The path contains the number of the database, and so differs in a copy of
    /// the database on the same server.
    pub(crate) fn place(&self) -> Option<String> {
        self.find(&RECORD)?.place.clone()
    }

    /// The faults of the schema and its tables.
    pub(crate) fn misfits(&self) -> Vec<Misfit> {
        let of = |table: &&'static Table| match self.find(table) {
            None => Some(Misfit::Missing(table.name)),
            Some(found) if found.is_foreign => Some(Misfit::Foreign(table.name)),
            Some(found) if found.is_active => Some(Misfit::Active(table.name)),
            Some(found) if !found.has_columns => Some(Misfit::OtherColumns(table.name)),
            Some(found) if !found.has_key => Some(Misfit::Keyless(table)),
            Some(found) if found.persistence == table.persistence => None,
            Some(_) if table.persistence == "p" => Some(Misfit::Unlogged),
            Some(_) => Some(Misfit::Logged),
        };
        let schema = self.is_foreign.then_some(Misfit::ForeignSchema);
        schema
            .into_iter()
            .chain(TABLES.iter().filter_map(of))
            .collect()
    }

    /// The rights that the user needs and does not have, as `RIGHT ON table`.
    pub(crate) fn missing_rights(&self) -> Vec<String> {
        let of = |table: &&'static Table| {
            let rights = self
                .find(table)
                .map(|found| found.rights.clone())
                .unwrap_or_default();
            let missing = table
                .needed
                .iter()
                .filter(move |right| !rights.contains(right));
            let name = table.name;
            missing.map(move |right| format!("{right} ON {SCHEMA}.{name}"))
        };
        TABLES.iter().flat_map(of).collect()
    }

    /// Whether the user may remove records.
    pub(crate) fn may_delete(&self) -> bool {
        self.find(&RECORD)
            .is_some_and(|found| found.rights.contains(&"DELETE"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, persistence: &str, rights: [&str; 4]) -> Vec<Option<String>> {
        let comment = format!("{COMMENT}{VERSION}");
        let begin = [comment.as_str(), name, persistence, "16384", "base/5/16384"];
        let end = ["f", "f", "f", "t", "t"];
        begin
            .iter()
            .chain(&rights)
            .chain(&end)
            .map(|text| Some((*text).to_owned()))
            .collect()
    }

    #[test]
    fn tables_are_checked_for_persistence_and_rights() {
        let all = ["t"; 4];
        let schema = Schema::read(&[row("record", "p", all), row("run", "u", all)]);
        assert_eq!(
            (schema.version, schema.filenode()),
            (Some(VERSION), Some(16384))
        );
        assert_eq!(schema.place().as_deref(), Some("base/5/16384"));
        assert!(schema.misfits().is_empty() && schema.missing_rights().is_empty());
        assert!(schema.may_delete());
        let wrong = Schema::read(&[row("record", "u", all), row("run", "p", all)]);
        assert_eq!(wrong.misfits(), [Misfit::Unlogged, Misfit::Logged]);
        for (column, misfit) in [
            (12, Misfit::Keyless(&RUN)),
            (13, Misfit::OtherColumns("run")),
        ] {
            let mut run = row("run", "u", all);
            run[column] = Some("f".into());
            let wrong = Schema::read(&[row("record", "p", all), run]);
            assert_eq!(wrong.misfits(), [misfit]);
            assert!(misfit.needs_administrator());
        }
        let poor = Schema::read(&[
            row("record", "p", ["t", "t", "f", "f"]),
            row("run", "u", all),
        ]);
        assert_eq!(poor.missing_rights(), ["UPDATE ON quorate.record"]);
        assert!(!poor.may_delete());
    }

    #[test]
    fn missing_schema_and_schema_without_tables_are_incomplete() {
        let none = Schema::read(&[]);
        assert!(!none.exists && none.version.is_none());
        let mut empty = vec![None; 14];
        let read = Schema::read(&[empty.clone()]);
        assert!(read.exists && read.version.is_none());
        assert_eq!(
            read.misfits(),
            [Misfit::Missing("record"), Misfit::Missing("run")]
        );
        empty[0] = Some("tables of quorate, version x".into());
        assert_eq!(Schema::read(&[empty]).version, None);
    }
}
