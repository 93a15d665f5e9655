//! The life cycle of one server process: it is started in its own process group, watched, and killed when dropped.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::Error;
use crate::process::{process_state, signal_group, within};
use crate::spawn::spawn;

/// One server process, which may die and be started again. It is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Mutex<Option<Child>>,
    /// The path of the server's log file. All starts of the server write to this file.
    log: PathBuf,
    /// How long to wait until the effect of a signal is visible.
    patience: Duration,
}

impl ServerProcess {
    /// The life cycle of a server process that has not been started yet.
    pub(crate) fn new(log: PathBuf, patience: Duration) -> Self {
        Self {
            child: Mutex::new(None),
            log,
            patience,
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the server in a process group of its own, with its output in the log.
    pub(crate) fn start(&self, mut command: Command) -> Result<(), Error> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.map_err(Error::io("open the server's log"))?;
        let error_log = log
            .try_clone()
            .map_err(Error::io("duplicate the handle of the server's log"))?;
        {
            use std::os::unix::process::CommandExt;
            command.process_group(0);
        }
        command.stdin(Stdio::null()).stdout(log).stderr(error_log);
        *self.child() = Some(spawn(command).map_err(Error::io("start the server program"))?);
        Ok(())
    }

    /// The process id, or `None` if the server is not running.
    pub(crate) fn pid(&self) -> Option<u32> {
        let mut child = self.child();
        let running = child.as_mut()?;
        matches!(running.try_wait(), Ok(None)).then(|| running.id())
    }

    /// Waits until the server is ready. `probe` returns `None` if it is ready, otherwise the reason why not. Fails if
    /// the server ends or if `patience` has elapsed. Sleeps for `pause` between two probes.
    pub(crate) fn wait_ready(
        &self,
        patience: Duration,
        pause: Duration,
        probe: impl Fn() -> Option<String>,
    ) -> Result<(), Error> {
        let started = Instant::now();
        loop {
            let exit_status = self
                .child()
                .as_mut()
                .ok_or(Error::NotRunning)?
                .try_wait()
                .map_err(Error::io("wait for the server process"))?;
            if let Some(status) = exit_status {
                let log = self.log_tail();
                return Err(Error::Exited { status, log });
            }
            let Some(last_refusal) = probe() else {
                return Ok(());
            };
            let waited = started.elapsed();
            if waited >= patience {
                let log = self.log_tail();
                return Err(Error::NotReady {
                    waited,
                    last: last_refusal,
                    log,
                });
            }
            thread::sleep(pause);
        }
    }

    /// Sends a signal that ends the server. Then waits until the process is dead and its port refuses connections,
    /// which `refuses` checks. Does nothing if the server was never started or has already been ended.
    pub(crate) fn end(&self, signal: Signal, refuses: impl Fn() -> bool) -> Result<(), Error> {
        let mut child = self.child();
        let Some(process) = child.as_mut() else {
            return Ok(());
        };
        let waiting = Error::io("wait for the server process");
        // If the process still runs, its id cannot pass to another process before the signal: `child` is locked.
        if process.try_wait().map_err(waiting)?.is_none() {
            signal_group(process, signal)?;
        }
        let is_dead = within(self.patience, || {
            matches!(process.try_wait(), Ok(Some(_))) && refuses()
        });
        if !is_dead {
            return Err(self.unverified("dead"));
        }
        *child = None;
        Ok(())
    }

    /// Freezes the server with SIGSTOP, and waits until the operating system reports it as stopped.
    pub(crate) fn stop(&self) -> Result<(), Error> {
        self.signal(Signal::STOP)?;
        self.await_state("stopped", |state| matches!(state, 'T' | 't'))
    }

    /// Resumes the server with SIGCONT, and waits until the operating system reports it as running.
    pub(crate) fn cont(&self) -> Result<(), Error> {
        self.signal(Signal::CONT)?;
        self.await_state("running", |state| !matches!(state, 'T' | 't'))
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let mut child = self.child();
        let process = child.as_mut().ok_or(Error::NotRunning)?;
        match process
            .try_wait()
            .map_err(Error::io("wait for the server process"))?
        {
            Some(_) => Err(Error::NotRunning),
            None => signal_group(process, signal),
        }
    }

    fn await_state(
        &self,
        wanted: &'static str,
        is_wanted: impl Fn(char) -> bool,
    ) -> Result<(), Error> {
        let pid = self.pid().ok_or(Error::NotRunning)?;
        if within(self.patience, || process_state(pid).is_some_and(&is_wanted)) {
            Ok(())
        } else {
            Err(self.unverified(wanted))
        }
    }

    fn unverified(&self, wanted: &'static str) -> Error {
        let waited = self.patience;
        Error::Unverified { wanted, waited }
    }

    /// The last lines that the server wrote to its log.
    pub(crate) fn log_tail(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(mut process) = self.child().take()
            && matches!(process.try_wait(), Ok(None))
        {
            let _ = signal_group(&process, Signal::KILL);
            let _ = process.wait();
        }
    }
}
