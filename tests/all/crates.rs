//! If a program uses quorate only with Redis, Cargo must not compile the crates for MySQL, MariaDB, PostgreSQL or
//! ZooKeeper.

use std::collections::BTreeSet;
use std::process::Command;

use crate::support;

/// The names of all crates that Cargo compiles for the library `quorate` with the features in `features`.
fn packages_with_features(features: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree_output = Command::new(cargo)
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
    let error_text = String::from_utf8_lossy(&tree_output.stderr);
    assert!(tree_output.status.success(), "{error_text}");
    let tree_text = String::from_utf8_lossy(&tree_output.stdout).into_owned();
    tree_text
        .lines()
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect()
}

#[test]
fn program_that_uses_only_redis_compiles_no_crate_for_other_kinds_of_masters() {
    let packages = packages_with_features("");
    assert!(packages.contains("quorate") && !packages.contains("redis"));
    assert!(packages_with_features("redis").contains("redis"));
    for name in &packages {
        let other_kinds = support::kinds_of_nodes();
        let is_of = |kind: &String| name.contains(kind.as_str());
        assert!(!other_kinds.iter().any(is_of), "{name}");
    }
    // The feature `node` (the traits for other kinds of masters) adds no crate.
    assert_eq!(packages_with_features("node"), packages);
    assert_ne!(
        packages_with_features("tls-rustls"),
        packages,
        "the feature must add crates to the list, or this test compares nothing"
    );
}

#[test]
fn bill_of_materials_lists_exactly_the_crates_of_the_command() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree_output = Command::new(cargo)
        .current_dir(root)
        .args(["tree", "--offline", "--package", "quorate-cli"])
        .args(["--edges", "normal,build", "--prefix", "none"])
        .args(["--format", "{p}"])
        .output()
        .expect("cargo runs");
    assert!(tree_output.status.success(), "{tree_output:?}");
    let tree_text = String::from_utf8_lossy(&tree_output.stdout).into_owned();
    let package = |line: &str| {
        let mut words = line.split(' ');
        let (name, version) = (words.next()?, words.next()?);
        Some(format!(
            "pkg:cargo/{name}@{}",
            version.trim_start_matches('v')
        ))
    };
    let wanted: BTreeSet<String> = tree_text.lines().filter_map(package).collect();
    assert!(wanted.len() > 100, "{wanted:?}");
    // A crate that only the build script of another crate uses.
    assert!(wanted.iter().any(|url| url.contains("cargo/cc@")));

    let output = Command::new(root.join("scripts/bill-of-materials"))
        .output()
        .expect("the script runs");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let listed_urls = text.split("\"purl\": \"").skip(1);
    let listed_urls: Vec<&str> = listed_urls
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let distinct: BTreeSet<String> = listed_urls.iter().map(|url| (*url).to_owned()).collect();
    assert_eq!(distinct, wanted);
    assert_eq!(
        listed_urls.len(),
        distinct.len(),
        "no crate is listed twice"
    );
    for line in text.lines().filter(|line| line.contains("\"purl\"")) {
        assert!(line.contains("\"expression\""), "no license: {line}");
        let is_ours = line.contains("pkg:cargo/quorate");
        assert_eq!(line.contains("SHA-256"), !is_ours, "checksum: {line}");
    }
}
