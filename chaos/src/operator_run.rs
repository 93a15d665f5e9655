//! Carries out the tasks of an operator that changes masters (see [`operator_tasks`]): runs the real command
//! `quorate masters`, restarts clients with other masters, and stops servers.
//!
//! [`OperatorRun::advance`] never waits, so the driver can inject faults between two calls.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::changes::MasterChanges;
use crate::event::Event;
use crate::operator_tasks::{self, MasterSet, Moment, Task};
use crate::recorder::Recorder;
use crate::scenario::Scenario;
use crate::world::World;

/// The time limit for one task. A step that fails is tried again within this limit.
const PATIENCE: Duration = Duration::from_secs(90);
/// The pause before a failed step is tried again.
const PAUSE: Duration = Duration::from_millis(300);

/// The action that the driver must take next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Nothing; call [`OperatorRun::advance`] again.
    Continue,
    /// Inject a fault that is allowed at this moment of the change of masters. Then call
    /// [`OperatorRun::fault_injected`].
    InjectFault(Moment),
    /// Stop calling the walker: all tasks are done, or a task failed.
    Finished,
}

/// The masters and clients that faults affect now.
#[derive(Debug, Default)]
pub struct AffectedTargets {
    /// The affected masters, by index.
    pub masters: Vec<usize>,
    /// The affected clients, by index.
    pub clients: Vec<usize>,
}

/// An operator in the middle of a change of masters.
#[derive(Debug)]
pub struct OperatorRun {
    changes: MasterChanges,
    clients: usize,
    has_faults: bool,
    max_ttl: Duration,
    quorate: PathBuf,
    dir: PathBuf,
    change: usize,
    tasks: VecDeque<Task>,
    /// When the current task began: the nanoseconds since the start of the run, and the same time as an `Instant`.
    /// `None` if the task has not begun.
    task_begun_at: Option<(u64, Instant)>,
    child: Option<Child>,
    /// The commands to run before a failed step is tried again. Each command drops a damaged quota or once-only job
    /// that the failed step has reported.
    drop_commands: VecDeque<Vec<String>>,
    /// True if the process `child` drops a damaged quota or once-only job, false if it is a step of `quorate
    /// masters`.
    is_dropping: bool,
    retry_at: Option<Instant>,
    rolling_restart: RollingRestart,
}

/// Clients that are being restarted with a different set of masters.
#[derive(Debug, Default)]
struct RollingRestart {
    waiting: VecDeque<usize>,
    leaving: Vec<usize>,
    arriving: Vec<usize>,
}

impl OperatorRun {
    /// An operator that has not begun its first task. Its commands are run in the folder `dir`.
    pub fn new(scenario: &Scenario, changes: &MasterChanges, quorate: &Path, dir: &Path) -> Self {
        let mut run = Self {
            changes: changes.clone(),
            clients: scenario.clients,
            has_faults: !scenario.faults.is_empty(),
            max_ttl: scenario.max_ttl,
            quorate: quorate.to_owned(),
            dir: dir.to_owned(),
            change: 0,
            tasks: VecDeque::new(),
            task_begun_at: None,
            child: None,
            drop_commands: VecDeque::new(),
            is_dropping: false,
            retry_at: None,
            rolling_restart: RollingRestart::default(),
        };
        run.tasks = run.plan();
        run
    }

    fn plan(&self) -> VecDeque<Task> {
        operator_tasks::tasks_of_change(&self.changes, self.clients, self.has_faults).into()
    }

    /// The number of the current change and the name of the current task, as text for the terminal.
    pub fn progress_text(&self) -> String {
        let task = self.tasks.front().map_or("done", Task::name);
        format!(
            "change {} of {}, {task}",
            self.change + 1,
            self.changes.count()
        )
    }

    /// The current masters and the masters that replace them, by index.
    pub fn current_sets(&self) -> [&[usize]; 2] {
        let next = (self.change + 1).min(self.changes.count());
        [
            &self.changes.sets[self.change.min(next)],
            &self.changes.sets[next],
        ]
    }

    /// The clients that are being restarted. The driver must inject no fault into them.
    pub fn restarting_clients(&self) -> Vec<usize> {
        let RollingRestart {
            leaving, arriving, ..
        } = &self.rolling_restart;
        leaving.iter().chain(arriving).copied().collect()
    }

    /// Continues the current task as far as possible without waiting. Returns the action that the driver must take
    /// next.
    ///
    /// # Errors
    ///
    /// If a process cannot be started or checked.
    pub fn advance(
        &mut self,
        world: &mut World,
        recorder: &Recorder,
        affected: &AffectedTargets,
    ) -> anyhow::Result<NextAction> {
        let Some(task) = self.tasks.front().cloned() else {
            return Ok(self.next_change());
        };
        if let Task::Fault(moment) = task {
            return Ok(NextAction::InjectFault(moment));
        }
        let clock = recorder.clock();
        let (since, started_at) = *self
            .task_begun_at
            .get_or_insert((clock.now(), Instant::now()));
        let outcome = match &task {
            Task::Command(step) => self.run_step(step, world)?,
            Task::RestartClients(clients, master_set) => {
                self.restart_clients(clients, *master_set, world, affected)?
            }
            Task::Retire => self.retire_servers(world, recorder, affected)?,
            Task::WriteMarker => self.write_marker_by_hand(world)?.map(Ok),
            Task::WaitTwiceMaxTtl => {
                (started_at.elapsed() > 2 * self.max_ttl).then(|| Ok(String::new()))
            }
            Task::Fault(_) => None,
        };
        let is_late = started_at.elapsed() > PATIENCE;
        let (succeeded, output) = match outcome {
            Some(Ok(output)) => (true, output),
            Some(Err(why)) => (false, why),
            None if is_late => (false, "the step was not completed in time".to_owned()),
            None => return Ok(NextAction::Continue),
        };
        let (change, step) = (self.change, task.name().to_owned());
        recorder.record(
            "chaos",
            Event::Step {
                change,
                step,
                since,
                succeeded,
                output,
            },
        );
        self.task_begun_at = self.task_begun_at.filter(|_| !succeeded);
        if succeeded {
            self.tasks.pop_front();
        } else if is_late {
            // The remaining tasks depend on the failed one, so skip all of them.
            self.tasks.clear();
            self.change = self.changes.count();
        }
        Ok(NextAction::Continue)
    }

    /// Continues with the next task. The driver must call this after it has injected the fault that
    /// [`NextAction::InjectFault`] requested.
    pub fn fault_injected(&mut self) {
        self.tasks.pop_front();
    }

    fn next_change(&mut self) -> NextAction {
        self.change += 1;
        if self.change >= self.changes.count() {
            self.change = self.changes.count();
            return NextAction::Finished;
        }
        self.tasks = self.plan();
        NextAction::Continue
    }

    /// Takes a step with `quorate masters`. Returns:
    ///
    /// - `None` while the step has no result yet
    /// - `Ok` with the output of the command if the step succeeded
    /// - `Err` with the output if the step failed, so that it must be tried again
    fn run_step(
        &mut self,
        step: &str,
        world: &World,
    ) -> anyhow::Result<Option<Result<String, String>>> {
        let Some(running_child) = &mut self.child else {
            if self
                .retry_at
                .is_none_or(|retry_at| retry_at <= Instant::now())
            {
                let drop_arguments = self.drop_commands.pop_front();
                self.is_dropping = drop_arguments.is_some();
                let arguments =
                    drop_arguments.unwrap_or_else(|| vec!["masters".to_owned(), step.to_owned()]);
                let mut command = self.command(&arguments, world);
                self.child = Some(command.spawn().context("cannot start quorate")?);
            }
            return Ok(None);
        };
        if running_child.try_wait()?.is_none() {
            return Ok(None);
        }
        let Some(running_child) = self.child.take() else {
            return Ok(None);
        };
        self.retry_at = Some(Instant::now() + PAUSE);
        let output = running_child.wait_with_output()?;
        if self.is_dropping {
            // This command has only dropped a damaged value. The next call tries the step again.
            return Ok(None);
        }
        let trimmed_lines = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
        };
        let text = [trimmed_lines(&output.stdout), trimmed_lines(&output.stderr)].join("\n");
        Ok(Some(if output.status.success() {
            Ok(text)
        } else {
            self.drop_commands = text.lines().filter_map(drop_command).collect();
            Err(format!("{}: {text}", output.status))
        }))
    }

    fn command(&self, arguments: &[String], world: &World) -> Command {
        let [old, next] = self.current_sets();
        let mut command = Command::new(&self.quorate);
        command
            .args(arguments)
            .args(["--masters", &world.urls_of(0, old).join(",")])
            .args(["--next-masters", &world.urls_of(0, next).join(",")])
            .args(["--masters-generation", &self.change.to_string()])
            .args(["--max-ttl", &format!("{}ms", self.max_ttl.as_millis())])
            .args(["--node-timeout", "300ms", "--connect-timeout", "1s"])
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let own_variables = std::env::vars_os().map(|(name, _)| name);
        for name in own_variables.filter(|name| name.to_string_lossy().starts_with("QUORATE_")) {
            command.env_remove(name);
        }
        command
    }

    /// Ends these clients, a few at a time, and starts each of them again with the masters that `master_set` names.
    /// Returns the names of the clients when all of them are ready again.
    fn restart_clients(
        &mut self,
        clients: &[usize],
        master_set: MasterSet,
        world: &mut World,
        affected: &AffectedTargets,
    ) -> anyhow::Result<Option<Result<String, String>>> {
        let restart = &mut self.rolling_restart;
        if restart.waiting.is_empty() && restart.leaving.is_empty() && restart.arriving.is_empty() {
            restart.waiting = clients.iter().copied().collect();
        }
        restart
            .arriving
            .retain(|client| !world.clients.is_ready(*client));
        let (leaving, mut ended_clients) = (std::mem::take(&mut restart.leaving), Vec::new());
        for client in leaving {
            if world.clients.has_ended(client)? {
                ended_clients.push(client);
            } else {
                restart.leaving.push(client);
            }
        }
        restart.arriving.extend(&ended_clients);
        let max_at_once = (self.clients / 4).max(1);
        if restart.leaving.len() + restart.arriving.len() < max_at_once {
            let is_unaffected = |client: &usize| !affected.clients.contains(client);
            if let Some(progress_text) = restart.waiting.iter().position(is_unaffected) {
                restart
                    .leaving
                    .extend(restart.waiting.remove(progress_text));
                // Ignore an error here: it means that the client has already ended.
                let _ = restart
                    .leaving
                    .last()
                    .map(|client| world.clients.dismiss(*client));
            }
        }
        let is_over =
            restart.waiting.is_empty() && restart.leaving.is_empty() && restart.arriving.is_empty();
        for client in ended_clients {
            self.start_client(client, master_set, world)?;
        }
        let names: Vec<String> = clients
            .iter()
            .map(|client| format!("c{}", client + 1))
            .collect();
        Ok(is_over.then(|| Ok(names.join(", "))))
    }

    fn start_client(
        &self,
        client: usize,
        master_set: MasterSet,
        world: &mut World,
    ) -> anyhow::Result<()> {
        let [old, next] = self.current_sets();
        let next = world.urls_of(client, next);
        let (masters, next_masters, generation) = match master_set {
            MasterSet::OldAndNext => (world.urls_of(client, old), next, self.change),
            MasterSet::Next => (next, Vec::new(), self.change + 1),
            MasterSet::NextAsFirst => (next, Vec::new(), 0),
        };
        world.clients.start_again(client, |settings| {
            settings.masters = masters;
            settings.next_masters = next_masters;
            settings.generation = generation as u64;
        })
    }

    /// Kills the servers that the change has removed from the masters, as soon as no fault affects them. Returns `None`
    /// while a fault affects one of them.
    fn retire_servers(
        &self,
        world: &World,
        recorder: &Recorder,
        affected: &AffectedTargets,
    ) -> anyhow::Result<Option<Result<String, String>>> {
        let removed = self.changes.removed_masters(self.change);
        if removed
            .iter()
            .any(|master| affected.masters.contains(master))
        {
            return Ok(None);
        }
        let mut names = Vec::new();
        for master in removed {
            world.masters[master].kill()?;
            names.push(format!("m{}", master + 1));
            recorder.record(format!("m{}", master + 1), Event::Retired);
        }
        Ok(Some(Ok(names.join(", "))))
    }

    /// Writes the key `quorate:masters` on the new masters by hand, although the step `close` was never run on the old
    /// masters. Returns the last value written.
    ///
    /// Copies the fingerprint in the value from the connection name of a client that uses both sets of masters. `None`
    /// if a new master has no connection from such a client.
    fn write_marker_by_hand(&self, world: &World) -> anyhow::Result<Option<String>> {
        let [_, next] = self.current_sets();
        let mut marker = String::new();
        for &master in next {
            let server = world.redis(master)?;
            let client_list = server.command(&["CLIENT", "LIST"])?;
            let client_list = client_list.text().unwrap_or_default().into_owned();
            let connection_prefix = format!("name=quorate/{}/", 2 * self.change + 1);
            let Some(connection_name) = client_list.split(&connection_prefix).nth(1) else {
                return Ok(None);
            };
            let fingerprint: String = connection_name
                .chars()
                .take_while(char::is_ascii_hexdigit)
                .collect();
            marker = format!("{} {fingerprint}", 4 * self.change + 2);
            server.command(&["SET", "quorate:masters", &marker])?;
        }
        Ok(Some(marker))
    }
}

/// If this line of output reports a damaged stored value, returns the arguments of the command that drops the value.
/// Otherwise, returns `None`.
fn drop_command(line: &str) -> Option<Vec<String>> {
    let (subject, rest) = line.split_once(": lost, or only partly created or removed")?;
    let name = subject.split('"').nth(1)?;
    let arguments = if rest.contains("\"once ") {
        vec!["once", "--drop", "--yes", name]
    } else {
        vec!["quota", "drop", name, "--yes"]
    };
    Some(arguments.into_iter().map(str::to_owned).collect())
}

impl Drop for OperatorRun {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
