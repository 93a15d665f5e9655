//! The links to masters that live in network namespaces: nothing is answered, and nobody refuses.

use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use quorate_testbed::{Namespace, Server, within};

use super::{Heal, Injection, Landed, all};
use crate::world::World;

/// How long a connect waits that should hear nothing.
const SILENCE: Duration = Duration::from_millis(150);

pub(super) fn inject(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let mut seen = Vec::new();
    let mut heals: Vec<Heal> = Vec::new();
    for &index in &fault.masters {
        let server = &world.masters[index];
        link(server)?.sever().context("take the link down")?;
        let silent = look(server);
        if silent.is_err() {
            link(server)?.mend().context("bring the link up")?;
        }
        silent?;
        let alive = if world.answers(index) {
            "alive"
        } else {
            "not answering"
        };
        seen.push(format!(
            "m{}: a connect timed out; it is {alive}",
            index + 1
        ));
        heals.push(Box::new(move |world| {
            let server = &world.masters[index];
            link(server)?.mend().context("bring the link up")?;
            let back = within(Duration::from_secs(5), || {
                TcpStream::connect_timeout(&server.addr(), SILENCE).is_ok()
            });
            ensure!(back, "m{} still cannot be reached", index + 1);
            Ok(())
        }));
    }
    Ok(Landed::new(seen.join("; "), all(heals)))
}

fn link(server: &Server) -> anyhow::Result<&Namespace> {
    server
        .namespace()
        .context("this master has no link of its own")
}

fn look(server: &Server) -> anyhow::Result<()> {
    match TcpStream::connect_timeout(&server.addr(), SILENCE) {
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Ok(()),
        Err(error) => bail!("expected silence, heard {error}"),
        Ok(_) => bail!("expected silence, was let in"),
    }
}
