//! Makes host names resolve to addresses that a test chooses, for one program and its child processes. The test can
//! change the answer for a name while the program runs: another address, "no such name", or no answer.
//!
//! A small C library is preloaded into the program and answers `getaddrinfo` for these names. All other names resolve
//! as usual. No root is needed, and other programs are not affected.
//!
//! Works only on Linux, and only for dynamically linked programs. Needs a C compiler.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tempfile::TempDir;

use crate::shim;

/// A table of host names and their addresses. Cheap to clone. Its files are removed when the last clone is dropped.
///
/// ```no_run
/// use std::process::Command;
/// use quorate_testbed::{LookupAnswer, Names};
///
/// let names = Names::build()?;
/// names.set("m1.test", LookupAnswer::Address([127, 0, 0, 1].into()))?;
/// Command::new("my-client").arg("redis://m1.test:6379").envs(names.env()).spawn()?;
/// names.set("m1.test", LookupAnswer::Silence)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Names {
    library: PathBuf,
    dir: Arc<TempDir>,
}

/// The answer to a lookup of a host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupAnswer {
    /// The name has this address.
    Address(IpAddr),
    /// The name does not exist.
    NoSuchName,
    /// The name server does not answer. The lookup fails after ten seconds. If [`Names::set`] changes the answer before
    /// that, the lookup gets the new answer.
    Silence,
}

impl Names {
    /// Compiles the library that answers lookups, and creates a table without names.
    ///
    /// # Errors
    ///
    /// - `Unsupported` on systems other than Linux.
    /// - `NotFound` if there is no C compiler.
    /// - Otherwise the compiler's message, or the error of the operating system.
    pub fn build() -> io::Result<Self> {
        let (library, dir) = shim::compile("names", include_str!("names_shim.c"))?;
        Ok(Self { library, dir })
    }

    /// Changes the answer to lookups of the host name `name`. Lookups that still wait because of
    /// [`LookupAnswer::Silence`] get the new answer as well.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    pub fn set(&self, name: &str, answer: LookupAnswer) -> io::Result<()> {
        let text = match answer {
            LookupAnswer::Address(address) => address.to_string(),
            LookupAnswer::NoSuchName => "nowhere".into(),
            LookupAnswer::Silence => "silence".into(),
        };
        // Write a complete new file and rename it over the old one, so that no lookup reads a partial answer.
        let mut file = tempfile::NamedTempFile::new_in(self.dir.path())?;
        file.write_all(text.as_bytes())?;
        file.persist(self.dir.path().join(name))?;
        Ok(())
    }

    /// The environment variables that make a program and its child processes use this table.
    pub fn env(&self) -> [(OsString, OsString); 2] {
        [
            shim::preload(&self.library),
            ("QUORATE_NAMES_DIR".into(), self.dir.path().into()),
        ]
    }
}
