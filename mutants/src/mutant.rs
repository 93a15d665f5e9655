//! Describes a mutant, i.e. one small fault: its position in the code, the change of the code, and how the mutant is
//! switched on.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// How a mutant changes the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// This new expression replaces the original one.
    Instead(String),
    /// The condition is always true.
    Always,
    /// The condition is always false.
    Never,
    /// The condition is negated.
    Not,
    /// The pattern of an `if let` or `while let` never matches.
    NoMatch,
    /// The match arm is never taken. A later arm handles its values.
    NoArm,
    /// The statement is left out.
    Without,
    /// This text becomes the whole body of the function.
    Only(String),
    /// This line replaces the original line of the Lua script.
    Line(String),
}

impl Form {
    /// Returns the texts to insert before and after the mutated code. `id` is the number of the mutant.
    pub(crate) fn code_around(&self, id: usize) -> (String, String) {
        let is_active = format!("crate::mutant({id})");
        let (before, after) = match self {
            Self::Instead(replacement) => (
                format!("(if {is_active} {{ {replacement} }} else {{ "),
                " })".into(),
            ),
            Self::Always => (format!("({is_active} || ("), "))".into()),
            Self::Never => (format!("(!{is_active} && ("), "))".into()),
            Self::Not => (format!("({is_active} != ("), "))".into()),
            Self::NoMatch => ("(".into(), format!(") && !{is_active}")),
            Self::NoArm => (String::new(), format!(" if !{is_active}")),
            Self::Without => (format!("if !{is_active} {{ "), " }".into()),
            Self::Only(statement) => (format!(" if {is_active} {{ {statement} }} "), String::new()),
            Self::Line(replacement) => (String::new(), format!(" --@{id} {}", replacement.trim())),
        };
        (before, after)
    }
}

/// A mutant: one small fault in one place of the code.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    /// The mutant's number, from 1. A change of the code may renumber the mutants.
    pub(crate) id: usize,
    /// The path of the mutated file, relative to the root of the repository.
    pub(crate) file: String,
    /// The name of the mutated function, with the name of its type in front, e.g. `Held::lost`.
    pub(crate) function: String,
    /// The line on which the mutated text begins.
    pub(crate) line: usize,
    /// A description of the change. It stays the same when the code moves to another line.
    pub(crate) change: String,
    /// The mutant's position among the mutants that have the same file, function and change, counted from 1.
    pub(crate) nth: usize,
    /// The range of the original text in the file, in bytes. Empty if the mutant only adds text.
    pub(crate) range: Range<usize>,
    /// How the mutant changes the code.
    pub(crate) form: Form,
}

impl Mutant {
    /// Returns the mutant's name in `survivors.txt`. The name contains no folder, line or mutant number, because these
    /// change often.
    pub(crate) fn name(&self) -> String {
        let mut parts = self.file.rsplit('/');
        let mut file = parts.next().unwrap_or_default().to_owned();
        if file == "mod.rs" {
            file = format!("{}/mod.rs", parts.next().unwrap_or_default());
        }
        let nth = if self.nth > 1 {
            format!(" #{}", self.nth)
        } else {
            String::new()
        };
        format!("{file} | {} | {}{nth}", self.function, self.change)
    }
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            file,
            line,
            function,
            change,
            ..
        } = self;
        write!(f, "{id:>5}  {file}:{line}  {function}  {change}")
    }
}

/// Sets the number of each mutant, and its position among the mutants with the same file, function and change.
pub(crate) fn number(mutants: &mut [Mutant]) {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for (index, mutant) in mutants.iter_mut().enumerate() {
        mutant.id = index + 1;
        mutant.nth = 1;
        let count = counts.entry(mutant.name()).or_default();
        *count += 1;
        mutant.nth = *count;
    }
}

/// Describes on one line how `code` is replaced by `mutated`. If the code has more than 60 characters, shows only the
/// part that differs.
pub(crate) fn describe_exchange(code: &str, mutated: &str) -> String {
    let one_line = |code: &str| code.split_whitespace().collect::<Vec<_>>().join(" ");
    let (code, mutated): (Vec<char>, Vec<char>) = (
        one_line(code).chars().collect(),
        one_line(mutated).chars().collect(),
    );
    let same_length = code
        .iter()
        .zip(&mutated)
        .take_while(|(a, b)| a == b)
        .count();
    let skipped = if code.len() > 60 {
        same_length.saturating_sub(25)
    } else {
        0
    };
    let cut_text = |code: &[char]| {
        let code_end: String = code[skipped..].iter().collect();
        format!(
            "{}{}",
            if skipped > 0 { ".. " } else { "" },
            shorten(&code_end)
        )
    };
    format!("{} -> {}", cut_text(&code), cut_text(&mutated))
}

/// Returns code on one line, shortened to about 70 characters so that it fits into a table.
pub(crate) fn shorten(code: &str) -> String {
    let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let code = code.replace('|', "¦");
    if code.chars().count() <= 70 {
        return code;
    }
    let code_start: String = code.chars().take(45).collect();
    let skipped = code.chars().count() - 20;
    let code_end: String = code.chars().skip(skipped).collect();
    format!("{code_start} .. {code_end}")
}
