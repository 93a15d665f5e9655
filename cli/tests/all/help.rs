//! Tests of the help: its length, the options that it shows, the topics, and the suggestion for a misspelt option.

use crate::common::{RunOutput, output_of, quorate_command};

/// The command lines whose help is tested. The number is the count of words that name the command. All further words
/// are required arguments.
const COMMANDS: [(usize, &[&str]); 28] = [
    (1, &["run", "r", "true"]),
    (1, &["hold", "r"]),
    (1, &["once", "--per", "day", "r", "true"]),
    (1, &["lead", "r", "true"]),
    (1, &["watch", "r"]),
    (1, &["status"]),
    (1, &["check", "r", "7"]),
    (1, &["break", "--yes", "r"]),
    (1, &["doctor"]),
    (1, &["page"]),
    (1, &["bench"]),
    (2, &["quota", "create", "r", "1"]),
    (2, &["quota", "take", "r"]),
    (2, &["quota", "left", "r"]),
    (2, &["quota", "drop", "--yes", "r"]),
    (2, &["masters", "status"]),
    (2, &["masters", "mark"]),
    (2, &["masters", "begin"]),
    (2, &["masters", "close"]),
    (2, &["masters", "open"]),
    (2, &["masters", "finish"]),
    (2, &["masters", "back-out"]),
    (1, &["quota"]),
    (1, &["masters"]),
    (1, &["demo"]),
    (1, &["prepare-server"]),
    (1, &["help"]),
    (0, &[]),
];

/// The commands that connect to masters: the first 22 of [`COMMANDS`].
fn commands_with_masters() -> &'static [(usize, &'static [&'static str])] {
    &COMMANDS[..22]
}

fn output_with(words: &[&str]) -> RunOutput {
    let output = output_of(quorate_command().args(words).env("COLUMNS", "100"));
    assert_eq!(output.code, Some(0), "{words:?}: {output:?}");
    output
}

/// The options that a help text shows: pairs of the option and the name of its value. This name is empty if the option
/// has no value.
fn options_in(help: &str) -> Vec<(String, String)> {
    let rows = help.lines().filter_map(|line| {
        // Only lines that describe an option are indented like this.
        let long = line.strip_prefix("      --");
        let option_text =
            long.or_else(|| line.strip_prefix("  -")?.get(1..)?.strip_prefix(", --"))?;
        let name: String = option_text
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '-')
            .collect();
        let words_after_name = &option_text[name.len()..];
        let value = words_after_name
            .strip_prefix(" <")
            .and_then(|rest| rest.split_once('>'));
        Some((
            name,
            value.map_or_else(String::new, |(value, _)| value.to_owned()),
        ))
    });
    rows.collect()
}

#[test]
fn help_of_every_command_has_at_most_the_allowed_number_of_lines() {
    for (number, words) in COMMANDS {
        for columns in ["80", "100"] {
            for (flag, max_lines) in [("-h", 45), ("--help", 120)] {
                let mut help = quorate_command();
                help.args(&words[..number])
                    .arg(flag)
                    .env("COLUMNS", columns);
                let help = output_of(&mut help);
                let lines = help.stdout.lines().count();
                assert!(
                    (3..=max_lines).contains(&lines),
                    "the help of {:?} {flag} must not have {lines} lines in {columns} columns:\n{}",
                    &words[..number],
                    help.stdout
                );
            }
        }
    }
}

/// A value that an option accepts. `name` is the name of the option's value in the help, for example `TIME`.
fn sample_value(name: &str) -> String {
    let value = match name {
        "PID" => return std::process::id().to_string(),
        "DIR" => return std::env::temp_dir().display().to_string(),
        "TIME" => "10s",
        "N,N,.." => "1,3",
        "HH:MM" => "03:00",
        "ZONE" => "UTC",
        "URL,URL,.." | "KIND,KIND,.." => "redis",
        "on|off" | "MODE" => "on",
        "ORDER" => "fair",
        "HOST:PORT" => "127.0.0.1:9",
        "FILE" => "/dev/null",
        _ => "7",
    };
    value.to_owned()
}

#[test]
fn every_option_in_the_help_of_a_command_is_accepted_by_the_command() {
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("metrics.prom");
    for (number, words) in commands_with_masters() {
        let help = output_with(&[&words[..*number], &["--help"]].concat());
        let listed = options_in(&help.stdout);
        assert!(listed.len() > 4, "{words:?}: {listed:?}");
        for (option, value_name) in listed {
            if matches!(&*option, "help" | "masters") {
                continue;
            }
            let flag = format!("--{option}");
            let mut command = quorate_command();
            command.args(&words[..*number]).arg(&flag);
            match &*option {
                "metrics-file" => drop(command.arg(&file)),
                _ if value_name.is_empty() => {}
                _ => drop(command.arg(sample_value(&value_name))),
            }
            let rest = &words[*number..];
            // If one of these options is set, `run`, `once` and `lead` accept no COMMAND argument.
            let without_command = ["create", "drop", "status", "shell", "yes"].contains(&&*option);
            let rest = match (&*option, words[0]) {
                ("per", _) => &rest[2..],
                (_, "once" | "run" | "lead") if without_command => &rest[..rest.len() - 1],
                ("yes", "break" | "quota") => &rest[1..],
                _ => rest,
            };
            match (&*option, words[0]) {
                ("drop", _) => drop(command.arg("--yes")),
                ("yes", "once") => drop(command.arg("--drop")),
                _ => {}
            }
            if matches!(&*option, "nodes" | "spawn") {
                continue; // these start servers, so no masters need to be named
            }
            let output = output_of(command.args(rest));
            assert!(
                output.code == Some(64) && output.stderr.contains("no masters: "),
                "{words:?} {flag}: {output:?}"
            );
        }
    }
}

#[test]
fn options_about_masters_are_shown_only_in_the_help_topic_masters() {
    let topic = output_with(&["help", "masters"]).stdout;
    let words = topic.split_whitespace().collect::<Vec<_>>().join(" ");
    let all_options = options_in(&topic);
    assert!(all_options.len() >= 14, "{all_options:?}");
    for expected in [
        "QUORATE_NODE_TIMEOUT",
        "quorate.toml",
        "quorate masters --help",
    ] {
        assert!(words.contains(expected), "{expected}: {topic}");
    }
    assert!(topic.lines().count() <= 120, "{topic}");
    for (number, words) in commands_with_masters() {
        let help = output_with(&[&words[..*number], &["--help"]].concat()).stdout;
        assert!(help.contains("quorate help masters"), "{words:?}: {help}");
        let common_options: Vec<String> = options_in(&help)
            .into_iter()
            .filter(|option| all_options.contains(option))
            .map(|(option, _)| option)
            .collect();
        assert_eq!(common_options, ["masters", "config"], "{words:?}: {help}");
    }
}

#[test]
fn help_command_prints_the_help_of_topics_and_commands() {
    for topic in ["masters", "command", "kinds"] {
        assert!(
            output_with(&["--help"])
                .stdout
                .contains(&format!("quorate help {topic}"))
        );
        assert!(
            output_with(&["help", topic]).stdout.lines().count() > 10,
            "{topic}"
        );
    }
    assert_eq!(
        output_with(&["help", "run"]).stdout,
        output_with(&["run", "--help"]).stdout
    );
    assert_eq!(
        output_with(&["help", "masters", "close"]).stdout,
        output_with(&["masters", "close", "--help"]).stdout
    );
    assert_eq!(
        output_with(&["help"]).stdout,
        output_with(&["--help"]).stdout
    );
    let wrong_run = output_of(quorate_command().args(["help", "mastres"]));
    assert_eq!(wrong_run.code, Some(64), "{wrong_run:?}");
    assert!(
        wrong_run.stderr.contains("did you mean masters?"),
        "{wrong_run:?}"
    );
}

#[test]
fn list_of_commands_in_the_help_omits_commands_for_packagers() {
    for flag in ["-h", "--help"] {
        let help = output_with(&[flag]).stdout;
        let (_, list) = help.split_once("Commands:\n").expect("a list");
        let list = list.split("\n\n").next().expect("its lines");
        let names = list
            .lines()
            .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names: Vec<&str> = names
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert!(
            names.contains(&"run") && names.contains(&"help"),
            "{names:?}"
        );
        assert!(
            !names.contains(&"man") && !names.contains(&"completions"),
            "{names:?}"
        );
    }
    assert_eq!(output_with(&["man"]).code, Some(0));
}

#[test]
fn error_about_a_misspelt_option_or_command_suggests_the_nearest_one() {
    for (words, suggestion) in [
        (&["run", "--max-hodl", "1m", "r", "true"][..], "--max-hold"),
        (&["run", "--tyr", "r", "--", "true"], "--try"),
        (&["run", "r", "--wiat", "1s", "--", "true"], "--wait"),
        (&["hold", "--tll", "5s", "r"], "--ttl"),
        (&["status", "--jsn", "r"], "--json"),
        (&["status", "--master", "redis://a"], "--masters"),
        (&["status", "--node-time-out", "1s"], "--node-timeout"),
        (&["quota", "take", "r", "--jsno"], "--json"),
        (&["masters", "clos"], "close"),
        (&["stauts", "r"], "status"),
        // Former names of commands.
        (&["list"], "status"),
        (&["prepare", "mysql://a/b"], "prepare-server"),
        (&["masters", "prepare"], "begin"),
    ] {
        let output = output_of(quorate_command().args(words));
        assert_eq!(output.code, Some(64), "{words:?}: {output:?}");
        let hint = format!("did you mean {suggestion}?");
        assert!(output.stderr.contains(&hint), "{words:?}: {output:?}");
        assert!(
            !output.stderr.contains("as a value"),
            "{words:?}: {output:?}"
        );
    }
    let far_run = output_of(quorate_command().args(["status", "--frobnicate", "r"]));
    assert!(!far_run.stderr.contains("did you mean"), "{far_run:?}");
}
