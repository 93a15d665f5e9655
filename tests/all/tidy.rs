//! Tests of rules for the source code: imports lead only to lower layers, import cycles do not grow, and functions are
//! short.
//!
//! The tests read the source files as text, without the test modules in these files. They treat each path that begins
//! with `crate`, `super` or `self` as an import.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::support;

/// The layers of `src/`, the lowest first. A file may import from its own layer and from lower layers.
const LAYERS: [&[&str]; 13] = [
    &["protocol"],
    &[
        "background_runtime",
        "clock",
        "fence",
        "fork",
        "hosting",
        "panics",
        "runtime",
        "repeats",
        "retry",
        "settings",
        "resource",
        "outcome",
        "limit",
        "keys",
        "metrics",
        "printable",
        "redact",
        "reread",
        "sync",
    ],
    &["node"],
    &["report"],
    &["error"],
    &["options", "tls", "sets"],
    &["rounds"],
    &["waiting"],
    &["hold"],
    &["acquire"],
    &["redlock"],
    &["kinds", "values", "listing", "masters_change"],
    &["builder", "config", "testing", "blocking", "json", "lib"],
];

/// For each package, the maximum number of source files in import cycles. Lower these numbers, but never raise them. In
/// the packages of the kinds of masters (`nodes/`), the number is 0.
const MAX_CIRCLES: [(&str, usize); 11] = [
    ("src", 0),
    ("testbed/src", 0),
    ("cli/src", 0),
    ("benches/versus/src", 0),
    ("simulation/src", 8),
    ("chaos/src", 0),
    ("promises/src", 0),
    ("model/src", 0),
    ("mutants/src", 0),
    ("nodes/contract/src", 0),
    ("page/src", 0),
];

/// In these packages, the search for import cycles includes imports between `mod.rs` (or `lib.rs`) and its child
/// modules.
const FOLDERS_READ: [&str; 6] = [
    "testbed/src",
    "cli/src",
    "benches/versus/src",
    "chaos/src",
    "simulation/src",
    "page/src",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn collect_sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_sources(&path, into);
        } else if path.extension().is_some_and(|kind| kind == "rs")
            && !path.ends_with("tests.rs")
            && !path.ends_with("models.rs")
        {
            into.push(path);
        }
    }
}

/// The path of the module in this file, such as `["node", "redis", "link"]`. It is empty for the root of the package.
fn module(path: &Path, base: &Path) -> Vec<String> {
    let inner = path
        .strip_prefix(base)
        .expect("the path must begin with the path of the folder")
        .with_extension("");
    let parts = inner.iter().map(|part| part.to_string_lossy().into_owned());
    let mut parts: Vec<String> = parts.collect();
    if matches!(
        parts.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        parts.pop();
    }
    parts
}

/// The paths that one `use` imports, with braces expanded: `a::{b, c}` becomes `a::b` and `a::c`.
fn expand_import(text: &str) -> Vec<String> {
    let Some(open_functions) = text.find('{') else {
        return vec![text.trim().to_owned()];
    };
    let (prefix, inner) = (&text[..open_functions], &text[open_functions + 1..]);
    let mut depth = 0;
    let mut parts = vec![String::new()];
    for c in inner.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => parts.push(String::new()),
            _ => {
                depth += i32::from(c == '{') - i32::from(c == '}');
                parts
                    .last_mut()
                    .expect("the list must not be empty")
                    .push(c);
            }
        }
    }
    let parts = parts.iter().filter(|part| !part.trim().is_empty());
    parts
        .flat_map(|part| expand_import(&format!("{prefix}{}", part.trim())))
        .collect()
}

type Imports = BTreeMap<Vec<String>, BTreeSet<Vec<String>>>;

/// The module to which the import path `path` leads in the module `from`. `None` if that module is outside of the
/// package.
fn imported_module(
    from: &[String],
    path: &str,
    modules: &BTreeSet<Vec<String>>,
    folders: bool,
) -> Option<Vec<String>> {
    let mut words = path.split("::").map(|word| word.trim().to_owned());
    let mut module = match words.next().as_deref() {
        Some("crate") => Vec::new(),
        Some("super") => from[..from.len().saturating_sub(1)].to_vec(),
        Some("self") => from.to_vec(),
        // The main file of a module folder may name its child modules without a prefix.
        Some(child) if folders => {
            Some([from, &[child.to_owned()]].concat()).filter(|child| modules.contains(child))?
        }
        _ => return None,
    };
    for word in words {
        if word == "super" {
            module.pop();
            continue;
        }
        let mut pending_modules = module.clone();
        pending_modules.push(word);
        if !modules.contains(&pending_modules) {
            break;
        }
        module = pending_modules;
    }
    Some(module)
}

/// All imports of a package: for each module, the set of modules that it imports.
fn imports_of(package: &str) -> Imports {
    let base = &root().join(package);
    let folders = FOLDERS_READ.contains(&package);
    let mut files = Vec::new();
    collect_sources(base, &mut files);
    let modules: BTreeSet<_> = files.iter().map(|file| module(file, base)).collect();
    let mut imports_of = Imports::new();
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
        let targets = imports_of.entry(from.clone()).or_default();
        let is_path_character = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        // Skip imports with braces: the code below handles them.
        let paths = code.split(|c| !is_path_character(c));
        for path in paths.filter(|path| path.contains("::") && !path.ends_with("::")) {
            if folders || path.starts_with("crate::") {
                let module = imported_module(&from, path, &modules, folders);
                // Skip items of the crate root, such as `crate::Name`, unless `folders` is true.
                targets.extend(
                    module.filter(|module| (folders || !module.is_empty()) && *module != from),
                );
            }
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
            for path in expand_import(&import) {
                targets.extend(
                    imported_module(&from, &path, &modules, folders)
                        .into_iter()
                        .filter(|module| *module != from),
                );
            }
        }
    }
    imports_of
}

/// The modules that are part of an import cycle.
fn files_in_circles(imports: &Imports) -> Vec<&Vec<String>> {
    let is_in_circle = |start: &Vec<String>| {
        let mut visited = BTreeSet::new();
        let mut pending_modules: Vec<_> = imports[start].iter().collect();
        while let Some(module) = pending_modules.pop() {
            if module == start {
                return true;
            }
            if visited.insert(module) {
                pending_modules.extend(imports.get(module).into_iter().flatten());
            }
        }
        false
    };
    imports.keys().filter(|start| is_in_circle(start)).collect()
}

#[test]
fn number_of_files_in_import_cycles_does_not_grow() {
    let kinds = support::kinds_of_nodes().into_iter();
    let kinds = kinds.map(|kind| (format!("nodes/{kind}/src"), 0));
    let limits = MAX_CIRCLES.map(|(package, count)| (package.to_owned(), count));
    for (package, max_count) in limits.into_iter().chain(kinds) {
        let imports_of = imports_of(&package);
        assert!(imports_of.len() > 2, "no sources of {package} were found");
        let circles = files_in_circles(&imports_of);
        let file_names: Vec<String> = circles.iter().map(|file| file.join("/")).collect();
        assert!(
            file_names.len() <= max_count,
            "{package}: {} files import each other in cycles, but at most {max_count} may: {file_names:?}",
            file_names.len()
        );
        assert!(
            file_names.len() == max_count,
            "{package}: only {} files import each other in cycles: lower the limit {max_count} in this test: {file_names:?}",
            file_names.len()
        );
    }
}

#[test]
fn library_files_import_nothing_from_higher_layers() {
    let layer_of = |module: &[String]| {
        let module_name = module.first().map_or("lib", String::as_str);
        let index = LAYERS.iter().position(|layer| layer.contains(&module_name));
        index.unwrap_or_else(|| {
            panic!("the module {module_name} has no layer: add it to `LAYERS` in tests/all/tidy.rs")
        })
    };
    let mut upward_imports = Vec::new();
    for (from, targets) in imports_of("src") {
        for target in targets {
            // Skip the crate root (`lib.rs`): it may import from all layers, because it only re-exports items.
            if !from.is_empty() && layer_of(&target) > layer_of(&from) {
                upward_imports.push(format!("{} -> {}", from.join("/"), target.join("/")));
            }
        }
    }
    assert!(
        upward_imports.is_empty(),
        "imports must not lead to a higher layer, but these do: {upward_imports:#?}"
    );
}

#[test]
fn protocol_core_imports_only_itself() {
    for (from, targets) in imports_of("src") {
        if from
            .first()
            .is_some_and(|module_name| module_name == "protocol")
        {
            let outside: Vec<_> = targets
                .iter()
                .filter(|target| target.first() != from.first())
                .collect();
            assert!(outside.is_empty(), "{from:?} -> {outside:?}");
        }
    }
}

/// The source code of a file, without its tests and without comments.
fn code_of(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("a source");
    let code = text.split("\nmod tests {").next().unwrap_or_default();
    let lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn names_of_keys_are_defined_in_one_file() {
    let mut files = Vec::new();
    collect_sources(&root().join("src"), &mut files);
    collect_scripts(&root().join("src/scripts"), &mut files);
    assert!(files.len() > 60, "{files:?}");
    let names_a_key = |text: &str| {
        let texts_after_prefix = text.split("quorate:").skip(1);
        texts_after_prefix.into_iter().any(|rest| {
            let word: String = rest.chars().take_while(char::is_ascii_lowercase).collect();
            !word.is_empty() && rest[word.len()..].starts_with(':')
        })
    };
    let naming_files = files.iter().filter(|path| names_a_key(&code_of(path)));
    let naming_files: Vec<_> = naming_files.filter_map(|path| path.file_name()).collect();
    assert_eq!(
        naming_files,
        ["keys.rs"],
        "only src/keys.rs may contain names of keys"
    );
}

fn collect_scripts(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_scripts(&path, into);
        } else if path.extension().is_some_and(|kind| kind == "lua") {
            into.push(path);
        }
    }
}

/// The largest number of lines that a function may have.
const MAX_LINES: usize = 70;

/// For each package, the maximum number of functions with more than [`MAX_LINES`] lines. Lower these numbers, but never
/// raise them.
const MAX_LONG_FUNCTIONS: [(&str, usize); 10] = [
    ("src", 0),
    ("testbed", 0),
    ("cli", 0),
    ("simulation", 0),
    ("model", 0),
    ("chaos", 0),
    ("benches", 0),
    ("nodes", 0),
    ("fuzz", 0),
    ("tests", 0),
];

/// The functions in the text of a file: for each function, its name and its number of lines.
fn function_lengths(text: &str) -> Vec<(String, usize)> {
    let mut open_functions: Vec<(usize, String, usize)> = Vec::new();
    let mut lengths = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let mut words = line.split_whitespace().skip_while(|word| *word != "fn");
        let is_comment = line.trim_start().starts_with("//");
        if let (Some(_), Some(name), false) = (words.next(), words.next(), is_comment) {
            let name = name.split(['(', '<']).next().unwrap_or_default();
            open_functions.push((indent, name.to_owned(), number));
        }
        let Some((indent_of_open, _, from)) = open_functions.last() else {
            continue;
        };
        let function_lines = text.lines().skip(*from).take(number - from + 1);
        let is_declaration =
            line.ends_with(';') && !function_lines.into_iter().any(|line| line.ends_with('{'));
        let is_end = line.trim() == "}" || line.ends_with("{}") || is_declaration;
        if *indent_of_open == indent
            && is_end
            && let Some((_, name, from)) = open_functions.pop()
        {
            lengths.push((name, number - from + 1));
        }
    }
    lengths
}

#[test]
fn functions_have_at_most_seventy_lines() {
    let text =
        "fn a() {\n    if b {\n    }\n}\ntrait C {\n    fn d(&self);\n    fn e(\n    );\n}\n";
    let expected = [("a", 4), ("d", 1), ("e", 2)].map(|(name, lines)| (name.to_owned(), lines));
    assert_eq!(function_lengths(text), expected);
    for (package, max_count) in MAX_LONG_FUNCTIONS {
        let mut files = Vec::new();
        collect_sources(&root().join(package), &mut files);
        let mut long_functions = Vec::new();
        let mut count = 0;
        for path in &files {
            let functions = function_lengths(&std::fs::read_to_string(path).expect("a source"));
            count += functions.len();
            let path_text = path
                .strip_prefix(root())
                .expect("the path must begin with the path of the folder")
                .display();
            let functions = functions
                .into_iter()
                .filter(|(_, lines)| *lines > MAX_LINES);
            long_functions.extend(
                functions.map(|(name, lines)| format!("{path_text}: {name}, {lines} lines")),
            );
        }
        assert!(count > 20, "no functions of {package} were found");
        assert_eq!(
            long_functions.len(),
            max_count,
            "{package}: a function has at most 70 lines, and the number of longer ones may only fall: {long_functions:#?}"
        );
    }
}

/// The allowed number of lines in `src/` that depend on the kind of a lock. The number may be lowered, but not raised.
/// Reason: a new kind of lock should need changes in only a few files.
const MAX_KIND_QUESTIONS: usize = 15;

/// The files that define the kinds of locks. Their lines are not counted for the limit [`MAX_KIND_QUESTIONS`].
const KIND_FILES: [&str; 6] = [
    "node/request.rs",
    "node/shape.rs",
    "node/claim.rs",
    "rounds/lock_target.rs",
    "acquire/kind.rs",
    "node/memory/group.rs",
];

#[test]
fn at_most_fifteen_lines_of_the_library_depend_on_the_lock_kind() {
    let base = root().join("src");
    let mut files = Vec::new();
    collect_sources(&base, &mut files);
    let mut uses = Vec::new();
    for path in files {
        let name = path.strip_prefix(&base).expect("a file in src");
        if KIND_FILES.iter().any(|file| name == Path::new(file)) {
            continue;
        }
        let code = code_of(&path);
        let lines = code.lines().filter(|line| !line.contains("fn "));
        // A line depends on the kind of a lock if it calls one of these methods.
        let kind_methods = [".shape()", ".group()", ".permit()", ".class()"];
        let lines = lines.filter(|line| kind_methods.iter().any(|ask| line.contains(ask)));
        uses.extend(lines.map(|line| format!("{}: {}", name.display(), line.trim())));
    }
    let count = uses.len();
    assert!(
        count <= MAX_KIND_QUESTIONS,
        "{count} places in src/ ask for the kind of a lock, but at most {MAX_KIND_QUESTIONS} may: {uses:#?}"
    );
    assert!(
        count == MAX_KIND_QUESTIONS,
        "only {count} places in src/ ask for the kind of a lock: lower MAX_KIND_QUESTIONS to this number: {uses:#?}"
    );
}

/// Names of types in the library that are declared in two files on purpose.
const ALLOWED_TWINS: [&str; 2] = [
    // These types are declared twice: once for builds with the feature `metrics`, and once, as empty types, for builds
    // without it.
    "Hold", "Message",
];

/// The folder of the blocking API. It is not searched, because its types have the same names as their async
/// counterparts.
const FOLDER_WITH_SAME_NAMES: &str = "src/blocking";

/// The names of public types that are declared in more than one file of a package: for each name, the paths of these
/// files.
fn types_declared_twice(package: &str) -> BTreeMap<String, Vec<String>> {
    let mut files = Vec::new();
    collect_sources(&root().join(package), &mut files);
    files.retain(|path| !path.starts_with(root().join(FOLDER_WITH_SAME_NAMES)));
    let mut paths_by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in &files {
        for line in code_of(path).lines() {
            let mut words = line.split_whitespace();
            let is_shared = matches!(words.next(), Some("pub" | "pub(crate)"));
            let is_type = matches!(words.next(), Some("struct" | "enum" | "trait" | "type"));
            if let (true, true, Some(name)) = (is_shared, is_type, words.next()) {
                let is_end = |c: char| !c.is_alphanumeric();
                let name = name.split(is_end).next().unwrap_or_default();
                let path_text = path
                    .strip_prefix(root())
                    .expect("the path must begin with the root of the repository")
                    .display();
                paths_by_name
                    .entry(name.to_owned())
                    .or_default()
                    .push(path_text.to_string());
            }
        }
    }
    assert!(
        paths_by_name.len() > 20,
        "no declarations of {package} were found"
    );
    paths_by_name.retain(|name, paths| paths.len() > 1 && !ALLOWED_TWINS.contains(&name.as_str()));
    paths_by_name
}

#[test]
fn public_type_names_are_unique_within_a_package() {
    for package in ["src", "cli/src", "testbed/src"] {
        let duplicates = types_declared_twice(package);
        assert!(duplicates.is_empty(), "{duplicates:#?}");
    }
}

#[test]
fn architecture_page_lists_the_layers_in_their_order() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let (_, layers) = page
        .split_once("\n## Layers of the library\n")
        .expect("the heading");
    let layers = layers.split("\n## ").next().unwrap_or_default();
    let cells = layers.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = cells.filter_map(|line| line.split(" | ").next());
    let rows: Vec<Vec<&str>> = cells
        .map(|cell| {
            let names = cell.split(", ").map(|name| name.trim_matches('`'));
            let names =
                names.filter_map(|name| name.strip_suffix(".rs").or(name.strip_suffix('/')));
            names.collect()
        })
        .collect();
    let mut last_row = 0;
    for layer in LAYERS {
        let row_of_module = |name: &str| {
            let row = rows.iter().position(|row| row.contains(&name));
            row.unwrap_or_else(|| panic!("ARCHITECTURE.md does not name {name}"))
        };
        let rows_of_layer = layer.iter().map(|name| row_of_module(name));
        let rows_of_layer: BTreeSet<usize> = rows_of_layer.collect();
        assert!(
            rows_of_layer
                .first()
                .is_some_and(|first| *first >= last_row),
            "ARCHITECTURE.md must list the layers in the order of `LAYERS`, but a file of the layer {layer:?} is in the \
             wrong place"
        );
        last_row = rows_of_layer.last().copied().unwrap_or(last_row);
    }
}

/// The largest number of terms that the glossary in ARCHITECTURE.md ("Our own words") may define.
const MAX_OWN_WORDS: usize = 15;

#[test]
fn glossary_has_at_most_fifteen_words() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let glossary = page
        .split("\n## Our own words\n")
        .nth(1)
        .expect("a glossary");
    let glossary = glossary.split("\n## ").next().unwrap_or_default();
    let words: Vec<&str> = glossary
        .lines()
        .filter_map(|line| {
            line.strip_prefix("- **")?
                .split_once("**")
                .map(|(word, _)| word)
        })
        .collect();
    // An entry may define a second term in italics. This term counts as well.
    let italic_terms = glossary.replace("**", "").matches('*').count() / 2;
    let count = words.len() + italic_terms;
    assert!(
        (6..=MAX_OWN_WORDS).contains(&count),
        "{words:?} and {italic_terms}"
    );
    let mut files = Vec::new();
    collect_sources(&root().join("src"), &mut files);
    let codes: Vec<String> = files
        .iter()
        .map(|path| code_of(path).to_lowercase())
        .collect();
    for word in &words {
        let identifier = word.to_lowercase().replace(['-', ' '], "_");
        assert!(
            codes.iter().any(|code| code.contains(&identifier)),
            "the glossary defines the word {word}, which the code does not use"
        );
    }
    // Words that this project once used in a private sense. They must not come back into the glossary.
    let banned_words = [
        "Ear", "Letter", "Seat", "Wheel", "Board", "Gather", "Heir", "Said", "Told", "Far",
    ];
    for (path, code) in files.iter().zip(files.iter().map(|path| code_of(path))) {
        let mut words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
        let banned_word = words.find(|word| banned_words.contains(word));
        assert!(banned_word.is_none(), "{}: {banned_word:?}", path.display());
    }
}
