//! Tests of connecting: Unix sockets, passwords, TLS, poolers, and servers that do not answer.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    Server, bare, get, options, put, report_not_run, server, session, sql, store_at,
};
use quorate::node::store::Store as _;
use quorate_postgres::{Postgres, prepare};
use quorate_testbed::{PostgresOptions, ServerDir};

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

/// A pgbouncer process, which is killed when this value is dropped.
struct Bouncer {
    process: Child,
    port: u16,
    _home: ServerDir,
}

impl Bouncer {
    /// Starts pgbouncer before this server. Returns `None` if it is missing.
    fn start(server: &Server, mode: &str) -> Option<Self> {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];
        let program = program
            .into_iter()
            .find(|program| Path::new(program).exists())?;
        let home = ServerDir::create(None).expect("a directory");
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let real = server.addr().expect("a port").port();
        let file = home.path().join("pgbouncer.ini");
        let users = home.path().join("users");
        std::fs::write(&users, "\"postgres\" \"\"\n").expect("written");
        let mut ini = std::fs::File::create(&file).expect("created");
        write!(
            ini,
            "[databases]\n* = host={} port={real}\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port={port}\n\
             unix_socket_dir=\nauth_type=trust\nauth_file={}\npool_mode={mode}\n",
            server.dir().display(),
            users.display()
        )
        .expect("written");
        for path in [home.path(), &file, &users] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
                .expect("changed");
        }
        let process = Command::new("setpriv")
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "--pdeathsig",
                "KILL",
                program,
            ])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let listens = || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
        quorate_testbed::within(Duration::from_secs(10), listens).then_some(Self {
            process,
            port,
            _home: home,
        })
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn connection_pooler_is_refused_with_what_to_do() {
    let Some((server, _)) = server(options()).await else {
        return;
    };
    for mode in ["transaction", "session"] {
        let Some(bouncer) = Bouncer::start(&server, mode) else {
            return report_not_run("pgbouncer is missing, or does not start");
        };
        let url = format!("postgres://postgres@127.0.0.1:{}/locks", bouncer.port);
        let refused = fault(&url).await;
        assert!(!refused.passes_by_itself(), "{refused}");
        let text = refused.to_string();
        assert!(
            text.contains("pooler") && text.contains("server itself"),
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
async fn server_of_another_kind_is_named() {
    let redis =
        quorate_testbed::Server::start(quorate_testbed::ServerOptions::new()).expect("a Redis");
    let began = Instant::now();
    let text = fault(&format!("postgres://u@{}/d", redis.addr()))
        .await
        .to_string();
    assert!(text.contains("redis://"), "{text}");
    assert!(began.elapsed() < Duration::from_secs(3));
    let nobody = Postgres::open("postgres://u@127.0.0.1:1/d")
        .expect("a URL")
        .connect()
        .await;
    assert!(nobody.is_err_and(|fault| fault.kind() == "down"));
}
