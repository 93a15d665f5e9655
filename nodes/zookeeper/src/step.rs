//! The znode operations (steps) that carry out a change of a record. All functions are pure.

use quorate::node::store::Change;

/// A random number, drawn when a record is created. It is a part of the record's version.
///
/// The znode version alone would not suffice: it starts at 0 again if the record is removed and created again.
pub(crate) type Life = u32;

/// One operation on the znodes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Create the empty parent znode of the record. Fails if it exists.
    Room,
    /// Create the record's znode with this [`Life`], and write the new state.
    Create(Life),
    /// Write the new state to the record's znode. Fails unless the znode has the version in the second field.
    Set(Life, i32),
    /// Write the new state a second time, directly after a [`Step::Set`] in the same transaction, so that the znode's
    /// version grows by two. The znode's version is not checked.
    SetAgain(Life),
    /// Change nothing. Fails unless the record's znode has the version in the second field.
    Check(Life, i32),
    /// Remove the record's znode. Fails unless the znode has the version in the second field.
    Remove(Life, i32),
    /// Remove the parent znode, which has no children at this point of the transaction.
    Clear,
}

/// The version of a record: the [`Life`] in the upper 32 bits, the version of its znode in the lower 32 bits.
pub(crate) fn version(life: Life, of_znode: i32) -> u64 {
    u64::from(life) << 32 | u64::from(of_znode.cast_unsigned())
}

/// Returns the [`Life`] that is a part of this record version; `None` if no existing record can have this version.
pub(crate) fn life(version: u64) -> Option<Life> {
    match of_znode(version) {
        Known::At(life, _) => Some(life),
        Known::None | Known::Never => None,
    }
}

/// The result of splitting a record version into its parts.
enum Known {
    /// The record does not exist.
    None,
    /// The record exists. The fields are its [`Life`] and the version of its znode.
    At(Life, i32),
    /// No existing record can have this version.
    Never,
}

fn of_znode(version: u64) -> Known {
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
    let (life, at) = (half(version >> 32), half(version).cast_signed());
    match (life, at) {
        _ if version == 0 => Known::None,
        (_, ANY) => Known::Never,
        (life, at) => Known::At(life, at),
    }
}

/// In a request, ZooKeeper interprets the version -1 as "any version".
const ANY: i32 = -1;

/// Returns the steps of a change, which must run in one transaction. `life` is the [`Life`] of the record if the change
/// creates it. `None` if no existing record can have the version that the change expects.
pub(crate) fn steps(change: &Change, life: Life) -> Option<Vec<Step>> {
    let writes = change.state.is_some();
    Some(match of_znode(change.version) {
        Known::Never => return None,
        Known::None if writes => vec![Step::Room, Step::Create(life)],
        Known::None => vec![Step::Room, Step::Clear],
        Known::At(life, version) if !writes => vec![Step::Check(life, version)],
        // The version after one write would be -1. In a request, -1 means any version. So write twice: the version is
        // then 0.
        Known::At(life, version) if version == ANY - 1 => {
            vec![Step::Set(life, version), Step::SetAgain(life)]
        }
        Known::At(life, version) => vec![Step::Set(life, version)],
    })
}

/// The steps that remove a record of this version. `None` if no such record can exist.
pub(crate) fn removal(version: u64) -> Option<Vec<Step>> {
    match of_znode(version) {
        Known::At(life, version) => Some(vec![Step::Remove(life, version), Step::Clear]),
        Known::None | Known::Never => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Life = 0xfeed_0001;

    fn change(version: u64, state: Option<&[u8]>) -> Change {
        Change {
            name: b"a"[..].into(),
            version,
            state: state.map(<[u8]>::to_vec),
        }
    }

    #[test]
    fn record_version_combines_a_random_number_and_the_version_of_the_znode() {
        for znode in [0, 1, i32::MAX, i32::MIN, -2] {
            let known = of_znode(version(LIFE, znode));
            assert!(matches!(known, Known::At(LIFE, at) if at == znode));
        }
        assert_ne!(
            version(1, 0),
            0,
            "an existing record must not have version 0, because version 0 means that the record does not exist"
        );
        assert_eq!(
            version(LIFE, i32::MIN),
            version(LIFE, i32::MAX) + 1,
            "the record version must rise when the znode version overflows"
        );
    }

    #[test]
    fn every_change_of_a_record_requires_its_expected_version() {
        let write = |version| steps(&change(version, Some(b"x")), 7);
        let look = |version| steps(&change(version, None), 7);
        assert_eq!(write(0).unwrap(), [Step::Room, Step::Create(7)]);
        assert_eq!(look(0).unwrap(), [Step::Room, Step::Clear]);
        let first = version(LIFE, 0);
        assert_eq!(write(first).unwrap(), [Step::Set(LIFE, 0)]);
        assert_eq!(look(first + 7).unwrap(), [Step::Check(LIFE, 7)]);
        assert_eq!(
            removal(first + 7).unwrap(),
            [Step::Remove(LIFE, 7), Step::Clear]
        );
        let last = version(LIFE, -2);
        assert_eq!(write(last - 1).unwrap(), [Step::Set(LIFE, -3)]);
        assert_eq!(
            write(last).unwrap(),
            [Step::Set(LIFE, -2), Step::SetAgain(LIFE)]
        );
        assert_eq!(look(last).unwrap(), [Step::Check(LIFE, -2)]);
        // ZooKeeper would apply a request with version -1 whatever the version of the znode is.
        let never = last + 1;
        assert_eq!(
            (write(never), look(never), removal(never)),
            (None, None, None)
        );
        assert_eq!(
            removal(0),
            None,
            "a record that does not exist must not be removed"
        );
    }
}
