//! What the proxies between clients and masters do. There is one for every client and master, so
//! that a fault can part one client from one master.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use quorate_testbed::{Connection, Fault as Net, Injected, Proxy, Way};

use super::{Injection, Kind, Landed};
use crate::world::World;

/// How long a probe waits for what should not come.
const SILENCE: Duration = Duration::from_millis(60);
/// How long a probe waits for what should come, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn inject(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let ms = |from, to| Duration::from_millis(fault.pick(from, to));
    let net = match fault.kind {
        // By turns one that gives back on heal what it held, and one that does not.
        Kind::PartitionOne
        | Kind::PartitionMinority
        | Kind::PartitionMajority
        | Kind::PartitionClient => {
            if fault.draw.is_multiple_of(2) {
                Net::Hold(Way::Both)
            } else {
                Net::Drop(Way::Both)
            }
        }
        Kind::PartitionRequests => Net::Drop(Way::ToServer),
        Kind::PartitionReplies => Net::Drop(Way::ToClient),
        Kind::LateRequests => Net::Hold(Way::ToServer),
        Kind::Latency => Net::latency(Way::Both, ms(10, 60)),
        Kind::Jitter => Net::Latency {
            way: Way::Both,
            base: Duration::from_millis(5),
            jitter: ms(30, 90),
        },
        Kind::Trickle => Net::Rate {
            way: Way::Both,
            bytes_per_second: fault.pick(60, 140),
        },
        Kind::Reset => Net::ResetAfter(fault.pick(0, 6)),
        Kind::HalfOpen => Net::HalfOpen,
        Kind::Refuse => Net::Refuse,
        other => bail!("{other} is not done by the network"),
    };
    let clients = if fault.clients.is_empty() {
        (0..world.proxies.len()).collect()
    } else {
        fault.clients.clone()
    };
    // One probe a master, through the proxy of the first client; opened while all is well.
    let Some(&first) = clients.first() else {
        bail!("no client to part from anything")
    };
    let mut probes = Vec::new();
    for &master in &fault.masters {
        probes.push((master, open(&world.proxies[first][master])));
    }
    let mut guards: Vec<Injected> = Vec::new();
    for &client in &clients {
        for &master in &fault.masters {
            let proxy = &world.proxies[client][master];
            guards.push(net.inject(proxy));
            if net == Net::Refuse {
                proxy.reset_all();
            }
        }
    }
    let mut seen = Vec::new();
    for (master, probe) in probes {
        let proxy = &world.proxies[first][master];
        seen.push(format!("m{}: {}", master + 1, look(&net, proxy, probe)?));
    }
    let masters = fault.masters.clone();
    Ok(Landed::new(seen.join("; "), move |world| {
        drop(guards);
        for &client in &clients {
            for &master in &masters {
                // A connection with a gap in its bytes must not go on.
                if matches!(net, Net::Drop(_)) {
                    world.proxies[client][master].reset_all();
                }
            }
        }
        Ok(())
    }))
}

/// A connection on which an answer has been heard; `None` where the master does not answer anyway.
fn open(proxy: &Proxy) -> Option<Connection> {
    let mut probe = Connection::tcp(proxy.addr(), SILENCE).ok()?;
    probe.command(&["PING"]).ok().map(|_| probe)
}

/// Whether the fault is felt. Without a probe the master is down for another reason, and what the
/// network does to it cannot be felt; the proxy's word is taken then.
fn look(net: &Net, proxy: &Proxy, probe: Option<Connection>) -> anyhow::Result<String> {
    let Some(mut probe) = probe else {
        return Ok("in force, the master was not answering".into());
    };
    let started = Instant::now();
    match net {
        Net::Hold(_) | Net::Drop(_) | Net::HalfOpen => match probe.command(&["PING"]) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok("silence".into()),
            // Another fault of this master has ended the probe. A partition is silent to a new
            // connection as well; a half-open one can only be felt on an old one.
            Err(_) if *net != Net::HalfOpen => {
                let fresh = Connection::tcp(proxy.addr(), SILENCE);
                match fresh.and_then(|mut fresh| fresh.command(&["PING"])) {
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok("silence".into()),
                    // That other fault ends new ones as well; an answer there was none.
                    Err(error) => Ok(format!("in force, probes are ended: {}", error.kind())),
                    Ok(heard) => bail!("expected silence, heard {heard:?}"),
                }
            }
            Err(error) => Ok(format!("in force, the probe had ended: {}", error.kind())),
            Ok(heard) => bail!("expected silence, heard {heard:?}"),
        },
        Net::ResetAfter(_) | Net::Refuse => {
            let fresh = || {
                Connection::tcp(proxy.addr(), PATIENCE)
                    .and_then(|mut fresh| fresh.command(&["PING"]))
            };
            let heard = match net {
                Net::Refuse => fresh(),
                _ => match probe.command(&["PING"]) {
                    // The probe is not patient.
                    Err(error) if error.kind() == io::ErrorKind::TimedOut => fresh(),
                    heard => heard,
                },
            };
            match heard {
                Err(error) if error.kind() != io::ErrorKind::TimedOut => {
                    Ok(error.kind().to_string())
                }
                other => bail!("expected a reset, heard {other:?}"),
            }
        }
        Net::Latency { base, .. } => {
            let mut patient = Connection::tcp(proxy.addr(), PATIENCE)?;
            let _ = patient.command(&["PING"]);
            let took = started.elapsed();
            ensure!(took >= *base, "a round trip took only {took:?}");
            Ok(format!("round trip {} ms", took.as_millis()))
        }
        Net::Rate { .. } => {
            let mut patient = Connection::tcp(proxy.addr(), Duration::from_secs(1))?;
            let _ = patient.command(&["ECHO", "0123456789012345678901234567890123456789"]);
            let took = started.elapsed();
            ensure!(
                took >= Duration::from_millis(200),
                "90 bytes took only {took:?}"
            );
            Ok(format!("90 bytes took {} ms", took.as_millis()))
        }
        other => bail!("no way to see {other:?}"),
    }
}
