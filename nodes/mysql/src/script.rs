//! The statements of [`prepare`](crate::prepare) as a script, for administrators and tools that change databases.
//!
//! Unlike `prepare`, a script cannot examine the server before it decides what to create. So its statements are
//! conditional. They do not change a schema that is complete.

use std::fmt::Write as _;

use crate::run::UUID_EPOCH;
use crate::schema::{
    NOTICE_TIME, SCHEMA_VERSION, completion_statement, grants, procedure_grant,
    procedure_statements,
};
use crate::tables::{RECORD, RUN, SCHEMA, WOKEN};
use crate::url::{Address, BadUrl};

/// The SQL expression that generates a server's name: 32 hexadecimal digits, different on each server.
const RANDOM_NAME: &str = "REPLACE(UUID(),'-','')";

/// Returns the SQL statements that create the database and the schema, for an administrator. Does not connect to the
/// server. The statements do not contain the user, the password or the server of `url`.
///
/// - Execute the statements on each server, not by replication: each server must generate its own random identity.
/// - Use a client program that supports `DELIMITER`, such as `mysql`. MariaDB does not need the procedure
///   between the `DELIMITER` lines.
/// - It is safe to execute the statements again: they change nothing if the schema is complete. Unlike
///   [`prepare`](crate::prepare), they do not repair tables.
/// - Comments at the end contain the `GRANT` statements for a user that acquires locks. `USER` is a placeholder.
///
/// # Errors
///
/// [`BadUrl`] if the URL is not valid.
pub fn script(url: &str) -> Result<String, BadUrl> {
    let address = Address::parse(url)?;
    let database = &address.database;
    let mut script = format!(
        "-- The tables of quorate (schema version {SCHEMA_VERSION}) for MySQL and MariaDB.\n\
         -- Run this on each server itself, not by replication: each server needs its own random identity.\n\
         CREATE DATABASE IF NOT EXISTS `{database}`;\n\
         USE `{database}`;\n"
    );
    for table in [&SCHEMA, &RUN, &WOKEN] {
        let _ = writeln!(script, "{};", table.create_statement());
    }
    let _ = write!(
        script,
        "-- If the table quorate_record is new, clients ignore the votes of this server for max_ttl.\n\
         {};\n\
         -- If the table quorate_record was dropped, wait until all open sessions have noticed this.\n\
         SELECT SLEEP({}) FROM quorate_schema WHERE {} LIMIT 1;\n\
         {};\n",
        new_run_statement(),
        NOTICE_TIME.as_secs(),
        no_record_table_condition(),
        RECORD.create_statement()
    );
    let [drop_old, create] = procedure_statements();
    let _ = write!(
        script,
        "-- Only MySQL needs this procedure. On MariaDB, you may omit the block between the DELIMITER lines.\n\
         DELIMITER //\n\
         /*!50700 {drop_old} */ //\n\
         /*!50700 {create} */ //\n\
         DELIMITER ;\n\
         -- This row marks the schema as complete.\n\
         {};\n\
         -- Grants for the account that takes locks:\n",
        completion_statement(RANDOM_NAME)
    );
    for grant in grants(database) {
        let _ = writeln!(script, "-- {grant};");
    }
    let _ = writeln!(
        script,
        "-- On MySQL also:\n-- {};",
        procedure_grant(database)
    );
    Ok(script)
}

/// The SQL condition that is true if the table of records does not exist.
fn no_record_table_condition() -> String {
    format!(
        "NOT EXISTS (SELECT 1 FROM information_schema.tables \
         WHERE table_schema=DATABASE() AND table_name='{}')",
        RECORD.name
    )
}

/// The statement that stores a new server run if the table of records does not exist. All locks of a dropped table are
/// lost, so clients must ignore the server for a time, as after a restart (see docs/protocol.md, "Restart guard").
///
/// On MariaDB, the statement stores the current time as the start of the run. On MySQL, it stores no start
/// ([`crate::run`] gives the reason).
fn new_run_statement() -> String {
    format!(
        "REPLACE INTO quorate_run (one,run) SELECT 1,CONCAT(REPLACE(u,'-','')/*M!,'@',\
         (CAST(CONV(CONCAT(SUBSTR(u,16,3),SUBSTR(u,10,4),SUBSTR(u,1,8)),16,10) AS UNSIGNED)-{UUID_EPOCH}) DIV 10*/) \
         FROM (SELECT UUID() AS u LIMIT 1) q WHERE {}",
        no_record_table_condition()
    )
}
