//! Tests of the help: its length, the options that it shows, the topics, and the suggestion for a misspelt option.

use crate::common::{Done, bare, done};

/// The command lines whose help is tested. The number is the count of words that name the command. All further words
/// are required arguments.
const COMMANDS: [(usize, &[&str]); 27] = [
    (1, &["run", "r", "true"]),
    (1, &["hold", "r"]),
    (1, &["once", "--per", "day", "r", "true"]),
    (1, &["lead", "r", "true"]),
    (1, &["watch", "r"]),
    (1, &["status"]),
    (1, &["check", "r", "7"]),
    (1, &["break", "--yes", "r"]),
    (1, &["doctor"]),
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

/// The commands that connect to masters: the first 21 of [`COMMANDS`].
fn with_masters() -> &'static [(usize, &'static [&'static str])] {
    &COMMANDS[..21]
}

fn ask(words: &[&str]) -> Done {
    let asked = done(bare().args(words).env("COLUMNS", "100"));
    assert_eq!(asked.code, Some(0), "{words:?}: {asked:?}");
    asked
}

/// The options that a help text shows: pairs of the option and the name of its value. This name is empty if the option
/// has no value.
fn options(help: &str) -> Vec<(String, String)> {
    let rows = help.lines().filter_map(|line| {
        // Only lines that describe an option are indented like this.
        let long = line.strip_prefix("      --");
        let words = long.or_else(|| line.strip_prefix("  -")?.get(1..)?.strip_prefix(", --"))?;
        let name: String = words
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '-')
            .collect();
        let rest = &words[name.len()..];
        let value = rest
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
            for (flag, most) in [("-h", 45), ("--help", 120)] {
                let mut help = bare();
                help.args(&words[..number])
                    .arg(flag)
                    .env("COLUMNS", columns);
                let help = done(&mut help);
                let lines = help.out.lines().count();
                assert!(
                    (3..=most).contains(&lines),
                    "the help of {:?} {flag} must not have {lines} lines in {columns} columns:\n{}",
                    &words[..number],
                    help.out
                );
            }
        }
    }
}

/// A value that an option accepts. `name` is the name of the option's value in the help, for example `TIME`.
fn value(name: &str) -> String {
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
    for (number, words) in with_masters() {
        let help = ask(&[&words[..*number], &["--help"]].concat());
        let shown = options(&help.out);
        assert!(shown.len() > 4, "{words:?}: {shown:?}");
        for (option, value_name) in shown {
            if matches!(&*option, "help" | "masters") {
                continue;
            }
            let flag = format!("--{option}");
            let mut command = bare();
            command.args(&words[..*number]).arg(&flag);
            match &*option {
                "metrics-file" => drop(command.arg(&file)),
                _ if value_name.is_empty() => {}
                _ => drop(command.arg(value(&value_name))),
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
            let ran = done(command.args(rest));
            assert!(
                ran.code == Some(64) && ran.err.contains("no masters: "),
                "{words:?} {flag}: {ran:?}"
            );
        }
    }
}

#[test]
fn options_about_masters_are_shown_only_in_the_help_topic_masters() {
    let topic = ask(&["help", "masters"]).out;
    let words = topic.split_whitespace().collect::<Vec<_>>().join(" ");
    let all = options(&topic);
    assert!(all.len() >= 14, "{all:?}");
    for wanted in [
        "QUORATE_NODE_TIMEOUT",
        "quorate.toml",
        "quorate masters --help",
    ] {
        assert!(words.contains(wanted), "{wanted}: {topic}");
    }
    assert!(topic.lines().count() <= 120, "{topic}");
    for (number, words) in with_masters() {
        let help = ask(&[&words[..*number], &["--help"]].concat()).out;
        assert!(help.contains("quorate help masters"), "{words:?}: {help}");
        let both: Vec<String> = options(&help)
            .into_iter()
            .filter(|option| all.contains(option))
            .map(|(option, _)| option)
            .collect();
        assert_eq!(both, ["masters", "config"], "{words:?}: {help}");
    }
}

#[test]
fn help_command_prints_the_help_of_topics_and_commands() {
    for topic in ["masters", "command", "kinds"] {
        assert!(
            ask(&["--help"])
                .out
                .contains(&format!("quorate help {topic}"))
        );
        assert!(ask(&["help", topic]).out.lines().count() > 10, "{topic}");
    }
    assert_eq!(ask(&["help", "run"]).out, ask(&["run", "--help"]).out);
    assert_eq!(
        ask(&["help", "masters", "close"]).out,
        ask(&["masters", "close", "--help"]).out
    );
    assert_eq!(ask(&["help"]).out, ask(&["--help"]).out);
    let wrong = done(bare().args(["help", "mastres"]));
    assert_eq!(wrong.code, Some(64), "{wrong:?}");
    assert!(wrong.err.contains("did you mean masters?"), "{wrong:?}");
}

#[test]
fn list_of_commands_in_the_help_omits_commands_for_packagers() {
    for flag in ["-h", "--help"] {
        let help = ask(&[flag]).out;
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
    assert_eq!(ask(&["man"]).code, Some(0));
}

#[test]
fn error_about_a_misspelt_option_or_command_suggests_the_nearest_one() {
    for (words, meant) in [
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
        let said = done(bare().args(words));
        assert_eq!(said.code, Some(64), "{words:?}: {said:?}");
        let wanted = format!("did you mean {meant}?");
        assert!(said.err.contains(&wanted), "{words:?}: {said:?}");
        assert!(!said.err.contains("as a value"), "{words:?}: {said:?}");
    }
    let far = done(bare().args(["status", "--frobnicate", "r"]));
    assert!(!far.err.contains("did you mean"), "{far:?}");
}
