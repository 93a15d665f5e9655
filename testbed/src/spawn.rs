//! Starts child processes that do not outlive this process.
//!
//! - Dropping a value that owns a child process, such as `Server`, kills the child.
//! - If this process is killed, the kernel kills the child. This requires the program `setpriv` (`--pdeathsig KILL`).
//!
//! With `--pdeathsig`, the kernel kills a child even if only the *thread* that spawned it ends. So one thread, which
//! never ends, spawns all children.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender};
use std::thread;

use crate::namespace::Namespace;

type Job = (Command, Sender<io::Result<Child>>);

/// Spawns the command from a thread that lives as long as this process.
pub(crate) fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        // If the thread does not start, `spawner.send` below returns an error.
        let _ = thread::Builder::new()
            .name("testbed-spawner".into())
            .spawn(move || {
                for (mut command, result_sender) in queue {
                    let _ = result_sender.send(command.spawn());
                }
            });
        jobs
    });
    let (result_sender, result) = mpsc::channel();
    let ended_error = || io::Error::other("the thread that starts the servers has ended");
    spawner
        .send((command, result_sender))
        .map_err(|_| ended_error())?;
    result.recv().map_err(|_| ended_error())?
}

/// Returns a command that starts `program`, in the given network namespace if there is one. If `setpriv` works, the
/// program dies when this process ends.
pub(crate) fn tied_to_process(program: &Path, namespace: Option<&Namespace>) -> Command {
    static SETPRIV: OnceLock<bool> = OnceLock::new();
    let has_setpriv = *SETPRIV.get_or_init(|| {
        cfg!(target_os = "linux")
            && Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "true"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
    });
    let mut arguments: Vec<OsString> = Vec::new();
    if let Some(namespace) = namespace {
        arguments.extend(namespace.enter_command().map(OsString::from));
    }
    if has_setpriv {
        arguments.extend(["setpriv", "--pdeathsig", "KILL"].map(OsString::from));
    }
    arguments.push(program.into());
    // Each program in `arguments` replaces itself with the next one (`exec`). So the server has the child's process id.
    let mut command = Command::new(&arguments[0]);
    command.args(&arguments[1..]);
    command
}

/// The default server program: the one that `QUORATE_SERVER` names (a path, or a name on `PATH`). If this variable is
/// not set, the first of `redis-server` and `valkey-server` on `PATH`.
///
/// Returns `None` if there is no such program. [`Server::start`](crate::Server::start) then fails with
/// [`Error::NoProgram`](crate::Error::NoProgram).
pub fn available() -> Option<PathBuf> {
    match std::env::var_os("QUORATE_SERVER").filter(|name| !name.is_empty()) {
        Some(configured) => find(&configured),
        None => ["redis-server", "valkey-server"]
            .iter()
            .find_map(|name| find(OsStr::new(name))),
    }
}

/// Finds an executable file. `name` is a path, or a name to look up on `PATH`. Returns `None` if there is no such file.
pub(crate) fn find(name: &OsStr) -> Option<PathBuf> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        // Make the path absolute, because the server starts in another directory.
        return is_executable(path).then(|| std::path::absolute(path).ok())?;
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(path))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
