//! If a program uses quorate only with Redis, Cargo must not compile the crates for MySQL, MariaDB or ZooKeeper.

use std::collections::BTreeSet;
use std::process::Command;

/// The names of all crates that Cargo compiles for the library `quorate` with the features in `features`.
fn crates(features: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args([
            "tree",
            "--offline",
            "--package",
            "quorate",
            "--edges",
            "normal,build",
        ])
        .args([
            "--prefix",
            "none",
            "--format",
            "{p}",
            "--features",
            features,
        ])
        .output()
        .expect("cargo runs");
    let said = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{said}");
    let tree = String::from_utf8_lossy(&tree.stdout).into_owned();
    tree.lines()
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect()
}

#[test]
fn program_that_uses_only_redis_compiles_no_crate_for_other_kinds_of_masters() {
    let alone = crates("");
    assert!(alone.contains("quorate") && alone.contains("redis"));
    for name in &alone {
        let other = ["mysql", "maria", "zookeeper"];
        assert!(!other.iter().any(|kind| name.contains(kind)), "{name}");
    }
    // The feature `node` (the traits for other kinds of masters) adds no crate.
    assert_eq!(crates("node"), alone);
    assert_ne!(
        crates("tls-rustls"),
        alone,
        "the feature must add crates to the list, or this test compares nothing"
    );
}
