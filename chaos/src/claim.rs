//! The mode in which an attempt locks its resources: exclusively, or shared with certain other holds.

use serde::{Deserialize, Serialize};

/// The lock mode of an attempt: which other holds of its resources are allowed at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    /// No other hold is allowed: the exclusive mode.
    #[default]
    Alone,
    /// Other readers are allowed.
    Reader,
    /// Other clients may hold other permits of the semaphore. The field is the total number of permits.
    Permit(usize),
    /// Other holds of the same lock owner are allowed (a reentrant lock). The field is the owner's id.
    Owner(String),
}

impl Claim {
    /// Whether the attempt locks its resources exclusively.
    pub fn is_alone(&self) -> bool {
        *self == Self::Alone
    }

    /// Whether holds with these two claims may overlap on one resource. False for two permits: a semaphore has several
    /// permits, but the checkers treat each permit as a separate resource, which has only one holder.
    pub fn is_compatible_with(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Reader, Self::Reader) => true,
            (Self::Owner(one), Self::Owner(other)) => one == other,
            (Self::Alone | Self::Reader | Self::Permit(_) | Self::Owner(_), _) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_holds_may_overlap_only_if_both_are_readers_or_have_the_same_owner() {
        let owner = |id: &str| Claim::Owner(id.to_owned());
        let claims = [
            Claim::Alone,
            Claim::Reader,
            Claim::Permit(5),
            owner("a"),
            owner("b"),
        ];
        for (first_index, first) in claims.iter().enumerate() {
            for (second_index, second) in claims.iter().enumerate() {
                let may_overlap =
                    first_index == second_index && matches!(first, Claim::Reader | Claim::Owner(_));
                assert_eq!(
                    first.is_compatible_with(second),
                    may_overlap,
                    "{first:?} {second:?}"
                );
            }
        }
    }
}
