//! The command behind `scripts/simulate`: plays many seeds, or replays one.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use quorate_simulation::{
    CheckedRules, Failure, Flaw, HAND_WRITTEN, RULES, RunOptions, ScenarioFamily, Search, Subject,
    Summary, Sweep, format_grouped, hand_written, rule_by_name, shrink,
};

const HELP: &str = "\
usage: scripts/simulate [--seeds N] [--first N] [--threads N] [WORLDS | --bench]
       QUORATE_SEED=N scripts/simulate [WORLDS]      replays one seed with its trace
       WORLDS is one of these: --stores plays scenarios with databases, ZooKeeper or etcd, --changes plays replacements of
       masters, --tries plays short processes and stores without a clock, --clocks plays restarts of masters whose clocks
       jump, --hand-written NAME plays the variants of a scenario written by hand

For seeded bugs (scripts/seeded-bugs):
       scripts/simulate --find RULE [WORLDS]         prints the first seed that breaks RULE. RULE can be harm (any rule
                                                     whose violation harms users)
       --trace                                       also prints the smallest scenario that breaks RULE, and its trace
       --values, --notes                             only scenarios with values, or with notes and elections
       --model                                       lets the model check the histories, and RULE is a rule of the model
       --world-bug NAME                              plays with this seeded bug of the simulated world";

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
        Command::Find => find(&options),
    }
}

struct Options {
    command: Command,
    seeds: u64,
    first: u64,
    threads: usize,
    family: ScenarioFamily,
    subject: Subject,
    world_bug: Option<Flaw>,
    /// The rule to find with `--find`.
    rule: String,
    asks_model: bool,
    traces: bool,
}

enum Command {
    Sweep,
    Replay(u64),
    Find,
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
            subject: Subject::default(),
            world_bug: None,
            rule: String::new(),
            asks_model: false,
            traces: false,
        };
        if let Ok(seed) = std::env::var("QUORATE_SEED") {
            options.command = Command::Replay(parse_number(&seed)?);
        }
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            options.read_argument(&arg, || args.next().ok_or(format!("{arg} needs a value")))?;
        }
        options.family = match (options.asks_model, options.family) {
            (true, ScenarioFamily::Redis) => ScenarioFamily::Modelled,
            (true, ScenarioFamily::Changes) => ScenarioFamily::ModelledChanges,
            (true, _) => return Err("--model plays only Redis masters, or --changes".into()),
            (false, family) => family,
        };
        Ok(options)
    }

    fn read_argument(
        &mut self,
        arg: &str,
        mut value: impl FnMut() -> Result<String, String>,
    ) -> Result<(), String> {
        match arg {
            "--seeds" => self.seeds = parse_number(&value()?)?,
            "--first" => self.first = parse_number(&value()?)?,
            "--threads" => self.threads = parse_number(&value()?)? as usize,
            "--bench" => self.family = ScenarioFamily::Bench,
            "--stores" => self.family = ScenarioFamily::Stores,
            "--changes" => self.family = ScenarioFamily::Changes,
            "--tries" => self.family = ScenarioFamily::Tries,
            "--clocks" => self.family = ScenarioFamily::Clocks,
            "--hand-written" => {
                let name = value()?;
                let index = hand_written(&name);
                let index = index.ok_or(format!("there is no scenario with the name {name}"))?;
                self.family = ScenarioFamily::HandWritten(index);
                self.seeds = HAND_WRITTEN[index].variants;
            }
            "--values" => self.subject = Subject::Values,
            "--notes" => self.subject = Subject::Notes,
            "--model" => self.asks_model = true,
            "--find" => (self.command, self.rule) = (Command::Find, value()?),
            "--trace" => self.traces = true,
            "--world-bug" => {
                let name = value()?;
                let bug = Flaw::by_name(&name);
                self.world_bug = Some(bug.ok_or(format!("the world has no bug {name}"))?);
            }
            _ => return Err(format!("unknown argument {arg}")),
        }
        Ok(())
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
        let seed = first_failure.seed;
        replay(seed, options.family, RunOptions::default());
        let family = family_option(options.family);
        println!("QUORATE_SEED={seed} scripts/simulate{family}");
    }
    ExitCode::FAILURE
}

/// The option that selects this family, with a space before it; empty for the default family.
fn family_option(family: ScenarioFamily) -> String {
    let option = match family {
        ScenarioFamily::Redis | ScenarioFamily::Modelled => "",
        ScenarioFamily::Stores => " --stores",
        ScenarioFamily::Changes | ScenarioFamily::ModelledChanges => " --changes",
        ScenarioFamily::Tries => " --tries",
        ScenarioFamily::Clocks => " --clocks",
        ScenarioFamily::Bench => " --bench",
        ScenarioFamily::HandWritten(index) => {
            return format!(" --hand-written {}", HAND_WRITTEN[index].name);
        }
    };
    option.to_owned()
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
        println!("\n{violation}");
    }
    ExitCode::FAILURE
}

/// Prints the first seed that breaks the rule, and fails if there is none.
fn find(options: &Options) -> ExitCode {
    let checked_rules = match options.rule.as_str() {
        "harm" => Some(CheckedRules::Harmful),
        _ if options.asks_model => Some(CheckedRules::All),
        name => rule_by_name(name).map(CheckedRules::Only),
    };
    let Some(checked_rules) = checked_rules else {
        eprintln!("there is no rule with the name {}", options.rule);
        return ExitCode::from(2);
    };
    let run_options = RunOptions {
        flaw: options.world_bug,
        checked_rules,
        ..RunOptions::default()
    };
    let search = Search {
        family: options.family,
        subject: options.subject,
        run_options,
        asks_model: options.asks_model,
        seeds: options.seeds,
        threads: options.threads,
    };
    let Some(Failure { seed, violation }) = search.first_failure() else {
        println!("no seed below {} breaks {}", options.seeds, options.rule);
        return ExitCode::FAILURE;
    };
    println!("seed {seed}: {violation}");
    if options.asks_model && violation.rule != options.rule {
        return ExitCode::FAILURE;
    }
    if options.traces && !options.asks_model {
        replay(seed, options.family, run_options);
    }
    ExitCode::SUCCESS
}
