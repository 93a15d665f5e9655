//! Which code is mutated. The only place that knows paths: when files move, they move here.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The code that decides, as patterns of git. One that matches nothing is an error: a file that
/// moved would be left out without a word.
const DECIDING: &[&str] = &[
    "src/protocol/*.rs",
    "src/limit.rs",
    "src/sets.rs",
    "src/change.rs",
    "src/rounds/*.rs",
    "src/waiting/*.rs",
    "src/hold/*.rs",
    "src/acquire/*.rs",
    "src/node/actor/*.rs",
    "src/node/redis/link.rs",
    "src/node/redis/online.rs",
    "src/node/redis/runs.rs",
    "src/node/redis/many.rs",
    "src/node/redis/handshake.rs",
    "src/node/redis/deletion.rs",
    "src/node/actor/trust.rs",
    "src/node/redis/raised.rs",
    "src/scripts/**/*.lua",
];

/// The function of the library that puts a script together, as everybody reads it: there a script
/// is exchanged for its mutant.
pub(crate) const ASSEMBLES_SCRIPTS: &str = "with_parts";

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// The files under version control that match, or all of them.
pub(crate) fn tracked(root: &Path, patterns: &[&str]) -> Result<Vec<String>> {
    let patterns = patterns.iter().map(|pattern| format!(":(glob){pattern}"));
    let listed = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-z", "--"])
        .args(patterns)
        .output()
        .context("git ls-files")?;
    ensure!(listed.status.success(), "git ls-files: {}", listed.status);
    let listed = String::from_utf8(listed.stdout)?;
    let files = listed.split_terminator('\0').map(str::to_owned);
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}

/// The files that are mutated, with what they say.
pub(crate) fn deciding(root: &Path) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for pattern in DECIDING {
        let matching = tracked(root, &[pattern])?;
        ensure!(
            !matching.is_empty(),
            "no file matches {pattern}: name its new place in mutants/src/targets.rs"
        );
        for file in matching {
            // Tests of a file that stand beside it.
            if !file.ends_with("tests.rs") {
                let text = std::fs::read_to_string(root.join(&file)).context(file.clone())?;
                files.push((file, text));
            }
        }
    }
    Ok(files)
}
