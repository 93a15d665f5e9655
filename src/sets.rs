//! Converts the settings `masters` and `next_masters` of a builder into sets of masters.

use crate::error::BuildError;
use crate::node::NodeName;
use crate::node::redis::{Address, MasterSource};
use crate::protocol::marker::{Configuration, Fingerprint};
use crate::protocol::quorum::{MasterSet, Quorum};

/// The old masters (`masters`) and the next masters (`next_masters`), with the rule for majorities and the fingerprint
/// of each set. A server that is in both sets is listed once.
pub(crate) struct MasterSets {
    pub(crate) addresses: Vec<Address>,
    pub(crate) quorum: Quorum,
    pub(crate) configuration: Configuration,
}

impl MasterSets {
    /// Builds the sets from the URLs of the old masters (`masters`) and of the next masters. If `next` is empty, no
    /// replacement is in progress. A master that is in both sets is listed once. `name` is the name that the generation
    /// markers must bear. For errors, `number` returns the position of a master of `masters` among all masters of the
    /// builder, from 1.
    pub(crate) fn new(
        masters: &[MasterSource],
        next: &[MasterSource],
        generation: u64,
        name: Option<&str>,
        position: impl Fn(usize) -> usize,
    ) -> Result<Self, BuildError> {
        let old_addresses = addresses(masters, |index| format!("number {}", position(index)))?;
        let old_set = MasterSet::first(old_addresses.len());
        let print = Fingerprint::new(names(&old_addresses).iter().map(String::as_str));
        if next.is_empty() {
            return Ok(Self {
                quorum: Quorum::new(old_addresses.len()),
                configuration: Configuration::new(generation, print, None).named(name),
                addresses: old_addresses,
            });
        }
        let next_addresses = addresses(next, |index| {
            format!("number {} of next_masters", index + 1)
        })?;
        let next_print = Fingerprint::new(names(&next_addresses).iter().map(String::as_str));
        if next_print == print {
            return Err(BuildError::SameMasters);
        }
        let mut all_addresses = old_addresses;
        let mut next_set = MasterSet::default();
        for address in next_addresses {
            let known_index = all_addresses
                .iter()
                .position(|other| other.is_same_server(&address));
            if known_index.is_some_and(|known_index| {
                all_addresses[known_index].full_name() != address.full_name()
            }) {
                return Err(BuildError::SameMasterTwice(address.name().to_string()));
            }
            next_set.add(known_index.unwrap_or(all_addresses.len()));
            if known_index.is_none() {
                all_addresses.push(address);
            }
        }
        Ok(Self {
            addresses: all_addresses,
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
        let numbered = self.addresses.iter().enumerate();
        let old_addresses = numbered.filter(|(index, _)| self.quorum.is_old(*index));
        old_addresses.map(|(_, address)| address.name().clone())
    }
}

fn names(addresses: &[Address]) -> Vec<String> {
    addresses.iter().map(Address::full_name).collect()
}

/// Parses the URLs. An error if there is no URL, if a URL is invalid, or if two URLs name the same server.
fn addresses(
    masters: &[MasterSource],
    position_text: impl Fn(usize) -> String,
) -> Result<Vec<Address>, BuildError> {
    if masters.is_empty() {
        return Err(BuildError::NoMasters);
    }
    let mut addresses_seen: Vec<Address> = Vec::with_capacity(masters.len());
    for (index, master) in masters.iter().enumerate() {
        let address = master.address().map_err(|bad| BuildError::BadMaster {
            master: match bad.shown_address {
                Some(shown) => format!("{} ({shown})", position_text(index)),
                None => position_text(index),
            },
            why: bad.why,
        })?;
        if addresses_seen
            .iter()
            .any(|other| other.is_same_server(&address))
        {
            return Err(BuildError::SameMasterTwice(address.name().to_string()));
        }
        addresses_seen.push(address);
    }
    Ok(addresses_seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(ports: &[u16]) -> Vec<MasterSource> {
        let source_on_port = |port: &u16| MasterSource::ByUrl(format!("redis://127.0.0.1:{port}"));
        ports.iter().map(source_on_port).collect()
    }

    fn sets(old: &[u16], next: &[u16]) -> Result<MasterSets, BuildError> {
        MasterSets::new(&urls(old), &urls(next), 0, None, |index| index + 1)
    }

    #[test]
    fn master_in_both_sets_is_asked_once_and_counts_in_both() {
        let sets = sets(&[1, 2, 3], &[3, 4, 1]).expect("sets");
        let names: Vec<String> = sets.addresses.iter().map(Address::server_name).collect();
        let ports = ["1", "2", "3", "4"].map(|port| format!("127.0.0.1:{port}"));
        assert_eq!(names, ports);
        let is_met = |nodes: &[usize]| sets.quorum.is_met_by(nodes.iter().copied().collect());
        assert!(
            is_met(&[0, 2]),
            "masters 0 and 2 must be a majority of each set, because both sets contain them"
        );
        assert!(!is_met(&[1, 2]) && !is_met(&[2, 3]) && is_met(&[1, 2, 3]));
        assert_eq!(sets.configuration.step(), 1);
    }

    #[test]
    fn localhost_and_127_0_0_1_with_the_same_port_are_the_same_master() {
        let next = ["redis://LOCALHOST:1", "redis://127.0.0.1:2"];
        let next = next.map(|url| MasterSource::ByUrl(url.to_owned()));
        let sets = MasterSets::new(&urls(&[1]), &next, 0, None, |index| index + 1).expect("sets");
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
            Some(Quorum::new(3))
        );
    }
}
