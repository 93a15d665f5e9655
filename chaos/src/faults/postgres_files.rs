//! Faults after which a PostgreSQL master continues with older files: a snapshot or a copy is started, or a standby that
//! lacks the last commits is promoted.

use std::thread;
use std::time::Duration;

use anyhow::ensure;
use quorate_testbed::{Fault, Injected, Postgres, PostgresFiles, within};

use super::kind::{ExclusionBreach, Injection, Lasts, Reach, Row};
use super::landed::Landed;
use super::postgres::{has_marker, write_marker};
use crate::node::MasterGroup;
use crate::node::postgres::ORDINARY;
use crate::world::{Needs, World};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const ROWS: &[Row] = &[
    older_files(
        "pg-snapshot",
        "a PostgreSQL server is killed, and starts from a copy of its files that was made while it ran",
        |fault, world| restore_copies(fault, world, When::Running),
    )
    .lasts(Lasts::Usual),
    older_files(
        "pg-snapshot-majority",
        "a majority of the masters, all PostgreSQL, are killed, and start from copies of their files that were made \
         while they ran",
        |fault, world| restore_copies(fault, world, When::Running),
    )
    .reach(Reach::Majority)
    .lasts(Lasts::Usual),
    older_files(
        "pg-amnesia",
        "as `pg-snapshot-majority`; the restart guard is off",
        |fault, world| restore_copies(fault, world, When::Running),
    )
    .reach(Reach::Majority)
    .lasts(Lasts::Usual)
    .breaks(ExclusionBreach::MustUnguarded),
    older_files(
        "pg-cold-copy",
        "a PostgreSQL server is killed, and starts from a copy of its files that was made after a clean stop",
        |fault, world| restore_copies(fault, world, When::Stopped),
    )
    .lasts(Lasts::BeyondGuard),
    older_files(
        "pg-promotion",
        "a PostgreSQL server is killed, and its address leads to a standby without the last commits, which is promoted",
        promote,
    )
    .needs(Needs::Proxies),
];

const fn older_files(
    name: &'static str,
    description: &'static str,
    inject_function: super::kind::InjectIntoAll,
) -> Row {
    Row::all(name, description, inject_function)
        .on(MasterGroup::Named(ORDINARY))
        .restarts()
        .breaks(ExclusionBreach::UnguardedOnAll)
}

/// When the files of a server are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Running,
    Stopped,
}

fn server(world: &World, index: usize) -> anyhow::Result<&Postgres> {
    world.masters[index].concrete::<Postgres>()
}

/// Two markers of a fault. The first is written before the copy, the second one after it.
fn markers(fault: &Injection) -> (u64, u64) {
    (2 * fault.detail_seed, 2 * fault.detail_seed + 1)
}

/// Copies the files of the servers. At the end of the fault, kills the servers, and starts them with the copies.
fn restore_copies(fault: &Injection, world: &mut World, when: When) -> anyhow::Result<Landed> {
    let (before, after) = markers(fault);
    let mut copies = Vec::new();
    for &index in &fault.masters {
        let server = server(world, index)?;
        let copied = copy(server, before, when);
        if copied.is_err() {
            // The next fault needs a server that runs.
            let _ = server.restart();
        }
        copies.push((index, copied?));
    }
    let effect = format!("the files of {} servers were copied", copies.len());
    Ok(Landed::new(effect, move |world| {
        for (index, _) in &copies {
            write_marker(server(world, *index)?, after)?;
        }
        // Kill all servers first. Otherwise a holder could notice the first restart and stop working.
        for (index, _) in &copies {
            server(world, *index)?.kill()?;
        }
        let masters = &world.masters;
        let start = |(index, files): (usize, PostgresFiles)| {
            start_from(masters[index].concrete::<Postgres>()?, files, before, after)
        };
        thread::scope(|scope| {
            let starts: Vec<_> = copies
                .into_iter()
                .map(|copy| scope.spawn(move || start(copy)))
                .collect();
            starts.into_iter().try_for_each(|start| {
                start
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
    }))
}

/// Copies the files of a server, with the marker `before`.
fn copy(server: &Postgres, before: u64, when: When) -> anyhow::Result<PostgresFiles> {
    write_marker(server, before)?;
    if when == When::Running {
        return Ok(server.copy_files()?);
    }
    server.shut_down()?;
    let files = server.copy_files()?;
    server.start_again()?;
    Ok(files)
}

/// Starts a dead server with the files of a copy. It must have the marker `before`, and must not have the marker
/// `after`.
fn start_from(
    server: &Postgres,
    files: PostgresFiles,
    before: u64,
    after: u64,
) -> anyhow::Result<()> {
    server.restore_files(files)?;
    server.start_again()?;
    ensure!(
        has_marker(server, before)? && !has_marker(server, after)?,
        "the server must have exactly the commits that were made before the copy"
    );
    Ok(())
}

/// Promotes a standby of a master, which lacks the last commits. All clients reach the standby at the address of the
/// master. At the end of the fault, the promoted server is restarted in the place of the master.
fn promote(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let (before, after) = markers(fault);
    let index = fault.masters[0];
    let primary = server(world, index)?;
    write_marker(primary, before)?;
    let standby = primary.start_standby()?;
    cut_off(&standby)?;
    thread::sleep(fault.drawn_time(100, 700));
    write_marker(primary, after)?;
    let old_timeline = timeline(primary)?;
    primary.kill()?;
    let promoted = standby.sql("SELECT pg_promote()");
    let effect = promoted
        .map_err(anyhow::Error::from)
        .and_then(|_| check_promoted(&standby, &old_timeline, before, after));
    let detours = lead_to(world, index, &standby);
    let observe = |_: &World| effect;
    Landed::once_observed(world, observe, move |world| {
        let primary = server(world, index)?;
        primary.take_over(standby)?;
        primary.start_again()?;
        drop(detours);
        reset_paths(world, index);
        Ok(())
    })
}

/// Ends the replication from the primary to this standby.
fn cut_off(standby: &Postgres) -> anyhow::Result<()> {
    standby.sql("ALTER SYSTEM SET primary_conninfo=''")?;
    standby.sql("SELECT pg_reload_conf()")?;
    let is_cut_off = || {
        let count = standby.sql("SELECT count(*) FROM pg_stat_wal_receiver");
        count.is_ok_and(|count| count == "0\n")
    };
    ensure!(
        within(PATIENCE, is_cut_off),
        "the standby must receive nothing from the primary"
    );
    Ok(())
}

/// The timeline of a primary.
fn timeline(server: &Postgres) -> anyhow::Result<String> {
    let timeline = server.sql("SELECT substr(pg_walfile_name(pg_current_wal_lsn()),1,8)")?;
    Ok(timeline.trim().to_owned())
}

fn check_promoted(
    promoted: &Postgres,
    old_timeline: &str,
    before: u64,
    after: u64,
) -> anyhow::Result<String> {
    let new_timeline = timeline(promoted)?;
    ensure!(
        new_timeline.as_str() > old_timeline,
        "the promoted server is on timeline {new_timeline}, and the old primary was on {old_timeline}"
    );
    ensure!(
        has_marker(promoted, before)? && !has_marker(promoted, after)?,
        "the promoted server must lack the last commit of the old primary"
    );
    Ok(format!(
        "promoted to timeline {new_timeline}, without the last commit"
    ))
}

/// Lets the address of the master lead to this server, for all clients.
fn lead_to(world: &World, index: usize, server: &Postgres) -> Vec<Injected> {
    let Some(address) = server.addr() else {
        return Vec::new();
    };
    let paths = world.paths.iter();
    let detours = paths.flat_map(|path| path[index].inject(&Fault::Detour(address)));
    let detours = detours.collect();
    reset_paths(world, index);
    detours
}

fn reset_paths(world: &World, index: usize) {
    for path in &world.paths {
        path[index].reset_all();
    }
}
