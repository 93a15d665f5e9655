//! Runs each recipe of `docs/fencing-recipes.md` on a real server or file system, and the Rust recipe of
//! `docs/schedulers.md` with its scheduler.

mod cron;
mod files;
mod mysql;
mod object_store;
mod page;
mod postgres;
mod proof;
mod redis;
mod session;
mod sqlite;
mod store_server;

/// A token of these days, which an earlier holder has.
const OLD_TOKEN: u64 = 1_795_867_843_360_792;
/// The token of the next holder.
const NEW_TOKEN: u64 = OLD_TOKEN + 1;

/// Whether `program` can be started. If not, reports that the current test did not run. `package` has the program.
fn has_program(program: &str, package: &str) -> bool {
    let status = std::process::Command::new(program)
        .arg("--version")
        .stdout(std::process::Stdio::null())
        .status();
    let is_found = status.is_ok_and(|status| status.success());
    if !is_found {
        not_run(&format!(
            "the program {program} is missing: install {package}"
        ));
    }
    is_found
}

/// Reports that the current test did not run, and why.
fn not_run(why: &str) {
    let thread = std::thread::current();
    quorate_testbed::not_run(thread.name().unwrap_or("a test"), why);
}
