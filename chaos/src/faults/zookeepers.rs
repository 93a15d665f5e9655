//! Faults of a ZooKeeper master: its leader dies or stops, or client sessions expire.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use quorate_testbed::{Fault, Injected, Way, ZooKeeper, within};

use super::kind::{Injection, Lasts, Row};
use super::landed::Landed;
use crate::node::Which;
use crate::node::zookeeper::ZOOKEEPER;
use crate::world::{Needs, World};

/// The time limit for each wait: for a new leader, for a client session, or for the end of a client session.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const ROWS: &[Row] = &[
    Row::each(
        "zk-leader-kill",
        "SIGKILL to the leader of a ZooKeeper ensemble, or to its only server; then a restart",
        kill_leader,
    )
    .on(Which::Of(ZOOKEEPER))
    .lasts(Lasts::Short),
    Row::each(
        "zk-leader-stop",
        "SIGSTOP to the leader of a ZooKeeper ensemble, or to its only server, until sessions have expired",
        stop_leader,
    )
    .on(Which::Of(ZOOKEEPER))
    .lasts(Lasts::BeyondTtl),
    Row::each(
        "zk-session-expires",
        "a ZooKeeper ensemble receives nothing from clients until it has closed their sessions",
        expire,
    )
    .on(Which::Of(ZOOKEEPER))
    .needs(Needs::Proxies)
    .lasts(Lasts::BeyondTtl),
];

fn leader(ensemble: &ZooKeeper) -> anyhow::Result<usize> {
    let mut leader = None;
    within(PATIENCE, || {
        leader = ensemble.leader();
        leader.is_some()
    });
    leader.context("the ensemble has no leader")
}

fn kill_leader(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let ensemble = world.masters[index].concrete::<ZooKeeper>()?;
    let leader = leader(ensemble)?;
    ensemble.kill(leader)?;
    let seen = format!("server {} was the leader and was killed", leader + 1);
    Ok(Landed::new(seen, move |world| {
        Ok(world.masters[index]
            .concrete::<ZooKeeper>()?
            .restart(leader)?)
    }))
}

fn stop_leader(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let ensemble = world.masters[index].concrete::<ZooKeeper>()?;
    let leader = leader(ensemble)?;
    ensemble.stop(leader)?;
    let seen = format!(
        "server {} was the leader and is stopped (process state T)",
        leader + 1
    );
    Ok(Landed::new(seen, move |world| {
        let ensemble = world.masters[index].concrete::<ZooKeeper>()?;
        ensemble.cont(leader)?;
        Ok(ensemble.wait_ready()?)
    }))
}

/// Holds back all messages between the affected clients and the server until the server has closed the session of at
/// least one of these clients.
fn expire(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let ensemble = world.masters[index].concrete::<ZooKeeper>()?;
    let mut before = BTreeSet::new();
    // Clients may still be reconnecting after an earlier fault, so wait until at least one client has a session.
    within(PATIENCE, || {
        before = sessions(ensemble).unwrap_or_default();
        !before.is_empty()
    });
    ensure!(!before.is_empty(), "no client has a session");
    let clients = fault.clients_in(world);
    let held: Vec<Injected> = clients
        .iter()
        .flat_map(|client| world.roads[*client][index].inject(&Fault::Hold(Way::Both)))
        .collect();
    let seen = format!(
        "{} sessions exist, messages of {} clients are held back",
        before.len(),
        clients.len()
    );
    Ok(Landed::new(seen, move |world| {
        let ensemble = world.masters[index].concrete::<ZooKeeper>()?;
        let closed = within(PATIENCE, || {
            sessions(ensemble).is_ok_and(|now| before.difference(&now).next().is_some())
        });
        drop(held);
        ensure!(
            closed,
            "the ensemble closed no session, although it received nothing from clients"
        );
        Ok(())
    }))
}

/// The ids of the sessions that the leader of the ensemble has open.
fn sessions(ensemble: &ZooKeeper) -> anyhow::Result<BTreeSet<String>> {
    let dump = ensemble.ask(leader(ensemble)?, "dump")?;
    let (all, _) = dump.split_once("ephemeral").unwrap_or((&dump, ""));
    let words = all.split_whitespace().filter(|word| word.starts_with("0x"));
    Ok(words.map(str::to_owned).collect())
}
