//! Tests which faults clients report when ZooKeeper fails, permanently or temporarily, and how clients recover.

use std::time::{Duration, Instant};

use crate::support::*;
use quorate::node::Fault;
use quorate::node::store::{Committed, Session, Store};
use quorate::{Redlock, Wait};
use quorate_testbed::ZooKeeperOptions;
use quorate_zookeeper::{ZooKeeper, node, prepare};

async fn refusal(url: &str) -> Fault {
    let store = ZooKeeper::open(url).unwrap();
    let connected = tokio::time::timeout(PATIENCE, store.connect()).await;
    match connected.expect("an answer") {
        Ok(_) => panic!("{url} must refuse the connection"),
        Err(fault) => fault,
    }
}

test!(missing_path_is_reported_with_the_command_that_creates_it, server => {
    let url = server.zookeeper.url("/not/there");
    let refused = refusal(&url).await;
    let command = format!("quorate prepare-server {url}");
    assert!(matches!(&refused, Fault::Unprepared(why) if why.contains(&command)), "{refused}");
    // A listener must report the same fault as a session.
    let listened = ZooKeeper::open(&url).unwrap().listen("00000000000000aa".into()).await;
    assert!(matches!(listened.map(|_| ()), Err(Fault::Unprepared(_))));
    let first = prepare(&url).await.unwrap();
    assert!(first.made && first.path == "/not/there");
    let again = prepare(&url).await.unwrap();
    assert!(!again.made && again.identity == first.identity);
    ZooKeeper::open(&url).unwrap().connect().await.unwrap();
});

test!(two_paths_of_one_ensemble_count_as_one_server, server => {
    let (_, here) = server.store().connect().await.unwrap();
    let url = server.zookeeper.url("/elsewhere");
    prepare(&url).await.unwrap();
    let (_, there) = ZooKeeper::open(&url).unwrap().connect().await.unwrap();
    assert!(here.server.is_some() && here.server == there.server);
    let other = Prepared::start(ZooKeeperOptions::new()).await;
    let (_, other) = other.store().connect().await.unwrap();
    assert_ne!(here.server, other.server);
    assert_ne!(here.run, other.run);
});

#[tokio::test]
async fn server_of_another_kind_ends_an_endless_wait() {
    for (words, remedy) in [
        (&b"-ERR unknown command 'srvr'\r\n"[..], "use redis://"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
    ] {
        let server = quorate_testbed::answers(words).unwrap();
        let url = format!("zk://{server}/a");
        let fault = refusal(&url).await;
        assert_eq!(fault.kind(), "unsupported", "{fault}");
        assert!(fault.to_string().contains(remedy), "{fault}");
        let waiter = Redlock::builder()
            .node(node(&url).unwrap())
            .wait(Wait::Forever);
        let waiter = waiter.build().unwrap();
        let ended = tokio::time::timeout(PATIENCE, waiter.acquire("x")).await;
        let error = ended.expect("the wait must end").unwrap_err().details();
        assert!(error.contains(remedy), "{error}");
        // A member that is down may be a ZooKeeper server.
        let fault = refusal(&format!("zk://{server}+127.0.0.1:1/a")).await;
        assert_eq!(fault.kind(), "down", "{fault}");
    }
}

test!(path_removed_during_a_session_is_reported_and_not_created_again, server => {
    let (mut session, _) = server.store().connect().await.unwrap();
    let admin = admin(&server).await;
    for path in ["/a/locks/records", "/a/locks/wake", "/a/locks/identity", "/a/locks"] {
        admin.delete(path, None).await.unwrap();
    }
    let refused = session.commit(&[commit(change("a", 0, b"x"))]).await.unwrap_err();
    assert!(matches!(refused, Fault::Unprepared(_)), "{refused}");
    assert!(matches!(refusal(&server.url()).await, Fault::Unprepared(_)));
});

test!(znodes_of_a_user_are_readable_by_that_user_only, server => {
    let with = |user: &str| server.zookeeper.url("/guarded").replace("zk://", &format!("zk://{user}"));
    prepare(&with("ann:s3cret@")).await.unwrap();
    let mine = ZooKeeper::open(&with("ann:s3cret@")).unwrap();
    let (mut session, _) = mine.connect().await.unwrap();
    assert!(matches!(one(&mut session, change("a", 0, b"1")).await, Committed::Done(_)));
    for user in ["", "ann:wrong@", "bob:s3cret@"] {
        let refused = refusal(&with(user)).await;
        assert!(matches!(refused, Fault::Denied(_)), "{user}: {refused}");
        assert!(!refused.to_string().contains("s3cret"));
        let again = prepare(&with(user)).await.unwrap_err().to_string();
        assert!(again.contains("access denied") && !again.contains("s3cret"), "{again}");
        let seen = ZooKeeper::open(&with(user)).unwrap().inspect().await;
        assert!(matches!(seen.fault, Some(Fault::Denied(_))), "{seen:?}");
    }
    assert!(!format!("{mine:?}").contains("s3cret"));
});

test!(server_with_too_short_sessions_is_refused_with_the_remedy, _server => {
    // Long enough that a busy machine does not miss a heartbeat of a session.
    let options = ZooKeeperOptions::new().sessions(Duration::from_millis(100), Duration::from_secs(4));
    let short = Prepared::bare(options).await;
    let refused = refusal(&format!("{}?timeout=2500ms", short.zookeeper.url("/a/locks"))).await;
    assert!(
        matches!(&refused, Fault::Unsupported(why) if why.contains("4s") && why.contains("maxSessionTimeout")),
        "{refused}"
    );
    let url = format!("{}?timeout=1500ms", short.zookeeper.url("/a/locks"));
    prepare(&url).await.unwrap();
    ZooKeeper::open(&url).unwrap().connect().await.unwrap();
});

test!(server_that_is_not_running_is_reported_as_down_with_the_reason, server => {
    server.zookeeper.kill(0).unwrap();
    let refused = refusal(&server.url()).await;
    let host = server.zookeeper.addr(0).to_string();
    assert!(matches!(&refused, Fault::Down(why) if why.contains(&host) && why.contains("refused")), "{refused}");
    let refused = refusal("zk://nowhere.invalid:2181/a").await;
    assert!(matches!(&refused, Fault::Down(why) if why.contains("nowhere.invalid")), "{refused}");
});

test!(
    server_without_room_for_another_connection_is_reported_as_down_with_the_reason,
    ZooKeeperOptions::new().setting("maxClientCnxns=4"),
    server => {
        let store = server.store();
        let mut sessions = Vec::new();
        let refused = loop {
            match store.connect().await {
                Ok((session, _)) => sessions.push(session),
                Err(refused) => break refused,
            }
            assert!(sessions.len() <= 4, "the server must accept at most four connections");
        };
        assert!(matches!(&refused, Fault::Down(why) if why.contains("maxClientCnxns")), "{refused}");
    }
);

test!(inspection_reports_the_server_and_its_faults, server => {
    let seen = server.store().inspect().await;
    assert_eq!(seen.fault, None);
    assert_eq!(seen.server.as_deref(), Some("zookeeper"));
    assert_eq!(seen.role.as_deref(), Some("standalone"));
    assert!(seen.version.as_ref().is_some_and(|version| version.starts_with("3.")), "{seen:?}");
    assert!(seen.wake_ups && seen.run_id.is_some());
    assert!(seen.round_trip.is_some() && seen.connecting.is_some());
    // A client that connects creates and removes a znode to test its rights. This must not leave a record.
    assert!(session(&server).await.page(0, 10).await.unwrap().what.is_empty());
    server.zookeeper.stop(0).unwrap();
    let begun = Instant::now();
    let seen = ZooKeeper::open(&server.url_with("timeout=200ms")).unwrap().inspect().await;
    assert!(seen.fault.is_some() && !seen.wake_ups, "{seen:?}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    server.zookeeper.cont(0).unwrap();
});

test!(
    ensemble_that_loses_its_leader_keeps_all_acknowledged_changes,
    ZooKeeperOptions::new().members(3),
    server => {
        let store = server.store();
        let (mut session, before) = store.connect().await.unwrap();
        let (mut done, mut version) = (0, 0);
        for round in 0..3 {
            for _ in 0..20 {
                match one(&mut session, change("a", version, &[round])).await {
                    Committed::Done(versions) => version = versions[0],
                    // An uncertain commit of the previous round may be applied after `version` was read.
                    Committed::Stale => {
                        assert_eq!(load(&mut session, "a").await.0, version + 1, "only an earlier request of this client may have written the record");
                        version += 1;
                        continue;
                    }
                }
                done += 1;
            }
            let leader = server.zookeeper.leader().unwrap();
            server.zookeeper.kill(leader).unwrap();
            let unknown = session.commit(&[commit(change("a", version, &[round]))]).await;
            session = until_connected(&store).await;
            let (now, _) = load(&mut session, "a").await;
            match unknown {
                Ok(said) => assert_eq!(said.what, [Committed::Done(vec![now])]),
                Err(_) => assert!(now == version || now == version + 1, "one uncertain change must not raise the version from {version} to {now}"),
            }
            version = now;
            let zookeeper = &server.zookeeper;
            tokio::task::block_in_place(|| zookeeper.restart(leader)).unwrap();
        }
        let (mut session, after) = store.connect().await.unwrap();
        // In each of the 3 rounds, the result of one commit is unknown, so this commit may have been applied.
        let (last, _) = load(&mut session, "a").await;
        let last = times_written(last);
        assert!((done..=done + 3).contains(&last), "the {done} acknowledged changes and at most three others must be applied, not {last} changes");
        assert_eq!((before.run, before.server), (after.run, after.server));
        let seen = store.inspect().await;
        assert!(matches!(seen.role.as_deref(), Some("leader" | "follower")), "{seen:?}");
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
        let over = tokio::time::timeout(PATIENCE, session.commit(&[commit(change("a", 0, b"x"))])).await;
        assert!(over.expect("an answer").is_err());
        tokio::time::sleep(Duration::from_secs(3)).await;
        let refused = refusal(&server.url()).await;
        assert!(matches!(&refused, Fault::Down(why) if why.contains("majority")), "{refused}");
    }
);
