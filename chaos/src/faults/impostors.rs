//! Impostors: servers that take the place of a master. The proxies connect clients to the impostor instead of the
//! master, and reset existing connections.
//!
//! There are four kinds of impostors:
//!
//! - a server that hangs up
//! - a server that sends garbage
//! - a server that sends replies that belong to other commands
//! - another master
//!
//! No impostor forges a plausible reply to a lock request, because Redlock does not tolerate masters that lie.

use std::io;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use quorate_testbed::{
    Connection, Fault, Hostile, Injected, Reply, Script, Tampering, Words, within,
};

use super::kind::{Injection, Row, ToEach};
use super::landed::Landed;
use crate::world::{Needs, World, run_id};

const PATIENCE: Duration = Duration::from_secs(5);
/// How long a probe reads from the impostor, which may send garbage without end.
const SHORT: Duration = Duration::from_millis(300);
/// The largest number of random bytes in one chunk of garbage.
const GARBAGE: usize = 600;

pub(super) const ROWS: &[Row] = &[
    impostor(
        "flapping",
        "a master closes connections after the handshake or when it gets one of the first requests",
        |fault, index, world| {
            let last = fault.pick(0, 5) as usize;
            let script = relay(world, index, Tampering::HangUpAt(last));
            lead_to(fault, index, world, script, |hostile| {
                hangs_up(hostile, last)
            })
        },
    ),
    impostor(
        "garbage",
        "a master sends garbage immediately or after the handshake, or replies with an HTTP error",
        |fault, index, world| {
            let script = match fault.pick(0, 3) {
                0 => Script::Say(Words::Garbage(GARBAGE)),
                1 => relay(world, index, Tampering::Say(Words::Garbage(GARBAGE))),
                _ => Script::Dismiss("HTTP/1.1 400 Bad Request\r\n\r\n".into()),
            };
            lead_to(fault, index, world, script, talks_nonsense)
        },
    ),
    impostor(
        "foreign-replies",
        "a master answers each request with the reply to another request, or sends one additional reply, which shifts \
         all later replies",
        |fault, index, world| {
            let words = || Words::from(*fault.one_of(OF_OTHERS));
            let script = if (fault.draw >> 8).is_multiple_of(2) {
                relay(world, index, Tampering::Slip(words()))
            } else {
                relay(world, index, Tampering::Say(words()))
            };
            lead_to(fault, index, world, script, talks_nonsense)
        },
    ),
    impostor(
        "misrouted",
        "the address of a master leads to another master",
        misroute,
    )
    .fewest_masters(2),
];

const fn impostor(name: &'static str, what: &'static str, deed: ToEach) -> Row {
    Row::each(name, what, deed).needs(Needs::Proxies)
}

/// Connects clients to a different master. Chooses a Redis master that answers, if there is one, because only such a
/// master can be identified by a probe.
fn misroute(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let masters = world.masters.len();
    let drawn = fault.pick(1, masters as u64) as usize;
    let mut others =
        (0..masters - 1).map(|step| (index + 1 + (drawn - 1 + step) % (masters - 1)) % masters);
    let well = others.find_map(|other| {
        let run = world
            .answers(other)
            .then(|| world.redis(other).and_then(run_id))?;
        Some((other, run.ok()?))
    });
    let other = well
        .as_ref()
        .map_or((index + drawn) % masters, |(other, _)| *other);
    let script = relay(world, other, Tampering::None);
    lead_to(fault, index, world, script, |hostile| {
        let Some((_, run)) = well else {
            return Ok(format!(
                "the address leads to m{}, which does not answer",
                other + 1
            ));
        };
        let mut probe = Connection::tcp(hostile.addr(), PATIENCE)?;
        let told = probe.command(&["INFO", "server"])?;
        let told = told.text().unwrap_or_default().into_owned();
        ensure!(
            told.contains(&run),
            "the address of the master leads to an unexpected server"
        );
        Ok(format!(
            "the address of the master now leads to m{}",
            other + 1
        ))
    })
}

/// Well-formed replies that do not fit any command of a lock client. They are replies to commands of other clients.
const OF_OTHERS: &[&str] = &[
    "+PONG!\r\n",
    "$5\r\nhello\r\n",
    "$-1\r\n",
    "*0\r\n",
    "*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "%1\r\n+a\r\n:1\r\n",
];

fn relay(world: &World, index: usize, harm: Tampering) -> Script {
    let target = world.masters[index].addrs()[0];
    Script::Relay { target, harm }
}

/// Replaces a master by a hostile server for the affected clients. The hostile server runs `script`. Fails if the check
/// `look` does not find the hostile behaviour, or if no client connects to the server.
fn lead_to(
    fault: &Injection,
    index: usize,
    world: &mut World,
    script: Script,
    look: impl FnOnce(&Hostile) -> anyhow::Result<String>,
) -> anyhow::Result<Landed> {
    let hostile = Hostile::start(script).context("cannot start an impostor")?;
    let seen = look(&hostile)?;
    let probes = hostile.accepted();
    let clients = fault.clients_in(world);
    let mut detours: Vec<Injected> = Vec::new();
    for &client in &clients {
        let road = &world.roads[client][index];
        detours.extend(road.inject(&Fault::Detour(hostile.addr())));
        road.reset_all();
    }
    let come = within(PATIENCE, || hostile.accepted() > probes);
    let look = |_: &World| {
        ensure!(come, "no client has connected to the fake master");
        Ok(seen)
    };
    Landed::once_seen(world, look, move |world| {
        drop(detours);
        for client in clients {
            world.roads[client][index].reset_all();
        }
        drop(hostile);
        Ok(())
    })
}

/// Checks with a probe when the hostile server hangs up. After the handshake, the server must answer the requests
/// before number `last`, and must hang up at request `last`. If `last` is 0, it must hang up without any request.
fn hangs_up(hostile: &Hostile, last: usize) -> anyhow::Result<String> {
    let mut probe = Connection::tcp(hostile.addr(), PATIENCE)?;
    let info = probe.command(&["INFO", "server"])?;
    let info = info.text().unwrap_or_default().into_owned();
    ensure!(
        info.contains("run_id:"),
        "the reply to INFO must contain a run_id, but is {info:?}"
    );
    for question in 1..last {
        let heard = probe.command(&["PING"]);
        ensure!(
            heard.is_ok(),
            "the probe must get a reply to PING number {question}, but got {heard:?}"
        );
    }
    let heard = match last {
        0 => probe.receive(),
        _ => probe.command(&["PING"]),
    };
    match heard {
        Err(error) if error.kind() != io::ErrorKind::TimedOut => Ok(format!(
            "the master hung up at request {last} (0: no request)"
        )),
        heard => {
            bail!("the master must hang up at request {last} (0: no request) instead of {heard:?}")
        }
    }
}

fn talks_nonsense(hostile: &Hostile) -> anyhow::Result<String> {
    let mut probe = Connection::tcp(hostile.addr(), SHORT)?;
    match probe.command(&["PING"]) {
        Ok(Reply::Status(pong)) if pong == "PONG" => {
            bail!("the impostor answered PING as a real master does")
        }
        Ok(heard) => Ok(format!("the impostor answered PING with {heard:?}")),
        Err(error) => Ok(format!("the master answered PING with garbage: {error}")),
    }
}
