//! Faults of an etcd master: its members die or stop, its leader is lost, or its database is full.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use quorate_testbed::{Error, Etcd, TestServer, within};

use super::kind::{Injection, Lasts, Row};
use super::landed::Landed;
use crate::node::MasterGroup;
use crate::node::etcd::{CLUSTER, ETCD};
use crate::world::World;

/// The time limit for each wait: for a new leader, for the loss of a leader, or for room in the database.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const ROWS: &[Row] = &[
    Row::each(
        "etcd-kill",
        "SIGKILL to all members of an etcd cluster, which restarts with every write that it has acknowledged",
        kill,
    )
    .on(MasterGroup::Of(ETCD))
    .lasts(Lasts::Short),
    Row::each(
        "etcd-leader-kill",
        "SIGKILL to the leader of an etcd cluster, or to its only member; then a restart",
        kill_leader,
    )
    .on(MasterGroup::Of(ETCD))
    .lasts(Lasts::Short),
    Row::each(
        "etcd-leader-stop",
        "SIGSTOP to the leader of an etcd cluster, or to its only member, and SIGCONT later",
        stop_leader,
    )
    .on(MasterGroup::Of(ETCD))
    .lasts(Lasts::BeyondTtl),
    Row::each(
        "etcd-follower-stop",
        "SIGSTOP to a member of an etcd cluster that is not the leader, and SIGCONT later",
        stop_follower,
    )
    .on(MasterGroup::Named(CLUSTER))
    .lasts(Lasts::BeyondTtl),
    Row::each(
        "etcd-leaderless",
        "SIGKILL to all members of an etcd cluster but one, which answers, but has no leader",
        kill_all_but_one,
    )
    .on(MasterGroup::Named(CLUSTER))
    .lasts(Lasts::BeyondTtl),
    Row::each(
        "etcd-nospace",
        "the database of an etcd cluster has reached its quota: alarm NOSPACE",
        fill,
    )
    .on(MasterGroup::Of(ETCD)),
];

pub(super) fn cluster(world: &World, index: usize) -> anyhow::Result<&Etcd> {
    world.masters[index].concrete::<Etcd>()
}

fn marker_key(marker: u64) -> String {
    format!("/chaos/marker/{marker}")
}

/// Writes a marker, which the cluster acknowledges.
pub(super) fn write_marker(cluster: &Etcd, marker: u64) -> anyhow::Result<()> {
    cluster.ctl(&["put", &marker_key(marker), "written"])?;
    Ok(())
}

/// Whether the cluster has this marker.
pub(super) fn has_marker(cluster: &Etcd, marker: u64) -> anyhow::Result<bool> {
    let value = cluster.ctl(&["get", "--print-value-only", &marker_key(marker)])?;
    Ok(value == "written\n")
}

/// Starts the dead members. The cluster must still have a write that it acknowledged just before the fault.
fn start_with_marker(cluster: &Etcd, marker: u64) -> anyhow::Result<()> {
    cluster.start_dead_members()?;
    ensure!(
        has_marker(cluster, marker)?,
        "the cluster restarted without its last write"
    );
    Ok(())
}

/// The leader of the cluster, once it has one other than `former`.
fn await_leader(cluster: &Etcd, former: Option<usize>) -> anyhow::Result<usize> {
    let mut leader = None;
    within(PATIENCE, || {
        leader = cluster.leader().filter(|leader| Some(*leader) != former);
        leader.is_some()
    });
    leader.context("the cluster has no leader")
}

/// Waits until another member is the leader. Returns the observed effect of a fault of the former leader.
fn describe_loss(cluster: &Etcd, former: usize, state: &str) -> anyhow::Result<String> {
    let loss = format!("member {} was the leader and is {state}", former + 1);
    if cluster.members() == 1 {
        return Ok(loss);
    }
    let next = await_leader(cluster, Some(former))?;
    Ok(format!("{loss}; member {} is the leader now", next + 1))
}

fn kill(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let (members, marker) = (cluster(world, index)?, fault.detail_seed);
    write_marker(members, marker)?;
    TestServer::kill(members)?;
    Ok(Landed::new(
        "all members are dead, and their ports refuse connections",
        move |world| start_with_marker(cluster(world, index)?, marker),
    ))
}

fn kill_leader(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let (members, marker) = (cluster(world, index)?, fault.detail_seed);
    write_marker(members, marker)?;
    let leader = await_leader(members, None)?;
    Etcd::kill(members, leader)?;
    let observe = |world: &World| describe_loss(cluster(world, index)?, leader, "dead");
    Landed::once_observed(world, observe, move |world| {
        start_with_marker(cluster(world, index)?, marker)
    })
}

fn stop_leader(_: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let members = cluster(world, index)?;
    let leader = await_leader(members, None)?;
    Etcd::stop(members, leader)?;
    let state = "stopped (process state T)";
    let observe = |world: &World| describe_loss(cluster(world, index)?, leader, state);
    Landed::once_observed(world, observe, move |world| {
        continue_member(cluster(world, index)?, leader)
    })
}

fn stop_follower(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let members = cluster(world, index)?;
    let leader = await_leader(members, None)?;
    let followers: Vec<usize> = (0..members.members())
        .filter(|member| *member != leader)
        .collect();
    let follower = *fault.drawn_element(&followers);
    Etcd::stop(members, follower)?;
    let effect = format!(
        "member {} is stopped (process state T); member {} is the leader",
        follower + 1,
        leader + 1
    );
    Ok(Landed::new(effect, move |world| {
        continue_member(cluster(world, index)?, follower)
    }))
}

fn continue_member(cluster: &Etcd, member: usize) -> anyhow::Result<()> {
    Etcd::cont(cluster, member)?;
    Ok(cluster.wait_ready()?)
}

fn kill_all_but_one(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let (members, marker) = (cluster(world, index)?, fault.detail_seed);
    write_marker(members, marker)?;
    let numbers: Vec<usize> = (0..members.members()).collect();
    let survivor = *fault.drawn_element(&numbers);
    for member in numbers.into_iter().filter(|member| *member != survivor) {
        Etcd::kill(members, member)?;
    }
    let observe = move |world: &World| {
        let members = cluster(world, index)?;
        let has_none = || members.figure(survivor, "etcd_server_has_leader") == Some(0.0);
        ensure!(
            within(PATIENCE, has_none),
            "the last member must have no leader"
        );
        Ok(format!("member {} runs and has no leader", survivor + 1))
    };
    Landed::once_observed(world, observe, move |world| {
        start_with_marker(cluster(world, index)?, marker)
    })
}

/// The beginning of the keys whose values fill the database.
const FILLER: &str = "/chaos/filler/";

/// Writes values until the cluster refuses them.
fn fill(fault: &Injection, index: usize, world: &mut World) -> anyhow::Result<Landed> {
    let marker = fault.detail_seed;
    let observe = |world: &World| {
        let cluster = cluster(world, index)?;
        let count = fill_database(cluster)?;
        let alarms = cluster.ctl(&["alarm", "list"])?;
        ensure!(
            alarms.contains("NOSPACE"),
            "the cluster must raise the alarm NOSPACE, but its alarms are {alarms:?}"
        );
        Ok(format!(
            "alarm NOSPACE after {count} more values of 1 MB; a small value is refused as well"
        ))
    };
    Landed::once_observed(world, observe, move |world| {
        make_room(cluster(world, index)?, marker)
    })
}

/// Fills the database. Returns the number of values that the cluster has stored.
fn fill_database(cluster: &Etcd) -> anyhow::Result<usize> {
    let large = vec![b'x'; 1 << 20];
    let is_full = |key: &str, value: &[u8]| {
        let stored = cluster.ctl_with_input(&["put", &format!("{FILLER}{key}")], value);
        match stored {
            Ok(_) => Ok(false),
            Err(Error::Refused(output)) if output.contains("database space exceeded") => Ok(true),
            Err(error) => Err(error),
        }
    };
    for count in 0..100 {
        if is_full(&count.to_string(), &large)? {
            ensure!(
                is_full("small", b"x")?,
                "a full database must refuse every value"
            );
            return Ok(count);
        }
    }
    bail!("100 values of 1 MB must exceed the quota");
}

/// Does what an administrator does about a full database: deletes, compacts, defragments, and disarms the alarm. The
/// cluster must then accept a value.
fn make_room(cluster: &Etcd, marker: u64) -> anyhow::Result<()> {
    let mut outcome = Ok(());
    within(PATIENCE, || {
        outcome = free_space(cluster).and_then(|()| write_marker(cluster, marker));
        outcome.is_ok()
    });
    outcome.context("the cluster must accept values again")
}

fn free_space(cluster: &Etcd) -> anyhow::Result<()> {
    cluster.ctl(&["del", "--prefix", FILLER])?;
    let revision = revision(cluster)?.to_string();
    let compacted = cluster.ctl(&["compact", "--physical", &revision]);
    match compacted {
        // The cluster also compacts by itself.
        Err(Error::Refused(output)) if output.contains("has been compacted") => {}
        compacted => {
            compacted?;
        }
    }
    cluster.ctl(&["defrag"])?;
    cluster.ctl(&["alarm", "disarm"])?;
    Ok(())
}

/// The number of changes that the cluster has made.
fn revision(cluster: &Etcd) -> anyhow::Result<u64> {
    let answer = cluster.ctl(&["get", "--write-out=json", FILLER])?;
    let answer: serde_json::Value = serde_json::from_str(&answer)?;
    let revision = &answer["header"]["revision"];
    revision
        .as_u64()
        .with_context(|| format!("the answer has no revision: {answer}"))
}
