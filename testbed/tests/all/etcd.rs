//! Tests of the documented behavior of `Etcd`, on real servers.

use std::time::Duration;

use quorate_testbed::{Error, Etcd, EtcdOptions, ServerDir, TestServer as _, not_run, within};

const PATIENCE: Duration = Duration::from_secs(30);

/// Whether etcd can be started on this machine. If not, reports that the test `test` did not run.
fn is_available(test: &str) -> bool {
    match Etcd::missing() {
        None => true,
        Some(why) => {
            not_run(test, &why);
            false
        }
    }
}

#[test]
fn etcd_member_can_be_stopped_killed_and_restarted_and_keeps_its_keys() {
    if !is_available("etcd_member_can_be_stopped_killed_and_restarted_and_keeps_its_keys") {
        return;
    }
    let server = Etcd::start().unwrap();
    assert_eq!(server.leader(), Some(0));
    assert_eq!(server.url("/a/b"), format!("etcd://{}/a/b", server.addr(0)));
    server.ctl(&["put", "a", "1"]).unwrap();
    server.stop(0).unwrap();
    assert_eq!(server.leader(), None);
    server.cont(0).unwrap();
    assert_eq!(server.leader(), Some(0));
    Etcd::kill(&server, 0).unwrap();
    assert!(server.stop(0).is_err());
    Etcd::restart(&server, 0).unwrap();
    assert_eq!(
        server.ctl(&["get", "a", "--print-value-only"]).unwrap(),
        "1\n"
    );
}

#[test]
fn etcd_cluster_elects_another_leader_when_its_leader_dies() {
    if !is_available("etcd_cluster_elects_another_leader_when_its_leader_dies") {
        return;
    }
    let cluster = Etcd::cluster(3).unwrap();
    let first = cluster.leader().unwrap();
    Etcd::kill(&cluster, first).unwrap();
    let next = || cluster.leader().filter(|leader| *leader != first);
    assert!(within(PATIENCE, || next().is_some()));
    Etcd::restart(&cluster, first).unwrap();
    assert!(next().is_some());
}

fn put(cluster: &Etcd, value: &str) {
    cluster.ctl(&["put", "a", value]).unwrap();
}

fn value(cluster: &Etcd) -> String {
    cluster.ctl(&["get", "a", "--print-value-only"]).unwrap()
}

#[test]
fn etcd_cluster_has_the_keys_of_a_restored_snapshot_and_none_after_an_empty_start() {
    if !is_available(
        "etcd_cluster_has_the_keys_of_a_restored_snapshot_and_none_after_an_empty_start",
    ) {
        return;
    }
    let cluster = Etcd::cluster(3).unwrap();
    let addresses = cluster.addrs();
    let home = ServerDir::create(None).unwrap();
    let file = home.path().join("snapshot");
    put(&cluster, "before");
    cluster.save_snapshot(&file).unwrap();
    put(&cluster, "after");
    cluster.restore_snapshot(&file).unwrap();
    assert_eq!(value(&cluster), "before\n");
    cluster.restart_empty().unwrap();
    assert_eq!(value(&cluster), "");
    put(&cluster, "again");
    assert_eq!(value(&cluster), "again\n");
    assert_eq!(cluster.addrs(), addresses);
}

#[test]
fn etcd_member_has_no_leader_until_the_dead_majority_is_started_again() {
    if !is_available("etcd_member_has_no_leader_until_the_dead_majority_is_started_again") {
        return;
    }
    let cluster = Etcd::cluster(3).unwrap();
    put(&cluster, "1");
    Etcd::kill(&cluster, 0).unwrap();
    Etcd::kill(&cluster, 2).unwrap();
    let has_leader = || cluster.figure(1, "etcd_server_has_leader");
    assert!(within(PATIENCE, || has_leader() == Some(0.0)));
    cluster.start_dead_members().unwrap();
    assert_eq!(has_leader(), Some(1.0));
    assert_eq!(value(&cluster), "1\n");
}

#[test]
fn etcd_with_a_small_quota_refuses_values_from_the_input_when_it_is_full() {
    if !is_available("etcd_with_a_small_quota_refuses_values_from_the_input_when_it_is_full") {
        return;
    }
    let options = EtcdOptions::new().argument("--quota-backend-bytes=3145728");
    let cluster = Etcd::start_with(&options).unwrap();
    let megabyte = vec![b'x'; 1 << 20];
    let put = |key: &str| cluster.ctl_with_input(&["put", key], &megabyte);
    put("0").unwrap();
    let stored = cluster.ctl(&["get", "0", "--print-value-only"]).unwrap();
    assert_eq!(stored.trim_end().len(), megabyte.len());
    let refusal = (1..5).find_map(|key| put(&key.to_string()).err());
    assert!(
        matches!(&refusal, Some(Error::Refused(output)) if output.contains("database space exceeded")),
        "{refusal:?}"
    );
}
