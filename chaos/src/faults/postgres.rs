//! Faults of a PostgreSQL master: crashes, mistakes of an administrator, and a full disk.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use quorate_testbed::{Error, Postgres, within};

use super::kind::{ExclusionBreach, Injection, Lasts, Row};
use super::landed::Landed;
use crate::node::MasterGroup;
use crate::node::postgres::{DATABASE, ON_SMALL_DISK, POSTGRES, SMALL_TABLESPACE};
use crate::world::{USER, World};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const ROWS: &[Row] = &[
    Row::each(
        "pg-kill",
        "SIGKILL to the main process of a PostgreSQL server, which restarts with every commit that it has acknowledged",
        kill,
    )
    .on(MasterGroup::SafeOf(POSTGRES))
    .restarts(),
    Row::each(
        "pg-backend-crash",
        "SIGKILL to one backend of a PostgreSQL server, which then ends all sessions and recovers from its log",
        crash_backend,
    )
    .on(MasterGroup::Of(POSTGRES))
    .restarts()
    .lasts(Lasts::Moment),
    Row::each(
        "pg-terminate",
        "`pg_terminate_backend` on a PostgreSQL server, for all sessions of the clients' user",
        terminate,
    )
    .on(MasterGroup::Of(POSTGRES))
    .lasts(Lasts::Moment),
    Row::each(
        "pg-row-held",
        "a session on a PostgreSQL server locks all rows of the lock table: `SELECT .. FOR UPDATE`",
        hold_rows,
    )
    .on(MasterGroup::Of(POSTGRES)),
    Row::each(
        "pg-table-locked",
        "a session on a PostgreSQL server keeps the lock table to itself: `LOCK TABLE`",
        lock_table,
    )
    .on(MasterGroup::Of(POSTGRES)),
    Row::each(
        "pg-rewrite",
        "`VACUUM FULL` of the lock table on a PostgreSQL server, which keeps the records and begins a run",
        rewrite,
    )
    .on(MasterGroup::Of(POSTGRES))
    .restarts()
    .lasts(Lasts::Moment),
    Row::each(
        "pg-truncate",
        "`TRUNCATE` of the lock table on a PostgreSQL server",
        truncate,
    )
    .on(MasterGroup::Of(POSTGRES))
    .restarts()
    .lasts(Lasts::Moment)
    .breaks(ExclusionBreach::UnguardedOnAll),
    Row::each(
        "pg-disk-full",
        "the tablespace of the lock table on a PostgreSQL server has no space left",
        fill_disk,
    )
    .on(MasterGroup::Named(ON_SMALL_DISK)),
];

fn server(world: &World, index: usize) -> anyhow::Result<&Postgres> {
    world.masters[index].concrete::<Postgres>()
}

/// Writes a marker, as a commit that the server acknowledges.
pub(super) fn write_marker(server: &Postgres, marker: u64) -> anyhow::Result<()> {
    server.sql(&format!(
        "INSERT INTO marker VALUES ({marker}) ON CONFLICT DO NOTHING"
    ))?;
    Ok(())
}

/// Whether the server has this marker.
pub(super) fn has_marker(server: &Postgres, marker: u64) -> anyhow::Result<bool> {
    let count = server.sql(&format!("SELECT count(*) FROM marker WHERE n={marker}"))?;
    Ok(count == "1\n")
}

/// Kills the main process. After the restart, the server must still have a commit that it acknowledged just before.
fn kill(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let (server_now, marker) = (server(world, index)?, fault.detail_seed);
    write_marker(server_now, marker)?;
    server_now.kill()?;
    Ok(Landed::new(
        "all processes of the server are dead",
        move |world| {
            let server = server(world, index)?;
            server.start_again()?;
            ensure!(
                has_marker(server, marker)?,
                "the server restarted without its last commit"
            );
            Ok(())
        },
    ))
}

/// Kills a backend: that of a client if one is connected, otherwise one of an administrator. The main process must
/// survive, and must empty the UNLOGGED tables.
fn crash_backend(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    const STARTED: &str = "SELECT pg_postmaster_start_time()";
    let server = server(world, index)?;
    let started_at = server.sql(STARTED)?;
    let marker = fault.detail_seed;
    server.sql(&format!("INSERT INTO unlogged_marker VALUES ({marker})"))?;
    let mut console = server.console_in(DATABASE)?;
    console.say("SELECT 1")?;
    let pid = server.sql(&format!(
        "SELECT pid FROM pg_stat_activity WHERE backend_type='client backend' AND pid<>pg_backend_pid() \
         ORDER BY usename<>'{USER}' LIMIT 1"
    ))?;
    server.kill_backend(pid.trim().parse().context("the server has no backend")?)?;
    let count = format!("SELECT count(*) FROM unlogged_marker WHERE n={marker}");
    let is_empty = || server.sql(&count).is_ok_and(|count| count == "0\n");
    ensure!(
        within(PATIENCE, is_empty),
        "the server must answer again, with empty UNLOGGED tables"
    );
    ensure!(
        server.sql(STARTED)? == started_at,
        "the main process of the server must not restart"
    );
    Ok(Landed::momentary(
        "the UNLOGGED tables are empty, and the main process of the server still runs",
    ))
}

fn terminate(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let server = server(world, index)?;
    let sessions = format!("FROM pg_stat_activity WHERE usename='{USER}'");
    let mut terminated = 0;
    let now = server.sql("SELECT clock_timestamp()")?;
    // Clients may still be reconnecting after an earlier fault, so wait until at least one client is connected.
    within(PATIENCE, || {
        let count = server.sql(&format!(
            "SELECT count(pg_terminate_backend(pid)) {sessions}"
        ));
        terminated = count.map_or(0, |count| count.trim().parse().unwrap_or(0));
        terminated > 0
    });
    ensure!(
        terminated > 0,
        "the clients' user has no session that could be terminated"
    );
    let count = format!(
        "SELECT count(*) {sessions} AND backend_start<'{}'",
        now.trim()
    );
    let is_gone = || server.sql(&count).is_ok_and(|count| count == "0\n");
    ensure!(
        within(PATIENCE, is_gone),
        "the terminated sessions must end"
    );
    Ok(Landed::momentary(format!(
        "{terminated} sessions terminated"
    )))
}

fn hold_rows(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let mut console = server(world, index)?.console_in(DATABASE)?;
    let select_all = "SELECT count(*) FROM (SELECT FROM quorate.record ORDER BY name FOR UPDATE) r";
    let mut row_count = 0;
    // After `TRUNCATE`, there are no rows until a client creates one.
    for _ in 0..100 {
        let answer = console.say(&format!("BEGIN; {select_all}"))?;
        row_count = answer.trim().parse().unwrap_or(0);
        if row_count > 0 {
            break;
        }
        console.say("ROLLBACK")?;
        std::thread::sleep(Duration::from_millis(20));
    }
    let observe = move |world: &World| {
        ensure!(row_count > 0, "the lock table has no row");
        let select_one = "SELECT name FROM quorate.record ORDER BY name LIMIT 1 FOR UPDATE NOWAIT";
        ensure_refused(
            server(world, index)?,
            select_one,
            "could not obtain lock on row",
        )?;
        Ok(format!("{row_count} rows are held"))
    };
    Landed::once_observed(world, observe, move |_| {
        console.say("ROLLBACK")?;
        Ok(())
    })
}

fn lock_table(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let mut console = server(world, index)?.console_in(DATABASE)?;
    console.say("BEGIN; LOCK TABLE quorate.record IN ACCESS EXCLUSIVE MODE")?;
    let observe = move |world: &World| {
        let read = "SET lock_timeout=20; SELECT count(*) FROM quorate.record";
        ensure_refused(server(world, index)?, read, "due to lock timeout")?;
        Ok("the lock table can neither be read nor written".to_owned())
    };
    Landed::once_observed(world, observe, move |_| {
        console.say("ROLLBACK")?;
        Ok(())
    })
}

fn rewrite(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let server = server(world, index)?;
    change_file(server, "VACUUM FULL quorate.record")?;
    Ok(Landed::momentary("the records are in another file"))
}

fn truncate(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let server = server(world, index)?;
    change_file(server, "TRUNCATE quorate.record")?;
    Ok(Landed::momentary("the records are gone"))
}

/// Executes a statement that puts the records into another file.
fn change_file(server: &Postgres, statement: &str) -> anyhow::Result<()> {
    let file = || server.sql_in(DATABASE, "SELECT pg_relation_filenode('quorate.record')");
    let old_file = file()?;
    server.sql_in(DATABASE, statement)?;
    ensure!(
        file()? != old_file,
        "the records must be in another file after {statement}"
    );
    Ok(())
}

/// Fills the tablespace with pages of a table that nobody uses. The server keeps the pages, although the statement fails.
/// Dropping the table frees them.
fn fill_disk(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    const FULL: &str = "No space left on device";
    const ADD_PAGES: &str = "INSERT INTO filler SELECT repeat('x',8000) FROM generate_series(1,";
    // Each row needs a page of its own. Autovacuum would remove the pages of the failed statement. With a logged table,
    // recovery from a later crash would fill the disk again, and fail.
    let create = format!(
        "CREATE UNLOGGED TABLE filler (page text) TABLESPACE {SMALL_TABLESPACE};\
         ALTER TABLE filler ALTER page SET STORAGE PLAIN, SET (autovacuum_enabled=off)"
    );
    server(world, index)?.sql_in(DATABASE, &create)?;
    let observe = move |world: &World| {
        let server = server(world, index)?;
        ensure_refused(server, &format!("{ADD_PAGES}5000)"), FULL)?;
        ensure_refused(server, &format!("{ADD_PAGES}1)"), FULL)?;
        Ok(format!("no page can be added: {FULL}"))
    };
    Landed::once_observed(world, observe, move |world| {
        let server = server(world, index)?;
        server.sql_in(DATABASE, "DROP TABLE filler")?;
        server.sql_in(
            DATABASE,
            &format!("{create};{ADD_PAGES}1);DROP TABLE filler"),
        )?;
        Ok(())
    })
}

/// Executes statements in the database of the locks, which the server must refuse with this text.
fn ensure_refused(server: &Postgres, statements: &str, expected: &str) -> anyhow::Result<()> {
    match server.sql_in(DATABASE, statements) {
        Err(Error::Refused(output)) if output.contains(expected) => Ok(()),
        Err(error) => bail!("{statements}: the error is {error} instead of {expected:?}"),
        Ok(output) => {
            bail!("{statements} must fail with {expected:?}, but was answered {output:?}")
        }
    }
}
