//! Faults of host names: a name does not exist, or the name server does not answer.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use quorate_testbed::{Leads, Names};

use super::kind::{Injection, Row};
use super::landed::Landed;
use crate::fleet;
use crate::world::{Needs, World, host};

/// How long the probe waits for the answer to a lookup during the fault. If the fault silences the name server, no
/// answer may arrive in this time.
const SILENCE: Duration = Duration::from_millis(150);
/// How long the probe waits for the answer to a lookup that must be answered.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const ROWS: &[Row] = &[
    Row::each(
        "dns-silence",
        "the name server does not answer lookups of a master's name, and the connections to the master are reset",
        |fault, index, world| lose(fault, index, world, Leads::ToSilence),
    )
    .needs(Needs::Names),
    Row::each(
        "dns-nowhere",
        "the host name of a master no longer exists, and the connections to the master are reset",
        |fault, index, world| lose(fault, index, world, Leads::Nowhere),
    )
    .needs(Needs::Names),
];

/// Makes lookups of a master's host name fail: the name does not exist, or the name server does not answer. The fault
/// affects all clients, because all use the same host name for the master.
fn lose(
    fault: &Injection,
    index: usize,
    world: &mut World,
    leads: Leads,
) -> anyhow::Result<Landed> {
    let names = names(world)?.clone();
    let name = host(index);
    names.set(&name, leads)?;
    // End all connections, because a client looks up the name only when it connects.
    for client in fault.clients_in(world) {
        world.roads[client][index].reset_all();
    }
    let look = |_: &World| {
        let mut asked = Asked::of(&names, &name)?;
        match (leads, asked.answer(SILENCE)) {
            (Leads::ToSilence, None) => {
                Ok("the name server did not answer the lookup of the master's name".into())
            }
            (Leads::Nowhere, None) => match asked.answer(PATIENCE) {
                Some(answer) if answer.starts_with("error") => Ok(answer),
                other => bail!("the lookup of the master's name must fail, but returned {other:?}"),
            },
            (Leads::Nowhere, Some(answer)) if answer.starts_with("error") => Ok(answer),
            (_, answer) => bail!("the lookup of the master's name must not return {answer:?}"),
        }
    };
    let (there, told, back) = (world.way_to(index), names.clone(), name.clone());
    Landed::once_seen(world, look, move |_| {
        told.set(&back, Leads::To(there))?;
        let answer = Asked::of(&told, &back)?.answer(PATIENCE);
        let found = answer
            .as_ref()
            .is_some_and(|answer| answer.contains(&there.to_string()));
        ensure!(found, "the master's name still resolves to {answer:?}");
        Ok(())
    })
}

fn names(world: &World) -> anyhow::Result<&Names> {
    world
        .names
        .as_ref()
        .context("the masters of this run have no host names")
}

/// A process that looks up one host name. It has the same environment as the clients, so it gets the same answer.
struct Asked {
    process: Child,
    lines: Receiver<String>,
}

impl Asked {
    /// Starts the process. It prints a line immediately before it looks up the name, and this function waits for the
    /// line.
    fn of(names: &Names, name: &str) -> anyhow::Result<Self> {
        let mut process = Command::new(fleet::program()?)
            .args(["lookup", name])
            .envs(names.env())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start a process that resolves host names")?;
        let out = process
            .stdout
            .take()
            .context("the stdout of the lookup process is not a pipe")?;
        let (told, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = told.send(line);
            }
        });
        let asked = Self { process, lines };
        let begun = asked.lines.recv_timeout(PATIENCE);
        ensure!(
            begun.is_ok(),
            "the process that looks names up did not start"
        );
        Ok(asked)
    }

    fn answer(&mut self, patience: Duration) -> Option<String> {
        self.lines.recv_timeout(patience).ok()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
