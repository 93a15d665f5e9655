//! Tests of paths that several users share, and of records that a user has no right to read.

use std::time::Duration;

use crate::support::*;
use quorate::node::Fault;
use quorate::node::store::{Commit, Committed, Session, Store};
use quorate::{Redlock, RestartGuard};
use quorate_testbed::ZooKeeperOptions;
use quorate_zookeeper::{ZooKeeper, node, prepare};
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

/// The URL of a path for this user.
fn url(server: &Prepared, user: &str, path: &str) -> String {
    let url = server.zookeeper.url(path);
    let url = url.replace("zk://", &format!("zk://{user}@"));
    format!("{url}?timeout=4s&session=10s")
}

async fn session_of(url: &str) -> quorate_zookeeper::ZooKeeperSession {
    ZooKeeper::open(url).unwrap().connect().await.unwrap().0
}

/// A plain client that is authenticated as this user.
async fn client_of(server: &Prepared, user: &str) -> Client {
    let client = admin(server).await;
    client.auth("digest", user.as_bytes()).await.unwrap();
    client
}

/// The ACL entries of these users, with all permissions. The server computes the hashes of the passwords.
async fn entries(server: &Prepared, users: &[&str]) -> Vec<Acl> {
    let mut all = Vec::new();
    for user in users {
        let client = client_of(server, user).await;
        let options = CreateMode::Ephemeral.with_acls(Acls::creator_all());
        client.create("/hash", b"", &options).await.unwrap();
        let (acl, _) = client.get_acl("/hash").await.unwrap();
        all.extend(acl);
        client.delete("/hash", None).await.unwrap();
    }
    all
}

async fn set_acl(server: &Prepared, user: &str, path: &str, acl: &[Acl]) {
    let client = client_of(server, user).await;
    client.set_acl(path, acl, None).await.unwrap();
}

const ANN: &str = "ann:s3cret";
const BOB: &str = "bob:hunter2";

test!(users_that_share_a_path_share_its_locks_and_wake_each_other, server => {
    let (ann, bob) = (url(&server, ANN, "/shared"), url(&server, BOB, "/shared"));
    prepare(&ann).await.unwrap();
    let mut early = session_of(&ann).await;
    let first = put(&mut early, "early", 0, b"1").await;
    let both = entries(&server, &[ANN, BOB]).await;
    set_acl(&server, ANN, "/shared", &both).await;
    // Existing znodes below `/shared` keep their old ACL until `prepare` is called again.
    let refused = ZooKeeper::open(&bob).unwrap().connect().await.map(|_| ()).unwrap_err();
    assert!(matches!(&refused, Fault::Denied(why) if why.contains("/shared/")), "{refused}");
    let passed = prepare(&ann).await.unwrap();
    assert_eq!((passed.made, passed.changed, passed.refused), (false, 5, 0));
    assert_eq!(prepare(&bob).await.unwrap().changed, 0);

    let (mut one, mut two) = (session_of(&ann).await, session_of(&bob).await);
    assert_eq!(load(&mut two, "early").await, (first, b"1".to_vec()));
    put(&mut two, "early", first, b"2").await;
    let (a, b) = (put(&mut one, "a", 0, b"ann").await, put(&mut two, "b", 0, b"bob").await);
    assert_eq!(load(&mut one, "b").await, (b, b"bob".to_vec()));
    put(&mut one, "b", b, b"ann").await;
    let mut listens = ZooKeeper::open(&ann).unwrap().listen("00000000000000aa".into()).await.unwrap();
    let wakes = vec![wake("00000000000000aa", "up")];
    let woken = Commit { changes: vec![change("a", a, b"bob")], wakes, ..Commit::default() };
    assert!(matches!(two.commit(&[woken]).await.unwrap().what[0], Committed::Done(_)));
    assert_eq!(next(&mut listens).await, [b"up".to_vec()]);
    two.remove(&[(name("a"), a + 1)]).await.unwrap();
    assert_eq!(load(&mut one, "a").await, (0, vec![]));
    for url in [&ann, &bob] {
        let seen = ZooKeeper::open(url).unwrap().inspect().await;
        assert_eq!(seen.fault, None);
    }
});

test!(user_that_cannot_read_the_acl_of_a_shared_path_is_refused_with_the_remedy, server => {
    let ann = url(&server, ANN, "/shared");
    prepare(&ann).await.unwrap();
    let mut both = entries(&server, &[ANN, BOB]).await;
    let limited = Permission::READ | Permission::WRITE | Permission::CREATE | Permission::DELETE;
    both[1] = Acl::new(limited, AuthId::new("digest", both[1].id()));
    set_acl(&server, ANN, "/shared", &both).await;
    prepare(&ann).await.unwrap();
    let bob = url(&server, BOB, "/shared");
    let refused = ZooKeeper::open(&bob).unwrap().connect().await.map(|_| ()).unwrap_err();
    assert!(
        matches!(&refused, Fault::Denied(why) if why.contains("permission ADMIN on /shared/records")),
        "{refused}"
    );
});

test!(load_with_an_unreadable_record_still_returns_the_other_records, server => {
    let mut session = session(&server).await;
    for (of, state) in [("a", b"1"), ("b", b"2")] {
        put(&mut session, of, 0, state).await;
    }
    let admin = client_of(&server, ANN).await;
    let own = entries(&server, &[ANN]).await;
    let path = "/a/locks/records/61";
    for below in admin.list_children(path).await.unwrap() {
        admin.set_acl(&format!("{path}/{below}"), &own, None).await.unwrap();
    }
    admin.set_acl(path, &own, None).await.unwrap();
    // Check both the session that wrote the records and a new session.
    let names = [name("a"), name("b"), name("c")];
    let mut other = server.store().connect().await.unwrap().0;
    for session in [&mut session, &mut other] {
        let loaded = session.load(&names).await.unwrap().what;
        let fault = loaded[0].fault.clone().expect("an unreadable record must have a fault");
        assert!(matches!(&fault, Fault::Denied(why) if why.contains(path)), "{fault}");
        assert_eq!((&loaded[1].state[..], &loaded[1].fault), (&b"2"[..], &None));
        assert_eq!(loaded[2].version, 0);
        let listed = session.page(0, 10).await.unwrap().what;
        let faults = listed.iter().map(|(_, record)| record.fault.is_some());
        assert_eq!(faults.collect::<Vec<_>>(), [true, false]);
        assert_eq!(one(session, change("a", 0, b"x")).await, Committed::Stale);
    }
});

test!(lock_whose_record_is_unreadable_is_refused_and_other_locks_are_listed_and_taken, server => {
    let client = || {
        let builder = Redlock::builder().node(node(&server.url()).unwrap());
        builder.restart_guard(RestartGuard::Off).ttl(Duration::from_secs(30)).connect_timeout(Duration::from_secs(4)).build().unwrap()
    };
    let (first, second) = (client(), client());
    let held = first.acquire("good").await.unwrap();
    let admin = client_of(&server, ANN).await;
    let path = "/a/locks/records/626164";
    let options = CreateMode::Persistent.with_acls(Acls::creator_all());
    admin.create(path, b"", &options).await.unwrap();
    let (bad, free) = futures::join!(second.try_acquire("bad"), second.try_acquire("free"));
    let why = bad.unwrap_err().details();
    assert!(why.contains(path), "{why}");
    free.unwrap().acquired().expect("the lock must be acquired, because no other client holds it").release().await;
    let listed = second.list("").await;
    assert!(listed.complete && listed.majority_answered, "{listed:?}");
    let [bad, good] = &listed.locks[..] else { panic!("{listed:?}") };
    assert_eq!((&bad.resource[..], &good.resource[..]), (&b"bad"[..], &b"good"[..]));
    let fault = bad.status.nodes[0].state.as_ref().unwrap_err();
    assert!(fault.to_string().contains(path), "{fault}");
    held.release().await;
});

test!(password_of_a_path_can_be_changed_while_locks_are_used, server => {
    let (old, new) = ("ann:s3cret", "ann:hunter2");
    let (before, after) = (url(&server, old, "/guarded"), url(&server, new, "/guarded"));
    prepare(&before).await.unwrap();
    let mut running = session_of(&before).await;
    let version = put(&mut running, "a", 0, b"1").await;
    // Let the ACL of the path accept both the old and the new password.
    let both = entries(&server, &[old, new]).await;
    set_acl(&server, old, "/guarded", &both).await;
    prepare(&before).await.unwrap();
    let mut changed = session_of(&after).await;
    let version = put(&mut changed, "a", version, b"2").await;
    let version = put(&mut running, "a", version, b"3").await;
    set_acl(&server, new, "/guarded", &both[1..]).await;
    assert_eq!(prepare(&after).await.unwrap().refused, 0);
    put(&mut changed, "a", version, b"4").await;
    let refused = ZooKeeper::open(&before).unwrap().connect().await.map(|_| ()).unwrap_err();
    assert!(matches!(refused, Fault::Denied(_)), "{refused}");
    let kept = running.load(&[name("a")]).await.unwrap().what.remove(0);
    assert!(kept.fault.is_some(), "the old password must not read records any more");
});
