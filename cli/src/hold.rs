//! `quorate hold`: holds a lock until a signal or the end of standard input, for work that is not a single command.

use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::Signal;
use quorate::LockGuard;

use crate::config::{self, MasterOptions};
use crate::deadline::{Action, Deadline};
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::input;
use crate::kind::KindArgs;
use crate::lock::{Lock, LockArgs, renewal_errors};
use crate::output;
use crate::process::{self, Signals};
use crate::relying::RelyingProcess;
use crate::run::{DEFAULT_GRACE, with_final_release};

/// The text below the options of `quorate hold --help`.
pub(crate) const AFTER_HELP: &str = "\
Use quorate hold for work that is not a single command: a console session, a step of a pipeline, or a script that \
continues while the lock is held. For a single command, use quorate run.

When quorate has the lock, it prints the fencing token on one line of stdout (\"-\" with --fencing off). The token is \
larger than the token of every earlier holder. Pass it to the resource that you write to.

quorate releases the lock when it receives a signal (for example from Ctrl-C), or when its standard input ends. \
If standard input is /dev/null, as in background jobs of a shell and in services of systemd, only a signal releases \
the lock.

If the lock is lost, quorate reports the loss and exits with 74, before the lock expires. With --terminate PID, \
quorate first sends SIGTERM to the process PID, for example to the script that relies on the lock. It sends SIGTERM \
5 seconds before the lock expires. If the ttl is 10 seconds or less, it sends SIGTERM half a ttl before the lock \
expires.

Examples:
    quorate hold deploy:web
        Until Ctrl-C or Ctrl-D.
    coproc quorate hold db:migrate && read -r number <&\"${COPROC[0]}\"
        In bash: holds the lock until the script ends, however it ends.
    coproc quorate hold --terminate $$ db:migrate
        In bash: also sends SIGTERM to the script when the lock is lost.
    eval \"exec ${COPROC[1]}>&-\"
        Releases the lock before the script ends.";

/// The exit codes of `quorate hold`, with their meanings.
pub(crate) const CODES: [Meaning; 7] = [
    ("0", "standard input ended, and the lock was released"),
    ("64", "wrong usage; nothing was locked"),
    ("69", ""),
    ("70", ""),
    ("74", "the lock was lost while it was held"),
    ("75", ""),
    ("128+n", "signal number n ended quorate hold"),
];

/// Longest time between two checks that the lock is still valid.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// Arguments of `hold`.
#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    lock: LockArgs,

    #[command(flatten)]
    kind: KindArgs,

    /// When the lock is lost, send SIGTERM to the process with this pid ($$ is the pid of the calling script)
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(2..))]
    terminate: Option<i32>,

    #[command(flatten)]
    masters: MasterOptions,
}

impl HoldArgs {
    /// The lock options, which `hold` shares with `run`.
    pub(crate) fn lock(&mut self) -> &mut LockArgs {
        &mut self.lock
    }
}

/// Acquires the lock, and holds it until a signal or the end of standard input.
pub(crate) fn run(args: HoldArgs) -> CommandResult {
    let conflict_code = args.lock.conflict_exit_code();
    let end =
        acquire_and_hold(args).map_err(|failure| failure.with_conflict_code(conflict_code))?;
    Ok(end.map_or(exit::OK, process::die_of))
}

fn acquire_and_hold(args: HoldArgs) -> Result<Option<Signal>, Failure> {
    // Find the process of `--terminate PID` before the wait: a process that starts later may get the same PID.
    let relying_process = args.terminate.map(RelyingProcess::find).transpose()?;
    let (lock, _) = args.lock.complete(args.kind, args.masters)?;
    // The process of `--terminate` gets `SIGTERM` this time before the lock expires.
    let grace = relying_process
        .as_ref()
        .map_or(Duration::ZERO, |_| DEFAULT_GRACE);
    let work = async {
        let mut signals = Signals::receive_and_reap().map_err(Failure::internal)?;
        let guard = lock.acquire_unless_signalled(&mut signals).await?;
        let end = hold(&guard, &lock, grace, &mut signals).await;
        if let (Err(_), Some(relying_process)) = (&end, &relying_process) {
            relying_process.terminate();
        }
        guard.release().await;
        end
    };
    config::block_on(with_final_release(
        &lock.redlock,
        lock.release_timeout,
        work,
    ))
}

/// Prints the fencing token, and holds the lock until a signal or the end of standard input. Returns the signal; `None`
/// at the end of standard input.
async fn hold(
    guard: &LockGuard,
    lock: &Lock,
    grace: Duration,
    signals: &mut Signals,
) -> Result<Option<Signal>, Failure> {
    let held_since = Instant::now();
    let token_text = guard.fencing_token();
    let token_text = token_text.map_or_else(|| "-".to_owned(), |token| token.to_string());
    // Print on a separate thread, because a write to a full pipe blocks, and the lock must be renewed during the write.
    let mut printing = tokio::task::spawn_blocking(move || output::print_line(&token_text));
    let mut input = std::pin::pin!(input::wait_for_end());
    let mut is_printed = false;
    loop {
        let Some(pause) = time_until_check(guard, lock, grace) else {
            return Err(lost_failure(
                guard,
                lock,
                held_since,
                "no majority of the masters renewed the lock in time",
            ));
        };
        tokio::select! {
            cause = guard.lost() => return Err(lost_failure(guard, lock, held_since, &cause.to_string())),
            sig = signals.next_ending_signal() => return end_if_valid(guard, lock, held_since, Some(sig)),
            () = &mut input => return end_if_valid(guard, lock, held_since, None),
            written = &mut printing, if !is_printed => {
                is_printed = true;
                // If stdout is a closed pipe, `print_line` returns `Ok(false)`. Hold the lock anyway.
                let _is_read = written.map_err(Failure::internal)??;
            }
            () = tokio::time::sleep(pause.min(MAX_PAUSE)) => {}
        }
    }
}

/// If the lock is still valid, returns `end`; otherwise, the failure that reports the lost lock.
///
/// `end` is the signal that ended `quorate hold`; `None` if the end of standard input ended it.
fn end_if_valid(
    guard: &LockGuard,
    lock: &Lock,
    held_since: Instant,
    end: Option<Signal>,
) -> Result<Option<Signal>, Failure> {
    if guard.is_valid() {
        return Ok(end);
    }
    let reason = "the lock expired while quorate was suspended";
    Err(lost_failure(guard, lock, held_since, reason))
}

/// Returns the longest time until `hold` must check the lock again; `None` if `hold` must report the lock as lost now.
///
/// `grace` is how long before the expiry of the lock the process of `--terminate` gets SIGTERM. It is zero without
/// `--terminate`.
fn time_until_check(guard: &LockGuard, lock: &Lock, grace: Duration) -> Option<Duration> {
    match Deadline::new(lock.max_validity(), grace).decide(guard.remaining(), None) {
        Action::KeepRunning(nap) => Some(nap),
        Action::Terminate(nap) if grace.is_zero() => Some(nap),
        Action::Terminate(_) | Action::Kill => None,
    }
}

fn lost_failure(guard: &LockGuard, lock: &Lock, held_since: Instant, cause: &str) -> Failure {
    let name = output::printable(lock.resource.as_bytes());
    let errors = renewal_errors(guard);
    let deadline = Deadline::new(lock.max_validity(), Duration::ZERO);
    let reason = match lock.reached_max_hold(held_since.elapsed(), deadline) {
        Some(max_hold) => format!("reached --max-hold {}", output::human(max_hold)),
        None => format!("was lost: {cause}{errors}"),
    };
    Failure::new(exit::LOST, format!("the lock on '{name}' {reason}"))
}
