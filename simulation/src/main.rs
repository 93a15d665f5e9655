//! The command behind `scripts/simulate`: plays many seeds, or replays one.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use quorate_simulation::{
    Failure, Flaw, Play, RULES, Summary, Sweep, Worlds, first_caught, grouped, shrink,
};

const HELP: &str = "\
usage: scripts/simulate [--seeds N] [--first N] [--threads N] [WORLDS | --bench]
       scripts/simulate --seeded-bugs [--seeds N] [WORLDS]
       scripts/simulate --seeded-bug NAME [--harm]   prints the smallest scenario that catches the bug, and its trace;
                                                     --harm checks only the rules whose violation harms users
       QUORATE_SEED=N scripts/simulate [WORLDS]      replays one seed with its trace
       WORLDS is one of these: --stores plays scenarios with MySQL or ZooKeeper masters, --changes plays replacements of
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
    match options.what {
        What::Sweep => sweep(&options),
        What::Replay(seed) => replay(seed, options.worlds, Play::default()),
        What::SeededBugs => seeded_bugs(&options),
        What::SeededBug(flaw) => seeded_bug(flaw, &options),
    }
}

struct Options {
    what: What,
    seeds: u64,
    first: u64,
    threads: usize,
    worlds: Worlds,
    harm: bool,
}

enum What {
    Sweep,
    Replay(u64),
    SeededBugs,
    SeededBug(Flaw),
}

impl Options {
    fn read() -> Result<Self, String> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Self {
            what: What::Sweep,
            seeds: 20_000,
            first: 0,
            threads: cores,
            worlds: Worlds::default(),
            harm: false,
        };
        if let Ok(seed) = std::env::var("QUORATE_SEED") {
            options.what = What::Replay(number(&seed)?);
        }
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--seeds" => options.seeds = number(&value()?)?,
                "--first" => options.first = number(&value()?)?,
                "--threads" => options.threads = number(&value()?)? as usize,
                "--bench" => options.worlds = Worlds::Bench,
                "--stores" => options.worlds = Worlds::Stores,
                "--changes" => options.worlds = Worlds::Changes,
                "--tries" => options.worlds = Worlds::Tries,
                "--clocks" => options.worlds = Worlds::Clocks,
                "--harm" => options.harm = true,
                "--seeded-bugs" => options.what = What::SeededBugs,
                "--seeded-bug" => {
                    let name = value()?;
                    let flaw = Flaw::by_name(&name)
                        .ok_or(format!("there is no seeded bug with the name {name}"))?;
                    options.what = What::SeededBug(flaw);
                }
                _ => return Err(format!("unknown argument {arg}")),
            }
        }
        Ok(options)
    }
}

fn number(text: &str) -> Result<u64, String> {
    let digits = text.replace('_', "");
    digits
        .parse()
        .map_err(|_| format!("{text} is not a number"))
}

/// Plays many seeds with a progress bar and prints a table.
fn sweep(options: &Options) -> ExitCode {
    let bar = ProgressBar::new(options.seeds);
    let style = "{bar:40} {human_pos}/{human_len} seeds  {per_sec}  {eta} left  {msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    let sweep = Sweep {
        first: options.first,
        seeds: options.seeds,
        threads: options.threads,
        worlds: options.worlds,
    };
    let summary = sweep.run(|done, failed| {
        bar.set_position(done);
        if failed > 0 {
            bar.set_message(format!("{failed} FAILED"));
        }
    });
    bar.finish_and_clear();
    table(options, &summary);
    let Some(first) = summary.failures.first() else {
        return ExitCode::SUCCESS;
    };
    for Failure { seed, violation } in &summary.failures {
        println!("seed {seed}: {violation}");
    }
    if options.worlds != Worlds::Bench {
        replay(first.seed, options.worlds, Play::default());
    }
    ExitCode::FAILURE
}

fn table(options: &Options, summary: &Summary) {
    print!("{}", summary.coverage);
    println!("number of cases that each rule checked");
    for (rule, judged) in RULES.into_iter().zip(summary.judged) {
        println!("  {rule:<42}{:>14}", grouped(judged));
    }
    print!("{}", summary.crossings);
    let seconds = summary.took.as_secs_f64();
    // The speed is in seeds per second of processor time, not of wall time, because other programs may run as well.
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    let per_core = summary.seeds as f64 / cpu;
    println!(
        "{} seeds, the first is {}: {seconds:.1} s on {} threads: {per_core:.0} seeds/s per core, {} failed",
        summary.seeds,
        options.first,
        options.threads,
        summary.failures.len()
    );
    if let Some((seed, worst)) = &summary.worst {
        println!("the call that came closest to its time limit: {worst} (seed {seed})");
    }
    let idle = summary.idle_rules();
    if !idle.is_empty() && options.worlds != Worlds::Bench {
        println!("rules that checked no case: {}", idle.join(", "));
    }
    let missing = summary.coverage.missing();
    if !missing.is_empty() && options.worlds != Worlds::Bench {
        println!("events that never happened: {}", missing.join(", "));
    }
}

/// Replays one seed. If the run breaks no rule, prints its trace. Otherwise shrinks the scenario, and prints the
/// violation and the trace of the smaller scenario.
fn replay(seed: u64, worlds: Worlds, play: Play) -> ExitCode {
    let scenario = worlds.draw(seed);
    let outcome = play.run(&scenario);
    let Some(violation) = outcome.violation else {
        let traced = Play {
            trace: true,
            ..play
        }
        .run(&scenario);
        println!(
            "{scenario}\n{}\nseed {seed} passes",
            traced.trace.join("\n")
        );
        return ExitCode::SUCCESS;
    };
    let small = shrink(&scenario, play, violation.rule);
    let again = Play {
        trace: true,
        ..play
    }
    .run(&small);
    println!("seed {seed} FAILS: {violation}\n\nsmallest scenario that still fails:\n{small}\n");
    println!("{}", again.trace.join("\n"));
    if let Some(violation) = again.violation {
        let stores = match worlds {
            Worlds::Stores => " --stores",
            Worlds::Changes => " --changes",
            Worlds::Tries => " --tries",
            _ => "",
        };
        println!("\n{violation}\nQUORATE_SEED={seed} scripts/simulate{stores}");
    }
    ExitCode::FAILURE
}

/// Prints a table of the seeded bugs. The columns are:
///
/// - the name of the bug;
/// - the first seed that breaks any rule, and this rule;
/// - the first seed that breaks a rule in `HARM` (the rules that protect users), and this rule.
fn seeded_bugs(options: &Options) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    println!(
        "{:<24}{:>8}  {:<32}{:>12}  rule",
        "seeded bug", "seed", "rule", "harm at seed"
    );
    let redis = Flaw::ALL.into_iter();
    let others = Flaw::OF_STORES.into_iter().chain(Flaw::OF_TRIES);
    let all = redis.chain(others).chain(Flaw::OF_CHANGES);
    let all = all.chain(Flaw::OF_CLOCKS);
    let asked = all.filter(|flaw| match options.worlds {
        Worlds::Stores => flaw.is_of_stores(),
        Worlds::Changes => flaw.is_of_changes(),
        Worlds::Tries => flaw.is_of_tries(),
        Worlds::Clocks => flaw.is_of_clocks(),
        _ => true,
    });
    for flaw in asked {
        let caught = |harm| first_caught(flaw, harm, options.seeds, options.threads);
        let (any, harm) = (caught(false), caught(true));
        let show = |failure: Option<Failure>| match failure {
            Some(failure) => (failure.seed.to_string(), failure.violation.rule),
            None => ("-".to_owned(), "not caught"),
        };
        if any.is_none() {
            code = ExitCode::FAILURE;
        }
        let ((seed, rule), (harm_seed, harm_rule)) = (show(any), show(harm));
        println!("{flaw:<24}{seed:>8}  {rule:<32}{harm_seed:>12}  {harm_rule}");
    }
    code
}

fn seeded_bug(flaw: Flaw, options: &Options) -> ExitCode {
    let Some(caught) = first_caught(flaw, options.harm, options.seeds, options.threads) else {
        println!(
            "the seeded bug {flaw} was not caught within {} seeds",
            options.seeds
        );
        return ExitCode::FAILURE;
    };
    let play = Play {
        flaw: Some(flaw),
        harm: options.harm,
        ..Play::default()
    };
    replay(caught.seed, Worlds::of(flaw), play);
    ExitCode::SUCCESS
}
