//! Finds the Redis command that one line of a script calls. If a script fails, some servers report only the number of
//! the line. The library then finds the command in this line.

use crate::keys::Family;

/// The Redis call in one line of a script.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call<'a> {
    /// The name of the command, as the script writes it.
    pub(super) command: &'a str,
    /// The family of keys that the call uses (lock keys, counters and so on); `None` if the line does not show it.
    pub(super) family: Option<Family>,
}

impl<'a> Call<'a> {
    /// Finds the call in one line of a script; `None` if the line has no call. A test checks that no line has two
    /// calls.
    pub(super) fn read(line: &'a str) -> Option<Self> {
        let (_, rest) = line.split_once("call('")?;
        let (command, rest) = rest.split_once('\'')?;
        let first = rest.trim_start_matches([',', ' ']);
        let starts_with = |word: &str| {
            let rest = first.strip_prefix(word);
            rest.is_some_and(|rest| rest.starts_with([',', ')', ' ']))
        };
        let family = Family::ALL.into_iter().find(|family| match family {
            Family::Lock => starts_with("key") || first.starts_with("KEYS["),
            family => {
                let quoted = first.strip_prefix('\'');
                starts_with(family.placeholder().trim_matches(['{', '}']))
                    || quoted.is_some_and(|name| name.starts_with(family.key_prefix()))
            }
        });
        Some(Self { command, family })
    }
}
