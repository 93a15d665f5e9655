//! What has to be there on a server, how it is made, and what a server tells of itself when a session begins.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use quorate::node::store::Greeting;
use quorate::node::{Fault, ServerRun};
use rand::RngExt;

use crate::connection::{Connection, Outcome};
use crate::fault::{plain, unprepared};
use crate::run::{FirstSight, Names, QUESTION, Run, Told};
use crate::session::{number, word};
use crate::sql::{SETTINGS, listening, settings};
use crate::tables::{self, Misfit, RECORD, RUN, SCHEMA, TABLES, WOKEN, What};
use crate::url::{Address, BadUrl};

/// The schema that this version of the program works with.
const VERSION: u64 = 1;
/// How long [`prepare`] may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// A session that has nothing to do asks its server for a sign of life after two seconds: by then each has noticed that the
/// table of the records is missing.
const NOTICED: Duration = Duration::from_secs(3);

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
    /// What was wrong with the tables of a server that had been prepared before, and has been repaired.
    pub repaired: Vec<String>,
    /// What a user needs who takes locks, as statements; `USER` stands for the user.
    pub grants: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = if self.made { "made" } else { "was there" };
        writeln!(
            f,
            "{}: schema of version {} {made}",
            self.name, self.version
        )?;
        for repaired in &self.repaired {
            writeln!(f, "  repaired: {repaired}")?;
        }
        writeln!(f, "the user who takes locks needs:")?;
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
    let found = prepared.map_err(|fault| NotPrepared::Server {
        name: name.clone(),
        fault,
    })?;
    if found.version > VERSION {
        let found = found.version;
        return Err(NotPrepared::Newer { name, found });
    }
    let database = &address.database;
    let grant = |table: &&tables::Table| {
        format!(
            "GRANT {} ON `{database}`.`{}` TO USER",
            table.rights, table.name
        )
    };
    let mut grants: Vec<String> = TABLES.iter().map(grant).collect();
    if !found.mariadb {
        grants.push(format!(
            "GRANT EXECUTE ON PROCEDURE `{database}`.`quorate_listen` TO USER"
        ));
    }
    Ok(Report {
        name,
        version: found.version,
        made: found.made,
        repaired: found.repaired,
        grants,
    })
}

/// What there is of a schema.
struct Found {
    version: u64,
    mariadb: bool,
    made: bool,
    repaired: Vec<String>,
}

async fn prepare_at(address: &Address) -> Result<Found, Fault> {
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
    let one_at_a_time = "SET SESSION autocommit=1,sql_mode='STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION';\
                         SELECT GET_LOCK('quorate:prepare',10),VERSION()";
    let mut said = connection.ask(one_at_a_time).await?;
    let row = said.get_mut(1).and_then(|one| one.rows.first_mut());
    let row = row.ok_or_else(|| Fault::Server("no answer".into()))?;
    if number(row, 0) != Some(1) {
        // Somebody else prepares it, and takes long.
        return Err(Fault::Busy);
    }
    let mariadb = word(row, 1).is_some_and(|version| version.contains("MariaDB"));
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
    let misfits = look(&mut connection).await?;
    let is_whole = before == Some(VERSION) && misfits.is_empty();
    if !is_whole {
        let server = elsewhere(address).await.unwrap_or_else(random_word);
        let is_used = before.is_some();
        let made = make_tables(&mut connection, &misfits, is_used).await;
        made.map_err(engine_refused)?;
        finish(&mut connection, mariadb, &server).await?;
    }
    let version = version_of(&mut connection).await?;
    let version = version.ok_or_else(|| unprepared("the schema is missing"))?;
    if let Some(misfit) = look(&mut connection).await?.first() {
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

/// The tables that are not as they must be.
async fn look(connection: &mut Connection) -> Result<Vec<Misfit>, Fault> {
    let said = connection.ask(&tables::question()).await?;
    let rows = said.into_iter().next().map(|one| one.rows);
    Ok(tables::misfits(rows.unwrap_or_default()))
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

/// The name of the server that another database of it knows, where this user may see that: two databases of one server
/// are no two masters. On a connection of its own, which an error makes useless.
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

/// Makes the tables that are missing, and those anew that hold nothing worth keeping. The others get their engine; what else is
/// wrong with them is said and left alone, for locks and values are in them.
async fn make_tables(
    connection: &mut Connection,
    misfits: &[Misfit],
    is_used: bool,
) -> Result<(), Fault> {
    let of = |table| misfits.iter().find(|misfit| misfit.table == table);
    for table in [&SCHEMA, &RECORD] {
        if let Some(misfit) = of(table).filter(|misfit| matches!(misfit.what, What::Column(_))) {
            let why = misfit.text();
            let cure = "ALTER it back, or DROP it when no lock is held and no value is needed";
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

/// Makes the table of the records. There may have been another, and with it all that this server was told is forgotten: for the
/// restart guard it has begun anew. That is written first, and once more afterwards with the right time: nobody votes in between.
async fn make_records(connection: &mut Connection, is_used: bool) -> Result<(), Fault> {
    let id = random_word();
    begin_run(connection, &id, PATIENCE).await?;
    if is_used {
        tokio::time::sleep(NOTICED).await;
    }
    connection.ask(&RECORD.create()).await?;
    begin_run(connection, &id, Duration::ZERO).await
}

/// Lets a run begin so much later than now.
async fn begin_run(connection: &mut Connection, id: &str, later: Duration) -> Result<(), Fault> {
    let mut said = connection.ask(QUESTION).await?;
    let told = said
        .first_mut()
        .and_then(|one| Told::read(one.rows.first_mut()?));
    let now = told.and_then(|told| told.clock());
    let later = u64::try_from(later.as_micros()).unwrap_or(u64::MAX);
    let text = Run::text(id, now.map(|now| now.saturating_add(later)));
    let replace = format!("REPLACE INTO quorate_run (one,run) VALUES (1,'{text}')");
    connection.ask(&replace).await.map(drop)
}

/// The row that says that all is there is written last: what was not finished is made again.
async fn finish(connection: &mut Connection, mariadb: bool, server: &str) -> Result<(), Fault> {
    if !mariadb {
        make_procedure(connection).await?;
    }
    let last = format!(
        "INSERT IGNORE INTO quorate_schema (version,server) \
         SELECT {VERSION},COALESCE(MIN(server),'{server}') FROM quorate_schema"
    );
    connection.ask(&last).await.map(drop)
}

/// What a server answers that makes no table of the engine that is asked for.
fn engine_refused(fault: Fault) -> Fault {
    match fault {
        Fault::Server(why) if why.contains("(1290)") || why.contains("(1286)") => {
            Fault::Unsupported(
                format!(
                    "{why}: it must have InnoDB and MEMORY, and enforce_storage_engine must be off"
                )
                .into(),
            )
        }
        fault => fault,
    }
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

/// Changes nothing, and fails where no lock could be written: by a right that is missing, or a binary log of
/// statements. Said when connecting, that is known not to pass by itself.
const TRIED: &str = "UPDATE quorate_record SET version=version WHERE FALSE";

/// Sets a session up and hears who the server is.
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
    let told = row(&mut said, 2).and_then(|mut row| Told::read(&mut row));
    let lasts = told
        .as_ref()
        .map_or(Duration::ZERO, |told| told.lasts(&run));
    let uptime = seen.ago(&run.id).max(lasts);
    let greeting = Greeting::new(ServerRun::new(run.id)).uptime(uptime);
    Ok(match (name, told) {
        (Some(name), Some(told)) => greeting.server(one_name(plain(&name), &told)),
        (Some(name), None) => greeting.server(format!("mysql {}", plain(&name))),
        (None, _) => greeting,
    })
}

/// Sets a session up, and looks whether the schema is one that this program can work with. The server's name.
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

fn row(said: &mut [Outcome], at: usize) -> Option<mysql_async::Row> {
    let rows = &mut said.get_mut(at)?.rows;
    (!rows.is_empty()).then(|| rows.swap_remove(0))
}

/// The name of the server, one for all of its databases that this process uses.
fn one_name(name: String, told: &Told) -> String {
    static NAMES: OnceLock<Mutex<Names>> = OnceLock::new();
    let names = NAMES.get_or_init(Mutex::default);
    let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
    format!("mysql {}", names.of(name, told))
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
