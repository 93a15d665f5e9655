//! Creates and checks the schema, and reads what a server reports about itself when a session begins.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use quorate::fork::PerProcess;
use quorate::node::store::Greeting;
use quorate::node::{Fault, ServerRun};
use rand::RngExt;

use crate::connection::{Connection, StatementResult};
use crate::fault::{plain, unprepared};
use crate::run::{FirstSight, Names, QUESTION, Run, RunReport};
use crate::session::{number, word};
use crate::sql::{SETTINGS, listening, settings};
use crate::tables::{self, Misfit, RECORD, RUN, SCHEMA, TABLES, WOKEN, What};
use crate::url::{Address, BadUrl};

/// The version of the schema that this version of the crate uses.
pub(crate) const VERSION: u64 = 1;
/// The time limit of [`prepare`].
const PATIENCE: Duration = Duration::from_secs(30);
/// If the table of records is dropped, every idle session notices it within this time. An idle session queries its
/// server every two seconds.
pub(crate) const NOTICED: Duration = Duration::from_secs(3);

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
        "{name}: the schema has version {found}, but this program supports only {VERSION}: use a newer program"
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
        let made = if self.made {
            "created"
        } else {
            "existed already"
        };
        writeln!(
            f,
            "{}: schema of version {} {made}",
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
    let preparing = tokio::time::timeout(PATIENCE, prepare_at(&address));
    let prepared = preparing.await.unwrap_or(Err(Fault::Timeout(PATIENCE)));
    let found = prepared.map_err(|fault| NotPrepared::Server {
        name: name.clone(),
        fault,
    })?;
    if found.version > VERSION {
        let found = found.version;
        return Err(NotPrepared::Newer { name, found });
    }
    let mut grants = grants(&address.database);
    if !found.mariadb {
        grants.push(procedure_grant(&address.database));
    }
    Ok(Report {
        name,
        version: found.version,
        made: found.made,
        repaired: found.repaired,
        grants,
    })
}

/// The `GRANT` statements for a user that acquires locks, apart from [`procedure_grant`].
pub(crate) fn grants(database: &str) -> Vec<String> {
    let grant = |table: &&tables::Table| {
        format!(
            "GRANT {} ON `{database}`.`{}` TO USER",
            table.rights, table.name
        )
    };
    TABLES.iter().map(grant).collect()
}

/// The `GRANT` statement that a user who acquires locks needs on MySQL, in addition to [`grants`].
pub(crate) fn procedure_grant(database: &str) -> String {
    format!("GRANT EXECUTE ON PROCEDURE `{database}`.`quorate_listen` TO USER")
}

/// The result of preparing a server.
struct Found {
    version: u64,
    mariadb: bool,
    made: bool,
    repaired: Vec<String>,
}

async fn prepare_at(address: &Address) -> Result<Found, Fault> {
    let mut connection = match Connection::open(address, true).await {
        // The database may not exist. Connect without a database, and create it.
        Err(Fault::Unprepared(_)) => {
            let mut connection = Connection::open(address, false).await?;
            let database = &address.database;
            let create = format!(
                "SET SESSION TRANSACTION READ WRITE;\
                 CREATE DATABASE IF NOT EXISTS `{database}`;USE `{database}`"
            );
            connection.ask(&create).await?;
            connection
        }
        connection => connection?,
    };
    // Only one administrator prepares the server at a time, by a named lock.
    let one_at_a_time = "SET SESSION TRANSACTION READ WRITE;\
                         SET SESSION autocommit=1,sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION';\
                         SELECT GET_LOCK('quorate:prepare',10),VERSION()";
    let mut said = connection.ask(one_at_a_time).await?;
    let row = said.get_mut(2).and_then(|one| one.rows.first_mut());
    let row = row.ok_or_else(|| Fault::Server("no answer".into()))?;
    if number(row, 0) != Some(1) {
        // Another administrator is preparing the server and has not finished within the time limit.
        return Err(Fault::Busy);
    }
    let mariadb = word(row, 1).is_some_and(|version| version.contains("MariaDB"));
    // A newer version of this program has prepared the server: change nothing.
    let before = version_of(&mut connection).await?;
    let newer = before.filter(|version| *version > VERSION);
    if let Some(version) = newer {
        return Ok(Found {
            version,
            mariadb,
            made: false,
            repaired: Vec::new(),
        });
    }
    // Make or repair what is missing, and keep the server's name if another database of it has one.
    let misfits = misfitting_tables(&mut connection).await?;
    let is_whole = before == Some(VERSION) && misfits.is_empty();
    if !is_whole {
        let server = elsewhere(address).await.unwrap_or_else(random_word);
        let is_used = before.is_some();
        let made = make_tables(&mut connection, &misfits, is_used).await;
        made.map_err(engine_refused)?;
        finish(&mut connection, mariadb, &server).await?;
    }
    // Check the result before the named lock is released.
    let version = version_of(&mut connection).await?;
    let version = version.ok_or_else(|| unprepared("the schema is missing"))?;
    if let Some(misfit) = misfitting_tables(&mut connection).await?.first() {
        return Err(Fault::Server(misfit.text().into()));
    }
    connection.ask("DO RELEASE_LOCK('quorate:prepare')").await?;
    let repaired = misfits.iter().filter(|_| before.is_some());
    let repaired = repaired.map(Misfit::text).collect();
    Ok(Found {
        version,
        mariadb,
        made: !is_whole,
        repaired,
    })
}

/// Returns the tables of the server that do not match the schema.
async fn misfitting_tables(connection: &mut Connection) -> Result<Vec<Misfit>, Fault> {
    let said = connection.ask(&tables::question()).await?;
    let rows = said.into_iter().next().map(|one| one.rows);
    Ok(tables::misfits(rows.unwrap_or_default()))
}

/// Reads the version of the schema. `None` if the schema is missing or incomplete.
async fn version_of(connection: &mut Connection) -> Result<Option<u64>, Fault> {
    let is_there = "SELECT COUNT(*) FROM information_schema.tables \
                    WHERE table_schema=DATABASE() AND table_name='quorate_schema'";
    let said = connection.ask(is_there).await?;
    if first_number(&said) != Some(1) {
        return Ok(None);
    }
    let said = connection
        .ask("SELECT MAX(version) FROM quorate_schema")
        .await?;
    Ok(first_number(&said))
}

fn first_number(said: &[StatementResult]) -> Option<u64> {
    said.first()?.rows.first().and_then(|row| number(row, 0))
}

/// Returns the server name that another database of the same server stores; `None` if no such name can be read. All
/// databases of one server must store the same name, because they are one master.
///
/// Opens its own connection, because an error makes a connection unusable.
async fn elsewhere(address: &Address) -> Option<String> {
    let mut connection = Connection::open(address, true).await.ok()?;
    let others = "SELECT table_schema FROM information_schema.tables \
                  WHERE table_schema<>DATABASE() AND table_name='quorate_schema' LIMIT 1";
    let mut said = connection.ask(others).await.ok()?;
    let database = word(said.first_mut()?.rows.first_mut()?, 0)?.replace('`', "``");
    let server = format!("SELECT MIN(server) FROM `{database}`.quorate_schema");
    let mut said = connection.ask(&server).await.ok()?;
    let server = word(said.first_mut()?.rows.first_mut()?, 0)?;
    let is_ours = !server.is_empty() && server.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_ours.then_some(server)
}

/// Repairs the tables of the schema:
///
/// - Creates missing tables.
/// - If `quorate_run` or `quorate_woken` is wrong, drops the table and creates it again. Its rows need not be kept.
/// - If `quorate_schema` or `quorate_record` has the wrong engine, converts the table. If one of them has a wrong
///   column, returns an error, because these tables must not lose their rows.
async fn make_tables(
    connection: &mut Connection,
    misfits: &[Misfit],
    is_used: bool,
) -> Result<(), Fault> {
    let of = |table| misfits.iter().find(|misfit| misfit.table == table);
    for table in [&SCHEMA, &RECORD] {
        if let Some(misfit) = of(table).filter(|misfit| matches!(misfit.what, What::Column(_))) {
            let why = misfit.text();
            let cure = "correct the table with ALTER TABLE, or drop it when no lock is held and no quota or `once` \
                        record is needed";
            return Err(Fault::Unprepared(format!("{why}: {cure}").into()));
        }
    }
    for table in [&RUN, &WOKEN] {
        if of(table).is_some() {
            connection
                .ask(&format!("DROP TABLE IF EXISTS {}", table.name))
                .await?;
            connection.ask(&table.create()).await?;
        }
    }
    for table in [&SCHEMA, &RECORD] {
        match of(table).map(|misfit| &misfit.what) {
            Some(What::Missing) if *table == RECORD => make_records(connection, is_used).await?,
            Some(What::Missing) => drop(connection.ask(&table.create()).await?),
            Some(_) => drop(connection.ask(&table.convert()).await?),
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
async fn make_records(connection: &mut Connection, is_used: bool) -> Result<(), Fault> {
    let id = random_word();
    begin_run(connection, &id, PATIENCE).await?;
    if is_used {
        tokio::time::sleep(NOTICED).await;
    }
    connection.ask(&RECORD.create()).await?;
    begin_run(connection, &id, Duration::ZERO).await
}

/// Stores a new server run in the table `quorate_run`. The start of the run is the current time plus `later`.
async fn begin_run(connection: &mut Connection, id: &str, later: Duration) -> Result<(), Fault> {
    let mut said = connection.ask(QUESTION).await?;
    let report = said
        .first_mut()
        .and_then(|one| RunReport::read(one.rows.first_mut()?));
    let now = report.and_then(|report| report.clock());
    let later = u64::try_from(later.as_micros()).unwrap_or(u64::MAX);
    let text = Run::text(id, now.map(|now| now.saturating_add(later)));
    let replace = format!("REPLACE INTO quorate_run (one,run) VALUES (1,'{text}')");
    connection.ask(&replace).await.map(drop)
}

/// Creates the stored procedure if the server is MySQL, and then marks the schema as complete.
async fn finish(connection: &mut Connection, mariadb: bool, server: &str) -> Result<(), Fault> {
    if !mariadb {
        make_procedure(connection).await?;
    }
    connection
        .ask(&mark_complete(&format!("'{server}'")))
        .await
        .map(drop)
}

/// Returns the statement that marks the schema as complete. If the table already stores a server name, the statement
/// keeps this name. If the table stores none, the statement stores the value of the SQL expression `server`.
///
/// Keep the subquery `s`. Without it, MariaDB evaluates a function in `server` to NULL if the table is empty.
pub(crate) fn mark_complete(server: &str) -> String {
    format!(
        "INSERT IGNORE INTO quorate_schema (version,server) \
         SELECT {VERSION},COALESCE(s.server,{server}) FROM (SELECT MIN(server) AS server FROM quorate_schema) s"
    )
}

/// Replaces the server's error by an explanation if the server cannot create a table with the required engine.
fn engine_refused(fault: Fault) -> Fault {
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
    let [drop_old, create] = procedure();
    connection.ask(&drop_old).await?;
    connection.ask(&create).await.map(drop)
}

/// The statements that drop and create the stored procedure `quorate_listen`, which only MySQL needs.
pub(crate) fn procedure() -> [String; 2] {
    let body = listening("listener", "heard", "looks", "pause");
    let create = format!(
        "CREATE PROCEDURE quorate_listen (listener VARBINARY(64),heard BIGINT UNSIGNED,looks INT,\
         pause DECIMAL(6,3)) \
         SQL SECURITY INVOKER {body}"
    );
    ["DROP PROCEDURE IF EXISTS quorate_listen".into(), create]
}

fn random_word() -> String {
    let mut rng: rand::rngs::StdRng = rand::make_rng();
    format!("{:032x}", rng.random::<u128>())
}

/// Statements that change no row. They fail if the user lacks a right or the binary log is statement-based. Each
/// session runs them when it connects.
const TRIED: &str = "UPDATE quorate_record SET version=version,state=state,changed=changed WHERE FALSE;\
    INSERT INTO quorate_record (name,version,changed) SELECT name,version,changed FROM quorate_record WHERE FALSE;\
    INSERT INTO quorate_woken (process,word,at) SELECT '','',0 FROM DUAL WHERE FALSE";

/// Sets the session up, and reads the name and the current run of the server.
pub(crate) async fn greet(
    connection: &mut Connection,
    timeout: Duration,
    seen: &FirstSight,
) -> Result<Greeting, Fault> {
    let name = fit(connection, timeout).await?;
    let packet = format!(
        "INSERT IGNORE INTO quorate_run (one,run) SELECT 1,'{}' FROM DUAL \
         WHERE NOT EXISTS (SELECT 1 FROM quorate_run);\
         SELECT run FROM quorate_run;{QUESTION};{TRIED}",
        random_word()
    );
    let mut said = connection.ask(&packet).await?;
    let run = row(&mut said, 1).and_then(|mut row| word(&mut row, 0));
    let run = run.ok_or_else(|| unprepared("the table quorate_run cannot be written"))?;
    let run = Run::read(&plain(&run));
    let report = row(&mut said, 2).and_then(|mut row| RunReport::read(&mut row));
    let lasts = report
        .as_ref()
        .map_or(Duration::ZERO, |report| report.lasts(&run));
    let uptime = seen.ago(&run.id).max(lasts);
    let greeting = Greeting::new(ServerRun::new(run.id)).uptime(uptime);
    Ok(match (name, report) {
        (Some(name), Some(report)) => greeting.server(one_name(plain(&name), &report)),
        (Some(name), None) => greeting.server(format!("mysql {}", plain(&name))),
        (None, _) => greeting,
    })
}

/// Sets the session up, and checks the version and the tables of the schema. Returns the server's name; `None` if it is
/// not text.
async fn fit(connection: &mut Connection, timeout: Duration) -> Result<Option<String>, Fault> {
    let packet = format!(
        "{};SELECT version,COALESCE(/*!80000 @@server_uuid,*/server) FROM quorate_schema \
         ORDER BY version DESC LIMIT 1;{}",
        settings(timeout),
        tables::question()
    );
    let mut said = connection.ask(&packet).await?;
    let mut schema = row(&mut said, SETTINGS).ok_or_else(|| unprepared("the schema is missing"))?;
    suits(number(&schema, 0))?;
    let rows = said
        .get_mut(SETTINGS + 1)
        .map(|one| std::mem::take(&mut one.rows));
    match tables::misfits(rows.unwrap_or_default()).first() {
        Some(misfit) => Err(unprepared(&misfit.text())),
        None => Ok(word(&mut schema, 1)),
    }
}

fn row(said: &mut [StatementResult], at: usize) -> Option<mysql_async::Row> {
    let rows = &mut said.get_mut(at)?.rows;
    (!rows.is_empty()).then(|| rows.swap_remove(0))
}

/// Returns the name that this process uses for the server. It is the same for all databases of the server.
fn one_name(name: String, report: &RunReport) -> String {
    static NAMES: PerProcess<Mutex<Names>> = PerProcess::new();
    let names = NAMES.get_or_init(Mutex::default);
    let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
    format!("mysql {}", names.of(name, report))
}

/// Returns a fault if this crate does not support a schema of this version.
pub(crate) fn suits(version: Option<u64>) -> Result<(), Fault> {
    match version {
        Some(VERSION) => Ok(()),
        Some(newer) if newer > VERSION => Err(Fault::Unprepared(
            format!(
                "the schema has version {newer}, but this program supports only {VERSION}: use a newer program"
            )
            .into(),
        )),
        _ => Err(unprepared("the schema of the tables is older than this program")),
    }
}
