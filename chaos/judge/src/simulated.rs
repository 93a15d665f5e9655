//! Judges histories of the simulation, which the tests of the model have stored: those of the correct code, which it must
//! accept, and those of seeded bugs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::objects::judge_all;
use crate::operation::Input;
use crate::search::Verdict;

/// The locker of histories without a seeded bug.
const SOUND: &str = "sound";

/// The numbers of histories of one lock implementation.
#[derive(Default)]
struct Counts {
    histories: usize,
    operations: usize,
    refused: usize,
    unknown: usize,
}

/// Judges all files in the folder. The verdict is that of the histories without a seeded bug.
///
/// # Errors
///
/// If a file cannot be read, or there are no histories without a seeded bug.
pub fn run(folder: &Path, limit: Duration) -> Result<Verdict, String> {
    let started_at = Instant::now();
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut counts: BTreeMap<String, Counts> = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        let input = Input::load(&path)?;
        let broken = input.run.broken_promises();
        let judged = judge_all(&input.operations, limit);
        let verdicts = judged.iter().flat_map(|one| &one.verdicts);
        let verdicts = verdicts.filter(|(promise, _)| !broken.contains(promise));
        let verdict = verdicts.map(|(_, verdict)| *verdict).max();
        if verdict == Some(Verdict::Refused) && input.run.locker == SOUND {
            println!("REFUSED: {}", path.display());
        }
        let counts = counts.entry(input.run.locker).or_default();
        counts.histories += 1;
        counts.operations += judged.iter().map(|one| one.operations).sum::<usize>();
        counts.refused += usize::from(verdict == Some(Verdict::Refused));
        counts.unknown += usize::from(verdict == Some(Verdict::Unknown));
    }
    let (head, columns) = (
        "histories of",
        ["histories", "operations", "refused", "unknown"],
    );
    let [histories, operations, refused, unknown] = columns;
    println!("{head:<26} {histories:>9} {operations:>10} {refused:>8} {unknown:>8}");
    for (locker, counts) in &counts {
        let Counts {
            histories,
            operations,
            refused,
            unknown,
        } = counts;
        println!("{locker:<26} {histories:>9} {operations:>10} {refused:>8} {unknown:>8}");
    }
    println!("{:.1} s", started_at.elapsed().as_secs_f64());
    let sound = counts
        .get(SOUND)
        .ok_or("there are no histories without a seeded bug")?;
    Ok(match sound {
        Counts { operations: 0, .. } => Verdict::Unknown,
        Counts {
            refused: 0,
            unknown: 0,
            ..
        } => Verdict::Accepted,
        Counts { refused: 0, .. } => Verdict::Unknown,
        _ => Verdict::Refused,
    })
}
