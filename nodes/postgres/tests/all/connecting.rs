//! Tests of connecting: Unix sockets, passwords, TLS, poolers, and servers that do not answer.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    Server, bare, change, get, name, of, options, put, report_not_run, server, session, sql,
    store_at, wake,
};
use quorate::node::store::{Listener as _, Session as _, Store as _};
use quorate::node::{Protocol, other_protocol};
use quorate_postgres::{Postgres, prepare};
use quorate_testbed::{Error, PgBouncer, PostgresOptions, ServerDir};

async fn fault(url: &str) -> quorate::node::Fault {
    match store_at(url).connect().await {
        Err(fault) => fault,
        Ok(_) => panic!("the connection must be refused"),
    }
}

#[tokio::test]
async fn server_without_a_port_is_used_through_its_unix_socket() {
    let Some((server, store)) = server(PostgresOptions::new().set("fsync", "on")).await else {
        return;
    };
    assert!(server.url("locks").contains("host=/"));
    let mut session = session(&store).await;
    put(&mut session, "a", 0, "s").await;
    assert_eq!(get(&mut session, "a").await.state, b"s");
    assert!(store.name().to_string().contains(".s.PGSQL."));
}

#[tokio::test]
async fn password_comes_from_the_url_or_from_a_file_and_is_checked() {
    let hba = "host all locker 127.0.0.1/32 scram-sha-256";
    let Some((server, _)) = server(options().hba(hba)).await else {
        return;
    };
    sql(
        &server,
        "CREATE USER locker PASSWORD 'se:cret'; GRANT USAGE ON SCHEMA quorate TO locker; \
                  GRANT SELECT,INSERT,UPDATE,DELETE ON quorate.record TO locker; \
                  GRANT SELECT,INSERT,UPDATE ON quorate.run TO locker",
    );
    let mut one = session(&store_at(&server.url_of("locker:se%3Acret", "locks"))).await;
    put(&mut one, "a", 0, "s").await;
    let wrong = fault(&server.url_of("locker:wrong", "locks")).await;
    assert!(
        !wrong.passes_by_itself() && wrong.to_string().contains("password"),
        "{wrong}"
    );
    let none = fault(&server.url_of("locker", "locks")).await;
    assert!(none.to_string().contains("passfile"), "{none}");
    let home = ServerDir::create(None).expect("a directory");
    let file = home.path().join("passwords");
    std::fs::write(&file, "127.0.0.1:*:locks:locker:se\\:cret\n").expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("changed");
    let url = format!(
        "{}?passfile={}",
        server.url_of("locker", "locks"),
        file.display()
    );
    assert_eq!(
        get(&mut session(&store_at(&url)).await, "a").await.state,
        b"s"
    );
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

#[cfg(feature = "tls-rustls")]
#[tokio::test]
async fn tls_checks_the_certificate_and_the_host_name() {
    let home = ServerDir::create(None).expect("a directory");
    let path = |name: &str| home.path().join(name).display().to_string();
    std::fs::write(
        path("ext"),
        "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n",
    )
    .expect("written");
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    let made = [
        format!("req -x509 {curve} -keyout ca.key -out ca.pem -subj /CN=authority"),
        format!("req {curve} -keyout one.key -out one.csr -subj /CN=one"),
        "x509 -req -in one.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out one.pem".to_owned(),
    ];
    if !made.iter().all(|line| openssl(home.path(), line)) {
        return report_not_run("no openssl");
    }
    let Some(server) = bare(options()) else {
        return;
    };
    // The server reads the key as its own user, and only if nobody else may read it.
    for name in ["one.pem", "one.key"] {
        let to = server.dir().join("data").join(name);
        std::fs::copy(path(name), &to).expect("copied");
        std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o600)).expect("changed");
        let owner = std::fs::metadata(server.dir().join("data")).expect("a directory");
        std::os::unix::fs::chown(&to, Some(owner.uid()), Some(owner.gid())).expect("changed");
    }
    let tls = |host: &str, database: &str, ca: &str| {
        let plain = server.url(database);
        let url = plain.replace("postgres://", "postgres+tls://");
        let url = url.replace("127.0.0.1", host);
        format!("{url}?sslrootcert={}", path(ca))
    };
    let plain = fault(&tls("localhost", "postgres", "ca.pem")).await;
    assert!(plain.to_string().contains("does not offer TLS"), "{plain}");
    server
        .sql("ALTER SYSTEM SET ssl_cert_file='one.pem'")
        .and_then(|_| server.sql("ALTER SYSTEM SET ssl_key_file='one.key'"))
        .and_then(|_| server.sql("ALTER SYSTEM SET ssl=on"))
        .expect("set");
    server.restart().expect("up");
    let url = |host: &str, ca: &str| tls(host, "locks", ca);
    prepare(&url("localhost", "ca.pem"))
        .await
        .expect("prepared");
    let mut one = session(&store_at(&url("localhost", "ca.pem"))).await;
    put(&mut one, "a", 0, "s").await;
    assert_eq!(
        sql(&server, "SELECT count(*) FROM pg_stat_ssl WHERE ssl"),
        "1\n"
    );
    for (host, ca) in [("127.0.0.1", "ca.pem"), ("localhost", "one.pem")] {
        let refused = fault(&url(host, ca)).await;
        assert!(!refused.passes_by_itself(), "{refused}");
        assert!(refused.to_string().contains("sslrootcert"), "{refused}");
    }
}

/// Starts pgbouncer before this server. Returns `None` if it is missing.
fn pooler(server: &Server, mode: &str) -> Option<PgBouncer> {
    match PgBouncer::start(server, mode) {
        Err(error @ Error::NoPgBouncer) => {
            report_not_run(&error.to_string());
            None
        }
        started => Some(started.unwrap_or_else(|error| panic!("{error}"))),
    }
}

/// Executes a statement in the database `locks`, through pgbouncer.
fn sql_through(bouncer: &PgBouncer, server: &Server, statement: &str) {
    let status = server
        .client()
        .args([
            "--host=127.0.0.1",
            &format!("--port={}", bouncer.addr().port()),
        ])
        .args(["--dbname=locks", "--quiet", "--command", statement])
        .status();
    assert!(status.expect("psql").success(), "{statement}");
}

#[tokio::test]
async fn pooler_in_transaction_mode_is_refused_with_what_to_do() {
    let Some((server, _)) = server(options()).await else {
        return;
    };
    for mode in ["transaction", "statement"] {
        let Some(bouncer) = pooler(&server, mode) else {
            return;
        };
        let url = bouncer.url("locks");
        let refused = fault(&url).await;
        assert!(!refused.passes_by_itself(), "{refused}");
        let text = refused.to_string();
        assert!(
            text.contains("pooler") && text.contains("pool_mode=session"),
            "{text}"
        );
        let listening = store_at(&url).listen("0123456789abcdef".into()).await;
        assert!(listening.is_err_and(|fault| fault.to_string().contains("pooler")));
        assert!(
            prepare(&url)
                .await
                .is_err_and(|error| error.to_string().contains("pooler"))
        );
    }
}

#[tokio::test]
async fn pooler_in_session_mode_can_be_used_and_its_sessions_end_with_the_run_of_the_server() {
    let Some((server, _)) = server(options()).await else {
        return;
    };
    let Some(bouncer) = pooler(&server, "session") else {
        return;
    };
    let store = store_at(&bouncer.url("locks"));
    let (mut one, greeting) = store.connect().await.expect("a session");
    let version = put(&mut one, "a", 0, "s").await;
    let mut listener = store
        .listen("0123456789abcdef".into())
        .await
        .expect("a listener");
    let mut commit = of(change("a", version, "t"));
    commit.wakes = vec![wake("0123456789abcdef", b"w")];
    one.commit(&[commit]).await.expect("an answer");
    assert_eq!(listener.next().await.expect("a message"), [b"w"]);
    server.restart().expect("up");
    let lost = one.load(&[name("a")]).await.expect_err("a lost session");
    assert_eq!(lost.kind(), "disconnected", "{lost}");
    let (_, again) = store.connect().await.expect("a session");
    assert_ne!(greeting.run, again.run);
}

/// A pooler that begins to share its sessions after the session of quorate has begun.
#[tokio::test]
async fn answer_of_a_session_with_other_settings_counts_as_a_lost_session() {
    let Some((server, _)) = server(options()).await else {
        return;
    };
    let Some(bouncer) = pooler(&server, "session") else {
        return;
    };
    let mut one = session(&store_at(&bouncer.url("locks"))).await;
    put(&mut one, "a", 0, "s").await;
    bouncer.change_mode("transaction").expect("changed");
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        // Another client of the pooler gets the session of quorate, as soon as the pooler uses the new mode.
        sql_through(&bouncer, &server, "SET synchronous_commit=off");
        match one.load(&[name("a")]).await {
            Ok(_) => assert!(Instant::now() < deadline, "the setting must be noticed"),
            Err(fault) => {
                assert_eq!(fault.kind(), "disconnected", "{fault}");
                assert!(fault.to_string().contains("pooler"), "{fault}");
                return;
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[tokio::test]
async fn plain_tcp_proxy_is_no_pooler() {
    let Some((server, _)) = server(options()).await else {
        return;
    };
    let proxy = quorate_testbed::Proxy::start(server.addr().expect("a port")).expect("a proxy");
    let real = server.addr().expect("a port").to_string();
    let url = server
        .url("locks")
        .replace(&real, &proxy.addr().to_string());
    let mut one = session(&store_at(&url)).await;
    put(&mut one, "a", 0, "s").await;
}

#[tokio::test]
async fn connecting_to_a_stopped_server_can_be_given_up() {
    let Some((server, store)) = server(options()).await else {
        return;
    };
    server.stop().expect("stopped");
    let connecting = tokio::time::timeout(Duration::from_millis(200), store.connect()).await;
    assert!(connecting.is_err(), "a stopped server must not answer");
    server.cont().expect("resumed");
    session(&store).await;
}

#[tokio::test]
async fn postgres_is_named_to_clients_of_other_kinds() {
    let Some(server) = bare(options()) else {
        return;
    };
    let address = server.addr().expect("a port");
    for expected in [Protocol::Redis, Protocol::MySql, Protocol::ZooKeeper] {
        let text = other_protocol(address, expected).await;
        assert!(
            text.is_some_and(|text| text.contains("use postgres://")),
            "{text:?}"
        );
    }
    assert_eq!(other_protocol(address, Protocol::Postgres).await, None);
    // Each request that PostgreSQL does not understand adds a line to its log, and needs no session.
    assert!(server.sql("SELECT 1").is_ok());
}

#[tokio::test]
async fn server_of_another_kind_is_named() {
    let redis =
        quorate_testbed::Server::start(quorate_testbed::ServerOptions::new()).expect("a Redis");
    let began = Instant::now();
    let text = fault(&format!("postgres://u@{}/d", redis.addr()))
        .await
        .to_string();
    assert!(text.contains("redis://"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(3));
    if quorate_testbed::MariaDb::available().is_ok() {
        let options = quorate_testbed::MariaDbOptions::new();
        let mysql = quorate_testbed::MariaDb::start(options).expect("a MariaDB");
        let text = fault(&format!("postgres://u@127.0.0.1:{}/d", mysql.port())).await;
        assert!(text.to_string().contains("use mysql://"), "{text}");
    }
    let nobody = Postgres::open("postgres://u@127.0.0.1:1/d")
        .expect("a URL")
        .connect()
        .await;
    assert!(nobody.is_err_and(|fault| fault.kind() == "down"));
}
