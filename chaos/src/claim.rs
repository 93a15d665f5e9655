//! How an attempt wants its resources: alone, or beside others.

use serde::{Deserialize, Serialize};

/// Beside whom an attempt may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Claim {
    /// Beside nobody.
    #[default]
    Alone,
    /// Beside other readers.
    Reader,
    /// In a slot of its own, of so many.
    Permit(usize),
    /// Beside other holds of this owner.
    Owner(String),
}

impl Claim {
    /// Whether it is the plain one.
    pub fn is_alone(&self) -> bool {
        *self == Self::Alone
    }

    /// Whether holds of these two claims may stand beside each other on one resource. For permits that is
    /// asked slot by slot.
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
    fn readers_and_holds_of_one_owner_stand_beside_each_other_and_nobody_else() {
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
