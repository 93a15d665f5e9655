//! Tests that every text which states the promises states the same promises, with the same conditions and exceptions.
//! `docs/promises.md` is the source: its quoted paragraphs.

use crate::repository::root;

/// The places that repeat all promises of `docs/promises.md` word for word. A test of the command compares its help.
const FILES: [&str; 2] = ["README.md", "src/lib.rs"];

/// The number of promises. The README has room for four sentences.
const PROMISE_COUNT: usize = 4;

fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words of a text without its markup: comment signs, quotes, list signs, bold type, code and links.
fn plain_words(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("//!").unwrap_or(line);
        line.trim_start().trim_start_matches(['>', '-']).to_owned()
    });
    let text = lines.collect::<Vec<_>>().join(" ");
    // A link has the form `[text](target)`, or `[text]` in rustdoc.
    let mut text_without_links = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once("](") {
        text_without_links += before;
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    text_without_links += rest;
    let text_without_links = text_without_links.replace(['*', '`', '[', ']'], "");
    text_without_links
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// The quoted paragraphs of `docs/promises.md`, as words.
fn promises() -> Vec<String> {
    let page = text("docs/promises.md");
    let mut promises = vec![String::new()];
    for line in page.lines() {
        match line.strip_prefix('>') {
            Some(line) => {
                let promise = promises.last_mut().expect("the list must not be empty");
                *promise += line;
                *promise += "\n";
            }
            None => promises.push(String::new()),
        }
    }
    promises.retain(|promise| !promise.is_empty());
    promises
        .iter()
        .map(|promise| plain_words(promise))
        .collect()
}

#[test]
fn readme_and_rustdoc_state_the_promises_of_the_page_word_for_word() {
    let promises = promises();
    assert_eq!(promises.len(), PROMISE_COUNT, "{promises:#?}");
    for file in FILES {
        let text = plain_words(&text(file));
        for promise in &promises {
            assert!(
                text.contains(promise.as_str()),
                "{file} must contain this promise of docs/promises.md word for word, with its conditions and \
                 exceptions:\n{promise}"
            );
        }
    }
}

/// Every promise is one sentence that contains its condition.
#[test]
fn each_promise_is_one_sentence_with_its_condition() {
    for promise in promises() {
        let (name, sentence) = promise.split_once(". ").expect("a name and a sentence");
        let has_condition = [" as long as ", " while ", " if ", "If "]
            .iter()
            .any(|word| sentence.contains(word));
        assert!(has_condition, "{name}: {sentence}");
        let sentence_count = sentence.matches(". ").count();
        assert_eq!(sentence_count, 0, "{name} must be one sentence: {sentence}");
        assert!(sentence.ends_with('.'), "{name}: {sentence}");
    }
}

/// Each promise has a section that explains its conditions and exceptions, and names the rules behind it.
#[test]
fn each_promise_has_a_section_with_conditions_exceptions_and_rules() {
    let page = text("docs/promises.md");
    let quoted_sections = page.split("\n## ").filter(|part| part.contains("\n> "));
    let mut count = 0;
    for section in quoted_sections {
        let heading = section.lines().next().unwrap_or_default();
        let name = format!("> **{heading}.** ");
        assert!(section.contains(&name), "{heading} must quote its promise");
        for part in ["\nThe exception", "\nRules: [", "(protocol.md#"] {
            assert!(section.contains(part), "{heading} must contain {part:?}");
        }
        count += 1;
    }
    assert_eq!(count, PROMISE_COUNT);
}

#[test]
fn comparison_of_promises_ignores_markup_but_no_word() {
    let page = "> **One.** At most `one`\n> client [holds](x.md#a) it.\n";
    let rust = "//! - **One.** At most `one` client\n//!   [holds](crate::X) it.\n";
    assert_eq!(plain_words(page), "One. At most one client holds it.");
    assert_eq!(plain_words(rust), plain_words(page));
    assert_ne!(
        plain_words(&rust.replace("most", "least")),
        plain_words(page)
    );
}
