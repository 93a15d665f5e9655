//! Carries out the tasks of an operator that changes masters (see [`walk`]): runs the real command `quorate masters`,
//! restarts clients with other masters, and stops servers.
//!
//! [`Walker::go_on`] never waits, so the driver can inject faults between two calls.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::changes::Changes;
use crate::event::Event;
use crate::recorder::Recorder;
use crate::scenario::Scenario;
use crate::walk::{self, Given, Moment, Task};
use crate::world::World;

/// The time limit for one task. A step that fails is tried again within this limit.
const PATIENCE: Duration = Duration::from_secs(90);
/// The pause before a failed step is tried again.
const PAUSE: Duration = Duration::from_millis(300);

/// The action that the driver must take next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Now {
    /// Nothing; call [`Walker::go_on`] again.
    Goes,
    /// Inject a fault that is allowed at this moment of the change of masters. Then call [`Walker::went_wrong`].
    Wants(Moment),
    /// Stop calling the walker: all tasks are done, or a task failed.
    Over,
}

/// The masters and clients that faults affect now.
#[derive(Debug, Default)]
pub struct Busy {
    /// The affected masters, by index.
    pub masters: Vec<usize>,
    /// The affected clients, by index.
    pub clients: Vec<usize>,
}

/// An operator in the middle of a change of masters.
#[derive(Debug)]
pub struct Walker {
    changes: Changes,
    clients: usize,
    has_faults: bool,
    max_ttl: Duration,
    quorate: PathBuf,
    dir: PathBuf,
    change: usize,
    tasks: VecDeque<Task>,
    /// When the current task began: the nanoseconds since the start of the run, and the same time as an `Instant`.
    /// `None` if the task has not begun.
    begun: Option<(u64, Instant)>,
    running: Option<Child>,
    /// The commands to run before a failed step is tried again. Each command drops a damaged quota or once-only job
    /// that the failed step has reported.
    lost: VecDeque<Vec<String>>,
    /// True if the process `running` drops a damaged quota or once-only job, false if it is a step of `quorate
    /// masters`.
    is_dropping: bool,
    again: Option<Instant>,
    rolling: Rolling,
}

/// Clients that are being restarted with a different set of masters.
#[derive(Debug, Default)]
struct Rolling {
    waiting: VecDeque<usize>,
    leaving: Vec<usize>,
    arriving: Vec<usize>,
}

impl Walker {
    /// An operator that has not begun its first task. Its commands are run in the folder `dir`.
    pub fn new(scenario: &Scenario, changes: &Changes, quorate: &Path, dir: &Path) -> Self {
        let mut walker = Self {
            changes: changes.clone(),
            clients: scenario.clients,
            has_faults: !scenario.faults.is_empty(),
            max_ttl: scenario.max_ttl,
            quorate: quorate.to_owned(),
            dir: dir.to_owned(),
            change: 0,
            tasks: VecDeque::new(),
            begun: None,
            running: None,
            lost: VecDeque::new(),
            is_dropping: false,
            again: None,
            rolling: Rolling::default(),
        };
        walker.tasks = walker.plan();
        walker
    }

    fn plan(&self) -> VecDeque<Task> {
        walk::plan(&self.changes, self.clients, self.has_faults).into()
    }

    /// The number of the current change and the name of the current task, as text for the terminal.
    pub fn place(&self) -> String {
        let task = self.tasks.front().map_or("done", Task::name);
        format!(
            "change {} of {}, {task}",
            self.change + 1,
            self.changes.count()
        )
    }

    /// The current masters and the masters that replace them, by index.
    pub fn sets(&self) -> [&[usize]; 2] {
        let next = (self.change + 1).min(self.changes.count());
        [
            &self.changes.sets[self.change.min(next)],
            &self.changes.sets[next],
        ]
    }

    /// The clients that are being restarted. The driver must inject no fault into them.
    pub fn moving(&self) -> Vec<usize> {
        let Rolling {
            leaving, arriving, ..
        } = &self.rolling;
        leaving.iter().chain(arriving).copied().collect()
    }

    /// Continues the current task as far as possible without waiting. Returns the action that the driver must take
    /// next.
    ///
    /// # Errors
    ///
    /// If a process cannot be started or checked.
    pub fn go_on(
        &mut self,
        world: &mut World,
        recorder: &Recorder,
        busy: &Busy,
    ) -> anyhow::Result<Now> {
        let Some(task) = self.tasks.front().cloned() else {
            return Ok(self.next_change());
        };
        if let Task::Fault(moment) = task {
            return Ok(Now::Wants(moment));
        }
        let clock = recorder.clock();
        let (since, at) = *self.begun.get_or_insert((clock.now(), Instant::now()));
        let ended = match &task {
            Task::Command(step) => self.take(step, world)?,
            Task::Clients(some, given) => self.tell(some, *given, world, busy)?,
            Task::Retire => self.retire(world, recorder, busy)?,
            Task::Marks => self.mark_by_hand(world)?.map(Ok),
            Task::Rest => (at.elapsed() > 2 * self.max_ttl).then(|| Ok(String::new())),
            Task::Fault(_) => None,
        };
        let is_late = at.elapsed() > PATIENCE;
        let (done, said) = match ended {
            Some(Ok(said)) => (true, said),
            Some(Err(why)) => (false, why),
            None if is_late => (false, "the step was not completed in time".to_owned()),
            None => return Ok(Now::Goes),
        };
        let (change, step) = (self.change, task.name().to_owned());
        recorder.note(
            "chaos",
            Event::Step {
                change,
                step,
                since,
                done,
                said,
            },
        );
        self.begun = self.begun.filter(|_| !done);
        if done {
            self.tasks.pop_front();
        } else if is_late {
            // The remaining tasks depend on the failed one, so skip all of them.
            self.tasks.clear();
            self.change = self.changes.count();
        }
        Ok(Now::Goes)
    }

    /// Continues with the next task. The driver must call this after it has injected the fault that [`Now::Wants`]
    /// requested.
    pub fn went_wrong(&mut self) {
        self.tasks.pop_front();
    }

    fn next_change(&mut self) -> Now {
        self.change += 1;
        if self.change >= self.changes.count() {
            self.change = self.changes.count();
            return Now::Over;
        }
        self.tasks = self.plan();
        Now::Goes
    }

    /// Takes a step with `quorate masters`. Returns:
    ///
    /// - `None` while the step has no result yet
    /// - `Ok` with the output of the command if the step succeeded
    /// - `Err` with the output if the step failed, so that it must be tried again
    fn take(
        &mut self,
        step: &str,
        world: &World,
    ) -> anyhow::Result<Option<Result<String, String>>> {
        let Some(child) = &mut self.running else {
            if self.again.is_none_or(|again| again <= Instant::now()) {
                let drops = self.lost.pop_front();
                self.is_dropping = drops.is_some();
                let words = drops.unwrap_or_else(|| vec!["masters".to_owned(), step.to_owned()]);
                let mut command = self.command(&words, world);
                self.running = Some(command.spawn().context("cannot start quorate")?);
            }
            return Ok(None);
        };
        if child.try_wait()?.is_none() {
            return Ok(None);
        }
        let Some(child) = self.running.take() else {
            return Ok(None);
        };
        self.again = Some(Instant::now() + PAUSE);
        let output = child.wait_with_output()?;
        if self.is_dropping {
            // This command has only dropped a damaged value. The next call tries the step again.
            return Ok(None);
        }
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
        };
        let said = [text(&output.stdout), text(&output.stderr)].join("\n");
        Ok(Some(if output.status.success() {
            Ok(said)
        } else {
            self.lost = said.lines().filter_map(dropping).collect();
            Err(format!("{}: {said}", output.status))
        }))
    }

    fn command(&self, words: &[String], world: &World) -> Command {
        let [old, next] = self.sets();
        let mut command = Command::new(&self.quorate);
        command
            .args(words)
            .args(["--masters", &world.urls_of(0, old).join(",")])
            .args(["--next-masters", &world.urls_of(0, next).join(",")])
            .args(["--masters-generation", &self.change.to_string()])
            .args(["--max-ttl", &format!("{}ms", self.max_ttl.as_millis())])
            .args(["--node-timeout", "300ms", "--connect-timeout", "1s"])
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let own = std::env::vars_os().map(|(name, _)| name);
        for name in own.filter(|name| name.to_string_lossy().starts_with("QUORATE_")) {
            command.env_remove(name);
        }
        command
    }

    /// Ends these clients, a few at a time, and starts each of them again with the masters that `given` names. Returns
    /// the names of the clients when all of them are ready again.
    fn tell(
        &mut self,
        some: &[usize],
        given: Given,
        world: &mut World,
        busy: &Busy,
    ) -> anyhow::Result<Option<Result<String, String>>> {
        let rolling = &mut self.rolling;
        if rolling.waiting.is_empty() && rolling.leaving.is_empty() && rolling.arriving.is_empty() {
            rolling.waiting = some.iter().copied().collect();
        }
        rolling
            .arriving
            .retain(|client| !world.clients.is_ready(*client));
        let (leaving, mut ended) = (std::mem::take(&mut rolling.leaving), Vec::new());
        for client in leaving {
            if world.clients.has_ended(client)? {
                ended.push(client);
            } else {
                rolling.leaving.push(client);
            }
        }
        rolling.arriving.extend(&ended);
        let at_once = (self.clients / 4).max(1);
        if rolling.leaving.len() + rolling.arriving.len() < at_once {
            let free = |client: &usize| !busy.clients.contains(client);
            if let Some(place) = rolling.waiting.iter().position(free) {
                rolling.leaving.extend(rolling.waiting.remove(place));
                // Ignore an error here: it means that the client has already ended.
                let _ = rolling
                    .leaving
                    .last()
                    .map(|client| world.clients.dismiss(*client));
            }
        }
        let over =
            rolling.waiting.is_empty() && rolling.leaving.is_empty() && rolling.arriving.is_empty();
        for client in ended {
            self.send(client, given, world)?;
        }
        let names: Vec<String> = some
            .iter()
            .map(|client| format!("c{}", client + 1))
            .collect();
        Ok(over.then(|| Ok(names.join(", "))))
    }

    fn send(&self, client: usize, given: Given, world: &mut World) -> anyhow::Result<()> {
        let [old, next] = self.sets();
        let next = world.urls_of(client, next);
        let (masters, next_masters, generation) = match given {
            Given::Both => (world.urls_of(client, old), next, self.change),
            Given::Next => (next, Vec::new(), self.change + 1),
            Given::NextAsFirst => (next, Vec::new(), 0),
        };
        world.clients.send(client, |settings| {
            settings.masters = masters;
            settings.next_masters = next_masters;
            settings.generation = generation as u64;
        })
    }

    /// Kills the servers that the change has removed from the masters, as soon as no fault affects them. Returns `None`
    /// while a fault affects one of them.
    fn retire(
        &self,
        world: &World,
        recorder: &Recorder,
        busy: &Busy,
    ) -> anyhow::Result<Option<Result<String, String>>> {
        let left = self.changes.left_over(self.change);
        if left.iter().any(|master| busy.masters.contains(master)) {
            return Ok(None);
        }
        let mut names = Vec::new();
        for master in left {
            world.masters[master].kill()?;
            names.push(format!("m{}", master + 1));
            recorder.note(format!("m{}", master + 1), Event::Retired);
        }
        Ok(Some(Ok(names.join(", "))))
    }

    /// Writes the key `quorate:masters` on the new masters by hand, although the step `close` was never run on the old
    /// masters. Returns the last value written.
    ///
    /// Copies the fingerprint in the value from the connection name of a client that uses both sets of masters. `None`
    /// if a new master has no connection from such a client.
    fn mark_by_hand(&self, world: &World) -> anyhow::Result<Option<String>> {
        let [_, next] = self.sets();
        let mut mark = String::new();
        for &master in next {
            let server = world.redis(master)?;
            let clients = server.command(&["CLIENT", "LIST"])?;
            let clients = clients.text().unwrap_or_default().into_owned();
            let tag = format!("name=quorate/{}/", 2 * self.change + 1);
            let Some(named) = clients.split(&tag).nth(1) else {
                return Ok(None);
            };
            let print: String = named.chars().take_while(char::is_ascii_hexdigit).collect();
            mark = format!("{} {print}", 4 * self.change + 2);
            server.command(&["SET", "quorate:masters", &mark])?;
        }
        Ok(Some(mark))
    }
}

/// If this line of output reports a damaged stored value, returns the arguments of the command that drops the value.
/// Otherwise, returns `None`.
fn dropping(line: &str) -> Option<Vec<String>> {
    let (before, shown) = line.split_once(": lost, or only partly created or removed")?;
    let name = before.split('"').nth(1)?;
    let words = if shown.contains("\"once ") {
        vec!["once", "--drop", "--yes", name]
    } else {
        vec!["quota", "drop", name, "--yes"]
    };
    Some(words.into_iter().map(str::to_owned).collect())
}

impl Drop for Walker {
    fn drop(&mut self) {
        if let Some(child) = &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
