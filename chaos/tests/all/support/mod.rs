//! Helpers that run `quorate-chaos` and read its results.

pub(crate) mod history_builder;

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use quorate_chaos::checks::Verdict;
use quorate_chaos::faults::Kind;
use quorate_chaos::report::Summary;
use rustix::fs::{FlockOperation, flock};

/// Locks a file, so that only one chaos run is active at a time, even if tests run in several processes. Dropping the
/// returned file unlocks it.
fn lock_runs() -> File {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("chaos.turn");
    let file = File::create(path).expect("the file to lock must be created");
    flock(&file, FlockOperation::LockExclusive).expect("the lock on the file must be obtained");
    file
}

pub(crate) struct Run {
    pub(crate) output: Output,
    pub(crate) out: PathBuf,
    pub(crate) summary: Summary,
}

impl Run {
    pub(crate) fn of(name: &str, args: &str) -> Self {
        let _runs_lock = lock_runs();
        let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&out);
        let output = chaos(&format!("run {args} --out {}", out.display()));
        let summary = std::fs::read(out.join("summary.json")).unwrap_or_else(|error| {
            panic!("{name} must leave a summary ({error}):\n{}", text(&output));
        });
        let summary =
            serde_json::from_slice(&summary).expect("summary.json must contain a summary");
        Self {
            output,
            out,
            summary,
        }
    }

    /// Makes chaos runs, one after the other, until `is_enough` returns true for a run. Returns the last run.
    /// `seconds` has the duration of each run.
    pub(crate) fn until_enough(
        name: &str,
        args: &str,
        seconds: &[u32],
        is_enough: impl Fn(&Self) -> bool,
    ) -> Self {
        let mut runs = seconds
            .iter()
            .map(|seconds| Self::of(name, &format!("{args} --duration {seconds}s")));
        let mut run = runs.next().expect("there must be at least one run");
        for longer in runs {
            if is_enough(&run) {
                break;
            }
            eprintln!(
                "the run {name} was too short to check everything, so a longer run follows:\n{}",
                text(&run.output)
            );
            run = longer;
        }
        run
    }

    pub(crate) fn must_be_valid(&self) {
        assert_eq!(
            self.summary.verdict,
            Verdict::Valid,
            "{}",
            text(&self.output)
        );
        assert!(self.output.status.success(), "{}", text(&self.output));
    }

    pub(crate) fn landed_count(&self, kind: Kind) -> usize {
        let count = self.summary.faults.get(kind.name());
        count.map_or(0, |count| count.landed)
    }
}

pub(crate) fn chaos(args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quorate-chaos"))
        .args(args.split(' '))
        .stdin(Stdio::null())
        .output()
        .expect("the program must run")
}

pub(crate) fn kind(name: &str) -> Kind {
    name.parse()
        .expect("the name must be that of a kind of fault")
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}
