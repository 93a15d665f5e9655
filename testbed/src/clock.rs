//! Makes the wall clock of one server jump while the server runs. The clocks of all other programs stay correct.
//!
//! A small C library is preloaded into the server and adds an offset to the wall clock. The offset is in a
//! memory-mapped file, so a jump takes effect when the server next reads its clock. libfaketime is not used, because
//! Debian's Redis 7.0 hangs at start with it.
//!
//! Works only on Linux, and only for dynamically linked servers. Needs a C compiler. To simulate drift, make many small
//! jumps.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::shim;

/// The compiled library that shifts a server's clock. Clones share the library's file. The file is removed when no
/// clone and no server uses it any more.
#[derive(Clone, Debug)]
pub struct ClockShim {
    library: PathBuf,
    dir: Arc<TempDir>,
}

impl ClockShim {
    /// Compiles the library with the compiler in `CC`, otherwise with `cc`, otherwise with `gcc`.
    ///
    /// # Errors
    ///
    /// `Unsupported` on systems other than Linux, `NotFound` without a compiler, otherwise the compiler's message.
    pub fn build() -> io::Result<Self> {
        let (library, dir) = shim::compile("clock", include_str!("clock_shim.c"))?;
        Ok(Self { library, dir })
    }

    /// Creates a new offset file in the library's directory, with the offset zero. To let the clocks of two servers
    /// jump independently, use a separate file for each.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    pub fn offset_file(&self) -> io::Result<OffsetFile> {
        let mut offset = OffsetFile::create(self.dir.path())?;
        offset.temp_dir = Some(self.dir.clone());
        Ok(offset)
    }

    /// The environment variables that make a process add `offset` to its wall clock.
    ///
    /// For a server, use [`ServerOptions::clock`](crate::ServerOptions::clock) instead. It also keeps the library and
    /// the offset file until the server is dropped, because a restarted server needs them.
    pub fn env(&self, offset: &OffsetFile) -> [(OsString, OsString); 2] {
        [
            shim::preload(&self.library),
            (
                "QUORATE_CLOCK_OFFSET_FILE".into(),
                offset.path.clone().into(),
            ),
        ]
    }

    pub(crate) fn temp_dir(&self) -> Arc<TempDir> {
        self.dir.clone()
    }
}

/// A file with the current clock offset of the processes that read it. Clones share the file.
#[derive(Clone, Debug)]
pub struct OffsetFile {
    path: PathBuf,
    file: Arc<File>,
    temp_dir: Option<Arc<TempDir>>,
}

impl OffsetFile {
    /// Creates a new file in `dir`, with the offset zero. The file stays until `dir` is removed.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    pub fn create(dir: &Path) -> io::Result<Self> {
        let (file, path) = tempfile::Builder::new()
            .prefix("clock-offset-")
            .tempfile_in(dir)?
            .keep()
            .map_err(io::Error::from)?;
        let offset = Self {
            path: std::path::absolute(path)?,
            file: Arc::new(file),
            temp_dir: None,
        };
        offset.set(Duration::ZERO, Skew::Ahead)?;
        Ok(offset)
    }

    /// Replaces the offset: the clocks that read this file are then `amount` ahead of or behind the true time.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if `amount` exceeds 292 years, otherwise the error of the operating system.
    pub fn set(&self, amount: Duration, skew: Skew) -> io::Result<()> {
        let nanos = i64::try_from(amount.as_nanos()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "the offset of a clock must be at most 292 years",
            )
        })?;
        let nanos = match skew {
            Skew::Ahead => nanos,
            Skew::Behind => -nanos,
        };
        self.file.write_all_at(&nanos.to_ne_bytes(), 0)
    }

    /// Sets the offset to zero, so that the clocks that read this file show the true time. Their programs see a clock
    /// jump.
    ///
    /// # Errors
    ///
    /// The error of the operating system.
    pub fn clear(&self) -> io::Result<()> {
        self.set(Duration::ZERO, Skew::Ahead)
    }

    pub(crate) fn temp_dir(&self) -> Option<Arc<TempDir>> {
        self.temp_dir.clone()
    }

    /// The path of the offset file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The direction in which a clock is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// The clock shows a later time than the true time, so keys expire early.
    Ahead,
    /// The clock shows an earlier time than the true time, so keys expire late.
    Behind,
}
