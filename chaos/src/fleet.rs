//! The client processes of a run. The driver starts, stops and kills them, and sends them commands.
//!
//! Each client process runs this same program with a hidden command:
//!
//! - It reads its settings and commands from standard input.
//! - It writes its events to standard output.
//! - It ends when standard input is closed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use quorate_testbed::within;
use rustix::process::{Pid, Signal, kill_process};

use crate::client::{Guarding, Instruction, Settings};
use crate::event::{Entry, Event};
use crate::recorder::Recorder;

/// All client processes. Dropping the fleet kills them.
#[derive(Debug)]
pub struct Fleet {
    recorder: Recorder,
    program: PathBuf,
    env: Vec<(OsString, OsString)>,
    logs: PathBuf,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    settings: Settings,
    index: usize,
    process_number: u32,
    child: Child,
    input: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
    running: bool,
}

impl Fleet {
    /// A fleet without clients. A client that is started later writes its standard error to a file in `logs`.
    ///
    /// # Errors
    ///
    /// If the program cannot be found.
    pub fn new(recorder: &Recorder, logs: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            recorder: recorder.clone(),
            program: program()?,
            env: Vec::new(),
            logs: logs.to_owned(),
            members: Vec::new(),
        })
    }

    /// Starts one client process for each entry of `settings`, with the environment variables `env`, and waits until
    /// all are ready.
    ///
    /// # Errors
    ///
    /// If a client process does not start or is not ready in time.
    pub fn start(
        &mut self,
        settings: Vec<Settings>,
        env: Vec<(OsString, OsString)>,
    ) -> anyhow::Result<()> {
        self.env = env;
        for (index, settings) in settings.into_iter().enumerate() {
            let member = self.launch(settings, index, 1)?;
            self.members.push(member);
        }
        for member in &self.members {
            self.await_ready(member, Duration::from_secs(30))?;
        }
        Ok(())
    }

    /// The recorder into which the events of all clients are written.
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// The names and process ids of the running clients.
    pub fn pids(&self) -> Vec<(String, u32)> {
        let running = self.members.iter().filter(|member| member.running);
        running
            .map(|member| (member.process_name(), member.child.id()))
            .collect()
    }

    /// Kills a client with SIGKILL. Returns a text that says how its process ended.
    ///
    /// # Errors
    ///
    /// If the client had already ended.
    pub fn kill(&mut self, index: usize) -> anyhow::Result<String> {
        let clock = self.recorder.clock();
        let member = self.member(index)?;
        ensure!(
            member.child.try_wait()?.is_none(),
            "the client had already ended before the kill"
        );
        // Read the time before the kill. After the kill, another client can acquire the lock before this thread reads
        // the clock.
        let t = clock.now();
        member.child.kill()?;
        let status = member.child.wait()?;
        member.mark_ended();
        let (process, how) = (member.process_name(), status.to_string());
        let event = Event::Gone {
            meant: true,
            how: how.clone(),
        };
        self.recorder.push(Entry { t, process, event });
        Ok(how)
    }

    /// Starts a killed client again, and waits until it is ready. If the run uses the restart guard, the new process
    /// starts with `Guarding::On`.
    ///
    /// # Errors
    ///
    /// If the client does not start.
    pub fn respawn(&mut self, index: usize) -> anyhow::Result<()> {
        self.start_again(index, |_| {})?;
        self.await_ready(&self.members[index], Duration::from_secs(20))
    }

    /// Stops a client with SIGSTOP and waits until the kernel reports that it is stopped.
    ///
    /// # Errors
    ///
    /// If the client does not stop.
    pub fn stop(&mut self, index: usize) -> anyhow::Result<()> {
        self.signal(index, Signal::STOP)?;
        self.await_state(index, "stopped", |process_state| process_state == 'T')
    }

    /// Resumes a stopped client.
    ///
    /// # Errors
    ///
    /// If the client does not resume.
    pub fn cont(&mut self, index: usize) -> anyhow::Result<()> {
        self.signal(index, Signal::CONT)?;
        self.await_state(index, "running", |process_state| process_state != 'T')
    }

    /// Sends a command to a client.
    ///
    /// # Errors
    ///
    /// If the client does not read its input any more.
    pub fn instruct(&mut self, index: usize, instruction: &Instruction) -> anyhow::Result<()> {
        let member = self.member(index)?;
        let Some(input) = &mut member.input else {
            bail!("the client has already ended");
        };
        writeln!(input, "{}", serde_json::to_string(instruction)?)?;
        Ok(input.flush()?)
    }

    /// Asks a client to finish its work and end.
    ///
    /// # Errors
    ///
    /// If the client does not read its input any more.
    pub fn dismiss(&mut self, index: usize) -> anyhow::Result<()> {
        self.instruct(index, &Instruction::Finish)
    }

    /// Whether a client that was asked to finish has ended. If so, records its end.
    ///
    /// # Errors
    ///
    /// If the state of the process cannot be read.
    pub fn has_ended(&mut self, index: usize) -> anyhow::Result<bool> {
        let recorder = self.recorder.clone();
        let member = self.member(index)?;
        if !member.running {
            return Ok(true);
        }
        let Some(status) = member.child.try_wait()? else {
            return Ok(false);
        };
        let (meant, how) = (status.success(), status.to_string());
        member.mark_ended();
        recorder.record(member.process_name(), Event::Gone { meant, how });
        Ok(true)
    }

    /// Starts a new process for a client whose process has ended. `change` can modify the client's settings.
    ///
    /// If the run uses the restart guard, the new process starts with `Guarding::On`.
    ///
    /// # Errors
    ///
    /// If the client does not start.
    pub fn start_again(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut Settings),
    ) -> anyhow::Result<()> {
        let member = self.member(index)?;
        ensure!(!member.running, "the client still runs");
        let (mut settings, process_number) = (member.settings.clone(), member.process_number + 1);
        if settings.guarding == Guarding::AfterFirstContact {
            settings.guarding = Guarding::On;
        }
        change(&mut settings);
        let step = settings.step();
        let member = self.launch(settings, index, process_number)?;
        self.recorder
            .record(member.process_name(), Event::Sent { step });
        self.members[index] = member;
        Ok(())
    }

    /// Whether the client's current process has reported that it is ready.
    pub fn is_ready(&self, index: usize) -> bool {
        let member = self.members.get(index);
        member.is_some_and(|member| self.recorder.ready_pid(&member.process_name()).is_some())
    }

    /// Asks all clients to finish their work, and waits until they have ended. Kills clients that take longer than
    /// `patience`. Returns true if no client had to be killed.
    pub fn finish(&mut self, patience: Duration) -> bool {
        for index in 0..self.members.len() {
            let _ = self.cont(index);
            let _ = self.instruct(index, &Instruction::Finish);
        }
        let all_ended = within(patience, || {
            self.members
                .iter_mut()
                .all(|member| !member.running || matches!(member.child.try_wait(), Ok(Some(_))))
        });
        for member in &mut self.members {
            if !member.running {
                continue;
            }
            let ended_in_time = matches!(member.child.try_wait(), Ok(Some(_)));
            let _ = member.child.kill();
            let how = member
                .child
                .wait()
                .map_or_else(|error| error.to_string(), |status| status.to_string());
            member.mark_ended();
            let meant = ended_in_time && how == "exit status: 0";
            self.recorder
                .record(member.process_name(), Event::Gone { meant, how });
        }
        all_ended
    }

    fn member(&mut self, index: usize) -> anyhow::Result<&mut Member> {
        self.members.get_mut(index).context("no such client")
    }

    fn signal(&mut self, index: usize, signal: Signal) -> anyhow::Result<()> {
        let member = self.member(index)?;
        ensure!(
            member.child.try_wait()?.is_none(),
            "the client has already ended"
        );
        // The driver has not reaped the process yet, so no other process can have its process id.
        let pid = Pid::from_raw(member.child.id().cast_signed()).context("no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    fn await_state(
        &mut self,
        index: usize,
        state_name: &str,
        is_wanted: impl Fn(char) -> bool,
    ) -> anyhow::Result<()> {
        let pid = self.member(index)?.child.id();
        let is_reached = within(Duration::from_secs(10), || {
            process_state(pid).is_some_and(&is_wanted)
        });
        ensure!(
            is_reached,
            "process {pid} did not reach the state '{state_name}' in time"
        );
        Ok(())
    }

    fn launch(
        &self,
        settings: Settings,
        index: usize,
        process_number: u32,
    ) -> anyhow::Result<Member> {
        let mut settings = settings;
        settings.name = process_name(index, process_number);
        let log_file = File::options()
            .create(true)
            .append(true)
            .open(self.logs.join(format!("client-{}.log", index + 1)))?;
        let mut child = Command::new(&self.program)
            .arg("client")
            .envs(self.env.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .spawn()
            .context("cannot start a client process")?;
        let (Some(mut input), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the stdin or stdout of the client is not a pipe")
        };
        widen_pipe(&stdout);
        writeln!(input, "{}", serde_json::to_string(&settings)?)?;
        input.flush()?;
        let recorder = self.recorder.clone();
        let reader = thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                // A kill may truncate the last line of a client. Skip this line; all lines before it are complete.
                if let Ok(line) = serde_json::from_str::<Entry>(&line) {
                    recorder.push(line);
                }
            }
        });
        Ok(Member {
            settings,
            index,
            process_number,
            child,
            input: Some(input),
            reader: Some(reader),
            running: true,
        })
    }

    fn await_ready(&self, member: &Member, patience: Duration) -> anyhow::Result<()> {
        let name = member.process_name();
        let is_ready = within(patience, || self.recorder.ready_pid(&name).is_some());
        ensure!(
            is_ready,
            "client {name} was not ready in time; see its log in {}",
            self.logs.display()
        );
        Ok(())
    }
}

impl Member {
    /// Marks the client process as ended, and waits until all of its output has been read.
    fn mark_ended(&mut self) {
        self.running = false;
        self.input = None;
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }

    fn process_name(&self) -> String {
        process_name(self.index, self.process_number)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &mut self.members {
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

/// The path of this program. The driver starts client and helper processes from this path. Tests set a different path
/// with the variable `QUORATE_CHAOS_PROGRAM`.
///
/// # Errors
///
/// If the path cannot be found.
pub fn program() -> anyhow::Result<PathBuf> {
    match std::env::var_os("QUORATE_CHAOS_PROGRAM") {
        Some(path) => Ok(path.into()),
        None => std::env::current_exe().context("cannot find the path of this program"),
    }
}

/// Enlarges the pipe of a client's output, so that the client does not block when the driver reads its output slowly.
fn widen_pipe(stdout: &std::process::ChildStdout) {
    #[cfg(target_os = "linux")]
    let _ = rustix::pipe::fcntl_setpipe_size(stdout, 1 << 20);
    #[cfg(not(target_os = "linux"))]
    let _ = stdout;
}

fn process_name(index: usize, process_number: u32) -> String {
    match process_number {
        1 => format!("c{}", index + 1),
        _ => format!("c{}.{process_number}", index + 1),
    }
}

/// The state letter of a process in `/proc`, e.g. `T` for stopped.
fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}
