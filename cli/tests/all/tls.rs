//! Tests of `rediss://` masters with a private certificate authority and client certificates, and of `mysqls://`
//! masters.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::common::{output_of, quorate_command, wait_until};
use quorate_testbed::{Error, MariaDb, MariaDbOptions, Masters, ServerOptions, Tls, not_run};

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

/// Creates a certificate authority, and one certificate for servers and clients on the loopback address. Returns false
/// if `openssl` cannot create them.
fn certificates(dir: &Path) -> bool {
    std::fs::write(
        dir.join("ext"),
        "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n",
    )
    .expect("written");
    let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    [
        format!("req -x509 {curve} -keyout ca.key -out ca.pem -subj /CN=authority"),
        format!("req {curve} -keyout one.key -out one.csr -subj /CN=one"),
        "x509 -req -in one.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out one.pem"
            .to_owned(),
    ]
    .iter()
    .all(|line| openssl(dir, line))
}

#[test]
fn locks_work_on_masters_that_require_tls_and_client_certificates() {
    let dir = tempfile::tempdir().expect("a directory");
    let path_of = |name: &str| dir.path().join(name);
    if !certificates(dir.path()) {
        eprintln!("skipped: no openssl here");
        return;
    }
    let tls = Tls {
        cert: path_of("one.pem"),
        key: path_of("one.key"),
        ca: path_of("ca.pem"),
        client_certs: true,
    };
    let masters = match Masters::start_with(3, |_| ServerOptions::new().tls(tls.clone())) {
        Ok(masters) => masters,
        Err(Error::Exited { log, .. })
            if log.contains("tls-port") || log.contains("TLS support") =>
        {
            eprintln!("skipped: this server does not support TLS");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let run_quorate = |certificates: bool, args: &[&str]| {
        let mut command = quorate_command();
        command
            .env("QUORATE_MASTERS", masters.urls().join(","))
            .env("QUORATE_RESTART_GUARD", "off");
        if certificates {
            command
                .env("QUORATE_CA_FILE", path_of("ca.pem"))
                .env("QUORATE_CLIENT_CERT", path_of("one.pem"))
                .env("QUORATE_CLIENT_KEY", path_of("one.key"));
        }
        output_of(command.args(args))
    };
    assert!(masters.urls()[0].starts_with("rediss://"));
    let run = run_quorate(true, &["run", "--wait", "5s", "r", "--", "true"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let doctor = run_quorate(true, &["doctor"]);
    assert!(doctor.stdout.contains("noeviction"), "{doctor:?}");
    assert!(!doctor.stdout.contains("reachable"), "{doctor:?}");
    // A process that had no connection before does not wait for another certificate.
    let endless = ["run", "r", "--", "true"];
    let output = run_quorate(false, &endless);
    assert_eq!(output.code, Some(69), "{output:?}");
    assert!(output.stderr.contains("ca_file"), "{output:?}");
    let doctor = run_quorate(false, &["doctor"]);
    assert!(doctor.stdout.contains("ca_file"), "{doctor:?}");
    a_process_that_had_no_connection_does_not_wait(&masters, &path_of("ca.pem"));
    let half = output_of(quorate_command().args([
        "run",
        "--masters",
        "rediss://127.0.0.1:1",
        "--client-cert",
        "/x",
        "r",
        "--",
        "true",
    ]));
    assert_eq!(half.code, Some(64), "{half:?}");
    assert!(half.stderr.contains("--client-key"), "{half:?}");
}

/// Checks that `run` without a client certificate, and with TLS on a server without TLS, ends an endless wait.
fn a_process_that_had_no_connection_does_not_wait(masters: &Masters, ca: &Path) {
    let endless = ["run", "r", "--", "true"];
    let url = &masters.urls()[0];
    let of_one = |url: &str| {
        let mut command = quorate_command();
        command.env("QUORATE_MASTERS", url);
        command.env("QUORATE_CA_FILE", ca);
        output_of(command.args(endless))
    };
    let nameless = of_one(url);
    assert_eq!(nameless.code, Some(69), "{nameless:?}");
    assert!(
        nameless.stderr.contains("client_cert, client_key"),
        "{nameless:?}"
    );
    let server_without_tls = Masters::start(1).expect("a server");
    let output = of_one(&server_without_tls.urls()[0].replace("redis://", "rediss://"));
    assert_eq!(output.code, Some(69), "{output:?}");
    assert!(output.stderr.contains("does not use TLS"), "{output:?}");
}

#[test]
fn client_checks_the_certificate_of_a_database_before_it_logs_in() {
    let test_name = "client_checks_the_certificate_of_a_database_before_it_logs_in";
    if let Err(why) = MariaDb::available() {
        return not_run(test_name, &why.to_string());
    }
    let (dir, other) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    if !certificates(dir.path()) || !certificates(other.path()) {
        return not_run(test_name, "no openssl here");
    }
    let path_of = |name: &str| dir.path().join(name).display().to_string();
    let options = MariaDbOptions::new()
        .arg(format!("--ssl-cert={}", path_of("one.pem")))
        .arg(format!("--ssl-key={}", path_of("one.key")))
        .arg("--require_secure_transport=ON");
    let server = MariaDb::start(options).unwrap_or_else(|error| panic!("{error}"));
    let plain_url = server.url_of("locks:s3cret", "locks");
    server
        .sql("CREATE USER locks@127.0.0.1 IDENTIFIED BY 's3cret'; GRANT ALL ON *.* TO locks@127.0.0.1")
        .unwrap_or_else(|error| panic!("{error}"));
    let secure = plain_url.replace("mysql://", "mysqls://");
    let trusted = format!("{secure}?ca={}&timeout=2s", path_of("ca.pem"));
    let prepare_run = output_of(quorate_command().args(["prepare-server", &trusted]));
    assert_eq!(prepare_run.code, Some(0), "{prepare_run:?}");
    let run = |master: &str| {
        let mut command = quorate_command();
        command.env("QUORATE_MASTERS", master);
        command.env("QUORATE_RESTART_GUARD", "after-first-contact");
        let run =
            output_of(command.args(["run", "--ttl", "20s", "--wait", "3s", "r", "--", "true"]));
        assert!(!run.stderr.contains("s3cret"), "{run:?}");
        run
    };
    let held_run = run(&trusted);
    assert_eq!(held_run.code, Some(0), "{held_run:?}");
    let foreign_ca = other.path().join("ca.pem");
    let wrong = format!("{secure}?ca={}&timeout=2s", foreign_ca.display());
    let missing_file_url = format!("{secure}?ca=/no/such/file&timeout=2s");
    let by_web = format!("{secure}?timeout=2s");
    for (master, code, expected_text) in [
        (&wrong, 69, "certificate"),
        (&by_web, 69, "certificate"),
        (&missing_file_url, 64, "/no/such/file"),
        // MariaDB refuses a login without encryption. Its error says only "denied".
        (&plain_url, 69, "denied"),
    ] {
        let refused_run = run(master);
        assert_eq!(refused_run.code, Some(code), "{master}: {refused_run:?}");
        assert!(
            refused_run.stderr.contains(expected_text),
            "{master}: {refused_run:?}"
        );
    }
}

#[test]
fn database_user_that_requires_a_certificate_logs_in_with_cert_and_key() {
    let test_name = "database_user_that_requires_a_certificate_logs_in_with_cert_and_key";
    if let Err(why) = MariaDb::available() {
        return not_run(test_name, &why.to_string());
    }
    let dir = tempfile::tempdir().expect("a directory");
    if !certificates(dir.path()) {
        return not_run(test_name, "no openssl here");
    }
    let path_of = |name: &str| dir.path().join(name).display().to_string();
    let options = MariaDbOptions::new()
        .arg(format!("--ssl-ca={}", path_of("ca.pem")))
        .arg(format!("--ssl-cert={}", path_of("one.pem")))
        .arg(format!("--ssl-key={}", path_of("one.key")));
    let server = MariaDb::start(options).unwrap_or_else(|error| panic!("{error}"));
    server
        .sql("CREATE USER locks@127.0.0.1 IDENTIFIED BY 's3cret' REQUIRE X509; GRANT ALL ON *.* TO locks@127.0.0.1")
        .unwrap_or_else(|error| panic!("{error}"));
    let url = server
        .url_of("locks:s3cret", "locks")
        .replace("mysql://", "mysqls://");
    let url = format!("{url}?timeout=2s&ca={}", path_of("ca.pem"));
    let with = |cert: &str, key: &str| format!("{url}&cert={}&key={}", path_of(cert), path_of(key));
    let own_url = with("one.pem", "one.key");
    let run = |master: &str, args: &[&str]| {
        let mut command = quorate_command();
        command.env("QUORATE_MASTERS", master);
        command.env("QUORATE_RESTART_GUARD", "off");
        let run = output_of(command.args(args));
        assert!(!run.stderr.contains("s3cret"), "{run:?}");
        run
    };
    let prepared_run = run("", &["prepare-server", &own_url]);
    assert_eq!(prepared_run.code, Some(0), "{prepared_run:?}");
    let lock_args = ["run", "--wait", "3s", "r", "--", "true"];
    let held_run = run(&own_url, &lock_args);
    assert_eq!(held_run.code, Some(0), "{held_run:?}");
    for (master, code, expected_text) in [
        (&url, 69, "?cert= and ?key="),
        (
            &format!("{url}&cert={}", path_of("one.pem")),
            64,
            "together",
        ),
        (&with("one.pem", "no.key"), 64, "no.key"),
        (&with("one.pem", "ext"), 64, "no private key in PEM form"),
    ] {
        let refused_run = run(master, &lock_args);
        assert_eq!(refused_run.code, Some(code), "{master}: {refused_run:?}");
        assert!(
            refused_run.stderr.contains(expected_text),
            "{master}: {refused_run:?}"
        );
    }
}

/// A holder whose command ends when the file `stop` exists, and a waiter for the same lock. Both run with these
/// variables.
struct HolderAndWaiter {
    holder: Child,
    waiter: Child,
    stop: PathBuf,
}

impl HolderAndWaiter {
    fn start(dir: &Path, variables: &[(&str, String)]) -> Self {
        let (stop, ready) = (dir.join("stop"), dir.join("ready"));
        let run = |wait: &str, command: &str| {
            let mut run = quorate_command();
            run.envs(variables.iter().map(|(name, value)| (name, value)));
            run.env("QUORATE_NODE_TIMEOUT", "500ms")
                .env("QUORATE_CONNECT_TIMEOUT", "2s");
            run.args([
                "run", "--ttl", "4s", "--wait", wait, "r", "--", "sh", "-c", command,
            ]);
            run.stdout(Stdio::piped()).stderr(Stdio::piped());
            run.spawn().expect("starts")
        };
        let held_script = format!(
            "touch {}; while [ ! -e {} ]; do sleep 0.05; done",
            ready.display(),
            stop.display()
        );
        let holder = run("20s", &held_script);
        wait_until("the lock is held", || ready.exists());
        let waiter = run("120s", "true");
        // The waiter has found the lock held, and its connections are open.
        std::thread::sleep(Duration::from_secs(1));
        Self {
            holder,
            waiter,
            stop,
        }
    }

    /// Lets the holder end, and returns what holder and waiter printed. Both must have had the lock.
    fn end(self) -> [Output; 2] {
        std::fs::write(self.stop, "").expect("written");
        [self.holder, self.waiter].map(|process| process.wait_with_output().expect("its end"))
    }
}

/// Copies the certificates from one folder into another, as an operator replaces them: each file gets its new content in
/// one step.
fn install(source: &Path, target: &Path) {
    for name in ["ca.pem", "one.pem", "one.key"] {
        let new_path = target.join(format!("{name}.new"));
        std::fs::copy(source.join(name), &new_path).expect("copied");
        std::fs::rename(new_path, target.join(name)).expect("renamed");
    }
}

/// The TTL is 4 s, so that a holder without new connections has lost its lock after that time.
const LONGER_THAN_THE_TTL: Duration = Duration::from_secs(6);

/// Replaces bad files, and then all certificates and their authority, while one process holds a lock and another one
/// waits for it. `reload` makes the servers read their files again, and closes all connections.
fn replace_all(
    live: &Path,
    other: &Path,
    locks: HolderAndWaiter,
    disconnect: impl Fn(),
    reload: impl Fn(),
) {
    let good = std::fs::read(live.join("ca.pem")).expect("a file");
    std::fs::write(live.join("ca.pem"), "half a fi").expect("written");
    for _ in 0..3 {
        disconnect();
        std::thread::sleep(Duration::from_secs(1));
    }
    std::thread::sleep(LONGER_THAN_THE_TTL);
    std::fs::write(live.join("ca.pem"), good).expect("written");
    install(other, live);
    reload();
    disconnect();
    std::thread::sleep(LONGER_THAN_THE_TTL);
    for process in locks.end() {
        let stderr = String::from_utf8_lossy(&process.stderr);
        assert_eq!(process.status.code(), Some(0), "{stderr}");
        let warnings = stderr.matches("changed TLS files cannot be used").count();
        assert!(
            (1..=3).contains(&warnings),
            "one warning for each master: {stderr}"
        );
    }
}

#[test]
fn locks_survive_the_replacement_of_all_certificates_of_redis_masters() {
    let test_name = "locks_survive_the_replacement_of_all_certificates_of_redis_masters";
    let [live, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    if !certificates(live.path()) || !certificates(other.path()) {
        return not_run(test_name, "no openssl here");
    }
    let path_of = |name: &str| live.path().join(name);
    let tls = Tls {
        cert: path_of("one.pem"),
        key: path_of("one.key"),
        ca: path_of("ca.pem"),
        client_certs: true,
    };
    let masters = match Masters::start_with(3, |_| ServerOptions::new().tls(tls.clone())) {
        Ok(masters) => masters,
        Err(Error::Exited { log, .. })
            if log.contains("tls-port") || log.contains("TLS support") =>
        {
            return not_run(test_name, "this server does not support TLS");
        }
        Err(error) => panic!("{error}"),
    };
    let path_text = |name: &str| path_of(name).display().to_string();
    let variables = [
        ("QUORATE_MASTERS", masters.urls().join(",")),
        ("QUORATE_RESTART_GUARD", "off".to_owned()),
        ("QUORATE_CA_FILE", path_text("ca.pem")),
        ("QUORATE_CLIENT_CERT", path_text("one.pem")),
        ("QUORATE_CLIENT_KEY", path_text("one.key")),
    ];
    let holder_and_waiter = HolderAndWaiter::start(live.path(), &variables);
    let send_to_each = |args: &[&str]| {
        for master in &masters {
            master.command(args).expect("a reply");
        }
    };
    let disconnect = || {
        send_to_each(&["CLIENT", "KILL", "TYPE", "normal"]);
        send_to_each(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    };
    let reload = || {
        let [cert, key, ca] = ["one.pem", "one.key", "ca.pem"].map(path_text);
        send_to_each(&[
            "CONFIG",
            "SET",
            "tls-cert-file",
            &cert,
            "tls-key-file",
            &key,
            "tls-ca-cert-file",
            &ca,
        ]);
    };
    replace_all(
        live.path(),
        other.path(),
        holder_and_waiter,
        disconnect,
        reload,
    );
}

#[test]
fn locks_survive_the_replacement_of_all_certificates_of_a_database() {
    let test_name = "locks_survive_the_replacement_of_all_certificates_of_a_database";
    if let Err(why) = MariaDb::available() {
        return not_run(test_name, &why.to_string());
    }
    let [live, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    if !certificates(live.path()) || !certificates(other.path()) {
        return not_run(test_name, "no openssl here");
    }
    let path_of = |name: &str| live.path().join(name).display().to_string();
    let options = MariaDbOptions::new()
        .arg(format!("--ssl-ca={}", path_of("ca.pem")))
        .arg(format!("--ssl-cert={}", path_of("one.pem")))
        .arg(format!("--ssl-key={}", path_of("one.key")));
    let server = MariaDb::start(options).unwrap_or_else(|error| panic!("{error}"));
    let sql = |text: &str| server.sql(text).unwrap_or_else(|error| panic!("{error}"));
    sql(
        "CREATE USER locks@127.0.0.1 IDENTIFIED BY 's3cret' REQUIRE X509; GRANT ALL ON *.* TO locks@127.0.0.1",
    );
    let url = server.url_of("locks:s3cret", "locks");
    let url = url.replace("mysql://", "mysqls://");
    let option_files = ["ca", "cert", "key"]
        .iter()
        .zip(["ca.pem", "one.pem", "one.key"]);
    let options: Vec<String> = option_files
        .map(|(option, name)| format!("&{option}={}", path_of(name)))
        .collect();
    let file_options = options.concat();
    let url = format!("{url}?timeout=1s{file_options}");
    let prepared_run = output_of(quorate_command().args(["prepare-server", &url]));
    assert_eq!(prepared_run.code, Some(0), "{prepared_run:?}");
    let variables = [
        ("QUORATE_MASTERS", url),
        ("QUORATE_RESTART_GUARD", "off".to_owned()),
    ];
    let holder_and_waiter = HolderAndWaiter::start(live.path(), &variables);
    let end_connections = || drop(sql("KILL USER locks@127.0.0.1"));
    let reload = || drop(sql("FLUSH SSL"));
    replace_all(
        live.path(),
        other.path(),
        holder_and_waiter,
        end_connections,
        reload,
    );
}
