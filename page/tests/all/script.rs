//! The types of the script of the page are checked.

use std::path::Path;
use std::process::Command;

use quorate_testbed::not_run;

use crate::served::{program, tools};

#[test]
fn types_of_the_script_are_right() {
    let name = "types_of_the_script_are_right";
    let compiler = tools().join("node_modules/.bin/tsc");
    if program(&["node"]).is_none() || !compiler.exists() {
        not_run(
            name,
            "node or typescript is not installed (npm ci --prefix page/tests/browser)",
        );
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/page.js");
    let output = Command::new(compiler)
        .args([
            "--checkJs",
            "--allowJs",
            "--noEmit",
            "--strict",
            "--target",
            "es2022",
            "--module",
            "es2022",
        ])
        .args([
            "--moduleDetection",
            "force",
            "--lib",
            "es2023,dom,dom.iterable",
        ])
        .arg(script)
        .output()
        .expect("the compiler runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}
