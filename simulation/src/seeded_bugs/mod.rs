//! Seeded bugs (wrong implementations) that the checkers must catch. If a seeded bug is not caught, a checker is wrong.
//!
//! Some bugs are in the simulated masters, in connections or in operators; the clients then use the real library. Other
//! bugs are variants of a small client of this package, [`WrongLocker`], which replaces the library. One variant of
//! this client has no flaw, and must break no rule. So if another variant breaks a rule, the cause is its flaw.

mod as_it_stands;
mod counted;
mod locker;
mod masters;
mod mget;
mod notes;
mod permits;
mod register;
mod scripts;
mod tickets;
mod turn;
mod votes;

use std::fmt;

use quorate::node::store::StoreFlaw;

pub(crate) use as_it_stands::AsItStands;
pub(crate) use counted::CountedHolds;
pub(crate) use locker::WrongLocker;
pub(crate) use notes::wrong_note;
pub(crate) use permits::counted_place;
pub(crate) use register::{WrongRegister, wrong_value};
pub(crate) use scripts::WrongScripts;

/// A seeded bug. The comment of each variant describes the faulty behaviour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// No bug: the small client without a flaw. It must break no rule.
    Sound,
    /// A client accepts half of the masters as a majority.
    HalfQuorum,
    /// A client needs only a majority of the masters that have answered, instead of a majority of all masters.
    ReachableQuorum,
    /// A client counts the validity of a lock from the last reply instead of from the request.
    ValidityAfterReplies,
    /// A client does not shorten the validity of a lock to allow for clock drift.
    NoDrift,
    /// All attempts of one acquire use the same lock value, instead of a new random value for each attempt.
    ReusedValue,
    /// The largest counter among the grants becomes the fencing token, without the confirmation of a majority.
    LargestCounter,
    /// A client accepts an extension even if the votes for it arrive after the old validity has ended.
    LateExtension,
    /// A client counts the validity of an extended lock from the replies instead of from the request.
    ExtensionAfterReplies,
    /// When the validity ends, the holder is not notified immediately, but only at the time of the next renewal.
    LossAtTick,
    /// A release deletes the lock key even if the key contains another lock value.
    UnconditionalDelete,
    /// A master confirms a fencing token even if the master's fencing counter is above the token.
    ConfirmAtLeast,
    /// An extension sets the expiry of the key even if this shortens the lease.
    ShorteningExtend,
    /// Restarted masters vote immediately, because the restart guard is off.
    GuardOff,
    /// The restart guard receives an uptime that is two seconds longer than the master's real uptime.
    UptimeAhead,
    /// To allow for clock drift, a client shortens the validity only by a share of the TTL. It does not subtract the
    /// fixed amount that allows for rounding to milliseconds.
    NoFixedDrift,
    /// The client reads the clock after it has sent the request, and counts the validity from this reading. A correct
    /// client reads the clock before it sends the request.
    ClockAfterSend,
    /// Dropping a lock or an acquire future releases nothing.
    DropsWithoutRelease,
    /// A client sends a release to only a majority of the masters.
    ReleasesMajority,
    /// Only the first lock that a client acquires is renewed.
    RenewsOnlyFirst,
    /// The holder of a force-released lock is notified only when the validity ends.
    LossAtDeadline,
    /// An acquire waits for twice as long as requested.
    OverstaysWait,
    /// Masters send no wake-up when a lock becomes free.
    NobodyWoken,
    /// When a master refuses a waiter, it reports a ticket that is one below the largest ticket in its queue.
    TicketNotRaised,
    /// For a lock that readers or one owner share, a master stores only the number of holds, and not the lock value of
    /// each hold.
    CountedHolds,
    /// The lock key of a shared lock expires together with the hold that was granted or extended last. A correct key
    /// expires together with the hold that ends last.
    NewestExpiry,
    /// Readers store no marker in the lock key, so the lock looks free to writers.
    MarkerlessReaders,
    /// The grant to the first reader of a lock does not raise the fencing counter.
    ReaderNoRaise,
    /// A master confirms a reader's fencing token even if the master's counter is above the token.
    ReaderAtLeast,
    /// When a master restores the lost hold of a reader with an old fencing token, it does not raise its fencing
    /// counter.
    KeepNoRaise,
    /// A master restores an owner's lost hold, although other clients have held the lock since the loss.
    LateKeep,
    /// A downgrade does not raise the fencing counter.
    DowngradeNoRaise,
    /// A writer that downgrades still believes that it is a writer until the downgrade is confirmed.
    DowngradeWritesOn,
    /// Readers overtake waiting writers.
    ReadersPassWriters,
    /// Writers overtake waiting readers.
    WritersFirst,
    /// A client that wants one resource overtakes a client that waits for several.
    SinglePassesMulti,
    /// A master gives each resource of a lock on several resources its own counter value, instead of one value for all.
    MultiOwnCounter,
    /// A master confirms the fencing token of a lock on several resources, even if it has lost the lock on some of
    /// them.
    ConfirmAnyKey,
    /// A master that can grant only some of several resources replies as if it had granted all of them.
    PartialGrantCounts,
    /// An owner that already holds a lock, and acquires it again, waits in the queue behind other clients.
    OwnerInLine,
    /// A master confirms a new fencing token for an owner that already has a hold with an older token.
    OwnerWritesBack,
    /// A master extends or restores a hold of an owner, even if the owner's lock has a newer fencing token than this
    /// hold.
    OwnerAnyNumber,
    /// If an owner in a process has a hold and acquires the lock again, the process does not ask the masters. So the
    /// process does not notice if the masters have lost the owner's lock.
    LocalCountAnswers,
    /// A master accepts a note that a former holder sends late, and stores it as the note of the present holder.
    NoteOfAnybody,
    /// A release does not delete the note of the released lock.
    NoteLeft,
    /// A refusal contains the stored note even if an earlier holder wrote it.
    NoteOfLast,
    /// An observer of an election reports the reply of each single master, without a majority. So the reported terms
    /// can decrease.
    TermOfOne,
    /// No bug: the correct variant of the small client that reads and writes values under locks. It must break no rule.
    SoundRegister,
    /// A master accepts a write of a value although the master's fencing counter is above the writer's fencing token.
    BlindWrite,
    /// Masters report that they have removed a value, but keep it.
    RemovedNowhere,
    /// A read of a value does not raise the fencing counter.
    ReadNoRaise,
    /// A read returns the value with the smallest fencing token instead of the largest.
    SmallerNumberRead,
    /// A client counts a master without a value as a master with the initial value.
    MissingIsInitial,
    /// A client counts values that a master stored before its last restart.
    NoRunStamp,
    /// A client counts its write on a master that has restarted since the client read the value there.
    LateRefill,
    /// A client counts its write on a master from which it has read no value.
    WriteElsewhere,
    /// Each resource of a lock on several resources has a ticket of its own, instead of one ticket for all.
    TicketPerResource,
    /// If another program's value under the lock key is not a string, a grant overwrites it.
    MgetWrongtype,
    /// Masters only count the held permits of a semaphore, instead of assigning a slot to each permit.
    CountToK,
    /// Each master offers the client only one slot of the semaphore: the lowest slot that is free on this master.
    MasterPicksSlot,
    /// Semaphores have no queue.
    NoSemaphoreLine,
    /// The version numbers of a store's record repeat after a few changes.
    VersionsAgain,
    /// When a session ends, the store removes the records that the session wrote.
    SessionIsLease,
    /// A client of a store without a clock considers another client's lease expired after a third of the lease time.
    EarlyEnd,
    /// After the loss of a session, a client does not rewrite the records that an unanswered commit may still change.
    /// Such a commit may then take effect later.
    Unsoiled,
    /// Masters that are stores vote immediately after a restart.
    StoreGuardOff,
    /// A client considers its estimate of a store's clock exact. If the estimate is too low, a lease in the store
    /// expires too early.
    NoSlack,
    /// A client uses a session again that it abandoned during a request. It then treats each answer as the answer to
    /// the next request.
    KeptSession,
    /// Clients that use the old and the new masters need a majority of all masters together, instead of a majority of
    /// each set.
    JointUnion,
    /// Clients that use the old and the new masters need only a majority of the old masters.
    JointOldOnly,
    /// Clients that use the old and the new masters need only a majority of the new masters.
    JointNextOnly,
    /// Masters ignore their generation markers, so they refuse no client.
    NextBesideOld,
    /// If no client that uses just the old masters is connected, the operator opens the new masters without a wait. So
    /// it ignores the leases of disconnected clients.
    LeftoverLock,
    /// While masters are replaced, only the old masters decide the fencing token.
    FenceOneSet,
    /// While masters are replaced, a master confirms a fencing token even if the master's counter is above the token.
    ConfirmAtLeastJoint,
    /// Masters ignore the fencing counters that the operator copies to them.
    NoCarry,
    /// The operator reads the fencing counters for the new masters before it closes the old masters.
    CarryBeforeClose,
    /// The operator reads the fencing counters for the new masters from only one old master.
    CarryMinority,
    /// While masters are replaced, waiters draw their tickets on the old masters only.
    TicketOneSet,
    /// The operator closes only one old master, but considers all old masters closed.
    CloseMinority,
    /// The operator opens the new masters immediately, without waiting until old leases have ended.
    OpenWithoutWait,
    /// A closed master already votes for clients that need an open master.
    ClosingOpens,
    /// A master extends the locks of a client even if the master no longer admits the client.
    ExtendUnrefused,
    /// The operator does not close the connections of clients that a master no longer admits.
    MarkWithoutKill,
    /// Replaced masters restart, although an operator should have stopped them for good. They lose their generation
    /// markers, and no client restores the markers.
    MarkLostOnRestart,
    /// A master that has died is replaced immediately by reconfiguring the clients, without the steps of an operator.
    ReplaceDeadAtOnce,
    /// A master that has died is replaced by reconfiguring the clients, without the steps of an operator. Later the
    /// dead master starts again.
    DeadComesBack,
    /// A restarted master reports its old run id, and an uptime that includes the time before the restart. Clients do
    /// not notice the restart.
    WarmSpare,
    /// Masters report to the operator that they store no values. So the operator copies no values to the new masters.
    ValuesLeftBehind,
    /// The operator copies a value that it has read from a single master, instead of a value on which a majority
    /// agrees.
    CarryOneShown,
    /// The operator copies values without taking their locks, so clients may write while the operator copies.
    CarryWithoutLock,
    /// Masters delete each unused fencing counter after a day, even if the counter is ahead of the master's clock.
    CounterForADay,
    /// A grant never renews the expiry of a fencing counter. Correct masters renew the expiry with the first grant in
    /// each period of 1,000 s.
    CounterKeepsExpiry,
}

impl Flaw {
    /// The seeded bugs that randomly drawn scenarios can reveal. This list does not contain:
    ///
    /// - the bugs in [`OF_STORES`](Self::OF_STORES) and [`OF_CHANGES`](Self::OF_CHANGES);
    /// - `ConfirmAnyKey`, `LateRefill` and `WriteElsewhere`, which only hand-written scenarios reveal
    ///   (`tests/all/kinds.rs`, `tests/all/values.rs`).
    pub const ALL: [Self; 58] = [
        Self::HalfQuorum,
        Self::ReachableQuorum,
        Self::ValidityAfterReplies,
        Self::NoDrift,
        Self::ReusedValue,
        Self::LargestCounter,
        Self::LateExtension,
        Self::ExtensionAfterReplies,
        Self::LossAtTick,
        Self::UnconditionalDelete,
        Self::ConfirmAtLeast,
        Self::ShorteningExtend,
        Self::GuardOff,
        Self::UptimeAhead,
        Self::NoFixedDrift,
        Self::ClockAfterSend,
        Self::DropsWithoutRelease,
        Self::ReleasesMajority,
        Self::RenewsOnlyFirst,
        Self::LossAtDeadline,
        Self::OverstaysWait,
        Self::NobodyWoken,
        Self::TicketNotRaised,
        Self::CountedHolds,
        Self::NewestExpiry,
        Self::MarkerlessReaders,
        Self::ReaderNoRaise,
        Self::ReaderAtLeast,
        Self::KeepNoRaise,
        Self::LateKeep,
        Self::DowngradeNoRaise,
        Self::DowngradeWritesOn,
        Self::ReadersPassWriters,
        Self::WritersFirst,
        Self::SinglePassesMulti,
        Self::MultiOwnCounter,
        Self::PartialGrantCounts,
        Self::OwnerInLine,
        Self::OwnerWritesBack,
        Self::OwnerAnyNumber,
        Self::LocalCountAnswers,
        Self::BlindWrite,
        Self::ReadNoRaise,
        Self::SmallerNumberRead,
        Self::MissingIsInitial,
        Self::NoRunStamp,
        Self::RemovedNowhere,
        Self::NoteOfAnybody,
        Self::NoteLeft,
        Self::NoteOfLast,
        Self::TermOfOne,
        Self::TicketPerResource,
        Self::MgetWrongtype,
        Self::CountToK,
        Self::MasterPicksSlot,
        Self::NoSemaphoreLine,
        Self::CounterForADay,
        Self::CounterKeepsExpiry,
    ];

    /// The seeded bugs in stores. Only scenarios with stores can reveal them.
    pub const OF_STORES: [Self; 7] = [
        Self::VersionsAgain,
        Self::SessionIsLease,
        Self::EarlyEnd,
        Self::Unsoiled,
        Self::StoreGuardOff,
        Self::NoSlack,
        Self::KeptSession,
    ];

    /// Whether this bug concerns stores.
    pub fn is_of_stores(self) -> bool {
        Self::OF_STORES.contains(&self)
    }

    /// The flaw that this bug puts into the library's driver for stores; `None` if the driver works correctly.
    pub(crate) fn of_driver(self) -> Option<StoreFlaw> {
        match self {
            Self::EarlyEnd => Some(StoreFlaw::EarlyEnd),
            Self::Unsoiled => Some(StoreFlaw::Unsoiled),
            Self::NoSlack => Some(StoreFlaw::NoSlack),
            _ => None,
        }
    }

    /// The name of the bug, for commands and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sound => "sound",
            Self::HalfQuorum => "half-quorum",
            Self::ReachableQuorum => "reachable-quorum",
            Self::ValidityAfterReplies => "validity-after-replies",
            Self::NoDrift => "no-drift",
            Self::ReusedValue => "reused-value",
            Self::LargestCounter => "largest-counter",
            Self::LateExtension => "late-extension",
            Self::ExtensionAfterReplies => "extension-after-replies",
            Self::LossAtTick => "loss-at-tick",
            Self::UnconditionalDelete => "unconditional-delete",
            Self::ConfirmAtLeast => "confirm-at-least",
            Self::ShorteningExtend => "shortening-extend",
            Self::GuardOff => "guard-off",
            Self::UptimeAhead => "uptime-ahead",
            Self::NoFixedDrift => "no-fixed-drift",
            Self::ClockAfterSend => "clock-after-send",
            Self::DropsWithoutRelease => "drops-without-release",
            Self::ReleasesMajority => "releases-majority",
            Self::RenewsOnlyFirst => "renews-only-first",
            Self::LossAtDeadline => "loss-at-deadline",
            Self::OverstaysWait => "overstays-wait",
            Self::NobodyWoken => "nobody-woken",
            Self::TicketNotRaised => "ticket-not-raised",
            Self::CountedHolds => "counted-holds",
            Self::NewestExpiry => "newest-expiry",
            Self::MarkerlessReaders => "markerless-readers",
            Self::ReaderNoRaise => "reader-no-raise",
            Self::ReaderAtLeast => "reader-at-least",
            Self::KeepNoRaise => "keep-no-raise",
            Self::LateKeep => "late-keep",
            Self::DowngradeNoRaise => "downgrade-no-raise",
            Self::DowngradeWritesOn => "downgrade-writes-on",
            Self::ReadersPassWriters => "readers-pass-writers",
            Self::WritersFirst => "writers-first",
            Self::SinglePassesMulti => "single-passes-multi",
            Self::MultiOwnCounter => "multi-own-counter",
            Self::ConfirmAnyKey => "confirm-any-key",
            Self::PartialGrantCounts => "partial-grant-counts",
            Self::OwnerInLine => "owner-in-line",
            Self::OwnerWritesBack => "owner-writes-back",
            Self::OwnerAnyNumber => "owner-any-number",
            Self::LocalCountAnswers => "local-count-answers",
            Self::NoteOfAnybody => "note-of-anybody",
            Self::NoteLeft => "note-left",
            Self::NoteOfLast => "note-of-last",
            Self::TermOfOne => "term-of-one",
            Self::SoundRegister => "sound-register",
            Self::BlindWrite => "blind-write",
            Self::RemovedNowhere => "removed-nowhere",
            Self::ReadNoRaise => "read-no-raise",
            Self::SmallerNumberRead => "smaller-number-read",
            Self::MissingIsInitial => "missing-is-initial",
            Self::NoRunStamp => "no-run-stamp",
            Self::LateRefill => "late-refill",
            Self::WriteElsewhere => "write-elsewhere",
            Self::TicketPerResource => "ticket-per-resource",
            Self::MgetWrongtype => "mget-wrongtype",
            Self::CountToK => "count-to-k",
            Self::MasterPicksSlot => "master-picks-slot",
            Self::NoSemaphoreLine => "no-semaphore-line",
            Self::CounterForADay => "counter-for-a-day",
            Self::CounterKeepsExpiry => "counter-keeps-expiry",
            of_changes if of_changes.is_of_changes() => of_changes.name_at_changes(),
            of_stores => of_stores.name_at_stores(),
        }
    }

    /// The name of a seeded bug in stores, for commands and tables.
    fn name_at_stores(self) -> &'static str {
        match self {
            Self::VersionsAgain => "versions-again",
            Self::SessionIsLease => "session-is-lease",
            Self::EarlyEnd => "early-end",
            Self::Unsoiled => "unsoiled",
            Self::StoreGuardOff => "store-guard-off",
            Self::NoSlack => "no-slack",
            _ => "kept-session",
        }
    }

    /// Returns the seeded bug with this name; `None` if there is none.
    pub fn by_name(name: &str) -> Option<Self> {
        let all = Self::ALL.into_iter().chain(Self::OF_STORES);
        let all = all.chain(Self::OF_CHANGES).chain([
            Self::Sound,
            Self::ConfirmAnyKey,
            Self::SoundRegister,
            Self::LateRefill,
            Self::WriteElsewhere,
        ]);
        all.into_iter().find(|flaw| flaw.name() == name)
    }

    /// Whether this bug is a variant of the small client [`WrongLocker`], which then replaces the library.
    pub(crate) fn is_locker(self) -> bool {
        !self.is_of_kinds()
            && !self.is_of_values()
            && !self.is_of_notes()
            && !self.is_of_stores()
            && !self.is_of_changes()
            && !matches!(
                self,
                Self::UnconditionalDelete
                    | Self::ConfirmAtLeast
                    | Self::ShorteningExtend
                    | Self::GuardOff
                    | Self::UptimeAhead
                    | Self::NobodyWoken
                    | Self::TicketNotRaised
            )
    }
}

impl Flaw {
    /// Whether this bug concerns values under locks. Only scenarios with values can reveal it.
    pub fn is_of_values(self) -> bool {
        matches!(
            self,
            Self::SoundRegister
                | Self::BlindWrite
                | Self::RemovedNowhere
                | Self::ReadNoRaise
                | Self::SmallerNumberRead
                | Self::MissingIsInitial
                | Self::NoRunStamp
                | Self::LateRefill
                | Self::WriteElsewhere
        )
    }
}

impl Flaw {
    /// Whether this bug concerns notes or elections. Only scenarios with notes or elections can reveal it.
    pub fn is_of_notes(self) -> bool {
        matches!(
            self,
            Self::NoteOfAnybody | Self::NoteLeft | Self::NoteOfLast | Self::TermOfOne
        )
    }
}

impl Flaw {
    /// Whether this bug concerns locks on several resources, readers, owners or semaphores. Only scenarios with such
    /// locks can reveal it.
    pub fn is_of_kinds(self) -> bool {
        matches!(
            self,
            Self::CountedHolds
                | Self::NewestExpiry
                | Self::MarkerlessReaders
                | Self::ReaderNoRaise
                | Self::ReaderAtLeast
                | Self::KeepNoRaise
                | Self::LateKeep
                | Self::DowngradeNoRaise
                | Self::DowngradeWritesOn
                | Self::ReadersPassWriters
                | Self::WritersFirst
                | Self::SinglePassesMulti
                | Self::MultiOwnCounter
                | Self::ConfirmAnyKey
                | Self::PartialGrantCounts
                | Self::OwnerInLine
                | Self::OwnerWritesBack
                | Self::OwnerAnyNumber
                | Self::LocalCountAnswers
                | Self::TicketPerResource
                | Self::MgetWrongtype
                | Self::CountToK
                | Self::MasterPicksSlot
                | Self::NoSemaphoreLine
        )
    }
}

impl Flaw {
    /// Whether this bug concerns semaphores.
    pub(crate) fn is_of_permits(self) -> bool {
        matches!(
            self,
            Self::CountToK | Self::MasterPicksSlot | Self::NoSemaphoreLine
        )
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
