//! The signals that `quorate` hears and passes on.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::children;
use crate::exit::Failure;

/// Everything that is passed on to the command. `SIGKILL` and `SIGSTOP` cannot be, `SIGTTIN` and
/// `SIGTTOU` are the terminal's business, and the rest are the kernel's complaints about ourselves.
const HEARD: [Signal; 11] = [
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

/// A stream of signals.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
    /// Ended children are nobody's to wait for but ours.
    reaps: bool,
    /// The first that asked for the end.
    end: Option<Signal>,
}

impl Signals {
    /// Starts to hear. Signals that were ignored when we were started stay ignored, as `nohup` asks.
    ///
    /// Must be called inside a tokio runtime with its I/O driver on.
    pub(crate) fn hear() -> io::Result<Self> {
        let ignored = ignored();
        let mut streams = Vec::with_capacity(HEARD.len());
        for sig in HEARD {
            // Who ignores SIGCHLD learns nothing of its children's ends, and asks for nothing thereby.
            if sig == Signal::SIGCHLD || !ignores(ignored, sig) {
                streams.push((sig, signal(SignalKind::from_raw(sig as i32))?));
            }
        }
        Ok(Self {
            streams,
            reaps: false,
            end: None,
        })
    }

    /// The same for who has no children but those that [`supervise`](super::supervise) starts: orphans
    /// that become ours are waited for also while no command runs.
    pub(crate) fn hear_and_reap() -> io::Result<Self> {
        let heard = Self::hear()?;
        Ok(Self {
            reaps: true,
            ..heard
        })
    }

    /// The next signal. Cancel safe: nothing is lost when the future is dropped.
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
            self.end.get_or_insert(sig);
        }
        sig
    }

    /// The first signal so far that asks for the end also of what runs a command again and again. SIGHUP is
    /// none: to many a command it says that its settings are to be read anew.
    pub(crate) fn asked_to_end(&self) -> Option<Signal> {
        self.end
    }

    /// The next signal that asks a process without a command to end.
    pub(crate) async fn next_that_ends(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGCHLD if self.reaps => children::bury_orphans(),
                Signal::SIGCHLD | Signal::SIGWINCH | Signal::SIGCONT => {}
                Signal::SIGTSTP => {
                    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
                }
                sig => return sig,
            }
        }
    }
}

/// Does the `work`, unless a signal asks for the end before it is done: then it is dropped, and `line` says what
/// came of it.
pub(crate) async fn unless_asked_to_end<T>(
    work: impl Future<Output = Result<T, Failure>>,
    line: &str,
) -> Result<T, Failure> {
    let mut signals = Signals::hear().map_err(Failure::internal)?;
    tokio::select! {
        done = work => done,
        sig = signals.next_that_ends() => Err(Failure::cut_short(sig, line)),
    }
}

/// Puts right what may be wrong with signals when we are started, for us and for all that we start:
/// blocked ones would never be heard (threads of other programs leave them so, by mistake), and where
/// SIGCHLD is ignored, the exit codes of children are lost. To be called first of all.
pub(crate) fn put_right() -> io::Result<()> {
    SigSet::all().thread_unblock()?;
    if ignores(ignored(), Signal::SIGCHLD) {
        // A handler stays for as long as the process lives, and is not inherited.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        let _inside = runtime.enter();
        let _stays = signal(SignalKind::child())?;
    }
    Ok(())
}

fn ignores(mask: u64, sig: Signal) -> bool {
    mask & (1 << (sig as i32 - 1)) != 0
}

/// The set of signals this process ignores, as a bit mask; empty where the system does not tell.
fn ignored() -> u64 {
    std::fs::read_to_string("/proc/self/status").map_or(0, |status| mask(&status))
}

fn mask(status: &str) -> u64 {
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
    fn the_mask_of_ignored_signals_is_read() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        let bit = |sig| ignores(mask(status), sig);
        assert!(bit(Signal::SIGHUP) && bit(Signal::SIGPIPE));
        assert!(!bit(Signal::SIGTERM));
        assert_eq!(mask("nothing of the kind"), 0);
    }
}
