//! Creates and checks the schema, and reads what a server reports about itself when a session begins.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorate::fork::PerProcess;
use quorate::node::store::Greeting;
use quorate::node::{Fault, ServerRun};
use rand::RngExt;

use crate::connection::{Connection, StatementResult};
use crate::fault::{sanitize, unprepared_fault};
use crate::run::{FirstSight, RUN_QUERY, Run, RunReport, ServerNames};
use crate::session::{number_at, text_at};
use crate::sql::{SETTINGS_STATEMENT_COUNT, listen_block, session_settings};
use crate::tables::{self, Misfit, Mismatch, RECORD, RUN, SCHEMA, TABLES, WOKEN};
use crate::url::{Address, BadUrl};

/// The version of the schema that this version of the crate uses.
pub(crate) const SCHEMA_VERSION: u64 = 1;
/// The time limit of [`prepare`].
const PREPARE_TIME_LIMIT: Duration = Duration::from_secs(30);
/// If the table of records is dropped, every idle session notices it within this time. An idle session queries its
/// server every two seconds.
pub(crate) const NOTICE_TIME: Duration = Duration::from_secs(3);

/// Why [`prepare`] failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPrepared {
    /// The URL passed to [`prepare`] is not valid.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// The server refused a request, or could not be reached.
    #[error("{name}: {fault}")]
    Server {
        /// The name of the server in reports: its URL without user and password.
        name: String,
        /// Why the server refused the request or could not be reached.
        fault: Fault,
    },
    /// The schema was created by a newer version of this crate.
    #[error(
        "{name}: the schema has version {found}, but this program supports only {SCHEMA_VERSION}: use a newer program"
    )]
    Newer {
        /// The name of the server.
        name: String,
        /// The version of the schema that was found.
        found: u64,
    },
}

/// The result of a successful [`prepare`]: the state of the server's schema, and the changes that `prepare` made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The server's host, port (or Unix socket) and database, for example `mysql 10.0.0.1:3306/quorate`.
    pub name: String,
    /// The version of the schema that is now installed.
    pub version: u64,
    /// Whether a part of the schema had to be created. `false` if the schema was complete.
    pub made: bool,
    /// A description of each fault that `prepare` has repaired in an existing schema, for example a table with a wrong
    /// engine.
    pub repaired: Vec<String>,
    /// The `GRANT` statements for a user that acquires locks; `USER` is a placeholder.
    pub grants: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = if self.made {
            "created"
        } else {
            "existed already"
        };
        writeln!(
            f,
            "{}: schema of version {} {origin}",
            self.name, self.version
        )?;
        for repaired in &self.repaired {
            writeln!(f, "  repaired: {repaired}")?;
        }
        writeln!(f, "the user that takes locks needs these grants:")?;
        self.grants
            .iter()
            .try_for_each(|grant| writeln!(f, "  {grant};"))
    }
}

/// Creates the database and the schema if they are missing. Repairs existing tables that have a wrong engine or wrong
/// columns.
///
/// It is safe to call this function again, or from several processes at the same time.
///
/// The user of `url` needs the right to create tables, and on MySQL also the right to create a procedure.
///
/// # Errors
///
/// [`NotPrepared`]. It never contains the password of `url`.
pub async fn prepare(url: &str) -> Result<Report, NotPrepared> {
    let address = Address::open(url)?;
    let name = address.name();
    let attempt = tokio::time::timeout(PREPARE_TIME_LIMIT, prepare_server(&address));
    let outcome = attempt
        .await
        .unwrap_or(Err(Fault::Timeout(PREPARE_TIME_LIMIT)));
    let preparation = outcome.map_err(|fault| NotPrepared::Server {
        name: name.clone(),
        fault,
    })?;
    if preparation.version > SCHEMA_VERSION {
        let found_version = preparation.version;
        return Err(NotPrepared::Newer {
            name,
            found: found_version,
        });
    }
    let mut grants = grants(&address.database);
    if !preparation.is_mariadb {
        grants.push(procedure_grant(&address.database));
    }
    Ok(Report {
        name,
        version: preparation.version,
        made: preparation.made,
        repaired: preparation.repaired,
        grants,
    })
}

/// The `GRANT` statements for a user that acquires locks, apart from [`procedure_grant`].
pub(crate) fn grants(database: &str) -> Vec<String> {
    let grant_of_table = |table: &&tables::Table| {
        format!(
            "GRANT {} ON `{database}`.`{}` TO USER",
            table.rights, table.name
        )
    };
    TABLES.iter().map(grant_of_table).collect()
}

/// The `GRANT` statement that a user who acquires locks needs on MySQL, in addition to [`grants`].
pub(crate) fn procedure_grant(database: &str) -> String {
    format!("GRANT EXECUTE ON PROCEDURE `{database}`.`quorate_listen` TO USER")
}

/// The result of preparing a server.
struct Preparation {
    version: u64,
    is_mariadb: bool,
    made: bool,
    repaired: Vec<String>,
}

async fn prepare_server(address: &Address) -> Result<Preparation, Fault> {
    let mut connection = match Connection::open(address, true).await {
        // The database may not exist. Connect without a database, and create it.
        Err(Fault::Unprepared(_)) => {
            let mut connection = Connection::open(address, false).await?;
            let database = &address.database;
            let create = format!(
                "SET SESSION TRANSACTION READ WRITE;\
                 CREATE DATABASE IF NOT EXISTS `{database}`;USE `{database}`"
            );
            connection.execute(&create).await?;
            connection
        }
        connection => connection?,
    };
    // Only one administrator prepares the server at a time, by a named lock.
    let take_prepare_lock = "SET SESSION TRANSACTION READ WRITE;\
                         SET SESSION autocommit=1,sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION';\
                         SELECT GET_LOCK('quorate:prepare',10),VERSION()";
    let mut results = connection.execute(take_prepare_lock).await?;
    let row = results
        .get_mut(2)
        .and_then(|result| result.rows.first_mut());
    let row = row.ok_or_else(|| Fault::Server("no answer".into()))?;
    if number_at(row, 0) != Some(1) {
        // Another administrator is preparing the server and has not finished within the time limit.
        return Err(Fault::Busy);
    }
    let is_mariadb = text_at(row, 1).is_some_and(|version| version.contains("MariaDB"));
    // A newer version of this program has prepared the server: change nothing.
    let old_version = read_schema_version(&mut connection).await?;
    let newer = old_version.filter(|version| *version > SCHEMA_VERSION);
    if let Some(version) = newer {
        return Ok(Preparation {
            version,
            is_mariadb,
            made: false,
            repaired: Vec::new(),
        });
    }
    // Make or repair what is missing, and keep the server's name if another database of it has one.
    let misfits = read_misfits(&mut connection).await?;
    let is_complete = old_version == Some(SCHEMA_VERSION) && misfits.is_empty();
    if !is_complete {
        let server_name = name_in_other_database(address)
            .await
            .unwrap_or_else(random_id);
        let is_used = old_version.is_some();
        let outcome = repair_tables(&mut connection, &misfits, is_used).await;
        outcome.map_err(explain_refused_engine)?;
        complete_schema(&mut connection, is_mariadb, &server_name).await?;
    }
    // Check the result before the named lock is released.
    let version = read_schema_version(&mut connection).await?;
    let version = version.ok_or_else(|| unprepared_fault("the schema is missing"))?;
    if let Some(misfit) = read_misfits(&mut connection).await?.first() {
        return Err(Fault::Server(misfit.text().into()));
    }
    connection
        .execute("DO RELEASE_LOCK('quorate:prepare')")
        .await?;
    let repaired_misfits = misfits.iter().filter(|_| old_version.is_some());
    let repaired = repaired_misfits.map(Misfit::text).collect();
    Ok(Preparation {
        version,
        is_mariadb,
        made: !is_complete,
        repaired,
    })
}

/// Returns the tables of the server that do not match the schema.
async fn read_misfits(connection: &mut Connection) -> Result<Vec<Misfit>, Fault> {
    let results = connection.execute(&tables::columns_query()).await?;
    let rows = results.into_iter().next().map(|result| result.rows);
    Ok(tables::find_misfits(rows.unwrap_or_default()))
}

/// Reads the version of the schema. `None` if the schema is missing or incomplete.
async fn read_schema_version(connection: &mut Connection) -> Result<Option<u64>, Fault> {
    let count_schema_tables = "SELECT COUNT(*) FROM information_schema.tables \
                    WHERE table_schema=DATABASE() AND table_name='quorate_schema'";
    let results = connection.execute(count_schema_tables).await?;
    if first_number(&results) != Some(1) {
        return Ok(None);
    }
    let results = connection
        .execute("SELECT MAX(version) FROM quorate_schema")
        .await?;
    Ok(first_number(&results))
}

fn first_number(results: &[StatementResult]) -> Option<u64> {
    results
        .first()?
        .rows
        .first()
        .and_then(|row| number_at(row, 0))
}

/// Returns the server name that another database of the same server stores; `None` if no such name can be read. All
/// databases of one server must store the same name, because they are one master.
///
/// Opens its own connection, because an error makes a connection unusable.
async fn name_in_other_database(address: &Address) -> Option<String> {
    let mut connection = Connection::open(address, true).await.ok()?;
    let other_database_query = "SELECT table_schema FROM information_schema.tables \
                  WHERE table_schema<>DATABASE() AND table_name='quorate_schema' LIMIT 1";
    let mut results = connection.execute(other_database_query).await.ok()?;
    let database = text_at(results.first_mut()?.rows.first_mut()?, 0)?.replace('`', "``");
    let server_query = format!("SELECT MIN(server) FROM `{database}`.quorate_schema");
    let mut results = connection.execute(&server_query).await.ok()?;
    let server_name = text_at(results.first_mut()?.rows.first_mut()?, 0)?;
    let is_server_name =
        !server_name.is_empty() && server_name.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_server_name.then_some(server_name)
}

/// Repairs the tables of the schema:
///
/// - Creates missing tables.
/// - If `quorate_run` or `quorate_woken` is wrong, drops the table and creates it again. Its rows need not be kept.
/// - If `quorate_schema` or `quorate_record` has the wrong engine, converts the table. If one of them has a wrong
///   column, returns an error, because these tables must not lose their rows.
async fn repair_tables(
    connection: &mut Connection,
    misfits: &[Misfit],
    is_used: bool,
) -> Result<(), Fault> {
    let misfit_of = |table| misfits.iter().find(|misfit| misfit.table == table);
    for table in [&SCHEMA, &RECORD] {
        if let Some(misfit) =
            misfit_of(table).filter(|misfit| matches!(misfit.mismatch, Mismatch::Column(_)))
        {
            let why = misfit.text();
            let remedy = "correct the table with ALTER TABLE, or drop it when no lock is held and no quota or `once` \
                        record is needed";
            return Err(Fault::Unprepared(format!("{why}: {remedy}").into()));
        }
    }
    for table in [&RUN, &WOKEN] {
        if misfit_of(table).is_some() {
            connection
                .execute(&format!("DROP TABLE IF EXISTS {}", table.name))
                .await?;
            connection.execute(&table.create_statement()).await?;
        }
    }
    for table in [&SCHEMA, &RECORD] {
        match misfit_of(table).map(|misfit| &misfit.mismatch) {
            Some(Mismatch::Missing) if *table == RECORD => {
                create_record_table(connection, is_used).await?;
            }
            Some(Mismatch::Missing) => drop(connection.execute(&table.create_statement()).await?),
            Some(_) => drop(connection.execute(&table.convert_statement()).await?),
            None => {}
        }
    }
    Ok(())
}

/// Creates the table of records. All locks of a dropped table are lost, so the function also stores a new server run in
/// `quorate_run`. Clients then ignore the server for a time, as after a restart (see docs/protocol.md, "Restart
/// guard").
///
/// Until the table exists, the stored start of the run is in the future, so the server counts as just started. Then the
/// function changes the start to the current time.
async fn create_record_table(connection: &mut Connection, is_used: bool) -> Result<(), Fault> {
    let id = random_id();
    store_new_run(connection, &id, PREPARE_TIME_LIMIT).await?;
    if is_used {
        tokio::time::sleep(NOTICE_TIME).await;
    }
    connection.execute(&RECORD.create_statement()).await?;
    store_new_run(connection, &id, Duration::ZERO).await
}

/// Stores a new server run in the table `quorate_run`. The start of the run is the current time plus `offset`.
async fn store_new_run(
    connection: &mut Connection,
    id: &str,
    offset: Duration,
) -> Result<(), Fault> {
    let mut results = connection.execute(RUN_QUERY).await?;
    let report = results
        .first_mut()
        .and_then(|result| RunReport::from_row(result.rows.first_mut()?));
    let now = report.and_then(|report| report.clock());
    let offset_us = u64::try_from(offset.as_micros()).unwrap_or(u64::MAX);
    let text = Run::format_text(id, now.map(|now| now.saturating_add(offset_us)));
    let replace = format!("REPLACE INTO quorate_run (one,run) VALUES (1,'{text}')");
    connection.execute(&replace).await.map(drop)
}

/// Creates the stored procedure if the server is MySQL, and then marks the schema as complete.
async fn complete_schema(
    connection: &mut Connection,
    is_mariadb: bool,
    server: &str,
) -> Result<(), Fault> {
    if !is_mariadb {
        make_procedure(connection).await?;
    }
    connection
        .execute(&completion_statement(&format!("'{server}'")))
        .await
        .map(drop)
}

/// Returns the statement that marks the schema as complete. If the table already stores a server name, the statement
/// keeps this name. If the table stores none, the statement stores the value of the SQL expression `server`.
///
/// Keep the subquery `s`. Without it, MariaDB evaluates a function in `server` to NULL if the table is empty.
pub(crate) fn completion_statement(server: &str) -> String {
    format!(
        "INSERT IGNORE INTO quorate_schema (version,server) \
         SELECT {SCHEMA_VERSION},COALESCE(s.server,{server}) FROM (SELECT MIN(server) AS server FROM quorate_schema) s"
    )
}

/// Replaces the server's error by an explanation if the server cannot create a table with the required engine.
fn explain_refused_engine(fault: Fault) -> Fault {
    match fault {
        Fault::Server(why) | Fault::Unsupported(why)
            if why.contains("(1290)") || why.contains("(1286)") =>
        {
            Fault::Unsupported(
                format!(
                    "{why}: the server must have the engines InnoDB and MEMORY, and enforce_storage_engine must be off"
                )
                .into(),
            )
        }
        fault => fault,
    }
}

/// Creates the stored procedure that a listener calls on MySQL to poll for wake-ups. On MariaDB, the listener sends the
/// same statements without a procedure.
pub(crate) async fn make_procedure(connection: &mut Connection) -> Result<(), Fault> {
    let [drop_old, create] = procedure_statements();
    connection.execute(&drop_old).await?;
    connection.execute(&create).await.map(drop)
}

/// The statements that drop and create the stored procedure `quorate_listen`, which only MySQL needs.
pub(crate) fn procedure_statements() -> [String; 2] {
    let body = listen_block("listener", "heard", "looks", "pause");
    let create = format!(
        "CREATE PROCEDURE quorate_listen (listener VARBINARY(64),heard BIGINT UNSIGNED,looks INT,\
         pause DECIMAL(6,3)) \
         SQL SECURITY INVOKER {body}"
    );
    ["DROP PROCEDURE IF EXISTS quorate_listen".into(), create]
}

fn random_id() -> String {
    let mut rng: rand::rngs::StdRng = rand::make_rng();
    format!("{:032x}", rng.random::<u128>())
}

/// Statements that change no row. They fail if the user lacks a right or the binary log is statement-based. Each
/// session runs them when it connects.
const RIGHTS_CHECK: &str = "UPDATE quorate_record SET version=version,state=state,changed=changed WHERE FALSE;\
    INSERT INTO quorate_record (name,version,changed) SELECT name,version,changed FROM quorate_record WHERE FALSE;\
    INSERT INTO quorate_woken (process,word,at) SELECT '','',0 FROM DUAL WHERE FALSE";

/// Sets the session up, and reads the name and the current run of the server.
pub(crate) async fn set_up_and_greet(
    connection: &mut Connection,
    timeout: Duration,
    first_sight: &FirstSight,
) -> Result<Greeting, Fault> {
    let name = set_up_session(connection, timeout).await?;
    let packet = format!(
        "INSERT IGNORE INTO quorate_run (one,run) SELECT 1,'{}' FROM DUAL \
         WHERE NOT EXISTS (SELECT 1 FROM quorate_run);\
         SELECT run FROM quorate_run;{RUN_QUERY};{RIGHTS_CHECK}",
        random_id()
    );
    let mut results = connection.execute(&packet).await?;
    let stored_run = take_first_row(&mut results, 1).and_then(|mut row| text_at(&mut row, 0));
    let run_text =
        stored_run.ok_or_else(|| unprepared_fault("the table quorate_run cannot be written"))?;
    let run = Run::parse(&sanitize(&run_text));
    let report = take_first_row(&mut results, 2).and_then(|mut row| RunReport::from_row(&mut row));
    let age = report
        .as_ref()
        .map_or(Duration::ZERO, |report| report.age(&run));
    let uptime = first_sight.known_for(&run.id).max(age);
    let greeting = Greeting::new(ServerRun::new(run.id)).uptime(uptime);
    Ok(match (name, report) {
        (Some(name), Some(report)) => {
            greeting.server(process_server_name(sanitize(&name), &report))
        }
        (Some(name), None) => greeting.server(format!("mysql {}", sanitize(&name))),
        (None, _) => greeting,
    })
}

/// Sets the session up, and checks the version and the tables of the schema. Returns the server's name; `None` if it is
/// not text.
async fn set_up_session(
    connection: &mut Connection,
    timeout: Duration,
) -> Result<Option<String>, Fault> {
    let packet = format!(
        "{};SELECT version,COALESCE(/*!80000 @@server_uuid,*/server) FROM quorate_schema \
         ORDER BY version DESC LIMIT 1;{}",
        session_settings(timeout),
        tables::columns_query()
    );
    let mut results = connection.execute(&packet).await?;
    let mut schema = take_first_row(&mut results, SETTINGS_STATEMENT_COUNT)
        .ok_or_else(|| unprepared_fault("the schema is missing"))?;
    check_version(number_at(&schema, 0))?;
    let rows = results
        .get_mut(SETTINGS_STATEMENT_COUNT + 1)
        .map(|result| std::mem::take(&mut result.rows));
    match tables::find_misfits(rows.unwrap_or_default()).first() {
        Some(misfit) => Err(unprepared_fault(&misfit.text())),
        None => Ok(text_at(&mut schema, 1)),
    }
}

fn take_first_row(results: &mut [StatementResult], index: usize) -> Option<mysql_async::Row> {
    let rows = &mut results.get_mut(index)?.rows;
    (!rows.is_empty()).then(|| rows.swap_remove(0))
}

/// Returns the name that this process uses for the server. It is the same for all databases of the server.
fn process_server_name(name: String, report: &RunReport) -> String {
    static SERVER_NAMES: PerProcess<Mutex<ServerNames>> = PerProcess::new();
    let shared_names = SERVER_NAMES.get_or_init(Mutex::default);
    let mut names = shared_names.lock().unwrap_or_else(PoisonError::into_inner);
    format!("mysql {}", names.name_for(name, report))
}

/// Returns a fault if this crate does not support a schema of this version.
pub(crate) fn check_version(version: Option<u64>) -> Result<(), Fault> {
    match version {
        Some(SCHEMA_VERSION) => Ok(()),
        Some(newer) if newer > SCHEMA_VERSION => Err(Fault::Unprepared(
            format!(
                "the schema has version {newer}, but this program supports only {SCHEMA_VERSION}: use a newer program"
            )
            .into(),
        )),
        _ => Err(unprepared_fault("the schema of the tables is older than this program")),
    }
}
