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
fn url_for(server: &TestServer, user: &str, path: &str) -> String {
    let url = server.zookeeper.url(path);
    let url = url.replace("zk://", &format!("zk://{user}@"));
    format!("{url}?timeout=4s&session=10s")
}

async fn session_at(url: &str) -> quorate_zookeeper::ZooKeeperSession {
    ZooKeeper::open(url).unwrap().connect().await.unwrap().0
}

/// A plain client that is authenticated as this user.
async fn client_as(server: &TestServer, user: &str) -> Client {
    let admin_client = admin(server).await;
    admin_client.auth("digest", user.as_bytes()).await.unwrap();
    admin_client
}

/// The ACL entries of these users, with all permissions. The server computes the hashes of the passwords.
async fn acl_entries(server: &TestServer, users: &[&str]) -> Vec<Acl> {
    let mut entries = Vec::new();
    for user in users {
        let user_client = client_as(server, user).await;
        let options = CreateMode::Ephemeral.with_acls(Acls::creator_all());
        user_client.create("/hash", b"", &options).await.unwrap();
        let (acl, _) = user_client.get_acl("/hash").await.unwrap();
        entries.extend(acl);
        user_client.delete("/hash", None).await.unwrap();
    }
    entries
}

async fn set_acl(server: &TestServer, user: &str, path: &str, acl: &[Acl]) {
    let user_client = client_as(server, user).await;
    user_client.set_acl(path, acl, None).await.unwrap();
}

const ANN: &str = "ann:s3cret";
const BOB: &str = "bob:hunter2";

test!(users_that_share_a_path_share_its_locks_and_wake_each_other, server => {
    let (ann, bob) = (url_for(&server, ANN, "/shared"), url_for(&server, BOB, "/shared"));
    prepare(&ann).await.unwrap();
    let mut early_session = session_at(&ann).await;
    let first_version = put(&mut early_session, "early", 0, b"1").await;
    let both_entries = acl_entries(&server, &[ANN, BOB]).await;
    set_acl(&server, ANN, "/shared", &both_entries).await;
    // Existing znodes below `/shared` keep their old ACL until `prepare` is called again.
    let fault = ZooKeeper::open(&bob).unwrap().connect().await.map(|_| ()).unwrap_err();
    assert!(matches!(&fault, Fault::Denied(why) if why.contains("/shared/")), "{fault}");
    let report = prepare(&ann).await.unwrap();
    assert_eq!((report.made, report.changed, report.refused), (false, 5, 0));
    assert_eq!(prepare(&bob).await.unwrap().changed, 0);

    let (mut ann_session, mut bob_session) = (session_at(&ann).await, session_at(&bob).await);
    assert_eq!(load(&mut bob_session, "early").await, (first_version, b"1".to_vec()));
    put(&mut bob_session, "early", first_version, b"2").await;
    let a_version = put(&mut ann_session, "a", 0, b"ann").await;
    let b_version = put(&mut bob_session, "b", 0, b"bob").await;
    assert_eq!(load(&mut ann_session, "b").await, (b_version, b"bob".to_vec()));
    put(&mut ann_session, "b", b_version, b"ann").await;
    let mut listener = ZooKeeper::open(&ann).unwrap().listen("00000000000000aa".into()).await.unwrap();
    let wakes = vec![wake("00000000000000aa", "up")];
    let waking_commit = Commit { changes: vec![change("a", a_version, b"bob")], wakes, ..Commit::default() };
    assert!(matches!(bob_session.commit(&[waking_commit]).await.unwrap().what[0], Committed::Done(_)));
    assert_eq!(next_wake_up(&mut listener).await, [b"up".to_vec()]);
    bob_session.remove(&[(record_name("a"), a_version + 1)]).await.unwrap();
    assert_eq!(load(&mut ann_session, "a").await, (0, vec![]));
    for url in [&ann, &bob] {
        let inspection = ZooKeeper::open(url).unwrap().inspect().await;
        assert_eq!(inspection.fault, None);
    }
});

test!(user_that_cannot_read_the_acl_of_a_shared_path_is_refused_with_the_remedy, server => {
    let ann = url_for(&server, ANN, "/shared");
    prepare(&ann).await.unwrap();
    let mut both_entries = acl_entries(&server, &[ANN, BOB]).await;
    let limited = Permission::READ | Permission::WRITE | Permission::CREATE | Permission::DELETE;
    both_entries[1] = Acl::new(limited, AuthId::new("digest", both_entries[1].id()));
    set_acl(&server, ANN, "/shared", &both_entries).await;
    prepare(&ann).await.unwrap();
    let bob = url_for(&server, BOB, "/shared");
    let fault = ZooKeeper::open(&bob).unwrap().connect().await.map(|_| ()).unwrap_err();
    assert!(
        matches!(&fault, Fault::Denied(why) if why.contains("permission ADMIN on /shared/records")),
        "{fault}"
    );
});

test!(load_with_an_unreadable_record_still_returns_the_other_records, server => {
    let mut session = connect(&server).await;
    for (key, state) in [("a", b"1"), ("b", b"2")] {
        put(&mut session, key, 0, state).await;
    }
    let admin = client_as(&server, ANN).await;
    let ann_entries = acl_entries(&server, &[ANN]).await;
    let path = "/a/locks/records/61";
    for znode in admin.list_children(path).await.unwrap() {
        admin.set_acl(&format!("{path}/{znode}"), &ann_entries, None).await.unwrap();
    }
    admin.set_acl(path, &ann_entries, None).await.unwrap();
    // Check both the session that wrote the records and a new session.
    let names = [record_name("a"), record_name("b"), record_name("c")];
    let mut other_session = server.store().connect().await.unwrap().0;
    for session in [&mut session, &mut other_session] {
        let loaded = session.load(&names).await.unwrap().what;
        let fault = loaded[0].fault.clone().expect("an unreadable record must have a fault");
        assert!(matches!(&fault, Fault::Denied(why) if why.contains(path)), "{fault}");
        assert_eq!((&loaded[1].state[..], &loaded[1].fault), (&b"2"[..], &None));
        assert_eq!(loaded[2].version, 0);
        let listed = session.page(0, 10).await.unwrap().what;
        let faults = listed.iter().map(|(_, record)| record.fault.is_some());
        assert_eq!(faults.collect::<Vec<_>>(), [true, false]);
        assert_eq!(commit_one(session, change("a", 0, b"x")).await, Committed::Stale);
    }
});

test!(lock_whose_record_is_unreadable_is_refused_and_other_locks_are_listed_and_taken, server => {
    let new_client = || {
        let builder = Redlock::builder().node(node(&server.url()).unwrap());
        builder.restart_guard(RestartGuard::Off).ttl(Duration::from_secs(30)).connect_timeout(Duration::from_secs(4)).build().unwrap()
    };
    let (first, second) = (new_client(), new_client());
    let guard = first.acquire("good").await.unwrap();
    let admin = client_as(&server, ANN).await;
    let path = "/a/locks/records/626164";
    let options = CreateMode::Persistent.with_acls(Acls::creator_all());
    admin.create(path, b"", &options).await.unwrap();
    let (bad_outcome, free_outcome) = futures::join!(second.try_acquire("bad"), second.try_acquire("free"));
    let details = bad_outcome.unwrap_err().details();
    assert!(details.contains(path), "{details}");
    let free_guard = free_outcome.unwrap().acquired();
    let free_guard = free_guard.expect("the lock must be acquired, because no other client holds it");
    free_guard.release().await;
    let listing = second.list("").await;
    assert!(listing.complete && listing.majority_answered, "{listing:?}");
    let [bad_lock, good_lock] = &listing.locks[..] else { panic!("{listing:?}") };
    assert_eq!((&bad_lock.resource[..], &good_lock.resource[..]), (&b"bad"[..], &b"good"[..]));
    let fault = bad_lock.status.nodes[0].state.as_ref().unwrap_err();
    assert!(fault.to_string().contains(path), "{fault}");
    guard.release().await;
});

test!(password_of_a_path_can_be_changed_while_locks_are_used, server => {
    let (old_user, new_user) = ("ann:s3cret", "ann:hunter2");
    let (old_url, new_url) = (url_for(&server, old_user, "/guarded"), url_for(&server, new_user, "/guarded"));
    prepare(&old_url).await.unwrap();
    let mut old_session = session_at(&old_url).await;
    let version = put(&mut old_session, "a", 0, b"1").await;
    // Let the ACL of the path accept both the old and the new password.
    let both_entries = acl_entries(&server, &[old_user, new_user]).await;
    set_acl(&server, old_user, "/guarded", &both_entries).await;
    prepare(&old_url).await.unwrap();
    let mut new_session = session_at(&new_url).await;
    let version = put(&mut new_session, "a", version, b"2").await;
    let version = put(&mut old_session, "a", version, b"3").await;
    set_acl(&server, new_user, "/guarded", &both_entries[1..]).await;
    assert_eq!(prepare(&new_url).await.unwrap().refused, 0);
    put(&mut new_session, "a", version, b"4").await;
    let fault = ZooKeeper::open(&old_url).unwrap().connect().await.map(|_| ()).unwrap_err();
    assert!(matches!(fault, Fault::Denied(_)), "{fault}");
    let record = old_session.load(&[record_name("a")]).await.unwrap().what.remove(0);
    assert!(record.fault.is_some(), "the old password must not read records any more");
});
