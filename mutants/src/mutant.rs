//! One small fault: its place, its change, and how it is switched on.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// How a mutant is woven into the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Replaces an expression by this one.
    Instead(String),
    /// A condition that is always true.
    Always,
    /// A condition that is always false.
    Never,
    /// A negated condition.
    Not,
    /// A pattern that never matches, in `if let` and `while let`.
    NoMatch,
    /// A match arm that is never taken, if another arm matches as well.
    NoArm,
    /// A statement left out.
    Without,
    /// A function whose body is only this.
    Only(String),
    /// Replaces a line of a script by this one.
    Line(String),
}

impl Form {
    /// The text before and after the original text.
    pub(crate) fn around(&self, id: usize) -> (String, String) {
        let on = format!("crate::mutant({id})");
        let (before, after) = match self {
            Self::Instead(other) => (format!("(if {on} {{ {other} }} else {{ "), " })".into()),
            Self::Always => (format!("({on} || ("), "))".into()),
            Self::Never => (format!("(!{on} && ("), "))".into()),
            Self::Not => (format!("({on} != ("), "))".into()),
            Self::NoMatch => ("(".into(), format!(") && !{on}")),
            Self::NoArm => (String::new(), format!(" if !{on}")),
            Self::Without => (format!("if !{on} {{ "), " }".into()),
            Self::Only(does) => (format!(" if {on} {{ {does} }} "), String::new()),
            Self::Line(other) => (String::new(), format!(" --@{id} {}", other.trim())),
        };
        (before, after)
    }
}

/// A mutant.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    /// Its number in this state of the code.
    pub(crate) id: usize,
    /// The path of the file, relative to the root.
    pub(crate) file: String,
    /// The function, with its type.
    pub(crate) function: String,
    /// The line on which it begins.
    pub(crate) line: usize,
    /// The change, in words that stay the same when the code moves.
    pub(crate) change: String,
    /// Its position among mutants with the same words.
    pub(crate) nth: usize,
    /// The range of the original text.
    pub(crate) range: Range<usize>,
    /// The form.
    pub(crate) form: Form,
}

impl Mutant {
    /// Its name in `survivors.txt`: without folders, lines and numbers, which change.
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

/// Numbers the mutants, and counts those with the same words.
pub(crate) fn number(mutants: &mut [Mutant]) {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (index, mutant) in mutants.iter_mut().enumerate() {
        mutant.id = index + 1;
        mutant.nth = 1;
        let count = seen.entry(mutant.name()).or_default();
        *count += 1;
        mutant.nth = *count;
    }
}

/// Describes a replacement on one line. For long code, only the part that differs.
pub(crate) fn exchange(code: &str, other: &str) -> String {
    let line = |code: &str| code.split_whitespace().collect::<Vec<_>>().join(" ");
    let (code, other): (Vec<char>, Vec<char>) =
        (line(code).chars().collect(), line(other).chars().collect());
    let same = code.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let skip = if code.len() > 60 {
        same.saturating_sub(25)
    } else {
        0
    };
    let cut = |code: &[char]| {
        let rest: String = code[skip..].iter().collect();
        format!("{}{}", if skip > 0 { ".. " } else { "" }, short(&rest))
    };
    format!("{} -> {}", cut(&code), cut(&other))
}

/// Code on one line, cut to a length that fits into a table.
pub(crate) fn short(code: &str) -> String {
    let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let code = code.replace('|', "¦");
    if code.chars().count() <= 70 {
        return code;
    }
    let begins: String = code.chars().take(45).collect();
    let skipped = code.chars().count() - 20;
    let ends: String = code.chars().skip(skipped).collect();
    format!("{begins} .. {ends}")
}
