//! Creates and repairs the tables of quorate in a database.

use std::fmt;
use std::time::Duration;

use quorate::node::Fault;

use crate::connection::Connection;
use crate::fault::unprepared;
use crate::tables::{self, Misfit, RECORD, RUN, SCHEMA, Schema, TABLES, VERSION, grants};
use crate::url::{Address, BadUrl};

/// The time limit of [`prepare`].
const PATIENCE: Duration = Duration::from_secs(30);
/// The database that each server has. The client connects to it to create another one.
const MAINTENANCE: &str = "postgres";

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
    /// The server's host, port (or Unix socket) and database, for example `postgres 10.0.0.1:5432/quorate`.
    pub name: String,
    /// The version of the schema that is now installed.
    pub version: u64,
    /// Whether a part of the schema had to be created. `false` if the schema was complete.
    pub made: bool,
    /// A description of each fault that `prepare` has repaired in an existing schema, for example a table that is not
    /// UNLOGGED.
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

/// Creates the database and the schema if they are missing. Repairs tables that have the wrong persistence.
///
/// It is safe to call this function again, or from several processes at the same time.
///
/// The user of `url` must be the owner of the database, or a superuser: clients trust the tables of no other user. If
/// the database is missing, the user needs the right `CREATEDB`, and becomes its owner.
///
/// # Errors
///
/// [`NotPrepared`]. It never contains the password of `url`.
pub async fn prepare(url: &str) -> Result<Report, NotPrepared> {
    let address = Address::open(url)?;
    let name = address.name();
    let preparing = tokio::time::timeout(PATIENCE, Box::pin(prepare_at(&address)));
    let prepared = preparing.await.unwrap_or(Err(Fault::Timeout(PATIENCE)));
    let found = prepared.map_err(|fault| NotPrepared::Server {
        name: name.clone(),
        fault,
    })?;
    if found.version > VERSION {
        let found = found.version;
        return Err(NotPrepared::Newer { name, found });
    }
    Ok(Report {
        name,
        version: found.version,
        made: found.made,
        repaired: found.repaired,
        grants: grants(),
    })
}

/// The result of preparing a server.
struct Found {
    version: u64,
    made: bool,
    repaired: Vec<String>,
}

async fn prepare_at(address: &Address) -> Result<Found, Fault> {
    let mut connection = match Connection::open(address).await {
        Err(Fault::Unprepared(_)) => {
            create_database(address).await?;
            Connection::open(address).await?
        }
        connection => connection?,
    };
    // The statements of one transaction take effect together. Only one administrator prepares the database at a time.
    connection
        .ask(
            "SET synchronous_commit=on;SET lock_timeout=10000;SET client_min_messages=error;BEGIN;\
             SELECT pg_advisory_xact_lock(hashtextextended('quorate prepare',0))",
        )
        .await?;
    let before = schema(&mut connection).await?;
    let version = before.version.unwrap_or(0);
    if version > VERSION {
        let (made, repaired) = (false, Vec::new());
        return Ok(Found {
            version,
            made,
            repaired,
        });
    }
    let misfits = before.misfits();
    let is_whole = version == VERSION && misfits.is_empty();
    if let Some(misfit) = misfits.iter().find(|misfit| misfit.needs_administrator()) {
        return Err(Fault::Unprepared(misfit.text().into()));
    }
    if !is_whole {
        if !before.exists {
            connection.ask(&format!("CREATE SCHEMA {SCHEMA}")).await?;
        }
        for misfit in &misfits {
            connection.ask(&repair(*misfit)).await?;
        }
        connection.ask(&tables::mark_complete()).await?;
    }
    let after = schema(&mut connection).await?;
    match after.misfits().first() {
        None => {}
        // The transaction is not committed, so the schema is not created.
        Some(Misfit::ForeignSchema) => {
            let why = "the user in the URL is neither the owner of the database nor a superuser, so clients would not \
                       trust the tables: prepare the server as the owner of the database";
            return Err(Fault::Denied(why.into()));
        }
        Some(misfit) => return Err(unprepared(&misfit.text())),
    }
    connection.ask("COMMIT").await?;
    let repaired = misfits.iter().filter(|_| version > 0);
    Ok(Found {
        version: VERSION,
        made: !is_whole,
        repaired: repaired.map(|misfit| misfit.text()).collect(),
    })
}

async fn schema(connection: &mut Connection) -> Result<Schema, Fault> {
    connection
        .ask(&tables::question())
        .await
        .map(|rows| Schema::read(&rows))
}

/// The statements that repair a table. A new or rewritten table of records gets another file, so the next session
/// begins a new run of the server.
fn repair(misfit: Misfit) -> String {
    match misfit {
        Misfit::Missing(name) => {
            let table = TABLES.iter().find(|table| table.name == name);
            table.map_or(String::new(), |table| table.create.to_owned())
        }
        Misfit::ForeignSchema
        | Misfit::Foreign(_)
        | Misfit::Active(_)
        | Misfit::Keyless(_)
        | Misfit::OtherColumns(_) => String::new(),
        Misfit::Unlogged => format!("ALTER TABLE {SCHEMA}.{} SET LOGGED", RECORD.name),
        // The row must not be kept: it may be older than a crash of the server.
        Misfit::Logged => {
            let name = RUN.name;
            format!("TRUNCATE {SCHEMA}.{name};ALTER TABLE {SCHEMA}.{name} SET UNLOGGED")
        }
    }
}

/// Creates the database of this address, unless another administrator has just created it.
async fn create_database(address: &Address) -> Result<(), Fault> {
    let mut connection = Connection::open_database(address, MAINTENANCE).await?;
    let create = format!("CREATE DATABASE \"{}\"", address.database);
    match connection.ask(&create).await {
        Err(Fault::Server(why)) if why.contains("(42P04)") || why.contains("(23505)") => Ok(()),
        created => created.map(drop),
    }
}
