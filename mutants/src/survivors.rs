//! Reads `survivors.txt`: the mutants that no judge notices, each with the reason why it does not change the behaviour
//! of quorate.

use std::path::Path;

use anyhow::{Context, Result};

use crate::mutant::Mutant;

/// One entry of `survivors.txt`: a mutant and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Survivor {
    /// The mutant's name, as [`Mutant::name`] returns it.
    pub(crate) name: String,
    /// The reason why the mutant does not change the behaviour of quorate.
    pub(crate) reason: String,
}

/// Reads `survivors.txt`. Each mutant is on a line of its own, and the indented lines below it are its reason.
pub(crate) fn read() -> Result<Vec<Survivor>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("survivors.txt");
    let text = std::fs::read_to_string(path).context("survivors.txt")?;
    let mut list: Vec<Survivor> = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let trimmed = line.trim();
        if trimmed.is_empty() {
            continue;
        }
        if line.starts_with(' ') {
            let last_survivor = list
                .last_mut()
                .context("survivors.txt begins with an indented line: put the name of a mutant above this line")?;
            if !last_survivor.reason.is_empty() {
                last_survivor.reason.push(' ');
            }
            last_survivor.reason.push_str(trimmed);
        } else {
            list.push(Survivor {
                name: trimmed.to_owned(),
                reason: String::new(),
            });
        }
    }
    Ok(list)
}

/// Whether the list contains this mutant.
pub(crate) fn explains(list: &[Survivor], mutant: &Mutant) -> bool {
    list.iter().any(|survivor| survivor.name == mutant.name())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{find, targets};

    /// The largest allowed number of entries in `survivors.txt`. Raise it only for a mutant that does not change the
    /// behaviour of quorate. For any other survivor, write a test.
    const MAX_SURVIVORS: usize = 53;

    #[test]
    fn every_mutant_on_the_list_of_survivors_exists_and_has_a_reason() {
        let list = read().expect("survivors.txt must be readable");
        let code = find::find(&targets::root()).expect("the library's code must parse");
        let names: BTreeSet<String> = code.mutants.iter().map(Mutant::name).collect();
        let unknown_names: Vec<_> = list
            .iter()
            .filter(|survivor| !names.contains(&survivor.name))
            .map(|survivor| survivor.name.as_str())
            .collect();
        assert!(
            unknown_names.is_empty(),
            "the list of survivors names mutants that are not in the code:\n{}",
            unknown_names.join("\n")
        );
        let mut checked_names = BTreeSet::new();
        for Survivor { name, reason } in &list {
            assert!(
                reason.len() > 20,
                "the list of survivors must give a reason for this mutant: {name}"
            );
            assert!(
                checked_names.insert(name),
                "the list of survivors names this mutant twice: {name}"
            );
        }
    }

    #[test]
    fn number_of_mutants_on_the_list_of_survivors_does_not_grow() {
        assert!(
            read().expect("survivors.txt must be readable").len() <= MAX_SURVIVORS,
            "the list of survivors has more than {MAX_SURVIVORS} mutants: write tests that notice the new mutants"
        );
    }
}
