//! Warns if a `QUORATE_*` environment variable is set that quorate does not read. Most such variables are misspelt.

use std::collections::BTreeSet;

use crate::output;

/// The prefix of the names of all variables that quorate reads.
const PREFIX: &str = "QUORATE_";

/// Environment variables that `run`, `once` and `lead` set for the command that they start, with their meanings.
pub(crate) const COMMAND_VARIABLES: [(&str, &str); 7] = [
    ("QUORATE_RESOURCE", "the name of the lock"),
    ("QUORATE_ALSO", "the other names of the lock, with --also"),
    ("QUORATE_TOKEN", "the value of the lock key on the masters"),
    (
        "QUORATE_FENCING_TOKEN",
        "the fencing token: larger than the token of every earlier holder",
    ),
    ("QUORATE_SLOT", "the number of the permit, with --permits"),
    (
        "QUORATE_HELD",
        "the locks that outer quorate processes hold, and which process holds each lock",
    ),
    ("QUORATE_OWNER", "the owner of the lock, with --owner"),
];

/// The lines of a help text that list the variables of [`COMMAND_VARIABLES`].
pub(crate) fn table_text() -> String {
    let variable_line = |(name, meaning): (&str, &str)| format!("    {name:<21} {meaning}");
    COMMAND_VARIABLES.map(variable_line).join("\n")
}

/// Environment variables for the servers that `demo` and `bench` start: name and meaning.
pub(crate) const SERVER_VARIABLES: [(&str, &str); 3] = [
    (
        "QUORATE_SERVER",
        "the path of the redis-server or valkey-server that demo and bench start",
    ),
    (
        "QUORATE_ZOOKEEPER",
        "the folder with the ZooKeeper jars that demo and bench use",
    ),
    (
        "QUORATE_SERVER_DATA",
        "the folder in which the servers of demo and bench store their files",
    ),
];

/// Prefixes of variables for the tests and tools of this project. quorate does not warn about such variables.
const TOOL_PREFIXES: [&str; 12] = [
    "QUORATE_TEST_",
    "QUORATE_CHAOS_",
    "QUORATE_INTEROP_",
    "QUORATE_MUTANT",
    "QUORATE_SEED",
    "QUORATE_CLI",
    "QUORATE_NOT_RUN",
    "QUORATE_ISOLATED",
    "QUORATE_PRIZE_RUNS",
    "QUORATE_NAMES_DIR",
    "QUORATE_CLOCK_OFFSET_FILE",
    "QUORATE_ETCD",
];

/// Warns about each `QUORATE_*` variable that is set, but that quorate does not read. Suggests the most similar
/// variable that quorate reads.
pub(crate) fn warn_of_unknown(commands: &clap::Command) {
    let mut known_variables: BTreeSet<String> = option_variables(commands);
    known_variables.extend(SERVER_VARIABLES.map(|(name, _)| name.to_owned()));
    // Ignore empty variables, because they count as unset.
    let set_variables = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    let names = set_variables.filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| is_unknown(name, &known_variables)) {
        let advice = match nearest(&name, &known_variables) {
            Some(advice) => format!("did you mean {advice}?"),
            None => "this variable has no effect".to_owned(),
        };
        output::print_notice(format!("warning: quorate has no variable {name}: {advice}"));
    }
}

/// The names of the environment variables that set options of `commands` or of their subcommands.
fn option_variables(commands: &clap::Command) -> BTreeSet<String> {
    let own_variables = commands.get_arguments().filter_map(|arg| arg.get_env());
    let own_variables = own_variables.filter_map(|name| name.to_str().map(str::to_owned));
    own_variables
        .chain(commands.get_subcommands().flat_map(option_variables))
        .collect()
}

fn is_unknown(name: &str, known_variables: &BTreeSet<String>) -> bool {
    name.starts_with(PREFIX)
        && !known_variables.contains(name)
        && !COMMAND_VARIABLES
            .iter()
            .any(|(variable, _)| *variable == name)
        && !TOOL_PREFIXES.iter().any(|tool| name.starts_with(tool))
}

/// The known variable whose name is most similar to `name`; `None` if no known variable is similar.
fn nearest<'a>(name: &str, known_variables: &'a BTreeSet<String>) -> Option<&'a str> {
    let bare_name = name.strip_prefix(PREFIX)?.to_ascii_uppercase();
    let known_variables = known_variables.iter().map(|known_name| &**known_name);
    nearest_of(&bare_name, known_variables, |known_name| {
        known_name.strip_prefix(PREFIX).unwrap_or(known_name)
    })
}

/// Returns the element of `known_variables` that is most similar to `word`; `None` if no element is similar.
///
/// `compared_part` returns the part of an element that is compared with `word`, for example a name without its prefix.
pub(crate) fn nearest_of<'a>(
    word: &str,
    known_words: impl Iterator<Item = &'a str>,
    compared_part: impl Fn(&'a str) -> &'a str,
) -> Option<&'a str> {
    let max_edits = (word.chars().count() / 3).max(1);
    let by_distance = known_words.map(|known_word| {
        (
            strsim::damerau_levenshtein(word, compared_part(known_word)),
            known_word,
        )
    });
    by_distance
        .filter(|(edits, _)| *edits <= max_edits)
        .min()
        .map(|(_, known_word)| known_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_about_a_misspelt_variable_suggests_the_nearest_known_variable() {
        let known_variables = ["TTL", "TRY", "MASTERS", "NODE_TIMEOUT", "WAIT"];
        let known_variables: BTreeSet<String> =
            known_variables.map(|name| format!("{PREFIX}{name}")).into();
        for (name, meant) in [
            ("QUORATE_TLL", Some("QUORATE_TTL")),
            ("QUORATE_MASTER", Some("QUORATE_MASTERS")),
            ("QUORATE_masters", Some("QUORATE_MASTERS")),
            ("QUORATE_NODE_TIME_OUT", Some("QUORATE_NODE_TIMEOUT")),
            ("QUORATE_WIAT", Some("QUORATE_WAIT")),
            ("QUORATE_ELSE", None),
        ] {
            assert_eq!(nearest(name, &known_variables), meant, "{name}");
            assert!(is_unknown(name, &known_variables), "{name}");
        }
        for name in [
            "QUORATE_TTL",
            "QUORATE_HELD",
            "QUORATE_TEST_SERVERS",
            "PATH",
        ] {
            assert!(!is_unknown(name, &known_variables), "{name}");
        }
    }
}
