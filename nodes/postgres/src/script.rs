//! The statements of [`prepare`](crate::prepare) as a script, for administrators and tools that change databases.

use crate::tables::{SCHEMA, TABLES, VERSION, grants, mark_complete};
use crate::url::{Address, BadUrl};

/// Returns the SQL statements that create the schema, for an administrator. Does not connect to the server. The
/// statements do not contain the user, the password or the server of `url`.
///
/// - Create the database first, and execute the statements in it. A standby gets them by replication.
/// - It is safe to execute the statements again: they change nothing if the schema is complete. Unlike
///   [`prepare`](crate::prepare), they do not repair tables.
/// - Comments at the end contain the `GRANT` statements for a user that acquires locks. `USER` is a placeholder.
///
/// # Errors
///
/// [`BadUrl`] if the URL is not valid.
pub fn script(url: &str) -> Result<String, BadUrl> {
    let address = Address::read(url)?;
    let mut lines = vec![
        format!("-- The tables of quorate (schema version {VERSION}) for PostgreSQL 14 or newer."),
        format!(
            "-- Run this in the database \"{}\". It must exist.",
            address.database
        ),
        "BEGIN;".to_owned(),
        // The statements must use only types and operators of the server itself.
        "SET LOCAL search_path=pg_catalog;".to_owned(),
        format!("CREATE SCHEMA IF NOT EXISTS {SCHEMA};"),
    ];
    lines.extend(TABLES.iter().map(|table| format!("{};", table.create)));
    lines.push(format!("{};", mark_complete()));
    lines.push("COMMIT;".to_owned());
    lines.push("-- Grants for the user that takes locks:".to_owned());
    lines.extend(grants().iter().map(|grant| format!("-- {grant};")));
    Ok(lines.join("\n") + "\n")
}
