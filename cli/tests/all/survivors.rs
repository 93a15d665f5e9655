//! Tests of processes that outlive the command, or that `quorate run` cannot stop. `quorate run` must never report a
//! running process as stopped.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{
    Ends, alive, did_not_run, done, end, held_by_another, mark, masters, pids, run, signal, sleeps,
    until,
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
        let this = Self { dir };
        let copy = |from: &std::path::Path, name: &str, mode| {
            let to = this.dir.path().join(name);
            fs::copy(from, &to)?;
            fs::set_permissions(&to, Permissions::from_mode(mode))
        };
        copy(&setpriv, "become", 0o4755)
            .and_then(|()| copy(env!("CARGO_BIN_EXE_quorate").as_ref(), "quorate", 0o755))
            .and_then(|()| fs::set_permissions(this.dir.path(), Permissions::from_mode(0o755)))
            .map_err(|error| error.to_string())?;
        // Check that the set-uid program runs as root, because a file system can be mounted so that set-uid bits have
        // no effect.
        let mut nobody = Self::nobody();
        let seen = nobody.arg(this.root()).args(["--reuid=0", "id", "-u"]);
        let seen = seen.output().map_err(|error| error.to_string())?;
        if seen.stdout != b"0\n" {
            return Err("set-uid programs have no effect in the temporary directory".into());
        }
        Ok(this)
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
        let quorate = run(masters, options, command);
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
const QUIET: &str = ">/dev/null 2>&1";

#[test]
fn unstoppable_command_of_another_user_is_reported() {
    let ordinary = match Ordinary::new() {
        Ok(ordinary) => ordinary,
        Err(why) => return did_not_run("unstoppable_command_of_another_user_is_reported", &why),
    };
    let masters = masters(3);
    let ends = Ends(mark());
    let mark = &ends.0;
    let script = format!("exec {} --reuid=0 sleep {mark} {QUIET}", ordinary.root());
    let holder = ordinary
        .run(&masters, &["--ttl", "3s", "r"], &["sh", "-c", &script])
        .spawn()
        .expect("starts");
    until("the command runs", || sleeps(mark));
    // Give `quorate` time to print its warning. It must warn before the lock is lost, so that a user can still act.
    std::thread::sleep(std::time::Duration::from_millis(600));
    held_by_another(&masters);
    let holder = end(holder);
    assert_eq!(holder.code, Some(74), "{holder:?}");
    let pid = pids(mark)[0].to_string();
    assert!(holder.err.contains("could NOT be stopped"), "{holder:?}");
    assert!(
        holder.err.contains(&format!("process {pid} (sleep")),
        "{pid} {holder:?}"
    );
    assert!(!holder.err.contains("command stopped"), "{holder:?}");
    assert!(holder.err.contains("sudo quorate run"), "{holder:?}");
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
    let masters = masters(3);
    let ends = Ends(mark());
    let mark = &ends.0;
    let script = format!(
        "{} --reuid=0 sleep {mark} {QUIET} & sleep {mark}",
        ordinary.root()
    );
    let holder = ordinary
        .run(&masters, &["--ttl", "3s", "r"], &["sh", "-c", &script])
        .spawn()
        .expect("starts");
    until("both processes run", || {
        alive(mark) == 3 && sleepers(mark) == 2
    });
    held_by_another(&masters);
    let holder = end(holder);
    assert_eq!(holder.code, Some(74), "{holder:?}");
    assert_eq!(
        alive(mark),
        1,
        "quorate must stop all processes of the command that it is allowed to stop"
    );
    let pid = pids(mark)[0];
    assert!(holder.err.contains("could NOT be stopped"), "{holder:?}");
    assert!(
        holder.err.contains(&format!("process {pid} (sleep")),
        "{pid} {holder:?}"
    );
    assert_eq!(holder.err.matches("process ").count(), 1, "{holder:?}");
}

fn sleepers(mark: &str) -> usize {
    let line = format!("sleep\0{mark}\0").into_bytes();
    let is = |pid: &i32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|read| read == line);
    pids(mark).iter().filter(|pid| is(pid)).count()
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
    let masters = masters(3);
    let ends = Ends(mark());
    let mark = &ends.0;
    let script = format!("exec {} --reuid=0 sleep {mark} {QUIET}", ordinary.root());
    let holder = ordinary
        .run(&masters, &["r"], &["sh", "-c", &script])
        .spawn()
        .expect("starts");
    until("the command runs", || sleeps(mark));
    signal(&holder, "TERM");
    std::thread::sleep(std::time::Duration::from_millis(600));
    let held = masters[0].command(&["EXISTS", "r"]).expect("a reply");
    assert_eq!(
        held.int(),
        Some(1),
        "the lock must be kept while the command continues"
    );
    kill(Pid::from_raw(pids(mark)[0]), Signal::SIGKILL).expect("a living process");
    let holder = end(holder);
    assert_eq!(holder.code, Some(137), "{holder:?}");
    assert!(holder.err.contains("cannot forward SIGTERM"), "{holder:?}");
}

#[test]
fn background_job_of_the_command_is_reported_and_not_stopped() {
    let masters = masters(3);
    let ends = Ends(mark());
    let mark = &ends.0;
    let script = format!("sleep {mark} {QUIET} & exit 4");
    let run = done(&mut run(&masters, &["r"], &["sh", "-c", &script]));
    assert_eq!(run.code, Some(4), "{run:?}");
    assert_eq!(alive(mark), 1);
    let pid = pids(mark)[0];
    assert_eq!(run.err.lines().count(), 1, "{run:?}");
    assert!(
        run.err.contains(&format!("process {pid} (sleep)")),
        "{run:?}"
    );
    assert!(run.err.contains("without the lock"), "{run:?}");
}
