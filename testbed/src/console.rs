//! An administrator at the console of a database: a session that stays open, and what it holds with it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::error::Error;

/// Written behind each answer, so that its end is known.
const END: &str = "end-of-the-answer";

/// A session of the administrator, of [`MariaDb::console`](crate::MariaDb::console). What it has locked is free when
/// it is dropped.
#[derive(Debug)]
#[must_use = "dropping the console ends its session"]
pub struct Console {
    program: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Console {
    /// The server's own client program, which is told what to do line by line.
    pub(crate) fn open(mut command: Command) -> Result<Self, Error> {
        let mut program = command
            .arg("--unbuffered")
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

    /// Does this, on one line, and gives what the server answered: a line a row.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the server refuses it or ends the session: the console is of no use any more then.
    pub fn say(&mut self, statements: &str) -> Result<String, Error> {
        let ended = || Error::Refused(format!("refused at the console: {statements}"));
        let input = self.input.as_mut().ok_or_else(ended)?;
        let told = writeln!(input, "{statements}; SELECT '{END}';").and_then(|()| input.flush());
        told.map_err(|_| ended())?;
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line);
            if !read.is_ok_and(|bytes| bytes > 0) {
                return Err(ended());
            }
            if line.trim_end() == END {
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
