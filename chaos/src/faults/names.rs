//! Faults of host names: a name does not exist, or the name server does not answer.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use quorate_testbed::{LookupAnswer, Names};

use super::kind::{Injection, Row};
use super::landed::Landed;
use crate::fleet;
use crate::world::{Needs, World, host_name};

/// How long the probe waits for the answer to a lookup during the fault. If the fault silences the name server, no
/// answer may arrive in this time.
const SILENCE: Duration = Duration::from_millis(150);
/// How long the probe waits for the answer to a lookup that must be answered.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) const ROWS: &[Row] = &[
    Row::each(
        "dns-silence",
        "the name server does not answer lookups of a master's name, and the connections to the master are reset",
        |fault, index, world| break_lookups(fault, index, world, LookupAnswer::Silence),
    )
    .needs(Needs::Names),
    Row::each(
        "dns-nowhere",
        "the host name of a master no longer exists, and the connections to the master are reset",
        |fault, index, world| break_lookups(fault, index, world, LookupAnswer::NoSuchName),
    )
    .needs(Needs::Names),
];

/// Makes lookups of a master's host name fail: the name does not exist, or the name server does not answer. The fault
/// affects all clients, because all use the same host name for the master.
fn break_lookups(
    fault: &Injection,
    index: usize,
    world: &mut World,
    answer: LookupAnswer,
) -> anyhow::Result<Landed> {
    let names = names_of(world)?.clone();
    let name = host_name(index);
    names.set(&name, answer)?;
    // End all connections, because a client looks up the name only when it connects.
    for client in fault.clients_in(world) {
        world.paths[client][index].reset_all();
    }
    let observe = |_: &World| {
        let mut lookup = Lookup::of(&names, &name)?;
        match (answer, lookup.answer(SILENCE)) {
            (LookupAnswer::Silence, None) => {
                Ok("the name server did not answer the lookup of the master's name".into())
            }
            (LookupAnswer::NoSuchName, None) => match lookup.answer(PATIENCE) {
                Some(answer) if answer.starts_with("error") => Ok(answer),
                late_answer => {
                    bail!("the lookup of the master's name must fail, but returned {late_answer:?}")
                }
            },
            (LookupAnswer::NoSuchName, Some(answer)) if answer.starts_with("error") => Ok(answer),
            (_, answer) => bail!("the lookup of the master's name must not return {answer:?}"),
        }
    };
    let (address, names_to_heal, name_to_heal) =
        (world.client_address(index), names.clone(), name.clone());
    Landed::once_observed(world, observe, move |_| {
        names_to_heal.set(&name_to_heal, LookupAnswer::Address(address))?;
        let answer = Lookup::of(&names_to_heal, &name_to_heal)?.answer(PATIENCE);
        let resolves = answer
            .as_ref()
            .is_some_and(|answer| answer.contains(&address.to_string()));
        ensure!(resolves, "the master's name still resolves to {answer:?}");
        Ok(())
    })
}

fn names_of(world: &World) -> anyhow::Result<&Names> {
    world
        .names
        .as_ref()
        .context("the masters of this run have no host names")
}

/// A process that looks up one host name. It has the same environment as the clients, so it gets the same answer.
struct Lookup {
    process: Child,
    lines: Receiver<String>,
}

impl Lookup {
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
        let stdout = process
            .stdout
            .take()
            .context("the stdout of the lookup process is not a pipe")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let lookup = Self { process, lines };
        let first_line = lookup.lines.recv_timeout(PATIENCE);
        ensure!(
            first_line.is_ok(),
            "the process that looks names up did not start"
        );
        Ok(lookup)
    }

    fn answer(&mut self, patience: Duration) -> Option<String> {
        self.lines.recv_timeout(patience).ok()
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
