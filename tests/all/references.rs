//! Tests that the references in comments and on pages have targets: links, headings, files, and names of tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::repository::{FOREIGN_FOLDERS, File, files, root};

/// The file name extensions by which the tests recognize a reference to a file.
const FILE_ENDINGS: [&str; 9] = [
    ".rs", ".lua", ".md", ".toml", ".yml", ".yaml", ".json", ".svg", ".txt",
];

/// A name in backticks with at least this number of underscores must be the name of a test. [`NO_TESTS`] lists the
/// exceptions.
const TEST_UNDERSCORES: usize = 4;

/// Names of settings and metrics that are long enough to be mistaken for names of tests.
const NO_TESTS: [&str; 3] = [
    "innodb_flush_log_at_trx_commit",
    "Innodb_master_thread_idle_loops",
    "quorate_run_last_success_time_seconds",
];

impl File {
    /// The prose of this file: a page without its code blocks, or the comments of a code file. Each line of the result
    /// is one paragraph. So the test finds a reference that the file breaks over two lines.
    fn prose(&self) -> Vec<String> {
        let mut paragraphs = vec![String::new()];
        let mut is_code = false;
        for line in self.text.lines().map(str::trim) {
            let line = match self.comment() {
                None if line.starts_with("```") => {
                    is_code = !is_code;
                    None
                }
                None if is_code => line.starts_with("scripts/").then_some(line),
                None => Some(line),
                Some(start) => line
                    .strip_prefix(start)
                    .map(|line| line.trim_start_matches(['/', '!', '#']).trim()),
            };
            match line {
                Some(line) if !line.is_empty() && !line.starts_with('|') => {
                    let paragraph = paragraphs.last_mut().expect("the list must not be empty");
                    *paragraph += line;
                    *paragraph += " ";
                }
                line => {
                    paragraphs.push(line.unwrap_or_default().to_owned());
                    paragraphs.push(String::new());
                }
            }
        }
        paragraphs.retain(|paragraph| !paragraph.is_empty());
        paragraphs
    }
}

/// The anchor that a Markdown renderer gives to a heading.
fn anchor_of(heading: &str) -> String {
    let letters = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter
            .is_alphanumeric()
            .then(|| letter.to_ascii_lowercase()),
    });
    letters.collect()
}

/// The pages of the repository: for each path, the headings of the page.
struct Pages(BTreeMap<PathBuf, BTreeSet<String>>);

impl Pages {
    fn collect(files: &[File]) -> Self {
        let pages = files.iter().filter(|file| file.is_page()).map(|file| {
            let mut is_code = false;
            let headings = file.text.lines().filter_map(|line| {
                is_code ^= line.starts_with("```");
                let heading = line.trim_start_matches('#');
                (!is_code && line.starts_with('#')).then(|| heading.trim().to_owned())
            });
            (file.path.clone(), headings.collect())
        });
        Self(pages.collect())
    }

    /// Whether the page at this path has a heading for which `matches` is true.
    fn has_heading(&self, path: &Path, matches: impl Fn(&String) -> bool) -> bool {
        let headings = self.0.get(path);
        headings.is_some_and(|headings| headings.iter().any(matches))
    }
}

/// The path `folder/path`, with each `..` resolved.
fn join_path(folder: &Path, path: &str) -> PathBuf {
    let mut joined = folder.to_owned();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(joined.pop()),
            part => joined.push(part),
        }
    }
    joined
}

/// The file that a reference in this file leads to. The path may be relative to any folder above the file, to `docs/`
/// or to `src/`. `None` if there is no such file.
fn resolve_path(file: &File, path: &str) -> Option<PathBuf> {
    let above = file.path.ancestors().skip(1);
    let mut folders = above.chain([Path::new("docs"), Path::new("src")]);
    folders.find_map(|folder| {
        let path = join_path(folder, path);
        root().join(&path).exists().then_some(path)
    })
}

/// The result of checking one kind of reference: the number of references found, and a text for each reference without
/// a target.
#[derive(Default)]
struct ReferenceCheck {
    count: usize,
    broken_references: Vec<String>,
}

impl ReferenceCheck {
    fn record(&mut self, file: &File, reference: &str, is_there: bool) {
        self.count += 1;
        if !is_there {
            self.broken_references
                .push(format!("{}: {reference}", file.path.display()));
        }
    }

    /// Fails if a reference has no target, or if fewer than `minimum` references were found.
    fn assert_all_resolve(self, kind: &str, minimum: usize) {
        let (count, broken_references) = (self.count, self.broken_references.join("\n"));
        println!("{count} {kind}");
        assert!(
            broken_references.is_empty(),
            "these {kind} have no target:\n{broken_references}"
        );
        assert!(count >= minimum, "too few {kind} were found: {count}");
    }
}

/// The texts between single backticks.
fn code_spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_path_character(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "_-./".contains(letter)
}

fn is_path(text: &str) -> bool {
    text.chars().all(is_path_character)
}

#[test]
fn links_on_pages_lead_to_files_and_headings_that_exist() {
    let files = files();
    let pages = Pages::collect(&files);
    let mut checked = ReferenceCheck::default();
    for file in files.iter().filter(|file| file.is_page()) {
        for paragraph in file.prose() {
            let inline_links = paragraph.split("](").skip(1);
            let inline_links = inline_links.filter_map(|rest| rest.split(')').next());
            let link_definition = paragraph.split_once("]: ").map(|(_, target)| target.trim());
            for link in inline_links.chain(link_definition.filter(|_| paragraph.starts_with('['))) {
                if link.contains("://") {
                    continue;
                }
                let (path, heading) = link.split_once('#').unwrap_or((link, ""));
                let folder = file.path.parent().unwrap_or(Path::new(""));
                let target = if path.is_empty() {
                    file.path.clone()
                } else {
                    join_path(folder, path)
                };
                let has_heading = heading.is_empty()
                    || pages.has_heading(&target, |text| anchor_of(text) == heading);
                let is_there = root().join(&target).exists() && has_heading;
                checked.record(file, link, is_there);
            }
        }
    }
    checked.assert_all_resolve("links", 100);
}

/// The heading that is cited after the name of a page, as in `docs/protocol.md, "Renewal"`. `None` if no heading is
/// cited.
fn cited_heading(rest: &str) -> Option<&str> {
    let rest = rest.trim_start_matches(['`', ')']);
    let rest = rest.strip_prefix(", \"").or(rest.strip_prefix(" \""))?;
    rest.split_once('"').map(|(heading, _)| heading)
}

/// The paths of the pages that a paragraph names, each with the text after the path.
fn named_pages(paragraph: &str) -> impl Iterator<Item = (&str, &str)> {
    let ends = paragraph
        .match_indices(".md")
        .map(|(at, end)| at + end.len());
    let parts = ends.map(|end| paragraph.split_at(end));
    let named_pages = parts.map(|(before, rest)| {
        let start = before.rfind(|letter| !is_path_character(letter));
        (&before[start.map_or(0, |start| start + 1)..], rest)
    });
    named_pages.filter(|(path, rest)| {
        let is_longer = rest.starts_with(|letter: char| letter.is_alphanumeric());
        let is_url = path.starts_with("//");
        *path != ".md" && !is_longer && !is_url && !rest.starts_with("](")
    })
}

#[test]
fn pages_and_headings_cited_in_comments_and_on_pages_exist() {
    let files = files();
    let pages = Pages::collect(&files);
    let (mut page_check, mut heading_check) =
        (ReferenceCheck::default(), ReferenceCheck::default());
    for file in &files {
        for paragraph in file.prose() {
            for (path, rest) in named_pages(&paragraph) {
                let target = resolve_path(file, path);
                page_check.record(file, path, target.is_some());
                if let (Some(heading), Some(target)) = (cited_heading(rest), target) {
                    let is_there = pages.has_heading(&target, |text| text == heading);
                    heading_check.record(file, &format!("{path}, {heading:?}"), is_there);
                }
            }
        }
    }
    page_check.assert_all_resolve("names of pages", 150);
    heading_check.assert_all_resolve("cited headings", 40);
}

#[test]
fn no_section_is_cited_by_a_number() {
    let files = files();
    assert!(
        files.len() > 500,
        "too few files were found: {}",
        files.len()
    );
    let mut cited_heading = Vec::new();
    for file in &files {
        for paragraph in file.prose() {
            let words: Vec<&str> = paragraph.split_whitespace().collect();
            for pair in words.windows(2) {
                let is_section = ["section", "sections"].contains(&pair[0]);
                if is_section && pair[1].starts_with(|letter: char| letter.is_ascii_digit()) {
                    cited_heading.push(format!("{}: {}", file.path.display(), pair.join(" ")));
                }
            }
        }
    }
    assert!(
        cited_heading.is_empty(),
        "cite a heading instead:\n{}",
        cited_heading.join("\n")
    );
}

/// Returns true if a word in backticks looks like a path in this repository. The first part of such a path is a folder
/// in the root.
fn is_own_path(word: &str) -> bool {
    let Some((first, _)) = word.split_once('/') else {
        return false;
    };
    let is_own = !first.starts_with('.') && !FOREIGN_FOLDERS.contains(&first);
    let ends = FILE_ENDINGS.iter().chain(&["/"]);
    let is_file = first == "scripts" || ends.into_iter().any(|end| word.ends_with(end));
    is_own && is_file && root().join(first).is_dir()
}

#[test]
fn files_and_tests_named_on_pages_and_in_comments_exist() {
    let files = files();
    let code: String = files
        .iter()
        .filter(|file| file.comment() == Some("//"))
        .map(|file| &*file.text)
        .collect();
    let (mut paths, mut tests) = (ReferenceCheck::default(), ReferenceCheck::default());
    for file in &files {
        for paragraph in file.prose() {
            let commands = paragraph.split_whitespace().next().into_iter();
            let commands = commands.filter(|word| word.starts_with("scripts/"));
            let words = code_spans(&paragraph).filter_map(|span| span.split_whitespace().next());
            for word in words.chain(commands).filter(|word| is_path(word)) {
                let is_long = word.matches('_').count() >= TEST_UNDERSCORES;
                if is_own_path(word) {
                    paths.record(file, word, resolve_path(file, word).is_some());
                } else if is_long && !word.contains('/') && !NO_TESTS.contains(&word) {
                    tests.record(file, word, code.contains(&format!("fn {word}(")));
                }
            }
        }
    }
    paths.assert_all_resolve("paths", 300);
    tests.assert_all_resolve("names of tests", 30);
}

/// Scripts select tests by the beginnings of their paths, such as `doctor::`. After a test or its file is renamed, such
/// a script would run no test, and would pass.
#[test]
fn tests_selected_by_scripts_exist() {
    let files = files();
    let mut tests = ReferenceCheck::default();
    for script in files.iter().filter(|file| file.path.starts_with("scripts")) {
        let lines = script.text.lines();
        let commands = lines.filter(|line| !line.trim_start().starts_with('#'));
        let words = commands.flat_map(|line| line.split([' ', '(', ')']));
        let paths = words.filter_map(|word| word.split_once("::"));
        let is_name = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        for (module, name) in
            paths.filter(|(module, name)| !module.is_empty() && is_name(module) && is_name(name))
        {
            let exists = files.iter().filter(|file| file.is_rust()).any(|file| {
                let is_module = file.path.file_stem().is_some_and(|stem| stem == module)
                    || file
                        .path
                        .with_extension("")
                        .ends_with(format!("{module}/mod"));
                is_module && file.text.contains(&format!("fn {name}"))
            });
            tests.record(script, &format!("{module}::{name}"), exists);
        }
    }
    tests.assert_all_resolve("tests selected by scripts", 8);
}
