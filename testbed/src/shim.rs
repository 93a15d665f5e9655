//! Small C libraries that are preloaded into other programs. They replace functions of the C library, such as
//! `getaddrinfo`. They are compiled when a test needs them.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;

/// The environment variable with which a program loads this library, before the libraries that this process has loaded
/// in the same way, such as the one of `scripts/slow-disk`.
pub(crate) fn preload(library: &Path) -> (OsString, OsString) {
    let mut libraries = library.as_os_str().to_owned();
    if let Some(inherited) =
        std::env::var_os("LD_PRELOAD").filter(|inherited| !inherited.is_empty())
    {
        libraries.push(":");
        libraries.push(inherited);
    }
    ("LD_PRELOAD".into(), libraries)
}

/// Compiles a C library in a new temporary directory, with `$CC`, `cc` or `gcc`, whichever is found first.
///
/// # Errors
///
/// - `Unsupported` on systems other than Linux
/// - `NotFound` if there is no C compiler
/// - `Other` with the compiler's messages if the compilation fails
/// - otherwise the error of a file operation or of the start of the compiler
pub(crate) fn compile(name: &str, source: &str) -> io::Result<(PathBuf, Arc<TempDir>)> {
    if !cfg!(target_os = "linux") {
        let reason = format!("the {name} shim works on Linux only");
        return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
    }
    let dir = tempfile::Builder::new()
        .prefix(&format!("quorate-testbed-{name}-"))
        .tempdir()?;
    let source_path = dir.path().join(format!("{name}_shim.c"));
    let library = dir.path().join(format!("{name}_shim.so"));
    std::fs::write(&source_path, source)?;
    let configured = std::env::var("CC").ok().filter(|cc| !cc.is_empty());
    for compiler in configured.as_deref().into_iter().chain(["cc", "gcc"]) {
        let outcome = Command::new(compiler)
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .args([&library, &source_path])
            .output();
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(output) if !output.status.success() => {
                let messages = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(io::Error::other(messages));
            }
            Ok(_) => return Ok((library, Arc::new(dir))),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        "no C compiler found: tried $CC, cc and gcc",
    ))
}
