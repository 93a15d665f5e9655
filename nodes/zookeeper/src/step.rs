//! What a change is to ZooKeeper: pure.

use quorate::node::store::Change;

/// One operation on one znode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Make it, with the state.
    Create,
    /// Put the state into it where it has this version.
    Set(i32),
    /// Put the state into it, whatever its version. Only behind a [`Step::Set`] of the same transaction.
    SetAgain,
    /// Nothing, where it has this version.
    Check(i32),
    /// Remove what the same transaction made: so it is known that there was none.
    Remove,
}

/// The version of a record whose znode has this one. A znode counts from 0, and on from the largest number to the
/// smallest.
pub(crate) fn version(of_znode: i32) -> u64 {
    u64::from(of_znode.cast_unsigned()) + 1
}

/// What a version of a record is to ZooKeeper.
enum Known {
    /// There is no record.
    None,
    /// The znode has this version.
    At(i32),
    /// No znode can have it, or none can be asked for it.
    Never,
}

fn of_znode(version: u64) -> Known {
    match version.checked_sub(1).map(u32::try_from) {
        None => Known::None,
        Some(Ok(at)) if at.cast_signed() != ANY => Known::At(at.cast_signed()),
        Some(_) => Known::Never,
    }
}

/// ZooKeeper takes this version in a request for "any".
const ANY: i32 = -1;

/// The steps of a change, all of one transaction; `None` where they cannot be made to depend on the version.
pub(crate) fn steps(change: &Change) -> Option<Vec<Step>> {
    let writes = change.state.is_some();
    Some(match of_znode(change.version) {
        Known::Never => return None,
        Known::None if writes => vec![Step::Create],
        Known::None => vec![Step::Create, Step::Remove],
        Known::At(version) if !writes => vec![Step::Check(version)],
        // The next version would be ANY: one step more, and nobody ever sees it.
        Known::At(version) if version == ANY - 1 => vec![Step::Set(version), Step::SetAgain],
        Known::At(version) => vec![Step::Set(version)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(version: u64, state: Option<&[u8]>) -> Change {
        Change {
            name: b"a"[..].into(),
            version,
            state: state.map(<[u8]>::to_vec),
        }
    }

    #[test]
    fn versions_of_records_are_those_of_znodes_plus_one() {
        for znode in [0, 1, i32::MAX, i32::MIN, -2] {
            assert!(matches!(of_znode(version(znode)), Known::At(at) if at == znode));
        }
        assert_eq!(version(0), 1);
        assert_eq!(
            version(i32::MIN),
            version(i32::MAX) + 1,
            "it goes on rising"
        );
    }

    #[test]
    fn every_step_asks_for_the_version() {
        let write = |version| steps(&change(version, Some(b"x")));
        let look = |version| steps(&change(version, None));
        assert_eq!(write(0).unwrap(), [Step::Create]);
        assert_eq!(look(0).unwrap(), [Step::Create, Step::Remove]);
        assert_eq!(write(1).unwrap(), [Step::Set(0)]);
        assert_eq!(look(8).unwrap(), [Step::Check(7)]);
        let last = version(-2);
        assert_eq!(write(last - 1).unwrap(), [Step::Set(-3)]);
        assert_eq!(write(last).unwrap(), [Step::Set(-2), Step::SetAgain]);
        assert_eq!(look(last).unwrap(), [Step::Check(-2)]);
        // A request with -1 would be done whatever the version is.
        assert_eq!((write(last + 1), look(last + 1)), (None, None));
        assert_eq!((write(last + 2), look(last + 3)), (None, None));
        assert_eq!(write(u64::MAX), None);
    }
}
