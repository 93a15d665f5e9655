//! `quorate-chaos`: runs that try to break the lock, and report whether it was broken.

mod args;

use std::net::ToSocketAddrs;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Parser;
use quorate_chaos::checks::{self, Verdict};
use quorate_chaos::faults::Kind;
use quorate_chaos::history::History;
use quorate_chaos::node::NodeKind;
use quorate_chaos::progress::Progress;
use quorate_chaos::report::{self, Summary};
use quorate_chaos::scenario::Scenario;
use quorate_chaos::world::{self, Needs, Tools};
use quorate_chaos::{client, export, matrix, run, soak};

use args::{Args, Command, MatrixArgs, RunArgs};

/// Set by the first Ctrl-C or SIGTERM. The run then stops early, and still writes its report.
static STOP: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let command = Args::parse().command;
    if command.needs_links() {
        // Faults of network links need a network namespace. If this process cannot have one, the run reports these
        // faults as unavailable.
        let _ = quorate_testbed::isolate();
    }
    let outcome = match command {
        Command::Client => client::main().map(|()| Verdict::Valid),
        Command::Child {
            origin,
            works,
            state,
        } => client::child_main(origin, works, &state).map(|()| Verdict::Valid),
        Command::Lookup { name } => {
            look_up(&name);
            Ok(Verdict::Valid)
        }
        Command::Run(args) => handle_signals().and_then(|()| run_once(&args)),
        Command::Soak(args) => handle_signals().and_then(|()| run_soak(&args)),
        Command::Matrix(args) => handle_signals().and_then(|()| run_matrix(&args)),
        Command::Recheck { dir } => recheck(&dir),
        Command::Export { dir } => export(&dir).map(|()| Verdict::Valid),
        Command::Faults => {
            list_faults();
            Ok(Verdict::Valid)
        }
    };
    match outcome {
        Ok(Verdict::Valid) => ExitCode::SUCCESS,
        Ok(Verdict::Unknown) => ExitCode::from(2),
        Ok(Verdict::Invalid) => ExitCode::from(1),
        Err(error) => {
            eprintln!("quorate-chaos: {error:#}");
            ExitCode::from(70)
        }
    }
}

fn run_once(args: &RunArgs) -> anyhow::Result<Verdict> {
    let scenario = args.scenario()?;
    let report_dir = args.out(&scenario);
    let result = run::run(&scenario, &report_dir, &mut Progress::shown(), &STOP)?;
    let summary = Summary::of(&result.scenario, &result.history, &result.findings);
    print_changes(&result.scenario, &result.history);
    print!("{}", report::table(&summary));
    println!("report:  {}", report_dir.join("timeline.html").display());
    println!("recheck: quorate-chaos recheck {}", report_dir.display());
    println!("again:   {}", args::command_to_repeat(&scenario));
    Ok(result.findings.verdict)
}

fn run_soak(args: &RunArgs) -> anyhow::Result<Verdict> {
    let base_scenario = args.scenario()?;
    let scenario = soak::scenario(base_scenario.duration, base_scenario);
    let report_dir = args.out(&scenario);
    let result = run::run(&scenario, &report_dir, &mut Progress::shown(), &STOP)?;
    let mut findings = result.findings;
    let growth = soak::growth(&scenario, &result.history);
    findings.verdict = findings.verdict.max(growth.verdict);
    findings.findings.push(growth);
    report::write(&scenario, &result.history, &findings, &report_dir)?;
    let summary = Summary::of(&scenario, &result.history, &findings);
    println!("{}", soak::table(&scenario, &result.history));
    print!("{}", report::table(&summary));
    println!("report:  {}", report_dir.join("timeline.html").display());
    let command_to_repeat = args::command_to_repeat(&scenario).replacen("-- run", "-- soak", 1);
    println!("again:   {command_to_repeat}");
    Ok(findings.verdict)
}

fn run_matrix(args: &MatrixArgs) -> anyhow::Result<Verdict> {
    let kinds = if args.faults.is_empty() {
        Kind::all()
    } else {
        args.faults.clone()
    };
    let plan = matrix::Plan {
        workloads: args.workload.iter().map(|group| group.0.clone()).collect(),
        kinds,
        fleets: args.fleets(),
        orders: args.orders.clone(),
        fault_time: args.cell,
        seed: args.seed,
    };
    let base_scenario = Scenario {
        clients: args.clients,
        ttl: args.ttl(),
        many: 10,
        server: args.server.clone(),
        ..Scenario::default()
    };
    let cells = matrix::run(&plan, &base_scenario, &args.out, &STOP)?;
    let text = matrix::markdown(&cells, &world::server_version(args.server.as_deref()));
    match &args.record {
        Some(path) => matrix::write_results(path, args.result_markers(), &text)?,
        None => print!("{text}"),
    }
    let worst_verdict = cells
        .iter()
        .filter(|cell| !cell.is_unavailable())
        .map(|cell| cell.summary.verdict)
        .max();
    if STOP.load(Ordering::Relaxed) {
        return Ok(Verdict::Unknown);
    }
    Ok(worst_verdict.unwrap_or(Verdict::Unknown))
}

fn recheck(dir: &std::path::Path) -> anyhow::Result<Verdict> {
    let (scenario, history) = report::load(dir)?;
    let findings = checks::all::check(&scenario, &history);
    report::write(&scenario, &history, &findings, dir)?;
    let summary = Summary::of(&scenario, &history, &findings);
    print_changes(&scenario, &history);
    print!("{}", report::table(&summary));
    println!("again:   {}", args::command_to_repeat(&scenario));
    Ok(findings.verdict)
}

/// Prints the operations of a stored history.
fn export(dir: &std::path::Path) -> anyhow::Result<()> {
    let (scenario, history) = report::load(dir)?;
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    export::write(&scenario, &history, &mut stdout)?;
    Ok(std::io::Write::flush(&mut stdout)?)
}

fn print_changes(scenario: &Scenario, history: &History) {
    if let Some(text) = report::changes(scenario, history) {
        println!("{text}");
    }
}

fn list_faults() {
    let needs: Vec<Needs> = Kind::all().iter().map(|kind| kind.needs).collect();
    let tools = Tools::build(&needs);
    for kind in Kind::all() {
        println!("{:<22} {}", kind.name(), kind.description);
        if kind.breaks_exclusion(true, &NodeKind::all()) {
            println!("{:<22} (two holders are possible during this fault)", "");
        }
        if let Some(reason) = tools.missing_reason(kind.needs) {
            println!("{:<22} (unavailable: {reason})", "");
        }
    }
}

/// Looks up a host name: prints a line just before the lookup, and then prints its result.
fn look_up(name: &str) {
    println!("asking");
    match (name, 0).to_socket_addrs() {
        Ok(addresses) => println!("found {:?}", addresses.collect::<Vec<_>>()),
        Err(error) => println!("error: {error}"),
    }
}

/// Handles Ctrl-C and SIGTERM: the first signal stops the run early with a report, the second signal ends the program
/// immediately.
fn handle_signals() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime that waits for signals")?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let Ok(mut terminate) = signal(SignalKind::terminate()) else {
                return;
            };
            loop {
                tokio::select! {
                    _ = tokio::signal::ctrl_c() => {}
                    _ = terminate.recv() => {}
                }
                if STOP.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
                eprintln!("\nstopping the run; press Ctrl+C again to exit immediately");
            }
        });
    });
    Ok(())
}
