//! Faults of a ZooKeeper master: its leader dies or stops, or client sessions expire.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, ensure};
use quorate_testbed::{Fault, Injected, Way, ZooKeeper, within};

use super::kind::{Injection, Lasts, Row};
use super::landed::Landed;
use crate::node::MasterGroup;
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
    .on(MasterGroup::Of(ZOOKEEPER))
    .lasts(Lasts::Short),
    Row::each(
        "zk-leader-stop",
        "SIGSTOP to the leader of a ZooKeeper ensemble, or to its only server, until sessions have expired",
        stop_leader,
    )
    .on(MasterGroup::Of(ZOOKEEPER))
    .lasts(Lasts::BeyondTtl),
    Row::each(
        "zk-session-expires",
        "a ZooKeeper ensemble receives nothing from clients until it has closed their sessions",
        expire_sessions,
    )
    .on(MasterGroup::Of(ZOOKEEPER))
    .needs(Needs::Proxies)
    .lasts(Lasts::BeyondTtl),
];

fn await_leader(ensemble: &ZooKeeper) -> anyhow::Result<usize> {
    let mut leader = None;
    within(PATIENCE, || {
        leader = ensemble.leader();
        leader.is_some()
    });
    leader.context("the ensemble has no leader")
}

fn kill_leader(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let ensemble = world.masters[index].concrete::<ZooKeeper>()?;
    let leader = await_leader(ensemble)?;
    ensemble.kill(leader)?;
    let effect = format!("server {} was the leader and was killed", leader + 1);
    Ok(Landed::new(effect, move |world| {
        Ok(world.masters[index]
            .concrete::<ZooKeeper>()?
            .restart(leader)?)
    }))
}

fn stop_leader(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let ensemble = world.masters[index].concrete::<ZooKeeper>()?;
    let leader = await_leader(ensemble)?;
    ensemble.stop(leader)?;
    let effect = format!(
        "server {} was the leader and is stopped (process state T)",
        leader + 1
    );
    Ok(Landed::new(effect, move |world| {
        let ensemble = world.masters[index].concrete::<ZooKeeper>()?;
        ensemble.cont(leader)?;
        Ok(ensemble.wait_ready()?)
    }))
}

/// Holds back all messages between the affected clients and the server until the server has closed the session of at
/// least one of these clients.
fn expire_sessions(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let ensemble = world.masters[index].concrete::<ZooKeeper>()?;
    let mut sessions_before = BTreeSet::new();
    // Clients may still be reconnecting after an earlier fault, so wait until at least one client has a session.
    within(PATIENCE, || {
        sessions_before = open_sessions(ensemble).unwrap_or_default();
        !sessions_before.is_empty()
    });
    ensure!(!sessions_before.is_empty(), "no client has a session");
    let clients = fault.clients_in(world);
    let hold_faults: Vec<Injected> = clients
        .iter()
        .flat_map(|client| world.paths[*client][index].inject(&Fault::Hold(Way::Both)))
        .collect();
    let effect = format!(
        "{} sessions exist, messages of {} clients are held back",
        sessions_before.len(),
        clients.len()
    );
    Ok(Landed::new(effect, move |world| {
        let ensemble = world.masters[index].concrete::<ZooKeeper>()?;
        let is_closed = within(PATIENCE, || {
            open_sessions(ensemble).is_ok_and(|sessions_now| {
                sessions_before.difference(&sessions_now).next().is_some()
            })
        });
        drop(hold_faults);
        ensure!(
            is_closed,
            "the ensemble closed no session, although it received nothing from clients"
        );
        Ok(())
    }))
}

/// The ids of the sessions that the leader of the ensemble has open.
fn open_sessions(ensemble: &ZooKeeper) -> anyhow::Result<BTreeSet<String>> {
    let dump = ensemble.ask(await_leader(ensemble)?, "dump")?;
    let (session_lines, _) = dump.split_once("ephemeral").unwrap_or((&dump, ""));
    let session_ids = session_lines
        .split_whitespace()
        .filter(|id| id.starts_with("0x"));
    Ok(session_ids.map(str::to_owned).collect())
}
