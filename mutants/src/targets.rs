//! The list of the library's files that are mutated. No other file of this package names files of the library.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// The files with the code that decides about locks, as git patterns. A pattern that matches no file is an error;
/// otherwise the mutants of a file that was moved would disappear silently.
const MUTATED_FILES: &[&str] = &[
    "src/protocol/*.rs",
    "src/fence.rs",
    "src/limit.rs",
    "src/retry.rs",
    "src/keys.rs",
    "src/sets.rs",
    "src/masters_change.rs",
    "src/masters_change/*.rs",
    "src/rounds/*.rs",
    "src/waiting/**/*.rs",
    "src/hold/*.rs",
    "src/acquire/*.rs",
    "src/kinds/*.rs",
    "src/values/*.rs",
    "src/node/change.rs",
    "src/node/fault.rs",
    "src/node/note.rs",
    "src/node/answer.rs",
    "src/node/claim.rs",
    "src/node/reply.rs",
    "src/node/request.rs",
    "src/node/shape.rs",
    "src/node/token.rs",
    "src/node/value.rs",
    "src/node/wake.rs",
    "src/node/actor/*.rs",
    "src/node/memory/*.rs",
    "src/node/store/*.rs",
    "src/node/store/session_task/*.rs",
    "src/node/redis/ages.rs",
    "src/node/redis/change.rs",
    "src/node/redis/link.rs",
    "src/node/redis/online.rs",
    "src/node/redis/settle.rs",
    "src/node/redis/votes.rs",
    "src/node/redis/runs.rs",
    "src/node/redis/many.rs",
    "src/node/redis/handshake.rs",
    "src/node/redis/deletion.rs",
    "src/node/redis/raised.rs",
    "src/node/redis/resp.rs",
    "src/node/redis/script.rs",
    "src/node/redis/loaded.rs",
    "src/node/redis/encode.rs",
    "src/node/redis/decode.rs",
    "src/node/actor/panicked.rs",
    "src/node/redis/connecting.rs",
    "src/node/redis/refusal.rs",
    "src/node/redis/denied.rs",
    "src/scripts/**/*.lua",
];

/// Files that match [`MUTATED_FILES`] but are not mutated, because only tests and simulations use their code.
const FOR_TESTS: &[&str] = &[
    "src/node/memory/intercepted.rs",
    "src/node/memory/orders.rs",
    "src/node/store/faulty.rs",
    "src/node/store/record_access.rs",
    "src/node/store/table.rs",
];

/// The name of the library function that assembles Lua scripts. In the mutated copy, its result passes through
/// `mutated_script`.
pub(crate) const ASSEMBLES_SCRIPTS: &str = "with_parts";

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_path_buf()
}

/// Returns the files under version control that match one of the patterns.
pub(crate) fn tracked(root: &Path, patterns: &[&str]) -> Result<Vec<String>> {
    let patterns = patterns.iter().map(|pattern| format!(":(glob){pattern}"));
    let git_output = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-z", "--"])
        .args(patterns)
        .output()
        .context("git ls-files")?;
    ensure!(
        git_output.status.success(),
        "git ls-files: {}",
        git_output.status
    );
    let git_text = String::from_utf8(git_output.stdout)?;
    let files = git_text.split_terminator('\0').map(str::to_owned);
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}

/// Returns the path and the text of each file that is mutated.
pub(crate) fn mutated_files(root: &Path) -> Result<Vec<(String, String)>> {
    let mut files = BTreeMap::new();
    for file in FOR_TESTS {
        ensure!(
            root.join(file).is_file(),
            "the file {file} does not exist: correct its path in mutants/src/targets.rs"
        );
    }
    for pattern in MUTATED_FILES {
        let matching = tracked(root, &[pattern])?;
        ensure!(
            !matching.is_empty(),
            "no file matches {pattern}: correct the pattern in mutants/src/targets.rs"
        );
        for file in matching {
            // Skip files with unit tests (`tests.rs`) or loom models (`models.rs`).
            let is_test_code = file.ends_with("tests.rs") || file.ends_with("models.rs");
            if !is_test_code && !FOR_TESTS.contains(&&*file) {
                let text = std::fs::read_to_string(root.join(&file)).context(file.clone())?;
                files.insert(file, text);
            }
        }
    }
    Ok(files.into_iter().collect())
}
