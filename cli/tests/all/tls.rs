//! Tests of `rediss://` masters with a private certificate authority and client certificates, and of `mysqls://`
//! masters.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{bare, done};
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
    let file = |name: &str| dir.path().join(name);
    if !certificates(dir.path()) {
        eprintln!("skipped: no openssl here");
        return;
    }
    let tls = Tls {
        cert: file("one.pem"),
        key: file("one.key"),
        ca: file("ca.pem"),
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
    let quorate = |certificates: bool, args: &[&str]| {
        let mut command = bare();
        command
            .env("QUORATE_MASTERS", masters.urls().join(","))
            .env("QUORATE_RESTART_GUARD", "off");
        if certificates {
            command
                .env("QUORATE_CA_FILE", file("ca.pem"))
                .env("QUORATE_CLIENT_CERT", file("one.pem"))
                .env("QUORATE_CLIENT_KEY", file("one.key"));
        }
        done(command.args(args))
    };
    assert!(masters.urls()[0].starts_with("rediss://"));
    let run = quorate(true, &["run", "--wait", "5s", "r", "--", "true"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let doctor = quorate(true, &["doctor"]);
    assert!(doctor.out.contains("noeviction"), "{doctor:?}");
    assert!(!doctor.out.contains("reachable"), "{doctor:?}");
    let stranger = quorate(false, &["run", "--wait", "500ms", "r", "--", "true"]);
    assert_eq!(stranger.code, Some(69), "{stranger:?}");
    let half = done(bare().args([
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
    assert!(half.err.contains("--client-key"), "{half:?}");
}

#[test]
fn client_checks_the_certificate_of_a_database_before_it_logs_in() {
    let test = "client_checks_the_certificate_of_a_database_before_it_logs_in";
    if let Err(why) = MariaDb::available() {
        return not_run(test, &why.to_string());
    }
    let (dir, other) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir().expect("a directory"),
    );
    if !certificates(dir.path()) || !certificates(other.path()) {
        return not_run(test, "no openssl here");
    }
    let file = |name: &str| dir.path().join(name).display().to_string();
    let options = MariaDbOptions::new()
        .arg(format!("--ssl-cert={}", file("one.pem")))
        .arg(format!("--ssl-key={}", file("one.key")))
        .arg("--require_secure_transport=ON");
    let server = MariaDb::start(options).unwrap_or_else(|error| panic!("{error}"));
    let plain = server.url_of("locks:s3cret", "locks");
    server
        .sql("CREATE USER locks@127.0.0.1 IDENTIFIED BY 's3cret'; GRANT ALL ON *.* TO locks@127.0.0.1")
        .unwrap_or_else(|error| panic!("{error}"));
    let secure = plain.replace("mysql://", "mysqls://");
    let trusted = format!("{secure}?ca={}&timeout=2s", file("ca.pem"));
    let made = done(bare().args(["prepare-server", &trusted]));
    assert_eq!(made.code, Some(0), "{made:?}");
    let run = |master: &str| {
        let mut command = bare();
        command.env("QUORATE_MASTERS", master);
        command.env("QUORATE_RESTART_GUARD", "after-first-contact");
        let run = done(command.args(["run", "--ttl", "20s", "--wait", "3s", "r", "--", "true"]));
        assert!(!run.err.contains("s3cret"), "{run:?}");
        run
    };
    let held = run(&trusted);
    assert_eq!(held.code, Some(0), "{held:?}");
    let stranger = other.path().join("ca.pem");
    let wrong = format!("{secure}?ca={}&timeout=2s", stranger.display());
    let missing = format!("{secure}?ca=/no/such/file&timeout=2s");
    let by_web = format!("{secure}?timeout=2s");
    for (master, code, says) in [
        (&wrong, 69, "certificate"),
        (&by_web, 69, "certificate"),
        (&missing, 64, "/no/such/file"),
        // MariaDB refuses a login without encryption. Its error says only "denied".
        (&plain, 69, "denied"),
    ] {
        let refused = run(master);
        assert_eq!(refused.code, Some(code), "{master}: {refused:?}");
        assert!(refused.err.contains(says), "{master}: {refused:?}");
    }
}

#[test]
fn database_user_that_requires_a_certificate_logs_in_with_cert_and_key() {
    let test = "database_user_that_requires_a_certificate_logs_in_with_cert_and_key";
    if let Err(why) = MariaDb::available() {
        return not_run(test, &why.to_string());
    }
    let dir = tempfile::tempdir().expect("a directory");
    if !certificates(dir.path()) {
        return not_run(test, "no openssl here");
    }
    let file = |name: &str| dir.path().join(name).display().to_string();
    let options = MariaDbOptions::new()
        .arg(format!("--ssl-ca={}", file("ca.pem")))
        .arg(format!("--ssl-cert={}", file("one.pem")))
        .arg(format!("--ssl-key={}", file("one.key")));
    let server = MariaDb::start(options).unwrap_or_else(|error| panic!("{error}"));
    server
        .sql("CREATE USER locks@127.0.0.1 IDENTIFIED BY 's3cret' REQUIRE X509; GRANT ALL ON *.* TO locks@127.0.0.1")
        .unwrap_or_else(|error| panic!("{error}"));
    let url = server
        .url_of("locks:s3cret", "locks")
        .replace("mysql://", "mysqls://");
    let url = format!("{url}?timeout=2s&ca={}", file("ca.pem"));
    let with = |cert: &str, key: &str| format!("{url}&cert={}&key={}", file(cert), file(key));
    let own = with("one.pem", "one.key");
    let run = |master: &str, args: &[&str]| {
        let mut command = bare();
        command.env("QUORATE_MASTERS", master);
        command.env("QUORATE_RESTART_GUARD", "off");
        let run = done(command.args(args));
        assert!(!run.err.contains("s3cret"), "{run:?}");
        run
    };
    let prepared = run("", &["prepare-server", &own]);
    assert_eq!(prepared.code, Some(0), "{prepared:?}");
    let lock = ["run", "--wait", "3s", "r", "--", "true"];
    let held = run(&own, &lock);
    assert_eq!(held.code, Some(0), "{held:?}");
    for (master, code, says) in [
        (&url, 69, "?cert= and ?key="),
        (&format!("{url}&cert={}", file("one.pem")), 64, "together"),
        (&with("one.pem", "no.key"), 64, "no.key"),
        (&with("one.pem", "ext"), 64, "no private key in PEM form"),
    ] {
        let refused = run(master, &lock);
        assert_eq!(refused.code, Some(code), "{master}: {refused:?}");
        assert!(refused.err.contains(says), "{master}: {refused:?}");
    }
}
