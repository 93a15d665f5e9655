//! The znode operations (steps) that carry out a change of a record. All functions are pure.

use quorate::node::store::Change;

/// A random number, drawn when a record is created. It is a part of the record's version.
///
/// The znode version alone would not suffice: it starts at 0 again if the record is removed and created again.
pub(crate) type CreationId = u32;

/// One operation on the znodes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Create the empty parent znode of the record. Fails if it exists.
    CreateParent,
    /// Create the record's znode with this [`CreationId`], and write the new state.
    Create(CreationId),
    /// Write the new state to the record's znode. Fails unless the znode has the version in the second field.
    Set(CreationId, i32),
    /// Write the new state a second time, directly after a [`Step::Set`] in the same transaction, so that the znode's
    /// version grows by two. The znode's version is not checked.
    SetAgain(CreationId),
    /// Change nothing. Fails unless the record's znode has the version in the second field.
    Check(CreationId, i32),
    /// Remove the record's znode. Fails unless the znode has the version in the second field.
    Remove(CreationId, i32),
    /// Remove the parent znode, which has no children at this point of the transaction.
    RemoveParent,
}

/// The version of a record: the [`CreationId`] in the upper 32 bits, the version of its znode in the lower 32 bits.
pub(crate) fn record_version(id: CreationId, znode_version: i32) -> u64 {
    u64::from(id) << 32 | u64::from(znode_version.cast_unsigned())
}

/// Returns the [`CreationId`] that is a part of this record version; `None` if no existing record can have this
/// version.
pub(crate) fn creation_id(version: u64) -> Option<CreationId> {
    match split_version(version) {
        VersionParts::Existing(id, _) => Some(id),
        VersionParts::Missing | VersionParts::Impossible => None,
    }
}

/// The result of splitting a record version into its parts.
enum VersionParts {
    /// The record does not exist.
    Missing,
    /// The record exists. The fields are its [`CreationId`] and the version of its znode.
    Existing(CreationId, i32),
    /// No existing record can have this version.
    Impossible,
}

fn split_version(version: u64) -> VersionParts {
    let lower_half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
    let (id, znode_version) = (lower_half(version >> 32), lower_half(version).cast_signed());
    match (id, znode_version) {
        _ if version == 0 => VersionParts::Missing,
        (_, ANY_VERSION) => VersionParts::Impossible,
        (id, znode_version) => VersionParts::Existing(id, znode_version),
    }
}

/// In a request, ZooKeeper interprets the version -1 as "any version".
const ANY_VERSION: i32 = -1;

/// Returns the steps of a change, which must run in one transaction. `new_id` is the [`CreationId`] of the record if
/// the change creates it. `None` if no existing record can have the version that the change expects.
pub(crate) fn change_steps(change: &Change, new_id: CreationId) -> Option<Vec<Step>> {
    let is_write = change.state.is_some();
    Some(match split_version(change.version) {
        VersionParts::Impossible => return None,
        VersionParts::Missing if is_write => vec![Step::CreateParent, Step::Create(new_id)],
        VersionParts::Missing => vec![Step::CreateParent, Step::RemoveParent],
        VersionParts::Existing(id, version) if !is_write => vec![Step::Check(id, version)],
        // The version after one write would be -1. In a request, -1 means any version. So write twice: the version is
        // then 0.
        VersionParts::Existing(id, version) if version == ANY_VERSION - 1 => {
            vec![Step::Set(id, version), Step::SetAgain(id)]
        }
        VersionParts::Existing(id, version) => vec![Step::Set(id, version)],
    })
}

/// The steps that remove a record of this version. `None` if no such record can exist.
pub(crate) fn removal_steps(version: u64) -> Option<Vec<Step>> {
    match split_version(version) {
        VersionParts::Existing(id, version) => {
            Some(vec![Step::Remove(id, version), Step::RemoveParent])
        }
        VersionParts::Missing | VersionParts::Impossible => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATION_ID: CreationId = 0xfeed_0001;

    fn change(version: u64, state: Option<&[u8]>) -> Change {
        Change {
            name: b"a"[..].into(),
            version,
            state: state.map(<[u8]>::to_vec),
        }
    }

    #[test]
    fn record_version_combines_a_random_number_and_the_version_of_the_znode() {
        for znode_version in [0, 1, i32::MAX, i32::MIN, -2] {
            let parts = split_version(record_version(CREATION_ID, znode_version));
            assert!(
                matches!(parts, VersionParts::Existing(CREATION_ID, found) if found == znode_version)
            );
        }
        assert_ne!(
            record_version(1, 0),
            0,
            "an existing record must not have version 0, because version 0 means that the record does not exist"
        );
        assert_eq!(
            record_version(CREATION_ID, i32::MIN),
            record_version(CREATION_ID, i32::MAX) + 1,
            "the record version must rise when the znode version overflows"
        );
    }

    #[test]
    fn every_change_of_a_record_requires_its_expected_version() {
        let write_steps = |version| change_steps(&change(version, Some(b"x")), 7);
        let check_steps = |version| change_steps(&change(version, None), 7);
        assert_eq!(
            write_steps(0).unwrap(),
            [Step::CreateParent, Step::Create(7)]
        );
        assert_eq!(
            check_steps(0).unwrap(),
            [Step::CreateParent, Step::RemoveParent]
        );
        let first_version = record_version(CREATION_ID, 0);
        assert_eq!(
            write_steps(first_version).unwrap(),
            [Step::Set(CREATION_ID, 0)]
        );
        assert_eq!(
            check_steps(first_version + 7).unwrap(),
            [Step::Check(CREATION_ID, 7)]
        );
        assert_eq!(
            removal_steps(first_version + 7).unwrap(),
            [Step::Remove(CREATION_ID, 7), Step::RemoveParent]
        );
        let last_version = record_version(CREATION_ID, -2);
        assert_eq!(
            write_steps(last_version - 1).unwrap(),
            [Step::Set(CREATION_ID, -3)]
        );
        assert_eq!(
            write_steps(last_version).unwrap(),
            [Step::Set(CREATION_ID, -2), Step::SetAgain(CREATION_ID)]
        );
        assert_eq!(
            check_steps(last_version).unwrap(),
            [Step::Check(CREATION_ID, -2)]
        );
        // ZooKeeper would apply a request with version -1 whatever the version of the znode is.
        let impossible_version = last_version + 1;
        assert_eq!(
            (
                write_steps(impossible_version),
                check_steps(impossible_version),
                removal_steps(impossible_version)
            ),
            (None, None, None)
        );
        assert_eq!(
            removal_steps(0),
            None,
            "a record that does not exist must not be removed"
        );
    }
}
