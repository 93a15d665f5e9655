//! Keeps the output of the command in temporary files, and prints it only if the command fails.

use std::fs::File;
use std::io::{self, Seek};
use std::process::Command;

/// The output of the command (stdout and stderr), in two temporary files that have no name.
#[derive(Debug)]
pub(crate) struct CapturedOutput {
    out: File,
    err: File,
}

impl CapturedOutput {
    /// Creates the files in the directory for temporary files.
    ///
    /// # Errors
    ///
    /// If a file cannot be created.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            out: tempfile::tempfile()?,
            err: tempfile::tempfile()?,
        })
    }

    /// Redirects stdout and stderr of `command` to the two files.
    pub(super) fn redirect(&self, command: &mut Command) -> io::Result<()> {
        command.stdout(self.out.try_clone()?);
        command.stderr(self.err.try_clone()?);
        Ok(())
    }

    /// Prints the command's stdout on stdout, and its stderr on stderr. Ignores I/O errors.
    pub(crate) fn print(mut self) {
        let results = [
            self.out
                .rewind()
                .and_then(|()| io::copy(&mut self.out, &mut io::stdout())),
            self.err
                .rewind()
                .and_then(|()| io::copy(&mut self.err, &mut io::stderr())),
        ];
        drop(results);
    }
}
