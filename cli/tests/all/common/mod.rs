//! Helpers for the tests of the command line, which use real masters and real processes.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use quorate_testbed::Masters;

/// Starts `n` masters.
pub(crate) fn start_masters(n: usize) -> Masters {
    Masters::start(n).expect("masters start")
}

/// Sets the lock key `r` on all masters, as if another client held the lock.
pub(crate) fn occupy_lock(masters: &Masters) {
    for master in masters {
        master.command(&["SET", "r", "x"]).expect("a reply");
    }
}

/// A command that runs the binary under test, without any `QUORATE_*` variables.
pub(crate) fn quorate_command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    without_variables(&mut command)
        .current_dir(env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null());
    command
}

/// Removes the `QUORATE_*` variables of this test process from the environment of `command`, so that they neither set
/// options nor cause warnings.
pub(crate) fn without_variables(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUORATE_") {
            command.env_remove(name);
        }
    }
    command
}

/// The environment variables that set options of this command, as listed in its manual page.
pub(crate) fn variables_of(command: &str) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a directory");
    let manual = output_of(quorate_command().args(["man", "--out"]).arg(folder.path()));
    assert_eq!(manual.code, Some(0), "{manual:?}");
    let page_path = folder.path().join(format!("quorate-{command}.1"));
    let page = std::fs::read_to_string(page_path).expect("a page");
    let names = page.split(".TP\n\\fB").skip(1).filter_map(|row| {
        let (name, rest) = row.split_once("\\fR\nas ")?;
        (!name.contains('\n') && !rest.is_empty()).then(|| name.to_owned())
    });
    names.collect()
}

/// A command that runs the binary under test with these masters. The restart guard is off, because it would ignore the
/// votes of masters that have just been started.
pub(crate) fn quorate_on(masters: &Masters) -> Command {
    let mut command = quorate_command();
    command
        .env("QUORATE_MASTERS", masters.urls().join(","))
        .env("QUORATE_RESTART_GUARD", "off");
    command
}

/// A command that runs `quorate run` with these options and this command.
pub(crate) fn quorate_run(masters: &Masters, options: &[&str], command: &[&str]) -> Command {
    let mut quorate = quorate_on(masters);
    quorate
        // Use longer timeouts than the defaults, because the tests share the processors.
        .env("QUORATE_NODE_TIMEOUT", "500ms")
        .env("QUORATE_CONNECT_TIMEOUT", "2s")
        .arg("run")
        .args(options)
        .arg("--")
        .args(command)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    quorate
}

/// The output, the exit status and the run time of a process that has ended.
#[derive(Debug)]
pub(crate) struct RunOutput {
    /// The exit code as a shell shows it: 128 + n if signal n ended the process.
    pub(crate) code: Option<i32>,
    /// The number of the signal that ended the process; `None` if no signal did.
    pub(crate) died_of: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) elapsed: Duration,
}

/// Runs a command until it ends.
pub(crate) fn output_of(command: &mut Command) -> RunOutput {
    let started = Instant::now();
    let output = command.output().expect("quorate starts");
    RunOutput::new(output, started)
}

/// Waits until a child process ends, and collects its output.
pub(crate) fn wait_for_output(child: Child) -> RunOutput {
    let started = Instant::now();
    RunOutput::new(child.wait_with_output().expect("quorate ends"), started)
}

impl RunOutput {
    fn new(output: Output, started: Instant) -> Self {
        let status = output.status;
        let died_of = status.signal();
        Self {
            code: status.code().or(died_of.map(|n| 128 + n)),
            died_of,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            elapsed: started.elapsed(),
        }
    }
}

/// Sends a signal, given by its name without `SIG`, to a child process.
pub(crate) fn send_signal(child: &Child, name: &str) {
    let pid = i32::try_from(child.id()).expect("a pid");
    let sig: nix::sys::signal::Signal = format!("SIG{name}").parse().expect("a signal");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), sig).expect("the process must exist");
}

/// Returns a unique number of seconds for `sleep`. A test finds its processes by this number in their command lines.
pub(crate) fn unique_marker() -> String {
    static NEXT_MARKER: AtomicU32 = AtomicU32::new(0);
    let n = NEXT_MARKER.fetch_add(1, Ordering::Relaxed);
    format!("1000.{:07}{n:03}", std::process::id())
}

/// The number of living processes that have `marker` in their command line. Processes of `quorate` are not counted.
pub(crate) fn count_processes(marker: &str) -> usize {
    pids_of(marker).len()
}

/// The pids of the living processes that have `marker` in their command line. Processes of `quorate` are left out.
pub(crate) fn pids_of(marker: &str) -> Vec<i32> {
    let processes = std::fs::read_dir("/proc").expect("/proc must be readable");
    processes
        .flatten()
        .filter(|entry| {
            let read_file = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
            let (line, stat) = (read_file("cmdline"), read_file("stat"));
            let line = String::from_utf8_lossy(&line).into_owned();
            let stat = String::from_utf8_lossy(&stat).into_owned();
            let state = stat
                .rsplit(") ")
                .next()
                .and_then(|rest| rest.chars().next());
            line.contains(marker) && !line.contains("quorate") && state != Some('Z')
        })
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// When dropped, kills all processes that have this number (see [`unique_marker`]) in their command line. This also
/// happens if the test panics.
pub(crate) struct KillAtDrop(pub(crate) String);

impl Drop for KillAtDrop {
    fn drop(&mut self) {
        for pid in pids_of(&self.0) {
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Prints that a test did not run, and why.
pub(crate) fn did_not_run(test: &str, why: &str) {
    // Write to stderr directly, because the test harness captures the output of the `print` macros.
    let _ = writeln!(std::io::stderr(), "{test}: DID NOT RUN: {why}");
}

/// Whether a process `sleep MARK` is running. A shell that is about to start it does not count.
pub(crate) fn is_sleeping(marker: &str) -> bool {
    let command_line = format!("sleep\0{marker}\0").into_bytes();
    let processes = std::fs::read_dir("/proc").expect("/proc must be readable");
    processes.flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == command_line)
    })
}

/// Waits up to a minute until `is_met` returns true, and panics otherwise. The time is generous, because it only
/// limits how long a failing test takes: busy machines have stalled for more than ten seconds.
pub(crate) fn wait_until(condition: &str, mut is_met: impl FnMut() -> bool) {
    let give_up_at = Instant::now() + Duration::from_secs(60);
    while !is_met() {
        assert!(
            Instant::now() < give_up_at,
            "timed out waiting until {condition}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until at least one master has the lock key `resource`.
pub(crate) fn wait_until_held(masters: &Masters, resource: &str) {
    wait_until("the lock is held", || {
        masters.iter().any(|master| {
            master
                .command(&["EXISTS", resource])
                .is_ok_and(|reply| reply.int() == Some(1))
        })
    });
}
