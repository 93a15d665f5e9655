//! Checks whether a command can be started, as far as that is possible without starting it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::exit::{self, Failure};

/// Number of bytes at the start of a script in which the kernel looks for the interpreter.
const SHEBANG_LIMIT: u64 = 256;

/// The search path if `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Checks that the program exists and is executable. If it is a script, also checks its interpreter. A program that
/// passes these checks may still fail to start.
///
/// # Errors
///
/// If the program cannot be started. The exit code and the message are those of a failed start.
pub(crate) fn check_program(program: &OsStr) -> Result<(), Failure> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH));
    find_program(program, &path).map_err(|why| start_failure(program, &why))
}

/// The failure of a command that could not be started because of the error `why`.
pub(super) fn start_failure(program: &OsStr, error: &io::Error) -> Failure {
    let (code, error_text) = match error.kind() {
        io::ErrorKind::NotFound => (exit::NOT_FOUND, "command not found".to_owned()),
        _ => (exit::NOT_EXECUTABLE, error.to_string()),
    };
    Failure::new(code, format!("{}: {error_text}", program.to_string_lossy()))
}

/// Searches the directories in `path` for the program, as execvp(3) does. If `program` contains a slash, checks that
/// path and searches nothing.
fn find_program(program: &OsStr, path: &OsStr) -> io::Result<()> {
    if program.as_bytes().contains(&b'/') {
        return check_executable(Path::new(program));
    }
    let mut last_error = io::Error::from(io::ErrorKind::NotFound);
    for dir in std::env::split_paths(path).filter(|_| !program.is_empty()) {
        match check_executable(&dir.join(program)) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => last_error = error,
            Err(_) => {}
        }
    }
    Err(last_error)
}

fn check_executable(path: &Path) -> io::Result<()> {
    check_file_executable(path)?;
    interpreter_of(path).map_or(Ok(()), |interpreter| check_file_executable(&interpreter))
}

fn check_file_executable(path: &Path) -> io::Result<()> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(access(path, AccessFlags::X_OK)?)
}

/// The interpreter that the first line of a script names. `None` if the file is not a script, or cannot be read.
fn interpreter_of(path: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(SHEBANG_LIMIT).read_to_end(&mut head).ok()?;
    let line = head
        .strip_prefix(b"#!")?
        .split(|byte| *byte == b'\n')
        .next()?;
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let first = words.find(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(first).into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn program_search_follows_the_rules_of_execvp() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let path = std::env::join_paths(dirs.iter().map(tempfile::TempDir::path)).expect("a path");
        let error_kind_of =
            |name: &str| find_program(OsStr::new(name), &path).map_err(|error| error.kind());
        let file = |dir: usize, mode| {
            let file = dirs[dir].path().join("job");
            std::fs::write(&file, "").expect("written");
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode))
                .expect("the test must be able to make the file executable");
            file.to_str().expect("text").to_owned()
        };
        assert_eq!(error_kind_of("job"), Err(io::ErrorKind::NotFound));
        assert_eq!(error_kind_of(""), Err(io::ErrorKind::NotFound));
        let first = file(0, 0o644);
        assert_eq!(error_kind_of("job"), Err(io::ErrorKind::PermissionDenied));
        assert_eq!(error_kind_of(&first), Err(io::ErrorKind::PermissionDenied));
        let second = file(1, 0o755);
        assert_eq!(
            (error_kind_of("job"), error_kind_of(&second)),
            (Ok(()), Ok(()))
        );
        assert_eq!(error_kind_of("/tmp"), Err(io::ErrorKind::PermissionDenied));
        assert_eq!(error_kind_of("/no/such/job"), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn script_counts_as_startable_only_if_its_interpreter_exists() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("job");
        let error_kind_of = |text: &str| {
            std::fs::write(&file, text).expect("written");
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755))
                .expect("the test must be able to make the file executable");
            find_program(file.as_os_str(), OsStr::new("")).map_err(|error| error.kind())
        };
        for valid in [
            "#!/bin/sh\n",
            "#! \t/bin/sh -e\nexit",
            "#!/bin/sh",
            "#!",
            "",
            "\0ELF",
        ] {
            assert_eq!(error_kind_of(valid), Ok(()), "{valid:?}");
        }
        for missing in ["#!/no/such/sh\n", "#!/bin/sh\r\n", "#! /no/such -x"] {
            assert_eq!(
                error_kind_of(missing),
                Err(io::ErrorKind::NotFound),
                "{missing:?}"
            );
        }
        assert_eq!(
            error_kind_of("#!/tmp\n"),
            Err(io::ErrorKind::PermissionDenied)
        );
    }
}
