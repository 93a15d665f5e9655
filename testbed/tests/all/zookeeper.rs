//! Tests of the documented behavior of `ZooKeeper`, on real servers.

use std::time::Duration;

use quorate_testbed::{ZooKeeper, not_run, within};

/// Whether ZooKeeper can be started on this machine. If not, reports that the test `test` did not run.
fn is_available(test: &str) -> bool {
    match ZooKeeper::available() {
        Ok(()) => true,
        Err(why) => {
            not_run(test, &why);
            false
        }
    }
}

#[test]
fn zookeeper_server_can_be_stopped_killed_and_restarted() {
    if !is_available("zookeeper_server_can_be_stopped_killed_and_restarted") {
        return;
    }
    let server = ZooKeeper::start().unwrap();
    assert_eq!(server.ask(0, "ruok").unwrap(), "imok");
    assert_eq!(server.leader(), Some(0));
    assert_eq!(server.url("/a/b"), format!("zk://{}/a/b", server.addr(0)));
    assert!(server.figure(0, "zk_znode_count").unwrap() > 0);
    server.stop(0).unwrap();
    assert!(server.ask(0, "ruok").is_err());
    server.cont(0).unwrap();
    assert_eq!(server.ask(0, "ruok").unwrap(), "imok");
    server.kill(0).unwrap();
    assert!(server.ask(0, "ruok").is_err());
    assert!(server.stop(0).is_err());
    server.restart(0).unwrap();
    assert_eq!(server.ask(0, "ruok").unwrap(), "imok");
}

#[test]
fn zookeeper_ensemble_elects_another_leader_when_its_leader_dies() {
    if !is_available("zookeeper_ensemble_elects_another_leader_when_its_leader_dies") {
        return;
    }
    let ensemble = ZooKeeper::ensemble(3).unwrap();
    let first = ensemble.leader().unwrap();
    ensemble.kill(first).unwrap();
    let next = || ensemble.leader().filter(|leader| *leader != first);
    assert!(within(Duration::from_secs(30), || next().is_some()));
    ensemble.restart(first).unwrap();
    assert!(next().is_some());
}
