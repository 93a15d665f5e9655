//! The copy of the repository that contains all seeded bugs, and its simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::list::{SeededBug, find};
use crate::copy::{cargo, copy_files, remove_others, write};
use crate::rust::{Body, bodies_of};
use crate::targets;
use crate::tree::SWITCH;
use crate::weave::{Wrap, weave};

/// The file in which the function that asks for the active bug is defined.
const ROOT_MODULE: &str = "src/lib.rs";

/// The files with the version of the packages.
const WITH_VERSIONS: [&str; 2] = ["Cargo.toml", "Cargo.lock"];

/// Returns the text of one of the files [`WITH_VERSIONS`] with another version of the packages of this repository, which
/// fulfils the same requirements.
fn with_other_version(text: &str) -> String {
    let version = concat!("version = \"", env!("CARGO_PKG_VERSION"), "\"\n");
    let other = concat!(
        "version = \"",
        env!("CARGO_PKG_VERSION"),
        "+seeded-bugs\"\n"
    );
    let mut previous_line = "";
    let lines = text.split_inclusive('\n').map(|line| {
        let is_ours = previous_line.starts_with("name = \"quorate")
            || previous_line.starts_with("[workspace.package]");
        previous_line = line;
        if is_ours && line == version {
            other
        } else {
            line
        }
    });
    lines.collect()
}

/// The bodies of one function: the original one, and the changes of each bug by its number.
struct Function {
    body: Body,
    changes: BTreeMap<usize, Vec<(Range<usize>, String)>>,
}

/// Writes the copy with all seeded bugs, and builds its simulation. Returns the program.
pub(super) fn build(root: &Path, bugs: &[SeededBug]) -> Result<PathBuf> {
    let folder = root.join("target/seeded");
    let copy = folder.join("tree");
    let files = targets::tracked(root, &["**"])?;
    let changes = bugs.iter().flat_map(|bug| &bug.change);
    let mut changed: BTreeSet<&str> = changes.map(|change| &*change.file).collect();
    changed.insert(ROOT_MODULE);
    let is_written_later = |file: &str| changed.contains(file) || WITH_VERSIONS.contains(&file);
    let unchanged = files.iter().filter(|file| !is_written_later(file));
    copy_files(root, &copy, unchanged)?;
    remove_others(&copy, &files)?;
    for file in changed {
        let text = fs::read_to_string(root.join(file)).context(file.to_owned())?;
        write(&copy.join(file), weave_file(file, &text, bugs)?.as_bytes())?;
    }
    for file in WITH_VERSIONS {
        let text = fs::read_to_string(root.join(file)).context(file)?;
        write(&copy.join(file), with_other_version(&text).as_bytes())?;
    }
    // Share the folder of the other builds, so that the crates of other projects are built once. The packages of the
    // copy have a version of their own. Otherwise cargo would take what it has built from the copy for the same
    // packages of the repository, and a release could contain seeded bugs.
    let build_folder = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let build_folder = root.join(build_folder.unwrap_or_else(|| "target".into()));
    let (mut programs, errors) = cargo(
        &copy,
        &build_folder,
        &["build", "--release", "-p", "quorate-simulation"],
    )?;
    if !errors.is_empty() {
        let texts: Vec<&str> = errors.iter().map(|error| &*error.message).collect();
        bail!(
            "the copy with the seeded bugs does not compile:\n{}",
            texts.join("\n")
        );
    }
    let program = programs.remove("quorate-simulation");
    let program = program.context("cargo built no simulation")?;
    // The next build without seeded bugs overwrites the program.
    let kept = folder.join("simulation");
    // Another run may execute the old program: then it cannot be overwritten, only replaced.
    let new = folder.join(format!("simulation.{}", std::process::id()));
    fs::copy(program, &new)?;
    fs::rename(&new, &kept)?;
    Ok(kept)
}

/// Returns the text of a file with the seeded bugs. Each changed function gets a body for each of its bugs, and the
/// function `mutant` selects one of them.
fn weave_file(file: &str, text: &str, bugs: &[SeededBug]) -> Result<String> {
    let bodies = bodies_of(text)?;
    let mut functions: BTreeMap<usize, Function> = BTreeMap::new();
    let mut appended = String::from("\n");
    for bug in bugs {
        for change in bug.change.iter().filter(|change| change.file == file) {
            if change.function.is_empty() {
                appended.push_str(&change.after);
                continue;
            }
            let (body, range) = find(change, text, &bodies).context(bug.name.clone())?;
            let function = functions.entry(body.range.start).or_insert(Function {
                body: body.clone(),
                changes: BTreeMap::new(),
            });
            let changes = function.changes.entry(bug.id).or_default();
            changes.push((range, change.after.clone()));
        }
    }
    let krate = if file.starts_with("src/") {
        "crate"
    } else {
        "quorate"
    };
    let mut wraps = Vec::new();
    for Function { body, changes } in functions.into_values() {
        let mut before = String::new();
        for (id, mut edits) in changes {
            edits.sort_by_key(|(range, _)| range.start);
            let overlap = |pair: &[(Range<usize>, String)]| pair[1].0.start < pair[0].0.end;
            ensure!(
                !edits.windows(2).any(overlap),
                "two changes of one seeded bug in {} of {file} overlap",
                body.function
            );
            let changed = changed_body(text, &body.range, &edits);
            write!(before, " if {krate}::mutant({id}) {{{changed}}} else")?;
        }
        wraps.push(wrap(body.range, format!("{before} {{"), "}"));
        // A `const fn` cannot find out which bug is active.
        wraps.extend(body.constant.map(|word| wrap(word, "/*".into(), "*/")));
    }
    let (mut woven, _) = weave(text, wraps);
    woven.push_str(&appended);
    if file == ROOT_MODULE {
        woven.push_str(&SWITCH.replace("{count}", &(bugs.len() + 1).to_string()));
    }
    Ok(woven)
}

fn wrap(range: Range<usize>, before: String, after: &str) -> Wrap {
    Wrap {
        id: None,
        range,
        before,
        after: after.into(),
    }
}

fn changed_body(text: &str, body: &Range<usize>, edits: &[(Range<usize>, String)]) -> String {
    let mut changed = String::new();
    let mut position = body.start;
    for (range, after) in edits {
        changed.push_str(&text[position..range.start]);
        changed.push_str(after);
        position = range.end;
    }
    changed.push_str(&text[position..body.end]);
    changed
}

#[cfg(test)]
mod tests {
    use super::super::list::Change;
    use super::*;

    fn bug(id: usize, changes: &[(&str, &str, &str)]) -> SeededBug {
        let change = |(function, before, after): &(&str, &str, &str)| Change {
            file: "src/a.rs".into(),
            function: (*function).into(),
            before: (*before).into(),
            after: (*after).into(),
        };
        SeededBug {
            id,
            name: String::new(),
            does: String::new(),
            change: changes.iter().map(change).collect(),
            world: false,
            caught: Vec::new(),
        }
    }

    /// If a line had another form, the copy would silently share its builds with the repository.
    #[test]
    fn all_packages_of_the_copy_have_another_version() {
        for file in WITH_VERSIONS {
            let text = fs::read_to_string(targets::root().join(file)).expect("the file must exist");
            let changed = with_other_version(&text);
            let count = changed.matches("+seeded-bugs").count();
            let expected = match file {
                "Cargo.toml" => 1,
                _ => text.matches("\nname = \"quorate").count(),
            };
            assert!(
                count == expected && count > 0,
                "{file}: {count} of {expected}"
            );
        }
    }

    #[test]
    fn woven_function_has_a_body_for_each_of_its_bugs() {
        let text = "impl A {\n    const fn f(a: u8) -> u8 { a + 1 - a }\n}\nfn f() {}\n";
        let bugs = [
            bug(1, &[("A::f", "+ 1", "+ 2"), ("A::f", "- a", "")]),
            bug(2, &[("A::f", "a+1", "7")]),
        ];
        let woven = weave_file("src/a.rs", text, &bugs).expect("the changes must fit");
        assert_eq!(
            woven,
            "impl A {\n    /*const*/ fn f(a: u8) -> u8 { if crate::mutant(1) { a + 2  } else if \
             crate::mutant(2) { 7 - a } else { a + 1 - a }}\n}\nfn f() {}\n\n"
        );
        let twice = bug(3, &[("A::f", "a", "b")]);
        assert!(weave_file("src/a.rs", text, &[twice]).is_err());
        let overlapping = bug(4, &[("A::f", "a + 1", "0"), ("A::f", "1 - a", "0")]);
        assert!(weave_file("src/a.rs", text, &[overlapping]).is_err());
    }
}
