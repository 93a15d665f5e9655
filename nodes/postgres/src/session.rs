//! A session with a server. The statements of each load and each commit are sent at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quorate::node::Fault;
use quorate::node::store::{Clocked, Commit, Committed, NamedRecord, Record, Session};
use quorate::printable::hex;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use crate::abandoned::{Abandoned, Backend};
use crate::connection::Connection;
use crate::fault::{is_busy, unreadable};
use crate::greet::Met;
use crate::listener;
use crate::pipeline::{Request, in_order};
use crate::run::{FirstSight, raise};
use crate::sql::{Kind, LONGEST_NAME, LONGEST_WORD, Statements};
use crate::steps::{Param, Step, column, steps};

/// A session with one server, in which the client reads and changes the records of locks.
pub struct PostgresSession {
    connection: Connection,
    statements: Statements,
    /// The id of the run of the server in which the session began. The session ends with the run.
    run: String,
    /// The text that the second column of each answer must contain.
    proof: String,
    seen: Arc<FirstSight>,
    draw: StdRng,
    /// Where the last page that was read ends: the number of records up to there, and the smallest name after it.
    /// `None` if no page was read.
    paged: Option<(u64, Vec<u8>)>,
    /// Whether the server has refused to remove records, because the user in the URL lacks the right `DELETE`.
    removal_denied: Arc<AtomicBool>,
    backend: Option<Backend>,
    abandoned: Arc<Abandoned>,
}

impl PostgresSession {
    pub(crate) fn new(
        connection: Connection,
        met: Met,
        seen: Arc<FirstSight>,
        removal_denied: Arc<AtomicBool>,
        abandoned: Arc<Abandoned>,
    ) -> Self {
        Self {
            connection,
            statements: met.statements,
            run: met.run,
            proof: met.proof,
            seen,
            draw: rand::make_rng(),
            paged: None,
            removal_denied,
            backend: met.backend,
            abandoned,
        }
    }

    /// Returns the prepared statement. Prepares it at its first use.
    async fn statement(&mut self, kind: Kind) -> Result<Statement, Fault> {
        if let Some(statement) = self.statements.known(kind) {
            return Ok(statement);
        }
        let Connection { client, driver } = &mut self.connection;
        let statement = driver.run(Statements::prepare(client, kind)).await?;
        self.statements.add(kind, statement.clone());
        Ok(statement)
    }

    /// Executes one statement, and returns its rows.
    async fn query(&mut self, kind: Kind, params: Vec<Param<'_>>) -> Result<Vec<Row>, Fault> {
        let statement = self.statement(kind).await?;
        let Connection { client, driver } = &mut self.connection;
        driver.run(query(client, statement, params)).await
    }

    /// Returns the server's clock in the answer of a statement. Fails in these cases:
    ///
    /// - The records are not in the same file as at the beginning of the session. The table was then emptied, rewritten
    ///   or created again, and has lost records perhaps.
    /// - Another run has begun since. A process has noticed that the server may have forgotten records. Or the address
    ///   now leads to another server, which another session of this process has met.
    /// - The session lacks its settings. Behind a connection pooler, another session may have executed the statement.
    fn clock(&self, rows: &[Row]) -> Result<u64, Fault> {
        let row = rows.first().ok_or_else(unreadable)?;
        let proof = column::<String>(row, 1)?;
        let (mut found, mut expected) = (proof.split(' '), self.proof.split(' '));
        let why = if found.next() != expected.next() {
            "the table of records was emptied, rewritten or created again"
        } else if found.next() != expected.next() || !self.seen.is_current(&self.run) {
            "another run of the server has begun, because it may have forgotten locks"
        } else if proof != self.proof {
            "a connection pooler has passed a statement to another session of the server: use pool_mode=session"
        } else {
            return u64::try_from(column::<i64>(row, 0)?).map_err(|_| unreadable());
        };
        Err(Fault::Disconnected(why.into()))
    }

    /// Executes these statements, and stores the outcomes of their commits. Returns the server's clock, and the statements
    /// that had no effect because somebody else has locked a row.
    async fn execute<'a>(
        &mut self,
        mut steps: Vec<Step<'a>>,
        outcomes: &mut [Option<Committed>],
    ) -> Result<(Option<u64>, Vec<Step<'a>>), Fault> {
        let mut statements = Vec::new();
        for step in &steps {
            statements.push(self.statement(step.kind).await?);
        }
        let Connection { client, driver } = &mut self.connection;
        let requests = steps.iter_mut().zip(statements).map(|(step, statement)| {
            let params = std::mem::take(&mut step.params);
            let request: Request<'_, _> = Box::pin(query(client, statement, params));
            request
        });
        let requests = requests.collect();
        let unless_busy = |answer: Result<Vec<Row>, Error>| match answer {
            Err(error) if !is_busy(&error) => Err(error),
            answer => Ok(answer.ok()),
        };
        let answers = async {
            let answers = in_order(requests).await.into_iter();
            answers.map(unless_busy).collect::<Result<Vec<_>, _>>()
        };
        let answers = driver.run(answers).await?;
        let (mut clock, mut locked) = (None, Vec::new());
        for (step, rows) in steps.into_iter().zip(answers) {
            let Some(rows) = rows else {
                locked.push(step);
                continue;
            };
            if step.kind != Kind::Place {
                clock = clock.max(Some(self.clock(&rows)?));
            }
            step.read(&rows, outcomes)?;
        }
        Ok((clock, locked))
    }

    /// Writes the age of the run into its row if it is due. Does not wait for the answer.
    async fn raise_age(&mut self) {
        let Some(age) = self.seen.due(&self.run) else {
            return;
        };
        let raise = raise(&self.run, age);
        let Connection { client, driver } = &mut self.connection;
        driver.send(client.batch_execute(&raise)).await;
    }

    /// Removes the rows of records that do not exist, from the name `first` to the name `last` (`None`: to the end).
    /// Commits of several records leave such rows behind if they have no effect. Does not wait for the answer.
    async fn sweep(&mut self, first: Vec<u8>, last: Option<Vec<u8>>) -> Result<(), Fault> {
        if self.removal_denied.load(Ordering::Relaxed) {
            return Ok(());
        }
        let statement = self.statement(Kind::Sweep).await?;
        let Connection { client, driver } = &mut self.connection;
        let params: Vec<Param<'_>> = vec![Box::new(first), Box::new(last)];
        driver.send(query(client, statement, params)).await;
        Ok(())
    }

    /// Sends the wake-ups of these commits, and does not wait for the answer: wake-ups are only hints.
    async fn wake(&mut self, commits: &[Commit], committed: &[Committed]) -> Result<(), Fault> {
        let done = commits.iter().zip(committed);
        let done = done.filter(|(_, committed)| matches!(committed, Committed::Done(_)));
        let wakes = done.flat_map(|(commit, _)| &commit.wakes);
        let (channels, words): (Vec<String>, Vec<String>) = wakes
            .map(|wake| (listener::channel(&wake.process), hex(&wake.word)))
            .unzip();
        if channels.is_empty() {
            return Ok(());
        }
        let statement = self.statement(Kind::Wake).await?;
        let Connection { client, driver } = &mut self.connection;
        let params: Vec<Param<'_>> = vec![Box::new(channels), Box::new(words)];
        driver.send(query(client, statement, params)).await;
        Ok(())
    }
}

/// The server may still execute the last request, for as long as no standby confirms it. The next session ends that.
impl Drop for PostgresSession {
    fn drop(&mut self) {
        if let Some(backend) = self.backend
            && self.connection.driver.is_waiting
        {
            self.abandoned.add(backend);
        }
    }
}

async fn query(
    client: &Client,
    statement: Statement,
    params: Vec<Param<'_>>,
) -> Result<Vec<Row>, Error> {
    let params: Vec<&(dyn ToSql + Sync)> = params
        .iter()
        .map(|param| &**param as &(dyn ToSql + Sync))
        .collect();
    client.query(&statement, &params).await
}

/// Whether the record names and wake-up messages of a commit fit into the database.
fn has_room(commit: &Commit) -> bool {
    commit
        .changes
        .iter()
        .all(|change| change.name.len() <= LONGEST_NAME)
        && commit
            .wakes
            .iter()
            .all(|wake| wake.word.len() <= LONGEST_WORD)
}

/// The existing records in the rows of an answer.
fn records(rows: &[Row]) -> Result<Vec<NamedRecord>, Fault> {
    let mut found = Vec::new();
    for row in rows {
        let Some(name) = column::<Option<Vec<u8>>>(row, 2)? else {
            continue;
        };
        let version = u64::try_from(column::<i64>(row, 3)?).map_err(|_| unreadable())?;
        found.push((name, Record::new(version, column(row, 4)?)));
    }
    Ok(found)
}

impl Session for PostgresSession {
    async fn load(&mut self, names: &[Arc<[u8]>]) -> Result<Clocked<Vec<Record>>, Fault> {
        let wanted: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let rows = self.query(Kind::Load, vec![Box::new(wanted)]).await?;
        let clock = Some(self.clock(&rows)?);
        let mut found: HashMap<Vec<u8>, Record> = records(&rows)?.into_iter().collect();
        // `names` can contain a name several times. The last occurrence takes the record; the others need a clone.
        let last = |number: usize| !names[number + 1..].contains(&names[number]);
        let what = names.iter().enumerate().map(|(number, name)| {
            let record = if last(number) {
                found.remove(&name[..])
            } else {
                found.get(&name[..]).cloned()
            };
            record.unwrap_or_default()
        });
        let what = what.collect();
        self.raise_age().await;
        Ok(Clocked { what, clock })
    }

    async fn commit(&mut self, commits: &[Commit]) -> Result<Clocked<Vec<Committed>>, Fault> {
        if !commits.iter().all(has_room) {
            return Err(Fault::Unsupported(
                "the name of a record has more than 2,100 bytes".into(),
            ));
        }
        let draw = &mut self.draw;
        let steps = steps(commits, || draw.random_range(1..1 << 62));
        let mut outcomes: Vec<Option<Committed>> = commits.iter().map(|_| None).collect();
        let (mut clock, locked) = self.execute(steps, &mut outcomes).await?;
        let again: Vec<Step<'_>> = locked.into_iter().flat_map(Step::without_locked).collect();
        if !again.is_empty() {
            clock = clock.max(self.execute(again, &mut outcomes).await?.0);
        }
        // A commit whose row somebody else has locked had no effect. The caller reads the record again.
        let stale = |outcome: Option<Committed>| outcome.unwrap_or(Committed::Stale);
        let what: Vec<Committed> = outcomes.into_iter().map(stale).collect();
        self.wake(commits, &what).await?;
        if clock.is_none() {
            clock = self.load(&[]).await?.clock;
        }
        self.raise_age().await;
        Ok(Clocked { what, clock })
    }

    async fn page(&mut self, from: u64, count: u32) -> Result<Clocked<Vec<NamedRecord>>, Fault> {
        // Continue after the last record of the previous page. Counting records from the first one would take longer
        // with every page.
        let paged = self.paged.take().filter(|(upto, _)| *upto == from);
        let skipped = if paged.is_some() { 0 } else { from };
        let first = paged.map(|(_, first)| first).unwrap_or_default();
        let skipped = i64::try_from(skipped).unwrap_or(i64::MAX);
        let params: Vec<Param<'_>> = vec![
            Box::new(first.clone()),
            Box::new(i64::from(count)),
            Box::new(skipped),
        ];
        let rows = self.query(Kind::Page, params).await?;
        let clock = Some(self.clock(&rows)?);
        let what = records(&rows)?;
        self.paged = what.last().map(|(last, _)| {
            // A zero byte at the end makes the smallest name that is larger.
            let next = [last, &[0][..]].concat();
            (from + what.len() as u64, next)
        });
        if skipped == 0 {
            let is_full = what.len() as u64 >= u64::from(count);
            let last = what.last().filter(|_| is_full);
            self.sweep(first, last.map(|(name, _)| name.clone()))
                .await?;
        }
        Ok(Clocked { what, clock })
    }

    /// Removes the records in one statement, so that the server waits for the disk once.
    ///
    /// If the user lacks the right to remove records, no session of this process tries to remove records again.
    async fn remove(&mut self, records: &[(Arc<[u8]>, u64)]) -> Result<(), Fault> {
        if self.removal_denied.load(Ordering::Relaxed) {
            return Ok(());
        }
        let names: Vec<&[u8]> = records.iter().map(|(name, _)| &**name).collect();
        let version = |version: &u64| i64::try_from(*version).unwrap_or(-1);
        let versions: Vec<i64> = records.iter().map(|(_, found)| version(found)).collect();
        match self
            .query(Kind::Remove, vec![Box::new(names), Box::new(versions)])
            .await
        {
            Ok(_) => Ok(()),
            Err(Fault::Denied(why)) => {
                self.removal_denied.store(true, Ordering::Relaxed);
                let why = format!("cannot remove records that no lock needs any more: {why}");
                Err(Fault::Denied(why.into()))
            }
            Err(fault) => Err(fault),
        }
    }
}
