//! Converts the settings `masters` and `next_masters` of a builder into sets of masters.

use crate::error::BuildError;
use crate::node::NodeName;
use crate::node::redis::{Address, MasterSource};
use crate::protocol::marker::{Configuration, Fingerprint};
use crate::protocol::quorum::{MasterSet, Quorum};

/// The old masters (`masters`) and the next masters (`next_masters`), with the rule for majorities and the fingerprint
/// of each set. A server that is in both sets is listed once.
pub(crate) struct Sets {
    pub(crate) addresses: Vec<Address>,
    pub(crate) quorum: Quorum,
    pub(crate) configuration: Configuration,
}

impl Sets {
    /// Builds the sets from the URLs of the old masters (`masters`) and of the next masters. If `next` is empty, no
    /// replacement is in progress. A master that is in both sets is listed once. `name` is the name that the generation
    /// markers must bear. For errors, `number` returns the position of a master of `masters` among all masters of the
    /// builder, from 1.
    pub(crate) fn of(
        masters: &[MasterSource],
        next: &[MasterSource],
        generation: u64,
        name: Option<&str>,
        number: impl Fn(usize) -> usize,
    ) -> Result<Self, BuildError> {
        let old = addresses(masters, |index| format!("number {}", number(index)))?;
        let old_set = MasterSet::first(old.len());
        let print = Fingerprint::of(names(&old).iter().map(String::as_str));
        if next.is_empty() {
            return Ok(Self {
                quorum: Quorum::of(old.len()),
                configuration: Configuration::new(generation, print, None).named(name),
                addresses: old,
            });
        }
        let next = addresses(next, |index| {
            format!("number {} of next_masters", index + 1)
        })?;
        let next_print = Fingerprint::of(names(&next).iter().map(String::as_str));
        if next_print == print {
            return Err(BuildError::SameMasters);
        }
        let mut all = old;
        let mut next_set = MasterSet::default();
        for address in next {
            let known = all.iter().position(|other| other.same_server(&address));
            if known.is_some_and(|known| all[known].in_full() != address.in_full()) {
                return Err(BuildError::SameMasterTwice(address.name().to_string()));
            }
            next_set.add(known.unwrap_or(all.len()));
            if known.is_none() {
                all.push(address);
            }
        }
        Ok(Self {
            addresses: all,
            quorum: Quorum::joint(old_set, next_set),
            configuration: Configuration::new(generation, print, Some(next_print)).named(name),
        })
    }

    /// Whether any master uses TLS.
    #[cfg(feature = "tls-rustls")]
    pub(crate) fn wants_tls(&self) -> bool {
        self.addresses.iter().any(Address::wants_tls)
    }

    /// The names of the old masters (`masters`).
    pub(crate) fn old(&self) -> impl Iterator<Item = NodeName> {
        let all = self.addresses.iter().enumerate();
        let old = all.filter(|(index, _)| self.quorum.is_old(*index));
        old.map(|(_, address)| address.name().clone())
    }
}

fn names(addresses: &[Address]) -> Vec<String> {
    addresses.iter().map(Address::in_full).collect()
}

/// Parses the URLs. An error if there is no URL, if a URL is invalid, or if two URLs name the same server.
fn addresses(
    masters: &[MasterSource],
    place: impl Fn(usize) -> String,
) -> Result<Vec<Address>, BuildError> {
    if masters.is_empty() {
        return Err(BuildError::NoMasters);
    }
    let mut seen: Vec<Address> = Vec::with_capacity(masters.len());
    for (index, master) in masters.iter().enumerate() {
        let address = master.address().map_err(|bad| BuildError::BadMaster {
            master: match bad.shown {
                Some(shown) => format!("{} ({shown})", place(index)),
                None => place(index),
            },
            why: bad.why,
        })?;
        if seen.iter().any(|other| other.same_server(&address)) {
            return Err(BuildError::SameMasterTwice(address.name().to_string()));
        }
        seen.push(address);
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(ports: &[u16]) -> Vec<MasterSource> {
        let url = |port: &u16| MasterSource::ByUrl(format!("redis://127.0.0.1:{port}"));
        ports.iter().map(url).collect()
    }

    fn sets(old: &[u16], next: &[u16]) -> Result<Sets, BuildError> {
        Sets::of(&urls(old), &urls(next), 0, None, |index| index + 1)
    }

    #[test]
    fn master_in_both_sets_is_asked_once_and_counts_in_both() {
        let sets = sets(&[1, 2, 3], &[3, 4, 1]).expect("sets");
        let names: Vec<String> = sets.addresses.iter().map(Address::plain).collect();
        let ports = ["1", "2", "3", "4"].map(|port| format!("127.0.0.1:{port}"));
        assert_eq!(names, ports);
        let met = |nodes: &[usize]| sets.quorum.is_met_by(nodes.iter().copied().collect());
        assert!(
            met(&[0, 2]),
            "masters 0 and 2 must be a majority of each set, because both sets contain them"
        );
        assert!(!met(&[1, 2]) && !met(&[2, 3]) && met(&[1, 2, 3]));
        assert_eq!(sets.configuration.step(), 1);
    }

    #[test]
    fn localhost_and_127_0_0_1_with_the_same_port_are_the_same_master() {
        let next = ["redis://LOCALHOST:1", "redis://127.0.0.1:2"];
        let next = next.map(|url| MasterSource::ByUrl(url.to_owned()));
        let sets = Sets::of(&urls(&[1]), &next, 0, None, |index| index + 1).expect("sets");
        assert_eq!(sets.addresses.len(), 2);
    }

    #[test]
    fn next_masters_equal_to_the_current_masters_are_refused() {
        assert!(matches!(
            sets(&[1, 2], &[2, 1]),
            Err(BuildError::SameMasters)
        ));
        assert!(matches!(
            sets(&[1, 2], &[3, 3]),
            Err(BuildError::SameMasterTwice(_))
        ));
        assert_eq!(
            sets(&[1, 2, 3], &[]).map(|sets| sets.quorum).ok(),
            Some(Quorum::of(3))
        );
    }
}
