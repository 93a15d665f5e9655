//! What kind of lock a step takes, and whose holds may stand beside each other.

use crate::place::place_of_slot;

/// What kind of lock a step takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The resource of the step, alone.
    #[default]
    Exclusive,
    /// That resource and those of these bits, each alone, all or nothing.
    Several(u32),
    /// Beside other readers.
    Shared,
    /// Beside other holds of the owner of this number.
    Owner(u8),
    /// The same, by what the process counts where it has one already.
    Counted(u8),
    /// Alone, and as a reader for the second half of the hold.
    Downgraded,
    /// Alone, with a note of that number.
    Noted(u32),
    /// Alone, as an elected leader with a note of that number.
    Lead(u32),
    /// Not at all: it watches who leads.
    Observe,
    /// Alone, for the value that is kept under it.
    Value(ValueStep),
    /// One of so many permits of the semaphore that has the name of the resource.
    Permit(u8),
}

/// What is done with the value under a lock: pieces of a quota, or the last period done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueStep {
    /// An operator creates a quota of so many pieces; of none: a record of periods.
    Create(u8),
    /// So many pieces are taken.
    Take(u8),
    /// Somebody looks how many are left.
    Left,
    /// An operator removes the value: of a quota, or a record of periods.
    Remove {
        /// The record, and not the quota.
        record: bool,
    },
    /// Something is done, once a period.
    Once,
    /// Something is done in a period until it is written down that it is: while half of the hold is over.
    AtLeast,
    /// The same by who holds the lock itself: it looks after half of the hold, and writes down that it is done at the
    /// end.
    Turn,
}

impl ValueStep {
    /// How many pieces it asks for.
    pub(crate) fn pieces(self) -> u64 {
        match self {
            Self::Take(pieces) => pieces.into(),
            _ => 0,
        }
    }
}

/// Whose holds may stand beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Readers,
    Owner(u8),
}

/// What somebody believes to hold: which resources, as bits, and beside whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    resources: u32,
    /// None for who stands alone.
    pub(crate) class: Option<Class>,
}

impl Scope {
    pub(crate) fn resources(self) -> impl Iterator<Item = usize> {
        let mut left = self.resources;
        std::iter::from_fn(move || {
            let next = left.trailing_zeros() as usize;
            left &= left.checked_sub(1)?;
            Some(next)
        })
    }

    /// Whether both want a resource.
    pub(crate) fn meets(self, other: Self) -> bool {
        self.resources & other.resources != 0
    }

    /// Whether holds of both may stand beside each other.
    pub(crate) fn beside(self, other: Self) -> bool {
        self.class.is_some() && self.class == other.class
    }
}

impl Kind {
    /// What its holder says of itself, where it does.
    pub(crate) fn note(self) -> Option<String> {
        match self {
            Self::Noted(number) | Self::Lead(number) => Some(format!("note {number}")),
            _ => None,
        }
    }

    /// Where somebody who asks for it waits: of a semaphore, at its first slot.
    pub(crate) fn place(self, resource: u8) -> u8 {
        match self {
            Self::Permit(_) => place_of_slot(resource, 0),
            _ => resource,
        }
    }

    /// What a lock of this kind takes at `place`: the resource, or the slot.
    pub(crate) fn scope(self, place: u8) -> Scope {
        let first = 1 << place;
        let (resources, class) = match self {
            Self::Exclusive
            | Self::Downgraded
            | Self::Noted(_)
            | Self::Lead(_)
            | Self::Observe
            | Self::Value(_)
            | Self::Permit(_) => (first, None),
            Self::Several(others) => (first | others, None),
            Self::Shared => (first, Some(Class::Readers)),
            Self::Owner(id) | Self::Counted(id) => (first, Some(Class::Owner(id))),
        };
        Scope { resources, class }
    }
}
