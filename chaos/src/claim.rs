//! The mode in which an attempt wants its resources: exclusive, or shared with others.

use serde::{Deserialize, Serialize};

/// The holds with which an attempt may share its resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    /// None: exclusive.
    #[default]
    Alone,
    /// Other readers.
    Reader,
    /// The holders of the other slots, of this many.
    Permit(usize),
    /// Other holds of this owner.
    Owner(String),
}

impl Claim {
    /// Whether it is exclusive.
    pub fn is_alone(&self) -> bool {
        *self == Self::Alone
    }

    /// Whether holds of these two claims may overlap on one resource. Permits are checked slot by slot.
    pub fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Reader, Self::Reader) => true,
            (Self::Owner(one), Self::Owner(other)) => one == other,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_readers_and_holds_of_one_owner_may_overlap() {
        let owner = |id: &str| Claim::Owner(id.to_owned());
        let all = [
            Claim::Alone,
            Claim::Reader,
            Claim::Permit(5),
            owner("a"),
            owner("b"),
        ];
        for (number, one) in all.iter().enumerate() {
            for (place, other) in all.iter().enumerate() {
                let same = number == place && matches!(one, Claim::Reader | Claim::Owner(_));
                assert_eq!(one.is_beside(other), same, "{one:?} {other:?}");
            }
        }
    }
}
