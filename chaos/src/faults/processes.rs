//! Faults of server processes: signals to masters, and restarts with or without the data on their disks.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use quorate_testbed::{Persistence, Reply, Server, within};

use super::kind::{ExclusionBreach, Injection, Lasts, Reach, RequiredPersistence, Row};
use super::landed::Landed;
use crate::node::MasterGroup;
use crate::world::{Needs, World, run_id};

/// A key that is written just before a kill. If the restarted server has this key, the server has kept its data.
const MARKER: &str = "chaos:marker";
/// The observed effect of a kill. The testbed has verified that the server is dead.
const DEAD_EFFECT: &str = "the server is dead, and its port refuses connections";

pub(super) const ROWS: &[Row] = &[
    Row::each("kill", "SIGKILL to a master, which restarts with an empty memory", kill)
        .restarts()
        .disk(RequiredPersistence::Keeps(Persistence::None))
        .breaks(ExclusionBreach::Unguarded),
    Row::each(
        "restart-aof-always",
        "SIGKILL to a master, which restarts from a complete append-only file",
        restart_from_complete_file,
    )
    .restarts()
    .disk(RequiredPersistence::Keeps(Persistence::AofAlways)),
    Row::each(
        "restart-aof-everysec",
        "SIGKILL to a master, which restarts from an append-only file without its last writes, as after a power cut \
         with `appendfsync everysec`",
        restart_without_the_end,
    )
    .restarts()
    .disk(RequiredPersistence::Keeps(Persistence::AofEverySec))
    .breaks(ExclusionBreach::Unguarded),
    Row::each(
        "restart-rdb",
        "SIGKILL to a master, which restarts from an old snapshot",
        restart_from_snapshot,
    )
    .restarts()
    .disk(RequiredPersistence::Keeps(Persistence::Rdb))
    .breaks(ExclusionBreach::Unguarded),
    Row::all(
        "restart-majority",
        "SIGKILL to a majority of masters, which restart immediately; Redis masters restart without data, and the \
         restart guard must prevent a second holder",
        restart_together,
    )
    .on(MasterGroup::All)
    .reach(Reach::Majority)
    .restarts()
    .lasts(Lasts::Moment)
    .breaks(ExclusionBreach::Unguarded),
    Row::all(
        "amnesia",
        "SIGKILL to a majority of masters, which restart without their locks; the restart guard is off",
        restart_together,
    )
    .on(MasterGroup::Forgetful)
    .reach(Reach::Majority)
    .restarts()
    .lasts(Lasts::Moment)
    .breaks(ExclusionBreach::MustUnguarded),
    Row::each("stop", "SIGSTOP to a master, and SIGCONT later", stop).on(MasterGroup::All),
    Row::each(
        "loading",
        "a master takes long to load its data set: `-LOADING`",
        load_slowly,
    )
    .restarts()
    .disk(RequiredPersistence::Keeps(Persistence::Rdb))
    .needs(Needs::SlowLoading),
];

/// Kills all affected masters first, and then restarts all of them at the same time. Otherwise a holder could notice
/// the first restart and stop working, and there would never be two holders.
fn restart_together(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    for &index in &fault.masters {
        world.masters[index].kill()?;
    }
    thread::scope(|scope| {
        let restarts: Vec<_> = fault
            .masters
            .iter()
            .map(|&index| {
                let master = &world.masters[index];
                scope.spawn(move || master.restart_after_crash().map_err(anyhow::Error::from))
            })
            .collect();
        restarts.into_iter().try_for_each(|restart| {
            restart
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok(Landed::momentary("killed, and back"))
}

fn stop(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    world.masters[index].stop()?;
    Ok(Landed::new("in state T", move |world| {
        Ok(world.masters[index].cont()?)
    }))
}

fn kill(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let old_run_id = run_id(world.redis(index)?)?;
    world.masters[index].kill()?;
    Ok(Landed::new(DEAD_EFFECT, move |world| {
        let server = world.redis(index)?;
        server.restart_empty()?;
        ensure!(
            run_id(server)? != old_run_id,
            "the server must have a new run_id after the restart"
        );
        Ok(())
    }))
}

fn restart_from_complete_file(
    _: &Injection,
    index: usize,
    world: &mut World,
) -> anyhow::Result<Landed> {
    let server = world.redis(index)?;
    write_marker(server)?;
    server.kill()?;
    Ok(restart_checking_marker(index, true))
}

/// Simulates a power cut: kills the server, and cuts off the end of its append-only file.
fn restart_without_the_end(
    _: &Injection,
    index: usize,
    world: &mut World,
) -> anyhow::Result<Landed> {
    let server = world.redis(index)?;
    let file = append_file(server)?;
    let synced_length = file.metadata()?.len();
    thread::sleep(Duration::from_millis(300));
    write_marker(server)?;
    server.kill()?;
    file.set_len(synced_length)?;
    Ok(restart_checking_marker(index, false))
}

fn restart_from_snapshot(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let server = world.redis(index)?;
    ensure_ok(server, &["CONFIG", "SET", "save", ""])?;
    save(server)?;
    thread::sleep(Duration::from_millis(300));
    write_marker(server)?;
    server.kill()?;
    Ok(restart_checking_marker(index, false))
}

/// Creates the fault "killed server", which a restart heals. The key `MARKER` was written just before the kill. After
/// the restart, the server must still have this key if `must_exist` is true, and must have lost it if `must_exist` is
/// false.
fn restart_checking_marker(index: usize, must_exist: bool) -> Landed {
    Landed::new(DEAD_EFFECT, move |world| {
        let server = world.redis(index)?;
        server.restart()?;
        let exists = server.command(&["EXISTS", MARKER])?.int() == Some(1);
        ensure!(
            exists == must_exist,
            "the server restarted {} its last write",
            if exists { "with" } else { "without" }
        );
        Ok(())
    })
}

/// Restarts a server that has so much data that loading takes a third of a second. While it loads, the server refuses
/// requests.
fn load_slowly(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    /// The number of keys to load. Each key takes about a third of a millisecond, so all take 0.3 s.
    const KEYS: u32 = 900;
    let server = world.redis(index)?;
    let fill_script = format!(
        "for i = 1, {KEYS} do redis.call('SET', 'chaos:bulk:' .. i, string.rep('x', 64), 'PX', 60000) end"
    );
    server.command(&["EVAL", &fill_script, "0"])?;
    ensure_ok(server, &["CONFIG", "SET", "save", ""])?;
    save(server)?;
    // The server loads its keys slowly, because it was started with a delay per loaded key (see `World`).
    let shared = world.masters[index].shared();
    let restart_thread = thread::spawn(move || shared.restart());
    let is_loading = || matches!(server.command(&["PING"]), Ok(Reply::Error(message)) if message.starts_with("LOADING"));
    let has_effect = within(Duration::from_secs(5), is_loading);
    if !has_effect {
        let _ = restart_thread.join();
        bail!("the master never reported that it is loading");
    }
    Ok(Landed::new("it answers -LOADING", move |world| {
        match restart_thread.join() {
            Ok(result) => result?,
            Err(_) => bail!("the restart panicked"),
        }
        let delete_script =
            format!("for i = 1, {KEYS} do redis.call('DEL', 'chaos:bulk:' .. i) end");
        world
            .redis(index)?
            .command(&["EVAL", &delete_script, "0"])?;
        Ok(())
    }))
}

fn write_marker(server: &Server) -> anyhow::Result<()> {
    ensure_ok(server, &["SET", MARKER, "1", "PX", "60000"])
}

/// Runs SAVE. If the server has just begun a background save by itself, waits for that save first.
fn save(server: &Server) -> anyhow::Result<()> {
    let is_saved = within(Duration::from_secs(2), || {
        server.command(&["SAVE"]).is_ok_and(|reply| reply.is_ok())
    });
    ensure!(is_saved, "SAVE was refused");
    Ok(())
}

fn ensure_ok(server: &Server, command: &[&str]) -> anyhow::Result<()> {
    let reply = server.command(command).with_context(|| command.join(" "))?;
    ensure!(reply.is_ok(), "{}: {reply:?}", command.join(" "));
    Ok(())
}

/// Opens the append-only file that the server currently writes to.
fn append_file(server: &Server) -> anyhow::Result<std::fs::File> {
    let mut newest_path: Option<PathBuf> = None;
    // Redis 7 and later have a folder of append-only files; older versions have a single file.
    let data_dir = server.dir().join("data");
    for dir in [data_dir.join("appendonlydir"), data_dir] {
        let Ok(entries) = std::fs::read_dir(dir) else {
            continue;
        };
        for entry in entries {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if name.ends_with(".incr.aof") || name == "appendonly.aof" {
                newest_path = newest_path.max(Some(path));
            }
        }
    }
    let path = newest_path.context("the server has no append-only file")?;
    Ok(OpenOptions::new().write(true).open(path)?)
}
