//! Tests which faults clients report when a cluster fails, permanently or temporarily, and how clients recover.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quorate::node::Fault;
use quorate::node::store::{Committed, Session as _, Store as _};
use quorate_etcd::{Etcd, prepare, script};
use quorate_testbed::{Etcd as Process, EtcdOptions, ServerDir, TestServer as _, Tls, not_run};

use crate::support::*;

test!(cluster_without_its_identity_is_reported_with_the_command_that_writes_it, cluster => {
    let mut session = cluster.session().await;
    put(&mut session, "a", 0, b"1").await;
    cluster.ctl("del /quorate-server");
    // A session that is open notices it as well.
    let fault = session.commit(&[of(vec![change("b", 0, b"1")])]).await.unwrap_err();
    assert!(fault.to_string().contains("identity"), "{fault}");
    assert!(session.load(&[name("a")]).await.is_err());
    let fault = connect_fault(&cluster.url()).await;
    assert!(matches!(&fault, Fault::Unprepared(why) if why.contains("quorate prepare-server")), "{fault}");
    let first = prepare(&cluster.url()).await.unwrap();
    let second = prepare(&cluster.url()).await.unwrap();
    assert!(first.made && !second.made && first.identity == second.identity);
    let mut session = cluster.session().await;
    assert_eq!(load(&mut session, "a").await.1, b"1");
    assert_eq!(load(&mut session, "b").await.0, 0);
    cluster.ctl("put /quorate-server text");
    assert_eq!(connect_fault(&cluster.url()).await.kind(), "unprepared");
    let refused = prepare(&cluster.url()).await.unwrap_err().to_string();
    assert!(refused.contains("/quorate-server"), "{refused}");
});

test!(printed_script_writes_the_identity_and_keeps_an_existing_one, cluster => {
    cluster.ctl("del /quorate-server");
    let run = || {
        let script = script(&cluster.url()).unwrap();
        let status = Command::new("sh").arg("-c").arg(script).stdout(Stdio::null()).status();
        assert!(status.unwrap().success());
    };
    run();
    let (_, first) = cluster.store().connect().await.unwrap();
    run();
    let (_, second) = cluster.store().connect().await.unwrap();
    assert_eq!(first.server, second.server);
});

test!(restored_snapshot_is_refused_until_the_identity_was_changed, cluster => {
    let home = ServerDir::create(None).unwrap();
    let file = home.path().join("snapshot");
    let store = cluster.store();
    let (mut session, before) = store.connect().await.unwrap();
    let old = put(&mut session, "a", 0, b"old").await;
    cluster.etcd.save_snapshot(&file).unwrap();
    put(&mut session, "a", old, b"new").await;
    cluster.etcd.restore_snapshot(&file).unwrap();
    let fault = store_fault(&store).await;
    assert!(fault.to_string().contains("restored from an older snapshot"), "{fault}");
    // Even after the revision has grown beyond the one that the process has seen.
    let mut other = cluster.session().await;
    assert_eq!(load(&mut other, "a").await, (old, b"old".to_vec()));
    for number in 0..5 {
        put(&mut other, &number.to_string(), 0, b"x").await;
    }
    assert_eq!(store_fault(&store).await.kind(), "unsupported");
    cluster.ctl("del /quorate-server");
    assert!(prepare(&cluster.url()).await.unwrap().made);
    let (mut renewed, after) = store.connect().await.unwrap();
    assert_ne!(before.run, after.run);
    assert_ne!(before.server, after.server);
    // A version that was read before the identity has changed never fits again.
    let (version, state) = load(&mut renewed, "a").await;
    assert_eq!((revision(version), &state[..]), (revision(old), &b"old"[..]));
    let outdated = of(vec![change("a", old, b"clobbered")]);
    assert_eq!(commit(&mut renewed, &[outdated]).await, [Committed::Stale]);
    put(&mut renewed, "a", version, b"x").await;
});

test!(user_needs_the_password_and_the_rights_that_the_preparation_prints, cluster => {
    for command in ["user add root:r00t", "user grant-role root root", "user add ann:s3cret", "user add bob:s3cret"] {
        cluster.ctl(command);
    }
    let grants = prepare(&cluster.url()).await.unwrap().grants;
    for grant in grants {
        let grant = grant.replace("USER", "ann").replace('\'', "");
        cluster.ctl(grant.strip_prefix("etcdctl ").expect("a command"));
    }
    // A user in the URL of a cluster without users is ignored, as etcdctl does.
    let mut early = connect(&Etcd::open(&cluster.url_of("ann:s3cret@")).unwrap()).await;
    put(&mut early, "before", 0, b"x").await;
    cluster.ctl("auth enable");
    let version = put(&mut early, "a", 0, b"x").await;
    for (login, expected) in [
        ("", "demands a user"),
        ("ann:wr0ng@", "correct the user and the password"),
        ("eve:s3cret@", "correct the user and the password"),
        ("bob:s3cret@", "/quorate-server"),
    ] {
        let fault = connect_fault(&cluster.url_of(login)).await;
        assert!(matches!(&fault, Fault::Denied(why) if why.contains(expected)), "{login}: {fault}");
        assert!(!fault.to_string().contains("s3cret") && !fault.to_string().contains("wr0ng"), "{fault}");
        let found = Etcd::open(&cluster.url_of(login)).unwrap().inspect().await;
        assert!(matches!(found.fault, Some(Fault::Denied(_))), "{found:?}");
    }
    let store = Etcd::open(&cluster.url_of("ann:s3cret@")).unwrap();
    let mut session = connect(&store).await;
    assert_eq!(load(&mut session, "a").await.0, version);
    store.listen("00000000000000aa".into()).await.unwrap();
    session.remove(&[(name("a"), version)]).await.unwrap();
    // The cluster forgets all logins when it starts again, and the client logs in again.
    Process::restart(&cluster.etcd, 0).unwrap();
    let mut session = reconnect(&store).await;
    put(&mut session, "b", 0, b"x").await;
    store.listen("00000000000000aa".into()).await.unwrap();
    assert!(!format!("{store:?}").contains("s3cret"));
});

test!(password_comes_from_a_file, cluster => {
    use std::os::unix::fs::PermissionsExt as _;
    for command in [
        "user add root:r00t", "user grant-role root root", "auth enable",
    ] {
        cluster.ctl(command);
    }
    let home = ServerDir::create(None).unwrap();
    let file = home.path().join("password");
    std::fs::write(&file, "r00t\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let url = format!("{}&passfile={}", cluster.url_of("root@"), file.display());
    connect(&Etcd::open(&url).unwrap()).await;
    std::fs::write(&file, "other").unwrap();
    assert_eq!(connect_fault(&url).await.kind(), "denied");
});

test!(right_that_is_missing_for_one_record_does_not_affect_others, cluster => {
    for command in [
        "user add root:r00t", "user grant-role root root", "user add ann:s3cret", "role add some",
        "role grant-permission some read /quorate-server",
        "role grant-permission some readwrite /locks/record/ /locks/record/b",
        "role grant-permission some readwrite /locks/wake/",
        "user grant-role ann some",
    ] {
        cluster.ctl(command);
    }
    cluster.ctl("auth enable");
    let store = Etcd::open(&cluster.url_of("ann:s3cret@")).unwrap();
    // The listing needs the whole prefix, so a session is refused.
    let fault = store_fault(&store).await;
    assert!(fault.to_string().contains("/locks/"), "{fault}");
});

test!(
    full_database_is_reported_with_what_to_do,
    EtcdOptions::new().argument("--quota-backend-bytes=1048576"),
    cluster => {
        let mut session = cluster.session().await;
        let kept = put(&mut session, "kept", 0, b"x").await;
        let mut number = 0;
        let fault = loop {
            let change = change(&format!("r{number}"), 0, &vec![7; 100_000]);
            match session.commit(&[of(vec![change])]).await {
                Ok(_) => number += 1,
                Err(fault) => break fault,
            }
            assert!(number < 100, "the database must be full");
        };
        for part in ["compact", "defrag", "alarm disarm", "--auto-compaction-retention"] {
            assert!(fault.to_string().contains(part), "{part}: {fault}");
        }
        assert!(fault.passes_by_itself());
        // Reads and removals work.
        assert_eq!(load(&mut session, "kept").await.0, kept);
        let found = cluster.store().inspect().await;
        assert!(found.setting("alarms").is_some_and(|alarms| alarms.contains("NOSPACE")), "{found:?}");
        let large: Vec<_> = session.page(0, 50).await.unwrap().what;
        let large = large.into_iter().filter(|(name, _)| name != b"kept");
        let large: Vec<_> = large.map(|(name, record)| (name.into(), record.version)).collect();
        session.remove(&large).await.unwrap();
        cluster.ctl(&format!("compact {}", cluster.revision()));
        cluster.ctl("defrag");
        cluster.ctl("alarm disarm");
        let mut session = reconnect(&cluster.store()).await;
        put(&mut session, "again", 0, b"x").await;
    }
);

test!(cluster_without_a_leader_is_reported_and_used_again_later, EtcdOptions::new().members(3), cluster => {
    let store = cluster.store();
    let mut session = connect(&store).await;
    let version = put(&mut session, "a", 0, b"1").await;
    let leader = cluster.etcd.leader().expect("a leader");
    Process::kill(&cluster.etcd, leader).unwrap();
    let mut session = reconnect(&store).await;
    assert_eq!(load(&mut session, "a").await, (version, b"1".to_vec()));
    let version = put(&mut session, "a", version, b"2").await;
    let next = (0..3).find(|member| *member != leader).expect("another member");
    Process::kill(&cluster.etcd, next).unwrap();
    // The member that runs notices the loss after its election timeout.
    let started = Instant::now();
    let text = loop {
        match tokio::time::timeout(Duration::from_secs(4), store.connect()).await {
            Ok(Err(fault)) if fault.to_string().contains("no leader") => break fault.to_string(),
            _ => assert!(started.elapsed() < PATIENCE, "the loss of the leader must be noticed"),
        }
    };
    assert!(text.contains("majority"), "{text}");
    Process::restart(&cluster.etcd, next).unwrap();
    let mut session = reconnect(&store).await;
    assert_eq!(load(&mut session, "a").await, (version, b"2".to_vec()));
});

test!(
    cluster_without_its_gateway_is_refused_with_the_remedy,
    EtcdOptions::new(),
    _prepared => {
        let options = EtcdOptions::new().argument("--enable-grpc-gateway=false");
        let cluster = Cluster::start_unprepared(options).await;
        let fault = connect_fault(&cluster.url()).await;
        assert_eq!(fault.kind(), "unsupported");
        assert!(fault.to_string().contains("gateway"), "{fault}");
    }
);

test!(server_that_is_not_running_is_reported_as_down_with_the_reason, cluster => {
    Process::kill(&cluster.etcd, 0).unwrap();
    let fault = connect_fault(&cluster.url()).await;
    assert!(matches!(&fault, Fault::Down(why) if why.contains("refused")), "{fault}");
    let fault = connect_fault("etcd://nowhere.invalid:2379/a").await;
    assert_eq!(fault.kind(), "down", "{fault}");
});

test!(stopped_member_is_replaced_by_another_one, EtcdOptions::new().members(3), cluster => {
    let follower = (0..3).find(|member| Some(*member) != cluster.etcd.leader()).expect("a follower");
    Process::stop(&cluster.etcd, follower).unwrap();
    for _ in 0..4 {
        let mut session = cluster.session().await;
        put(&mut session, "a", load(&mut cluster.session().await, "a").await.0, b"x").await;
    }
    Process::cont(&cluster.etcd, follower).unwrap();
});

#[tokio::test]
async fn server_of_another_kind_is_refused_with_the_remedy() {
    for (greeting, remedy) in [
        (&b"-ERR unknown command 'POST'\r\n"[..], "use redis://"),
        (
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            "gateway",
        ),
        (
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
            "403",
        ),
    ] {
        let server = quorate_testbed::answers(greeting).unwrap();
        let fault = connect_fault(&format!("etcd://{server}/a")).await;
        assert_eq!(fault.kind(), "unsupported", "{fault}");
        assert!(fault.to_string().contains(remedy), "{fault}");
    }
}

/// Runs `openssl` in `dir`. Returns false if `openssl` is missing or fails.
fn openssl(dir: &Path, line: &str) -> bool {
    Command::new("openssl")
        .args(line.split_whitespace())
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Creates an authority, a certificate for `localhost` and a certificate of a client in this folder.
fn certificates(dir: &Path) -> bool {
    let extension = "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n";
    std::fs::write(dir.join("ext"), extension).expect("written");
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    let signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext";
    let mut lines = vec![
        format!("req -x509 {curve} -keyout ca.key -out ca.pem -subj /CN=authority"),
        format!("req -x509 {curve} -keyout other.key -out other.pem -subj /CN=other"),
    ];
    for name in ["one", "two"] {
        lines.push(format!(
            "req {curve} -keyout {name}.key -out {name}.csr -subj /CN={name}"
        ));
        lines.push(format!("x509 -req -in {name}.csr {signed} -out {name}.pem"));
    }
    lines.iter().all(|line| openssl(dir, line))
}

#[cfg(feature = "tls-rustls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_checks_the_certificate_the_host_name_and_the_client() {
    let test = "tls_checks_the_certificate_the_host_name_and_the_client";
    if let Some(why) = Process::missing() {
        return not_run(test, &why);
    }
    let home = ServerDir::create(None).expect("a directory");
    let path = |name: &str| home.path().join(name);
    if !certificates(home.path()) {
        return not_run(test, "no openssl");
    }
    let tls = Tls {
        cert: path("one.pem"),
        key: path("one.key"),
        ca: path("ca.pem"),
        client_certs: true,
    };
    let cluster = Cluster::start_unprepared(EtcdOptions::new().tls(tls)).await;
    let url = |host: &str, options: &str| {
        let url = cluster.url().replace("127.0.0.1", host);
        let folder = home.path().display();
        format!("{url}{}", options.replace("DIR", &folder.to_string()))
    };
    let client = "&cacert=DIR/ca.pem&cert=DIR/two.pem&key=DIR/two.key";
    let good = url("localhost", client);
    assert!(prepare(&good).await.unwrap().made);
    let mut session = connect(&Etcd::open(&good).unwrap()).await;
    put(&mut session, "a", 0, b"x").await;
    for (host, options, expected) in [
        ("127.0.0.1", client, "host name"),
        (
            "localhost",
            "&cacert=DIR/other.pem&cert=DIR/two.pem&key=DIR/two.key",
            "cacert",
        ),
    ] {
        let fault = connect_fault(&url(host, options)).await;
        assert_eq!(fault.kind(), "unsupported", "{fault}");
        assert!(fault.to_string().contains(expected), "{fault}");
    }
    // With TLS 1.3, the member refuses a client without a certificate after the handshake.
    let fault = connect_fault(&url("localhost", "&cacert=DIR/ca.pem")).await;
    assert!(fault.to_string().contains("ertificate"), "{fault}");
    let fault = connect_fault(&good.replace("etcd+tls://", "etcd://").replace(
        &client.replace("DIR", &home.path().display().to_string()),
        "",
    ))
    .await;
    assert!(fault.to_string().contains("etcd+tls://"), "{fault}");
    let plain = Cluster::start_unprepared(EtcdOptions::new()).await;
    let wrong = plain
        .url()
        .replace("etcd://127.0.0.1", "etcd+tls://localhost");
    let fault = connect_fault(&format!("{wrong}&cacert={}", path("ca.pem").display())).await;
    assert!(fault.to_string().contains("does not offer TLS"), "{fault}");
}

test!(inspection_reports_the_cluster, EtcdOptions::new().argument("--quota-backend-bytes=33554432"), cluster => {
    let found = cluster.store().inspect().await;
    assert_eq!(found.fault, None);
    assert_eq!(found.server.as_deref(), Some("etcd"));
    assert_eq!(found.role.as_deref(), Some("standalone"));
    assert!(found.version.as_ref().is_some_and(|version| version.starts_with("3.")), "{found:?}");
    assert!(found.wake_ups && found.run_id.is_some() && found.identity.is_some());
    assert!(found.round_trip.is_some() && found.connecting.is_some());
    assert!(found.clock_offset_ms.is_some_and(|offset| offset.abs() < 20_000), "{found:?}");
    assert_eq!(found.setting("quota_bytes"), Some("33554432"));
    assert_eq!(found.setting("history"), Some("whole"));
    assert_eq!(found.setting("alarms"), Some(""));
    assert_eq!(found.unseen, [""; 0]);
    // The inspection tests rights without changing anything.
    assert!(cluster.session().await.page(0, 10).await.unwrap().what.is_empty());
    cluster.ctl("put x 1");
    cluster.ctl("compact 3");
    let found = cluster.store().inspect().await;
    assert_eq!(found.setting("history"), Some("compacted"), "{found:?}");
});
