//! `quorate run`: acquires the lock, runs the command while renewing the lock, and releases the lock.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use futures::FutureExt as _;
use nix::sys::signal::Signal;
use quorate::{LockGuard, Redlock};

use crate::config::{self, MasterOptions};
use crate::deadline::Deadline;
use crate::exit::{self, CommandResult, Failure, Meaning};
use crate::exporter::{Exporter, ExporterArgs};
use crate::job_period::{DoneRecord, JobPeriod};
use crate::job_record::{self, Decision, DueRun};
use crate::kind::KindArgs;
use crate::lock::{Lock, LockArgs, renewal_errors};
use crate::output::{self, human};
use crate::process::{
    self, CapturedOutput, CommandOutcome, Fate, Job, Lease, PreparedCommand, Signals,
};
use crate::settings;

/// The text below the options of `quorate run --help`.
pub(crate) const AFTER_HELP: &str = "\
quorate renews the lock while the command runs. If the lock cannot be renewed, quorate stops the command before the
lock expires. The command gets QUORATE_FENCING_TOKEN, which is larger than the token of every earlier holder. The
resource that the command writes to should reject smaller tokens.

With --try, the default timeouts are longer: 5s to connect to a master, and 1s for each reply (a tenth of the ttl if
that is shorter). If no majority of the masters answers, quorate asks again for up to 10s, and then exits with 69.

Topics:
    quorate help command    the environment of the command, and how it is stopped
    quorate help kinds      readers, several resources, semaphores, owners, and nested quorate commands

Examples:
    quorate run nightly-report -- ./report.sh --full
    quorate run --wait 5m --max-hold 1h deploy:web -- make deploy
    quorate run --try --keep-for 30s cron:rotate -- rotate-logs
    quorate run account:1 --also account:2 -- transfer
    quorate run --shared catalogue -- ./export.sh
    quorate run --permits 5 api -- ./call.sh
    quorate run db:migrate --shell './migrate | tee log'
    quorate run --quiet --try --conflict-exit-code 0 cron:mail ./mail.sh";

/// The exit codes of `quorate run`, with their meanings.
pub(crate) const CODES: [Meaning; 9] = [
    ("n", "the command's own exit code"),
    ("64", "wrong usage; nothing was locked"),
    (
        "69",
        "no quorum: fewer than a majority of the masters answered; the command did not run",
    ),
    ("70", ""),
    (
        "74",
        "the lock was lost; quorate stopped the command, or reports that it could not stop the command",
    ),
    (
        "75",
        "another client held the lock for the whole wait; the command did not run (option -E sets another exit code)",
    ),
    ("126", ""),
    ("127", ""),
    (
        "128+n",
        "signal number n ended the command, or ended the wait for the lock",
    ),
];

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    kind: KindArgs,

    #[command(flatten)]
    pub(crate) job: JobArgs,
}

/// The heading of the options about the command to run in help texts.
pub(crate) const HEADING: &str = "Command";

/// The arguments that `run` and `once` have in common: the lock, the command to run under it, and the masters.
#[derive(Debug, Args)]
pub(crate) struct JobArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// The command to run, with its arguments
    ///
    /// If an argument of COMMAND looks like an option of quorate, put `--` before COMMAND.
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "shell",
        conflicts_with = "shell",
        value_name = "COMMAND",
        value_hint = ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,

    /// Run this line with `sh -c` instead of COMMAND, for example 'a | b'
    ///
    /// `once` counts a missing program in LINE as a failed run.
    #[arg(long, value_name = "LINE", help_heading = HEADING)]
    shell: Option<OsString>,

    /// Keep the lock for at least this long, even if the command ends earlier
    ///
    /// For cron jobs: a machine whose clock is late by less than TIME finds the lock held.
    #[arg(long, value_name = "TIME", env = "QUORATE_KEEP_FOR", help_heading = HEADING, value_parser = config::duration)]
    keep_for: Option<Duration>,

    /// Time between SIGTERM and SIGKILL when the lock ends [default: 5s; at most half of the ttl]
    #[arg(long, value_name = "TIME", env = "QUORATE_GRACE", help_heading = HEADING, hide_short_help = true, value_parser = config::duration)]
    grace: Option<Duration>,

    /// Print the output of the command only if it fails or is stopped
    ///
    /// Useful for cron, which mails all output. Temporary files store the output.
    #[arg(long, env = "QUORATE_OUTPUT_ON_FAILURE", help_heading = HEADING, hide_short_help = true, value_parser = clap::builder::BoolishValueParser::new())]
    output_on_failure: bool,

    /// Remove the masters, whose URLs may contain passwords, from the environment of the command
    #[arg(long, env = "QUORATE_HIDE_MASTERS", help_heading = HEADING, hide_short_help = true, value_parser = clap::builder::BoolishValueParser::new())]
    hide_masters: bool,

    #[command(flatten)]
    export: ExporterArgs,

    #[command(flatten)]
    masters: MasterOptions,
}

impl JobArgs {
    /// The words of the command to run, as the user typed them.
    pub(crate) fn command(&self) -> &[OsString] {
        &self.command
    }

    /// Returns the name of the resource and the options for masters.
    pub(crate) fn into_name(self) -> (OsString, MasterOptions) {
        (self.lock.into_name(), self.masters)
    }
}

/// The command to run, the lock, and their settings, from the command line and the configuration file.
struct JobPlan {
    lock: Lock,
    command: Vec<OsString>,
    keep_for: Duration,
    deadline: Deadline,
    hide_masters: bool,
    output_on_failure: bool,
    /// The period of `quorate once`; `None` for `quorate run`.
    period: Option<JobPeriod>,
    exporter: RefCell<Exporter>,
}

impl JobPlan {
    /// The files for the output of the command; `None` without `--output-on-failure`.
    fn captured_output(&self) -> Result<Option<CapturedOutput>, Failure> {
        let captured = self.output_on_failure.then(CapturedOutput::new);
        captured.transpose().map_err(|why| {
            Failure::internal(format!(
                "cannot create a file for the output of the command (--output-on-failure): {why}"
            ))
        })
    }

    /// Adds to a failure before the start of the command that the period is still due (`quorate once`).
    fn unrecorded(&self, failure: Failure) -> Failure {
        match &self.period {
            Some(_) => failure.with_suffix(
                "; nothing is recorded, so the next call in this period runs the command",
            ),
            None => failure,
        }
    }

    /// Adds to a failure after the start of the command when the command runs again (`quorate once`).
    fn after_start(&self, failure: Failure) -> Failure {
        match &self.period {
            Some(period) => {
                let next_run_text = period.next_run_text(self.lock.resource.as_bytes());
                failure.with_suffix(&format!("; {next_run_text}"))
            }
            None => failure,
        }
    }

    /// Returns the message that says why the lock was lost, and what happened to the command.
    ///
    /// The message gives `max_hold` as the reason if `max_hold` ended the lock. Otherwise it gives `cause`.
    fn loss_text(&self, held_for: Duration, cause: &str, fate: &Fate) -> String {
        let advice = match fate {
            Fate::StillRunning(_) => {
                " without the lock (to stop processes of another user, start quorate as root: \
                 sudo quorate run ..)"
            }
            Fate::EndedOnSigterm | Fate::Killed => "",
        };
        match self.lock.reached_max_hold(held_for, self.deadline) {
            Some(max_hold) => format!("reached --max-hold {}; {fate}{advice}", human(max_hold)),
            None => format!("was lost: {cause}; {fate}{advice}"),
        }
    }
}

pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// Runs a command under a lock.
pub(crate) fn run(args: RunArgs) -> CommandResult {
    run_job(args.job, args.kind, None)
}

/// Runs a command under a lock. If `period` is given (`quorate once`), runs the command only if it has not run in this
/// period.
pub(crate) fn run_job(args: JobArgs, kind: KindArgs, period: Option<JobPeriod>) -> CommandResult {
    let conflict_code = args.lock.conflict_exit_code();
    let end = plan_and_run(args, kind, period)
        .map_err(|failure| failure.with_conflict_code(conflict_code))?;
    Ok(match end {
        ExitWith::Code(code) => code,
        ExitWith::Signal(sig) => process::die_of(sig),
    })
}

fn plan_and_run(
    mut args: JobArgs,
    kind: KindArgs,
    period: Option<JobPeriod>,
) -> Result<ExitWith, Failure> {
    let conflict_code = args.lock.conflict_exit_code();
    let (lock, mut file) = args.lock.complete(kind, args.masters)?;
    config::fill!(args from file: keep_for, grace);
    let grace = args.grace.unwrap_or(DEFAULT_GRACE);
    // Shorten the grace period if it does not fit into the smaller of the ttl and `max_hold`.
    let max_validity = lock.max_validity();
    let plan = JobPlan {
        command: command_line(args.shell, args.command),
        keep_for: args.keep_for.unwrap_or_default(),
        deadline: Deadline::new(max_validity, grace),
        hide_masters: args.hide_masters,
        output_on_failure: args.output_on_failure,
        period,
        exporter: RefCell::new(Exporter::begin(
            &args.export,
            &output::printable(lock.resource.as_bytes()),
        )?),
        lock,
    };
    let shortened_grace = plan.deadline.grace();
    if shortened_grace < grace && args.grace.is_some() {
        output::print_notice(format!(
            "--grace {} is too long for {} {}: using {}",
            human(grace),
            if max_validity < plan.lock.ttl {
                "--max-hold"
            } else {
                "--ttl"
            },
            human(max_validity),
            human(shortened_grace)
        ));
    }
    let work = run_under_lock(&plan);
    // Start the command on the main thread: the kernel kills the command when its starting thread ends.
    let end = config::block_on(with_final_release(
        &plan.lock.redlock,
        plan.lock.release_timeout,
        work,
    ));
    let exit_result = match &end {
        Ok(ExitWith::Code(code)) => Ok(*code),
        Ok(ExitWith::Signal(sig)) => Ok(exit::code_of_signal(*sig as i32)),
        Err(failure) => Err(failure.code),
    };
    plan.exporter.into_inner().end(exit_result, conflict_code);
    end
}

/// The words to execute: `sh -c -- SHELL` if the user gave `--shell SHELL`, otherwise `command`.
pub(crate) fn command_line(shell: Option<OsString>, command: Vec<OsString>) -> Vec<OsString> {
    match shell {
        Some(shell_line) => vec!["sh".into(), "-c".into(), "--".into(), shell_line],
        None => command,
    }
}

/// How `quorate run` ends if quorate itself did not fail.
enum ExitWith {
    /// `quorate run` exits with this code: the exit code of the command, or `JobPeriod::done_exit_code` if
    /// `quorate once` had nothing to run.
    Code(u8),
    /// `quorate run` kills itself with this signal. It is one of:
    ///
    /// - the signal that ended the command,
    /// - a SIGINT or SIGQUIT that arrived while `--keep-for` kept the lock.
    Signal(Signal),
}

/// Runs `work`. Then waits until the masters have confirmed all releases, but at most for `release_timeout`. Also waits
/// if `work` fails or panics.
pub(crate) async fn with_final_release<T>(
    redlock: &Redlock,
    release_timeout: Duration,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let result = AssertUnwindSafe(work).catch_unwind().await;
    let _ = tokio::time::timeout(release_timeout, redlock.flush()).await;
    result.unwrap_or_else(|_| {
        Err(Failure::internal(
            "internal failure of quorate; the lock was released; please report the lines above",
        ))
    })
}

async fn run_under_lock(plan: &JobPlan) -> Result<ExitWith, Failure> {
    let mut signals = Signals::receive_and_reap().map_err(Failure::internal)?;
    let guard = plan.lock.acquire_unless_signalled(&mut signals).await?;
    let fencing_token = guard.fencing_token();
    plan.exporter.borrow_mut().note_acquired(fencing_token);
    let due = match decide(plan, &guard, &mut signals).await? {
        Decision::Run(due) => due,
        Decision::Skip(record) => return Ok(skip(plan, guard, &record).await),
    };
    let captured = plan.captured_output().map_err(|why| plan.unrecorded(why))?;
    let started_at = Instant::now();
    let command = prepare(plan, &due, &guard, captured.as_ref(), &mut signals)?;
    let period = plan.period.as_ref();
    let name = plan.lock.resource.as_bytes();
    let started = due.record_start(period, name, &mut signals).await?;
    plan.exporter.borrow_mut().note_running();
    let command_end = command.supervise(&guard, &mut signals).await;
    let mut unrecorded_end = None;
    let outcome = match command_end {
        Ok(CommandOutcome::ByItself {
            code,
            signal,
            survivors,
        }) => {
            if let Some(survivors) = survivors {
                output::print_message(format!(
                    "the command has ended, but {survivors} of its process group {} still running, without the lock",
                    survivors.verb("is", "are")
                ));
            }
            let exit_code = signal.map_or(code, |signal| exit::code_of_signal(signal as i32));
            unrecorded_end = Some(started.record_result(exit_code).await);
            let keep_time = plan.keep_for.saturating_sub(started_at.elapsed());
            let typed_signal = keep_lock(&guard, keep_time, &mut signals).await;
            Ok(signal
                .or(typed_signal)
                .map_or(ExitWith::Code(code), ExitWith::Signal))
        }
        Ok(CommandOutcome::Lost { cause, fate }) => Err(plan.after_start(Failure::new(
            exit::LOST,
            format!(
                "the lock on '{}' {}{}",
                output::printable(name),
                plan.loss_text(started_at.elapsed(), &cause, &fate),
                renewal_errors(&guard)
            ),
        ))),
        Err(error) => Err(plan.after_start(start_failure(error))),
    };
    guard.release().await;
    if let Some(captured) = captured.filter(|_| !matches!(outcome, Ok(ExitWith::Code(exit::OK)))) {
        captured.print();
    }
    if let (Some(end), Some(period)) = (unrecorded_end, period) {
        end.record(&plan.lock.redlock, name, period).await;
    }
    outcome
}

/// The environment variables to set (`Some`) or to remove (`None`) for the command.
fn environment(plan: &JobPlan, guard: &LockGuard) -> Vec<(&'static str, Option<OsString>)> {
    let lock = &plan.lock;
    let mut variables = vec![
        ("QUORATE_RESOURCE", Some(lock.resource.clone())),
        ("QUORATE_TOKEN", Some(guard.token().to_string().into())),
        (
            "QUORATE_FENCING_TOKEN",
            guard.fencing_token().map(|token| token.to_string().into()),
        ),
    ];
    let slot = guard.slot();
    variables.extend(lock.kind.environment(&lock.space, &lock.resource, slot));
    if plan.hide_masters {
        variables.extend(settings::secret_variables().map(|name| (name, None)));
    }
    variables
}

/// Decides whether to run the command.
async fn decide<'a>(
    plan: &JobPlan,
    guard: &'a LockGuard,
    signals: &mut Signals,
) -> Result<Decision<'a>, Failure> {
    let Some(period) = &plan.period else {
        return Ok(Decision::Run(DueRun::WithoutPeriod));
    };
    let name = plan.lock.resource.as_bytes();
    let once = plan.lock.redlock.once_in(name, period.range().clone());
    job_record::decide(&once, period, guard, signals).await
}

/// Reports that `quorate once` does not run the command, and releases the lock.
async fn skip(plan: &JobPlan, guard: LockGuard, record: &DoneRecord) -> ExitWith {
    guard.release().await;
    let Some(period) = &plan.period else {
        return ExitWith::Code(exit::OK);
    };
    job_record::print_skip(period, plan.lock.resource.as_bytes(), record);
    ExitWith::Code(period.done_exit_code())
}

/// Prepares the start of the command. `quorate once` records the period only afterwards, so do everything here that can
/// fail on this machine.
fn prepare(
    plan: &JobPlan,
    due: &DueRun<'_>,
    guard: &LockGuard,
    captured: Option<&CapturedOutput>,
    signals: &mut Signals,
) -> Result<PreparedCommand, Failure> {
    if due.is_recorded_before_the_start() {
        process::check_program(&plan.command[0]).map_err(|why| plan.unrecorded(why))?;
    }
    let env = environment(plan, guard);
    let job = Job {
        argv: &plan.command,
        env: &env,
        output: captured,
    };
    process::prepare(job, plan.deadline, signals)
        .map_err(|error| plan.unrecorded(start_failure(error)))
}

/// The failure if the processes that run and guard the command could not be started or watched.
fn start_failure(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::ArgumentListTooLong {
        return Failure::new(exit::NOT_EXECUTABLE, error);
    }
    Failure::internal(format!("cannot run the command: {error}"))
}

/// Keeps the lock for the time `keep_time` after the command has ended. Returns before this time has passed if the
/// lock is lost, or if a signal asks `quorate` to end.
///
/// If the signal is SIGINT or SIGQUIT, returns it, so that `quorate` can kill itself with it. Otherwise returns `None`.
async fn keep_lock(
    guard: &LockGuard,
    keep_time: Duration,
    signals: &mut Signals,
) -> Option<Signal> {
    if keep_time.is_zero() {
        return None;
    }
    output::print_notice(format!(
        "the command has ended; keeping the lock for another {} (--keep-for)",
        human(keep_time)
    ));
    tokio::select! {
        () = tokio::time::sleep(keep_time) => None,
        sig = signals.next_ending_signal() => {
            output::print_message(format!("{sig}: releasing the lock now"));
            matches!(sig, Signal::SIGINT | Signal::SIGQUIT).then_some(sig)
        }
        cause = guard.lost() => {
            output::print_message(format!("the lock was lost after the command had ended: {cause}"));
            None
        }
    }
}

impl Lease for LockGuard {
    fn remaining(&self) -> Duration {
        Self::remaining(self)
    }

    async fn lost(&self) -> String {
        Self::lost(self).await.to_string()
    }

    fn extended(&self) -> impl Future<Output = ()> {
        Self::extended(self)
    }
}

#[cfg(test)]
mod tests {
    use quorate_testbed::{Masters, Reply};

    use super::*;

    #[test]
    fn panic_releases_the_lock_before_the_process_ends() {
        let masters = Masters::start(5).expect("masters start");
        let redlock = Redlock::builder()
            .masters(masters.urls())
            .node_timeout(Duration::from_millis(500))
            .restart_guard(quorate::RestartGuard::Off)
            .build()
            .expect("good settings");
        let work = async {
            let _guard = redlock.acquire("r").await.expect("the lock must be free");
            panic!("this panic is a part of the test");
        };
        let result: Result<(), Failure> =
            config::block_on(with_final_release(&redlock, Duration::from_secs(2), work));
        assert!(result.is_err());
        for master in &masters {
            let reply = master.command(&["EXISTS", "r"]).expect("a reply");
            assert_eq!(reply, Reply::Int(0));
        }
    }
}
