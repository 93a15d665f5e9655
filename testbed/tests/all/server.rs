//! Tests of the documented behavior of `Server` and `Masters`, on real servers.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use quorate_testbed::{
    Connection, Error, Masters, Persistence, Reply, Server, ServerOptions, Tls, available,
};

fn server() -> Server {
    server_with(ServerOptions::new())
}

fn server_with(options: ServerOptions) -> Server {
    Server::start(options).unwrap_or_else(|error| panic!("{error}"))
}

fn set(server: &Server, key: &str, value: &str) {
    assert!(server.command(&["SET", key, value]).unwrap().is_ok());
}

fn get(server: &Server, key: &str) -> Reply {
    server.command(&["GET", key]).unwrap()
}

/// Whether the process has ended. A zombie process counts as ended.
fn is_gone(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

fn eventually(awaited: &str, mut is_done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_done() {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "timed out waiting for: {awaited}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn started_server_answers_on_its_port_and_on_its_socket() {
    let server = server();
    assert!(server.is_alive());
    set(&server, "a", "b");
    let mut tcp = Connection::tcp(server.addr(), Duration::from_secs(5)).unwrap();
    assert_eq!(tcp.command(&["GET", "a"]).unwrap(), Reply::from("b"));
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
}

#[test]
fn reported_pid_is_the_pid_of_the_server_process() {
    let server = server();
    let info = server.command(&["INFO", "server"]).unwrap();
    let line = format!("process_id:{}\r\n", server.pid().unwrap());
    assert!(info.text().unwrap().contains(&line), "{info:?}");
}

#[test]
fn a_killed_server_refuses_connections() {
    let server = server();
    let pid = server.pid().unwrap();
    server.kill().unwrap();
    assert!(is_gone(pid));
    assert!(!server.is_alive());
    assert_eq!(
        TcpStream::connect(server.addr()).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert_eq!(
        server.command(&["PING"]).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    server.kill().unwrap();
    assert!(matches!(server.stop(), Err(Error::NotRunning)));
    assert!(matches!(server.wait_ready(), Err(Error::NotRunning)));
}

#[test]
fn stopped_server_executes_received_commands_when_it_resumes() {
    let server = server();
    server.stop().unwrap();
    assert!(server.is_alive());
    let mut connection = Connection::tcp(server.addr(), Duration::from_millis(50)).unwrap();
    let error = connection.command(&["SET", "late", "yes"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    server.cont().unwrap();
    eventually(
        "the write that was sent while the server was stopped",
        || get(&server, "late") == Reply::from("yes"),
    );
}

#[test]
fn a_stopped_server_can_be_killed_and_restarted() {
    let server = server();
    server.stop().unwrap();
    server.kill().unwrap();
    server.restart().unwrap();
    set(&server, "a", "b");
}

#[test]
fn server_restarted_empty_loses_every_key_and_keeps_the_port() {
    let server = server_with(ServerOptions::new().persistence(Persistence::AofAlways));
    let port = server.port();
    set(&server, "a", "b");
    server.restart_empty().unwrap();
    assert_eq!(get(&server, "a"), Reply::Nil);
    assert_eq!(server.port(), port);
    drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
}

#[test]
fn a_restart_without_persistence_loses_every_key() {
    let server = server();
    set(&server, "a", "b");
    server.restart().unwrap();
    assert_eq!(get(&server, "a"), Reply::Nil);
}

#[test]
fn restart_from_a_log_that_is_always_synced_keeps_every_acknowledged_key() {
    let server = server_with(ServerOptions::new().persistence(Persistence::AofAlways));
    for i in 0..100 {
        set(&server, &format!("k{i}"), "v");
    }
    server.kill().unwrap();
    server.restart().unwrap();
    assert_eq!(server.command(&["DBSIZE"]).unwrap(), Reply::Int(100));
}

#[test]
fn terminated_server_writes_a_snapshot() {
    let server = server_with(ServerOptions::new().persistence(Persistence::Rdb));
    set(&server, "a", "b");
    server.terminate().unwrap();
    assert!(!server.is_alive());
    server.restart().unwrap();
    assert_eq!(get(&server, "a"), Reply::from("b"));
}

#[test]
fn a_dropped_server_leaves_neither_process_nor_directory() {
    let server = server();
    let (pid, dir, addr) = (
        server.pid().unwrap(),
        server.dir().to_owned(),
        server.addr(),
    );
    server.stop().unwrap();
    drop(server);
    assert!(is_gone(pid));
    assert!(!dir.exists());
    TcpStream::connect(addr).unwrap_err();
}

#[test]
fn server_is_killed_when_the_thread_that_owns_it_panics() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let owner = thread::spawn(move || {
        let server = server();
        sender.send(server.pid().unwrap()).unwrap();
        panic!("as a failing test would");
    });
    owner.join().unwrap_err();
    assert!(is_gone(receiver.recv().unwrap()));
}

#[test]
fn server_outlives_the_thread_that_started_it() {
    let server = thread::spawn(server).join().unwrap();
    thread::sleep(Duration::from_millis(100));
    set(&server, "a", "b");
}

/// `server_ends_when_the_process_that_owns_it_is_killed` runs this function in a child process, and kills that process.
/// Without the variable `QUORATE_TEST_OWNER`, the function does nothing.
#[test]
fn helper_process_starts_a_server_and_waits_until_the_test_kills_the_process() {
    if std::env::var_os("QUORATE_TEST_OWNER").is_none() {
        return;
    }
    let server = server();
    println!(
        "\nserver={} dir={}",
        server.pid().unwrap(),
        server.dir().display()
    );
    thread::sleep(Duration::from_secs(60));
}

#[test]
fn server_ends_when_the_process_that_owns_it_is_killed() {
    use std::io::{BufRead, BufReader};
    let setpriv_status = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "true"])
        .status();
    if !setpriv_status.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this machine has no setpriv with the option --pdeathsig");
        return;
    }
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "server::helper_process_starts_a_server_and_waits_until_the_test_kills_the_process",
            "--nocapture",
        ])
        .env("QUORATE_TEST_OWNER", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let pid_and_dir = lines.find_map(|line| {
        let line = line.unwrap();
        let (pid, dir) = line.strip_prefix("server=")?.split_once(" dir=")?;
        Some((pid.parse::<u32>().unwrap(), dir.to_owned()))
    });
    owner.kill().unwrap();
    owner.wait().unwrap();
    let (pid, dir) =
        pid_and_dir.expect("the owner must print the pid and the directory of its server");
    eventually("the end of the server", || is_gone(pid));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn masters_start_in_parallel_and_are_independent() {
    let masters = Masters::start(5).unwrap();
    assert_eq!(masters.len(), 5);
    let mut urls = masters.urls();
    urls.sort();
    urls.dedup();
    assert_eq!(urls.len(), 5);
    set(&masters[0], "only", "here");
    for other in masters.iter().skip(1) {
        assert_eq!(get(other, "only"), Reply::Nil);
    }
    masters[0].kill().unwrap();
    assert!(masters[1].is_alive());
}

#[test]
fn a_password_is_used_for_commands_and_urls() {
    let server = server_with(ServerOptions::new().password("p@ss \"word\""));
    set(&server, "a", "b");
    let mut connection_without_password =
        Connection::tcp(server.addr(), Duration::from_secs(5)).unwrap();
    let refusal = connection_without_password.command(&["GET", "a"]).unwrap();
    assert!(refusal.text().unwrap().starts_with("NOAUTH"), "{refusal:?}");
    assert!(
        server
            .url()
            .starts_with("redis://:p%40ss%20%22word%22@127.0.0.1:")
    );
}

#[test]
fn acl_user_can_write_only_keys_that_match_its_pattern() {
    let server = server_with(
        ServerOptions::new()
            .acl("app on >pw ~lock:* +@all")
            .login("app", "pw"),
    );
    set(&server, "lock:a", "b");
    let refusal = server.command(&["SET", "other", "b"]).unwrap();
    assert!(refusal.text().unwrap().starts_with("NOPERM"), "{refusal:?}");
    assert!(server.url().starts_with("redis://app:pw@"));
}

#[test]
fn additional_command_line_arguments_reach_the_server() {
    let server = server_with(ServerOptions::new().arg("--hz").arg("77"));
    let hz = server.command(&["CONFIG", "GET", "hz"]).unwrap();
    assert_eq!(hz, Reply::Array(vec!["hz".into(), "77".into()]));
}

#[test]
fn error_of_a_failed_start_contains_the_log_of_the_server() {
    let outcome = Server::start(ServerOptions::new().arg("--no-such-directive").arg("1"));
    let error = outcome.unwrap_err();
    assert!(matches!(error, Error::Exited { .. }), "{error}");
    assert!(error.to_string().contains("no-such-directive"), "{error}");
}

#[test]
fn start_of_a_server_that_never_answers_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let sleeper = dir.path().join("sleeper");
    std::fs::write(&sleeper, "#!/bin/sh\nexec sleep 60\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&sleeper, mode).unwrap();
    let outcome = Server::start(
        ServerOptions::new()
            .program(sleeper)
            .patience(Duration::from_millis(100)),
    );
    assert!(matches!(outcome.unwrap_err(), Error::NotReady { .. }));
}

#[test]
fn installed_redis_or_valkey_server_is_found() {
    let program = available().expect("install redis-server or valkey-server to run these tests");
    assert!(program.is_absolute());
}

#[test]
fn tls_server_speaks_tls_on_its_port_and_takes_commands_on_its_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let (cert, key) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    let openssl_output = Command::new("openssl")
        .args(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2".split(' '),
        )
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output();
    if !openssl_output.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this machine has no openssl");
        return;
    }
    let ca = cert.clone();
    let tls = Tls {
        cert,
        key,
        ca,
        client_certs: false,
    };
    let server = match Server::start(ServerOptions::new().tls(tls)) {
        Err(Error::Exited { log, .. })
            if ["tls-port", "TLS support"]
                .iter()
                .any(|words| log.contains(words)) =>
        {
            eprintln!("skipped: this server was built without TLS");
            return;
        }
        outcome => outcome.unwrap_or_else(|error| panic!("{error}")),
    };
    set(&server, "a", "b");
    assert!(server.url().starts_with("rediss://127.0.0.1:"));
    let handshake = Command::new("openssl")
        .args([
            "s_client",
            "-verify_return_error",
            "-connect",
            &server.addr().to_string(),
            "-CAfile",
        ])
        .arg(dir.path().join("cert.pem"))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let handshake_output = String::from_utf8_lossy(&handshake.stdout);
    assert!(
        handshake_output.contains("Verify return code: 0"),
        "{handshake_output}"
    );
}
