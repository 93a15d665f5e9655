//! `quorate-judge`: judges the operations of chaos runs with a checker of linearizability that others wrote.
//!
//! - `quorate-judge [--seconds N] [--all] FILE ..` judges files of `quorate-chaos export`.
//! - `quorate-judge --self-test FOLDER` judges histories made by hand, and compares the verdicts with those of the checks
//!   of the chaos runs.
//! - `quorate-judge --simulation FOLDER` judges histories of the simulation.
//!
//! `scripts/judge` builds and runs it. Exit status: 0: all accepted; 1: an object is refused; 2: a verdict is unknown; 64:
//! wrong arguments; 65: malformed input.

mod objects;
mod operation;
mod promise;
mod report;
mod search;
mod self_test;
mod simulated;
mod specifications;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    search::silence_limits();
    let mut limit = Duration::from_secs(20);
    let mut prints_all = false;
    let mut files = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seconds" => match arguments.next().and_then(|text| text.parse().ok()) {
                Some(seconds) => limit = Duration::from_secs(seconds),
                None => return usage(),
            },
            "--all" => prints_all = true,
            "--self-test" => {
                let Some(folder) = arguments.next() else {
                    return usage();
                };
                return finish(self_test::run(&PathBuf::from(folder), limit));
            }
            "--simulation" => {
                let Some(folder) = arguments.next() else {
                    return usage();
                };
                return finish(simulated::run(&PathBuf::from(folder), limit));
            }
            _ => files.push(PathBuf::from(argument)),
        }
    }
    if files.is_empty() {
        return usage();
    }
    finish(report::run(&files, limit, prints_all))
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: quorate-judge [--seconds N] [--all] FILE .. | --self-test FOLDER | --simulation FOLDER"
    );
    ExitCode::from(64)
}

fn finish(result: Result<search::Verdict, String>) -> ExitCode {
    match result {
        Ok(search::Verdict::Accepted) => ExitCode::SUCCESS,
        Ok(search::Verdict::Unknown) => ExitCode::from(2),
        Ok(search::Verdict::Refused) => ExitCode::from(1),
        Err(error) => {
            eprintln!("quorate-judge: {error}");
            ExitCode::from(65)
        }
    }
}
