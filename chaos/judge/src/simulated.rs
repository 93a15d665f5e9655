//! Judges histories of the simulation, which the tests of the model have stored.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::objects::judge_all;
use crate::operation::Input;
use crate::search::Verdict;

/// Judges all files in the folder.
///
/// # Errors
///
/// If a file cannot be read, or no file has an operation.
pub fn run(folder: &Path, limit: Duration) -> Result<Verdict, String> {
    let started_at = Instant::now();
    let entries =
        std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (mut histories, mut operations, mut refused, mut unknown) = (0, 0, 0, 0);
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        let input = Input::load(&path)?;
        let broken = input.run.broken_promises();
        let judged = judge_all(&input.operations, limit);
        let verdicts = judged.iter().flat_map(|one| &one.verdicts);
        let verdicts = verdicts.filter(|(promise, _)| !broken.contains(promise));
        histories += 1;
        operations += judged.iter().map(|one| one.operations).sum::<usize>();
        match verdicts.map(|(_, verdict)| *verdict).max() {
            Some(Verdict::Refused) => {
                println!("REFUSED: {}", path.display());
                refused += 1;
            }
            Some(Verdict::Unknown) => {
                println!("UNKNOWN: {}", path.display());
                unknown += 1;
            }
            Some(Verdict::Accepted) | None => {}
        }
    }
    println!(
        "{histories} histories with {operations} operations: {refused} refused, {unknown} unknown, {:.1} s",
        started_at.elapsed().as_secs_f64()
    );
    if operations == 0 {
        return Err("the histories have no operations".into());
    }
    Ok(match (refused, unknown) {
        (0, 0) => Verdict::Accepted,
        (0, _) => Verdict::Unknown,
        _ => Verdict::Refused,
    })
}
