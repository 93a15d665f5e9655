//! What is done to client processes.

use std::time::Duration;

use anyhow::{bail, ensure};

use quorate_testbed::within;

use super::{Injection, Kind, Landed};
use crate::client::Instruction;
use crate::world::World;

pub(super) fn inject(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let [index] = fault.clients[..] else {
        bail!("one client, please");
    };
    let lasts = fault.lasts;
    match fault.kind {
        Kind::ClientSigkill => {
            let how = world.clients.kill(index)?;
            Ok(Landed::new(how, move |world| world.clients.respawn(index)))
        }
        Kind::ClientSigstop => {
            world.clients.stop(index)?;
            Ok(Landed::new("in state T", move |world| {
                world.clients.cont(index)
            }))
        }
        Kind::ClientDrop => {
            let before = world.clients.seen().suffered(index);
            world
                .clients
                .tell(index, &Instruction::DropFutures(lasts))?;
            Ok(suffering(index, before, "told to drop its futures"))
        }
        Kind::ClientStarve => {
            let before = world.clients.seen().suffered(index);
            world.clients.tell(index, &Instruction::Starve(lasts))?;
            Ok(suffering(index, before, "told to block its threads"))
        }
        other => bail!("{other} is not done to clients"),
    }
}

/// The client itself says when it has gone through it.
fn suffering(index: usize, before: u64, told: &str) -> Landed {
    Landed::new(told, move |world| {
        let seen = world.clients.seen();
        let suffered = within(Duration::from_secs(10), || seen.suffered(index) > before);
        ensure!(suffered, "the client never said that it had happened");
        Ok(())
    })
}
