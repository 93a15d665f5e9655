//! Helper processes that `quorate` starts from its own binary:
//!
//! - The **trampoline** sets its parent-death signal, and waits for one byte in a pipe from `quorate`. Then the trampoline
//!   becomes the command by `exec`. If the pipe is closed, the trampoline ends. A signal could not take the place of the
//!   byte: another process may send SIGCONT at any time, for example to all processes of a user.
//! - The **guard** ends the command's process group if `quorate` is dead or suspended. `quorate` regularly sends new
//!   deadlines to the guard through a pipe. The guard signals the group when a deadline passes, and kills the group
//!   when the pipe closes.
//! - The third helper gives `quorate` a chosen exit signal: `quorate` becomes the helper by `exec`, and the helper
//!   kills itself with the signal (see [`die_of`]).

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, killpg, raise};
use nix::unistd::{Pid, close, getppid, read};

use super::binary;
use super::program::start_failure;
use crate::{exit, output};

/// First argument of the trampoline. The pid of its parent, the file descriptor of the pipe from its parent, and the
/// command to run follow.
pub(super) const TRAMPOLINE: &str = "__exec";
/// The only argument of the guard.
pub(super) const GUARD: &str = "__guard";

/// The directory with the open files of this process.
const OPEN_FILES: &str = if cfg!(target_os = "linux") {
    "/proc/self/fd"
} else {
    "/dev/fd"
};

/// First argument of the helper that replaces `quorate` and ends by a signal. The number of the signal follows.
const DIE: &str = "__die";

/// Ends this process with the signal `sig`, so that the parent process sees the signal. For example, a shell loop ends
/// if SIGINT ended `quorate`, but continues if `quorate` exited with a code.
///
/// Returns only if `exec` fails. The result is the exit code that a shell shows for the signal.
pub(crate) fn die_of(sig: Signal) -> u8 {
    let number = (sig as i32).to_string();
    // Replace this process with a helper by `exec`, because `exec` resets all signal handlers. Clear the environment,
    // so that a core dump of the helper contains no passwords.
    let _failed = binary::own_command()
        .arg0("quorate")
        .args([DIE, &number])
        .env_clear()
        .exec();
    exit::code_of_signal(sig as i32)
}

fn run_die(mut args: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    let number = args.next().and_then(|number| number.to_str()?.parse().ok());
    let Some(sig) = number.and_then(|number: i32| Signal::try_from(number).ok()) else {
        return ExitCode::from(exit::USAGE);
    };
    // Prevent a core dump of this helper: SIGQUIT, for example, would write one.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_dumpable(false);
    let _ = raise(sig);
    ExitCode::from(exit::code_of_signal(sig as i32))
}

/// If the arguments ask for a helper, runs it and returns its exit code. Returns `None` for an ordinary start of
/// quorate.
pub(crate) fn main() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    match args.next()?.to_str()? {
        TRAMPOLINE => Some(trampoline(args)),
        GUARD => Some(run_guard()),
        DIE => Some(run_die(args)),
        _ => None,
    }
}

/// The current time on the clock that the deadlines of the guard use. On Linux this clock continues while the machine
/// sleeps.
pub(super) fn boot_time() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = nix::time::ClockId::CLOCK_BOOTTIME;
    #[cfg(not(target_os = "linux"))]
    let clock = nix::time::ClockId::CLOCK_MONOTONIC;
    nix::time::clock_gettime(clock).map_or(Duration::ZERO, Duration::from)
}

fn trampoline(mut args: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    let parent = args
        .next()
        .and_then(|pid| pid.to_str()?.parse().ok())
        .map(Pid::from_raw);
    let pipe = args.next().and_then(|pipe| pipe.to_str()?.parse().ok());
    let (Some(pipe), Some(program)) = (pipe, args.next()) else {
        return ExitCode::from(exit::USAGE);
    };
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_pdeathsig(Signal::SIGKILL) {
        output::print_error(&format!(
            "cannot set the parent-death signal of the command: {error}"
        ));
        return ExitCode::from(exit::SOFTWARE);
    }
    // If the parent is already dead, the kernel cannot report its death. So end now.
    if parent != Some(getppid()) {
        return ExitCode::from(exit::SOFTWARE);
    }
    match wait_for_start(pipe) {
        Ok(()) => {}
        // The parent has ended, or does not start the command.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return ExitCode::from(exit::SOFTWARE);
        }
        Err(error) => {
            output::print_error(&format!(
                "cannot wait for the start of the command: {error}"
            ));
            return ExitCode::from(exit::SOFTWARE);
        }
    }
    let error = Command::new(&program).args(args).exec();
    let failure = start_failure(&program, &error);
    output::print_error(&failure.message);
    ExitCode::from(failure.code)
}

/// Waits until the parent writes one byte into this pipe. Fails with [`io::ErrorKind::UnexpectedEof`] if the parent closes
/// the pipe.
fn wait_for_start(pipe: RawFd) -> io::Result<()> {
    // Open the pipe again, because only `unsafe` code can read from a bare number. The command does not inherit the new
    // file descriptor.
    let opened = File::open(format!("{OPEN_FILES}/{pipe}"));
    close(pipe)?;
    opened?.read_exact(&mut [0])
}

/// The orders that the guard has received from `quorate`: the group to watch, and the deadlines.
#[derive(Debug, Default, PartialEq, Eq)]
struct Orders {
    group: Option<i32>,
    terminate_at: Option<Duration>,
    kill_at: Option<Duration>,
    /// Whether [`due_action`](Self::due_action) has postponed `terminate_at` by [`CONFIRM_AFTER`].
    is_postponed: bool,
}

/// The action that the guard must take now.
#[derive(Debug, PartialEq, Eq)]
enum DueAction {
    Nothing,
    Terminate,
    Kill,
}

/// How long the supervisor and the guard wait between the first check that finds that it is time for `SIGTERM`, and the
/// second check. If they got no CPU time before, the supervisor can read the replies to a renewal in the meantime.
pub(super) const CONFIRM_AFTER: Duration = Duration::from_millis(20);

impl Orders {
    /// Returns what the guard must do at the time `now`. `SIGTERM` is due only once, and at the second check that finds
    /// it due. `SIGKILL` is never postponed, because the command must not run after the end of the validity.
    fn due_action(&mut self, now: Duration) -> DueAction {
        if self.kill_at.is_some_and(|at| at <= now) {
            return DueAction::Kill;
        }
        if self.terminate_at.is_none_or(|at| at > now) {
            return DueAction::Nothing;
        }
        if !self.is_postponed {
            self.is_postponed = true;
            self.terminate_at = Some(now + CONFIRM_AFTER);
            return DueAction::Nothing;
        }
        self.terminate_at = None;
        DueAction::Terminate
    }

    /// Applies one order, which is one line from the pipe. Unknown orders are ignored.
    fn apply_order(&mut self, order: &str) {
        let mut words = order.split_whitespace();
        match words.next() {
            Some("group") => {
                // Reject the ids 0 and 1: `killpg(0)` signals the guard's own group, and `killpg(1)` all processes.
                self.group = words.next().and_then(|w| w.parse().ok()).filter(|&g| g > 1);
            }
            Some("until") => {
                let mut time = || words.next()?.parse().ok().map(Duration::from_nanos);
                (self.terminate_at, self.kill_at) = (time(), time());
                self.is_postponed = false;
            }
            _ => {}
        }
    }
}

/// The order to the guard to watch the process group `group`.
pub(super) fn group_order(group: Pid) -> String {
    format!("group {group}\n")
}

/// The order to the guard that sets the deadlines for SIGTERM and SIGKILL, on the clock of [`boot_time`].
pub(super) fn until_order(terminate_at: Duration, kill_at: Duration) -> String {
    format!("until {} {}\n", terminate_at.as_nanos(), kill_at.as_nanos())
}

fn run_guard() -> ExitCode {
    // Block all signals, so that only SIGKILL can end the guard.
    let _ = SigSet::all().thread_block();
    // Give the guard a different process name, so that `pkill -9 quorate` does not kill it.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_name(c"qr-guard");

    let mut pipe = OrderPipe::default();
    let mut orders = Orders::default();
    loop {
        // First read every order that has arrived: if this process got no CPU time, an order with a later deadline may be
        // waiting in the pipe.
        while pipe.wait(Some(Duration::ZERO)) == Some(true) {
            pipe.read(&mut orders);
        }
        let now = boot_time();
        let group = orders.group.map(Pid::from_raw);
        match orders.due_action(now) {
            _ if pipe.is_closed => return kill_and_exit(group),
            DueAction::Kill => {
                report_action();
                return kill_and_exit(group);
            }
            DueAction::Terminate => {
                if let Some(group) = group {
                    report_action();
                    let _ = killpg(group, Signal::SIGTERM);
                    let _ = killpg(group, Signal::SIGCONT);
                }
            }
            DueAction::Nothing => {}
        }
        if pipe.wait(sleep_time(&orders, now)).is_none() {
            return kill_and_exit(group);
        }
    }
}

/// The pipe with the orders of the supervisor: the stdin of the guard.
#[derive(Default)]
struct OrderPipe {
    /// The part of an order that has arrived so far.
    text: Vec<u8>,
    /// Whether the supervisor has closed the pipe, or the pipe cannot be read.
    is_closed: bool,
}

impl OrderPipe {
    /// Waits until the pipe can be read, but at most for `nap` (`None`: without limit). Returns false after a timeout,
    /// and `None` if the pipe is closed or cannot be read.
    fn wait(&self, nap: Option<Duration>) -> Option<bool> {
        if self.is_closed {
            return None;
        }
        poll_stdin(&io::stdin(), nap).ok()
    }

    /// Reads from the pipe, and applies every complete order.
    fn read(&mut self, orders: &mut Orders) {
        let mut chunk = [0; 512];
        match read(io::stdin(), &mut chunk) {
            Ok(0) => self.is_closed = true,
            Ok(n) => self.text.extend_from_slice(&chunk[..n]),
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(_) => self.is_closed = true,
        }
        while let Some(end) = self.text.iter().position(|&byte| byte == b'\n') {
            let order: Vec<u8> = self.text.drain(..=end).collect();
            orders.apply_order(&String::from_utf8_lossy(&order));
        }
    }
}

/// How long the guard may sleep: until the next deadline, but at most 250 ms; `None` if there is no deadline.
///
/// The timeout of `poll` does not count the time for which the machine sleeps. With at most 250 ms, the guard notices a
/// passed deadline soon after the machine wakes up.
fn sleep_time(orders: &Orders, now: Duration) -> Option<Duration> {
    let next_deadline = orders.terminate_at.or(orders.kill_at)?;
    let nap = next_deadline
        .saturating_sub(now)
        .min(Duration::from_millis(250));
    // Never 0, because a pause of 0 would poll in a busy loop.
    Some(nap.max(Duration::from_millis(1)))
}

/// Waits until stdin can be read, but at most for `nap` (`None`: without limit). Returns true if stdin can be read, and
/// false after a timeout.
fn poll_stdin(stdin: &io::Stdin, nap: Option<Duration>) -> Result<bool, ()> {
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let timeout = nap.map_or(PollTimeout::NONE, |nap| {
        if nap.is_zero() {
            return PollTimeout::ZERO;
        }
        // `poll` counts whole milliseconds. Add 1 ms, because a timeout of 0 would poll in a busy loop.
        PollTimeout::try_from(nap + Duration::from_millis(1)).unwrap_or(PollTimeout::ZERO)
    });
    match poll(&mut fds, timeout) {
        Ok(n) => Ok(n > 0),
        Err(Errno::EINTR | Errno::EAGAIN) => Ok(false),
        Err(_) => Err(()),
    }
}

/// Reports to `quorate` that the guard is about to signal the group.
fn report_action() {
    use std::io::Write;
    // If the write fails, `quorate` has ended. The guard must signal the group even then.
    let mut out = io::stdout();
    let _ = out.write_all(b"!").and_then(|()| out.flush());
}

fn kill_and_exit(group: Option<Pid>) -> ExitCode {
    if let Some(group) = group {
        let _ = killpg(group, Signal::SIGKILL);
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guard_process_parses_the_orders_of_the_supervisor() {
        let mut orders = Orders::default();
        orders.apply_order(&group_order(Pid::from_raw(4711)));
        orders.apply_order(&until_order(
            Duration::from_millis(5),
            Duration::from_millis(9),
        ));
        assert_eq!(
            orders,
            Orders {
                group: Some(4711),
                terminate_at: Some(Duration::from_millis(5)),
                kill_at: Some(Duration::from_millis(9)),
                is_postponed: false,
            }
        );
    }

    #[test]
    fn guard_process_terminates_the_command_at_the_second_check_and_kills_it_at_the_first() {
        let ms = Duration::from_millis;
        let mut orders = Orders::default();
        orders.apply_order(&until_order(ms(50), ms(900)));
        assert_eq!(orders.due_action(ms(49)), DueAction::Nothing);
        // The guard got no CPU time until 200 ms. The supervisor can still send a later deadline.
        assert_eq!(orders.due_action(ms(200)), DueAction::Nothing);
        assert_eq!(sleep_time(&orders, ms(200)), Some(CONFIRM_AFTER));
        orders.apply_order(&until_order(ms(300), ms(900)));
        assert_eq!(orders.due_action(ms(220)), DueAction::Nothing);
        assert_eq!(orders.due_action(ms(300)), DueAction::Nothing);
        assert_eq!(orders.due_action(ms(319)), DueAction::Nothing);
        assert_eq!(orders.due_action(ms(320)), DueAction::Terminate);
        assert_eq!(orders.due_action(ms(899)), DueAction::Nothing);
        assert_eq!(orders.due_action(ms(900)), DueAction::Kill);
    }

    #[test]
    fn guard_process_ignores_orders_to_watch_process_group_0_or_1() {
        for group in ["0", "1", "-1", "x", ""] {
            let mut orders = Orders::default();
            orders.apply_order(&format!("group {group}\n"));
            assert_eq!(orders.group, None, "{group:?}");
        }
    }
}
