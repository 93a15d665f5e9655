//! The directory of one server, with all its files.
//!
//! The directory is in memory if possible, so that tests do not wait for a disk. The files survive SIGKILL of the
//! server nevertheless, as they would survive in the system's cache of a disk. They do not survive a crash of the
//! machine, which no test can cause.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, statvfs};
use tempfile::TempDir;

/// The folder whose files Linux keeps in memory.
const MEMORY_FOLDER: &str = "/dev/shm";
/// The free memory that the folder must have before each start of a server. A MariaDB server needs about 50 MB.
const MIN_FREE_BYTES: u64 = 512 << 20;
/// The beginning of the name of every directory.
const DIR_PREFIX: &str = "quorate-testbed-";
/// The file in each directory that its process keeps locked.
const LOCK_FILE: &str = "lock";
/// Younger directories without a lock are not removed: their processes may be about to lock them.
const MIN_AGE: Duration = Duration::from_secs(60);

/// Abandoned directories are removed once per process.
static REMOVE_ONCE: Once = Once::new();

/// A temporary directory, which is removed when this value is dropped.
#[derive(Debug)]
#[must_use = "dropping the directory removes it"]
pub struct ServerDir {
    dir: TempDir,
    /// The lock shows other processes that this directory is in use. It ends with this process.
    _lock_file: File,
}

impl ServerDir {
    /// Creates a directory in the folder `folder`. If `folder` is `None`, uses the folder that `QUORATE_SERVER_DATA`
    /// names; otherwise `/dev/shm`, if it has enough room; otherwise the folder for temporary files.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    pub fn create(folder: Option<&Path>) -> io::Result<Self> {
        let configured = std::env::var_os("QUORATE_SERVER_DATA").filter(|name| !name.is_empty());
        let folder = folder
            .map(Path::to_path_buf)
            .or(configured.map(PathBuf::from));
        if let Some(folder) = folder {
            return Self::create_in(&folder);
        }
        let memory_folder = Path::new(MEMORY_FOLDER);
        if free_bytes(memory_folder) < MIN_FREE_BYTES {
            return Self::create_in(&std::env::temp_dir());
        }
        REMOVE_ONCE.call_once(|| remove_abandoned(memory_folder));
        Self::create_in(memory_folder).or_else(|_| Self::create_in(&std::env::temp_dir()))
    }

    /// Creates a directory in this folder. If the path of the folder is longer than 70 bytes, uses `/tmp`, because a
    /// Unix socket needs a short path.
    fn create_in(folder: &Path) -> io::Result<Self> {
        let folder = if folder.as_os_str().len() > 70 {
            Path::new("/tmp")
        } else {
            folder
        };
        let dir = tempfile::Builder::new()
            .prefix(DIR_PREFIX)
            .tempdir_in(folder)?;
        let lock = File::create(dir.path().join(LOCK_FILE))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self {
            dir,
            _lock_file: lock,
        })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// The free space of a folder, in bytes; 0 if there is no such folder.
fn free_bytes(folder: &Path) -> u64 {
    statvfs(folder).map_or(0, |filesystem| {
        filesystem.f_bavail.saturating_mul(filesystem.f_frsize)
    })
}

/// Removes the directories of processes that were killed, because they would occupy memory until the machine restarts.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(DIR_PREFIX.as_bytes())
            && is_abandoned(&entry.path())
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether the process that created this directory has ended without removing it.
fn is_abandoned(dir: &Path) -> bool {
    let Ok(lock) = File::open(dir.join(OsStr::new(LOCK_FILE))) else {
        return false;
    };
    let age = fs::metadata(dir).and_then(|meta| meta.modified());
    let age = age.map(|modified_at| modified_at.elapsed().unwrap_or_default());
    age.is_ok_and(|age| age > MIN_AGE)
        && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_a_process_that_was_killed_is_removed_and_others_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let old_time = std::time::SystemTime::now() - 2 * MIN_AGE;
        let make_old = |dir: &Path| File::open(dir).unwrap().set_modified(old_time).unwrap();
        let used = ServerDir::create_in(folder.path()).unwrap();
        let abandoned = ServerDir::create_in(folder.path()).unwrap();
        let young = ServerDir::create_in(folder.path()).unwrap();
        let foreign = folder.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        // As when a process is killed: the lock ends, and the directory stays.
        let abandon = |dir: ServerDir| dir.dir.keep();
        let (abandoned, young) = (abandon(abandoned), abandon(young));
        for dir in [used.path(), &abandoned, &foreign] {
            make_old(dir);
        }
        // A process that another test starts at this moment may have the lock for an instant, until it is executed.
        let started = std::time::Instant::now();
        while abandoned.exists() && started.elapsed() < Duration::from_secs(20) {
            remove_abandoned(folder.path());
        }
        let exists = [used.path(), &abandoned, &young, &foreign].map(Path::exists);
        assert_eq!(exists, [true, false, true, true]);
    }

    #[test]
    fn folder_without_enough_room_counts_as_full() {
        assert_eq!(free_bytes(Path::new("/no/such/folder")), 0);
        assert!(free_bytes(&std::env::temp_dir()) > 0);
    }
}
