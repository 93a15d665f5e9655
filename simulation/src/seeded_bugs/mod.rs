//! Seeded bugs that the checkers must catch: a checker that lets one through is broken.
//!
//! Faulty scripts run under the real library: only the simulated masters, or the connection, behave wrongly. Faulty
//! clients are variants of one small locker of this package, [`WrongLocker`]. Its correct variant must pass, so that
//! only the flaw is caught.

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

/// A seeded bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// No flaw in the small locker: the control.
    Sound,
    /// N / 2 votes are taken for a majority.
    HalfQuorum,
    /// A majority of the masters that answered is taken for a majority of all.
    ReachableQuorum,
    /// The validity is counted from the last reply.
    ValidityAfterReplies,
    /// Nothing is subtracted for drift.
    NoDrift,
    /// All attempts of one acquire use the same value.
    ReusedValue,
    /// The fencing token is the largest counter granted, without a confirmation.
    LargestCounter,
    /// An extension is counted whenever its votes arrive.
    LateExtension,
    /// The validity of an extension is counted from its replies.
    ExtensionAfterReplies,
    /// The holder is notified of a loss only when the next renewal is due.
    LossAtTick,
    /// The release deletes the key whatever its value.
    UnconditionalDelete,
    /// A counter above the token confirms the token.
    ConfirmAtLeast,
    /// An extension sets the expiry even if it is later already.
    ShorteningExtend,
    /// Restarted masters vote at once.
    GuardOff,
    /// The uptime that the restart guard uses is two seconds too high.
    UptimeAhead,
    /// Only the share of the TTL is subtracted for drift, and nothing for whole milliseconds.
    NoFixedDrift,
    /// The validity is counted from a clock reading after the send.
    ClockAfterSend,
    /// Dropping a lock or an acquire releases nothing.
    DropsWithoutRelease,
    /// The release is sent to a majority of the masters only.
    ReleasesMajority,
    /// Only the first lock of a process is renewed.
    RenewsOnlyFirst,
    /// The holder of a lock that was taken away is notified only at the end of its validity.
    LossAtDeadline,
    /// An acquire waits for twice as long as requested.
    OverstaysWait,
    /// Masters send no wake-up when a lock becomes free.
    NobodyWoken,
    /// Masters report a largest ticket that is one too small.
    TicketNotRaised,
    /// Holds of a class are counted and not identified.
    CountedHolds,
    /// The marker of a class lives as long as its newest hold.
    NewestExpiry,
    /// Readers leave no marker in the lock key.
    MarkerlessReaders,
    /// The first reader does not raise the counter.
    ReaderNoRaise,
    /// A counter above a reader's number confirms it as well.
    ReaderAtLeast,
    /// Restoring a reader does not raise a counter that has passed it.
    KeepNoRaise,
    /// An owner is restored although others have held the lock since.
    LateKeep,
    /// A downgrade does not raise the counter.
    DowngradeNoRaise,
    /// A writer that downgrades keeps writing until it is confirmed.
    DowngradeWritesOn,
    /// Readers pass waiting writers.
    ReadersPassWriters,
    /// Writers pass waiting readers.
    WritersFirst,
    /// A client that takes one resource passes a client that waits for several.
    SinglePassesMulti,
    /// Each of several resources uses its own counter.
    MultiOwnCounter,
    /// One of several resources is enough to confirm the token.
    ConfirmAnyKey,
    /// A master that grants only some of several resources counts as a vote.
    PartialGrantCounts,
    /// A further hold of an owner waits in the queue.
    OwnerInLine,
    /// A further hold of an owner confirms a fencing token of its own.
    OwnerWritesBack,
    /// A hold of an owner counts whatever fencing token the master shows.
    OwnerAnyNumber,
    /// A further hold of an owner is taken from a local count, whether the lock is held or not.
    LocalCountAnswers,
    /// A late client writes its note next to the lock of another.
    NoteOfAnybody,
    /// A release does not remove its note.
    NoteLeft,
    /// A refusal returns any note next to the lock as that of its holder.
    NoteOfLast,
    /// An observer of an election believes one master, and another one at the next read, so terms fall.
    TermOfOne,
    /// No flaw in the small client of values: the control.
    SoundRegister,
    /// A write ignores the counter.
    BlindWrite,
    /// Masters report that they have removed a value, and keep it.
    RemovedNowhere,
    /// A read does not raise the counter.
    ReadNoRaise,
    /// A read returns the value with the smallest fencing token.
    SmallerNumberRead,
    /// A master without a value is counted as having the initial one.
    MissingIsInitial,
    /// Values that another run of a server wrote are counted.
    NoRunStamp,
    /// A write is sent whenever a connection is made, to any run of a server, and is counted there.
    LateRefill,
    /// A write is counted on masters that were not read.
    WriteElsewhere,
    /// Each of several resources has a ticket of its own.
    TicketPerResource,
    /// A master overwrites foreign keys of another type.
    MgetWrongtype,
    /// Permits are counted and not identified.
    CountToK,
    /// A master offers its own lowest free slot.
    MasterPicksSlot,
    /// Semaphores have no queue.
    NoSemaphoreLine,
    /// The versions of a record repeat after a few changes.
    VersionsAgain,
    /// A store removes what a session wrote when that session ends.
    SessionIsLease,
    /// A client of a store without a clock does not wait for the end of a lease.
    EarlyEnd,
    /// Outstanding commits of a lost session are not made ineffective.
    Unsoiled,
    /// Masters that are stores vote at once after a restart.
    StoreGuardOff,
    /// Leases are written by the time that the server's clock has certainly reached, instead of the latest it may have
    /// reached.
    NoSlack,
    /// A session that was given up is used again: each reply is read as that of the next question.
    KeptSession,
    /// Clients of two sets need a majority of all masters together.
    JointUnion,
    /// Clients of two sets need a majority of the old masters only.
    JointOldOnly,
    /// Clients of two sets need a majority of the next masters only.
    JointNextOnly,
    /// Masters refuse no client.
    NextBesideOld,
    /// The operator waits only if it sees processes with the old masters.
    LeftoverLock,
    /// The fencing token is agreed on the old masters only.
    FenceOneSet,
    /// A counter above the fencing token confirms it.
    ConfirmAtLeastJoint,
    /// Counters are not carried over.
    NoCarry,
    /// Counters are read before the old masters are closed.
    CarryBeforeClose,
    /// Counters are read on one master.
    CarryMinority,
    /// Tickets are drawn from the old masters only.
    TicketOneSet,
    /// Only one old master is closed.
    CloseMinority,
    /// The next masters are opened at once.
    OpenWithoutWait,
    /// A closed master admits clients of the next masters.
    ClosingOpens,
    /// A client that is shut out may extend its locks.
    ExtendUnrefused,
    /// Connections of clients that are shut out are not closed.
    MarkWithoutKill,
    /// Masters that are no longer used are restarted instead of stopped for good. They lose their generation markers,
    /// and no client restores these.
    MarkLostOnRestart,
    /// A dead master is replaced at once, by configuring another one.
    ReplaceDeadAtOnce,
    /// A master that was replaced in this way comes back.
    DeadComesBack,
    /// Another server that has been up for long is taken for the previous one.
    WarmSpare,
    /// Values are not carried over: clients of the next masters find none.
    ValuesLeftBehind,
    /// The operator takes a value that one master shows for that of a majority.
    CarryOneShown,
    /// A counter is kept for a day, even if it is ahead of the clock.
    CounterForADay,
}

impl Flaw {
    /// Every seeded bug that drawn scenarios can show. `Sound` is not among them. Neither is `ConfirmAnyKey`: it shows
    /// only if one of several resources is lost during a confirmation, and has scenarios of its own.
    pub const ALL: [Self; 57] = [
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
    ];

    /// The seeded bugs of stores, for scenarios with stores.
    pub const OF_STORES: [Self; 7] = [
        Self::VersionsAgain,
        Self::SessionIsLease,
        Self::EarlyEnd,
        Self::Unsoiled,
        Self::StoreGuardOff,
        Self::NoSlack,
        Self::KeptSession,
    ];

    /// Whether the bug is about stores.
    pub fn is_of_stores(self) -> bool {
        Self::OF_STORES.contains(&self)
    }

    /// The flaw in the driver for stores.
    pub(crate) fn of_driver(self) -> Option<StoreFlaw> {
        match self {
            Self::EarlyEnd => Some(StoreFlaw::EarlyEnd),
            Self::Unsoiled => Some(StoreFlaw::Unsoiled),
            Self::NoSlack => Some(StoreFlaw::NoSlack),
            _ => None,
        }
    }

    /// The name, for commands and tables.
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
            of_changes if of_changes.is_of_changes() => of_changes.name_at_changes(),
            of_stores => of_stores.name_at_stores(),
        }
    }

    /// The names of the bugs of stores.
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

    /// The seeded bug of that name.
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

    /// Whether the small locker replaces the library.
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
    /// Whether the bug is about values under locks: it shows only in scenarios with values.
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
    /// Whether the bug is about notes.
    pub fn is_of_notes(self) -> bool {
        matches!(
            self,
            Self::NoteOfAnybody | Self::NoteLeft | Self::NoteOfLast | Self::TermOfOne
        )
    }
}

impl Flaw {
    /// Whether the bug is about several resources, readers, owners or semaphores: it shows only in scenarios with them.
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
    /// Whether the bug is about semaphores.
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
