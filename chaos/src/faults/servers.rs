//! Faults that are caused by commands to a master: it loses data, refuses requests, or is busy.

use std::time::Duration;

use anyhow::{bail, ensure};
use quorate_testbed::{Connection, Persistence, Reply, Server, within};

use super::kind::{ExclusionBreach, Injection, Lasts, RequiredPersistence, Row};
use super::landed::Landed;
use crate::world::{ALL_RIGHTS, Needs, PASSWORD, USER, World};

const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const ROWS: &[Row] = &[
    Row::each(
        "readonly",
        "a master has become a replica: `-READONLY`",
        |_, index, world| {
            let change = ServerChange::of(
                &["REPLICAOF", "127.0.0.1", "1"],
                &["REPLICAOF", "NO", "ONE"],
            );
            change.inject(index, world, |server| refused_write(server, "READONLY"))
        },
    ),
    Row::each(
        "oom",
        "a master is out of memory: `-OOM`",
        |_, index, world| {
            let maxmemory = |bytes| ["CONFIG", "SET", "maxmemory", bytes];
            let change = ServerChange::of(&maxmemory("1"), &maxmemory("0"));
            change.inject(index, world, |server| refused_write(server, "OOM"))
        },
    ),
    Row::each(
        "busy",
        "a master executes another client's endless script: `-BUSY`",
        busy,
    ),
    Row::each("misconf", "a master cannot save its data: `-MISCONF`", misconf)
        .disk(RequiredPersistence::Not(Persistence::Rdb)),
    Row::each("flushall", "FLUSHALL on a master", flush_all)
        .lasts(Lasts::Moment)
        .breaks(ExclusionBreach::Forgets),
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
            let change = ServerChange::of(&maxclients("1"), &maxclients("1000"));
            change.and_end_connections().inject(index, world, refusal_when_full)
        },
    ),
    Row::each(
        "password",
        "the password of the clients' user was changed on a master",
        |_, index, world| {
            let set = ["ACL", "SETUSER", USER, "resetpass", ">changed"];
            let password = format!(">{PASSWORD}");
            let back = ["ACL", "SETUSER", USER, "resetpass", &password];
            let change = ServerChange::of(&set, &back).and_end_connections();
            change.inject(index, world, |server| refusal_as_user(server, &["PING"], "WRONGPASS"))
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
    let (revoked_right, probe) = *fault.drawn_element(RIGHTS);
    let user = ["ACL", "SETUSER", USER];
    let break_command = [&user[..], &[revoked_right]].concat();
    let undo_command = [&user[..], ALL_RIGHTS].concat();
    let mut change = ServerChange::of(&break_command, &undo_command);
    if (fault.detail_seed >> 8).is_multiple_of(2) {
        change = change.and_end_connections();
    }
    change.inject(index, world, move |server| {
        let refusal_as_user = refusal_as_user(server, probe, "NOPERM")?;
        Ok(format!("{revoked_right}: {refusal_as_user}"))
    })
}

/// A pair of commands: the first makes a master refuse requests, the second makes it accept them again.
struct ServerChange {
    break_command: Vec<String>,
    undo_command: Vec<String>,
    ends_connections: bool,
}

impl ServerChange {
    fn of(break_command: &[&str], undo_command: &[&str]) -> Self {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Self {
            break_command: words(break_command),
            undo_command: words(undo_command),
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

    /// Injects the fault by sending the command `break_command` to the master. The fault counts as injected when
    /// `observe` observes a refusal, and as healed when `observe` observes no refusal.
    fn inject(
        self,
        index: usize,
        world: &mut World,
        observe: impl Fn(&Server) -> anyhow::Result<String> + Copy + 'static,
    ) -> anyhow::Result<Landed> {
        // Open the administrator's connection before the fault, because the fault may make the server refuse new
        // connections.
        let mut admin = world.redis(index)?.connect(PATIENCE)?;
        run_ok(&mut admin, &self.break_command)?;
        if self.ends_connections {
            kill_clients(&mut admin)?;
        }
        let observe_world = |world: &World| observe(world.redis(index)?);
        Landed::once_observed(world, observe_world, move |world| {
            let server = world.redis(index)?;
            let mut outcome = Ok(());
            within(PATIENCE, || {
                outcome = run_ok(&mut admin, &self.undo_command);
                if outcome.is_err()
                    && let Ok(connection) = server.connect(PATIENCE)
                {
                    admin = connection;
                }
                outcome.is_ok()
            });
            outcome?;
            ensure!(
                within(PATIENCE, || observe(server).is_err()),
                "the master still refuses requests"
            );
            Ok(())
        })
    }
}

fn flush_all(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let mut admin = world.redis(index)?.connect(PATIENCE)?;
    run_ok(&mut admin, &["SET", "chaos:marker", "1", "PX", "60000"])?;
    run_ok(&mut admin, &["FLUSHALL"])?;
    let is_gone = admin.command(&["EXISTS", "chaos:marker"])?.int() == Some(0);
    ensure!(is_gone, "a key still exists after FLUSHALL");
    Ok(Landed::momentary("all keys gone"))
}

fn flush_scripts(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let mut admin = world.redis(index)?.connect(PATIENCE)?;
    let reply = admin.command(&["SCRIPT", "LOAD", "return 42"])?;
    let sha = reply.text().unwrap_or_default().into_owned();
    run_ok(&mut admin, &["SCRIPT", "FLUSH"])?;
    let exists = admin.command(&["SCRIPT", "EXISTS", &sha])?;
    ensure!(exists == Reply::Array(vec![Reply::Int(0)]), "{exists:?}");
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
    run_ok(&mut admin, &["CONFIG", "SET", "lua-time-limit", "5"])?;
    admin.send(&["EVAL", "while true do end", "0"])?;
    let is_busy_reply =
        |reply: &Reply| matches!(reply, Reply::Error(message) if message.starts_with("BUSY"));
    let has_effect = within(PATIENCE, || {
        server
            .command(&["PING"])
            .is_ok_and(|reply| is_busy_reply(&reply))
    });
    ensure!(has_effect, "no client received BUSY");
    Ok(Landed::new("BUSY", move |world| {
        let server = world.redis(index)?;
        run_ok(&mut server.connect(PATIENCE)?, &["SCRIPT", "KILL"])?;
        let is_idle = within(PATIENCE, || {
            server
                .command(&["PING"])
                .is_ok_and(|reply| !is_busy_reply(&reply))
        });
        ensure!(is_idle, "the master is still busy");
        drop(admin);
        Ok(())
    }))
}

/// Makes the master refuse writes by making its snapshots fail: puts a folder in the place of its snapshot file
/// `dump.rdb`.
fn misconf(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let server = world.redis(index)?;
    let mut admin = server.connect(PATIENCE)?;
    let blocking_dir = server.dir().join("data").join("dump.rdb");
    let _ = std::fs::remove_file(&blocking_dir);
    std::fs::create_dir_all(blocking_dir.join("x"))?;
    run_ok(&mut admin, &["CONFIG", "SET", "save", "3600 1"])?;
    let _ = admin.command(&["BGSAVE"])?;
    let has_effect = within(PATIENCE, || refused_write(server, "MISCONF").is_ok());
    let heal = move |mut admin: Connection| -> anyhow::Result<()> {
        std::fs::remove_dir_all(&blocking_dir)?;
        let is_saved = within(PATIENCE, || {
            admin.command(&["SAVE"]).is_ok_and(|reply| reply.is_ok())
        });
        run_ok(&mut admin, &["CONFIG", "SET", "save", ""])?;
        ensure!(is_saved, "the master still cannot save its data");
        Ok(())
    };
    if !has_effect {
        heal(admin)?;
        bail!("no client received MISCONF");
    }
    Ok(Landed::new("MISCONF", move |_| heal(admin)))
}

fn run_ok<W: AsRef<str>>(admin: &mut Connection, command: &[W]) -> anyhow::Result<()> {
    let arguments: Vec<&str> = command.iter().map(AsRef::as_ref).collect();
    let reply = admin.command(&arguments)?;
    ensure!(reply.is_ok(), "{}: {reply:?}", arguments.join(" "));
    Ok(())
}

/// Tries a write as an administrator. Returns `code` if the server refuses the write with an error that begins with
/// `code`. Any other reply is an error.
fn refused_write(server: &Server, code: &str) -> anyhow::Result<String> {
    match server.command(&["SET", "chaos:probe", "1", "PX", "1000"])? {
        Reply::Error(message) if message.starts_with(code) => Ok(code.to_owned()),
        reply => bail!("the answer to a write must be {code}, but is {reply:?}"),
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
fn refusal_as_user(server: &Server, command: &[&str], code: &str) -> anyhow::Result<String> {
    let mut connection = Connection::tcp(server.addr(), PATIENCE)?;
    let mut reply = connection.command(&["AUTH", USER, PASSWORD])?;
    if reply.is_ok() {
        reply = connection.command(command)?;
    }
    match reply {
        Reply::Error(reply) if reply.starts_with(code) => Ok(code.to_owned()),
        other => bail!(
            "the answer to {} must be {code}, but is {other:?}",
            command.join(" ")
        ),
    }
}

/// Returns the error that a master at its connection limit sends to a new connection before it hangs up.
fn refusal_when_full(server: &Server) -> anyhow::Result<String> {
    let mut connection = Connection::tcp(server.addr(), PATIENCE)?;
    let _ = connection.send(&["PING"]);
    match connection.receive()? {
        Reply::Error(message) if message.contains("max number of clients") => Ok(message),
        reply => bail!("a master at its connection limit must refuse a client, but sent {reply:?}"),
    }
}
