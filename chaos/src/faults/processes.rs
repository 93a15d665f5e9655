//! Signals to masters, and restarts from whatever their disk holds.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use quorate_testbed::{Reply, Server, within};

use super::{Heal, Injection, Kind, Landed, all};
use crate::world::World;

/// Written just before a kill, to see afterwards what the restart has kept.
const MARKER: &str = "chaos:marker";

pub(super) fn inject(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let mut seen = Vec::new();
    let mut heals: Vec<Heal> = Vec::new();
    if matches!(fault.kind, Kind::RestartMajority | Kind::Amnesia) {
        // All at once: dead together and back together, before a holder can look.
        for &index in &fault.masters {
            world.masters[index].kill()?;
        }
        thread::scope(|scope| {
            let restarts: Vec<_> = fault
                .masters
                .iter()
                .map(|&index| {
                    let server = &world.masters[index];
                    scope.spawn(move || server.restart_empty())
                })
                .collect();
            restarts.into_iter().try_for_each(|restart| {
                restart
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })?;
        for &index in &fault.masters {
            seen.push(format!("m{} is back and empty", index + 1));
        }
        return Ok(Landed::momentary(seen.join("; ")));
    }
    for &index in &fault.masters {
        let landed = one(fault.kind, index, world)?;
        seen.push(landed.seen);
        heals.push(landed.heal);
    }
    Ok(Landed::new(seen.join("; "), all(heals)))
}

fn one(kind: Kind, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let server = &world.masters[index];
    let name = format!("m{}", index + 1);
    match kind {
        Kind::Stop => {
            server.stop()?;
            Ok(Landed::new(format!("{name} is in state T"), move |world| {
                Ok(world.masters[index].cont()?)
            }))
        }
        Kind::Kill => {
            let old = run_id(server)?;
            server.kill()?;
            Ok(Landed::new(
                format!("{name} is dead and its port refuses"),
                move |world| {
                    let server = &world.masters[index];
                    server.restart_empty()?;
                    ensure!(run_id(server)? != old, "the same life as before");
                    Ok(())
                },
            ))
        }
        Kind::RestartAofAlways => {
            mark(server)?;
            server.kill()?;
            Ok(back_with_marker(name, index, true))
        }
        Kind::RestartAofEverysec => {
            // SIGKILL loses nothing that was handed to the kernel. A power cut does: so what was
            // appended in the last moments is cut off.
            let file = append_file(server)?;
            let kept = file.metadata()?.len();
            thread::sleep(Duration::from_millis(300));
            mark(server)?;
            server.kill()?;
            file.set_len(kept)?;
            Ok(back_with_marker(name, index, false))
        }
        Kind::RestartRdb => {
            ensure_ok(server, &["CONFIG", "SET", "save", ""])?;
            save(server)?;
            thread::sleep(Duration::from_millis(300));
            mark(server)?;
            server.kill()?;
            Ok(back_with_marker(name, index, false))
        }
        Kind::Loading => loading(name, index, world),
        other => bail!("{other} is not done by signals"),
    }
}

/// The restart, and whether what was written last must still be there.
fn back_with_marker(name: String, index: usize, kept: bool) -> Landed {
    Landed::new(
        format!("{name} is dead and its port refuses"),
        move |world| {
            let server = &world.masters[index];
            server.restart()?;
            let found = server.command(&["EXISTS", MARKER])?.int() == Some(1);
            ensure!(
                found == kept,
                "{name} came back {} its last write",
                if found { "with" } else { "without" }
            );
            Ok(())
        },
    )
}

/// A restart that takes its time over the data set.
fn loading(name: String, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    /// Each loads in about a third of a millisecond then.
    const KEYS: u32 = 900;
    let server = world.masters[index].clone();
    let fill = format!(
        "for i = 1, {KEYS} do redis.call('SET', 'chaos:bulk:' .. i, string.rep('x', 64), 'PX', 60000) end"
    );
    server.command(&["EVAL", &fill, "0"])?;
    ensure_ok(&server, &["CONFIG", "SET", "save", ""])?;
    save(&server)?;
    // The delay is part of every life of these servers, see `World`; without keys it is not felt.
    let restarting = {
        let server = server.clone();
        thread::spawn(move || server.restart())
    };
    let loads = || matches!(server.command(&["PING"]), Ok(Reply::Error(said)) if said.starts_with("LOADING"));
    let landed = within(Duration::from_secs(5), loads);
    if !landed {
        let _ = restarting.join();
        bail!("{name} was never seen loading");
    }
    Ok(Landed::new(format!("{name} answers -LOADING"), move |_| {
        match restarting.join() {
            Ok(up) => up?,
            Err(_) => bail!("the restart panicked"),
        }
        let drop = format!("for i = 1, {KEYS} do redis.call('DEL', 'chaos:bulk:' .. i) end");
        server.command(&["EVAL", &drop, "0"])?;
        Ok(())
    }))
}

fn mark(server: &Server) -> anyhow::Result<()> {
    ensure_ok(server, &["SET", MARKER, "1", "PX", "60000"])
}

/// SAVE, also past a save in the background that has just begun by itself.
fn save(server: &Server) -> anyhow::Result<()> {
    let saved = within(Duration::from_secs(2), || {
        server.command(&["SAVE"]).is_ok_and(|reply| reply.is_ok())
    });
    ensure!(saved, "SAVE was refused");
    Ok(())
}

pub(super) fn ensure_ok(server: &Server, command: &[&str]) -> anyhow::Result<()> {
    let reply = server.command(command).with_context(|| command.join(" "))?;
    ensure!(reply.is_ok(), "{}: {reply:?}", command.join(" "));
    Ok(())
}

/// Which life of the server this is.
fn run_id(server: &Server) -> anyhow::Result<String> {
    let info = server.command(&["INFO", "server"])?;
    let text = info.text().unwrap_or_default().into_owned();
    text.lines()
        .find_map(|line| line.strip_prefix("run_id:"))
        .map(str::to_owned)
        .context("no run_id in INFO")
}

/// The file that is being appended to.
fn append_file(server: &Server) -> anyhow::Result<std::fs::File> {
    let mut newest: Option<PathBuf> = None;
    // Since Redis 7 a directory of files, before that one file.
    let data = server.dir().join("data");
    for dir in [data.join("appendonlydir"), data] {
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
                newest = newest.max(Some(path));
            }
        }
    }
    let path = newest.context("no append-only file")?;
    Ok(OpenOptions::new().write(true).open(path)?)
}
