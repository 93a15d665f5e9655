//! Tests which faults clients report when ZooKeeper fails, permanently or temporarily, and how clients recover.

use std::time::{Duration, Instant};

use crate::support::*;
use quorate::node::Fault;
use quorate::node::store::{Committed, Session, Store};
use quorate::{Redlock, Wait};
use quorate_testbed::ZooKeeperOptions;
use quorate_zookeeper::{ZooKeeper, node, prepare};

async fn connect_fault(url: &str) -> Fault {
    let store = ZooKeeper::open(url).unwrap();
    let outcome = tokio::time::timeout(PATIENCE, store.connect()).await;
    match outcome.expect("an answer") {
        Ok(_) => panic!("{url} must refuse the connection"),
        Err(fault) => fault,
    }
}

test!(missing_path_is_reported_with_the_command_that_creates_it, server => {
    let url = server.zookeeper.url("/not/there");
    let fault = connect_fault(&url).await;
    let command = format!("quorate prepare-server {url}");
    assert!(matches!(&fault, Fault::Unprepared(why) if why.contains(&command)), "{fault}");
    // A listener must report the same fault as a session.
    let listen_outcome = ZooKeeper::open(&url).unwrap().listen("00000000000000aa".into()).await;
    assert!(matches!(listen_outcome.map(|_| ()), Err(Fault::Unprepared(_))));
    let first_report = prepare(&url).await.unwrap();
    assert!(first_report.made && first_report.path == "/not/there");
    let second_report = prepare(&url).await.unwrap();
    assert!(!second_report.made && second_report.identity == first_report.identity);
    ZooKeeper::open(&url).unwrap().connect().await.unwrap();
});

test!(two_paths_of_one_ensemble_count_as_one_server, server => {
    let (_, first_path) = server.store().connect().await.unwrap();
    let url = server.zookeeper.url("/elsewhere");
    prepare(&url).await.unwrap();
    let (_, second_path) = ZooKeeper::open(&url).unwrap().connect().await.unwrap();
    assert!(first_path.server.is_some() && first_path.server == second_path.server);
    let other_server = TestServer::start(ZooKeeperOptions::new()).await;
    let (_, other_greeting) = other_server.store().connect().await.unwrap();
    assert_ne!(first_path.server, other_greeting.server);
    assert_ne!(first_path.run, other_greeting.run);
});

#[tokio::test]
async fn server_of_another_kind_ends_an_endless_wait() {
    for (greeting, remedy) in [
        (&b"-ERR unknown command 'srvr'\r\n"[..], "use redis://"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
    ] {
        let server = quorate_testbed::answers(greeting).unwrap();
        let url = format!("zk://{server}/a");
        let fault = connect_fault(&url).await;
        assert_eq!(fault.kind(), "unsupported", "{fault}");
        assert!(fault.to_string().contains(remedy), "{fault}");
        let builder = Redlock::builder()
            .node(node(&url).unwrap())
            .wait(Wait::Forever);
        let waiting_client = builder.build().unwrap();
        let outcome = tokio::time::timeout(PATIENCE, waiting_client.acquire("x")).await;
        let error = outcome.expect("the wait must end").unwrap_err().details();
        assert!(error.contains(remedy), "{error}");
        // A member that is down may be a ZooKeeper server.
        let fault = connect_fault(&format!("zk://{server}+127.0.0.1:1/a")).await;
        assert_eq!(fault.kind(), "down", "{fault}");
    }
}

test!(path_removed_during_a_session_is_reported_and_not_created_again, server => {
    let (mut session, _) = server.store().connect().await.unwrap();
    let admin = admin(&server).await;
    for path in ["/a/locks/records", "/a/locks/wake", "/a/locks/identity", "/a/locks"] {
        admin.delete(path, None).await.unwrap();
    }
    let fault = session.commit(&[commit(change("a", 0, b"x"))]).await.unwrap_err();
    assert!(matches!(fault, Fault::Unprepared(_)), "{fault}");
    assert!(matches!(connect_fault(&server.url()).await, Fault::Unprepared(_)));
});

test!(znodes_of_a_user_are_readable_by_that_user_only, server => {
    let url_as = |user: &str| server.zookeeper.url("/guarded").replace("zk://", &format!("zk://{user}"));
    prepare(&url_as("ann:s3cret@")).await.unwrap();
    let owner_store = ZooKeeper::open(&url_as("ann:s3cret@")).unwrap();
    let (mut session, _) = owner_store.connect().await.unwrap();
    assert!(matches!(commit_one(&mut session, change("a", 0, b"1")).await, Committed::Done(_)));
    for user in ["", "ann:wrong@", "bob:s3cret@"] {
        let fault = connect_fault(&url_as(user)).await;
        assert!(matches!(fault, Fault::Denied(_)), "{user}: {fault}");
        assert!(!fault.to_string().contains("s3cret"));
        let prepare_error = prepare(&url_as(user)).await.unwrap_err().to_string();
        assert!(prepare_error.contains("access denied") && !prepare_error.contains("s3cret"), "{prepare_error}");
        let inspection = ZooKeeper::open(&url_as(user)).unwrap().inspect().await;
        assert!(matches!(inspection.fault, Some(Fault::Denied(_))), "{inspection:?}");
    }
    assert!(!format!("{owner_store:?}").contains("s3cret"));
});

test!(server_with_too_short_sessions_is_refused_with_the_remedy, _server => {
    // Long enough that a busy machine does not miss a heartbeat of a session.
    let options = ZooKeeperOptions::new().sessions(Duration::from_millis(100), Duration::from_secs(4));
    let server = TestServer::start_unprepared(options).await;
    let fault = connect_fault(&format!("{}?timeout=2500ms", server.zookeeper.url("/a/locks"))).await;
    assert!(
        matches!(&fault, Fault::Unsupported(why) if why.contains("4s") && why.contains("maxSessionTimeout")),
        "{fault}"
    );
    let url = format!("{}?timeout=1500ms", server.zookeeper.url("/a/locks"));
    prepare(&url).await.unwrap();
    ZooKeeper::open(&url).unwrap().connect().await.unwrap();
});

test!(server_that_is_not_running_is_reported_as_down_with_the_reason, server => {
    server.zookeeper.kill(0).unwrap();
    let fault = connect_fault(&server.url()).await;
    let host = server.zookeeper.addr(0).to_string();
    assert!(matches!(&fault, Fault::Down(why) if why.contains(&host) && why.contains("refused")), "{fault}");
    let fault = connect_fault("zk://nowhere.invalid:2181/a").await;
    assert!(matches!(&fault, Fault::Down(why) if why.contains("nowhere.invalid")), "{fault}");
});

test!(
    server_without_room_for_another_connection_is_reported_as_down_with_the_reason,
    ZooKeeperOptions::new().setting("maxClientCnxns=4"),
    server => {
        let store = server.store();
        let mut sessions = Vec::new();
        let fault = loop {
            match store.connect().await {
                Ok((session, _)) => sessions.push(session),
                Err(fault) => break fault,
            }
            assert!(sessions.len() <= 4, "the server must accept at most four connections");
        };
        assert!(matches!(&fault, Fault::Down(why) if why.contains("maxClientCnxns")), "{fault}");
    }
);

test!(inspection_reports_the_server_and_its_faults, server => {
    let inspection = server.store().inspect().await;
    assert_eq!(inspection.fault, None);
    assert_eq!(inspection.server.as_deref(), Some("zookeeper"));
    assert_eq!(inspection.role.as_deref(), Some("standalone"));
    assert!(inspection.version.as_ref().is_some_and(|version| version.starts_with("3.")), "{inspection:?}");
    assert!(inspection.wake_ups && inspection.run_id.is_some());
    assert!(inspection.round_trip.is_some() && inspection.connecting.is_some());
    // A client that connects creates and removes a znode to test its rights. This must not leave a record.
    assert!(connect(&server).await.page(0, 10).await.unwrap().what.is_empty());
    server.zookeeper.stop(0).unwrap();
    let started_at = Instant::now();
    let inspection = ZooKeeper::open(&server.url_with("timeout=200ms")).unwrap().inspect().await;
    assert!(inspection.fault.is_some() && !inspection.wake_ups, "{inspection:?}");
    assert!(started_at.elapsed() < Duration::from_secs(10));
    server.zookeeper.cont(0).unwrap();
});

test!(
    ensemble_that_loses_its_leader_keeps_all_acknowledged_changes,
    ZooKeeperOptions::new().members(3),
    server => {
        let store = server.store();
        let (mut session, first_greeting) = store.connect().await.unwrap();
        let (mut acknowledged, mut version) = (0, 0);
        for round in 0..3 {
            for _ in 0..20 {
                match commit_one(&mut session, change("a", version, &[round])).await {
                    Committed::Done(versions) => version = versions[0],
                    // An uncertain commit of the previous round may be applied after `version` was read.
                    Committed::Stale => {
                        assert_eq!(load(&mut session, "a").await.0, version + 1, "only an earlier request of this client may have written the record");
                        version += 1;
                        continue;
                    }
                }
                acknowledged += 1;
            }
            let leader = server.zookeeper.leader().unwrap();
            server.zookeeper.kill(leader).unwrap();
            let uncertain = session.commit(&[commit(change("a", version, &[round]))]).await;
            session = reconnect(&store).await;
            let (version_now, _) = load(&mut session, "a").await;
            match uncertain {
                Ok(reply) => assert_eq!(reply.what, [Committed::Done(vec![version_now])]),
                Err(_) => assert!(version_now == version || version_now == version + 1, "one uncertain change must not raise the version from {version} to {version_now}"),
            }
            version = version_now;
            let zookeeper = &server.zookeeper;
            tokio::task::block_in_place(|| zookeeper.restart(leader)).unwrap();
        }
        let (mut session, last_greeting) = store.connect().await.unwrap();
        // In each of the 3 rounds, the result of one commit is unknown, so this commit may have been applied.
        let (last_version, _) = load(&mut session, "a").await;
        let write_count = times_written(last_version);
        assert!((acknowledged..=acknowledged + 3).contains(&write_count), "the {acknowledged} acknowledged changes and at most three others must be applied, not {write_count} changes");
        assert_eq!((first_greeting.run, first_greeting.server), (last_greeting.run, last_greeting.server));
        let inspection = store.inspect().await;
        assert!(matches!(inspection.role.as_deref(), Some("leader" | "follower")), "{inspection:?}");
    }
);

test!(
    clients_can_connect_to_an_ensemble_while_one_member_is_stopped,
    ZooKeeperOptions::new().members(3),
    server => {
        let leader = server.zookeeper.leader().unwrap();
        let follower = (leader + 1) % 3;
        server.zookeeper.stop(follower).unwrap();
        let store = ZooKeeper::open(&server.url_with("timeout=2s")).unwrap();
        let mut version = 0;
        for _ in 0..12 {
            let connected = tokio::time::timeout(Duration::from_secs(2), store.connect()).await;
            let (mut session, _) = connected.expect("connecting must end within its timeout").unwrap();
            version = put(&mut session, "a", version, b"x").await;
        }
        server.zookeeper.cont(follower).unwrap();
    }
);

test!(
    ensemble_without_a_majority_is_reported_as_down_with_the_reason,
    ZooKeeperOptions::new().members(3),
    server => {
        let (mut session, _) = server.store().connect().await.unwrap();
        server.zookeeper.kill(0).unwrap();
        server.zookeeper.kill(1).unwrap();
        let outcome = tokio::time::timeout(PATIENCE, session.commit(&[commit(change("a", 0, b"x"))])).await;
        assert!(outcome.expect("an answer").is_err());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let fault = connect_fault(&server.url()).await;
        assert!(matches!(&fault, Fault::Down(why) if why.contains("majority")), "{fault}");
    }
);
