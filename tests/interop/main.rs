//! Tests with other Redlock clients that use the same lock key: while one of two clients holds the lock, the other is
//! refused.
//!
//! `scripts/interop` installs these clients and runs the tests. Without the clients, each test reports that it was
//! skipped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use quorate::{Redlock, RestartGuard, TryAcquire};
use quorate_testbed::Masters;

/// A process that runs another Redlock client. It may hold a lock.
struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    fn start(mut command: Command, resource: &str, masters: &Masters) -> Self {
        let mut child = command
            .arg(resource)
            .args(masters.into_iter().map(|master| master.addr().to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the other client must start");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            input,
            output,
        }
    }

    fn read_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.trim().to_owned()
    }

    fn release(&mut self) {
        self.input
            .write_all(b"go\n")
            .expect("the other client must still read its input");
        assert_eq!(self.read_line(), "released");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn node_redlock() -> Option<Command> {
    let modules = std::env::var_os("QUORATE_INTEROP_NODE")?;
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules);
    command.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/interop/redlock.mjs"
    ));
    Some(command)
}

fn pottery_command() -> Option<Command> {
    let python = std::env::var_os("QUORATE_INTEROP_PYTHON")?;
    let mut command = Command::new(python);
    command.arg(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/interop/pottery_lock.py"
    ));
    Some(command)
}

/// Checks that while one of two clients holds the lock, the other client is refused. One client is this library.
/// `prefix` is the text that the other client puts in front of the resource name.
async fn both_exclude_each_other(peer: impl Fn() -> Option<Command>, prefix: &str) {
    let Some(command) = peer() else {
        eprintln!(
            "SKIPPED: the other client is not installed; scripts/interop installs it and runs this test"
        );
        return;
    };
    let masters = Masters::start(3).expect("three masters");
    let redlock = Redlock::builder()
        .masters(masters.urls())
        .restart_guard(RestartGuard::Off)
        .prefix(prefix)
        .build()
        .expect("good settings");

    let guard = redlock.acquire("shared").await.expect("free");
    let mut refused_peer = Peer::start(command, "shared", &masters);
    assert_eq!(
        refused_peer.read_line(),
        "refused",
        "the other client must not get a lock that quorate holds"
    );
    guard.release().await;
    redlock.flush().await;

    let mut holding_peer = Peer::start(peer().expect("installed"), "shared", &masters);
    assert_eq!(
        holding_peer.read_line(),
        "acquired",
        "the other client must get a lock that is free"
    );
    let tried = redlock.try_acquire("shared").await.expect("a quorum");
    assert!(
        matches!(tried, TryAcquire::Held(_)),
        "quorate must not get a lock that the other client holds"
    );
    holding_peer.release();
    let tried = redlock.try_acquire("shared").await.expect("a quorum");
    assert!(
        matches!(tried, TryAcquire::Acquired(_)),
        "quorate must get a lock that the other client has released"
    );
}

#[tokio::test]
async fn npm_package_redlock_and_quorate_exclude_each_other() {
    both_exclude_each_other(node_redlock, "").await;
}

#[tokio::test]
async fn pypi_package_pottery_and_quorate_exclude_each_other() {
    both_exclude_each_other(pottery_command, "redlock:").await;
}
