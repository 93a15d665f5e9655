//! The SQL statements of a session.
//!
//! # Why like this
//!
//! - **One statement is one transaction.** So no transaction is open between two calls, and a broken connection leaves
//!   no row locked. A statement that changes several records locks their rows in the order of their names. 16
//!   connections that changed 3 of 6 records in any order had 0 deadlocks. A PL/pgSQL loop over unsorted names had 13
//!   deadlocks and 8 commits in the same time.
//! - **Inserts and updates of a batch are separate statements**, and so separate transactions. In one transaction, a
//!   record that one client inserts and another client updates could be locked in two orders.
//! - **The clock is `clock_timestamp()`.** `now()` shows the start of the transaction, and would be older by the time
//!   for which a statement waited for its row. `OFFSET 0` makes the server execute
//!   the change before it reads the clock: without it, the clock of a change that waited 0.4 s was 0.4 s old.
//! - **A change that does not fit still returns a row**, so its answer contains the clock, too. This costs 0.02 ms more
//!   than an `UPDATE` alone.
//! - **Each answer contains the number of the file of the records.** It shows a session that the table was emptied or
//!   created again, which ends no session.
//! - **Each answer contains the id of the run.** Another process may have begun a run, for example because it has noticed
//!   that a virtual machine was set back to a snapshot. Votes of the earlier run must then not count any longer.
//! - **Each answer contains a random text that only this session has set**, and `synchronous_commit`. A connection pooler
//!   may pass a statement to another session, which lacks the settings, or belongs to a later run of the server.
//! - **No PL/pgSQL**: it was no faster for one record. For three records, it was 1.6 to 2 times faster, which does not
//!   justify a function that must have the version of the client.
//! - **Plans**: the table may be nearly empty when a statement is planned, and large later. So plans may use neither
//!   the whole table nor the whole index ([`SETTINGS`]).

use std::time::Duration;

use tokio_postgres::{Client, Error, Statement};

use crate::pipeline::{Request, in_order};

/// The longest name of a record, in bytes. An index entry of PostgreSQL has room for about 2,700 bytes.
pub(crate) const LONGEST_NAME: usize = 2100;
/// The longest message (word) of a wake-up, in bytes. Two characters of a notification show one byte, and a
/// notification has less than 8,000.
pub(crate) const LONGEST_WORD: usize = 2200;

/// The first two columns of all answers: the server's clock in microseconds since 1970, and the text of [`proof`].
macro_rules! head {
    () => {
        "(extract(epoch from clock_timestamp())*1000000)::bigint,concat_ws(' ',pg_relation_filenode('quorate.record'),\
         (SELECT id FROM quorate.run WHERE one=1),current_setting('synchronous_commit'),current_setting('quorate.mark',true))"
    };
}

/// The second column of an answer if the session that [`set_mark`] has marked executes the statement: the number of the
/// file of the records, the id of the run, `synchronous_commit`, and the mark.
pub(crate) fn proof(filenode: i64, run: &str, mark: &str) -> String {
    format!("{filenode} {run} on {mark}")
}

/// The statement that marks a session with a random text.
pub(crate) fn set_mark(mark: &str) -> String {
    format!("SET quorate.mark='{mark}'")
}

/// The rows that a statement wants to change or to remove. `held` locks them in the order of their names.
macro_rules! held {
    ($skip:literal) => {
        concat!(
            "held AS MATERIALIZED (SELECT r.name FROM want w JOIN quorate.record r ON r.name=w.name \
             AND r.version=w.version AND r.state IS NOT NULL ORDER BY r.name FOR UPDATE OF r",
            $skip,
            ")"
        )
    };
}

/// The conditions under which a record of a commit of several records has the expected version. Version 0 means that
/// the record does not exist: its row then has the state NULL.
macro_rules! fits {
    () => {
        "CASE WHEN w.version=0 THEN r.state IS NULL ELSE r.version=w.version AND r.state IS NOT NULL END"
    };
}

/// Changes each of several records that has its version. `skip` decides about records whose rows are locked.
macro_rules! change_many {
    ($skip:literal) => {
        concat!(
            "WITH want AS MATERIALIZED (SELECT * FROM unnest($1::bytea[],$2::bigint[],$3::bytea[]) \
             w(name,version,state)),",
            held!($skip),
            ",done AS (UPDATE quorate.record r SET version=r.version+1,\
             state=w.state FROM held h JOIN want w ON w.name=h.name WHERE r.name=h.name RETURNING r.name) \
             SELECT ",
            head!(),
            ",d.names FROM (SELECT array(SELECT name FROM done) AS names OFFSET 0) d"
        )
    };
}

/// Creates each of several records that does not exist.
const CREATE: &str = concat!(
    "WITH done AS (INSERT INTO quorate.record AS r (name,version,state) \
         SELECT * FROM unnest($1::bytea[],$2::bigint[],$3::bytea[]) w(name,version,state) ORDER BY name \
         ON CONFLICT (name) DO UPDATE SET version=EXCLUDED.version,state=EXCLUDED.state \
         WHERE r.state IS NULL RETURNING r.name) \
         SELECT ",
    head!(),
    ",d.names FROM (SELECT array(SELECT name FROM done) AS names OFFSET 0) d"
);

/// Changes several records if all of them have their versions.
const JOINT: &str = concat!(
    "WITH want AS MATERIALIZED (SELECT * FROM unnest($1::bytea[],$2::bigint[],$3::bigint[],$4::bytea[]) \
         w(name,version,next,state)),held AS MATERIALIZED (SELECT r.name FROM want w JOIN quorate.record r \
         ON r.name=w.name AND ",
    fits!(),
    " ORDER BY r.name FOR UPDATE OF r),\
         fit AS MATERIALIZED (SELECT count(*)=cardinality($1) AS ok FROM held),\
         done AS (UPDATE quorate.record r SET version=w.next,state=w.state FROM fit,want w \
         WHERE fit.ok AND w.state IS NOT NULL AND r.name=w.name AND ",
    fits!(),
    " RETURNING 1) \
         SELECT ",
    head!(),
    ",fit.ok,(SELECT count(*) FROM done) FROM fit"
);

/// A prepared statement of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Reads the records with these names.
    Load,
    /// Reads the version of a record.
    Check,
    /// Changes a record that has this version.
    Change,
    /// Changes each of several records that has its version, independently of the others.
    ChangeMany,
    /// Creates each of these records that does not exist.
    Create,
    /// Inserts rows for records that do not exist, with the state NULL. So the next statement only locks existing rows.
    /// Fails if the table has lost its primary key.
    Place,
    /// Changes several records if all of them have their versions.
    Joint,
    /// Reads a page of records in the order of their names.
    Page,
    /// Removes each of these records that has its version, and whose row nobody else has locked.
    Remove,
    /// Sends wake-ups.
    Wake,
    /// Does the same as `ChangeMany`, but skips records whose rows are locked.
    ChangeFree,
    /// Removes rows with the state NULL, which no commit is using, from a part of the names.
    Sweep,
}

/// The number of statements.
const KINDS: usize = 12;
/// The statements that nearly every session needs. They are prepared together when the session begins.
const COMMON: [Kind; 4] = [Kind::Load, Kind::Change, Kind::Create, Kind::Wake];

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Self::Load => concat!(
                "SELECT ",
                head!(),
                ",r.name,r.version,r.state FROM (SELECT 1) one LEFT JOIN (SELECT name,version,state \
                 FROM quorate.record WHERE name=ANY($1::bytea[]) AND state IS NOT NULL) r ON true"
            ),
            Self::Check => concat!(
                "SELECT ",
                head!(),
                ",(SELECT version FROM quorate.record WHERE name=$1 AND state IS NOT NULL)"
            ),
            Self::Change => concat!(
                "WITH done AS (UPDATE quorate.record SET version=version+1,state=$3 \
                 WHERE name=$1 AND version=$2 AND state IS NOT NULL RETURNING version) \
                 SELECT ",
                head!(),
                ",d.version FROM (SELECT (SELECT version FROM done) AS version OFFSET 0) d"
            ),
            Self::ChangeMany => change_many!(""),
            Self::ChangeFree => change_many!(" SKIP LOCKED"),
            Self::Create => CREATE,
            Self::Place => {
                "INSERT INTO quorate.record (name,version) \
                 SELECT * FROM unnest($1::bytea[],$2::bigint[]) w(name,version) ORDER BY name \
                 ON CONFLICT (name) DO NOTHING"
            }
            Self::Joint => JOINT,
            Self::Page => concat!(
                "SELECT ",
                head!(),
                ",r.name,r.version,r.state FROM (SELECT 1) one LEFT JOIN (SELECT name,version,state \
                 FROM quorate.record WHERE name>=$1 AND state IS NOT NULL ORDER BY name LIMIT $2 OFFSET $3) r ON true \
                 ORDER BY r.name"
            ),
            Self::Remove => concat!(
                "WITH want AS MATERIALIZED (SELECT * FROM unnest($1::bytea[],$2::bigint[]) w(name,version)),",
                // The next removal may find the row free. If this one waited, it would fail, and end the session.
                held!(" SKIP LOCKED"),
                " DELETE FROM quorate.record r USING held h WHERE r.name=h.name"
            ),
            // A commit of several records that loses its row has no effect, and its client repeats it.
            Self::Sweep => {
                "DELETE FROM quorate.record WHERE ctid=ANY(ARRAY(SELECT ctid FROM quorate.record WHERE name>=$1 \
                 AND ($2::bytea IS NULL OR name<=$2) AND state IS NULL ORDER BY name LIMIT 64 FOR UPDATE SKIP LOCKED))"
            }
            // A notification in the transaction of the change would hold the queue's lock while the change waits for
            // the disk: 1,993 instead of 5,313 changes/s. This transaction of its own does not wait for the disk.
            // The queue's lock is one for the whole server. Another client's notification may hold it for as long as its
            // commit takes, and the next request of this session must not wait for this time.
            Self::Wake => {
                "SELECT set_config('synchronous_commit','off',true),set_config('lock_timeout','30',true),\
                 pg_notify(w.channel,w.word) FROM unnest($1::text[],$2::text[]) w(channel,word)"
            }
        }
    }
}

/// The prepared statements of one session.
#[derive(Default)]
pub(crate) struct Statements([Option<Statement>; KINDS]);

impl Statements {
    /// Prepares the statements that nearly every session needs.
    pub(crate) async fn prepare_common(client: &Client) -> Result<Self, Error> {
        let prepare = |kind: &Kind| -> Request<'_, _> { Box::pin(client.prepare(kind.text())) };
        let prepared = in_order(COMMON.iter().map(prepare).collect()).await;
        let mut statements = Self::default();
        for (kind, statement) in COMMON.iter().zip(prepared) {
            statements.0[*kind as usize] = Some(statement?);
        }
        Ok(statements)
    }

    /// The statement, if it was prepared.
    pub(crate) fn known(&self, kind: Kind) -> Option<Statement> {
        self.0[kind as usize].clone()
    }

    pub(crate) fn add(&mut self, kind: Kind, statement: Statement) {
        self.0[kind as usize] = Some(statement);
    }

    /// Prepares a statement.
    pub(crate) async fn prepare(client: &Client, kind: Kind) -> Result<Statement, Error> {
        client.prepare(kind.text()).await
    }
}

/// The settings of a session, which override those of the server, the database and the user. `limit` is the time limit
/// of each statement.
///
/// `synchronous_commit=on` makes the commits of this session durable, whatever the default of the server is. Each user
/// may set it. A canceled wait for a standby shows itself only by a warning, so warnings are not suppressed.
///
/// `lock_timeout` is a quarter of the limit: a batch with one locked row must end in time, so that the other commits of
/// the batch get their answers. `default_transaction_read_only` is not set: an administrator may have turned it on to stop all writes.
pub(crate) fn settings(limit: Duration) -> String {
    let limit = limit.as_millis();
    let locks = (limit / 4).max(1);
    format!(
        "SET synchronous_commit=on;SET default_transaction_isolation='read committed';\
         SET default_transaction_deferrable=off;SET lock_timeout={locks};SET statement_timeout={limit};\
         SET idle_in_transaction_session_timeout=0;SET idle_session_timeout=0;SET search_path=pg_catalog;\
         SET client_min_messages=warning;SET plan_cache_mode=force_generic_plan;SET jit=off;SET enable_seqscan=off;\
         SET enable_hashjoin=off;SET enable_mergejoin=off"
    )
}

/// Settings that end the session of a client that has vanished. Not every operating system supports them.
///
/// Without the first one, a statement that waits for a row is still executed after its client has closed the
/// connection.
pub(crate) const VANISHED: [&str; 2] = [
    "SET client_connection_check_interval=1000",
    "SET tcp_keepalives_idle=10;SET tcp_keepalives_interval=5;SET tcp_user_timeout=20000",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_statement_has_its_own_place_and_names_the_schema() {
        let all = [
            Kind::Load,
            Kind::Check,
            Kind::Change,
            Kind::ChangeMany,
            Kind::Create,
            Kind::Place,
            Kind::Joint,
            Kind::Page,
            Kind::Remove,
            Kind::Wake,
            Kind::ChangeFree,
            Kind::Sweep,
        ];
        for (number, kind) in all.into_iter().enumerate() {
            assert_eq!(kind as usize, number);
            assert!(number < KINDS);
            assert!(
                kind == Kind::Wake || kind.text().contains("quorate.record"),
                "{kind:?}"
            );
            assert!(!kind.text().contains("now()"), "{kind:?}");
        }
    }
}
