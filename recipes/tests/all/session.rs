//! A session with a database server, through its command-line client. It reports errors as text and continues.

use std::io::{BufRead, BufReader, PipeReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

/// The line that marks the end of an answer.
const END_OF_ANSWER: &str = "end-of-the-answer";
/// How long a statement may take until it waits for another session.
const PATIENCE: Duration = Duration::from_secs(20);

/// Which client program a session runs.
#[derive(Clone, Copy)]
pub(crate) enum Program {
    Psql,
    MariaDb,
    Sqlite,
}

impl Program {
    /// The command that makes the client program print [`END_OF_ANSWER`].
    fn print_end(self) -> String {
        match self {
            Self::Psql => format!("\\warn {END_OF_ANSWER}"),
            Self::MariaDb => format!("SELECT '{END_OF_ANSWER}';"),
            Self::Sqlite => format!(".print {END_OF_ANSWER}"),
        }
    }
}

/// An open session. Dropping it kills the client program.
pub(crate) struct Session {
    child: Child,
    input: ChildStdin,
    output: BufReader<PipeReader>,
    program: Program,
}

impl Session {
    pub(crate) fn open(program: Program, mut command: Command) -> Self {
        // Results and errors go to one pipe, so that they keep their order.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command
            .stdin(Stdio::piped())
            .stdout(writer.try_clone().expect("a pipe"))
            .stderr(writer);
        let mut child = command.spawn().expect("the client program");
        drop(command);
        Self {
            input: child.stdin.take().expect("a pipe"),
            child,
            output: BufReader::new(reader),
            program,
        }
    }

    /// Runs statements, and returns the answers.
    pub(crate) fn execute(&mut self, statements: &str) -> String {
        self.send(statements);
        self.receive()
    }

    /// Runs statements that must not fail.
    pub(crate) fn succeed(&mut self, statements: &str) -> String {
        let answer = self.execute(statements);
        assert!(!answer.contains("rror"), "{statements}\n{answer}");
        assert!(!answer.contains("ERROR"), "{statements}\n{answer}");
        answer
    }

    /// Sends statements without waiting for the answer.
    pub(crate) fn send(&mut self, statements: &str) {
        let print_end = self.program.print_end();
        writeln!(self.input, "{statements}\n{print_end}").expect("a running client program");
        self.input.flush().expect("a running client program");
    }

    /// Waits for the answer to the statements that were sent last.
    pub(crate) fn receive(&mut self) -> String {
        let mut answer = String::new();
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).expect("readable output");
            assert!(length > 0, "the client program ended: {answer}");
            if line.trim_end() == END_OF_ANSWER {
                return answer;
            }
            answer.push_str(&line);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until `blocked_sessions` returns the number of a session that waits for a lock of another session.
pub(crate) fn wait_until_one_is_blocked(blocked_sessions: impl Fn() -> String) {
    let is_one_blocked = quorate_testbed::within(PATIENCE, || blocked_sessions().trim() == "1");
    assert!(
        is_one_blocked,
        "no session waits for another: {}",
        blocked_sessions()
    );
}

/// A text as a literal of SQL.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Whether a statement changed its row. The answer is the number of changed rows, 1 or 0.
pub(crate) fn is_one_row(answer: &str) -> bool {
    match answer.trim() {
        "1" => true,
        "0" => false,
        other => panic!("{other}"),
    }
}

/// The stored text of the document `a`.
pub(crate) fn body(session: &mut Session) -> String {
    let answer = session.execute("SELECT body FROM documents WHERE id = 'a';");
    answer.trim_end_matches('\n').to_owned()
}
