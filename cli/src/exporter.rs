//! Writes the metrics of one `quorate run` to a file and to statsd.
//!
//! A separate thread does the I/O, because a slow disk or name server must not delay the renewal of the lock.

use std::fs;
use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use quorate::redact;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::exit::{self, Failure};
use crate::metrics::RunMetrics;
use crate::output;

/// Maximum time to resolve the host name of the statsd server. When `quorate run` ends, it waits up to twice this time
/// for the thread that writes the metrics.
const TIMEOUT: Duration = Duration::from_secs(1);

/// The options for the metrics of a `quorate run`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ExporterArgs {
    /// Write metrics to this file, in the format of Prometheus
    ///
    /// The textfile collector of the node exporter reads FILE if its name ends in .prom. quorate replaces FILE
    /// atomically at the start of the command and at the end.
    #[arg(
        long,
        value_name = "FILE",
        env = "QUORATE_METRICS_FILE",
        hide_short_help = true,
        help_heading = "Metrics"
    )]
    metrics_file: Option<PathBuf>,

    /// Send metrics to this statsd server, over UDP, when quorate ends
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "QUORATE_STATSD",
        hide_short_help = true,
        help_heading = "Metrics"
    )]
    statsd: Option<String>,
}

/// The metrics of one `quorate run`, and the thread that writes them.
pub(crate) struct Exporter {
    metrics: RunMetrics,
    started_at: Instant,
    held_since: Option<Instant>,
    thread: Option<ExportThread>,
}

/// The two channels between the exporter and the thread that writes the metrics.
struct ExportThread {
    metrics: Sender<RunMetrics>,
    /// The thread closes this channel when it ends.
    end_receiver: Receiver<()>,
}

impl Exporter {
    /// Starts the exporter of a `quorate run` that begins now.
    ///
    /// # Errors
    ///
    /// If the metrics file cannot be written, or the address of statsd is malformed.
    pub(crate) fn begin(args: &ExporterArgs, resource: &str) -> Result<Self, Failure> {
        let metrics = RunMetrics {
            resource: resource.to_owned(),
            started_at: unix_time(),
            ..RunMetrics::default()
        };
        let mut args = args.clone();
        if let Some(path) = &mut args.metrics_file {
            // If the path is a symbolic link, write to its target. Otherwise the link itself would be replaced.
            *path = fs::canonicalize(&path).unwrap_or(path.clone());
            check_writable(path)?;
        }
        if let Some(address) = &args.statsd {
            check_address(address)?;
        }
        let is_wanted = args.metrics_file.is_some() || args.statsd.is_some();
        Ok(Self {
            metrics,
            started_at: Instant::now(),
            held_since: None,
            thread: is_wanted.then(|| ExportThread::start(args)),
        })
    }

    /// Records that the lock is held. `fencing_token` is its fencing token.
    pub(crate) fn note_acquired(&mut self, fencing_token: Option<u64>) {
        self.held_since = Some(Instant::now());
        self.metrics.waited = self.started_at.elapsed();
        self.metrics.fencing_token = fencing_token;
    }

    /// Records that the command starts to run under the lock.
    pub(crate) fn note_running(&mut self) {
        self.metrics.is_running = true;
        self.send_metrics();
    }

    /// Records how this `quorate run` ended. Waits up to two seconds for the thread that writes the metrics.
    ///
    /// - `outcome`: `Ok` with the exit code of the run, or `Err` with the exit code of a failure
    /// - `conflict`: the exit code to record instead of `exit::HELD`
    pub(crate) fn end(mut self, outcome: Result<u8, u8>, conflict: u8) {
        let has_run = self.metrics.is_running;
        let (label, code) = match outcome {
            Ok(exit::OK) if has_run => ("ok", exit::OK),
            Ok(code) if has_run => ("failed", code),
            Ok(code) => ("not_due", code),
            Err(exit::HELD) => ("held_by_other", conflict),
            Err(exit::UNAVAILABLE) => ("no_quorum", exit::UNAVAILABLE),
            Err(exit::LOST) => ("lost", exit::LOST),
            Err(code) => ("error", code),
        };
        match self.held_since {
            Some(since) => self.metrics.held_for = Some(since.elapsed()),
            None => self.metrics.waited = self.started_at.elapsed(),
        }
        self.metrics.set_end(label, code, unix_time());
        self.send_metrics();
        if let Some(ExportThread {
            metrics,
            end_receiver,
        }) = self.thread
        {
            drop(metrics);
            if end_receiver.recv_timeout(2 * TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                output::print_notice(
                    "warning: the metrics of the run were not written or sent in time (--metrics-file, --statsd)",
                );
            }
        }
    }

    fn send_metrics(&self) {
        if let Some(thread) = &self.thread {
            let _ = thread.metrics.send(self.metrics.clone());
        }
    }
}

impl ExportThread {
    fn start(args: ExporterArgs) -> Self {
        let (metrics, received) = channel::<RunMetrics>();
        let (end_sender, end_receiver) = channel();
        let address = args.statsd.map(resolve);
        let export = move || {
            for mut metrics in received {
                if let Some(path) = &args.metrics_file
                    && let Err(error) = replace_file(path, &mut metrics)
                {
                    warn_about(&redact::value(&path.to_string_lossy()), &error);
                }
                if let (Some(address), Some(_)) = (&address, &metrics.end)
                    && let Err(error) = send(address, &metrics.statsd())
                {
                    warn_about("statsd", &error);
                }
            }
            drop(end_sender);
        };
        if let Err(error) = std::thread::Builder::new().spawn(export) {
            warn_about("the thread that writes them", &error);
        }
        Self {
            metrics,
            end_receiver,
        }
    }
}

fn warn_about(target: &str, error: &io::Error) {
    if !output::is_quiet() {
        output::print_message_if_writable(format!(
            "warning: cannot write metrics to {target}: {error}"
        ));
    }
}

fn unix_time() -> f64 {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since_epoch.map_or(0.0, |since_epoch| since_epoch.as_millis() as f64 / 1e3)
}

/// Checks, before the lock is acquired, that the metrics file can be written. A full disk is no error: space may be
/// free when the command has ended and the metrics are written.
fn check_writable(path: &Path) -> Result<(), Failure> {
    let temporary = temporary_path(path);
    let result = check_kind(path).and_then(|()| fs::write(&temporary, ""));
    let _ = fs::remove_file(&temporary);
    match result {
        Err(error) if error.kind() != io::ErrorKind::StorageFull => Err(Failure::usage(format!(
            "cannot write --metrics-file {}: {error}",
            redact::value(&path.to_string_lossy())
        ))),
        _ => Ok(()),
    }
}

/// Checks that the path is a regular file or does not exist. The metrics file replaces the file at this path, which
/// would delete a device or a pipe.
fn check_kind(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(metadata) if !metadata.is_file() => {
            Err(io::Error::other("the path is not a regular file"))
        }
        _ => Ok(()),
    }
}

/// Writes the metrics to a temporary file, and renames it to `path`. The name of the temporary file does not end in
/// `.prom`, so Prometheus ignores the file.
///
/// `metrics` contains the time of the last successful run. If the old file at `path` contains a later time, the new
/// file keeps the later time. Two runs can end at the same time, so the old file is read and replaced under a lock.
fn replace_file(path: &Path, metrics: &mut RunMetrics) -> io::Result<()> {
    check_kind(path)?;
    let _locked = lock_directory(path);
    metrics.merge_last_success(&fs::read_to_string(path).unwrap_or_default());
    let text = metrics.prometheus();
    let temporary = temporary_path(path);
    let mut file = fs::File::create(&temporary)?;
    let result = file
        .write_all(text.as_bytes())
        .and_then(|()| fs::rename(&temporary, path));
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}

/// Locks the directory of `path` until the returned file is dropped, so that no other `quorate` replaces the file.
/// `None` if the directory cannot be locked within [`TIMEOUT`]: the metrics are then written without the lock, because
/// another program can hold such a lock for ever.
fn lock_directory(path: &Path) -> Option<fs::File> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let directory = fs::File::open(directory.unwrap_or(Path::new("."))).ok()?;
    let started_at = Instant::now();
    while let Err(error) = flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        let is_held = error == Errno::WOULDBLOCK || error == Errno::INTR;
        if !is_held || started_at.elapsed() > TIMEOUT {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(directory)
}

fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{}", std::process::id()))
}

fn check_address(address: &str) -> Result<(), Failure> {
    let parts = address.rsplit_once(':');
    let is_address =
        parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if is_address {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "--statsd '{}' is not an address: give HOST:PORT, for example 127.0.0.1:8125",
        redact::value(address)
    )))
}

/// Resolves the address of statsd in a separate thread, and returns the channel on which the result arrives.
fn resolve(address: String) -> Receiver<io::Result<SocketAddr>> {
    let (sender, receiver) = channel();
    let send_address = move || {
        let addresses = address.to_socket_addrs();
        let first_address = addresses
            .and_then(|mut addresses| addresses.next().ok_or(io::ErrorKind::NotFound.into()));
        let _ = sender.send(first_address);
    };
    // If there is no thread for it, the receiver reports that the address is not known.
    drop(std::thread::Builder::new().spawn(send_address));
    receiver
}

fn send(address: &Receiver<io::Result<SocketAddr>>, text: &str) -> io::Result<()> {
    let timed_out = |_| {
        io::Error::new(
            io::ErrorKind::TimedOut,
            "the host name of the statsd server was not resolved in time",
        )
    };
    let address = address.recv_timeout(TIMEOUT).map_err(timed_out)??;
    let local_address: SocketAddr = match address {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    UdpSocket::bind(local_address)?.send_to(text.as_bytes(), address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that begins reads and replaces the metrics file while another run, which has just succeeded, replaces it.
    #[test]
    fn success_of_a_run_survives_a_simultaneous_start_of_another_run() {
        let dir = tempfile::tempdir().expect("a directory");
        for round in 0..300 {
            let path = dir.path().join(format!("{round}.prom"));
            let write = |is_success: bool| {
                let mut metrics = RunMetrics::default();
                if is_success {
                    metrics.set_end("ok", 0, 1004.0);
                }
                replace_file(&path, &mut metrics).expect("written");
            };
            std::thread::scope(|scope| {
                scope.spawn(|| write(true));
                scope.spawn(|| write(false));
            });
            let text = fs::read_to_string(&path).expect("written");
            assert!(text.contains("last_success"), "round {round}: {text}");
        }
    }
}
