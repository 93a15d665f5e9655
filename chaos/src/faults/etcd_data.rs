//! Faults after which an etcd master has older data or none: a snapshot is restored, or a data directory is emptied.
//!
//! The observer of the master is a process that knows the cluster from before the fault. So it must refuse the cluster
//! until the identity key has a new value.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use quorate_testbed::{Etcd, Fault, Injected, TestServer, within};

use super::etcd::{cluster, has_marker, write_marker};
use super::kind::{ExclusionBreach, InjectIntoAll, Injection, Lasts, Reach, Row};
use super::landed::Landed;
use crate::node::MasterGroup;
use crate::node::etcd::{ETCD, IDENTITY_KEY, prepare};
use crate::world::{Needs, World};

const PATIENCE: Duration = Duration::from_secs(20);
/// A part of the fault with which a process refuses a cluster that was restored from a snapshot.
const RESTORED: &str = "restored from an older snapshot";
/// A part of the fault with which every process refuses a cluster without an identity key.
const UNPREPARED: &str = "prepare-server";

pub(super) const ROWS: &[Row] = &[
    lost_data(
        "etcd-restore",
        "an older snapshot of an etcd cluster is restored as the documentation demands: no client can reach the \
         cluster until max_ttl has passed and its identity was changed",
        restore,
    )
    .needs(Needs::Proxies),
    lost_data(
        "etcd-restore-majority",
        "as `etcd-restore`, for a majority of the masters, all etcd",
        restore,
    )
    .reach(Reach::Majority)
    .needs(Needs::Proxies),
    lost_data(
        "etcd-emptied",
        "the data directories of an etcd cluster are emptied; it gets a new identity after max_ttl",
        empty,
    ),
    lost_data(
        "etcd-amnesia",
        "the data directories of a majority of the masters, all etcd, are emptied, and get new identities at once; the \
         restart guard is off",
        forget,
    )
    .reach(Reach::Majority)
    .lasts(Lasts::Moment)
    .breaks(ExclusionBreach::MustUnguarded),
];

const fn lost_data(
    name: &'static str,
    description: &'static str,
    inject_function: InjectIntoAll,
) -> Row {
    Row::all(name, description, inject_function)
        .on(MasterGroup::Of(ETCD))
        .restarts()
        .lasts(Lasts::BeyondGuard)
        .breaks(ExclusionBreach::UnguardedOnAll)
}

/// Two markers of a fault. The first is written before the data is saved, the second one after it.
fn markers(fault: &Injection) -> (u64, u64) {
    (2 * fault.detail_seed, 2 * fault.detail_seed + 1)
}

/// Restores snapshots that lack the last changes. At the end of the fault, changes the identities of the clusters.
fn restore(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let (before, after) = markers(fault);
    let folder = tempfile::tempdir()?;
    for &index in &fault.masters {
        let cluster = cluster(world, index)?;
        write_marker(cluster, before)?;
        cluster.save_snapshot(&snapshot(folder.path(), index))?;
    }
    thread::sleep(fault.drawn_time(100, 700));
    for &index in &fault.masters {
        write_marker(cluster(world, index)?, after)?;
        // From now on, the observer knows the latest revision.
        await_observer(world, index)?;
    }
    let barriers = keep_away(world, &fault.masters);
    let restored = fault.masters.clone();
    let observe = move |world: &World| {
        restart_all(world, &restored, |cluster, index| {
            cluster.restore_snapshot(&snapshot(folder.path(), index))?;
            ensure!(
                has_marker(cluster, before)? && !has_marker(cluster, after)?,
                "the cluster must have exactly the changes that were made before the snapshot"
            );
            Ok(())
        })?;
        ensure_refused(world, &restored, RESTORED)?;
        Ok("the changes after the snapshot are gone; a process that knows them refuses to use the cluster".into())
    };
    let masters = fault.masters.clone();
    Landed::once_observed(world, observe, move |world| {
        renew_identities(world, &masters)?;
        drop(barriers);
        Ok(())
    })
}

/// The path of the snapshot of this master.
fn snapshot(folder: &Path, index: usize) -> PathBuf {
    folder.join(index.to_string())
}

/// Lets no client reach these masters until the returned values are dropped.
fn keep_away(world: &World, masters: &[usize]) -> Vec<Injected> {
    let mut barriers = Vec::new();
    for paths in &world.paths {
        for &index in masters {
            barriers.extend(paths[index].inject(&Fault::Refuse));
            paths[index].reset_all();
        }
    }
    barriers
}

/// Empties the data directories. At the end of the fault, gives the clusters new identities.
fn empty(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let marker = fault.detail_seed;
    for &index in &fault.masters {
        write_marker(cluster(world, index)?, marker)?;
    }
    let emptied = fault.masters.clone();
    let observe = move |world: &World| {
        start_empty(world, &emptied, marker)?;
        ensure_refused(world, &emptied, UNPREPARED)?;
        Ok("all keys are gone, and no process uses the cluster".into())
    };
    let masters = fault.masters.clone();
    Landed::once_observed(world, observe, move |world| {
        renew_identities(world, &masters)
    })
}

/// Empties the data directories, and gives the clusters new identities at once.
fn forget(fault: &Injection, world: &mut World) -> anyhow::Result<Landed> {
    let marker = fault.detail_seed;
    for &index in &fault.masters {
        write_marker(cluster(world, index)?, marker)?;
    }
    start_empty(world, &fault.masters, marker)?;
    renew_identities(world, &fault.masters)?;
    Ok(Landed::momentary(
        "all keys are gone, and the clusters have new identities",
    ))
}

/// Starts clusters with empty data directories. They must not have the marker.
fn start_empty(world: &World, masters: &[usize], marker: u64) -> anyhow::Result<()> {
    restart_all(world, masters, |cluster, _| {
        cluster.restart_empty()?;
        ensure!(
            !has_marker(cluster, marker)?,
            "the cluster must have lost its keys"
        );
        Ok(())
    })
}

/// Kills all clusters, and then starts them at the same time with the function `start`. Otherwise a holder could notice
/// the first restart and stop working.
fn restart_all(
    world: &World,
    masters: &[usize],
    start: impl Fn(&Etcd, usize) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let mut clusters = Vec::new();
    for &index in masters {
        let cluster = cluster(world, index)?;
        TestServer::kill(cluster)?;
        clusters.push((cluster, index));
    }
    thread::scope(|scope| {
        let start = &start;
        let threads: Vec<_> = clusters
            .into_iter()
            .map(|(cluster, index)| scope.spawn(move || start(cluster, index)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// Checks that the observers of these masters refuse them with a fault that contains `reason`.
fn ensure_refused(world: &World, masters: &[usize], reason: &str) -> anyhow::Result<()> {
    for &index in masters {
        let mut answer = String::new();
        let is_refused = || {
            answer = match world.keys(index) {
                Ok(_) => "its locks".to_owned(),
                Err(error) => format!("{error:#}"),
            };
            answer.contains(reason) || answer == "its locks"
        };
        // Until the observer is connected again, it reports another fault.
        within(PATIENCE, is_refused);
        ensure!(
            answer.contains(reason),
            "the observer of m{} must refuse it ({reason}), but got: {answer}",
            index + 1
        );
    }
    Ok(())
}

/// Gives each cluster a new identity, as the documentation demands. The observers must then use the clusters again.
fn renew_identities(world: &World, masters: &[usize]) -> anyhow::Result<()> {
    for &index in masters {
        let cluster = cluster(world, index)?;
        // After a failed injection, members may be dead.
        cluster.start_dead_members()?;
        cluster.ctl(&["del", IDENTITY_KEY])?;
        prepare(cluster)?;
        await_observer(world, index)
            .context("the observer must use the cluster with its new identity")?;
    }
    Ok(())
}

/// Waits until the observer of this master has read its locks. After another fault, the first attempts can fail, because
/// the observer is not connected.
fn await_observer(world: &World, index: usize) -> anyhow::Result<()> {
    let mut observed = Ok(());
    within(PATIENCE, || {
        observed = world.keys(index).map(drop);
        observed.is_ok()
    });
    observed
}
