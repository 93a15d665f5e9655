//! Tests of the documented behavior of `Etcd`, on real servers.

use std::time::Duration;

use quorate_testbed::{Etcd, TestServer as _, not_run, within};

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
    assert!(within(Duration::from_secs(30), || next().is_some()));
    Etcd::restart(&cluster, first).unwrap();
    assert!(next().is_some());
}
