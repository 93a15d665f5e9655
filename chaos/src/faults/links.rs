//! Faults of the network links to masters. Each master is in its own network namespace, so its link can be cut
//! separately. While the link is cut, connection attempts of clients get no answer: they are neither accepted nor
//! refused.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use quorate_testbed::{Namespace, Server, within};

use super::kind::{Injection, Row};
use super::landed::Landed;
use crate::world::{Needs, World};

/// How long the probe tries to connect while the link is down. All attempts in this time must get no answer.
const SILENCE: Duration = Duration::from_millis(150);

pub(super) const ROWS: &[Row] = &[Row::each(
    "netns-partition",
    "the network link to a master is down: packets vanish, and new connections time out (needs root or user \
     namespaces)",
    sever,
)
.needs(Needs::Links)];

fn sever(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    link_of(world.redis(index)?)?
        .sever()
        .context("cannot take the link down")?;
    let observe = |world: &World| {
        check_silence(world.redis(index)?)?;
        let alive = if world.answers(index) {
            "alive"
        } else {
            "not answering"
        };
        Ok(format!(
            "connecting timed out, as expected; the server process is {alive}"
        ))
    };
    Landed::once_observed(world, observe, move |world| {
        let server = world.redis(index)?;
        link_of(server)?
            .mend()
            .context("cannot bring the link up")?;
        let is_reachable = within(Duration::from_secs(5), || {
            TcpStream::connect_timeout(&server.addr(), SILENCE).is_ok()
        });
        ensure!(
            is_reachable,
            "the network link is up again, but the master cannot be reached"
        );
        Ok(())
    })
}

fn link_of(server: &Server) -> anyhow::Result<&Namespace> {
    server
        .namespace()
        .context("this master has no network link of its own")
}

fn check_silence(server: &Server) -> anyhow::Result<()> {
    match TcpStream::connect_timeout(&server.addr(), SILENCE) {
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Ok(()),
        Err(error) => bail!("connecting must time out, but failed with: {error}"),
        Ok(_) => bail!("connecting must time out, but succeeded"),
    }
}
