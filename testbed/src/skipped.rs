//! Reports tests that could not run, for example because a server is missing.

use std::io::Write;

/// Reports that a test did not run, and why: on standard output, and in the file that the variable `QUORATE_NOT_RUN`
/// names. `scripts/test` counts the lines of that file.
pub fn not_run(test: &str, why: &str) {
    println!("NOT RUN: {test}: {why}");
    let Some(file) = std::env::var_os("QUORATE_NOT_RUN") else {
        return;
    };
    let opened = std::fs::File::options()
        .create(true)
        .append(true)
        .open(file);
    // Use one write per line, because tests in several processes append to the file at the same time.
    if let Ok(mut file) = opened {
        let _ = file.write_all(format!("{test}: {why}\n").as_bytes());
    }
}
