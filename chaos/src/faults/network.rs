//! Network faults, injected by the proxies between clients and masters. Each pair of client and master has its own
//! proxy, so a fault can separate one client from one master.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use quorate_testbed::{Fault, Injected, Way};

use super::kind::{InjectIntoAll, Injection, Reach, Row};
use super::landed::Landed;
use crate::node::{MasterGroup, NodeKind, Probe};
use crate::proxied_path::ProxiedPath;
use crate::world::{Needs, World};

/// How long a probe waits for a reply that must not arrive.
const SILENCE: Duration = Duration::from_millis(60);
/// How long a probe waits for a reply that must arrive.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const ROWS: &[Row] = &[
    network_row(
        "partition-one",
        "one master is unreachable for all clients",
        partition,
    ),
    network_row(
        "partition-minority",
        "a minority of the masters is unreachable for all clients",
        partition,
    )
    .reach(Reach::Minority),
    network_row(
        "partition-majority",
        "a majority of the masters is unreachable for all clients",
        partition,
    )
    .reach(Reach::Majority),
    network_row(
        "partition-client",
        "one client can reach no master",
        partition,
    )
    .reach(Reach::Client),
    network_row(
        "partition-requests",
        "requests to a master are lost, but its replies arrive",
        |fault, world| disturb(fault, world, &Fault::Drop(Way::ToServer)),
    ),
    network_row(
        "partition-replies",
        "replies of a master are lost, but requests reach it",
        |fault, world| disturb(fault, world, &Fault::Drop(Way::ToClient)),
    ),
    network_row(
        "late-requests",
        "requests to a master are held back and delivered late",
        |fault, world| disturb(fault, world, &Fault::Hold(Way::ToServer)),
    ),
    network_row(
        "latency",
        "all messages to and from a master are late",
        |fault, world| {
            disturb(
                fault,
                world,
                &Fault::latency(Way::Both, fault.drawn_time(10, 60)),
            )
        },
    ),
    network_row(
        "jitter",
        "all messages to and from a master are late, each by a different time",
        |fault, world| {
            let jitter = Fault::Latency {
                way: Way::Both,
                base: Duration::from_millis(5),
                jitter: fault.drawn_time(30, 90),
            };
            disturb(fault, world, &jitter)
        },
    ),
    network_row(
        "trickle",
        "the link to a master transmits only a few bytes per second",
        |fault, world| {
            let rate = Fault::Rate {
                way: Way::Both,
                bytes_per_second: fault.pick(60, 140),
            };
            disturb(fault, world, &rate)
        },
    ),
    network_row(
        "reset",
        "connections are reset in the middle of a reply",
        |fault, world| disturb(fault, world, &Fault::ResetAfter(fault.pick(0, 6))),
    ),
    network_row(
        "half-open",
        "connections are dead, but only one side knows it",
        |fault, world| disturb(fault, world, &Fault::HalfOpen),
    ),
    network_row(
        "refuse",
        "new connections to a master are refused",
        |fault, world| disturb(fault, world, &Fault::Refuse),
    ),
];

const fn network_row(
    name: &'static str,
    description: &'static str,
    inject_function: InjectIntoAll,
) -> Row {
    Row::all(name, description, inject_function)
        .on(MasterGroup::All)
        .needs(Needs::Proxies)
}

/// Injects a partition. The proxies either drop all messages, or hold all messages back until the partition is healed.
fn partition(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let network_fault = if fault.detail_seed.is_multiple_of(2) {
        Fault::Hold(Way::Both)
    } else {
        Fault::Drop(Way::Both)
    };
    disturb(fault, world, &network_fault)
}

fn disturb(fault: &Injection, world: &mut World, network_fault: &Fault) -> anyhow::Result<Landed> {
    let pairs = fault.pairs(world);
    // Before the fault, open one probe per master. All probes use the network paths of the first client.
    let Some(&(first_client, _)) = pairs.first() else {
        bail!("the fault affects no client")
    };
    let probed_pairs = pairs.iter().filter(|(client, _)| *client == first_client);
    let probes: Vec<_> = probed_pairs
        .map(|&(client, master)| {
            let kind = world.masters[master].kind();
            (master, open_probe(kind, &world.paths[client][master]))
        })
        .collect();
    let mut guards: Vec<Injected> = Vec::new();
    for &(client, master) in &pairs {
        let path = &world.paths[client][master];
        guards.extend(path.inject(network_fault));
        if *network_fault == Fault::Refuse {
            path.reset_all();
        }
    }
    let mut effects = Vec::new();
    for (master, probe) in probes {
        let (kind, path) = (
            world.masters[master].kind(),
            &world.paths[first_client][master],
        );
        let effect = check_effect(network_fault, kind, path, probe)?;
        effects.push(format!("m{}: {effect}", master + 1));
    }
    // After a `Drop` fault, reset the connections: they have lost bytes, so no client can use them any more.
    let loses_bytes = matches!(network_fault, Fault::Drop(_));
    Ok(Landed::new(effects.join("; "), move |world| {
        drop(guards);
        for &(client, master) in pairs.iter().filter(|_| loses_bytes) {
            world.paths[client][master].reset_all();
        }
        Ok(())
    }))
}

/// Opens a connection to a master. `None` if the master does not answer.
fn open_probe(kind: NodeKind, path: &ProxiedPath) -> Option<Box<dyn Probe>> {
    let connect = || (kind.probe)(path.first_addr(), SILENCE).ok();
    connect()?.ask().ok()?;
    connect()
}

/// Decides whether the probe may receive this reply although its request was blocked. Only one text is allowed: a
/// master at its connection limit sends this error to each new connection, without a request.
fn blocked_reply(reply: &str) -> anyhow::Result<String> {
    if reply.contains("max number of clients") {
        return Ok("the master sent only the error that it has too many clients".into());
    }
    bail!("the probe must get no reply, but got {reply:?}")
}

/// Checks that the fault has an effect. If `probe` is `None`, the master did not answer even before the fault, so
/// nothing is checked.
fn check_effect(
    network_fault: &Fault,
    kind: NodeKind,
    path: &ProxiedPath,
    probe: Option<Box<dyn Probe>>,
) -> anyhow::Result<String> {
    let Some(mut probe) = probe else {
        return Ok("effect not checked: the master did not answer even before the fault".into());
    };
    let connect = |patience| (kind.probe)(path.first_addr(), patience);
    let started = Instant::now();
    match network_fault {
        Fault::Hold(_) | Fault::Drop(_) | Fault::HalfOpen => match probe.ask() {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok("silence".into()),
            // Another fault, not `network_fault`, has ended the connection of the probe. Probe a new connection, which
            // `network_fault` must block as well.
            Err(_) if *network_fault != Fault::HalfOpen => describe_silence(connect(SILENCE)),
            Err(error) => Ok(format!(
                "no reply: the connection of the probe ended with: {}",
                error.kind()
            )),
            Ok(reply) => blocked_reply(&reply),
        },
        Fault::ResetAfter(_) | Fault::Refuse => {
            let ask_again = || connect(PATIENCE).and_then(|mut connect| connect.ask());
            let reply = match network_fault {
                Fault::Refuse => ask_again(),
                _ => match probe.ask() {
                    // The reset can come after the short timeout of `probe`, so probe again for longer.
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => ask_again(),
                    reply => reply,
                },
            };
            match reply {
                Err(error) if error.kind() != io::ErrorKind::TimedOut => {
                    Ok(error.kind().to_string())
                }
                unexpected => {
                    bail!("the connection must be reset, but the probe got {unexpected:?}")
                }
            }
        }
        Fault::Latency { base, .. } => {
            let _ = connect(PATIENCE)?.ask();
            let elapsed = started.elapsed();
            ensure!(
                elapsed >= *base,
                "a round trip must take at least {base:?}, but took {elapsed:?}"
            );
            Ok(format!("round trip {} ms", elapsed.as_millis()))
        }
        Fault::Rate { .. } => {
            let _ = connect(Duration::from_secs(1)).and_then(|mut connect| connect.ask_long());
            let elapsed = started.elapsed();
            ensure!(
                elapsed >= Duration::from_millis(200),
                "the transfer of 90 bytes must take at least 200 ms, but took {elapsed:?}"
            );
            Ok(format!("90 bytes took {} ms", elapsed.as_millis()))
        }
        unexpected => bail!("this check does not support the fault {unexpected:?}"),
    }
}

/// The effect of a fault that lets no bytes through, as a new connection shows it.
fn describe_silence(connection: io::Result<Box<dyn Probe>>) -> anyhow::Result<String> {
    match connection.and_then(|mut connection| connection.ask()) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok("silence".into()),
        // Another fault ended this connection too. The probe got no reply, so `network_row` had its effect.
        Err(error) => Ok(format!(
            "no reply: new connections of the probe end with: {}",
            error.kind()
        )),
        Ok(reply) => blocked_reply(&reply),
    }
}
