//! The events of a history, the trait of all promises, and a breach of a promise.
//!
//! Clients, holds and resources are numbers, so that a checker needs no names. A checker writes `$0`, `$1`, .. for a
//! party and `$place` for a resource into the text of a breach, and the caller puts the names in
//! ([`Breach::describe`]).

/// When an event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    /// The time, in any unit. All events of a history have the same unit and origin.
    pub time: u64,
    /// The place of the event in the order of all events. Two events with the same number have no order. In a history
    /// that has only times, this is the time.
    pub order: u64,
}

impl Moment {
    /// A moment in a history whose events are ordered only by their times.
    pub fn at(time: u64) -> Self {
        Self { time, order: time }
    }
}

/// Which other holds may share the resources of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// No other hold may share the resources.
    Exclusive,
    /// Other readers may share the resources.
    Readers,
    /// Other holds of the owner with this number may share the resources.
    Owner(u64),
}

impl Class {
    /// Whether holds of these two classes may share a resource.
    pub fn may_share_with(self, other: Self) -> bool {
        self != Self::Exclusive && self == other
    }
}

/// A permit of a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permit {
    /// The number of the semaphore.
    pub semaphore: u64,
    /// The slot of this permit, counted from 0; `None` if the holder does not know it.
    pub slot: Option<u64>,
    /// The number of permits of the semaphore. If clients configure different numbers, this is the largest of them.
    pub permits: u64,
}

/// A lock that a client has obtained.
#[derive(Clone, Copy, Debug)]
pub struct Hold<'a> {
    /// The number of this hold. Every hold has its own.
    pub id: u64,
    /// The number of the client process.
    pub client: u64,
    /// The number of the task that obtained the lock.
    pub task: u64,
    /// The locked resources. A slot of a semaphore is a resource of its own.
    pub places: &'a [u64],
    /// Which other holds may share the resources.
    pub class: Class,
    /// The permit; `None` if the lock is not a permit of a semaphore.
    pub permit: Option<Permit>,
    /// When the attempt began that obtained the lock.
    pub began: Moment,
    /// The fencing token; `None` if the lock has none.
    pub token: Option<u64>,
    /// The time at which the validity ends, as it is known at the time of the event.
    pub until: u64,
    /// The text with which the holder describes itself to others; `None` if it does not. It is known only in
    /// [`Event::Obtained`].
    pub note: Option<&'a str>,
}

impl Hold<'_> {
    /// The queues in which clients wait for the resources of this hold.
    pub(crate) fn queues(&self) -> impl Iterator<Item = Queue> {
        let semaphore = self.permit.map(|permit| Queue::Semaphore(permit.semaphore));
        let places = self.places.iter().copied().map(Queue::Place);
        semaphore
            .into_iter()
            .chain(places.filter(move |_| semaphore.is_none()))
    }
}

/// The clients that wait for one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Queue {
    /// The clients that wait for this resource.
    Place(u64),
    /// The clients that wait for a permit of this semaphore.
    Semaphore(u64),
}

/// A call of the library that reads or changes the value under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueCall {
    /// Creates a quota with this number of units. Zero creates a record of the last period instead.
    Create(u64),
    /// Takes this number of units of a quota.
    Take(u64),
    /// Reads how many units of a quota are left.
    ReadUnits,
    /// Does the work of the current period, unless it was done.
    Work,
    /// Removes the value.
    Remove,
}

/// The result of a call about the value under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueResult {
    /// The value was created.
    Created,
    /// The value was removed from every master.
    Removed,
    /// Units were taken from the quota. The number is how many units are left in it afterwards.
    Taken(u64),
    /// The number of units that are left in the quota, after a call that took none.
    UnitsLeft(u64),
    /// Work that is done once per period: the caller must do the work of the current period. The number is the fencing
    /// token of the caller's lock.
    WorkDue(u64),
    /// Work that is done once per period: the work of the current period was done before this call.
    AlreadyDone,
    /// The value does not exist, or the masters have lost it.
    Lost,
    /// The client does not know whether the call has written the value.
    Unknown,
    /// The call has failed, and has not changed the value.
    NotChanged,
}

/// Something that happens to the value under a lock.
#[derive(Clone, Copy, Debug)]
pub enum ValueEvent<'a> {
    /// A task calls the library. A task makes one call at a time.
    Called {
        /// The number of the task.
        task: u64,
        /// The name of the caller in a breach.
        caller: Party,
        /// The request of the task.
        call: ValueCall,
        /// How far the client is in a change of the masters. At an odd step, it also uses masters to which the value may
        /// not have been copied yet.
        step: u8,
    },
    /// This task sends the first request of its call that writes the value, under this fencing token.
    Written(u64, u64),
    /// A master stores these bytes, or is asked to store them, under this fencing token.
    Stored(u64, &'a [u8]),
    /// The call of this task has returned.
    Returned(u64, ValueResult),
}

/// Something that happened to a client.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A task asks for a lock. It asks until [`Event::Answered`].
    Asked {
        /// The number of the task. A task asks for one lock at a time.
        task: u64,
        /// The queues of all locks that the task asks for.
        queues: &'a [Queue],
        /// Whether the task waits for its turn. If not, it makes only one attempt.
        waits: bool,
    },
    /// A task that asks for locks sends a request to a master.
    Tried {
        /// The number of the task.
        task: u64,
        /// The queues of all locks that the task asks for.
        queues: &'a [Queue],
    },
    /// A task that asked for a lock was refused, because another client holds the lock. [`Event::Answered`] follows.
    Refused {
        /// The number of the task.
        task: u64,
        /// The number of the client process.
        client: u64,
        /// How the task wanted to hold the locks.
        class: Class,
        /// The queues of all locks that the task asked for.
        queues: &'a [Queue],
    },
    /// A task asks no more: it has an answer, or has given up.
    Answered {
        /// The number of the task.
        task: u64,
    },
    /// A client has obtained a lock.
    Obtained(&'a Hold<'a>),
    /// The validity of a hold now ends later, at [`Hold::until`].
    Extended(&'a Hold<'a>),
    /// The client does not believe any more that it holds the lock: it is about to release the lock, was notified of
    /// the loss, or its process has ended. May be reported more than once for a hold.
    Ended(&'a Hold<'a>),
    /// A client begins to observe an election. It knows nothing of what it has observed before.
    ObservationStarted {
        /// The number of the observer.
        observer: u64,
    },
    /// An observer was notified of a leader.
    LeaderObserved {
        /// The number of the observer.
        observer: u64,
        /// The resource that the leader has locked.
        place: u64,
        /// The leader's fencing token.
        term: u64,
        /// The note of the leader; `None` if the observer did not receive it.
        note: Option<&'a str>,
    },
    /// Something happens to the value of a resource.
    Value {
        /// The resource.
        place: u64,
        /// The event.
        event: ValueEvent<'a>,
    },
    /// A master has restarted.
    MasterRestarted {
        /// The number of the master.
        master: u64,
        /// Whether the master has lost data.
        lost_data: bool,
    },
    /// Nobody used the masters for days. They may have forgotten everything that expires.
    UnusedForDays,
}

/// Somebody who took part in a breach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// A hold or an attempt to obtain one, and its client.
    Hold {
        /// The number of the hold.
        id: u64,
        /// The number of the client process.
        client: u64,
    },
    /// An observer of an election.
    Observer(u64),
    /// A client process.
    Client(u64),
}

impl Party {
    pub(crate) fn of(hold: &Hold<'_>) -> Self {
        Self::Hold {
            id: hold.id,
            client: hold.client,
        }
    }
}

/// A breach of a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The time at which the breach began.
    pub from: u64,
    /// The time at which the breach ended.
    pub to: u64,
    /// The resource; `None` if the breach concerns none.
    pub place: Option<u64>,
    /// The clients that took part, the earlier one first.
    pub parties: Vec<Party>,
    /// The description, with `$0`, `$1`, .. for the parties and `$place` for the resource.
    pub text: String,
    /// The assumption of the promise: if it was false, the breach is excused.
    pub assumption: Assumption,
}

/// An assumption that a promise needs. The caller knows whether it was true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assumption {
    /// The promise needs no assumption, so nothing excuses a breach.
    Nothing,
    /// Masters lose no locks, and nobody force-releases a lock. If this is false, two clients may hold a lock.
    LocksAreKept,
    /// No fault disturbs the clients and the masters.
    NoFaults,
}

impl Breach {
    /// The description, with the names that `party` and `place` return.
    pub fn describe(
        &self,
        party: impl Fn(Party) -> String,
        place: impl Fn(u64) -> String,
    ) -> String {
        let mut text = self.text.clone();
        if let Some(number) = self.place {
            text = text.replace("$place", &place(number));
        }
        for (index, one) in self.parties.iter().enumerate() {
            text = text.replace(&format!("${index}"), &party(*one));
        }
        text
    }
}

/// A promise, and its checker. The checker receives the events of a history in their order.
pub trait Promise {
    /// Receives an event, and returns the breaches that it reveals.
    fn observe(&mut self, moment: Moment, event: &Event<'_>) -> Vec<Breach>;

    /// The number of cases that were judged. A case is a situation in which the promise could have been broken.
    fn judged(&self) -> u64;

    /// A few words about the cases that were judged.
    fn summary(&self) -> String;
}

/// Two promises that are reported under one name.
impl<A: Promise, B: Promise> Promise for (A, B) {
    fn observe(&mut self, moment: Moment, event: &Event<'_>) -> Vec<Breach> {
        let mut breaches = self.0.observe(moment, event);
        breaches.extend(self.1.observe(moment, event));
        breaches
    }

    fn judged(&self) -> u64 {
        self.0.judged() + self.1.judged()
    }

    fn summary(&self) -> String {
        format!("{}; {}", self.0.summary(), self.1.summary())
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Histories made by hand.

    use super::*;

    pub(crate) const PLACE: [u64; 1] = [4];

    /// An exclusive hold of one resource. The attempt began one unit of time before `from`.
    pub(crate) fn hold(id: u64, from: u64, until: u64, token: u64) -> Hold<'static> {
        Hold {
            id,
            client: id,
            task: id,
            places: &PLACE,
            class: Class::Exclusive,
            permit: None,
            began: Moment::at(from.saturating_sub(1)),
            token: Some(token),
            until,
            note: None,
        }
    }

    /// Plays a history, and returns the texts of all breaches.
    pub(crate) fn breaches<P: Promise>(
        promise: &mut P,
        history: &[(u64, Event<'_>)],
    ) -> Vec<String> {
        let mut breaches = Vec::new();
        for (time, event) in history {
            breaches.extend(promise.observe(Moment::at(*time), event));
        }
        let name = |party| match party {
            Party::Hold { id, .. } => format!("h{id}"),
            Party::Observer(number) => format!("o{number}"),
            Party::Client(number) => format!("c{number}"),
        };
        let text = |breach: &Breach| breach.describe(name, |place| format!("r{place}"));
        breaches.iter().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_of_a_breach_contains_the_names_of_its_parties_and_of_its_resource() {
        let breach = Breach {
            from: 1,
            to: 2,
            place: Some(7),
            parties: vec![Party::Observer(3), Party::Hold { id: 4, client: 5 }],
            text: "$0 and $1 share $place".to_owned(),
            assumption: Assumption::Nothing,
        };
        let name = |party| match party {
            Party::Observer(number) => format!("o{number}"),
            Party::Hold { id, client } => format!("h{id} of {client}"),
            Party::Client(number) => format!("c{number}"),
        };
        let text = breach.describe(name, |place| format!("r{place}"));
        assert_eq!(text, "o3 and h4 of 5 share r7");
    }
}
