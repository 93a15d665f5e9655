//! `quorate-chaos`: runs that try to break the lock, and say whether they did.

mod args;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use clap::Parser;
use quorate_chaos::checks::{self, Verdict};
use quorate_chaos::progress::Progress;
use quorate_chaos::report::{self, Summary};
use quorate_chaos::{client, run};

use args::{Args, Command, RunArgs};

/// Set by the first Ctrl-C or SIGTERM: end in order.
static STOP: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    let outcome = match Args::parse().command {
        Command::Client => client::main().map(|()| Verdict::Valid),
        Command::Child {
            origin,
            works,
            state,
        } => client::child_main(origin, works, &state).map(|()| Verdict::Valid),
        Command::Run(args) => listen().and_then(|()| one_run(&args)),
        Command::Recheck { dir } => recheck(&dir),
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

fn one_run(args: &RunArgs) -> anyhow::Result<Verdict> {
    let scenario = args.scenario()?;
    let out = args.out(&scenario);
    let outcome = run::run(&scenario, &out, Progress::shown(), &STOP)?;
    let summary = Summary::of(&outcome.scenario, &outcome.history, &outcome.findings);
    print!("{}", report::table(&summary));
    println!("report:  {}", out.join("timeline.html").display());
    println!("recheck: quorate-chaos recheck {}", out.display());
    println!("again:   {}", args::again(&scenario));
    Ok(outcome.findings.verdict)
}

fn recheck(dir: &std::path::Path) -> anyhow::Result<Verdict> {
    let (scenario, history) = report::load(dir)?;
    let findings = checks::check(&scenario, &history);
    report::write(&scenario, &history, &findings, dir)?;
    let summary = Summary::of(&scenario, &history, &findings);
    print!("{}", report::table(&summary));
    println!("again:   {}", args::again(&scenario));
    Ok(findings.verdict)
}

fn list_faults() {
    use quorate_chaos::faults::Kind;
    for kind in Kind::ALL {
        let note = if kind.breaks_exclusion(true) {
            "two holders are possible around it"
        } else {
            ""
        };
        println!("{:<24}{note}", kind.name());
    }
}

/// The first Ctrl-C or SIGTERM ends the run in order, the second one at once.
fn listen() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("listen to signals")?;
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
                eprintln!("\nending; once more to end at once");
            }
        });
    });
    Ok(())
}
