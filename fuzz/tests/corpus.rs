//! Passes all files of `fuzz/corpus` to their targets.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use quorate_fuzz::{Depth, TARGETS, is_expected};

/// The panics of all threads. The library turns a panic in the work for one master into a fault, which a target would
/// not notice.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The largest time for one input. A target that loops is noticed, and a busy machine does no harm.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn every_file_of_the_corpus_passes_through_its_target_without_a_panic() {
    std::panic::set_hook(Box::new(|panic| {
        if is_expected(panic) {
            return;
        }
        PANICS
            .lock()
            .expect("no panic here")
            .push(panic.to_string());
    }));
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut problems = Vec::new();
    for (name, target) in TARGETS {
        let folder = std::fs::read_dir(corpus.join(name)).expect("each target has a corpus");
        let (mut files, mut accepted_files) = (0, 0);
        for entry in folder {
            let path = entry.expect("a readable folder").path();
            let input = std::fs::read(&path).expect("a readable file");
            let started_at = Instant::now();
            let depth = std::panic::catch_unwind(|| target(&input));
            if started_at.elapsed() > PATIENCE {
                problems.push(format!("{}: {:?}", path.display(), started_at.elapsed()));
            }
            let panics = std::mem::take(&mut *PANICS.lock().expect("no panic here"));
            problems.extend(
                panics
                    .iter()
                    .map(|panic| format!("{}: {panic}", path.display())),
            );
            if depth.is_err() {
                problems.push(format!("{}: the target panicked", path.display()));
            }
            files += 1;
            accepted_files += usize::from(depth.is_ok_and(|depth| depth == Depth::Accepted));
        }
        if files < 4 || accepted_files < 2 {
            problems.push(format!(
                "{name}: only {accepted_files} of {files} files reach the parser: record them again"
            ));
        }
    }
    drop(std::panic::take_hook());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
