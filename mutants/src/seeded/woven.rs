//! The copy of the repository that contains all seeded bugs, and its simulation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::list::{Bound, SeededBug, find, find_in_script, is_script};
use crate::copy::{cargo, copy_files, remove_others, write};
use crate::rust::{self, Body, bodies_of};
use crate::targets;
use crate::tree::SWITCH;
use crate::weave::{Wrap, weave};

/// The file in which the function that asks for the active bug is defined.
const ROOT_MODULE: &str = "src/lib.rs";

/// The file with the function that assembles Lua scripts.
const SCRIPT_ASSEMBLER: &str = "src/node/redis/source.rs";

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

/// The manifests of the packages with the programs of the copy.
const WITH_PROGRAMS: [&str; 2] = ["chaos/Cargo.toml", "simulation/Cargo.toml"];

/// Returns the text of one of the manifests [`WITH_PROGRAMS`] with another name of the program. Otherwise the program
/// would replace the program of the repository in the shared folder, and tests would start it.
fn with_other_program(text: &str) -> Result<String> {
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    let name = name.context("a manifest has no name")?;
    let text = text.replacen("[package]\n", "[package]\nautobins = false\n", 1);
    Ok(format!(
        "{text}\n[[bin]]\nname = \"{name}{PROGRAM_SUFFIX}\"\npath = \"src/main.rs\"\n"
    ))
}

/// The end of the names of the programs of the copy.
const PROGRAM_SUFFIX: &str = "-with-seeded-bugs";

/// The bodies of one function: the original one, and the changes of each bug by its number.
struct Function {
    body: Body,
    changes: BTreeMap<usize, Vec<(Range<usize>, String)>>,
}

/// The simulation, and how cargo builds it.
const SIMULATION: (&str, &[&str]) = (
    "quorate-simulation",
    &["build", "--release", "-p", "quorate-simulation"],
);

/// The program of the chaos runs, and how cargo builds it. The packages, features and profile are those of
/// `scripts/test`, so that cargo builds the crates of other projects once. A chaos run waits most of the time, so it needs
/// no optimizations.
const CHAOS: (&str, &[&str]) = (
    "quorate-chaos",
    &[
        "build",
        "--workspace",
        "--exclude",
        "quorate-simulation",
        "--all-features",
        "--bin",
        "quorate-chaos-with-seeded-bugs",
    ],
);

/// The programs of the copy.
pub(super) struct Programs {
    pub(super) simulation: PathBuf,
    pub(super) chaos: PathBuf,
}

/// Writes the copy with all seeded bugs, and builds the programs that judge `selected`.
pub(super) fn build(root: &Path, bugs: &[SeededBug], selected: &[&SeededBug]) -> Result<Programs> {
    let folder = root.join("target/seeded");
    let copy = folder.join("tree");
    let files = targets::tracked(root, &["**"])?;
    let changes = bugs.iter().flat_map(|bug| &bug.change);
    let mut changed: BTreeSet<&str> = changes.map(|change| &*change.file).collect();
    changed.extend([ROOT_MODULE, SCRIPT_ASSEMBLER]);
    let is_written_later = |file: &str| {
        changed.contains(file) || WITH_VERSIONS.contains(&file) || WITH_PROGRAMS.contains(&file)
    };
    let unchanged = files.iter().filter(|file| !is_written_later(file));
    copy_files(root, &copy, unchanged)?;
    remove_others(&copy, &files)?;
    for file in changed {
        let text = fs::read_to_string(root.join(file)).context(file.to_owned())?;
        let woven = if is_script(file) {
            weave_script(file, &text, bugs)?
        } else {
            weave_file(file, &text, bugs)?
        };
        write(&copy.join(file), woven.as_bytes())?;
    }
    for file in WITH_VERSIONS {
        let text = fs::read_to_string(root.join(file)).context(file)?;
        write(&copy.join(file), with_other_version(&text).as_bytes())?;
    }
    for file in WITH_PROGRAMS {
        let text = fs::read_to_string(root.join(file)).context(file)?;
        write(
            &copy.join(file),
            with_other_program(&text).context(file)?.as_bytes(),
        )?;
    }
    // Share the folder of the other builds, so that the crates of other projects are built once. The packages of the
    // copy have a version of their own. Otherwise cargo would take what it has built from the copy for the same
    // packages of the repository, and a release could contain seeded bugs.
    let build_folder = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let build_folder = root.join(build_folder.unwrap_or_else(|| "target".into()));
    let bounds = selected.iter().flat_map(|bug| &bug.caught);
    let (searches, runs): (Vec<Bound>, Vec<Bound>) = bounds
        .map(|caught| caught.bound)
        .partition(|bound| matches!(bound, Bound::Seeds(_)));
    for ((name, arguments), judgements) in [(SIMULATION, searches), (CHAOS, runs)] {
        if judgements.is_empty() {
            continue;
        }
        let (programs, errors) = cargo(&copy, &build_folder, arguments)?;
        if !errors.is_empty() {
            let texts: Vec<&str> = errors.iter().map(|error| &*error.message).collect();
            bail!(
                "the copy with the seeded bugs does not compile:\n{}",
                texts.join("\n")
            );
        }
        let program = programs.get(&format!("{name}{PROGRAM_SUFFIX}"));
        let program = program.with_context(|| format!("cargo built no {name}"))?;
        // Another run may execute the old program: then it cannot be overwritten, only replaced.
        let new = folder.join(format!("{name}.{}", std::process::id()));
        fs::copy(program, &new)?;
        fs::rename(&new, folder.join(name))?;
    }
    Ok(Programs {
        simulation: folder.join(SIMULATION.0),
        chaos: folder.join(CHAOS.0),
    })
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
    if file == SCRIPT_ASSEMBLER {
        let body = rust::body_of(text, targets::ASSEMBLES_SCRIPTS);
        let body = body.context("the function that assembles Lua scripts")?;
        wraps.push(wrap(body, " crate::mutated_script({ ".into(), " }) "));
    }
    let (mut woven, _) = weave(text, wraps);
    woven.push_str(&appended);
    if file == ROOT_MODULE {
        woven.push_str(&SWITCH.replace("{count}", &(bugs.len() + 1).to_string()));
    }
    Ok(woven)
}

/// Returns the text of a Lua script with the seeded bugs. Each changed line is followed by the line of each bug, in the
/// form that `mutated_script` reads.
fn weave_script(file: &str, text: &str, bugs: &[SeededBug]) -> Result<String> {
    let mut other_lines: BTreeMap<usize, String> = BTreeMap::new();
    for bug in bugs {
        for change in bug.change.iter().filter(|change| change.file == file) {
            let range = find_in_script(change, text).context(bug.name.clone())?;
            let line_start = text[..range.start].rfind('\n').map_or(0, |end| end + 1);
            let line_end = range.end
                + text[range.end..]
                    .find('\n')
                    .unwrap_or(text.len() - range.end);
            let (head, tail) = (&text[line_start..range.start], &text[range.end..line_end]);
            let other_line = other_lines.entry(line_end).or_default();
            write!(other_line, " --@{} {head}{}{tail}", bug.id, change.after)?;
        }
    }
    let mut woven = text.to_owned();
    for (line_end, other_line) in other_lines.into_iter().rev() {
        woven.insert_str(line_end, &other_line);
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

    /// If a program had the same name, it would replace the program of the repository, and tests would start it.
    #[test]
    fn programs_of_the_copy_have_other_names() {
        for (file, (name, _)) in WITH_PROGRAMS.into_iter().zip([CHAOS, SIMULATION]) {
            let text = fs::read_to_string(targets::root().join(file)).expect("the file must exist");
            let changed = with_other_program(&text).expect("the manifest must have a name");
            assert!(!text.contains("[[bin]]") && !text.contains("autobins"));
            assert_eq!(changed.matches("autobins = false").count(), 1);
            assert!(changed.contains(&format!("[[bin]]\nname = \"{name}{PROGRAM_SUFFIX}\"\n")));
        }
        assert_eq!(
            CHAOS.1.last().copied(),
            Some(&*format!("{}{PROGRAM_SUFFIX}", CHAOS.0))
        );
    }

    #[test]
    fn woven_script_has_a_line_for_each_of_its_bugs() {
        let change = |id, before: &str, after: &str| SeededBug {
            change: vec![Change {
                file: "a.lua".into(),
                function: String::new(),
                before: before.into(),
                after: after.into(),
            }],
            ..bug(id, &[])
        };
        let text = "local a = 1\nif a then\n  return b\nend\n";
        let bugs = [change(1, "return b", "return c"), change(2, "b", "0")];
        let woven = weave_script("a.lua", text, &bugs).expect("the changes must fit");
        assert_eq!(
            woven,
            "local a = 1\nif a then\n  return b --@1   return c --@2   return 0\nend\n"
        );
        for before in ["a", "return b end", "x"] {
            assert!(weave_script("a.lua", text, &[change(1, before, "")]).is_err());
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
