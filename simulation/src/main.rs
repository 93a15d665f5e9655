//! The command behind `scripts/simulate`: plays many seeds, or replays one.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use quorate_simulation::{
    Failure, Flaw, RULES, RunOptions, ScenarioFamily, Summary, Sweep, first_caught, format_grouped,
    shrink,
};

const HELP: &str = "\
usage: scripts/simulate [--seeds N] [--first N] [--threads N] [WORLDS | --bench]
       scripts/simulate --seeded-bugs [--seeds N] [WORLDS]
       scripts/simulate --seeded-bug NAME [--harm]   prints the smallest scenario that catches the bug, and its trace;
                                                     --harm checks only the rules whose violation harms users
       QUORATE_SEED=N scripts/simulate [WORLDS]      replays one seed with its trace
       WORLDS is one of these: --stores plays scenarios with databases, ZooKeeper or etcd, --changes plays replacements of
       masters, --tries plays short processes and stores without a clock, --clocks plays restarts of masters whose clocks
       jump";

fn main() -> ExitCode {
    let options = match Options::read() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match options.command {
        Command::Sweep => run_sweep(&options),
        Command::Replay(seed) => replay(seed, options.family, RunOptions::default()),
        Command::SeededBugs => print_seeded_bugs(&options),
        Command::SeededBug(flaw) => replay_seeded_bug(flaw, &options),
    }
}

struct Options {
    command: Command,
    seeds: u64,
    first: u64,
    threads: usize,
    family: ScenarioFamily,
    harmful_only: bool,
}

enum Command {
    Sweep,
    Replay(u64),
    SeededBugs,
    SeededBug(Flaw),
}

impl Options {
    fn read() -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Self {
            command: Command::Sweep,
            seeds: 20_000,
            first: 0,
            threads: cores,
            family: ScenarioFamily::default(),
            harmful_only: false,
        };
        if let Ok(seed) = std::env::var("QUORATE_SEED") {
            options.command = Command::Replay(parse_number(&seed)?);
        }
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--seeds" => options.seeds = parse_number(&value()?)?,
                "--first" => options.first = parse_number(&value()?)?,
                "--threads" => options.threads = parse_number(&value()?)? as usize,
                "--bench" => options.family = ScenarioFamily::Bench,
                "--stores" => options.family = ScenarioFamily::Stores,
                "--changes" => options.family = ScenarioFamily::Changes,
                "--tries" => options.family = ScenarioFamily::Tries,
                "--clocks" => options.family = ScenarioFamily::Clocks,
                "--harm" => options.harmful_only = true,
                "--seeded-bugs" => options.command = Command::SeededBugs,
                "--seeded-bug" => {
                    let name = value()?;
                    let flaw = Flaw::by_name(&name)
                        .ok_or(format!("there is no seeded bug with the name {name}"))?;
                    options.command = Command::SeededBug(flaw);
                }
                _ => return Err(format!("unknown argument {arg}")),
            }
        }
        Ok(options)
    }
}

fn parse_number(text: &str) -> Result<u64, String> {
    let digits = text.replace('_', "");
    digits
        .parse()
        .map_err(|_| format!("{text} is not a number"))
}

/// Plays many seeds with a progress bar and prints a table.
fn run_sweep(options: &Options) -> ExitCode {
    let progress_bar = ProgressBar::new(options.seeds);
    let style = "{progress_bar:40} {human_pos}/{human_len} seeds  {per_sec}  {eta} left  {msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        progress_bar.set_style(style);
    }
    let sweep = Sweep {
        first: options.first,
        seeds: options.seeds,
        threads: options.threads,
        family: options.family,
    };
    let summary = sweep.run(|finished, failed| {
        progress_bar.set_position(finished);
        if failed > 0 {
            progress_bar.set_message(format!("{failed} FAILED"));
        }
    });
    progress_bar.finish_and_clear();
    print_summary(options, &summary);
    let Some(first_failure) = summary.failures.first() else {
        return ExitCode::SUCCESS;
    };
    for Failure { seed, violation } in &summary.failures {
        println!("seed {seed}: {violation}");
    }
    if options.family != ScenarioFamily::Bench {
        replay(first_failure.seed, options.family, RunOptions::default());
    }
    ExitCode::FAILURE
}

fn print_summary(options: &Options, summary: &Summary) {
    print!("{}", summary.coverage);
    println!("number of cases that each rule checked");
    for (rule, judged_cases) in RULES.into_iter().zip(summary.judged_cases) {
        println!("  {rule:<42}{:>14}", format_grouped(judged_cases));
    }
    print!("{}", summary.crossings);
    let seconds = summary.elapsed.as_secs_f64();
    // The speed is in seeds per second of processor time, not of wall time, because other programs may run as well.
    let cpu_time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu_seconds = cpu_time.tv_sec as f64 + cpu_time.tv_nsec as f64 / 1e9;
    let per_core = summary.seeds as f64 / cpu_seconds;
    println!(
        "{} seeds, the first is {}: {seconds:.1} s on {} threads: {per_core:.0} seeds/s per core, {} failed",
        summary.seeds,
        options.first,
        options.threads,
        summary.failures.len()
    );
    if let Some((seed, latest_call)) = &summary.latest_call {
        println!("the call that came closest to its time limit: {latest_call} (seed {seed})");
    }
    let idle_rules = summary.idle_rules();
    if !idle_rules.is_empty() && options.family != ScenarioFamily::Bench {
        println!("rules that checked no case: {}", idle_rules.join(", "));
    }
    let missing_events = summary.coverage.events_that_never_happened();
    if !missing_events.is_empty() && options.family != ScenarioFamily::Bench {
        println!("events that never happened: {}", missing_events.join(", "));
    }
}

/// Replays one seed. If the run breaks no rule, prints its trace. Otherwise shrinks the scenario, and prints the
/// violation and the trace of the smaller scenario.
fn replay(seed: u64, family: ScenarioFamily, run_options: RunOptions) -> ExitCode {
    let scenario = family.draw(seed);
    let result = run_options.run(&scenario);
    let Some(violation) = result.violation else {
        let traced_result = RunOptions {
            trace: true,
            ..run_options
        }
        .run(&scenario);
        println!(
            "{scenario}\n{}\nseed {seed} passes",
            traced_result.trace.join("\n")
        );
        return ExitCode::SUCCESS;
    };
    let smallest = shrink(&scenario, run_options, violation.rule);
    let smallest_result = RunOptions {
        trace: true,
        ..run_options
    }
    .run(&smallest);
    println!("seed {seed} FAILS: {violation}\n\nsmallest scenario that still fails:\n{smallest}\n");
    println!("{}", smallest_result.trace.join("\n"));
    if let Some(violation) = smallest_result.violation {
        let family_option = match family {
            ScenarioFamily::Stores => " --stores",
            ScenarioFamily::Changes => " --changes",
            ScenarioFamily::Tries => " --tries",
            _ => "",
        };
        println!("\n{violation}\nQUORATE_SEED={seed} scripts/simulate{family_option}");
    }
    ExitCode::FAILURE
}

/// Prints a table of the seeded bugs. The columns are:
///
/// - the name of the bug;
/// - the first seed that breaks any rule, and this rule;
/// - the first seed that breaks a rule in `HARMFUL_RULES` (the rules that protect users), and this rule.
fn print_seeded_bugs(options: &Options) -> ExitCode {
    let mut exit_code = ExitCode::SUCCESS;
    println!(
        "{:<24}{:>8}  {:<32}{:>12}  rule",
        "seeded bug", "seed", "rule", "harm at seed"
    );
    let redis_bugs = Flaw::REDIS_BUGS.into_iter();
    let other_bugs = Flaw::STORE_BUGS.into_iter().chain(Flaw::SHORT_PROCESS_BUGS);
    let bugs = redis_bugs
        .chain(other_bugs)
        .chain(Flaw::CHANGE_BUGS)
        .chain(Flaw::CLOCK_BUGS);
    let selected = bugs.filter(|flaw| match options.family {
        ScenarioFamily::Stores => flaw.is_of_stores(),
        ScenarioFamily::Changes => flaw.is_of_changes(),
        ScenarioFamily::Tries => flaw.is_of_tries(),
        ScenarioFamily::Clocks => flaw.is_of_clocks(),
        _ => true,
    });
    for flaw in selected {
        let first_failure =
            |harmful_only| first_caught(flaw, harmful_only, options.seeds, options.threads);
        let (any_failure, harmful_failure) = (first_failure(false), first_failure(true));
        let seed_and_rule = |failure: Option<Failure>| match failure {
            Some(failure) => (failure.seed.to_string(), failure.violation.rule),
            None => ("-".to_owned(), "not caught"),
        };
        if any_failure.is_none() {
            exit_code = ExitCode::FAILURE;
        }
        let ((seed, rule), (harm_seed, harm_rule)) =
            (seed_and_rule(any_failure), seed_and_rule(harmful_failure));
        println!("{flaw:<24}{seed:>8}  {rule:<32}{harm_seed:>12}  {harm_rule}");
    }
    exit_code
}

fn replay_seeded_bug(flaw: Flaw, options: &Options) -> ExitCode {
    let Some(failure) = first_caught(flaw, options.harmful_only, options.seeds, options.threads)
    else {
        println!(
            "the seeded bug {flaw} was not caught within {} seeds",
            options.seeds
        );
        return ExitCode::FAILURE;
    };
    let run_options = RunOptions {
        flaw: Some(flaw),
        harmful_only: options.harmful_only,
        ..RunOptions::default()
    };
    replay(failure.seed, ScenarioFamily::for_flaw(flaw), run_options);
    ExitCode::SUCCESS
}
