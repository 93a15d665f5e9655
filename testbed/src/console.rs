//! An administrator's interactive session with a database server. The session stays open, and keeps the row and table
//! locks that it takes, until it is dropped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::error::Error;

/// The line that the session prints after each answer of the server. It marks the end of the answer.
const END_OF_ANSWER: &str = "end-of-the-answer";

/// An administrator's session, opened by [`MariaDb::console`](crate::MariaDb::console) or
/// [`Postgres::console_in`](crate::Postgres::console_in). Dropping this value ends the session and releases its database
/// locks.
#[derive(Debug)]
#[must_use = "dropping the console ends its session"]
pub struct Console {
    program: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Console {
    /// Starts the client program of the server, which reads statements line by line.
    pub(crate) fn open(mut command: Command) -> Result<Self, Error> {
        let mut program = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Error::io("run the client program"))?;
        let (Some(input), Some(output)) = (program.stdin.take(), program.stdout.take()) else {
            return Err(Error::NotRunning);
        };
        let output = BufReader::new(output);
        let input = Some(input);
        Ok(Self {
            program,
            input,
            output,
        })
    }

    /// Runs statements, which must be on one line, and returns the answer: one line per row.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] if the server refuses a statement or ends the session. In both cases, the session cannot be
    /// used any more.
    pub fn say(&mut self, statements: &str) -> Result<String, Error> {
        let refused_error = || {
            Error::Refused(format!(
                "the server refused these statements or ended the session: {statements}"
            ))
        };
        let input = self.input.as_mut().ok_or_else(refused_error)?;
        let written =
            writeln!(input, "{statements}; SELECT '{END_OF_ANSWER}';").and_then(|()| input.flush());
        written.map_err(|_| refused_error())?;
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            let read_bytes = self.output.read_line(&mut line);
            if !read_bytes.is_ok_and(|bytes| bytes > 0) {
                return Err(refused_error());
            }
            if line.trim_end() == END_OF_ANSWER {
                return Ok(answer);
            }
            answer.push_str(&line);
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}
