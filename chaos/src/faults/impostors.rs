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
    AnswerBytes, Connection, Fault, Hostile, Injected, Reply, Script, Tampering, within,
};

use super::kind::{InjectIntoMaster, Injection, Row};
use super::landed::Landed;
use crate::world::{Needs, World, run_id};

const PATIENCE: Duration = Duration::from_secs(5);
/// How long a probe reads from the impostor, which may send garbage without end.
const PROBE_TIME: Duration = Duration::from_millis(300);
/// The largest number of random bytes in one chunk of garbage.
const MAX_GARBAGE_BYTES: usize = 600;

pub(super) const ROWS: &[Row] = &[
    impostor_row(
        "flapping",
        "a master closes connections after the handshake or when it gets one of the first requests",
        |fault, index, world| {
            let last_request = fault.pick(0, 5) as usize;
            let script = relay(world, index, Tampering::HangUpAt(last_request));
            replace_by_impostor(fault, index, world, script, |hostile| {
                check_hang_up(hostile, last_request)
            })
        },
    ),
    impostor_row(
        "garbage",
        "a master sends garbage immediately or after the handshake, or replies with an HTTP error",
        |fault, index, world| {
            let script = match fault.pick(0, 3) {
                0 => Script::Say(AnswerBytes::Garbage(MAX_GARBAGE_BYTES)),
                1 => relay(
                    world,
                    index,
                    Tampering::Say(AnswerBytes::Garbage(MAX_GARBAGE_BYTES)),
                ),
                _ => Script::Dismiss("HTTP/1.1 400 Bad Request\r\n\r\n".into()),
            };
            replace_by_impostor(fault, index, world, script, check_nonsense)
        },
    ),
    impostor_row(
        "foreign-replies",
        "a master answers each request with the reply to another request, or sends one additional reply, which shifts \
         all later replies",
        |fault, index, world| {
            let foreign_reply = || AnswerBytes::from(*fault.drawn_element(FOREIGN_REPLIES));
            let script = if (fault.detail_seed >> 8).is_multiple_of(2) {
                relay(world, index, Tampering::Slip(foreign_reply()))
            } else {
                relay(world, index, Tampering::Say(foreign_reply()))
            };
            replace_by_impostor(fault, index, world, script, check_nonsense)
        },
    ),
    impostor_row(
        "misrouted",
        "the address of a master leads to another master",
        misroute,
    )
    .fewest_masters(2),
];

const fn impostor_row(
    name: &'static str,
    description: &'static str,
    inject_function: InjectIntoMaster,
) -> Row {
    Row::each(name, description, inject_function).needs(Needs::Proxies)
}

/// Connects clients to a different master. Chooses a Redis master that answers, if there is one, because only such a
/// master can be identified by a probe.
fn misroute(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let masters = world.masters.len();
    let distance = fault.pick(1, masters as u64) as usize;
    let mut others =
        (0..masters - 1).map(|step| (index + 1 + (distance - 1 + step) % (masters - 1)) % masters);
    let answering_master = others.find_map(|other| {
        let other_run_id = world
            .answers(other)
            .then(|| world.redis(other).and_then(run_id))?;
        Some((other, other_run_id.ok()?))
    });
    let other = answering_master
        .as_ref()
        .map_or((index + distance) % masters, |(other, _)| *other);
    let script = relay(world, other, Tampering::None);
    replace_by_impostor(fault, index, world, script, |hostile| {
        let Some((_, other_run_id)) = answering_master else {
            return Ok(format!(
                "the address leads to m{}, which does not answer",
                other + 1
            ));
        };
        let mut probe = Connection::tcp(hostile.addr(), PATIENCE)?;
        let info = probe.command(&["INFO", "server"])?;
        let info = info.text().unwrap_or_default().into_owned();
        ensure!(
            info.contains(&other_run_id),
            "the address of the master leads to an unexpected server"
        );
        Ok(format!(
            "the address of the master now leads to m{}",
            other + 1
        ))
    })
}

/// Well-formed replies that do not fit any command of a lock client. They are replies to commands of other clients.
const FOREIGN_REPLIES: &[&str] = &[
    "+PONG!\r\n",
    "$5\r\nhello\r\n",
    "$-1\r\n",
    "*0\r\n",
    "*2\r\n$1\r\na\r\n$1\r\nb\r\n",
    "%1\r\n+a\r\n:1\r\n",
];

fn relay(world: &World, index: usize, tampering: Tampering) -> Script {
    let target = world.masters[index].addrs()[0];
    Script::Relay { target, tampering }
}

/// Replaces a master by a hostile server for the affected clients. The hostile server runs `script`. Fails if the check
/// `observe` does not find the hostile behaviour, or if no client connects to the server.
fn replace_by_impostor(
    fault: &Injection,
    index: usize,
    world: &mut World,
    script: Script,
    observe: impl FnOnce(&Hostile) -> anyhow::Result<String>,
) -> anyhow::Result<Landed> {
    let hostile = Hostile::start(script).context("cannot start an impostor")?;
    let effect = observe(&hostile)?;
    let probe_connections = hostile.accepted();
    let clients = fault.clients_in(world);
    let mut detours: Vec<Injected> = Vec::new();
    for &client in &clients {
        let road = &world.paths[client][index];
        detours.extend(road.inject(&Fault::Detour(hostile.addr())));
        road.reset_all();
    }
    let has_client = within(PATIENCE, || hostile.accepted() > probe_connections);
    let observe = |_: &World| {
        ensure!(has_client, "no client has connected to the fake master");
        Ok(effect)
    };
    Landed::once_observed(world, observe, move |world| {
        drop(detours);
        for client in clients {
            world.paths[client][index].reset_all();
        }
        drop(hostile);
        Ok(())
    })
}

/// Checks with a probe when the hostile server hangs up. After the handshake, the server must answer the requests
/// before number `last_request`, and must hang up at request `last_request`. If `last_request` is 0, it must hang up
/// without any request.
fn check_hang_up(hostile: &Hostile, last_request: usize) -> anyhow::Result<String> {
    let mut probe = Connection::tcp(hostile.addr(), PATIENCE)?;
    let info = probe.command(&["INFO", "server"])?;
    let info = info.text().unwrap_or_default().into_owned();
    ensure!(
        info.contains("run_id:"),
        "the reply to INFO must contain a run_id, but is {info:?}"
    );
    for number in 1..last_request {
        let outcome = probe.command(&["PING"]);
        ensure!(
            outcome.is_ok(),
            "the probe must get a reply to PING number {number}, but got {outcome:?}"
        );
    }
    let outcome = match last_request {
        0 => probe.receive(),
        _ => probe.command(&["PING"]),
    };
    match outcome {
        Err(error) if error.kind() != io::ErrorKind::TimedOut => Ok(format!(
            "the master hung up at request {last_request} (0: no request)"
        )),
        outcome => {
            bail!(
                "the master must hang up at request {last_request} (0: no request) instead of {outcome:?}"
            )
        }
    }
}

fn check_nonsense(hostile: &Hostile) -> anyhow::Result<String> {
    let mut probe = Connection::tcp(hostile.addr(), PROBE_TIME)?;
    match probe.command(&["PING"]) {
        Ok(Reply::Status(pong)) if pong == "PONG" => {
            bail!("the impostor answered PING as a real master does")
        }
        Ok(reply) => Ok(format!("the impostor answered PING with {reply:?}")),
        Err(error) => Ok(format!("the master answered PING with garbage: {error}")),
    }
}
