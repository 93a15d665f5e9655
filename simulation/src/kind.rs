//! The kinds of locks, and which holds may share a resource.

use quorate_promises::{Party, ValueCall, ValueEvent};

use crate::place::slot_place;

/// The kind of lock that a client takes in one step of its plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// An exclusive lock on the resource of the step.
    #[default]
    Exclusive,
    /// An exclusive lock on several resources: the resource of the step, and these other resources (bit n is resource
    /// n). The client gets all of them or none.
    Several(u32),
    /// A reader's lock, shared with other readers.
    Shared,
    /// A lock of the owner with this number. Other holds of the same owner may share the lock.
    Owner(u8),
    /// A lock of the owner with this number. All tasks of a client process share one hold of this lock.
    OwnerOfProcess(u8),
    /// An exclusive lock. The client downgrades it to a reader's lock after half of `Step::hold`.
    Downgraded,
    /// An exclusive lock, whose holder stores a note for the waiters. The note contains this number.
    WithNote(u32),
    /// The lock of an elected leader. The leader stores a note, which contains this number.
    Leader(u32),
    /// No lock: the client observes the election for `Step::resource`.
    Observe,
    /// An exclusive lock, under which the client uses a value: a quota (units that clients take) or a once-per-period
    /// record (the last period in which clients have done some work).
    Value(ValueStep),
    /// One permit of the resource's semaphore. The number is how many permits the client configures for this semaphore.
    Permit(u8),
}

/// One operation on a value that a lock protects. The value is a quota or a once-per-period record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueStep {
    /// Create a quota with this many units. Zero creates a once-per-period record instead.
    Create(u8),
    /// Take this many units of the quota.
    Take(u8),
    /// Read how many units of the quota are left.
    ReadRemaining,
    /// Remove the quota or the once-per-period record.
    Remove {
        /// True to remove a once-per-period record; false to remove a quota.
        record: bool,
    },
    /// Do the work of the current period at most once.
    AtMostOnce,
    /// Do the work of the current period at least once. The work lasts half of the time `Step::hold`.
    AtLeastOnce,
    /// The steps of `AtMostOnce` as four separate calls: acquire the lock, read the record, write the record, release
    /// the lock.
    SeparateCalls,
}

impl ValueStep {
    /// The event that a client begins this operation. `change_step` is the step of the client in a change of masters.
    pub(crate) fn called(self, client: usize, task: usize, change_step: u8) -> ValueEvent<'static> {
        ValueEvent::Called {
            task: task as u64,
            caller: Party::Client(client as u64),
            call: match self {
                Self::Create(units) => ValueCall::Create(units.into()),
                Self::Take(units) => ValueCall::Take(units.into()),
                Self::ReadRemaining => ValueCall::ReadUnits,
                Self::Remove { .. } => ValueCall::Remove,
                Self::AtMostOnce | Self::AtLeastOnce | Self::SeparateCalls => ValueCall::Work,
            },
            step: change_step,
        }
    }
}

/// The class of a shared hold. Holds of one class may share a resource. All readers are one class, and each owner is a
/// class of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Readers,
    Owner(u8),
}

/// The places that a hold locks, and the class of the hold. A place is a resource or one slot of a semaphore. Bit n of
/// `resources` is set if the hold locks the place with the number n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    resources: u32,
    /// The class of the hold; `None` for an exclusive hold.
    pub(crate) class: Option<Class>,
}

impl Scope {
    pub(crate) fn resources(self) -> impl Iterator<Item = usize> {
        let mut remaining = self.resources;
        std::iter::from_fn(move || {
            let lowest = remaining.trailing_zeros() as usize;
            remaining &= remaining.checked_sub(1)?;
            Some(lowest)
        })
    }

    /// Whether the two scopes have a place (a resource or a slot) in common.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.resources & other.resources != 0
    }

    /// Whether both holds have the same class, and may therefore share a resource. False for exclusive holds.
    pub(crate) fn is_compatible_with(self, other: Self) -> bool {
        self.class.is_some() && self.class == other.class
    }
}

impl Kind {
    /// Returns the note that the holder of a lock of this kind stores; `None` if the holder stores no note.
    pub(crate) fn note(self) -> Option<String> {
        match self {
            Self::WithNote(number) | Self::Leader(number) => Some(format!("note {number}")),
            _ => None,
        }
    }

    /// Returns the number of the place (resource or slot) that a lock of this kind uses. For a permit, this is the
    /// first slot of the semaphore; otherwise it is `resource`.
    pub(crate) fn place(self, resource: u8) -> u8 {
        match self {
            Self::Permit(_) => slot_place(resource, 0),
            _ => resource,
        }
    }

    /// Returns the scope of a hold of this kind. `place` is the place that is locked: a resource, or a slot of a
    /// semaphore.
    pub(crate) fn scope(self, place: u8) -> Scope {
        let first = 1 << place;
        let (resources, class) = match self {
            Self::Exclusive
            | Self::Downgraded
            | Self::WithNote(_)
            | Self::Leader(_)
            | Self::Observe
            | Self::Value(_)
            | Self::Permit(_) => (first, None),
            Self::Several(others) => (first | others, None),
            Self::Shared => (first, Some(Class::Readers)),
            Self::Owner(id) | Self::OwnerOfProcess(id) => (first, Some(Class::Owner(id))),
        };
        Scope { resources, class }
    }
}
