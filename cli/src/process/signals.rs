//! The signals that `quorate` receives and forwards.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::children;
use crate::exit::Failure;

/// The signals to receive: SIGCHLD, and all signals that `quorate` forwards to the command.
const HANDLED: [Signal; 11] = [
    Signal::SIGCHLD,
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGCONT,
    Signal::SIGTSTP,
];

/// The stream of signals that this process receives.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
    /// Whether [`next_ending_signal`](Self::next_ending_signal) reaps ended children.
    reaps_orphans: bool,
    /// Whether a supervisor waits for the children at the moment. If true,
    /// [`next_ending_signal`](Self::next_ending_signal) reaps none.
    has_supervisor: bool,
    /// The first received SIGTERM, SIGINT or SIGQUIT; `None` if none was received.
    end_signal: Option<Signal>,
}

impl Signals {
    /// Starts to receive signals. Signals that were ignored when the process started stay ignored, as `nohup` requires.
    ///
    /// Must be called within a tokio runtime with the I/O driver enabled.
    pub(crate) fn receive() -> io::Result<Self> {
        let ignored_mask = ignored_mask();
        let mut streams = Vec::with_capacity(HANDLED.len());
        for sig in HANDLED {
            // Always receive SIGCHLD, even if the parent process ignored it. SIGCHLD reports the end of a child.
            if sig == Signal::SIGCHLD || !is_ignored(ignored_mask, sig) {
                streams.push((sig, signal(SignalKind::from_raw(sig as i32))?));
            }
        }
        Ok(Self {
            streams,
            reaps_orphans: false,
            has_supervisor: false,
            end_signal: None,
        })
    }

    /// Like [`receive`](Self::receive), but [`next_ending_signal`](Self::next_ending_signal) also reaps ended children.
    ///
    /// The exit code of a child that was reaped here is lost. So use this only if no code except
    /// [`supervise`](super::supervise) waits for children.
    pub(crate) fn receive_and_reap() -> io::Result<Self> {
        let signals = Self::receive()?;
        Ok(Self {
            reaps_orphans: true,
            ..signals
        })
    }

    /// Sets whether a supervisor waits for the children of this process. While it does, no other code may reap them.
    pub(super) fn leave_children_to_supervisor(&mut self, has_supervisor: bool) {
        self.has_supervisor = has_supervisor;
    }

    /// Waits for the next signal. Cancel safe: no signal is lost if the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        let next = poll_fn(|context| {
            for (sig, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*sig);
                }
            }
            Poll::Pending
        });
        let sig = next.await;
        if matches!(sig, Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT) {
            self.end_signal.get_or_insert(sig);
        }
        sig
    }

    /// The first received SIGTERM, SIGINT or SIGQUIT; `None` if none was received. SIGHUP is no request to end, because
    /// many commands reload their configuration at SIGHUP.
    pub(crate) fn end_signal(&self) -> Option<Signal> {
        self.end_signal
    }

    /// Waits for the next signal that asks this process to end. During the wait, SIGTSTP suspends this process.
    ///
    /// Use this only while no command runs.
    pub(crate) async fn next_ending_signal(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGCHLD if self.reaps_orphans && !self.has_supervisor => {
                    children::reap_orphans();
                }
                Signal::SIGCHLD | Signal::SIGWINCH | Signal::SIGCONT => {}
                Signal::SIGTSTP => {
                    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
                }
                sig => return sig,
            }
        }
    }
}

/// Runs `work`. If a signal that asks this process to end arrives first, drops `work` and fails with the message
/// `line`.
pub(crate) async fn interruptible<T>(
    work: impl Future<Output = Result<T, Failure>>,
    message: &str,
) -> Result<T, Failure> {
    let mut signals = Signals::receive().map_err(Failure::internal)?;
    tokio::select! {
        result = work => result,
        sig = signals.next_ending_signal() => Err(Failure::interrupted(sig, message)),
    }
}

/// Repairs inherited signal settings, for this process and its children:
///
/// - Unblocks all signals, because some programs start other programs with blocked signals.
/// - If SIGCHLD is ignored, installs a handler for it. While SIGCHLD is ignored, the kernel discards the exit codes of
///   children.
///
/// Must be called before anything else.
pub(crate) fn repair_inherited() -> io::Result<()> {
    SigSet::all().thread_unblock()?;
    if is_ignored(ignored_mask(), Signal::SIGCHLD) {
        // The handler stays installed after this runtime is dropped.
        let runtime = quorate::one_thread()?;
        let _inside = runtime.enter();
        let _stays = signal(SignalKind::child())?;
    }
    Ok(())
}

fn is_ignored(mask: u64, sig: Signal) -> bool {
    mask & (1 << (sig as i32 - 1)) != 0
}

/// The signals that this process ignores, as a bit mask; empty if `/proc` is not mounted.
fn ignored_mask() -> u64 {
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| parse_ignored_mask(&status))
}

fn parse_ignored_mask(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_of_ignored_signals_in_proc_status_is_parsed() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        let is_set = |sig| is_ignored(parse_ignored_mask(status), sig);
        assert!(is_set(Signal::SIGHUP) && is_set(Signal::SIGPIPE));
        assert!(!is_set(Signal::SIGTERM));
        assert_eq!(parse_ignored_mask("nothing of the kind"), 0);
    }
}
