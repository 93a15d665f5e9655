//! Faults of a MariaDB master. Some are crashes, others are mistakes of an administrator.

use std::time::Duration;

use anyhow::{bail, ensure};
use quorate_testbed::{Error, MariaDb, within};

use super::kind::{Injection, Lasts, Row};
use super::landed::Landed;
use crate::node::MasterGroup;
use crate::node::mariadb::{DATABASE, MARIADB};
use crate::world::{USER, World};

const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const ROWS: &[Row] = &[
    Row::each(
        "db-kill",
        "SIGKILL to a MariaDB server, which restarts with every commit that it has acknowledged",
        kill,
    )
    .on(MasterGroup::SafeOf(MARIADB))
    .restarts(),
    Row::each(
        "db-row-held",
        "a session on a MariaDB server locks all rows of the lock table: `SELECT .. FOR UPDATE`",
        hold_rows,
    )
    .on(MasterGroup::Of(MARIADB)),
    Row::each(
        "db-tables-locked",
        "a session on a MariaDB server keeps a global read lock: `FLUSH TABLES WITH READ LOCK`",
        lock_tables,
    )
    .on(MasterGroup::Of(MARIADB)),
    Row::each(
        "db-read-only",
        "a MariaDB server accepts no writes: `SET GLOBAL read_only = 1`",
        read_only,
    )
    .on(MasterGroup::Of(MARIADB)),
    Row::each(
        "db-kill-connections",
        "KILL CONNECTION on a MariaDB server, for all connections of the clients' user",
        kill_connections,
    )
    .on(MasterGroup::Of(MARIADB))
    .lasts(Lasts::Moment),
];

/// Kills the MariaDB server. After the restart, the server must still have a commit that it acknowledged just before
/// the kill.
fn kill(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let server = world.masters[index].concrete::<MariaDb>()?;
    let marker = fault.detail_seed;
    server.sql(&format!("REPLACE INTO chaos.marker VALUES ({marker})"))?;
    server.kill()?;
    Ok(Landed::new(
        "the server is dead, and its port refuses connections",
        move |world| {
            let server = world.masters[index].concrete::<MariaDb>()?;
            server.restart()?;
            let count = format!("SELECT COUNT(*) FROM chaos.marker WHERE n = {marker}");
            ensure!(
                server.sql(&count)? == "1\n",
                "the server restarted without its last commit"
            );
            Ok(())
        },
    ))
}

fn hold_rows(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let mut console = world.masters[index].concrete::<MariaDb>()?.console()?;
    let select_all = format!("SELECT COUNT(*) FROM {DATABASE}.quorate_record FOR UPDATE");
    let row_count = console.say(&format!("BEGIN; {select_all}"))?;
    let observe = move |world: &World| {
        let server = world.masters[index].concrete::<MariaDb>()?;
        let select_one =
            format!("SELECT name FROM {DATABASE}.quorate_record LIMIT 1 FOR UPDATE NOWAIT");
        ensure_refused(server, &select_one, "1205")?;
        Ok(format!("{} rows are held", row_count.trim()))
    };
    Landed::once_observed(world, observe, move |_| {
        console.say("ROLLBACK")?;
        Ok(())
    })
}

fn lock_tables(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let mut console = world.masters[index].concrete::<MariaDb>()?.console()?;
    console.say("SET lock_wait_timeout = 5; FLUSH TABLES WITH READ LOCK")?;
    let observe = move |world: &World| {
        let server = world.masters[index].concrete::<MariaDb>()?;
        let write = "SET STATEMENT lock_wait_timeout = 0 FOR DELETE FROM chaos.marker WHERE n = 0";
        ensure_refused(server, write, "1205")?;
        Ok("no table can be written".to_owned())
    };
    Landed::once_observed(world, observe, move |_| {
        console.say("UNLOCK TABLES")?;
        Ok(())
    })
}

fn read_only(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let set_read_only =
        |server: &MariaDb, on: u8| server.sql(&format!("SET GLOBAL read_only = {on}"));
    set_read_only(world.masters[index].concrete::<MariaDb>()?, 1)?;
    let observe = move |world: &World| {
        let server = world.masters[index].concrete::<MariaDb>()?;
        ensure!(
            server.sql("SELECT @@GLOBAL.read_only")? == "1\n",
            "the server is not read-only"
        );
        Ok("read_only".to_owned())
    };
    Landed::once_observed(world, observe, move |world| {
        set_read_only(world.masters[index].concrete::<MariaDb>()?, 0)?;
        Ok(())
    })
}

fn kill_connections(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let server = world.masters[index].concrete::<MariaDb>()?;
    let select_ids = format!("SELECT id FROM information_schema.processlist WHERE user = '{USER}'");
    let mut killed = 0;
    // Clients may still be reconnecting after an earlier fault, so wait until at least one client is connected.
    within(PATIENCE, || {
        killed = server.sql(&select_ids).map_or(0, |ids| ids.lines().count());
        killed > 0
    });
    ensure!(
        killed > 0,
        "the clients' user has no connection that could be killed"
    );
    server.sql(&format!("KILL CONNECTION USER {USER}"))?;
    Ok(Landed::momentary(format!("{killed} connections killed")))
}

fn ensure_refused(server: &MariaDb, statement: &str, code: &str) -> anyhow::Result<()> {
    match server.sql(statement) {
        Err(Error::Refused(output)) if output.contains(code) => Ok(()),
        Err(error) => bail!("{statement}: the error is {error} instead of {code}"),
        Ok(output) => bail!("{statement} must fail with {code}, but was answered {output:?}"),
    }
}
