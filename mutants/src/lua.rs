//! Finds the mutants of a Lua script. Each mutant changes one line.
//!
//! A mutated script contains the original lines, and the mutated lines in comments. If a mutant is active, the program
//! takes its line from the comment and replaces the original line, before the script runs.

use crate::mutant::{Form, Mutant, describe_exchange, shorten};

/// Words of a Lua script, each with the word that a mutant puts in its place.
const REPLACEMENTS: &[(&str, &str)] = &[
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
    let mut mutants = Vec::new();
    let name = file.rsplit('/').next().unwrap_or(file);
    let mut line_start = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let code = line.trim_end_matches('\n');
        let range = line_start..line_start + code.len();
        line_start += line.len();
        if code.trim_start().starts_with("--") {
            continue;
        }
        let mut add_mutant = |replacement: String, change: String| {
            // Two different replacements may produce the same line. Add only one mutant for it.
            let form = Form::Line(replacement);
            let is_duplicate = |mutant: &Mutant| mutant.range == range && mutant.form == form;
            if mutants.iter().any(is_duplicate) {
                return;
            }
            mutants.push(Mutant {
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
        for (word, replacement) in REPLACEMENTS {
            for (index, _) in code.match_indices(word) {
                let (before, after) = (&code[..index], &code[index + word.len()..]);
                // The words of a message are no code.
                if before.matches('\'').count() % 2 == 1 {
                    continue;
                }
                let mutated = format!("{before}{replacement}{after}");
                let change = describe_exchange(code, &mutated);
                add_mutant(mutated, change);
            }
        }
        for (index, digits) in numbers(code) {
            let Ok(number) = digits.parse::<u64>() else {
                continue;
            };
            let (before, after) = (&code[..index], &code[index + digits.len()..]);
            let mutated = format!("{before}{}{after}", number + 1);
            let change = describe_exchange(code, &mutated);
            add_mutant(mutated, change);
        }
        if is_a_statement(code) {
            add_mutant(String::new(), format!("without {}", shorten(code)));
        }
    }
    mutants
}

/// Returns the number literals in a line of code, each with its position in bytes. Omits numbers in strings and numbers
/// directly after `[`. Also omits the end of a range whose first element alone is used: a later end changes nothing.
fn numbers(code: &str) -> Vec<(usize, &str)> {
    let mut numbers = Vec::new();
    let mut is_quoted = false;
    let bytes = code.as_bytes();
    let mut index = 0;
    while index < bytes.len() {
        if bytes[index] == b'\'' {
            is_quoted = !is_quoted;
        }
        let digits = bytes[index..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let digits = digits.count();
        if digits > 0 {
            let is_part_of_word = index > 0
                && (bytes[index - 1].is_ascii_alphanumeric()
                    || matches!(bytes[index - 1], b'_' | b'['));
            let is_end_of_range = code[index + digits..].starts_with(")[1]");
            if !is_quoted && !is_part_of_word && !is_end_of_range {
                numbers.push((index, &code[index..index + digits]));
            }
        }
        index += digits.max(1);
    }
    numbers
}

/// Whether a line is a complete statement that a mutant can omit: a call, or an assignment without `local`.
fn is_a_statement(code: &str) -> bool {
    let code = code.trim();
    let is_call = ["call(", "redis.call(", "redis.pcall("]
        .iter()
        .any(|prefix| code.starts_with(prefix));
    let is_assignment = code.split_once(" = ").is_some_and(|(target, _)| {
        let is_plain = |c: char| c.is_alphanumeric() || "_[], ".contains(c);
        !target.starts_with("local ") && !target.starts_with("for ") && target.chars().all(is_plain)
    });
    let count_of = |c| code.matches(c).count();
    (is_call || is_assignment) && count_of('(') == count_of(')') && !code.ends_with(',')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lua_mutations_change_comparisons_and_numbers_and_remove_calls() {
        let script = "-- if 1 < 2\nif a < KEYS[1] and b then\n  call('DEL', key, 3)\nend\n";
        let found_mutants: Vec<String> = mutants("x/a.lua", script)
            .into_iter()
            .map(|mutant| mutant.change)
            .collect();
        assert_eq!(
            found_mutants,
            [
                "if a < KEYS[1] and b then -> if a <= KEYS[1] and b then",
                "if a < KEYS[1] and b then -> if a >= KEYS[1] and b then",
                "if a < KEYS[1] and b then -> if a < KEYS[1] or b then",
                "call('DEL', key, 3) -> call('DEL', key, 4)",
                "without call('DEL', key, 3)",
            ]
        );
    }

    #[test]
    fn words_of_a_message_are_not_changed() {
        let script = "return redis.error_reply('ERR wait or delete ' .. key .. ' and try')\n";
        assert!(mutants("x/a.lua", script).is_empty());
    }

    #[test]
    fn end_of_a_range_whose_first_element_alone_is_used_is_not_changed() {
        let change = |script: &str| -> Vec<String> {
            let mutants = mutants("x/a.lua", script).into_iter();
            mutants.map(|mutant| mutant.change).collect()
        };
        assert_eq!(
            change("local head = call('ZRANGE', queue, 0, 0)[1]\n"),
            [
                "local head = call('ZRANGE', queue, 0, 0)[1] -> local head = call('ZRANGE', queue, 1, 1)[1]",
                "local head = call('ZRANGE', queue, 0, 0)[1] -> local head = call('ZRANGE', queue, 1, 0)[1]",
            ]
        );
        assert_eq!(change("local all = call('ZRANGE', queue, 0, 9)\n").len(), 2);
    }
}
