//! A file system of a few megabytes in memory, which a test can fill. It is mounted in a mount namespace of its own, so
//! only the server that runs in this namespace can use it, and it disappears when the last process in it has ended.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::error::Error;
use crate::spawn::{spawn, tied_to_process};

/// Mounts the file system, prints a line, and then keeps the namespace until it is killed. The parameters are the
/// options of the mount and the folder.
const MOUNT: &str = "mount -t tmpfs -o \"$0\" tmpfs \"$1\" && echo mounted && exec sleep infinity";

/// A mounted file system, and the process that keeps it. Dropping this value ends the process.
#[derive(Debug)]
#[must_use = "dropping the disk lets it disappear"]
pub(crate) struct SmallDisk {
    keeper: Child,
}

impl SmallDisk {
    /// Creates the folder, and mounts a file system of this size there. It belongs to the user with the id `owner`, or to
    /// the user of this process.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if this machine does not allow it.
    pub(crate) fn mount(folder: &Path, bytes: u64, owner: Option<u32>) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(Error::io("create a folder"))?;
        let owner_options = owner.map(|id| format!(",uid={id},gid={id}"));
        let options = format!("size={bytes},mode=700{}", owner_options.unwrap_or_default());
        let mut command = tied_to_process(Path::new("unshare"), None);
        command
            .args(["--mount", "--propagation=private", "sh", "-c", MOUNT])
            .arg(options)
            .arg(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let keeper = spawn(command).map_err(Error::io("run the program unshare"))?;
        let mut disk = Self { keeper };
        let mut line = String::new();
        let output = disk.keeper.stdout.take();
        let is_mounted = output.is_some_and(|output| {
            let read = BufReader::new(output).read_line(&mut line);
            read.is_ok() && line == "mounted\n"
        });
        if !is_mounted {
            let why = "this machine does not allow to mount a file system".to_owned();
            return Err(Error::Refused(why));
        }
        Ok(disk)
    }

    /// Why this machine cannot mount a small file system. `None` if it can.
    pub(crate) fn missing() -> Option<String> {
        let folder = match tempfile::tempdir() {
            Ok(folder) => folder,
            Err(error) => return Some(error.to_string()),
        };
        let mounted = Self::mount(folder.path(), 1 << 20, None);
        mounted.err().map(|error| error.to_string())
    }

    /// The command `command`, in the namespace in which the file system is mounted.
    pub(crate) fn inside(&self, command: Command) -> Command {
        let mut inside = Command::new("nsenter");
        let mut namespace = OsString::from("--mount=/proc/");
        namespace.push(self.keeper.id().to_string());
        namespace.push("/ns/mnt");
        // `nsenter` replaces itself with the program, so the program has the child's process id.
        inside
            .arg(namespace)
            .arg("--")
            .arg(command.get_program())
            .args(command.get_args());
        inside
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
