//! Network faults, injected by the proxies between clients and masters. Each pair of client and master has its own
//! proxy, so a fault can separate one client from one master.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use quorate_testbed::{Fault, Injected, Way};

use super::kind::{Injection, Reach, Row, ToAll};
use super::landed::Landed;
use crate::node::{NodeKind, Probe, Which};
use crate::road::Road;
use crate::world::{Needs, World};

/// How long a probe waits for a reply that must not arrive.
const SILENCE: Duration = Duration::from_millis(60);
/// How long a probe waits for a reply that must arrive.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const ROWS: &[Row] = &[
    net(
        "partition-one",
        "one master is unreachable for all clients",
        partition,
    ),
    net(
        "partition-minority",
        "a minority of the masters is unreachable for all clients",
        partition,
    )
    .reach(Reach::Minority),
    net(
        "partition-majority",
        "a majority of the masters is unreachable for all clients",
        partition,
    )
    .reach(Reach::Majority),
    net(
        "partition-client",
        "one client can reach no master",
        partition,
    )
    .reach(Reach::Client),
    net(
        "partition-requests",
        "requests to a master are lost, but its replies arrive",
        |fault, world| disturb(fault, world, &Fault::Drop(Way::ToServer)),
    ),
    net(
        "partition-replies",
        "replies of a master are lost, but requests reach it",
        |fault, world| disturb(fault, world, &Fault::Drop(Way::ToClient)),
    ),
    net(
        "late-requests",
        "requests to a master are held back and delivered late",
        |fault, world| disturb(fault, world, &Fault::Hold(Way::ToServer)),
    ),
    net(
        "latency",
        "all messages to and from a master are late",
        |fault, world| disturb(fault, world, &Fault::latency(Way::Both, fault.ms(10, 60))),
    ),
    net(
        "jitter",
        "all messages to and from a master are late, each by a different time",
        |fault, world| {
            let jitter = Fault::Latency {
                way: Way::Both,
                base: Duration::from_millis(5),
                jitter: fault.ms(30, 90),
            };
            disturb(fault, world, &jitter)
        },
    ),
    net(
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
    net(
        "reset",
        "connections are reset in the middle of a reply",
        |fault, world| disturb(fault, world, &Fault::ResetAfter(fault.pick(0, 6))),
    ),
    net(
        "half-open",
        "connections are dead, but only one side knows it",
        |fault, world| disturb(fault, world, &Fault::HalfOpen),
    ),
    net(
        "refuse",
        "new connections to a master are refused",
        |fault, world| disturb(fault, world, &Fault::Refuse),
    ),
];

const fn net(name: &'static str, what: &'static str, deed: ToAll) -> Row {
    Row::all(name, what, deed)
        .on(Which::All)
        .needs(Needs::Proxies)
}

/// Injects a partition. The proxies either drop all messages, or hold all messages back until the partition is healed.
fn partition(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let net = if fault.draw.is_multiple_of(2) {
        Fault::Hold(Way::Both)
    } else {
        Fault::Drop(Way::Both)
    };
    disturb(fault, world, &net)
}

fn disturb(fault: &Injection, world: &mut World, net: &Fault) -> anyhow::Result<Landed> {
    let pairs = fault.pairs(world);
    // Before the fault, open one probe per master. All probes use the network paths of the first client.
    let Some(&(first, _)) = pairs.first() else {
        bail!("the fault affects no client")
    };
    let probed = pairs.iter().filter(|(client, _)| *client == first);
    let probes: Vec<_> = probed
        .map(|&(client, master)| {
            let kind = world.masters[master].kind();
            (master, open(kind, &world.roads[client][master]))
        })
        .collect();
    let mut guards: Vec<Injected> = Vec::new();
    for &(client, master) in &pairs {
        let road = &world.roads[client][master];
        guards.extend(road.inject(net));
        if *net == Fault::Refuse {
            road.reset_all();
        }
    }
    let mut seen = Vec::new();
    for (master, probe) in probes {
        let (kind, road) = (world.masters[master].kind(), &world.roads[first][master]);
        let felt = check(net, kind, road, probe)?;
        seen.push(format!("m{}: {felt}", master + 1));
    }
    // After a `Drop` fault, reset the connections: they have lost bytes, so no client can use them any more.
    let leaves_gaps = matches!(net, Fault::Drop(_));
    Ok(Landed::new(seen.join("; "), move |world| {
        drop(guards);
        for &(client, master) in pairs.iter().filter(|_| leaves_gaps) {
            world.roads[client][master].reset_all();
        }
        Ok(())
    }))
}

/// Opens a connection to a master. `None` if the master does not answer.
fn open(kind: NodeKind, road: &Road) -> Option<Box<dyn Probe>> {
    let fresh = || (kind.probe)(road.first(), SILENCE).ok();
    fresh()?.ask().ok()?;
    fresh()
}

/// Decides whether the probe may receive this reply although its request was blocked. Only one text is allowed: a
/// master at its connection limit sends this error to each new connection, without a request.
fn unasked(heard: &str) -> anyhow::Result<String> {
    if heard.contains("max number of clients") {
        return Ok("the master sent only the error that it has too many clients".into());
    }
    bail!("the probe must get no reply, but got {heard:?}")
}

/// Checks that the fault has an effect. If `probe` is `None`, the master did not answer even before the fault, so
/// nothing is checked.
fn check(
    net: &Fault,
    kind: NodeKind,
    road: &Road,
    probe: Option<Box<dyn Probe>>,
) -> anyhow::Result<String> {
    let Some(mut probe) = probe else {
        return Ok("effect not checked: the master did not answer even before the fault".into());
    };
    let fresh = |patience| (kind.probe)(road.first(), patience);
    let started = Instant::now();
    match net {
        Fault::Hold(_) | Fault::Drop(_) | Fault::HalfOpen => match probe.ask() {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok("silence".into()),
            // Another fault, not `net`, has ended the connection of the probe. Probe a new connection, which `net` must
            // block as well.
            Err(_) if *net != Fault::HalfOpen => silence_of(fresh(SILENCE)),
            Err(error) => Ok(format!(
                "no reply: the connection of the probe ended with: {}",
                error.kind()
            )),
            Ok(heard) => unasked(&heard),
        },
        Fault::ResetAfter(_) | Fault::Refuse => {
            let again = || fresh(PATIENCE).and_then(|mut fresh| fresh.ask());
            let heard = match net {
                Fault::Refuse => again(),
                _ => match probe.ask() {
                    // The reset can come after the short timeout of `probe`, so probe again for longer.
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => again(),
                    heard => heard,
                },
            };
            match heard {
                Err(error) if error.kind() != io::ErrorKind::TimedOut => {
                    Ok(error.kind().to_string())
                }
                other => bail!("the connection must be reset, but the probe got {other:?}"),
            }
        }
        Fault::Latency { base, .. } => {
            let _ = fresh(PATIENCE)?.ask();
            let took = started.elapsed();
            ensure!(
                took >= *base,
                "a round trip must take at least {base:?}, but took {took:?}"
            );
            Ok(format!("round trip {} ms", took.as_millis()))
        }
        Fault::Rate { .. } => {
            let _ = fresh(Duration::from_secs(1)).and_then(|mut fresh| fresh.ask_at_length());
            let took = started.elapsed();
            ensure!(
                took >= Duration::from_millis(200),
                "the transfer of 90 bytes must take at least 200 ms, but took {took:?}"
            );
            Ok(format!("90 bytes took {} ms", took.as_millis()))
        }
        other => bail!("this check does not support the fault {other:?}"),
    }
}

/// The effect of a fault that lets no bytes through, as a new connection shows it.
fn silence_of(fresh: io::Result<Box<dyn Probe>>) -> anyhow::Result<String> {
    match fresh.and_then(|mut fresh| fresh.ask()) {
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok("silence".into()),
        // Another fault ended this connection too. The probe got no reply, so `net` had its effect.
        Err(error) => Ok(format!(
            "no reply: new connections of the probe end with: {}",
            error.kind()
        )),
        Ok(reply) => unasked(&reply),
    }
}
