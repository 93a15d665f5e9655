//! Tests that the language of the project is plain. Words that this project once used in a private sense must not come
//! back, nor sentences whose subject is a clause with *who* or *what*.
//!
//! The check reads comments, messages (string literals of several words), names of tests, Lua scripts, shell scripts
//! and pages. Text in backticks is code and is not read.

use crate::repository::{File, files};

/// Words and phrases that are not used, each with what to write instead.
const REPLACED_PHRASES: [(&str, &str); 29] = [
    ("told", "is notified, reports, returns, receives"),
    ("beside", "next to, alongside, shared with"),
    ("sign of life", "heartbeat"),
    ("signs of life", "heartbeats"),
    ("stands in line", "is queued, waits"),
    ("stand in line", "are queued, wait"),
    ("stranger", "foreign key, unknown client"),
    ("strangers", "foreign keys, unknown clients"),
    ("owed", "pending release"),
    ("prolong", "extend, renew"),
    ("prolongs", "extends, renews"),
    ("prolonged", "extended, renewed"),
    ("gives back", "releases"),
    ("given back", "released"),
    ("put back", "restored"),
    ("puts back", "restores"),
    ("canary", "seeded bug, known-bad implementation"),
    ("canaries", "seeded bugs, known-bad implementations"),
    ("litter", "leaked keys, orphaned processes"),
    ("leavings", "leaked keys, orphaned processes"),
    ("crowd", "burst, concurrent callers"),
    ("tame", "sanitize, escape"),
    ("tamed", "sanitized, escaped"),
    ("vouched", "trusted, written in this server run"),
    ("anew", "again"),
    ("comes to", "results in, is decided as"),
    ("come to", "result in, reach"),
    ("so many", "name the number"),
    ("so long", "name the time"),
];

/// Words with which a sentence must not begin, unless it is a question.
const CLAUSE_WORDS: [&str; 4] = ["Who", "Whoever", "What", "Whatever"];

/// One text in a file: the line where it begins, and its words.
struct Text {
    line: usize,
    words: String,
}

/// Appends a line to the text above it if both are parts of one comment. Otherwise the line begins a new text.
fn join(texts: &mut Vec<Text>, last: &mut usize, line: usize, words: &str) {
    match texts.last_mut() {
        Some(text) if *last + 1 == line && !words.trim().is_empty() => {
            text.words.push(' ');
            text.words.push_str(words.trim());
        }
        _ => texts.push(Text {
            line,
            words: words.trim().to_owned(),
        }),
    }
    *last = line;
}

/// Returns the paragraphs of all comments in `text`. A comment begins with `comment_sign`, for example `//`.
fn comments(text: &str, comment_sign: &str) -> Vec<Text> {
    let mut texts = Vec::new();
    let mut last_line = 0;
    for (index, line) in text.lines().enumerate() {
        if let Some(words) = line.trim_start().strip_prefix(comment_sign) {
            let words = words.trim_start_matches(['/', '!', '-', '#']);
            if words.trim().is_empty() {
                last_line = 0;
            } else {
                join(&mut texts, &mut last_line, index + 1, words);
            }
        }
    }
    texts
}

/// The string literals of at least three words, and the names of tests, with spaces instead of underscores.
fn messages(text: &str) -> Vec<Text> {
    let mut texts = Vec::new();
    let mut is_test = false;
    for (index, line) in text.lines().enumerate() {
        let code = line.trim_start();
        if code.starts_with("//") {
            continue;
        }
        if code.starts_with("#[test]") || code.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((_, name)) = code.split_once("fn ").filter(|_| is_test) {
            let name = name.split(['(', '<']).next().unwrap_or_default();
            texts.push(Text {
                line: index + 1,
                words: name.replace('_', " "),
            });
            is_test = false;
        }
        for literal in code.replace("\\\"", "'").split('"').skip(1).step_by(2) {
            if literal.split_whitespace().count() >= 3 {
                texts.push(Text {
                    line: index + 1,
                    words: literal.to_owned(),
                });
            }
        }
    }
    texts
}

/// The paragraphs, list items and table rows of a page, without its code blocks.
fn paragraphs(text: &str) -> Vec<Text> {
    let mut texts = Vec::new();
    let (mut last, mut code) = (0, false);
    for (index, line) in text.lines().enumerate() {
        let words = line.trim();
        if words.starts_with("```") {
            code = !code;
        } else if !code {
            if words.is_empty() || words.starts_with(['#', '|', '-', '*']) {
                last = 0;
            }
            if !words.is_empty() && !words.starts_with('#') {
                join(&mut texts, &mut last, index + 1, words);
            }
        }
    }
    texts
}

fn texts(file: &File) -> Vec<Text> {
    let Some(comment_sign) = file.comment() else {
        return paragraphs(&file.text);
    };
    let mut texts = comments(&file.text, comment_sign);
    if file.is_rust() {
        texts.append(&mut messages(&file.text));
    }
    texts
}

/// The text without the `{values}` of format strings.
fn without_braces(text: &str) -> String {
    let mut depth = 0_usize;
    text.chars()
        .filter(|c| {
            match c {
                '{' => depth += 1,
                '}' => depth = depth.saturating_sub(1),
                _ => return depth == 0,
            }
            false
        })
        .collect()
}

/// The faults of a text: replaced words, and sentences with a clause as their subject.
fn text_faults(text: &str) -> Vec<String> {
    // Skip the text in backticks, because it is code.
    let prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join("`");
    // A value in braces is code as well. The phrase "told apart" is allowed.
    let prose = without_braces(&prose).replace("told apart", "distinguished");
    let lower = format!(
        " {} ",
        prose
            .to_lowercase()
            .replace(|c: char| !c.is_alphanumeric() && c != '`', " ")
    );
    let mut text_faults: Vec<String> = REPLACED_PHRASES
        .iter()
        .filter(|(word, _)| lower.contains(&format!(" {word} ")))
        .map(|(word, instead)| format!("{word:?} (write: {instead})"))
        .collect();
    for sentence in prose.split_inclusive(['.', '?', ':', '!']) {
        let words = sentence.trim_start_matches([' ', '*', '-', '|', '.', '(']);
        let first_word = words.split_whitespace().next().unwrap_or_default();
        if CLAUSE_WORDS.contains(&first_word) && words.ends_with('.') {
            text_faults.push(format!(
                "a sentence begins with {first_word:?} (name the subject)"
            ));
        }
    }
    text_faults
}

#[test]
fn texts_of_the_project_contain_no_banned_words_or_sentence_openings() {
    let (mut text_count, mut violations) = (0, Vec::new());
    for file in files() {
        // Skip this file, because it contains the list of banned words.
        if file.path.ends_with("language.rs") {
            continue;
        }
        for text in texts(&file) {
            text_count += 1;
            for fault in text_faults(&text.words) {
                violations.push(format!("{}:{}: {fault}", file.path.display(), text.line));
            }
        }
    }
    assert!(
        text_count > 5_000,
        "only {text_count} texts were found: the check does not read what it should"
    );
    assert!(
        violations.is_empty(),
        "{} texts are not plain:\n{}",
        violations.len(),
        violations.join("\n")
    );
}

#[test]
fn language_check_finds_banned_words_and_banned_sentence_openings() {
    for bad_text in [
        "The caller is told at once.",
        "Done anew",
        "Who holds the lock renews it.",
        "x. What is left is released.",
    ] {
        assert!(
            !text_faults(bad_text).is_empty(),
            "{bad_text:?} was accepted"
        );
    }
    for good_text in [
        "Is notified.",
        "Calls `told`.",
        "Who holds the lock?",
        "A holder who waits.",
        "the canaryfile",
    ] {
        assert!(
            text_faults(good_text).is_empty(),
            "{good_text:?} was refused: {:?}",
            text_faults(good_text)
        );
    }
}

/// Parts of identifiers that this project once used in a private sense, each with the names to use instead.
const NOT_IN_NAMES: [(&str, &str); 15] = [
    ("stranger", "foreign, unknown"),
    ("strangers", "foreign, unknown"),
    ("vouched", "trusted"),
    ("anew", "again"),
    ("beside", "compatible, unqueued, next"),
    ("crowded", "full, out of room"),
    ("leavings", "leaked keys"),
    ("tame", "sanitize, escape"),
    ("canary", "seeded bug"),
    ("said", "reply, votes, output, error text"),
    ("told", "notified, reported"),
    ("heard", "reply, received"),
    ("deed", "operation"),
    ("tale", "history"),
    ("ears", "listeners"),
];

/// The names of the functions, types, constants, modules and local variables that a line of Rust declares.
fn declared_names(line: &str) -> impl Iterator<Item = &str> {
    let mut words = line.split(|c: char| !(c.is_alphanumeric() || c == '_'));
    std::iter::from_fn(move || {
        loop {
            let word = words.next()?;
            if [
                "fn", "struct", "enum", "trait", "type", "const", "static", "mod", "let",
            ]
            .contains(&word)
            {
                return words.find(|word| *word != "mut");
            }
        }
    })
}

/// The words of a name: `NextBesideOld` and `next_beside_old` both consist of `next`, `beside` and `old`.
fn words_of_name(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        let last_word = words.last_mut().expect("the list is not empty");
        if c == '_' || (c.is_uppercase() && last_word.ends_with(|c: char| c.is_lowercase())) {
            words.push(String::new());
        }
        let last_word = words.last_mut().expect("the list is not empty");
        last_word.extend(c.to_lowercase().filter(|c| *c != '_'));
    }
    words
}

/// Why this name must not be declared; `None` if it may.
fn fault_of_name(name: &str) -> Option<String> {
    let words = words_of_name(name);
    let banned_word = NOT_IN_NAMES
        .iter()
        .find(|(banned_word, _)| words.iter().any(|word| word == banned_word));
    if let Some((banned_word, instead)) = banned_word {
        return Some(format!(
            "`{name}` contains \"{banned_word}\": use {instead}"
        ));
    }
    (name == "look").then(|| "`look` does not say what the function returns".to_owned())
}

/// Names that may stay, each with a part of the path: helpers of tests that read the state of a lock.
const ALLOWED_NAMES: [(&str, &str); 2] = [("look", "tests/"), ("look", "fuzz/src/redis.rs")];

#[test]
fn names_in_the_code_contain_no_private_words() {
    let mut text_faults = Vec::new();
    for file in files().into_iter().filter(File::is_rust) {
        // Skip this file, because it contains the list of banned words.
        if file.path.ends_with("language.rs") {
            continue;
        }
        let path = file.path.display().to_string();
        let code = file
            .text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for name in code.flat_map(declared_names) {
            let allowed =
                |(allowed, folder): &(&str, &str)| name == *allowed && path.contains(folder);
            if let Some(fault) = fault_of_name(name).filter(|_| !ALLOWED_NAMES.iter().any(allowed))
            {
                text_faults.push(format!("{path}: {fault}"));
            }
        }
    }
    assert!(text_faults.is_empty(), "{}", text_faults.join("\n"));
}

#[test]
fn check_of_names_finds_private_words_in_both_spellings() {
    assert_eq!(words_of_name("NextBesideOld"), ["next", "beside", "old"]);
    assert_eq!(words_of_name("ask_beside"), ["ask", "beside"]);
    let names: Vec<_> = declared_names("pub(crate) fn look<T>(x: T) {} struct Beside;").collect();
    assert_eq!(names, ["look", "Beside"]);
    let variables: Vec<_> = declared_names("let said = 1; let mut told = 2;").collect();
    assert_eq!(variables, ["said", "told"]);
    assert!(names.into_iter().all(|name| fault_of_name(name).is_some()));
    assert_eq!(fault_of_name("besides"), None);
}
