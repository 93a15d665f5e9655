//! Warns if a `QUORATE_*` environment variable is set that quorate does not read. Most such variables are misspelt.

use std::collections::BTreeSet;

use crate::output;

/// The prefix of the names of all variables that quorate reads.
const OURS: &str = "QUORATE_";

/// Environment variables that `run`, `once` and `lead` set for the command that they start, with their meanings.
pub(crate) const FOR_THE_COMMAND: [(&str, &str); 7] = [
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

/// The lines of a help text that list the variables of [`FOR_THE_COMMAND`].
pub(crate) fn table() -> String {
    let line = |(name, words): (&str, &str)| format!("    {name:<21} {words}");
    FOR_THE_COMMAND.map(line).join("\n")
}

/// The variables that choose the servers which `demo` and `bench` start.
const SERVERS: [&str; 2] = ["QUORATE_SERVER", "QUORATE_ZOOKEEPER"];

/// Prefixes of variables for the tests and tools of this project. quorate does not warn about such variables.
const TOOLS: [&str; 11] = [
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
];

/// Warns about each `QUORATE_*` variable that is set, but that quorate does not read. Suggests the most similar
/// variable that quorate reads.
pub(crate) fn warn_of_unknown(commands: &clap::Command) {
    let mut known: BTreeSet<String> = of_options(commands);
    known.extend(SERVERS.map(str::to_owned));
    // Ignore empty variables, because they count as unset.
    let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
    let names = set.filter_map(|(name, _)| name.into_string().ok());
    for name in names.filter(|name| is_unknown(name, &known)) {
        let meant = match nearest(&name, &known) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "this variable has no effect".to_owned(),
        };
        output::mention(format!("warning: quorate has no variable {name}: {meant}"));
    }
}

/// The names of the environment variables that set options of `commands` or of their subcommands.
fn of_options(commands: &clap::Command) -> BTreeSet<String> {
    let own = commands.get_arguments().filter_map(|arg| arg.get_env());
    let own = own.filter_map(|name| name.to_str().map(str::to_owned));
    own.chain(commands.get_subcommands().flat_map(of_options))
        .collect()
}

fn is_unknown(name: &str, known: &BTreeSet<String>) -> bool {
    name.starts_with(OURS)
        && !known.contains(name)
        && !FOR_THE_COMMAND.iter().any(|(told, _)| *told == name)
        && !TOOLS.iter().any(|tool| name.starts_with(tool))
}

/// The known variable whose name is most similar to `name`; `None` if no known variable is similar.
fn nearest<'a>(name: &str, known: &'a BTreeSet<String>) -> Option<&'a str> {
    let bare = name.strip_prefix(OURS)?.to_ascii_uppercase();
    let known = known.iter().map(|other| &**other);
    nearest_of(&bare, known, |other| {
        other.strip_prefix(OURS).unwrap_or(other)
    })
}

/// Returns the element of `known` that is most similar to `word`; `None` if no element is similar.
///
/// `part` returns the part of an element that is compared with `word`, for example a name without its prefix.
pub(crate) fn nearest_of<'a>(
    word: &str,
    known: impl Iterator<Item = &'a str>,
    part: impl Fn(&'a str) -> &'a str,
) -> Option<&'a str> {
    let most = (word.chars().count() / 3).max(1);
    let near = known.map(|other| (strsim::damerau_levenshtein(word, part(other)), other));
    near.filter(|(edits, _)| *edits <= most)
        .min()
        .map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_about_a_misspelt_variable_suggests_the_nearest_known_variable() {
        let known = ["TTL", "TRY", "MASTERS", "NODE_TIMEOUT", "WAIT"];
        let known: BTreeSet<String> = known.map(|name| format!("{OURS}{name}")).into();
        for (name, meant) in [
            ("QUORATE_TLL", Some("QUORATE_TTL")),
            ("QUORATE_MASTER", Some("QUORATE_MASTERS")),
            ("QUORATE_masters", Some("QUORATE_MASTERS")),
            ("QUORATE_NODE_TIME_OUT", Some("QUORATE_NODE_TIMEOUT")),
            ("QUORATE_WIAT", Some("QUORATE_WAIT")),
            ("QUORATE_ELSE", None),
        ] {
            assert_eq!(nearest(name, &known), meant, "{name}");
            assert!(is_unknown(name, &known), "{name}");
        }
        for name in [
            "QUORATE_TTL",
            "QUORATE_HELD",
            "QUORATE_TEST_SERVERS",
            "PATH",
        ] {
            assert!(!is_unknown(name, &known), "{name}");
        }
    }
}
