//! Faults that are caused by commands to a master: it loses data, refuses requests, or is busy.

use std::time::Duration;

use anyhow::{bail, ensure};
use quorate_testbed::{Connection, Persistence, Reply, Server, within};

use super::kind::{Breaks, Disk, Injection, Lasts, Row};
use super::landed::Landed;
use crate::world::{ALL_RIGHTS, Needs, PASSWORD, USER, World};

const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const ROWS: &[Row] = &[
    Row::each(
        "readonly",
        "a master has become a replica: `-READONLY`",
        |_, index, world| {
            let change = Change::of(
                &["REPLICAOF", "127.0.0.1", "1"],
                &["REPLICAOF", "NO", "ONE"],
            );
            change.make(index, world, |server| refused(server, "READONLY"))
        },
    ),
    Row::each(
        "oom",
        "a master is out of memory: `-OOM`",
        |_, index, world| {
            let maxmemory = |bytes| ["CONFIG", "SET", "maxmemory", bytes];
            let change = Change::of(&maxmemory("1"), &maxmemory("0"));
            change.make(index, world, |server| refused(server, "OOM"))
        },
    ),
    Row::each(
        "busy",
        "a master executes another client's endless script: `-BUSY`",
        busy,
    ),
    Row::each("misconf", "a master cannot save its data: `-MISCONF`", misconf)
        .disk(Disk::Not(Persistence::Rdb)),
    Row::each("flushall", "FLUSHALL on a master", flush_all)
        .lasts(Lasts::Moment)
        .breaks(Breaks::Forgets),
    Row::each("script-flush", "SCRIPT FLUSH on a master", flush_scripts).lasts(Lasts::Moment),
    Row::each(
        "client-kill",
        "CLIENT KILL on a master, for all its clients",
        kill_all_clients,
    )
    .lasts(Lasts::Moment),
    Row::each(
        "maxclients",
        "a master accepts no more clients",
        |_, index, world| {
            let maxclients = |count| ["CONFIG", "SET", "maxclients", count];
            let change = Change::of(&maxclients("1"), &maxclients("1000"));
            change.and_end_connections().make(index, world, full)
        },
    ),
    Row::each(
        "password",
        "the password of the clients' user was changed on a master",
        |_, index, world| {
            let set = ["ACL", "SETUSER", USER, "resetpass", ">changed"];
            let password = format!(">{PASSWORD}");
            let back = ["ACL", "SETUSER", USER, "resetpass", &password];
            let change = Change::of(&set, &back).and_end_connections();
            change.make(index, world, |server| told(server, &["PING"], "WRONGPASS"))
        },
    )
    .needs(Needs::User),
    Row::each(
        "restricted",
        "the clients' user loses a right on a master: for a command, for all keys, or for all channels",
        restrict,
    )
    .needs(Needs::User),
];

/// Pairs of an ACL rule and a command. The rule takes a right from the Redis user with which the clients log in. The
/// server must then refuse the command.
const RIGHTS: &[(&str, &[&str])] = &[
    ("-@all", &["PING"]),
    ("-evalsha", &["EVALSHA", "x", "0"]),
    ("-script", &["SCRIPT", "EXISTS", "x"]),
    ("-get", &["GET", "chaos:probe"]),
    ("-set", &["SET", "chaos:probe", "1", "PX", "1000"]),
    ("-del", &["DEL", "chaos:probe"]),
    ("-pexpire", &["PEXPIRE", "chaos:probe", "1"]),
    ("-time", &["TIME"]),
    ("-info", &["INFO", "server"]),
    ("-zadd", &["ZADD", "chaos:probe", "XX", "1", "x"]),
    ("-zrem", &["ZREM", "chaos:probe", "x"]),
    ("-publish", &["PUBLISH", "chaos:probe", "x"]),
    ("resetkeys", &["GET", "chaos:probe"]),
    ("resetchannels", &["PUBLISH", "chaos:probe", "x"]),
];

/// Revokes a right of the clients' user. With a probability of one half, also ends all client connections, so that
/// clients must reconnect.
fn restrict(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let (taken, probe) = *fault.one_of(RIGHTS);
    let user = ["ACL", "SETUSER", USER];
    let set = [&user[..], &[taken]].concat();
    let back = [&user[..], ALL_RIGHTS].concat();
    let mut change = Change::of(&set, &back);
    if (fault.draw >> 8).is_multiple_of(2) {
        change = change.and_end_connections();
    }
    change.make(index, world, move |server| {
        let told = told(server, probe, "NOPERM")?;
        Ok(format!("{taken}: {told}"))
    })
}

/// A pair of commands: the first makes a master refuse requests, the second makes it accept them again.
struct Change {
    set: Vec<String>,
    back: Vec<String>,
    ends_connections: bool,
}

impl Change {
    fn of(set: &[&str], back: &[&str]) -> Self {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Self {
            set: words(set),
            back: words(back),
            ends_connections: false,
        }
    }

    /// Makes the change also end all connections, so that clients reconnect and are refused while they connect.
    fn and_end_connections(self) -> Self {
        Self {
            ends_connections: true,
            ..self
        }
    }

    /// Injects the fault by sending the command `set` to the master. The fault counts as injected when `look` observes
    /// a refusal, and as healed when `look` observes no refusal.
    fn make(
        self,
        index: usize,
        world: &mut World,
        look: impl Fn(&Server) -> anyhow::Result<String> + Copy + 'static,
    ) -> anyhow::Result<Landed> {
        // Open the administrator's connection before the fault, because the fault may make the server refuse new
        // connections.
        let mut admin = world.redis(index)?.connect(PATIENCE)?;
        ok(&mut admin, &self.set)?;
        if self.ends_connections {
            kill_clients(&mut admin)?;
        }
        let see = |world: &World| look(world.redis(index)?);
        Landed::once_seen(world, see, move |world| {
            let server = world.redis(index)?;
            let mut outcome = Ok(());
            within(PATIENCE, || {
                outcome = ok(&mut admin, &self.back);
                if outcome.is_err()
                    && let Ok(fresh) = server.connect(PATIENCE)
                {
                    admin = fresh;
                }
                outcome.is_ok()
            });
            outcome?;
            ensure!(
                within(PATIENCE, || look(server).is_err()),
                "the master still refuses requests"
            );
            Ok(())
        })
    }
}

fn flush_all(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let mut admin = world.redis(index)?.connect(PATIENCE)?;
    ok(&mut admin, &["SET", "chaos:marker", "1", "PX", "60000"])?;
    ok(&mut admin, &["FLUSHALL"])?;
    let gone = admin.command(&["EXISTS", "chaos:marker"])?.int() == Some(0);
    ensure!(gone, "a key still exists after FLUSHALL");
    Ok(Landed::momentary("all keys gone"))
}

fn flush_scripts(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let mut admin = world.redis(index)?.connect(PATIENCE)?;
    let loaded = admin.command(&["SCRIPT", "LOAD", "return 42"])?;
    let sha = loaded.text().unwrap_or_default().into_owned();
    ok(&mut admin, &["SCRIPT", "FLUSH"])?;
    let gone = admin.command(&["SCRIPT", "EXISTS", &sha])?;
    ensure!(gone == Reply::Array(vec![Reply::Int(0)]), "{gone:?}");
    Ok(Landed::momentary("all scripts gone"))
}

fn kill_all_clients(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let mut admin = world.redis(index)?.connect(PATIENCE)?;
    let mut killed = 0;
    // Clients may still be reconnecting after an earlier fault, so wait until at least one client is connected.
    within(PATIENCE, || {
        killed = kill_clients(&mut admin).unwrap_or(0);
        killed > 0
    });
    ensure!(killed > 0, "CLIENT KILL ended no connection");
    Ok(Landed::momentary(format!("{killed} connections killed")))
}

/// Makes the master busy with an endless script. Healing kills the script.
fn busy(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let server = world.redis(index)?;
    let mut admin = server.connect(PATIENCE)?;
    // `lua-time-limit` is the old name of the setting; newer servers accept it as well.
    ok(&mut admin, &["CONFIG", "SET", "lua-time-limit", "5"])?;
    admin.send(&["EVAL", "while true do end", "0"])?;
    let said = |reply: &Reply| matches!(reply, Reply::Error(why) if why.starts_with("BUSY"));
    let landed = within(PATIENCE, || {
        server.command(&["PING"]).is_ok_and(|reply| said(&reply))
    });
    ensure!(landed, "no client received BUSY");
    Ok(Landed::new("BUSY", move |world| {
        let server = world.redis(index)?;
        ok(&mut server.connect(PATIENCE)?, &["SCRIPT", "KILL"])?;
        let idle = within(PATIENCE, || {
            server.command(&["PING"]).is_ok_and(|reply| !said(&reply))
        });
        ensure!(idle, "the master is still busy");
        drop(admin);
        Ok(())
    }))
}

/// Makes the master refuse writes by making its snapshots fail: puts a folder in the place of its snapshot file
/// `dump.rdb`.
fn misconf(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let server = world.redis(index)?;
    let mut admin = server.connect(PATIENCE)?;
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
        ensure!(saved, "the master still cannot save its data");
        Ok(())
    };
    if !landed {
        heal(admin)?;
        bail!("no client received MISCONF");
    }
    Ok(Landed::new("MISCONF", move |_| heal(admin)))
}

fn ok<W: AsRef<str>>(admin: &mut Connection, command: &[W]) -> anyhow::Result<()> {
    let words: Vec<&str> = command.iter().map(AsRef::as_ref).collect();
    let reply = admin.command(&words)?;
    ensure!(reply.is_ok(), "{}: {reply:?}", words.join(" "));
    Ok(())
}

/// Tries a write as an administrator. Returns `code` if the server refuses the write with an error that begins with
/// `code`. Any other reply is an error.
fn refused(server: &Server, code: &str) -> anyhow::Result<String> {
    match server.command(&["SET", "chaos:probe", "1", "PX", "1000"])? {
        Reply::Error(said) if said.starts_with(code) => Ok(code.to_owned()),
        other => bail!("the answer to a write must be {code}, but is {other:?}"),
    }
}

/// Ends all client connections. CLIENT KILL needs a separate command for connections with subscriptions.
fn kill_clients(admin: &mut Connection) -> anyhow::Result<i64> {
    let mut killed = 0;
    for kind in ["normal", "pubsub"] {
        let reply = admin.command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"])?;
        killed += reply.int().unwrap_or(0);
    }
    Ok(killed)
}

/// Logs in as the clients' user and runs a command. Returns `code` if the login or the command fails with an error that
/// begins with `code`. Any other reply is an error.
fn told(server: &Server, command: &[&str], code: &str) -> anyhow::Result<String> {
    let mut fresh = Connection::tcp(server.addr(), PATIENCE)?;
    let mut said = fresh.command(&["AUTH", USER, PASSWORD])?;
    if said.is_ok() {
        said = fresh.command(command)?;
    }
    match said {
        Reply::Error(said) if said.starts_with(code) => Ok(code.to_owned()),
        other => bail!(
            "the answer to {} must be {code}, but is {other:?}",
            command.join(" ")
        ),
    }
}

/// Returns the error that a master at its connection limit sends to a new connection before it hangs up.
fn full(server: &Server) -> anyhow::Result<String> {
    let mut fresh = Connection::tcp(server.addr(), PATIENCE)?;
    let _ = fresh.send(&["PING"]);
    match fresh.receive()? {
        Reply::Error(said) if said.contains("max number of clients") => Ok(said),
        other => bail!("a master at its connection limit must refuse a client, but sent {other:?}"),
    }
}
