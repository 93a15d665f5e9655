//! The versions of records: the revision of the last change of the key, together with the identity of the cluster.
//!
//! A cluster that was restored from a snapshot gives the same revisions a second time. Its operator changes the
//! identity of the cluster. As the identity is a part of each version, a version that a process has read before never
//! fits again.

/// The number of bits of a version that contain the revision. At 10,000 changes per second, they last for 55 years.
const REVISION_BITS: u32 = 44;
/// The largest revision that a version can contain.
const LARGEST: u64 = (1 << REVISION_BITS) - 1;
/// A revision that no key has.
const NEVER: u64 = i64::MAX as u64;

/// Converts revisions of one cluster to versions, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    tag: u64,
}

impl Versions {
    /// The versions of the cluster with this identity, which consists of hexadecimal digits.
    pub(crate) fn new(identity: &str) -> Self {
        let digits = identity.get(..5).unwrap_or_default();
        let tag = u64::from_str_radix(digits, 16).unwrap_or_default();
        Self {
            tag: tag << REVISION_BITS,
        }
    }

    /// The version of a record with this revision; 0 if the record does not exist.
    pub(crate) fn of_revision(self, revision: u64) -> u64 {
        match revision {
            0 => 0,
            revision => self.tag | revision.min(LARGEST),
        }
    }

    /// The revision that a record with this version has. A version of a cluster with another identity becomes a
    /// revision that no key has.
    pub(crate) fn revision(self, version: u64) -> u64 {
        match version {
            0 => 0,
            version if version & !LARGEST == self.tag => version & LARGEST,
            _ => NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_a_cluster_with_another_identity_never_fits() {
        let (one, two) = (Versions::new("12345abc"), Versions::new("f2345abc"));
        for revision in [0, 1, 7, LARGEST] {
            let version = one.of_revision(revision);
            assert_eq!(one.revision(version), revision);
            assert_eq!(version == 0, revision == 0);
            let elsewhere = if revision == 0 { 0 } else { NEVER };
            assert_eq!(two.revision(version), elsewhere);
        }
        assert_eq!(one.revision(u64::MAX), NEVER);
        assert!(one.of_revision(8) > one.of_revision(7));
    }
}
