//! The house keeps its order: imports point down, and no two files need each other.
//!
//! Read from the sources as they stand: what a file names by a path that begins with `crate`, `super` or `self`,
//! tests left out. Paths to a file's own modules are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The floors of `src/`, the lowest first. A file may name what stands on its own floor or below.
const FLOORS: [&[&str]; 12] = [
    &["protocol"],
    &[
        "clock", "runtime", "retry", "settings", "resource", "outcome", "limit", "metrics", "sync",
    ],
    &["node"],
    &["report", "gather"],
    &["error"],
    &["options", "tls"],
    &["coordinator"],
    &["waiting", "held", "renewal"],
    &["core"],
    &["campaign", "guard"],
    &["redlock"],
    &["builder", "testing", "lib"],
];

/// How many files of a package stand in circles today. May only shrink.
const CIRCLES: [(&str, usize); 5] = [
    ("src", 0),
    ("testbed/src", 0),
    ("cli/src", 6),
    ("simulation/src", 0),
    ("chaos/src", 9),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|kind| kind == "rs") && !path.ends_with("tests.rs") {
            into.push(path);
        }
    }
}

/// The module of a file: `node::redis::link`; none for the root.
fn module(path: &Path, base: &Path) -> Vec<String> {
    let inside = path.strip_prefix(base).expect("inside").with_extension("");
    let parts = inside
        .iter()
        .map(|part| part.to_string_lossy().into_owned());
    let mut parts: Vec<String> = parts.collect();
    if matches!(
        parts.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        parts.pop();
    }
    parts
}

/// The paths in one `use`, braces spread out.
fn spread(text: &str) -> Vec<String> {
    let Some(open) = text.find('{') else {
        return vec![text.trim().to_owned()];
    };
    let (before, inside) = (&text[..open], &text[open + 1..]);
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for c in inside.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => parts.push(String::new()),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                parts.last_mut().expect("one at least").push(c);
            }
        }
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts
        .flat_map(|part| spread(&format!("{before}{}", part.trim())))
        .collect()
}

type Arrows = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

/// The module that a path leads to, from where it stands; none outside of the package.
fn target(from: &[String], path: &str, modules: &BTreeSet<Vec<String>>) -> Option<Vec<String>> {
    let mut words = path.split("::").map(|word| word.trim().to_owned());
    let mut at = match words.next().as_deref() {
        Some("crate") => Vec::new(),
        Some("super") => from[..from.len().saturating_sub(1)].to_vec(),
        Some("self") => from.to_vec(),
        _ => return None,
    };
    for word in words {
        if word == "super" {
            at.pop();
            continue;
        }
        let mut next = at.clone();
        next.push(word);
        if !modules.contains(&next) {
            break;
        }
        at = next;
    }
    Some(at)
}

/// Which module names which.
fn arrows(base: &Path) -> Arrows {
    let mut files = Vec::new();
    sources(base, &mut files);
    let modules: BTreeSet<_> = files.iter().map(|file| module(file, base)).collect();
    let mut arrows = Arrows::new();
    for file in &files {
        let from = module(file, base);
        let text = std::fs::read_to_string(file).expect("a source");
        let code = text.split("\nmod tests {").next().unwrap_or_default();
        let models = "\n#[cfg(all(test, quorate_loom))]";
        let code = code.split(models).next().unwrap_or_default();
        let lines: Vec<&str> = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect();
        let code = lines.join("\n");
        let to = arrows.entry(from.clone()).or_default();
        let of_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        for named in code.split("crate::").skip(1) {
            let path = named.split(|c| !of_path(c)).next().unwrap_or_default();
            let at = target(&from, &format!("crate::{path}"), &modules);
            // Braces, and what the root says is public, lead to no file.
            to.extend(at.filter(|at| !at.is_empty() && *at != from));
        }
        for import in code
            .split("\nuse ")
            .skip(1)
            .chain(code.split("\n    use ").skip(1))
        {
            let import = import
                .split(';')
                .next()
                .unwrap_or_default()
                .replace('\n', " ");
            for path in spread(&import) {
                to.extend(
                    target(&from, &path, &modules)
                        .into_iter()
                        .filter(|at| *at != from),
                );
            }
        }
    }
    arrows
}

/// The files that can be reached from themselves.
fn in_circles(arrows: &Arrows) -> Vec<&Vec<String>> {
    let reaches = |start: &Vec<String>| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<_> = arrows[start].iter().collect();
        while let Some(at) = next.pop() {
            if at == start {
                return true;
            }
            if seen.insert(at) {
                next.extend(arrows.get(at).into_iter().flatten());
            }
        }
        false
    };
    arrows.keys().filter(|start| reaches(start)).collect()
}

#[test]
fn no_more_files_stand_in_circles_than_are_listed() {
    for (package, most) in CIRCLES {
        let arrows = arrows(&root().join(package));
        assert!(arrows.len() > 5, "{package} has sources");
        let circles = in_circles(&arrows);
        let names: Vec<String> = circles.iter().map(|file| file.join("/")).collect();
        assert!(
            names.len() <= most,
            "{package}: {} files in circles, {most} are listed: {names:?}",
            names.len()
        );
        assert!(
            names.len() == most,
            "{package}: {} files are left in circles, lower the list from {most}: {names:?}",
            names.len()
        );
    }
}

#[test]
fn the_library_points_down() {
    let floor = |module: &[String]| {
        let room = module.first().map_or("lib", String::as_str);
        let found = FLOORS.iter().position(|rooms| rooms.contains(&room));
        found.unwrap_or_else(|| panic!("{room} has no floor: give it one"))
    };
    let mut back = Vec::new();
    for (from, all) in arrows(&root().join("src")) {
        for to in all {
            // The root only says what is public.
            if !from.is_empty() && floor(&to) > floor(&from) {
                back.push(format!("{} -> {}", from.join("/"), to.join("/")));
            }
        }
    }
    assert!(back.is_empty(), "upwards: {back:#?}");
}

#[test]
fn the_core_of_the_protocol_names_nothing_but_itself() {
    for (from, all) in arrows(&root().join("src")) {
        if from.first().is_some_and(|room| room == "protocol") {
            let outside: Vec<_> = all.iter().filter(|to| to.first() != from.first()).collect();
            assert!(outside.is_empty(), "{from:?} -> {outside:?}");
        }
    }
}
