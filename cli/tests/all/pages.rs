//! Tests of help texts, manual pages, tables and completions, at several widths.

use std::process::{Command, Stdio};

use crate::common::{self, RunOutput, output_of, quorate_command, start_masters};
use quorate_testbed::not_run;

/// The commands that have a manual page; the empty text is `quorate` itself.
const COMMANDS: [&str; 17] = [
    "",
    "run",
    "hold",
    "once",
    "lead",
    "watch",
    "status",
    "check",
    "doctor",
    "break",
    "bench",
    "demo",
    "page",
    "quota",
    "prepare-server",
    "completions",
    "man",
];

fn help_of(command: &str, columns: &str) -> String {
    let mut help = quorate_command();
    help.args(command.split_whitespace());
    if !command.starts_with("help ") {
        help.arg("--help");
    }
    let help = output_of(help.env("COLUMNS", columns).stdin(Stdio::null()));
    assert_eq!(help.code, Some(0), "{help:?}");
    help.stdout
}

#[test]
fn help_text_is_wrapped_between_words_at_the_terminal_width() {
    for command in COMMANDS
        .iter()
        .chain(&["help masters", "help command", "help kinds"])
    {
        let words = |text: &str| -> Vec<String> {
            let words = text.split_whitespace().filter(|word| *word != "\\");
            words.map(str::to_owned).collect()
        };
        let whole_words = words(&help_of(command, "200"));
        for columns in [60, 80, 200] {
            let text = help_of(command, &columns.to_string());
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(
                widest <= Some(columns.min(100)),
                "{command} {columns}: {text}"
            );
            assert_eq!(words(&text), whole_words, "{command} {columns}");
        }
    }
}

#[test]
fn every_manual_page_has_the_standard_sections() {
    let dir = tempfile::tempdir().expect("a directory");
    let manual_run = output_of(quorate_command().args(["man", "--out"]).arg(dir.path()));
    assert_eq!(manual_run.code, Some(0), "{manual_run:?}");
    for command in COMMANDS {
        let name = if command.is_empty() {
            "quorate".to_owned()
        } else {
            format!("quorate-{command}")
        };
        let file = dir.path().join(format!("{name}.1"));
        let page = std::fs::read_to_string(&file).expect("a page");
        let mut wanted_sections = vec!["\"SEE ALSO\"", "ENVIRONMENT"];
        if !matches!(command, "completions" | "man") {
            wanted_sections.extend(["\"EXIT STATUS\"", "EXAMPLES"]);
        }
        for section in wanted_sections {
            let section = section.trim_matches('"');
            let heading = [format!(".SH {section}\n"), format!(".SH \"{section}\"\n")];
            assert!(
                heading.iter().any(|heading| page.contains(heading)),
                "{name}: {section}"
            );
        }
        for warning in [".SH EXTRA", "Exit codes:", "Examples:"] {
            assert!(!page.contains(warning), "{name}: {warning}");
        }
        assert_typeset(&name, &file, command);
    }
    for topic in ["masters", "command", "kinds"] {
        let name = format!("quorate-{topic}");
        let file = dir.path().join(format!("{name}.7"));
        let page = std::fs::read_to_string(&file).expect("a page");
        let title = format!(".TH {name} 7");
        assert!(page.contains(&title), "{page}");
        for section in [".SH NAME", ".SH \"DESCRIPTION\"", ".SH \"SEE ALSO\""] {
            assert!(
                page.contains(section),
                "the page {name} must have the section {section}: {page}"
            );
        }
        assert_typeset(&name, &file, &format!("help {topic}"));
    }
    let run_page = std::fs::read_to_string(dir.path().join("quorate-run.1")).expect("a page");
    assert!(
        run_page.contains("May also be specified with the \\fBQUORATE_TTL\\fR"),
        "{run_page}"
    );
}

/// Typesets the manual page `file` of `command`. Checks that it shows the same examples as the help text of `command`.
fn assert_typeset(name: &str, file: &std::path::Path, command: &str) {
    let groff = Command::new("groff")
        .args(["-man", "-Tutf8", "-P-cbou", "-ww", "-rLL=60n"])
        .arg(file)
        .output();
    let Ok(groff) = groff else {
        return not_run(&format!("typeset {name}"), "there is no groff");
    };
    let errors = String::from_utf8_lossy(&groff.stderr);
    assert!(
        groff.status.success() && errors.is_empty(),
        "{name}: {errors}"
    );
    let page = String::from_utf8_lossy(&groff.stdout).into_owned();
    let help = help_of(command, "200");
    let examples = help.split("\nExamples:\n").nth(1).unwrap_or_default();
    let examples = examples.lines().take_while(|line| !line.is_empty());
    for example in examples.filter(|line| !line.starts_with("     ")) {
        let is_whole = !example.ends_with('\\');
        assert!(
            !is_whole || page.contains(example.trim()),
            "{name}: {example}\n{page}"
        );
    }
    for hyphen in ["\u{2010}", "\u{2019}"] {
        assert!(
            !page.contains(hyphen),
            "{name}: the page must not contain {hyphen:?}, which cannot be typed\n{page}"
        );
    }
}

/// The lines that `quorate` with the arguments `words` prints on a terminal of this width; `None` if the program
/// `script` is not installed.
fn on_a_terminal(columns: u16, urls: &str, args: &str) -> Option<Vec<String>> {
    let quorate = env!("CARGO_BIN_EXE_quorate");
    let shell_line = format!("stty cols {columns}; {quorate} {args}");
    let mut script = Command::new("script");
    script.args(["-qec", &format!("sh -c '{shell_line}'"), "/dev/null"]);
    common::without_variables(&mut script)
        .env("QUORATE_MASTERS", urls)
        .env("QUORATE_RESTART_GUARD", "off");
    script.env("NO_COLOR", "1").stdin(Stdio::null());
    let screen: RunOutput = script.output().is_ok().then(|| output_of(&mut script))?;
    Some(
        screen
            .stdout
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect(),
    )
}

#[test]
fn tables_fit_narrow_terminals() {
    let masters = start_masters(3);
    for master in &masters {
        master
            .command(&["SET", "deploy:web", "somebody", "PX", "60000"])
            .expect("a reply");
    }
    masters[2].kill().expect("killed");
    let urls = masters.urls().join(",");
    for words in ["status deploy:web", "status", "doctor"] {
        let Some(wide) = on_a_terminal(200, &urls, words) else {
            return not_run("tables_fit_narrow_terminals", "there is no script");
        };
        assert!(
            wide.iter()
                .any(|line| line.starts_with("MASTER  ") || line.starts_with("RESOURCE  ")),
            "{wide:#?}"
        );
        let narrow = on_a_terminal(40, &urls, words)
            .expect("the program `script` of util-linux must be installed");
        for line in &narrow {
            assert!(
                line.chars().count() <= 40,
                "{words}: {line:?} in {narrow:#?}"
            );
        }
        let all_lines = narrow.join("\n");
        assert!(
            all_lines.contains("STATE ") || all_lines.contains("HOLDER "),
            "{all_lines}"
        );
    }
    // If stdout is a pipe, every row of a table must stay on one line.
    let piped = output_of(common::quorate_on(&masters).args(["status", "deploy:web"]));
    assert!(piped.stdout.contains("MASTER "), "{piped:?}");
}

/// The completions that bash offers for the last of these words.
fn completions_of(words: &[&str]) -> RunOutput {
    let script = output_of(quorate_command().args(["completions", "bash"]));
    assert_eq!(script.code, Some(0), "{script:?}");
    let array: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let last_index = words.len() - 1;
    let shell_line = format!(
        "{}\nCOMP_WORDS=({}); COMP_CWORD={last_index}; \
         _quorate_or_command quorate \"${{COMP_WORDS[{last_index}]}}\" \"${{COMP_WORDS[{}]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.stdout,
        array.join(" "),
        last_index - 1
    );
    output_of(Command::new("bash").args(["--norc", "-c", &shell_line]))
}

#[test]
fn shell_completes_the_command_after_the_double_dash() {
    let command = completions_of(&["quorate", "run", "x", "--", "prin"]);
    assert!(
        command.stdout.lines().any(|word| word == "printf"),
        "{command:?}"
    );
    let completed_file = completions_of(&["quorate", "run", "x", "--", "cat", "/etc/pass"]);
    assert!(
        completed_file
            .stdout
            .lines()
            .any(|word| word == "/etc/passwd"),
        "{completed_file:?}"
    );
    let option_completions = completions_of(&["quorate", "run", "--max-h"]);
    assert_eq!(
        option_completions.stdout.trim(),
        "--max-hold",
        "{option_completions:?}"
    );
    let fish = output_of(quorate_command().args(["completions", "fish"]));
    assert!(fish.stdout.contains("__fish_quorate_command"), "{fish:?}");
    let zsh = output_of(quorate_command().args(["completions", "zsh"]));
    assert!(zsh.stdout.contains("_cmdambivalent"), "{zsh:?}");
}

/// The names of all commands, as the help lists them. For `masters` and `quota`, also their subcommands, for example
/// `masters begin`.
fn command_names() -> Vec<String> {
    let command_names = |command: &str| {
        let text = help_of(command, "200");
        let lines = text.lines().skip_while(|line| *line != "Commands:").skip(1);
        let lines = lines.take_while(|line| line.starts_with("  "));
        let name = |line: &str| {
            line.split_whitespace()
                .next()
                .unwrap_or_default()
                .to_owned()
        };
        lines.map(name).collect::<Vec<_>>()
    };
    let mut all_commands = command_names("");
    for command in ["masters", "quota"] {
        all_commands.extend(
            command_names(command)
                .into_iter()
                .map(|name| format!("{command} {name}")),
        );
    }
    all_commands.extend(["completions", "man"].map(str::to_owned));
    all_commands
}

#[test]
fn every_command_that_a_page_mentions_exists() {
    let commands = command_names();
    assert!(commands.len() > 20, "{commands:?}");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let docs = std::fs::read_dir(format!("{root}/docs")).expect("docs/ must be readable");
    let docs = docs.map(|entry| entry.expect("an entry").path());
    let pages = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let root = std::path::Path::new(root);
    let mut named_count = 0;
    for path in pages.chain(["README.md", "CHANGELOG.md"].map(|name| root.join(name))) {
        let text = std::fs::read_to_string(&path).expect("a page");
        // Join the lines, because a command in a paragraph can be broken across lines.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for rest in text.split("`quorate ").skip(1) {
            let mut words = rest.split(['`', ' ']);
            let first_word = words.next().unwrap_or_default();
            if first_word.is_empty()
                || !first_word
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c == '-')
            {
                continue;
            }
            let both_words = format!("{first_word} {}", words.next().unwrap_or_default());
            let has_steps =
                ["masters", "quota"].contains(&first_word) && rest.starts_with(&both_words);
            let name = if has_steps {
                both_words.as_str()
            } else {
                first_word
            };
            // Ignore names of benchmark rows such as `quorate default`, which are not commands.
            let is_row = path.ends_with("benchmarks.md");
            let is_known = is_row || commands.iter().any(|known| known == name);
            let is_option = name.contains(" -") || name.ends_with(' ') || name.contains(['|', '.']);
            assert!(is_known || is_option, "{}: quorate {name}", path.display());
            named_count += 1;
        }
    }
    assert!(
        named_count > 50,
        "the pages must contain more than 50 quorate commands, but only {named_count} were found"
    );
}

/// The same comparison for the README and the rustdoc of the library is in `tests/all/promises.rs`.
#[test]
fn help_states_the_promises_of_the_page_word_for_word() {
    let page_path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/promises.md");
    let page = std::fs::read_to_string(page_path).expect("a page");
    let words = |text: &str| {
        let plain = text.replace(['*', '`'], "");
        plain.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let shown_words = words(&help_of("", "100"));
    let mut promises = vec![String::new()];
    for line in page.lines() {
        match line.strip_prefix('>') {
            Some(line) => promises.last_mut().expect("a promise").push_str(line),
            None => promises.push(String::new()),
        }
    }
    promises.retain(|promise| !promise.is_empty());
    assert_eq!(promises.len(), 4, "{promises:#?}");
    for promise in promises {
        let promise = words(&promise);
        assert!(
            shown_words.contains(&promise),
            "quorate --help must contain this promise of docs/promises.md: {promise}\n{shown_words}"
        );
    }
}
