//! A process that runs another Redlock client.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use quorate_testbed::Masters;

/// Another Redlock client.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// The npm package `redlock`.
    NpmRedlock,
    /// The PyPI package `pottery`.
    Pottery,
}

impl Kind {
    /// The text that the client puts in front of the resource name. `None` if the client is not installed; then prints
    /// that the test is skipped.
    pub(crate) fn prefix_if_installed(self) -> Option<&'static str> {
        if self.command().is_none() {
            eprintln!(
                "SKIPPED: the other client is not installed; scripts/interop installs it and runs this test"
            );
            return None;
        }
        Some(match self {
            Self::NpmRedlock => "",
            Self::Pottery => "redlock:",
        })
    }

    fn command(self) -> Option<Command> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/");
        let mut command;
        match self {
            Self::NpmRedlock => {
                let modules = std::env::var_os("QUORATE_INTEROP_NODE")?;
                command = Command::new("node");
                command.env("NODE_PATH", modules);
                command.arg(format!("{folder}redlock.mjs"));
            }
            Self::Pottery => {
                command = Command::new(std::env::var_os("QUORATE_INTEROP_PYTHON")?);
                command.arg(format!("{folder}pottery_lock.py"));
            }
        }
        Some(command)
    }
}

/// A process that runs another Redlock client. It may hold a lock.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the client. It locks `resource`.
    pub(crate) fn start(kind: Kind, resource: &str, masters: &Masters) -> Self {
        let mut child = kind
            .command()
            .expect("the other client must be installed")
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

    fn answer(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").expect("the other client must still read its input");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.trim().to_owned()
    }

    /// Tries to acquire the lock. Returns whether the client now holds it.
    pub(crate) fn try_acquire(&mut self) -> bool {
        match &*self.answer("try") {
            "acquired" => true,
            "refused" => false,
            other => panic!("unexpected answer of the other client: {other:?}"),
        }
    }

    pub(crate) fn release(&mut self) {
        assert_eq!(self.answer("release"), "released");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
