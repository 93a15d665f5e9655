//! Reports tests that could not run, for example because a server is missing.

use std::io::Write;

/// Prints that the test `test` did not run, and the reason `why`. If the environment variable `QUORATE_NOT_RUN` names a
/// file, appends a line to it. `scripts/test` counts these lines.
pub fn not_run(test: &str, why: &str) {
    println!("NOT RUN: {test}: {why}");
    let Some(path) = std::env::var_os("QUORATE_NOT_RUN") else {
        return;
    };
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path);
    // Write each line with one call, because several test processes append to the file.
    if let Ok(mut path) = log {
        let _ = path.write_all(format!("{test}: {why}\n").as_bytes());
    }
}
