//! The signals that `quorate` hears and passes on.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

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
}

impl Signals {
    /// Starts to hear. Signals that were ignored when we were started stay ignored, as `nohup` asks.
    ///
    /// Must be called inside a tokio runtime with its I/O driver on.
    pub(crate) fn hear() -> io::Result<Self> {
        let ignored = ignored();
        let mut streams = Vec::with_capacity(HEARD.len());
        for sig in HEARD {
            if ignored & (1 << (sig as i32 - 1)) == 0 {
                streams.push((sig, signal(SignalKind::from_raw(sig as i32))?));
            }
        }
        Ok(Self { streams })
    }

    /// The next signal. Cancel safe: nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (sig, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*sig);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks a process without a command to end.
    pub(crate) async fn next_that_ends(&mut self) -> Signal {
        loop {
            match self.next().await {
                Signal::SIGCHLD | Signal::SIGWINCH | Signal::SIGCONT => {}
                Signal::SIGTSTP => {
                    let _ = nix::sys::signal::raise(Signal::SIGSTOP);
                }
                sig => return sig,
            }
        }
    }
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
        let bit = |sig: Signal| mask(status) & (1 << (sig as i32 - 1)) != 0;
        assert!(bit(Signal::SIGHUP) && bit(Signal::SIGPIPE));
        assert!(!bit(Signal::SIGTERM));
        assert_eq!(mask("nothing of the kind"), 0);
    }
}
