//! The kinds of locks, and which holds may share a resource.

use crate::place::place_of_slot;

/// The kind of lock that a step takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The resource of the step, exclusively.
    #[default]
    Exclusive,
    /// The resource of the step and the resources of these bits, each exclusively, all or nothing.
    Several(u32),
    /// As a reader: shared with other readers.
    Shared,
    /// As the owner of this number: shared with other holds of the same owner.
    Owner(u8),
    /// Like `Owner`, but joins the hold that the process already has, if there is one.
    Counted(u8),
    /// Exclusively, then as a reader for the second half of the hold.
    Downgraded,
    /// Exclusively, with the note of this number.
    Noted(u32),
    /// Exclusively, as an elected leader with the note of this number.
    Lead(u32),
    /// Takes no lock: observes the election.
    Observe,
    /// Exclusively, for the value under the lock.
    Value(ValueStep),
    /// One permit of the semaphore that goes with the resource. The number is how many permits the client configures.
    Permit(u8),
}

/// A use of the value under a lock: a quota, or the record of the last period done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueStep {
    /// Create a quota with this many units; zero creates a once-per-period record.
    Create(u8),
    /// Take this many units.
    Take(u8),
    /// Read how many units are left.
    Left,
    /// Remove the value.
    Remove {
        /// Whether the value is a once-per-period record, and not a quota.
        record: bool,
    },
    /// Do something at most once per period.
    Once,
    /// Do something at least once per period. The work takes half of the hold.
    AtLeast,
    /// Do something at most once per period, by a client that holds the lock itself. It reads the record after half of
    /// the hold and writes it at the end.
    Turn,
}

impl ValueStep {
    /// The number of units that it asks for.
    pub(crate) fn units(self) -> u64 {
        match self {
            Self::Take(units) => units.into(),
            _ => 0,
        }
    }
}

/// A group of holds that may share a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Readers,
    Owner(u8),
}

/// The resources of a hold, as bits, and its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    resources: u32,
    /// `None` for an exclusive hold.
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

    /// Whether both include a common resource.
    pub(crate) fn meets(self, other: Self) -> bool {
        self.resources & other.resources != 0
    }

    /// Whether both holds may share a resource.
    pub(crate) fn beside(self, other: Self) -> bool {
        self.class.is_some() && self.class == other.class
    }
}

impl Kind {
    /// The note of the holder, if it leaves one.
    pub(crate) fn note(self) -> Option<String> {
        match self {
            Self::Noted(number) | Self::Lead(number) => Some(format!("note {number}")),
            _ => None,
        }
    }

    /// The place at which a client that asks for it waits: for a semaphore, its first slot.
    pub(crate) fn place(self, resource: u8) -> u8 {
        match self {
            Self::Permit(_) => place_of_slot(resource, 0),
            _ => resource,
        }
    }

    /// The scope of a lock of this kind at `place`, a resource or a slot.
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
