//! Tests of processes that outlive the command, or that `quorate run` cannot stop. `quorate run` must never report a
//! running process as stopped.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{
    KillAtDrop, count_processes, did_not_run, is_sleeping, occupy_lock, output_of, pids_of,
    quorate_run, send_signal, start_masters, unique_marker, wait_for_output, wait_until,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use quorate_testbed::Masters;

/// A directory that an ordinary user can read. It contains `quorate` and a set-uid program that runs as root.
struct Ordinary {
    dir: tempfile::TempDir,
}

impl Ordinary {
    /// Creates the directory. The error says why set-uid programs do not work on this machine.
    fn new() -> Result<Self, String> {
        if fs::metadata("/proc/self").is_ok_and(|me| me.uid() != 0) {
            return Err("only root can make a set-uid program".into());
        }
        let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"]
            .map(PathBuf::from)
            .into_iter()
            .find(|path| path.exists())
            .ok_or("setpriv of util-linux is missing")?;
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let ordinary = Self { dir };
        let copy = |from: &std::path::Path, name: &str, mode| {
            let to = ordinary.dir.path().join(name);
            fs::copy(from, &to)?;
            fs::set_permissions(&to, Permissions::from_mode(mode))
        };
        copy(&setpriv, "become", 0o4755)
            .and_then(|()| copy(env!("CARGO_BIN_EXE_quorate").as_ref(), "quorate", 0o755))
            .and_then(|()| fs::set_permissions(ordinary.dir.path(), Permissions::from_mode(0o755)))
            .map_err(|error| error.to_string())?;
        // Check that the set-uid program runs as root, because a file system can be mounted so that set-uid bits have
        // no effect.
        let mut nobody_command = Self::nobody();
        let id_command = nobody_command
            .arg(ordinary.root())
            .args(["--reuid=0", "id", "-u"]);
        let id_output = id_command.output().map_err(|error| error.to_string())?;
        if id_output.stdout != b"0\n" {
            return Err("set-uid programs have no effect in the temporary directory".into());
        }
        Ok(ordinary)
    }

    /// The path of the set-uid program. `PROGRAM --reuid=0 COMMAND` runs COMMAND as root.
    fn root(&self) -> String {
        self.dir.path().join("become").display().to_string()
    }

    fn nobody() -> Command {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// A command that runs `quorate run` as the ordinary user.
    fn run(&self, masters: &Masters, options: &[&str], command: &[&str]) -> Command {
        let quorate = quorate_run(masters, options, command);
        let mut nobody = Self::nobody();
        nobody
            .arg(self.dir.path().join("quorate"))
            .args(quorate.get_args());
        for (name, value) in quorate.get_envs() {
            match value {
                Some(value) => nobody.env(name, value),
                None => nobody.env_remove(name),
            };
        }
        nobody
    }
}

/// A shell redirection to /dev/null. Without it, a process that outlives `quorate` would keep the pipe to the test
/// open.
const NO_OUTPUT: &str = ">/dev/null 2>&1";

#[test]
fn unstoppable_command_of_another_user_is_reported() {
    let ordinary = match Ordinary::new() {
        Ok(ordinary) => ordinary,
        Err(why) => return did_not_run("unstoppable_command_of_another_user_is_reported", &why),
    };
    let masters = start_masters(3);
    let kill_at_drop = KillAtDrop(unique_marker());
    let marker = &kill_at_drop.0;
    let script = format!(
        "exec {} --reuid=0 sleep {marker} {NO_OUTPUT}",
        ordinary.root()
    );
    let holder = ordinary
        .run(&masters, &["--ttl", "3s", "r"], &["sh", "-c", &script])
        .spawn()
        .expect("starts");
    wait_until("the command runs", || is_sleeping(marker));
    // Give `quorate` time to print its warning. It must warn before the lock is lost, so that a user can still act.
    std::thread::sleep(std::time::Duration::from_millis(600));
    occupy_lock(&masters);
    let holder = wait_for_output(holder);
    assert_eq!(holder.code, Some(74), "{holder:?}");
    let pid = pids_of(marker)[0].to_string();
    assert!(holder.stderr.contains("could NOT be stopped"), "{holder:?}");
    assert!(
        holder.stderr.contains(&format!("process {pid} (sleep")),
        "{pid} {holder:?}"
    );
    assert!(!holder.stderr.contains("command stopped"), "{holder:?}");
    assert!(holder.stderr.contains("sudo quorate run"), "{holder:?}");
    assert_eq!(
        fs::metadata(format!("/proc/{pid}"))
            .expect("a living process")
            .uid(),
        0
    );
}

#[test]
fn error_shows_the_pid_of_a_process_that_quorate_has_no_right_to_stop() {
    let ordinary = match Ordinary::new() {
        Ok(ordinary) => ordinary,
        Err(why) => {
            return did_not_run(
                "error_shows_the_pid_of_a_process_that_quorate_has_no_right_to_stop",
                &why,
            );
        }
    };
    let masters = start_masters(3);
    let kill_at_drop = KillAtDrop(unique_marker());
    let marker = &kill_at_drop.0;
    let script = format!(
        "{} --reuid=0 sleep {marker} {NO_OUTPUT} & sleep {marker}",
        ordinary.root()
    );
    let holder = ordinary
        .run(&masters, &["--ttl", "3s", "r"], &["sh", "-c", &script])
        .spawn()
        .expect("starts");
    wait_until("both processes run", || {
        count_processes(marker) == 3 && count_sleepers(marker) == 2
    });
    occupy_lock(&masters);
    let holder = wait_for_output(holder);
    assert_eq!(holder.code, Some(74), "{holder:?}");
    assert_eq!(
        count_processes(marker),
        1,
        "quorate must stop all processes of the command that it is allowed to stop"
    );
    let pid = pids_of(marker)[0];
    assert!(holder.stderr.contains("could NOT be stopped"), "{holder:?}");
    assert!(
        holder.stderr.contains(&format!("process {pid} (sleep")),
        "{pid} {holder:?}"
    );
    assert_eq!(holder.stderr.matches("process ").count(), 1, "{holder:?}");
}

fn count_sleepers(marker: &str) -> usize {
    let line = format!("sleep\0{marker}\0").into_bytes();
    let is_sleeper =
        |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|read| read == line);
    pids_of(marker).iter().filter(|pid| is_sleeper(pid)).count()
}

#[test]
fn signal_that_cannot_be_forwarded_is_reported_and_the_lock_is_kept() {
    let ordinary = match Ordinary::new() {
        Ok(ordinary) => ordinary,
        Err(why) => {
            return did_not_run(
                "signal_that_cannot_be_forwarded_is_reported_and_the_lock_is_kept",
                &why,
            );
        }
    };
    let masters = start_masters(3);
    let kill_at_drop = KillAtDrop(unique_marker());
    let marker = &kill_at_drop.0;
    let script = format!(
        "exec {} --reuid=0 sleep {marker} {NO_OUTPUT}",
        ordinary.root()
    );
    let holder = ordinary
        .run(&masters, &["r"], &["sh", "-c", &script])
        .spawn()
        .expect("starts");
    wait_until("the command runs", || is_sleeping(marker));
    send_signal(&holder, "TERM");
    std::thread::sleep(std::time::Duration::from_millis(600));
    let held = masters[0].command(&["EXISTS", "r"]).expect("a reply");
    assert_eq!(
        held.int(),
        Some(1),
        "the lock must be kept while the command continues"
    );
    kill(Pid::from_raw(pids_of(marker)[0]), Signal::SIGKILL).expect("a living process");
    let holder = wait_for_output(holder);
    assert_eq!(holder.code, Some(137), "{holder:?}");
    assert!(
        holder.stderr.contains("cannot forward SIGTERM"),
        "{holder:?}"
    );
}

#[test]
fn background_job_of_the_command_is_reported_and_not_stopped() {
    let masters = start_masters(3);
    let kill_at_drop = KillAtDrop(unique_marker());
    let marker = &kill_at_drop.0;
    let script = format!("sleep {marker} {NO_OUTPUT} & exit 4");
    let run = output_of(&mut quorate_run(&masters, &["r"], &["sh", "-c", &script]));
    assert_eq!(run.code, Some(4), "{run:?}");
    assert_eq!(count_processes(marker), 1);
    let pid = pids_of(marker)[0];
    assert_eq!(run.stderr.lines().count(), 1, "{run:?}");
    assert!(
        run.stderr.contains(&format!("process {pid} (sleep)")),
        "{run:?}"
    );
    assert!(run.stderr.contains("without the lock"), "{run:?}");
}
