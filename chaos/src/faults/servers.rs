//! What commands can do to a master: forget, refuse, be busy.

use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure};
use quorate_testbed::{Connection, Reply, Server, within};

use super::processes::ensure_ok;
use super::{Heal, Injection, Kind, Landed, all};
use crate::world::{PASSWORD, World};

const PATIENCE: Duration = Duration::from_secs(5);
/// What the password is changed to.
const CHANGED: &str = "changed";

pub(super) fn inject(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let mut seen = Vec::new();
    let mut heals: Vec<Heal> = Vec::new();
    for &index in &fault.masters {
        let landed = one(fault.kind, index, world)?;
        seen.push(format!("m{}: {}", index + 1, landed.seen));
        heals.push(landed.heal);
    }
    Ok(Landed::new(seen.join("; "), all(heals)))
}

fn one(kind: Kind, index: usize, world: &World) -> anyhow::Result<Landed> {
    let server = &world.masters[index];
    // Opened before the fault: it may be the only way in afterwards.
    let mut admin = server.connect(PATIENCE)?;
    match kind {
        Kind::Readonly => {
            ok(&mut admin, &["REPLICAOF", "127.0.0.1", "1"])?;
            let seen = refused(server, "READONLY")?;
            Ok(healed_by(
                index,
                seen,
                admin,
                &[&["REPLICAOF", "NO", "ONE"]],
            ))
        }
        Kind::Oom => {
            ok(&mut admin, &["CONFIG", "SET", "maxmemory", "1"])?;
            let seen = refused(server, "OOM")?;
            Ok(healed_by(
                index,
                seen,
                admin,
                &[&["CONFIG", "SET", "maxmemory", "0"]],
            ))
        }
        Kind::Busy => busy(server, index, admin),
        Kind::Misconf => misconf(server, admin),
        Kind::Flushall => {
            ok(&mut admin, &["SET", "chaos:marker", "1", "PX", "60000"])?;
            ok(&mut admin, &["FLUSHALL"])?;
            let gone = admin.command(&["EXISTS", "chaos:marker"])?.int() == Some(0);
            ensure!(gone, "FLUSHALL flushed nothing");
            Ok(Landed::momentary("all keys gone"))
        }
        Kind::ScriptFlush => {
            let loaded = admin.command(&["SCRIPT", "LOAD", "return 42"])?;
            let sha = loaded.text().unwrap_or_default().into_owned();
            ok(&mut admin, &["SCRIPT", "FLUSH"])?;
            let gone = admin.command(&["SCRIPT", "EXISTS", &sha])?;
            ensure!(gone == Reply::Array(vec![Reply::Int(0)]), "{gone:?}");
            Ok(Landed::momentary("all scripts gone"))
        }
        Kind::ClientKill => {
            let mut killed = 0;
            // Clients may be about to come back from an earlier fault.
            within(PATIENCE, || {
                killed = kill_clients(&mut admin).unwrap_or(0);
                killed > 0
            });
            ensure!(killed > 0, "CLIENT KILL killed nobody");
            Ok(Landed::momentary(format!("{killed} connections killed")))
        }
        Kind::Maxclients => {
            ok(&mut admin, &["CONFIG", "SET", "maxclients", "1"])?;
            kill_clients(&mut admin)?;
            let said = stranger(server);
            ensure!(said.contains("max number of clients"), "{said}");
            Ok(healed_by(
                index,
                said,
                admin,
                &[&["CONFIG", "SET", "maxclients", "1000"]],
            ))
        }
        Kind::Password => {
            ok(&mut admin, &["CONFIG", "SET", "requirepass", CHANGED])?;
            kill_clients(&mut admin)?;
            let mut fresh = Connection::tcp(server.addr(), PATIENCE)?;
            let said = fresh.command(&["AUTH", PASSWORD])?;
            ensure!(
                matches!(&said, Reply::Error(why) if why.starts_with("WRONGPASS")),
                "{said:?}"
            );
            Ok(healed_by(
                index,
                "WRONGPASS".into(),
                admin,
                &[&["CONFIG", "SET", "requirepass", PASSWORD]],
            ))
        }
        other => bail!("{other} is not done by a command"),
    }
}

/// Heals by commands over the connection that was there before, or, if that has broken, a new one.
fn healed_by(index: usize, seen: String, mut admin: Connection, commands: &[&[&str]]) -> Landed {
    let commands: Vec<Vec<String>> = commands
        .iter()
        .map(|words| words.iter().map(|word| (*word).to_owned()).collect())
        .collect();
    Landed::new(seen, move |world| {
        let mut outcome = Ok(());
        within(PATIENCE, || {
            outcome = commands.iter().try_for_each(|words| {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                ok(&mut admin, &words)
            });
            if outcome.is_err()
                && let Ok(mut fresh) =
                    Connection::unix(&world.masters[index].unix_socket(), PATIENCE)
            {
                // One of them is right, or none is needed.
                let _ = fresh.command(&["AUTH", CHANGED]);
                let _ = fresh.command(&["AUTH", PASSWORD]);
                admin = fresh;
            }
            outcome.is_ok()
        });
        outcome
    })
}

/// A script without an end, until somebody kills it.
fn busy(server: &Server, index: usize, mut admin: Connection) -> anyhow::Result<Landed> {
    // Its old name, which newer servers know as well.
    ok(&mut admin, &["CONFIG", "SET", "lua-time-limit", "5"])?;
    admin.send(&["EVAL", "while true do end", "0"])?;
    let said = |reply: &Reply| matches!(reply, Reply::Error(why) if why.starts_with("BUSY"));
    let landed = within(PATIENCE, || {
        server.command(&["PING"]).is_ok_and(|reply| said(&reply))
    });
    ensure!(landed, "nobody was told BUSY");
    Ok(Landed::new("BUSY", move |world| {
        let server = &world.masters[index];
        ensure_ok(server, &["SCRIPT", "KILL"])?;
        let idle = within(PATIENCE, || {
            server.command(&["PING"]).is_ok_and(|reply| !said(&reply))
        });
        ensure!(idle, "still busy");
        drop(admin);
        Ok(())
    }))
}

/// The snapshot cannot be put into place, because a directory stands there.
fn misconf(server: &Server, mut admin: Connection) -> anyhow::Result<Landed> {
    let in_the_way = server.dir().join("data").join("dump.rdb");
    let _ = std::fs::remove_file(&in_the_way);
    std::fs::create_dir_all(in_the_way.join("x"))?;
    ok(&mut admin, &["CONFIG", "SET", "save", "3600 1"])?;
    let _ = admin.command(&["BGSAVE"])?;
    let landed = within(PATIENCE, || refused(server, "MISCONF").is_ok());
    let heal = move |mut admin: Connection| -> anyhow::Result<()> {
        std::fs::remove_dir_all(&in_the_way)?;
        let saved = within(PATIENCE, || {
            admin.command(&["SAVE"]).is_ok_and(|reply| reply.is_ok())
        });
        ok(&mut admin, &["CONFIG", "SET", "save", ""])?;
        ensure!(saved, "it still cannot save");
        Ok(())
    };
    if !landed {
        heal(admin)?;
        bail!("nobody was told MISCONF");
    }
    Ok(Landed::new("MISCONF", move |_| heal(admin)))
}

fn ok(admin: &mut Connection, command: &[&str]) -> anyhow::Result<()> {
    let reply = admin.command(command)?;
    ensure!(reply.is_ok(), "{}: {reply:?}", command.join(" "));
    Ok(())
}

/// The refusal of a write, if it begins with `code`.
fn refused(server: &Server, code: &str) -> anyhow::Result<String> {
    match server.command(&["SET", "chaos:probe", "1", "PX", "1000"])? {
        Reply::Error(said) if said.starts_with(code) => Ok(code.to_owned()),
        other => bail!("a write was answered {other:?} instead of {code}"),
    }
}

/// Connections that have subscribed to anything are of another type than the rest.
fn kill_clients(admin: &mut Connection) -> anyhow::Result<i64> {
    let mut killed = 0;
    for kind in ["normal", "pubsub"] {
        let reply = admin.command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"])?;
        killed += reply.int().unwrap_or(0);
    }
    Ok(killed)
}

/// What a new connection is told.
fn stranger(server: &Server) -> String {
    let mut last = String::new();
    for _ in 0..20 {
        match Connection::tcp(server.addr(), PATIENCE).and_then(|mut fresh| fresh.receive_or_ping())
        {
            Ok(Reply::Error(said)) => return said,
            other => last = format!("{other:?}"),
        }
        thread::sleep(Duration::from_millis(10));
    }
    last
}

/// A server that is full says so unasked and hangs up.
trait Unasked {
    fn receive_or_ping(&mut self) -> std::io::Result<Reply>;
}

impl Unasked for Connection {
    fn receive_or_ping(&mut self) -> std::io::Result<Reply> {
        let _ = self.send(&["PING"]);
        self.receive()
    }
}
