//! Begins a session: sets the connection up, checks whether the server may vote, and reads its current run.
//!
//! # Why like this
//!
//! A server must not vote in these states, because it may lack grants, or may lose them without a trace:
//!
//! - **A standby, or a server that is read-only.** An administrator who sets `default_transaction_read_only` wants no
//!   writes, so sessions do not override it.
//! - **`fsync=off`.** A failure of the machine then loses commits, and nothing shows whether `fsync` was on at the last
//!   start. A server that should be fast needs `synchronous_commit=off` at most, and sessions override that.
//! - **An earlier timeline than this process has seen.** The server is an old primary, whose standby was promoted.
//!
//! The session replaces the row of the run in these cases. The server then counts as just started, and votes after
//! `max_ttl`.
//!
//! - **The row belongs to another table or server.** The records come from a dump, or were emptied, or rewritten. Or the
//!   table, the schema or the database was renamed: clients may have used others of these names in between.
//! - **The server was started since the row was written.** A clean restart forgets nothing, but a copy of the files that
//!   was made after a clean shutdown looks the same. So does an old primary that was shut down cleanly before its
//!   standby was promoted.
//! - **The position in the WAL is lower than this process has seen in the same run.** A virtual machine was set back to
//!   a snapshot that includes its memory.
//!
//! When a process begins a run, all open sessions of all processes end: each answer contains the id of the run
//! ([`crate::sql::proof`]).
//!
//! Not solved: a process reads the position only at the beginning of a session. So it does not notice a snapshot that is
//! newer than its last session.

use std::time::Duration;

use quorate::node::store::Greeting;
use quorate::node::{Fault, ServerRun};
use rand::RngExt as _;
use tokio_postgres::{Client, Error};

use crate::abandoned::{self, Abandoned, Backend, unconfirmed};
use crate::connection::{Connection, TextRow, text_rows};
use crate::fault::{fault, unprepared, unreadable};
use crate::pipeline::{Request, in_order};
use crate::run::{FirstSight, outdated, server_name};
use crate::sql::{self, Statements, VANISHED};
use crate::tables::{self, Schema, VERSION};

/// How often a session tries to begin a run. It fails only if other sessions replace the row at the same time.
const TRIES: usize = 4;

/// The state of the server that decides whether it may vote.
const STATE: &str = "SELECT pg_is_in_recovery(),current_setting('transaction_read_only')='on',\
                     current_setting('fsync')='on',(extract(epoch from pg_postmaster_start_time())*1000000)::bigint,\
                     pg_backend_pid(),(SELECT (extract(epoch from backend_start)*1000000)::bigint \
                     FROM pg_stat_get_activity(pg_backend_pid()))";
/// The identity of the server. It is equal in all databases of the server, on its replicas and on copies of its files.
const IDENTITY: &str = "SELECT system_identifier FROM pg_control_system()";
/// The name of the current WAL file, which begins with the timeline, and the current position in the WAL.
const WAL: &str = "SELECT pg_walfile_name(lsn),lsn-'0/0'::pg_lsn FROM pg_current_wal_lsn() lsn";

/// The facts about a server at the beginning of a session.
pub(crate) struct Met {
    /// The id of the current run of the server.
    pub(crate) run: String,
    /// The text that the second column of each answer must contain.
    pub(crate) proof: String,
    /// The name of the server.
    server: String,
    /// The age of the run.
    age: Duration,
    /// The backend that serves the session; `None` if it cannot be read.
    pub(crate) backend: Option<Backend>,
    pub(crate) statements: Statements,
}

impl Met {
    /// The facts that the session task needs.
    pub(crate) fn greeting(&self) -> Greeting {
        Greeting::new(ServerRun::new(self.run.clone()))
            .server(self.server.clone())
            .uptime(self.age)
    }
}

/// Sets the session up, checks the server and its tables, and reads the current run.
pub(crate) async fn greet(
    connection: &mut Connection,
    timeout: Duration,
    seen: &FirstSight,
    abandoned: &Abandoned,
) -> Result<Met, Fault> {
    // Read the known position before the server is asked: another session may note a higher one meanwhile.
    let known = seen.position();
    let past = abandoned.all();
    let mark = new_id();
    let asked = ask(connection, timeout, &past, &mark).await?;
    if asked.is_waiting {
        return Err(unconfirmed());
    }
    abandoned.remove(&past);
    let identity = asked.votes()?;
    let (filenode, records) = asked.fits()?;
    let place = Place {
        identity: &identity,
        records: &records,
        started: asked.started,
    };
    let (mut row, statements) = run_row(connection, &place).await?;
    let is_set_back = known
        .zip(asked.position)
        .is_some_and(|(known, position)| known.is_after(&row.id, position));
    if is_set_back {
        row = begin_again(connection, &place, &row.id).await?;
    }
    let age = seen.age(&row.id, row.aged, asked.position);
    // If the user may not read the identity, another user may have written it into the row.
    let identity = if identity.is_empty() {
        digits(row.server)
    } else {
        identity
    };
    Ok(Met {
        proof: sql::proof(filenode, &row.id, &mark),
        run: row.id,
        server: server_name(&identity, asked.started),
        age,
        backend: asked.backend,
        statements,
    })
}

/// The answers of the server at the beginning of a session.
#[derive(Debug, Default)]
struct Asked {
    is_standby: bool,
    is_read_only: bool,
    is_synced: bool,
    /// When the server was started, by its wall clock, in microseconds since 1970. A running server does not change it.
    started: i64,
    /// The system identifier of the server; empty if the user may not read it.
    identity: String,
    /// The timeline of the server; `None` if it cannot be read.
    timeline: Option<u32>,
    /// The position in the WAL, in bytes; `None` if it cannot be read.
    position: Option<u64>,
    backend: Option<Backend>,
    /// Whether an earlier commit waits for a synchronous standby.
    is_waiting: bool,
    schema: Schema,
}

/// Sets the session up, ends the backends `past`, and asks for everything that [`Asked`] contains, in one round trip.
/// `mark` is a random text that the session gets.
async fn ask(
    connection: &mut Connection,
    timeout: Duration,
    past: &[Backend],
    mark: &str,
) -> Result<Asked, Fault> {
    let settings = format!("{};{}", sql::settings(timeout), sql::set_mark(mark));
    let tables = tables::question();
    let end = abandoned::end(past, timeout);
    let [vanished, alive] = VANISHED;
    let texts = [
        &settings, vanished, alive, &end, STATE, IDENTITY, WAL, &tables,
    ];
    let Connection { client, driver } = connection;
    let ask = |text: &&'_ str| -> Request<'_, Result<Vec<TextRow>, Error>> {
        let text = (*text).to_owned();
        let client: &Client = client;
        Box::pin(async move { text_rows(client, &text).await })
    };
    let requests = texts.iter().map(ask).collect();
    let answers = driver.run(async { Ok(in_order(requests).await) }).await?;
    let answers: Result<[_; 8], _> = answers.try_into();
    // Errors of the others are no obstacle: an operating system without the setting, a standby, or a missing right.
    let Ok([set, _, _, ended, state, identity, wal, tables]) = answers else {
        return Err(unreadable());
    };
    let failed = |error: Error| fault(&error, true);
    set.map_err(failed)?;
    let state = state.map_err(failed)?;
    let is = |column: usize| text(&state, column).as_deref() == Some("t");
    let started = text(&state, 3).and_then(|started| started.parse().ok());
    let backend = text(&state, 4).and_then(|pid| {
        let pid = pid.parse().ok()?;
        let started = text(&state, 5)?.parse().ok()?;
        Some(Backend { pid, started })
    });
    let wal = wal.unwrap_or_default();
    Ok(Asked {
        is_standby: is(0),
        is_read_only: is(1),
        is_synced: is(2),
        started: started.ok_or_else(unreadable)?,
        identity: identity
            .ok()
            .and_then(|rows| text(&rows, 0))
            .map(digits)
            .unwrap_or_default(),
        timeline: text(&wal, 0).and_then(|file| timeline_of(&file)),
        position: text(&wal, 1).and_then(|position| position.parse().ok()),
        backend,
        is_waiting: ended.unwrap_or_default().iter().any(|row| {
            let is_waiting = row.first().and_then(|column| column.as_deref());
            is_waiting == Some("t")
        }),
        schema: Schema::read(&tables.map_err(failed)?),
    })
}

/// A column of the first row.
fn text(rows: &[TextRow], column: usize) -> Option<String> {
    rows.first()?.get(column)?.clone()
}

/// Removes all characters but digits, so that the text can be a part of a statement.
fn digits(text: String) -> String {
    text.chars().filter(char::is_ascii_digit).collect()
}

/// The timeline in the name of a WAL file: its first eight digits, in hexadecimal form.
fn timeline_of(file: &str) -> Option<u32> {
    u32::from_str_radix(file.get(..8)?, 16).ok()
}

impl Asked {
    /// Checks whether the server may vote. Returns its identity.
    fn votes(&self) -> Result<String, Fault> {
        if self.is_standby || self.is_read_only {
            return Err(Fault::ReadOnly);
        }
        if !self.is_synced {
            let why = "fsync is off, so the server may lose grants without a trace if the machine fails: turn it on";
            return Err(Fault::Unsupported(why.into()));
        }
        let latest = self
            .timeline
            .and_then(|timeline| outdated(&self.identity, timeline));
        if let Some(latest) = latest.filter(|_| !self.identity.is_empty()) {
            let timeline = self.timeline.unwrap_or_default();
            let why = format!(
                "the server is an old primary: it is on timeline {timeline}, but a standby was promoted to timeline \
                 {latest}: stop this server"
            );
            return Err(Fault::Server(why.into()));
        }
        Ok(self.identity.clone())
    }

    /// Checks the tables and the rights on them. Returns the number of the file of the records, and the
    /// place of the records.
    fn fits(&self) -> Result<(i64, String), Fault> {
        suits(&self.schema)?;
        if let Some(misfit) = self.schema.misfits().first() {
            return Err(if misfit.needs_administrator() {
                Fault::Unprepared(misfit.text().into())
            } else {
                unprepared(&misfit.text())
            });
        }
        let missing = self.schema.missing_rights();
        if !missing.is_empty() {
            let why = format!(
                "the user in the URL lacks rights ({}): run the GRANTs that `quorate prepare-server URL` prints",
                missing.join(", ")
            );
            return Err(Fault::Denied(why.into()));
        }
        // The place becomes a part of statements.
        let place = self
            .schema
            .place()
            .filter(|place| !place.contains(['\'', '\\']));
        self.schema.filenode().zip(place).ok_or_else(unreadable)
    }
}

/// Returns a fault if this crate does not support the tables of this schema.
pub(crate) fn suits(schema: &Schema) -> Result<(), Fault> {
    match schema.version {
        Some(VERSION) => Ok(()),
        Some(newer) if newer > VERSION => {
            let why = format!(
                "the schema has version {newer}, but this program supports only {VERSION}: use a newer program"
            );
            Err(Fault::Unprepared(why.into()))
        }
        Some(_) => Err(unprepared(
            "the schema of the tables is older than this program",
        )),
        None => Err(unprepared("the schema is missing")),
    }
}

/// The facts that the row of the current run must contain.
struct Place<'a> {
    /// The system identifier of the server; empty if the user may not read it.
    identity: &'a str,
    /// The place of the records ([`Schema::place`]).
    records: &'a str,
    /// When the server was started, in microseconds since 1970.
    started: i64,
}

/// The row of the current run.
#[derive(Debug, PartialEq, Eq)]
struct RunRow {
    id: String,
    /// The place of the records ([`Schema::place`]).
    file: String,
    /// The system identifier of the server that wrote the row; empty if its client could not read it.
    server: String,
    /// When the server was started, in microseconds since 1970.
    started: i64,
    /// For how long clients have watched the run, in microseconds.
    aged: i64,
}

impl RunRow {
    fn read(rows: &[TextRow]) -> Option<Self> {
        Some(Self {
            id: text(rows, 0)?,
            file: text(rows, 1)?,
            server: text(rows, 2)?,
            started: text(rows, 3)?.parse().ok()?,
            aged: text(rows, 4)?.parse().ok()?,
        })
    }

    fn is_of(&self, place: &Place<'_>) -> bool {
        let identity = place.identity;
        let is_server = self.server.is_empty() || identity.is_empty() || self.server == identity;
        // The id becomes a part of statements.
        let is_id = self.id.len() == 32 && self.id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_server && is_id && self.file == place.records && self.started == place.started
    }
}

const READ: &str = "SELECT id,file,server,started,aged FROM quorate.run WHERE one=1";

/// A new random id of a run.
fn new_id() -> String {
    format!(
        "{:032x}",
        rand::make_rng::<rand::rngs::StdRng>().random::<u128>()
    )
}

/// Reads the row of the current run. Writes it if the table is empty, or if the row belongs to another table or server,
/// or to an earlier start of the server. Prepares the common statements in the same round trip.
async fn run_row(
    connection: &mut Connection,
    place: &Place<'_>,
) -> Result<(RunRow, Statements), Fault> {
    let Place {
        identity,
        records,
        started,
    } = place;
    let id = new_id();
    let insert = format!(
        "INSERT INTO quorate.run (one,id,file,server,started,aged) \
         VALUES (1,'{id}','{records}','{identity}',{started},0) ON CONFLICT DO NOTHING;{READ}"
    );
    let Connection { client, driver } = &mut *connection;
    let asked = async {
        let requests: [Request<'_, _>; 2] = [
            Box::pin(async { text_rows(client, &insert).await.map(Ok) }),
            Box::pin(async { Ok(Err(Statements::prepare_common(client).await?)) }),
        ];
        in_order(requests.into())
            .await
            .into_iter()
            .collect::<Result<Vec<_>, Error>>()
    };
    let mut answers = driver.run(asked).await?.into_iter();
    let (Some(Ok(rows)), Some(Err(statements))) = (answers.next(), answers.next()) else {
        return Err(unreadable());
    };
    match RunRow::read(&rows) {
        Some(row) if row.is_of(place) => Ok((row, statements)),
        _ => Ok((replaced(connection, place).await?, statements)),
    }
}

/// Replaces a row that does not fit, unless another session has just done so. Returns the row.
async fn replaced(connection: &mut Connection, place: &Place<'_>) -> Result<RunRow, Fault> {
    let Place {
        identity,
        records,
        started,
    } = place;
    for _ in 0..TRIES {
        let id = new_id();
        // The condition is checked again with the current row, so a run that another session has begun is kept.
        let replace = format!(
            "UPDATE quorate.run SET id='{id}',file='{records}',server='{identity}',started={started},aged=0 \
             WHERE one=1 AND (file<>'{records}' OR server<>'{identity}' OR started<>{started} \
             OR id !~ '^[0-9a-f]{{32}}$');{READ}"
        );
        let row = RunRow::read(&connection.ask(&replace).await?);
        if let Some(row) = row.filter(|row| row.is_of(place)) {
            return Ok(row);
        }
    }
    Err(unprepared("the table quorate.run cannot be used"))
}

/// Ends the run `old`, unless another session has just done so, and begins another. Returns the row of the current run.
async fn begin_again(
    connection: &mut Connection,
    place: &Place<'_>,
    old: &str,
) -> Result<RunRow, Fault> {
    let id = new_id();
    let replace =
        format!("UPDATE quorate.run SET id='{id}',aged=0 WHERE one=1 AND id='{old}';{READ}");
    let row = RunRow::read(&connection.ask(&replace).await?);
    row.filter(|row| row.is_of(place)).ok_or_else(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked {
            is_synced: true,
            identity: "the identity of this test".into(),
            timeline: Some(3),
            ..Asked::default()
        }
    }

    #[test]
    fn server_that_may_lack_grants_does_not_vote() {
        assert!(asked().votes().is_ok());
        let standby = Asked {
            is_standby: true,
            ..asked()
        };
        assert_eq!(standby.votes(), Err(Fault::ReadOnly));
        let read_only = Asked {
            is_read_only: true,
            ..asked()
        };
        assert_eq!(read_only.votes(), Err(Fault::ReadOnly));
        let unsynced = Asked {
            is_synced: false,
            ..asked()
        };
        assert!(
            unsynced
                .votes()
                .is_err_and(|fault| fault.to_string().contains("fsync"))
        );
        let old = Asked {
            timeline: Some(2),
            ..asked()
        };
        assert!(
            old.votes()
                .is_err_and(|fault| fault.to_string().contains("old primary"))
        );
        let unreadable = Asked {
            timeline: None,
            ..asked()
        };
        assert!(unreadable.votes().is_ok());
    }

    #[test]
    fn row_of_another_table_server_or_start_is_not_used() {
        const FILE: &str = "base/5/7";
        let row = |server: &str| RunRow {
            id: "0123456789abcdef0123456789abcdef".into(),
            file: "base/5/7".into(),
            server: server.into(),
            started: 9,
            aged: 0,
        };
        let place = |identity, records, started| Place {
            identity,
            records,
            started,
        };
        let here = place("1", FILE, 9);
        assert!(row("1").is_of(&here) && row("").is_of(&here));
        assert!(row("1").is_of(&place("", FILE, 9)));
        for other in [
            place("2", FILE, 9),
            place("1", "base/6/7", 9),
            place("1", FILE, 10),
        ] {
            assert!(!row("1").is_of(&other));
        }
        let odd = RunRow {
            id: "' OR".into(),
            ..row("1")
        };
        assert!(!odd.is_of(&here));
    }

    #[test]
    fn timeline_is_the_beginning_of_the_name_of_a_wal_file() {
        assert_eq!(timeline_of("0000001A000000000000004F"), Some(26));
        assert_eq!(timeline_of("0000"), None);
        assert_eq!(timeline_of("zz00001A00"), None);
    }
}
