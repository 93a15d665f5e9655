//! The mailbox of one event loop of asyncio.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use pyo3::prelude::*;
use quorate_bindings::error::CallError;
use quorate_bindings::mailbox::{Bell, Mailbox};

use crate::answers;
use crate::call::Call;
use crate::errors::exception;

/// Makes a file descriptor readable, for which the event loop waits.
struct SocketBell(UnixStream);

impl Bell for SocketBell {
    fn ring(&self) -> bool {
        match (&self.0).write_all(&[1]) {
            Ok(()) => true,
            // The event loop has not read the last bytes yet, so it is awake.
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

/// The mailbox of one event loop. Its file descriptor is readable while there are replies.
///
/// A forked process shares the socket with its parent, and the mailbox may be locked there for ever. So no method of
/// this type reads the socket or uses the mailbox in a forked process.
#[pyclass(frozen, module = "quorate._quorate")]
pub(crate) struct Bridge {
    mailbox: Mailbox<SocketBell>,
    rings: UnixStream,
}

/// The number of a call, and its error or its result.
type Finished = (u64, Option<Py<PyAny>>, Option<Py<PyAny>>);

#[pymethods]
impl Bridge {
    #[new]
    fn new() -> PyResult<Self> {
        let (rings, bell) = UnixStream::pair()?;
        rings.set_nonblocking(true)?;
        bell.set_nonblocking(true)?;
        let mailbox = Mailbox::new(SocketBell(bell));
        Ok(Self { mailbox, rings })
    }

    fn fileno(&self) -> i32 {
        self.rings.as_raw_fd()
    }

    fn is_forked(&self) -> bool {
        self.mailbox.is_forked()
    }

    /// Starts the call, and returns its number. If `watch` is set, the loss of the lock that it acquires is a second
    /// result with this number.
    fn start(&self, py: Python<'_>, call: &Call, watch: bool) -> PyResult<u64> {
        if self.is_forked() {
            return Err(exception(py, &CallError::forked()));
        }
        Ok(self.mailbox.start(call.take()?, watch))
    }

    /// Takes out the results since the last call: number, error, value.
    fn take(&self, py: Python<'_>) -> Vec<Finished> {
        if self.is_forked() {
            return Vec::new();
        }
        let mut bytes = [0; 64];
        let _ = (&self.rings).read(&mut bytes);
        let replies = self.mailbox.take().into_iter();
        let finished = replies.map(|(id, reply)| match answers::reply(py, reply) {
            Ok(value) => (id, None, Some(value)),
            Err(error) => (id, Some(error.into_value(py).into_any()), None),
        });
        finished.collect()
    }

    /// Drops the future of the call with this number.
    fn cancel(&self, id: u64) {
        if !self.is_forked() {
            self.mailbox.cancel(id);
        }
    }

    fn running_calls(&self) -> usize {
        if self.is_forked() {
            return 0;
        }
        self.mailbox.running_calls()
    }

    fn close(&self) {
        if !self.is_forked() {
            self.mailbox.close();
        }
    }
}
