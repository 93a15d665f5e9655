//! Faults that disturb or kill client processes.

use std::time::Duration;

use anyhow::{bail, ensure};
use quorate_testbed::within;

use super::kind::{Injection, Lasts, Reach, Row};
use super::landed::Landed;
use crate::client::Instruction;
use crate::node::MasterGroup;
use crate::world::World;

pub(super) const ROWS: &[Row] = &[
    Row::all(
        "client-sigkill",
        "SIGKILL to a client, which is then started again as a new process",
        |fault, world| {
            let target_client = target_client(fault)?;
            let how = world.clients.kill(target_client)?;
            Ok(Landed::new(how, move |world| {
                world.clients.respawn(target_client)
            }))
        },
    )
    .reach(Reach::Client)
    .on(MasterGroup::All),
    Row::all(
        "client-sigstop",
        "SIGSTOP to a client for longer than the TTL",
        |fault, world| {
            let target_client = target_client(fault)?;
            world.clients.stop(target_client)?;
            Ok(Landed::new("in state T", move |world| {
                world.clients.cont(target_client)
            }))
        },
    )
    .reach(Reach::Client)
    .on(MasterGroup::All)
    .lasts(Lasts::BeyondTtl),
    Row::all(
        "client-drop",
        "a client drops futures before they complete, and guards without calling release",
        |fault, world| disturb(fault, world, &Instruction::DropFutures(fault.lasts)),
    )
    .reach(Reach::Client)
    .on(MasterGroup::All)
    .lasts(Lasts::Attempts),
    Row::all(
        "client-starve",
        "all worker threads of a client are blocked for longer than the TTL",
        |fault, world| disturb(fault, world, &Instruction::Starve(fault.lasts)),
    )
    .reach(Reach::Client)
    .on(MasterGroup::All)
    .lasts(Lasts::BeyondTtl),
];

fn target_client(fault: &Injection) -> anyhow::Result<usize> {
    match fault.clients[..] {
        [index] => Ok(index),
        _ => bail!("this fault needs exactly one target client"),
    }
}

/// Instructs a client to disturb its own work, e.g. to block its threads. The fault ends when the client reports the
/// end of the disturbance.
fn disturb(
    fault: &Injection,
    world: &mut World,
    instruction: &Instruction,
) -> anyhow::Result<Landed> {
    let client = target_client(fault)?;
    let suffered_before = world.clients.recorder().ended_disturbances(client);
    world.clients.instruct(client, instruction)?;
    Ok(Landed::new("ordered", move |world| {
        let recorder = world.clients.recorder();
        let has_suffered = within(Duration::from_secs(10), || {
            recorder.ended_disturbances(client) > suffered_before
        });
        ensure!(
            has_suffered,
            "the client did not report that the fault has ended"
        );
        Ok(())
    }))
}
