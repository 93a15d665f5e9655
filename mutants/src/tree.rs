//! The copy of the repository that contains all mutants, and the builds of this copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::choice::Choice;
use crate::copy::{Built, CompilerError, cargo, copy_files, remove_others, write};
use crate::find::Code;
use crate::mutant::{Form, Mutant};
use crate::weave::{Placed, Wrap, weave};
use crate::{rust, targets};

/// The code that switches one mutant on. It is appended to the root module of the library's copy. `{count}` is replaced
/// by the number of mutants plus one.
pub(crate) const SWITCH: &str = r#"

/// Whether the mutant `id` is switched on.
#[doc(hidden)]
#[inline]
pub fn mutant(id: u32) -> bool {
    use std::sync::atomic::Ordering::Relaxed;
    let on = mutants::ON.load(Relaxed);
    let on = if on >= mutants::TRACE { mutants::reached(id, on) } else { on };
    on == id
}

/// Removes the mutants (` --@ID TEXT`) from the lines of a Lua script. If a mutant on a line is switched on, its text
/// replaces the line.
#[doc(hidden)]
pub fn mutated_script(text: String) -> String {
    let mut lines = Vec::new();
    for line in text.split('\n') {
        let mut parts = line.split(" --@");
        let mut says = parts.next().unwrap_or_default();
        for part in parts {
            let (id, other) = part.split_once(' ').unwrap_or((part, ""));
            if mutant(id.parse().unwrap_or_default()) {
                says = other;
            }
        }
        lines.push(says);
    }
    lines.join("\n")
}

#[doc(hidden)]
mod mutants {
    use std::ffi::OsString;
    use std::io::Write;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

    const COUNT: usize = {count};
    const UNREAD: u32 = u32::MAX;
    pub(super) const TRACE: u32 = u32::MAX - 1;
    pub(super) static ON: AtomicU32 = AtomicU32::new(UNREAD);
    static NOTES: OnceLock<Option<OsString>> = OnceLock::new();
    static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

    /// Returns the id of the active mutant (from the environment variable `QUORATE_MUTANT`); 0 if there is none. `on`
    /// is the result of an earlier call, or `UNREAD`.
    ///
    /// If the variable `QUORATE_MUTANTS_REACHED` names a file, no mutant is active. The function then adds `id` to this
    /// file once, and returns `TRACE`.
    #[cold]
    pub(super) fn reached(id: u32, mut on: u32) -> u32 {
        let notes = NOTES.get_or_init(|| std::env::var_os("QUORATE_MUTANTS_REACHED"));
        if on == UNREAD {
            let asked = std::env::var("QUORATE_MUTANT").ok();
            on = asked.and_then(|id| id.parse().ok()).unwrap_or(0);
            if notes.is_some() {
                on = TRACE;
            }
            ON.store(on, Relaxed);
        }
        if let (TRACE, Some(path)) = (on, notes) {
            let first = |seen: &AtomicBool| !seen.load(Relaxed) && !seen.swap(true, Relaxed);
            if REACHED.get(id as usize).is_some_and(first) {
                let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
                // Each line is written with one call. Otherwise the lines of two threads could be mixed, and a mutant
                // would count as never reached.
                let _ = file.and_then(|mut file| file.write_all(format!("{id}\n").as_bytes()));
            }
        }
        on
    }
}
"#;

/// The options with which cargo optimizes the tests a little. This doubles the time of the build, but the tests run for
/// much longer than the build.
const OPTIMIZED: &[&str] = &["--config", "profile.dev.opt-level=1"];

/// The copy of the repository into which the mutants are woven.
pub(crate) struct Tree {
    root: PathBuf,
    /// The folder of the copy.
    pub(crate) copy: PathBuf,
    code: Code,
    /// The names of the mutants that did not compile in this build or in earlier builds.
    uncompilable: BTreeSet<String>,
}

/// The built test programs and the built simulation.
pub(crate) struct BuiltPrograms {
    /// The test programs by name. `lib` is the program of the unit tests.
    pub(crate) tests: BTreeMap<String, PathBuf>,
    /// The simulation, built with optimizations; `None` if it was not built.
    pub(crate) simulation: Option<PathBuf>,
}

impl Tree {
    /// Copies all files under version control to the folder of the copy. A file with unchanged content is not written,
    /// so that cargo does not compile it again.
    pub(crate) fn copy(root: &Path, code: Code) -> Result<Self> {
        let work_folder = root.join("target/mutants");
        let copy = work_folder.join("tree");
        let files = targets::tracked(root, &["**"])?;
        // The library's source files are written later, with the mutants woven in.
        let unwoven = files.iter().filter(|file| !is_source(file));
        copy_files(root, &copy, unwoven)?;
        remove_others(&copy, &files)?;
        let names = fs::read_to_string(work_folder.join("not-compiled.txt")).unwrap_or_default();
        Ok(Self {
            root: root.to_path_buf(),
            copy,
            code,
            uncompilable: names.lines().map(str::to_owned).collect(),
        })
    }

    /// Returns the mutants that compile.
    pub(crate) fn mutants(&self) -> impl Iterator<Item = &Mutant> {
        let uncompilable = &self.uncompilable;
        let mutants = self.code.mutants.iter();
        mutants.filter(move |mutant| !uncompilable.contains(&name_with_replacement(mutant)))
    }

    /// The number of mutants that do not compile.
    pub(crate) fn not_compiled(&self) -> usize {
        self.code.mutants.len() - self.mutants().count()
    }

    /// Returns the existing copy of the repository and the programs of its last build. Builds nothing, so `code` must
    /// not have changed since that build.
    pub(crate) fn open_built(root: &Path, code: Code) -> Result<(Self, BuiltPrograms)> {
        let work = root.join("target/mutants");
        let names = fs::read_to_string(work.join("not-compiled.txt")).unwrap_or_default();
        let open_built = fs::read_to_string(work.join("built.txt")).context("nothing was built")?;
        let mut programs: BTreeMap<String, PathBuf> = open_built
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, path)| (name.to_owned(), PathBuf::from(path)))
            .collect();
        let tree = Self {
            root: root.to_path_buf(),
            copy: work.join("tree"),
            code,
            uncompilable: names.lines().map(str::to_owned).collect(),
        };
        let simulation = programs.remove("simulation");
        let tests = programs;
        Ok((tree, BuiltPrograms { tests, simulation }))
    }

    /// Weaves the mutants into the copy, omits the mutants that do not compile, and builds the test programs and the
    /// simulation.
    pub(crate) fn build(&mut self, choice: &Choice) -> Result<BuiltPrograms> {
        const LIBRARY: &[&str] = &[
            "check",
            "-p",
            "quorate",
            "--lib",
            "--features",
            "testing,node,metrics",
        ];
        const WITH_TESTS: &[&str] = &[
            "check",
            "-p",
            "quorate",
            "--lib",
            "--profile",
            "test",
            "--features",
            "metrics",
        ];
        for round in 1.. {
            let placed = self.weave()?;
            let mut errors = self.cargo(LIBRARY)?.1;
            if errors.is_empty() {
                errors = self.cargo(WITH_TESTS)?.1;
            }
            if errors.is_empty() {
                break;
            }
            ensure!(
                round < 60,
                "the copy with the mutants does not compile after {round} attempts"
            );
            let count_before = self.uncompilable.len();
            for error in &errors {
                self.drop_mutants_at(error, &placed);
            }
            ensure!(
                self.uncompilable.len() > count_before,
                "the copy with the mutants does not compile, for a reason other than a mutant: {}",
                errors[0].message
            );
            eprintln!(
                "attempt {round} to compile: {} errors, {} mutants left out",
                errors.len(),
                self.uncompilable.len() - count_before
            );
            let names: Vec<&str> = self.uncompilable.iter().map(String::as_str).collect();
            let file = self.root.join("target/mutants/not-compiled.txt");
            fs::write(file, names.join("\n"))?;
        }
        let mut cargo_args = vec!["test", "--no-run", "-p", "quorate", "--features", "metrics"];
        for program in choice.programs() {
            match program {
                "lib" => cargo_args.push("--lib"),
                name => cargo_args.extend(["--test", name]),
            }
        }
        let (tests, errors) = self.cargo(&cargo_args)?;
        if let Some(error) = errors.first() {
            bail!(
                "the tests of the copy with the mutants do not compile: {}",
                error.message
            );
        }
        let mut simulation = None;
        if choice.simulation() {
            let build = ["build", "--release", "-p", "quorate-simulation"];
            let (mut programs, errors) = self.cargo(&build)?;
            if let Some(error) = errors.first() {
                bail!(
                    "the simulation of the copy with the mutants does not compile: {}",
                    error.message
                );
            }
            simulation = programs.remove("quorate-simulation");
            ensure!(simulation.is_some(), "cargo built no simulation program");
        }
        let tests: BTreeMap<String, PathBuf> = tests
            .into_iter()
            .map(|(name, path)| match name.as_str() {
                "quorate" => ("lib".to_owned(), path),
                _ => (name, path),
            })
            .collect();
        let mut open_built = String::new();
        for (name, path) in &tests {
            writeln!(open_built, "{name} {}", path.display())?;
        }
        if let Some(path) = &simulation {
            writeln!(open_built, "simulation {}", path.display())?;
        }
        fs::write(self.root.join("target/mutants/built.txt"), open_built)?;
        Ok(BuiltPrograms { tests, simulation })
    }

    /// Writes the library's source files to the copy, with the mutants woven in. Returns the positions of the mutants
    /// in each written file.
    fn weave(&self) -> Result<BTreeMap<String, Vec<Placed>>> {
        let mut placed = BTreeMap::new();
        let mut wraps: BTreeMap<&str, Vec<Wrap>> = BTreeMap::new();
        for mutant in self.mutants() {
            let (before, after) = mutant.form.code_around(mutant.id);
            wraps.entry(&mutant.file).or_default().push(Wrap {
                id: Some(mutant.id),
                range: mutant.range.clone(),
                before,
                after,
            });
        }
        for (file, constant) in &self.code.constant {
            for function in constant {
                let mutated = self
                    .mutants()
                    .any(|mutant| mutant.file == *file && mutant.function == function.function);
                if mutated {
                    wraps.entry(file).or_default().push(Wrap {
                        id: None,
                        range: function.word.clone(),
                        before: "/*".into(),
                        after: "*/".into(),
                    });
                }
            }
        }
        let mut assembler_count = 0;
        for file in targets::tracked(&self.root, &["src/**/*.rs", "src/**/*.lua"])? {
            let file_wraps = wraps.remove(file.as_str());
            let mut text = fs::read_to_string(self.root.join(&file))?;
            let mut file_wraps = file_wraps.unwrap_or_default();
            if let Some(body) = rust::body_of(&text, targets::ASSEMBLES_SCRIPTS) {
                assembler_count += 1;
                file_wraps.push(Wrap {
                    id: None,
                    range: body,
                    before: " crate::mutated_script({ ".into(),
                    after: " }) ".into(),
                });
            }
            if is_root_module(&file) {
                let count = (self.code.mutants.len() + 1).to_string();
                text.push_str(&SWITCH.replace("{count}", &count));
            }
            let (text, positions) = weave(&text, file_wraps);
            write(&self.copy.join(&file), text.as_bytes())?;
            placed.insert(file, positions);
        }
        ensure!(
            assembler_count == 1,
            "src contains {assembler_count} functions named {}, but must contain one: correct the name in \
             mutants/src/targets.rs",
            targets::ASSEMBLES_SCRIPTS
        );
        Ok(placed)
    }

    /// Adds to `uncompilable` the mutants that caused a compiler error.
    fn drop_mutants_at(&mut self, error: &CompilerError, placed: &BTreeMap<String, Vec<Placed>>) {
        let mut blamed_ids = BTreeSet::new();
        for (file, range) in &error.spans {
            let enclosing = placed.get(file).into_iter().flatten().filter(|placed| {
                placed.whole.start <= range.start && range.end <= placed.whole.end
            });
            // If the error lies inside several nested mutants, the innermost one has caused it.
            if let Some(placed) = enclosing.min_by_key(|placed| placed.whole.len()) {
                blamed_ids.insert(placed.id);
                // The compiler names the main place of an error first, so the other places are not needed.
                break;
            }
        }
        let is_not_const = error.code == "E0015";
        for mutant in &self.code.mutants {
            let is_named = is_not_const && error.message.contains(&format!("{}`", mutant.function));
            if is_named || blamed_ids.contains(&mutant.id) {
                self.uncompilable.insert(name_with_replacement(mutant));
                blamed_ids.insert(mutant.id);
            }
        }
        if !blamed_ids.is_empty() {
            return;
        }
        // No mutant contains the error. Usually a mutant that omits `return` or `break` causes it. The error's range
        // can contain mutants: drop those that omit a statement. If there are none, drop all mutants in this range.
        let Some((file, _)) = error.spans.first() else {
            return;
        };
        let spans_in_file = error.spans.iter().filter(|(other, _)| other == file);
        let start = spans_in_file.clone().map(|(_, range)| range.start).min();
        let end = spans_in_file.map(|(_, range)| range.end).max();
        let (Some(start), Some(end)) = (start, end) else {
            return;
        };
        let placed_within = placed
            .get(file)
            .into_iter()
            .flatten()
            .filter(|placed| start <= placed.whole.start && placed.whole.end <= end);
        let placed_within: Vec<&Mutant> = placed_within
            .filter_map(|placed| self.code.mutants.get(placed.id - 1))
            .collect();
        let continues = |mutant: &&Mutant| matches!(mutant.form, Form::Without);
        let has_continuing = placed_within.iter().any(continues);
        let names = placed_within
            .iter()
            .filter(|mutant| !has_continuing || continues(mutant));
        let names: Vec<String> = names.map(|mutant| name_with_replacement(mutant)).collect();
        self.uncompilable.extend(names);
    }

    /// Runs cargo in the copy, with its own build folder.
    fn cargo(&self, args: &[&str]) -> Result<Built> {
        let (&command, args) = args.split_first().context("a command of cargo")?;
        let args = [&[command], OPTIMIZED, args].concat();
        cargo(&self.copy, &self.root.join("target/mutants/build"), &args)
    }
}

/// Returns the mutant's name in `not-compiled.txt`: [`Mutant::name`] and the whole new expression. [`Mutant::name`]
/// alone can belong to two mutants, because it shortens the expression.
fn name_with_replacement(mutant: &Mutant) -> String {
    let kind = match &mutant.form {
        Form::Instead(other) => other.split_whitespace().collect::<Vec<_>>().join(" "),
        _ => String::new(),
    };
    format!("{} {kind}", mutant.name())
}

/// Whether a file is source code of the library. `copy` does not write such a file; `weave` writes it with the mutants
/// woven in.
fn is_source(file: &str) -> bool {
    let kind = Path::new(file).extension();
    file.starts_with("src/") && kind.is_some_and(|kind| kind == "rs" || kind == "lua")
}

fn is_root_module(file: &str) -> bool {
    file == "src/lib.rs"
}
