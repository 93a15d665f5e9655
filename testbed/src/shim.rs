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
    let mut all = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        all.push(":");
        all.push(others);
    }
    ("LD_PRELOAD".into(), all)
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
        let why = format!("the {name} shim works on Linux only");
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    let dir = tempfile::Builder::new()
        .prefix(&format!("quorate-testbed-{name}-"))
        .tempdir()?;
    let text = dir.path().join(format!("{name}_shim.c"));
    let library = dir.path().join(format!("{name}_shim.so"));
    std::fs::write(&text, source)?;
    let named = std::env::var("CC").ok().filter(|cc| !cc.is_empty());
    for compiler in named.as_deref().into_iter().chain(["cc", "gcc"]) {
        let run = Command::new(compiler)
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .args([&library, &text])
            .output();
        match run {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(output) if !output.status.success() => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                return Err(io::Error::other(said));
            }
            Ok(_) => return Ok((library, Arc::new(dir))),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        "no C compiler found: tried $CC, cc and gcc",
    ))
}
