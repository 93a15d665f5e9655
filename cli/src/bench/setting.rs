//! The lock settings and kinds of locks that the benchmark measures.

use serde::Serialize;

/// A lock that the benchmark measures. `Classic`, `Fenced` and `Default` are the plain lock with three different
/// settings. The other variants are other kinds of locks, which `--kinds` compares with `Default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Setting {
    Classic,
    Fenced,
    Default,
    Reader,
    /// A lock on two resources.
    Two,
    /// A lock on four resources.
    Four,
    /// One permit of a semaphore that has four permits.
    Permit,
    /// An owner lock, without reentry.
    Owner,
}

impl Setting {
    pub(super) const PLAIN_LOCK: [Self; 3] = [Self::Classic, Self::Fenced, Self::Default];

    /// The kinds of locks that `--kinds` compares, the plain lock first.
    pub(super) const LOCK_KINDS: [Self; 6] = [
        Self::Default,
        Self::Reader,
        Self::Two,
        Self::Four,
        Self::Permit,
        Self::Owner,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Fenced => "fenced",
            Self::Default => "default",
            Self::Reader => "reader",
            Self::Two => "two",
            Self::Four => "four",
            Self::Permit => "permit",
            Self::Owner => "owner",
        }
    }
}
