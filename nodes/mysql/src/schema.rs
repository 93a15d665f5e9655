//! What has to be there on a server, how it is made, and what a server tells of itself when a session begins.

use std::fmt;
use std::time::Duration;

use quorate::node::store::Greeting;
use quorate::node::{Fault, ServerRun};
use rand::RngExt;

use crate::connection::{Connection, Outcome};
use crate::fault::{plain, unprepared};
use crate::session::{number, word};
use crate::sql::{LONGEST_NAME, LONGEST_WORD, listening};
use crate::url::{Address, BadUrl};

/// The schema that this version of the program works with.
const VERSION: u64 = 1;
/// A server that says that it has been up for longer does not know: its clock was put back.
const LONGEST_UPTIME: u64 = 100 * 365 * 86_400;
/// How long [`prepare`] may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// The tables of the schema.
const TABLES: [&str; 4] = [
    "quorate_schema",
    "quorate_record",
    "quorate_woken",
    "quorate_run",
];

/// Why a server could not be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotPrepared {
    /// The URL names no server.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// The server did not do it.
    #[error("{name}: {fault}")]
    Server {
        /// The server.
        name: String,
        /// What was wrong.
        fault: Fault,
    },
    /// A newer version of this program has been here.
    #[error(
        "{name}: the schema is of version {found}, and this program knows {VERSION}: use a newer one"
    )]
    Newer {
        /// The server.
        name: String,
        /// The version of its schema.
        found: u64,
    },
}

/// What [`prepare`] has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The server.
    pub name: String,
    /// The version of the schema that is there now.
    pub version: u64,
    /// Whether anything had to be made; otherwise all was there.
    pub made: bool,
    /// What a user needs who takes locks, as statements; `USER` stands for the user.
    pub grants: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = if self.made { "made" } else { "was there" };
        writeln!(
            f,
            "{}: schema of version {} {made}; who takes locks needs:",
            self.name, self.version
        )?;
        self.grants
            .iter()
            .try_for_each(|grant| writeln!(f, "  {grant};"))
    }
}

/// Makes the database and the schema where they are missing. Safe to repeat, and to be done by several at once.
///
/// The user of `url` must be allowed to create tables (on MySQL: a procedure as well).
///
/// # Errors
///
/// [`NotPrepared`], without the password of `url`.
pub async fn prepare(url: &str) -> Result<Report, NotPrepared> {
    let address = Address::read(url)?;
    let name = address.name();
    let preparing = tokio::time::timeout(PATIENCE, prepare_at(&address));
    let prepared = preparing.await.unwrap_or(Err(Fault::Timeout(PATIENCE)));
    let (found, made) = prepared.map_err(|fault| NotPrepared::Server {
        name: name.clone(),
        fault,
    })?;
    if found.version > VERSION {
        let found = found.version;
        return Err(NotPrepared::Newer { name, found });
    }
    let database = &address.database;
    let mut grants: Vec<String> = TABLES
        .iter()
        .map(|table| match *table {
            "quorate_schema" => format!("GRANT SELECT ON `{database}`.`{table}` TO USER"),
            "quorate_run" => format!("GRANT SELECT, INSERT ON `{database}`.`{table}` TO USER"),
            _ => format!("GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.`{table}` TO USER"),
        })
        .collect();
    if !found.mariadb {
        grants.push(format!(
            "GRANT EXECUTE ON PROCEDURE `{database}`.`quorate_listen` TO USER"
        ));
    }
    Ok(Report {
        name,
        version: found.version,
        made,
        grants,
    })
}

/// What there is of a schema.
struct Found {
    version: u64,
    mariadb: bool,
}

async fn prepare_at(address: &Address) -> Result<(Found, bool), Fault> {
    let mut connection = match Connection::open(address, true).await {
        // It may be that there is no such database yet.
        Err(Fault::Unprepared(_)) => {
            let mut connection = Connection::open(address, false).await?;
            let database = &address.database;
            let create = format!("CREATE DATABASE IF NOT EXISTS `{database}`;USE `{database}`");
            connection.ask(&create).await?;
            connection
        }
        connection => connection?,
    };
    let one_at_a_time = "SELECT GET_LOCK('quorate:prepare',10),VERSION()";
    let mut said = connection.ask(one_at_a_time).await?;
    let version = said
        .first_mut()
        .and_then(|one| word(one.rows.first_mut()?, 1));
    let mariadb = version.is_some_and(|version| version.contains("MariaDB"));
    let before = version_of(&mut connection).await?;
    let is_whole = before.is_some_and(|version| version >= VERSION);
    if !is_whole {
        make(&mut connection, mariadb).await?;
    }
    let version = version_of(&mut connection).await?;
    let version = version.ok_or_else(|| unprepared("the schema is missing"))?;
    Ok((Found { version, mariadb }, !is_whole))
}

/// The version of the schema; none where there is none, or one that was never finished.
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

fn first_number(said: &[Outcome]) -> Option<u64> {
    said.first()?.rows.first().and_then(|row| number(row, 0))
}

/// The row that says that all is there is written last: what was not finished is made again.
async fn make(connection: &mut Connection, mariadb: bool) -> Result<(), Fault> {
    let tables = [
        "CREATE TABLE IF NOT EXISTS quorate_schema (version BIGINT UNSIGNED NOT NULL PRIMARY KEY,\
         server VARBINARY(64) NOT NULL) ENGINE=InnoDB"
            .to_owned(),
        format!(
            "CREATE TABLE IF NOT EXISTS quorate_record (name VARBINARY({LONGEST_NAME}) NOT NULL PRIMARY KEY,\
             version BIGINT UNSIGNED NOT NULL,state MEDIUMBLOB,changed BIGINT UNSIGNED NOT NULL) \
             ENGINE=InnoDB ROW_FORMAT=DYNAMIC"
        ),
        // In memory: nobody is to wait for the disk to be woken, and after a restart nobody waits.
        format!(
            "CREATE TABLE IF NOT EXISTS quorate_woken (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,\
             process VARBINARY(64) NOT NULL,word VARBINARY({LONGEST_WORD}) NOT NULL,\
             at BIGINT UNSIGNED NOT NULL,KEY (process)) ENGINE=MEMORY"
        ),
        // In memory: it is empty after a restart, and whoever comes first names the new run.
        "CREATE TABLE IF NOT EXISTS quorate_run (one TINYINT NOT NULL PRIMARY KEY,\
         run VARBINARY(64) NOT NULL) ENGINE=MEMORY"
            .to_owned(),
    ];
    for table in &tables {
        connection.ask(table).await?;
    }
    if !mariadb {
        make_procedure(connection).await?;
    }
    let last = format!(
        "INSERT IGNORE INTO quorate_schema (version,server) \
         SELECT {VERSION},COALESCE(MIN(server),'{}') FROM quorate_schema",
        random_word()
    );
    connection.ask(&last).await.map(drop)
}

/// What MariaDB is told as a block, MySQL can only be told as a procedure.
pub(crate) async fn make_procedure(connection: &mut Connection) -> Result<(), Fault> {
    let body = listening("listener", "heard", "looks", "pause");
    let create = format!(
        "CREATE PROCEDURE quorate_listen (listener VARBINARY(64),heard BIGINT UNSIGNED,looks INT,\
         pause DECIMAL(6,3)) \
         SQL SECURITY INVOKER {body}"
    );
    connection
        .ask("DROP PROCEDURE IF EXISTS quorate_listen")
        .await?;
    connection.ask(&create).await.map(drop)
}

fn random_word() -> String {
    let mut rng: rand::rngs::StdRng = rand::make_rng();
    format!("{:032x}", rng.random::<u128>())
}

/// Sets a session up and hears who the server is, in one packet.
pub(crate) async fn greet(
    connection: &mut Connection,
    timeout: Duration,
) -> Result<Greeting, Fault> {
    let limit = timeout.as_secs_f64();
    let packet = format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;\
         SET SESSION autocommit=1,sql_mode='STRICT_ALL_TABLES',innodb_lock_wait_timeout=1,\
         lock_wait_timeout=1,wait_timeout=28800/*M!,max_statement_time={limit}*/;\
         SELECT version,COALESCE(/*!80000 @@server_uuid,*/server) FROM quorate_schema \
         ORDER BY version DESC LIMIT 1;\
         INSERT IGNORE INTO quorate_run (one,run) SELECT 1,'{}' FROM DUAL \
         WHERE NOT EXISTS (SELECT 1 FROM quorate_run);\
         SELECT run FROM quorate_run;\
         SHOW GLOBAL STATUS LIKE 'Uptime'",
        random_word()
    );
    let mut said = connection.ask(&packet).await?;
    let row = |said: &mut Vec<Outcome>, at: usize| -> Option<mysql_async::Row> {
        let rows = &mut said.get_mut(at)?.rows;
        (!rows.is_empty()).then(|| rows.swap_remove(0))
    };
    let mut schema = row(&mut said, 2).ok_or_else(|| unprepared("the schema is missing"))?;
    suits(number(&schema, 0))?;
    let run = row(&mut said, 4).and_then(|mut row| word(&mut row, 0));
    let run = run.ok_or_else(|| unprepared("the table quorate_run cannot be written"))?;
    let uptime = row(&mut said, 5).and_then(|row| number(&row, 1));
    // Without a word about it, it may have started just now.
    let uptime = uptime.filter(|secs| *secs < LONGEST_UPTIME).unwrap_or(0);
    let greeting = Greeting::new(ServerRun::new(plain(&run))).uptime(Duration::from_secs(uptime));
    Ok(match word(&mut schema, 1) {
        Some(server) => greeting.server(format!("mysql {}", plain(&server))),
        None => greeting,
    })
}

/// Whether this program can work with a schema of this version.
pub(crate) fn suits(version: Option<u64>) -> Result<(), Fault> {
    match version {
        Some(VERSION) => Ok(()),
        Some(newer) if newer > VERSION => Err(Fault::Unprepared(
            format!(
                "the schema is of version {newer}, this program knows {VERSION}: use a newer one"
            )
            .into(),
        )),
        _ => Err(unprepared("the schema is older than this program")),
    }
}
