//! Faults that disturb or kill client processes.

use std::time::Duration;

use anyhow::{bail, ensure};
use quorate_testbed::within;

use super::kind::{Injection, Lasts, Reach, Row};
use super::landed::Landed;
use crate::client::Instruction;
use crate::node::Which;
use crate::world::World;

pub(super) const ROWS: &[Row] = &[
    Row::all(
        "client-sigkill",
        "SIGKILL to a client, which is then started again as a new process",
        |fault, world| {
            let client = client(fault)?;
            let how = world.clients.kill(client)?;
            Ok(Landed::new(how, move |world| world.clients.respawn(client)))
        },
    )
    .reach(Reach::Client)
    .on(Which::All),
    Row::all(
        "client-sigstop",
        "SIGSTOP to a client for longer than the TTL",
        |fault, world| {
            let client = client(fault)?;
            world.clients.stop(client)?;
            Ok(Landed::new("in state T", move |world| {
                world.clients.cont(client)
            }))
        },
    )
    .reach(Reach::Client)
    .on(Which::All)
    .lasts(Lasts::BeyondTtl),
    Row::all(
        "client-drop",
        "a client drops futures before they complete, and guards without calling release",
        |fault, world| suffering(fault, world, &Instruction::DropFutures(fault.lasts)),
    )
    .reach(Reach::Client)
    .on(Which::All)
    .lasts(Lasts::Attempts),
    Row::all(
        "client-starve",
        "all worker threads of a client are blocked for longer than the TTL",
        |fault, world| suffering(fault, world, &Instruction::Starve(fault.lasts)),
    )
    .reach(Reach::Client)
    .on(Which::All)
    .lasts(Lasts::BeyondTtl),
];

fn client(fault: &Injection) -> anyhow::Result<usize> {
    match fault.clients[..] {
        [index] => Ok(index),
        _ => bail!("this fault needs exactly one target client"),
    }
}

/// Instructs a client to disturb its own work, e.g. to block its threads. The fault ends when the client reports the
/// end of the disturbance.
fn suffering(fault: &Injection, world: &mut World, what: &Instruction) -> anyhow::Result<Landed> {
    let client = client(fault)?;
    let before = world.clients.seen().suffered(client);
    world.clients.tell(client, what)?;
    Ok(Landed::new("ordered", move |world| {
        let seen = world.clients.seen();
        let suffered = within(Duration::from_secs(10), || seen.suffered(client) > before);
        ensure!(
            suffered,
            "the client did not report that the fault has ended"
        );
        Ok(())
    }))
}
