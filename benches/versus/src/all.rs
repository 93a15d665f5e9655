//! Runs all measurements, one after the other, and writes the results to one Markdown file.
//!
//! For each part, the program starts itself again as a new process. So no part inherits connections or memory, and a
//! part that hangs can be ended without losing the results of the other parts.

use std::fmt::Write;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Arguments of the subcommand `all`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// The Markdown file that the results are written to; it is rewritten after every part
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Only check that every part runs; the results are not meaningful
    #[arg(long)]
    quick: bool,
    /// The time limit in minutes; at the limit, the running part is stopped and the remaining parts are skipped
    #[arg(long, default_value_t = 35)]
    minutes: u64,
    /// An implementation in another language, for the part `peers`: its name and the command that starts it
    #[arg(long = "peer", value_name = "NAME=COMMAND")]
    peers: Vec<String>,
}

/// One part of the measurements. Each part runs in a separate process of this program.
struct Part {
    title: &'static str,
    args: Vec<String>,
    /// The expected time of the part on an idle machine with two CPU cores, in seconds.
    seconds: u64,
}

/// The parts. Each tuple has:
///
/// - the title
/// - the arguments of a full run, and those of a quick run (`--quick`)
/// - the expected seconds of a full run, and those of a quick run
const PARTS: [(&str, &str, &str, u64, u64); 8] = [
    (
        "Latency and throughput on five masters",
        "versus",
        "versus --quick --rounds 1",
        240,
        15,
    ),
    (
        "Latency and throughput on one, three, seven and nine masters",
        "versus --quick --masters 1,3,7,9",
        "versus --quick --rounds 1 --masters 1,3,7,9",
        170,
        45,
    ),
    (
        "Keys left behind",
        "leftovers",
        "leftovers --cycles 3000",
        60,
        5,
    ),
    (
        "Masters far apart",
        "wide",
        "wide --rounds 1 --cycles 4",
        75,
        10,
    ),
    ("Concurrent tasks", "tasks", "tasks --rounds 1", 70, 20),
    (
        "What the kinds of locks cost",
        "kinds",
        "kinds --rounds 5 --held 200",
        180,
        40,
    ),
    (
        "Faults, and the time without service",
        "faults --rounds 5",
        "faults --rounds 1 --cycles 200 --no-peer",
        375,
        40,
    ),
    (
        "Many locks held",
        "held --rounds 2",
        "held --rounds 1 --seconds 4 --counts 10,1000,10000",
        500,
        70,
    ),
];

fn parts(args: &Args) -> Vec<Part> {
    let mut parts: Vec<Part> = PARTS
        .into_iter()
        .map(
            |(title, full_arguments, quick_arguments, full_seconds, quick_seconds)| {
                let (arguments, seconds) = if args.quick {
                    (quick_arguments, quick_seconds)
                } else {
                    (full_arguments, full_seconds)
                };
                Part {
                    title,
                    args: arguments.split(' ').map(str::to_owned).collect(),
                    seconds,
                }
            },
        )
        .collect();
    if !args.peers.is_empty() {
        let rounds = if args.quick { "1" } else { "5" };
        let mut arguments = vec!["peers".to_owned(), "--rounds".to_owned(), rounds.to_owned()];
        for peer in &args.peers {
            arguments.extend(["--peer".to_owned(), peer.clone()]);
        }
        parts.push(Part {
            title: "Lock libraries in other languages",
            args: arguments,
            seconds: if args.quick { 20 } else { 80 },
        });
    }
    parts
}

/// Runs all parts, writes the results to the file, and reports the progress on standard error.
pub(crate) fn run(args: &Args) {
    let started_at = Instant::now();
    let limit = Duration::from_secs(60 * args.minutes);
    let parts = parts(args);
    let mut page = heading();
    // Write the file before the first part, so that a path that cannot be written fails immediately and not after half
    // an hour.
    std::fs::write(&args.out, &page).expect("the output file must be writable");
    for (index, part) in parts.iter().enumerate() {
        let remaining_seconds: u64 = parts[index..].iter().map(|part| part.seconds).sum();
        eprintln!(
            "[{}/{}] {}: takes about {}; all remaining parts: about {}",
            index + 1,
            parts.len(),
            part.title,
            duration_text(part.seconds),
            duration_text(remaining_seconds)
        );
        let part_started_at = Instant::now();
        let remaining_time = limit.saturating_sub(started_at.elapsed());
        let (text, ending) = run_part(
            part,
            remaining_time.min(Duration::from_secs(60 + 4 * part.seconds)),
        );
        let elapsed_text = duration_text(part_started_at.elapsed().as_secs());
        let shown_arguments: Vec<&str> = part
            .args
            .iter()
            .map(|arg| arg.split_once('=').map_or(arg.as_str(), |(name, _)| name))
            .collect();
        let _ = write!(
            page,
            "\n## {}\n\n`quorate-bench {}` ({elapsed_text}{ending})\n\n```\n{}\n```\n",
            part.title,
            shown_arguments.join(" "),
            text.trim()
        );
        std::fs::write(&args.out, &page).expect("the output file must be writable");
        eprintln!(" took {elapsed_text}{ending}");
    }
    let elapsed_text = duration_text(started_at.elapsed().as_secs());
    eprintln!("wrote {} after {elapsed_text}", args.out.display());
}

/// The first lines of the results file: the date, the machine and the version of the server.
fn heading() -> String {
    let output_of = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        text.unwrap_or_default()
    };
    let server =
        quorate_testbed::available().expect("redis-server or valkey-server must be on the PATH");
    let version = output_of(&server.to_string_lossy(), &["--version"]);
    let load_line = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load_line.split_whitespace().take(3).collect();
    format!(
        "# Measurements\n\n\
         `scripts/bench-peers all --out evidence/benchmarks/measurements.md` writes this page. \
         [benchmarks.md](../../docs/benchmarks.md) explains what was\nmeasured, and the results. \
         Absolute times depend on the machine. Each ratio compares values of the same run.\n\n\
         {}; {} processors; load average before the measurement {}; {}.\n",
        output_of("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
        std::thread::available_parallelism().map_or(0, usize::from),
        load.join(" "),
        version.split(" sha=").next().unwrap_or_default()
    )
}

/// Runs one part. Returns its output and an error text. The error text is empty if the part succeeded.
fn run_part(part: &Part, limit: Duration) -> (String, String) {
    if limit < Duration::from_secs(5) {
        return (
            String::new(),
            ", left out because the time limit was reached".to_owned(),
        );
    }
    let started_at = Instant::now();
    let mut child =
        Command::new(std::env::current_exe().expect("the path of this program must be known"))
            .args(&part.args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program must start again as a child process");
    let stdout = child.stdout.take();
    let mut stdout_pipe = stdout.expect("the stdout of the child process must be piped");
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stdout_pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let mut dots = 0;
    let ending = loop {
        if let Some(status) = child
            .try_wait()
            .expect("the state of the child process must be readable")
        {
            break if status.success() {
                String::new()
            } else {
                format!(", ended with {status}")
            };
        }
        if started_at.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            break ", stopped because it took too long".to_owned();
        }
        if started_at.elapsed().as_secs() / 10 > dots {
            dots += 1;
            eprint!(".");
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    (reader.join().unwrap_or_default(), ending)
}

fn duration_text(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}
