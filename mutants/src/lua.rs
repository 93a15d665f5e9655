//! Finds the mutants of a Lua script. Each mutant changes one line.
//!
//! A mutated script contains the original lines, and the mutated lines in comments. If a mutant is active, the program
//! takes its line from the comment and replaces the original line, before the script runs.

use crate::mutant::{Form, Mutant, exchange, short};

/// Words of a Lua script, each with the word that a mutant puts in its place.
const WORDS: &[(&str, &str)] = &[
    (" == ", " ~= "),
    (" ~= ", " == "),
    (" < ", " <= "),
    (" < ", " >= "),
    (" <= ", " < "),
    (" > ", " >= "),
    (" > ", " <= "),
    (" >= ", " > "),
    (" and ", " or "),
    (" or ", " and "),
    ("not ", ""),
    (" + ", " - "),
    (" - ", " + "),
    ("'NX', ", ""),
    ("'-inf'", "0"),
    ("(head, 1, 16)", "(head, 1, 15)"),
    (" 0, 0)[1]", " 1, 1)[1]"),
    ("return mine", "return 0"),
    ("return mine", "return 1"),
    ("return 0", "return 1"),
    ("return 1", "return 0"),
];

/// Finds the mutants of one script.
pub(crate) fn mutants(file: &str, text: &str) -> Vec<Mutant> {
    let mut found = Vec::new();
    let name = file.rsplit('/').next().unwrap_or(file);
    let mut start = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let code = line.trim_end_matches('\n');
        let range = start..start + code.len();
        start += line.len();
        if code.trim_start().starts_with("--") {
            continue;
        }
        let mut add = |other: String, change: String| {
            // Two different replacements may produce the same line. Add only one mutant for it.
            let form = Form::Line(other);
            let twice = |known: &Mutant| known.range == range && known.form == form;
            if found.iter().any(twice) {
                return;
            }
            found.push(Mutant {
                id: 0,
                file: file.to_owned(),
                function: name.to_owned(),
                line: index + 1,
                change,
                nth: 1,
                range: range.clone(),
                form,
            });
        };
        for (word, other) in WORDS {
            for (at, _) in code.match_indices(word) {
                let (before, after) = (&code[..at], &code[at + word.len()..]);
                let mutated = format!("{before}{other}{after}");
                let change = exchange(code, &mutated);
                add(mutated, change);
            }
        }
        for (at, digits) in numbers(code) {
            let Ok(number) = digits.parse::<u64>() else {
                continue;
            };
            let (before, after) = (&code[..at], &code[at + digits.len()..]);
            let mutated = format!("{before}{}{after}", number + 1);
            let change = exchange(code, &mutated);
            add(mutated, change);
        }
        if is_a_statement(code) {
            add(String::new(), format!("without {}", short(code)));
        }
    }
    found
}

/// Returns the number literals in a line of code, each with its position in bytes. Omits numbers in strings and numbers
/// directly after `[`.
fn numbers(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut quoted = false;
    let bytes = code.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'\'' {
            quoted = !quoted;
        }
        let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit());
        let digits = digits.count();
        if digits > 0 {
            let part_of_a_word = at > 0
                && (bytes[at - 1].is_ascii_alphanumeric() || matches!(bytes[at - 1], b'_' | b'['));
            if !quoted && !part_of_a_word {
                found.push((at, &code[at..at + digits]));
            }
        }
        at += digits.max(1);
    }
    found
}

/// Whether a line is a complete statement that a mutant can omit: a call, or an assignment without `local`.
fn is_a_statement(code: &str) -> bool {
    let code = code.trim();
    let called = ["call(", "redis.call(", "redis.pcall("]
        .iter()
        .any(|begins| code.starts_with(begins));
    let assigned = code.split_once(" = ").is_some_and(|(to, _)| {
        let plain = |c: char| c.is_alphanumeric() || "_[], ".contains(c);
        !to.starts_with("local ") && !to.starts_with("for ") && to.chars().all(plain)
    });
    let count = |c| code.matches(c).count();
    (called || assigned) && count('(') == count(')') && !code.ends_with(',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lua_mutations_change_comparisons_and_numbers_and_remove_calls() {
        let script = "-- if 1 < 2\nif a < KEYS[1] and b then\n  call('DEL', key, 3)\nend\n";
        let found: Vec<String> = mutants("x/a.lua", script)
            .into_iter()
            .map(|mutant| mutant.change)
            .collect();
        assert_eq!(
            found,
            [
                "if a < KEYS[1] and b then -> if a <= KEYS[1] and b then",
                "if a < KEYS[1] and b then -> if a >= KEYS[1] and b then",
                "if a < KEYS[1] and b then -> if a < KEYS[1] or b then",
                "call('DEL', key, 3) -> call('DEL', key, 4)",
                "without call('DEL', key, 3)",
            ]
        );
    }
}
